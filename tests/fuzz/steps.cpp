#include "steps.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "calls.h"

namespace fwdmeta_fuzz {
namespace {

constexpr int64_t kMostBytes = 1 << 18;  // of all builders of an input

bool InMirror(int field) {
  return field == FWDMETA_FIELD_DECODER_NUM_BLOCKS_CPU || field == FWDMETA_FIELD_ENCODER_NUM_BLOCKS_X_CPU ||
         field == FWDMETA_FIELD_KV_NUM_BLOCKS_X_CPU || field == FWDMETA_FIELD_PRE_CACHE_NUM_BLOCKS_CPU ||
         field == FWDMETA_FIELD_MAX_LEN_TENSOR_CPU;
}

int64_t Entry(const fwdmeta_tensor_t& tensor, int64_t i) {
  switch (tensor.dtype_bits) {
    case 8:
      return static_cast<const uint8_t*>(tensor.data)[i];
    case 32:
      return static_cast<const int32_t*>(tensor.data)[i];
    default:
      return static_cast<const int64_t*>(tensor.data)[i];
  }
}

void CheckField(fwdmeta_meta_t meta, int32_t field, int32_t group, const int64_t* want, int64_t size) {
  fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
  FUZZ_EXPECT(FWDMETA_OK, fwdmeta_meta_get_field(meta, field, group, &tensor));
  bool same = tensor.ndim == 1 && tensor.shape[0] == size;
  int64_t i = 0;
  for (; same && i < size; ++i) same = Entry(tensor, i) == want[i];
  if (same) return;
  Die(__FILE__, __LINE__,
      std::string(fwdmeta_field_name(field)) + "[" + std::to_string(group) + "] of " + std::to_string(tensor.shape[0]) +
          " entries, expected " + std::to_string(size) +
          (i > 0 ? ", differs at " + std::to_string(i - 1) + ": " + std::to_string(Entry(tensor, i - 1)) +
                       ", expected " + std::to_string(want[i - 1])
                 : ""));
}

template <class T>
reference::Rows<T> ReadRows(ByteReader& bytes, int64_t slots, int64_t widest) {
  reference::Rows<T> rows;
  rows.given = true;
  rows.width = bytes.Int(0, widest);
  rows.stride = rows.width + (bytes.OneIn(4) ? bytes.Int(0, 3) : 0);
  rows.data.resize(slots > 0 ? (slots - 1) * rows.stride + rows.width : 0);
  for (T& value : rows.data) value = bytes.OneIn(16) ? static_cast<T>(bytes.Number()) : bytes.Byte();
  if (bytes.OneIn(3)) {
    rows.lengths.resize(slots);
    for (int32_t& length : rows.lengths) {
      length = bytes.OneIn(16) ? bytes.Number32() : static_cast<int32_t>(bytes.Int(0, rows.width));
    }
  }
  return rows;
}

}  // namespace

BoundedMemory::~BoundedMemory() { FUZZ_CHECK(blocks_ == 0 && bytes_ == 0); }

fwdmeta_allocator_t BoundedMemory::allocator() { return {&Alloc, &Free, this}; }

void* BoundedMemory::Alloc(size_t bytes, size_t alignment, void* user) {
  if (user == nullptr) return nullptr;  // a configuration that ends before
  BoundedMemory& self = *static_cast<BoundedMemory*>(user);
  FUZZ_CHECK(alignment > 0 && alignment <= 256 && (alignment & (alignment - 1)) == 0);
  if (bytes > static_cast<size_t>(kMostBytes - self.bytes_)) {
    ++self.refused_;
    return nullptr;
  }
  void* memory = nullptr;
  if (posix_memalign(&memory, std::max(alignment, sizeof(void*)), bytes) != 0) return nullptr;
  std::memset(memory, 0xa5, bytes);
  ++self.blocks_;
  self.bytes_ += static_cast<int64_t>(bytes);
  return memory;
}

void BoundedMemory::Free(void* memory, size_t bytes, void* user) {
  BoundedMemory& self = *static_cast<BoundedMemory*>(user);
  --self.blocks_;
  self.bytes_ -= static_cast<int64_t>(bytes);
  std::free(memory);
}

fwdmeta_config_t ReadConfig(ByteReader& bytes, std::vector<fwdmeta_group_config_t>* groups) {
  fwdmeta_config_t c = FWDMETA_CONFIG_INITIALIZER;
  c.backend = FWDMETA_BACKEND_HOST;
  c.max_batch_size = bytes.Int(1, 8);
  c.max_num_tokens = bytes.Int(1, 64);
  c.max_model_len = bytes.Int(1, 128);
  if (bytes.OneIn(4)) c.max_num_kv_tokens = bytes.Int(1, 600);
  c.num_kv_heads = bytes.Int(1, 3);
  c.num_q_heads = c.num_kv_heads * bytes.Int(1, 9);
  const auto read_group = [&](int64_t* block_size, int64_t* kernel_block_size) {
    const int64_t kernel = bytes.Int(1, 8);
    if (bytes.OneIn(2)) *kernel_block_size = kernel;
    *block_size = kernel * bytes.Int(1, 4);
  };
  read_group(&c.block_size, &c.kernel_block_size);
  if (bytes.OneIn(4)) {
    groups->assign(bytes.Int(1, FWDMETA_MAX_CACHE_GROUPS), {1, FWDMETA_DEFAULT, 0});
    for (fwdmeta_group_config_t& group : *groups) {
      read_group(&group.block_size, &group.kernel_block_size);
      group.replicated = bytes.OneIn(3);
    }
    c.num_cache_groups = static_cast<int64_t>(groups->size());
    c.cache_groups = groups->data();
  }
  c.encoder_block_shape_q = bytes.Int(1, 64);
  c.decoder_block_shape_q = bytes.Int(1, 64);
  if (bytes.OneIn(3)) {
    c.attention = FWDMETA_ATTENTION_MLA;
    if (bytes.OneIn(2)) c.mla_chunk_size = bytes.Int(1, 64);
  }
  if (bytes.OneIn(2)) c.num_sms = bytes.Int(1, 200);
  if (bytes.OneIn(3)) {
    c.cp_size = bytes.Int(1, 4);
    c.cp_rank = bytes.Int(0, c.cp_size - 1);
    c.cp_interleave = bytes.OneIn(2) ? c.block_size : 1;
  }
  c.pad_token_id = bytes.Number32();
  c.pad_seq_len = bytes.Number32();
  if (bytes.OneIn(3)) c.outputs = static_cast<uint64_t>(bytes.Int(INT64_MIN, INT64_MAX));
  c.generations = bytes.Int(1, 3);
  c.depth = bytes.Int(2, 4);
  c.max_metas = bytes.Int(1, 5);
  if (!bytes.OneIn(6)) return c;

  // One field that may be anything; the CUDA backend is not asked for, so that an input does the same everywhere.
  using Field = int64_t fwdmeta_config_t::*;
  constexpr Field kFields[] = {&fwdmeta_config_t::device,
                               &fwdmeta_config_t::max_batch_size,
                               &fwdmeta_config_t::max_num_tokens,
                               &fwdmeta_config_t::max_model_len,
                               &fwdmeta_config_t::max_num_kv_tokens,
                               &fwdmeta_config_t::num_q_heads,
                               &fwdmeta_config_t::num_kv_heads,
                               &fwdmeta_config_t::block_size,
                               &fwdmeta_config_t::kernel_block_size,
                               &fwdmeta_config_t::encoder_block_shape_q,
                               &fwdmeta_config_t::decoder_block_shape_q,
                               &fwdmeta_config_t::mla_chunk_size,
                               &fwdmeta_config_t::num_sms,
                               &fwdmeta_config_t::cp_size,
                               &fwdmeta_config_t::cp_rank,
                               &fwdmeta_config_t::cp_interleave,
                               &fwdmeta_config_t::pad_token_id,
                               &fwdmeta_config_t::pad_seq_len,
                               &fwdmeta_config_t::generations,
                               &fwdmeta_config_t::depth};
  constexpr int64_t kNumFields = std::size(kFields);
  const int64_t which = bytes.Int(0, kNumFields + 5);
  const int64_t value = bytes.Number();
  if (which < kNumFields) {
    c.*kFields[which] = value;
  } else if (which == kNumFields) {
    c.api_version = bytes.Number32();
  } else if (which == kNumFields + 1) {
    c.backend = value == FWDMETA_BACKEND_AUTO || value == FWDMETA_BACKEND_CUDA ? -1 : static_cast<int32_t>(value);
    if (c.backend == FWDMETA_BACKEND_AUTO || c.backend == FWDMETA_BACKEND_CUDA) c.backend = FWDMETA_BACKEND_HOST;
  } else if (which == kNumFields + 2) {
    c.attention = bytes.Number32();
  } else if (which == kNumFields + 3) {
    c.reserved = bytes.Number32();
  } else if (which == kNumFields + 4) {
    if (value > c.num_cache_groups && value <= FWDMETA_MAX_CACHE_GROUPS) c.cache_groups = nullptr;
    c.num_cache_groups = value;
  } else if (!groups->empty()) {
    fwdmeta_group_config_t& group = (*groups)[bytes.Int(0, c.num_cache_groups - 1)];
    (bytes.OneIn(3) ? group.block_size : bytes.OneIn(2) ? group.kernel_block_size : group.replicated) = value;
  }
  return c;
}

reference::Config ModelOf(const fwdmeta_config_t& c) {
  reference::Config config;
  config.max_batch_size = c.max_batch_size;
  config.max_num_tokens = c.max_num_tokens;
  config.max_model_len = c.max_model_len;
  config.max_num_kv_tokens = c.max_num_kv_tokens == FWDMETA_DEFAULT ? 0 : c.max_num_kv_tokens;
  config.num_q_heads = c.num_q_heads;
  config.num_kv_heads = c.num_kv_heads;
  const fwdmeta_group_config_t single = {c.block_size, c.kernel_block_size, 0};
  const fwdmeta_group_config_t* groups = c.num_cache_groups > 0 ? c.cache_groups : &single;
  config.groups.clear();
  for (int64_t i = 0; i < std::max<int64_t>(c.num_cache_groups, 1); ++i) {
    const int64_t kernel = groups[i].kernel_block_size;
    config.groups.push_back(
        {groups[i].block_size, kernel == FWDMETA_DEFAULT ? groups[i].block_size : kernel, groups[i].replicated != 0});
  }
  config.encoder_block_shape_q = c.encoder_block_shape_q;
  config.decoder_block_shape_q = c.decoder_block_shape_q;
  config.mla = c.attention == FWDMETA_ATTENTION_MLA;
  config.mla_chunk_size = c.mla_chunk_size;
  config.num_sms = c.num_sms == FWDMETA_DEFAULT ? 132 : c.num_sms;
  config.cp_size = c.cp_size;
  config.cp_rank = c.cp_rank;
  config.cp_interleave = c.cp_interleave;
  config.pad_token_id = c.pad_token_id;
  config.pad_seq_len = c.pad_seq_len;
  config.outputs = c.outputs | reference::kAlwaysWritten;
  config.generations = c.generations;
  config.depth = c.depth;
  config.max_metas = c.max_metas;
  return config;
}

bool HasModel(const fwdmeta_config_t& c) {
  fwdmeta_capacities_t capacities = FWDMETA_CAPACITIES_INITIALIZER;
  if (fwdmeta_get_capacities(&c, nullptr, &capacities) != FWDMETA_OK) return false;
  return c.max_batch_size <= 256 && c.max_num_tokens <= 256 &&
         std::max({capacities.decoder, capacities.encoder, capacities.kv, capacities.pre_cache}) <= 4096;
}

reference::Batch ReadBatch(ByteReader& bytes, const reference::Config& config) {
  reference::Batch batch;
  const int64_t most = std::min<int64_t>(config.max_batch_size, 8);
  const int64_t slots = bytes.OneIn(32) ? most + 1 : bytes.Int(0, most);
  int64_t room = config.max_num_tokens, tokens = 0, longest = 0;
  for (int64_t b = 0; b < slots; ++b) {
    const int64_t n = bytes.Int(0, std::min<int64_t>({room, config.max_model_len, 16}));
    const int64_t d = bytes.Int(0, std::min<int64_t>(config.max_model_len - n, 255));
    const bool prefill = bytes.OneIn(2);
    batch.this_time.push_back(static_cast<int32_t>(n));
    batch.decoder.push_back(static_cast<int32_t>(d));
    batch.encoder.push_back(static_cast<int32_t>(prefill ? n : 0));
    if (bytes.OneIn(16)) {
      auto& lengths = *bytes.Pick({&batch.encoder, &batch.decoder, &batch.this_time});
      lengths.back() = bytes.Number32();
    }
    room -= n;
    tokens += n;
    longest = std::max(longest, n);
  }
  if (bytes.OneIn(2)) {
    batch.num_padded_tokens = std::min(tokens + bytes.Int(0, 8), config.max_num_tokens + bytes.OneIn(16));
    if (bytes.OneIn(16)) batch.num_padded_tokens = std::max<int64_t>(bytes.Number(), -1);
  }
  if (bytes.OneIn(2)) {
    for (size_t group = 0; group < config.groups.size(); ++group) {
      batch.block_tables.push_back(bytes.OneIn(8) ? reference::Rows<int32_t>() : ReadRows<int32_t>(bytes, slots, 12));
    }
  }
  if (bytes.OneIn(2)) batch.input_ids = ReadRows<int64_t>(bytes, slots, longest + 2);
  if (bytes.OneIn(3)) batch.draft_tokens = ReadRows<int64_t>(bytes, slots, longest + 2);
  return batch;
}

template <class T>
T* BatchArgs::Copy(const std::vector<T>& values) {
  memory_.emplace_back(new char[values.size() * sizeof(T)]);
  if (!values.empty()) std::memcpy(memory_.back().get(), values.data(), values.size() * sizeof(T));
  return reinterpret_cast<T*>(memory_.back().get());
}

template <class T>
fwdmeta_rows_t BatchArgs::CopyRows(const reference::Rows<T>& rows) {
  if (!rows.given) return FWDMETA_ROWS_INITIALIZER;
  return {Copy(rows.data), rows.width, rows.stride, rows.lengths.empty() ? nullptr : Copy(rows.lengths)};
}

BatchArgs::BatchArgs(const reference::Batch& batch) {
  c.batch_size = batch.size();
  c.num_padded_tokens = batch.num_padded_tokens;
  c.seq_lens_encoder = encoder = Copy(batch.encoder);
  c.seq_lens_decoder = decoder = Copy(batch.decoder);
  c.seq_lens_this_time = this_time = Copy(batch.this_time);
  for (const auto& table : batch.block_tables) tables_.push_back(CopyRows(table));
  c.num_block_tables = static_cast<int64_t>(tables_.size());
  c.block_tables = tables_.empty() ? nullptr : tables_.data();
  c.input_ids = CopyRows(batch.input_ids);
  c.draft_tokens = CopyRows(batch.draft_tokens);
}

reference::Result Tails(const reference::Config& config) {
  reference::Result tails = reference::Padding(config);
  for (int64_t& count : tails.fields[FWDMETA_FIELD_COUNTS]) count = 0;
  return tails;
}

void CheckCounts(const reference::Result& want, int64_t step, const fwdmeta_counts_t& got) {
  fwdmeta_counts_t all = want.counts;
  all.step = step;
  all.is_final = 1;
  if (std::memcmp(&all, &got, sizeof(all)) == 0) return;
  const int32_t* a = reinterpret_cast<const int32_t*>(&all);
  const int32_t* b = reinterpret_cast<const int32_t*>(&got);
  const auto word = std::mismatch(a, a + sizeof(all) / sizeof(*a), b);
  Die(__FILE__, __LINE__,
      "word " + std::to_string(word.first - a) + " of the counts is " + std::to_string(*word.second) + ", expected " +
          std::to_string(*word.first));
}

void CheckArrays(fwdmeta_meta_t meta, const reference::Config& config, const reference::Result& want, int64_t step) {
  for (int32_t field = 0; field < FWDMETA_FIELD_COUNT; ++field) {
    if (InMirror(field)) continue;
    if (!want.present[field]) {
      fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
      FUZZ_EXPECT(FWDMETA_NOT_FOUND, fwdmeta_meta_get_field(meta, field, 0, &tensor));
      continue;
    }
    const std::vector<int64_t>& values = want.fields[field];
    if (field == FWDMETA_FIELD_COUNTS_I64) {
      const int64_t numbers[] = {values[0], values[1], step};
      CheckField(meta, field, 0, numbers, 3);
    } else if (field == FWDMETA_FIELD_SLOT_MAPPING) {
      for (size_t group = 0; group < config.groups.size(); ++group) {
        CheckField(meta, field, static_cast<int32_t>(group), values.data() + group * config.max_num_tokens,
                   config.max_num_tokens);
      }
    } else {
      CheckField(meta, field, 0, values.data(), static_cast<int64_t>(values.size()));
    }
  }
}

void CheckMirror(fwdmeta_meta_t meta, const reference::Result& want) {
  const int32_t blocks[] = {want.counts.decoder_num_blocks, want.counts.encoder_num_blocks, want.counts.kv_num_blocks,
                            want.counts.pre_cache_num_blocks};
  constexpr int32_t kFields[] = {FWDMETA_FIELD_DECODER_NUM_BLOCKS_CPU, FWDMETA_FIELD_ENCODER_NUM_BLOCKS_X_CPU,
                                 FWDMETA_FIELD_KV_NUM_BLOCKS_X_CPU, FWDMETA_FIELD_PRE_CACHE_NUM_BLOCKS_CPU};
  for (size_t i = 0; i < std::size(kFields); ++i) {
    const int64_t count = blocks[i];
    CheckField(meta, kFields[i], 0, &count, 1);
  }
  const std::vector<int64_t> max_len(want.counts.max_len, want.counts.max_len + FWDMETA_MAX_LEN_COUNT);
  CheckField(meta, FWDMETA_FIELD_MAX_LEN_TENSOR_CPU, 0, max_len.data(), FWDMETA_MAX_LEN_COUNT);
}

reference::Result BuildSlice(const reference::Config& config, const reference::Batch& batch, int64_t slice,
                             int64_t num_slices, int64_t split) {
  if (split == FWDMETA_DEFAULT) {
    const int64_t tokens = std::accumulate(batch.this_time.begin(), batch.this_time.end(), int64_t{0});
    split = (batch.num_padded_tokens < 0 ? tokens : batch.num_padded_tokens) / num_slices;
  }
  return reference::Build(config, reference::SliceOf(config, batch, slice, num_slices, split));
}

}  // namespace fwdmeta_fuzz
