// Device code for consumers of the mappings, over fwdmeta_device_view_v1_t, which fwdmeta_device_view_v1() fills and a
// kernel takes by value:
//
//     __global__ void attend(const __grid_constant__ fwdmeta_device_view_v1_t view, ...) {
//       const fwdmeta::Tile tile = fwdmeta::tile_of(view, FWDMETA_MAPPING_DECODER, blockIdx.x);
//       if (!tile.valid) return;
//
// Without a CUDA compiler the header is plain C++17, for views of the host backend. Nothing here checks an argument: a
// function that reads an array which the view does not have reads null. Under programmatic dependent launch, call
// cudaGridDependencySynchronize before anything here.
#ifndef FWDMETA_DEVICE_CUH
#define FWDMETA_DEVICE_CUH

#include <fwdmeta.h>

#include <cstdint>

#if defined(__CUDACC__)
#define FWDMETA_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define FWDMETA_HOST_DEVICE inline
#endif

namespace fwdmeta {

// The work of one thread block.
struct Tile {
  int32_t slot;  // -1 where not valid
  int32_t tile;  // of the slot, from 0; likewise
  bool valid;    // false: no work
};

// Rows or positions.
struct Range {
  int64_t begin;  // the first
  int64_t end;    // behind the last
};

// A live slot.
struct Slot {
  int32_t first_token;  // on the token axis
  int32_t num_tokens;   // N
  int32_t num_cached;   // D
};

// ---- finding a tile

// Tile x of a mapping, by its lists: two loads that do not wait for each other. Any x may be asked for; at and past the
// count the answer is not valid, so a grid as large as the mapping's capacity is right for every step. Needs batch_ids
// and tile_ids.
FWDMETA_HOST_DEVICE Tile tile_of(const fwdmeta_device_view_v1_t& view, fwdmeta_mapping_t mapping, uint32_t x) {
  const fwdmeta_device_mapping_v1_t& of = view.mappings[mapping];
  if (x >= static_cast<uint32_t>(of.capacity)) return {-1, -1, false};
  const int32_t slot = of.batch_ids[x];
  return {slot, of.tile_ids[x], slot >= 0};
}

// The same without the lists, which `outputs` may then leave out: a binary search in cu_tiles, which it needs. The
// loads wait for each other, and there are log2(max_batch_size) + 1 at most. Each thread searches for itself.
FWDMETA_HOST_DEVICE Tile tile_of_search(const fwdmeta_device_view_v1_t& view, fwdmeta_mapping_t mapping, uint32_t x) {
  const int32_t* const cu_tiles = view.mappings[mapping].cu_tiles;
  // cu_tiles[slot] = first is not past x; `rest` entries behind it may not be either.
  int32_t slot = 0, first = 0, rest = view.max_batch_size;
  while (rest > 0) {
    const int32_t step = (rest + 1) / 2;
    const int32_t begin = cu_tiles[slot + step];
    if (static_cast<uint32_t>(begin) <= x) {
      slot += step;
      first = begin;
      rest -= step;
    } else {
      rest = step - 1;
    }
  }
  if (slot == view.max_batch_size) return {-1, -1, false};  // x is at or past the total
  return {slot, static_cast<int32_t>(x) - first, true};
}

#if defined(__CUDACC__)
// The same by a whole warp, whose lanes look at 32 entries at a time: one wait for up to 32 slots, two up to 1024,
// three up to 32768. All 32 lanes have to call it, with the same arguments, and all get the tile. Every warp of a block
// may search for itself: that takes no shared memory and no barrier.
__device__ __forceinline__ Tile tile_of_warp_search(const fwdmeta_device_view_v1_t& view, fwdmeta_mapping_t mapping,
                                                    uint32_t x) {
  constexpr unsigned kAllLanes = 0xffffffffu;
  int32_t lane;
  asm("mov.s32 %0, %%laneid;" : "=r"(lane));
  const int32_t* const ends = view.mappings[mapping].cu_tiles + 1;
  // `slot` entries of `ends` are not past x, the last of them being `first`; `rest` entries behind them may not be
  // either.
  int32_t slot = 0, first = 0, rest = view.max_batch_size;
  while (rest > 0) {
    const int32_t stride = (rest + 31) / 32;  // each lane looks at the last entry of a piece
    const int32_t entry = (lane + 1) * stride - 1;
    const int32_t end = entry < rest ? ends[slot + entry] : INT32_MAX;
    const int pieces = __popc(__ballot_sync(kAllLanes, entry < rest && static_cast<uint32_t>(end) <= x));
    if (pieces > 0) first = __shfl_sync(kAllLanes, end, pieces - 1);
    slot += pieces * stride;
    rest -= pieces * stride;
    if (rest > stride - 1) rest = stride - 1;  // of the piece that x is in, the last entry is known to be past x
  }
  if (slot == view.max_batch_size) return {-1, -1, false};
  return {slot, static_cast<int32_t>(x) - first, true};
}
#endif

// How many tiles a mapping has in this step, for kernels whose blocks take more than one.
FWDMETA_HOST_DEVICE int32_t num_tiles(const fwdmeta_device_view_v1_t& view, fwdmeta_mapping_t mapping) {
  return *view.mappings[mapping].num_blocks;
}

// ---- what a tile consists of

// The lengths of a slot that has a tile, or of any other live slot. Needs cu_seqlens_q and seq_lens_kv.
FWDMETA_HOST_DEVICE Slot slot_of(const fwdmeta_device_view_v1_t& view, int32_t slot) {
  const int32_t first = view.cu_seqlens_q[slot], count = view.cu_seqlens_q[slot + 1] - first;
  return {first, count, view.seq_lens_kv[slot] - count};
}

// The query rows of a valid tile of the decoder or encoder mapping: row r of a KV head is query head
// r % heads_per_kv_head of token r / heads_per_kv_head of the slot. A chunk of keys of mla is for all rows of its slot.
FWDMETA_HOST_DEVICE Range query_rows(const fwdmeta_device_view_v1_t& view, fwdmeta_mapping_t mapping, const Tile& tile,
                                     const Slot& slot) {
  const int64_t rows = int64_t{slot.num_tokens} * view.heads_per_kv_head;
  const int32_t size = view.mappings[mapping].tile_size;
  if (size == 0) return {0, rows};
  const int64_t begin = int64_t{tile.tile} * size;
  return {begin, begin + size < rows ? begin + size : rows};
}

// The positions of its slot that a valid tile is about:
// - decoder, encoder: the keys that any of its rows sees, which are all up to the token of its last row
// - decoder of mla: the keys of its chunk, of which each row sees those up to its own token
// - kv: the new positions on its page
// - pre_cache: the cached positions on its page
FWDMETA_HOST_DEVICE Range positions(const fwdmeta_device_view_v1_t& view, fwdmeta_mapping_t mapping, const Tile& tile,
                                    const Slot& slot) {
  const int32_t size = view.mappings[mapping].tile_size;
  const int64_t cached = slot.num_cached, length = cached + slot.num_tokens;
  if (mapping == FWDMETA_MAPPING_PRE_CACHE) {
    const int64_t begin = int64_t{tile.tile} * size;
    return {begin, begin + size < cached ? begin + size : cached};
  }
  if (mapping == FWDMETA_MAPPING_KV) {
    const int64_t begin = (cached / size + tile.tile) * size, end = begin + size;
    return {begin > cached ? begin : cached, end < length ? end : length};
  }
  if (size == 0) {
    const int64_t chunk = *view.decoder_chunk_size, begin = tile.tile * chunk;
    return {begin, begin + chunk < length ? begin + chunk : length};
  }
  const int64_t last_row = query_rows(view, mapping, tile, slot).end - 1;
  return {0, cached + last_row / view.heads_per_kv_head + 1};
}

// The slot mapping of a cache group. Needs slot_mapping.
FWDMETA_HOST_DEVICE const int64_t* slot_mapping(const fwdmeta_device_view_v1_t& view, int32_t group) {
  return view.slot_mapping + view.slot_mapping_stride * group;
}

}  // namespace fwdmeta

#undef FWDMETA_HOST_DEVICE

#endif  // FWDMETA_DEVICE_CUH
