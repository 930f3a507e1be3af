// "a handle is a value looked up in a table (index, generation, type), never dereferenced by callers, so null, freed,
// foreign and wrong-type handles are always INVALID_HANDLE": every function that takes one, with each of these.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fwdmeta.h"
#include "harness.h"
#include "loaded_library.h"
#include "public_header.h"
#include "two_slots.h"

namespace fwdmeta_test {
namespace {

// The objects, one of a type, of one copy of the library. Not destroyed by itself.
struct Objects {
  std::map<std::string, uint64_t> of;
  fwdmeta_builder_t slice_builder = 0;
};

template <class Get>
Objects Create(const Get& get) {
#define THROUGH(function) get(&function, #function)
  static TwoSlots small;
  Objects made;
  EXPECT_EQ(FWDMETA_OK, THROUGH(fwdmeta_builder_create)(&small.config, &made.of["fwdmeta_builder_t"]));
  EXPECT_EQ(FWDMETA_OK,
            THROUGH(fwdmeta_build)(made.of["fwdmeta_builder_t"], &small.batch, &made.of["fwdmeta_meta_t"], nullptr));
  fwdmeta_dispatcher_config_t dispatcher = FWDMETA_DISPATCHER_CONFIG_INITIALIZER;
  dispatcher.max_num_seqs = dispatcher.max_num_tokens = 4;
  EXPECT_EQ(FWDMETA_OK, THROUGH(fwdmeta_dispatcher_create)(&dispatcher, &made.of["fwdmeta_dispatcher_t"]));
  fwdmeta_transport_config_t transport = FWDMETA_TRANSPORT_CONFIG_INITIALIZER;
  transport.num_ranks = 1;
  transport.gather = [](const void*, void*, size_t, int64_t, void*) -> fwdmeta_status_t { return FWDMETA_TIMEOUT; };
  EXPECT_EQ(FWDMETA_OK, THROUGH(fwdmeta_transport_create)(&transport, &made.of["fwdmeta_transport_t"]));
  EXPECT_EQ(FWDMETA_OK, THROUGH(fwdmeta_slicer_create)(&small.config, 1, &made.of["fwdmeta_slicer_t"]));
  EXPECT_EQ(FWDMETA_OK, THROUGH(fwdmeta_slicer_get_builder)(made.of["fwdmeta_slicer_t"], 0, &made.slice_builder));
  EXPECT_EQ(FWDMETA_OK, THROUGH(fwdmeta_layers_create)(&made.of["fwdmeta_layers_t"]));
  const fwdmeta_context_config_t context = FWDMETA_CONTEXT_CONFIG_INITIALIZER;
  EXPECT_EQ(FWDMETA_OK, THROUGH(fwdmeta_context_create)(&context, &made.of["fwdmeta_context_t"]));
  return made;
}

template <class Get>
void Destroy(Objects* objects, const Get& get) {
  EXPECT_EQ(FWDMETA_OK, THROUGH(fwdmeta_context_destroy)(objects->of["fwdmeta_context_t"]));
  EXPECT_EQ(FWDMETA_OK, THROUGH(fwdmeta_layers_destroy)(objects->of["fwdmeta_layers_t"]));
  EXPECT_EQ(FWDMETA_OK, THROUGH(fwdmeta_slicer_destroy)(objects->of["fwdmeta_slicer_t"]));
  EXPECT_EQ(FWDMETA_OK, THROUGH(fwdmeta_transport_destroy)(objects->of["fwdmeta_transport_t"]));
  EXPECT_EQ(FWDMETA_OK, THROUGH(fwdmeta_dispatcher_destroy)(objects->of["fwdmeta_dispatcher_t"]));
  EXPECT_EQ(FWDMETA_OK, THROUGH(fwdmeta_meta_destroy)(objects->of["fwdmeta_meta_t"]));
  EXPECT_EQ(FWDMETA_OK, THROUGH(fwdmeta_builder_destroy)(objects->of["fwdmeta_builder_t"]));
#undef THROUGH
}

// The library that the test is linked with.
constexpr auto kOwn = [](auto function, const char*) { return function; };

// Another copy of it.
class Copy {
 public:
  Copy() {
    const std::filesystem::path folder =
        std::filesystem::temp_directory_path() / ("fwdmeta_" + std::to_string(getpid()));
    std::filesystem::create_directory(folder);
    const std::filesystem::path path = folder / "libfwdmeta_copy.so";
    std::filesystem::copy_file(FWDMETA_LIBRARY, path, std::filesystem::copy_options::overwrite_existing);
    library_ = std::make_unique<Loaded>(path, RTLD_NOW | RTLD_LOCAL);
    std::filesystem::remove_all(folder);
  }
  template <class Function>
  Function operator()(Function, const char* name) const {
    return library_->Get<Function>(name);
  }

 private:
  std::unique_ptr<Loaded> library_;
};

// All other arguments are good, so that the handle alone can be what is refused. None of these is ever called with a
// handle that is good.
struct Row {
  const char* function;
  const char* type;
  bool null_is_ok;
  fwdmeta_status_t (*call)(uint64_t handle, const Objects& good);
};

TwoSlots* const two = new TwoSlots;
int32_t lengths[8];
int64_t number, sizes[4];
uint8_t padding[8];
void* unread;
const char* text;
const int64_t* borrowed_sizes;
const uint8_t* borrowed_padding;
fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
fwdmeta_dlpack_args_t dlpack = FWDMETA_DLPACK_ARGS_INITIALIZER;
fwdmeta_rank_row_t rank_row = {1, 1, 0, 0, FWDMETA_GRAPH_NONE, 1, 0, {}};
fwdmeta_agreement_t agreement = FWDMETA_AGREEMENT_INITIALIZER;
fwdmeta_batch_descriptor_t descriptor = {1, 1, 1, 0, 0};
fwdmeta_slice_t slice = {0, 1, 0, 1, 1, 0};
fwdmeta_attn_metadata_t attn = {nullptr, 0};
fwdmeta_graph_key_t keys[4];

int32_t Discard(const char*, size_t, void*) { return 0; }

#define ROW(function, type, ...)                                                                 \
  {                                                                                              \
#function, #type, false,                                                                       \
        [](uint64_t h, const Objects& good) -> fwdmeta_status_t {                                  \
          (void)good;                                                                              \
          return function(__VA_ARGS__);                                                            \
        } \
  }
#define NULL_OK(function, type, ...)                                                                             \
  {                                                                                                              \
#function, #type, true, [](uint64_t h, const Objects&) -> fwdmeta_status_t { return function(__VA_ARGS__); } \
  }

const std::vector<Row>& Rows() {
  static const std::vector<Row> rows = {
      NULL_OK(fwdmeta_builder_destroy, fwdmeta_builder_t, h),
      ROW(fwdmeta_builder_get_info, fwdmeta_builder_t, h,
          [] {
            static fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
            return &info;
          }()),
      ROW(fwdmeta_builder_reset, fwdmeta_builder_t, h, nullptr),
      ROW(fwdmeta_build, fwdmeta_builder_t, h, &two->batch, nullptr, &number),
      ROW(fwdmeta_counts_wait, fwdmeta_builder_t, h, 1, 0, 0, &counts),
      ROW(fwdmeta_replay_wait, fwdmeta_builder_t, h, 1, 0, 0, &counts),
      ROW(fwdmeta_advance, fwdmeta_builder_t, h,
          [] {
            static fwdmeta_advance_args_t args = FWDMETA_ADVANCE_ARGS_INITIALIZER;
            return &args;
          }()),
      ROW(fwdmeta_advance_wait, fwdmeta_builder_t, h, 0, 0, nullptr),
      ROW(fwdmeta_builder_set_tensor, fwdmeta_builder_t, h, "name", &tensor),
      NULL_OK(fwdmeta_meta_destroy, fwdmeta_meta_t, h),
      ROW(fwdmeta_meta_get, fwdmeta_meta_t, h, "position_ids", &tensor),
      ROW(fwdmeta_meta_get_field, fwdmeta_meta_t, h, FWDMETA_FIELD_POSITION_IDS, 0, &tensor),
      ROW(fwdmeta_meta_set_tensor, fwdmeta_meta_t, h, "name", &tensor),
      ROW(fwdmeta_meta_wait, fwdmeta_meta_t, h, 0, 0, &counts),
      ROW(fwdmeta_meta_get_attr, fwdmeta_meta_t, h, FWDMETA_ATTR_STEP, &number),
      ROW(fwdmeta_meta_set_attr, fwdmeta_meta_t, h, FWDMETA_ATTR_MOE_NUM_CHUNK, 1),
      ROW(fwdmeta_meta_set_attn_backend, fwdmeta_meta_t, h, "name", nullptr),
      ROW(fwdmeta_meta_get_attn_backend, fwdmeta_meta_t, h, &text, nullptr),
      ROW(fwdmeta_meta_reader_begin, fwdmeta_meta_t, h, nullptr),
      ROW(fwdmeta_meta_reader_end, fwdmeta_meta_t, h, nullptr),
      ROW(fwdmeta_meta_dlpack_device, fwdmeta_meta_t, h, &dlpack, nullptr, nullptr),
      ROW(fwdmeta_meta_to_dlpack, fwdmeta_meta_t, h, &dlpack, -1, reinterpret_cast<DLManagedTensor**>(&unread)),
      ROW(fwdmeta_meta_to_dlpack_versioned, fwdmeta_meta_t, h, &dlpack, -1,
          reinterpret_cast<DLManagedTensorVersioned**>(&unread)),
      ROW(fwdmeta_meta_to_dlpack_no_sync, fwdmeta_meta_t, h, &dlpack, reinterpret_cast<DLManagedTensor**>(&unread)),
      ROW(fwdmeta_meta_to_dlpack_versioned_no_sync, fwdmeta_meta_t, h, &dlpack,
          reinterpret_cast<DLManagedTensorVersioned**>(&unread)),
      ROW(fwdmeta_meta_dump, fwdmeta_meta_t, h, FWDMETA_DUMP_JSON, Discard, nullptr),
      ROW(fwdmeta_device_view_v1, fwdmeta_meta_t, h,
          [] {
            static fwdmeta_device_view_v1_t view;
            return &view;
          }()),
      NULL_OK(fwdmeta_dispatcher_destroy, fwdmeta_dispatcher_t, h),
      ROW(fwdmeta_dispatcher_get_info, fwdmeta_dispatcher_t, h,
          [] {
            static fwdmeta_dispatcher_info_t info = FWDMETA_DISPATCHER_INFO_INITIALIZER;
            return &info;
          }()),
      ROW(fwdmeta_dispatcher_get_sizes, fwdmeta_dispatcher_t, h, sizes, 4, &number),
      ROW(fwdmeta_dispatcher_get_keys, fwdmeta_dispatcher_t, h, keys, 4, &number),
      ROW(fwdmeta_dispatcher_mark_captured, fwdmeta_dispatcher_t, h, nullptr),
      ROW(
          fwdmeta_dispatch, fwdmeta_dispatcher_t, h,
          [] {
            static fwdmeta_dispatch_args_t args = FWDMETA_DISPATCH_ARGS_INITIALIZER;
            return &args;
          }(),
          [] {
            static fwdmeta_dispatch_result_t result = FWDMETA_DISPATCH_RESULT_INITIALIZER;
            return &result;
          }()),
      ROW(fwdmeta_agree, fwdmeta_dispatcher_t, h, &rank_row, 1, 1, &number, &agreement),
      ROW(fwdmeta_agree_through, fwdmeta_dispatcher_t, good.of.at("fwdmeta_transport_t"), h, &rank_row, 1, -1, &number,
          &agreement),
      ROW(fwdmeta_agree_through, fwdmeta_transport_t, h, good.of.at("fwdmeta_dispatcher_t"), &rank_row, 1, -1, &number,
          &agreement),
      NULL_OK(fwdmeta_transport_destroy, fwdmeta_transport_t, h),
      NULL_OK(fwdmeta_slicer_destroy, fwdmeta_slicer_t, h),
      ROW(fwdmeta_slicer_get_builder, fwdmeta_slicer_t, h, 0, reinterpret_cast<fwdmeta_builder_t*>(&number)),
      ROW(fwdmeta_build_slices, fwdmeta_slicer_t, h, &two->batch, 1, FWDMETA_DEFAULT, nullptr),
      NULL_OK(fwdmeta_layers_destroy, fwdmeta_layers_t, h),
      ROW(fwdmeta_layers_add, fwdmeta_layers_t, h, "name", nullptr, 0, &number),
      ROW(fwdmeta_layers_find, fwdmeta_layers_t, h, "name", &number),
      ROW(fwdmeta_layers_get, fwdmeta_layers_t, h, 0, &text, nullptr),
      ROW(fwdmeta_layers_count, fwdmeta_layers_t, h, &number, nullptr),
      NULL_OK(fwdmeta_context_destroy, fwdmeta_context_t, h),
      ROW(fwdmeta_context_reset, fwdmeta_context_t, h),
      ROW(fwdmeta_context_set_attn_metadata, fwdmeta_context_t, h, FWDMETA_ALL_LAYERS, 0, &attn),
      ROW(fwdmeta_context_get_attn_metadata, fwdmeta_context_t, h, FWDMETA_ALL_LAYERS, 0, &attn),
      ROW(fwdmeta_context_set_slot_mapping, fwdmeta_context_t, h, FWDMETA_ALL_LAYERS, 0, sizes, 4),
      ROW(fwdmeta_context_get_slot_mapping, fwdmeta_context_t, h, FWDMETA_ALL_LAYERS, 0, &borrowed_sizes, &number),
      ROW(fwdmeta_context_set_dp_metadata, fwdmeta_context_t, h,
          [] {
            static fwdmeta_dp_metadata_t dp = {sizeof(fwdmeta_dp_metadata_t), 4, 0, 0, 0, sizes};
            return &dp;
          }()),
      ROW(fwdmeta_context_get_dp_metadata, fwdmeta_context_t, h,
          [] {
            static fwdmeta_dp_metadata_t dp = FWDMETA_DP_METADATA_INITIALIZER;
            return &dp;
          }()),
      ROW(fwdmeta_context_set_runtime_mode, fwdmeta_context_t, h, FWDMETA_GRAPH_FULL),
      ROW(fwdmeta_context_get_runtime_mode, fwdmeta_context_t, h, &descriptor.num_reqs),
      ROW(fwdmeta_context_set_descriptor, fwdmeta_context_t, h, &descriptor),
      ROW(fwdmeta_context_get_descriptor, fwdmeta_context_t, h, &descriptor),
      ROW(fwdmeta_context_set_slices, fwdmeta_context_t, h, &slice, 1),
      ROW(fwdmeta_context_get_slices, fwdmeta_context_t, h, &slice, 1, &number),
      ROW(fwdmeta_context_set_is_padding, fwdmeta_context_t, h, padding, 8),
      ROW(fwdmeta_context_get_is_padding, fwdmeta_context_t, h, &borrowed_padding, &number),
      ROW(fwdmeta_context_set_skip_compiled, fwdmeta_context_t, h, 1),
      ROW(fwdmeta_context_get_skip_compiled, fwdmeta_context_t, h, lengths),
      ROW(fwdmeta_context_set_pointer, fwdmeta_context_t, h, "name", nullptr),
      ROW(fwdmeta_context_set_int64, fwdmeta_context_t, h, "name", 1),
      ROW(fwdmeta_context_set_double, fwdmeta_context_t, h, "name", 1.0),
      ROW(fwdmeta_context_get_pointer, fwdmeta_context_t, h, "name", &unread),
      ROW(fwdmeta_context_get_int64, fwdmeta_context_t, h, "name", &number),
      ROW(fwdmeta_context_get_double, fwdmeta_context_t, h, "name",
          [] {
            static double value;
            return &value;
          }()),
      ROW(fwdmeta_context_find_layer, fwdmeta_context_t, h, "name", &number),
      ROW(fwdmeta_context_get_layer, fwdmeta_context_t, h, 0, &text, nullptr),
      ROW(fwdmeta_context_push, fwdmeta_context_t, h),
      ROW(fwdmeta_context_pop, fwdmeta_context_t, h),
      NULL_OK(fwdmeta_context_override, fwdmeta_context_t, h, nullptr),
      ROW(fwdmeta_context_next_moe_layer, fwdmeta_context_t, h, &number),
      ROW(fwdmeta_context_push_local_sizes, fwdmeta_context_t, h, sizes, 1),
      ROW(fwdmeta_context_pop_local_sizes, fwdmeta_context_t, h),
      ROW(fwdmeta_context_get_local_sizes, fwdmeta_context_t, h, &borrowed_sizes, &number),
  };
  return rows;
}

// The one handle that is part of a struct and used by the call; 0 stands for no layers there.
fwdmeta_status_t ContextOfLayers(uint64_t h, const Objects&) {
  fwdmeta_context_config_t config = FWDMETA_CONTEXT_CONFIG_INITIALIZER;
  config.layers = h;
  fwdmeta_context_t context = 0;
  const fwdmeta_status_t status = fwdmeta_context_create(&config, &context);
  EXPECT_EQ(FWDMETA_OK, fwdmeta_context_destroy(context));
  return status;
}

class AbiHandles : public ::testing::Test {
 protected:
  void SetUp() override { good_ = Create(kOwn); }
  void TearDown() override { Destroy(&good_, kOwn); }

  // Every function, with the handle that `pick` has for its type.
  template <class Pick>
  void ExpectInvalid(const std::string& what, Pick pick) {
    const auto expect = [&](const Row& row) {
      const uint64_t handle = pick(std::string(row.type));
      EXPECT_EQ(Name(FWDMETA_INVALID_HANDLE), Name(row.call(handle, good_))) << row.function << ", " << what;
      char number_in_text[32];
      snprintf(number_in_text, sizeof number_in_text, "0x%llx", static_cast<unsigned long long>(handle));
      EXPECT_NE(std::string::npos, std::string(fwdmeta_last_error()).find(number_in_text))
          << row.function << ", " << what << ": " << fwdmeta_last_error();
    };
    for (const Row& row : Rows()) expect(row);
    expect({"fwdmeta_context_create", "fwdmeta_layers_t", true, ContextOfLayers});
  }

  Objects good_;
};

TEST_F(AbiHandles, TheTableHasEveryFunctionThatTakesOne) {
  std::multiset<std::string> rows;
  for (const Row& row : Rows()) rows.insert(std::string(row.function) + " " + row.type);
  EXPECT_EQ(
      "",
      Difference(ParametersLike("(fwdmeta_(?:builder|meta|dispatcher|transport|slicer|layers|context)_t) \\w+"), rows));
}

TEST_F(AbiHandles, Null) {
  for (const Row& row : Rows()) {
    EXPECT_EQ(Name(row.null_is_ok ? FWDMETA_OK : FWDMETA_INVALID_HANDLE), Name(row.call(0, good_))) << row.function;
  }
}

TEST_F(AbiHandles, Freed) {
  Objects freed = Create(kOwn);
  Destroy(&freed, kOwn);
  ExpectInvalid("freed", [&](const std::string& type) { return freed.of.at(type); });
  // The entries are taken again, by handles that are others.
  Objects next = Create(kOwn);
  for (const auto& [type, handle] : next.of) EXPECT_NE(freed.of.at(type), handle) << type;
  ExpectInvalid("freed and its place taken", [&](const std::string& type) { return freed.of.at(type); });
  Destroy(&next, kOwn);
}

TEST_F(AbiHandles, ABuilderOfAnEndedSlicer) {
  Objects ended = Create(kOwn);
  Destroy(&ended, kOwn);
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_builder_reset(ended.slice_builder, nullptr));
}

TEST_F(AbiHandles, OfAnotherType) {
  for (const auto& entry : good_.of) {
    const std::string other = entry.first;
    ExpectInvalid(other, [&](const std::string& type) { return type == other ? uint64_t{12345} : good_.of.at(other); });
  }
}

TEST_F(AbiHandles, OfAnotherCopyOfTheLibrary) {
  const Copy copy;
  // Often enough that both would give out the same number, if both counted from the same one.
  for (int round = 0; round < 64; ++round) {
    Objects foreign = Create(copy);
    ExpectInvalid("foreign", [&](const std::string& type) { return foreign.of.at(type); });
    EXPECT_EQ(FWDMETA_INVALID_HANDLE,
              copy(&fwdmeta_builder_reset, "fwdmeta_builder_reset")(good_.of.at("fwdmeta_builder_t"), nullptr));
    EXPECT_EQ(FWDMETA_INVALID_HANDLE,
              copy(&fwdmeta_meta_wait, "fwdmeta_meta_wait")(good_.of.at("fwdmeta_meta_t"), 0, 0, nullptr));
    Destroy(&foreign, copy);
  }
}

TEST_F(AbiHandles, NumbersThatWereNeverHandles) {
  const auto changed = [&](uint64_t bits) {
    return [this, bits](const std::string& type) { return good_.of.at(type) ^ bits; };
  };
  for (const int bit : {19, 20, 21, 40, 59, 60, 61, 62, 63}) {
    ExpectInvalid("bit " + std::to_string(bit) + " changed", changed(uint64_t{1} << bit));
  }
  const int object = 0;
  for (const uint64_t value : {uint64_t{1}, UINT64_MAX, uint64_t{0xfffff}, reinterpret_cast<uint64_t>(&object)}) {
    ExpectInvalid(std::to_string(value), [value](const std::string&) { return value; });
  }
}

}  // namespace
}  // namespace fwdmeta_test
