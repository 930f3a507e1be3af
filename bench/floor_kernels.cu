#include "build/cuda/kernel_args.h"
#include "floor_kernels.h"

namespace fwdmeta_bench {
namespace {

struct EmptyArgs {
  unsigned char bytes[sizeof(fwdmeta::BuildArgs)];
};

__global__ void Empty() {}

__global__ void EmptyWithArgs(const __grid_constant__ EmptyArgs) {}

// Waits for the kernel before it only where it has been launched to begin earlier.
__global__ void Spin(long long cycles) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

}  // namespace

cudaError_t LaunchEmpty(cudaStream_t stream) {
  Empty<<<1, 32, 0, stream>>>();
  return cudaGetLastError();
}

cudaError_t LaunchEmptyWithArgs(cudaStream_t stream) {
  static const EmptyArgs args = {};
  EmptyWithArgs<<<1, 32, 0, stream>>>(args);
  return cudaGetLastError();
}

int64_t BytesOfBuildArgs() { return sizeof(fwdmeta::BuildArgs); }

cudaError_t LaunchSpin(int blocks, int64_t cycles, cudaStream_t stream, bool programmatic) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(128);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = programmatic ? 1 : 0;
  return cudaLaunchKernelEx(&config, Spin, static_cast<long long>(cycles));
}

}  // namespace fwdmeta_bench
