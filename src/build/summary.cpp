#include "build/summary.h"

#include <algorithm>
#include <iterator>

#include "base/vectorize.h"

namespace fwdmeta {
namespace {

// Everything the pass over the slots finds, before it is known whether the step is good.
struct Totals {
  int64_t tokens = 0, kv_tokens = 0, attn_kv_tokens = 0, output_tokens = 0;
  int64_t tiles[kNumMappings] = {};
  int32_t live = 0, prefill = 0;
  int32_t max_this_time = 0, max_encoder = 0, max_decoder = 0, max_kv = 0, max_decode_decoder = 0, max_cached_kv = 0;
  int32_t errors = 0, bad_slot = -1;
  uint32_t candidates[kMlaSearchSteps + 1] = {};  // G_i of the MLA chunk search
};

Slot ReadSlot(const Plan& plan, const Inputs& in, int32_t b, int32_t* errors) {
  *errors = SlotErrors(in.encoder[b], in.decoder[b], in.this_time[b], plan.max_model_len);
  return SlotOfSlice(in, b, MakeSlot(in.encoder[b], in.decoder[b], in.this_time[b], *errors));
}

// What a prefill adds to what every live slot does. Of all tokens, each is a row and attends to itself, unless a
// prefill says otherwise.
void AddPrefill(const Plan& plan, const Slot& slot, Totals* t) {
  ++t->prefill;
  t->attn_kv_tokens += slot.decoder;
  t->output_tokens += slot.output_rows() - slot.this_time;
  t->max_encoder = std::max(t->max_encoder, slot.this_time);
  t->tiles[kEncoder] += EncoderTiles(plan, slot);
  t->tiles[kKv] += KvTiles(plan, slot);
  t->tiles[kPreCache] += PreCacheTiles(plan, slot);
}

// `t` is of no slot yet, here and in SumBlocks; the sums of tokens that the two have in common are added by Sum.
void SumSlotBySlot(const Plan& plan, const Inputs& in, const MlaChunk& chunk, bool search, Totals* t) {
  for (int32_t b = 0; b < in.batch_size; ++b) {
    t->max_decoder = std::max(t->max_decoder, in.decoder[b]);
    if (in.this_time[b] == 0) continue;
    int32_t errors;
    const Slot slot = ReadSlot(plan, in, b, &errors);
    if (errors != 0) {
      if (t->errors == 0) t->bad_slot = b;
      t->errors |= errors;
      continue;
    }
    ++t->live;
    t->tokens += slot.this_time;
    t->kv_tokens += slot.kv();
    t->max_this_time = std::max(t->max_this_time, slot.this_time);
    t->max_kv = std::max(t->max_kv, slot.kv());
    if (slot.decoder > 0) t->max_cached_kv = std::max(t->max_cached_kv, slot.kv());
    if (slot.prefill()) {
      AddPrefill(plan, slot, t);
    } else {
      t->max_decode_decoder = std::max(t->max_decode_decoder, slot.decoder);
      if (search) {
        for (int32_t i = 1; i <= kMlaSearchSteps; ++i) t->candidates[i] += MlaTiles(slot, plan.block, i);
      } else {
        t->tiles[kDecoder] += DecoderTiles(plan, slot, chunk);
      }
    }
  }
}

// The same over good slots of no slice, in loops without branches that compilers turn into vector instructions. A
// block's sums fit in 32 bits, and so do the rows of a slot's tiles.
constexpr int32_t kBlockSlots = 64;

bool FitsBlocks(const Plan& plan, const Inputs& in) {
  return in.offsets == nullptr && plan.max_model_len <= INT32_MAX / kBlockSlots &&
         static_cast<int64_t>(plan.max_model_len) * plan.heads_per_kv_head <= INT32_MAX;
}

// Returns false, and sums that mean nothing, where a slot is bad.
template <bool kMla>
FWDMETA_ALWAYS_INLINE bool SumBlocks(const Plan& plan, const Inputs& in, const MlaChunk& chunk, bool search,
                                     Totals* out) {
  Totals t;  // a local, which no store to the arrays below can change
  const uint32_t max_model_len = static_cast<uint32_t>(plan.max_model_len), heads = plan.heads_per_kv_head;
  const FastDiv divide = kMla ? chunk.base : plan.decoder_rows;
  const uint32_t shift = kMla ? chunk.shift : 0;
  uint32_t bad = 0;
  for (int32_t begin = 0; begin < in.batch_size; begin += kBlockSlots) {
    const int32_t count = std::min(kBlockSlots, in.batch_size - begin);
    const int32_t *encoder = in.encoder + begin, *decoder = in.decoder + begin, *this_time = in.this_time + begin;
    uint32_t quotients[kBlockSlots], decodes[kBlockSlots];  // decodes: all ones, or zero
    uint32_t live = 0, prefill = 0, tokens = 0, kv_tokens = 0, tiles = 0;
    int32_t max_this_time = 0, max_decoder = 0, max_kv = 0, max_decode_decoder = 0, max_cached_kv = 0;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t e = encoder[i], d = decoder[i], n = this_time[i];
      const uint32_t is_live = n != 0 ? ~0u : 0, is_prefill = e != 0 ? is_live : 0;
      const uint32_t live_d = static_cast<uint32_t>(d) & is_live, kv = live_d + static_cast<uint32_t>(n);
      // A sum of two numbers below 2^31 cannot wrap, and a wrong one of others has its own bit here.
      bad |= (static_cast<uint32_t>(n) | (static_cast<uint32_t>(e | d) & is_live)) >> 31;
      bad |= (max_model_len - kv) >> 31 | kv >> 31;
      bad |= is_prefill & static_cast<uint32_t>(e ^ n);
      live -= is_live;
      prefill -= is_prefill;
      tokens += static_cast<uint32_t>(n);
      kv_tokens += kv;
      max_this_time = std::max(max_this_time, n);
      max_decoder = std::max(max_decoder, d);
      max_kv = std::max(max_kv, static_cast<int32_t>(kv));
      const uint32_t decode = is_live & ~is_prefill;
      max_decode_decoder = std::max(max_decode_decoder, static_cast<int32_t>(live_d & decode));
      max_cached_kv = std::max(max_cached_kv, live_d != 0 ? static_cast<int32_t>(kv) : 0);
      const uint32_t numerator = (kMla ? kv : static_cast<uint32_t>(n) * heads) - 1;
      const uint32_t quotient = divide.Quotient(numerator);
      tiles += ((quotient >> shift) + 1) & decode;
      if (kMla) {
        quotients[i] = quotient;
        decodes[i] = decode;
      }
    }
    if (bad != 0) return false;
    t.live += static_cast<int32_t>(live);
    t.tokens += tokens;
    t.kv_tokens += kv_tokens;
    t.tiles[kDecoder] += tiles;
    t.max_this_time = std::max(t.max_this_time, max_this_time);
    t.max_decoder = std::max(t.max_decoder, max_decoder);
    t.max_kv = std::max(t.max_kv, max_kv);
    t.max_decode_decoder = std::max(t.max_decode_decoder, max_decode_decoder);
    t.max_cached_kv = std::max(t.max_cached_kv, max_cached_kv);
    // Few are where a batch has many slots.
    for (int32_t i = 0; i < count && prefill != 0; ++i) {
      const Slot slot = MakeSlot(encoder[i], decoder[i], this_time[i], 0);
      if (slot.prefill()) AddPrefill(plan, slot, &t);
    }
    if (!kMla || !search) continue;
    for (int32_t candidate = 1; candidate <= kMlaSearchSteps; ++candidate) {
      uint32_t sum = 0;
      for (int32_t i = 0; i < count; ++i) sum += ((quotients[i] >> candidate) + 1) & decodes[i];
      t.candidates[candidate] += sum;
    }
  }
  *out = t;
  return true;
}

FWDMETA_ALWAYS_INLINE bool SumByKind(const Plan& plan, const Inputs& in, const MlaChunk& chunk, bool search,
                                     Totals* out) {
  return plan.mla != 0 ? SumBlocks<true>(plan, in, chunk, search, out) : SumBlocks<false>(plan, in, chunk, search, out);
}
FWDMETA_AVX2 bool SumWithAvx2(const Plan& plan, const Inputs& in, const MlaChunk& chunk, bool search, Totals* out) {
  return SumByKind(plan, in, chunk, search, out);
}
bool SumWithBaseline(const Plan& plan, const Inputs& in, const MlaChunk& chunk, bool search, Totals* out) {
  return SumByKind(plan, in, chunk, search, out);
}

Totals Sum(const Plan& plan, const Inputs& in, const MlaChunk& chunk, bool search) {
  Totals t;
  if (!FitsBlocks(plan, in) ||
      !(HasAvx2() ? SumWithAvx2(plan, in, chunk, search, &t) : SumWithBaseline(plan, in, chunk, search, &t))) {
    SumSlotBySlot(plan, in, chunk, search, &t);
  }
  t.attn_kv_tokens += t.tokens;
  t.output_tokens += t.tokens;
  return t;
}

enum class Quantity { kTokens, kKvTokens };

// The first slot at which the running sum passes the limit.
int32_t FirstPast(const Plan& plan, const Inputs& in, Quantity quantity, int64_t limit) {
  int64_t sum = 0;
  for (int32_t b = 0; b < in.batch_size; ++b) {
    int32_t errors;
    const Slot slot = ReadSlot(plan, in, b, &errors);
    sum += quantity == Quantity::kTokens ? slot.this_time : slot.kv();
    if (sum > limit) return b;
  }
  return -1;
}

void SetSumError(const Plan& plan, const Inputs& in, Quantity quantity, int64_t total, int64_t limit,
                 CountsBlock* out) {
  out->counts[kErrorSlot] = FirstPast(plan, in, quantity, limit);
  out->error_value = total;
  out->error_limit = limit;
}

// Error bits, slot and numbers of the batch (contract 7); leaves the block untouched where there are none.
void SetErrors(const Plan& plan, const Inputs& in, const Totals& t, CountsBlock* out) {
  int32_t bits = t.errors;
  if (t.tokens > INT32_MAX || t.kv_tokens > INT32_MAX) bits |= FWDMETA_ERROR_SUM_OVERFLOW;
  if (t.tokens > plan.max_num_tokens) bits |= FWDMETA_ERROR_NUM_TOKENS;
  if (in.num_padded_tokens >= 0 && in.num_padded_tokens < t.tokens) bits |= FWDMETA_ERROR_PADDED_TOKENS;
  if (t.kv_tokens > plan.max_num_kv_tokens) bits |= FWDMETA_ERROR_NUM_KV_TOKENS;
  out->counts[kError] = bits;
  out->counts[kErrorSlot] = -1;
  if (t.bad_slot >= 0) {
    const int32_t b = t.bad_slot;
    out->counts[kErrorSlot] = b;
    SlotErrorNumbers(in.encoder[b], in.decoder[b], in.this_time[b], plan.max_model_len,
                     SlotErrors(in.encoder[b], in.decoder[b], in.this_time[b], plan.max_model_len), &out->error_value,
                     &out->error_limit);
  } else if (t.tokens > INT32_MAX) {
    SetSumError(plan, in, Quantity::kTokens, t.tokens, INT32_MAX, out);
  } else if (t.kv_tokens > INT32_MAX) {
    SetSumError(plan, in, Quantity::kKvTokens, t.kv_tokens, INT32_MAX, out);
  } else if ((bits & FWDMETA_ERROR_NUM_TOKENS) != 0) {
    SetSumError(plan, in, Quantity::kTokens, t.tokens, plan.max_num_tokens, out);
  } else if ((bits & FWDMETA_ERROR_PADDED_TOKENS) != 0) {
    out->error_value = t.tokens;
    out->error_limit = in.num_padded_tokens;
  } else if (bits != 0) {
    SetSumError(plan, in, Quantity::kKvTokens, t.kv_tokens, plan.max_num_kv_tokens, out);
  }
}

}  // namespace

void Summarize(const Plan& plan, const Inputs& inputs, Summary* out) {
  const bool search = SearchesMlaChunk(plan, inputs.batch_size);
  out->block = {};
  out->chunk = plan.mla != 0 ? MakeMlaChunk(plan, inputs.batch_size, 0) : MlaChunk{plan.block, 0, 0};
  Totals t = Sum(plan, inputs, out->chunk, search);
  SetErrors(plan, inputs, t, &out->block);
  if (out->block.counts[kError] != 0) {
    out->chunk = {plan.block, 0, 0};
    return;
  }
  if (search) {
    MlaSearch best;
    for (int32_t i = 1; i <= kMlaSearchSteps; ++i) best.Consider(i, t.candidates[i], plan.num_sms);
    out->chunk = MakeMlaChunk(plan, inputs.batch_size, best.best);
    t.tiles[kDecoder] = t.candidates[best.best];
  }
  int32_t* counts = out->block.counts;
  counts[kBatchSize] = inputs.batch_size;
  counts[kNumLive] = t.live;
  counts[kNumPrefill] = t.prefill;
  counts[kNumDecode] = t.live - t.prefill;
  counts[kNumTokens] = static_cast<int32_t>(t.tokens);
  counts[kNumPaddedTokens] = NumPaddedTokens(inputs, counts[kNumTokens]);
  counts[kNumKvTokens] = static_cast<int32_t>(t.kv_tokens);
  counts[kNumAttnKvTokens] = static_cast<int32_t>(t.attn_kv_tokens);
  for (int i = 0; i < kNumMappings; ++i) counts[kDecoderNumBlocks + i] = static_cast<int32_t>(t.tiles[i]);
  counts[kNumOutputTokens] = static_cast<int32_t>(t.output_tokens);
  const int32_t max_len[FWDMETA_MAX_LEN_COUNT] = {
      t.max_this_time, t.max_encoder, t.max_decoder, t.max_kv, t.max_decode_decoder, t.max_cached_kv, 0, 0, 0};
  std::copy(std::begin(max_len), std::end(max_len), out->block.max_len);
  out->block.decoder_chunk_size = out->chunk.size;
}

Status StatusOfStep(const CountsBlock& block) {
  const int32_t bits = block.counts[kError];
  if (bits == 0) return FWDMETA_OK;
  const int32_t slot = block.counts[kErrorSlot];
  const long long value = block.error_value, limit = block.error_limit;
  constexpr int32_t kInvalid = kSlotErrorBits | FWDMETA_ERROR_SUM_OVERFLOW;
  const Status status = (bits & kInvalid) != 0 ? FWDMETA_INVALID_BATCH : FWDMETA_CAPACITY_EXCEEDED;
  if ((bits & kSlotErrorBits) != 0) {
    if (value < 0) return Fail(status, "slot %d: length %lld is below %lld (error bits %d)", slot, value, limit, bits);
    if ((bits & FWDMETA_ERROR_MODEL_LEN) == 0) {
      return Fail(status, "slot %d: seq_lens_encoder %lld differs from seq_lens_this_time %lld (error bits %d)", slot,
                  value, limit, bits);
    }
    if ((bits & FWDMETA_ERROR_ENCODER_MISMATCH) == 0) {
      return Fail(status, "slot %d: length %lld passes max_model_len %lld (error bits %d)", slot, value, limit, bits);
    }
    return Fail(status, "slot %d: length %lld where %lld is the rule (error bits %d)", slot, value, limit, bits);
  }
  if ((bits & FWDMETA_ERROR_SUM_OVERFLOW) != 0) {
    return Fail(status, "sum of lengths %lld passes %lld from slot %d on (error bits %d)", value, limit, slot, bits);
  }
  if ((bits & FWDMETA_ERROR_NUM_TOKENS) != 0) {
    return Fail(status, "num_tokens %lld passes max_num_tokens %lld from slot %d on (error bits %d)", value, limit,
                slot, bits);
  }
  if ((bits & FWDMETA_ERROR_PADDED_TOKENS) != 0) {
    return Fail(status, "num_tokens %lld passes num_padded_tokens %lld (error bits %d)", value, limit, bits);
  }
  return Fail(status, "num_kv_tokens %lld passes max_num_kv_tokens %lld from slot %d on (error bits %d)", value, limit,
              slot, bits);
}

}  // namespace fwdmeta
