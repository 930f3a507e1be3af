// What a builder's configuration says about tiles and slots, in the form that both backends compute with.
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "batch/config.h"
#include "batch/slot.h"
#include "plan/fastdiv.h"

namespace fwdmeta {

enum Mapping : int32_t { kDecoder = 0, kEncoder = 1, kKv = 2, kPreCache = 3, kNumMappings = 4 };

struct PlanGroup {
  FastDiv virtual_block;  // block_size * R positions, which the ranks share
  FastDiv interleave;     // I
  FastDiv stripe;         // I * R
  FastDiv page;           // kernel_block_size
  uint32_t pages_per_block;
  uint32_t ranks, rank;
};

struct Plan {
  int32_t max_batch_size, max_num_tokens, max_model_len;
  int64_t max_num_kv_tokens;
  uint32_t heads_per_kv_head;
  FastDiv encoder_rows, decoder_rows, block;  // *_block_shape_q and group 0's block_size
  int32_t mla;
  int32_t mla_chunk_size;  // 0: search
  FastDiv mla_chunk;
  uint32_t num_sms;
  int32_t pad_token_id, pad_seq_len;
  int32_t num_groups;
  PlanGroup groups[FWDMETA_MAX_CACHE_GROUPS];
  FastDiv cp_stripe;  // I * R
  int64_t cp_begin;   // r * I
  int32_t cp_interleave, cp_size;
  int32_t capacity[kNumMappings];
};

// How the decode tiles of an MLA step are cut: ceil(L / (base * 2^shift)) with base * 2^shift = size.
struct MlaChunk {
  FastDiv base;
  uint32_t shift;
  int32_t size;
};

FWDMETA_HD uint32_t CeilQuotient(uint32_t n, const FastDiv& d) { return n == 0 ? 0 : d.Quotient(n - 1) + 1; }

// The chunk of a step whose search, where there is one, has chosen `best` (contract 3).
FWDMETA_HD MlaChunk MakeMlaChunk(const Plan& plan, int32_t batch_size, uint32_t best) {
  if (plan.mla_chunk_size > 0) return {plan.mla_chunk, 0, plan.mla_chunk_size};
  // A chunk of 64 = 2^6: the multiplication degenerates to a shift.
  if (batch_size == 1) return {FastDiv{kMlaSingleSlotChunk, (1u << 31) + 1, 37}, 0, kMlaSingleSlotChunk};
  return {plan.block, best, static_cast<int32_t>(plan.block.divisor << best)};
}

FWDMETA_HD bool SearchesMlaChunk(const Plan& plan, int32_t batch_size) {
  return plan.mla != 0 && plan.mla_chunk_size == 0 && batch_size != 1;
}

// The rule that picks among the totals G_i of the candidates, fed with i = 1, 2, ..., 11.
struct MlaSearch {
  uint32_t best = 0, remainder = 0;
  FWDMETA_HD void Consider(uint32_t i, uint32_t total, uint32_t num_sms) {
    const uint32_t rest = total % num_sms;
    if (rest >= remainder) {
      best = i;
      remainder = rest;
    }
  }
};

FWDMETA_HD uint32_t MlaTiles(const Slot& slot, const FastDiv& base, uint32_t shift) {
  return slot.decode() ? (base.Quotient(static_cast<uint32_t>(slot.kv()) - 1) >> shift) + 1 : 0;
}

// Tiles of one slot in each mapping (contract 2).
FWDMETA_HD uint32_t DecoderTiles(const Plan& plan, const Slot& slot, const MlaChunk& chunk) {
  if (plan.mla != 0) return MlaTiles(slot, chunk.base, chunk.shift);
  if (!slot.decode()) return 0;
  const uint64_t rows = static_cast<uint64_t>(slot.this_time) * plan.heads_per_kv_head;
  return static_cast<uint32_t>(plan.decoder_rows.Quotient64(rows - 1)) + 1;
}
FWDMETA_HD uint32_t EncoderTiles(const Plan& plan, const Slot& slot) {
  if (!slot.prefill()) return 0;
  const uint64_t rows = static_cast<uint64_t>(slot.this_time) * plan.heads_per_kv_head;
  return static_cast<uint32_t>(plan.encoder_rows.Quotient64(rows - 1)) + 1;
}
// Pages from floor(D / bs) to the page of the last token: ceil((E + D mod bs) / bs) without the remainder.
FWDMETA_HD uint32_t KvTiles(const Plan& plan, const Slot& slot) {
  if (!slot.prefill()) return 0;
  return plan.block.Quotient(static_cast<uint32_t>(slot.kv()) - 1) -
         plan.block.Quotient(static_cast<uint32_t>(slot.decoder)) + 1;
}
FWDMETA_HD uint32_t PreCacheTiles(const Plan& plan, const Slot& slot) {
  return slot.prefill() ? CeilQuotient(static_cast<uint32_t>(slot.decoder), plan.block) : 0;
}

// This rank's share of a sequence of `length` tokens (contract 4).
FWDMETA_HD int32_t LocalKvLength(const Plan& plan, int32_t length) {
  const uint32_t stripes = plan.cp_stripe.Quotient(static_cast<uint32_t>(length));
  const int64_t rest = static_cast<int64_t>(length) - static_cast<int64_t>(stripes) * plan.cp_stripe.divisor;
  int64_t extra = rest - plan.cp_begin;
  extra = extra < 0 ? 0 : extra > plan.cp_interleave ? plan.cp_interleave : extra;
  return static_cast<int32_t>(static_cast<int64_t>(stripes) * plan.cp_interleave + extra);
}

// Where a position lives in a cache group: a column of the block table and an offset in its kernel page.
struct PageAddress {
  uint32_t column, offset;
  bool local;  // false: on another context-parallel rank
};
FWDMETA_HD PageAddress LocatePosition(const PlanGroup& group, uint32_t position) {
  if (group.ranks == 1 && group.pages_per_block == 1) {
    const uint32_t page = group.page.Quotient(position);
    return {page, position - page * group.page.divisor, true};
  }
  const uint32_t block = group.virtual_block.Quotient(position);
  const uint32_t in_block = position - block * group.virtual_block.divisor;
  const uint32_t run = group.interleave.Quotient(in_block);
  const uint32_t stripe = group.stripe.Quotient(in_block);
  const bool local = run - stripe * group.ranks == group.rank;
  const uint32_t interleave = group.interleave.divisor;
  const uint32_t offset = stripe * interleave + (in_block - run * interleave);
  const uint32_t page = group.page.Quotient(offset);
  return {block * group.pages_per_block + page, offset - page * group.page.divisor, local};
}

// Whether sums over good slots keep their limits. `token_limit`: of the sum of N.
FWDMETA_HD bool SumsAreGood(const Plan& plan, int64_t tokens, int64_t kv_tokens, int32_t token_limit) {
  return tokens <= token_limit && kv_tokens <= plan.max_num_kv_tokens && kv_tokens <= INT32_MAX;
}

Plan MakePlan(const Config& config, int64_t num_sms);

// Capacities by the formulas of contract 2, as 64-bit numbers that may pass int32.
struct Capacities {
  int64_t mapping[kNumMappings];
};
Capacities ComputeCapacities(const Config& config, int64_t slots, int64_t tokens);
// Refuses a configuration with a capacity past int32.
Status CheckCapacities(const Config& config);
int64_t BlockTableWidth(const Config& config, int32_t group, int64_t alignment);

}  // namespace fwdmeta
