// Random batches against the model, and what must hold of any batch whatever the model says.
#include <chrono>
#include <cstdlib>
#include <set>

#include "harness.h"
#include "random_batch.h"

namespace fwdmeta_test {
namespace {

// FWDMETA_TEST_SEED repeats a run.
uint64_t Seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("FWDMETA_TEST_SEED");
    return given != nullptr ? std::strtoull(given, nullptr, 10) : 20240607ull;
  }();
  return seed;
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The lists of a mapping hold every tile of every live slot once and in order, then -1 up to the capacity.
void ExpectTilesOnce(Builder& builder, const reference::Batch& batch, const fwdmeta_counts_t& counts) {
  const reference::Config& config = builder.config();
  const int64_t g = config.num_q_heads / config.num_kv_heads;
  const int64_t bs = config.groups[0].block_size;
  for (const Mapping& mapping : kMappings) {
    if (!config.Wants(mapping.batch_ids) || !config.Wants(mapping.tile_ids)) continue;
    const std::vector<int64_t> slots = builder.Read(mapping.batch_ids), tiles = builder.Read(mapping.tile_ids);
    std::set<std::pair<int64_t, int64_t>> missing;
    for (int64_t b = 0; counts.error == 0 && b < batch.size(); ++b) {
      const int64_t e = batch.encoder[b], d = batch.decoder[b], n = batch.this_time[b];
      if (n == 0) continue;
      int64_t count = 0;
      if (mapping.batch_ids == FWDMETA_FIELD_DECODER_BATCH_IDS && e == 0) {
        count = config.mla ? CeilDiv(d + n, counts.decoder_chunk_size) : CeilDiv(n * g, config.decoder_block_shape_q);
      } else if (e > 0) {
        if (mapping.batch_ids == FWDMETA_FIELD_ENCODER_BATCH_IDS) count = CeilDiv(e * g, config.encoder_block_shape_q);
        if (mapping.batch_ids == FWDMETA_FIELD_KV_BATCH_IDS) count = (d + n - 1) / bs - d / bs + 1;
        if (mapping.batch_ids == FWDMETA_FIELD_PRE_CACHE_BATCH_IDS) count = CeilDiv(d, bs);
      }
      for (int64_t t = 0; t < count; ++t) missing.emplace(b, t);
    }
    ASSERT_EQ(missing.size(), static_cast<size_t>(counts.*mapping.count)) << mapping.name;
    for (size_t x = 0; x < slots.size(); ++x) {
      if (x < static_cast<size_t>(counts.*mapping.count)) {
        ASSERT_EQ(1u, missing.erase({slots[x], tiles[x]})) << mapping.name << " entry " << x;
        ASSERT_TRUE(x == 0 || std::make_pair(slots[x - 1], tiles[x - 1]) < std::make_pair(slots[x], tiles[x]));
      } else {
        ASSERT_EQ(std::make_pair(int64_t{-1}, int64_t{-1}), std::make_pair(slots[x], tiles[x])) << mapping.name;
      }
    }
    ASSERT_TRUE(missing.empty()) << mapping.name;
  }
}

void ExpectMonotone(Builder& builder, const fwdmeta_counts_t& counts) {
  const std::pair<fwdmeta_field_t, int64_t> sums[] = {{FWDMETA_FIELD_CU_SEQLENS_Q, counts.num_tokens},
                                                      {FWDMETA_FIELD_CU_SEQLENS_K, counts.num_kv_tokens},
                                                      {FWDMETA_FIELD_ATTN_CU_SEQLENS_K, counts.num_attn_kv_tokens},
                                                      {FWDMETA_FIELD_CU_SEQLENS_Q_OUTPUT, counts.num_output_tokens},
                                                      {FWDMETA_FIELD_DECODER_CU_TILES, counts.decoder_num_blocks},
                                                      {FWDMETA_FIELD_ENCODER_CU_TILES, counts.encoder_num_blocks},
                                                      {FWDMETA_FIELD_KV_CU_TILES, counts.kv_num_blocks},
                                                      {FWDMETA_FIELD_PRE_CACHE_CU_TILES, counts.pre_cache_num_blocks}};
  for (const auto& sum : sums) {
    if (!builder.config().Wants(sum.first)) continue;
    const std::vector<int64_t> cu = builder.Read(sum.first);
    ASSERT_EQ(0, cu.front());
    ASSERT_EQ(sum.second, cu.back()) << fwdmeta_field_name(sum.first);
    ASSERT_TRUE(std::is_sorted(cu.begin(), cu.end())) << fwdmeta_field_name(sum.first);
  }
}

// Counts are within the capacities, and within the bounds of the smallest bucket that holds the batch.
void ExpectWithinBounds(const fwdmeta_config_t& config, const reference::Config& model, int64_t slots, int64_t tokens,
                        const fwdmeta_counts_t& counts) {
  fwdmeta_capacity_query_t query = FWDMETA_CAPACITY_QUERY_INITIALIZER;
  query.slots = std::max<int64_t>(1, slots);
  query.tokens = std::max<int64_t>(1, tokens);
  fwdmeta_capacities_t bound = FWDMETA_CAPACITIES_INITIALIZER, all = FWDMETA_CAPACITIES_INITIALIZER;
  ASSERT_EQ(FWDMETA_OK, fwdmeta_get_capacities(&config, &query, &bound)) << fwdmeta_last_error();
  ASSERT_EQ(FWDMETA_OK, fwdmeta_get_capacities(&config, nullptr, &all)) << fwdmeta_last_error();
  const reference::Capacities want_bound = reference::GetCapacities(model, query.slots, query.tokens);
  const reference::Capacities want = reference::GetCapacities(model);
  for (const Mapping& mapping : kMappings) {
    ASSERT_EQ(want_bound.*mapping.model_capacity, bound.*mapping.capacity) << mapping.name;
    ASSERT_EQ(want.*mapping.model_capacity, all.*mapping.capacity) << mapping.name;
    ASSERT_LE(counts.*mapping.count, bound.*mapping.capacity) << mapping.name;
    ASSERT_LE(bound.*mapping.capacity, all.*mapping.capacity) << mapping.name;
  }
  for (size_t g = 0; g < FWDMETA_MAX_CACHE_GROUPS; ++g) {
    ASSERT_EQ(g < want.block_table_width.size() ? want.block_table_width[g] : 0, all.block_table_width[g]);
  }
}

class Properties : public BackendTest {};

// Each step follows another of the same builder, larger or smaller, good or bad, by device or host lengths.
TEST_P(Properties, RandomBatchesEqualTheModel) {
  const uint64_t seed = Seed();
  std::printf("seed %llu (FWDMETA_TEST_SEED)\n", static_cast<unsigned long long>(seed));
  const int64_t wanted = backend() == FWDMETA_BACKEND_HOST ? 60000 : 20000;
  int64_t batches = 0, errors = 0, warnings = 0;
  for (int round = 0; batches < wanted; ++round) {
    Random random(seed * 1000003 + static_cast<uint64_t>(round));
    const reference::Config config = RandomConfig(random, round % 12 == 0 ? 2000 : round % 3 == 0 ? 300 : 70);
    const int64_t steps = config.max_batch_size > 300 ? 25 : 200;
    std::vector<fwdmeta_group_config_t> groups;
    const fwdmeta_config_t c = ToC(config, backend(), &groups);
    Builder builder(backend(), config);
    ASSERT_FALSE(HasFailure()) << "round " << round;
    for (int64_t step = 0; step < steps; ++step, ++batches) {
      reference::Batch batch = RandomBatch(random, config);
      if (random.Chance(0.1)) Spoil(random, config, &batch);
      const fwdmeta_memory_kind_t kind = random.Chance(0.5) ? FWDMETA_MEMORY_DEVICE : FWDMETA_MEMORY_HOST;
      const int64_t set = config.generations == 1 ? FWDMETA_DEFAULT : random.Int(0, config.generations - 1);
      const reference::Result model = reference::Build(config, batch);
      errors += model.counts.error != 0;
      warnings += model.counts.warnings != 0;
      const std::string where =
          "seed " + std::to_string(seed) + " round " + std::to_string(round) + " step " + std::to_string(step);
      ASSERT_TRUE(builder.Run(batch, kind, set)) << where;
      if (step % 8 != 0 || (model.counts.error != 0 && kind == FWDMETA_MEMORY_HOST)) continue;
      fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
      fwdmeta_meta_wait(builder.meta(), 0, -1, &counts);
      ExpectTilesOnce(builder, batch, counts);
      ExpectMonotone(builder, counts);
      ExpectWithinBounds(c, config, counts.batch_size, counts.num_tokens, counts);
      ASSERT_FALSE(HasFailure()) << where << " " << Describe(config, batch);
    }
  }
  std::printf("%lld batches, %lld with an error, %lld with a warning\n", static_cast<long long>(batches),
              static_cast<long long>(errors), static_cast<long long>(warnings));
  EXPECT_GE(batches, wanted);
  EXPECT_GE(errors, batches / 20);
  EXPECT_GE(warnings, batches / 20);
}

// Steps in which no slot has more than one token, which backends may build in a shorter way, and steps that only look
// like it: a slot of two tokens beside an idle one, a prompt of one token, a bad slot.
TEST_P(Properties, StepsOfOneTokenToASlotAndNearlySo) {
  const uint64_t seed = Seed();
  int64_t all_of_one = 0, nearly = 0;
  for (int round = 0; round < 80; ++round) {
    Random random(seed * 7919 + static_cast<uint64_t>(round));
    const reference::Config config = RandomConfig(random, random.Pick<int64_t>({1, 8, 40, 200, 1100}));
    Builder builder(backend(), config);
    for (int step = 0; step < 30; ++step) {
      reference::Batch batch = RandomBatch(random, config, random.Int(1, config.max_batch_size));
      for (int64_t b = 0; b < batch.size(); ++b) {
        if (batch.this_time[b] <= 0) continue;
        batch.encoder[b] = 0;
        batch.this_time[b] = 1;
        batch.decoder[b] = std::min<int32_t>(batch.decoder[b], static_cast<int32_t>(config.max_model_len) - 1);
      }
      const int64_t odd = random.Int(0, batch.size() - 1), idle = random.Int(0, batch.size() - 1);
      const int kind = random.Chance(0.5) ? static_cast<int>(random.Int(0, 2)) : -1;
      if (kind == 0 && odd != idle && config.max_model_len > 1) {
        batch.this_time[idle] = 0;
        batch.this_time[odd] = 2;
        batch.encoder[odd] = 0;
        batch.decoder[odd] = 0;
      } else if (kind == 1) {
        batch.encoder[odd] = batch.this_time[odd] = 1;
        batch.decoder[odd] = 0;
      }
      int64_t tokens = 0;
      for (const int32_t n : batch.this_time) tokens += n;
      batch.num_padded_tokens =
          random.Chance(0.2) ? -1 : std::min(config.max_num_tokens, std::max(tokens, batch.size()));
      if (kind == 2) Spoil(random, config, &batch);
      ++(kind < 0 ? all_of_one : nearly);
      SCOPED_TRACE("round " + std::to_string(round) + ", step " + std::to_string(step));
      ASSERT_TRUE(builder.Run(batch, random.Chance(0.3) ? FWDMETA_MEMORY_HOST : FWDMETA_MEMORY_DEVICE,
                              random.Int(0, config.generations - 1)));
    }
  }
  EXPECT_GT(all_of_one, 800);
  EXPECT_GT(nearly, 800);
}

// The first build of a set too, whose memory held anything before creation.
TEST_P(Properties, FirstBuildsOfFreshBuilders) {
  Random random(Seed() + 1);
  for (int round = 0; round < 60; ++round) {
    const reference::Config config = RandomConfig(random, 64);
    Builder builder(backend(), config);
    reference::Batch batch = RandomBatch(random, config);
    if (round % 4 == 0) Spoil(random, config, &batch);
    ASSERT_TRUE(builder.Run(batch)) << "seed " << Seed() << " round " << round;
  }
}

// Same inputs, same bytes: two builders, and the same one twice.
TEST_P(Properties, BuildsAreDeterministic) {
  Random random(Seed() + 2);
  for (int round = 0; round < 20; ++round) {
    const reference::Config config = RandomConfig(random, 128);
    Builder first(backend(), config), second(backend(), config);
    const reference::Batch batch = RandomBatch(random, config);
    ASSERT_TRUE(first.Run(batch, FWDMETA_MEMORY_DEVICE));
    ASSERT_TRUE(second.Run(RandomBatch(random, config), FWDMETA_MEMORY_HOST));
    ASSERT_TRUE(second.Run(batch, FWDMETA_MEMORY_HOST));
    ASSERT_TRUE(second.Run(batch, FWDMETA_MEMORY_DEVICE));
  }
}

// Any order of larger and smaller steps and error steps leaves tails of -1.
TEST_P(Properties, TailsAfterLargerStepsAndErrorSteps) {
  reference::Config config;
  config.max_batch_size = 64;
  config.max_num_tokens = 1024;
  config.max_model_len = 2048;
  config.max_num_kv_tokens = 64 * 1024;
  config.groups = {{16, 16, false}};
  Random random(Seed() + 3);
  Builder builder(backend(), config);
  const auto full = [&] {
    reference::Batch batch;
    for (int b = 0; b < 64; ++b) {
      batch.encoder.push_back(b % 2 ? 16 : 0);
      batch.decoder.push_back(300);
      batch.this_time.push_back(16);
    }
    batch.input_ids = reference::Rows<int64_t>::Of(std::vector<std::vector<int64_t>>(64, std::vector<int64_t>(16, 7)));
    return batch;
  }();
  reference::Batch bad = full;
  bad.this_time[3] = -5;
  const reference::Batch none, idle = MakeBatch({{5, 9, 0}, {0, -2, 0}}), one = MakeBatch({{0, 9, 1}});
  const reference::Batch* kinds[] = {&full, &bad, &none, &idle, &one};
  for (int a = 0; a < 5; ++a) {
    for (int b = 0; b < 5; ++b) {
      for (int c = 0; c < 5; ++c) {
        for (int which : {a, b, c}) ASSERT_TRUE(builder.Run(*kinds[which])) << a << b << c;
      }
    }
  }
}

// Context-parallel ranks own each position once, in slots of their own, and as many of each sequence as they are told;
// of a replicated group each has all.
TEST_P(Properties, ContextParallelRanksOwnEachPositionOnce) {
  Random random(Seed() + 4);
  int64_t owned = 0, whole_sequences = 0, replicated = 0;
  for (int round = 0; round < 150; ++round) {
    reference::Config config = RandomConfig(random, 12);
    while (config.cp_size == 1) config = RandomConfig(random, 12);
    config.outputs = reference::Config().outputs;
    reference::Batch batch = RandomBatch(random, config);
    batch.block_tables.clear();
    for (const auto& group : config.groups) {  // every page another one
      const int64_t span = group.block_size * (group.replicated ? 1 : config.cp_size);
      reference::Rows<int32_t> table;
      table.given = true;
      table.width = table.stride = CeilDiv(config.max_model_len, span) * (group.block_size / group.kernel_block_size);
      for (int64_t i = 0; i < batch.size() * table.width; ++i) table.data.push_back(static_cast<int32_t>(i));
      batch.block_tables.push_back(table);
    }

    std::vector<std::vector<std::vector<int64_t>>> slots(config.groups.size());  // by group and rank
    std::vector<std::vector<int64_t>> local;                                     // by rank
    for (config.cp_rank = 0; config.cp_rank < config.cp_size; ++config.cp_rank) {
      Builder builder(backend(), config);
      ASSERT_TRUE(builder.Run(batch)) << "seed " << Seed() << " round " << round;
      ASSERT_EQ(0, builder.Counts().num_invalid_slots);
      local.push_back(builder.Head(FWDMETA_FIELD_SEQ_LENS_KV_LOCAL, batch.size()));
      for (size_t g = 0; g < slots.size(); ++g) {
        slots[g].push_back(builder.Read(FWDMETA_FIELD_SLOT_MAPPING, static_cast<int32_t>(g)));
      }
    }

    for (size_t g = 0; g < slots.size(); ++g) {
      std::set<std::pair<size_t, int64_t>> taken;  // rank and slot
      size_t token = 0;
      for (size_t b = 0; b < static_cast<size_t>(batch.size()); ++b) {
        std::vector<int64_t> share(local.size());
        for (const size_t end = token + static_cast<size_t>(batch.this_time[b]); token < end; ++token) {
          size_t owners = 0;
          for (size_t rank = 0; rank < share.size(); ++rank) {
            const int64_t slot = slots[g][rank][token];
            if (slot < 0) continue;
            ++owners;
            ++share[rank];
            ASSERT_TRUE(taken.emplace(rank, slot).second) << "slot " << slot << " of rank " << rank << " twice";
          }
          ASSERT_EQ(config.groups[g].replicated ? share.size() : 1, owners) << "token " << token << " of group " << g;
          ++(config.groups[g].replicated ? replicated : owned);
        }
        int64_t sum = 0;
        for (size_t rank = 0; rank < share.size(); ++rank) {
          sum += local[rank][b];
          // Of a sequence that is whole in this step, the owned positions are there to be counted.
          if (batch.this_time[b] == 0 || batch.decoder[b] > 0 || config.groups[g].replicated) continue;
          ASSERT_EQ(local[rank][b], share[rank]) << "slot " << b << " on rank " << rank;
          ++whole_sequences;
        }
        ASSERT_EQ(batch.this_time[b] > 0 ? batch.decoder[b] + batch.this_time[b] : 0, sum) << "slot " << b;
      }
    }
  }
  EXPECT_GT(owned, 1000);
  EXPECT_GT(whole_sequences, 100);
  EXPECT_GT(replicated, 100);
}

INSTANTIATE_BACKENDS(Properties);

}  // namespace
}  // namespace fwdmeta_test
