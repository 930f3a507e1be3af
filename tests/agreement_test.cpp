// The agreement of data-parallel ranks: the contract's rules, vLLM's table of synchronised ranks, the public bugs, and
// what has to hold for any table: every rank concludes the same.
#include <algorithm>
#include <deque>
#include <functional>
#include <numeric>

#include "random_ranks.h"

namespace fwdmeta_test {
namespace {

constexpr fwdmeta_graph_mode_t kNone = FWDMETA_GRAPH_NONE, kPiecewise = FWDMETA_GRAPH_PIECEWISE,
                               kFull = FWDMETA_GRAPH_FULL;

struct Agreed {
  fwdmeta_status_t status;
  fwdmeta_agreement_t c = FWDMETA_AGREEMENT_INITIALIZER;
  std::vector<int64_t> tokens;

  std::string Text() const {
    if (status != FWDMETA_OK) return fwdmeta_status_name(status);
    std::string text = std::string(fwdmeta_graph_mode_name(c.mode)) + " [";
    for (size_t i = 0; i < tokens.size(); ++i) text += (i == 0 ? "" : ",") + std::to_string(tokens[i]);
    text += "] q" + std::to_string(c.query_len) + " r" + std::to_string(c.num_reqs);
    if (c.sliced) text += " sliced";
    if (c.skip) text += " skip";
    if (c.reason != FWDMETA_DISPATCH_OK) text += std::string(" ") + fwdmeta_dispatch_reason_name(c.reason);
    return text;
  }
};

Agreed Agree(const Dispatcher& dispatcher, const Rows& rows, int64_t num_slices = 2) {
  Agreed agreed;
  agreed.tokens.assign(rows.size(), -9);
  agreed.status = fwdmeta_agree(dispatcher.handle(), rows.data(), static_cast<int64_t>(rows.size()), num_slices,
                                agreed.tokens.data(), &agreed.c);
  return agreed;
}

// vllm.md §2.4, the table of V1's synchronisation, with the values of the contract. Requests of one token each.
TEST(Agreement, V1Table) {
  const Dispatcher both({{1, 2, 4, 8, 16, 24, 32, 40, 48, 64}, 1024, {1}});
  const auto row = [](int64_t n, int32_t wants, int32_t mode) { return Row(n, n, 1, mode, wants); };
  EXPECT_EQ("FULL [8,8] q1 r8", Agree(both, {row(3, 0, 2), row(7, 0, 2)}).Text());
  EXPECT_EQ("PIECEWISE [8,8] q1 r-1 NOT_ALLOWED", Agree(both, {row(3, 0, 2), row(7, 0, 1)}).Text());
  EXPECT_EQ("NONE [3,600] q1 r-1 NOT_ALLOWED", Agree(both, {row(3, 0, 2), row(600, 0, 0)}).Text());
  EXPECT_EQ("FULL [1,1] q1 r1", Agree(both, {row(1, 0, 2), Row(0, 0, 0, kNone)}).Text());
  EXPECT_EQ("FULL [64,64] q1 r64 sliced", Agree(both, {row(33, 1, 2), row(64, 1, 2)}).Text());
  EXPECT_EQ("FULL [64,64] q1 r64", Agree(both, {row(32, 1, 2), row(64, 1, 2)}).Text());
  EXPECT_EQ("NONE [1000,1000] q1 r-1 sliced NOT_ALLOWED", Agree(both, {row(700, 1, 0), row(1000, 1, 0)}).Text());
  EXPECT_EQ("FULL [64,64] q1 r64", Agree(both, {row(64, 1, 2), row(40, 0, 2)}).Text());
}

// vllm.md §2.4, last_empty(o, p, k): sliced is its contrary. Eager, so that M is the largest count itself.
TEST(Agreement, LastSliceOfEveryRankHasTokens) {
  const Dispatcher none({{}, 1024, {1}, kNone});
  struct Case {
    int64_t least, largest, slices;
    bool empty;
  };
  const Case cases[] = {{4, 8, 2, true},      {5, 8, 2, false},  {8, 8, 2, false},
                        {1, 2, 2, true},      {3, 512, 2, true}, {256, 512, 2, true},
                        {257, 512, 2, false}, {10, 15, 3, true}, {11, 15, 3, false}};
  for (const Case& c : cases) {
    const Rows rows = {Row(c.least, 1, 0, kFull, 1), Row(c.largest, 1, 0, kFull, 1)};
    const Agreed agreed = Agree(none, rows, c.slices);
    EXPECT_EQ(!c.empty, agreed.c.sliced == 1) << c.least << " of " << c.largest << " in " << c.slices;
    EXPECT_EQ(c.empty ? c.least : c.largest, agreed.tokens[0]);
    EXPECT_EQ(c.largest, agreed.tokens[1]);
  }
  // last_empty(1, 1, 2) is false, but a slice of 1 / 2 tokens has none (§4.8.4).
  EXPECT_EQ("NONE [1,1] q0 r-1 MODE_NONE", Agree(none, {Row(1, 1, 0, kFull, 1), Row(1, 1, 0, kFull, 1)}).Text());
  // k = 1 is never sliced, and an idle rank has no last slice.
  EXPECT_EQ("NONE [8,8] q0 r-1 MODE_NONE", Agree(none, {Row(8, 1, 0, kFull, 1), Row(8, 1, 0, kFull, 1)}, 1).Text());
  EXPECT_EQ("NONE [8,0] q0 r-1 MODE_NONE", Agree(none, {Row(8, 1, 0, kFull, 1), Row(0, 0, 0, kFull, 1)}).Text());
}

// The example of the command's format: 12 tokens of 4 requests of 3, and others.
TEST(Agreement, MixedBatchesAreNotUniform) {
  const Dispatcher both({{1, 2, 4, 8, 16}, 8, {1, 3}});
  EXPECT_EQ("PIECEWISE [16,16] q0 r-1 NOT_UNIFORM", Agree(both, {Row(12, 4, 3), Row(9, 2)}).Text());
  EXPECT_EQ("PIECEWISE [16,16] q0 r-1 NOT_UNIFORM", Agree(both, {Row(12, 4, 3), Row(3, 3, 1)}).Text());
  EXPECT_EQ("PIECEWISE [16,16] q3 r-1 NO_FULL_SIZE", Agree(both, {Row(12, 4, 3), Row(3, 1, 3)}).Text());
  EXPECT_EQ("FULL [9,9,9] q3 r3", Agree(both, {Row(9, 3, 3), Row(3, 1, 3), Row(6, 2, 3)}).Text());
}

TEST(Agreement, Bugs) {
  {  // B64: a rank without tokens takes part, and runs 40 padded ones.
    const Dispatcher both({{1, 2, 4, 8, 16, 24, 32, 40}, 64, {1}});
    EXPECT_EQ("PIECEWISE [40,40] q0 r-1 NOT_UNIFORM", Agree(both, {Row(0, 0), Row(37, 5)}).Text());
    EXPECT_EQ("FULL [40,40] q1 r40", Agree(both, {Row(0, 0), Row(37, 37, 1)}).Text());
  }
  {  // B65: the graph is that of the largest count.
    const Dispatcher both({{1, 2, 4, 8, 16}, 64, {1}});
    EXPECT_EQ("FULL [16,16] q1 r16", Agree(both, {Row(3, 3, 1), Row(9, 9, 1)}).Text());
  }
  {  // B67: 16 ranks of 32 tokens are 512 in all, but 32 is what graphs go by.
    const Dispatcher both({{32, 160}, 160, {1}});
    const Agreed agreed = Agree(both, Rows(16, Row(32, 32, 1)));
    EXPECT_EQ(kFull, agreed.c.mode);
    EXPECT_EQ(std::vector<int64_t>(16, 32), agreed.tokens);
    EXPECT_EQ(512, std::accumulate(agreed.tokens.begin(), agreed.tokens.end(), int64_t{0}));
  }
  {  // #35376: an idle rank does not demote the others, whatever its row says besides.
    const Dispatcher both({{1, 2, 4, 8, 16}, 8, {4}});
    EXPECT_EQ("FULL [8,8] q4 r2", Agree(both, {Row(8, 2, 4), Row(0, 99, 1, kNone)}).Text());
  }
}

TEST(Agreement, AllIdleIsSkipped) {
  const Dispatcher both({{1, 2, 4}, 8, {1}});
  const Agreed agreed = Agree(both, {Row(0, 5, 3, kNone, 1), Row(0, 0, 1, kFull, 1)});
  EXPECT_EQ("NONE [0,0] q0 r-1 skip ZERO_TOKENS", agreed.Text());
  EXPECT_EQ(-1, agreed.c.mismatch_rank);
  const fwdmeta_batch_descriptor_t nothing = {0, -1, 0, 0, 0};
  EXPECT_EQ(1, fwdmeta_batch_descriptor_equal(&nothing, &agreed.c.descriptor));
  EXPECT_EQ("NONE [0] q0 r-1 skip ZERO_TOKENS", Agree(Dispatcher({{}, 8, {1}, kNone}), {Row(0, 0)}).Text());
}

// Rule 4: T of one rank and R of another, which are no uniform batch together.
TEST(Agreement, QueryLenFallsToZeroWhereCountsDoNotFit) {
  const Dispatcher both({{1, 2, 4, 8, 16}, 8, {2}});
  EXPECT_EQ("PIECEWISE [8,8] q0 r-1 NOT_UNIFORM", Agree(both, {Row(7, 2, 2), Row(4, 2, 2)}).Text());
  EXPECT_EQ("PIECEWISE [8,8] q0 r-1 NOT_UNIFORM", Agree(both, {Row(6, 3, 2), Row(4, 4, 2)}).Text());
  EXPECT_EQ("FULL [8,8] q2 r4", Agree(both, {Row(6, 1, 2), Row(6, 3, 2)}).Text());
}

TEST(Agreement, LorasDoNotEnter) {
  fwdmeta_dispatcher_config_t config = FWDMETA_DISPATCHER_CONFIG_INITIALIZER;
  config.mode = FWDMETA_GRAPH_FULL_AND_PIECEWISE;
  config.max_num_seqs = config.max_num_tokens = 8;
  config.max_loras = 4;
  fwdmeta_dispatcher_t handle = 0;
  ASSERT_OK(fwdmeta_dispatcher_create(&config, &handle));
  ASSERT_OK(fwdmeta_dispatcher_mark_captured(handle, nullptr));
  const fwdmeta_rank_row_t row = Row(4, 4, 1);
  fwdmeta_agreement_t out = FWDMETA_AGREEMENT_INITIALIZER;
  EXPECT_OK(fwdmeta_agree(handle, &row, 1, 1, nullptr, &out));
  EXPECT_EQ(0, out.descriptor.num_active_loras + out.descriptor.has_lora);
  EXPECT_EQ(4, out.num_reqs);
  EXPECT_OK(fwdmeta_dispatcher_destroy(handle));
}

TEST(Agreement, MismatchNamesTheLowestRank) {
  const Dispatcher both({{1, 2, 4}, 8, {1}});
  const Rows good(5, Row(2, 2, 1));
  const auto rank = [&](const std::function<void(Rows*)>& change) {
    Rows rows = good;
    change(&rows);
    const Agreed agreed = Agree(both, rows);
    EXPECT_EQ(FWDMETA_RANK_MISMATCH, agreed.status);
    EXPECT_EQ(std::vector<int64_t>(5, -9), agreed.tokens);
    return agreed.c.mismatch_rank;
  };
  EXPECT_EQ(3, rank([](Rows* rows) { (*rows)[3].config ^= uint64_t{1} << 63; }));
  EXPECT_EQ(2, rank([](Rows* rows) { (*rows)[4].config = 1, (*rows)[2].step = 8; }));
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {2, 8, 7})) << fwdmeta_last_error();
  EXPECT_EQ(1, rank([](Rows* rows) { (*rows)[0].step = -1; }));
  EXPECT_EQ(4, rank([](Rows* rows) { (*rows)[4] = Row(0, 0), (*rows)[4].step = 6; }));  // an idle one, too
  EXPECT_EQ(-1, Agree(both, good).c.mismatch_rank);
}

TEST(Agreement, Refuses) {
  const Dispatcher both({{1, 2, 4, 8}, 4, {1}});
  const Rows good = {Row(2, 2, 1), Row(3, 3, 1)};
  const auto refused = [&](const std::function<void(fwdmeta_rank_row_t*)>& change) {
    Rows rows = good;
    change(&rows[1]);
    const Agreed agreed = Agree(both, rows);
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, agreed.status);
    EXPECT_EQ((std::vector<int64_t>{-9, -9}), agreed.tokens);
    EXPECT_EQ(-1, agreed.c.mismatch_rank);
  };
  using Of = fwdmeta_rank_row_t;
  refused([](Of* row) { row->num_tokens = -1; });
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {1, -1})) << fwdmeta_last_error();
  refused([](Of* row) { row->num_tokens = int64_t{1} << 31; });
  refused([](Of* row) { row->num_reqs = -1; });
  refused([](Of* row) { row->num_reqs = int64_t{1} << 31; });
  refused([](Of* row) { row->max_mode = FWDMETA_GRAPH_FULL_AND_PIECEWISE; });
  refused([](Of* row) { row->max_mode = -1; });
  refused([](Of* row) { row->query_len = -1; });
  refused([](Of* row) { row->wants_slices = 2; });
  for (int i = 0; i < 5; ++i) {
    refused([i](Of* row) { row->reserved[i] = 1; });
  }
  // An argument error of the dispatch is the answer: more requests than max_num_seqs.
  refused([](Of* row) { row->num_tokens = row->num_reqs = 5; });
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {5, 4})) << fwdmeta_last_error();

  fwdmeta_agreement_t out = FWDMETA_AGREEMENT_INITIALIZER;
  int64_t tokens[2];
  const fwdmeta_dispatcher_t handle = both.handle();
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_agree(0, good.data(), 2, 1, tokens, &out));
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_agree(handle ^ uint64_t{1} << 60, good.data(), 2, 1, tokens, &out));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_agree(handle, nullptr, 2, 1, tokens, &out));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_agree(handle, good.data(), 0, 1, tokens, &out));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_agree(handle, good.data(), -1, 1, tokens, &out));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_agree(handle, good.data(), int64_t{1} << 31, 1, tokens, &out));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_agree(handle, good.data(), 2, 0, tokens, &out));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_agree(handle, good.data(), 2, 17, tokens, &out));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_agree(handle, good.data(), 2, 1, tokens, nullptr));
  out.struct_size = 0;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_agree(handle, good.data(), 2, 1, tokens, &out));
  out.struct_size = offsetof(fwdmeta_agreement_t, reason);
  out.reason = 99;
  EXPECT_OK(fwdmeta_agree(handle, good.data(), 2, 1, nullptr, &out));
  EXPECT_EQ(kFull, out.mode);
  EXPECT_EQ(99, out.reason);
}

// ------------------------------------------------------------------------------------------- random tables --

bool SameAgreement(const fwdmeta_agreement_t& a, const fwdmeta_agreement_t& b) {
  return a.mode == b.mode && a.reason == b.reason && a.query_len == b.query_len && a.num_reqs == b.num_reqs &&
         a.sliced == b.sliced && a.skip == b.skip && fwdmeta_batch_descriptor_equal(&a.descriptor, &b.descriptor);
}

// The rules again, one pass over the table a rule, with the dispatch of rule 4 by another handle of the same
// configuration, as another rank has it.
void ExpectRules(const Dispatcher& rank, const Rows& rows, int64_t k, const Agreed& agreed) {
  Rows live;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(live),
               [](const fwdmeta_rank_row_t& row) { return row.num_tokens > 0; });
  ASSERT_EQ(live.empty(), agreed.c.skip == 1);
  fwdmeta_dispatch_args_t args = FWDMETA_DISPATCH_ARGS_INITIALIZER;
  for (const auto& row : live) args.num_tokens = std::max(args.num_tokens, row.num_tokens);
  for (const auto& row : live) args.num_reqs = std::max(args.num_reqs, row.num_reqs);
  for (const auto& row : live) {
    for (int32_t mode = row.max_mode + 1; mode <= kFull; ++mode) args.allowed_modes &= ~(1 << mode);
  }
  const bool common = std::all_of(live.begin(), live.end(),
                                  [&](const fwdmeta_rank_row_t& row) { return row.query_len == live[0].query_len; });
  if (!live.empty() && common) args.query_len = live[0].query_len;
  fwdmeta_dispatch_result_t result = FWDMETA_DISPATCH_RESULT_INITIALIZER;
  if (fwdmeta_dispatch(rank.handle(), &args, &result) != FWDMETA_OK) {
    args.query_len = 0;
    ASSERT_OK(fwdmeta_dispatch(rank.handle(), &args, &result));
  }
  ASSERT_EQ(result.mode, agreed.c.mode);
  ASSERT_EQ(result.reason, agreed.c.reason);
  ASSERT_TRUE(fwdmeta_batch_descriptor_equal(&result.descriptor, &agreed.c.descriptor));
  ASSERT_EQ(result.descriptor.num_reqs, agreed.c.num_reqs);
  ASSERT_EQ(args.query_len, agreed.c.query_len);
  const int64_t m = result.mode != kNone ? result.descriptor.num_tokens : args.num_tokens;
  const bool sliced = k >= 2 && m / k >= 1 && std::all_of(rows.begin(), rows.end(), [&](const auto& row) {
                        return row.wants_slices == 1 && m / k * (k - 1) < row.num_tokens;
                      });
  ASSERT_EQ(sliced, agreed.c.sliced == 1);
  for (size_t i = 0; i < rows.size(); ++i) {
    ASSERT_EQ(result.mode != kNone || sliced ? m : rows[i].num_tokens, agreed.tokens[i]);
    ASSERT_GE(agreed.tokens[i], rows[i].num_tokens);
  }
}

// 10,000 tables of 1 to 4096 ranks.
TEST(Agreement, AnyTableInAnyOrder) {
  struct Pair {
    explicit Pair(const GraphSetup& setup) : one(setup), other(setup) {}
    Dispatcher one, other;
  };
  std::deque<Pair> pairs;
  for (const GraphSetup& setup : RandomSetups()) pairs.emplace_back(setup);
  RandomTables tables;
  int sliced = 0, skipped = 0, modes[3] = {};
  for (int round = 0; round < 10000; ++round) {
    const Pair& pair = pairs[round % pairs.size()];
    const Rows rows = tables.Next();
    const int64_t k = tables.Between(1, 4);
    const Agreed agreed = Agree(pair.one, rows, k);
    ASSERT_EQ(FWDMETA_OK, agreed.status) << fwdmeta_last_error();
    ASSERT_NO_FATAL_FAILURE(ExpectRules(pair.other, rows, k, agreed)) << "round " << round;
    std::vector<size_t> order(rows.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), tables.random());
    Rows permuted;
    for (const size_t i : order) permuted.push_back(rows[i]);
    const Agreed again = Agree(pair.other, permuted, k);
    ASSERT_TRUE(SameAgreement(agreed.c, again.c)) << agreed.Text().substr(0, 100);
    for (size_t i = 0; i < order.size(); ++i) ASSERT_EQ(agreed.tokens[order[i]], again.tokens[i]);
    sliced += agreed.c.sliced;
    skipped += agreed.c.skip;
    ++modes[agreed.c.mode];
  }
  EXPECT_GT(sliced, 500);
  EXPECT_GT(skipped, 50);
  for (const int count : modes) EXPECT_GT(count, 500);
}

}  // namespace
}  // namespace fwdmeta_test
