// Status and Result: how every fallible function inside Tessera reports an error.
//
// A Status is a code plus one sentence of the form "<what>: got X; allowed Y; do Z". The codes are those of the public
// C header, so a status crosses the ABI without translation. Nothing in the library throws across a module boundary,
// prints, exits or aborts.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace tessera {

// Values equal TESSERA_* in include/tessera/tessera.h (static_assert in src/api/info.cpp).
enum class Code : int {
  kOk = 0,
  kInvalidArgument = 1,    // the caller's description contradicts itself or is out of range
  kUnsupported = 2,        // valid, but no kernel / architecture / type of this build covers it
  kWorkspaceTooSmall = 3,  // workspace missing, too small or misaligned
  kIo = 4,                 // a file or the network could not be read
  kBadFile = 5,            // a file was read and its content is malformed
  kDevice = 6,             // the CUDA runtime or driver reported an error
  kInternal = 7,           // a broken invariant of the library itself
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string text) : code_(code), text_(std::move(text)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& text() const { return text_; }

 private:
  Code code_ = Code::kOk;
  std::string text_;
};

// Either a value or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : state_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return std::holds_alternative<T>(state_); }
  T& value() & { return std::get<T>(state_); }
  const T& value() const& { return std::get<T>(state_); }
  T&& value() && { return std::get<T>(std::move(state_)); }
  Status status() const { return ok() ? Status{} : std::get<Status>(state_); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace tessera

#define TESSERA_RETURN_IF_ERROR(expr)                              \
  do {                                                             \
    if (::tessera::Status tessera_s_ = (expr); !tessera_s_.ok()) { \
      return tessera_s_;                                           \
    }                                                              \
  } while (0)
