// An independent model of one step: the contract's text in naive loops, slot by slot and entry by entry, in 64 bits.
// It shares no code with the library, only the numbers of its fields and the struct of its counts.
#ifndef FWDMETA_TESTS_REFERENCE_H_
#define FWDMETA_TESTS_REFERENCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "fwdmeta.h"

namespace reference {

// Of `outputs`: counts, maxima, the chunk and block counts, which are written whatever a configuration asks for.
constexpr uint64_t kAlwaysWritten =
    uint64_t{1} << FWDMETA_FIELD_DECODER_NUM_BLOCKS_DEVICE | uint64_t{1} << FWDMETA_FIELD_DECODER_NUM_BLOCKS_CPU |
    uint64_t{1} << FWDMETA_FIELD_ENCODER_NUM_BLOCKS_X | uint64_t{1} << FWDMETA_FIELD_ENCODER_NUM_BLOCKS_X_CPU |
    uint64_t{1} << FWDMETA_FIELD_KV_NUM_BLOCKS_X | uint64_t{1} << FWDMETA_FIELD_KV_NUM_BLOCKS_X_CPU |
    uint64_t{1} << FWDMETA_FIELD_PRE_CACHE_NUM_BLOCKS | uint64_t{1} << FWDMETA_FIELD_PRE_CACHE_NUM_BLOCKS_CPU |
    uint64_t{1} << FWDMETA_FIELD_DECODER_CHUNK_SIZE_DEVICE | uint64_t{1} << FWDMETA_FIELD_MAX_LEN_TENSOR |
    uint64_t{1} << FWDMETA_FIELD_MAX_LEN_TENSOR_CPU | uint64_t{1} << FWDMETA_FIELD_COUNTS |
    uint64_t{1} << FWDMETA_FIELD_COUNTS_I64;

struct Group {
  int64_t block_size = 64;
  int64_t kernel_block_size = 64;
  bool replicated = false;
};

struct Config {
  int64_t max_batch_size = 8;
  int64_t max_num_tokens = 64;
  int64_t max_model_len = 256;
  int64_t max_num_kv_tokens = 0;  // 0: max_batch_size * max_model_len
  int64_t num_q_heads = 8;
  int64_t num_kv_heads = 1;
  std::vector<Group> groups = {Group()};
  int64_t encoder_block_shape_q = 64;
  int64_t decoder_block_shape_q = 16;
  bool mla = false;
  int64_t mla_chunk_size = 0;
  int64_t num_sms = 132;
  int64_t cp_size = 1;
  int64_t cp_rank = 0;
  int64_t cp_interleave = 1;
  int64_t pad_token_id = 0;
  int64_t pad_seq_len = 0;
  uint64_t outputs = UINT64_MAX;
  int64_t generations = 1;
  int64_t depth = 4;
  int64_t max_metas = 64;

  int64_t KvTokens() const { return max_num_kv_tokens != 0 ? max_num_kv_tokens : max_batch_size * max_model_len; }
  bool Wants(fwdmeta_field_t field) const { return (outputs >> field & 1) != 0; }
};

// A two-dimensional input. What a row lacks is outside it.
template <typename T>
struct Rows {
  bool given = false;
  int64_t width = 0;
  int64_t stride = 0;
  std::vector<T> data;
  std::vector<int32_t> lengths;  // empty: all of `width`

  // The entry, or null where the column is outside the row.
  const T* At(int64_t row, int64_t column) const {
    if (column < 0 || column >= width) return nullptr;
    if (!lengths.empty() && column >= lengths[row]) return nullptr;
    return &data[row * stride + column];
  }
  // Rows of given lists, as wide as the longest, with the shorter ones cut by `lengths`.
  static Rows Of(const std::vector<std::vector<T>>& lists);
};

struct Batch {
  std::vector<int32_t> encoder, decoder, this_time;  // E, D, N
  std::vector<Rows<int32_t>> block_tables;           // none, or one per cache group
  Rows<int64_t> input_ids, draft_tokens;
  int64_t num_padded_tokens = -1;
  // Of a slice, empty in a batch that is none: per slot its tokens in earlier slices, and whether later ones have more.
  std::vector<int64_t> earlier_tokens;
  std::vector<bool> unfinished;

  int64_t size() const { return static_cast<int64_t>(this_time.size()); }
};

struct Capacities {
  int64_t decoder = 0, encoder = 0, kv = 0, pre_cache = 0;
  std::vector<int64_t> block_table_width;
};

struct Result {
  // Without `step` and `is_final`, which belong to the builder.
  fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
  // Every array at full capacity, tails and padding included; SLOT_MAPPING holds its groups one after another.
  std::vector<int64_t> fields[FWDMETA_FIELD_COUNT];
  bool present[FWDMETA_FIELD_COUNT] = {};  // whether the configuration has the array

  // The status that the caller gets for the step's lengths.
  fwdmeta_status_t status() const;
};

Capacities GetCapacities(const Config& config, int64_t slots, int64_t tokens, int64_t alignment = 1);
inline Capacities GetCapacities(const Config& config) {
  return GetCapacities(config, config.max_batch_size, config.max_num_tokens);
}

Result Build(const Config& config, const Batch& batch);

// Slice `slice` of `num_slices` over a good batch as a batch of its own (the forward context's contract §5), token by
// token: `split` to each, the last takes the rest and the padding. Of a batch with an error, the batch.
Batch SliceOf(const Config& config, const Batch& batch, int64_t slice, int64_t num_slices, int64_t split);

// What every array holds before the first build, and in an error step.
Result Padding(const Config& config);

struct Advance {
  std::vector<int32_t> num_rejected;  // each empty: not given
  std::vector<uint8_t> stop;
  std::vector<int32_t> prompt_lens;
  int64_t num_draft_tokens = 0;
};
struct Advanced {
  int32_t num_stopped = 0;
  int32_t num_length_limited = 0;
  bool clamped = false;
};
Advanced AdvanceLengths(const Config& config, const Advance& advance, Batch* batch);

template <typename T>
Rows<T> Rows<T>::Of(const std::vector<std::vector<T>>& lists) {
  Rows rows;
  rows.given = true;
  bool ragged = false;
  for (const auto& list : lists) {
    const int64_t length = static_cast<int64_t>(list.size());
    ragged |= length != static_cast<int64_t>(lists[0].size());
    if (length > rows.width) rows.width = length;
  }
  rows.stride = rows.width;
  for (const auto& list : lists) {
    if (ragged) rows.lengths.push_back(static_cast<int32_t>(list.size()));
    rows.data.insert(rows.data.end(), list.begin(), list.end());
    rows.data.resize(rows.data.size() + rows.width - list.size());
  }
  return rows;
}

}  // namespace reference

#endif  // FWDMETA_TESTS_REFERENCE_H_
