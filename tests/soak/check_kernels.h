// The soak's own kernels: one puts a batch of the pool in place, one compares every array of a step with the batch's
// expectation.
#ifndef FWDMETA_TESTS_SOAK_CHECK_KERNELS_H_
#define FWDMETA_TESTS_SOAK_CHECK_KERNELS_H_

#include <cuda_runtime_api.h>

#include "pick.h"

namespace fwdmeta_soak {

// Of one builder, on the device.
struct ReplayState {
  int64_t replays;  // of its captured builds, this one included
  int64_t picked;   // which batch of the replay's pool
};

// On the device, of the whole soak.
struct Findings {
  unsigned long long arrays;      // compared
  unsigned long long mismatches;  // entries that differ
  int32_t claimed;                // the first of them has filled in the rest
  int32_t array;
  int64_t batch, step, index, got, want;
};

struct CheckedArray {
  const void* got;
  int64_t offset, count;  // in the expectation of a batch
  int32_t element_size;
  int32_t holds_step;  // counts_i64, whose last entry is the step's number
};
constexpr int32_t kMaxCheckedArrays = 48;

struct CheckArgs {
  CheckedArray array[kMaxCheckedArrays];
  int32_t num_arrays;
  const char* want;  // of the pool's first batch
  int64_t want_bytes;
  const ReplayState* replay;  // says batch and step of a captured build; null: the next two do
  int64_t batch, step;
  Findings* findings;
};

// Counts the replay, picks its batch and copies the batch's inputs to `inputs`. `input_bytes` is a multiple of 16.
cudaError_t LaunchPick(const char* pool, int64_t input_bytes, int64_t num_batches, uint64_t seed, char* inputs,
                       ReplayState* replay, cudaStream_t stream);
cudaError_t LaunchCheck(const CheckArgs& args, cudaStream_t stream);

}  // namespace fwdmeta_soak

#endif  // FWDMETA_TESTS_SOAK_CHECK_KERNELS_H_
