// The kernels of the floors, and one that keeps multiprocessors busy for a while.
#ifndef FWDMETA_BENCH_FLOOR_KERNELS_H_
#define FWDMETA_BENCH_FLOOR_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace fwdmeta_bench {

cudaError_t LaunchEmpty(cudaStream_t stream);
// An empty kernel with as many bytes of arguments as the library's build takes.
cudaError_t LaunchEmptyWithArgs(cudaStream_t stream);
int64_t BytesOfBuildArgs();
// `blocks` blocks that do nothing for so many clock cycles. `programmatic`: launched while the kernel before it still
// runs, which it waits for.
cudaError_t LaunchSpin(int blocks, int64_t cycles, cudaStream_t stream, bool programmatic = false);

}  // namespace fwdmeta_bench

#endif  // FWDMETA_BENCH_FLOOR_KERNELS_H_
