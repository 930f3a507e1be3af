// Which batch of a pool a step builds, for the host and the device alike.
#ifndef FWDMETA_TESTS_SOAK_PICK_H_
#define FWDMETA_TESTS_SOAK_PICK_H_

#include <cstdint>

#ifdef __CUDACC__
#define FWDMETA_SOAK_HD __host__ __device__ inline
#else
#define FWDMETA_SOAK_HD inline
#endif

namespace fwdmeta_soak {

FWDMETA_SOAK_HD int64_t PickBatch(uint64_t seed, int64_t step, int64_t num_batches) {
  uint64_t z = seed + static_cast<uint64_t>(step) * 0x9E3779B97F4A7C15u;  // splitmix64
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return static_cast<int64_t>(z % static_cast<uint64_t>(num_batches));
}

}  // namespace fwdmeta_soak

#endif  // FWDMETA_TESTS_SOAK_PICK_H_
