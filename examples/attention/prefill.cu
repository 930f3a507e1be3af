// Attention of prefill slots: thread block x has the 64 query rows of encoder tile x, for one KV head, and goes through
// the keys from the first, cached ones included, to the last that its rows see.
#include "dispatch.cuh"
#include "online_softmax.cuh"
#include "queries.cuh"

namespace attention {

namespace {

constexpr int kThreads = 128, kRowsPerWarp = 16;
constexpr int kKeys = 64;   // keys of a round
constexpr int kStages = 2;  // a round's keys are copied while those of the round before are worked on
static_assert(kThreads / 32 * kRowsPerWarp == kPrefillRows, "a warp has 16 rows");

template <int kHeadDim>
constexpr int kTileBytes = kKeys* kHeadDim * 2;
template <int kHeadDim>
constexpr int kSharedBytes = kStages * 2 * kTileBytes<kHeadDim>;

// Starts the copy of keys first_key .. first_key + 63 and their values. Keys from `end` on are zeros, so that what lies
// in a page behind the last position does not matter.
template <class T, int kHeadDim>
__device__ void copy_keys(const Step& step, const Slot& slot, int kv_head, int first_key, int end, uint32_t keys,
                          uint32_t values, int32_t* missing_pages) {
  constexpr int kPieces = kHeadDim / kPieceElements;
#pragma unroll
  for (int i = 0; i < kKeys * kPieces / kThreads; ++i) {
    const int piece = (i * kThreads + threadIdx.x) % kPieces, row = (i * kThreads + threadIdx.x) / kPieces;
    const int key = first_key + row;
    const int32_t page = key < end ? slot.pages[key / step.page_size] : 0;
    const bool exists = key < end && is_page(step, page);
    if (key < end && !exists && piece == 0 && key % step.page_size == 0) atomicAdd(missing_pages, 1);
    const int64_t from = int64_t{key % step.page_size} * kHeadDim + piece * kPieceElements;
    const uint32_t to = piece_offset<kHeadDim>(row, piece);
    const T* k = page_of_head<T, kHeadDim>(step, step.k_cache, exists ? page : 0, kv_head);
    const T* v = page_of_head<T, kHeadDim>(step, step.v_cache, exists ? page : 0, kv_head);
    copy_piece(keys + to, k + from, exists);
    copy_piece(values + to, v + from, exists);
  }
}

template <class T, int kHeadDim>
__global__ void __launch_bounds__(kThreads) prefill(Step step, Tokens tokens, float scale, int32_t* missing_pages) {
  const int id = step.encoder.slots[blockIdx.x];
  if (id < 0 || is_refused(step)) return;
  const Slot slot = read_slot(step, id);
  const int kv_head = blockIdx.y, lane = threadIdx.x % 32;
  const int block_row = step.encoder.tiles[blockIdx.x] * kPrefillRows;
  const int first_row = block_row + threadIdx.x / 32 * kRowsPerWarp;
  const int end = row_position(step, slot, block_row + kPrefillRows - 1) + 1;

  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t stages = shared_address(shared);
  const auto keys_of = [&](int round) { return stages + round % kStages * 2 * kTileBytes<kHeadDim>; };
  const auto start_copy = [&](int round) {
    copy_keys<T, kHeadDim>(step, slot, kv_head, round * kKeys, end, keys_of(round),
                           keys_of(round) + kTileBytes<kHeadDim>, missing_pages);
    commit_copies();
  };
  start_copy(0);

  uint32_t queries[kHeadDim / 16][4];
  load_queries<T, kHeadDim>(step, tokens, slot, kv_head, first_row, queries);
  const int last_key[2] = {row_position(step, slot, first_row + lane / 4),
                           row_position(step, slot, first_row + lane / 4 + 8)};
  RowsSoFar<kHeadDim> rows;
  rows.clear();

  const int rounds = (end + kKeys - 1) / kKeys;
  for (int round = 0; round < rounds; ++round) {
    if (round + 1 < rounds) {
      start_copy(round + 1);
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();
    add_keys<T, kHeadDim, kKeys>(rows, queries, keys_of(round), keys_of(round) + kTileBytes<kHeadDim>, round * kKeys,
                                 last_key, scale);
    __syncthreads();
  }

  rows.finish_sums();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + lane / 4 + 8 * half;
    if (row >= slot.num_rows) continue;
    T* out = static_cast<T*>(tokens.out) + row_index(step, slot, kv_head, row) * kHeadDim;
    const float inverse = 1 / rows.sum[half];
#pragma unroll
    for (int d = 0; d < kHeadDim / 8; ++d) {
      *reinterpret_cast<uint32_t*>(out + 8 * d + 2 * (lane % 4)) =
          pack<T>(rows.out[d][2 * half] * inverse, rows.out[d][2 * half + 1] * inverse);
    }
  }
}

}  // namespace

void attend_prefill(const Step& step, const Tokens& tokens, const Grid& grid, cudaStream_t stream,
                    const Workspace& workspace) {
  dispatch(step, "attend_prefill", [&](auto type, auto head_dim) {
    using T = typename decltype(type)::type;
    constexpr int kHeadDim = decltype(head_dim)::value;
    allow_shared_memory(prefill<T, kHeadDim>, kSharedBytes<kHeadDim>);
    prefill<T, kHeadDim><<<grid_of(grid.encoder_tiles, step.num_kv_heads), kThreads, kSharedBytes<kHeadDim>, stream>>>(
        step, tokens, softmax_scale(kHeadDim), workspace.missing_pages);
  });
}

}  // namespace attention
