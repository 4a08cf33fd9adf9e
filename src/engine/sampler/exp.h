// e^x from IEEE double operations only.
#pragma once

namespace tessera {

// e^x for x <= 0, within 1 ulp; exactly 1 at 0, exactly 0 below -708 (where e^x nears the subnormal range) and at -inf.
// The C library's exp differs from version to version in the last bit, and that bit could move a sampled token; this
// one uses +, -, * and one float-to-integer conversion, which IEEE 754 defines bit for bit. Requires x not NaN and x <=
// 0.
double exp_nonpositive(double x);

}  // namespace tessera
