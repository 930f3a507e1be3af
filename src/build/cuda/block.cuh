// What every thread block of a build begins with: the lengths, their verdict, and sums over the block's slots.
#pragma once

#include "build/cuda/kernel_args.h"
#include "build/cuda/warp.cuh"

namespace fwdmeta {

template <int kItems, bool kChunked>
struct BlockShared {
  static constexpr int kSlots = kChunked ? kChunkSlots : kItems * kMaxThreads;
  unsigned long long wide[32];  // one number per warp, for sums past 32 bits
  int32_t found;
  uint32_t partial[kNumQuantities][33];  // one number per warp, and a pad
  uint32_t total[kNumQuantities];
  uint32_t before[kNumQuantities];             // two launches: over the chunks before this block's
  alignas(16) uint32_t prefix[2][kSlots + 4];  // exclusive prefix sums over the block's slots, then their total
};

enum class Reduction { kSum, kMax, kOr };

__device__ __forceinline__ constexpr Reduction ReductionOf(int32_t quantity) {
  if (quantity == kErrorBits) return Reduction::kOr;
  return quantity >= kMaxThisTime && quantity <= kMaxCachedKv ? Reduction::kMax : Reduction::kSum;
}

// Rows of the per-warp numbers that no verdict uses, for a role's own scans and maxima.
constexpr int32_t kScanRow = kMaxThisTime;
// And one for the low halves of N, beside which a role's own sum of N stands whole.
constexpr int32_t kWideTokensRow = kMaxCachedKv;
// Flags of a role share the word of the error bits.
constexpr uint32_t kFirstFlag = 1u << 16;

__device__ __forceinline__ uint32_t WarpReduce(Reduction reduction, uint32_t value) {
  return reduction == Reduction::kSum ? WarpSum(value) : reduction == Reduction::kMax ? WarpMax(value) : WarpOr(value);
}

// One quantity's total over the block's warps, by one thread each: rows are padded, so lanes with different rows read
// different banks.
template <int kItems, bool kChunked>
__device__ uint32_t TotalOfRow(const BlockShared<kItems, kChunked>& shared, int32_t row) {
  const uint32_t warps = blockDim.x / 32;
  uint32_t sum = 0, most = 0, bits = 0;
  for (uint32_t warp = 0; warp < warps; ++warp) {
    const uint32_t value = shared.partial[row][warp];
    sum += value;
    most = max(most, value);
    bits |= value;
  }
  const Reduction reduction = ReductionOf(row);
  return reduction == Reduction::kSum ? sum : reduction == Reduction::kMax ? most : bits;
}

// MlaSearch's choice, of a warp whose lane i has the tiles of candidate i + 1: the largest remainder, and of equal ones
// the last.
__device__ __forceinline__ uint32_t BestMlaCandidate(uint32_t tiles, uint32_t num_sms) {
  const uint32_t candidate = LaneId() + 1;
  const uint32_t rest = candidate <= kMlaSearchSteps ? tiles % num_sms : 0;
  const uint32_t most = WarpMax(rest);
  return 32 - __clz(__ballot_sync(kAllLanes, candidate <= kMlaSearchSteps && rest == most));
}

// kItems consecutive slots per thread; kChunked: one of several chunks of slots, whose sums a first launch has left.
template <int kItems, bool kChunked>
class SlotBlock {
 public:
  // Two launches: each chunk's sums of numbers up to 2^31 are kept as 20 low bits and the rest, so that 128 of each
  // half fit in 32 bits. In one launch a block adds 16-bit halves of up to 4096 numbers.
  static constexpr uint32_t kLowBits = kChunked ? 20 : 16;

  __device__ SlotBlock(const BuildArgs& args, BlockShared<kItems, kChunked>& shared, int32_t chunk)
      : args_(args), shared_(shared), chunk_(chunk), block_first_(kChunked ? chunk * kChunkSlots : 0) {
    first_slot_ = block_first_ + static_cast<int32_t>(threadIdx.x) * kItems;
  }

  __device__ void Load() {
    const int32_t batch_size = args_.inputs.batch_size;
    int32_t encoder[kItems], decoder[kItems], this_time[kItems];
    bool loaded = false;
    if constexpr (kItems == 4) {
      if (args_.vector_loads && first_slot_ + 4 <= batch_size) {
        LoadFour(args_.inputs.encoder, encoder);
        LoadFour(args_.inputs.decoder, decoder);
        LoadFour(args_.inputs.this_time, this_time);
        loaded = true;
      }
    }
    if (!loaded) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int32_t b = first_slot_ + i;
        const bool inside = b < batch_size;
        encoder[i] = inside ? args_.inputs.encoder[b] : 0;
        decoder[i] = inside ? args_.inputs.decoder[b] : 0;
        this_time[i] = inside ? args_.inputs.this_time[b] : 0;
      }
    }
    errors_ = 0;
    max_decoder_ = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int32_t bits = SlotErrors(encoder[i], decoder[i], this_time[i], args_.plan.max_model_len);
      errors_ |= bits;
      slot[i] = MakeSlot(encoder[i], decoder[i], this_time[i], bits);
      if (first_slot_ + i < batch_size) slot[i] = SlotOfSlice(args_.inputs, first_slot_ + i, slot[i]);
      max_decoder_ = max(max_decoder_, decoder[i]);
    }
  }

  // Per-warp numbers, to be read after a barrier.
  __device__ void Put(int32_t row, uint32_t warp_value) {
    if (LaneId() == 0) shared_.partial[row][WarpId()] = warp_value;
  }
  __device__ void PutErrors() { Put(kErrorBits, WarpOr(errors_)); }
  __device__ void PutSum(int32_t row, uint32_t value) { Put(row, WarpSum(value)); }
  __device__ void PutMax(int32_t row, uint32_t value) { Put(row, WarpMax(value)); }
  // Returns the inclusive sum up to this thread within its warp.
  __device__ uint32_t PutScan(int32_t row, uint32_t value) {
    const uint32_t inclusive = WarpInclusiveScan(value);
    if (LaneId() == 31) shared_.partial[row][WarpId()] = inclusive;
    return inclusive;
  }
  // The same where most warps have only zeros.
  __device__ uint32_t PutSparseScan(int32_t row, uint32_t value) {
    if (__any_sync(kAllLanes, value != 0)) return PutScan(row, value);
    Put(row, 0);
    return 0;
  }
  __device__ uint32_t Sum(int32_t row) const { return WarpSum(PartialOfLane(row)); }
  __device__ uint32_t SumOfWarpsBefore(int32_t row) const {
    return WarpSum(LaneId() < WarpId() ? shared_.partial[row][LaneId()] : 0);
  }

  // What the verdict needs beside the sum of N, in one launch: error bits, with a role's own flags above them, and the
  // sums that may pass their limits.
  __device__ void PutVerdict(uint32_t flags) {
    Put(kErrorBits, WarpOr(errors_ | flags));
    if (kChunked || !(args_.wide_sums || args_.check_kv)) return;
    uint32_t low[2] = {0, 0}, high[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      AddHalves(slot[i].this_time, &low[0], &high[0]);
      AddHalves(slot[i].kv(), &low[1], &high[1]);
    }
    PutSum(kWideTokensRow, low[0]);
    PutSum(kSumTokensHigh, high[0]);
    PutSum(kSumKvLow, low[1]);
    PutSum(kSumKvHigh, high[1]);
  }
  __device__ void PutTokens() {
    if (kChunked) return;
    uint32_t tokens = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) tokens += slot[i].this_time;
    PutSum(kSumTokensLow, tokens);
  }

  // Whether the step is good, the same in every thread of every block. `tokens_row` has the warps' sums of N.
  __device__ bool Good(int32_t tokens_row) {
    flags_ = WarpOr(PartialOfLane(kErrorBits));
    const uint32_t errors = flags_ & (kFirstFlag - 1);
    flags_ &= ~(kFirstFlag - 1);
    if constexpr (kChunked) {
      return GoodSums(shared_.total[kErrorBits], Join(shared_.total[kSumTokensLow], shared_.total[kSumTokensHigh]),
                      Join(shared_.total[kSumKvLow], shared_.total[kSumKvHigh]));
    }
    if (args_.wide_sums || args_.check_kv) {
      return GoodSums(errors, Join(Sum(kWideTokensRow), Sum(kSumTokensHigh)), Join(Sum(kSumKvLow), Sum(kSumKvHigh)));
    }
    return errors == 0 && Sum(tokens_row) <= static_cast<uint32_t>(args_.token_limit);
  }
  // The role's flags over all threads, once Good has been called.
  __device__ uint32_t flags() const { return flags_; }
  __device__ bool GoodSums(uint32_t bits, int64_t tokens, int64_t kv_tokens) const {
    return bits == 0 && SumsAreGood(args_.plan, tokens, kv_tokens, args_.token_limit);
  }
  __device__ static int64_t Join(uint32_t low, uint32_t high) { return (static_cast<int64_t>(high) << kLowBits) + low; }

  // Two launches: sums over all chunks and over those before this one. A barrier follows inside.
  __device__ void LoadChunkSums() {
    for (int32_t quantity = WarpId(); quantity < kNumQuantities; quantity += blockDim.x / 32) {
      const Reduction reduction = ReductionOf(quantity);
      const int32_t chunk = static_cast<int32_t>(LaneId()) * 4;
      const uint4 four = *reinterpret_cast<const uint4*>(&args_.chunks->value[quantity][chunk]);
      const uint32_t values[4] = {four.x, four.y, four.z, four.w};
      uint32_t all = 0, before = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t value = chunk + i < args_.num_chunks ? values[i] : 0;
        all = reduction == Reduction::kSum ? all + value : reduction == Reduction::kMax ? max(all, value) : all | value;
        if (chunk + i < chunk_) before += value;
      }
      all = WarpReduce(reduction, all);
      before = WarpSum(before);
      if (LaneId() == 0) {
        shared_.total[quantity] = all;
        shared_.before[quantity] = before;
      }
    }
    __syncthreads();
  }

  // The chunk that cuts this step's decode tiles. The search has a barrier inside in one launch.
  __device__ MlaChunk ChooseMlaChunk(uint32_t* best_candidate) {
    *best_candidate = 0;
    if (args_.plan.mla == 0) return {args_.plan.block, 0, 0};
    if (!SearchesMlaChunk(args_.plan, args_.inputs.batch_size)) {
      return MakeMlaChunk(args_.plan, args_.inputs.batch_size, 0);
    }
    if constexpr (!kChunked) {
      PutCandidates();
      __syncthreads();
    }
    const int32_t row = kSumCandidates + static_cast<int32_t>(LaneId());
    uint32_t tiles = 0;
    if (LaneId() < kMlaSearchSteps) tiles = kChunked ? shared_.total[row] : TotalOfRow(shared_, row);
    *best_candidate = BestMlaCandidate(tiles, args_.plan.num_sms);
    return MakeMlaChunk(args_.plan, args_.inputs.batch_size, *best_candidate);
  }
  __device__ void PutCandidates() {
#pragma unroll
    for (int i = 1; i <= kMlaSearchSteps; ++i) {
      uint32_t tiles = 0;
#pragma unroll
      for (int k = 0; k < kItems; ++k) tiles += MlaTiles(slot[k], args_.plan.block, i);
      PutSum(kSumCandidates + i - 1, tiles);
    }
  }

  // Stores one number for each of this thread's slots that is below `limit`.
  __device__ void StorePerSlot(int32_t* array, const int32_t (&values)[kItems], int32_t limit) const {
    if (array == nullptr) return;
    if constexpr (kItems == 4) {
      if (first_slot_ + 4 <= limit) {
        *reinterpret_cast<int4*>(array + first_slot_) = make_int4(values[0], values[1], values[2], values[3]);
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (first_slot_ + i < limit) array[first_slot_ + i] = values[i];
    }
  }

  __device__ int32_t first_slot() const { return first_slot_; }
  __device__ int32_t block_first() const { return block_first_; }
  // Slots of the batch that this block holds.
  __device__ int32_t num_slots() const {
    const int32_t rest = args_.inputs.batch_size - block_first_;
    return kChunked ? min(rest, kChunkSlots) : rest;
  }
  __device__ int32_t max_decoder() const { return max_decoder_; }
  // An error step counts as one with no live slot.
  __device__ void Clear() {
#pragma unroll
    for (int i = 0; i < kItems; ++i) slot[i] = {0, 0, 0};
  }

  Slot slot[kItems];

 private:
  __device__ void LoadFour(const int32_t* from, int32_t (&to)[kItems]) const {
    const int4 four = *reinterpret_cast<const int4*>(from + first_slot_);
    to[0] = four.x;
    to[1] = four.y;
    to[2] = four.z;
    to[3] = four.w;
  }

  __device__ uint32_t PartialOfLane(int32_t row) const {
    return LaneId() < blockDim.x / 32 ? shared_.partial[row][LaneId()] : 0;
  }
  __device__ static void AddHalves(int32_t value, uint32_t* low, uint32_t* high) {
    *low += static_cast<uint32_t>(value) & 0xffffu;
    *high += static_cast<uint32_t>(value) >> 16;
  }

  const BuildArgs& args_;
  BlockShared<kItems, kChunked>& shared_;
  const int32_t chunk_, block_first_;
  int32_t first_slot_;
  uint32_t errors_, flags_;
  int32_t max_decoder_;
};

// Everything that the counts are made of, per warp: the counts role in one launch, the first of two launches. Warps
// without a prefill, which most are, have fewer quantities to reduce.
template <int kItems, bool kChunked>
__device__ void PutAllQuantities(const BuildArgs& args, SlotBlock<kItems, kChunked>& block) {
  uint32_t live = 0, decoder_tiles = 0, tokens_low = 0, tokens_high = 0, kv_low = 0, kv_high = 0;
  int32_t max_this_time = 0, max_kv = 0, max_decode_decoder = 0, max_cached_kv = 0;
  bool prefill = false;
  const bool search = SearchesMlaChunk(args.plan, args.inputs.batch_size);
  const MlaChunk chunk = MakeMlaChunk(args.plan, args.inputs.batch_size, 0);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const Slot& slot = block.slot[i];
    live += slot.live();
    prefill = prefill || slot.prefill();
    tokens_low += slot.this_time & 0xffff;
    tokens_high += slot.this_time >> 16;
    kv_low += slot.kv() & 0xffff;
    kv_high += slot.kv() >> 16;
    if (!search) decoder_tiles += DecoderTiles(args.plan, slot, chunk);
    max_this_time = max(max_this_time, slot.this_time);
    max_kv = max(max_kv, slot.kv());
    if (slot.decode()) max_decode_decoder = max(max_decode_decoder, slot.decoder);
    if (slot.decoder > 0) max_cached_kv = max(max_cached_kv, slot.kv());
  }
  block.PutErrors();
  block.PutSum(kSumLive, live);
  block.PutSum(kSumTokensLow, tokens_low);
  block.PutSum(kSumKvLow, kv_low);
  block.PutMax(kMaxThisTime, max_this_time);
  block.PutMax(kMaxDecoder, block.max_decoder());
  block.PutMax(kMaxKv, max_kv);
  block.PutMax(kMaxDecodeDecoder, max_decode_decoder);
  block.PutMax(kMaxCachedKv, max_cached_kv);
  if (search) {
    block.PutCandidates();
  } else {
    block.PutSum(kSumDecoderTiles, decoder_tiles);
  }
  if (__any_sync(kAllLanes, (tokens_high | kv_high) != 0)) {
    block.PutSum(kSumTokensHigh, tokens_high);
    block.PutSum(kSumKvHigh, kv_high);
  } else {
    block.Put(kSumTokensHigh, 0);
    block.Put(kSumKvHigh, 0);
  }
  if (__any_sync(kAllLanes, prefill)) {
    uint32_t prefills = 0, attn_kv = 0, rows = 0, encoder_tiles = 0, kv_tiles = 0, pre_cache_tiles = 0;
    int32_t max_encoder = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const Slot& slot = block.slot[i];
      prefills += slot.prefill();
      attn_kv += slot.attn_kv();
      rows += slot.output_rows();
      encoder_tiles += EncoderTiles(args.plan, slot);
      kv_tiles += KvTiles(args.plan, slot);
      pre_cache_tiles += PreCacheTiles(args.plan, slot);
      if (slot.prefill()) max_encoder = max(max_encoder, slot.this_time);
    }
    block.PutSum(kSumPrefill, prefills);
    block.PutSum(kSumAttnKv, attn_kv);
    block.PutSum(kSumRows, rows);
    block.PutSum(kSumEncoderTiles, encoder_tiles);
    block.PutSum(kSumKvTiles, kv_tiles);
    block.PutSum(kSumPreCacheTiles, pre_cache_tiles);
    block.PutMax(kMaxEncoder, max_encoder);
  } else {
    // Every token is a row, and attends to itself alone.
    uint32_t tokens = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) tokens += block.slot[i].this_time;
    tokens = WarpSum(tokens);
    block.Put(kSumAttnKv, tokens);
    block.Put(kSumRows, tokens);
    for (int32_t row : {kSumPrefill, kSumEncoderTiles, kSumKvTiles, kSumPreCacheTiles, kMaxEncoder}) {
      block.Put(row, 0);
    }
  }
}

}  // namespace fwdmeta
