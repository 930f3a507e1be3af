// Everything there is one of per token, and the invalid counters.
#pragma once

#include "build/cuda/role.cuh"

namespace fwdmeta {

// What the previous build of the set has left past this one's tokens.
static __noinline__ __device__ void PadTokens(const BuildArgs& args, Range range) {
  const Outputs& out = args.out;
  FillThreads<int32_t>(out.i32(FWDMETA_FIELD_BATCH_ID_PER_TOKEN), range, -1);
  FillThreads<int32_t>(out.i32(FWDMETA_FIELD_MASK_ENCODER_BATCH), range, 0);
  FillThreads<uint8_t>(out.u8(FWDMETA_FIELD_IS_PADDING), range, 1);
  FillThreads<int64_t>(out.i64(FWDMETA_FIELD_POSITION_IDS), range, 0);
  FillThreads<int64_t>(out.i64(FWDMETA_FIELD_IDS_REMOVE_PADDING), range, args.plan.pad_token_id);
#pragma unroll 1
  for (int32_t group = 0; group < args.plan.num_groups; ++group) {
    FillThreads<int64_t>(out.slot_mapping[group], range, -1);
  }
}

// Cache groups beyond the first, which few builders have. Returns how many positions have no page.
static __noinline__ __device__ uint32_t StoreOtherGroups(const BuildArgs& args, uint32_t x, int32_t slot,
                                                         uint32_t position) {
  uint32_t bad_slots = 0;
#pragma unroll 1
  for (int32_t group = 1; group < args.plan.num_groups; ++group) {
    if (args.out.slot_mapping[group] == nullptr) continue;
    bool bad = false;
    int64_t value = -1;
    if (args.inputs.tables[group].data != nullptr) {
      value = SlotOfPosition(args.plan.groups[group], args.inputs.tables[group], slot, position, &bad);
    }
    args.out.slot_mapping[group][x] = value;
    bad_slots += bad;
  }
  return bad_slots;
}

struct TokensEnd {
  BuilderState* builder;
  SetState* set;
  MirrorEntry* entry;
  int64_t step;
  int32_t* counts;
  int32_t captured;
  uint32_t blocks;  // of the role
};

// By all threads: the last block of the role publishes the invalid counters and replaces the extent to erase.
__device__ __forceinline__ void FinishTokens(const TokensEnd& to, uint32_t bad_slots, uint32_t bad_ids, uint32_t tokens,
                                             bool clamped) {
  bool bad = false;
  if (__syncthreads_or((bad_slots | bad_ids) != 0)) {
    bad = true;
    bad_slots = WarpSum(bad_slots);
    bad_ids = WarpSum(bad_ids);
    if (LaneId() == 0) {
      if (bad_slots > 0) atomicAdd(&to.builder->invalid_slots, bad_slots);
      if (bad_ids > 0) atomicAdd(&to.builder->invalid_ids, bad_ids);
      __threadfence();
    }
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  BuilderState* state = to.builder;
  if (to.blocks > 1) {
    if (bad) __threadfence();
    const unsigned long long arrived = atomicAdd(&state->token_ticket, bad ? (1ull << 32) + 1 : 1ull);
    if (static_cast<uint32_t>(arrived) != to.blocks - 1) return;
    state->token_ticket = 0;
    bad = bad || arrived >> 32 != 0;
    if (bad) __threadfence();
  }
  uint32_t slots = 0, ids = 0;
  if (bad) {
    slots = SaturateCount(atomicExch(&state->invalid_slots, 0ull));
    ids = SaturateCount(atomicExch(&state->invalid_ids, 0ull));
  }
  if (clamped) state->clamped = 0;
  if (to.captured) state->token_replays = to.step;
  const InvalidWords words = MakeInvalidWords(to.step, slots, ids, clamped);
  *const_cast<volatile uint64_t*>(&to.entry->invalid.slots) = words.slots;
  *const_cast<volatile uint64_t*>(&to.entry->invalid.ids) = words.ids;
  to.counts[kNumInvalidSlots] = static_cast<int32_t>(slots);
  to.counts[kNumInvalidIds] = static_cast<int32_t>(ids);
  to.counts[kWarnings] = WarningsOf(slots, ids, clamped);
  to.set->tokens = static_cast<int32_t>(tokens);
}

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
    // Loads that nothing waits for until the end.
    uint32_t clamped = 0;
    int64_t before = args_.step - 1;
    if (threadIdx.x == 0) clamped = args_.builder->clamped;
    if (threadIdx.x == 0 && args_.captured) before = args_.builder->token_replays;
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
      StoreTokens(ShareOf(scan), scan.before);
    }
    if (previous > scan.all) PadTokens(args_, Piece(scan.all, previous, piece_, pieces_, kRunTokens));
    FinishTokens({args_.builder, args_.set, args_.captured ? &args_.mirror->replay : args_.entry, before + 1,
                  args_.out.i32(FWDMETA_FIELD_COUNTS), args_.captured, pieces_},
                 bad_slots_, bad_ids_, scan.all, clamped != 0 && good);
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

  // The tokens that are this block's to write. In one launch the host has divided what there may be; a chunk of slots
  // may have any part of the tokens.
  __device__ Range ShareOf(const Scan& scan) const {
    if constexpr (kChunked) return Piece(scan.before, scan.before + scan.total, share_, shares_, kRunTokens);
    const uint32_t begin = share_ * static_cast<uint32_t>(args_.tokens_per_share);
    return {begin, min(begin + static_cast<uint32_t>(args_.tokens_per_share), scan.all)};
  }
  // Whether this thread's slots are in its block's share where slots write their own tokens.
  __device__ bool OwnsSlots() const {
    const uint32_t warps = static_cast<uint32_t>(args_.warps_per_share);
    return WarpId() - share_ * warps < warps;
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

  __device__ int64_t CacheSlot(int32_t group, const PageOfPosition& at) {
    bool bad;
    const int64_t value = SlotOfPage(args_.plan.groups[group], at, &bad);
    bad_slots_ += bad;
    return value;
  }
  // Cache group 0 and the id. The others, which few builders have, are looked up when they are stored.
  __device__ Looked LookUp(const TokenRef& ref) {
    if (!args_.simple_rows) {
      const LookedAnyhow any = LookUpAnyhow(args_, ref, has_slots_, has_ids_);
      bad_ids_ += any.bad_id;
      return any.looked;
    }
    Looked looked = {{-1, 0, true}, args_.plan.pad_token_id};
    if (has_slots_)
      looked.at = SimplePage(args_.inputs.tables[0].data + RowOf(args_.inputs.tables[0], ref.slot), ref.position);
    if (has_ids_) {
      const SimpleIds ids = IdsOf(ref.slot, ref.prefill);
      const bool bad = ref.token >= ids.width;
      if (!bad) looked.id = ids.row[ref.token];
      bad_ids_ += bad;
    }
    return looked;
  }

  // With simple_rows.
  template <class T>
  static __device__ int64_t RowOf(const Rows<T>& rows, int32_t slot) {
    return slot * rows.row_stride;
  }
  __device__ PageOfPosition SimplePage(const int32_t* pages, uint32_t position) const {
    const FastDiv& page = args_.plan.groups[0].page;
    const uint32_t column = static_cast<uint32_t>(static_cast<uint64_t>(position) * page.multiplier >> page.shift);
    PageOfPosition at = {-1, position - column * page.divisor, true};
    if (column < static_cast<uint32_t>(args_.inputs.tables[0].width)) at.page = pages[column];
    return at;
  }
  struct SimpleIds {
    const int64_t* row;
    uint32_t width;
  };
  __device__ SimpleIds IdsOf(int32_t slot, bool prefill) const {
    const Rows<int64_t>&ids = args_.inputs.input_ids, &drafts = args_.inputs.draft_tokens;
    if (prefill || drafts.data == nullptr) return {ids.data + RowOf(ids, slot), static_cast<uint32_t>(ids.width)};
    return {drafts.data + RowOf(drafts, slot), static_cast<uint32_t>(drafts.width)};
  }

  // Whatever the rows are like. Out of line, and by value.
  struct LookedAnyhow {
    Looked looked;
    bool bad_id;
  };
  static __device__ __noinline__ LookedAnyhow LookUpAnyhow(const BuildArgs& args, TokenRef ref, bool has_slots,
                                                           bool has_ids) {
    LookedAnyhow any = {{{-1, 0, false}, args.plan.pad_token_id}, false};
    if (has_slots && args.inputs.tables[0].data != nullptr) {
      any.looked.at = LoadPage(args.plan.groups[0], args.inputs.tables[0], ref.slot, ref.position);
    }
    if (has_ids) {
      any.looked.id = IdOfToken(args.inputs, args.plan.pad_token_id, ref.slot, ref.prefill, ref.token, &any.bad_id);
    }
    return any;
  }
  __device__ void Store(uint32_t x, const TokenRef& ref, const Looked& looked) {
    const Outputs& out = args_.out;
    if (int32_t* a = out.i32(FWDMETA_FIELD_BATCH_ID_PER_TOKEN)) a[x] = ref.slot;
    if (int64_t* a = out.i64(FWDMETA_FIELD_POSITION_IDS)) a[x] = ref.position;
    if (uint8_t* a = out.u8(FWDMETA_FIELD_IS_PADDING)) a[x] = 0;
    if (int32_t* a = out.i32(FWDMETA_FIELD_MASK_ENCODER_BATCH)) a[x] = ref.prefill;
    if (has_slots_) out.slot_mapping[0][x] = CacheSlot(0, looked.at);
    if (wants_ids_) out.i64(FWDMETA_FIELD_IDS_REMOVE_PADDING)[x] = looked.id;
    if (args_.plan.num_groups > 1) bad_slots_ += StoreOtherGroups(args_, x, ref.slot, ref.position);
  }

  // Warps take tiles of tokens: of one to a lane where that gives every warp some, else of kRunTokens, which are
  // written in 16-byte stores where all are of one slot and its rows simple.
  __device__ void StoreTokens(const Range& range, uint32_t before) {
    const uint32_t tile = range.end - range.begin <= blockDim.x || !args_.simple_rows ? 32 : kRunTokens;
    const uint32_t* prefix = shared_.prefix[0];
#pragma unroll 1
    for (uint32_t x = (range.begin & ~(tile - 1)) + tile * WarpId(); x < range.end; x += tile * (blockDim.x / 32)) {
      uint32_t token = max(x, range.begin) - before;
      uint32_t first = SlotOfWarp(token);
      if (tile == kRunTokens && x >= range.begin && x + tile <= range.end && x + tile - before <= prefix[first + 1]) {
        StoreRun(x, first, x - before - prefix[first]);
        continue;
      }
      const uint32_t end = min(x + tile, range.end) - before;
#pragma unroll 1
      while (token < end) {
        const uint32_t slot = SlotOfLane(token, end, &first);
        if (token + LaneId() < end) {
          const TokenRef ref = SharedRef(slot, token + LaneId() - prefix[slot]);
          Store(before + token + LaneId(), ref, LookUp(ref));
        }
        token += 32;
      }
    }
  }

  // The slot of one token of the block's, by a whole warp: 32 bounds are compared at once.
  __device__ uint32_t SlotOfWarp(uint32_t token) const {
    const uint32_t* prefix = shared_.prefix[0];
    const uint32_t slots = static_cast<uint32_t>(block_.num_slots());
    uint32_t first = 0;
#pragma unroll
    for (uint32_t stride = BlockShared<kItems, kChunked>::kSlots > 1024 ? 1024 : 32; stride > 0; stride /= 32) {
      const uint32_t slot = first + LaneId() * stride;
      const uint32_t below = __popc(__ballot_sync(kAllLanes, slot < slots && prefix[slot] <= token));
      first += (below - 1) * stride;
    }
    return first;
  }
  // The slots of 32 tokens, one to a lane, from the slot of the first on; what `first` is for the next 32. Each slot
  // that begins among the tokens leaves its number at its first one, and tokens take the nearest before them.
  __device__ uint32_t SlotOfLane(uint32_t token, uint32_t end, uint32_t* first) {
    const uint32_t* prefix = shared_.prefix[0];
    uint32_t* begins = shared_.partial[WarpId()];  // nothing else needs it any more
    const uint32_t last = min(token + 31, end - 1), slots = static_cast<uint32_t>(block_.num_slots());
    uint32_t at = 0, slot = *first, covered = 0;
    __syncwarp();
#pragma unroll 1
    do {
      const uint32_t own = slot + LaneId();
      const uint32_t from = own < slots ? prefix[own] : UINT32_MAX, to = own < slots ? prefix[own + 1] : 0;
      const bool begin = from < to && from <= last && to > token;
      const uint32_t place = max(from, token) - token;
      if (begin) begins[place] = own;
      at |= WarpOr(begin ? 1u << place : 0);
      covered = WarpMax(to);
      slot += 32;
    } while (covered <= last);
    __syncwarp();
    const uint32_t found = begins[31 - __clz(at & (0xffffffffu >> (31 - LaneId())))];
    *first = __shfl_sync(kAllLanes, found, last - token);
    return found;
  }

  // kRunTokens tokens from x on, all of one slot, the first being its token `token`, with simple_rows. A lane has two
  // pairs.
  __device__ void StoreRun(uint32_t x, uint32_t slot, uint32_t token) {
    const Outputs& out = args_.out;
    const uint32_t lane = LaneId();
    const TokenRef ref = SharedRef(slot, token + 2 * lane);
    const auto offset = [](int i) { return static_cast<uint32_t>(64 * (i / 2) + i % 2); };
    Looked looked[4];
    if (has_slots_) {
      const int32_t* pages = args_.inputs.tables[0].data + RowOf(args_.inputs.tables[0], ref.slot);
#pragma unroll
      for (int i = 0; i < 4; ++i) looked[i].at = SimplePage(pages, ref.position + offset(i));
    }
    SimpleIds ids = {nullptr, 0};
    if (has_ids_) {
      ids = IdsOf(ref.slot, ref.prefill);
      ids.width = ids.width > ref.token ? ids.width - ref.token : 0;
      ids.row += ref.token;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool there = offset(i) < ids.width;
      looked[i].id = there ? ids.row[offset(i)] : args_.plan.pad_token_id;
      bad_ids_ += has_ids_ && !there;
    }
    const uint32_t at = x + 4 * lane;
    const int32_t batch_id = ref.slot, mask = ref.prefill;
    if (int32_t* a = out.i32(FWDMETA_FIELD_BATCH_ID_PER_TOKEN)) {
      *reinterpret_cast<int4*>(a + at) = make_int4(batch_id, batch_id, batch_id, batch_id);
    }
    if (int32_t* a = out.i32(FWDMETA_FIELD_MASK_ENCODER_BATCH)) {
      *reinterpret_cast<int4*>(a + at) = make_int4(mask, mask, mask, mask);
    }
    if (uint8_t* a = out.u8(FWDMETA_FIELD_IS_PADDING)) *reinterpret_cast<uint32_t*>(a + at) = 0;
    if (int64_t* a = out.i64(FWDMETA_FIELD_POSITION_IDS)) {
      const int64_t position = ref.position;
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
    if (args_.plan.num_groups > 1) {
#pragma unroll 1
      for (uint32_t i = 0; i < kRunTokens; i += 32) {
        const uint32_t k = i + lane;
        bad_slots_ += StoreOtherGroups(args_, x + k, ref.slot, ref.position - 2 * lane + k);
      }
    }
  }
  // Two 16-byte stores, each contiguous over the warp.
  __device__ static void StorePairs64(int64_t* to, int64_t a, int64_t b, int64_t c, int64_t d) {
    longlong2* pairs = reinterpret_cast<longlong2*>(to) + LaneId();
    pairs[0] = make_longlong2(a, b);
    pairs[32] = make_longlong2(c, d);
  }

  bool has_slots_, wants_ids_, has_ids_;
  uint32_t bad_slots_, bad_ids_;
};

}  // namespace fwdmeta
