// The counts, the maxima and the mirror: sums over all slots, and what an error step reports.
#pragma once

#include "build/cuda/role.cuh"

namespace fwdmeta {

// Lane i of the warp brings word i of the step's CountsBlock.
__device__ __forceinline__ void PublishCounts(uint32_t word, int64_t step, MirrorEntry* entry, bool staged,
                                              const CountsOut& out) {
  const uint32_t lane = LaneId();
  // With host lengths the host publishes the same words.
  if (!staged) {
    const_cast<volatile uint64_t*>(entry->word)[lane] = TagWord(step, word);
    reinterpret_cast<volatile uint32_t*>(&entry->view)[lane] = word;
    if (lane == 0) {
      *const_cast<volatile uint64_t*>(&entry->step_high) = TagWord(step, static_cast<uint32_t>(step >> 32));
    }
  }
  if (lane < kNumCounts && (lane < kNumInvalidSlots || lane > kWarnings)) out.counts[lane] = static_cast<int32_t>(word);
  if (lane >= kNumCounts && lane < kNumCounts + FWDMETA_MAX_LEN_COUNT) {
    out.max_len[lane - kNumCounts] = static_cast<int32_t>(word);
  }
  if (lane == kNumCounts + FWDMETA_MAX_LEN_COUNT) *out.chunk_size = static_cast<int32_t>(word);
#pragma unroll
  for (int32_t mapping = 0; mapping < kNumMappings; ++mapping) {
    if (lane == kDecoderNumBlocks + mapping) *out.num_blocks[mapping] = static_cast<int32_t>(word);
  }
  constexpr uint32_t kNumbers = kNumCounts + FWDMETA_MAX_LEN_COUNT + 1;
  if (lane >= kNumbers) reinterpret_cast<uint32_t*>(out.counts_i64)[lane - kNumbers] = word;
  if (lane == 0) out.counts_i64[2] = step;
}

template <int kItems, bool kChunked>
class CountsRole : RoleBlock<kItems, kChunked> {
  using Base = RoleBlock<kItems, kChunked>;
  using Base::args_, Base::shared_, Base::block_, Base::share_, Base::shares_, Base::piece_, Base::pieces_;
  using typename Base::Block, typename Base::Scan;

 public:
  __device__ CountsRole(const BuildArgs& args, BlockShared<kItems, kChunked>& shared, int32_t role, uint32_t index)
      : Base(args, shared, role, index) {}

  // Lane i of the first warp brings up word i of the CountsBlock, which is quantity i for most.
  __device__ void Run() {
    before_ = args_.step - 1;
    if (args_.captured) before_ = args_.builder->replays;
    const bool search = SearchesMlaChunk(args_.plan, args_.inputs.batch_size);
    if constexpr (!kChunked) {
      block_.Load();
      PutAllQuantities(args_, block_);
      __syncthreads();
      this->InputsRead();
    }
    const uint32_t lane = LaneId();
    const uint32_t own = kChunked ? shared_.total[lane] : TotalOfRow(shared_, lane);
    const auto total = [own](int32_t quantity) { return __shfl_sync(kAllLanes, own, quantity); };
    const int64_t tokens = Block::Join(total(kSumTokensLow), total(kSumTokensHigh));
    const int64_t kv_tokens = Block::Join(total(kSumKvLow), total(kSumKvHigh));
    const uint32_t error_bits = total(kErrorBits);
    if (!block_.GoodSums(error_bits, tokens, kv_tokens)) {
      const StepError error = FindError(error_bits, tokens, kv_tokens);
      if (WarpId() != 0) return;
      constexpr uint32_t kNumbers = kNumCounts + FWDMETA_MAX_LEN_COUNT + 1;
      uint32_t word = 0;
      if (lane == kError) word = error.bits;
      if (lane == kErrorSlot) word = static_cast<uint32_t>(error.slot);
      if (lane == kNumbers) word = static_cast<uint32_t>(error.value);
      if (lane == kNumbers + 1) word = static_cast<uint32_t>(error.value >> 32);
      if (lane == kNumbers + 2) word = static_cast<uint32_t>(error.limit);
      if (lane == kNumbers + 3) word = static_cast<uint32_t>(error.limit >> 32);
      Publish(word);
      return;
    }
    if (WarpId() != 0) return;
    const uint32_t live = total(kSumLive), prefill = total(kSumPrefill);
    uint32_t decoder_tiles = own;  // lane kDecoderNumBlocks's
    int32_t chunk_size = 0;
    if (args_.plan.mla != 0) {
      uint32_t best = 0;
      if (search) {
        const int32_t row = kSumCandidates + static_cast<int32_t>(lane);
        uint32_t tiles = 0;
        if (lane < kMlaSearchSteps) tiles = kChunked ? shared_.total[row] : TotalOfRow(shared_, row);
        best = BestMlaCandidate(tiles, args_.plan.num_sms);
        decoder_tiles = __shfl_sync(kAllLanes, tiles, best - 1);
      }
      chunk_size = MakeMlaChunk(args_.plan, args_.inputs.batch_size, best).size;
    }
    uint32_t word = lane < kSumCandidates ? own : 0;
    if (lane == kBatchSize) word = args_.inputs.batch_size;
    if (lane == kNumDecode) word = live - prefill;
    if (lane == kNumTokens) word = static_cast<uint32_t>(tokens);
    if (lane == kNumPaddedTokens) word = NumPaddedTokens(args_.inputs, static_cast<int32_t>(tokens));
    if (lane == kNumKvTokens) word = static_cast<uint32_t>(kv_tokens);
    if (lane == kDecoderNumBlocks) word = decoder_tiles;
    if (lane >= kNumInvalidSlots && lane <= kError) word = 0;
    if (lane == kErrorSlot) word = static_cast<uint32_t>(-1);
    if (lane == kNumCounts + FWDMETA_MAX_LEN_COUNT) word = static_cast<uint32_t>(chunk_size);
    Publish(word);
  }

 private:
  // Lane i of the first warp brings word i of the step's CountsBlock.
  __device__ void Publish(uint32_t word) {
    const int64_t step = before_ + 1;  // not sooner: here alone the load has to have arrived
    if (args_.captured && LaneId() == 0) args_.builder->replays = step;
    PublishCounts(word, step, args_.captured ? &args_.mirror->replay : args_.entry, args_.staged,
                  MakeCountsOut(args_.out));
  }

  struct StepError {
    int32_t bits, slot;
    int64_t value, limit;
  };
  enum class SumOf { kTokens, kKv };

  // The rare way: which slot and which numbers an error step reports (contract 7). All threads of the block.
  __device__ StepError FindError(int32_t slot_bits, int64_t tokens, int64_t kv_tokens) {
    const Plan& plan = args_.plan;
    const int32_t padded = args_.inputs.num_padded_tokens;
    StepError error = {slot_bits, -1, 0, 0};
    if (tokens > INT32_MAX || kv_tokens > INT32_MAX) error.bits |= FWDMETA_ERROR_SUM_OVERFLOW;
    if (tokens > plan.max_num_tokens) error.bits |= FWDMETA_ERROR_NUM_TOKENS;
    if (padded >= 0 && padded < tokens) error.bits |= FWDMETA_ERROR_PADDED_TOKENS;
    if (kv_tokens > plan.max_num_kv_tokens) error.bits |= FWDMETA_ERROR_NUM_KV_TOKENS;
    if (slot_bits != 0) {
      error.slot = FirstBadSlot();
      const int32_t encoder = args_.inputs.encoder[error.slot], decoder = args_.inputs.decoder[error.slot];
      const int32_t this_time = args_.inputs.this_time[error.slot];
      SlotErrorNumbers(encoder, decoder, this_time, plan.max_model_len,
                       SlotErrors(encoder, decoder, this_time, plan.max_model_len), &error.value, &error.limit);
    } else if (tokens > INT32_MAX) {
      SetSumError(&error, SumOf::kTokens, tokens, INT32_MAX);
    } else if (kv_tokens > INT32_MAX) {
      SetSumError(&error, SumOf::kKv, kv_tokens, INT32_MAX);
    } else if (tokens > plan.max_num_tokens) {
      SetSumError(&error, SumOf::kTokens, tokens, plan.max_num_tokens);
    } else if (padded >= 0 && padded < tokens) {
      error.value = tokens;
      error.limit = padded;
    } else {
      SetSumError(&error, SumOf::kKv, kv_tokens, plan.max_num_kv_tokens);
    }
    return error;
  }
  __device__ void SetSumError(StepError* error, SumOf sum, int64_t total, int64_t limit) {
    error->slot = FirstPast(sum, limit);
    error->value = total;
    error->limit = limit;
  }
  __device__ int32_t FirstBadSlot() {
    if (threadIdx.x == 0) shared_.found = INT32_MAX;
    __syncthreads();
    for (int32_t b = threadIdx.x; b < args_.inputs.batch_size; b += blockDim.x) {
      if (SlotErrors(args_.inputs.encoder[b], args_.inputs.decoder[b], args_.inputs.this_time[b],
                     args_.plan.max_model_len) != 0) {
        atomicMin(&shared_.found, b);
        break;
      }
    }
    __syncthreads();
    return shared_.found;
  }
  // The first slot at which the running sum passes the limit. No slot is bad.
  __device__ int32_t FirstPast(SumOf sum, int64_t limit) {
    if (threadIdx.x == 0) shared_.found = INT32_MAX;
    unsigned long long before = 0;
    for (int32_t first = 0; first < args_.inputs.batch_size; first += blockDim.x) {
      const int32_t b = first + threadIdx.x;
      unsigned long long value = 0;
      if (b < args_.inputs.batch_size) {
        const int32_t this_time = args_.inputs.this_time[b];
        const Slot slot = MakeSlot(args_.inputs.encoder[b], args_.inputs.decoder[b], this_time, 0);
        value = sum == SumOf::kTokens ? slot.this_time : slot.kv();
      }
      unsigned long long inclusive = value;
      for (int offset = 1; offset < 32; offset *= 2) {
        const unsigned long long other = __shfl_up_sync(kAllLanes, inclusive, offset);
        if (LaneId() >= offset) inclusive += other;
      }
      __syncthreads();
      if (LaneId() == 31) shared_.wide[WarpId()] = inclusive;
      __syncthreads();
      unsigned long long block_sum = 0;
      for (uint32_t warp = 0; warp < blockDim.x / 32; ++warp) {
        if (warp < WarpId()) inclusive += shared_.wide[warp];
        block_sum += shared_.wide[warp];
      }
      if (value > 0 && before + inclusive > static_cast<unsigned long long>(limit)) atomicMin(&shared_.found, b);
      before += block_sum;
      __syncthreads();
      if (shared_.found != INT32_MAX) break;
    }
    return shared_.found;
  }

  int64_t before_;
};

}  // namespace fwdmeta
