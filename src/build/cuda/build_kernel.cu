// The build: one launch up to kSingleLaunchSlots slots, two above. Thread blocks take roles, each of which owns some
// outputs; no block waits for another.
#include "build/cuda/block.cuh"

namespace fwdmeta {
namespace {

// Up to this many tiles, rows or tokens per slot the slot's own thread writes them; beyond it, all threads share the
// entries and find each one's slot by binary search in the prefix sums.
constexpr uint32_t kOwnerEntries = 4;
constexpr uint32_t kTileTokens = 128;  // tokens that a warp writes at a time

struct Range {
  uint32_t begin, end;
  __device__ bool Contains(uint32_t i) const { return i >= begin && i < end; }
};

// Piece `index` of `count` of [begin, end), cut at multiples of `alignment`.
__device__ __forceinline__ Range Piece(uint32_t begin, uint32_t end, uint32_t index, uint32_t count,
                                       uint32_t alignment) {
  if (begin >= end) return {end, end};
  if (count == 1) return {begin, end};
  const uint64_t mask = alignment - 1;
  const uint64_t size = ((end - begin + count - 1) / count + mask) & ~mask;
  const auto bound = [&](uint32_t i) {
    const uint64_t at = (begin + size * i + mask) & ~mask;
    return i == 0 ? begin : at < end ? static_cast<uint32_t>(at) : end;
  };
  return {bound(index), bound(index + 1)};
}

// The last index whose prefix is not past `value`; prefix[0] never is.
__device__ __forceinline__ uint32_t FindSlot(const uint32_t* prefix, uint32_t count, uint32_t value) {
  uint32_t position = 0;
  for (uint32_t step = count <= 1 ? 0 : 1u << (31 - __clz(count - 1)); step > 0; step /= 2) {
    if (position + step < count && prefix[position + step] <= value) position += step;
  }
  return position;
}

template <class T>
__device__ __forceinline__ void FillThreads(T* array, const Range& range, T value) {
  if (array == nullptr) return;
  for (uint32_t i = range.begin + threadIdx.x; i < range.end; i += blockDim.x) array[i] = value;
}

template <int kItems, bool kChunked>
class Build {
  using Block = SlotBlock<kItems, kChunked>;

 public:
  __device__ Build(const BuildArgs& args, BlockShared<kItems>& shared, int32_t role, uint32_t index)
      : args_(args),
        shared_(shared),
        role_(role),
        slices_(args.slices[role]),
        slice_(kChunked ? index % slices_ : index),
        piece_(index),
        pieces_(kChunked ? slices_ * args.num_chunks : slices_),
        block_(args, shared, kChunked ? index / slices_ : 0) {}

  __device__ void Run() {
    if constexpr (kChunked) block_.LoadChunkSums();
    switch (role_) {
      case kRoleCounts: RunCounts(); break;
      case kRoleLengths: RunLengths(); break;
      case kRoleTiles: RunTiles<kDecoder, kEncoder>(); break;
      case kRoleKvTiles: RunTiles<kKv, kPreCache>(); break;
      case kRoleRows: RunRows(); break;
      default: RunTokens(); break;
    }
  }

 private:
  // -------------------------------------------------------------------------------------- what roles share --

  // Called by every thread once the block has read its lengths, after a barrier.
  __device__ void InputsRead() {
    if (kChunked || !args_.staged || threadIdx.x != 0) return;
    if (atomicInc(&args_.builder->inputs_ticket, gridDim.x - 1) == gridDim.x - 1) {
      *const_cast<volatile int64_t*>(&args_.entry->inputs_read) = args_.step;
    }
  }

  // After a barrier that follows the reads of the set's state: true in one thread of the last block of the role.
  __device__ bool LastToRead() {
    if (threadIdx.x != 0) return false;
    return pieces_ == 1 || atomicInc(&args_.builder->tickets[role_], pieces_ - 1) == pieces_ - 1;
  }

  // A quantity's prefix sum over the slots, as one thread sees it. All zero in an error step.
  struct Scan {
    uint32_t exclusive;  // within the block, of the thread's first slot
    uint32_t total;      // of the block
    uint32_t before;     // of the chunks before
    uint32_t all;        // of the batch
  };
  __device__ Scan FinishScan(bool good, int32_t row, uint32_t inclusive, uint32_t own, int32_t quantity) {
    if (!good) return {0, 0, 0, 0};
    Scan scan;
    scan.exclusive = block_.SumOfWarpsBefore(row) + inclusive - own;
    scan.total = block_.Sum(row);
    if constexpr (kChunked) {
      const bool wide = quantity == kSumTokensLow || quantity == kSumKvLow;
      const int32_t high = quantity == kSumTokensLow ? kSumTokensHigh : kSumKvHigh;
      scan.before = wide ? static_cast<uint32_t>(Block::Join(shared_.before[quantity], shared_.before[high]))
                         : shared_.before[quantity];
      scan.all = wide ? static_cast<uint32_t>(Block::Join(shared_.total[quantity], shared_.total[high]))
                      : shared_.total[quantity];
    } else {
      scan.before = 0;
      scan.all = scan.total;
    }
    return scan;
  }

  template <class Rule>
  __device__ uint32_t SumOfThread(Rule rule) const {
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) sum += rule(block_.slot[i]);
    return sum;
  }

  // Stores an exclusive prefix sum for this thread's slots, and the total past the batch.
  template <class Rule>
  __device__ void StoreCu(int32_t* cu, const Scan& scan, Rule rule) {
    if (cu == nullptr) return;
    if (slice_ == 0) {
      int32_t values[kItems];
      uint32_t sum = scan.before + scan.exclusive;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        values[i] = static_cast<int32_t>(sum);
        sum += rule(i);
      }
      block_.StorePerSlot(cu, values, args_.inputs.batch_size);
    }
    FillTail(cu, args_.plan.max_batch_size + 1, static_cast<int32_t>(scan.all));
  }
  template <class Rule>
  __device__ void StoreSlots(int32_t* array, int32_t idle, Rule rule) {
    if (array == nullptr) return;
    if (slice_ == 0) {
      int32_t values[kItems];
#pragma unroll
      for (int i = 0; i < kItems; ++i) values[i] = block_.slot[i].live() ? rule(block_.slot[i]) : idle;
      block_.StorePerSlot(array, values, args_.inputs.batch_size);
    }
    FillTail(array, args_.plan.max_batch_size, idle);
  }
  // [batch_size, end), shared among the role's blocks.
  __device__ void FillTail(int32_t* array, uint32_t end, int32_t value) {
    FillThreads(array, Piece(args_.inputs.batch_size, end, piece_, pieces_, 32), value);
  }

  // Leaves the exclusive prefix sums of the block's slots in shared memory, to be read after a barrier.
  template <class Rule>
  __device__ void SharePrefix(int32_t which, const Scan& scan, Rule rule) {
    uint32_t sums[kItems], sum = scan.exclusive;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      sums[i] = sum;
      sum += rule(i);
    }
    StoreShared(which, sums);
    if (threadIdx.x == blockDim.x - 1) shared_.prefix[which][blockDim.x * kItems] = sum;
  }
  __device__ void StoreShared(int32_t which, const uint32_t (&values)[kItems]) {
    uint32_t* to = &shared_.prefix[which][threadIdx.x * kItems];
    if constexpr (kItems == 4) {
      *reinterpret_cast<uint4*>(to) = make_uint4(values[0], values[1], values[2], values[3]);
    } else {
      to[0] = values[0];
    }
  }
  __device__ uint32_t FindInBlock(int32_t which, uint32_t entry) const {
    return FindSlot(shared_.prefix[which], block_.num_slots(), entry);
  }

  // Writes the int32 pairs of [range): entry(x) gives the pair. Four entries to a thread, in 16-byte stores.
  template <class Entry>
  __device__ void StorePairs(int32_t* first, int32_t* second, const Range& range, Entry entry) {
    for (uint32_t x = (range.begin & ~3u) + 4 * threadIdx.x; x < range.end; x += 4 * blockDim.x) {
      int2 pair[4];
      entry(x, range, pair);
      if (x >= range.begin && x + 4 <= range.end) {
        if (first != nullptr) {
          *reinterpret_cast<int4*>(first + x) = make_int4(pair[0].x, pair[1].x, pair[2].x, pair[3].x);
        }
        if (second != nullptr) {
          *reinterpret_cast<int4*>(second + x) = make_int4(pair[0].y, pair[1].y, pair[2].y, pair[3].y);
        }
        continue;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!range.Contains(x + i)) continue;
        if (first != nullptr) first[x + i] = pair[i].x;
        if (second != nullptr) second[x + i] = pair[i].y;
      }
    }
  }

  // ------------------------------------------------------------------------------------------------- counts --

  // Lane i of the first warp brings up word i of the CountsBlock, which is quantity i for most.
  __device__ void RunCounts() {
    const bool search = SearchesMlaChunk(args_.plan, args_.inputs.batch_size);
    if constexpr (!kChunked) {
      block_.Load();
      PutAllQuantities(args_, block_);
      __syncthreads();
      InputsRead();
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
      MlaSearch choice;
      if (search) {
        for (int i = 1; i <= kMlaSearchSteps; ++i) {
          const int32_t row = kSumCandidates + i - 1;
          const uint32_t tiles = kChunked ? shared_.total[row] : TotalOfRow(shared_, row);
          choice.Consider(i, tiles, args_.plan.num_sms);
          if (choice.best == i) decoder_tiles = tiles;
        }
      }
      chunk_size = MakeMlaChunk(args_.plan, args_.inputs.batch_size, choice.best).size;
    }
    const int32_t padded = args_.inputs.num_padded_tokens;
    uint32_t word = lane < kSumCandidates ? own : 0;
    if (lane == kBatchSize) word = args_.inputs.batch_size;
    if (lane == kNumDecode) word = live - prefill;
    if (lane == kNumTokens) word = static_cast<uint32_t>(tokens);
    if (lane == kNumPaddedTokens) word = padded >= 0 ? padded : static_cast<uint32_t>(tokens);
    if (lane == kNumKvTokens) word = static_cast<uint32_t>(kv_tokens);
    if (lane == kDecoderNumBlocks) word = decoder_tiles;
    if (lane >= kNumInvalidSlots && lane <= kError) word = 0;
    if (lane == kErrorSlot) word = static_cast<uint32_t>(-1);
    if (lane == kNumCounts + FWDMETA_MAX_LEN_COUNT) word = static_cast<uint32_t>(chunk_size);
    Publish(word);
  }

  template <Mapping kMapping>
  __device__ void StoreNumBlocks(uint32_t word) {
    constexpr int32_t kField = kMappingFields[kMapping].num_blocks;
    if (LaneId() == kDecoderNumBlocks + kMapping) *args_.out.i32(kField) = static_cast<int32_t>(word);
  }

  // Lane i of the first warp brings word i of the step's CountsBlock.
  __device__ void Publish(uint32_t word) {
    const uint32_t lane = LaneId();
    int64_t step = args_.step;
    MirrorEntry* entry = args_.entry;
    if (args_.captured) {
      step = args_.builder->replays + 1;
      entry = &args_.mirror->replay[step & 1];
      reinterpret_cast<volatile uint32_t*>(&args_.mirror->replay_view)[lane] = word;
    }
    // With host lengths the host has written the same words.
    if (!args_.staged) reinterpret_cast<volatile uint32_t*>(&entry->block)[lane] = word;
    const Outputs& out = args_.out;
    if (lane < kNumCounts && (lane < kNumInvalidSlots || lane > kWarnings)) {
      out.i32(FWDMETA_FIELD_COUNTS)[lane] = static_cast<int32_t>(word);
    }
    if (lane >= kNumCounts && lane < kNumCounts + FWDMETA_MAX_LEN_COUNT) {
      out.i32(FWDMETA_FIELD_MAX_LEN_TENSOR)[lane - kNumCounts] = static_cast<int32_t>(word);
    }
    if (lane == kNumCounts + FWDMETA_MAX_LEN_COUNT) {
      *out.i32(FWDMETA_FIELD_DECODER_CHUNK_SIZE_DEVICE) = static_cast<int32_t>(word);
    }
    StoreNumBlocks<kDecoder>(word);
    StoreNumBlocks<kEncoder>(word);
    StoreNumBlocks<kKv>(word);
    StoreNumBlocks<kPreCache>(word);
    if (lane >= 28) reinterpret_cast<uint32_t*>(out.i64(FWDMETA_FIELD_COUNTS_I64))[lane - 28] = word;
    if (lane == 0) out.i64(FWDMETA_FIELD_COUNTS_I64)[2] = step;
    if (!args_.staged) {
      __threadfence_system();
      __syncwarp();
      if (lane == 0) *const_cast<volatile int64_t*>(&entry->stamp) = step;
    }
    if (args_.captured && lane == 0) args_.builder->replays = step;
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

  // ------------------------------------------------------------------------------------------------ lengths --

  __device__ void RunLengths() {
    block_.Load();
    block_.PutVerdict();
    const uint32_t tokens = SumOfThread([](const Slot& slot) { return slot.this_time; });
    const uint32_t kv = SumOfThread([](const Slot& slot) { return slot.kv(); });
    const uint32_t attn_kv = SumOfThread([](const Slot& slot) { return slot.attn_kv(); });
    const uint32_t tokens_to = block_.PutScan(kScanRow, tokens);
    const uint32_t kv_to = block_.PutScan(kScanRow + 1, kv);
    const uint32_t attn_kv_to = block_.PutScan(kScanRow + 2, attn_kv);
    __syncthreads();
    InputsRead();
    const bool good = block_.Good();
    if (!good) block_.Clear();
    const Scan q = FinishScan(good, kScanRow, tokens_to, tokens, kSumTokensLow);
    const Scan k = FinishScan(good, kScanRow + 1, kv_to, kv, kSumKvLow);
    const Scan attn = FinishScan(good, kScanRow + 2, attn_kv_to, attn_kv, kSumAttnKv);
    const Outputs& out = args_.out;
    StoreCu(out.i32(FWDMETA_FIELD_CU_SEQLENS_Q), q, [this](int i) { return block_.slot[i].this_time; });
    StoreCu(out.i32(FWDMETA_FIELD_CU_SEQLENS_K), k, [this](int i) { return block_.slot[i].kv(); });
    StoreCu(out.i32(FWDMETA_FIELD_ATTN_CU_SEQLENS_K), attn, [this](int i) { return block_.slot[i].attn_kv(); });
    StoreSlots(out.i32(FWDMETA_FIELD_SEQ_LENS_KV), args_.plan.pad_seq_len, [](const Slot& slot) { return slot.kv(); });
    StoreSlots(out.i32(FWDMETA_FIELD_SEQ_LENS_KV_LOCAL), 0,
               [this](const Slot& slot) { return LocalKvLength(args_.plan, slot.kv()); });
    uint32_t end = q.before + q.exclusive;
    StoreSlots(out.i32(FWDMETA_FIELD_LAST_TOKEN_INDEX), -1, [&end](const Slot& slot) {
      end += slot.this_time;
      return static_cast<int32_t>(end) - 1;
    });
  }

  // ------------------------------------------------------------------------------------------------- tiles --

  template <Mapping kMapping>
  __device__ uint32_t TilesOf(const Slot& slot, const MlaChunk& chunk) const {
    if constexpr (kMapping == kDecoder) return DecoderTiles(args_.plan, slot, chunk);
    if constexpr (kMapping == kEncoder) return EncoderTiles(args_.plan, slot);
    if constexpr (kMapping == kKv) return KvTiles(args_.plan, slot);
    return PreCacheTiles(args_.plan, slot);
  }

  template <Mapping kFirst, Mapping kSecond>
  __device__ void RunTiles() {
    const uint32_t previous[2] = {static_cast<uint32_t>(args_.set->mapping[kFirst]),
                                  static_cast<uint32_t>(args_.set->mapping[kSecond])};
    block_.Load();
    block_.PutVerdict();
    uint32_t best = 0;
    MlaChunk chunk = {args_.plan.block, 0, 0};
    if constexpr (kFirst == kDecoder) chunk = block_.ChooseMlaChunk(&best);
    uint32_t tiles[2][kItems], sum[2] = {0, 0}, most[2] = {0, 0}, to[2];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      tiles[0][i] = TilesOf<kFirst>(block_.slot[i], chunk);
      tiles[1][i] = TilesOf<kSecond>(block_.slot[i], chunk);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        sum[m] += tiles[m][i];
        most[m] = max(most[m], tiles[m][i]);
      }
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      to[m] = block_.PutScan(kScanRow + m, sum[m]);
      block_.PutMax(kMaxRow + m, most[m]);
    }
    __syncthreads();
    InputsRead();
    const bool last = LastToRead();
    const bool good = block_.Good();
    const int32_t first_quantity =
        kFirst == kDecoder && best > 0 ? kSumCandidates + static_cast<int32_t>(best) - 1 : kDecoderNumBlocks + kFirst;
    const Scan scan[2] = {FinishScan(good, kScanRow, to[0], sum[0], first_quantity),
                          FinishScan(good, kScanRow + 1, to[1], sum[1], kDecoderNumBlocks + kSecond)};
    bool by_owner[2];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      by_owner[m] = block_.Max(kMaxRow + m) <= kOwnerEntries;
      if (!good) {
#pragma unroll
        for (int i = 0; i < kItems; ++i) tiles[m][i] = 0;
      }
      if (!by_owner[m]) SharePrefix(m, scan[m], [&](int i) { return tiles[m][i]; });
    }
    if (!by_owner[0] || !by_owner[1]) __syncthreads();
    StoreMapping<kFirst>(0, scan[0], by_owner[0], tiles[0], previous[0]);
    StoreMapping<kSecond>(1, scan[1], by_owner[1], tiles[1], previous[1]);
    if (last) {
      args_.set->mapping[kFirst] = static_cast<int32_t>(scan[0].all);
      args_.set->mapping[kSecond] = static_cast<int32_t>(scan[1].all);
    }
  }

  template <Mapping kMapping>
  __device__ void StoreMapping(int32_t which, const Scan& scan, bool by_owner, const uint32_t (&tiles)[kItems],
                               uint32_t previous) {
    constexpr MappingFields kFields = kMappingFields[kMapping];
    int32_t* batch_ids = args_.out.i32(kFields.batch_ids);
    int32_t* tile_ids = args_.out.i32(kFields.tile_ids);
    StoreCu(args_.out.i32(kFields.cu_tiles), scan, [&](int i) { return tiles[i]; });
    const Range range = Piece(scan.before, scan.before + scan.total, slice_, slices_, 4);
    if (by_owner) {
      uint32_t x = scan.before + scan.exclusive;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        for (uint32_t tile = 0; tile < tiles[i]; ++tile, ++x) {
          if (!range.Contains(x)) continue;
          if (batch_ids != nullptr) batch_ids[x] = block_.first_slot() + i;
          if (tile_ids != nullptr) tile_ids[x] = static_cast<int32_t>(tile);
        }
      }
    } else {
      StorePairs(batch_ids, tile_ids, range, [&](uint32_t x, const Range& valid, int2 (&pair)[4]) {
        const uint32_t* prefix = shared_.prefix[which];
        uint32_t slot = FindInBlock(which, max(x, valid.begin) - scan.before);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (!valid.Contains(x + i)) continue;
          const uint32_t entry = x + i - scan.before;
          while (prefix[slot + 1] <= entry) ++slot;
          pair[i] = make_int2(block_.block_first() + static_cast<int32_t>(slot),
                              static_cast<int32_t>(entry - prefix[slot]));
        }
      });
    }
    ErasePairs(batch_ids, tile_ids, scan.all, previous);
  }

  __device__ void ErasePairs(int32_t* first, int32_t* second, uint32_t count, uint32_t previous) {
    StorePairs(first, second, Piece(count, max(count, previous), piece_, pieces_, 4),
               [](uint32_t, const Range&, int2 (&pair)[4]) {
#pragma unroll
                 for (int i = 0; i < 4; ++i) pair[i] = make_int2(-1, -1);
               });
  }

  // --------------------------------------------------------------------------------------------- output rows --

  __device__ void RunRows() {
    const uint32_t previous = args_.set->rows;
    block_.Load();
    block_.PutVerdict();
    const uint32_t tokens = SumOfThread([](const Slot& slot) { return slot.this_time; });
    const uint32_t rows = SumOfThread([](const Slot& slot) { return slot.output_rows(); });
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) most = max(most, block_.slot[i].output_rows());
    const uint32_t tokens_to = block_.PutScan(kScanRow, tokens);
    const uint32_t rows_to = block_.PutScan(kScanRow + 1, rows);
    block_.PutMax(kMaxRow, most);
    __syncthreads();
    InputsRead();
    const bool last = LastToRead();
    const bool good = block_.Good();
    const bool by_owner = block_.Max(kMaxRow) <= kOwnerEntries;
    if (!good) block_.Clear();
    const Scan q = FinishScan(good, kScanRow, tokens_to, tokens, kSumTokensLow);
    const Scan scan = FinishScan(good, kScanRow + 1, rows_to, rows, kSumRows);
    const Outputs& out = args_.out;
    StoreCu(out.i32(FWDMETA_FIELD_CU_SEQLENS_Q_OUTPUT), scan, [this](int i) { return block_.slot[i].output_rows(); });
    StoreSlots(out.i32(FWDMETA_FIELD_SEQ_LENS_OUTPUT), 0, [](const Slot& slot) { return slot.output_rows(); });
    int32_t* batch_ids = out.i32(FWDMETA_FIELD_BATCH_ID_PER_TOKEN_OUTPUT);
    int32_t* indices = out.i32(FWDMETA_FIELD_LOGITS_INDICES);
    const Range range = Piece(scan.before, scan.before + scan.total, slice_, slices_, 4);
    if (by_owner) {
      uint32_t x = scan.before + scan.exclusive, end = q.before + q.exclusive;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int32_t count = block_.slot[i].output_rows();
        end += block_.slot[i].this_time;
        for (int32_t row = 0; row < count; ++row, ++x) {
          if (!range.Contains(x)) continue;
          if (batch_ids != nullptr) batch_ids[x] = block_.first_slot() + i;
          if (indices != nullptr) indices[x] = static_cast<int32_t>(end) - count + row;
        }
      }
    } else {
      SharePrefix(0, q, [this](int i) { return block_.slot[i].this_time; });
      SharePrefix(1, scan, [this](int i) { return block_.slot[i].output_rows(); });
      __syncthreads();
      StorePairs(batch_ids, indices, range, [&](uint32_t x, const Range& valid, int2 (&pair)[4]) {
        const uint32_t* prefix = shared_.prefix[1];
        uint32_t slot = FindInBlock(1, max(x, valid.begin) - scan.before);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (!valid.Contains(x + i)) continue;
          const uint32_t entry = x + i - scan.before;
          while (prefix[slot + 1] <= entry) ++slot;
          // Rows are the last tokens of their slot.
          pair[i] = make_int2(block_.block_first() + static_cast<int32_t>(slot),
                              static_cast<int32_t>(q.before + shared_.prefix[0][slot + 1] - prefix[slot + 1] + entry));
        }
      });
    }
    ErasePairs(batch_ids, indices, scan.all, previous);
    if (last) args_.set->rows = static_cast<int32_t>(scan.all);
  }

  // -------------------------------------------------------------------------------------------------- tokens --

  // A token by its slot.
  struct TokenRef {
    uint32_t index;    // on the token axis
    int32_t slot;
    uint32_t decoder;  // the slot's D
    uint32_t token;    // its number among the slot's new tokens
    bool prefill, valid;
  };

  __device__ void RunTokens() {
    const uint32_t previous = args_.set->tokens;
    const bool clamped_before = threadIdx.x == 0 && args_.builder->clamped != 0;
    const int64_t replay = args_.captured && threadIdx.x == 0 ? args_.builder->token_replays + 1 : 0;
    block_.Load();
    block_.PutVerdict();
    const uint32_t tokens = SumOfThread([](const Slot& slot) { return slot.this_time; });
    const uint32_t tokens_to = block_.PutScan(kScanRow, tokens);
    __syncthreads();
    InputsRead();
    const bool good = block_.Good();
    if (!good) block_.Clear();
    const Scan scan = FinishScan(good, kScanRow, tokens_to, tokens, kSumTokensLow);
    SharePrefix(0, scan, [this](int i) { return block_.slot[i].this_time; });
    uint32_t decoders[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      decoders[i] = block_.slot[i].decoder | (block_.slot[i].prefill() ? 0x80000000u : 0);
    }
    StoreShared(1, decoders);
    has_ids_ = args_.out.i64(FWDMETA_FIELD_IDS_REMOVE_PADDING) != nullptr &&
               (args_.inputs.input_ids.data != nullptr || args_.inputs.draft_tokens.data != nullptr);
    bad_slots_ = 0;
    bad_ids_ = 0;
    const Range range = Piece(scan.before, scan.before + scan.total, slice_, slices_, kTileTokens);
    __syncthreads();
    // Few tokens: one to a lane, so that every warp has some. Many: four, with runs of one slot in 16-byte stores.
    if (range.end - range.begin <= blockDim.x) {
      StoreTokens<1>(range, scan.before);
    } else {
      StoreTokens<4>(range, scan.before);
    }
    PadTokens(Piece(scan.all, max(scan.all, previous), piece_, pieces_, kTileTokens));
    FinishTokens(good, scan.all, clamped_before, replay);
  }

  __device__ int64_t CacheSlot(int32_t group, const TokenRef& ref) {
    if (args_.inputs.tables[group].data == nullptr) return -1;
    bool invalid;
    const int64_t value = SlotOfPosition(args_.plan.groups[group], args_.inputs.tables[group], ref.slot,
                                         ref.decoder + ref.token, &invalid);
    bad_slots_ += invalid;
    return value;
  }
  __device__ int64_t TokenId(const TokenRef& ref) {
    if (!has_ids_) return args_.plan.pad_token_id;
    bool invalid;
    const int64_t value = IdOfToken(args_.inputs, args_.plan.pad_token_id, ref.slot, ref.prefill, ref.token, &invalid);
    bad_ids_ += invalid;
    return value;
  }

  // Warps take 32 * kPerLane tokens at a time, cut at multiples of that.
  template <int kPerLane>
  __device__ void StoreTokens(const Range& range, uint32_t before) {
    constexpr uint32_t kTile = 32 * kPerLane;
    const uint32_t* prefix = shared_.prefix[0];
    for (uint32_t x = (range.begin & ~(kTile - 1)) + kTile * WarpId(); x < range.end; x += kTile * (blockDim.x / 32)) {
      const uint32_t begin = max(x, range.begin) - before;
      const uint32_t first = FindInBlock(0, begin);
      if constexpr (kPerLane == 4) {
        if (x >= range.begin && x + kTile <= range.end && x + kTile - before <= prefix[first + 1]) {
          StoreRun(x, first, x - before - prefix[first]);
          continue;
        }
      }
      TokenRef ref[kPerLane];
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const uint32_t index = x + LaneId() + 32 * i;
        ref[i].index = index;
        ref[i].valid = range.Contains(index);
        if (!ref[i].valid) continue;
        const uint32_t token = index - before;
        // In a step of one token a slot the guess is right; else a search.
        const uint32_t guess = min(first + token - begin, static_cast<uint32_t>(block_.num_slots()) - 1);
        const bool right = prefix[guess] <= token && token < prefix[guess + 1];
        const uint32_t slot = right ? guess : FindInBlock(0, token);
        Refer(slot, token - prefix[slot], &ref[i]);
      }
      StoreRefs(ref);
    }
  }

  __device__ void Refer(uint32_t slot, uint32_t token, TokenRef* ref) const {
    const uint32_t word = shared_.prefix[1][slot];
    ref->slot = block_.block_first() + static_cast<int32_t>(slot);
    ref->decoder = word & 0x7fffffffu;
    ref->prefill = word >> 31 != 0;
    ref->token = token;
  }

  // All loads of a thread's tokens are under way before the first is needed.
  template <int kPerLane>
  __device__ void StoreRefs(const TokenRef (&ref)[kPerLane]) {
    const Outputs& out = args_.out;
    int64_t cache[kPerLane], ids[kPerLane];
    const bool has_slots = out.slot_mapping[0] != nullptr, wants_ids = out.i64(FWDMETA_FIELD_IDS_REMOVE_PADDING) != nullptr;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      cache[i] = has_slots && ref[i].valid ? CacheSlot(0, ref[i]) : -1;
      ids[i] = wants_ids && ref[i].valid ? TokenId(ref[i]) : 0;
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (!ref[i].valid) continue;
      const uint32_t x = ref[i].index;
      if (int32_t* a = out.i32(FWDMETA_FIELD_BATCH_ID_PER_TOKEN)) a[x] = ref[i].slot;
      if (int64_t* a = out.i64(FWDMETA_FIELD_POSITION_IDS)) a[x] = static_cast<int64_t>(ref[i].decoder) + ref[i].token;
      if (uint8_t* a = out.u8(FWDMETA_FIELD_IS_PADDING)) a[x] = 0;
      if (int32_t* a = out.i32(FWDMETA_FIELD_MASK_ENCODER_BATCH)) a[x] = ref[i].prefill;
      if (has_slots) out.slot_mapping[0][x] = cache[i];
      if (wants_ids) out.i64(FWDMETA_FIELD_IDS_REMOVE_PADDING)[x] = ids[i];
    }
    for (int32_t group = 1; group < args_.plan.num_groups; ++group) {
      if (out.slot_mapping[group] == nullptr) continue;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) cache[i] = ref[i].valid ? CacheSlot(group, ref[i]) : -1;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        if (ref[i].valid) out.slot_mapping[group][ref[i].index] = cache[i];
      }
    }
  }

  // kTileTokens tokens from x on, all of one slot, the first being its token `token`.
  __device__ void StoreRun(uint32_t x, uint32_t slot, uint32_t token) {
    const Outputs& out = args_.out;
    const uint32_t lane = LaneId();
    TokenRef ref[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Refer(slot, token + 64 * (i / 2) + 2 * lane + i % 2, &ref[i]);
    }
    int64_t cache[4], ids[4];
    const bool has_slots = out.slot_mapping[0] != nullptr, wants_ids = out.i64(FWDMETA_FIELD_IDS_REMOVE_PADDING) != nullptr;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      cache[i] = has_slots ? CacheSlot(0, ref[i]) : -1;
      ids[i] = wants_ids ? TokenId(ref[i]) : 0;
    }
    const uint32_t at = x + 4 * lane;
    const int32_t batch_id = ref[0].slot, mask = ref[0].prefill;
    if (int32_t* a = out.i32(FWDMETA_FIELD_BATCH_ID_PER_TOKEN)) {
      *reinterpret_cast<int4*>(a + at) = make_int4(batch_id, batch_id, batch_id, batch_id);
    }
    if (int32_t* a = out.i32(FWDMETA_FIELD_MASK_ENCODER_BATCH)) {
      *reinterpret_cast<int4*>(a + at) = make_int4(mask, mask, mask, mask);
    }
    if (uint8_t* a = out.u8(FWDMETA_FIELD_IS_PADDING)) *reinterpret_cast<uint32_t*>(a + at) = 0;
    if (int64_t* a = out.i64(FWDMETA_FIELD_POSITION_IDS)) {
      const int64_t position = static_cast<int64_t>(ref[0].decoder) + ref[0].token;
      StorePair(a + x, position, position + 1, position + 64, position + 65);
    }
    if (has_slots) StorePair(out.slot_mapping[0] + x, cache[0], cache[1], cache[2], cache[3]);
    if (wants_ids) StorePair(out.i64(FWDMETA_FIELD_IDS_REMOVE_PADDING) + x, ids[0], ids[1], ids[2], ids[3]);
    for (int32_t group = 1; group < args_.plan.num_groups; ++group) {
      if (out.slot_mapping[group] == nullptr) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) cache[i] = CacheSlot(group, ref[i]);
      StorePair(out.slot_mapping[group] + x, cache[0], cache[1], cache[2], cache[3]);
    }
  }
  // Two 16-byte stores, each contiguous over the warp.
  __device__ static void StorePair(int64_t* to, int64_t a, int64_t b, int64_t c, int64_t d) {
    longlong2* pairs = reinterpret_cast<longlong2*>(to) + LaneId();
    pairs[0] = make_longlong2(a, b);
    pairs[32] = make_longlong2(c, d);
  }

  __device__ void PadTokens(const Range& range) {
    const Outputs& out = args_.out;
    FillThreads<int32_t>(out.i32(FWDMETA_FIELD_BATCH_ID_PER_TOKEN), range, -1);
    FillThreads<int32_t>(out.i32(FWDMETA_FIELD_MASK_ENCODER_BATCH), range, 0);
    FillThreads<uint8_t>(out.u8(FWDMETA_FIELD_IS_PADDING), range, 1);
    FillThreads<int64_t>(out.i64(FWDMETA_FIELD_POSITION_IDS), range, 0);
    FillThreads<int64_t>(out.i64(FWDMETA_FIELD_IDS_REMOVE_PADDING), range, args_.plan.pad_token_id);
    for (int32_t group = 0; group < args_.plan.num_groups; ++group) {
      FillThreads<int64_t>(out.slot_mapping[group], range, -1);
    }
  }

  // The last block of the role publishes the invalid counters and replaces the extent to erase.
  __device__ void FinishTokens(bool good, uint32_t tokens, bool clamped, int64_t replay) {
    bool bad = false;
    if (__syncthreads_or((bad_slots_ | bad_ids_) != 0)) {
      bad = true;
      const uint32_t slots = WarpSum(bad_slots_), ids = WarpSum(bad_ids_);
      if (LaneId() == 0) {
        if (slots > 0) atomicAdd(&args_.builder->invalid_slots, slots);
        if (ids > 0) atomicAdd(&args_.builder->invalid_ids, ids);
        __threadfence();
      }
      __syncthreads();
    }
    if (threadIdx.x != 0) return;
    BuilderState* state = args_.builder;
    if (pieces_ > 1) {
      if (bad) __threadfence();
      const unsigned long long arrived = atomicAdd(&state->token_ticket, bad ? (1ull << 32) + 1 : 1ull);
      if (static_cast<uint32_t>(arrived) != pieces_ - 1) return;
      state->token_ticket = 0;
      bad = bad || arrived >> 32 != 0;
      if (bad) __threadfence();
    }
    uint32_t slots = 0, ids = 0;
    if (bad) {
      slots = SaturateCount(atomicExch(&state->invalid_slots, 0ull));
      ids = SaturateCount(atomicExch(&state->invalid_ids, 0ull));
    }
    clamped = clamped && good;
    if (clamped) state->clamped = 0;
    int64_t step = args_.step;
    MirrorEntry* entry = args_.entry;
    if (args_.captured) {
      step = replay;
      state->token_replays = replay;
      entry = &args_.mirror->replay[step & 1];
    }
    const InvalidWords words = MakeInvalidWords(step, slots, ids, clamped);
    *const_cast<volatile uint64_t*>(&entry->invalid.slots) = words.slots;
    *const_cast<volatile uint64_t*>(&entry->invalid.ids) = words.ids;
    int32_t* counts = args_.out.i32(FWDMETA_FIELD_COUNTS);
    const int32_t warnings = WarningsOf(slots, ids, clamped);
    counts[kNumInvalidSlots] = static_cast<int32_t>(slots);
    counts[kNumInvalidIds] = static_cast<int32_t>(ids);
    counts[kWarnings] = warnings;
    if (args_.captured) {
      volatile int32_t* view = args_.mirror->replay_view.counts;
      view[kNumInvalidSlots] = static_cast<int32_t>(slots);
      view[kNumInvalidIds] = static_cast<int32_t>(ids);
      view[kWarnings] = warnings;
    }
    args_.set->tokens = static_cast<int32_t>(tokens);
  }

  const BuildArgs& args_;
  BlockShared<kItems>& shared_;
  const int32_t role_;
  const uint32_t slices_, slice_;   // of the block's chunk
  const uint32_t piece_, pieces_;   // of the whole role
  Block block_;
  bool has_ids_;
  uint32_t bad_slots_, bad_ids_;
};

template <int kItems, bool kChunked>
__global__ void __launch_bounds__(kMaxThreads) build_kernel(const __grid_constant__ BuildArgs args) {
  __shared__ BlockShared<kItems> shared;
  int32_t role = kNumRoles - 1;
#pragma unroll
  for (int32_t i = kNumRoles - 1; i > 0; --i) {
    if (static_cast<int32_t>(blockIdx.x) < args.first_block[i]) role = i - 1;
  }
  Build<kItems, kChunked>(args, shared, role, blockIdx.x - args.first_block[role]).Run();
}

// The first of two launches: the sums of each chunk of slots.
__global__ void __launch_bounds__(kMaxThreads) chunk_kernel(const __grid_constant__ BuildArgs args) {
  __shared__ BlockShared<1> shared;
  const int32_t chunk = blockIdx.x;
  SlotBlock<1, true> block(args, shared, chunk);
  block.Load();
  if (args.staged_copy != nullptr) {
    const int32_t b = block.first_slot();
    if (b < args.inputs.batch_size) {
      int32_t* copy = args.staged_copy;
      copy[b] = args.inputs.encoder[b];
      copy[args.inputs.batch_size + b] = args.inputs.decoder[b];
      copy[2 * args.inputs.batch_size + b] = args.inputs.this_time[b];
    }
  }
  const bool search = SearchesMlaChunk(args.plan, args.inputs.batch_size);
  PutAllQuantities(args, block);
  __syncthreads();
  if (threadIdx.x < (search ? kNumQuantities : kSumCandidates)) shared.total[threadIdx.x] = TotalOfRow(shared, threadIdx.x);
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
  if (args.staged && threadIdx.x == 0 &&
      atomicInc(&args.builder->inputs_ticket, gridDim.x - 1) == gridDim.x - 1) {
    *const_cast<volatile int64_t*>(&args.entry->inputs_read) = args.step;
  }
}

template <class Kernel>
cudaError_t Launch(Kernel kernel, const BuildArgs& args, int32_t blocks, int32_t threads, cudaStream_t stream) {
  void* parameters[] = {const_cast<BuildArgs*>(&args)};
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
    second.inputs.decoder = args.staged_copy + args.inputs.batch_size;
    second.inputs.this_time = args.staged_copy + 2 * static_cast<int64_t>(args.inputs.batch_size);
  }
  return Launch(build_kernel<1, true>, second, num_blocks, kMaxThreads, stream);
}

cudaError_t LoadBuildKernels() {
  const void* kernels[] = {reinterpret_cast<const void*>(build_kernel<1, false>),
                           reinterpret_cast<const void*>(build_kernel<kSingleLaunchItems, false>),
                           reinterpret_cast<const void*>(build_kernel<1, true>),
                           reinterpret_cast<const void*>(chunk_kernel)};
  for (const void* kernel : kernels) {
    cudaFuncAttributes attributes;
    const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace fwdmeta
