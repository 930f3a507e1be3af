#include "check_kernels.h"

namespace fwdmeta_soak {
namespace {

constexpr int kPickThreads = 1024, kCheckThreads = 256;

// One block: the count of replays may go up only when everybody has read it.
__global__ void Pick(const uint4* pool, int64_t words, int64_t num_batches, uint64_t seed, uint4* inputs,
                     ReplayState* replay) {
  __shared__ int64_t picked;
  if (threadIdx.x == 0) {
    const int64_t step = ++replay->replays;
    picked = replay->picked = PickBatch(seed, step, num_batches);
  }
  __syncthreads();
  const uint4* from = pool + picked * words;
  for (int64_t i = threadIdx.x; i < words; i += blockDim.x) inputs[i] = from[i];
}

template <class T>
__device__ void Compare(const CheckArgs& args, const CheckedArray& array, int64_t batch, int64_t step) {
  // Some arrays are in pinned memory, which nothing may have cached.
  const volatile T* got = static_cast<const volatile T*>(array.got);
  const T* want = reinterpret_cast<const T*>(args.want + batch * args.want_bytes + array.offset);
  for (int64_t i = threadIdx.x; i < array.count; i += blockDim.x) {
    const T expected = array.holds_step != 0 && i == array.count - 1 ? static_cast<T>(step) : want[i];
    const T value = got[i];
    if (value == expected) continue;
    atomicAdd(&args.findings->mismatches, 1ull);
    if (atomicCAS(&args.findings->claimed, 0, 1) != 0) continue;
    args.findings->array = static_cast<int32_t>(blockIdx.x);
    args.findings->batch = batch;
    args.findings->step = step;
    args.findings->index = i;
    args.findings->got = static_cast<int64_t>(value);
    args.findings->want = static_cast<int64_t>(expected);
  }
}

__global__ void CheckArrays(const __grid_constant__ CheckArgs args) {
  const CheckedArray& array = args.array[blockIdx.x];
  const int64_t batch = args.replay != nullptr ? args.replay->picked : args.batch;
  const int64_t step = args.replay != nullptr ? args.replay->replays : args.step;
  if (array.element_size == 1) Compare<uint8_t>(args, array, batch, step);
  if (array.element_size == 4) Compare<int32_t>(args, array, batch, step);
  if (array.element_size == 8) Compare<int64_t>(args, array, batch, step);
  if (threadIdx.x == 0) atomicAdd(&args.findings->arrays, 1ull);
}

}  // namespace

cudaError_t LaunchPick(const char* pool, int64_t input_bytes, int64_t num_batches, uint64_t seed, char* inputs,
                       ReplayState* replay, cudaStream_t stream) {
  Pick<<<1, kPickThreads, 0, stream>>>(reinterpret_cast<const uint4*>(pool), input_bytes / 16, num_batches, seed,
                                       reinterpret_cast<uint4*>(inputs), replay);
  return cudaGetLastError();
}

cudaError_t LaunchCheck(const CheckArgs& args, cudaStream_t stream) {
  CheckArrays<<<static_cast<unsigned>(args.num_arrays), kCheckThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace fwdmeta_soak
