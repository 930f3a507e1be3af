// Calls when the C++ runtime runs out of memory at any of their allocations: the status says so, nothing is left
// behind, and the next call works.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "fwdmeta.h"

namespace {
int allocations_left = -1;          // negative: as many as are asked for
std::atomic<int64_t> allocated{0};  // and not yet deleted
}  // namespace

// Exported, so that the library calls them too.
#define FWDMETA_TEST_EXPORT __attribute__((visibility("default"), used, noinline))
FWDMETA_TEST_EXPORT void* operator new(std::size_t size) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  ++allocated;
  return memory;
}
FWDMETA_TEST_EXPORT void operator delete(void* memory) noexcept {
  if (memory != nullptr) --allocated;
  std::free(memory);
}
FWDMETA_TEST_EXPORT void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }

namespace {

fwdmeta_config_t SmallConfig(int64_t max_metas) {
  fwdmeta_config_t config = FWDMETA_CONFIG_INITIALIZER;
  config.backend = FWDMETA_BACKEND_HOST;
  config.max_batch_size = config.max_num_tokens = config.max_model_len = 4;
  config.num_q_heads = config.num_kv_heads = 1;
  config.max_metas = max_metas;
  return config;
}

// Of DLManagedTensor: a DLTensor of 48 bytes, the manager's pointer, the deleter.
constexpr size_t kDeleterOffset = 56;

TEST(OutOfMemory, AFailedCreationLeavesTheNextOneWhole) {
  int failed = 0;
  for (int n = 0;; ++n) {
    fwdmeta_builder_t builder = 0;
    const fwdmeta_config_t config = SmallConfig(64);
    allocations_left = n;
    const fwdmeta_status_t status = fwdmeta_builder_create(&config, &builder);
    allocations_left = -1;
    if (status == FWDMETA_OK) {
      EXPECT_EQ(FWDMETA_OK, fwdmeta_builder_destroy(builder));
      break;
    }
    ++failed;
    EXPECT_EQ(FWDMETA_OUT_OF_MEMORY, status) << n << ": " << fwdmeta_last_error();
    EXPECT_EQ(0u, builder);
    for (int64_t max_metas : {1, 16, 300}) {
      const fwdmeta_config_t next = SmallConfig(max_metas);
      EXPECT_EQ(FWDMETA_OK, fwdmeta_builder_create(&next, &builder)) << n << ": " << fwdmeta_last_error();
      EXPECT_EQ(FWDMETA_OK, fwdmeta_builder_destroy(builder));
      builder = 0;
    }
  }
  EXPECT_GT(failed, 20) << "the test's operator new is not the one that the library calls";
}

TEST(OutOfMemory, AFailedSlicerLeavesTheNextOneWhole) {
  int failed = 0;
  for (int n = 0;; ++n) {
    fwdmeta_slicer_t slicer = 0;
    const fwdmeta_config_t config = SmallConfig(4);
    allocations_left = n;
    const fwdmeta_status_t status = fwdmeta_slicer_create(&config, 3, &slicer);
    allocations_left = -1;
    if (status == FWDMETA_OK) {
      EXPECT_EQ(FWDMETA_OK, fwdmeta_slicer_destroy(slicer));
      break;
    }
    ++failed;
    EXPECT_EQ(FWDMETA_OUT_OF_MEMORY, status) << n << ": " << fwdmeta_last_error();
    EXPECT_EQ(0u, slicer);
    ASSERT_EQ(FWDMETA_OK, fwdmeta_slicer_create(&config, 2, &slicer)) << n << ": " << fwdmeta_last_error();
    EXPECT_EQ(FWDMETA_OK, fwdmeta_slicer_destroy(slicer));
  }
  EXPECT_GT(failed, 20) << "the test's operator new is not the one that the library calls";
}

// What a call makes is ended by `undo`. Refused at each allocation in turn, it leaves as many blocks as there were.
void RefuseInTurn(const char* name, int least, const std::function<fwdmeta_status_t()>& call,
                  const std::function<void()>& undo) {
  SCOPED_TRACE(name);
  ASSERT_EQ(FWDMETA_OK, call()) << fwdmeta_last_error();  // tables of the library that grow once
  undo();
  int failed = 0;
  for (int n = 0; n < 10000; ++n) {
    const int64_t before = allocated;
    allocations_left = n;
    const fwdmeta_status_t status = call();
    allocations_left = -1;
    if (status == FWDMETA_OK) {
      undo();
      break;
    }
    ++failed;
    EXPECT_EQ(FWDMETA_OUT_OF_MEMORY, status) << n << ": " << fwdmeta_last_error();
    EXPECT_EQ(before, allocated) << "refused allocation " << n;
    EXPECT_EQ(FWDMETA_OK, call()) << "after refused allocation " << n << ": " << fwdmeta_last_error();
    undo();
  }
  EXPECT_GE(failed, least);
}

TEST(OutOfMemory, EveryOtherCallThatAllocates) {
  fwdmeta_dispatcher_t dispatcher = 0;
  const int64_t sizes[] = {1, 2, 4, 8};
  fwdmeta_dispatcher_config_t dispatcher_config = FWDMETA_DISPATCHER_CONFIG_INITIALIZER;
  dispatcher_config.mode = FWDMETA_GRAPH_FULL_AND_PIECEWISE;
  dispatcher_config.max_num_seqs = dispatcher_config.max_num_tokens = 8;
  dispatcher_config.capture_sizes = sizes;
  dispatcher_config.num_capture_sizes = 4;
  RefuseInTurn(
      "dispatcher_create", 3, [&] { return fwdmeta_dispatcher_create(&dispatcher_config, &dispatcher); },
      [&] { EXPECT_EQ(FWDMETA_OK, fwdmeta_dispatcher_destroy(dispatcher)); });

  fwdmeta_transport_t transport = 0;
  fwdmeta_transport_config_t transport_config = FWDMETA_TRANSPORT_CONFIG_INITIALIZER;
  transport_config.num_ranks = 4;
  transport_config.gather = [](const void*, void*, size_t, int64_t, void*) -> fwdmeta_status_t { return FWDMETA_OK; };
  RefuseInTurn(
      "transport_create", 1, [&] { return fwdmeta_transport_create(&transport_config, &transport); },
      [&] { EXPECT_EQ(FWDMETA_OK, fwdmeta_transport_destroy(transport)); });

  fwdmeta_layers_t layers = 0;
  RefuseInTurn(
      "layers_create", 1, [&] { return fwdmeta_layers_create(&layers); },
      [&] { EXPECT_EQ(FWDMETA_OK, fwdmeta_layers_destroy(layers)); });
  ASSERT_EQ(FWDMETA_OK, fwdmeta_layers_create(&layers));
  // Layers stay, so each call has a name of its own.
  int added = 0;
  for (int n = 0; added < 40; ++n) {
    const std::string name = "a layer whose name is too long for a string's own room, number " + std::to_string(added);
    int64_t count = 0;
    allocations_left = n % 5;
    const fwdmeta_status_t status = fwdmeta_layers_add(layers, name.c_str(), &layers, n % 2, nullptr);
    allocations_left = -1;
    ASSERT_TRUE(status == FWDMETA_OK || status == FWDMETA_OUT_OF_MEMORY) << fwdmeta_last_error();
    added += status == FWDMETA_OK;
    ASSERT_EQ(FWDMETA_OK, fwdmeta_layers_count(layers, &count, nullptr));
    ASSERT_EQ(added, count);
    int64_t index = -1;
    ASSERT_EQ(status == FWDMETA_OK ? FWDMETA_OK : FWDMETA_NOT_FOUND, fwdmeta_layers_find(layers, name.c_str(), &index));
  }
  fwdmeta_context_t context = 0;
  fwdmeta_context_config_t context_config = FWDMETA_CONTEXT_CONFIG_INITIALIZER;
  context_config.layers = layers;
  context_config.max_slices = 3;
  RefuseInTurn(
      "context_create", 3, [&] { return fwdmeta_context_create(&context_config, &context); },
      [&] { EXPECT_EQ(FWDMETA_OK, fwdmeta_context_destroy(context)); });
  EXPECT_EQ(FWDMETA_OK, fwdmeta_layers_destroy(layers));

  fwdmeta_builder_t builder = 0;
  const fwdmeta_config_t config = SmallConfig(4);
  ASSERT_EQ(FWDMETA_OK, fwdmeta_builder_create(&config, &builder));
  fwdmeta_meta_t meta = 0;
  const fwdmeta_batch_t empty = FWDMETA_BATCH_INITIALIZER;
  ASSERT_EQ(FWDMETA_OK, fwdmeta_build(builder, &empty, &meta, nullptr));
  const auto write = [](const char*, size_t, void*) -> int32_t { return 0; };
  RefuseInTurn(
      "meta_dump", 3, [&] { return fwdmeta_meta_dump(meta, FWDMETA_DUMP_JSON, write, nullptr); }, [] {});
  RefuseInTurn(
      "metrics_write", 1, [&] { return fwdmeta_metrics_write(write, nullptr); }, [] {});
  DLManagedTensor* tensor = nullptr;
  const fwdmeta_dlpack_args_t args = FWDMETA_DLPACK_ARGS_INITIALIZER;
  RefuseInTurn(
      "meta_to_dlpack", 1, [&] { return fwdmeta_meta_to_dlpack_no_sync(meta, &args, &tensor); },
      [&] {
        // DLPack's struct ends with its deleter.
        void (*deleter)(DLManagedTensor*) = nullptr;
        std::memcpy(&deleter, reinterpret_cast<const char*>(tensor) + kDeleterOffset, sizeof deleter);
        deleter(tensor);
      });
  // These allocate nothing after creation, so they cannot run out of memory.
  fwdmeta_tensor_t plain = FWDMETA_TENSOR_INITIALIZER;
  plain.data = &plain;
  fwdmeta_meta_t second = 0;
  allocations_left = 0;
  const fwdmeta_status_t none[] = {fwdmeta_build(builder, &empty, &second, nullptr),
                                   fwdmeta_meta_wait(second, FWDMETA_WAIT_FINAL, -1, nullptr),
                                   fwdmeta_builder_set_tensor(builder, "attn_mask", &plain),
                                   fwdmeta_meta_set_tensor(second, "rotary_embs", &plain),
                                   fwdmeta_meta_get(second, "rotary_embs", &plain),
                                   fwdmeta_meta_set_attn_backend(second, "a name that has room in the meta", &plain),
                                   fwdmeta_builder_reset(builder, nullptr),
                                   fwdmeta_meta_destroy(second)};
  allocations_left = -1;
  for (const fwdmeta_status_t status : none) EXPECT_EQ(FWDMETA_OK, status);
  EXPECT_EQ(FWDMETA_OK, fwdmeta_meta_destroy(meta));
  EXPECT_EQ(FWDMETA_OK, fwdmeta_builder_destroy(builder));
}

// A callback must not throw, and where it does nothing comes through the C interface.
TEST(OutOfMemory, WhatACallbackThrowsIsCaught) {
  fwdmeta_builder_t builder = 0;
  fwdmeta_meta_t meta = 0;
  const fwdmeta_config_t config = SmallConfig(4);
  ASSERT_EQ(FWDMETA_OK, fwdmeta_builder_create(&config, &builder));
  const fwdmeta_batch_t empty = FWDMETA_BATCH_INITIALIZER;
  ASSERT_EQ(FWDMETA_OK, fwdmeta_build(builder, &empty, &meta, nullptr));
  const struct {
    fwdmeta_write_callback_t write;
    fwdmeta_status_t want;
  } cases[] = {
      {[](const char*, size_t, void*) -> int32_t { throw std::bad_alloc(); }, FWDMETA_OUT_OF_MEMORY},
      {[](const char*, size_t, void*) -> int32_t { throw std::runtime_error("of the caller"); }, FWDMETA_INTERNAL},
      {[](const char*, size_t, void*) -> int32_t { throw 5; }, FWDMETA_INTERNAL}};
  for (const auto& c : cases) {
    EXPECT_EQ(c.want, fwdmeta_meta_dump(meta, FWDMETA_DUMP_JSON, c.write, nullptr)) << fwdmeta_last_error();
    EXPECT_EQ(c.want, fwdmeta_metrics_write(c.write, nullptr)) << fwdmeta_last_error();
  }
  EXPECT_EQ(FWDMETA_OK, fwdmeta_build(builder, &empty, nullptr, nullptr));
  EXPECT_EQ(FWDMETA_OK, fwdmeta_meta_destroy(meta));
  EXPECT_EQ(FWDMETA_OK, fwdmeta_builder_destroy(builder));
}

TEST(OutOfMemory, HandlesThatAreNotLeftAreRefusedAtCreation) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "a million metas, 4 GiB, take several times that under the thread sanitizer";
#endif
  std::vector<fwdmeta_builder_t> builders;
  fwdmeta_status_t status = FWDMETA_OK;
  while (status == FWDMETA_OK && builders.size() < 64) {
    const fwdmeta_config_t config = SmallConfig(65536);
    fwdmeta_builder_t builder = 0;
    status = fwdmeta_builder_create(&config, &builder);
    if (status == FWDMETA_OK) builders.push_back(builder);
  }
  EXPECT_EQ(FWDMETA_OUT_OF_MEMORY, status);
  for (fwdmeta_builder_t builder : builders) EXPECT_EQ(FWDMETA_OK, fwdmeta_builder_destroy(builder));
}

}  // namespace
