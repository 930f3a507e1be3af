// The same decode with the decoder mapping of mla attention: a tile is a chunk of keys, of the size that the build has
// chosen, and a thread block works on it with 16 of the slot's query rows. Where a sequence has several chunks, a
// second launch adds them up; the prefix sums of the tiles say which they are.
#include "dispatch.cuh"
#include "merge_rows.cuh"

namespace attention {

namespace {

__device__ int64_t part_index(const Step& step, int64_t tile, int kv_head, int row_tiles, int row_tile) {
  return (tile * step.num_kv_heads + kv_head) * row_tiles + row_tile;
}

template <class T, int kHeadDim>
__global__ void __launch_bounds__(kDecodeThreads)
    decode_chunks(Step step, Tokens tokens, Workspace workspace, float scale) {
  const int id = step.decoder.slots[blockIdx.x];
  if (id < 0 || is_refused(step)) return;
  const Slot slot = read_slot(step, id);
  const int row_tile = blockIdx.z;
  if (row_tile * kDecodeRows >= slot.num_rows) return;
  const int chunk = *step.chunk_size, num_keys = slot.num_cached + slot.num_tokens;
  const int begin = step.decoder.tiles[blockIdx.x] * chunk, end = min(begin + chunk, num_keys);

  extern __shared__ __align__(128) unsigned char shared[];
  attend_rows<T, kHeadDim>(step, tokens, workspace, slot, blockIdx.y, row_tile * kDecodeRows, begin, end, scale, shared,
                           {part_index(step, blockIdx.x, blockIdx.y, gridDim.z, row_tile), num_keys <= chunk});
}

// A warp merges a row: row blockIdx.z * 4 + warp of slot x.
template <class T, int kHeadDim>
__global__ void __launch_bounds__(kMergeWarps * 32)
    merge_chunks(Step step, Tokens tokens, Workspace workspace, int row_tiles) {
  const int first = step.decoder.cu_tiles[blockIdx.x];
  if (step.decoder.cu_tiles[blockIdx.x + 1] == first || is_refused(step)) return;
  const Slot slot = read_slot(step, blockIdx.x);
  const int chunk = *step.chunk_size, count = (slot.num_cached + slot.num_tokens + chunk - 1) / chunk;
  const int row = blockIdx.z * kMergeWarps + threadIdx.x / 32;
  if (count == 1 || row >= slot.num_rows) return;
  T* const out = static_cast<T*>(tokens.out) + row_index(step, slot, blockIdx.y, row) * kHeadDim;
  merge_row<T, kHeadDim>(workspace, part_index(step, first, blockIdx.y, row_tiles, row / kDecodeRows),
                         int64_t{step.num_kv_heads} * row_tiles, count, row % kDecodeRows, out);
}

}  // namespace

void attend_decode_mla(const Step& step, const Tokens& tokens, const Grid& grid, cudaStream_t stream,
                       const Workspace& workspace) {
  const int rows = grid.max_decode_tokens * step.group, row_tiles = (rows + kDecodeRows - 1) / kDecodeRows;
  dispatch(step, "attend_decode_mla", [&](auto type, auto head_dim) {
    using T = typename decltype(type)::type;
    constexpr int kHeadDim = decltype(head_dim)::value;
    constexpr int kShared = kDecodeSharedBytes<kHeadDim>;
    allow_shared_memory(decode_chunks<T, kHeadDim>, kShared);
    decode_chunks<T, kHeadDim>
        <<<grid_of(grid.decoder_tiles, step.num_kv_heads, row_tiles), kDecodeThreads, kShared, stream>>>(
            step, tokens, workspace, softmax_scale(kHeadDim));
    merge_chunks<T, kHeadDim><<<grid_of(grid.slots, step.num_kv_heads, (rows + kMergeWarps - 1) / kMergeWarps),
                                kMergeWarps * 32, 0, stream>>>(step, tokens, workspace, row_tiles);
  });
}

}  // namespace attention
