#include <cuda_objects.h>

#include "finish_requests.h"

namespace serve_loop {

namespace {

__global__ void finish(attention::Step step, const int32_t* final_lengths, int64_t slots, uint8_t* stop,
                       int32_t* num_refused) {
  const int64_t slot = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (slot == 0 && *step.num_invalid_slots != 0) *num_refused = *step.num_invalid_slots;
  if (slot >= slots) return;
  const bool is_live = step.cu_seqlens_q[slot + 1] > step.cu_seqlens_q[slot];
  stop[slot] = is_live && step.seq_lens_kv[slot] == final_lengths[slot];
}

}  // namespace

void finish_requests(const attention::Step& step, const int32_t* final_lengths, int64_t slots, uint8_t* stop,
                     int32_t* num_refused, cudaStream_t stream) {
  constexpr int kThreads = 128;
  finish<<<static_cast<unsigned>((slots + kThreads - 1) / kThreads), kThreads, 0, stream>>>(step, final_lengths, slots,
                                                                                            stop, num_refused);
  ATTENTION_CUDA(cudaGetLastError());
}

}  // namespace serve_loop
