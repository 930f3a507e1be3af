// Sizes at which a warp, a thread block, a launch, a page or an integer ends.
#include <sys/mman.h>

#include <algorithm>

#include "harness.h"
#include "random_batch.h"

namespace fwdmeta_test {
namespace {

reference::Config ConfigFor(int64_t slots, int64_t tokens, int64_t model_len, int64_t g = 8, int64_t block_size = 64) {
  reference::Config config;
  config.max_batch_size = slots;
  config.max_num_tokens = tokens;
  config.max_model_len = model_len;
  config.num_q_heads = g;
  config.groups = {{block_size, block_size, false}};
  return config;
}

// Every `live`-th slot decodes, every eighth of them is a prompt; tables and ids of one column too few at the end.
reference::Batch Mixed(int64_t slots, int live, int drafts) {
  reference::Batch batch;
  std::vector<int32_t> table;
  for (int64_t b = 0; b < slots; ++b) {
    const bool on = b % live == live - 1 || b == slots - 1;
    const bool prefill = on && b % 8 == 5;
    batch.this_time.push_back(!on ? 0 : prefill ? 3 : 1 + static_cast<int32_t>(b % (1 + drafts)));
    batch.encoder.push_back(prefill ? 3 : !on ? 4 : 0);
    batch.decoder.push_back(static_cast<int32_t>(b % 60));
  }
  reference::Rows<int32_t> rows;
  rows.given = true;
  rows.width = rows.stride = 1;
  for (int64_t b = 0; b < slots; ++b) rows.data.push_back(static_cast<int32_t>(b * 3));
  batch.block_tables = {rows};
  batch.input_ids.given = true;
  batch.input_ids.width = 3;
  batch.input_ids.stride = 4;
  for (int64_t i = 0; i < slots * 4; ++i) batch.input_ids.data.push_back(i);
  return batch;
}

const int64_t kSlots[] = {0,   1,   31,   32,   33,   63,   64,   65,   255,   256,   257,
                          992, 993, 1023, 1024, 1025, 4095, 4096, 4097, 16384, 65536, 131072};

class Boundaries : public BackendTest {};

TEST_P(Boundaries, SlotsOfBuildersOfThatSize) {
  for (int64_t slots : kSlots) {
    const int64_t size = std::max<int64_t>(slots, 1);
    Builder builder(backend(), ConfigFor(size, 3 * size, 64));
    const reference::Batch all = Mixed(slots, 1, 0), drafts = Mixed(slots, 1, 2), sparse = Mixed(slots, 37, 1);
    ASSERT_TRUE(builder.Run(all)) << slots;
    ASSERT_TRUE(builder.Run(sparse, FWDMETA_MEMORY_HOST)) << slots;
    ASSERT_TRUE(builder.Run(drafts)) << slots;
    ASSERT_TRUE(builder.Run(MakeBatch({{0, 1, 1}}))) << slots;
  }
}

TEST_P(Boundaries, SlotsOfOneBuilderUpAndDown) {
  Builder builder(backend(), ConfigFor(4097, 3 * 4097, 64));
  for (int pass = 0; pass < 2; ++pass) {
    for (int64_t i = 0; i < 19; ++i) {
      const int64_t slots = kSlots[pass == 0 ? i : 18 - i];
      ASSERT_TRUE(builder.Run(Mixed(slots, 1 + pass, 2), i % 2 ? FWDMETA_MEMORY_HOST : FWDMETA_MEMORY_DEVICE)) << slots;
    }
  }
}

TEST_P(Boundaries, BadSlotAtEveryEdge) {
  for (int64_t slots : {1, 33, 257, 1025, 4097, 16384}) {
    Builder builder(backend(), ConfigFor(slots, 3 * slots, 64));
    for (int64_t bad : {int64_t{0}, int64_t{31}, int64_t{32}, int64_t{255}, int64_t{1024}, int64_t{4096}, slots - 1}) {
      if (bad >= slots) continue;
      reference::Batch batch = Mixed(slots, 1, 0);
      batch.this_time[static_cast<size_t>(bad)] = -1;
      ASSERT_TRUE(builder.Run(batch)) << slots << " " << bad;
      batch = Mixed(slots, 1, 0);
      ASSERT_TRUE(builder.Run(batch)) << slots << " " << bad;
    }
  }
}

TEST_P(Boundaries, PageSizes) {
  for (int64_t page : {1, 2, 63, 64, 512}) {
    reference::Config config = ConfigFor(6, 2048, 2048, 8, page);
    Builder builder(backend(), config);
    reference::Batch batch = MakeBatch({{0, static_cast<int32_t>(page) - 1, 1},
                                        {0, static_cast<int32_t>(page), 2},
                                        {600, 511, 600},
                                        {512, 512, 512},
                                        {1, 0, 1},
                                        {0, 2047, 1}});
    batch.block_tables = {reference::Rows<int32_t>()};
    auto& table = batch.block_tables[0];
    table.given = true;
    table.width = table.stride = (2048 + page - 1) / page;
    for (int64_t i = 0; i < 6 * table.stride; ++i) table.data.push_back(static_cast<int32_t>(i * 7 % 1000003));
    ASSERT_TRUE(builder.Run(batch)) << page;
    EXPECT_EQ(0, builder.Counts().num_invalid_slots);
  }
}

TEST_P(Boundaries, GroupSizes) {
  for (int64_t g : {1, 7, 14, 128}) {
    for (int64_t shape : {1, 16, 64, 100}) {
      reference::Config config = ConfigFor(8, 700, 512, g);
      config.encoder_block_shape_q = shape;
      config.decoder_block_shape_q = shape;
      Builder builder(backend(), config);
      ASSERT_TRUE(builder.Run(MakeBatch({{0, 5, 1}, {64, 0, 64}, {0, 7, 8}, {0, 0, 0}, {500, 12, 500}, {1, 0, 1}})));
    }
  }
}

TEST_P(Boundaries, MlaOfOneSlotAndOfMany) {
  for (int64_t chunk : {0, 1, 64, 1000}) {
    for (int64_t page : {1, 16, 64}) {
      reference::Config config = ConfigFor(300, 600, 4096, 128, page);
      config.max_num_kv_tokens = 100000;
      config.mla = true;
      config.mla_chunk_size = chunk;
      Builder builder(backend(), config);
      for (int32_t d : {0, 62, 63, 64, 4095}) ASSERT_TRUE(builder.Run(MakeBatch({{0, d, 1}}))) << chunk;
      ASSERT_TRUE(builder.Run(MakeBatch({{40, 2, 40}, {0, 3, 0}}))) << "no decode slot";
      ASSERT_TRUE(builder.Run(MakeBatch({}))) << "no slot";
      for (int slots : {2, 131, 132, 133, 300}) {
        reference::Batch batch;
        for (int b = 0; b < slots; ++b) {
          batch.encoder.push_back(0);
          batch.decoder.push_back(b * 37 % 300);
          batch.this_time.push_back(1 + b % 2);
        }
        ASSERT_TRUE(builder.Run(batch)) << chunk << " " << slots;
      }
    }
  }
}

TEST_P(Boundaries, PromptOfAMillionTokens) {
  constexpr int32_t kTokens = 1 << 20;
  reference::Config config = ConfigFor(4, kTokens, 2 * kTokens);
  config.max_num_kv_tokens = 2 * kTokens;
  Builder builder(backend(), config);
  reference::Batch batch = MakeBatch({{0, 3, 0}, {kTokens, 0, kTokens}});
  std::vector<int32_t> row(2 * kTokens / 64);
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<int32_t>(i * 5);
  batch.block_tables = {reference::Rows<int32_t>::Of({{}, row})};
  batch.input_ids = reference::Rows<int64_t>::Of({{}, std::vector<int64_t>(kTokens, 5)});
  ASSERT_TRUE(builder.Run(batch));
  EXPECT_EQ(kTokens / 8, builder.Counts().encoder_num_blocks);
  EXPECT_EQ(kTokens - 1, builder.Read(FWDMETA_FIELD_POSITION_IDS)[kTokens - 1]);
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 5, 1}})));
  // Its second half, as a chunk; and its first decode.
  ASSERT_TRUE(builder.Run(MakeBatch({{kTokens - 7, kTokens + 7, kTokens - 7}}), FWDMETA_MEMORY_HOST));
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 2 * kTokens - 1, 1}})));
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 2 * kTokens, 1}})));
}

// A sum past int32 is an invalid batch; the slot is the first whose prefix passes the limit.
TEST_P(Boundaries, SumsPastInt32) {
  reference::Config config = ConfigFor(8, 64, INT32_MAX, 8, 1 << 20);
  config.max_num_kv_tokens = int64_t{1} << 40;
  Builder builder(backend(), config);
  const int32_t top = INT32_MAX;
  const struct {
    reference::Batch batch;
    int32_t error, slot;
    int64_t value, limit;
  } cases[] = {
      {MakeBatch({{0, 0, 0}, {0, top - 1, 1}, {0, 0, 1}}), FWDMETA_ERROR_SUM_OVERFLOW, 2, int64_t{top} + 1, top},
      {MakeBatch({{0, 0, 0}, {0, top - 2, 1}, {0, 0, 1}}), 0, -1, 0, 0},
      {MakeBatch({{top, 0, top}, {0, 0, 1}}), FWDMETA_ERROR_SUM_OVERFLOW | FWDMETA_ERROR_NUM_TOKENS, 1,
       int64_t{top} + 1, top},
      {MakeBatch({{top, 0, top}}), FWDMETA_ERROR_NUM_TOKENS, 0, top, 64},
      {MakeBatch({{0, top, 1}}), FWDMETA_ERROR_MODEL_LEN, 0, int64_t{top} + 1, top},
      {MakeBatch({{0, top, 1}, {top, top, top}}), FWDMETA_ERROR_MODEL_LEN, 0, int64_t{top} + 1, top},
  };
  for (const auto& c : cases) {
    const reference::Result want = reference::Build(config, c.batch);
    EXPECT_EQ(c.error, want.counts.error);
    EXPECT_EQ(c.slot, want.counts.error_slot);
    EXPECT_EQ(c.value, want.counts.error_value);
    EXPECT_EQ(c.limit, want.counts.error_limit);
    ASSERT_TRUE(builder.Run(c.batch, FWDMETA_MEMORY_DEVICE));
    ASSERT_TRUE(builder.Run(c.batch, FWDMETA_MEMORY_HOST));
  }
}

// 131072 slots of D+N near 2^31 each: sums need 64 bits.
TEST_P(Boundaries, SumsOfManySlotsPastInt32) {
  reference::Config config = ConfigFor(131072, 131072, INT32_MAX, 1, 1 << 20);
  config.max_num_kv_tokens = INT64_MAX / 2;
  config.outputs = uint64_t{1} << FWDMETA_FIELD_CU_SEQLENS_K | uint64_t{1} << FWDMETA_FIELD_COUNTS;
  std::vector<fwdmeta_group_config_t> groups;
  fwdmeta_config_t c = ToC(config, backend(), &groups);
  fwdmeta_builder_t builder = 0;
  ASSERT_OK(fwdmeta_builder_create(&c, &builder));
  reference::Batch batch;
  batch.encoder.assign(131072, 0);
  batch.decoder.assign(131072, INT32_MAX - 1);
  batch.this_time.assign(131072, 1);
  Inputs inputs(backend());
  const fwdmeta_batch_t b = inputs.Put(batch, FWDMETA_MEMORY_DEVICE);
  int64_t step = 0;
  EXPECT_OK(fwdmeta_build(builder, &b, nullptr, &step));
  fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
  EXPECT_STATUS(FWDMETA_INVALID_BATCH, fwdmeta_counts_wait(builder, step, FWDMETA_WAIT_FINAL, -1, &counts));
  EXPECT_EQ(FWDMETA_ERROR_SUM_OVERFLOW, counts.error);
  EXPECT_EQ(1, counts.error_slot);
  EXPECT_EQ(int64_t{131072} * INT32_MAX, counts.error_value);
  EXPECT_OK(fwdmeta_builder_destroy(builder));
}

TEST_P(Boundaries, SlotNumbersPastInt32) {
  reference::Config config = ConfigFor(2, 8, 128);
  Builder builder(backend(), config);
  reference::Batch batch = MakeBatch({{0, 63, 1}, {0, 62, 4}});
  batch.block_tables = {reference::Rows<int32_t>::Of({{33554431, 1}, {33554432, INT32_MAX}})};
  ASSERT_TRUE(builder.Run(batch));
  EXPECT_EQ(
      (std::vector<int64_t>{2147483647, 2147483710, 2147483711, int64_t{INT32_MAX} * 64, int64_t{INT32_MAX} * 64 + 1}),
      builder.Head(FWDMETA_FIELD_SLOT_MAPPING, 5));
}

TEST_P(Boundaries, PaddedTokens) {
  reference::Config config = ConfigFor(4, 16, 64);
  config.pad_token_id = 9;
  config.pad_seq_len = 3;
  Builder builder(backend(), config);
  for (int32_t tokens : {0, 1, 15, 16}) {
    for (int64_t padded = -1; padded <= 16; ++padded) {
      reference::Batch batch = MakeBatch({{0, 3, 0}, {tokens, 0, tokens}}, padded);
      batch.input_ids = reference::Rows<int64_t>::Of({{}, std::vector<int64_t>(16, 7)});
      for (const auto kind : {FWDMETA_MEMORY_DEVICE, FWDMETA_MEMORY_HOST}) ASSERT_TRUE(builder.Run(batch, kind));
    }
  }
  EXPECT_STATUS(FWDMETA_CAPACITY_EXCEEDED, builder.Build(MakeBatch({{0, 3, 1}}, 17)));
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {17, 16})) << fwdmeta_last_error();
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, builder.Build(MakeBatch({{0, 3, 1}}, -2)));
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 3, 1}}, 16)));
}

// Parameters and lengths up to the last int32, where 32-bit products and sums wrap.
TEST_P(Boundaries, ExtremeParameters) {
  Random random(99);
  const auto pick = [&random](int64_t low) {
    const int64_t value =
        random.Pick<int64_t>({INT32_MAX, INT32_MAX - 1, 1 << 30, (1 << 30) + 7, 1 << 20, 65537, 4096, 64, 3, 1});
    return std::max(low, value);
  };
  int built = 0;
  for (int round = 0; round < 4000 && built < 300; ++round) {
    reference::Config config = ConfigFor(5, 24, pick(8));
    config.max_num_kv_tokens = random.Chance(0.5) ? 0 : random.Pick<int64_t>({INT64_MAX, int64_t{1} << 40, INT32_MAX});
    config.num_kv_heads = random.Chance(0.5) ? 1 : pick(1);
    config.num_q_heads = config.num_kv_heads * std::max<int64_t>(1, std::min(pick(1), INT32_MAX / config.num_kv_heads));
    config.encoder_block_shape_q = pick(1);
    config.decoder_block_shape_q = pick(1);
    config.num_sms = pick(1);
    config.groups.clear();
    config.mla = random.Chance(0.3);
    config.mla_chunk_size = config.mla && random.Chance(0.6) ? pick(1) : 0;
    const int groups = static_cast<int>(random.Int(1, 3));
    for (int g = 0; g < groups; ++g) {
      int64_t block = pick(1);
      if (config.mla && config.mla_chunk_size == 0) block = std::min<int64_t>(block, (1 << 20) - 1);
      config.groups.push_back({block, random.Chance(0.5) ? block : 1, random.Chance(0.2)});
    }
    if (!config.mla && random.Chance(0.6)) {
      config.cp_size = pick(2);
      config.cp_rank = random.Chance(0.5) ? random.Int(0, 3) % config.cp_size : config.cp_size - 1;
      config.cp_interleave = groups == 1 && random.Chance(0.5) ? config.groups[0].block_size : 1;
    }
    const reference::Capacities capacity = reference::GetCapacities(config);
    if (std::max({capacity.decoder, capacity.encoder, capacity.kv, capacity.pre_cache}) > 100000) continue;
    ++built;
    Builder builder(backend(), config);
    for (int step = 0; step < 6; ++step) {
      reference::Batch batch;
      int64_t room = std::min<int64_t>(config.KvTokens(), INT32_MAX);
      for (int b = 0; b < 5; ++b) {
        const int64_t most = std::min(config.max_model_len, step % 2 == 0 ? room : room / (5 - b));
        const auto n = static_cast<int32_t>(std::min<int64_t>(random.Int(0, 4), most));
        const int64_t last = most - n;
        const auto d = static_cast<int32_t>(random.Chance(0.5) ? last : random.Int(0, last));
        batch.this_time.push_back(n);
        batch.decoder.push_back(d);
        batch.encoder.push_back(random.Chance(0.5) ? n : 0);
        if (n > 0) room -= int64_t{n} + d;
      }
      for (const auto& group : config.groups) {
        // Of a few columns: what lies past them is outside the row.
        batch.block_tables.emplace_back();
        auto& table = batch.block_tables.back();
        table.given = true;
        table.width = table.stride = group.block_size == group.kernel_block_size ? 4 : 4096;
        for (int64_t i = 0; i < 5 * table.width; ++i) table.data.push_back(static_cast<int32_t>(pick(1)));
      }
      ASSERT_TRUE(builder.Run(batch, step % 3 == 2 ? FWDMETA_MEMORY_HOST : FWDMETA_MEMORY_DEVICE)) << round;
    }
  }
  EXPECT_EQ(300, built);
}

// Rows of a table and of ids that begin past element 2^31 (vllm#16806), in memory that is only mapped.
TEST_P(Boundaries, B17_RowOffsetsPastInt32) {
  constexpr int64_t kRow = 598, kWidth = 3600000, kRows = kRow + 1;
  const size_t table_bytes = kRows * kWidth * sizeof(int32_t), id_bytes = kRows * kWidth * sizeof(int64_t);
  const bool cuda = backend() == FWDMETA_BACKEND_CUDA;
  const auto map = [cuda](size_t bytes) -> void* {
    if (cuda) return Allocate(Memory::kDevice, bytes);
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? nullptr : at;
  };
  const auto unmap = [cuda](void* at, size_t bytes) {
    if (cuda) {
      Release(Memory::kDevice, at);
    } else if (at != nullptr) {
      munmap(at, bytes);
    }
  };
  auto* table = static_cast<int32_t*>(map(table_bytes));
  auto* ids = static_cast<int64_t*>(map(id_bytes));
  if (table == nullptr || ids == nullptr) {
    unmap(table, table_bytes);
    unmap(ids, id_bytes);
    GTEST_SKIP() << "no " << table_bytes + id_bytes << " bytes of address space";
  }
  {
    reference::Config config = ConfigFor(kRows, 8, kWidth, 8, 1);
    config.max_num_kv_tokens = 1000;
    Builder builder(backend(), config);
    reference::Batch batch;
    batch.encoder.assign(kRows, 0);
    batch.decoder.assign(kRows, 0);
    batch.this_time.assign(kRows, 0);
    batch.this_time[kRow] = 3;
    batch.decoder[kRow] = 5;
    const int32_t pages[] = {70, 71, 72};
    const int64_t tokens[] = {900, 901, 902};
    Upload(backend(), table + kRow * kWidth + 5, pages, sizeof pages);
    Upload(backend(), ids + kRow * kWidth, tokens, sizeof tokens);
    fwdmeta_batch_t b = builder.inputs().Put(batch, FWDMETA_MEMORY_DEVICE);
    const fwdmeta_rows_t rows = {table, kWidth, kWidth, nullptr};
    b.num_block_tables = 1;
    b.block_tables = &rows;
    b.input_ids = {ids, kWidth, kWidth, nullptr};
    EXPECT_OK(builder.Build(b));
    EXPECT_EQ(0, builder.Counts().warnings);
    EXPECT_EQ((std::vector<int64_t>{70, 71, 72}), builder.Head(FWDMETA_FIELD_SLOT_MAPPING, 3));
    EXPECT_EQ((std::vector<int64_t>{900, 901, 902}), builder.Head(FWDMETA_FIELD_IDS_REMOVE_PADDING, 3));
    static_assert(kRow * kWidth == 2152800000, "past 2^31");
  }
  unmap(table, table_bytes);
  unmap(ids, id_bytes);
}

INSTANTIATE_BACKENDS(Boundaries);

}  // namespace
}  // namespace fwdmeta_test
