// Everything there is one of per token, and the invalid counters.
#pragma once

#include "build/cuda/role.cuh"

namespace fwdmeta {

template <int kItems, bool kChunked>
class TokensRole : RoleBlock<kItems, kChunked> {
  using Base = RoleBlock<kItems, kChunked>;
  using Base::args_, Base::shared_, Base::block_, Base::share_, Base::shares_, Base::piece_, Base::pieces_;
  using typename Base::Block, typename Base::Scan;

 public:
  __device__ TokensRole(const BuildArgs& args, BlockShared<kItems, kChunked>& shared, int32_t role, uint32_t index)
      : Base(args, shared, role, index) {}

  __device__ void Run() {
    const uint32_t previous = args_.set->tokens;
    const bool clamped_before = threadIdx.x == 0 && args_.builder->clamped != 0;
    const int64_t replay = args_.captured && threadIdx.x == 0 ? args_.builder->token_replays + 1 : 0;
    has_slots_ = args_.out.slot_mapping[0] != nullptr;
    wants_ids_ = args_.out.i64(FWDMETA_FIELD_IDS_REMOVE_PADDING) != nullptr;
    has_ids_ = wants_ids_ && (args_.inputs.input_ids.data != nullptr || args_.inputs.draft_tokens.data != nullptr);
    bad_slots_ = 0;
    bad_ids_ = 0;
    block_.Load();
    uint32_t flags = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (block_.slot[i].this_time > 1) flags = kFirstFlag;
    }
    block_.PutVerdict(flags);
    const uint32_t tokens = this->TokensOfThread();
    const uint32_t tokens_to = block_.PutScan(kScanRow, tokens);
    // A slot's only token can be looked up before anyone knows where it goes.
    const bool early = args_.short_slots && OwnsSlots();
    Looked looked[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (early && block_.slot[i].live()) looked[i] = LookUp(RefOf(i));
    }
    __syncthreads();
    this->InputsRead();
    const bool good = block_.Good(kScanRow);
    if (!good) block_.Clear();
    const bool by_owner = args_.short_slots && block_.flags() == 0;
    if (!good || !by_owner) bad_ids_ = 0;  // nothing that was looked up early is stored
    const Scan scan = this->FinishScan(good, kScanRow, tokens_to, tokens, kSumTokensLow);
    if (by_owner) {
      uint32_t x = scan.before + scan.exclusive;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        if (!block_.slot[i].live()) continue;
        if (early) Store(x, RefOf(i), looked[i]);
        ++x;
      }
    } else {
      this->SharePrefix(0, scan, [this](int i) { return block_.slot[i].this_time; });
      uint32_t decoders[kItems];
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        decoders[i] = block_.slot[i].decoder | (block_.slot[i].prefill() ? 0x80000000u : 0);
      }
      this->StoreShared(1, decoders);
      __syncthreads();
      StoreTokens(Piece(scan.before, scan.before + scan.total, share_, shares_, kRunTokens), scan.before);
    }
    if (previous > scan.all) PadTokens(Piece(scan.all, previous, piece_, pieces_, kRunTokens));
    Finish(good, scan.all, clamped_before, replay);
  }

 private:
  static constexpr uint32_t kRunTokens = 128;  // what a warp writes at once where all are of one slot

  // A token by its slot.
  struct TokenRef {
    int32_t slot;
    uint32_t position;
    uint32_t token;  // its number among the slot's new tokens
    bool prefill;
  };
  // What the tables say about a token; nothing here has been waited for.
  struct Looked {
    PageOfPosition at;
    int64_t id;
  };

  // Whether this thread's slots are in its block's share where slots write their own tokens.
  __device__ bool OwnsSlots() const {
    if (shares_ == 1) return true;
    const uint32_t warps = (blockDim.x / 32 + shares_ - 1) / shares_;
    return WarpId() / warps == share_;
  }
  // The first token of a slot of this thread.
  __device__ TokenRef RefOf(int i) const {
    const Slot& slot = block_.slot[i];
    return {block_.first_slot() + i, static_cast<uint32_t>(slot.decoder), 0, slot.prefill()};
  }
  __device__ TokenRef SharedRef(uint32_t slot, uint32_t token) const {
    const uint32_t word = shared_.prefix[1][slot];
    return {block_.block_first() + static_cast<int32_t>(slot), (word & 0x7fffffffu) + token, token, word >> 31 != 0};
  }

  __device__ PageOfPosition PageOf(int32_t group, const TokenRef& ref) const {
    if (args_.inputs.tables[group].data == nullptr) return {-1, 0, false};
    return LoadPage(args_.plan.groups[group], args_.inputs.tables[group], ref.slot, ref.position);
  }
  __device__ int64_t CacheSlot(int32_t group, const PageOfPosition& at) {
    bool bad;
    const int64_t value = SlotOfPage(args_.plan.groups[group], at, &bad);
    bad_slots_ += bad;
    return value;
  }
  // Cache group 0 and the id. The others, which few builders have, are looked up when they are stored.
  __device__ Looked LookUp(const TokenRef& ref) {
    Looked looked = {{-1, 0, false}, args_.plan.pad_token_id};
    if (has_slots_) looked.at = PageOf(0, ref);
    if (has_ids_) {
      bool bad;
      looked.id = IdOfToken(args_.inputs, args_.plan.pad_token_id, ref.slot, ref.prefill, ref.token, &bad);
      bad_ids_ += bad;
    }
    return looked;
  }

  __device__ void Store(uint32_t x, const TokenRef& ref, const Looked& looked) {
    const Outputs& out = args_.out;
    if (int32_t* a = out.i32(FWDMETA_FIELD_BATCH_ID_PER_TOKEN)) a[x] = ref.slot;
    if (int64_t* a = out.i64(FWDMETA_FIELD_POSITION_IDS)) a[x] = ref.position;
    if (uint8_t* a = out.u8(FWDMETA_FIELD_IS_PADDING)) a[x] = 0;
    if (int32_t* a = out.i32(FWDMETA_FIELD_MASK_ENCODER_BATCH)) a[x] = ref.prefill;
    if (has_slots_) out.slot_mapping[0][x] = CacheSlot(0, looked.at);
    if (wants_ids_) out.i64(FWDMETA_FIELD_IDS_REMOVE_PADDING)[x] = looked.id;
    for (int32_t group = 1; group < args_.plan.num_groups; ++group) {
      if (out.slot_mapping[group] == nullptr) continue;
      out.slot_mapping[group][x] = CacheSlot(group, PageOf(group, ref));
    }
  }

  // Warps take tiles of tokens: of one to a lane where that gives every warp some, else of kRunTokens, which are
  // written in 16-byte stores where all are of one slot.
  __device__ void StoreTokens(const Range& range, uint32_t before) {
    const uint32_t tile = range.end - range.begin <= blockDim.x ? 32 : kRunTokens;
    const uint32_t* prefix = shared_.prefix[0];
    for (uint32_t x = (range.begin & ~(tile - 1)) + tile * WarpId(); x < range.end; x += tile * (blockDim.x / 32)) {
      const uint32_t begin = max(x, range.begin) - before;
      const uint32_t first = this->FindInBlock(0, begin);
      if (tile == kRunTokens && x >= range.begin && x + tile <= range.end && x + tile - before <= prefix[first + 1]) {
        StoreRun(x, first, x - before - prefix[first]);
        continue;
      }
#pragma unroll 1
      for (uint32_t index = x + LaneId(); index < x + tile; index += 32) {
        if (!range.Contains(index)) continue;
        const uint32_t token = index - before;
        // Among slots of one token each the guess is right; else a search.
        uint32_t slot = min(first + token - begin, static_cast<uint32_t>(block_.num_slots()) - 1);
        if (prefix[slot] > token || token >= prefix[slot + 1]) slot = this->FindInBlock(0, token);
        const TokenRef ref = SharedRef(slot, token - prefix[slot]);
        Store(index, ref, LookUp(ref));
      }
    }
  }

  // kRunTokens tokens from x on, all of one slot, the first being its token `token`. A lane has two pairs.
  __device__ void StoreRun(uint32_t x, uint32_t slot, uint32_t token) {
    const Outputs& out = args_.out;
    const uint32_t lane = LaneId();
    TokenRef ref[4];
    Looked looked[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      ref[i] = SharedRef(slot, token + 64 * (i / 2) + 2 * lane + i % 2);
      looked[i] = LookUp(ref[i]);
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
      const int64_t position = ref[0].position;
      StorePairs64(a + x, position, position + 1, position + 64, position + 65);
    }
    if (has_slots_) {
      StorePairs64(out.slot_mapping[0] + x, CacheSlot(0, looked[0].at), CacheSlot(0, looked[1].at),
                   CacheSlot(0, looked[2].at), CacheSlot(0, looked[3].at));
    }
    if (wants_ids_) {
      StorePairs64(out.i64(FWDMETA_FIELD_IDS_REMOVE_PADDING) + x, looked[0].id, looked[1].id, looked[2].id,
                   looked[3].id);
    }
    for (int32_t group = 1; group < args_.plan.num_groups; ++group) {
      if (out.slot_mapping[group] == nullptr) continue;
      int64_t cache[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) cache[i] = CacheSlot(group, PageOf(group, ref[i]));
      StorePairs64(out.slot_mapping[group] + x, cache[0], cache[1], cache[2], cache[3]);
    }
  }
  // Two 16-byte stores, each contiguous over the warp.
  __device__ static void StorePairs64(int64_t* to, int64_t a, int64_t b, int64_t c, int64_t d) {
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
  __device__ void Finish(bool good, uint32_t tokens, bool clamped, int64_t replay) {
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
      entry = &args_.mirror->replay;
    }
    const InvalidWords words = MakeInvalidWords(step, slots, ids, clamped);
    *const_cast<volatile uint64_t*>(&entry->invalid.slots) = words.slots;
    *const_cast<volatile uint64_t*>(&entry->invalid.ids) = words.ids;
    int32_t* counts = args_.out.i32(FWDMETA_FIELD_COUNTS);
    const int32_t warnings = WarningsOf(slots, ids, clamped);
    counts[kNumInvalidSlots] = static_cast<int32_t>(slots);
    counts[kNumInvalidIds] = static_cast<int32_t>(ids);
    counts[kWarnings] = warnings;
    args_.set->tokens = static_cast<int32_t>(tokens);
  }

  bool has_slots_, wants_ids_, has_ids_;
  uint32_t bad_slots_, bad_ids_;
};

}  // namespace fwdmeta
