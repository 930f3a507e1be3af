// contract-context §6, sentence by sentence: layers, contents and their three kinds of absence, the stack, the cursor.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fwdmeta/fwdmeta.hpp>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

// Counts what this thread allocates, by operator new and, through glibc's symbols, by malloc itself.
namespace {
thread_local int64_t allocations = 0;
}
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FWDMETA_TEST_MALLOC 0  // the sanitizer's own stand in their place
#else
#define FWDMETA_TEST_MALLOC 1
extern "C" void* __libc_malloc(size_t);
extern "C" void* __libc_calloc(size_t, size_t);
extern "C" void* __libc_realloc(void*, size_t);
extern "C" void* malloc(size_t size) {
  ++allocations;
  return __libc_malloc(size);
}
extern "C" void* calloc(size_t count, size_t size) {
  ++allocations;
  return __libc_calloc(count, size);
}
extern "C" void* realloc(void* memory, size_t size) {
  ++allocations;
  return __libc_realloc(memory, size);
}
#endif
__attribute__((noinline)) void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

// A refusal has a message.
#define EXPECT_STATUS(status, call) \
  EXPECT_TRUE((call) == (status) && *fwdmeta_last_error() != '\0') << #call << ": " << fwdmeta_last_error()
#define ASSERT_OK(call) ASSERT_EQ(FWDMETA_OK, (call)) << fwdmeta_last_error()
#define EXPECT_OK(call) EXPECT_EQ(FWDMETA_OK, (call)) << fwdmeta_last_error()

bool MessageHas(const char* part) { return std::strstr(fwdmeta_last_error(), part) != nullptr; }

int objects[8];  // what borrowed pointers point at

// Three layers, of which the first and the last are MoE layers.
fwdmeta_layers_t ThreeLayers() {
  fwdmeta_layers_t layers = 0;
  EXPECT_OK(fwdmeta_layers_create(&layers));
  EXPECT_OK(fwdmeta_layers_add(layers, "model.layers.0.mlp", &objects[0], 1, nullptr));
  EXPECT_OK(fwdmeta_layers_add(layers, "model.layers.0.attn", &objects[1], 0, nullptr));
  EXPECT_OK(fwdmeta_layers_add(layers, "model.layers.1.mlp", &objects[2], 1, nullptr));
  return layers;
}

fwdmeta_context_t NewContext(fwdmeta_layers_t layers = 0, int64_t max_slices = 1, int64_t max_values = 16) {
  fwdmeta_context_config_t config = FWDMETA_CONTEXT_CONFIG_INITIALIZER;
  config.layers = layers;
  config.max_slices = max_slices;
  config.max_values = max_values;
  fwdmeta_context_t context = 0;
  EXPECT_OK(fwdmeta_context_create(&config, &context));
  return context;
}

fwdmeta_context_t Current() {
  fwdmeta_context_t current = 77;
  const fwdmeta_status_t status = fwdmeta_context_current(&current);
  EXPECT_EQ(current == 0 ? FWDMETA_NOT_SET : FWDMETA_OK, status);
  return current;
}

template <class Body>
void OnAnotherThread(Body body) {
  std::thread(body).join();
}

// Every getter of a context with fitting outputs, by name: for what is alike for all of them.
struct Getter {
  const char* name;
  fwdmeta_status_t (*get)(fwdmeta_context_t);
};
const Getter kGetters[] = {
    {"attn_metadata",
     [](fwdmeta_context_t c) {
       fwdmeta_attn_metadata_t out;
       return fwdmeta_context_get_attn_metadata(c, FWDMETA_ALL_LAYERS, 0, &out);
     }},
    {"slot_mapping",
     [](fwdmeta_context_t c) {
       const int64_t* out;
       int64_t count;
       return fwdmeta_context_get_slot_mapping(c, FWDMETA_ALL_LAYERS, 0, &out, &count);
     }},
    {"dp_metadata",
     [](fwdmeta_context_t c) {
       fwdmeta_dp_metadata_t out = FWDMETA_DP_METADATA_INITIALIZER;
       return fwdmeta_context_get_dp_metadata(c, &out);
     }},
    {"runtime_mode",
     [](fwdmeta_context_t c) {
       fwdmeta_graph_mode_t out;
       return fwdmeta_context_get_runtime_mode(c, &out);
     }},
    {"descriptor",
     [](fwdmeta_context_t c) {
       fwdmeta_batch_descriptor_t out;
       return fwdmeta_context_get_descriptor(c, &out);
     }},
    {"slices",
     [](fwdmeta_context_t c) {
       int64_t count;
       return fwdmeta_context_get_slices(c, nullptr, 0, &count);
     }},
    {"is_padding",
     [](fwdmeta_context_t c) {
       const uint8_t* out;
       int64_t count;
       return fwdmeta_context_get_is_padding(c, &out, &count);
     }},
    {"skip_compiled",
     [](fwdmeta_context_t c) {
       int32_t out;
       return fwdmeta_context_get_skip_compiled(c, &out);
     }},
};

const int64_t kSlots[] = {5, 6, 7};
const int64_t kTokensOfRanks[] = {3, 9};
const uint8_t kPadding[] = {0, 0, 1};
const fwdmeta_slice_t kTwoSlices[] = {{0, 1, 0, 4, 4, 0}, {1, 2, 4, 8, 4, 0}};

fwdmeta_dp_metadata_t DpMetadata() {
  fwdmeta_dp_metadata_t metadata = FWDMETA_DP_METADATA_INITIALIZER;
  metadata.dp_size = 2;
  metadata.dp_rank = 1;
  metadata.max_tokens = 9;
  metadata.sum_tokens = 12;
  metadata.num_tokens = kTokensOfRanks;
  return metadata;
}

// Every setter with a good value.
struct Setter {
  const char* name;
  fwdmeta_status_t (*set)(fwdmeta_context_t);
};
const Setter kSetters[] = {
    {"attn_metadata",
     [](fwdmeta_context_t c) {
       const fwdmeta_attn_metadata_t metadata = {&objects[3], 0};
       return fwdmeta_context_set_attn_metadata(c, FWDMETA_ALL_LAYERS, 0, &metadata);
     }},
    {"slot_mapping",
     [](fwdmeta_context_t c) { return fwdmeta_context_set_slot_mapping(c, FWDMETA_ALL_LAYERS, 0, kSlots, 3); }},
    {"dp_metadata",
     [](fwdmeta_context_t c) {
       const fwdmeta_dp_metadata_t metadata = DpMetadata();
       return fwdmeta_context_set_dp_metadata(c, &metadata);
     }},
    {"runtime_mode", [](fwdmeta_context_t c) { return fwdmeta_context_set_runtime_mode(c, FWDMETA_GRAPH_FULL); }},
    {"descriptor",
     [](fwdmeta_context_t c) {
       const fwdmeta_batch_descriptor_t descriptor = {8, 4, 1, 0, 0};
       return fwdmeta_context_set_descriptor(c, &descriptor);
     }},
    {"slices", [](fwdmeta_context_t c) { return fwdmeta_context_set_slices(c, kTwoSlices, 1); }},
    {"is_padding", [](fwdmeta_context_t c) { return fwdmeta_context_set_is_padding(c, kPadding, 3); }},
    {"skip_compiled", [](fwdmeta_context_t c) { return fwdmeta_context_set_skip_compiled(c, 1); }},
    {"pointer", [](fwdmeta_context_t c) { return fwdmeta_context_set_pointer(c, "pointer", &objects[4]); }},
    {"int64", [](fwdmeta_context_t c) { return fwdmeta_context_set_int64(c, "int64", -1); }},
    {"double", [](fwdmeta_context_t c) { return fwdmeta_context_set_double(c, "double", 0.5); }},
};

// ---- layers

TEST(Layers, AreNumberedByOrderAndFoundByName) {
  fwdmeta_layers_t layers = 0;
  ASSERT_OK(fwdmeta_layers_create(&layers));
  int64_t index = -1, count = -1, num_moe = -1;
  ASSERT_OK(fwdmeta_layers_count(layers, &count, &num_moe));
  EXPECT_EQ(0, count);
  EXPECT_EQ(0, num_moe);
  std::string name = "model.layers.0.attn";
  ASSERT_OK(fwdmeta_layers_add(layers, name.c_str(), &objects[0], 0, &index));
  EXPECT_EQ(0, index);
  name = "overwritten";  // names are copied
  ASSERT_OK(fwdmeta_layers_add(layers, "model.layers.0.mlp", &objects[1], 1, &index));
  EXPECT_EQ(1, index);
  ASSERT_OK(fwdmeta_layers_find(layers, "model.layers.0.attn", &index));
  EXPECT_EQ(0, index);
  const char* out_name = nullptr;
  void* out_layer = nullptr;
  ASSERT_OK(fwdmeta_layers_get(layers, 0, &out_name, &out_layer));
  EXPECT_STREQ("model.layers.0.attn", out_name);
  EXPECT_EQ(&objects[0], out_layer);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_OK(fwdmeta_layers_add(layers, ("layer " + std::to_string(i)).c_str(), nullptr, i % 2, &index));
    EXPECT_EQ(i + 2, index);
  }
  EXPECT_STREQ("model.layers.0.attn", out_name) << "a name has moved";
  ASSERT_OK(fwdmeta_layers_count(layers, &count, &num_moe));
  EXPECT_EQ(1002, count);
  EXPECT_EQ(501, num_moe);
  EXPECT_OK(fwdmeta_layers_destroy(layers));
}

TEST(Layers, RefuseWhatIsKnownUnknownOrPastTheEnd) {
  fwdmeta_layers_t layers = ThreeLayers();
  int64_t index = 42, count = 0;
  EXPECT_STATUS(FWDMETA_ALREADY_EXISTS, fwdmeta_layers_add(layers, "model.layers.0.attn", &objects[5], 0, &index));
  EXPECT_TRUE(MessageHas("model.layers.0.attn") && MessageHas("1"));
  EXPECT_STATUS(FWDMETA_NOT_FOUND, fwdmeta_layers_find(layers, "model.layers.2.attn", &index));
  EXPECT_EQ(42, index);
  const char* name = nullptr;
  void* layer = nullptr;
  for (int64_t bad : {int64_t{3}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    EXPECT_STATUS(FWDMETA_OUT_OF_RANGE, fwdmeta_layers_get(layers, bad, &name, &layer));
  }
  EXPECT_OK(fwdmeta_layers_get(layers, 2, nullptr, &layer));
  EXPECT_EQ(&objects[2], layer);
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_layers_add(layers, "a", nullptr, 2, nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_layers_add(layers, nullptr, nullptr, 0, nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_layers_add(layers, "", nullptr, 0, nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT,
                fwdmeta_layers_add(layers, std::string(256, 'x').c_str(), nullptr, 0, nullptr));
  EXPECT_TRUE(MessageHas("256") && MessageHas("255"));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_layers_find(layers, "a", nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_layers_find(layers, nullptr, &index));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_layers_create(nullptr));
  ASSERT_OK(fwdmeta_layers_count(layers, &count, nullptr));
  EXPECT_EQ(3, count) << "a refused layer was added";
  EXPECT_OK(fwdmeta_layers_add(layers, std::string(255, 'x').c_str(), nullptr, 0, &index));
  EXPECT_EQ(3, index);
  EXPECT_OK(fwdmeta_layers_destroy(layers));
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_layers_destroy(layers));
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_layers_add(layers, "a", nullptr, 0, nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_layers_find(layers, "a", &index));
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_layers_get(layers, 0, &name, &layer));
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_layers_count(layers, &count, nullptr));
  EXPECT_OK(fwdmeta_layers_destroy(0));
}

TEST(Layers, AreFrozenByTheFirstContextAndOutliveTheRegistry) {
  fwdmeta_layers_t layers = ThreeLayers();
  fwdmeta_context_t context = NewContext(layers);
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_layers_add(layers, "late", nullptr, 0, nullptr));
  EXPECT_TRUE(MessageHas("late") && MessageHas("3"));
  int64_t index = -1;
  EXPECT_OK(fwdmeta_layers_find(layers, "model.layers.1.mlp", &index));
  EXPECT_EQ(2, index);
  fwdmeta_context_t second = NewContext(layers, 2);
  EXPECT_OK(fwdmeta_layers_destroy(layers));
  EXPECT_OK(fwdmeta_context_destroy(second));
  const char* name = nullptr;
  void* layer = nullptr;
  EXPECT_OK(fwdmeta_context_find_layer(context, "model.layers.0.attn", &index));
  EXPECT_EQ(1, index);
  EXPECT_OK(fwdmeta_context_get_layer(context, 1, &name, &layer));
  EXPECT_STREQ("model.layers.0.attn", name);
  EXPECT_EQ(&objects[1], layer);
  EXPECT_OK(fwdmeta_context_destroy(context));
}

// ---- creation

TEST(ForwardContext, CreationRefusesWhatItCannotHave) {
  const fwdmeta_context_config_t good = FWDMETA_CONTEXT_CONFIG_INITIALIZER;
  fwdmeta_context_t context = 0;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_create(nullptr, &context));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_create(&good, nullptr));
  const auto refused = [&](fwdmeta_status_t status, auto change) {
    fwdmeta_context_config_t config = good;
    change(config);
    EXPECT_STATUS(status, fwdmeta_context_create(&config, &context));
    EXPECT_EQ(0u, context);
  };
  refused(FWDMETA_INVALID_ARGUMENT, [](auto& c) { c.struct_size = 0; });
  refused(FWDMETA_INVALID_ARGUMENT, [](auto& c) { c.api_version = 990000; });
  refused(FWDMETA_INVALID_ARGUMENT, [](auto& c) { c.api_version = -1; });
  refused(FWDMETA_INVALID_ARGUMENT, [](auto& c) { c.reserved = 1; });
  for (int64_t bad : {int64_t{0}, int64_t{17}, int64_t{-1}, INT64_MIN, INT64_MAX}) {
    refused(FWDMETA_INVALID_ARGUMENT, [bad](auto& c) { c.max_slices = bad; });
    EXPECT_TRUE(MessageHas(std::to_string(bad).c_str()));
  }
  for (int64_t bad : {int64_t{-1}, int64_t{1025}, INT64_MIN, INT64_MAX}) {
    refused(FWDMETA_INVALID_ARGUMENT, [bad](auto& c) { c.max_values = bad; });
    EXPECT_TRUE(MessageHas(std::to_string(bad).c_str()));
  }
  refused(FWDMETA_INVALID_HANDLE, [](auto& c) { c.layers = 12345; });
  // An older caller's shorter struct has the defaults; a longer one may be zero past the end.
  struct Longer {
    fwdmeta_context_config_t config;
    uint64_t more;
  } longer = {good, 0};
  longer.config.struct_size = sizeof(longer);
  ASSERT_OK(fwdmeta_context_create(&longer.config, &context));
  EXPECT_OK(fwdmeta_context_destroy(context));
  longer.more = 1;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_create(&longer.config, &context));
  fwdmeta_context_config_t shorter = good;
  shorter.struct_size = offsetof(fwdmeta_context_config_t, layers);
  shorter.layers = shorter.max_slices = shorter.max_values = 99;
  ASSERT_OK(fwdmeta_context_create(&shorter, &context));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_set_slices(context, kTwoSlices, 2)) << "max_slices is 1";
  EXPECT_OK(fwdmeta_context_destroy(context));
}

TEST(ForwardContext, HandlesOfOtherKindsAreInvalid) {
  fwdmeta_layers_t layers = ThreeLayers();
  fwdmeta_context_t context = NewContext();
  fwdmeta_context_t ended = NewContext();
  ASSERT_OK(fwdmeta_context_destroy(ended));
  for (uint64_t bad : {uint64_t{0}, uint64_t{1}, layers, ended, ~uint64_t{0}}) {
    for (const Getter& getter : kGetters) EXPECT_EQ(FWDMETA_INVALID_HANDLE, getter.get(bad)) << getter.name;
    for (const Setter& setter : kSetters) EXPECT_EQ(FWDMETA_INVALID_HANDLE, setter.set(bad)) << setter.name;
    EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_context_push(bad));
    EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_context_pop(bad));
    EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_context_reset(bad));
    int64_t index;
    EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_context_next_moe_layer(bad, &index));
    EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_context_find_layer(bad, "a", &index));
    EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_context_push_local_sizes(bad, kSlots, 3));
    EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_context_pop_local_sizes(bad));
    if (bad == 0) continue;
    EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_context_override(bad, nullptr));
    EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_context_destroy(bad));
  }
  EXPECT_EQ(0u, Current());
  int64_t index;
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_layers_find(context, "a", &index));
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_meta_destroy(context));
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_builder_destroy(layers));
  EXPECT_OK(fwdmeta_context_destroy(0));
  EXPECT_OK(fwdmeta_context_destroy(context));
  EXPECT_OK(fwdmeta_layers_destroy(layers));
}

// ---- contents

// "each of which may be unset (NOT_SET, distinct from an unknown name NOT_FOUND and a list's end OUT_OF_RANGE)"
TEST(ForwardContext, UnsetUnknownAndTheEndAreThreeThings) {
  fwdmeta_layers_t layers = ThreeLayers();
  fwdmeta_context_t context = NewContext(layers);
  for (bool pushed : {false, true}) {
    if (pushed) {
      ASSERT_OK(fwdmeta_context_push(context));
    }
    for (const Getter& getter : kGetters) EXPECT_EQ(FWDMETA_NOT_SET, getter.get(context)) << getter.name;
    int64_t index = 42;
    fwdmeta_attn_metadata_t metadata;
    EXPECT_STATUS(FWDMETA_NOT_FOUND, fwdmeta_context_find_layer(context, "nowhere", &index));
    EXPECT_STATUS(FWDMETA_NOT_FOUND, fwdmeta_context_get_int64(context, "nowhere", &index));
    EXPECT_STATUS(FWDMETA_OUT_OF_RANGE, fwdmeta_context_get_layer(context, 3, nullptr, nullptr));
    EXPECT_STATUS(FWDMETA_NOT_SET, fwdmeta_context_get_attn_metadata(context, 2, 0, &metadata));
    EXPECT_STATUS(FWDMETA_OUT_OF_RANGE, fwdmeta_context_get_attn_metadata(context, 3, 0, &metadata));
    EXPECT_STATUS(FWDMETA_OUT_OF_RANGE, fwdmeta_context_get_attn_metadata(context, 0, 1, &metadata));
    EXPECT_EQ(42, index);
  }
  ASSERT_OK(fwdmeta_context_pop(context));
  EXPECT_OK(fwdmeta_context_destroy(context));
  EXPECT_OK(fwdmeta_layers_destroy(layers));
  // Without a registry.
  context = NewContext();
  ASSERT_OK(fwdmeta_context_push(context));
  int64_t index = 42;
  EXPECT_STATUS(FWDMETA_NOT_SET, fwdmeta_context_find_layer(context, "nowhere", &index));
  EXPECT_STATUS(FWDMETA_NOT_SET, fwdmeta_context_get_layer(context, 0, nullptr, nullptr));
  EXPECT_STATUS(FWDMETA_NOT_SET, fwdmeta_context_next_moe_layer(context, &index));
  EXPECT_EQ(42, index);
  ASSERT_OK(fwdmeta_context_pop(context));
  fwdmeta_attn_metadata_t metadata = {&objects[0], 0};
  ASSERT_OK(fwdmeta_context_reset(context));
  EXPECT_STATUS(FWDMETA_OUT_OF_RANGE, fwdmeta_context_set_attn_metadata(context, 0, 0, &metadata));
  EXPECT_OK(fwdmeta_context_set_attn_metadata(context, FWDMETA_ALL_LAYERS, 0, &metadata));
  EXPECT_OK(fwdmeta_context_destroy(context));
}

TEST(ForwardContext, HandsOutWhatWasSet) {
  fwdmeta_context_t context = NewContext(0, 4);
  for (const Setter& setter : kSetters) ASSERT_OK(setter.set(context)) << setter.name;
  ASSERT_OK(fwdmeta_context_set_slices(context, kTwoSlices, 2));
  for (bool pushed : {false, true}) {
    if (pushed) {
      ASSERT_OK(fwdmeta_context_push(context));
    }
    const auto read = [context] {
      fwdmeta_attn_metadata_t attn = {nullptr, 99};
      EXPECT_OK(fwdmeta_context_get_attn_metadata(context, FWDMETA_ALL_LAYERS, 0, &attn));
      EXPECT_EQ(&objects[3], attn.pointer);
      EXPECT_EQ(0u, attn.meta);
      const int64_t* slots = nullptr;
      int64_t count = 0;
      EXPECT_OK(fwdmeta_context_get_slot_mapping(context, FWDMETA_ALL_LAYERS, 0, &slots, &count));
      EXPECT_EQ(kSlots, slots);
      EXPECT_EQ(3, count);
      fwdmeta_dp_metadata_t dp = FWDMETA_DP_METADATA_INITIALIZER;
      EXPECT_OK(fwdmeta_context_get_dp_metadata(context, &dp));
      EXPECT_EQ(sizeof(dp), dp.struct_size);
      EXPECT_EQ(2, dp.dp_size);
      EXPECT_EQ(1, dp.dp_rank);
      EXPECT_EQ(9, dp.max_tokens);
      EXPECT_EQ(12, dp.sum_tokens);
      EXPECT_EQ(kTokensOfRanks, dp.num_tokens);
      fwdmeta_graph_mode_t mode = -1;
      EXPECT_OK(fwdmeta_context_get_runtime_mode(context, &mode));
      EXPECT_EQ(FWDMETA_GRAPH_FULL, mode);
      fwdmeta_batch_descriptor_t descriptor = {};
      EXPECT_OK(fwdmeta_context_get_descriptor(context, &descriptor));
      const fwdmeta_batch_descriptor_t want = {8, 4, 1, 0, 0};
      EXPECT_EQ(0, std::memcmp(&want, &descriptor, sizeof(want)));
      fwdmeta_slice_t slices[3] = {};
      EXPECT_OK(fwdmeta_context_get_slices(context, slices, 3, &count));
      EXPECT_EQ(2, count);
      EXPECT_EQ(0, std::memcmp(kTwoSlices, slices, sizeof(kTwoSlices)));
      const uint8_t* is_padding = nullptr;
      EXPECT_OK(fwdmeta_context_get_is_padding(context, &is_padding, &count));
      EXPECT_EQ(kPadding, is_padding);
      EXPECT_EQ(3, count);
      int32_t skip = -1;
      EXPECT_OK(fwdmeta_context_get_skip_compiled(context, &skip));
      EXPECT_EQ(1, skip);
      void* pointer = nullptr;
      EXPECT_OK(fwdmeta_context_get_pointer(context, "pointer", &pointer));
      EXPECT_EQ(&objects[4], pointer);
      int64_t int64 = 0;
      EXPECT_OK(fwdmeta_context_get_int64(context, "int64", &int64));
      EXPECT_EQ(-1, int64);
      double float64 = 0;
      EXPECT_OK(fwdmeta_context_get_double(context, "double", &float64));
      EXPECT_EQ(0.5, float64);
    };
    read();
    // "Every getter takes an explicit context": other threads, which have none of their own, read it too.
    OnAnotherThread(read);
  }
  ASSERT_OK(fwdmeta_context_pop(context));
  EXPECT_OK(fwdmeta_context_destroy(context));
}

TEST(ForwardContext, TablesGoByLayerAndSlice) {
  fwdmeta_layers_t layers = ThreeLayers();
  fwdmeta_context_t context = NewContext(layers, 2);
  const fwdmeta_attn_metadata_t first = {&objects[0], 0}, second = {nullptr, 0x2222}, both = {&objects[2], 7};
  const auto set = [&](int64_t layer, int64_t slice, const fwdmeta_attn_metadata_t& value) {
    return fwdmeta_context_set_attn_metadata(context, layer, slice, &value);
  };
  const auto expect = [&](int64_t layer, int64_t slice, const fwdmeta_attn_metadata_t* want) {
    fwdmeta_attn_metadata_t out = {&objects[7], 77};
    const fwdmeta_status_t status = fwdmeta_context_get_attn_metadata(context, layer, slice, &out);
    EXPECT_EQ(want != nullptr ? FWDMETA_OK : FWDMETA_NOT_SET, status) << layer << ", " << slice;
    if (want == nullptr) return;
    EXPECT_EQ(want->pointer, out.pointer) << layer << ", " << slice;
    EXPECT_EQ(want->meta, out.meta) << layer << ", " << slice;
  };
  // One layer in one slice, and nothing else.
  ASSERT_OK(set(1, 0, first));
  expect(1, 0, &first);
  for (int64_t layer : {-1, 0, 2}) expect(layer, 0, nullptr);
  for (int64_t layer : {-1, 0, 1, 2}) expect(layer, 1, nullptr);
  // All layers of the other slice; a meta is a number that nobody looks up.
  ASSERT_OK(set(FWDMETA_ALL_LAYERS, 1, second));
  for (int64_t layer : {-1, 0, 1, 2}) expect(layer, 1, &second);
  expect(1, 0, &first);
  // One layer after all of them, then all of them after one.
  ASSERT_OK(set(2, 1, both));
  expect(2, 1, &both);
  for (int64_t layer : {-1, 0, 1}) expect(layer, 1, &second);
  ASSERT_OK(set(FWDMETA_ALL_LAYERS, 1, first));
  for (int64_t layer : {-1, 0, 1, 2}) expect(layer, 1, &first);
  // Slot mappings are a table of their own.
  const int64_t* slots = nullptr;
  int64_t count = 0;
  EXPECT_STATUS(FWDMETA_NOT_SET, fwdmeta_context_get_slot_mapping(context, 1, 0, &slots, &count));
  ASSERT_OK(fwdmeta_context_set_slot_mapping(context, 1, 1, kSlots, 3));
  ASSERT_OK(fwdmeta_context_set_slot_mapping(context, 1, 0, nullptr, 0));
  EXPECT_OK(fwdmeta_context_get_slot_mapping(context, 1, 1, &slots, &count));
  EXPECT_EQ(kSlots, slots);
  EXPECT_EQ(3, count);
  EXPECT_OK(fwdmeta_context_get_slot_mapping(context, 1, 0, &slots, &count)) << "set, to no tokens";
  EXPECT_EQ(0, count);
  EXPECT_STATUS(FWDMETA_NOT_SET, fwdmeta_context_get_slot_mapping(context, 0, 1, &slots, &count));
  // Past either end.
  for (const auto& [layer, slice] : std::vector<std::pair<int64_t, int64_t>>{
           {3, 0}, {-2, 0}, {INT64_MIN, 0}, {INT64_MAX, 0}, {0, 2}, {0, -1}, {0, INT64_MAX}, {0, INT64_MIN}}) {
    fwdmeta_attn_metadata_t out;
    EXPECT_STATUS(FWDMETA_OUT_OF_RANGE, set(layer, slice, first));
    EXPECT_STATUS(FWDMETA_OUT_OF_RANGE, fwdmeta_context_get_attn_metadata(context, layer, slice, &out));
    EXPECT_STATUS(FWDMETA_OUT_OF_RANGE, fwdmeta_context_set_slot_mapping(context, layer, slice, kSlots, 3));
    EXPECT_STATUS(FWDMETA_OUT_OF_RANGE, fwdmeta_context_get_slot_mapping(context, layer, slice, &slots, &count));
  }
  // Reset unsets them all.
  ASSERT_OK(fwdmeta_context_reset(context));
  for (int64_t layer : {-1, 0, 1, 2}) {
    expect(layer, 0, nullptr);
    expect(layer, 1, nullptr);
    EXPECT_STATUS(FWDMETA_NOT_SET, fwdmeta_context_get_slot_mapping(context, layer, 1, &slots, &count));
  }
  ASSERT_OK(set(0, 0, both));
  expect(0, 0, &both);
  expect(1, 0, nullptr);
  EXPECT_OK(fwdmeta_context_destroy(context));
  EXPECT_OK(fwdmeta_layers_destroy(layers));
}

TEST(ForwardContext, RefusesBadContents) {
  fwdmeta_context_t context = NewContext(0, 2);
  for (int bad : {-1, 3, +FWDMETA_GRAPH_FULL_DECODE_ONLY, +FWDMETA_GRAPH_FULL_AND_PIECEWISE}) {
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_set_runtime_mode(context, bad));
    EXPECT_TRUE(MessageHas(std::to_string(bad).c_str()));
  }
  for (int good : {FWDMETA_GRAPH_NONE, FWDMETA_GRAPH_PIECEWISE, FWDMETA_GRAPH_FULL}) {
    fwdmeta_graph_mode_t mode = -1;
    EXPECT_OK(fwdmeta_context_set_runtime_mode(context, good));
    EXPECT_OK(fwdmeta_context_get_runtime_mode(context, &mode));
    EXPECT_EQ(good, mode);
  }
  ASSERT_OK(fwdmeta_context_reset(context));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_set_skip_compiled(context, 2));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_set_skip_compiled(context, -1));
  for (int64_t bad : {int64_t{-1}, int64_t{1} << 31, INT64_MIN}) {
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_set_is_padding(context, kPadding, bad));
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT,
                  fwdmeta_context_set_slot_mapping(context, FWDMETA_ALL_LAYERS, 0, kSlots, bad));
    EXPECT_TRUE(MessageHas(std::to_string(bad).c_str()));
  }
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_set_is_padding(context, nullptr, 1));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_set_slot_mapping(context, FWDMETA_ALL_LAYERS, 0, nullptr, 1));
  for (int64_t bad : {int64_t{0}, int64_t{3}, int64_t{-1}, INT64_MAX}) {
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_set_slices(context, kTwoSlices, bad));
  }
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_set_slices(context, nullptr, 1));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_set_descriptor(context, nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_set_dp_metadata(context, nullptr));
  const fwdmeta_attn_metadata_t neither = {nullptr, 0};
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_set_attn_metadata(context, FWDMETA_ALL_LAYERS, 0, &neither));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_set_attn_metadata(context, FWDMETA_ALL_LAYERS, 0, nullptr));
  const auto refused = [&](auto change) {
    fwdmeta_dp_metadata_t metadata = DpMetadata();
    change(metadata);
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_set_dp_metadata(context, &metadata));
  };
  refused([](auto& m) { m.struct_size = 0; });
  refused([](auto& m) { m.struct_size = sizeof(m) - 8; });  // then num_tokens is null
  refused([](auto& m) { m.dp_size = 0; });
  refused([](auto& m) { m.dp_size = int64_t{1} << 31; });
  refused([](auto& m) { m.dp_rank = 2; });
  refused([](auto& m) { m.dp_rank = -1; });
  refused([](auto& m) { m.num_tokens = nullptr; });
  for (const Getter& getter : kGetters) EXPECT_EQ(FWDMETA_NOT_SET, getter.get(context)) << getter.name;

  // Null outputs.
  for (const Setter& setter : kSetters) ASSERT_OK(setter.set(context)) << setter.name;
  const int64_t* slots;
  const uint8_t* is_padding;
  int64_t count;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_get_attn_metadata(context, FWDMETA_ALL_LAYERS, 0, nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT,
                fwdmeta_context_get_slot_mapping(context, FWDMETA_ALL_LAYERS, 0, nullptr, &count));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT,
                fwdmeta_context_get_slot_mapping(context, FWDMETA_ALL_LAYERS, 0, &slots, nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_get_dp_metadata(context, nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_get_runtime_mode(context, nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_get_descriptor(context, nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_get_slices(context, nullptr, 0, nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_get_is_padding(context, nullptr, &count));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_get_is_padding(context, &is_padding, nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_get_skip_compiled(context, nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_get_pointer(context, "pointer", nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_get_int64(context, "int64", nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_get_double(context, "double", nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_find_layer(context, "a", nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_next_moe_layer(context, nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_current(nullptr));
  EXPECT_OK(fwdmeta_context_destroy(context));
}

TEST(ForwardContext, OfTheDpMetadataTheCallersBytesAreWritten) {
  fwdmeta_context_t context = NewContext();
  const fwdmeta_dp_metadata_t metadata = DpMetadata();
  ASSERT_OK(fwdmeta_context_set_dp_metadata(context, &metadata));
  fwdmeta_dp_metadata_t out = FWDMETA_DP_METADATA_INITIALIZER;
  out.struct_size = offsetof(fwdmeta_dp_metadata_t, max_tokens);
  out.max_tokens = 55;
  ASSERT_OK(fwdmeta_context_get_dp_metadata(context, &out));
  EXPECT_EQ(offsetof(fwdmeta_dp_metadata_t, max_tokens), out.struct_size);
  EXPECT_EQ(1, out.dp_rank);
  EXPECT_EQ(55, out.max_tokens);
  out.struct_size = 0;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_get_dp_metadata(context, &out));
  EXPECT_OK(fwdmeta_context_destroy(context));
}

TEST(ForwardContext, SlicesAreCopiedAndCounted) {
  fwdmeta_context_t context = NewContext(0, FWDMETA_MAX_SLICES);
  fwdmeta_slice_t slices[FWDMETA_MAX_SLICES];
  for (int32_t i = 0; i < FWDMETA_MAX_SLICES; ++i) slices[i] = {i, i + 1, 2 * i, 2 * i + 2, 2, 0};
  ASSERT_OK(fwdmeta_context_set_slices(context, slices, FWDMETA_MAX_SLICES));
  fwdmeta_slice_t want[FWDMETA_MAX_SLICES];
  std::memcpy(want, slices, sizeof(want));
  std::memset(slices, 0xee, sizeof(slices));  // copied: the engine's array may change
  int64_t count = 0;
  ASSERT_OK(fwdmeta_context_get_slices(context, nullptr, 0, &count));
  EXPECT_EQ(FWDMETA_MAX_SLICES, count);
  fwdmeta_slice_t out[FWDMETA_MAX_SLICES] = {};
  count = 0;
  EXPECT_STATUS(FWDMETA_CAPACITY_EXCEEDED, fwdmeta_context_get_slices(context, out, FWDMETA_MAX_SLICES - 1, &count));
  EXPECT_EQ(FWDMETA_MAX_SLICES, count);
  EXPECT_EQ(0, out[0].end_req) << "something was written";
  EXPECT_STATUS(FWDMETA_CAPACITY_EXCEEDED, fwdmeta_context_get_slices(context, out, 0, &count));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_get_slices(context, nullptr, 1, &count));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_get_slices(context, out, -1, &count));
  ASSERT_OK(fwdmeta_context_get_slices(context, out, FWDMETA_MAX_SLICES, &count));
  EXPECT_EQ(0, std::memcmp(want, out, sizeof(want)));
  ASSERT_OK(fwdmeta_context_set_slices(context, want, 1));  // fewer than before
  ASSERT_OK(fwdmeta_context_get_slices(context, nullptr, 0, &count));
  EXPECT_EQ(1, count);
  EXPECT_OK(fwdmeta_context_destroy(context));
}

// "is_padding (unset = unknown)": no mask is not a mask without padding.
TEST(ForwardContext, AnUnsetMaskIsNotAnEmptyOne) {
  fwdmeta_context_t context = NewContext();
  const uint8_t* mask = kPadding;
  int64_t count = 42;
  EXPECT_STATUS(FWDMETA_NOT_SET, fwdmeta_context_get_is_padding(context, &mask, &count));
  EXPECT_EQ(kPadding, mask);
  EXPECT_EQ(42, count);
  ASSERT_OK(fwdmeta_context_set_is_padding(context, nullptr, 0));
  EXPECT_OK(fwdmeta_context_get_is_padding(context, &mask, &count));
  EXPECT_EQ(nullptr, mask);
  EXPECT_EQ(0, count);
  EXPECT_OK(fwdmeta_context_destroy(context));
}

TEST(ForwardContext, AdditionalValuesHaveAKindAndARoom) {
  fwdmeta_context_t context = NewContext(0, 1, 2);
  std::string name(63, 'n');
  ASSERT_OK(fwdmeta_context_set_int64(context, name.c_str(), INT64_MIN));
  name[0] = 'm';  // names are copied
  ASSERT_OK(fwdmeta_context_set_double(context, name.c_str(), -0.0));
  EXPECT_STATUS(FWDMETA_CAPACITY_EXCEEDED, fwdmeta_context_set_pointer(context, "third", nullptr));
  EXPECT_TRUE(MessageHas("third") && MessageHas("2"));
  int64_t int64 = 7;
  double float64 = 7;
  void* pointer = &objects[7];
  EXPECT_OK(fwdmeta_context_get_int64(context, std::string(63, 'n').c_str(), &int64));
  EXPECT_EQ(INT64_MIN, int64);
  // Another kind is an error, not a conversion.
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_get_double(context, std::string(63, 'n').c_str(), &float64));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_get_pointer(context, name.c_str(), &pointer));
  EXPECT_STATUS(FWDMETA_NOT_FOUND, fwdmeta_context_get_pointer(context, "third", &pointer));
  EXPECT_EQ(7, float64);
  EXPECT_EQ(&objects[7], pointer);
  // Setting again replaces, the kind too, and needs no room.
  ASSERT_OK(fwdmeta_context_set_pointer(context, name.c_str(), nullptr));
  EXPECT_OK(fwdmeta_context_get_pointer(context, name.c_str(), &pointer));
  EXPECT_EQ(nullptr, pointer) << "a null pointer is a value";
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_get_double(context, name.c_str(), &float64));
  // What can be no name.
  const std::string too_long(64, 'n');
  for (const char* bad : {static_cast<const char*>(nullptr), "", too_long.c_str()}) {
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_set_int64(context, bad, 1));
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_get_int64(context, bad, &int64));
  }
  // Reset gives the room back.
  ASSERT_OK(fwdmeta_context_reset(context));
  EXPECT_STATUS(FWDMETA_NOT_FOUND, fwdmeta_context_get_pointer(context, name.c_str(), &pointer));
  EXPECT_OK(fwdmeta_context_set_int64(context, "first", 1));
  EXPECT_OK(fwdmeta_context_set_int64(context, "second", 2));
  EXPECT_OK(fwdmeta_context_destroy(context));
  context = NewContext(0, 1, 0);
  EXPECT_STATUS(FWDMETA_CAPACITY_EXCEEDED, fwdmeta_context_set_int64(context, "first", 1));
  EXPECT_OK(fwdmeta_context_destroy(context));
}

// ---- phases

// "Setting after push is INVALID_ARGUMENT"; "use after pop is EXPIRED".
TEST(ForwardContext, PushFreezesAndPopExpires) {
  fwdmeta_layers_t layers = ThreeLayers();
  fwdmeta_context_t context = NewContext(layers);
  for (const Setter& setter : kSetters) ASSERT_OK(setter.set(context)) << setter.name;
  int64_t index, count;
  const int64_t* sizes;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_next_moe_layer(context, &index));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_push_local_sizes(context, kSlots, 3));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_get_local_sizes(context, &sizes, &count));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_override(context, nullptr));
  ASSERT_OK(fwdmeta_context_push(context));
  for (const Setter& setter : kSetters) EXPECT_EQ(FWDMETA_INVALID_ARGUMENT, setter.set(context)) << setter.name;
  for (const Getter& getter : kGetters) EXPECT_OK(getter.get(context)) << getter.name;
  EXPECT_STATUS(FWDMETA_BUSY, fwdmeta_context_destroy(context));
  EXPECT_STATUS(FWDMETA_BUSY, fwdmeta_context_reset(context));
  OnAnotherThread([&] { EXPECT_STATUS(FWDMETA_BUSY, fwdmeta_context_destroy(context)); });
  for (const Getter& getter : kGetters) EXPECT_OK(getter.get(context)) << getter.name;

  ASSERT_OK(fwdmeta_context_pop(context));
  for (const Setter& setter : kSetters) EXPECT_EQ(FWDMETA_EXPIRED, setter.set(context)) << setter.name;
  for (const Getter& getter : kGetters) EXPECT_EQ(FWDMETA_EXPIRED, getter.get(context)) << getter.name;
  void* layer;
  EXPECT_STATUS(FWDMETA_EXPIRED, fwdmeta_context_get_int64(context, "int64", &index));
  EXPECT_STATUS(FWDMETA_EXPIRED, fwdmeta_context_find_layer(context, "model.layers.0.mlp", &index));
  EXPECT_STATUS(FWDMETA_EXPIRED, fwdmeta_context_get_layer(context, 0, nullptr, &layer));
  EXPECT_STATUS(FWDMETA_EXPIRED, fwdmeta_context_next_moe_layer(context, &index));
  EXPECT_STATUS(FWDMETA_EXPIRED, fwdmeta_context_push_local_sizes(context, kSlots, 3));
  EXPECT_STATUS(FWDMETA_EXPIRED, fwdmeta_context_pop_local_sizes(context));
  EXPECT_STATUS(FWDMETA_EXPIRED, fwdmeta_context_get_local_sizes(context, &sizes, &count));
  EXPECT_STATUS(FWDMETA_EXPIRED, fwdmeta_context_override(context, nullptr));

  // Pushed again as it is; then reset: empty, and building.
  ASSERT_OK(fwdmeta_context_push(context));
  for (const Getter& getter : kGetters) EXPECT_OK(getter.get(context)) << getter.name;
  EXPECT_OK(fwdmeta_context_get_int64(context, "int64", &index));
  ASSERT_OK(fwdmeta_context_pop(context));
  ASSERT_OK(fwdmeta_context_reset(context));
  for (const Getter& getter : kGetters) EXPECT_EQ(FWDMETA_NOT_SET, getter.get(context)) << getter.name;
  EXPECT_STATUS(FWDMETA_NOT_FOUND, fwdmeta_context_get_int64(context, "int64", &index));
  EXPECT_OK(fwdmeta_context_find_layer(context, "model.layers.0.mlp", &index)) << "reset keeps the layers";
  for (const Setter& setter : kSetters) EXPECT_OK(setter.set(context)) << setter.name;
  EXPECT_OK(fwdmeta_context_destroy(context));
  for (const Getter& getter : kGetters) EXPECT_EQ(FWDMETA_INVALID_HANDLE, getter.get(context)) << getter.name;
  EXPECT_OK(fwdmeta_layers_destroy(layers));
}

// ---- the stack

TEST(Stack, PushAndPopNest) {
  EXPECT_EQ(0u, Current());
  const fwdmeta_context_t a = NewContext(), b = NewContext(), c = NewContext();
  EXPECT_STATUS(FWDMETA_NOT_SET, fwdmeta_context_pop(a));  // popping nothing
  ASSERT_OK(fwdmeta_context_push(a));
  EXPECT_EQ(a, Current());
  EXPECT_STATUS(FWDMETA_NOT_SET, fwdmeta_context_pop(b));  // not pushed
  ASSERT_OK(fwdmeta_context_push(b));
  ASSERT_OK(fwdmeta_context_push(c));
  EXPECT_EQ(c, Current());
  for (fwdmeta_context_t pushed : {a, b, c}) EXPECT_STATUS(FWDMETA_ALREADY_EXISTS, fwdmeta_context_push(pushed));
  for (fwdmeta_context_t below : {a, b}) EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_pop(below));
  EXPECT_EQ(c, Current());
  ASSERT_OK(fwdmeta_context_pop(c));
  EXPECT_EQ(b, Current());
  EXPECT_STATUS(FWDMETA_NOT_SET, fwdmeta_context_pop(c));  // once more
  ASSERT_OK(fwdmeta_context_pop(b));
  ASSERT_OK(fwdmeta_context_push(c));
  EXPECT_EQ(c, Current());
  ASSERT_OK(fwdmeta_context_pop(c));
  EXPECT_EQ(a, Current());
  ASSERT_OK(fwdmeta_context_pop(a));
  EXPECT_EQ(0u, Current());
  for (fwdmeta_context_t context : {a, b, c}) EXPECT_OK(fwdmeta_context_destroy(context));
}

TEST(Stack, BelongsToItsThread) {
  const fwdmeta_context_t mine = NewContext(), theirs = NewContext();
  ASSERT_OK(fwdmeta_context_push(mine));
  OnAnotherThread([&] {
    EXPECT_EQ(0u, Current());
    EXPECT_STATUS(FWDMETA_ALREADY_EXISTS, fwdmeta_context_push(mine));
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_pop(mine));
    EXPECT_TRUE(MessageHas("thread"));
    ASSERT_OK(fwdmeta_context_push(theirs));
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_pop(mine));
    EXPECT_EQ(theirs, Current());
    ASSERT_OK(fwdmeta_context_pop(theirs));
    EXPECT_EQ(0u, Current());
  });
  EXPECT_EQ(mine, Current());
  ASSERT_OK(fwdmeta_context_pop(mine));
  EXPECT_OK(fwdmeta_context_destroy(mine));
  EXPECT_OK(fwdmeta_context_destroy(theirs));
}

TEST(Stack, OverrideChangesTheCurrentOneAndIsTakenBack) {
  const fwdmeta_context_t a = NewContext(), b = NewContext();
  fwdmeta_context_t previous = 77;
  ASSERT_OK(fwdmeta_context_override(0, &previous));
  EXPECT_EQ(0u, previous);
  ASSERT_OK(fwdmeta_context_push(a));
  // No context for a while: nothing is popped.
  ASSERT_OK(fwdmeta_context_override(0, &previous));
  EXPECT_EQ(a, previous);
  EXPECT_EQ(0u, Current());
  EXPECT_STATUS(FWDMETA_BUSY, fwdmeta_context_destroy(a));
  EXPECT_STATUS(FWDMETA_ALREADY_EXISTS, fwdmeta_context_push(a));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_pop(a));
  ASSERT_OK(fwdmeta_context_push(b));  // on top of none
  EXPECT_EQ(b, Current());
  ASSERT_OK(fwdmeta_context_pop(b));
  EXPECT_EQ(0u, Current());
  ASSERT_OK(fwdmeta_context_override(previous, &previous));
  EXPECT_EQ(0u, previous);
  EXPECT_EQ(a, Current());
  // One of the same stack that is not the top does not come off before what is above it.
  ASSERT_OK(fwdmeta_context_push(b));
  ASSERT_OK(fwdmeta_context_override(a, &previous));
  EXPECT_EQ(b, previous);
  EXPECT_EQ(a, Current());
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_pop(a));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_pop(b));
  const fwdmeta_context_t c = NewContext();
  ASSERT_OK(fwdmeta_context_push(c));
  ASSERT_OK(fwdmeta_context_pop(c));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_pop(a));
  ASSERT_OK(fwdmeta_context_override(b, nullptr));
  ASSERT_OK(fwdmeta_context_pop(b));
  ASSERT_OK(fwdmeta_context_pop(a));
  EXPECT_EQ(0u, Current());
  for (fwdmeta_context_t context : {a, b, c}) EXPECT_OK(fwdmeta_context_destroy(context));
}

// A context of another thread is current here by an override, and ends there.
TEST(Stack, WhatEndsElsewhereIsExpiredHere) {
  const fwdmeta_context_t context = NewContext(), own = NewContext();
  ASSERT_OK(fwdmeta_context_push(context));
  std::atomic<int> turn{0};
  std::thread other([&] {
    fwdmeta_context_t previous = 77;
    EXPECT_OK(fwdmeta_context_override(context, &previous));
    EXPECT_EQ(0u, previous);
    EXPECT_EQ(context, Current());
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_pop(context));
    EXPECT_OK(fwdmeta_context_push(own));  // over a context of another thread
    turn = 1;
    while (turn != 2) std::this_thread::yield();
    EXPECT_OK(fwdmeta_context_pop(own));
    fwdmeta_context_t current = 0;
    EXPECT_OK(fwdmeta_context_current(&current));
    EXPECT_EQ(context, current);
    for (const Getter& getter : kGetters) EXPECT_EQ(FWDMETA_EXPIRED, getter.get(current)) << getter.name;
    EXPECT_STATUS(FWDMETA_NOT_SET, fwdmeta_context_pop(current));
    // It may even be pushed here, over the number that it left behind, and comes off again.
    EXPECT_OK(fwdmeta_context_push(context));
    EXPECT_EQ(FWDMETA_NOT_SET, kGetters[0].get(context));
    EXPECT_OK(fwdmeta_context_pop(context));
    turn = 3;
    while (turn != 4) std::this_thread::yield();
    for (const Getter& getter : kGetters) EXPECT_EQ(FWDMETA_INVALID_HANDLE, getter.get(current)) << getter.name;
    EXPECT_OK(fwdmeta_context_push(own));
    EXPECT_OK(fwdmeta_context_pop(own));
    EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_context_override(context, nullptr));
    EXPECT_OK(fwdmeta_context_override(0, &previous));
    EXPECT_EQ(context, previous);
    EXPECT_EQ(0u, Current());
  });
  while (turn != 1) std::this_thread::yield();
  EXPECT_OK(fwdmeta_context_pop(context));
  turn = 2;
  while (turn != 3) std::this_thread::yield();
  EXPECT_OK(fwdmeta_context_destroy(context));
  // The next context in its place is another one.
  const fwdmeta_context_t next = NewContext();
  EXPECT_NE(context, next);
  ASSERT_OK(fwdmeta_context_push(next));
  turn = 4;
  other.join();
  ASSERT_OK(fwdmeta_context_pop(next));
  EXPECT_OK(fwdmeta_context_destroy(next));
  EXPECT_OK(fwdmeta_context_destroy(own));
}

// ---- the cursor

TEST(Cursor, GoesThroughTheMoeLayersAndStartsOverAtPush) {
  fwdmeta_layers_t layers = ThreeLayers();
  fwdmeta_context_t context = NewContext(layers), second = NewContext(layers);
  for (int round = 0; round < 3; ++round) {
    ASSERT_OK(fwdmeta_context_push(context));
    int64_t index = -1;
    ASSERT_OK(fwdmeta_context_next_moe_layer(context, &index));
    EXPECT_EQ(0, index);
    if (round == 1) {  // left in the middle
      ASSERT_OK(fwdmeta_context_pop(context));
      continue;
    }
    // vllm §4.7, #32805: a nested forward has a cursor of its own.
    ASSERT_OK(fwdmeta_context_push(second));
    ASSERT_OK(fwdmeta_context_next_moe_layer(second, &index));
    EXPECT_EQ(0, index);
    ASSERT_OK(fwdmeta_context_pop(second));
    ASSERT_OK(fwdmeta_context_next_moe_layer(context, &index));
    EXPECT_EQ(2, index);
    for (int i = 0; i < 2; ++i) {
      EXPECT_STATUS(FWDMETA_OUT_OF_RANGE, fwdmeta_context_next_moe_layer(context, &index));
      EXPECT_TRUE(MessageHas("2"));
    }
    EXPECT_EQ(2, index);
    ASSERT_OK(fwdmeta_context_pop(context));
  }
  EXPECT_OK(fwdmeta_context_destroy(context));
  EXPECT_OK(fwdmeta_context_destroy(second));
  EXPECT_OK(fwdmeta_layers_destroy(layers));
  ASSERT_OK(fwdmeta_layers_create(&layers));
  context = NewContext(layers);
  ASSERT_OK(fwdmeta_context_push(context));
  int64_t index;
  EXPECT_STATUS(FWDMETA_OUT_OF_RANGE, fwdmeta_context_next_moe_layer(context, &index)) << "a registry, and no layer";
  ASSERT_OK(fwdmeta_context_pop(context));
  EXPECT_OK(fwdmeta_context_destroy(context));
  EXPECT_OK(fwdmeta_layers_destroy(layers));
}

// vllm §1.7: vLLM's sp_local_sizes sets None on leaving. Here the outer value comes back.
TEST(Cursor, LocalSizesNestAndRestoreTheOuterOnes) {
  fwdmeta_context_t context = NewContext();
  ASSERT_OK(fwdmeta_context_push(context));
  const int64_t* sizes = nullptr;
  int64_t count = 42;
  EXPECT_STATUS(FWDMETA_NOT_SET, fwdmeta_context_get_local_sizes(context, &sizes, &count));
  EXPECT_STATUS(FWDMETA_NOT_SET, fwdmeta_context_pop_local_sizes(context));
  const int64_t all[] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  for (int depth = 1; depth <= 8; ++depth) ASSERT_OK(fwdmeta_context_push_local_sizes(context, all, depth));
  EXPECT_STATUS(FWDMETA_CAPACITY_EXCEEDED, fwdmeta_context_push_local_sizes(context, all, 9));
  EXPECT_TRUE(MessageHas("8"));
  for (int depth = 8; depth >= 1; --depth) {
    ASSERT_OK(fwdmeta_context_get_local_sizes(context, &sizes, &count));
    EXPECT_EQ(all, sizes);
    EXPECT_EQ(depth, count);
    ASSERT_OK(fwdmeta_context_pop_local_sizes(context));
  }
  EXPECT_STATUS(FWDMETA_NOT_SET, fwdmeta_context_get_local_sizes(context, &sizes, &count));
  const int64_t bad[] = {3, -1, int64_t{1} << 31};
  for (int64_t refused : {int64_t{0}, int64_t{-1}, int64_t{2}, int64_t{1} << 31}) {
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_push_local_sizes(context, bad, refused));
  }
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_push_local_sizes(context, bad + 2, 1));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_push_local_sizes(context, nullptr, 1));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_get_local_sizes(context, nullptr, &count));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_context_get_local_sizes(context, &sizes, nullptr));
  EXPECT_STATUS(FWDMETA_NOT_SET, fwdmeta_context_get_local_sizes(context, &sizes, &count));
  // What a forward that was left has not popped is gone at the next push.
  ASSERT_OK(fwdmeta_context_push_local_sizes(context, all, 4));
  ASSERT_OK(fwdmeta_context_pop(context));
  ASSERT_OK(fwdmeta_context_push(context));
  EXPECT_STATUS(FWDMETA_NOT_SET, fwdmeta_context_get_local_sizes(context, &sizes, &count));
  ASSERT_OK(fwdmeta_context_pop(context));
  EXPECT_OK(fwdmeta_context_destroy(context));
}

// ---- allocation

// "Nothing allocates in set, push, pop or get after creation", errors included.
TEST(ForwardContext, AllocatesNothingAfterCreation) {
  fwdmeta_layers_t layers = ThreeLayers();
  const int64_t before_creation = allocations;
  fwdmeta_context_t context = NewContext(layers, 2, 3), inner = NewContext();
  ASSERT_LT(before_creation, allocations) << "the test's counter sees nothing of the library";
  const std::string longest(63, 'v');
  int64_t index = 0, count = 0;
  const int64_t* sizes = nullptr;
  void* pointer = nullptr;
  fwdmeta_context_t current = 0;
  fwdmeta_slice_t slices[2];
  const fwdmeta_attn_metadata_t metadata = {&objects[0], 0};
  fwdmeta_attn_metadata_t out;
  fwdmeta_status_t failed = FWDMETA_OK;  // EXPECT may allocate
  const auto ok = [&failed](fwdmeta_status_t status) {
    if (status != FWDMETA_OK) failed = status;
  };
  const int64_t before = allocations;
  for (int step = 0; step < 3; ++step) {
    ok(fwdmeta_context_reset(context));
    for (const Setter& setter : kSetters) ok(setter.set(context));
    for (int64_t layer = 0; layer < 3; ++layer) {
      for (int64_t slice = 0; slice < 2; ++slice) {
        ok(fwdmeta_context_set_attn_metadata(context, layer, slice, &metadata));
        ok(fwdmeta_context_set_slot_mapping(context, layer, slice, kSlots, 3));
      }
    }
    ok(fwdmeta_context_set_slices(context, kTwoSlices, 2));
    fwdmeta_context_set_int64(context, longest.c_str(), 1);  // no room
    ok(fwdmeta_context_push(context));
    ok(fwdmeta_context_push(inner));
    ok(fwdmeta_context_override(context, &current));
    ok(fwdmeta_context_override(inner, &current));
    ok(fwdmeta_context_pop(inner));
    ok(fwdmeta_context_current(&current));
    for (const Getter& getter : kGetters) ok(getter.get(current));
    ok(fwdmeta_context_get_slices(current, slices, 2, &count));
    ok(fwdmeta_context_get_pointer(current, "pointer", &pointer));
    ok(fwdmeta_context_find_layer(current, "model.layers.0.attn", &index));
    ok(fwdmeta_context_get_layer(current, index, nullptr, &pointer));
    ok(fwdmeta_context_get_attn_metadata(current, 2, 1, &out));
    ok(fwdmeta_context_next_moe_layer(current, &index));
    ok(fwdmeta_context_push_local_sizes(current, kSlots, 3));
    ok(fwdmeta_context_get_local_sizes(current, &sizes, &count));
    ok(fwdmeta_context_pop_local_sizes(current));
    fwdmeta_context_find_layer(current, "model.layers.77.attn", &index);
    fwdmeta_context_get_int64(current, longest.c_str(), &index);
    fwdmeta_context_push(context);
    fwdmeta_context_current(nullptr);
    ok(fwdmeta_context_pop(context));
    kGetters[0].get(context);
  }
  EXPECT_EQ(before, allocations);
  EXPECT_EQ(FWDMETA_OK, failed) << fwdmeta_last_error();
#if FWDMETA_TEST_MALLOC
  std::free(std::malloc(8));
  EXPECT_EQ(before + 1, allocations) << "malloc is not counted";
#endif
  EXPECT_OK(fwdmeta_context_destroy(context));
  EXPECT_OK(fwdmeta_context_destroy(inner));
  EXPECT_OK(fwdmeta_layers_destroy(layers));
}

// ---- threads

int Steps() {
  const char* steps = std::getenv("FWDMETA_TEST_STEPS");
  return steps != nullptr ? std::atoi(steps) : 10000;
}

// One engine step of a layer: everything by the current context of the thread.
bool LayerReads(const char* name, int64_t want_index, int64_t want_tokens) {
  fwdmeta_context_t current = 0;
  int64_t index = -1;
  fwdmeta_attn_metadata_t metadata = {nullptr, 0};
  fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
  fwdmeta_batch_descriptor_t descriptor = {};
  int64_t step = -1;
  return fwdmeta_context_current(&current) == FWDMETA_OK &&
         fwdmeta_context_find_layer(current, name, &index) == FWDMETA_OK && index == want_index &&
         fwdmeta_context_get_attn_metadata(current, index, 0, &metadata) == FWDMETA_OK &&
         fwdmeta_meta_wait(metadata.meta, 0, 0, &counts) == FWDMETA_OK && counts.num_tokens == want_tokens &&
         fwdmeta_context_get_descriptor(current, &descriptor) == FWDMETA_OK && descriptor.num_tokens == want_tokens &&
         fwdmeta_context_get_int64(current, "tokens", &step) == FWDMETA_OK && step == want_tokens;
}

// Eight engine threads in one process, each with a builder and a context of its own; the layers are shared.
TEST(Threads, EightEnginesDoNotSeeEachOther) {
  constexpr int kThreads = 8;
  const int steps = Steps();
  const fwdmeta_layers_t layers = ThreeLayers();
  std::atomic<int> started{0}, failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t, steps, layers, &started, &failures] {
      const fwdmeta_context_t context = NewContext(layers);
      fwdmeta_config_t config = FWDMETA_CONFIG_INITIALIZER;
      config.backend = FWDMETA_BACKEND_HOST;
      config.max_batch_size = 4;
      config.max_num_tokens = 64;
      config.max_model_len = 128;
      config.num_q_heads = config.num_kv_heads = 1;
      fwdmeta_builder_t builder = 0;
      EXPECT_OK(fwdmeta_builder_create(&config, &builder));
      ++started;
      while (started < kThreads) std::this_thread::yield();
      for (int step = 0; step < steps; ++step) {
        const int32_t e[] = {0, 0}, d[] = {t, step % 50}, n[] = {t + 1, step % 7 + 1};
        const int32_t tokens = n[0] + n[1];
        fwdmeta_batch_t batch = FWDMETA_BATCH_INITIALIZER;
        batch.memory_kind = FWDMETA_MEMORY_HOST;
        batch.batch_size = 2;
        batch.seq_lens_encoder = e;
        batch.seq_lens_decoder = d;
        batch.seq_lens_this_time = n;
        fwdmeta_attn_metadata_t metadata = {nullptr, 0};
        const fwdmeta_batch_descriptor_t descriptor = {tokens, 2, 0, 0, 0};
        const int64_t sizes[] = {tokens};
        int64_t first = -1, second = -1;
        const bool good = fwdmeta_build(builder, &batch, &metadata.meta, nullptr) == FWDMETA_OK &&
                          fwdmeta_context_reset(context) == FWDMETA_OK &&
                          fwdmeta_context_set_attn_metadata(context, FWDMETA_ALL_LAYERS, 0, &metadata) == FWDMETA_OK &&
                          fwdmeta_context_set_descriptor(context, &descriptor) == FWDMETA_OK &&
                          fwdmeta_context_set_int64(context, "tokens", tokens) == FWDMETA_OK &&
                          fwdmeta_context_push(context) == FWDMETA_OK && LayerReads("model.layers.0.mlp", 0, tokens) &&
                          LayerReads("model.layers.0.attn", 1, tokens) && LayerReads("model.layers.1.mlp", 2, tokens) &&
                          fwdmeta_context_push_local_sizes(context, sizes, 1) == FWDMETA_OK &&
                          fwdmeta_context_next_moe_layer(context, &first) == FWDMETA_OK && first == 0 &&
                          fwdmeta_context_next_moe_layer(context, &second) == FWDMETA_OK && second == 2 &&
                          fwdmeta_context_pop_local_sizes(context) == FWDMETA_OK &&
                          fwdmeta_context_pop(context) == FWDMETA_OK &&
                          fwdmeta_meta_destroy(metadata.meta) == FWDMETA_OK;
        if (!good) {
          ADD_FAILURE() << "thread " << t << ", step " << step << ": " << fwdmeta_last_error();
          ++failures;
          break;
        }
      }
      EXPECT_EQ(0u, Current());
      fwdmeta_context_pop(context);
      EXPECT_OK(fwdmeta_context_destroy(context));
      EXPECT_OK(fwdmeta_builder_destroy(builder));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(0, failures);
  EXPECT_OK(fwdmeta_layers_destroy(layers));
}

// "reading a pushed one is free to all": readers on other threads race neither with each other nor with the cursor, and
// after the pop each of them is told.
TEST(Threads, ManyReadOnePushedContext) {
  const fwdmeta_layers_t layers = ThreeLayers();
  const fwdmeta_context_t context = NewContext(layers, 2);
  for (int round = 0; round < 20; ++round) {
    ASSERT_OK(fwdmeta_context_reset(context));
    for (const Setter& setter : kSetters) ASSERT_OK(setter.set(context)) << setter.name;
    ASSERT_OK(fwdmeta_context_push(context));
    std::atomic<int> reading{0};
    std::vector<std::thread> readers;
    for (int t = 0; t < 4; ++t) {
      readers.emplace_back([&reading, context] {
        const int64_t* sizes;
        int64_t count, index;
        bool expired = false;
        for (int i = 0; !expired; ++i) {
          for (const Getter& getter : kGetters) {
            const fwdmeta_status_t status = getter.get(context);
            if (status == FWDMETA_EXPIRED) expired = true;
            EXPECT_TRUE(status == FWDMETA_OK || (expired && status == FWDMETA_EXPIRED)) << getter.name;
          }
          if (fwdmeta_context_get_local_sizes(context, &sizes, &count) == FWDMETA_OK) {
            EXPECT_EQ(3, count);
          }
          fwdmeta_context_find_layer(context, "model.layers.0.attn", &index);
          if (i == 3) ++reading;
          std::this_thread::yield();
        }
      });
    }
    int64_t index;
    while (reading < 4) {
      EXPECT_OK(fwdmeta_context_push_local_sizes(context, kSlots, 3));
      fwdmeta_context_next_moe_layer(context, &index);
      EXPECT_OK(fwdmeta_context_pop_local_sizes(context));
      std::this_thread::yield();
    }
    ASSERT_OK(fwdmeta_context_pop(context));
    for (std::thread& reader : readers) reader.join();
  }
  EXPECT_OK(fwdmeta_context_destroy(context));
  EXPECT_OK(fwdmeta_layers_destroy(layers));
}

// Of threads that push, pop and destroy one context at once, each push has one winner and nothing breaks.
TEST(Threads, PushHasOneWinner) {
  for (int round = 0; round < 200; ++round) {
    const fwdmeta_context_t context = NewContext();
    std::atomic<int> ready{0}, won{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        ++ready;
        while (ready < 3) std::this_thread::yield();
        const fwdmeta_status_t status = fwdmeta_context_push(context);
        if (status != FWDMETA_OK) {
          EXPECT_EQ(FWDMETA_ALREADY_EXISTS, status);
          EXPECT_STATUS(FWDMETA_BUSY, fwdmeta_context_destroy(context));
        } else {
          ++won;
        }
        ++ready;
        while (ready < 6) std::this_thread::yield();
        EXPECT_EQ(status == FWDMETA_OK ? FWDMETA_OK : FWDMETA_NOT_SET,
                  status == FWDMETA_OK ? fwdmeta_context_pop(context) : FWDMETA_NOT_SET);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(1, won);
    EXPECT_OK(fwdmeta_context_destroy(context));
  }
}

TEST(Threads, PushAndDestroyAreEitherOr) {
  for (int round = 0; round < 200; ++round) {
    const fwdmeta_context_t context = NewContext();
    std::atomic<int> ready{0};
    fwdmeta_status_t destroyed = -1;
    std::thread other([&] {
      ++ready;
      while (ready < 2) std::this_thread::yield();
      destroyed = fwdmeta_context_destroy(context);
    });
    ++ready;
    while (ready < 2) std::this_thread::yield();
    const fwdmeta_status_t pushed = fwdmeta_context_push(context);
    other.join();
    if (pushed == FWDMETA_OK) {
      EXPECT_EQ(FWDMETA_BUSY, destroyed);
      EXPECT_OK(fwdmeta_context_pop(context));
      EXPECT_OK(fwdmeta_context_destroy(context));
    } else {
      EXPECT_EQ(FWDMETA_INVALID_HANDLE, pushed);
      EXPECT_EQ(FWDMETA_OK, destroyed);
    }
    EXPECT_EQ(0u, Current());
  }
}

}  // namespace
