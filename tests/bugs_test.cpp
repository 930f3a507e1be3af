// Metadata bugs seen in public projects, as cases. B numbers are those of the project's list of reports; the report is
// named beside each. Every build is also compared with the model (Run).
#include <chrono>
#include <set>

#include "harness.h"

namespace fwdmeta_test {
namespace {

using Ints = std::vector<int64_t>;
using Pairs = std::vector<std::pair<int64_t, int64_t>>;

reference::Config ConfigFor(int64_t slots, int64_t tokens, int64_t model_len, int64_t g = 8, int64_t block_size = 64) {
  reference::Config config;
  config.max_batch_size = slots;
  config.max_num_tokens = tokens;
  config.max_model_len = model_len;
  config.num_q_heads = g;
  config.groups = {{block_size, block_size, false}};
  return config;
}

std::vector<Slot> Same(int count, Slot slot) { return std::vector<Slot>(static_cast<size_t>(count), slot); }

reference::Rows<int32_t> Table(const std::vector<std::vector<int32_t>>& rows) {
  return reference::Rows<int32_t>::Of(rows);
}

constexpr fwdmeta_field_t kDecoder = FWDMETA_FIELD_DECODER_BATCH_IDS, kEncoder = FWDMETA_FIELD_ENCODER_BATCH_IDS,
                          kKv = FWDMETA_FIELD_KV_BATCH_IDS;

class Bugs : public BackendTest {
 protected:
  Ints MaxLen(Builder& builder, size_t size = 6) {
    const fwdmeta_counts_t counts = builder.Counts();
    return Ints(counts.max_len, counts.max_len + size);
  }
  fwdmeta_capacities_t Capacities(const reference::Config& config, const fwdmeta_capacity_query_t* query = nullptr) {
    std::vector<fwdmeta_group_config_t> groups;
    const fwdmeta_config_t c = ToC(config, backend(), &groups);
    fwdmeta_capacities_t out = FWDMETA_CAPACITIES_INITIALIZER;
    EXPECT_OK(fwdmeta_get_capacities(&c, query, &out));
    return out;
  }
};

// ---- A: block mappings

// FastDeploy#4218: padded tokens carried an id that was read as unsigned.
TEST_P(Bugs, B01_BatchIdOfPaddedTokensIsMinusOne) {
  Builder builder(backend(), ConfigFor(3, 4, 64));
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 3, 1}, {0, 4, 0}, {0, 5, 1}}, 4)));
  EXPECT_EQ((Ints{0, 2, -1, -1}), builder.Read(FWDMETA_FIELD_BATCH_ID_PER_TOKEN));
  EXPECT_EQ(FWDMETA_DTYPE_INT, builder.Tensor(FWDMETA_FIELD_BATCH_ID_PER_TOKEN).dtype_code);
}

// PaddleNLP#9752, FastDeploy#3153: KV tiles of a prompt whose cached prefix ends inside a page.
TEST_P(Bugs, B02_KvTilesOfCachedPrefix) {
  Builder builder(backend(), ConfigFor(1, 64, 192));
  ASSERT_TRUE(builder.Run(MakeBatch({{60, 70, 60}})));
  EXPECT_EQ((Pairs{{0, 0}, {0, 1}}), builder.Tiles(kKv));
  const struct { int32_t e, d, tiles; } sweep[] = {{1, 63, 1}, {2, 63, 2}, {64, 63, 2}, {64, 64, 1}, {0, 63, 0}};
  for (const auto& s : sweep) {
    ASSERT_TRUE(builder.Run(MakeBatch({{s.e, s.d, s.e > 0 ? s.e : 1}})));
    EXPECT_EQ(s.tiles, builder.Counts().kv_num_blocks) << s.e << " " << s.d;
  }
}

// FastDeploy#8065: a prompt of one token is a prefill.
TEST_P(Bugs, B03_OneTokenPromptIsPrefill) {
  Builder builder(backend(), ConfigFor(2, 16, 64));
  ASSERT_TRUE(builder.Run(MakeBatch({{1, 0, 1}, {0, 12, 1}})));
  EXPECT_EQ((Pairs{{1, 0}}), builder.Tiles(kDecoder));
  EXPECT_EQ((Pairs{{0, 0}}), builder.Tiles(kEncoder));
  EXPECT_EQ((Pairs{{0, 0}}), builder.Tiles(kKv));
  EXPECT_EQ((Ints{1, 1, 12, 13, 12, 13}), MaxLen(builder));
}

// FastDeploy#3223: capacities do not depend on the context length that a graph was captured with.
TEST_P(Bugs, B05_ChunksGrowWithinTheCapacity) {
  reference::Config config = ConfigFor(1, 8, 32768, 128);
  config.mla = true;
  config.mla_chunk_size = 1024;
  EXPECT_EQ(32, Capacities(config).decoder);
  Builder builder(backend(), config);
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 100, 1}})));
  EXPECT_EQ(1, builder.Counts().decoder_num_blocks);
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 5000, 1}})));
  EXPECT_EQ(5, builder.Counts().decoder_num_blocks);
  Ints tiles(32, -1);
  for (int64_t i = 0; i < 5; ++i) tiles[static_cast<size_t>(i)] = i;
  EXPECT_EQ(tiles, builder.Read(FWDMETA_FIELD_DECODER_TILE_IDS_PER_BATCH));
}

// FastDeploy#2975: the batch is the given slots, whatever lies behind them in the buffer.
TEST_P(Bugs, B07_LiveBatchWithinALargerBuffer) {
  reference::Config config = ConfigFor(8, 64, 512, 4);
  Builder builder(backend(), config);
  const reference::Batch buffer =
      MakeBatch({{5, 0, 5}, {0, 9, 1}, {0, 0, 0}, {7, 400, 7}, {7, 400, 7}, {7, 400, 7}, {7, 400, 7}, {7, 400, 7}});
  fwdmeta_batch_t batch = builder.inputs().Put(buffer, FWDMETA_MEMORY_DEVICE);
  batch.batch_size = 3;
  ASSERT_OK(builder.Build(batch));
  ASSERT_TRUE(builder.Expect(reference::Build(config, MakeBatch({{5, 0, 5}, {0, 9, 1}, {0, 0, 0}}))));
  EXPECT_EQ((Pairs{{0, 0}}), builder.Tiles(kEncoder));  // 64 query rows a tile hold all 20
  EXPECT_EQ((Pairs{{1, 0}}), builder.Tiles(kDecoder));
  EXPECT_EQ((Pairs{{0, 0}}), builder.Tiles(kKv));
  EXPECT_EQ((Ints{5, 5, 9, 10, 9, 10}), MaxLen(builder));

  config.encoder_block_shape_q = 16;  // the case's own tile
  Builder small(backend(), config);
  ASSERT_TRUE(small.Run(MakeBatch({{5, 0, 5}, {0, 9, 1}, {0, 0, 0}})));
  EXPECT_EQ((Pairs{{0, 0}, {0, 1}}), small.Tiles(kEncoder));
}

// FastDeploy#3396: an empty run of a rank, with null pointers.
TEST_P(Bugs, B08_EmptyBatch) {
  Builder builder(backend(), ConfigFor(8, 64, 512));
  fwdmeta_batch_t batch = FWDMETA_BATCH_INITIALIZER;
  for (const auto kind : {FWDMETA_MEMORY_DEVICE, FWDMETA_MEMORY_HOST}) {
    batch.memory_kind = kind;
    ASSERT_OK(builder.Build(batch));
    EXPECT_EQ(0, builder.Read(FWDMETA_FIELD_CU_SEQLENS_Q)[0]);
    ASSERT_TRUE(builder.Expect(reference::Build(builder.config(), MakeBatch({}))));
  }
  ASSERT_TRUE(builder.Run(MakeBatch(Same(8, {0, 0, 0}))));
  EXPECT_EQ(Ints(9, 0), builder.Read(FWDMETA_FIELD_CU_SEQLENS_Q));
  EXPECT_EQ(Ints(9, 0), MaxLen(builder, 9));
}

// FastDeploy#3457: the arrays stay where they are, and prefix sums repeat past the live batch.
TEST_P(Bugs, B09_StablePointers) {
  Builder builder(backend(), ConfigFor(8, 16, 64));
  std::vector<Slot> slots = Same(5, {0, 2, 1});
  ASSERT_TRUE(builder.Run(MakeBatch(slots)));
  std::vector<void*> addresses;
  for (int f = 0; f < FWDMETA_FIELD_SEQ_LENS_KV; ++f) addresses.push_back(builder.Tensor(f).data);
  slots.resize(8, {0, 0, 0});
  ASSERT_TRUE(builder.Run(MakeBatch(slots)));
  EXPECT_EQ((Ints{0, 1, 2, 3, 4, 5, 5, 5, 5}), builder.Read(FWDMETA_FIELD_CU_SEQLENS_Q));
  for (int f = 0; f < FWDMETA_FIELD_SEQ_LENS_KV; ++f) {
    const std::string name = fwdmeta_field_name(f);
    if (name.find("_cpu") != std::string::npos) continue;  // those lie in the step's entry of the mirror
    EXPECT_EQ(addresses[static_cast<size_t>(f)], builder.Tensor(f).data) << name;
  }
}

// FastDeploy#4317, #4367: carries at the edges of a warp.
TEST_P(Bugs, B11_WarpEdges) {
  Builder builder(backend(), ConfigFor(65, 128, 64));
  std::vector<Slot> slots = Same(33, {0, 4, 1});
  ASSERT_TRUE(builder.Run(MakeBatch(slots)));
  EXPECT_EQ(33u, builder.Tiles(kDecoder).size());
  slots[32].n = 3;
  ASSERT_TRUE(builder.Run(MakeBatch(slots)));
  Pairs tiles = builder.Tiles(kDecoder);
  ASSERT_EQ(34u, tiles.size());
  EXPECT_EQ((Pairs{{32, 0}, {32, 1}}), Pairs(tiles.end() - 2, tiles.end()));
  Builder wide(backend(), ConfigFor(65, 128, 64, 16));
  slots = Same(65, {0, 4, 0});
  slots[0].n = 2;
  slots[32].n = 1;
  slots[64].n = 3;
  ASSERT_TRUE(wide.Run(MakeBatch(slots)));
  EXPECT_EQ((Pairs{{0, 0}, {0, 1}, {32, 0}, {64, 0}, {64, 1}, {64, 2}}), wide.Tiles(kDecoder));
}

// A chunk of 64 written byte by byte became 0x40404040, and counts of the previous step stayed.
TEST_P(Bugs, B13_ChunkAndCountOfAnAllPrefillStep) {
  reference::Config config = ConfigFor(8, 64, 4096, 128);
  config.mla = true;
  Builder builder(backend(), config);
  ASSERT_TRUE(builder.Run(MakeBatch(Same(7, {0, 10, 1}))));
  EXPECT_EQ(7, builder.Counts().decoder_num_blocks);
  ASSERT_TRUE(builder.Run(MakeBatch({{5, 0, 5}, {6, 0, 6}})));
  EXPECT_EQ(0, builder.Counts().decoder_num_blocks);
  EXPECT_EQ((Ints{64 * 2048}), builder.Read(FWDMETA_FIELD_DECODER_CHUNK_SIZE_DEVICE));
  ASSERT_TRUE(builder.Run(MakeBatch({{5, 0, 5}})));
  EXPECT_EQ((Ints{64}), builder.Read(FWDMETA_FIELD_DECODER_CHUNK_SIZE_DEVICE));
  EXPECT_EQ((Ints{0}), builder.Read(FWDMETA_FIELD_DECODER_NUM_BLOCKS_DEVICE));
}

// ---- B: lengths

// flash-attention#1537: slots without tokens between slots of one token.
TEST_P(Bugs, B14_SlotsWithoutTokens) {
  Builder builder(backend(), ConfigFor(4, 8, 64));
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 0, 0}, {0, 2, 1}, {0, 0, 0}, {0, 4, 1}})));
  EXPECT_EQ((Ints{0, 0, 1, 1, 2}), builder.Read(FWDMETA_FIELD_CU_SEQLENS_Q));
  EXPECT_EQ((Ints{0, 0, 3, 3, 8}), builder.Read(FWDMETA_FIELD_CU_SEQLENS_K));
  EXPECT_EQ((Ints{1, 3}), builder.Head(FWDMETA_FIELD_BATCH_ID_PER_TOKEN, 2));
  EXPECT_EQ((Ints{2, 4}), builder.Head(FWDMETA_FIELD_POSITION_IDS, 2));
  EXPECT_EQ(1, MaxLen(builder)[0]);
  EXPECT_EQ(5, MaxLen(builder)[3]);
}

// sglang#39899: the last token of a slot without tokens.
TEST_P(Bugs, B16_LastTokenOfIdleSlots) {
  Builder builder(backend(), ConfigFor(3, 8, 64));
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 0, 0}})));
  EXPECT_EQ((Ints{-1, -1, -1}), builder.Read(FWDMETA_FIELD_LAST_TOKEN_INDEX));
  EXPECT_EQ(0, builder.Counts().num_live);
  ASSERT_TRUE(builder.Run(MakeBatch({{3, 0, 3}, {0, 5, 0}, {0, 5, 2}})));
  EXPECT_EQ((Ints{2, -1, 4}), builder.Read(FWDMETA_FIELD_LAST_TOKEN_INDEX));
  EXPECT_EQ(2, builder.Counts().num_live);
}

// B17 (vllm#16806) is Boundaries.B17_RowOffsetsPastInt32.

// vllm#32312: maxima follow lengths that are advanced in place.
TEST_P(Bugs, B22_MaximaAfterAdvance) {
  reference::Config config = ConfigFor(2, 8, 64);
  Builder builder(backend(), config);
  reference::Batch batch = MakeBatch({{0, 10, 1}, {0, 15, 1}});
  Buffer lengths(backend(), 6 * sizeof(int32_t));
  auto* e = static_cast<int32_t*>(lengths.data());
  const int32_t values[] = {0, 0, 10, 15, 1, 1};
  Upload(backend(), e, values, sizeof values);
  fwdmeta_batch_t b = FWDMETA_BATCH_INITIALIZER;
  b.batch_size = 2;
  b.seq_lens_encoder = e;
  b.seq_lens_decoder = e + 2;
  b.seq_lens_this_time = e + 4;
  ASSERT_OK(builder.Build(b));
  EXPECT_EQ(16, MaxLen(builder)[3]);
  fwdmeta_advance_args_t advance = FWDMETA_ADVANCE_ARGS_INITIALIZER;
  advance.batch_size = 2;
  advance.seq_lens_encoder = e;
  advance.seq_lens_decoder = e + 2;
  advance.seq_lens_this_time = e + 4;
  ASSERT_OK(fwdmeta_advance(builder.handle(), &advance));
  ASSERT_OK(builder.Build(b));
  EXPECT_EQ(17, MaxLen(builder)[3]);
  reference::AdvanceLengths(config, {}, &batch);
  EXPECT_TRUE(builder.Expect(reference::Build(config, batch)));
}

// vllm#43991: the actual maximum and the bound for a capture are two numbers.
TEST_P(Bugs, B23_ActualMaximumAndBound) {
  const reference::Config config = ConfigFor(1, 8, 131072, 8, 16);
  Builder builder(backend(), config);
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 99, 1}})));
  EXPECT_EQ(100, MaxLen(builder)[3]);
  EXPECT_EQ(8192, Capacities(config).block_table_width[0]);
}

// ---- C: slots

// vllm#53982, #54296: a column past the row.
TEST_P(Bugs, B26_ColumnsOutsideTheRow) {
  reference::Config config = ConfigFor(5, 8, 1 << 20, 8, 4);
  config.max_num_kv_tokens = 1 << 21;
  Builder builder(backend(), config);
  reference::Batch batch = MakeBatch({{0, 0, 1}, {0, 3, 1}, {0, 130, 1}, {0, 8192, 1}, {0, 1048575, 1}});
  batch.block_tables = {Table(std::vector<std::vector<int32_t>>(5, std::vector<int32_t>(32, 7)))};
  ASSERT_TRUE(builder.Run(batch));
  EXPECT_EQ((Ints{28, 31, -1, -1, -1}), builder.Head(FWDMETA_FIELD_SLOT_MAPPING, 5));
  EXPECT_EQ(3, builder.Counts().num_invalid_slots);
  EXPECT_EQ(FWDMETA_WARNING_INVALID_SLOTS, builder.Counts().warnings);

  Builder narrow(backend(), ConfigFor(2, 32, 64, 8, 16));
  batch = MakeBatch({{0, 0, 17}, {0, 3, 0}});
  batch.block_tables = {Table({{5}, {9}})};
  ASSERT_TRUE(narrow.Run(batch));
  EXPECT_EQ(80, narrow.Read(FWDMETA_FIELD_SLOT_MAPPING)[0]);
  EXPECT_EQ(-1, narrow.Read(FWDMETA_FIELD_SLOT_MAPPING)[16]) << "144 is the neighbour's row";
}

// vllm#1486, #50427, #56037: slots past 32 bits.
TEST_P(Bugs, B27_SlotsOf64Bits) {
  const struct {
    int64_t block_size;
    int32_t block, offset;
    int64_t slot;
  } cases[] = {{16, 63999, 15, 1023999},
               {1280, 3277, 0, 4194560},
               {1280, 3276, 1024, 4194304},
               {64, 33554431, 63, 2147483647},
               {64, 33554432, 0, 2147483648}};
  for (const auto& c : cases) {
    Builder builder(backend(), ConfigFor(1, 4, 2048, 8, c.block_size));
    reference::Batch batch = MakeBatch({{0, c.offset, 1}});
    batch.block_tables = {Table({{c.block}})};
    ASSERT_TRUE(builder.Run(batch));
    EXPECT_EQ(c.slot, builder.Read(FWDMETA_FIELD_SLOT_MAPPING)[0]);
  }
}

// vllm#43810, #43869: a padded token has no slot, and a mask says so.
TEST_P(Bugs, B28_PaddedTokensHaveNoSlot) {
  Builder builder(backend(), ConfigFor(1, 8, 64, 8, 16));
  reference::Batch batch = MakeBatch({{5, 0, 5}}, 8);
  batch.block_tables = {Table({{3}})};
  ASSERT_TRUE(builder.Run(batch));
  EXPECT_EQ((Ints{48, 49, 50, 51, 52, -1, -1, -1}), builder.Read(FWDMETA_FIELD_SLOT_MAPPING));
  EXPECT_EQ((Ints{0, 0, 0, 0, 0, 1, 1, 1}), builder.Read(FWDMETA_FIELD_IS_PADDING));
  EXPECT_EQ(5, builder.Counts().num_tokens);
}

// vllm#13418, #13922: token arrays are as long as the padded batch.
TEST_P(Bugs, B30_ArraysOfThePaddedLength) {
  Builder builder(backend(), ConfigFor(16, 16, 64));
  reference::Batch batch = MakeBatch(Same(15, {0, 3, 1}), 16);
  batch.block_tables = {Table(std::vector<std::vector<int32_t>>(15, {2}))};
  ASSERT_TRUE(builder.Run(batch));
  EXPECT_EQ(16, builder.Tensor(FWDMETA_FIELD_SLOT_MAPPING).shape[0]);
  EXPECT_EQ(-1, builder.Read(FWDMETA_FIELD_SLOT_MAPPING)[15]);
  EXPECT_EQ(15, builder.Counts().num_live);
  EXPECT_EQ(16, builder.Counts().num_padded_tokens);
}

// vllm#51031: slots under context parallelism, with pages smaller in the kernel.
TEST_P(Bugs, B31_ContextParallelSlots) {
  const struct {
    int64_t rank;
    std::vector<int32_t> positions;
    Ints slots;
  } cases[] = {{1, {0, 130, 200, 255, 256, 700}, {-1, 1282, 1352, 1407, -1, 1468}},
               {0, {0, 127, 128, 512}, {1280, 1407, -1, 1408}}};
  for (const auto& c : cases) {
    reference::Config config = ConfigFor(8, 16, 1024);
    config.groups = {{128, 64, false}};
    config.cp_size = 4;
    config.cp_rank = c.rank;
    config.cp_interleave = 128;
    Builder builder(backend(), config);
    reference::Batch batch;
    std::vector<std::vector<int32_t>> rows;
    for (int32_t position : c.positions) {
      batch.encoder.push_back(0);
      batch.decoder.push_back(position);
      batch.this_time.push_back(1);
      rows.push_back({20, 21, 22, 23});
    }
    batch.block_tables = {Table(rows)};
    ASSERT_TRUE(builder.Run(batch));
    EXPECT_EQ(c.slots, builder.Head(FWDMETA_FIELD_SLOT_MAPPING, batch.size()));
    EXPECT_EQ(0, builder.Counts().num_invalid_slots) << "a position of another rank is not invalid";
  }
}

// vllm#50391: the share of a rank in a length.
TEST_P(Bugs, B33_LocalLengths) {
  const struct {
    int32_t length;
    int64_t ranks, interleave;
    Ints local;
  } cases[] = {{10, 4, 1, {3, 3, 2, 2}}, {13, 2, 4, {8, 5}}, {3, 4, 1, {1, 1, 1, 0}}, {7, 2, 4, {4, 3}},
               {14, 2, 4, {8, 6}},       {15, 2, 4, {8, 7}}, {16, 2, 4, {8, 8}}};
  for (const auto& c : cases) {
    for (int64_t rank = 0; rank < c.ranks; ++rank) {
      reference::Config config = ConfigFor(1, 4, 64);
      config.cp_size = c.ranks;
      config.cp_rank = rank;
      config.cp_interleave = c.interleave;
      Builder builder(backend(), config);
      ASSERT_TRUE(builder.Run(MakeBatch({{0, c.length - 1, 1}})));
      EXPECT_EQ((Ints{c.local[static_cast<size_t>(rank)]}), builder.Read(FWDMETA_FIELD_SEQ_LENS_KV_LOCAL));
    }
  }
}

// vllm#27547: a table of kernel pages gives the slot that the manager's pages give.
TEST_P(Bugs, B34_KernelPages) {
  reference::Config config = ConfigFor(1, 4, 256);
  config.groups = {{128, 128, false}, {128, 64, false}};
  Builder builder(backend(), config);
  reference::Batch batch = MakeBatch({{0, 70, 1}});
  batch.block_tables = {Table({{3, 1}}), Table({{6, 7, 2, 3}})};
  ASSERT_TRUE(builder.Run(batch));
  EXPECT_EQ(454, builder.Read(FWDMETA_FIELD_SLOT_MAPPING, 0)[0]);
  EXPECT_EQ(454, builder.Read(FWDMETA_FIELD_SLOT_MAPPING, 1)[0]);
}

// vllm#8068, #12803, #9623: one token past the model length.
TEST_P(Bugs, B36_OneTokenPastTheModelLength) {
  reference::Config config = ConfigFor(1, 4, 8192, 8, 16);
  EXPECT_EQ(512, Capacities(config).block_table_width[0]);
  Builder builder(backend(), config);
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 8191, 1}})));
  for (const auto kind : {FWDMETA_MEMORY_HOST, FWDMETA_MEMORY_DEVICE}) {
    const reference::Batch batch = MakeBatch({{0, 8192, 1}});
    EXPECT_EQ(FWDMETA_INVALID_BATCH, reference::Build(config, batch).status());
    ASSERT_TRUE(builder.Run(batch, kind));
  }
  config.max_model_len = 8193;  // with the look-ahead in the model length
  EXPECT_EQ(513, Capacities(config).block_table_width[0]);
}

// sglang#35985, #18780: look-ahead at the context limit.
TEST_P(Bugs, B37_TableWidthWithLookAhead) {
  EXPECT_EQ(163842, Capacities(ConfigFor(1, 4, 163842, 8, 1)).block_table_width[0]);
  EXPECT_EQ(2561, Capacities(ConfigFor(1, 4, 163842, 8, 64)).block_table_width[0]);
}

// vllm#39324: widths that a kernel wants aligned.
TEST_P(Bugs, B39_AlignedTableWidth) {
  fwdmeta_capacity_query_t query = FWDMETA_CAPACITY_QUERY_INITIALIZER;
  EXPECT_EQ(295, Capacities(ConfigFor(1, 4, 9416, 8, 32), &query).block_table_width[0]);
  query.block_table_alignment = 4;
  EXPECT_EQ(296, Capacities(ConfigFor(1, 4, 9416, 8, 32), &query).block_table_width[0]);
  query.block_table_alignment = 2;
  EXPECT_EQ(6, Capacities(ConfigFor(1, 4, 257, 8, 64), &query).block_table_width[0]);
}

// sglang#22257, flashinfer#1419: pages of one token.
TEST_P(Bugs, B41_PagesOfOneToken) {
  Builder builder(backend(), ConfigFor(3, 8, 16, 8, 1));
  reference::Batch batch = MakeBatch({{3, 0, 3}, {0, 0, 0}, {0, 1, 1}});
  batch.block_tables = {Table({{9, 4, 7}, {}, {1, 8401238}})};
  ASSERT_TRUE(builder.Run(batch));
  EXPECT_EQ((Ints{9, 4, 7, 8401238}), builder.Head(FWDMETA_FIELD_SLOT_MAPPING, 4));
  EXPECT_EQ((Pairs{{0, 0}, {0, 1}, {0, 2}}), builder.Tiles(kKv));
}

// ---- D: padding

// vllm#53059, #47123: a prompt of the shape of a draft verification is a prefill.
TEST_P(Bugs, B42_PromptOfTheShapeOfADraftVerification) {
  Builder builder(backend(), ConfigFor(2, 16, 64));
  const struct {
    std::vector<Slot> slots;
    int64_t mode;
  } cases[] = {{{{4, 0, 4}}, FWDMETA_FORWARD_EXTEND},
               {{{0, 9, 4}, {0, 20, 4}}, FWDMETA_FORWARD_DECODE},
               {{{0, 9, 4}, {4, 0, 4}}, FWDMETA_FORWARD_MIXED},
               {{{4, 4, 4}}, FWDMETA_FORWARD_EXTEND},
               {{{0, 9, 4}, {0, 9, 3}}, FWDMETA_FORWARD_DECODE}};
  for (const auto& c : cases) {
    ASSERT_TRUE(builder.Run(MakeBatch(c.slots)));
    int64_t mode = 0;
    EXPECT_OK(fwdmeta_meta_get_attr(builder.meta(), FWDMETA_ATTR_FORWARD_MODE, &mode));
    EXPECT_EQ(c.mode, mode);
  }
}

// vllm#35243, #34187, sglang#5875, lmdeploy#4569: padded rows of a ragged batch.
TEST_P(Bugs, B43_B44_B45_B47_PaddedSlots) {
  for (int64_t fill : {0, 1}) {
    reference::Config config = ConfigFor(8, 8, 64);
    config.pad_seq_len = fill;
    Builder builder(backend(), config);
    reference::Batch full = MakeBatch(Same(8, {0, 9, 1}));
    full.block_tables = {Table(std::vector<std::vector<int32_t>>(8, {4}))};
    ASSERT_TRUE(builder.Run(full));
    std::vector<Slot> slots = {{0, 9, 1}, {0, 19, 1}, {0, 29, 1}};
    slots.resize(8, {0, 0, 0});
    reference::Batch shrunk = MakeBatch(slots, 8);
    shrunk.block_tables = full.block_tables;
    ASSERT_TRUE(builder.Run(shrunk));
    EXPECT_EQ((Ints{0, 1, 2, 3, 3, 3, 3, 3, 3}), builder.Read(FWDMETA_FIELD_CU_SEQLENS_Q));
    EXPECT_EQ((Ints{0, 10, 30, 60, 60, 60, 60, 60, 60}), builder.Read(FWDMETA_FIELD_CU_SEQLENS_K));
    EXPECT_EQ((Ints{10, 20, 30, fill, fill, fill, fill, fill}), builder.Read(FWDMETA_FIELD_SEQ_LENS_KV));
    EXPECT_EQ((Ints{-1, -1, -1, -1, -1}), [&] {
      const Ints all = builder.Read(FWDMETA_FIELD_SLOT_MAPPING);
      return Ints(all.begin() + 3, all.end());
    }());
  }
  Builder zeros(backend(), ConfigFor(16, 16, 64));  // 16 slots of length 0: no negative entry in a prefix
  ASSERT_TRUE(zeros.Run(MakeBatch(Same(16, {0, 0, 0}))));
  EXPECT_EQ(Ints(17, 0), zeros.Read(FWDMETA_FIELD_DECODER_CU_TILES));
}

// sglang#1789: the live sum of keys, whatever the fill of padded slots.
TEST_P(Bugs, B52_SumOfLiveKeys) {
  reference::Config config = ConfigFor(4, 8, 64);
  config.pad_seq_len = 1;
  Builder builder(backend(), config);
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 9, 1}, {0, 19, 1}, {0, 29, 1}, {0, 1, 0}})));
  EXPECT_EQ(60, builder.Counts().num_kv_tokens);
  EXPECT_EQ((Ints{10, 20, 30, 1}), builder.Read(FWDMETA_FIELD_SEQ_LENS_KV));
}

// ---- E: chunks

// flashinfer#726: what a search counts is what is emitted, slots without keys give nothing.
TEST_P(Bugs, B54_SearchCountsWhatIsEmitted) {
  std::vector<Slot> slots = Same(12, {0, 0, 5});
  slots.resize(24, {0, 0, 0});
  for (int64_t tile : {16, 64}) {
    reference::Config config = ConfigFor(24, 128, 64, 5);
    config.decoder_block_shape_q = tile;
    Builder builder(backend(), config);
    ASSERT_TRUE(builder.Run(MakeBatch(slots)));
    EXPECT_EQ(tile == 16 ? 24 : 12, builder.Counts().decoder_num_blocks);
  }
}

// flashinfer#641: the capacity does not depend on how tokens are spread.
TEST_P(Bugs, B55_CapacityByTokens) {
  const reference::Config config = ConfigFor(2, 128, 128, 1);
  EXPECT_EQ(3, Capacities(config).encoder);
  Builder builder(backend(), config);
  ASSERT_TRUE(builder.Run(MakeBatch({{63, 0, 63}, {65, 0, 65}})));
  EXPECT_EQ(3, builder.Counts().encoder_num_blocks);
  ASSERT_TRUE(builder.Run(MakeBatch({{64, 0, 64}, {64, 0, 64}})));
  EXPECT_EQ(2, builder.Counts().encoder_num_blocks);
}

// FlashMLA#96, vllm#21691: a prefix of splits in a larger captured buffer.
TEST_P(Bugs, B57_PrefixOfSplits) {
  reference::Config config = ConfigFor(5, 16, 1024, 128);
  config.mla = true;
  config.mla_chunk_size = 64;
  Builder builder(backend(), config);
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 100, 1}, {0, 60, 1}, {0, 130, 1}})));
  EXPECT_EQ((Ints{0, 2, 3, 6, 6, 6}), builder.Read(FWDMETA_FIELD_DECODER_CU_TILES));
  EXPECT_EQ(-1, builder.Read(kDecoder)[6]);
  Builder many(backend(), ConfigFor(122, 122, 64));
  ASSERT_TRUE(many.Run(MakeBatch(Same(122, {0, 3, 1}))));
  EXPECT_EQ(123, many.Tensor(FWDMETA_FIELD_DECODER_CU_TILES).shape[0]);
}

// ---- F, where it concerns one rank

// TensorRT-LLM#6136: live rows are the same with and without padded ones.
TEST_P(Bugs, B68_PaddedSlotsGoLast) {
  Builder builder(backend(), ConfigFor(4, 8, 64));
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 5, 2}, {0, 7, 1}})));
  const Ints alone = builder.Head(FWDMETA_FIELD_BATCH_ID_PER_TOKEN, 3);
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 5, 2}, {0, 7, 1}, {0, 0, 0}}, 4)));
  EXPECT_EQ(alone, builder.Head(FWDMETA_FIELD_BATCH_ID_PER_TOKEN, 3));
  EXPECT_EQ(-1, builder.Read(FWDMETA_FIELD_BATCH_ID_PER_TOKEN)[3]);
}

// vllm#56079: the mask of padded tokens.
TEST_P(Bugs, B70_PaddingMask) {
  Builder builder(backend(), ConfigFor(5, 8, 64));
  ASSERT_TRUE(builder.Run(MakeBatch(Same(5, {0, 5, 1}), 8)));
  EXPECT_EQ((Ints{0, 0, 0, 0, 0, 1, 1, 1}), builder.Read(FWDMETA_FIELD_IS_PADDING));
}

// ---- H to J (B77, B78, B80, B84 and B95 are in graph_test.cpp, B87 in contract_errors_test.cpp, B88 in abi_test.cpp)

// flashinfer#442: two builders share nothing.
TEST_P(Bugs, B81_TwoBuilders) {
  Builder one(backend(), ConfigFor(4, 16, 64)), two(backend(), ConfigFor(4, 16, 64));
  const reference::Batch decode = MakeBatch({{0, 5, 1}, {0, 6, 1}, {0, 7, 1}}),
                         prefill = MakeBatch({{4, 0, 4}, {5, 0, 5}});
  ASSERT_OK(one.Build(decode));
  ASSERT_OK(two.Build(prefill));
  EXPECT_TRUE(one.Expect(reference::Build(one.config(), decode)));
  EXPECT_TRUE(two.Expect(reference::Build(two.config(), prefill)));
}

// FastDeploy#7367: one build a step; reads are plain pointer gets.
TEST_P(Bugs, B83_ReadsAreNoBuilds) {
  Builder builder(backend(), ConfigFor(4, 16, 64));
  reference::Batch batch = MakeBatch({{0, 5, 1}});
  batch.block_tables = {Table({{3}})};
  ASSERT_TRUE(builder.Run(batch));
  std::set<void*> pointers;
  for (int layer = 0; layer < 61; ++layer) {
    for (int user = 0; user < 2; ++user) pointers.insert(builder.Tensor(FWDMETA_FIELD_SLOT_MAPPING).data);
  }
  EXPECT_EQ(1u, pointers.size());
  fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
  EXPECT_OK(fwdmeta_builder_get_info(builder.handle(), &info));
  EXPECT_EQ(1, info.last_step);
}

// vllm#40654: the host's lengths are a bound, the device's are the truth.
TEST_P(Bugs, B85_BoundAndTruth) {
  reference::Config config = ConfigFor(1, 4, 256);
  Builder builder(backend(), config);
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 100, 4}}), FWDMETA_MEMORY_HOST));
  EXPECT_EQ(104, MaxLen(builder)[3]);
  // Three drafts of which one was accepted: two rejected.
  reference::Batch batch = MakeBatch({{0, 100, 4}});
  reference::Advance advance;
  advance.num_rejected = {2};
  reference::AdvanceLengths(config, advance, &batch);
  EXPECT_EQ(102, batch.decoder[0]);
  Buffer memory(backend(), 4 * sizeof(int32_t));
  auto* p = static_cast<int32_t*>(memory.data());
  const int32_t values[] = {0, 100, 4, 2};
  Upload(backend(), p, values, sizeof values);
  const fwdmeta_advance_args_t args = AdvanceOfSlot(p);
  ASSERT_OK(fwdmeta_advance(builder.handle(), &args));
  fwdmeta_batch_t b = FWDMETA_BATCH_INITIALIZER;
  b.batch_size = 1;
  b.seq_lens_encoder = p;
  b.seq_lens_decoder = p + 1;
  b.seq_lens_this_time = p + 2;
  ASSERT_OK(builder.Build(b));
  EXPECT_TRUE(builder.Expect(reference::Build(config, batch)));
}

// flashinfer#3125: more slots than a grid dimension of 16 bits.
TEST_P(Bugs, B91_SlotsPast65535) {
  Builder builder(backend(), ConfigFor(65536, 65536, 64));
  ASSERT_TRUE(builder.Run(MakeBatch(Same(65536, {0, 3, 1}))));
  EXPECT_EQ(65536, builder.Read(FWDMETA_FIELD_CU_SEQLENS_Q).back());
  EXPECT_EQ(65536, builder.Counts().decoder_num_blocks);
}

// flash-attention#1786: 80,000 sequences of 16 tokens.
TEST_P(Bugs, B92_EightyThousandSequences) {
  reference::Config config = ConfigFor(80000, 1280000, 16, 1);
  config.encoder_block_shape_q = 16;
  Builder builder(backend(), config);
  ASSERT_TRUE(builder.Run(MakeBatch(Same(80000, {16, 0, 16}))));
  EXPECT_EQ(1280000, builder.Read(FWDMETA_FIELD_CU_SEQLENS_Q).back());
  EXPECT_EQ(79999, builder.Read(FWDMETA_FIELD_BATCH_ID_PER_TOKEN)[1279999]);
  EXPECT_EQ(80000, builder.Counts().encoder_num_blocks);
}

// llama.cpp#9667, #18400: more than the capacity is a status with both numbers, and nothing is written.
TEST_P(Bugs, B93_BatchPastTheCapacity) {
  Builder builder(backend(), ConfigFor(100, 512, 512));
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 5, 1}})));
  const reference::Batch batch = MakeBatch(Same(100, {271, 0, 271}));
  EXPECT_STATUS(FWDMETA_CAPACITY_EXCEEDED, builder.Build(batch, FWDMETA_MEMORY_HOST));
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {27100, 512})) << fwdmeta_last_error();
  ASSERT_TRUE(builder.Run(batch, FWDMETA_MEMORY_HOST));  // the arrays are those of the step before
  ASSERT_TRUE(builder.Run(batch, FWDMETA_MEMORY_DEVICE));

  Builder small(backend(), ConfigFor(64, 512, 512));
  ASSERT_TRUE(small.Run(MakeBatch({{0, 5, 1}})));
  for (const auto kind : {FWDMETA_MEMORY_HOST, FWDMETA_MEMORY_DEVICE}) {
    EXPECT_STATUS(FWDMETA_CAPACITY_EXCEEDED, small.Build(MakeBatch(Same(65, {0, 5, 1})), kind));
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {65, 64})) << fwdmeta_last_error();
    EXPECT_TRUE(small.ExpectArrays(small.meta(), reference::Build(small.config(), MakeBatch({{0, 5, 1}})), 1));
  }
  ASSERT_TRUE(small.Run(MakeBatch(Same(64, {0, 5, 1}))));
}

INSTANTIATE_BACKENDS(Bugs);

}  // namespace
}  // namespace fwdmeta_test
