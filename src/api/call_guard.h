// The outer shell of the functions of the C interface: no exception leaves the library.
#pragma once

#include <new>

#include "api/error.h"
#include "base/status.h"
#include "tessera/tessera.h"

namespace tessera {

// Runs a body that returns Status. Only an error sentence needs memory, so running out of it is reported as a failure
// like any other; a call that succeeds allocates nothing.
template <class Body>
tessera_status run_guarded(tessera_error* error, const Body& body) {
  try {
    return report(body(), error);
  } catch (const std::bad_alloc&) {
    if (error != nullptr) *error = {TESSERA_INTERNAL, "memory: got none for an error sentence; free some and retry"};
    return TESSERA_INTERNAL;
  }
}

}  // namespace tessera
