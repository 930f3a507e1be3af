// "input structs by pointer, struct_size first, an unknown non-zero tail refused; output structs get struct_size in and
// only the first min(caller, library) bytes written": every struct of every function, cut at each of its fields as an
// older caller's and grown as a later one's.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "fwdmeta.h"
#include "harness.h"
#include "public_header.h"
#include "two_slots.h"

namespace fwdmeta_test {
namespace {

constexpr size_t kMoreFields = 64;  // bytes that a later version has added
constexpr unsigned char kPoison = 0xa5;

// Sizes that an older version's struct may have had: wherever a field begins, but for struct_size itself, and the
// whole.
const std::vector<size_t>& Boundaries(const std::string& type) {
  static const std::map<std::string, std::vector<size_t>> boundaries = [] {
    std::map<std::string, std::vector<size_t>> made;
#define STRUCT(name, size)
#define FIELD(type, name, offset, size) \
  if (offset > 0) made[#type].push_back(offset);
#define FUNCTION(name)
#define TYPE(name, integer)
#define CONSTANT(name, value)
#include "abi_golden.inc"
#undef STRUCT
#undef FIELD
#undef FUNCTION
#undef TYPE
#undef CONSTANT
    return made;
  }();
  return boundaries.at(type);
}

// Memory for a struct of `size` bytes at the end of a page; the next one cannot be read or written.
class AtTheEnd {
 public:
  explicit AtTheEnd(size_t size) : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    pages_ = static_cast<unsigned char*>(
        mmap(nullptr, 2 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(MAP_FAILED, static_cast<void*>(pages_));
    EXPECT_EQ(0, mprotect(pages_ + page_, page_, PROT_NONE));
    std::memset(pages_, kPoison, page_);
    data_ = pages_ + page_ - (size + 7) / 8 * 8;  // the struct's alignment, so up to 4 bytes before the end
  }
  ~AtTheEnd() { munmap(pages_, 2 * page_); }
  AtTheEnd(const AtTheEnd&) = delete;
  AtTheEnd& operator=(const AtTheEnd&) = delete;
  unsigned char* data() const { return data_; }

 private:
  const size_t page_;
  unsigned char *pages_, *data_;
};

using Bytes = std::vector<unsigned char>;

void SetSize(void* bytes, uint64_t size) { std::memcpy(bytes, &size, sizeof size); }

template <class T>
Bytes BytesOf(const T& value) {
  Bytes bytes(sizeof(T));
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

std::string Hex(const void* data, size_t size) {
  std::string text;
  for (size_t i = 0; i < size; ++i) {
    char byte[4];
    snprintf(byte, sizeof byte, "%02x", static_cast<const unsigned char*>(data)[i]);
    text += byte;
  }
  return text;
}

// The status of a call, its message where it failed, and what came of it where not.
std::string Outcome(fwdmeta_status_t status, const std::string& result = "") {
  return Name(status) + ": " + (status == FWDMETA_OK ? result : fwdmeta_last_error());
}

// What the calls are made with: a step on the host backend, and one of each object.
struct World {
  World() {
    EXPECT_OK(fwdmeta_builder_create(&two.config, &builder));
    EXPECT_OK(fwdmeta_build(builder, &two.batch, &meta, &step));
    fwdmeta_dispatcher_config_t config = FWDMETA_DISPATCHER_CONFIG_INITIALIZER;
    config.mode = FWDMETA_GRAPH_FULL_AND_PIECEWISE;
    config.max_num_seqs = config.max_num_tokens = 8;
    EXPECT_OK(fwdmeta_dispatcher_create(&config, &dispatcher));
    EXPECT_OK(fwdmeta_dispatcher_mark_captured(dispatcher, nullptr));
    fwdmeta_transport_config_t ranks = FWDMETA_TRANSPORT_CONFIG_INITIALIZER;
    ranks.num_ranks = 1;
    ranks.gather = Gather;
    EXPECT_OK(fwdmeta_transport_create(&ranks, &transport));
    EXPECT_OK(fwdmeta_slicer_create(&two.config, 2, &slicer));
    const fwdmeta_context_config_t plain = FWDMETA_CONTEXT_CONFIG_INITIALIZER;
    EXPECT_OK(fwdmeta_context_create(&plain, &context));
    const fwdmeta_dp_metadata_t dp = {sizeof dp, 2, 1, 6, 10, table};
    EXPECT_OK(fwdmeta_context_set_dp_metadata(context, &dp));
    int32_t lengths[3][2] = {{0, 0}, {3, 4}, {1, 1}};
    fwdmeta_advance_args_t advance = FWDMETA_ADVANCE_ARGS_INITIALIZER;
    advance.batch_size = 2;
    advance.seq_lens_encoder = lengths[0];
    advance.seq_lens_decoder = lengths[1];
    advance.seq_lens_this_time = lengths[2];
    EXPECT_OK(fwdmeta_advance(builder, &advance));
    row.config = Info(dispatcher).config_hash;
  }
  ~World() {
    EXPECT_OK(fwdmeta_context_destroy(context));
    EXPECT_OK(fwdmeta_slicer_destroy(slicer));
    EXPECT_OK(fwdmeta_transport_destroy(transport));
    EXPECT_OK(fwdmeta_dispatcher_destroy(dispatcher));
    EXPECT_OK(fwdmeta_meta_destroy(meta));
    EXPECT_OK(fwdmeta_builder_destroy(builder));
  }
  static fwdmeta_dispatcher_info_t Info(fwdmeta_dispatcher_t dispatcher) {
    fwdmeta_dispatcher_info_t info = FWDMETA_DISPATCHER_INFO_INITIALIZER;
    EXPECT_OK(fwdmeta_dispatcher_get_info(dispatcher, &info));
    return info;
  }
  static fwdmeta_status_t Gather(const void* send, void* recv, size_t bytes, int64_t, void*) {
    std::memcpy(recv, send, bytes);
    return FWDMETA_OK;
  }

  TwoSlots two;
  int64_t step = 0;
  fwdmeta_builder_t builder = 0;
  fwdmeta_meta_t meta = 0;
  fwdmeta_dispatcher_t dispatcher = 0;
  fwdmeta_transport_t transport = 0;
  fwdmeta_slicer_t slicer = 0;
  fwdmeta_context_t context = 0;
  int64_t table[2] = {4, 6};
  fwdmeta_rank_row_t row = {3, 3, 0, 0, FWDMETA_GRAPH_FULL, 1, 0, {}};
  int32_t query_lens[2] = {2, 4}, seq_lens[2] = {11, 4}, pages[2][4] = {{0, 1, 2, 3}, {4, 5, 6, 7}};
};

// ---- what calls take

struct In {
  const char* function;
  const char* type;
  Bytes good, defaults;                          // a struct that is accepted with every field set, and the INITIALIZER
  std::function<std::string(const void*)> call;  // its outcome
};

// The counts of a step and an array of it, and its end.
std::string StepText(fwdmeta_meta_t meta) {
  fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
  const fwdmeta_status_t status = fwdmeta_meta_wait(meta, FWDMETA_WAIT_FINAL, -1, &counts);
  counts.step = 0;
  EXPECT_OK(fwdmeta_meta_destroy(meta));
  return Name(status) + Hex(&counts, sizeof counts);
}

std::string BuilderText(fwdmeta_builder_t builder) {
  fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
  EXPECT_OK(fwdmeta_builder_get_info(builder, &info));
  info.advance_counts = nullptr;
  return Hex(&info, sizeof info);
}

template <class Managed, class Function, class... Stream>
std::string DlpackText(Function function, fwdmeta_meta_t meta, const void* args, Stream... stream) {
  // Of both structs the tensor's deleter stands where DLPack has it; dlpack_test reads them whole.
  void* managed = nullptr;
  const fwdmeta_status_t status =
      function(meta, static_cast<const fwdmeta_dlpack_args_t*>(args), stream..., reinterpret_cast<Managed**>(&managed));
  if (status == FWDMETA_OK) {
    constexpr bool kVersioned = std::is_same<Managed, DLManagedTensorVersioned>::value;
    void (*deleter)(void*);
    std::memcpy(&deleter, static_cast<char*>(managed) + (kVersioned ? 16 : 56), sizeof deleter);
    deleter(managed);
  }
  return Outcome(status);
}

template <class T>
void Add(std::vector<In>* rows, const char* function, const char* type, const T& good, const T& defaults,
         std::function<fwdmeta_status_t(const T*, std::string*)> call) {
  rows->push_back({function, type, BytesOf(good), BytesOf(defaults), [call](const void* bytes) {
                     std::string result;
                     const fwdmeta_status_t status = call(static_cast<const T*>(bytes), &result);
                     return Outcome(status, result);
                   }});
}

std::vector<In> Ins(World* world) {
  World& w = *world;
  std::vector<In> rows;
#define IN(function, type, INITIALIZER, good, ...)                                                                     \
  do {                                                                                                                 \
    const type defaults = INITIALIZER;                                                                                 \
    Add<type>(&rows, #function, #type, good, defaults, [&w](const type* in, std::string* result) -> fwdmeta_status_t { \
      (void)result;                                                                                                    \
      __VA_ARGS__                                                                                                      \
    });                                                                                                                \
  } while (false)

  fwdmeta_config_t config = w.two.config;
  config.num_sms = 8;
  config.max_num_kv_tokens = 100;
  config.kernel_block_size = 32;
  config.pad_token_id = 3;
  config.pad_seq_len = 1;
  config.cp_size = 2;
  config.cp_rank = 1;
  config.cp_interleave = 2;
  config.generations = 2;
  config.depth = 8;
  config.max_metas = 2;
  IN(fwdmeta_get_capacities, fwdmeta_config_t, FWDMETA_CONFIG_INITIALIZER, config, {
    fwdmeta_capacities_t out = FWDMETA_CAPACITIES_INITIALIZER;
    const fwdmeta_status_t status = fwdmeta_get_capacities(in, nullptr, &out);
    *result = Hex(&out, sizeof out);
    return status;
  });
  IN(fwdmeta_builder_create, fwdmeta_config_t, FWDMETA_CONFIG_INITIALIZER, config, {
    fwdmeta_builder_t builder = 0;
    const fwdmeta_status_t status = fwdmeta_builder_create(in, &builder);
    if (status == FWDMETA_OK) *result = BuilderText(builder);
    EXPECT_OK(fwdmeta_builder_destroy(builder));
    return status;
  });
  IN(fwdmeta_slicer_create, fwdmeta_config_t, FWDMETA_CONFIG_INITIALIZER, config, {
    fwdmeta_slicer_t slicer = 0;
    fwdmeta_builder_t builder = 0;
    const fwdmeta_status_t status = fwdmeta_slicer_create(in, 2, &slicer);
    if (status == FWDMETA_OK && fwdmeta_slicer_get_builder(slicer, 1, &builder) == FWDMETA_OK) {
      *result = BuilderText(builder);
    }
    EXPECT_OK(fwdmeta_slicer_destroy(slicer));
    return status;
  });
  fwdmeta_capacity_query_t query = {sizeof query, 1, 2, 8};
  IN(fwdmeta_get_capacities, fwdmeta_capacity_query_t, FWDMETA_CAPACITY_QUERY_INITIALIZER, query, {
    fwdmeta_capacities_t out = FWDMETA_CAPACITIES_INITIALIZER;
    const fwdmeta_status_t status = fwdmeta_get_capacities(&w.two.config, in, &out);
    *result = Hex(&out, sizeof out);
    return status;
  });

  static int64_t ids[8];
  static const fwdmeta_rows_t table = {w.pages, 4, 4, nullptr};
  fwdmeta_batch_t batch = w.two.batch;
  batch.flags = FWDMETA_BUILD_NO_WAIT;
  batch.num_padded_tokens = 7;
  batch.num_block_tables = 1;
  batch.block_tables = &table;
  batch.input_ids = batch.draft_tokens = {ids, 4, 4, nullptr};
  batch.generation = 0;
  IN(fwdmeta_build, fwdmeta_batch_t, FWDMETA_BATCH_INITIALIZER, batch, {
    fwdmeta_meta_t meta = 0;
    const fwdmeta_status_t status = fwdmeta_build(w.builder, in, &meta, nullptr);
    if (status == FWDMETA_OK) *result = StepText(meta);
    return status;
  });
  IN(fwdmeta_build_slices, fwdmeta_batch_t, FWDMETA_BATCH_INITIALIZER, batch, {
    fwdmeta_meta_t metas[2] = {};
    const fwdmeta_status_t status = fwdmeta_build_slices(w.slicer, in, 2, 3, metas);
    if (status == FWDMETA_OK) *result = StepText(metas[0]) + StepText(metas[1]);
    return status;
  });

  static int32_t lengths[3][2];
  static const int32_t rejected[2] = {1, 0}, prompts[2] = {0, 9};
  static const uint8_t stop[2] = {0, 1};
  const fwdmeta_advance_args_t advance = {sizeof advance, 2,    lengths[0], lengths[1], lengths[2],
                                          rejected,       stop, prompts,    3,          nullptr};
  IN(fwdmeta_advance, fwdmeta_advance_args_t, FWDMETA_ADVANCE_ARGS_INITIALIZER, advance, {
    const int32_t before[3][2] = {{0, 4}, {9, 2}, {3, 4}};
    std::memcpy(lengths, before, sizeof before);
    const fwdmeta_status_t status = fwdmeta_advance(w.builder, in);
    *result = Hex(lengths, sizeof lengths);
    return status;
  });

  static int32_t data[6];
  const fwdmeta_tensor_t tensor = {sizeof tensor, data,  FWDMETA_MEMORY_HOST, -1, FWDMETA_DTYPE_UINT, 16, 2, 2,
                                   {3, 2},        {2, 1}};
  IN(fwdmeta_builder_set_tensor, fwdmeta_tensor_t, FWDMETA_TENSOR_INITIALIZER, tensor, {
    const fwdmeta_status_t status = fwdmeta_builder_set_tensor(w.builder, "builders", in);
    fwdmeta_tensor_t read = FWDMETA_TENSOR_INITIALIZER;
    if (status == FWDMETA_OK) {
      EXPECT_OK(fwdmeta_meta_get(w.meta, "builders", &read));
    }
    *result = Hex(&read, sizeof read);
    return status;
  });
  IN(fwdmeta_meta_set_tensor, fwdmeta_tensor_t, FWDMETA_TENSOR_INITIALIZER, tensor, {
    const fwdmeta_status_t status = fwdmeta_meta_set_tensor(w.meta, "metas", in);
    fwdmeta_tensor_t read = FWDMETA_TENSOR_INITIALIZER;
    if (status == FWDMETA_OK) {
      EXPECT_OK(fwdmeta_meta_get(w.meta, "metas", &read));
    }
    *result = Hex(&read, sizeof read);
    return status;
  });

  const fwdmeta_dlpack_args_t dlpack = {sizeof dlpack, FWDMETA_FIELD_SLOT_MAPPING, 0, FWDMETA_DLPACK_LIVE,
                                        FWDMETA_DLPACK_CPU};
  IN(fwdmeta_meta_dlpack_device, fwdmeta_dlpack_args_t, FWDMETA_DLPACK_ARGS_INITIALIZER, dlpack, {
    int32_t device[2] = {};
    const fwdmeta_status_t status = fwdmeta_meta_dlpack_device(w.meta, in, &device[0], &device[1]);
    *result = Hex(device, sizeof device);
    return status;
  });
#define DLPACK(function, Managed, ...)                                                                        \
  do {                                                                                                        \
    const fwdmeta_dlpack_args_t defaults = FWDMETA_DLPACK_ARGS_INITIALIZER;                                   \
    rows.push_back({#function, "fwdmeta_dlpack_args_t", BytesOf(dlpack), BytesOf(defaults),                   \
                    [&w](const void* in) { return DlpackText<Managed>(function, w.meta, in __VA_ARGS__); }}); \
  } while (false)
  DLPACK(fwdmeta_meta_to_dlpack, DLManagedTensor, , int64_t{-1});
  DLPACK(fwdmeta_meta_to_dlpack_versioned, DLManagedTensorVersioned, , int64_t{-1});
  DLPACK(fwdmeta_meta_to_dlpack_no_sync, DLManagedTensor);
  DLPACK(fwdmeta_meta_to_dlpack_versioned_no_sync, DLManagedTensorVersioned);
#undef DLPACK

  static const int64_t capture_sizes[3] = {1, 2, 4}, query_lens[2] = {1, 2};
  const fwdmeta_dispatcher_config_t dispatcher = {sizeof dispatcher,
                                                  FWDMETA_VERSION,
                                                  FWDMETA_GRAPH_FULL_AND_PIECEWISE,
                                                  FWDMETA_SUPPORT_UNIFORM_BATCH,
                                                  1,
                                                  4,
                                                  8,
                                                  capture_sizes,
                                                  3,
                                                  4,
                                                  query_lens,
                                                  2,
                                                  4,
                                                  2,
                                                  1,
                                                  1};
  IN(fwdmeta_dispatcher_create, fwdmeta_dispatcher_config_t, FWDMETA_DISPATCHER_CONFIG_INITIALIZER, dispatcher, {
    (void)w;
    fwdmeta_dispatcher_t made = 0;
    const fwdmeta_status_t status = fwdmeta_dispatcher_create(in, &made);
    if (status == FWDMETA_OK) {
      const fwdmeta_dispatcher_info_t info = World::Info(made);
      *result = Hex(&info, sizeof info);
    }
    EXPECT_OK(fwdmeta_dispatcher_destroy(made));
    return status;
  });
  const fwdmeta_dispatch_args_t dispatch = {sizeof dispatch, 3, 3, 1, 0, FWDMETA_ALLOW_FULL, 0};
  IN(fwdmeta_dispatch, fwdmeta_dispatch_args_t, FWDMETA_DISPATCH_ARGS_INITIALIZER, dispatch, {
    fwdmeta_dispatch_result_t out = FWDMETA_DISPATCH_RESULT_INITIALIZER;
    const fwdmeta_status_t status = fwdmeta_dispatch(w.dispatcher, in, &out);
    *result = Hex(&out, sizeof out);
    return status;
  });
  static struct {
    int32_t e[4], d[4], n[4];
    int64_t slots[8];
    uint8_t padding[8];
  } dummy_arrays;
  const fwdmeta_dummy_batch_t dummy = {
      sizeof dummy, 2, 5, 3, dummy_arrays.e, dummy_arrays.d, dummy_arrays.n, dummy_arrays.slots, dummy_arrays.padding};
  IN(fwdmeta_make_dummy, fwdmeta_dummy_batch_t, FWDMETA_DUMMY_BATCH_INITIALIZER, dummy, {
    (void)w;
    std::memset(&dummy_arrays, kPoison, sizeof dummy_arrays);
    const fwdmeta_status_t status = fwdmeta_make_dummy(in);
    *result = Hex(&dummy_arrays, sizeof dummy_arrays);
    return status;
  });

  const fwdmeta_dp_metadata_args_t dp_args = {sizeof dp_args, 2, 1, 6, w.table, 1, 1};
  IN(fwdmeta_dp_metadata_make, fwdmeta_dp_metadata_args_t, FWDMETA_DP_METADATA_ARGS_INITIALIZER, dp_args, {
    (void)w;
    fwdmeta_dp_metadata_t out = FWDMETA_DP_METADATA_INITIALIZER;
    const fwdmeta_status_t status = fwdmeta_dp_metadata_make(in, &out);
    *result = Hex(&out, sizeof out);
    return status;
  });
  const fwdmeta_dp_metadata_t dp = {sizeof dp, 2, 1, 6, 10, w.table};
  IN(fwdmeta_context_set_dp_metadata, fwdmeta_dp_metadata_t, FWDMETA_DP_METADATA_INITIALIZER, dp, {
    fwdmeta_dp_metadata_t out = FWDMETA_DP_METADATA_INITIALIZER;
    const fwdmeta_status_t status = fwdmeta_context_set_dp_metadata(w.context, in);
    if (status == FWDMETA_OK) {
      EXPECT_OK(fwdmeta_context_get_dp_metadata(w.context, &out));
    }
    *result = Hex(&out, sizeof out);
    return status;
  });
  const fwdmeta_transport_config_t transport = {sizeof transport, 2, 1, World::Gather, &w, nullptr, nullptr, "/none"};
  IN(fwdmeta_transport_create, fwdmeta_transport_config_t, FWDMETA_TRANSPORT_CONFIG_INITIALIZER, transport, {
    (void)w;
    fwdmeta_transport_t made = 0;
    const fwdmeta_status_t status = fwdmeta_transport_create(in, &made);
    EXPECT_OK(fwdmeta_transport_destroy(made));
    return status;
  });
  const fwdmeta_context_config_t context = {sizeof context, FWDMETA_VERSION, 0, 0, 2, 1};
  IN(fwdmeta_context_create, fwdmeta_context_config_t, FWDMETA_CONTEXT_CONFIG_INITIALIZER, context, {
    (void)w;
    fwdmeta_context_t made = 0;
    const fwdmeta_status_t status = fwdmeta_context_create(in, &made);
    if (status == FWDMETA_OK) {
      const fwdmeta_attn_metadata_t none = {nullptr, 0};
      *result = Name(fwdmeta_context_set_attn_metadata(made, FWDMETA_ALL_LAYERS, 1, &none));
      EXPECT_OK(fwdmeta_context_set_int64(made, "first", 1));
      *result += Name(fwdmeta_context_set_int64(made, "second", 2));
    }
    EXPECT_OK(fwdmeta_context_destroy(made));
    return status;
  });

  const fwdmeta_slice_args_t slices = {sizeof slices, w.query_lens, w.seq_lens, 2, 8, 3, 2, 3};
  IN(fwdmeta_plan_slices, fwdmeta_slice_args_t, FWDMETA_SLICE_ARGS_INITIALIZER, slices, {
    (void)w;
    fwdmeta_slice_t out[FWDMETA_MAX_SLICES] = {};
    const fwdmeta_status_t status = fwdmeta_plan_slices(in, out);
    *result = Hex(out, sizeof out);
    return status;
  });
  static fwdmeta_slice_t plan[2];
  EXPECT_OK(fwdmeta_plan_slices(&slices, plan));
  IN(fwdmeta_slice_lengths, fwdmeta_slice_args_t, FWDMETA_SLICE_ARGS_INITIALIZER, slices, {
    (void)w;
    int32_t out[3][4] = {};
    const fwdmeta_status_t status = fwdmeta_slice_lengths(in, &plan[1], out[0], out[1], out[2]);
    *result = Hex(out, sizeof out);
    return status;
  });
  IN(fwdmeta_slices_conflict, fwdmeta_slice_args_t, FWDMETA_SLICE_ARGS_INITIALIZER, slices, {
    (void)w;
    fwdmeta_slice_conflict_t out = FWDMETA_SLICE_CONFLICT_INITIALIZER;
    const fwdmeta_status_t status = fwdmeta_slices_conflict(in, plan, &table, 4, &out);
    *result = Hex(&out, sizeof out);
    return status;
  });
  static const uint8_t is_prefilling[2] = {0, 1};
  const fwdmeta_length_split_args_t split = {sizeof split, w.query_lens, is_prefilling, 2, 8, 2, 1, 0};
  IN(fwdmeta_split_by_length, fwdmeta_length_split_args_t, FWDMETA_LENGTH_SPLIT_ARGS_INITIALIZER, split, {
    (void)w;
    fwdmeta_batch_split_t out = FWDMETA_BATCH_SPLIT_INITIALIZER;
    const fwdmeta_status_t status = fwdmeta_split_by_length(in, &out);
    *result = Hex(&out, sizeof out);
    return status;
  });
  const fwdmeta_local_attention_args_t local = {sizeof local, w.query_lens, w.seq_lens, 2, 4, 4, table};
  IN(fwdmeta_local_attention, fwdmeta_local_attention_args_t, FWDMETA_LOCAL_ATTENTION_ARGS_INITIALIZER, local, {
    (void)w;
    int32_t out[3][8] = {};
    int64_t count = 0;
    const fwdmeta_status_t status = fwdmeta_local_attention(in, 8, out[0], out[1], nullptr, out[2], &count);
    *result = Hex(out, sizeof out);
    return status;
  });
#undef IN
  return rows;
}

class AbiIn : public ::testing::Test {
 protected:
  World world_;
  const std::vector<In> rows_ = Ins(&world_);
};

TEST_F(AbiIn, TheTableHasEveryStructThatACallTakes) {
  std::multiset<std::string> rows;
  for (const In& row : rows_) rows.insert(std::string(row.function) + " " + row.type);
  std::multiset<std::string> declared;
  for (const std::string& parameter : ParametersLike("const (fwdmeta_\\w+_t) \\*\\w+")) {
    // Frozen structs, without a size, are not among them.
    const std::string type = parameter.substr(parameter.find(' ') + 1);
    if (PublicHeaders().find("sizeof(" + type + ")") != std::string::npos) declared.insert(parameter);
  }
  EXPECT_EQ("", Difference(declared, rows));
}

TEST_F(AbiIn, TheWholeStructIsAccepted) {
  for (const In& row : rows_) EXPECT_EQ("OK", row.call(row.good.data()).substr(0, 2)) << row.function << row.type;
}

TEST_F(AbiIn, AShorterOneIsCompletedWithDefaultsAndNotReadPastItsEnd) {
  for (const In& row : rows_) {
    for (const size_t size : Boundaries(row.type)) {
      Bytes completed = row.defaults;
      std::memcpy(completed.data() + 8, row.good.data() + 8, size - 8);
      const AtTheEnd shorter(size);
      std::memcpy(shorter.data(), row.good.data(), size);
      SetSize(shorter.data(), size);
      EXPECT_EQ(row.call(completed.data()), row.call(shorter.data()))
          << row.function << ", " << row.type << " of " << size << " bytes";
    }
  }
}

TEST_F(AbiIn, ALongerOneIsAcceptedWhileItsUnknownTailIsZero) {
  for (const In& row : rows_) {
    const std::string whole = row.call(row.good.data());
    const size_t size = row.good.size() + kMoreFields;
    const AtTheEnd longer(size);
    std::memset(longer.data(), 0, size);
    std::memcpy(longer.data(), row.good.data(), row.good.size());
    SetSize(longer.data(), size);
    EXPECT_EQ(whole, row.call(longer.data())) << row.function << ", " << row.type;
    for (const size_t set : {row.good.size(), size - 1}) {
      longer.data()[set] = 1;
      EXPECT_EQ("INVALID_ARGUMENT", row.call(longer.data()).substr(0, 16)) << row.function << ", " << row.type;
      EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {static_cast<int64_t>(size), static_cast<int64_t>(set)}))
          << row.function << ": " << fwdmeta_last_error();
      longer.data()[set] = 0;
    }
  }
}

TEST_F(AbiIn, ASizeThatCannotBeIsRefused) {
  for (const In& row : rows_) {
    Bytes bytes = row.good;
    for (const uint64_t size : {uint64_t{0}, uint64_t{7}, uint64_t{1} << 40, UINT64_MAX}) {
      SetSize(bytes.data(), size);
      EXPECT_EQ("INVALID_ARGUMENT", row.call(bytes.data()).substr(0, 16)) << row.function << " of " << size;
      EXPECT_NE(std::string::npos, std::string(fwdmeta_last_error()).find(std::to_string(size)))
          << row.function << ": " << fwdmeta_last_error();
    }
  }
}

// ---- what calls give

struct Out {
  const char* function;
  const char* type;
  size_t size;
  std::function<fwdmeta_status_t(void*)> call;
};

std::vector<Out> Outs(World* world) {
  World& w = *world;
  std::vector<Out> rows;
#define OUT(function, type, ...)                                                          \
  rows.push_back({#function, #type, sizeof(type), [&w](void* bytes) -> fwdmeta_status_t { \
                    (void)w;                                                              \
                    type* const out = static_cast<type*>(bytes);                          \
                    return function(__VA_ARGS__);                                         \
                  }})
  static const int32_t e[2] = {0, 4}, n[2] = {2, 4};
  static const fwdmeta_dispatch_args_t dispatch = {sizeof dispatch, 3, 3, 1, 0, FWDMETA_ALLOW_ALL, 0};
  static fwdmeta_slice_args_t slices = FWDMETA_SLICE_ARGS_INITIALIZER;
  slices.query_lens = w.query_lens, slices.seq_lens = w.seq_lens;
  slices.num_reqs = slices.num_slices = 2;
  static fwdmeta_slice_t plan[2];
  EXPECT_OK(fwdmeta_plan_slices(&slices, plan));
  static fwdmeta_rows_t table;
  table = {w.pages, 4, 4, nullptr};
  static fwdmeta_dp_metadata_args_t dp;
  dp = {sizeof dp, 2, 1, 6, w.table, 1, 1};
  static fwdmeta_length_split_args_t split = FWDMETA_LENGTH_SPLIT_ARGS_INITIALIZER;
  split.query_lens = w.query_lens;
  split.num_reqs = 2;
  static int64_t tokens;
  OUT(fwdmeta_get_capacities, fwdmeta_capacities_t, &w.two.config, nullptr, out);
  OUT(fwdmeta_builder_get_info, fwdmeta_builder_info_t, w.builder, out);
  OUT(fwdmeta_counts_wait, fwdmeta_counts_t, w.builder, w.step, FWDMETA_WAIT_FINAL, -1, out);
  OUT(fwdmeta_advance_wait, fwdmeta_advance_counts_t, w.builder, 0, -1, out);
  OUT(fwdmeta_meta_get, fwdmeta_tensor_t, w.meta, "position_ids", out);
  OUT(fwdmeta_meta_get_field, fwdmeta_tensor_t, w.meta, FWDMETA_FIELD_IS_PADDING, 0, out);
  OUT(fwdmeta_meta_wait, fwdmeta_counts_t, w.meta, FWDMETA_WAIT_FINAL, -1, out);
  OUT(fwdmeta_graph_mode_get_info, fwdmeta_graph_mode_info_t, FWDMETA_GRAPH_FULL_AND_PIECEWISE, out);
  OUT(fwdmeta_dispatcher_get_info, fwdmeta_dispatcher_info_t, w.dispatcher, out);
  OUT(fwdmeta_dispatch, fwdmeta_dispatch_result_t, w.dispatcher, &dispatch, out);
  OUT(fwdmeta_dp_metadata_make, fwdmeta_dp_metadata_t, &dp, out);
  OUT(fwdmeta_agree, fwdmeta_agreement_t, w.dispatcher, &w.row, 1, 1, &tokens, out);
  OUT(fwdmeta_agree_through, fwdmeta_agreement_t, w.transport, w.dispatcher, &w.row, 1, -1, &tokens, out);
  OUT(fwdmeta_slices_conflict, fwdmeta_slice_conflict_t, &slices, plan, &table, 4, out);
  OUT(fwdmeta_context_get_dp_metadata, fwdmeta_dp_metadata_t, w.context, out);
  OUT(fwdmeta_split_by_role, fwdmeta_batch_split_t, e, n, 2, out);
  OUT(fwdmeta_split_by_length, fwdmeta_batch_split_t, &split, out);
#undef OUT
  return rows;
}

class AbiOut : public ::testing::Test {
 protected:
  // What a caller gets whose struct has `size` bytes, and that nothing else has changed.
  Bytes Call(const Out& row, size_t size) {
    const AtTheEnd memory(size);
    SetSize(memory.data(), size);
    EXPECT_STATUS(FWDMETA_OK, row.call(memory.data())) << row.function << " of " << size << " bytes";
    uint64_t left;
    std::memcpy(&left, memory.data(), sizeof left);
    EXPECT_EQ(size, left) << row.function << ": the caller's struct_size stays";
    for (size_t i = size; i % 8 != 0; ++i) {
      EXPECT_EQ(kPoison, memory.data()[i]) << row.function << " of " << size << " bytes, at " << i;
    }
    return Bytes(memory.data(), memory.data() + size);
  }

  World world_;
  const std::vector<Out> rows_ = Outs(&world_);
};

TEST_F(AbiOut, TheTableHasEveryStructThatACallGives) {
  std::multiset<std::string> rows;
  for (const Out& row : rows_) rows.insert(std::string(row.function) + " " + row.type);
  std::multiset<std::string> declared;
  for (const std::string& parameter : ParametersLike("(fwdmeta_\\w+_t) \\*\\w+")) {
    const std::string type = parameter.substr(parameter.find(' ') + 1);
    if (PublicHeaders().find("sizeof(" + type + ")") != std::string::npos) declared.insert(parameter);
  }
  // A replay needs a device: ReplayCountsOfAShorterCaller of graph_test. Three fields of the arguments are filled in,
  // see ArgumentsFromLengths.
  rows.insert("fwdmeta_replay_wait fwdmeta_counts_t");
  rows.insert("fwdmeta_dispatch_args_from_lengths fwdmeta_dispatch_args_t");
  EXPECT_EQ("", Difference(declared, rows));
}

TEST_F(AbiOut, OnlyTheFirstBytesOfAShorterOneAreWritten) {
  for (const Out& row : rows_) {
    const Bytes whole = Call(row, row.size);
    bool written = false;
    for (size_t i = 8; i < row.size; ++i) written = written || whole[i] != kPoison;
    EXPECT_TRUE(written) << row.function;
    for (const size_t size : Boundaries(row.type)) {
      const Bytes part = Call(row, size);
      EXPECT_EQ(Bytes(whole.begin() + 8, whole.begin() + size), Bytes(part.begin() + 8, part.end()))
          << row.function << " of " << size << " bytes";
    }
  }
}

TEST_F(AbiOut, TheUnknownTailOfALongerOneIsLeftAlone) {
  for (const Out& row : rows_) {
    const Bytes whole = Call(row, row.size);
    const Bytes longer = Call(row, row.size + kMoreFields);
    EXPECT_EQ(Bytes(whole.begin() + 8, whole.end()), Bytes(longer.begin() + 8, longer.begin() + row.size))
        << row.function;
    EXPECT_EQ(Bytes(kMoreFields, kPoison), Bytes(longer.begin() + row.size, longer.end())) << row.function;
  }
}

TEST_F(AbiOut, ASizeBelowItselfIsRefusedAndNothingWritten) {
  std::vector<Out> rows = rows_;
  rows.push_back({"fwdmeta_replay_wait", "fwdmeta_counts_t", sizeof(fwdmeta_counts_t), [this](void* out) {
                    return fwdmeta_replay_wait(world_.builder, 0, 0, 0, static_cast<fwdmeta_counts_t*>(out));
                  }});
  for (const Out& row : rows) {
    for (const uint64_t size : {uint64_t{0}, uint64_t{7}}) {
      Bytes bytes(row.size, kPoison);
      SetSize(bytes.data(), size);
      const Bytes before = bytes;
      EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, row.call(bytes.data())) << row.function;
      EXPECT_EQ(before, bytes) << row.function;
    }
  }
}

// The one call that fills in a part of a struct of input.
TEST(AbiInOut, ArgumentsFromLengths) {
  const int32_t e[2] = {0, 0}, n[2] = {2, 2};
  for (const size_t size :
       {sizeof(fwdmeta_dispatch_args_t), sizeof(fwdmeta_dispatch_args_t) + kMoreFields,
        offsetof(fwdmeta_dispatch_args_t, num_active_loras), offsetof(fwdmeta_dispatch_args_t, query_len),
        offsetof(fwdmeta_dispatch_args_t, num_reqs), offsetof(fwdmeta_dispatch_args_t, num_tokens)}) {
    const AtTheEnd memory(size);
    SetSize(memory.data(), size);
    Bytes want(memory.data(), memory.data() + size);
    const int64_t filled[3] = {4, 2, 2};
    std::memcpy(want.data() + 8, filled, std::min(size - 8, sizeof filled));
    EXPECT_OK(
        fwdmeta_dispatch_args_from_lengths(e, n, 2, 2, reinterpret_cast<fwdmeta_dispatch_args_t*>(memory.data())));
    EXPECT_EQ(want, Bytes(memory.data(), memory.data() + size)) << size;
  }
}

}  // namespace
}  // namespace fwdmeta_test
