// Contract-context §4: metadata of data-parallel ranks, sequence-parallel sizes, chunks and shards.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "harness.h"

namespace fwdmeta_test {
namespace {

using Counts = std::vector<int64_t>;
constexpr int64_t kMax = INT32_MAX;
constexpr int64_t kUntouched = -77;

Counts SpSizes(const Counts& num_tokens, int64_t sp) {
  Counts out(num_tokens.size() * sp, kUntouched);
  EXPECT_OK(fwdmeta_sp_sizes(num_tokens.data(), num_tokens.size(), sp, out.data()));
  return out;
}

Counts CuSizes(const Counts& sizes) {
  Counts out(sizes.size(), kUntouched);
  EXPECT_OK(fwdmeta_cu_sizes(sizes.data(), sizes.size(), out.data()));
  return out;
}

Counts ChunkSizes(const Counts& sizes, int64_t max_chunk, int64_t index) {
  Counts out(sizes.size(), kUntouched);
  EXPECT_OK(fwdmeta_chunk_sizes(sizes.data(), sizes.size(), max_chunk, index, out.data()));
  return out;
}

int64_t NumChunks(const Counts& sizes, int64_t max_chunk) {
  int64_t out = kUntouched;
  EXPECT_OK(fwdmeta_num_chunks(sizes.data(), sizes.size(), max_chunk, &out));
  return out;
}

// INVALID_ARGUMENT, and the message has the numbers.
#define EXPECT_REFUSED(call, ...)                                                                               \
  do {                                                                                                          \
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, call);                                                              \
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), std::vector<int64_t>{__VA_ARGS__})) << fwdmeta_last_error(); \
  } while (false)

// ---- sequence-parallel sizes and their cumulative sums

TEST(RankSizes, VectorsOfSequenceParallelSizes) {
  struct Row {
    Counts num_tokens;
    int64_t sp;
    Counts sizes, cu;
  };
  const Row rows[] = {
      // vllm.md §2.4
      {{5, 3}, 2, {3, 3, 2, 2}, {3, 6, 8, 10}},
      {{0, 7}, 4, {0, 0, 0, 0, 2, 2, 2, 2}, {0, 0, 0, 0, 2, 4, 6, 8}},
      {{16, 16}, 1, {16, 16}, {16, 32}},
      {{1, 1, 1}, 3, Counts(9, 1), {1, 2, 3, 4, 5, 6, 7, 8, 9}},
      {{9}, 4, {3, 3, 3, 3}, {3, 6, 9, 12}},
      // B63
      {{500, 200, 256}, 2, {250, 250, 100, 100, 128, 128}, {250, 500, 600, 700, 828, 956}},
      // B64: a rank without tokens has sizes of 0, not of 1
      {{0, 37}, 2, {0, 0, 19, 19}, {0, 0, 19, 38}},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(row.sizes, SpSizes(row.num_tokens, row.sp));
    EXPECT_EQ(row.cu, CuSizes(row.sizes));
  }
}

TEST(RankSizes, CumulativeSumsOfLiveAndOfPaddedLengthsB52) {
  EXPECT_EQ(60, CuSizes({10, 20, 30}).back());
  EXPECT_EQ(61, CuSizes({10, 20, 30, 1}).back());
}

TEST(RankSizes, CumulativeSumsPassInt32) {
  EXPECT_EQ((Counts{kMax, 2 * kMax, 3 * kMax}), CuSizes({kMax, kMax, kMax}));
  // ceil(n / sp) does not wrap where n + sp - 1 passes int32.
  EXPECT_EQ((Counts{1073741824, 1073741824}), SpSizes({kMax}, 2));
}

TEST(RankSizes, CumulativeSumsInPlace) {
  Counts sizes = {5, 3, 2};
  EXPECT_OK(fwdmeta_cu_sizes(sizes.data(), 3, sizes.data()));
  EXPECT_EQ((Counts{5, 8, 10}), sizes);
}

// ---- chunks

TEST(RankSizes, VectorsOfChunks) {
  struct Row {
    Counts num_tokens;
    int64_t sp, max_chunk, num_chunks;
    std::vector<Counts> chunks;  // from index 0 on, further than num_chunks in some
  };
  const Row rows[] = {
      // vllm.md §2.4
      {{100, 30}, 1, 40, 3, {{40, 30}, {40, 1}, {20, 1}, {1, 1}}},
      {{500, 200, 256}, 1, 256, 2, {{256, 200, 256}, {244, 1, 1}}},
      {{100, 30}, 2, 16, 4, {{16, 16, 15, 15}, {16, 16, 1, 1}, {16, 16, 1, 1}, {2, 2, 1, 1}}},
      // B63
      {{500, 200, 256}, 2, 128, 2, {{128, 128, 100, 100, 128, 128}, {122, 122, 1, 1, 1, 1}}},
      // B64, of SP-expanded sizes: a rank without tokens runs a chunk of 1
      {{0, 37}, 2, 64, 1, {{1, 1, 19, 19}}},
      {{0, 37}, 1, 64, 1, {{1, 37}}},
      {{0, 0}, 1, 64, 1, {{1, 1}, {1, 1}}},
      // an exact fit has no chunk more
      {{128}, 1, 64, 2, {{64}, {64}, {1}}},
      {{129}, 1, 64, 3, {{64}, {64}, {1}}},
  };
  for (const Row& row : rows) {
    const Counts sizes = SpSizes(row.num_tokens, row.sp);
    EXPECT_EQ(row.num_chunks, NumChunks(sizes, row.max_chunk));
    for (size_t i = 0; i < row.chunks.size(); ++i) {
      EXPECT_EQ(row.chunks[i], ChunkSizes(sizes, row.max_chunk, i)) << "chunk " << i;
    }
  }
}

TEST(RankSizes, ChunkArithmeticIsIn64Bits) {
  // max_chunk * index is 2^32 here, 0 in 32 bits; then far past it.
  EXPECT_EQ((Counts{1, 1}), ChunkSizes({100, kMax}, 65536, 65536));
  EXPECT_EQ((Counts{1}), ChunkSizes({kMax}, kMax, kMax));
  EXPECT_EQ((Counts{kMax}), ChunkSizes({kMax}, kMax, 0));
  EXPECT_EQ((Counts{1}), ChunkSizes({kMax}, kMax - 1, 1));
  EXPECT_EQ(1, NumChunks({kMax}, kMax));
  EXPECT_EQ(kMax, NumChunks({3, kMax}, 1));
  EXPECT_EQ(2, NumChunks({kMax}, kMax - 1));
}

TEST(RankSizes, ChunksOfASizeSumToIt) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const Counts sizes = {static_cast<int64_t>(random() % 700), static_cast<int64_t>(random() % 700)};
    const int64_t max_chunk = 1 + random() % 100;
    const int64_t chunks = NumChunks(sizes, max_chunk);
    Counts sum(2, 0);
    for (int64_t i = 0; i < chunks; ++i) {
      const Counts chunk = ChunkSizes(sizes, max_chunk, i);
      for (int r = 0; r < 2; ++r) {
        EXPECT_GE(chunk[r], 1);
        EXPECT_LE(chunk[r], max_chunk);
        if (sizes[r] > i * max_chunk) {
          sum[r] += chunk[r];
        } else {
          EXPECT_EQ(1, chunk[r]);
        }
      }
    }
    EXPECT_EQ(sizes, sum);
  }
}

// ---- refusals of the lists

TEST(RankSizes, RefusesBadNumbers) {
  const Counts good = {5, 3}, negative = {5, -4}, large = {kMax + 1, 3};
  Counts out(16, kUntouched);
  const Counts untouched = out;
  int64_t* o = out.data();

  EXPECT_REFUSED(fwdmeta_sp_sizes(nullptr, 2, 2, o), 2);
  EXPECT_REFUSED(fwdmeta_sp_sizes(good.data(), 2, 2, nullptr));
  EXPECT_REFUSED(fwdmeta_sp_sizes(good.data(), 0, 2, o), 0);
  EXPECT_REFUSED(fwdmeta_sp_sizes(good.data(), -1, 2, o), 1);
  EXPECT_REFUSED(fwdmeta_sp_sizes(good.data(), kMax + 1, 2, o), kMax + 1);
  EXPECT_REFUSED(fwdmeta_sp_sizes(good.data(), 2, 0, o), 0);
  EXPECT_REFUSED(fwdmeta_sp_sizes(good.data(), 2, -3, o), 3);
  EXPECT_REFUSED(fwdmeta_sp_sizes(good.data(), 2, kMax + 1, o), kMax + 1);
  EXPECT_REFUSED(fwdmeta_sp_sizes(good.data(), 2, INT64_MIN, o));
  EXPECT_REFUSED(fwdmeta_sp_sizes(negative.data(), 2, 2, o), 1, 4);
  EXPECT_REFUSED(fwdmeta_sp_sizes(large.data(), 2, 2, o), 0, kMax + 1);

  EXPECT_REFUSED(fwdmeta_cu_sizes(nullptr, 2, o), 2);
  EXPECT_REFUSED(fwdmeta_cu_sizes(good.data(), 2, nullptr));
  EXPECT_REFUSED(fwdmeta_cu_sizes(good.data(), 0, o), 0);
  EXPECT_REFUSED(fwdmeta_cu_sizes(negative.data(), 2, o), 1, 4);
  EXPECT_REFUSED(fwdmeta_cu_sizes(large.data(), 2, o), 0, kMax + 1);

  EXPECT_REFUSED(fwdmeta_chunk_sizes(nullptr, 2, 4, 0, o), 2);
  EXPECT_REFUSED(fwdmeta_chunk_sizes(good.data(), 2, 4, 0, nullptr));
  EXPECT_REFUSED(fwdmeta_chunk_sizes(good.data(), 0, 4, 0, o), 0);
  EXPECT_REFUSED(fwdmeta_chunk_sizes(good.data(), 2, 0, 0, o), 0);
  EXPECT_REFUSED(fwdmeta_chunk_sizes(good.data(), 2, -8, 0, o), 8);
  EXPECT_REFUSED(fwdmeta_chunk_sizes(good.data(), 2, kMax + 1, 0, o), kMax + 1);
  EXPECT_REFUSED(fwdmeta_chunk_sizes(good.data(), 2, 4, -1, o), 1);
  EXPECT_REFUSED(fwdmeta_chunk_sizes(good.data(), 2, 4, kMax + 1, o), kMax + 1);
  EXPECT_REFUSED(fwdmeta_chunk_sizes(negative.data(), 2, 4, 0, o), 1, 4);

  EXPECT_REFUSED(fwdmeta_num_chunks(nullptr, 2, 4, o), 2);
  EXPECT_REFUSED(fwdmeta_num_chunks(good.data(), 2, 4, nullptr));
  EXPECT_REFUSED(fwdmeta_num_chunks(good.data(), 0, 4, o), 0);
  EXPECT_REFUSED(fwdmeta_num_chunks(good.data(), 2, 0, o), 0);
  EXPECT_REFUSED(fwdmeta_num_chunks(negative.data(), 2, 4, o), 1, 4);
  EXPECT_EQ(untouched, out);
}

// ---- metadata

fwdmeta_dp_metadata_args_t DpArgs(const Counts& table, int64_t rank) {
  fwdmeta_dp_metadata_args_t args = FWDMETA_DP_METADATA_ARGS_INITIALIZER;
  args.dp_size = static_cast<int64_t>(table.size());
  args.dp_rank = rank;
  args.num_tokens = table[rank];
  args.table = table.data();
  return args;
}

TEST(DpMetadata, MaxAndSumOfTheBorrowedTable) {
  const Counts table = {5, 0, 9};
  for (int64_t rank = 0; rank < 3; ++rank) {
    for (int32_t is_moe : {1, -1}) {
      fwdmeta_dp_metadata_args_t args = DpArgs(table, rank);
      args.is_moe = is_moe;
      fwdmeta_dp_metadata_t out = FWDMETA_DP_METADATA_INITIALIZER;
      ASSERT_OK(fwdmeta_dp_metadata_make(&args, &out));
      EXPECT_EQ(3, out.dp_size);
      EXPECT_EQ(rank, out.dp_rank);
      EXPECT_EQ(9, out.max_tokens);
      EXPECT_EQ(14, out.sum_tokens);
      EXPECT_EQ(table.data(), out.num_tokens);
    }
  }
}

TEST(DpMetadata, MaxIsNotTheSumB67) {
  const Counts table(16, 32);
  const fwdmeta_dp_metadata_args_t args = DpArgs(table, 7);
  fwdmeta_dp_metadata_t out = FWDMETA_DP_METADATA_INITIALIZER;
  ASSERT_OK(fwdmeta_dp_metadata_make(&args, &out));
  EXPECT_EQ(32, out.max_tokens);
  EXPECT_EQ(512, out.sum_tokens);
}

TEST(DpMetadata, RankWithoutTokensB64) {
  const Counts table = {0, 37};
  const fwdmeta_dp_metadata_args_t args = DpArgs(table, 0);
  fwdmeta_dp_metadata_t out = FWDMETA_DP_METADATA_INITIALIZER;
  ASSERT_OK(fwdmeta_dp_metadata_make(&args, &out));
  EXPECT_EQ(37, out.max_tokens);
  EXPECT_EQ(37, out.sum_tokens);
}

TEST(DpMetadata, SumsPastInt32) {
  const Counts table = {kMax, kMax, 2};
  const fwdmeta_dp_metadata_args_t args = DpArgs(table, 2);
  fwdmeta_dp_metadata_t out = FWDMETA_DP_METADATA_INITIALIZER;
  ASSERT_OK(fwdmeta_dp_metadata_make(&args, &out));
  EXPECT_EQ(kMax, out.max_tokens);
  EXPECT_EQ(2 * kMax + 2, out.sum_tokens);
}

TEST(DpMetadata, OneRankNeedsSequenceParallelMoe) {
  const Counts table = {8};
  fwdmeta_dp_metadata_args_t args = DpArgs(table, 0);
  fwdmeta_dp_metadata_t out = FWDMETA_DP_METADATA_INITIALIZER;
  EXPECT_REFUSED(fwdmeta_dp_metadata_make(&args, &out), 1);
  args.sequence_parallel_moe = 1;
  ASSERT_OK(fwdmeta_dp_metadata_make(&args, &out));
  EXPECT_EQ(8, out.max_tokens);
  EXPECT_EQ(8, out.sum_tokens);
}

TEST(DpMetadata, RefusesWithTheNumbers) {
  const Counts table = {5, 12}, negative = {5, -6}, large = {5, kMax + 1};
  fwdmeta_dp_metadata_t out = FWDMETA_DP_METADATA_INITIALIZER;
  out.max_tokens = kUntouched;
  const auto refused = [&](auto change, const Counts& numbers) {
    fwdmeta_dp_metadata_args_t args = DpArgs(table, 1);
    change(args);
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_dp_metadata_make(&args, &out));
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), numbers)) << fwdmeta_last_error();
  };
  refused([](auto& args) { args.table = nullptr; }, {2});
  refused([](auto& args) { args.dp_size = 0; }, {0});
  refused([](auto& args) { args.dp_size = -2; }, {2});
  refused([](auto& args) { args.dp_size = kMax + 1; }, {kMax + 1});
  refused([](auto& args) { args.dp_size = 0, args.sequence_parallel_moe = 1; }, {0});
  refused([](auto& args) { args.dp_rank = 2; }, {2});
  refused([](auto& args) { args.dp_rank = -1; }, {1, 2});
  refused([](auto& args) { args.is_moe = 0; }, {0});
  refused([](auto& args) { args.is_moe = 2; }, {2});
  refused([](auto& args) { args.sequence_parallel_moe = 3; }, {3});
  refused([](auto& args) { args.num_tokens = 16; }, {1, 12, 16});  // the padded count is not the table's
  refused([](auto& args) { args.dp_rank = 0; }, {0, 5, 12});
  refused([&](auto& args) { args.table = negative.data(); }, {1, 6});
  refused([&](auto& args) { args.table = large.data(); }, {1, kMax + 1});
  EXPECT_EQ(kUntouched, out.max_tokens);
}

TEST(DpMetadata, StructSizes) {
  const Counts table = {5, 12};
  fwdmeta_dp_metadata_args_t args = DpArgs(table, 1);
  fwdmeta_dp_metadata_t out = FWDMETA_DP_METADATA_INITIALIZER;
  EXPECT_REFUSED(fwdmeta_dp_metadata_make(nullptr, &out));
  EXPECT_REFUSED(fwdmeta_dp_metadata_make(&args, nullptr));
  args.struct_size = 0;
  EXPECT_REFUSED(fwdmeta_dp_metadata_make(&args, &out), 0, static_cast<int64_t>(sizeof(args)));

  // A shorter struct gets the default of what it lacks: is_moe -1.
  args.struct_size = offsetof(fwdmeta_dp_metadata_args_t, is_moe);
  args.is_moe = 0;
  EXPECT_OK(fwdmeta_dp_metadata_make(&args, &out));

  // A longer one passes while its tail is zero.
  struct {
    fwdmeta_dp_metadata_args_t args;
    int64_t tail;
  } longer = {DpArgs(table, 1), 0};
  longer.args.struct_size = sizeof(longer);
  EXPECT_OK(fwdmeta_dp_metadata_make(&longer.args, &out));
  longer.tail = 1;
  EXPECT_REFUSED(fwdmeta_dp_metadata_make(&longer.args, &out), static_cast<int64_t>(sizeof(longer)));

  // Of the answer, only what the caller knows is written.
  args = DpArgs(table, 1);
  out.struct_size = 0;
  EXPECT_REFUSED(fwdmeta_dp_metadata_make(&args, &out), 0);
  out = FWDMETA_DP_METADATA_INITIALIZER;
  out.struct_size = offsetof(fwdmeta_dp_metadata_t, sum_tokens);
  out.sum_tokens = kUntouched;
  EXPECT_OK(fwdmeta_dp_metadata_make(&args, &out));
  EXPECT_EQ(12, out.max_tokens);
  EXPECT_EQ(kUntouched, out.sum_tokens);
  EXPECT_EQ(offsetof(fwdmeta_dp_metadata_t, sum_tokens), out.struct_size);
}

// ---- shards

struct Shards {
  Counts sizes, starts, live;
  std::vector<uint8_t> mask;
};

Shards ShardSizes(int64_t num_tokens, int64_t ranks, bool padded) {
  Shards s = {Counts(ranks, kUntouched), Counts(ranks, kUntouched), Counts(ranks, kUntouched), {}};
  if (padded) s.mask.assign((num_tokens + ranks - 1) / ranks * ranks, 9);
  EXPECT_OK(fwdmeta_shard_sizes(num_tokens, ranks, padded, s.sizes.data(), s.starts.data(), s.live.data(),
                                padded ? s.mask.data() : nullptr));
  return s;
}

// The case's [2, 2, 1, 0] is what padded shards have live; uneven ones differ by at most one token.
TEST(Shards, FewerTokensThanRanksB69) {
  const Shards five = ShardSizes(5, 4, false);
  EXPECT_EQ((Counts{2, 1, 1, 1}), five.sizes);
  EXPECT_EQ((Counts{0, 2, 3, 4}), five.starts);
  EXPECT_EQ(five.sizes, five.live);
  const Shards three = ShardSizes(3, 8, false);
  EXPECT_EQ((Counts{1, 1, 1, 0, 0, 0, 0, 0}), three.sizes);
  EXPECT_EQ((Counts{0, 1, 2, 3, 3, 3, 3, 3}), three.starts);
  const Shards padded = ShardSizes(5, 4, true);
  EXPECT_EQ((Counts{2, 2, 2, 2}), padded.sizes);
  EXPECT_EQ((Counts{0, 2, 4, 6}), padded.starts);
  EXPECT_EQ((Counts{2, 2, 1, 0}), padded.live);
}

TEST(Shards, MaskAndLiveCountsB70) {
  const Shards s = ShardSizes(5, 4, true);
  EXPECT_EQ((Counts{2, 2, 1, 0}), s.live);
  EXPECT_EQ((std::vector<uint8_t>{1, 1, 1, 1, 1, 0, 0, 0}), s.mask);
}

TEST(Shards, NoTokens) {
  for (bool padded : {false, true}) {
    const Shards s = ShardSizes(0, 3, padded);
    EXPECT_EQ(Counts(3, 0), s.sizes);
    EXPECT_EQ(Counts(3, 0), s.starts);
    EXPECT_EQ(Counts(3, 0), s.live);
  }
}

TEST(Shards, LargeNumbers) {
  Counts sizes(2), starts(2), live(2);
  ASSERT_OK(fwdmeta_shard_sizes(kMax, 2, 1, sizes.data(), starts.data(), live.data(), nullptr));
  EXPECT_EQ((Counts{1073741824, 1073741824}), sizes);
  EXPECT_EQ((Counts{1073741824, 1073741823}), live);
}

TEST(Shards, EveryTokenIsInOneShard) {
  for (int64_t tokens = 0; tokens < 40; ++tokens) {
    for (int64_t ranks = 1; ranks < 12; ++ranks) {
      const Shards uneven = ShardSizes(tokens, ranks, false), padded = ShardSizes(tokens, ranks, true);
      EXPECT_EQ(tokens, std::accumulate(uneven.sizes.begin(), uneven.sizes.end(), int64_t{0}));
      EXPECT_EQ(tokens, std::accumulate(padded.live.begin(), padded.live.end(), int64_t{0}));
      EXPECT_EQ(tokens, std::accumulate(padded.mask.begin(), padded.mask.end(), int64_t{0}));
      const auto [least, most] = std::minmax_element(uneven.sizes.begin(), uneven.sizes.end());
      EXPECT_LE(*most - *least, 1);
      EXPECT_TRUE(std::is_sorted(uneven.sizes.rbegin(), uneven.sizes.rend()));
      for (const Shards* s : {&uneven, &padded}) {
        int64_t start = 0;
        for (int64_t r = 0; r < ranks; ++r) {
          EXPECT_EQ(start, s->starts[r]);
          start += s->sizes[r];
        }
      }
      for (int64_t r = 0; r < ranks; ++r) {
        for (int64_t i = 0; i < padded.sizes[r]; ++i) {
          EXPECT_EQ(i < padded.live[r], padded.mask[padded.starts[r] + i] == 1);
        }
      }
    }
  }
}

TEST(Shards, EachOutputMayBeNull) {
  Counts live(4, kUntouched);
  EXPECT_OK(fwdmeta_shard_sizes(5, 4, 1, nullptr, nullptr, live.data(), nullptr));
  EXPECT_EQ((Counts{2, 2, 1, 0}), live);
  EXPECT_OK(fwdmeta_shard_sizes(5, 4, 0, nullptr, nullptr, nullptr, nullptr));
}

TEST(Shards, Refusals) {
  Counts out(8, kUntouched);
  std::vector<uint8_t> mask(8, 9);
  EXPECT_REFUSED(fwdmeta_shard_sizes(-1, 4, 0, out.data(), nullptr, nullptr, nullptr), 1);
  EXPECT_REFUSED(fwdmeta_shard_sizes(kMax + 1, 4, 0, out.data(), nullptr, nullptr, nullptr), kMax + 1);
  EXPECT_REFUSED(fwdmeta_shard_sizes(5, 0, 0, out.data(), nullptr, nullptr, nullptr), 0);
  EXPECT_REFUSED(fwdmeta_shard_sizes(5, -4, 0, out.data(), nullptr, nullptr, nullptr), 4);
  EXPECT_REFUSED(fwdmeta_shard_sizes(5, kMax + 1, 0, out.data(), nullptr, nullptr, nullptr), kMax + 1);
  EXPECT_REFUSED(fwdmeta_shard_sizes(5, 4, 2, out.data(), nullptr, nullptr, nullptr), 2);
  EXPECT_REFUSED(fwdmeta_shard_sizes(5, 4, 0, out.data(), nullptr, nullptr, mask.data()), 0);
  EXPECT_EQ(Counts(8, kUntouched), out);
  EXPECT_EQ(std::vector<uint8_t>(8, 9), mask);
}

}  // namespace
}  // namespace fwdmeta_test
