#include "inspect.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "device_memory.h"
#include "handles.h"

namespace fwdmeta::command {

namespace {

// How much of an array is live.
enum class Extent { whole, decoder, encoder, kv, pre_cache, slots, slots_and_total, tokens, output_rows };

struct FieldRow {
  fwdmeta_field_t field;
  Extent extent;
};

constexpr FieldRow kFields[] = {
    {FWDMETA_FIELD_MAX_LEN_TENSOR_CPU, Extent::whole},
    {FWDMETA_FIELD_DECODER_CHUNK_SIZE_DEVICE, Extent::whole},
    {FWDMETA_FIELD_DECODER_BATCH_IDS, Extent::decoder},
    {FWDMETA_FIELD_DECODER_TILE_IDS_PER_BATCH, Extent::decoder},
    {FWDMETA_FIELD_DECODER_CU_TILES, Extent::slots_and_total},
    {FWDMETA_FIELD_ENCODER_BATCH_IDS, Extent::encoder},
    {FWDMETA_FIELD_ENCODER_TILE_IDS_PER_BATCH, Extent::encoder},
    {FWDMETA_FIELD_ENCODER_CU_TILES, Extent::slots_and_total},
    {FWDMETA_FIELD_KV_BATCH_IDS, Extent::kv},
    {FWDMETA_FIELD_KV_TILE_IDS_PER_BATCH, Extent::kv},
    {FWDMETA_FIELD_KV_CU_TILES, Extent::slots_and_total},
    {FWDMETA_FIELD_PRE_CACHE_BATCH_IDS, Extent::pre_cache},
    {FWDMETA_FIELD_PRE_CACHE_TILE_IDS_PER_BATCH, Extent::pre_cache},
    {FWDMETA_FIELD_PRE_CACHE_CU_TILES, Extent::slots_and_total},
    {FWDMETA_FIELD_CU_SEQLENS_Q, Extent::slots_and_total},
    {FWDMETA_FIELD_CU_SEQLENS_K, Extent::slots_and_total},
    {FWDMETA_FIELD_ATTN_CU_SEQLENS_K, Extent::slots_and_total},
    {FWDMETA_FIELD_SEQ_LENS_KV, Extent::slots},
    {FWDMETA_FIELD_BATCH_ID_PER_TOKEN, Extent::tokens},
    {FWDMETA_FIELD_POSITION_IDS, Extent::tokens},
    {FWDMETA_FIELD_MASK_ENCODER_BATCH, Extent::tokens},
    {FWDMETA_FIELD_IS_PADDING, Extent::tokens},
    {FWDMETA_FIELD_SLOT_MAPPING, Extent::tokens},
    {FWDMETA_FIELD_IDS_REMOVE_PADDING, Extent::tokens},
    {FWDMETA_FIELD_SEQ_LENS_KV_LOCAL, Extent::slots},
    {FWDMETA_FIELD_LAST_TOKEN_INDEX, Extent::slots},
    {FWDMETA_FIELD_SEQ_LENS_OUTPUT, Extent::slots},
    {FWDMETA_FIELD_CU_SEQLENS_Q_OUTPUT, Extent::slots_and_total},
    {FWDMETA_FIELD_BATCH_ID_PER_TOKEN_OUTPUT, Extent::output_rows},
    {FWDMETA_FIELD_LOGITS_INDICES, Extent::output_rows},
};

int64_t live_entries(Extent extent, const fwdmeta_counts_t& counts, int64_t whole) {
  switch (extent) {
    case Extent::whole:
      return whole;
    case Extent::decoder:
      return counts.decoder_num_blocks;
    case Extent::encoder:
      return counts.encoder_num_blocks;
    case Extent::kv:
      return counts.kv_num_blocks;
    case Extent::pre_cache:
      return counts.pre_cache_num_blocks;
    case Extent::slots:
      return counts.batch_size;
    case Extent::slots_and_total:
      return counts.batch_size + int64_t{1};
    case Extent::tokens:
      return counts.num_padded_tokens;
    case Extent::output_rows:
      return counts.num_output_tokens;
  }
  return whole;
}

// The configuration of the file on a backend. It points into `file`.
fwdmeta_config_t configuration(const BatchFile& file, fwdmeta_backend_t backend) {
  fwdmeta_config_t config = file.config;
  config.backend = backend;
  if (file.groups) {
    // To the API no groups means one group of the plain sizes, which is not what an empty list says.
    if (file.groups->empty()) throw LibraryError(FWDMETA_INVALID_ARGUMENT, "groups has 0 entries; 1..8 are possible");
    config.num_cache_groups = static_cast<int64_t>(file.groups->size());
    config.cache_groups = file.groups->data();
  }
  return config;
}

bool fits_int32(int64_t value) {
  return value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max();
}

std::vector<int32_t> narrowed(const std::vector<int64_t>& values) { return {values.begin(), values.end()}; }

// The API's arrays are int32, so the command has to refuse larger entries itself.
void refuse_pages_past_int32(const BatchFile& file) {
  if (!file.block_tables) return;
  for (const Rows& table : *file.block_tables) {
    for (size_t i = 0; i < table.values.size(); ++i) {
      if (fits_int32(table.values[i])) continue;
      throw LibraryError(FWDMETA_INVALID_ARGUMENT, "slot " + std::to_string(i / table.width) + ": block table entry " +
                                                       std::to_string(table.values[i]) + " is past int32");
    }
  }
}

// As above; the batch size and the token count, which the library judges first, must have been accepted by then.
void refuse_lengths_past_int32(const BatchFile& file, const Builder& builder) {
  const std::pair<const char*, const std::vector<int64_t>&> arrays[] = {
      {"seq_lens_encoder", file.seq_lens_encoder},
      {"seq_lens_decoder", file.seq_lens_decoder},
      {"seq_lens_this_time", file.seq_lens_this_time},
  };
  const size_t slots = file.seq_lens_this_time.size();
  for (size_t slot = 0; slot < slots; ++slot) {
    for (const auto& [name, values] : arrays) {
      if (fits_int32(values[slot])) continue;
      const std::vector<int32_t> idle(slots);
      fwdmeta_batch_t batch = FWDMETA_BATCH_INITIALIZER;
      batch.memory_kind = FWDMETA_MEMORY_HOST;
      batch.batch_size = static_cast<int64_t>(slots);
      batch.num_padded_tokens = file.num_padded_tokens;
      batch.seq_lens_encoder = batch.seq_lens_decoder = batch.seq_lens_this_time = idle.data();
      Step step(builder, batch);
      throw LibraryError(FWDMETA_INVALID_BATCH, "slot " + std::to_string(slot) + ": " + name + " " +
                                                    std::to_string(values[slot]) + " is past int32");
    }
  }
}

// The optional inputs, in the memory of the builder's backend.
class Inputs {
 public:
  explicit Inputs(Device* device) : device_(device) {}

  fwdmeta_rows_t pages(const Rows& rows) {
    return place(rows, pages_.emplace_back(narrowed(rows.values)).data(), sizeof(int32_t));
  }
  fwdmeta_rows_t tokens(const Rows& rows) { return place(rows, rows.values.data(), sizeof(int64_t)); }

 private:
  fwdmeta_rows_t place(const Rows& rows, const void* values, size_t size) {
    // Null means not given to the API, but rows without a single value are given.
    static constexpr int64_t kNothing = 0;
    fwdmeta_rows_t result = FWDMETA_ROWS_INITIALIZER;
    const size_t bytes = rows.values.size() * size;
    result.data = bytes == 0 ? inputs_.emplace_back(device_).place(&kNothing, sizeof kNothing)
                             : inputs_.emplace_back(device_).place(values, bytes);
    result.width = result.row_stride = rows.width;
    if (!rows.lengths.empty()) {
      result.row_lengths = static_cast<const int32_t*>(
          inputs_.emplace_back(device_).place(rows.lengths.data(), rows.lengths.size() * sizeof(int32_t)));
    }
    return result;
  }

  Device* device_;
  std::vector<std::vector<int32_t>> pages_;
  std::vector<Input> inputs_;
};

template <typename T>
std::vector<int64_t> widened(const void* data, int64_t count) {
  const T* values = static_cast<const T*>(data);
  return {values, values + count};
}

std::vector<int64_t> read_tensor(const fwdmeta_tensor_t& tensor, int64_t count, Device* device) {
  const void* data = tensor.data;
  std::vector<unsigned char> copy;
  if (tensor.memory_kind == FWDMETA_MEMORY_DEVICE) {
    copy.resize(count * tensor.dtype_bits / 8);
    device->download(copy.data(), data, copy.size());
    data = copy.data();
  }
  if (tensor.dtype_bits == 64) return widened<int64_t>(data, count);
  return tensor.dtype_bits == 32 ? widened<int32_t>(data, count) : widened<uint8_t>(data, count);
}

bool is_shown(fwdmeta_field_t field, const BatchFile& file) {
  switch (field) {
    case FWDMETA_FIELD_SLOT_MAPPING:
      return file.block_tables.has_value();
    case FWDMETA_FIELD_IDS_REMOVE_PADDING:
      return file.input_ids.has_value() || file.draft_tokens.has_value();
    case FWDMETA_FIELD_SEQ_LENS_KV_LOCAL:
      return file.config.cp_size > 1;
    default:
      return true;
  }
}

}  // namespace

const std::vector<int64_t>& Inspection::array(fwdmeta_field_t field) const {
  const auto has_field = [&](const ShownField& shown) { return shown.field == field; };
  return std::find_if(fields.begin(), fields.end(), has_field)->arrays.front();
}

const char* role(int64_t encoder, int64_t this_time) {
  if (this_time == 0) return "idle";
  return encoder > 0 ? "prefill" : "decode";
}

Inspection inspect(const BatchFile& file, fwdmeta_backend_t backend, bool full) {
  const fwdmeta_config_t config = configuration(file, backend);
  const Builder builder(config);
  const fwdmeta_builder_info_t info = builder.info();
  const std::unique_ptr<Device> device = Device::of(info);

  refuse_lengths_past_int32(file, builder);
  refuse_pages_past_int32(file);
  const std::vector<int32_t> encoder = narrowed(file.seq_lens_encoder);
  const std::vector<int32_t> decoder = narrowed(file.seq_lens_decoder);
  const std::vector<int32_t> this_time = narrowed(file.seq_lens_this_time);
  fwdmeta_batch_t batch = FWDMETA_BATCH_INITIALIZER;
  batch.memory_kind = FWDMETA_MEMORY_HOST;  // so that errors in the lengths come from the call
  batch.batch_size = static_cast<int64_t>(this_time.size());
  batch.num_padded_tokens = file.num_padded_tokens;
  batch.seq_lens_encoder = encoder.data();
  batch.seq_lens_decoder = decoder.data();
  batch.seq_lens_this_time = this_time.data();

  Inputs inputs(device.get());
  std::vector<fwdmeta_rows_t> tables;
  if (file.block_tables) {
    for (const Rows& table : *file.block_tables) tables.push_back(inputs.pages(table));
    batch.num_block_tables = static_cast<int64_t>(tables.size());
    batch.block_tables = tables.data();
  }
  if (file.input_ids) batch.input_ids = inputs.tokens(*file.input_ids);
  if (file.draft_tokens) batch.draft_tokens = inputs.tokens(*file.draft_tokens);

  const Step step(builder, batch);
  Inspection result{info.backend, step.wait(FWDMETA_WAIT_FINAL), {}};
  for (const auto& [field, extent] : kFields) {
    if (!is_shown(field, file)) continue;
    ShownField& shown = result.fields.emplace_back(ShownField{field, {}});
    const size_t arrays = field == FWDMETA_FIELD_SLOT_MAPPING ? tables.size() : 1;
    for (size_t group = 0; group < arrays; ++group) {
      fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
      check(fwdmeta_meta_get_field(step.meta(), field, static_cast<int32_t>(group), &tensor));
      const int64_t whole = tensor.shape[0];
      shown.arrays.push_back(
          read_tensor(tensor, full ? whole : live_entries(extent, result.counts, whole), device.get()));
    }
  }
  return result;
}

CapacityReport inspect_capacities(const BatchFile& file, fwdmeta_backend_t backend) {
  const fwdmeta_config_t config = configuration(file, backend);
  CapacityReport report{FWDMETA_CAPACITIES_INITIALIZER, {}};
  check(fwdmeta_get_capacities(&config, nullptr, &report.capacities));
  if (file.bucket) {
    report.bucket = FWDMETA_CAPACITIES_INITIALIZER;
    check(fwdmeta_get_capacities(&config, &*file.bucket, &*report.bucket));
  }
  return report;
}

}  // namespace fwdmeta::command
