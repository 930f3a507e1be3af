// New keys and values to their pages, keys rotated. A prefill slot's go tile by tile: a tile of the kv mapping is a
// page that gets new positions. A decode slot's few go token by token, where slot_mapping says.
#include "dispatch.cuh"
#include "rotary.cuh"
#include "slot.cuh"
#include "tensor_core.cuh"

namespace attention {

namespace {

constexpr int kThreads = 128;

// One piece of 8 columns and the piece half a head further, of one token and KV head.
template <class T, int kHeadDim>
__device__ void write_pieces(const Step& step, const Tokens& tokens, int64_t token, int64_t position, int kv_head,
                             int64_t row, int piece) {
  constexpr int kHalf = kHeadDim / 2;
  const int64_t from = (token * step.num_kv_heads + kv_head) * kHeadDim + piece * kPieceElements;
  const int64_t to = row * kHeadDim + piece * kPieceElements;
  const T* k = static_cast<const T*>(tokens.k) + from;
  uint4 low = *reinterpret_cast<const uint4*>(k), high = *reinterpret_cast<const uint4*>(k + kHalf);
  if (step.rotary != nullptr) {
    uint32_t(&low_pairs)[4] = reinterpret_cast<uint32_t(&)[4]>(low);
    uint32_t(&high_pairs)[4] = reinterpret_cast<uint32_t(&)[4]>(high);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float2 turned_low = unpack<T>(low_pairs[i]), turned_high = unpack<T>(high_pairs[i]);
      rotate<kHeadDim>(step, position, piece * kPieceElements + 2 * i, turned_low, turned_high);
      low_pairs[i] = pack<T>(turned_low.x, turned_low.y);
      high_pairs[i] = pack<T>(turned_high.x, turned_high.y);
    }
  }
  T* k_cache = static_cast<T*>(step.k_cache) + to;
  *reinterpret_cast<uint4*>(k_cache) = low;
  *reinterpret_cast<uint4*>(k_cache + kHalf) = high;

  const T* v = static_cast<const T*>(tokens.v) + from;
  T* v_cache = static_cast<T*>(step.v_cache) + to;
  *reinterpret_cast<uint4*>(v_cache) = *reinterpret_cast<const uint4*>(v);
  *reinterpret_cast<uint4*>(v_cache + kHalf) = *reinterpret_cast<const uint4*>(v + kHalf);
}

// A row of the cache: position `offset` of a page, of one head.
__device__ int64_t cache_row(const Step& step, int64_t page, int kv_head, int offset) {
  return (page * step.num_kv_heads + kv_head) * step.page_size + offset;
}

// Thread block x works on the page of tile x, with one KV head of blockIdx.y.
template <class T, int kHeadDim>
__global__ void __launch_bounds__(kThreads) write_prefill(Step step, Tokens tokens) {
  const int id = step.kv.slots[blockIdx.x];
  if (id < 0 || is_refused(step)) return;
  const Slot slot = read_slot(step, id);
  const int column = slot.num_cached / step.page_size + step.kv.tiles[blockIdx.x];
  const int page_begin = column * step.page_size;
  const int begin = max(page_begin, slot.num_cached);
  const int end = min(page_begin + step.page_size, slot.num_cached + slot.num_tokens);
  const int32_t page = slot.pages[column];
  if (!is_page(step, page)) return;

  constexpr int kPieces = kHeadDim / 2 / kPieceElements;
  for (int i = threadIdx.x; i < (end - begin) * kPieces; i += kThreads) {
    const int position = begin + i / kPieces;
    const int64_t token = slot.first_token + (position - slot.num_cached);
    write_pieces<T, kHeadDim>(step, tokens, token, position, blockIdx.y,
                              cache_row(step, page, blockIdx.y, position - page_begin), i % kPieces);
  }
}

// Thread block x works on token x, with all its KV heads.
template <class T, int kHeadDim>
__global__ void __launch_bounds__(kThreads) write_decode(Step step, Tokens tokens) {
  const int64_t token = blockIdx.x;
  if (step.batch_id_per_token[token] < 0 || step.mask_encoder_batch[token] != 0 || is_refused(step)) return;
  const int64_t slot = step.slot_mapping[token];
  const int64_t page = slot / step.page_size;
  if (slot < 0 || page >= step.num_pages) return;

  constexpr int kPieces = kHeadDim / 2 / kPieceElements;
  for (int i = threadIdx.x; i < step.num_kv_heads * kPieces; i += kThreads) {
    const int kv_head = i / kPieces;
    write_pieces<T, kHeadDim>(step, tokens, token, step.position_ids[token], kv_head,
                              cache_row(step, page, kv_head, static_cast<int>(slot % step.page_size)), i % kPieces);
  }
}

}  // namespace

void write_kv(const Step& step, const Tokens& tokens, const Grid& grid, cudaStream_t stream) {
  dispatch(step, "write_kv", [&](auto type, auto head_dim) {
    using T = typename decltype(type)::type;
    constexpr int kHeadDim = decltype(head_dim)::value;
    write_prefill<T, kHeadDim><<<grid_of(grid.kv_tiles, step.num_kv_heads), kThreads, 0, stream>>>(step, tokens);
    write_decode<T, kHeadDim><<<grid_of(grid.tokens, 1), kThreads, 0, stream>>>(step, tokens);
  });
}

}  // namespace attention
