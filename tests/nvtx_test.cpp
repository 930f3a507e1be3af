// The ranges that a library built with FWDMETA_NVTX shows a profiler. nvtx_recorder.c stands for the profiler.
#include <gtest/gtest.h>

#include <cstdlib>

#include "fwdmeta.h"

extern "C" const char* recorded_ranges(void);
extern "C" int open_ranges(void);

namespace {

TEST(Nvtx, ARangeHasThePublicCallsName) {
  ASSERT_EQ(0, setenv("NVTX_INJECTION64_PATH", FWDMETA_NVTX_RECORDER, 1));
  fwdmeta_config_t config = FWDMETA_CONFIG_INITIALIZER;
  config.backend = FWDMETA_BACKEND_HOST;
  config.max_batch_size = 2;
  config.max_num_tokens = 8;
  config.max_model_len = 64;
  config.num_q_heads = config.num_kv_heads = 1;
  fwdmeta_builder_t builder = 0;
  fwdmeta_slicer_t slicer = 0;
  ASSERT_EQ(FWDMETA_OK, fwdmeta_builder_create(&config, &builder));
  ASSERT_EQ(FWDMETA_OK, fwdmeta_slicer_create(&config, 2, &slicer));
  int32_t e[] = {0, 4}, d[] = {9, 0}, n[] = {2, 4};
  fwdmeta_batch_t batch = FWDMETA_BATCH_INITIALIZER;
  batch.memory_kind = FWDMETA_MEMORY_HOST;
  batch.batch_size = 2;
  batch.seq_lens_encoder = e;
  batch.seq_lens_decoder = d;
  batch.seq_lens_this_time = n;
  EXPECT_STREQ("", recorded_ranges());
  EXPECT_EQ(FWDMETA_OK, fwdmeta_build(builder, &batch, nullptr, nullptr));
  EXPECT_STREQ("fwdmeta_build ", recorded_ranges());
  EXPECT_EQ(FWDMETA_OK, fwdmeta_build_slices(slicer, &batch, 2, FWDMETA_DEFAULT, nullptr));
  EXPECT_STREQ("fwdmeta_build_slices ", recorded_ranges());
  fwdmeta_advance_args_t args = FWDMETA_ADVANCE_ARGS_INITIALIZER;
  args.batch_size = 2;
  args.seq_lens_encoder = e;
  args.seq_lens_decoder = d;
  args.seq_lens_this_time = n;
  EXPECT_EQ(FWDMETA_OK, fwdmeta_advance(builder, &args));
  EXPECT_STREQ("fwdmeta_advance ", recorded_ranges());
  // A call that fails ends its range too.
  EXPECT_EQ(FWDMETA_INVALID_HANDLE, fwdmeta_build(0, &batch, nullptr, nullptr));
  EXPECT_STREQ("fwdmeta_build ", recorded_ranges());
  EXPECT_EQ(0, open_ranges());
  EXPECT_EQ(FWDMETA_OK, fwdmeta_slicer_destroy(slicer));
  EXPECT_EQ(FWDMETA_OK, fwdmeta_builder_destroy(builder));
}

}  // namespace
