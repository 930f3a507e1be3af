#include "harness.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace fwdmeta_test {

const Mapping kMappings[4] = {
    {"decoder", FWDMETA_FIELD_DECODER_BATCH_IDS, FWDMETA_FIELD_DECODER_TILE_IDS_PER_BATCH,
     FWDMETA_FIELD_DECODER_CU_TILES, &fwdmeta_counts_t::decoder_num_blocks, &fwdmeta_capacities_t::decoder,
     &reference::Capacities::decoder},
    {"encoder", FWDMETA_FIELD_ENCODER_BATCH_IDS, FWDMETA_FIELD_ENCODER_TILE_IDS_PER_BATCH,
     FWDMETA_FIELD_ENCODER_CU_TILES, &fwdmeta_counts_t::encoder_num_blocks, &fwdmeta_capacities_t::encoder,
     &reference::Capacities::encoder},
    {"kv", FWDMETA_FIELD_KV_BATCH_IDS, FWDMETA_FIELD_KV_TILE_IDS_PER_BATCH, FWDMETA_FIELD_KV_CU_TILES,
     &fwdmeta_counts_t::kv_num_blocks, &fwdmeta_capacities_t::kv, &reference::Capacities::kv},
    {"pre_cache", FWDMETA_FIELD_PRE_CACHE_BATCH_IDS, FWDMETA_FIELD_PRE_CACHE_TILE_IDS_PER_BATCH,
     FWDMETA_FIELD_PRE_CACHE_CU_TILES, &fwdmeta_counts_t::pre_cache_num_blocks, &fwdmeta_capacities_t::pre_cache,
     &reference::Capacities::pre_cache}};

const CountName kCountNames[18] = {{"batch_size", &fwdmeta_counts_t::batch_size},
                                   {"num_live", &fwdmeta_counts_t::num_live},
                                   {"num_prefill", &fwdmeta_counts_t::num_prefill},
                                   {"num_decode", &fwdmeta_counts_t::num_decode},
                                   {"num_tokens", &fwdmeta_counts_t::num_tokens},
                                   {"num_padded_tokens", &fwdmeta_counts_t::num_padded_tokens},
                                   {"num_kv_tokens", &fwdmeta_counts_t::num_kv_tokens},
                                   {"num_attn_kv_tokens", &fwdmeta_counts_t::num_attn_kv_tokens},
                                   {"decoder_num_blocks", &fwdmeta_counts_t::decoder_num_blocks},
                                   {"encoder_num_blocks", &fwdmeta_counts_t::encoder_num_blocks},
                                   {"kv_num_blocks", &fwdmeta_counts_t::kv_num_blocks},
                                   {"pre_cache_num_blocks", &fwdmeta_counts_t::pre_cache_num_blocks},
                                   {"num_output_tokens", &fwdmeta_counts_t::num_output_tokens},
                                   {"num_invalid_slots", &fwdmeta_counts_t::num_invalid_slots},
                                   {"num_invalid_ids", &fwdmeta_counts_t::num_invalid_ids},
                                   {"warnings", &fwdmeta_counts_t::warnings},
                                   {"error", &fwdmeta_counts_t::error},
                                   {"error_slot", &fwdmeta_counts_t::error_slot}};

namespace {

bool IsCpuField(int field) {
  return field == FWDMETA_FIELD_DECODER_NUM_BLOCKS_CPU || field == FWDMETA_FIELD_ENCODER_NUM_BLOCKS_X_CPU ||
         field == FWDMETA_FIELD_KV_NUM_BLOCKS_X_CPU || field == FWDMETA_FIELD_PRE_CACHE_NUM_BLOCKS_CPU ||
         field == FWDMETA_FIELD_MAX_LEN_TENSOR_CPU;
}

int FieldBits(int field) {
  switch (field) {
    case FWDMETA_FIELD_IS_PADDING:
      return 8;
    case FWDMETA_FIELD_POSITION_IDS:
    case FWDMETA_FIELD_SLOT_MAPPING:
    case FWDMETA_FIELD_IDS_REMOVE_PADDING:
    case FWDMETA_FIELD_COUNTS_I64:
      return 64;
    default:
      return 32;
  }
}

bool IsTokenField(int field) {
  switch (field) {
    case FWDMETA_FIELD_BATCH_ID_PER_TOKEN:
    case FWDMETA_FIELD_POSITION_IDS:
    case FWDMETA_FIELD_SLOT_MAPPING:
    case FWDMETA_FIELD_IS_PADDING:
    case FWDMETA_FIELD_MASK_ENCODER_BATCH:
    case FWDMETA_FIELD_IDS_REMOVE_PADDING:
      return true;
    default:
      return false;
  }
}

// How many leading entries of a field a build has to write, of a step with these counts; -1: all.
int64_t Extent(int field, const fwdmeta_counts_t& counts) {
  for (const Mapping& mapping : kMappings) {
    if (field == mapping.batch_ids || field == mapping.tile_ids) return counts.*mapping.count;
  }
  if (field == FWDMETA_FIELD_BATCH_ID_PER_TOKEN_OUTPUT || field == FWDMETA_FIELD_LOGITS_INDICES) {
    return counts.num_output_tokens;
  }
  return IsTokenField(field) ? counts.num_tokens : -1;
}

// The first entry that differs, or -1.
template <typename T>
int64_t FirstDifference(const void* data, const int64_t* want, int64_t size) {
  const T* got = static_cast<const T*>(data);
  int64_t differ = 0;
  for (int64_t i = 0; i < size; ++i) differ |= int64_t{got[i]} ^ want[i];
  if (differ == 0) return -1;
  for (int64_t i = 0;; ++i) {
    if (int64_t{got[i]} != want[i]) return i;
  }
}

int64_t FirstDifference(const void* data, int bits, const int64_t* want, int64_t size) {
  return bits == 8    ? FirstDifference<uint8_t>(data, want, size)
         : bits == 32 ? FirstDifference<int32_t>(data, want, size)
                      : FirstDifference<int64_t>(data, want, size);
}

template <typename T>
void Print(std::ostream& out, const char* name, const std::vector<T>& values) {
  out << ",\"" << name << "\":[";
  for (size_t i = 0; i < values.size(); ++i) out << (i ? "," : "") << int64_t{values[i]};
  out << "]";
}

template <typename T>
void PrintRows(std::ostream& out, const reference::Rows<T>& rows, int64_t slots) {
  out << "[";
  for (int64_t b = 0; b < slots; ++b) {
    out << (b ? ",[" : "[");
    for (int64_t c = 0; rows.At(b, c) != nullptr; ++c) out << (c ? "," : "") << *rows.At(b, c);
    out << "]";
  }
  out << "]";
}

}  // namespace

std::string Name(fwdmeta_status_t status) { return fwdmeta_status_name(status); }

::testing::AssertionResult IsStatus(const char* call, fwdmeta_status_t want, fwdmeta_status_t got) {
  if (want == got) return ::testing::AssertionSuccess();
  auto result = ::testing::AssertionFailure() << call << "\n  want " << Name(want) << ", got " << Name(got);
  if (got != FWDMETA_OK) result << ": " << fwdmeta_last_error();
  return result << "\n";
}

fwdmeta_advance_args_t AdvanceOfSlot(int32_t* numbers) {
  fwdmeta_advance_args_t args = FWDMETA_ADVANCE_ARGS_INITIALIZER;
  args.batch_size = 1;
  args.seq_lens_encoder = numbers;
  args.seq_lens_decoder = numbers + 1;
  args.seq_lens_this_time = numbers + 2;
  args.num_rejected = numbers + 3;
  return args;
}

bool HoldsNumbers(const std::string& text, const std::vector<int64_t>& numbers) {
  for (int64_t number : numbers) {
    const std::string digits = std::to_string(number);
    bool found = false;
    for (size_t at = text.find(digits); at != std::string::npos; at = text.find(digits, at + 1)) {
      const bool starts = at == 0 || !std::isdigit(static_cast<unsigned char>(text[at - 1]));
      const size_t end = at + digits.size();
      const bool ends = end == text.size() || !std::isdigit(static_cast<unsigned char>(text[end]));
      found |= starts && ends;
    }
    if (!found) return false;
  }
  return true;
}

bool HoldsNumbersOf(const std::string& text, const fwdmeta_counts_t& error) {
  std::vector<int64_t> numbers = {error.error_value};
  if (error.error_limit != 0) numbers.push_back(error.error_limit);
  if (error.error_slot >= 0) numbers.push_back(error.error_slot);
  return HoldsNumbers(text, numbers);
}

bool CudaRequired() {
  const char* value = std::getenv("FWDMETA_TEST_REQUIRE_CUDA");
  return value != nullptr && std::string(value) == "1";
}

std::string BackendName(const ::testing::TestParamInfo<fwdmeta_backend_t>& info) {
  return info.param == FWDMETA_BACKEND_CUDA ? "Cuda" : "Host";
}

fwdmeta_config_t ToC(const reference::Config& config, fwdmeta_backend_t backend,
                     std::vector<fwdmeta_group_config_t>* groups) {
  fwdmeta_config_t c = FWDMETA_CONFIG_INITIALIZER;
  c.backend = backend;
  c.max_batch_size = config.max_batch_size;
  c.max_num_tokens = config.max_num_tokens;
  c.max_model_len = config.max_model_len;
  if (config.max_num_kv_tokens != 0) c.max_num_kv_tokens = config.max_num_kv_tokens;
  c.num_q_heads = config.num_q_heads;
  c.num_kv_heads = config.num_kv_heads;
  if (config.groups.size() == 1 && !config.groups[0].replicated) {
    c.block_size = config.groups[0].block_size;
    c.kernel_block_size = config.groups[0].kernel_block_size;
  } else {
    groups->clear();
    for (const auto& g : config.groups) groups->push_back({g.block_size, g.kernel_block_size, g.replicated});
    c.num_cache_groups = static_cast<int64_t>(groups->size());
    c.cache_groups = groups->data();
  }
  c.encoder_block_shape_q = config.encoder_block_shape_q;
  c.decoder_block_shape_q = config.decoder_block_shape_q;
  c.attention = config.mla ? FWDMETA_ATTENTION_MLA : FWDMETA_ATTENTION_APPEND;
  c.mla_chunk_size = config.mla_chunk_size;
  c.num_sms = config.num_sms;
  c.cp_size = config.cp_size;
  c.cp_rank = config.cp_rank;
  c.cp_interleave = config.cp_interleave;
  c.pad_token_id = config.pad_token_id;
  c.pad_seq_len = config.pad_seq_len;
  c.outputs = config.outputs;
  c.generations = config.generations;
  c.depth = config.depth;
  c.max_metas = config.max_metas;
  return c;
}

fwdmeta_batch_t Inputs::Put(const reference::Batch& batch, fwdmeta_memory_kind_t kind, size_t skew) {
  fwdmeta_batch_t c = FWDMETA_BATCH_INITIALIZER;
  c.memory_kind = kind;
  c.batch_size = batch.size();
  c.num_padded_tokens = batch.num_padded_tokens;

  const bool copy = backend_ == FWDMETA_BACKEND_CUDA;
  std::vector<char> packed(skew);
  std::vector<std::pair<const void**, size_t>> pointers;
  const auto put = [&](const auto& values, const void** to, bool to_device) {
    if (!to_device) {
      *to = values.data();
      return;
    }
    const size_t width = sizeof(values[0]);
    packed.resize((packed.size() + width - 1) / width * width);
    pointers.emplace_back(to, packed.size());
    const char* bytes = reinterpret_cast<const char*>(values.data());
    packed.insert(packed.end(), bytes, bytes + values.size() * width);
  };
  const void *e = nullptr, *d = nullptr, *n = nullptr;
  if (batch.size() > 0) {
    const bool lengths_to_device = copy && kind == FWDMETA_MEMORY_DEVICE;
    put(batch.encoder, &e, lengths_to_device);
    put(batch.decoder, &d, lengths_to_device);
    put(batch.this_time, &n, lengths_to_device);
  }

  tables_.assign(batch.block_tables.size(), FWDMETA_ROWS_INITIALIZER);
  std::vector<const void*> lengths(tables_.size() + 2);
  static const int64_t kNothing = 0;  // rows of no columns have an address too
  const auto put_rows = [&](const auto& rows, fwdmeta_rows_t* to, const void** row_lengths) {
    if (!rows.given) return;
    to->width = rows.width;
    to->row_stride = rows.stride;
    to->data = &kNothing;
    if (!rows.data.empty() || copy) put(rows.data, &to->data, copy);
    if (!rows.lengths.empty()) put(rows.lengths, row_lengths, copy);
  };
  for (size_t g = 0; g < tables_.size(); ++g) put_rows(batch.block_tables[g], &tables_[g], &lengths[g]);
  put_rows(batch.input_ids, &c.input_ids, &lengths[tables_.size()]);
  put_rows(batch.draft_tokens, &c.draft_tokens, &lengths[tables_.size() + 1]);

  if (copy && !pointers.empty()) {
    if (buffer_ == nullptr || buffer_->size() < packed.size() + 16) {
      Synchronize(backend_);
      buffer_.reset();
      buffer_ = std::make_unique<Buffer>(backend_, packed.size() * 2 + 16);
    }
    Upload(backend_, buffer_->data(), packed.data(), packed.size());
    for (const auto& p : pointers) *p.first = static_cast<char*>(buffer_->data()) + p.second;
  }
  c.seq_lens_encoder = static_cast<const int32_t*>(e);
  c.seq_lens_decoder = static_cast<const int32_t*>(d);
  c.seq_lens_this_time = static_cast<const int32_t*>(n);
  for (size_t g = 0; g < tables_.size(); ++g) tables_[g].row_lengths = static_cast<const int32_t*>(lengths[g]);
  c.input_ids.row_lengths = static_cast<const int32_t*>(lengths[tables_.size()]);
  c.draft_tokens.row_lengths = static_cast<const int32_t*>(lengths[tables_.size() + 1]);
  c.num_block_tables = static_cast<int64_t>(tables_.size());
  c.block_tables = tables_.empty() ? nullptr : tables_.data();
  return c;
}

fwdmeta_config_t Allocators::Config(const reference::Config& config, fwdmeta_backend_t backend,
                                    std::vector<fwdmeta_group_config_t>* groups) {
  fwdmeta_config_t c = ToC(config, backend, groups);
  c.host_allocator = host.Get();
  if (backend == FWDMETA_BACKEND_CUDA) {
    c.device_allocator = device.Get();
    c.pinned_allocator = pinned.Get();
  }
  return c;
}

Allocators::~Allocators() {
  for (const CountingAllocator* allocator : {&device, &pinned, &host}) {
    EXPECT_TRUE(allocator->WaitUntilEmpty()) << allocator->live() << " blocks are never freed";
    EXPECT_EQ(allocator->allocs(), allocator->frees());
    EXPECT_EQ("", allocator->misuse());
  }
}

Builder::Builder(fwdmeta_backend_t backend, const reference::Config& config, fwdmeta_builder_t of_others,
                 std::shared_ptr<Allocators> allocators)
    : backend_(backend),
      config_(config),
      allocators_(std::move(allocators)),
      handle_(of_others),
      owned_(false),
      inputs_(backend),
      last_(reference::Padding(config)) {}

Builder::Builder(fwdmeta_backend_t backend, const reference::Config& config)
    : backend_(backend),
      config_(config),
      allocators_(std::make_shared<Allocators>()),
      inputs_(backend),
      last_(reference::Padding(config)) {
  std::vector<fwdmeta_group_config_t> groups;
  const fwdmeta_config_t c = allocators_->Config(config, backend, &groups);
  const fwdmeta_status_t status = fwdmeta_builder_create(&c, &handle_);
  EXPECT_EQ(Name(FWDMETA_OK), Name(status)) << fwdmeta_last_error() << Describe(config, {});
}

Builder::~Builder() {
  EXPECT_EQ(FWDMETA_OK, fwdmeta_meta_destroy(meta_)) << fwdmeta_last_error();
  if (owned_) {
    EXPECT_EQ(FWDMETA_OK, fwdmeta_builder_destroy(handle_)) << fwdmeta_last_error();
  }
}

void Builder::Adopt(fwdmeta_meta_t meta) {
  EXPECT_EQ(FWDMETA_OK, fwdmeta_meta_destroy(meta_)) << fwdmeta_last_error();
  meta_ = meta;
  fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
  EXPECT_EQ(FWDMETA_OK, fwdmeta_builder_get_info(handle_, &info)) << fwdmeta_last_error();
  step_ = info.last_step;
}

fwdmeta_status_t Builder::Build(const fwdmeta_batch_t& batch) {
  fwdmeta_meta_t meta = 0;
  int64_t step = -1;
  const fwdmeta_status_t status = fwdmeta_build(handle_, &batch, &meta, &step);
  if (status != FWDMETA_OK) {
    EXPECT_EQ(fwdmeta_meta_t{0}, meta) << "a failed build wrote an output";
    EXPECT_EQ(-1, step) << "a failed build wrote an output";
    return status;
  }
  EXPECT_EQ(FWDMETA_OK, fwdmeta_meta_destroy(meta_));
  meta_ = meta;
  step_ = step;
  return status;
}

fwdmeta_status_t Builder::Build(const reference::Batch& batch, fwdmeta_memory_kind_t kind, int64_t generation) {
  skew_ = (skew_ + 1) % 4;
  fwdmeta_batch_t c = inputs_.Put(batch, kind, static_cast<size_t>(skew_) * 4);
  c.stream = stream;
  c.generation = generation;
  return Build(c);
}

void Builder::Poison(int64_t which, const fwdmeta_counts_t& next) {
  const auto found = sets_.find(which);
  if (found == sets_.end()) return;
  const Set& set = found->second;
  if (backend_ == FWDMETA_BACKEND_CUDA) {
    Synchronize(backend_);
    arrays().Snapshot();
  }
  for (const auto& entry : set.tensors) {
    const fwdmeta_tensor_t& tensor = entry.second;
    const int field = entry.first.first;
    int64_t size = Extent(field, next) < 0 ? tensor.shape[0] : std::max(Extent(field, next), Extent(field, set.counts));
    size = std::min(size, tensor.shape[0]);
    void* data = backend_ == FWDMETA_BACKEND_CUDA ? arrays().InSnapshot(tensor.data) : tensor.data;
    if (data != nullptr) std::memset(data, 0x5A, static_cast<size_t>(size) * tensor.dtype_bits / 8);
  }
  if (backend_ == FWDMETA_BACKEND_CUDA) arrays().Restore();
}

bool Builder::Remember(int64_t which, fwdmeta_meta_t meta, const reference::Result& step) {
  Set& set = sets_[which];
  set.counts = step.counts;
  const bool first = set.tensors.empty();
  for (int field = 0; field < FWDMETA_FIELD_COUNT; ++field) {
    const int groups = field == FWDMETA_FIELD_SLOT_MAPPING ? static_cast<int>(config_.groups.size()) : 1;
    for (int group = 0; group < groups && step.present[field] && !IsCpuField(field); ++group) {
      fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
      EXPECT_OK(fwdmeta_meta_get_field(meta, field, group, &tensor));
      fwdmeta_tensor_t& known = set.tensors[{field, group}];
      if (first) known = tensor;
      if (known.data == tensor.data) continue;
      ADD_FAILURE() << fwdmeta_field_name(field) << " has moved";
      return false;
    }
  }
  return true;
}

bool Builder::Run(const reference::Batch& batch, fwdmeta_memory_kind_t kind, int64_t generation) {
  const reference::Result want = reference::Build(config_, batch);
  const bool refused = kind == FWDMETA_MEMORY_HOST && want.status() != FWDMETA_OK;
  const bool set_known = config_.generations == 1 || generation != FWDMETA_DEFAULT;
  const int64_t set = generation != FWDMETA_DEFAULT ? generation : 0;
  if (set_known && !refused) Poison(set, want.counts);

  const fwdmeta_status_t status = Build(batch, kind, generation);
  const auto describe = [&] {
    return std::string(kind == FWDMETA_MEMORY_HOST ? " (host lengths)" : " (device lengths)") + " of step " +
           std::to_string(step_) + "\n" + Describe(config_, batch);
  };
  if (refused) {
    const fwdmeta_counts_t& c = want.counts;
    const bool right = status == want.status() && HoldsNumbersOf(fwdmeta_last_error(), c);
    EXPECT_TRUE(right) << "got " << Name(status) << ": " << fwdmeta_last_error() << "\nwant " << Name(want.status())
                       << ", slot " << c.error_slot << ", value " << c.error_value << ", limit " << c.error_limit
                       << describe();
    // Nothing is written: the arrays of the latest step of this builder are as they were.
    return right && (meta_ == 0 || ExpectArrays(meta_, last_, step_));
  }
  if (status != FWDMETA_OK) {
    ADD_FAILURE() << Name(status) << ": " << fwdmeta_last_error() << describe();
    return false;
  }
  if (!Expect(want)) {
    ADD_FAILURE() << "in the build" << describe();
    return false;
  }
  last_ = want;
  return !set_known || Remember(set, meta_, want);
}

bool Builder::ExpectCounts(const reference::Result& want, fwdmeta_status_t status, const fwdmeta_counts_t& got) {
  bool right = IsStatus("status of the step", want.status(), status);
  EXPECT_STATUS(want.status(), status);
  if (status != FWDMETA_OK) {
    const bool holds = HoldsNumbersOf(fwdmeta_last_error(), want.counts);
    EXPECT_TRUE(holds) << fwdmeta_last_error();
    right &= holds;
  }
  const auto equal = [&right](const std::string& name, int64_t expected, int64_t value) {
    EXPECT_EQ(expected, value) << name;
    right &= expected == value;
  };
  for (const CountName& count : kCountNames) equal(count.name, want.counts.*count.member, got.*count.member);
  for (int i = 0; i < FWDMETA_MAX_LEN_COUNT; ++i) {
    equal("max_len[" + std::to_string(i) + "]", want.counts.max_len[i], got.max_len[i]);
  }
  equal("decoder_chunk_size", want.counts.decoder_chunk_size, got.decoder_chunk_size);
  equal("error_value", want.counts.error_value, got.error_value);
  equal("error_limit", want.counts.error_limit, got.error_limit);
  equal("is_final", 1, got.is_final);
  return right;
}

bool Builder::Expect(const reference::Result& want) {
  fwdmeta_counts_t got = FWDMETA_COUNTS_INITIALIZER, same = FWDMETA_COUNTS_INITIALIZER;
  const fwdmeta_status_t status = fwdmeta_counts_wait(handle_, step_, FWDMETA_WAIT_FINAL, -1, &got);
  bool right = ExpectCounts(want, status, got);
  const fwdmeta_status_t by_meta = fwdmeta_meta_wait(meta_, FWDMETA_WAIT_FINAL, -1, &same);
  EXPECT_EQ(step_, got.step);
  EXPECT_EQ(Name(status), Name(by_meta));
  EXPECT_EQ(0, std::memcmp(&got, &same, sizeof got)) << "counts by step and by meta";
  right &= got.step == step_ && status == by_meta && std::memcmp(&got, &same, sizeof got) == 0;
  return ExpectArrays(meta_, want, step_) && right;
}

bool Builder::ExpectArrays(fwdmeta_meta_t meta, const reference::Result& want, int64_t step) {
  if (backend_ == FWDMETA_BACKEND_CUDA) {
    Synchronize(backend_);
    arrays().Snapshot();
  }
  int mismatches = 0;
  for (int field = 0; field < FWDMETA_FIELD_COUNT && mismatches < 4; ++field) {
    const bool per_group = field == FWDMETA_FIELD_SLOT_MAPPING;
    const int64_t groups = per_group ? static_cast<int64_t>(config_.groups.size()) : 1;
    const std::vector<int64_t>& all = want.fields[field];
    const std::string name = fwdmeta_field_name(field);
    for (int64_t group = 0; group < groups; ++group) {
      fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
      const fwdmeta_status_t status = fwdmeta_meta_get_field(meta, field, static_cast<int32_t>(group), &tensor);
      const fwdmeta_status_t want_status = want.present[field] ? FWDMETA_OK : FWDMETA_NOT_FOUND;
      if (status != want_status) {
        ADD_FAILURE() << name << ": " << Name(status) << ", want " << Name(want_status) << ". " << fwdmeta_last_error();
        ++mismatches;
        continue;
      }
      if (!want.present[field]) continue;
      const int64_t size = static_cast<int64_t>(all.size()) / groups;
      const bool on_host = IsCpuField(field) || backend_ == FWDMETA_BACKEND_HOST;
      const bool shaped = tensor.ndim == 1 && tensor.shape[0] == size && tensor.strides[0] == 1 &&
                          tensor.dtype_bits == FieldBits(field) && tensor.dtype_lanes == 1 &&
                          tensor.dtype_code == (FieldBits(field) == 8 ? FWDMETA_DTYPE_UINT : FWDMETA_DTYPE_INT) &&
                          tensor.memory_kind == (on_host ? FWDMETA_MEMORY_HOST : FWDMETA_MEMORY_DEVICE) &&
                          (tensor.device == -1) == on_host;
      if (!shaped) {
        ADD_FAILURE() << name << ": ndim " << tensor.ndim << " shape " << tensor.shape[0] << " (want " << size
                      << ") stride " << tensor.strides[0] << " dtype " << int{tensor.dtype_code} << "/"
                      << int{tensor.dtype_bits} << " memory " << tensor.memory_kind << " device " << tensor.device;
        ++mismatches;
        continue;
      }
      if (size == 0) continue;
      const void* data = tensor.data;
      if (!on_host) data = arrays().InSnapshot(tensor.data);
      if (data == nullptr) {
        ADD_FAILURE() << name << " is not in memory of the allocator";
        ++mismatches;
        continue;
      }
      std::vector<int64_t> with_step;
      const int64_t* expected = all.data() + group * size;
      if (field == FWDMETA_FIELD_COUNTS_I64) {
        with_step = all;
        with_step[2] = step;
        expected = with_step.data();
      }
      const int64_t at = FirstDifference(data, FieldBits(field), expected, size);
      if (at >= 0) {
        ADD_FAILURE() << name << (per_group ? "[" + std::to_string(group) + "]" : "") << " differs at " << at << " of "
                      << size << ": got " << Values(data, tensor)[at] << ", want " << expected[at];
        ++mismatches;
      }
    }
  }
  return mismatches == 0;
}

fwdmeta_counts_t Builder::Counts() {
  fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
  EXPECT_OK(fwdmeta_meta_wait(meta_, FWDMETA_WAIT_FINAL, -1, &counts));
  return counts;
}

fwdmeta_tensor_t Builder::Tensor(fwdmeta_field_t field, int32_t group) {
  fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
  EXPECT_OK(fwdmeta_meta_get_field(meta_, field, group, &tensor));
  return tensor;
}

std::vector<int64_t> Builder::Read(fwdmeta_field_t field, int32_t group) {
  const fwdmeta_tensor_t tensor = Tensor(field, group);
  if (tensor.data == nullptr) return {};
  std::vector<char> bytes(static_cast<size_t>(tensor.shape[0]) * tensor.dtype_bits / 8);
  Download(tensor.memory_kind == FWDMETA_MEMORY_HOST ? FWDMETA_BACKEND_HOST : backend_, bytes.data(), tensor.data,
           bytes.size());
  return Values(bytes.data(), tensor);
}

std::vector<int64_t> Builder::Head(fwdmeta_field_t field, int64_t size, int32_t group) {
  std::vector<int64_t> values = Read(field, group);
  EXPECT_LE(size, static_cast<int64_t>(values.size()));
  values.resize(static_cast<size_t>(size));
  return values;
}

std::vector<std::pair<int64_t, int64_t>> Builder::Tiles(fwdmeta_field_t batch_ids) {
  std::vector<std::pair<int64_t, int64_t>> tiles;
  for (const Mapping& mapping : kMappings) {
    if (mapping.batch_ids != batch_ids) continue;
    const int64_t count = Counts().*mapping.count;
    const std::vector<int64_t> slots = Head(mapping.batch_ids, count), ids = Head(mapping.tile_ids, count);
    for (int64_t i = 0; i < count; ++i) tiles.emplace_back(slots[i], ids[i]);
  }
  return tiles;
}

std::vector<int64_t> Values(const void* data, const fwdmeta_tensor_t& tensor) {
  std::vector<int64_t> values(static_cast<size_t>(tensor.shape[0]));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = tensor.dtype_bits == 8    ? static_cast<const uint8_t*>(data)[i]
                : tensor.dtype_bits == 32 ? static_cast<const int32_t*>(data)[i]
                                          : static_cast<const int64_t*>(data)[i];
  }
  return values;
}

std::string Describe(const reference::Config& config, const reference::Batch& batch) {
  std::ostringstream out;
  out << "{\"config\":{\"max_batch_size\":" << config.max_batch_size << ",\"max_num_tokens\":" << config.max_num_tokens
      << ",\"max_model_len\":" << config.max_model_len << ",\"max_num_kv_tokens\":" << config.KvTokens()
      << ",\"num_q_heads\":" << config.num_q_heads << ",\"num_kv_heads\":" << config.num_kv_heads
      << ",\"encoder_block_shape_q\":" << config.encoder_block_shape_q
      << ",\"decoder_block_shape_q\":" << config.decoder_block_shape_q << ",\"attention\":\""
      << (config.mla ? "mla" : "append") << "\",\"mla_chunk_size\":" << config.mla_chunk_size
      << ",\"num_sms\":" << config.num_sms << ",\"cp_size\":" << config.cp_size << ",\"cp_rank\":" << config.cp_rank
      << ",\"cp_interleave\":" << config.cp_interleave << ",\"pad_token_id\":" << config.pad_token_id
      << ",\"pad_seq_len\":" << config.pad_seq_len << ",\"groups\":[";
  for (size_t g = 0; g < config.groups.size(); ++g) {
    out << (g ? "," : "") << "{\"block_size\":" << config.groups[g].block_size
        << ",\"kernel_block_size\":" << config.groups[g].kernel_block_size
        << ",\"replicated\":" << (config.groups[g].replicated ? "true" : "false") << "}";
  }
  out << "]} /* outputs " << config.outputs << ", generations " << config.generations << ", depth " << config.depth
      << " */,\"batch\":{\"num_padded_tokens\":" << batch.num_padded_tokens;
  Print(out, "seq_lens_encoder", batch.encoder);
  Print(out, "seq_lens_decoder", batch.decoder);
  Print(out, "seq_lens_this_time", batch.this_time);
  for (const auto& table : batch.block_tables) {
    out << ",\"block_table\":";
    if (table.given) PrintRows(out, table, batch.size());
  }
  if (batch.input_ids.given) PrintRows(out << ",\"input_ids\":", batch.input_ids, batch.size());
  if (batch.draft_tokens.given) PrintRows(out << ",\"draft_tokens\":", batch.draft_tokens, batch.size());
  out << "}}";
  std::string text = out.str();
  if (text.size() > 6000) text = text.substr(0, 6000) + " ... (cut)";
  return text;
}

reference::Batch MakeBatch(const std::vector<Slot>& slots, int64_t num_padded_tokens) {
  reference::Batch batch;
  for (const Slot& slot : slots) {
    batch.encoder.push_back(slot.e);
    batch.decoder.push_back(slot.d);
    batch.this_time.push_back(slot.n);
  }
  batch.num_padded_tokens = num_padded_tokens;
  return batch;
}

}  // namespace fwdmeta_test
