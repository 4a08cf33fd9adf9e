/* tessera.h is C: this file is compiled by a C compiler, and calls what needs no data. */
#include "tessera/tessera.h"

int tessera_header_from_c(void);

int tessera_header_from_c(void) {
  tessera_fmha_params params = {0};
  tessera_error error = {TESSERA_OK, ""};
  const char* name = 0;
  params.struct_size = sizeof(params);
  return tessera_fmha_select(&params, &name, &error) == TESSERA_INVALID_ARGUMENT && tessera_kernel_count() > 0;
}
