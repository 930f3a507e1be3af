// Creation when the C++ runtime runs out of memory at any of its allocations: the status says so, nothing is left
// behind, and the next creation works.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <vector>

#include "fwdmeta.h"

namespace {
int allocations_left = -1;  // negative: as many as are asked for
}

// Exported, so that the library calls them too.
#define FWDMETA_TEST_EXPORT __attribute__((visibility("default"), used))
FWDMETA_TEST_EXPORT void* operator new(std::size_t size) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
FWDMETA_TEST_EXPORT void operator delete(void* memory) noexcept { std::free(memory); }
FWDMETA_TEST_EXPORT void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

fwdmeta_config_t SmallConfig(int64_t max_metas) {
  fwdmeta_config_t config = FWDMETA_CONFIG_INITIALIZER;
  config.backend = FWDMETA_BACKEND_HOST;
  config.max_batch_size = config.max_num_tokens = config.max_model_len = 4;
  config.num_q_heads = config.num_kv_heads = 1;
  config.max_metas = max_metas;
  return config;
}

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
