// The reset that fills arrays with their tail values, and the advance to the next decode step.
#include "build/cuda/kernel_args.h"
#include "build/cuda/warp.cuh"

namespace fwdmeta {
namespace {

constexpr int kThreads = 256;

template <class T>
__device__ void FillArray(void* data, int64_t count, int64_t value, int64_t first, int64_t stride) {
  T* array = static_cast<T*>(data);
  for (int64_t i = first; i < count; i += stride) array[i] = static_cast<T>(value);
}

__global__ void __launch_bounds__(kThreads) fill_kernel(const __grid_constant__ FillArgs args) {
  const int64_t first = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  const int64_t stride = gridDim.x * static_cast<int64_t>(kThreads);
  for (int32_t i = 0; i < args.num_ranges; ++i) {
    const FillRange& range = args.range[i];
    switch (range.element_size) {
      case 1:
        FillArray<uint8_t>(range.data, range.count, range.value, first, stride);
        break;
      case 4:
        FillArray<int32_t>(range.data, range.count, range.value, first, stride);
        break;
      default:
        FillArray<int64_t>(range.data, range.count, range.value, first, stride);
        break;
    }
  }
  if (first == 0) *args.set = {};
}

// One thread per slot; the last block publishes the two counts.
__global__ void __launch_bounds__(kThreads) advance_kernel(const __grid_constant__ AdvanceArgs args) {
  const int32_t b = blockIdx.x * kThreads + threadIdx.x;
  const AdvanceRequest& request = args.request;
  BuilderState* state = args.builder;
  AdvancedSlot next = {0, 0, false, false, false, false};
  if (b < request.batch_size) next = AdvanceSlot(args.plan, request, b);
  if (next.changed) {
    request.encoder[b] = 0;
    request.decoder[b] = next.decoder;
    request.this_time[b] = next.this_time;
  }
  const int stopped = __syncthreads_count(next.changed && next.stopped);
  const int limited = __syncthreads_count(next.changed && next.length_limited);
  const int clamped = __syncthreads_or(next.changed && next.clamped);
  if (threadIdx.x != 0) return;
  if (stopped > 0) atomicAdd(&state->num_stopped, static_cast<uint32_t>(stopped));
  if (limited > 0) atomicAdd(&state->num_length_limited, static_cast<uint32_t>(limited));
  if (clamped != 0) atomicExch(&state->clamped, 1u);
  __threadfence();
  if (atomicInc(&state->advance_ticket, gridDim.x - 1) != gridDim.x - 1) return;
  __threadfence();
  const int32_t total_stopped = static_cast<int32_t>(atomicExch(&state->num_stopped, 0u));
  const int32_t total_limited = static_cast<int32_t>(atomicExch(&state->num_length_limited, 0u));
  state->advance_counts[0] = total_stopped;
  state->advance_counts[1] = total_limited;
  const int64_t ordinal = ++state->advances;
  volatile AdvanceEntry* entry = &args.mirror->advance[ordinal & 1];
  entry->num_stopped = total_stopped;
  entry->num_length_limited = total_limited;
  __threadfence_system();
  entry->stamp = ordinal;
}

}  // namespace

cudaError_t LaunchFill(const FillArgs& args, cudaStream_t stream) {
  constexpr int kBlocks = 264;  // two per multiprocessor of the largest parts; the loops stride, so any number is right
  fill_kernel<<<kBlocks, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t LaunchAdvance(const AdvanceArgs& args, cudaStream_t stream) {
  const int blocks = args.request.batch_size > 0 ? (args.request.batch_size + kThreads - 1) / kThreads : 1;
  advance_kernel<<<blocks, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t LoadSmallKernels() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, fill_kernel);
  return error != cudaSuccess ? error : cudaFuncGetAttributes(&attributes, advance_kernel);
}

}  // namespace fwdmeta
