// Cuts the lengths of a batch into those of its microbatch slices.
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include "build/cuda/kernel_args.h"

namespace fwdmeta {
namespace {

constexpr int kThreads = 512;

// One block per slice. Each looks at all lengths, for the verdict, and writes its own slice's.
__global__ void __launch_bounds__(kThreads) cut_kernel(const __grid_constant__ CutArgs args) {
  using Reduce = cub::BlockReduce<unsigned long long, kThreads>;
  using Scan = cub::BlockScan<int32_t, kThreads>;
  __shared__ union {
    typename Reduce::TempStorage reduce[2];
    typename Scan::TempStorage scan;
  } temp;
  __shared__ unsigned long long sum_tokens, sum_kv;
  const int32_t slice = blockIdx.x;
  const SliceArrays& out = args.slices[slice];
  int32_t errors = 0;
  unsigned long long tokens = 0, kv_tokens = 0;
  for (int32_t b = threadIdx.x; b < args.batch_size; b += kThreads) {
    const int32_t encoder = args.encoder[b], decoder = args.decoder[b], this_time = args.this_time[b];
    const int32_t bits = SlotErrors(encoder, decoder, this_time, args.plan.max_model_len);
    const Slot slot = MakeSlot(encoder, decoder, this_time, bits);
    errors |= bits;
    tokens += slot.this_time;
    kv_tokens += slot.kv();
  }
  tokens = Reduce(temp.reduce[0]).Sum(tokens);
  kv_tokens = Reduce(temp.reduce[1]).Sum(kv_tokens);
  if (threadIdx.x == 0) {
    sum_tokens = tokens;
    sum_kv = kv_tokens;
  }
  const bool bad_slot = __syncthreads_or(errors) != 0;
  tokens = sum_tokens;
  const bool good =
      !bad_slot && SumsAreGood(args.plan, static_cast<int64_t>(tokens), static_cast<int64_t>(sum_kv), args.token_limit);
  if (!good) {
    for (int32_t b = threadIdx.x; b < args.batch_size; b += kThreads) {
      StoreSlot(out, b, {args.encoder[b], args.decoder[b], args.this_time[b], 0});
    }
    if (threadIdx.x == 0) *out.num_padding = 0;
    return;
  }
  const int32_t num_tokens = static_cast<int32_t>(tokens);
  const TokenRange range = RangeOfSlice(slice, args.num_slices, args.split, num_tokens);
  int32_t before = 0;
  for (int32_t first = 0; first < args.batch_size; first += kThreads) {
    const int32_t b = first + threadIdx.x;
    const bool inside = b < args.batch_size;
    const int32_t this_time = inside ? args.this_time[b] : 0;
    int32_t begin, total;
    Scan(temp.scan).ExclusiveSum(this_time, begin, total);
    if (inside) {
      StoreSlot(out, b, CutSlot(args.encoder[b], args.decoder[b], this_time, before + begin, range));
    }
    before += total;
    __syncthreads();  // the scan's memory is used again
  }
  if (threadIdx.x == 0) *out.num_padding = PaddingOfSlice(slice, args.num_slices, args.num_padded_tokens, num_tokens);
}

}  // namespace

cudaError_t LaunchCut(const CutArgs& args, cudaStream_t stream) {
  cut_kernel<<<args.num_slices, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t LoadCutKernel() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, cut_kernel);
}

}  // namespace fwdmeta
