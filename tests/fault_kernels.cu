#include "fault_kernels.h"

namespace fwdmeta_test {
namespace {

__global__ void Spin(uint64_t nanoseconds) {
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

__global__ void Poison(volatile int* nowhere) { *nowhere = 1; }

}  // namespace

cudaError_t LaunchSpin(int64_t microseconds, cudaStream_t stream) {
  Spin<<<1, 1, 0, stream>>>(static_cast<uint64_t>(microseconds) * 1000);
  return cudaGetLastError();
}

cudaError_t LaunchPoison(cudaStream_t stream) {
  Poison<<<1, 1, 0, stream>>>(reinterpret_cast<int*>(64));
  return cudaGetLastError();
}

}  // namespace fwdmeta_test
