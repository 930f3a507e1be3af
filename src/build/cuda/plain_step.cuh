// A plain decode step in one launch: no slot has more than one token, none is a prefill, none is wrong. A slot's place
// among the live ones is then every prefix sum but that of the lengths, and a vote of the warp gives it; what is left
// to do is short enough that its parameters and instructions being fetched count, so both are kept together here.
// Whether a step is plain only the device knows: where it is not, nothing has been stored, and the block begins anew in
// the general way.
#pragma once

#include "build/cuda/counts_role.cuh"
#include "build/cuda/tokens_role.cuh"

namespace fwdmeta {

class PlainBlock {
 public:
  __device__ __forceinline__ PlainBlock(const PlainArgs& args, BlockShared<1, false>& shared)
      : args_(args), shared_(shared) {}

  __device__ __forceinline__ bool RunCounts() {
    int64_t before = args_.step - 1;
    if (args_.captured) before = args_.builder->replays;
    const uint32_t place = Load(0);
    const uint32_t most = WarpMax(decoder_in_array_), most_live = WarpMax(decoder_), sum = WarpSum(decoder_);
    if (LaneId() == 0) {
      shared_.partial[1][WarpId()] = most;
      shared_.partial[2][WarpId()] = most_live;
      shared_.partial[3][WarpId()] = sum;
    }
    __syncthreads();
    if (!IsPlain(place)) return false;
    if (WarpId() != 0) return true;
    const uint32_t decoders = WarpSum(OfWarps(3)), max_decoder = WarpMax(OfWarps(1));
    const uint32_t cached = WarpMax(OfWarps(2)), longest = cached + (live_slots_ > 0);
    const uint32_t lane = LaneId();
    constexpr uint32_t kLiveSlots = 1u << kNumLive | 1u << kNumDecode | 1u << kNumTokens | 1u << kNumPaddedTokens |
                                    1u << kNumAttnKvTokens | 1u << kNumOutputTokens;
    uint32_t word = (kLiveSlots >> lane & 1) != 0 ? live_slots_ : 0;
    if (lane == kBatchSize) word = args_.batch_size;
    if (lane == kNumPaddedTokens && args_.num_padded_tokens >= 0) word = args_.num_padded_tokens;
    if (lane == kNumKvTokens) word = decoders + live_slots_;
    if (lane == kDecoderNumBlocks) word = live_slots_ * args_.tiles_per_slot;
    if (lane == kErrorSlot) word = static_cast<uint32_t>(-1);
    if (lane == kMaxThisTime) word = live_slots_ > 0;
    if (lane == kMaxDecoder) word = max_decoder;
    if (lane == kMaxKv) word = longest;
    if (lane == kMaxDecodeDecoder) word = cached;
    if (lane == kMaxCachedKv) word = cached > 0 ? longest : 0;
    const int64_t step = before + 1;  // not sooner: here alone the load has to have arrived
    if (args_.captured && lane == 0) args_.builder->replays = step;
    PublishCounts(word, step, args_.entry, args_.staged, args_.counts);
    return true;
  }

  __device__ __forceinline__ bool RunLengths() {
    const uint32_t place = Load(0);
    const uint32_t kv = decoder_ + live_;
    const uint32_t kv_to = WarpInclusiveScan(kv);
    if (LaneId() == 31) shared_.partial[1][WarpId()] = kv_to;
    __syncthreads();
    if (!IsPlain(place)) return false;
    const uint32_t kv_of_warp = OfWarps(1);
    const uint32_t kv_end = WarpSum(LaneId() < WarpId() ? kv_of_warp : 0) + kv_to;
    StoreCu(args_.cu_seqlens_q, place_ + live_);
    StoreCu(args_.attn_cu_seqlens_k, place_ + live_);
    StoreCu(args_.cu_seqlens_k, kv_end);
    StoreSlot(args_.seq_lens_kv, live_ ? kv : args_.pad_seq_len);
    StoreSlot(args_.last_token_index, live_ ? place_ : static_cast<uint32_t>(-1));
    if (HasTail()) {
      const uint32_t all_kv = WarpSum(kv_of_warp);
      FillCuTail(args_.cu_seqlens_q, live_slots_);
      FillCuTail(args_.attn_cu_seqlens_k, live_slots_);
      FillCuTail(args_.cu_seqlens_k, all_kv);
      FillSlotsTail(args_.seq_lens_kv, args_.pad_seq_len);
      FillSlotsTail(args_.last_token_index, -1);
    }
    return true;
  }

  __device__ __forceinline__ bool RunDecoderTiles() {
    const uint32_t previous = static_cast<uint32_t>(args_.set->mapping[kDecoder]);
    const uint32_t place = Load(previous);
    __syncthreads();
    if (!IsPlain(place)) return false;
    const uint32_t per_slot = args_.tiles_per_slot, tiles = live_slots_ * per_slot;
    const MappingOut& decoder = args_.mapping[kDecoder];
    StoreCu(decoder.cu_tiles, (place_ + live_) * per_slot);
    if (live_) {
#pragma unroll 1
      for (uint32_t tile = 0; tile < per_slot; ++tile) {
        const uint32_t x = place_ * per_slot + tile;
        if (decoder.batch_ids != nullptr) decoder.batch_ids[x] = static_cast<int32_t>(threadIdx.x);
        if (decoder.tile_ids != nullptr) decoder.tile_ids[x] = static_cast<int32_t>(tile);
      }
    }
    if (HasTail()) FillCuTail(decoder.cu_tiles, tiles);
    if (tiles < previous) Erase(decoder.batch_ids, decoder.tile_ids, tiles, previous);
    if (threadIdx.x == 0) args_.set->mapping[kDecoder] = static_cast<int32_t>(tiles);
    return true;
  }

  // A mapping of prefills.
  template <Mapping kMapping>
  __device__ __forceinline__ bool RunNoTiles() {
    const uint32_t previous = static_cast<uint32_t>(args_.set->mapping[kMapping]);
    const uint32_t place = Load(previous);
    __syncthreads();
    if (!IsPlain(place)) return false;
    const MappingOut& mapping = args_.mapping[kMapping];
    StoreCu(mapping.cu_tiles, 0);
    if (HasTail()) FillCuTail(mapping.cu_tiles, 0);
    if (previous > 0) Erase(mapping.batch_ids, mapping.tile_ids, 0, previous);
    if (threadIdx.x == 0) args_.set->mapping[kMapping] = 0;
    return true;
  }

  __device__ __forceinline__ bool RunRows() {
    const uint32_t previous = static_cast<uint32_t>(args_.set->rows);
    const uint32_t place = Load(previous);
    __syncthreads();
    if (!IsPlain(place)) return false;
    StoreCu(args_.cu_seqlens_q_output, place_ + live_);
    StoreSlot(args_.seq_lens_output, live_);
    if (live_) {
      if (int32_t* a = args_.batch_id_per_token_output) a[place_] = static_cast<int32_t>(threadIdx.x);
      if (int32_t* a = args_.logits_indices) a[place_] = static_cast<int32_t>(place_);
    }
    if (HasTail()) {
      FillCuTail(args_.cu_seqlens_q_output, live_slots_);
      FillSlotsTail(args_.seq_lens_output, 0);
    }
    if (live_slots_ < previous) {
      Erase(args_.batch_id_per_token_output, args_.logits_indices, live_slots_, previous);
    }
    if (threadIdx.x == 0) args_.set->rows = static_cast<int32_t>(live_slots_);
    return true;
  }

  // `general`: for what is not as it mostly is.
  __device__ __forceinline__ bool RunTokens(const BuildArgs& general, uint32_t index) {
    const bool first_thread = threadIdx.x == 0;
    const uint32_t previous = static_cast<uint32_t>(args_.set->tokens);
    uint32_t clamped = 0;
    int64_t before = args_.step - 1;
    if (first_thread) clamped = args_.builder->clamped;
    if (first_thread && args_.captured) before = args_.builder->token_replays;
    const uint32_t place = Load(previous);
    const uint32_t wants = args_.wants;
    const int32_t slot = static_cast<int32_t>(threadIdx.x);
    const bool mine = live_ && WarpId() - index * args_.warps_per_block < args_.warps_per_block;
    PageOfPosition at = {-1, 0, true};
    int64_t id = args_.pad_token_id;
    bool bad_id = false;
    if (mine) {
      if ((wants & kPlainTable) != 0) {
        const uint32_t column =
            static_cast<uint32_t>(static_cast<uint64_t>(decoder_) * args_.page.multiplier >> args_.page.shift);
        at.offset = decoder_ - column * args_.page.divisor;
        if (column < static_cast<uint32_t>(args_.table_width))
          at.page = args_.table[slot * args_.table_stride + column];
      }
      if ((wants & kPlainIds) != 0) id = args_.ids[slot * args_.ids_stride];
      if ((wants & kOtherTable) != 0) at = LookUpPage(general, slot, decoder_);
      if ((wants & kOtherIds) != 0) {
        const Id other = LookUpId(general, slot);
        id = other.value;
        bad_id = other.bad;
      }
    }
    __syncthreads();
    if (!IsPlain(place)) return false;
    uint32_t bad_slots = 0;
    if (mine) {
      const uint32_t x = place_;
      if ((wants & kWantsBatchIds) != 0) args_.batch_id_per_token[x] = slot;
      if ((wants & kWantsPositions) != 0) args_.position_ids[x] = decoder_;
      if ((wants & kWantsIsPadding) != 0) args_.is_padding[x] = 0;
      if ((wants & kWantsMask) != 0) args_.mask_encoder_batch[x] = 0;
      if ((wants & kWantsIds) != 0) args_.ids_remove_padding[x] = id;
      if ((wants & kWantsSlots) != 0) {
        bad_slots = at.local && at.page < 0;
        args_.slot_mapping[x] = at.page < 0 ? -1 : static_cast<int64_t>(at.page) * args_.page.divisor + at.offset;
      }
      if ((wants & kOtherGroups) != 0) bad_slots += StoreOtherGroups(general, x, slot, decoder_);
    }
    if (live_slots_ < previous) PadTokens(general, Piece(live_slots_, previous, index, args_.token_blocks, 128));
    FinishTokens({args_.builder, args_.set, args_.entry, before + 1, args_.counts.counts, args_.captured, args_.token_blocks},
                 bad_slots, bad_id, live_slots_, clamped != 0);
    return true;
  }

 private:
  static constexpr uint32_t kNotPlain = 1u << 26;  // past every limit, also as a sum over 32 warps

  // The thread's slot, and in shared memory how many of the warp's are live. A barrier follows. Returns the slot's
  // place among them. `previous` is of the set's state: see RoleBlock::Arrived.
  __device__ __forceinline__ uint32_t Load(uint32_t previous) {
    const int32_t b = static_cast<int32_t>(threadIdx.x);
    const bool inside = b < args_.batch_size;
    const int32_t encoder = inside ? args_.encoder[b] : 0;
    const int32_t decoder = inside ? args_.decoder[b] : 0;
    const int32_t this_time = inside ? args_.this_time[b] : 0;
    live_ = this_time != 0;
    decoder_ = live_ ? decoder : 0;
    decoder_in_array_ = max(decoder, 0);
    const bool odd = live_ && (this_time != 1 || encoder != 0 ||
                               static_cast<uint32_t>(decoder) >= static_cast<uint32_t>(args_.max_model_len));
    const uint32_t lanes = __ballot_sync(kAllLanes, live_);
    const bool any_odd = __any_sync(kAllLanes, odd || previous >> 31 != 0);
    if (LaneId() == 0) shared_.partial[0][WarpId()] = __popc(lanes) + (any_odd ? kNotPlain : 0);
    return __popc(lanes & ((1u << LaneId()) - 1));
  }
  // Behind the barrier.
  __device__ __forceinline__ bool IsPlain(uint32_t place_in_warp) {
    const uint32_t live_of_warp = OfWarps(0);
    live_slots_ = WarpSum(live_of_warp);
    place_ = WarpSum(LaneId() < WarpId() ? live_of_warp : 0) + place_in_warp;
    if (live_slots_ > static_cast<uint32_t>(args_.token_limit)) return false;
    if (args_.staged && threadIdx.x == 0) NoteInputsRead(args_.builder, args_.entry, args_.step);
    return true;
  }
  __device__ __forceinline__ uint32_t OfWarps(int32_t row) const {
    return LaneId() < blockDim.x / 32 ? shared_.partial[row][LaneId()] : 0;
  }

  // `end`: the inclusive sum up to the thread's slot.
  __device__ __forceinline__ void StoreCu(int32_t* cu, uint32_t end) const {
    if (cu == nullptr) return;
    const int32_t b = static_cast<int32_t>(threadIdx.x);
    if (b < args_.batch_size) cu[b + 1] = static_cast<int32_t>(end);
    if (b == 0) cu[0] = 0;
  }
  __device__ __forceinline__ void StoreSlot(int32_t* array, uint32_t value) const {
    const int32_t b = static_cast<int32_t>(threadIdx.x);
    if (array != nullptr && b < args_.batch_size) array[b] = static_cast<int32_t>(value);
  }
  __device__ __forceinline__ bool HasTail() const { return args_.batch_size < args_.max_batch_size; }
  static __device__ __noinline__ void Fill(int32_t* array, uint32_t begin, uint32_t end, int32_t value) {
    if (array == nullptr) return;
#pragma unroll 1
    for (uint32_t i = begin + threadIdx.x; i < end; i += blockDim.x) array[i] = value;
  }
  __device__ __forceinline__ void FillCuTail(int32_t* cu, uint32_t all) const {
    Fill(cu, args_.batch_size + 1, args_.max_batch_size + 1, static_cast<int32_t>(all));
  }
  __device__ __forceinline__ void FillSlotsTail(int32_t* array, int32_t idle) const {
    Fill(array, args_.batch_size, args_.max_batch_size, idle);
  }
  static __device__ __forceinline__ void Erase(int32_t* first, int32_t* second, uint32_t begin, uint32_t end) {
    Fill(first, begin, end, -1);
    Fill(second, begin, end, -1);
  }
  // Table and ids with whatever they may have. By value, as what is pointed at would lie in memory for every step.
  static __device__ __noinline__ PageOfPosition LookUpPage(const BuildArgs& general, int32_t slot, uint32_t position) {
    const Rows<int32_t>& table = general.inputs.tables[0];
    if (table.data == nullptr) return {-1, 0, false};
    return LoadPage(general.plan.groups[0], table, slot, position);
  }
  struct Id {
    int64_t value;
    bool bad;
  };
  static __device__ __noinline__ Id LookUpId(const BuildArgs& general, int32_t slot) {
    Id id;
    id.value = IdOfToken(general.inputs, general.plan.pad_token_id, slot, false, 0, &id.bad);
    return id;
  }
  const PlainArgs& args_;
  BlockShared<1, false>& shared_;
  uint32_t decoder_, decoder_in_array_, live_;
  uint32_t place_, live_slots_;
};

}  // namespace fwdmeta
