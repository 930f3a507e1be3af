// Kernels of a consumer that is slow, or wrong.
#ifndef FWDMETA_TESTS_FAULT_KERNELS_H_
#define FWDMETA_TESTS_FAULT_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fwdmeta_test {

// Keeps the stream busy for so long.
cudaError_t LaunchSpin(int64_t microseconds, cudaStream_t stream);
// An illegal address, after which the context gives nothing but errors.
cudaError_t LaunchPoison(cudaStream_t stream);

}  // namespace fwdmeta_test

#endif  // FWDMETA_TESTS_FAULT_KERNELS_H_
