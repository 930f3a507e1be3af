// The build: one launch up to kSingleLaunchSlots slots, two above. Thread blocks take roles, each of which owns some
// outputs; no block waits for another.
#include "build/cuda/counts_role.cuh"
#include "build/cuda/lengths_role.cuh"
#include "build/cuda/plain_step.cuh"
#include "build/cuda/rows_role.cuh"
#include "build/cuda/tiles_role.cuh"
#include "build/cuda/tokens_role.cuh"

namespace fwdmeta {
namespace {

template <int kItems, bool kChunked>
__device__ __forceinline__ void RunRole(const BuildArgs& args, BlockShared<kItems, kChunked>& shared, int32_t role,
                                        uint32_t index) {
  switch (role) {
    case kRoleCounts:
      CountsRole<kItems, kChunked>(args, shared, role, index).Run();
      break;
    case kRoleLengths:
      LengthsRole<kItems, kChunked>(args, shared, role, index).Run();
      break;
    case kRoleTiles + kDecoder:
      TilesRole<kItems, kChunked, kDecoder>(args, shared, role, index).Run();
      break;
    case kRoleTiles + kEncoder:
      TilesRole<kItems, kChunked, kEncoder>(args, shared, role, index).Run();
      break;
    case kRoleTiles + kKv:
      TilesRole<kItems, kChunked, kKv>(args, shared, role, index).Run();
      break;
    case kRoleTiles + kPreCache:
      TilesRole<kItems, kChunked, kPreCache>(args, shared, role, index).Run();
      break;
    case kRoleRows:
      RowsRole<kItems, kChunked>(args, shared, role, index).Run();
      break;
    default:
      TokensRole<kItems, kChunked>(args, shared, role, index).Run();
      break;
  }
}

// A consumer that has been launched for it (programmatic dependent launch) may begin, up to where it waits for the
// build.
__device__ __forceinline__ void LetConsumersBegin() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

template <int kItems, bool kChunked>
__global__ void __launch_bounds__(kMaxThreads) build_kernel(const __grid_constant__ BuildArgs args) {
  __shared__ BlockShared<kItems, kChunked> shared;
  LetConsumersBegin();
  int32_t role = kNumRoles - 1;
#pragma unroll
  for (int32_t i = kNumRoles - 1; i > 0; --i) {
    if (static_cast<int32_t>(blockIdx.x) < args.first_block[i]) role = i - 1;
  }
  RunRole(args, shared, role, blockIdx.x - args.first_block[role]);
}

// Out of line, as its instructions are of no use to a plain step.
__noinline__ __device__ void RunGeneralRole(const BuildArgs& args, BlockShared<1, false>& shared, int32_t role,
                                            uint32_t index) {
  __syncthreads();
  RunRole(args, shared, role, index);
}

__global__ void __launch_bounds__(kMaxThreads) plain_kernel(const __grid_constant__ BuildLaunch args) {
  __shared__ BlockShared<1, false> shared;
  LetConsumersBegin();
  const int32_t role = min(static_cast<int32_t>(blockIdx.x), static_cast<int32_t>(kRoleTokens));
  const uint32_t index = blockIdx.x - role;
  PlainBlock block(args.plain, shared);
  bool plain = false;
  switch (role) {
    case kRoleCounts:
      plain = block.RunCounts();
      break;
    case kRoleLengths:
      plain = block.RunLengths();
      break;
    case kRoleTiles + kDecoder:
      plain = block.RunDecoderTiles();
      break;
    case kRoleTiles + kEncoder:
      plain = block.RunNoTiles<kEncoder>();
      break;
    case kRoleTiles + kKv:
      plain = block.RunNoTiles<kKv>();
      break;
    case kRoleTiles + kPreCache:
      plain = block.RunNoTiles<kPreCache>();
      break;
    case kRoleRows:
      plain = block.RunRows();
      break;
    default:
      plain = block.RunTokens(args.build, index);
      break;
  }
  if (!plain) RunGeneralRole(args.build, shared, role, index);
}

// The first of two launches: the sums of each chunk of slots.
__global__ void __launch_bounds__(kMaxThreads) chunk_kernel(const __grid_constant__ BuildArgs args) {
  __shared__ BlockShared<1, true> shared;
  const int32_t chunk = blockIdx.x;
  SlotBlock<1, true> block(args, shared, chunk);
  block.Load();
  if (args.staged_copy != nullptr) {
    const int32_t b = block.first_slot();
    if (b < args.inputs.batch_size) {
      int32_t* copy = args.staged_copy;
      copy[b] = args.inputs.encoder[b];
      copy[args.staged_stride + b] = args.inputs.decoder[b];
      copy[2 * args.staged_stride + b] = args.inputs.this_time[b];
      if (args.inputs.offsets != nullptr) copy[3 * args.staged_stride + b] = args.inputs.offsets[b];
    }
  }
  const bool search = SearchesMlaChunk(args.plan, args.inputs.batch_size);
  PutAllQuantities(args, block);
  __syncthreads();
  if (threadIdx.x < (search ? kNumQuantities : kSumCandidates))
    shared.total[threadIdx.x] = TotalOfRow(shared, threadIdx.x);
  __syncthreads();
  if (threadIdx.x < (search ? kNumQuantities : kSumCandidates)) {
    uint32_t value = shared.total[threadIdx.x];
    // From 16-bit halves to the split that 128 chunks can be added in.
    constexpr uint32_t kLowBits = SlotBlock<1, true>::kLowBits;
    const int32_t low = threadIdx.x == kSumTokensLow || threadIdx.x == kSumTokensHigh ? kSumTokensLow : kSumKvLow;
    const int32_t high = low == kSumTokensLow ? kSumTokensHigh : kSumKvHigh;
    const uint64_t sum = (static_cast<uint64_t>(shared.total[high]) << 16) + shared.total[low];
    if (static_cast<int32_t>(threadIdx.x) == low) value = static_cast<uint32_t>(sum & ((1u << kLowBits) - 1));
    if (static_cast<int32_t>(threadIdx.x) == high) value = static_cast<uint32_t>(sum >> kLowBits);
    args.chunks->value[threadIdx.x][chunk] = value;
  }
  if (args.staged && threadIdx.x == 0 && atomicInc(&args.builder->inputs_ticket, gridDim.x - 1) == gridDim.x - 1) {
    *const_cast<volatile int64_t*>(&args.entry->inputs_read) = args.step;
  }
}

template <class Kernel, class Args>
cudaError_t Launch(Kernel kernel, const Args& args, int32_t blocks, int32_t threads, cudaStream_t stream) {
  void* parameters[] = {const_cast<Args*>(&args)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(blocks), dim3(threads), parameters, 0, stream);
}

}  // namespace

cudaError_t LaunchBuild(const BuildArgs& args, int32_t num_blocks, int32_t threads, cudaStream_t stream) {
  if (args.num_chunks == 0) {
    return args.inputs.batch_size > kOneItemSlots
               ? Launch(build_kernel<kSingleLaunchItems, false>, args, num_blocks, threads, stream)
               : Launch(build_kernel<1, false>, args, num_blocks, threads, stream);
  }
  const cudaError_t error = Launch(chunk_kernel, args, args.num_chunks, kMaxThreads, stream);
  if (error != cudaSuccess) return error;
  BuildArgs second = args;
  if (args.staged_copy != nullptr) {
    second.inputs.encoder = args.staged_copy;
    second.inputs.decoder = args.staged_copy + args.staged_stride;
    second.inputs.this_time = args.staged_copy + 2 * args.staged_stride;
    if (args.inputs.offsets != nullptr) second.inputs.offsets = args.staged_copy + 3 * args.staged_stride;
    second.vector_loads = 1;
  }
  return Launch(build_kernel<kChunkItems, true>, second, num_blocks, threads, stream);
}

cudaError_t LaunchPlainBuild(const BuildLaunch& args, int32_t num_blocks, int32_t threads, cudaStream_t stream) {
  return Launch(plain_kernel, args, num_blocks, threads, stream);
}

cudaError_t LoadBuildKernels() {
  const void* kernels[] = {reinterpret_cast<const void*>(build_kernel<1, false>),
                           reinterpret_cast<const void*>(build_kernel<kSingleLaunchItems, false>),
                           reinterpret_cast<const void*>(build_kernel<kChunkItems, true>),
                           reinterpret_cast<const void*>(chunk_kernel), reinterpret_cast<const void*>(plain_kernel)};
  for (const void* kernel : kernels) {
    cudaFuncAttributes attributes;
    const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace fwdmeta
