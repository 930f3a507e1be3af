#include "reference.h"

#include <algorithm>

namespace reference {
namespace {

constexpr int64_t kInt32Max = INT32_MAX;

int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

int64_t Product(int64_t a, int64_t b) { return a * b; }

// max_num_kv_tokens may be any int64.
int64_t Sum(int64_t a, int64_t b) { return a > INT64_MAX - b ? INT64_MAX : a + b; }

// Fills the tail of a list up to its capacity.
void Extend(std::vector<int64_t>* list, int64_t capacity, int64_t value) {
  list->resize(static_cast<size_t>(capacity), value);
}

// Contract §7: the bits of one slot, and the numbers of its lowest bit.
int32_t SlotErrors(const Config& config, int64_t e, int64_t d, int64_t n, int64_t* value, int64_t* limit) {
  int32_t bits = 0;
  const bool live = n > 0;
  if (n < 0 || (live && e < 0) || (live && d < 0)) bits |= FWDMETA_ERROR_NEGATIVE;
  if (live && e > 0 && e != n) bits |= FWDMETA_ERROR_ENCODER_MISMATCH;
  if (live && d + n > config.max_model_len) bits |= FWDMETA_ERROR_MODEL_LEN;
  if (bits & FWDMETA_ERROR_NEGATIVE) {
    *value = n < 0 ? n : e < 0 ? e : d;
    *limit = 0;
  } else if (bits & FWDMETA_ERROR_ENCODER_MISMATCH) {
    *value = e;
    *limit = n;
  } else if (bits & FWDMETA_ERROR_MODEL_LEN) {
    *value = d + n;
    *limit = config.max_model_len;
  }
  return bits;
}

// Contract §7: the error of a batch into `counts`.
void FindErrors(const Config& config, const Batch& batch, fwdmeta_counts_t* counts) {
  int64_t sum_n = 0, sum_kv = 0;
  counts->error = 0;
  counts->error_slot = -1;
  for (int64_t b = 0; b < batch.size(); ++b) {
    const int64_t e = batch.encoder[b], d = batch.decoder[b], n = batch.this_time[b];
    int64_t value = 0, limit = 0;
    const int32_t bits = SlotErrors(config, e, d, n, &value, &limit);
    if (bits != 0) {
      if (counts->error == 0) {
        counts->error_slot = static_cast<int32_t>(b);
        counts->error_value = value;
        counts->error_limit = limit;
      }
      counts->error |= bits;
    } else if (n > 0) {
      sum_n += n;
      sum_kv += d + n;
    }
  }
  const int64_t padded = batch.num_padded_tokens;
  // The sums in the order of their bits, each with its limit. Without a bad slot the first one broken gives the
  // numbers.
  const struct {
    int32_t bit;
    bool kv;
    int64_t limit;
    bool has_slot;
  } sums[] = {{FWDMETA_ERROR_SUM_OVERFLOW, false, kInt32Max, true},
              {FWDMETA_ERROR_SUM_OVERFLOW, true, kInt32Max, true},
              {FWDMETA_ERROR_NUM_TOKENS, false, config.max_num_tokens, true},
              {FWDMETA_ERROR_PADDED_TOKENS, false, padded, false},
              {FWDMETA_ERROR_NUM_KV_TOKENS, true, config.KvTokens(), true}};
  for (const auto& sum : sums) {
    if (sum.bit == FWDMETA_ERROR_PADDED_TOKENS && padded < 0) continue;
    const int64_t total = sum.kv ? sum_kv : sum_n;
    if (total <= sum.limit) continue;
    if (counts->error == 0) {
      counts->error_value = total;
      counts->error_limit = sum.limit;
      int64_t prefix = 0;
      for (int64_t b = 0; sum.has_slot && b < batch.size(); ++b) {
        const int64_t n = batch.this_time[b];
        if (n > 0) prefix += sum.kv ? n + batch.decoder[b] : n;
        if (prefix > sum.limit) {
          counts->error_slot = static_cast<int32_t>(b);
          break;
        }
      }
    }
    counts->error |= sum.bit;
  }
}

int64_t MlaChunk(const Config& config, const Batch& batch) {
  if (!config.mla) return 0;
  if (config.mla_chunk_size > 0) return config.mla_chunk_size;
  if (batch.size() == 1) return 64;
  int best = 0;
  int64_t rem = 0;
  for (int i = 0; i <= 11; ++i) {
    const int64_t chunk = config.groups[0].block_size << i;
    int64_t blocks = 0;
    for (int64_t b = 0; b < batch.size(); ++b) {
      if (batch.this_time[b] > 0 && batch.encoder[b] == 0) {
        blocks += CeilDiv(int64_t{batch.decoder[b]} + batch.this_time[b], chunk);
      }
    }
    if (i >= 1 && blocks % config.num_sms >= rem) {
      best = i;
      rem = blocks % config.num_sms;
    }
  }
  return config.groups[0].block_size << best;
}

// Contract §4, "Slot of position p". Sets *invalid for a column outside the row or a negative entry.
int64_t SlotOfPosition(const Config& config, const Group& group, const Rows<int32_t>& table, int64_t b, int64_t p,
                       bool* invalid) {
  const int64_t ranks = group.replicated ? 1 : config.cp_size;
  const int64_t rank = group.replicated ? 0 : config.cp_rank;
  const int64_t interleave = config.cp_interleave;
  const int64_t virtual_block = group.block_size * ranks;
  const int64_t vb = p / virtual_block;
  const int64_t vo = p % virtual_block;
  if (vo / interleave % ranks != rank) return -1;
  const int64_t lo = vo / (interleave * ranks) * interleave + vo % interleave;
  const int64_t column = vb * (group.block_size / group.kernel_block_size) + lo / group.kernel_block_size;
  const int32_t* entry = table.At(b, column);
  if (entry == nullptr || *entry < 0) {
    *invalid = true;
    return -1;
  }
  return int64_t{*entry} * group.kernel_block_size + lo % group.kernel_block_size;
}

// Copies what the counts say into the arrays that repeat them, and drops what the configuration did not ask for.
void Finish(const Config& config, Result* result) {
  const fwdmeta_counts_t& c = result->counts;
  auto* f = result->fields;
  f[FWDMETA_FIELD_DECODER_NUM_BLOCKS_DEVICE] = f[FWDMETA_FIELD_DECODER_NUM_BLOCKS_CPU] = {c.decoder_num_blocks};
  f[FWDMETA_FIELD_ENCODER_NUM_BLOCKS_X] = f[FWDMETA_FIELD_ENCODER_NUM_BLOCKS_X_CPU] = {c.encoder_num_blocks};
  f[FWDMETA_FIELD_KV_NUM_BLOCKS_X] = f[FWDMETA_FIELD_KV_NUM_BLOCKS_X_CPU] = {c.kv_num_blocks};
  f[FWDMETA_FIELD_PRE_CACHE_NUM_BLOCKS] = f[FWDMETA_FIELD_PRE_CACHE_NUM_BLOCKS_CPU] = {c.pre_cache_num_blocks};
  f[FWDMETA_FIELD_DECODER_CHUNK_SIZE_DEVICE] = {c.decoder_chunk_size};
  f[FWDMETA_FIELD_MAX_LEN_TENSOR].assign(c.max_len, c.max_len + FWDMETA_MAX_LEN_COUNT);
  f[FWDMETA_FIELD_MAX_LEN_TENSOR_CPU] = f[FWDMETA_FIELD_MAX_LEN_TENSOR];
  f[FWDMETA_FIELD_COUNTS] = {c.batch_size,
                             c.num_live,
                             c.num_prefill,
                             c.num_decode,
                             c.num_tokens,
                             c.num_padded_tokens,
                             c.num_kv_tokens,
                             c.num_attn_kv_tokens,
                             c.decoder_num_blocks,
                             c.encoder_num_blocks,
                             c.kv_num_blocks,
                             c.pre_cache_num_blocks,
                             c.num_output_tokens,
                             c.num_invalid_slots,
                             c.num_invalid_ids,
                             c.warnings,
                             c.error,
                             c.error_slot};
  f[FWDMETA_FIELD_COUNTS_I64] = {c.error_value, c.error_limit, 0};
  for (int i = 0; i < FWDMETA_FIELD_COUNT; ++i) {
    result->present[i] = config.Wants(i) && (i != FWDMETA_FIELD_SEQ_LENS_KV_LOCAL || config.cp_size > 1);
    if (!result->present[i]) f[i].clear();
  }
}

// Everything padding but the counts.
void FillPadding(const Config& config, Result* result) {
  const Capacities capacity = GetCapacities(config);
  const int64_t slots = config.max_batch_size, tokens = config.max_num_tokens;
  const struct {
    int field;
    int64_t size;
    int64_t value;
  } fills[] = {{FWDMETA_FIELD_DECODER_BATCH_IDS, capacity.decoder, -1},
               {FWDMETA_FIELD_DECODER_TILE_IDS_PER_BATCH, capacity.decoder, -1},
               {FWDMETA_FIELD_DECODER_CU_TILES, slots + 1, 0},
               {FWDMETA_FIELD_ENCODER_BATCH_IDS, capacity.encoder, -1},
               {FWDMETA_FIELD_ENCODER_TILE_IDS_PER_BATCH, capacity.encoder, -1},
               {FWDMETA_FIELD_ENCODER_CU_TILES, slots + 1, 0},
               {FWDMETA_FIELD_KV_BATCH_IDS, capacity.kv, -1},
               {FWDMETA_FIELD_KV_TILE_IDS_PER_BATCH, capacity.kv, -1},
               {FWDMETA_FIELD_KV_CU_TILES, slots + 1, 0},
               {FWDMETA_FIELD_PRE_CACHE_BATCH_IDS, capacity.pre_cache, -1},
               {FWDMETA_FIELD_PRE_CACHE_TILE_IDS_PER_BATCH, capacity.pre_cache, -1},
               {FWDMETA_FIELD_PRE_CACHE_CU_TILES, slots + 1, 0},
               {FWDMETA_FIELD_CU_SEQLENS_Q, slots + 1, 0},
               {FWDMETA_FIELD_CU_SEQLENS_K, slots + 1, 0},
               {FWDMETA_FIELD_ATTN_CU_SEQLENS_K, slots + 1, 0},
               {FWDMETA_FIELD_SEQ_LENS_KV, slots, config.pad_seq_len},
               {FWDMETA_FIELD_SEQ_LENS_KV_LOCAL, slots, 0},
               {FWDMETA_FIELD_BATCH_ID_PER_TOKEN, tokens, -1},
               {FWDMETA_FIELD_POSITION_IDS, tokens, 0},
               {FWDMETA_FIELD_SLOT_MAPPING, tokens * static_cast<int64_t>(config.groups.size()), -1},
               {FWDMETA_FIELD_IS_PADDING, tokens, 1},
               {FWDMETA_FIELD_MASK_ENCODER_BATCH, tokens, 0},
               {FWDMETA_FIELD_IDS_REMOVE_PADDING, tokens, config.pad_token_id},
               {FWDMETA_FIELD_SEQ_LENS_OUTPUT, slots, 0},
               {FWDMETA_FIELD_CU_SEQLENS_Q_OUTPUT, slots + 1, 0},
               {FWDMETA_FIELD_BATCH_ID_PER_TOKEN_OUTPUT, tokens, -1},
               {FWDMETA_FIELD_LOGITS_INDICES, tokens, -1},
               {FWDMETA_FIELD_LAST_TOKEN_INDEX, slots, -1}};
  for (const auto& fill : fills) {
    result->fields[fill.field].assign(static_cast<size_t>(fill.size), fill.value);
  }
}

// One mapping, from the number of tiles of each slot. Tiles count from 0 in every slot. Returns the count.
int64_t FillMapping(const std::vector<int64_t>& tiles, int64_t slots, int64_t capacity, std::vector<int64_t>* batch_ids,
                    std::vector<int64_t>* tile_ids, std::vector<int64_t>* cu_tiles) {
  batch_ids->clear();
  tile_ids->clear();
  cu_tiles->assign(1, 0);
  for (size_t b = 0; b < tiles.size(); ++b) {
    for (int64_t t = 0; t < tiles[b]; ++t) {
      batch_ids->push_back(static_cast<int64_t>(b));
      tile_ids->push_back(t);
    }
    cu_tiles->push_back(cu_tiles->back() + tiles[b]);
  }
  const int64_t count = cu_tiles->back();
  Extend(batch_ids, capacity, -1);
  Extend(tile_ids, capacity, -1);
  Extend(cu_tiles, slots + 1, count);
  return count;
}

}  // namespace

fwdmeta_status_t Result::status() const {
  const int32_t invalid =
      FWDMETA_ERROR_NEGATIVE | FWDMETA_ERROR_ENCODER_MISMATCH | FWDMETA_ERROR_MODEL_LEN | FWDMETA_ERROR_SUM_OVERFLOW;
  if (counts.error & invalid) return FWDMETA_INVALID_BATCH;
  return counts.error != 0 ? FWDMETA_CAPACITY_EXCEEDED : FWDMETA_OK;
}

Capacities GetCapacities(const Config& config, int64_t slots, int64_t tokens, int64_t alignment) {
  const int64_t g = config.num_q_heads / config.num_kv_heads;
  const int64_t s = std::min(slots, tokens);
  const int64_t t = tokens, m = config.max_model_len, k = config.KvTokens();
  const int64_t bs = config.groups[0].block_size;
  Capacities out;
  if (config.mla) {
    const int64_t c = config.mla_chunk_size > 0 ? config.mla_chunk_size : 2 * bs;
    out.decoder = std::min(Product(s, CeilDiv(m, c)), Sum(CeilDiv(k, c), s));
    if (config.mla_chunk_size == 0) out.decoder = std::max(out.decoder, CeilDiv(m, 64));
  } else {
    out.decoder = CeilDiv(Product(t, g), config.decoder_block_shape_q) + s - 1;
  }
  out.encoder = CeilDiv(Product(t, g), config.encoder_block_shape_q) + s - 1;
  out.kv = (t + Product(s, 2 * bs - 2)) / bs;
  out.pre_cache = std::min(Product(s, CeilDiv(m - 1, bs)), Sum(CeilDiv(k, bs), s));
  for (const Group& group : config.groups) {
    const int64_t ranks = group.replicated ? 1 : config.cp_size;
    const int64_t width = CeilDiv(m, group.block_size * ranks) * (group.block_size / group.kernel_block_size);
    out.block_table_width.push_back(CeilDiv(width, alignment) * alignment);
  }
  return out;
}

Result Padding(const Config& config) {
  Result result;
  result.counts.error_slot = -1;
  FillPadding(config, &result);
  Finish(config, &result);
  return result;
}

Result Build(const Config& config, const Batch& batch) {
  Result result;
  fwdmeta_counts_t& counts = result.counts;
  FindErrors(config, batch, &counts);
  FillPadding(config, &result);
  if (counts.error != 0) {
    Finish(config, &result);
    return result;
  }

  auto* f = result.fields;
  const Capacities capacity = GetCapacities(config);
  const int64_t slots = config.max_batch_size;
  const int64_t g = config.num_q_heads / config.num_kv_heads;
  const int64_t bs = config.groups[0].block_size;
  const int64_t chunk = MlaChunk(config, batch);
  const bool ids_given = batch.input_ids.given || batch.draft_tokens.given;

  std::vector<int64_t> decoder_tiles, encoder_tiles, kv_tiles, pre_cache_tiles;
  int64_t token = 0, kv_tokens = 0, attn_kv_tokens = 0, output = 0, invalid_slots = 0, invalid_ids = 0;
  int64_t max_len[FWDMETA_MAX_LEN_COUNT] = {};
  const auto raise = [&max_len](int which, int64_t value) { max_len[which] = std::max(max_len[which], value); };

  for (int64_t b = 0; b < batch.size(); ++b) {
    const int64_t e = batch.encoder[b], d = batch.decoder[b], n = batch.this_time[b];
    const bool live = n > 0;
    const bool prefill = live && e > 0;
    const bool decode = live && e == 0;
    counts.num_live += live;
    counts.num_prefill += prefill;
    counts.num_decode += decode;

    // §2
    decoder_tiles.push_back(!decode      ? 0
                            : config.mla ? CeilDiv(d + n, chunk)
                                         : CeilDiv(Product(n, g), config.decoder_block_shape_q));
    encoder_tiles.push_back(prefill ? CeilDiv(Product(e, g), config.encoder_block_shape_q) : 0);
    kv_tiles.push_back(prefill ? CeilDiv(e + d % bs, bs) : 0);
    pre_cache_tiles.push_back(prefill ? CeilDiv(d, bs) : 0);

    // §4, maxima
    raise(2, d);
    if (live) {
      raise(0, n);
      raise(1, e);
      raise(3, d + n);
      if (decode) raise(4, d);
      if (d > 0) raise(5, d + n);
    }

    // §4, tokens
    for (int64_t i = 0; i < n; ++i, ++token) {
      f[FWDMETA_FIELD_BATCH_ID_PER_TOKEN][token] = b;
      f[FWDMETA_FIELD_POSITION_IDS][token] = d + i;
      f[FWDMETA_FIELD_IS_PADDING][token] = 0;
      f[FWDMETA_FIELD_MASK_ENCODER_BATCH][token] = prefill ? 1 : 0;
      for (size_t group = 0; group < batch.block_tables.size(); ++group) {
        if (!batch.block_tables[group].given) continue;
        bool invalid = false;
        f[FWDMETA_FIELD_SLOT_MAPPING][group * config.max_num_tokens + token] =
            SlotOfPosition(config, config.groups[group], batch.block_tables[group], b, d + i, &invalid);
        invalid_slots += invalid;
      }
      if (ids_given) {
        const Rows<int64_t>& rows = decode && batch.draft_tokens.given ? batch.draft_tokens : batch.input_ids;
        const int64_t earlier = batch.earlier_tokens.empty() ? 0 : batch.earlier_tokens[b];
        const int64_t* id = rows.given ? rows.At(b, earlier + i) : nullptr;
        f[FWDMETA_FIELD_IDS_REMOVE_PADDING][token] = id != nullptr ? *id : config.pad_token_id;
        invalid_ids += id == nullptr;
      }
    }

    // §4, output rows and per-slot lengths
    const bool unfinished = !batch.unfinished.empty() && batch.unfinished[b];
    const int64_t outputs = prefill ? !unfinished : n;
    for (int64_t i = 0; i < outputs; ++i, ++output) {
      f[FWDMETA_FIELD_BATCH_ID_PER_TOKEN_OUTPUT][output] = b;
      f[FWDMETA_FIELD_LOGITS_INDICES][output] = token - outputs + i;
    }
    if (live) {
      kv_tokens += d + n;
      attn_kv_tokens += n + (prefill ? d : 0);
      f[FWDMETA_FIELD_SEQ_LENS_KV][b] = d + n;
      f[FWDMETA_FIELD_LAST_TOKEN_INDEX][b] = token - 1;
      const int64_t round = config.cp_size * config.cp_interleave;
      const int64_t rest = (d + n) % round - config.cp_rank * config.cp_interleave;
      f[FWDMETA_FIELD_SEQ_LENS_KV_LOCAL][b] =
          (d + n) / round * config.cp_interleave + std::min(std::max(rest, int64_t{0}), config.cp_interleave);
    }
    f[FWDMETA_FIELD_SEQ_LENS_OUTPUT][b] = outputs;
    f[FWDMETA_FIELD_CU_SEQLENS_Q][b + 1] = token;
    f[FWDMETA_FIELD_CU_SEQLENS_K][b + 1] = kv_tokens;
    f[FWDMETA_FIELD_ATTN_CU_SEQLENS_K][b + 1] = attn_kv_tokens;
    f[FWDMETA_FIELD_CU_SEQLENS_Q_OUTPUT][b + 1] = output;
  }
  for (int64_t b = batch.size(); b < slots; ++b) {  // past B every prefix sum repeats its total
    f[FWDMETA_FIELD_CU_SEQLENS_Q][b + 1] = token;
    f[FWDMETA_FIELD_CU_SEQLENS_K][b + 1] = kv_tokens;
    f[FWDMETA_FIELD_ATTN_CU_SEQLENS_K][b + 1] = attn_kv_tokens;
    f[FWDMETA_FIELD_CU_SEQLENS_Q_OUTPUT][b + 1] = output;
  }

  counts.batch_size = static_cast<int32_t>(batch.size());
  counts.num_tokens = static_cast<int32_t>(token);
  counts.num_padded_tokens = static_cast<int32_t>(batch.num_padded_tokens < 0 ? token : batch.num_padded_tokens);
  counts.num_kv_tokens = static_cast<int32_t>(kv_tokens);
  counts.num_attn_kv_tokens = static_cast<int32_t>(attn_kv_tokens);
  counts.decoder_num_blocks = static_cast<int32_t>(
      FillMapping(decoder_tiles, slots, capacity.decoder, &f[FWDMETA_FIELD_DECODER_BATCH_IDS],
                  &f[FWDMETA_FIELD_DECODER_TILE_IDS_PER_BATCH], &f[FWDMETA_FIELD_DECODER_CU_TILES]));
  counts.encoder_num_blocks = static_cast<int32_t>(
      FillMapping(encoder_tiles, slots, capacity.encoder, &f[FWDMETA_FIELD_ENCODER_BATCH_IDS],
                  &f[FWDMETA_FIELD_ENCODER_TILE_IDS_PER_BATCH], &f[FWDMETA_FIELD_ENCODER_CU_TILES]));
  counts.kv_num_blocks =
      static_cast<int32_t>(FillMapping(kv_tiles, slots, capacity.kv, &f[FWDMETA_FIELD_KV_BATCH_IDS],
                                       &f[FWDMETA_FIELD_KV_TILE_IDS_PER_BATCH], &f[FWDMETA_FIELD_KV_CU_TILES]));
  counts.pre_cache_num_blocks = static_cast<int32_t>(
      FillMapping(pre_cache_tiles, slots, capacity.pre_cache, &f[FWDMETA_FIELD_PRE_CACHE_BATCH_IDS],
                  &f[FWDMETA_FIELD_PRE_CACHE_TILE_IDS_PER_BATCH], &f[FWDMETA_FIELD_PRE_CACHE_CU_TILES]));
  counts.num_output_tokens = static_cast<int32_t>(output);
  if (config.Wants(FWDMETA_FIELD_SLOT_MAPPING)) {
    counts.num_invalid_slots = static_cast<int32_t>(std::min(invalid_slots, kInt32Max));
  }
  if (config.Wants(FWDMETA_FIELD_IDS_REMOVE_PADDING)) counts.num_invalid_ids = static_cast<int32_t>(invalid_ids);
  counts.warnings = (counts.num_invalid_slots > 0 ? FWDMETA_WARNING_INVALID_SLOTS : 0) |
                    (counts.num_invalid_ids > 0 ? FWDMETA_WARNING_INVALID_IDS : 0);
  for (int i = 0; i < FWDMETA_MAX_LEN_COUNT; ++i) counts.max_len[i] = static_cast<int32_t>(max_len[i]);
  counts.decoder_chunk_size = static_cast<int32_t>(chunk);
  Finish(config, &result);
  return result;
}

Batch SliceOf(const Config& config, const Batch& batch, int64_t slice, int64_t num_slices, int64_t split) {
  fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
  FindErrors(config, batch, &counts);
  if (counts.error != 0) return batch;
  Batch out = batch;
  out.earlier_tokens.assign(batch.size(), 0);
  out.unfinished.assign(batch.size(), false);
  out.this_time.assign(batch.size(), 0);
  int64_t token = 0, tokens = 0;
  for (int64_t b = 0; b < batch.size(); ++b) {
    for (int32_t i = 0; i < batch.this_time[b]; ++i, ++token) {
      const int64_t of = split > 0 ? std::min(token / split, num_slices - 1) : num_slices - 1;
      out.earlier_tokens[b] += of < slice;
      out.this_time[b] += of == slice;
      if (of > slice) out.unfinished[b] = true;
      tokens += of == slice;
    }
    out.decoder[b] = static_cast<int32_t>(batch.decoder[b] + out.earlier_tokens[b]);
    out.encoder[b] = batch.encoder[b] > 0 ? out.this_time[b] : 0;
  }
  const int64_t padding = batch.num_padded_tokens < 0 || slice < num_slices - 1 ? 0 : batch.num_padded_tokens - token;
  out.num_padded_tokens = tokens + padding;
  return out;
}

Advanced AdvanceLengths(const Config& config, const Advance& advance, Batch* batch) {
  Advanced out;
  for (int64_t b = 0; b < batch->size(); ++b) {
    const int64_t e = batch->encoder[b], n = batch->this_time[b];
    int64_t d = batch->decoder[b];
    if (n <= 0) continue;
    const bool prefill = e > 0;
    if (prefill && !advance.prompt_lens.empty() && d + n < advance.prompt_lens[b]) continue;
    int64_t rejected = 0;
    if (!prefill && !advance.num_rejected.empty()) {
      rejected = std::min(std::max(int64_t{advance.num_rejected[b]}, int64_t{0}), n - 1);
      out.clamped |= rejected != advance.num_rejected[b];
    }
    d += n - rejected;
    int64_t next = std::min(1 + advance.num_draft_tokens, config.max_model_len - d);
    if (!advance.stop.empty() && advance.stop[b] != 0) {
      next = 0;
      ++out.num_stopped;
    } else if (next == 0) {
      ++out.num_length_limited;
    }
    batch->encoder[b] = 0;
    batch->decoder[b] = static_cast<int32_t>(d);
    batch->this_time[b] = static_cast<int32_t>(next);
  }
  return out;
}

}  // namespace reference
