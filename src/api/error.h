// Status to tessera_status and tessera_error: the last step of every function of the C interface.
#pragma once

#include <cstring>
#include <string>

#include "base/status.h"
#include "tessera/tessera.h"

namespace tessera {

// Fills *error (if not NULL) and returns the status code. A sentence that does not fit is cut.
inline tessera_status report(const Status& status, tessera_error* error) {
  const auto code = static_cast<tessera_status>(status.code());
  if (error != nullptr) {
    error->code = code;
    const size_t length = status.text().copy(error->text, sizeof(error->text) - 1);
    error->text[length] = '\0';
  }
  return code;
}

}  // namespace tessera
