// The metadata of microbatch slices: each is a batch of its own, and together they are the whole batch's (the forward
// context's contract §5).
#include <algorithm>

#include "random_batch.h"
#include "slicer_harness.h"

namespace fwdmeta_test {
namespace {

class SlicerTest : public BackendTest {};

reference::Config SmallConfig() {
  reference::Config config;
  config.max_batch_size = 8;
  config.max_num_tokens = 64;
  config.max_model_len = 128;
  config.groups = {{16, 16, false}};
  return config;
}

// Rows of ids that tell slot and column.
reference::Rows<int64_t> Ids(int64_t slots, int64_t width) {
  std::vector<std::vector<int64_t>> rows(slots);
  for (int64_t b = 0; b < slots; ++b) {
    for (int64_t c = 0; c < width; ++c) rows[b].push_back(1000 * b + c);
  }
  return reference::Rows<int64_t>::Of(rows);
}

// A split for the batch: the default where the host can work it out, else anything from one token to all and more.
int64_t RandomSplit(Random& random, const reference::Batch& batch, fwdmeta_memory_kind_t kind) {
  int64_t total = 0;
  for (int32_t n : batch.this_time) total += std::max(n, 0);
  const bool known = kind == FWDMETA_MEMORY_HOST || batch.num_padded_tokens >= 0;
  if (known && random.Chance(0.4)) return FWDMETA_DEFAULT;
  return random.Int(1, std::max<int64_t>(1, std::min<int64_t>(INT32_MAX, total + 2)));
}

TEST_P(SlicerTest, RandomSlicesEqualTheModel) {
  const int64_t wanted = backend() == FWDMETA_BACKEND_HOST ? 12000 : 4000;
  int64_t batches = 0, errors = 0, empty = 0, cut = 0;
  for (int round = 0; batches < wanted; ++round) {
    Random random(77 * 1000003 + static_cast<uint64_t>(round));
    const reference::Config config = RandomConfig(random, round % 12 == 0 ? 2000 : round % 3 == 0 ? 300 : 70);
    Slicer slicer(backend(), config, random.Pick<int64_t>({1, 2, 2, 3, 4, 16}));
    ASSERT_FALSE(HasFailure()) << "round " << round;
    for (int64_t step = 0; step < (config.max_batch_size > 300 ? 10 : 60); ++step, ++batches) {
      reference::Batch batch = RandomBatch(random, config);
      if (random.Chance(0.1)) Spoil(random, config, &batch);
      const fwdmeta_memory_kind_t kind = random.Chance(0.5) ? FWDMETA_MEMORY_DEVICE : FWDMETA_MEMORY_HOST;
      const int64_t num_slices = random.Int(1, slicer.size());
      const int64_t split = RandomSplit(random, batch, kind);
      const int64_t set = config.generations == 1 ? FWDMETA_DEFAULT : random.Int(0, config.generations - 1);
      ASSERT_TRUE(slicer.Run(batch, kind, num_slices, split, set)) << "round " << round << " step " << step;
      const bool error = reference::Build(config, batch).counts.error != 0;
      errors += error;
      for (int64_t i = 0; i < num_slices && !error && kind == FWDMETA_MEMORY_DEVICE; ++i) {
        const int64_t tokens = split == FWDMETA_DEFAULT ? batch.num_padded_tokens / num_slices : split;
        const reference::Batch one = reference::SliceOf(config, batch, i, num_slices, tokens);
        empty += reference::Build(config, one).counts.num_tokens == 0;
        for (int64_t b = 0; b < one.size(); ++b) cut += one.this_time[b] > 0 && one.unfinished[b];
      }
    }
  }
  std::printf("%lld batches, %lld with an error, %lld empty slices, %lld requests cut\n", (long long)batches,
              (long long)errors, (long long)empty, (long long)cut);
  EXPECT_GE(errors, batches / 20);
  EXPECT_GE(empty, batches / 20);
  EXPECT_GE(cut, batches / 20);
}

// The token arrays of the slices, one after another, are the whole batch's, so are the output rows by their slots, and
// in its last slice a slot is as long as in the whole batch.
TEST_P(SlicerTest, TheSlicesTogetherAreTheWholeBatch) {
  Random random(78);
  for (int round = 0; round < 150; ++round) {
    reference::Config config = RandomConfig(random, 100);
    config.outputs = UINT64_MAX;
    const int64_t num_slices = random.Int(1, 5);
    Slicer slicer(backend(), config, num_slices);
    Builder whole(backend(), config);
    const reference::Batch batch = RandomBatch(random, config);
    ASSERT_OK(whole.Build(batch));
    const int64_t split = RandomSplit(random, batch, FWDMETA_MEMORY_DEVICE);
    ASSERT_OK(slicer.Build(batch, FWDMETA_MEMORY_DEVICE, num_slices, split));
    const fwdmeta_counts_t all = whole.Counts();
    const auto joined = [&](fwdmeta_field_t field, int32_t fwdmeta_counts_t::*count, int32_t group) {
      std::vector<int64_t> values;
      for (int64_t i = 0; i < num_slices; ++i) {
        const std::vector<int64_t> one = slicer.slice(i).Head(field, slicer.slice(i).Counts().*count, group);
        values.insert(values.end(), one.begin(), one.end());
      }
      return values;
    };
    for (fwdmeta_field_t field :
         {FWDMETA_FIELD_BATCH_ID_PER_TOKEN, FWDMETA_FIELD_POSITION_IDS, FWDMETA_FIELD_IS_PADDING,
          FWDMETA_FIELD_MASK_ENCODER_BATCH, FWDMETA_FIELD_IDS_REMOVE_PADDING, FWDMETA_FIELD_SLOT_MAPPING}) {
      const size_t groups = field == FWDMETA_FIELD_SLOT_MAPPING ? config.groups.size() : 1;
      for (size_t group = 0; group < groups; ++group) {
        EXPECT_EQ(whole.Head(field, all.num_tokens, static_cast<int32_t>(group)),
                  joined(field, &fwdmeta_counts_t::num_tokens, static_cast<int32_t>(group)))
            << fwdmeta_field_name(field);
      }
    }
    EXPECT_EQ(whole.Head(FWDMETA_FIELD_BATCH_ID_PER_TOKEN_OUTPUT, all.num_output_tokens),
              joined(FWDMETA_FIELD_BATCH_ID_PER_TOKEN_OUTPUT, &fwdmeta_counts_t::num_output_tokens, 0));
    int64_t tokens = 0, padded = 0, invalid_slots = 0, invalid_ids = 0;
    std::vector<int64_t> rows, lengths(batch.size(), config.pad_seq_len);
    for (int64_t i = 0; i < num_slices; ++i) {
      Builder& slice = slicer.slice(i);
      const fwdmeta_counts_t counts = slice.Counts();
      for (int64_t row : slice.Head(FWDMETA_FIELD_LOGITS_INDICES, counts.num_output_tokens)) {
        rows.push_back(tokens + row);
      }
      const std::vector<int64_t> cu = slice.Head(FWDMETA_FIELD_CU_SEQLENS_Q, batch.size() + 1);
      const std::vector<int64_t> kv = slice.Head(FWDMETA_FIELD_SEQ_LENS_KV, batch.size());
      for (int64_t b = 0; b < batch.size(); ++b) {
        if (cu[b + 1] > cu[b]) lengths[b] = kv[b];
      }
      tokens += counts.num_tokens;
      padded += counts.num_padded_tokens;
      invalid_slots += counts.num_invalid_slots;
      invalid_ids += counts.num_invalid_ids;
    }
    EXPECT_EQ(whole.Head(FWDMETA_FIELD_LOGITS_INDICES, all.num_output_tokens), rows);
    EXPECT_EQ(whole.Head(FWDMETA_FIELD_SEQ_LENS_KV, batch.size()), lengths);
    EXPECT_EQ(all.num_tokens, tokens);
    EXPECT_EQ(all.num_padded_tokens, padded);
    EXPECT_EQ(all.num_invalid_slots, invalid_slots);
    EXPECT_EQ(all.num_invalid_ids, invalid_ids);
    ASSERT_FALSE(HasFailure()) << "round " << round << ", " << num_slices << " slices, split " << split << "\n"
                               << Describe(config, batch);
  }
}

// The host's plan and the slices of the metadata have the same tokens.
TEST_P(SlicerTest, SlicesHaveTheTokensOfThePlan) {
  Random random(79);
  const reference::Config config = SmallConfig();
  Slicer slicer(backend(), config, 4);
  for (int round = 0; round < 300; ++round) {
    const reference::Batch batch = RandomBatch(random, config);
    fwdmeta_slice_args_t args = FWDMETA_SLICE_ARGS_INITIALIZER;
    std::vector<int32_t> seq_lens;
    for (int64_t b = 0; b < batch.size(); ++b) {
      seq_lens.push_back(batch.this_time[b] > 0 ? batch.decoder[b] + batch.this_time[b] : 0);
    }
    args.query_lens = batch.this_time.data();
    args.seq_lens = seq_lens.data();
    args.num_reqs = batch.size();
    if (batch.num_padded_tokens >= 0) args.num_padded_tokens = batch.num_padded_tokens;
    args.num_slices = random.Int(1, 4);
    fwdmeta_slice_t plan[4];
    ASSERT_OK(fwdmeta_plan_slices(&args, plan));
    ASSERT_OK(slicer.Build(batch, FWDMETA_MEMORY_HOST, args.num_slices, FWDMETA_DEFAULT));
    for (int64_t i = 0; i < args.num_slices; ++i) {
      const fwdmeta_counts_t counts = slicer.slice(i).Counts();
      EXPECT_EQ(plan[i].num_tokens, counts.num_tokens);
      EXPECT_EQ(plan[i].end_token - plan[i].first_token, counts.num_padded_tokens);
      EXPECT_EQ(plan[i].empty, counts.num_tokens == 0);
    }
    ASSERT_FALSE(HasFailure()) << "round " << round << " " << Describe(config, batch);
  }
}

// A prompt of 10 tokens over three slices of 4, 4 and 2, behind 5 cached ones.
TEST_P(SlicerTest, APrefillsOutputRowStandsWithItsLastToken) {
  Slicer slicer(backend(), SmallConfig(), 3);
  reference::Batch batch = MakeBatch({{10, 5, 10}}, 12);
  batch.block_tables = {reference::Rows<int32_t>::Of({{7, 3}})};
  batch.input_ids = Ids(1, 10);
  ASSERT_TRUE(slicer.Run(batch, FWDMETA_MEMORY_DEVICE, 3, FWDMETA_DEFAULT));
  const std::vector<std::vector<int64_t>> positions = {{5, 6, 7, 8}, {9, 10, 11, 12}, {13, 14}};
  const std::vector<std::vector<int64_t>> ids = {{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9}};
  const int64_t padded[] = {4, 4, 4}, rows[] = {0, 0, 1}, lengths[] = {9, 13, 15};
  for (int i = 0; i < 3; ++i) {
    const fwdmeta_counts_t counts = slicer.slice(i).Counts();
    EXPECT_EQ(positions[i], slicer.slice(i).Head(FWDMETA_FIELD_POSITION_IDS, counts.num_tokens));
    EXPECT_EQ(ids[i], slicer.slice(i).Head(FWDMETA_FIELD_IDS_REMOVE_PADDING, counts.num_tokens));
    EXPECT_EQ(padded[i], counts.num_padded_tokens);
    EXPECT_EQ(rows[i], counts.num_output_tokens);
    EXPECT_EQ(lengths[i], slicer.slice(i).Head(FWDMETA_FIELD_SEQ_LENS_KV, 1)[0]);
    EXPECT_EQ(1, counts.num_prefill);
  }
  EXPECT_EQ(std::vector<int64_t>{1}, slicer.slice(2).Head(FWDMETA_FIELD_LOGITS_INDICES, 1));
}

// Every token of a decode slot is a row, wherever the cut falls, and its draft is that of its column.
TEST_P(SlicerTest, DraftsAreCutBetweenTokens) {
  Slicer slicer(backend(), SmallConfig(), 2);
  reference::Batch batch = MakeBatch({{0, 20, 3}, {0, 30, 3}});
  batch.draft_tokens = Ids(2, 3);
  for (int64_t split : {1, 2, 3, 4, 5, 6, 7}) {
    ASSERT_TRUE(slicer.Run(batch, FWDMETA_MEMORY_DEVICE, 2, split)) << split;
    ASSERT_TRUE(slicer.Run(batch, FWDMETA_MEMORY_HOST, 2, split)) << split;
    EXPECT_EQ(6, slicer.slice(0).Counts().num_output_tokens + slicer.slice(1).Counts().num_output_tokens);
  }
}

// No token anywhere, none in some slices, and fewer tokens than slices: all go to the last.
TEST_P(SlicerTest, EmptySlicesAreAnAnswer) {
  Slicer slicer(backend(), SmallConfig(), 4);
  for (fwdmeta_memory_kind_t kind : {FWDMETA_MEMORY_DEVICE, FWDMETA_MEMORY_HOST}) {
    ASSERT_TRUE(slicer.Run(MakeBatch({}, 0), kind, 4, FWDMETA_DEFAULT));
    ASSERT_TRUE(slicer.Run(MakeBatch({{0, 9, 0}, {4, 2, 0}}, 16), kind, 4, FWDMETA_DEFAULT));
    EXPECT_EQ(16, slicer.slice(3).Counts().num_padded_tokens);
    ASSERT_TRUE(slicer.Run(MakeBatch({{0, 9, 1}, {0, 2, 1}}, 3), kind, 4, FWDMETA_DEFAULT));
    EXPECT_EQ(2, slicer.slice(3).Counts().num_tokens);
    ASSERT_TRUE(slicer.Run(MakeBatch({{0, 9, 1}, {0, 2, 1}}, 64), kind, 4, 1));
    EXPECT_EQ(62, slicer.slice(3).Counts().num_padded_tokens);
    ASSERT_TRUE(slicer.Run(MakeBatch({{0, 9, 1}, {0, 2, 1}}), kind, 4, INT32_MAX));
    EXPECT_EQ(2, slicer.slice(0).Counts().num_tokens);
  }
}

// More slots than one launch takes, by both kinds of lengths.
TEST_P(SlicerTest, ManySlots) {
  reference::Config config = SmallConfig();
  config.max_batch_size = 9000;
  config.max_num_tokens = 20000;
  config.max_num_kv_tokens = 200000;
  Slicer slicer(backend(), config, 3);
  Random random(80);
  for (int64_t slots : {9000, 4097, 4096, 1025, 5000}) {
    reference::Batch batch;
    for (int64_t b = 0; b < slots; ++b) {
      const int32_t n = static_cast<int32_t>(random.Int(0, 3));
      batch.encoder.push_back(random.Chance(0.2) ? n : 0);
      batch.decoder.push_back(static_cast<int32_t>(random.Int(0, 15)));
      batch.this_time.push_back(n);
    }
    batch.input_ids = Ids(slots, 3);
    for (fwdmeta_memory_kind_t kind : {FWDMETA_MEMORY_DEVICE, FWDMETA_MEMORY_HOST}) {
      ASSERT_TRUE(slicer.Run(batch, kind, 3, random.Int(1, 7000))) << slots;
    }
  }
}

// Bad lengths of the device: every slice reports the batch's error, and the next good step is right.
TEST_P(SlicerTest, EverySliceReportsTheBatchsError) {
  Slicer slicer(backend(), SmallConfig(), 3);
  const reference::Batch good = MakeBatch({{10, 5, 10}, {0, 40, 2}}, 16);
  const reference::Batch bad[] = {MakeBatch({{10, 5, 10}, {0, 40, -1}}, 16), MakeBatch({{10, 5, 9}, {0, 40, 1}}, 16),
                                  MakeBatch({{10, 120, 10}}, 16), MakeBatch({{10, 5, 10}, {0, 40, 2}}, 11),
                                  MakeBatch({{60, 0, 60}, {10, 0, 10}}, 16)};
  for (const reference::Batch& batch : bad) {
    ASSERT_TRUE(slicer.Run(batch, FWDMETA_MEMORY_DEVICE, 3, 4));
    ASSERT_TRUE(slicer.Run(batch, FWDMETA_MEMORY_HOST, 3, 4));
    ASSERT_TRUE(slicer.Run(good, FWDMETA_MEMORY_DEVICE, 3, 4));
  }
}

TEST_P(SlicerTest, ArgumentsAreRefusedAndNothingIsBuilt) {
  Slicer slicer(backend(), SmallConfig(), 2);
  const reference::Batch batch = MakeBatch({{0, 3, 1}, {0, 4, 1}}, 4);
  fwdmeta_batch_t c = slicer.inputs().Put(batch, FWDMETA_MEMORY_DEVICE);
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, slicer.Build(c, 0, 1));
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {0, 1, 2})) << fwdmeta_last_error();
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, slicer.Build(c, 3, 1));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, slicer.Build(c, 2, 0));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, slicer.Build(c, 2, int64_t{INT32_MAX} + 1));
  c.num_padded_tokens = -1;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, slicer.Build(c, 2, FWDMETA_DEFAULT));
  c.num_padded_tokens = 65;
  EXPECT_STATUS(FWDMETA_CAPACITY_EXCEEDED, slicer.Build(c, 2, 1));
  c.num_padded_tokens = 4;
  c.generation = 1;
  EXPECT_STATUS(FWDMETA_OUT_OF_RANGE, slicer.Build(c, 2, 1));
  c.generation = FWDMETA_DEFAULT;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_build_slices(slicer.handle(), nullptr, 2, 1, nullptr));
  fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
  for (int64_t i = 0; i < 2; ++i) {
    EXPECT_OK(fwdmeta_builder_get_info(slicer.slice(i).handle(), &info));
    EXPECT_EQ(0, info.last_step);
  }
  EXPECT_OK(fwdmeta_build_slices(slicer.handle(), &c, 1, 1, nullptr));
  EXPECT_OK(fwdmeta_builder_get_info(slicer.slice(0).handle(), &info));
  EXPECT_EQ(1, info.last_step);
  EXPECT_OK(fwdmeta_builder_get_info(slicer.slice(1).handle(), &info));
  EXPECT_EQ(0, info.last_step);
}

// A slice that cannot be built holds back all of them.
TEST_P(SlicerTest, AllSlicesOrNone) {
  reference::Config config = SmallConfig();
  config.max_metas = 2;
  Slicer slicer(backend(), config, 2);
  const reference::Batch batch = MakeBatch({{0, 3, 2}, {0, 4, 1}}, 4);
  const fwdmeta_batch_t c = slicer.inputs().Put(batch, FWDMETA_MEMORY_DEVICE);
  fwdmeta_meta_t first[2], second[2], third[2] = {0, 0};
  ASSERT_OK(fwdmeta_build_slices(slicer.handle(), &c, 2, 2, first));
  ASSERT_OK(fwdmeta_build_slices(slicer.handle(), &c, 2, 2, second));
  ASSERT_OK(fwdmeta_meta_destroy(first[0]));
  EXPECT_STATUS(FWDMETA_BUSY, fwdmeta_build_slices(slicer.handle(), &c, 2, 2, third));
  EXPECT_EQ(0u, third[0]);
  EXPECT_EQ(0u, third[1]);
  for (int64_t i = 0; i < 2; ++i) {
    fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
    EXPECT_OK(fwdmeta_builder_get_info(slicer.slice(i).handle(), &info));
    EXPECT_EQ(2, info.last_step);
  }
  ASSERT_OK(fwdmeta_meta_destroy(first[1]));
  // What the refusal had taken is free again.
  ASSERT_OK(fwdmeta_build_slices(slicer.handle(), &c, 2, 2, third));
  if (backend() == FWDMETA_BACKEND_CUDA) {
    ASSERT_OK(fwdmeta_meta_reader_begin(third[1], nullptr));
    EXPECT_STATUS(FWDMETA_BUSY, fwdmeta_build_slices(slicer.handle(), &c, 2, 2, nullptr));
    ASSERT_OK(fwdmeta_meta_reader_end(third[1], nullptr));
  }
  ASSERT_OK(fwdmeta_build_slices(slicer.handle(), &c, 2, 2, nullptr));
  for (fwdmeta_meta_t meta : {second[0], second[1], third[0], third[1]}) EXPECT_OK(fwdmeta_meta_destroy(meta));
}

TEST_P(SlicerTest, TheSlicesBuildersAreTheSlicers) {
  Slicer slicer(backend(), SmallConfig(), 2);
  const fwdmeta_builder_t builder = slicer.slice(1).handle();
  const reference::Batch batch = MakeBatch({{0, 3, 1}});
  const fwdmeta_batch_t c = slicer.inputs().Put(batch, FWDMETA_MEMORY_DEVICE);
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_build(builder, &c, nullptr, nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_builder_destroy(builder));
  EXPECT_OK(fwdmeta_builder_reset(builder, nullptr));
  fwdmeta_builder_t none = 5;
  EXPECT_STATUS(FWDMETA_OUT_OF_RANGE, fwdmeta_slicer_get_builder(slicer.handle(), 2, &none));
  EXPECT_STATUS(FWDMETA_OUT_OF_RANGE, fwdmeta_slicer_get_builder(slicer.handle(), -1, &none));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_slicer_get_builder(slicer.handle(), 0, nullptr));
  EXPECT_EQ(5u, none);
  ASSERT_TRUE(slicer.Run(batch, FWDMETA_MEMORY_DEVICE, 2, 1));
}

TEST_P(SlicerTest, Handles) {
  const auto allocators = std::make_shared<Allocators>();
  std::vector<fwdmeta_group_config_t> groups;
  const fwdmeta_config_t config = allocators->Config(SmallConfig(), backend(), &groups);
  fwdmeta_slicer_t slicer = 7;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_slicer_create(&config, 0, &slicer));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_slicer_create(&config, FWDMETA_MAX_SLICES + 1, &slicer));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_slicer_create(nullptr, 1, &slicer));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_slicer_create(&config, 1, nullptr));
  EXPECT_EQ(7u, slicer);
  ASSERT_OK(fwdmeta_slicer_create(&config, 2, &slicer));
  fwdmeta_builder_t builder = 0;
  ASSERT_OK(fwdmeta_slicer_get_builder(slicer, 0, &builder));
  Inputs inputs(backend());
  const reference::Batch batch = MakeBatch({{4, 0, 4}}, 4);
  const fwdmeta_batch_t c = inputs.Put(batch, FWDMETA_MEMORY_DEVICE);
  fwdmeta_meta_t metas[2];
  ASSERT_OK(fwdmeta_build_slices(slicer, &c, 2, 2, metas));
  ASSERT_OK(fwdmeta_slicer_destroy(slicer));
  // Views outlive the slicer; its handle and those of its builders do not.
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_slicer_destroy(slicer));
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_build_slices(slicer, &c, 1, 1, nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_slicer_get_builder(slicer, 0, &builder));
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_builder_reset(builder, nullptr));
  for (fwdmeta_meta_t meta : metas) {
    fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
    EXPECT_OK(fwdmeta_meta_wait(meta, FWDMETA_WAIT_FINAL, -1, &counts));
    EXPECT_EQ(2, counts.num_tokens);
    EXPECT_OK(fwdmeta_meta_destroy(meta));
  }
  EXPECT_OK(fwdmeta_slicer_destroy(0));
  Builder other(backend(), SmallConfig());
  for (fwdmeta_slicer_t wrong : {fwdmeta_slicer_t{0}, fwdmeta_slicer_t{other.handle()}, UINT64_MAX}) {
    EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_build_slices(wrong, &c, 1, 1, nullptr));
    EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_slicer_get_builder(wrong, 0, &builder));
    if (wrong != 0) {
      EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_slicer_destroy(wrong));
    }
  }
}

// Idle slots hold anything, and a split is anything from 1 on.
TEST_P(SlicerTest, NumbersAtTheirEnds) {
  Slicer slicer(backend(), SmallConfig(), FWDMETA_MAX_SLICES);
  const reference::Batch batch = MakeBatch({{INT32_MIN, INT32_MIN, 0},
                                            {5, 123, 5},
                                            {INT32_MAX, INT32_MAX, 0},
                                            {0, 127, 1},
                                            {-1, INT32_MIN, 0},
                                            {0, 0, 1},
                                            {7, INT32_MAX, 0}},
                                           64);
  for (fwdmeta_memory_kind_t kind : {FWDMETA_MEMORY_DEVICE, FWDMETA_MEMORY_HOST}) {
    for (int64_t num_slices : {1, 2, 7, FWDMETA_MAX_SLICES}) {
      for (int64_t split : {int64_t{1}, int64_t{3}, int64_t{1} << 30, int64_t{INT32_MAX}, int64_t{FWDMETA_DEFAULT}}) {
        ASSERT_TRUE(slicer.Run(batch, kind, num_slices, split)) << num_slices << " " << split;
      }
    }
  }
}

// All slices of a step are in the set of the same number, however many slices the steps before had.
TEST_P(SlicerTest, SlicesOfAStepShareTheNumberOfTheirSet) {
  reference::Config config = SmallConfig();
  config.generations = 3;
  Slicer slicer(backend(), config, 3);
  const reference::Batch batch = MakeBatch({{0, 3, 2}, {0, 4, 1}}, 4);
  int64_t step = 0;
  for (int64_t num_slices : {3, 1, 2, 3, 2, 1, 1, 3}) {
    ASSERT_TRUE(slicer.Run(batch, FWDMETA_MEMORY_DEVICE, num_slices, 1));
    for (int64_t i = 0; i < num_slices; ++i) {
      int64_t generation = -1;
      ASSERT_OK(fwdmeta_meta_get_attr(slicer.slice(i).meta(), FWDMETA_ATTR_GENERATION, &generation));
      EXPECT_EQ(step % 3, generation) << "step " << step << " slice " << i;
    }
    ++step;
  }
}

// The whole batch's lengths move on, and the clamped count is told by the slice whose builder moved them.
TEST_P(SlicerTest, ASlicesBuilderAdvances) {
  Slicer slicer(backend(), SmallConfig(), 2);
  const reference::Batch batch = MakeBatch({{4, 0, 4}, {0, 9, 3}}, 8);
  const int32_t rejected[] = {0, 7};
  Inputs inputs(backend());
  const fwdmeta_batch_t c = inputs.Put(batch, FWDMETA_MEMORY_DEVICE);
  Buffer lengths(backend(), sizeof rejected);
  Upload(backend(), lengths.data(), rejected, sizeof rejected);
  ASSERT_OK(slicer.Build(c, 2, 4));
  fwdmeta_advance_args_t args = FWDMETA_ADVANCE_ARGS_INITIALIZER;
  args.batch_size = 2;
  args.seq_lens_encoder = const_cast<int32_t*>(c.seq_lens_encoder);
  args.seq_lens_decoder = const_cast<int32_t*>(c.seq_lens_decoder);
  args.seq_lens_this_time = const_cast<int32_t*>(c.seq_lens_this_time);
  args.num_rejected = static_cast<const int32_t*>(lengths.data());
  ASSERT_OK(fwdmeta_advance(slicer.slice(0).handle(), &args));
  ASSERT_OK(slicer.Build(c, 2, 1));
  EXPECT_EQ(FWDMETA_WARNING_REJECTED_CLAMPED, slicer.slice(0).Counts().warnings);
  EXPECT_EQ(0, slicer.slice(1).Counts().warnings);
  EXPECT_EQ(std::vector<int64_t>{4}, slicer.slice(0).Head(FWDMETA_FIELD_POSITION_IDS, 1));
  EXPECT_EQ(std::vector<int64_t>{10}, slicer.slice(1).Head(FWDMETA_FIELD_POSITION_IDS, 1));
}

// What the header says of a slicer's memory.
TEST_P(SlicerTest, BytesAreThoseOfBuildersAndOfTheSlicesLengths) {
  for (int64_t slots : {1, 8, 65, 4096, 4097, 9000}) {
    reference::Config config = SmallConfig();
    config.max_batch_size = slots;
    config.max_num_tokens = 2 * slots;
    config.depth = 3;
    Slicer slicer(backend(), config, 2);
    std::vector<fwdmeta_group_config_t> groups;
    const fwdmeta_config_t c = ToC(config, backend(), &groups);
    fwdmeta_capacities_t capacities = FWDMETA_CAPACITIES_INITIALIZER;
    ASSERT_OK(fwdmeta_get_capacities(&c, nullptr, &capacities));
    const int64_t a = (4 * slots + 255) / 256 * 256;
    for (int64_t i = 0; i < 2; ++i) {
      fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
      ASSERT_OK(fwdmeta_builder_get_info(slicer.slice(i).handle(), &info));
      if (backend() == FWDMETA_BACKEND_HOST) {
        EXPECT_EQ(capacities.host_bytes + 4 * a + 256, info.host_bytes) << slots;
        continue;
      }
      EXPECT_EQ(capacities.device_bytes + (slots > info.single_launch_slots ? 5 : 4) * a + 256, info.device_bytes);
      EXPECT_EQ(capacities.pinned_bytes + (config.depth + 4) * a + 256, info.pinned_bytes) << slots;
      EXPECT_EQ(0, info.host_bytes);
    }
  }
}

// Creation refused at each allocation in turn leaves nothing behind; afterwards nothing is allocated.
TEST_P(SlicerTest, MemoryIsAskedForAtCreationAlone) {
  for (int failing = 0; backend() == FWDMETA_BACKEND_CUDA && failing < 3; ++failing) {
    const auto allocators = std::make_shared<Allocators>();
    std::vector<fwdmeta_group_config_t> groups;
    const fwdmeta_config_t config = allocators->Config(SmallConfig(), backend(), &groups);
    allocators->pinned.FailAfter(failing);
    fwdmeta_slicer_t slicer = 0;
    EXPECT_STATUS(FWDMETA_OUT_OF_MEMORY, fwdmeta_slicer_create(&config, 3, &slicer));
    EXPECT_EQ(0u, slicer);
  }
  for (int failing = 0;; ++failing) {
    const auto allocators = std::make_shared<Allocators>();
    std::vector<fwdmeta_group_config_t> groups;
    const fwdmeta_config_t config = allocators->Config(SmallConfig(), backend(), &groups);
    CountingAllocator& arrays = backend() == FWDMETA_BACKEND_CUDA ? allocators->device : allocators->host;
    arrays.FailAfter(failing);
    fwdmeta_slicer_t slicer = 0;
    const fwdmeta_status_t status = fwdmeta_slicer_create(&config, 3, &slicer);
    if (status != FWDMETA_OK) {
      EXPECT_STATUS(FWDMETA_OUT_OF_MEMORY, status);
      EXPECT_EQ(0u, slicer);
      continue;
    }
    EXPECT_EQ(3, failing);
    arrays.FailAfter(0);
    Inputs inputs(backend());
    const reference::Batch batch = MakeBatch({{4, 0, 4}}, 4);
    const fwdmeta_batch_t c = inputs.Put(batch, FWDMETA_MEMORY_DEVICE);
    for (int step = 0; step < 5; ++step) EXPECT_OK(fwdmeta_build_slices(slicer, &c, 3, 1, nullptr));
    EXPECT_OK(fwdmeta_slicer_destroy(slicer));
    break;
  }
}

INSTANTIATE_BACKENDS(SlicerTest);

}  // namespace
}  // namespace fwdmeta_test
