#include "build/cuda/kernel_args.h"
#include "floor_kernels.h"

namespace fwdmeta_bench {
namespace {

struct EmptyArgs {
  unsigned char bytes[sizeof(fwdmeta::BuildArgs)];
};

__global__ void Empty() {}

__global__ void EmptyWithArgs(const __grid_constant__ EmptyArgs) {}

__global__ void Spin(long long cycles) {
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

cudaError_t LaunchSpin(int blocks, int64_t cycles, cudaStream_t stream) {
  Spin<<<blocks, 128, 0, stream>>>(cycles);
  return cudaGetLastError();
}

}  // namespace fwdmeta_bench
