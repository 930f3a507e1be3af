// Contract §7: what is refused, with which status and numbers, and what is left as it was.
#include <dlfcn.h>

#include <cstddef>
#include <cstring>
#include <thread>

#include "error_bits.h"

#if FWDMETA_TEST_CUDA
#include <cuda_runtime_api.h>
#endif

namespace fwdmeta_test {
namespace {

reference::Config SmallConfig() {
  reference::Config config;
  config.max_batch_size = 4;
  config.max_num_tokens = 32;
  config.max_model_len = 100;
  config.max_num_kv_tokens = 150;
  config.pad_seq_len = 2;
  config.pad_token_id = 11;
  return config;
}

fwdmeta_config_t SmallC(fwdmeta_backend_t backend) {
  static std::vector<fwdmeta_group_config_t> groups;
  fwdmeta_config_t config = ToC(SmallConfig(), backend, &groups);
  config.kernel_block_size = FWDMETA_DEFAULT;
  return config;
}

class Errors : public BackendTest {};

// ---- the table of §7

struct BadBatch {
  const char* name;
  std::vector<Slot> slots;
  int64_t padded;
  fwdmeta_status_t status;
  int32_t error, slot;
  int64_t value, limit;
};

const BadBatch kBadBatches[] = {
    {"N < 0", {{0, 5, 1}, {0, 5, -3}}, -1, FWDMETA_INVALID_BATCH, FWDMETA_ERROR_NEGATIVE, 1, -3, 0},
    {"N < 0, whatever E and D", {{0, 5, 1}, {-8, -9, -3}}, -1, FWDMETA_INVALID_BATCH, FWDMETA_ERROR_NEGATIVE, 1, -3, 0},
    {"E < 0", {{-7, 5, 1}}, -1, FWDMETA_INVALID_BATCH, FWDMETA_ERROR_NEGATIVE, 0, -7, 0},
    {"D < 0", {{0, 5, 0}, {0, 5, 1}, {0, -6, 1}}, -1, FWDMETA_INVALID_BATCH, FWDMETA_ERROR_NEGATIVE, 2, -6, 0},
    {"E before D", {{-7, -6, 1}}, -1, FWDMETA_INVALID_BATCH, FWDMETA_ERROR_NEGATIVE, 0, -7, 0},
    {"E != N", {{9, 0, 8}}, -1, FWDMETA_INVALID_BATCH, FWDMETA_ERROR_ENCODER_MISMATCH, 0, 9, 8},
    {"D + N > max_model_len", {{0, 5, 1}, {0, 98, 3}}, -1, FWDMETA_INVALID_BATCH, FWDMETA_ERROR_MODEL_LEN, 1, 101, 100},
    {"D + N past int32", {{0, INT32_MAX, 1}}, -1, FWDMETA_INVALID_BATCH, FWDMETA_ERROR_MODEL_LEN, 0, 2147483648, 100},
    {"the lowest bad slot gives the numbers",
     {{0, 5, 1}, {0, 98, 3}, {0, 0, -1}},
     -1,
     FWDMETA_INVALID_BATCH,
     FWDMETA_ERROR_NEGATIVE | FWDMETA_ERROR_MODEL_LEN,
     1,
     101,
     100},
    {"and its lowest bit",
     {{0, 5, 1}, {9, 98, 8}},
     -1,
     FWDMETA_INVALID_BATCH,
     FWDMETA_ERROR_ENCODER_MISMATCH | FWDMETA_ERROR_MODEL_LEN,
     1,
     9,
     8},
    {"sum of N > max_num_tokens",
     {{20, 0, 20}, {0, 5, 1}, {12, 0, 12}},
     -1,
     FWDMETA_CAPACITY_EXCEEDED,
     FWDMETA_ERROR_NUM_TOKENS,
     2,
     33,
     32},
    {"T < sum of N", {{7, 0, 7}, {0, 5, 2}}, 8, FWDMETA_CAPACITY_EXCEEDED, FWDMETA_ERROR_PADDED_TOKENS, -1, 9, 8},
    {"T = 0 < sum of N", {{7, 0, 7}}, 0, FWDMETA_CAPACITY_EXCEEDED, FWDMETA_ERROR_PADDED_TOKENS, -1, 7, 0},
    {"sum of D + N > max_num_kv_tokens",
     {{0, 99, 1}, {0, 49, 1}, {0, 0, 1}},
     -1,
     FWDMETA_CAPACITY_EXCEEDED,
     FWDMETA_ERROR_NUM_KV_TOKENS,
     2,
     151,
     150},
    {"all bits that apply, the lowest gives the numbers",
     {{20, 60, 20}, {20, 60, 20}},
     32,
     FWDMETA_CAPACITY_EXCEEDED,
     FWDMETA_ERROR_NUM_TOKENS | FWDMETA_ERROR_PADDED_TOKENS | FWDMETA_ERROR_NUM_KV_TOKENS,
     1,
     40,
     32},
    {"invalid before capacities, bad slots add nothing to the sums",
     {{20, 60, 20}, {20, 60, 20}, {0, 99, 9}},
     -1,
     FWDMETA_INVALID_BATCH,
     FWDMETA_ERROR_MODEL_LEN | FWDMETA_ERROR_NUM_TOKENS | FWDMETA_ERROR_NUM_KV_TOKENS,
     2,
     108,
     100},
};

TEST_P(Errors, EveryRowByDeviceAndHostLengths) {
  const reference::Config config = SmallConfig();
  Builder builder(backend(), config);
  reference::Batch good = MakeBatch({{6, 10, 6}, {3, -9, 0}, {0, 30, 2}}, 12);
  good.block_tables = {reference::Rows<int32_t>::Of({{4}, {5}, {6}})};
  good.input_ids = reference::Rows<int64_t>::Of({{1, 2, 3, 4, 5, 6}, {}, {7, 8}});
  ASSERT_TRUE(builder.Run(good));
  for (const BadBatch& bad : kBadBatches) {
    SCOPED_TRACE(bad.name);
    reference::Batch batch = MakeBatch(bad.slots, bad.padded);
    const fwdmeta_counts_t want = reference::Build(config, batch).counts;
    EXPECT_EQ(bad.error, want.error);
    EXPECT_EQ(bad.slot, want.error_slot);
    EXPECT_EQ(bad.value, want.error_value);
    EXPECT_EQ(bad.limit, want.error_limit);

    // Host lengths: from the call, nothing written.
    const int64_t before = builder.step();
    EXPECT_STATUS(bad.status, builder.Build(batch, FWDMETA_MEMORY_HOST));
    EXPECT_TRUE(HoldsNumbersOf(fwdmeta_last_error(), want)) << fwdmeta_last_error();
    EXPECT_EQ(before, builder.step());
    ASSERT_TRUE(builder.Run(batch, FWDMETA_MEMORY_HOST));  // compares the arrays with those of the step before
    // Device lengths: an error step, all padding.
    ASSERT_TRUE(builder.Run(batch, FWDMETA_MEMORY_DEVICE));
    fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
    EXPECT_STATUS(bad.status, fwdmeta_counts_wait(builder.handle(), builder.step(), 0, -1, &counts));
    EXPECT_EQ(bad.error, counts.error);
    EXPECT_EQ(bad.slot, counts.error_slot);
    EXPECT_EQ(bad.value, counts.error_value);
    EXPECT_EQ(bad.limit, counts.error_limit);
    EXPECT_EQ(builder.step(), counts.step);
    EXPECT_STATUS(bad.status, fwdmeta_counts_wait(builder.handle(), builder.step(), 0, -1, nullptr));
    // And the next good step is right.
    ASSERT_TRUE(builder.Run(good, FWDMETA_MEMORY_DEVICE));
    ASSERT_TRUE(builder.Run(good, FWDMETA_MEMORY_HOST));
  }
}

// Each bit alone and with any others, by both kinds of lengths; the good step after it is right.
TEST_P(Errors, EveryBitAloneAndTogether) {
  const reference::Batch good = MakeBatch({{0, 5, 1}});
  for (const int32_t kv : {0, static_cast<int32_t>(FWDMETA_ERROR_NUM_KV_TOKENS)}) {
    const reference::Config config = ErrorBitsConfig(kv);
    Builder builder(backend(), config);
    ASSERT_TRUE(builder.Run(good));
    for (int32_t bits = 1; bits <= kAllErrors; ++bits) {
      if ((bits & FWDMETA_ERROR_NUM_KV_TOKENS) != kv) continue;
      const reference::Batch bad = BatchWithErrors(bits);
      ASSERT_EQ(bits, reference::Build(config, bad).counts.error) << "of the model";
      ASSERT_TRUE(builder.Run(bad, FWDMETA_MEMORY_DEVICE)) << bits;
      ASSERT_EQ(bits, builder.Read(FWDMETA_FIELD_COUNTS)[16]) << "of the arrays";
      if (bits % 3 == 0) {
        ASSERT_TRUE(builder.Run(bad, FWDMETA_MEMORY_DEVICE)) << bits << " after itself";
      }
      ASSERT_TRUE(builder.Run(good, bits % 2 == 0 ? FWDMETA_MEMORY_HOST : FWDMETA_MEMORY_DEVICE)) << bits;
      ASSERT_TRUE(builder.Run(bad, FWDMETA_MEMORY_HOST)) << bits;  // refused: the good step's arrays are as they were
    }
  }
}

// Warnings leave the step valid, alone and together.
TEST_P(Errors, EveryWarningAloneAndTogether) {
  reference::Config config = SmallConfig();
  Builder builder(backend(), config);
  Buffer lengths(backend(), 4 * sizeof(int32_t));
  auto* device = static_cast<int32_t*>(lengths.data());
  for (int32_t bits = 0; bits < 8; ++bits) {
    if ((bits & FWDMETA_WARNING_REJECTED_CLAMPED) != 0) {
      const int32_t values[] = {0, 5, 1, 7};  // E, D, N, and more rejected than there are
      Upload(backend(), device, values, sizeof values);
      const fwdmeta_advance_args_t args = AdvanceOfSlot(device);
      ASSERT_OK(fwdmeta_advance(builder.handle(), &args));
      Synchronize(backend());
      // An error step does not use the warning up.
      fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
      ASSERT_OK(builder.Build(MakeBatch({{0, 5, -1}})));
      EXPECT_STATUS(FWDMETA_INVALID_BATCH, fwdmeta_meta_wait(builder.meta(), FWDMETA_WAIT_FINAL, -1, &counts));
      EXPECT_EQ(0, counts.warnings);
    }
    reference::Batch batch = MakeBatch({{0, 5, 2}});
    const int32_t page = (bits & FWDMETA_WARNING_INVALID_SLOTS) != 0 ? -1 : 3;
    batch.block_tables = {reference::Rows<int32_t>::Of({{page}})};
    batch.input_ids = reference::Rows<int64_t>::Of({{7, 8}});
    if ((bits & FWDMETA_WARNING_INVALID_IDS) != 0) batch.input_ids.lengths = {1};
    reference::Result want = reference::Build(config, batch);
    want.counts.warnings |= bits & FWDMETA_WARNING_REJECTED_CLAMPED;
    want.fields[FWDMETA_FIELD_COUNTS][15] = want.counts.warnings;
    ASSERT_EQ(bits, want.counts.warnings);
    ASSERT_OK(builder.Build(batch, bits % 2 == 0 ? FWDMETA_MEMORY_HOST : FWDMETA_MEMORY_DEVICE));
    ASSERT_TRUE(builder.Expect(want)) << bits;
    ASSERT_TRUE(builder.Run(MakeBatch({{0, 5, 1}}))) << "the next step has none, after " << bits;
  }
}

// B and a stated T against their maxima come first, then INVALID_BATCH.
TEST_P(Errors, OrderOfChecks) {
  Builder builder(backend(), SmallConfig());
  const std::vector<Slot> bad = {{0, 0, -1}, {0, 0, 1}, {0, 0, 1}, {0, 0, 1}};
  std::vector<Slot> many = bad;
  many.push_back({0, 0, 1});
  for (const auto kind : {FWDMETA_MEMORY_HOST, FWDMETA_MEMORY_DEVICE}) {
    EXPECT_STATUS(FWDMETA_CAPACITY_EXCEEDED, builder.Build(MakeBatch(many), kind));
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {5, 4})) << fwdmeta_last_error();
    EXPECT_STATUS(FWDMETA_CAPACITY_EXCEEDED, builder.Build(MakeBatch(bad, 33), kind));
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {33, 32})) << fwdmeta_last_error();
  }
  EXPECT_STATUS(FWDMETA_INVALID_BATCH, builder.Build(MakeBatch(bad), FWDMETA_MEMORY_HOST));
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 5, 1}})));
}

TEST_P(Errors, ArgumentsOfABuild) {
  Builder builder(backend(), SmallConfig());
  const reference::Batch batch = [] {
    reference::Batch b = MakeBatch({{0, 5, 1}, {0, 6, 1}});
    b.block_tables = {reference::Rows<int32_t>::Of({{1}, {2}})};
    b.input_ids = reference::Rows<int64_t>::Of({{1}, {2}});
    return b;
  }();
  const fwdmeta_batch_t good = builder.inputs().Put(batch, FWDMETA_MEMORY_DEVICE);
  fwdmeta_rows_t rows = good.block_tables[0];
  const struct {
    const char* name;
    void (*spoil)(fwdmeta_batch_t&, fwdmeta_rows_t&);
  } cases[] = {
      {"struct_size 0", [](fwdmeta_batch_t& b, fwdmeta_rows_t&) { b.struct_size = 0; }},
      {"memory_kind", [](fwdmeta_batch_t& b, fwdmeta_rows_t&) { b.memory_kind = 2; }},
      {"flags", [](fwdmeta_batch_t& b, fwdmeta_rows_t&) { b.flags = 1 << 30; }},
      {"batch_size < 0", [](fwdmeta_batch_t& b, fwdmeta_rows_t&) { b.batch_size = -1; }},
      {"T < -1", [](fwdmeta_batch_t& b, fwdmeta_rows_t&) { b.num_padded_tokens = -2; }},
      {"E null", [](fwdmeta_batch_t& b, fwdmeta_rows_t&) { b.seq_lens_encoder = nullptr; }},
      {"D null", [](fwdmeta_batch_t& b, fwdmeta_rows_t&) { b.seq_lens_decoder = nullptr; }},
      {"N null", [](fwdmeta_batch_t& b, fwdmeta_rows_t&) { b.seq_lens_this_time = nullptr; }},
      {"tables < 0", [](fwdmeta_batch_t& b, fwdmeta_rows_t&) { b.num_block_tables = -1; }},
      {"tables without their number", [](fwdmeta_batch_t& b, fwdmeta_rows_t&) { b.num_block_tables = 0; }},
      {"more tables than groups", [](fwdmeta_batch_t& b, fwdmeta_rows_t&) { b.num_block_tables = 2; }},
      {"tables null", [](fwdmeta_batch_t& b, fwdmeta_rows_t&) { b.block_tables = nullptr; }},
      {"width < 0", [](fwdmeta_batch_t&, fwdmeta_rows_t& r) { r.width = -1; }},
      {"width past int32", [](fwdmeta_batch_t&, fwdmeta_rows_t& r) { r.width = r.row_stride = int64_t{1} << 31; }},
      {"stride < width", [](fwdmeta_batch_t&, fwdmeta_rows_t& r) { r.width = 2; }},
      {"stride of ids < width", [](fwdmeta_batch_t& b, fwdmeta_rows_t&) { b.input_ids.width = 2; }},
      {"width of ids < 0", [](fwdmeta_batch_t& b, fwdmeta_rows_t&) { b.input_ids.width = -1; }},
  };
  for (const auto& c : cases) {
    fwdmeta_batch_t bad = good;
    fwdmeta_rows_t bad_rows = rows;
    bad.block_tables = &bad_rows;
    c.spoil(bad, bad_rows);
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, builder.Build(bad)) << c.name;
    EXPECT_STRNE("", fwdmeta_last_error()) << c.name;
  }
  for (int64_t generation : {-1, 1}) {
    fwdmeta_batch_t bad = good;
    bad.generation = generation;
    EXPECT_STATUS(FWDMETA_OUT_OF_RANGE, builder.Build(bad));
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {generation})) << fwdmeta_last_error();
  }
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_build(builder.handle(), nullptr, nullptr, nullptr));
  EXPECT_OK(fwdmeta_build(builder.handle(), &good, nullptr, nullptr));  // both outputs are optional
  ASSERT_TRUE(builder.Run(batch));
  EXPECT_EQ(2, builder.step()) << "refused builds take no step number";
}

// ---- refused configurations, one by one

struct BadConfig {
  const char* name;
  void (*spoil)(fwdmeta_config_t&);
  fwdmeta_status_t status = FWDMETA_INVALID_ARGUMENT;
};

constexpr int64_t kPast = int64_t{1} << 31;

const fwdmeta_group_config_t kGoodGroup = {64, 32, 0},
                             kBadGroups[] = {
                                 {0, FWDMETA_DEFAULT, 0},    {64, 0, 0}, {64, 48, 0}, {64, 64, 2}, {64, 64, -1},
                                 {kPast, FWDMETA_DEFAULT, 0}};

template <int kIndex>
void UseGroup(fwdmeta_config_t& c) {
  c.num_cache_groups = 1;
  c.cache_groups = &kBadGroups[kIndex];
}

const BadConfig kBadConfigs[] = {
    {"struct_size 0", [](fwdmeta_config_t& c) { c.struct_size = 0; }},
    {"backend", [](fwdmeta_config_t& c) { c.backend = 3; }},
    {"api_version of another major", [](fwdmeta_config_t& c) { c.api_version = 70000; }},
    {"device -1", [](fwdmeta_config_t& c) { c.device = -1; }},
    {"max_batch_size 0", [](fwdmeta_config_t& c) { c.max_batch_size = 0; }},
    {"max_batch_size not given", [](fwdmeta_config_t& c) { c.max_batch_size = FWDMETA_DEFAULT; }},
    {"max_batch_size past int32", [](fwdmeta_config_t& c) { c.max_batch_size = kPast; }},
    {"max_num_tokens 0", [](fwdmeta_config_t& c) { c.max_num_tokens = 0; }},
    {"max_num_tokens past int32", [](fwdmeta_config_t& c) { c.max_num_tokens = kPast; }},
    {"max_model_len 0", [](fwdmeta_config_t& c) { c.max_model_len = 0; }},
    {"max_model_len past int32", [](fwdmeta_config_t& c) { c.max_model_len = kPast; }},
    {"max_num_kv_tokens 0", [](fwdmeta_config_t& c) { c.max_num_kv_tokens = 0; }},
    {"max_num_kv_tokens -1", [](fwdmeta_config_t& c) { c.max_num_kv_tokens = -1; }},
    {"num_q_heads 0", [](fwdmeta_config_t& c) { c.num_q_heads = 0; }},
    {"num_q_heads past int32", [](fwdmeta_config_t& c) { c.num_q_heads = kPast; }},
    {"num_kv_heads 0", [](fwdmeta_config_t& c) { c.num_kv_heads = 0; }},
    {"num_kv_heads past int32", [](fwdmeta_config_t& c) { c.num_q_heads = c.num_kv_heads = kPast; }},
    {"heads not divisible", [](fwdmeta_config_t& c) { c.num_kv_heads = 3; }},
    {"fewer q heads than kv heads", [](fwdmeta_config_t& c) { c.num_kv_heads = 2 * c.num_q_heads; }},
    {"block_size 0", [](fwdmeta_config_t& c) { c.block_size = 0; }},
    {"block_size past int32", [](fwdmeta_config_t& c) { c.block_size = kPast, c.kernel_block_size = 1; }},
    {"kernel_block_size 0", [](fwdmeta_config_t& c) { c.kernel_block_size = 0; }},
    {"kernel_block_size 48 of 64", [](fwdmeta_config_t& c) { c.kernel_block_size = 48; }},
    {"kernel_block_size > block_size", [](fwdmeta_config_t& c) { c.kernel_block_size = 128; }},
    {"num_cache_groups -1", [](fwdmeta_config_t& c) { c.num_cache_groups = -1; }},
    {"num_cache_groups 9", [](fwdmeta_config_t& c) { c.num_cache_groups = 9, c.cache_groups = &kGoodGroup; }},
    {"cache_groups null", [](fwdmeta_config_t& c) { c.num_cache_groups = 1, c.cache_groups = nullptr; }},
    {"group block_size 0", UseGroup<0>},
    {"group kernel_block_size 0", UseGroup<1>},
    {"group kernel_block_size 48 of 64", UseGroup<2>},
    {"group replicated 2", UseGroup<3>},
    {"group replicated -1", UseGroup<4>},
    {"group block_size past int32", UseGroup<5>},
    {"encoder_block_shape_q 0", [](fwdmeta_config_t& c) { c.encoder_block_shape_q = 0; }},
    {"encoder_block_shape_q past int32", [](fwdmeta_config_t& c) { c.encoder_block_shape_q = kPast; }},
    {"decoder_block_shape_q 0", [](fwdmeta_config_t& c) { c.decoder_block_shape_q = 0; }},
    {"decoder_block_shape_q past int32", [](fwdmeta_config_t& c) { c.decoder_block_shape_q = kPast; }},
    {"attention 2", [](fwdmeta_config_t& c) { c.attention = 2; }},
    {"attention -1", [](fwdmeta_config_t& c) { c.attention = -1; }},
    {"reserved", [](fwdmeta_config_t& c) { c.reserved = 1; }},
    {"mla_chunk_size -1", [](fwdmeta_config_t& c) { c.mla_chunk_size = -1; }},
    {"mla_chunk_size past int32", [](fwdmeta_config_t& c) { c.mla_chunk_size = kPast; }},
    {"num_sms 0", [](fwdmeta_config_t& c) { c.num_sms = 0; }},
    {"num_sms past int32", [](fwdmeta_config_t& c) { c.num_sms = kPast; }},
    {"a search with chunks past int32",
     [](fwdmeta_config_t& c) { c.attention = FWDMETA_ATTENTION_MLA, c.block_size = 1 << 20; }},
    {"cp_size 0", [](fwdmeta_config_t& c) { c.cp_size = 0; }},
    {"cp_size past int32", [](fwdmeta_config_t& c) { c.cp_size = kPast; }},
    {"cp_rank -1", [](fwdmeta_config_t& c) { c.cp_rank = -1; }},
    {"cp_rank = cp_size", [](fwdmeta_config_t& c) { c.cp_size = c.cp_rank = 2; }},
    {"cp_interleave 0", [](fwdmeta_config_t& c) { c.cp_interleave = 0; }},
    {"cp_interleave 3 of 64", [](fwdmeta_config_t& c) { c.cp_size = 2, c.cp_interleave = 3; }},
    {"cp_interleave 128 of 64", [](fwdmeta_config_t& c) { c.cp_size = 2, c.cp_interleave = 128; }},
    {"cp_size with mla", [](fwdmeta_config_t& c) { c.attention = FWDMETA_ATTENTION_MLA, c.cp_size = 2; },
     FWDMETA_UNSUPPORTED},
    {"pad_token_id past int32", [](fwdmeta_config_t& c) { c.pad_token_id = kPast; }},
    {"pad_token_id below int32", [](fwdmeta_config_t& c) { c.pad_token_id = -kPast - 1; }},
    {"pad_seq_len past int32", [](fwdmeta_config_t& c) { c.pad_seq_len = kPast; }},
    {"pad_seq_len below int32", [](fwdmeta_config_t& c) { c.pad_seq_len = -kPast - 1; }},
    {"generations 0", [](fwdmeta_config_t& c) { c.generations = 0; }},
    {"generations past int32", [](fwdmeta_config_t& c) { c.generations = kPast; }},
    {"depth 1", [](fwdmeta_config_t& c) { c.depth = 1; }},
    {"depth past int32", [](fwdmeta_config_t& c) { c.depth = kPast; }},
    {"max_metas 0", [](fwdmeta_config_t& c) { c.max_metas = 0; }},
    {"max_metas past int32", [](fwdmeta_config_t& c) { c.max_metas = kPast; }},
    {"half an allocator",
     [](fwdmeta_config_t& c) { c.host_allocator.alloc = [](size_t, size_t, void*) -> void* { return nullptr; }; }},
    {"decoder capacity past int32",
     [](fwdmeta_config_t& c) { c.max_num_tokens = INT32_MAX, c.decoder_block_shape_q = 1; }, FWDMETA_CAPACITY_EXCEEDED},
    {"encoder capacity past int32",
     [](fwdmeta_config_t& c) { c.max_num_tokens = INT32_MAX, c.encoder_block_shape_q = 1; }, FWDMETA_CAPACITY_EXCEEDED},
    {"kv capacity past int32",
     [](fwdmeta_config_t& c) {
       c.max_batch_size = c.max_num_tokens = INT32_MAX, c.block_size = 2;
       c.num_q_heads = c.num_kv_heads, c.decoder_block_shape_q = c.encoder_block_shape_q = INT32_MAX;
       c.max_model_len = 1, c.max_num_kv_tokens = 1;
     },
     FWDMETA_CAPACITY_EXCEEDED},
    {"pre_cache capacity past int32",
     [](fwdmeta_config_t& c) {
       c.max_batch_size = c.max_num_tokens = 1 << 16;
       c.max_model_len = 1 << 17, c.block_size = 1, c.max_num_kv_tokens = FWDMETA_DEFAULT;
     },
     FWDMETA_CAPACITY_EXCEEDED},
};

TEST_P(Errors, RefusedConfigurations) {
  for (const BadConfig& bad : kBadConfigs) {
    fwdmeta_config_t config = SmallC(backend());
    bad.spoil(config);
    fwdmeta_builder_t builder = 0;
    EXPECT_STATUS(bad.status, fwdmeta_builder_create(&config, &builder)) << bad.name;
    EXPECT_EQ(0u, builder) << bad.name;
    EXPECT_STRNE("", fwdmeta_last_error()) << bad.name;
    EXPECT_OK(fwdmeta_builder_destroy(builder));
    fwdmeta_capacities_t capacities = FWDMETA_CAPACITIES_INITIALIZER;
    EXPECT_STATUS(bad.status, fwdmeta_get_capacities(&config, nullptr, &capacities)) << bad.name;
    EXPECT_EQ(0, capacities.encoder) << bad.name;
  }
}

// The edges that are allowed, beside those that are refused.
TEST_P(Errors, AllowedConfigurations) {
  const BadConfig good[] = {
      {"kv heads = q heads", [](fwdmeta_config_t& c) { c.num_kv_heads = c.num_q_heads; }},
      {"8 groups",
       [](fwdmeta_config_t& c) {
         static const fwdmeta_group_config_t groups[8] = {{1, 1, 0},   {2, 1, 1},   {64, FWDMETA_DEFAULT, 0},
                                                          {48, 16, 0}, {512, 8, 1}, {3, 3, 0},
                                                          {64, 64, 0}, {7, 7, 1}};
         c.num_cache_groups = 8, c.cache_groups = groups;
       }},
      {"block sizes are ignored with groups",
       [](fwdmeta_config_t& c) {
         c.num_cache_groups = 1, c.cache_groups = &kGoodGroup, c.block_size = 0, c.kernel_block_size = -4;
       }},
      {"a forced chunk of any block size",
       [](fwdmeta_config_t& c) { c.attention = FWDMETA_ATTENTION_MLA, c.block_size = 1 << 20, c.mla_chunk_size = 64; }},
      {"the largest searched block size",
       [](fwdmeta_config_t& c) { c.attention = FWDMETA_ATTENTION_MLA, c.block_size = (1 << 20) - 1; }},
      {"g > 64 with mla", [](fwdmeta_config_t& c) { c.attention = FWDMETA_ATTENTION_MLA, c.num_q_heads = 1024; }},
      {"interleave of a whole block", [](fwdmeta_config_t& c) { c.cp_size = 2, c.cp_rank = 1, c.cp_interleave = 64; }},
      {"model length that is no multiple of a block", [](fwdmeta_config_t& c) { c.max_model_len = 101; }},
      {"ids of any int32", [](fwdmeta_config_t& c) { c.pad_token_id = INT32_MIN, c.pad_seq_len = INT32_MAX; }},
      {"kv tokens past int32", [](fwdmeta_config_t& c) { c.max_num_kv_tokens = INT64_MAX; }},
      {"no outputs", [](fwdmeta_config_t& c) { c.outputs = 0; }},
      {"depth 2", [](fwdmeta_config_t& c) { c.depth = 2; }},
  };
  for (const BadConfig& c : good) {
    fwdmeta_config_t config = SmallC(backend());
    c.spoil(config);
    fwdmeta_builder_t builder = 0;
    EXPECT_OK(fwdmeta_builder_create(&config, &builder)) << c.name;
    fwdmeta_capacities_t capacities = FWDMETA_CAPACITIES_INITIALIZER;
    EXPECT_OK(fwdmeta_get_capacities(&config, nullptr, &capacities)) << c.name;
    EXPECT_OK(fwdmeta_builder_destroy(builder));
  }
}

// Sizes are 64-bit numbers up to the largest configuration.
TEST_P(Errors, CapacitiesOfTheLargestConfiguration) {
  fwdmeta_config_t config = SmallC(backend());
  config.max_batch_size = config.max_model_len = INT32_MAX;
  config.max_num_tokens = 1;
  config.max_num_kv_tokens = FWDMETA_DEFAULT;
  fwdmeta_capacities_t out = FWDMETA_CAPACITIES_INITIALIZER;
  if (backend() == FWDMETA_BACKEND_CUDA) {  // refused here as by fwdmeta_builder_create
    fwdmeta_builder_t builder = 0;
    EXPECT_STATUS(FWDMETA_UNSUPPORTED, fwdmeta_builder_create(&config, &builder));
    EXPECT_STATUS(FWDMETA_UNSUPPORTED, fwdmeta_get_capacities(&config, nullptr, &out));
    config.max_batch_size = 131072;
    EXPECT_OK(fwdmeta_get_capacities(&config, nullptr, &out));
    EXPECT_GT(out.device_bytes, int64_t{11} * 131072 * 4);
    return;
  }
  ASSERT_OK(fwdmeta_get_capacities(&config, nullptr, &out));
  EXPECT_EQ(33554432, out.pre_cache);
  EXPECT_EQ(33554432, out.block_table_width[0]);
  // Eight prefix sums and three arrays of one int32 a slot, at least.
  EXPECT_GT(out.host_bytes, int64_t{11} * INT32_MAX * 4);
}

TEST_P(Errors, CapacityQueries) {
  const fwdmeta_config_t config = SmallC(backend());
  fwdmeta_capacities_t out = FWDMETA_CAPACITIES_INITIALIZER;
  const struct {
    int64_t slots, tokens, alignment;
    fwdmeta_status_t status;
    std::vector<int64_t> numbers;
  } cases[] = {{0, 1, 1, FWDMETA_INVALID_ARGUMENT, {}},
               {1, 0, 1, FWDMETA_INVALID_ARGUMENT, {}},
               {1, 1, 0, FWDMETA_INVALID_ARGUMENT, {}},
               {-1, 1, 1, FWDMETA_INVALID_ARGUMENT, {}},
               {5, 1, 1, FWDMETA_CAPACITY_EXCEEDED, {5, 4}},
               {1, 33, 1, FWDMETA_CAPACITY_EXCEEDED, {33, 32}},
               {4, 32, 1, FWDMETA_OK, {}},
               {1, 1, 1, FWDMETA_OK, {}},
               {FWDMETA_DEFAULT, 7, 16, FWDMETA_OK, {}}};
  for (const auto& c : cases) {
    fwdmeta_capacity_query_t query = FWDMETA_CAPACITY_QUERY_INITIALIZER;
    query.slots = c.slots;
    query.tokens = c.tokens;
    query.block_table_alignment = c.alignment;
    EXPECT_STATUS(c.status, fwdmeta_get_capacities(&config, &query, &out)) << c.slots << " " << c.tokens;
    if (c.status != FWDMETA_OK) {
      EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), c.numbers)) << fwdmeta_last_error();
      continue;
    }
    const reference::Capacities want =
        reference::GetCapacities(SmallConfig(), c.slots == FWDMETA_DEFAULT ? 4 : c.slots, c.tokens, c.alignment);
    for (const Mapping& mapping : kMappings) EXPECT_EQ(want.*mapping.model_capacity, out.*mapping.capacity);
    EXPECT_EQ(want.block_table_width[0], out.block_table_width[0]);
  }
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_get_capacities(nullptr, nullptr, &out));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_get_capacities(&config, nullptr, nullptr));
}

// ---- handles

TEST_P(Errors, Handles) {
  Builder owner(backend(), SmallConfig());
  ASSERT_TRUE(owner.Run(MakeBatch({{0, 5, 1}})));
  const fwdmeta_config_t config = SmallC(backend());
  fwdmeta_builder_t freed_builder = 0;
  ASSERT_OK(fwdmeta_builder_create(&config, &freed_builder));
  const fwdmeta_batch_t empty = FWDMETA_BATCH_INITIALIZER;
  fwdmeta_meta_t freed_meta = 0;
  ASSERT_OK(fwdmeta_build(freed_builder, &empty, &freed_meta, nullptr));
  ASSERT_OK(fwdmeta_meta_destroy(freed_meta));
  ASSERT_OK(fwdmeta_builder_destroy(freed_builder));

  fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
  fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
  fwdmeta_advance_args_t args = FWDMETA_ADVANCE_ARGS_INITIALIZER;
  fwdmeta_advance_counts_t advanced = FWDMETA_ADVANCE_COUNTS_INITIALIZER;
  fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
  int64_t number = 0;
  const char* name = nullptr;
  void* pointer = nullptr;
  const auto write = [](const char*, size_t, void*) -> int32_t { return 0; };
  const uint64_t garbage[] = {1,
                              2,
                              UINT64_MAX,
                              0x123456789abcdef0u,
                              owner.handle() ^ (uint64_t{1} << 63),
                              owner.handle() + (uint64_t{1} << 32),
                              owner.handle() + (uint64_t{1} << 40)};
  std::vector<uint64_t> bad_builders = {0, freed_builder, owner.meta()}, bad_metas = {0, freed_meta, owner.handle()};
  for (uint64_t g : garbage) {
    if (g != owner.handle() && g != owner.meta()) {
      bad_builders.push_back(g);
      bad_metas.push_back(g);
    }
  }
  const fwdmeta_status_t invalid = FWDMETA_INVALID_HANDLE;
  for (uint64_t h : bad_builders) {
    SCOPED_TRACE(h);
    EXPECT_STATUS(h == 0 ? FWDMETA_OK : invalid, fwdmeta_builder_destroy(h));
    EXPECT_STATUS(invalid, fwdmeta_builder_get_info(h, &info));
    EXPECT_STATUS(invalid, fwdmeta_builder_reset(h, nullptr));
    EXPECT_STATUS(invalid, fwdmeta_build(h, &empty, nullptr, nullptr));
    EXPECT_STATUS(invalid, fwdmeta_counts_wait(h, 1, 0, 0, &counts));
    EXPECT_STATUS(invalid, fwdmeta_replay_wait(h, 0, 0, 0, &counts));
    EXPECT_STATUS(invalid, fwdmeta_advance(h, &args));
    EXPECT_STATUS(invalid, fwdmeta_advance_wait(h, 0, 0, &advanced));
    EXPECT_STATUS(invalid, fwdmeta_builder_set_tensor(h, "caches", &tensor));
  }
  for (uint64_t h : bad_metas) {
    SCOPED_TRACE(h);
    EXPECT_STATUS(h == 0 ? FWDMETA_OK : invalid, fwdmeta_meta_destroy(h));
    EXPECT_STATUS(invalid, fwdmeta_meta_get(h, "counts", &tensor));
    EXPECT_STATUS(invalid, fwdmeta_meta_get_field(h, FWDMETA_FIELD_COUNTS, 0, &tensor));
    EXPECT_STATUS(invalid, fwdmeta_meta_set_tensor(h, "caches", &tensor));
    EXPECT_STATUS(invalid, fwdmeta_meta_wait(h, 0, 0, &counts));
    EXPECT_STATUS(invalid, fwdmeta_meta_get_attr(h, FWDMETA_ATTR_STEP, &number));
    EXPECT_STATUS(invalid, fwdmeta_meta_set_attr(h, FWDMETA_ATTR_STEP_USE_CUDAGRAPH, 1));
    EXPECT_STATUS(invalid, fwdmeta_meta_set_attn_backend(h, "a", nullptr));
    EXPECT_STATUS(invalid, fwdmeta_meta_get_attn_backend(h, &name, &pointer));
    EXPECT_STATUS(invalid, fwdmeta_meta_reader_begin(h, nullptr));
    EXPECT_STATUS(invalid, fwdmeta_meta_reader_end(h, nullptr));
    EXPECT_STATUS(invalid, fwdmeta_meta_dump(h, FWDMETA_DUMP_TEXT, write, nullptr));
  }
  ASSERT_TRUE(owner.Run(MakeBatch({{0, 6, 1}})));
}

// A freed handle stays invalid when its place in the table is used again.
TEST_P(Errors, FreedHandlesAreNeverReborn) {
  const fwdmeta_config_t config = SmallC(backend());
  std::vector<fwdmeta_builder_t> freed;
  for (int i = 0; i < 30; ++i) {
    fwdmeta_builder_t builder = 0;
    ASSERT_OK(fwdmeta_builder_create(&config, &builder));
    for (fwdmeta_builder_t old : freed) {
      ASSERT_NE(old, builder);
      EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_builder_destroy(old));
    }
    ASSERT_OK(fwdmeta_builder_destroy(builder));
    freed.push_back(builder);
  }
}

TEST_P(Errors, NullPointers) {
  Builder builder(backend(), SmallConfig());
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 5, 1}})));
  const fwdmeta_status_t invalid = FWDMETA_INVALID_ARGUMENT;
  const fwdmeta_builder_t b = builder.handle();
  const fwdmeta_meta_t m = builder.meta();
  fwdmeta_builder_t out = 0;
  const fwdmeta_config_t config = SmallC(backend());
  fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
  EXPECT_STATUS(invalid, fwdmeta_builder_create(nullptr, &out));
  EXPECT_STATUS(invalid, fwdmeta_builder_create(&config, nullptr));
  EXPECT_STATUS(invalid, fwdmeta_builder_get_info(b, nullptr));
  EXPECT_STATUS(invalid, fwdmeta_build(b, nullptr, nullptr, nullptr));
  EXPECT_STATUS(invalid, fwdmeta_advance(b, nullptr));
  EXPECT_STATUS(invalid, fwdmeta_builder_set_tensor(b, nullptr, &tensor));
  EXPECT_STATUS(invalid, fwdmeta_meta_set_tensor(m, nullptr, &tensor));
  EXPECT_STATUS(invalid, fwdmeta_meta_get(m, nullptr, &tensor));
  EXPECT_STATUS(invalid, fwdmeta_meta_get(m, "counts", nullptr));
  EXPECT_STATUS(invalid, fwdmeta_meta_get_field(m, FWDMETA_FIELD_COUNTS, 0, nullptr));
  EXPECT_STATUS(invalid, fwdmeta_meta_get_attr(m, FWDMETA_ATTR_STEP, nullptr));
  EXPECT_STATUS(invalid, fwdmeta_meta_dump(m, FWDMETA_DUMP_JSON, nullptr, nullptr));
  fwdmeta_advance_args_t args = FWDMETA_ADVANCE_ARGS_INITIALIZER;
  args.batch_size = 1;
  EXPECT_STATUS(invalid, fwdmeta_advance(b, &args));
  Buffer lengths(backend(), 5 * sizeof(int32_t));
  args.seq_lens_encoder = args.seq_lens_decoder = args.seq_lens_this_time = static_cast<int32_t*>(lengths.data());
  args.batch_size = -1;
  EXPECT_STATUS(invalid, fwdmeta_advance(b, &args));
  args.batch_size = 5;
  EXPECT_STATUS(FWDMETA_CAPACITY_EXCEEDED, fwdmeta_advance(b, &args));
  args.batch_size = 0;
  args.num_draft_tokens = -1;
  EXPECT_STATUS(invalid, fwdmeta_advance(b, &args));
  args.num_draft_tokens = 0;
  EXPECT_OK(fwdmeta_advance(b, &args));
}

// ---- struct_size

// A short struct is completed with defaults: what lies behind it is not read.
TEST_P(Errors, B87_ShortInputStructs) {
  fwdmeta_config_t config = SmallC(backend());
  config.num_sms = 77;
  config.pad_seq_len = 99;
  config.generations = -5;  // would be refused
  config.struct_size = offsetof(fwdmeta_config_t, pad_token_id);
  fwdmeta_builder_t builder = 0;
  ASSERT_OK(fwdmeta_builder_create(&config, &builder));
  fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
  EXPECT_OK(fwdmeta_builder_get_info(builder, &info));
  EXPECT_EQ(77, info.num_sms);
  EXPECT_EQ(1, info.generations);
  EXPECT_EQ(4, info.depth);

  fwdmeta_batch_t batch = FWDMETA_BATCH_INITIALIZER;
  batch.struct_size = offsetof(fwdmeta_batch_t, seq_lens_encoder);
  batch.num_block_tables = -7;  // would be refused
  fwdmeta_meta_t meta = 0;
  ASSERT_OK(fwdmeta_build(builder, &batch, &meta, nullptr));
  fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
  EXPECT_OK(fwdmeta_meta_get_field(meta, FWDMETA_FIELD_SEQ_LENS_KV, 0, &tensor));
  int32_t fill = -1;
  Download(backend(), &fill, tensor.data, sizeof fill);
  EXPECT_EQ(0, fill) << "pad_seq_len takes its default";

  fwdmeta_capacity_query_t query = FWDMETA_CAPACITY_QUERY_INITIALIZER;
  query.struct_size = sizeof(uint64_t);
  query.slots = -1;
  fwdmeta_capacities_t capacities = FWDMETA_CAPACITIES_INITIALIZER;
  EXPECT_OK(fwdmeta_get_capacities(&config, &query, &capacities));
  EXPECT_OK(fwdmeta_meta_destroy(meta));
  EXPECT_OK(fwdmeta_builder_destroy(builder));

  // One that lacks a required number is refused.
  config.struct_size = offsetof(fwdmeta_config_t, num_q_heads);
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_builder_create(&config, &builder));
}

template <typename T>
struct Longer {
  T base;
  uint64_t tail[2];
};

// A longer struct is that of a newer caller: fine while what this library does not know is zero.
TEST_P(Errors, B87_LongInputStructs) {
  const auto longer = [](const auto& base) {
    Longer<std::decay_t<decltype(base)>> out;
    std::memset(&out, 0, sizeof out);
    out.base = base;
    out.base.struct_size = sizeof out;
    return out;
  };
  auto config = longer(SmallC(backend()));
  fwdmeta_builder_t builder = 0;
  ASSERT_OK(fwdmeta_builder_create(&config.base, &builder));
  fwdmeta_batch_t empty = FWDMETA_BATCH_INITIALIZER;
  auto batch = longer(empty);
  EXPECT_OK(fwdmeta_build(builder, &batch.base, nullptr, nullptr));
  fwdmeta_capacity_query_t plain_query = FWDMETA_CAPACITY_QUERY_INITIALIZER;
  auto query = longer(plain_query);
  fwdmeta_capacities_t capacities = FWDMETA_CAPACITIES_INITIALIZER;
  EXPECT_OK(fwdmeta_get_capacities(&config.base, &query.base, &capacities));
  fwdmeta_advance_args_t plain_args = FWDMETA_ADVANCE_ARGS_INITIALIZER;
  auto args = longer(plain_args);
  EXPECT_OK(fwdmeta_advance(builder, &args.base));
  fwdmeta_tensor_t plain_tensor = FWDMETA_TENSOR_INITIALIZER;
  plain_tensor.data = &plain_tensor;
  auto tensor = longer(plain_tensor);
  EXPECT_OK(fwdmeta_builder_set_tensor(builder, "attn_mask", &tensor.base));

  for (int word : {0, 1}) {
    for (int byte : {0, 7}) {
      const uint64_t value = uint64_t{1} << (byte * 8);
      config.tail[word] = batch.tail[word] = query.tail[word] = args.tail[word] = tensor.tail[word] = value;
      fwdmeta_builder_t none = 0;
      EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_builder_create(&config.base, &none));
      EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_get_capacities(&config.base, nullptr, &capacities));
      EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_build(builder, &batch.base, nullptr, nullptr));
      const fwdmeta_config_t small = SmallC(backend());
      EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_get_capacities(&small, &query.base, &capacities));
      EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_advance(builder, &args.base));
      EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_builder_set_tensor(builder, "attn_mask", &tensor.base));
      config.tail[word] = batch.tail[word] = query.tail[word] = args.tail[word] = tensor.tail[word] = 0;
    }
  }
  EXPECT_OK(fwdmeta_builder_destroy(builder));
}

// Of an output struct only the first min(caller, library) bytes are written; size 0 is refused.
template <typename T, typename Call>
void ExpectOutputStruct(const char* name, const Call& call) {
  SCOPED_TRACE(name);
  const auto filled = [](uint64_t size) {
    Longer<T> out;
    std::memset(&out, 0, sizeof out);
    std::memset(&out, 0xEE, sizeof(T));
    out.base.struct_size = size;
    return out;
  };
  Longer<T> whole = filled(sizeof(T));
  EXPECT_OK(call(&whole.base));
  EXPECT_EQ(sizeof(T), whole.base.struct_size);
  const char* want = reinterpret_cast<const char*>(&whole);
  for (uint64_t size = 16; size < sizeof(T); size += 8) {
    Longer<T> part = filled(size);
    EXPECT_OK(call(&part.base));
    const char* bytes = reinterpret_cast<const char*>(&part);
    EXPECT_EQ(size, part.base.struct_size);
    EXPECT_EQ(0, std::memcmp(bytes + 8, want + 8, size - 8)) << size;
    for (uint64_t i = size; i < sizeof(T); ++i) ASSERT_EQ('\xEE', bytes[i]) << size << " " << i;
  }
  Longer<T> longer = filled(sizeof longer);
  EXPECT_OK(call(&longer.base));
  EXPECT_EQ(0u, longer.tail[0] | longer.tail[1]);
  EXPECT_EQ(0, std::memcmp(reinterpret_cast<const char*>(&longer) + 8, want + 8, sizeof(T) - 8));
  Longer<T> zero = filled(0);
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, call(&zero.base));
  EXPECT_EQ('\xEE', reinterpret_cast<const char*>(&zero)[16]);
}

TEST_P(Errors, B87_OutputStructs) {
  Builder builder(backend(), SmallConfig());
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 5, 1}, {7, 0, 7}})));
  fwdmeta_advance_args_t args = FWDMETA_ADVANCE_ARGS_INITIALIZER;
  ASSERT_OK(fwdmeta_advance(builder.handle(), &args));
  const fwdmeta_config_t config = SmallC(backend());
  ExpectOutputStruct<fwdmeta_capacities_t>(
      "capacities", [&](fwdmeta_capacities_t* out) { return fwdmeta_get_capacities(&config, nullptr, out); });
  ExpectOutputStruct<fwdmeta_builder_info_t>(
      "info", [&](fwdmeta_builder_info_t* out) { return fwdmeta_builder_get_info(builder.handle(), out); });
  ExpectOutputStruct<fwdmeta_counts_t>("counts", [&](fwdmeta_counts_t* out) {
    return fwdmeta_counts_wait(builder.handle(), builder.step(), FWDMETA_WAIT_FINAL, -1, out);
  });
  ExpectOutputStruct<fwdmeta_advance_counts_t>("advance counts", [&](fwdmeta_advance_counts_t* out) {
    return fwdmeta_advance_wait(builder.handle(), 0, -1, out);
  });
  ExpectOutputStruct<fwdmeta_tensor_t>("tensor", [&](fwdmeta_tensor_t* out) {
    return fwdmeta_meta_get_field(builder.meta(), FWDMETA_FIELD_COUNTS, 0, out);
  });
}

// ---- statuses and messages

TEST(Statuses, NamesAndNumbers) {
  const char* names[] = {"OK",
                         "INVALID_ARGUMENT",
                         "INVALID_HANDLE",
                         "INVALID_BATCH",
                         "CAPACITY_EXCEEDED",
                         "NOT_FOUND",
                         "NOT_SET",
                         "OUT_OF_RANGE",
                         "ALREADY_EXISTS",
                         "NOT_READY",
                         "EXPIRED",
                         "BUSY",
                         "NOT_CAPTURABLE",
                         "NO_GRAPH",
                         "RANK_MISMATCH",
                         "TIMEOUT",
                         "UNSUPPORTED",
                         "UNAVAILABLE",
                         "OUT_OF_MEMORY",
                         "NO_DEVICE",
                         "CUDA_ERROR",
                         "INTERNAL"};
  static_assert(sizeof(names) / sizeof(names[0]) == FWDMETA_STATUS_COUNT, "one name a status");
  for (int i = 0; i < FWDMETA_STATUS_COUNT; ++i) EXPECT_STREQ(names[i], fwdmeta_status_name(i));
  for (int i : {-1, static_cast<int>(FWDMETA_STATUS_COUNT), INT32_MAX, INT32_MIN}) {
    EXPECT_STREQ("UNKNOWN", fwdmeta_status_name(i));
  }
  EXPECT_EQ(FWDMETA_VERSION, fwdmeta_version());
}

TEST(Statuses, MessagesAreOfTheThread) {
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_builder_destroy(1));
  const std::string mine = fwdmeta_last_error();
  EXPECT_NE("", mine);
  std::thread([] {
    EXPECT_STREQ("", fwdmeta_last_error());
    fwdmeta_builder_t out = 0;
    EXPECT_EQ(FWDMETA_INVALID_ARGUMENT, fwdmeta_builder_create(nullptr, &out));
    EXPECT_STRNE("", fwdmeta_last_error());
  }).join();
  EXPECT_EQ(mine, fwdmeta_last_error());
  EXPECT_OK(fwdmeta_builder_destroy(0));
  EXPECT_EQ(mine, fwdmeta_last_error()) << "a call that succeeds leaves the message";
}

TEST(Statuses, NoCudaDevice) {
  fwdmeta_config_t config = SmallC(FWDMETA_BACKEND_CUDA);
  fwdmeta_builder_t builder = 0;
  if (NoCudaReason().empty()) {
    config.device = 4096;
    const fwdmeta_status_t status = fwdmeta_builder_create(&config, &builder);
    EXPECT_TRUE(status == FWDMETA_NO_DEVICE || status == FWDMETA_INVALID_ARGUMENT || status == FWDMETA_CUDA_ERROR)
        << Name(status);
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {4096})) << fwdmeta_last_error();
  } else {
    const fwdmeta_status_t status = fwdmeta_builder_create(&config, &builder);
    EXPECT_TRUE(status == FWDMETA_NO_DEVICE || status == FWDMETA_UNSUPPORTED) << Name(status);
    EXPECT_STRNE("", fwdmeta_last_error());
  }
  EXPECT_EQ(0u, builder);
}

#if FWDMETA_TEST_CUDA

// The calling thread's context by the driver, which the test does not link.
void* CurrentContext() {
  static const auto get = [] {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    return driver == nullptr ? nullptr : reinterpret_cast<int (*)(void**)>(dlsym(driver, "cuCtxGetCurrent"));
  }();
  void* context = nullptr;
  if (get != nullptr) get(&context);
  return context;
}

// On a thread that has never touched CUDA, and on one that has: device and context are the same after every call.
TEST(CudaThread, DeviceAndContextAreLeftAlone) {
  FWDMETA_SKIP_WITHOUT(FWDMETA_BACKEND_CUDA);
  Buffer lengths(FWDMETA_BACKEND_CUDA, 3 * sizeof(int32_t));
  auto* p = static_cast<int32_t*>(lengths.data());
  const int32_t values[] = {0, 5, 1};
  Upload(FWDMETA_BACKEND_CUDA, p, values, sizeof values);
  const auto calls = [&](void* context) {
    const auto same = [context](fwdmeta_status_t want, fwdmeta_status_t got) {
      EXPECT_EQ(Name(want), Name(got)) << fwdmeta_last_error();
      EXPECT_EQ(context, CurrentContext());
    };
    fwdmeta_config_t config = SmallC(FWDMETA_BACKEND_CUDA);
    config.device = 0;
    fwdmeta_builder_t builder = 0, none = 0;
    same(FWDMETA_OK, fwdmeta_builder_create(&config, &builder));
    fwdmeta_config_t bad = config;
    bad.depth = 0;
    same(FWDMETA_INVALID_ARGUMENT, fwdmeta_builder_create(&bad, &none));
    fwdmeta_batch_t batch = FWDMETA_BATCH_INITIALIZER;
    batch.batch_size = 1;
    batch.seq_lens_encoder = p;
    batch.seq_lens_decoder = p + 1;
    batch.seq_lens_this_time = p + 2;
    fwdmeta_meta_t meta = 0;
    int64_t step = 0;
    same(FWDMETA_OK, fwdmeta_build(builder, &batch, &meta, &step));
    same(FWDMETA_OK, fwdmeta_counts_wait(builder, step, FWDMETA_WAIT_FINAL, -1, nullptr));
    batch.batch_size = 99;
    same(FWDMETA_CAPACITY_EXCEEDED, fwdmeta_build(builder, &batch, nullptr, nullptr));
    const int32_t minus = -1, zero = 0;
    fwdmeta_batch_t host = FWDMETA_BATCH_INITIALIZER;
    host.memory_kind = FWDMETA_MEMORY_HOST;
    host.batch_size = 1;
    host.seq_lens_encoder = host.seq_lens_decoder = &zero;
    host.seq_lens_this_time = &minus;
    same(FWDMETA_INVALID_BATCH, fwdmeta_build(builder, &host, nullptr, nullptr));
    fwdmeta_advance_args_t args = FWDMETA_ADVANCE_ARGS_INITIALIZER;
    same(FWDMETA_OK, fwdmeta_advance(builder, &args));
    same(FWDMETA_OK, fwdmeta_meta_dump(
                         meta, FWDMETA_DUMP_JSON, [](const char*, size_t, void*) -> int32_t { return 0; }, nullptr));
    same(FWDMETA_OK, fwdmeta_meta_reader_begin(meta, nullptr));
    same(FWDMETA_OK, fwdmeta_meta_reader_end(meta, nullptr));
    same(FWDMETA_OK, fwdmeta_builder_reset(builder, nullptr));
    same(FWDMETA_OK, fwdmeta_meta_destroy(meta));
    same(FWDMETA_OK, fwdmeta_builder_destroy(builder));
  };
  std::thread([&] {
    EXPECT_EQ(nullptr, CurrentContext());
    calls(nullptr);
  }).join();
  ASSERT_EQ(cudaSuccess, cudaSetDevice(0));
  ASSERT_EQ(cudaSuccess, cudaFree(nullptr));
  calls(CurrentContext());
  EXPECT_EQ(0, CurrentDevice());
}

// B80 (flashinfer#924, #3522): a builder of device 1 used with device 0 current.
TEST(CudaThread, B80_BuilderOfAnotherDevice) {
  FWDMETA_SKIP_WITHOUT(FWDMETA_BACKEND_CUDA);
  int devices = 0;
  ASSERT_EQ(cudaSuccess, cudaGetDeviceCount(&devices));
  if (devices < 2) GTEST_SKIP() << "one CUDA device alone";
  fwdmeta_config_t config = SmallC(FWDMETA_BACKEND_CUDA);
  config.device = 1;
  config.num_sms = FWDMETA_DEFAULT;
  fwdmeta_builder_t builder = 0;
  ASSERT_OK(fwdmeta_builder_create(&config, &builder));
  EXPECT_EQ(0, CurrentDevice());
  fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
  EXPECT_OK(fwdmeta_builder_get_info(builder, &info));
  int sms = 0;
  ASSERT_EQ(cudaSuccess, cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 1));
  EXPECT_EQ(sms, info.num_sms);
  EXPECT_EQ(1, info.device);
  const int32_t n = 1, zero = 0;
  fwdmeta_batch_t batch = FWDMETA_BATCH_INITIALIZER;
  batch.memory_kind = FWDMETA_MEMORY_HOST;
  batch.batch_size = 1;
  batch.seq_lens_encoder = batch.seq_lens_decoder = &zero;
  batch.seq_lens_this_time = &n;
  int64_t step = 0;
  EXPECT_OK(fwdmeta_build(builder, &batch, nullptr, &step));
  EXPECT_OK(fwdmeta_counts_wait(builder, step, FWDMETA_WAIT_FINAL, -1, nullptr));
  EXPECT_EQ(0, CurrentDevice());
  cudaStream_t stream = nullptr;  // of device 0
  ASSERT_EQ(cudaSuccess, cudaStreamCreate(&stream));
  batch.stream = stream;
  const fwdmeta_status_t status = fwdmeta_build(builder, &batch, nullptr, nullptr);
  EXPECT_TRUE(status == FWDMETA_NO_DEVICE || status == FWDMETA_INVALID_ARGUMENT || status == FWDMETA_CUDA_ERROR)
      << Name(status);
  EXPECT_EQ(0, CurrentDevice());
  EXPECT_OK(fwdmeta_builder_destroy(builder));
  EXPECT_EQ(0, CurrentDevice());
  cudaStreamDestroy(stream);
}

#endif  // FWDMETA_TEST_CUDA

INSTANTIATE_BACKENDS(Errors);

}  // namespace
}  // namespace fwdmeta_test
