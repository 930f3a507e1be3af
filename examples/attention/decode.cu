// Attention of decode slots in append attention: a tile of the decoder mapping is 16 query rows, which see all keys of
// the slot. So that few slots fill the GPU too, the keys are split in parts by blockIdx.z, and a second launch over the
// same mapping adds the parts up.
#include "dispatch.cuh"
#include "merge_rows.cuh"
#include "split.h"

namespace attention {

namespace {

__device__ int64_t part_index(const Step& step, int64_t tile, int most_parts, int part, int kv_head) {
  return (tile * most_parts + part) * step.num_kv_heads + kv_head;
}

template <class T, int kHeadDim>
__global__ void __launch_bounds__(kDecodeThreads)
    decode(Step step, Tokens tokens, Workspace workspace, int most_parts, float scale) {
  const int id = step.decoder.slots[blockIdx.x];
  if (id < 0 || is_refused(step)) return;
  const Split split = split_keys(step.seq_lens_kv[id], most_parts);
  const int part = blockIdx.z;
  if (part >= split.parts) return;
  const Slot slot = read_slot(step, id);
  const int begin = part * split.keys, end = min(begin + split.keys, slot.num_cached + slot.num_tokens);

  extern __shared__ __align__(128) unsigned char shared[];
  attend_rows<T, kHeadDim>(step, tokens, workspace, slot, blockIdx.y, step.decoder.tiles[blockIdx.x] * kDecodeRows,
                           begin, end, scale, shared,
                           {part_index(step, blockIdx.x, most_parts, part, blockIdx.y), split.parts == 1});
}

// A warp merges a row: row blockIdx.z * 4 + warp of tile x.
template <class T, int kHeadDim>
__global__ void __launch_bounds__(kMergeWarps * 32)
    merge(Step step, Tokens tokens, Workspace workspace, int most_parts) {
  const int id = step.decoder.slots[blockIdx.x];
  if (id < 0 || is_refused(step)) return;
  const Split split = split_keys(step.seq_lens_kv[id], most_parts);
  if (split.parts == 1) return;
  const Slot slot = read_slot(step, id);
  const int row = blockIdx.z * kMergeWarps + threadIdx.x / 32;
  const int row_of_slot = step.decoder.tiles[blockIdx.x] * kDecodeRows + row;
  if (row_of_slot >= slot.num_rows) return;
  T* const out = static_cast<T*>(tokens.out) + row_index(step, slot, blockIdx.y, row_of_slot) * kHeadDim;
  merge_row<T, kHeadDim>(workspace, part_index(step, blockIdx.x, most_parts, 0, blockIdx.y), step.num_kv_heads,
                         split.parts, row, out);
}

}  // namespace

void attend_decode(const Step& step, const Tokens& tokens, const Grid& grid, cudaStream_t stream,
                   const Workspace& workspace) {
  dispatch(step, "attend_decode", [&](auto type, auto head_dim) {
    using T = typename decltype(type)::type;
    constexpr int kHeadDim = decltype(head_dim)::value;
    constexpr int kShared = kDecodeSharedBytes<kHeadDim>;
    allow_shared_memory(decode<T, kHeadDim>, kShared);
    decode<T, kHeadDim>
        <<<grid_of(grid.decoder_tiles, step.num_kv_heads, grid.splits), kDecodeThreads, kShared, stream>>>(
            step, tokens, workspace, grid.splits, softmax_scale(kHeadDim));
    if (grid.splits == 1) return;
    merge<T, kHeadDim>
        <<<grid_of(grid.decoder_tiles, step.num_kv_heads, kDecodeRows / kMergeWarps), kMergeWarps * 32, 0, stream>>>(
            step, tokens, workspace, grid.splits);
  });
}

}  // namespace attention
