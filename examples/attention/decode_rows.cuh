// Attention of 16 query rows of one KV head against a range of a slot's keys, by one thread block. Its four warps take
// turns at units of 16 keys, each with copies of its own under way, so that the loop has no barrier of the block; at
// the end the four are added up.
#ifndef FWDMETA_EXAMPLES_ATTENTION_DECODE_ROWS_CUH_
#define FWDMETA_EXAMPLES_ATTENTION_DECODE_ROWS_CUH_

#include "online_softmax.cuh"
#include "queries.cuh"

namespace attention {

constexpr int kDecodeThreads = 128, kDecodeWarps = kDecodeThreads / 32;
constexpr int kDecodeStages = 3;  // units of a warp in shared memory: one worked on, the others under way

template <int kHeadDim>
constexpr int kUnitBytes = kKeyUnit* kHeadDim * 2;
template <int kHeadDim>
constexpr int kDecodeSharedBytes = kDecodeWarps* kDecodeStages * 2 * kUnitBytes<kHeadDim>;

// What of a block's rows goes where: to the output where the block had all keys, else to part `index`.
struct Part {
  int64_t index;
  bool is_whole;
};

// Four numbers of a row, rounded.
template <class T>
__device__ void store_four(T* to, float4 value, float factor) {
  *reinterpret_cast<uint2*>(to) = {pack<T>(value.x * factor, value.y * factor),
                                   pack<T>(value.z * factor, value.w * factor)};
}

__device__ inline float4 add_scaled(float4 sum, float4 value, float factor) {
  return {sum.x + value.x * factor, sum.y + value.y * factor, sum.z + value.z * factor, sum.w + value.w * factor};
}

// Copies of a warp's units, one after the other: unit i of warp w has the keys from begin + 16 * (4 * i + w) on. A
// unit lies in one page, as `begin` is a multiple of 16. Its page is looked up a unit ahead.
template <class T, int kHeadDim>
class UnitCopies {
 public:
  __device__ UnitCopies(const Step& step, const Slot& slot, int kv_head, int begin, int end, uint32_t stages,
                        int32_t* missing_pages)
      : step_(step),
        slot_(slot),
        kv_head_(kv_head),
        key_(begin + threadIdx.x / 32 * kKeyUnit),
        end_(end),
        stages_(stages),
        missing_pages_(missing_pages) {
    look_up();
  }

  // Starts the next copy, or none where the keys are at an end; commits in any case.
  __device__ void start() {
    if (key_ < end_) {
      constexpr int kPieces = kHeadDim / kPieceElements;
      const int lane = threadIdx.x % 32;
      const bool is_there = is_page(step_, page_);
      if (!is_there && lane == 0) atomicAdd(missing_pages_, 1);
      const int64_t page = is_there ? page_ : 0;
      const int64_t first = int64_t{key_ % step_.page_size} * kHeadDim;
      const T* k = page_of_head<T, kHeadDim>(step_, step_.k_cache, page, kv_head_) + first;
      const T* v = page_of_head<T, kHeadDim>(step_, step_.v_cache, page, kv_head_) + first;
      const uint32_t keys = stages_ + stage_ * 2 * kUnitBytes<kHeadDim>;
#pragma unroll
      for (int i = 0; i < kKeyUnit * kPieces / 32; ++i) {
        const int piece = (32 * i + lane) % kPieces, row = (32 * i + lane) / kPieces;
        const bool exists = is_there && key_ + row < end_;
        const uint32_t to = keys + piece_offset<kHeadDim>(row, piece);
        copy_piece(to, k + (32 * i + lane) * kPieceElements, exists);
        copy_piece(to + kUnitBytes<kHeadDim>, v + (32 * i + lane) * kPieceElements, exists);
      }
      stage_ = stage_ + 1 == kDecodeStages ? 0 : stage_ + 1;
      key_ += kDecodeWarps * kKeyUnit;
      look_up();
    }
    commit_copies();
  }

 private:
  __device__ void look_up() {
    if (key_ < end_) page_ = slot_.pages[key_ / step_.page_size];
  }

  const Step& step_;
  const Slot& slot_;
  const int kv_head_;
  int key_;
  const int end_;
  const uint32_t stages_;
  int32_t* const missing_pages_;
  int stage_ = 0;
  int32_t page_ = -1;
};

// Adds up what the warps have, and stores it: normalised in the output, or as it is in a part.
template <class T, int kHeadDim>
__device__ void store_rows(const Step& step, const Tokens& tokens, const Workspace& workspace, const Slot& slot,
                           int kv_head, int first_row, const RowsSoFar<kHeadDim>& rows, unsigned char* shared,
                           const Part& part) {
  constexpr int kStride = kHeadDim + 8;                  // rows in different banks
  float* const sums = reinterpret_cast<float*>(shared);  // [warps][16][kStride], then maximum and sum [warps][16]
  float2* const all = reinterpret_cast<float2*>(sums + kDecodeWarps * kDecodeRows * kStride);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * kDecodeRows + lane / 4 + 8 * half;
    if (lane % 4 == 0) all[row] = {rows.maximum[half], rows.sum[half]};
#pragma unroll
    for (int d = 0; d < kHeadDim / 8; ++d) {
      *reinterpret_cast<float2*>(sums + row * kStride + 8 * d + 2 * (lane % 4)) = {rows.out[d][2 * half],
                                                                                   rows.out[d][2 * half + 1]};
    }
  }
  __syncthreads();

  constexpr int kThreadsPerRow = kDecodeThreads / kDecodeRows;
  const int row = threadIdx.x / kThreadsPerRow, first_column = threadIdx.x % kThreadsPerRow * 4;
  if (first_row + row >= slot.num_rows) return;
  float maximum = minus_infinity(), sum = 0, factors[kDecodeWarps];
#pragma unroll
  for (int w = 0; w < kDecodeWarps; ++w) maximum = fmaxf(maximum, all[w * kDecodeRows + row].x);
#pragma unroll
  for (int w = 0; w < kDecodeWarps; ++w) {
    factors[w] = weight(all[w * kDecodeRows + row].x, maximum);
    sum += all[w * kDecodeRows + row].y * factors[w];
  }
  if (!part.is_whole && first_column == 0) workspace.max_and_sum[part.index * kDecodeRows + row] = {maximum, sum};
  float* const part_row = workspace.out + (part.index * kDecodeRows + row) * kHeadDim;
  T* const out = static_cast<T*>(tokens.out) + row_index(step, slot, kv_head, first_row + row) * kHeadDim;
#pragma unroll
  for (int column = first_column; column < kHeadDim; column += 4 * kThreadsPerRow) {
    float4 value = {0, 0, 0, 0};
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      const float* from = sums + (w * kDecodeRows + row) * kStride + column;
      value = add_scaled(value, *reinterpret_cast<const float4*>(from), factors[w]);
    }
    if (part.is_whole) {
      store_four<T>(out + column, value, 1 / sum);
    } else {
      *reinterpret_cast<float4*>(part_row + column) = value;
    }
  }
}

// Rows first_row .. first_row + 15 of a KV head against keys [begin, end) of the slot; `begin` is a multiple of 16.
template <class T, int kHeadDim>
__device__ void attend_rows(const Step& step, const Tokens& tokens, const Workspace& workspace, const Slot& slot,
                            int kv_head, int first_row, int begin, int end, float scale, unsigned char* shared,
                            const Part& part) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t stages = shared_address(shared) + warp * kDecodeStages * 2 * kUnitBytes<kHeadDim>;
  UnitCopies<T, kHeadDim> copies(step, slot, kv_head, begin, end, stages, workspace.missing_pages);
#pragma unroll
  for (int i = 0; i < kDecodeStages - 1; ++i) copies.start();

  uint32_t queries[kHeadDim / 16][4];
  load_queries<T, kHeadDim>(step, tokens, slot, kv_head, first_row, queries);
  const int last_key[2] = {min(row_position(step, slot, first_row + lane / 4), end - 1),
                           min(row_position(step, slot, first_row + lane / 4 + 8), end - 1)};
  RowsSoFar<kHeadDim> rows;
  rows.clear();

  int stage = 0;
  for (int key = begin + warp * kKeyUnit; key < end; key += kDecodeWarps * kKeyUnit) {
    wait_copies<kDecodeStages - 2>();
    __syncwarp();  // all lanes' copies of this unit are there, and all are done with the unit that is overwritten
    copies.start();
    const uint32_t keys = stages + stage * 2 * kUnitBytes<kHeadDim>;
    add_keys<T, kHeadDim, kKeyUnit>(rows, queries, keys, keys + kUnitBytes<kHeadDim>, key, last_key, scale);
    stage = stage + 1 == kDecodeStages ? 0 : stage + 1;
  }
  rows.finish_sums();
  wait_copies<0>();
  __syncthreads();  // the copies' memory is free
  store_rows<T, kHeadDim>(step, tokens, workspace, slot, kv_head, first_row, rows, shared, part);
}

}  // namespace attention

#endif  // FWDMETA_EXAMPLES_ATTENTION_DECODE_ROWS_CUH_
