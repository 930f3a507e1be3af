// A library with functions of the library's own names, and what stands on the host for kernels of such names.
#include <cstdint>

extern "C" {
int same_name_calls = 0;
}

namespace fwdmeta {

bool CudaAvailable() {
  ++same_name_calls;
  return true;
}
void Log(int32_t, const char*, ...) { ++same_name_calls; }
int32_t Fail(int32_t, const char*, ...) {
  ++same_name_calls;
  return 0;
}
void build_kernel() { ++same_name_calls; }
void plain_kernel() { ++same_name_calls; }
void chunk_kernel() { ++same_name_calls; }
void LoadBuildKernels() { ++same_name_calls; }

}  // namespace fwdmeta
