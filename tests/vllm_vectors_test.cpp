// Vectors of vLLM (reference 2.8 and 2.9) that a build answers: positions, slots, table widths, the lengths of
// context-parallel ranks. Every build is also compared with the model (Run).
#include <algorithm>
#include <numeric>

#include "harness.h"

namespace fwdmeta_test {
namespace {

using Ints = std::vector<int64_t>;

reference::Config ConfigFor(int64_t slots, int64_t tokens, int64_t model_len, int64_t block_size,
                            int64_t kernel_block_size = 0) {
  reference::Config config;
  config.max_batch_size = slots;
  config.max_num_tokens = tokens;
  config.max_model_len = model_len;
  config.groups = {{block_size, kernel_block_size == 0 ? block_size : kernel_block_size, false}};
  return config;
}

class VllmVectors : public BackendTest {};

// A decode, a prompt's chunk and a new prompt, of six requests at most.
TEST_P(VllmVectors, PositionsLengthsAndSlotsOfAStep) {
  Builder builder(backend(), ConfigFor(6, 12, 256, 16));
  reference::Batch batch = MakeBatch({{0, 7, 1}, {4, 100, 4}, {3, 0, 3}});
  batch.block_tables = {reference::Rows<int32_t>::Of({{5}, {10, 11, 12, 13, 14, 15, 16, 17, 18, 19}, {3, 4}})};
  ASSERT_TRUE(builder.Run(batch));
  EXPECT_EQ((Ints{7, 100, 101, 102, 103, 0, 1, 2}), builder.Head(FWDMETA_FIELD_POSITION_IDS, 8));
  EXPECT_EQ((Ints{8, 104, 3, 0, 0, 0}), builder.Read(FWDMETA_FIELD_SEQ_LENS_KV));
  EXPECT_EQ((Ints{0, 1, 5, 8, 8, 8, 8}), builder.Read(FWDMETA_FIELD_CU_SEQLENS_Q));
  EXPECT_EQ((Ints{87, 260, 261, 262, 263, 48, 49, 50, -1, -1, -1, -1}), builder.Read(FWDMETA_FIELD_SLOT_MAPPING));
}

// One sequence's row, and the slots of positions on one rank or on each of two.
TEST_P(VllmVectors, SlotsOfPositions) {
  Ints sixteen(16);
  std::iota(sixteen.begin(), sixteen.end(), 0);
  const struct {
    const char* name;
    int64_t block_size, kernel_block_size, interleave;
    std::vector<int32_t> row;
    Ints positions;
    std::vector<Ints> slots;  // of each rank
  } rows[] = {
      {"pages of 16", 16, 16, 1, {7, 3, 12, 5}, {0, 1, 2, 3, 15, 16, 40, 63}, {{112, 113, 114, 115, 127, 48, 200, 95}}},
      {"blocks 2 and 5 of 32 in pages of 16",
       32,
       16,
       1,
       {4, 5, 10, 11},
       {0, 15, 16, 31, 32, 47, 48, 63},
       {{64, 79, 80, 95, 160, 175, 176, 191}}},
      {"a slot past 32 bits", 16, 16, 1, {140000000}, {5}, {{2240000005}}},
      {"two ranks, token by token",
       4,
       4,
       1,
       {7, 3},
       sixteen,
       {{28, -1, 29, -1, 30, -1, 31, -1, 12, -1, 13, -1, 14, -1, 15, -1},
        {-1, 28, -1, 29, -1, 30, -1, 31, -1, 12, -1, 13, -1, 14, -1, 15}}},
      {"two ranks, by two tokens",
       4,
       4,
       2,
       {7, 3},
       sixteen,
       {{28, 29, -1, -1, 30, 31, -1, -1, 12, 13, -1, -1, 14, 15, -1, -1},
        {-1, -1, 28, 29, -1, -1, 30, 31, -1, -1, 12, 13, -1, -1, 14, 15}}},
      {"two ranks, by blocks of two pages",  // vllm#51031
       4,
       2,
       4,
       {14, 15, 6, 7},
       sixteen,
       {{28, 29, 30, 31, -1, -1, -1, -1, 12, 13, 14, 15, -1, -1, -1, -1},
        {-1, -1, -1, -1, 28, 29, 30, 31, -1, -1, -1, -1, 12, 13, 14, 15}}},
      {"two ranks, token by token, blocks of two pages",
       4,
       2,
       1,
       {14, 15, 6, 7},
       sixteen,
       {{28, -1, 29, -1, 30, -1, 31, -1, 12, -1, 13, -1, 14, -1, 15, -1},
        {-1, 28, -1, 29, -1, 30, -1, 31, -1, 12, -1, 13, -1, 14, -1, 15}}},
  };
  for (const auto& row : rows) {
    const int64_t ranks = static_cast<int64_t>(row.slots.size());
    for (int64_t rank = 0; rank < ranks; ++rank) {
      SCOPED_TRACE(std::string(row.name) + ", rank " + std::to_string(rank));
      reference::Config config = ConfigFor(16, 16, 64, row.block_size, row.kernel_block_size);
      config.cp_size = ranks;
      config.cp_rank = rank;
      config.cp_interleave = row.interleave;
      Builder builder(backend(), config);
      std::vector<Slot> slots;
      for (const int64_t position : row.positions) slots.push_back({0, static_cast<int32_t>(position), 1});
      reference::Batch batch = MakeBatch(slots);
      batch.block_tables = {
          reference::Rows<int32_t>::Of(std::vector<std::vector<int32_t>>(row.positions.size(), row.row))};
      ASSERT_TRUE(builder.Run(batch));
      EXPECT_EQ(row.slots[static_cast<size_t>(rank)], builder.Head(FWDMETA_FIELD_SLOT_MAPPING, batch.size()));
      EXPECT_EQ(0, builder.Counts().num_invalid_slots);
    }
  }
}

// Rows of `blocks` blocks, aligned to 128 tokens; a state group of one huge block is not.
TEST_P(VllmVectors, TableWidths) {
  const struct {
    int64_t blocks, block_size, kernel_block_size, aligned_tokens, width;
  } rows[] = {{1875, 64, 64, 128, 1876},
              {235, 256, 64, 128, 940},
              {10, 16, 16, 128, 16},
              {5, 48, 48, 128, 8},
              {1, 39664, 39664, 1, 1}};
  for (const auto& row : rows) {
    std::vector<fwdmeta_group_config_t> groups;
    const fwdmeta_config_t config =
        ToC(ConfigFor(1, 1, row.blocks * row.block_size, row.block_size, row.kernel_block_size), backend(), &groups);
    fwdmeta_capacity_query_t query = FWDMETA_CAPACITY_QUERY_INITIALIZER;
    query.block_table_alignment = row.aligned_tokens / std::gcd(row.aligned_tokens, row.kernel_block_size);
    fwdmeta_capacities_t out = FWDMETA_CAPACITIES_INITIALIZER;
    ASSERT_OK(fwdmeta_get_capacities(&config, &query, &out));
    EXPECT_EQ(row.width, out.block_table_width[0]) << row.blocks << " of " << row.block_size;
  }
}

// A drafter's next position at the context limit of 100: requests that reach it get no slot and a length of 1.
TEST_P(VllmVectors, DraftStepAtTheContextLimit) {
  reference::Config config = ConfigFor(6, 6, 100, 16);
  config.pad_seq_len = 1;
  Builder builder(backend(), config);
  reference::Batch batch = MakeBatch({{0, 50, 1}, {0, 98, 1}, {0, 99, 1}, {0, 100, 0}}, 6);
  batch.block_tables = {
      reference::Rows<int32_t>::Of(std::vector<std::vector<int32_t>>(4, {10, 11, 12, 13, 14, 15, 16}))};
  ASSERT_TRUE(builder.Run(batch));
  EXPECT_EQ((Ints{51, 99, 100, 1, 1, 1}), builder.Read(FWDMETA_FIELD_SEQ_LENS_KV));
  Buffer lengths(backend(), 12 * sizeof(int32_t));
  auto* e = static_cast<int32_t*>(lengths.data());
  const int32_t values[] = {0, 0, 0, 0, 50, 98, 99, 100, 1, 1, 1, 0};
  Upload(backend(), e, values, sizeof values);
  fwdmeta_advance_args_t advance = FWDMETA_ADVANCE_ARGS_INITIALIZER;
  advance.batch_size = 4;
  advance.seq_lens_encoder = e;
  advance.seq_lens_decoder = e + 4;
  advance.seq_lens_this_time = e + 8;
  ASSERT_OK(fwdmeta_advance(builder.handle(), &advance));
  std::vector<int32_t> after(12);
  Download(backend(), after.data(), e, 12 * sizeof(int32_t));
  EXPECT_EQ((std::vector<int32_t>{0, 0, 0, 0, 51, 99, 100, 100, 1, 1, 0, 0}), after);
  batch.decoder.assign(after.begin() + 4, after.begin() + 8);
  batch.this_time.assign(after.begin() + 8, after.end());
  ASSERT_TRUE(builder.Run(batch));
  EXPECT_EQ((Ints{51, 99, 0, 0, 0, 0}), builder.Read(FWDMETA_FIELD_POSITION_IDS));
  EXPECT_EQ((Ints{13 * 16 + 3, 16 * 16 + 3, -1, -1, -1, -1}), builder.Read(FWDMETA_FIELD_SLOT_MAPPING));
  EXPECT_EQ((Ints{52, 100, 1, 1, 1, 1}), builder.Read(FWDMETA_FIELD_SEQ_LENS_KV));
}

// is_padding of N tokens, n of them real, as sequence-parallel ranks share it.
TEST_P(VllmVectors, PaddingMaskOfSequenceParallelRanks) {
  const struct {
    int32_t padded, real;
    std::vector<Ints> ranks;
  } rows[] = {{5, 3, {{0, 0, 0}, {1, 1, 1}}}, {8, 8, {{0, 0}, {0, 0}, {0, 0}, {0, 0}}}};
  Builder builder(backend(), ConfigFor(1, 8, 64, 16));
  for (const auto& row : rows) {
    ASSERT_TRUE(builder.Run(MakeBatch({{row.real, 0, row.real}}, row.padded)));
    const Ints mask = builder.Read(FWDMETA_FIELD_IS_PADDING);
    const int64_t num_ranks = static_cast<int64_t>(row.ranks.size());
    Ints sizes(row.ranks.size()), starts(row.ranks.size());
    ASSERT_OK(fwdmeta_shard_sizes(row.padded, num_ranks, 1, sizes.data(), starts.data(), nullptr, nullptr));
    for (size_t rank = 0; rank < row.ranks.size(); ++rank) {
      const auto begin = mask.begin() + starts[rank];
      EXPECT_EQ(row.ranks[rank], Ints(begin, begin + sizes[rank])) << "rank " << rank << " of " << num_ranks;
    }
  }
}

// Reference 2.9. The last three are of a request's tokens, one by one.
TEST_P(VllmVectors, LocalLengths) {
  const struct {
    int64_t length, ranks, interleave;
    Ints local;
  } rows[] = {{10, 2, 16, {10, 0}},
              {10, 4, 16, {10, 0, 0, 0}},
              {10, 8, 16, {10, 0, 0, 0, 0, 0, 0, 0}},
              {2, 4, 1, {1, 1, 0, 0}},
              {17, 2, 1, {9, 8}},
              {100, 4, 16, {32, 32, 20, 16}},
              {130, 4, 16, {34, 32, 32, 32}},
              {0, 4, 16, {0, 0, 0, 0}},
              {8, 2, 1, {4, 4}},
              {9, 2, 1, {5, 4}},
              {10, 2, 1, {5, 5}}};
  for (const auto& row : rows) {
    for (int64_t rank = 0; rank < row.ranks; ++rank) {
      reference::Config config = ConfigFor(1, 1, 256, 64);
      config.cp_size = row.ranks;
      config.cp_rank = rank;
      config.cp_interleave = row.interleave;
      Builder builder(backend(), config);
      const Slot slot = {0, static_cast<int32_t>(std::max<int64_t>(row.length - 1, 0)), row.length > 0 ? 1 : 0};
      ASSERT_TRUE(builder.Run(MakeBatch({slot})));
      const Ints local = builder.Read(FWDMETA_FIELD_SEQ_LENS_KV_LOCAL);
      EXPECT_EQ(Ints{row.local[static_cast<size_t>(rank)]}, local)
          << row.length << " on rank " << rank << " of " << row.ranks;
    }
  }
}

INSTANTIATE_BACKENDS(VllmVectors);

}  // namespace
}  // namespace fwdmeta_test
