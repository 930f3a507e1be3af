// The public headers in strict C++17: compiled with -pedantic -Werror.
#include "fwdmeta.h"
#include "fwdmeta/context.hpp"
#include "fwdmeta/device.cuh"
#include "fwdmeta/fwdmeta.hpp"

static_assert(sizeof(fwdmeta_status_t) == 4 && sizeof(fwdmeta_field_t) == 4 && sizeof(fwdmeta_builder_t) == 8 &&
                  sizeof(fwdmeta_dtype_code_t) == 1,
              "enums are int32, handles are 64 bits");

int fwdmeta_test_header_as_cpp();

int fwdmeta_test_header_as_cpp() {
  const fwdmeta_config_t config = FWDMETA_CONFIG_INITIALIZER;
  return config.struct_size == sizeof(config);
}
