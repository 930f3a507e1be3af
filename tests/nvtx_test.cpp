// The ranges that a library built with FWDMETA_NVTX shows a profiler. nvtx_recorder.c stands for the profiler.
#include <gtest/gtest.h>

#include <cstdlib>

#include "fwdmeta.h"
#include "two_slots.h"

extern "C" const char* recorded_ranges(void);
extern "C" int open_ranges(void);

namespace {

TEST(Nvtx, ARangeHasThePublicCallsName) {
  ASSERT_EQ(0, setenv("NVTX_INJECTION64_PATH", FWDMETA_NVTX_RECORDER, 1));
  fwdmeta_test::TwoSlots two;
  fwdmeta_builder_t builder = 0;
  fwdmeta_slicer_t slicer = 0;
  ASSERT_EQ(FWDMETA_OK, fwdmeta_builder_create(&two.config, &builder));
  ASSERT_EQ(FWDMETA_OK, fwdmeta_slicer_create(&two.config, 2, &slicer));
  EXPECT_STREQ("", recorded_ranges());
  EXPECT_EQ(FWDMETA_OK, fwdmeta_build(builder, &two.batch, nullptr, nullptr));
  EXPECT_STREQ("fwdmeta_build ", recorded_ranges());
  EXPECT_EQ(FWDMETA_OK, fwdmeta_build_slices(slicer, &two.batch, 2, FWDMETA_DEFAULT, nullptr));
  EXPECT_STREQ("fwdmeta_build_slices ", recorded_ranges());
  fwdmeta_advance_args_t args = FWDMETA_ADVANCE_ARGS_INITIALIZER;
  args.batch_size = 2;
  args.seq_lens_encoder = two.encoder;
  args.seq_lens_decoder = two.decoder;
  args.seq_lens_this_time = two.this_time;
  EXPECT_EQ(FWDMETA_OK, fwdmeta_advance(builder, &args));
  EXPECT_STREQ("fwdmeta_advance ", recorded_ranges());
  // A call that fails ends its range too.
  EXPECT_EQ(FWDMETA_INVALID_HANDLE, fwdmeta_build(0, &two.batch, nullptr, nullptr));
  EXPECT_STREQ("fwdmeta_build ", recorded_ranges());
  EXPECT_EQ(0, open_ranges());
  EXPECT_EQ(FWDMETA_OK, fwdmeta_slicer_destroy(slicer));
  EXPECT_EQ(FWDMETA_OK, fwdmeta_builder_destroy(builder));
}

}  // namespace
