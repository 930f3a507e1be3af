// Forward-context contract §7: splits and orders of a batch, local attention, page lists, table expansion.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <tuple>

#include "harness.h"
#include "random_batch.h"

namespace fwdmeta_test {
namespace {

using Ints = std::vector<int32_t>;

constexpr int32_t kCanary = -77;
constexpr int64_t kPastInt32 = int64_t{1} << 31;

int64_t Size(const Ints& values) { return static_cast<int64_t>(values.size()); }

const int32_t* Misaligned(const Ints& values) {
  return reinterpret_cast<const int32_t*>(reinterpret_cast<const char*>(values.data()) + 1);
}

// decodes, prefills, decode tokens, prefill tokens
using Split = std::tuple<int64_t, int64_t, int64_t, int64_t>;
Split SplitOf(const fwdmeta_batch_split_t& s) {
  EXPECT_EQ(sizeof s, s.struct_size);
  return {s.num_decodes, s.num_prefills, s.num_decode_tokens, s.num_prefill_tokens};
}

Split ByRole(const Ints& encoder, const Ints& this_time) {
  fwdmeta_batch_split_t out = FWDMETA_BATCH_SPLIT_INITIALIZER;
  EXPECT_OK(fwdmeta_split_by_role(encoder.data(), this_time.data(), Size(this_time), &out));
  return SplitOf(out);
}

struct Order {
  Ints order;
  int32_t changed;
};
bool operator==(const Order& a, const Order& b) { return a.order == b.order && a.changed == b.changed; }
void PrintTo(const Order& order, std::ostream* out) {
  *out << ::testing::PrintToString(order.order) << (order.changed ? " changed" : " unchanged");
}

Order OrderByRole(const Ints& encoder, const Ints& this_time) {
  Order got{Ints(this_time.size() + 1, kCanary), kCanary};
  EXPECT_OK(fwdmeta_reorder_by_role(encoder.data(), this_time.data(), Size(this_time), got.order.data(), &got.changed));
  EXPECT_EQ(kCanary, got.order.back());
  got.order.pop_back();
  return got;
}

Order OrderByLength(const Ints& query_lens, const Ints& computed, const Ints& prompt_lens, int64_t threshold) {
  Order got{Ints(query_lens.size() + 1, kCanary), kCanary};
  EXPECT_OK(fwdmeta_reorder_by_length(query_lens.data(), computed.data(), prompt_lens.data(), Size(query_lens),
                                      threshold, got.order.data(), &got.changed));
  EXPECT_EQ(kCanary, got.order.back());
  got.order.pop_back();
  return got;
}

// ------------------------------------------------------------------------------------------------ by role --

TEST(SplitByRole, CountsSlotsAndTokensInAnyOrder) {
  EXPECT_EQ(Split(2, 1, 4, 5), ByRole({0, 5, 9, 0}, {1, 5, 0, 3})) << "a stale E of an idle slot counts in neither";
  EXPECT_EQ(Split(0, 0, 0, 0), ByRole({}, {}));
  EXPECT_EQ(Split(1, 0, INT32_MAX, 0), ByRole({0}, {INT32_MAX}));
  fwdmeta_batch_split_t out = FWDMETA_BATCH_SPLIT_INITIALIZER;
  EXPECT_OK(fwdmeta_split_by_role(nullptr, nullptr, 0, &out));
}

// vLLM's padding of is_prefilling (reference 2.5): F, T, F of computed [50, 100, 200] and prompts of [50, 200, 200],
// then two padded requests, which are not prefilling whatever stood there.
TEST(SplitByRole, PaddedRequestsAreNotPrefilling) {
  EXPECT_EQ(Split(2, 1, 2, 100), ByRole({0, 100, 0, 90, 180}, {1, 100, 1, 0, 0}));
  EXPECT_EQ((Order{{0, 2, 1, 3, 4}, 1}), OrderByRole({0, 100, 0, 90, 180}, {1, 100, 1, 0, 0}));
}

// flash-attention#1537: slots without tokens are not "one token each". Tokens and slots differ from the batch size.
TEST(SplitByRole, B14_SlotsWithoutTokens) {
  EXPECT_EQ(Split(2, 0, 2, 0), ByRole({0, 0, 0, 0}, {0, 1, 0, 1}));
  EXPECT_EQ((Order{{3, 1, 2, 0}, 1}), OrderByRole({0, 0, 0, 0}, {0, 1, 0, 1}));
}

// vllm#43966, #49542 (and B42): the tail of a prompt that is as short as a decode is a prefill by its role, and a
// decode by vLLM's rule of lengths.
TEST(SplitByRole, B73_AShortTailOfAPromptIsAPrefill) {
  EXPECT_EQ(Split(1, 1, 1, 2), ByRole({0, 2}, {1, 2}));
  const Ints lens{1, 2};
  fwdmeta_length_split_args_t args = FWDMETA_LENGTH_SPLIT_ARGS_INITIALIZER;
  args.query_lens = lens.data();
  args.num_reqs = 2;
  args.threshold = 2;
  fwdmeta_batch_split_t out = FWDMETA_BATCH_SPLIT_INITIALIZER;
  EXPECT_OK(fwdmeta_split_by_length(&args, &out));
  EXPECT_EQ(Split(2, 0, 3, 0), SplitOf(out));
}

TEST(ReorderByRole, MovesOnlyWhatStandsInAnotherGroupsPlace) {
  // Decode, prefill, idle are 'd', 'p', '.'.
  const struct {
    const char* roles;
    Ints order;
  } rows[] = {{"", {}},
              {"d", {0}},
              {"ddpp..", {0, 1, 2, 3, 4, 5}},
              {"pd", {1, 0}},
              {"pdpd", {3, 1, 2, 0}},
              {"ppdd", {2, 3, 0, 1}},
              {".pd", {2, 1, 0}},
              {"p.d", {2, 0, 1}},
              {"..dp", {2, 3, 0, 1}},
              {"d.pdp", {0, 3, 2, 4, 1}}};
  for (const auto& row : rows) {
    Ints encoder, this_time;
    for (const char* role = row.roles; *role != 0; ++role) {
      this_time.push_back(*role == '.' ? 0 : 3);
      encoder.push_back(*role == 'd' ? 0 : 3);  // stale for the idle ones
    }
    const Ints identity = [&] {
      Ints values(this_time.size());
      std::iota(values.begin(), values.end(), 0);
      return values;
    }();
    EXPECT_EQ((Order{row.order, row.order != identity}), OrderByRole(encoder, this_time)) << row.roles;
  }
}

// The groups of V2's order (reference 2.6): decodes d1 and d2 before a prompt's tail of one token and other prompts. V2
// also sorts within a group, where nothing is moved here.
TEST(ReorderByRole, GroupsOfV2) {
  EXPECT_EQ((Order{{3, 1, 2, 0}, 1}), OrderByRole({100, 0, 7, 0}, {100, 1, 7, 1}));  // p1, d1, p2, d2
  EXPECT_EQ((Order{{3, 1, 2, 0}, 1}), OrderByRole({1, 0, 100, 0}, {1, 2, 100, 2}));  // tail, d1, p1, d2
}

TEST(RoleErrors, WhatABuildRefusesAndNothingIsWritten) {
  const struct {
    const char* name;
    Ints encoder, this_time;
    std::vector<int64_t> numbers;
  } rows[] = {{"N < 0", {0, 0}, {1, -3}, {1, -3}},
              {"N < 0, whatever E", {0, 7}, {1, -3}, {1, 7, -3}},
              {"E < 0", {0, -2}, {1, 3}, {1, -2}},
              {"E != N", {0, 9}, {1, 8}, {1, 9, 8}},
              {"a sum past int32", {0, 0}, {INT32_MAX, 1}, {2147483648, 2147483647}}};
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    fwdmeta_batch_split_t out = FWDMETA_BATCH_SPLIT_INITIALIZER;
    out.num_decodes = kCanary;
    EXPECT_STATUS(FWDMETA_INVALID_BATCH, fwdmeta_split_by_role(row.encoder.data(), row.this_time.data(), 2, &out));
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), row.numbers)) << fwdmeta_last_error();
    EXPECT_EQ(kCanary, out.num_decodes);
    Ints order(2, kCanary);
    int32_t changed = kCanary;
    EXPECT_STATUS(FWDMETA_INVALID_BATCH,
                  fwdmeta_reorder_by_role(row.encoder.data(), row.this_time.data(), 2, order.data(), &changed));
    EXPECT_EQ(Ints(2, kCanary), order);
    EXPECT_EQ(kCanary, changed);
  }
}

TEST(RoleErrors, PointersCountsAndStructSizes) {
  const Ints zero{0, 0}, ones{1, 1};
  Ints order(2);
  fwdmeta_batch_split_t out = FWDMETA_BATCH_SPLIT_INITIALIZER;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_split_by_role(nullptr, ones.data(), 2, &out));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_split_by_role(zero.data(), nullptr, 2, &out));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_split_by_role(zero.data(), ones.data(), 2, nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_split_by_role(Misaligned(zero), ones.data(), 1, &out));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_reorder_by_role(nullptr, ones.data(), 2, order.data(), nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_reorder_by_role(zero.data(), nullptr, 2, order.data(), nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_reorder_by_role(zero.data(), ones.data(), 2, nullptr, nullptr));
  EXPECT_OK(fwdmeta_reorder_by_role(zero.data(), ones.data(), 2, order.data(), nullptr));
  EXPECT_OK(fwdmeta_reorder_by_role(nullptr, nullptr, 0, nullptr, nullptr));
  for (const int64_t size : {int64_t{-1}, kPastInt32, FWDMETA_DEFAULT}) {
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_split_by_role(zero.data(), ones.data(), size, &out));
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {size})) << fwdmeta_last_error();
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT,
                  fwdmeta_reorder_by_role(zero.data(), ones.data(), size, order.data(), nullptr));
  }
  out.struct_size = 0;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_split_by_role(zero.data(), ones.data(), 2, &out));
  out.struct_size = offsetof(fwdmeta_batch_split_t, num_prefills);
  out.num_prefills = kCanary;
  EXPECT_OK(fwdmeta_split_by_role(zero.data(), ones.data(), 2, &out));
  EXPECT_EQ(2, out.num_decodes);
  EXPECT_EQ(kCanary, out.num_prefills) << "the caller's struct ends before it";
}

// ---------------------------------------------------------------------------------------------- by length --

// vLLM's table of split_decodes_and_prefills (reference 2.6).
TEST(SplitByLength, VectorsOfVllm) {
  constexpr int kBoth = 2;
  const struct {
    Ints query_lens;
    int64_t threshold;
    int uniform;
    Split split;
    int64_t num_tokens;
  } rows[] = {{{1, 1, 1}, 1, kBoth, {3, 0, 3, 0}, FWDMETA_DEFAULT},
              {{1, 2, 1, 3, 2, 1, 2}, 3, 0, {7, 0, 12, 0}, FWDMETA_DEFAULT},
              {{4, 5, 6, 7}, 3, kBoth, {0, 4, 0, 22}, FWDMETA_DEFAULT},
              {{2, 1, 3, 4, 5, 6, 7, 8}, 4, 0, {4, 4, 10, 26}, FWDMETA_DEFAULT},
              {{2, 2, 1, 3, 2, 1, 2}, 3, 1, {2, 5, 4, 9}, FWDMETA_DEFAULT},
              {{2, 2, 2, 4, 5, 6, 7, 8}, 4, 1, {3, 5, 6, 30}, FWDMETA_DEFAULT},
              {{2, 1, 2, 4, 5, 6, 7, 8}, 4, 1, {1, 7, 2, 33}, FWDMETA_DEFAULT},
              {{2, 2, 2, 0}, 3, 1, {4, 0, 8, 0}, 8},
              {{2, 2, 2, 2, 2, 2, 2, 2, 1}, 2, 1, {8, 1, 16, 1}, FWDMETA_DEFAULT},
              // Ours: no requests, padding of prefills, the longest threshold.
              {{}, 1, kBoth, {0, 0, 0, 0}, FWDMETA_DEFAULT},
              {{}, 1, kBoth, {0, 0, 4, 0}, 4},
              {{1, 9}, 1, kBoth, {1, 1, 1, 15}, 16},
              {{INT32_MAX}, INT32_MAX, 0, {1, 0, INT32_MAX, 0}, FWDMETA_DEFAULT}};
  for (const auto& row : rows) {
    for (int32_t uniform = 0; uniform < 2; ++uniform) {
      if (row.uniform != kBoth && row.uniform != uniform) continue;
      SCOPED_TRACE(::testing::PrintToString(row.query_lens));
      fwdmeta_length_split_args_t args = FWDMETA_LENGTH_SPLIT_ARGS_INITIALIZER;
      args.query_lens = row.query_lens.data();
      args.num_reqs = Size(row.query_lens);
      args.num_tokens = row.num_tokens;
      args.threshold = row.threshold;
      args.require_uniform = uniform;
      fwdmeta_batch_split_t out = FWDMETA_BATCH_SPLIT_INITIALIZER;
      EXPECT_OK(fwdmeta_split_by_length(&args, &out));
      EXPECT_EQ(row.split, SplitOf(out));
    }
  }
}

TEST(SplitByLength, VectorOfVllmWithShortExtendsAsPrefills) {
  const Ints query_lens{1, 1};
  const uint8_t is_prefilling[] = {0, 1};
  fwdmeta_length_split_args_t args = FWDMETA_LENGTH_SPLIT_ARGS_INITIALIZER;
  args.query_lens = query_lens.data();
  args.is_prefilling = is_prefilling;
  args.num_reqs = 2;
  args.treat_short_extends_as_decodes = 0;
  for (const int32_t uniform : {0, 1}) {
    args.require_uniform = uniform;
    fwdmeta_batch_split_t out = FWDMETA_BATCH_SPLIT_INITIALIZER;
    EXPECT_OK(fwdmeta_split_by_length(&args, &out));
    EXPECT_EQ(Split(1, 1, 1, 1), SplitOf(out));
  }
  args.treat_short_extends_as_decodes = 1;  // then the flags do not matter
  fwdmeta_batch_split_t out = FWDMETA_BATCH_SPLIT_INITIALIZER;
  EXPECT_OK(fwdmeta_split_by_length(&args, &out));
  EXPECT_EQ(Split(2, 0, 2, 0), SplitOf(out));
}

// The rule as a mask over the requests, the way that vLLM has it.
Split SlowSplit(const Ints& lens, const std::vector<uint8_t>& prefilling, int64_t num_tokens, int64_t threshold,
                bool uniform, bool short_decodes) {
  const int64_t reqs = Size(lens);
  const Split all_decodes(reqs, 0, num_tokens, 0);
  if (reqs == 0) return all_decodes;
  int32_t longest = 0;
  for (const int32_t length : lens) longest = std::max(longest, length);
  if (longest <= threshold && (!uniform || threshold <= 1) && short_decodes) return all_decodes;
  if (lens[0] > threshold) return {0, reqs, 0, num_tokens};
  std::vector<bool> prefill(lens.size());
  bool like_first = true;
  for (size_t i = 0; i < lens.size(); ++i) {
    like_first = like_first && (lens[i] == lens[0] || lens[i] == 0);
    prefill[i] = (uniform ? lens[i] != lens[0] : lens[i] > threshold) || (!short_decodes && prefilling[i] != 0);
  }
  if (uniform && short_decodes && like_first) return all_decodes;
  const auto first = std::find(prefill.begin(), prefill.end(), true) - prefill.begin();
  if (first == reqs) return all_decodes;
  const int64_t tokens = std::accumulate(lens.begin(), lens.begin() + first, int64_t{0});
  return {first, reqs - first, tokens, num_tokens - tokens};
}

TEST(SplitByLength, FollowsTheRuleOnRandomBatches) {
  Random random(1);
  for (int round = 0; round < 20000; ++round) {
    Ints lens(static_cast<size_t>(random.Int(0, 8)));
    const int64_t most = random.Pick({1, 2, 4, 9});
    for (int32_t& length : lens) length = static_cast<int32_t>(random.Int(0, most));
    if (random.Chance(0.5)) std::sort(lens.begin(), lens.end());
    std::vector<uint8_t> prefilling(lens.size() + 1);
    for (uint8_t& flag : prefilling) flag = random.Chance(0.3);
    const int64_t sum = std::accumulate(lens.begin(), lens.end(), int64_t{0});
    const int64_t padded = sum + (random.Chance(0.5) ? random.Int(0, 9) : 0);
    fwdmeta_length_split_args_t args = FWDMETA_LENGTH_SPLIT_ARGS_INITIALIZER;
    args.query_lens = lens.data();
    args.is_prefilling = prefilling.data();
    args.num_reqs = Size(lens);
    args.num_tokens = padded == sum ? FWDMETA_DEFAULT : padded;
    args.threshold = random.Int(1, 5);
    args.require_uniform = random.Chance(0.5);
    args.treat_short_extends_as_decodes = random.Chance(0.5);
    fwdmeta_batch_split_t out = FWDMETA_BATCH_SPLIT_INITIALIZER;
    ASSERT_OK(fwdmeta_split_by_length(&args, &out));
    ASSERT_EQ(SlowSplit(lens, prefilling, padded, args.threshold, args.require_uniform != 0,
                        args.treat_short_extends_as_decodes != 0),
              SplitOf(out))
        << ::testing::PrintToString(lens) << " threshold " << args.threshold << " uniform " << args.require_uniform
        << " short " << args.treat_short_extends_as_decodes;
  }
}

// vLLM's table of reorder_batch (reference 2.6).
TEST(ReorderByLength, VectorsOfVllm) {
  struct Request {
    int32_t query_len, computed, prompt_len;
  };
  const struct {
    std::vector<Request> requests;
    int64_t threshold;
    Order order;
  } rows[] = {
      {{{1, 10, 10}, {1, 20, 20}, {1, 30, 30}}, 1, {{0, 1, 2}, 0}},
      {{{100, 100, 100}, {1, 10, 10}, {200, 200, 200}, {1, 20, 20}}, 1, {{3, 1, 2, 0}, 1}},
      {{{1, 10, 10}, {1, 20, 20}, {100, 100, 100}, {200, 0, 200}}, 1, {{0, 1, 2, 3}, 0}},
      {{{2, 10, 10}, {3, 20, 20}, {5, 30, 30}, {6, 40, 40}}, 4, {{0, 1, 2, 3}, 0}},
      {{{100, 100, 100}, {200, 200, 200}, {1, 10, 10}, {1, 20, 20}}, 1, {{2, 3, 0, 1}, 1}},
      {{{100, 0, 100}, {10, 50, 50}, {1, 10, 10}}, 1, {{2, 1, 0}, 1}},
      {{{100, 0, 100}, {10, 50, 50}, {200, 0, 200}, {20, 75, 75}}, 1, {{3, 1, 2, 0}, 1}},
      {{{1, 20, 20},
        {1, 50, 50},
        {374, 0, 374},
        {300, 20, 20},
        {1, 20, 20},
        {256, 0, 256},
        {1, 5, 5},
        {27, 0, 27},
        {1, 4, 4}},
       1,
       {{0, 1, 6, 8, 4, 3, 2, 7, 5}, 1}},
      {{{100, 0, 100}, {1, 0, 1}, {50, 100, 100}, {1, 10, 10}}, 1, {{3, 2, 0, 1}, 1}},
      {{{1, 0, 1}, {1, 0, 1}, {1, 50, 50}, {200, 0, 200}}, 1, {{2, 1, 0, 3}, 1}},
      {{{1, 100, 100}, {1, 50, 100}, {10, 50, 100}, {100, 0, 100}}, 1, {{0, 1, 2, 3}, 0}},
      {{{100, 0, 100}, {1, 50, 100}, {1, 100, 100}, {10, 50, 100}}, 1, {{2, 1, 3, 0}, 1}},
      {{{2, 100, 100}, {2, 50, 200}, {2, 75, 150}, {2, 200, 200}}, 2, {{0, 3, 2, 1}, 1}},
      {{{5, 100, 100}, {5, 50, 100}, {5, 0, 100}, {10, 50, 100}}, 5, {{0, 1, 3, 2}, 1}},
  };
  for (const auto& row : rows) {
    Ints query_lens, computed, prompt_lens;
    for (const Request& request : row.requests) {
      query_lens.push_back(request.query_len);
      computed.push_back(request.computed);
      prompt_lens.push_back(request.prompt_len);
    }
    EXPECT_EQ(row.order, OrderByLength(query_lens, computed, prompt_lens, row.threshold))
        << ::testing::PrintToString(query_lens);
  }
}

// What both orders promise, from the region of each request; then the one order that vLLM's moves give.
void ExpectMinimalOrder(const Ints& regions, const Order& got) {
  Ints sorted = regions, by_region, places, identity(regions.size()), seen = got.order;
  std::iota(identity.begin(), identity.end(), 0);
  std::sort(sorted.begin(), sorted.end());
  std::sort(seen.begin(), seen.end());
  ASSERT_EQ(identity, seen) << "a permutation";
  for (size_t i = 0; i < regions.size(); ++i) {
    ASSERT_EQ(sorted[i], regions[got.order[i]]) << "regions ascend";
    if (regions[i] == sorted[i]) {
      ASSERT_EQ(static_cast<int32_t>(i), got.order[i]) << "in its place, so not moved";
    } else {
      places.push_back(static_cast<int32_t>(i));
    }
  }
  ASSERT_EQ(got.order != identity ? 1 : 0, got.changed);
  by_region = places;
  std::stable_sort(by_region.begin(), by_region.end(), [&](int32_t a, int32_t b) { return regions[a] < regions[b]; });
  Ints want = identity;
  for (size_t i = 0; i < places.size(); ++i) want[places[i]] = by_region[i];
  ASSERT_EQ(want, got.order);
  if (std::is_sorted(regions.begin(), regions.end())) {
    ASSERT_EQ(0, got.changed) << "an ordered batch is left alone";
  }
}

TEST(ReorderProperties, MinimalMovesOnRandomBatches) {
  Random random(2);
  for (int round = 0; round < 20000; ++round) {
    SCOPED_TRACE(round);
    const size_t reqs = static_cast<size_t>(random.Int(0, random.Chance(0.1) ? 300 : 12));
    Ints encoder(reqs), this_time(reqs), computed(reqs), prompt_lens(reqs), roles(reqs), regions(reqs);
    const int32_t threshold = static_cast<int32_t>(random.Int(1, 4));
    for (size_t i = 0; i < reqs; ++i) {
      this_time[i] = static_cast<int32_t>(random.Int(0, 6));
      const bool prompt = random.Chance(0.5);
      encoder[i] = prompt ? (this_time[i] > 0 ? this_time[i] : 5) : 0;
      roles[i] = this_time[i] == 0 ? 2 : prompt ? 1 : 0;
      computed[i] = static_cast<int32_t>(random.Int(0, 4));
      prompt_lens[i] = static_cast<int32_t>(random.Int(0, 5));
      if (computed[i] == 0) {
        regions[i] = 3;
      } else if (this_time[i] > threshold) {
        regions[i] = 2;
      } else {
        regions[i] = computed[i] < prompt_lens[i] ? 1 : 0;
      }
    }
    const Order by_role = OrderByRole(encoder, this_time);
    ASSERT_NO_FATAL_FAILURE(ExpectMinimalOrder(roles, by_role));
    ASSERT_NO_FATAL_FAILURE(ExpectMinimalOrder(regions, OrderByLength(this_time, computed, prompt_lens, threshold)));
    // The split says where the groups of the order end.
    const auto [decodes, prefills, decode_tokens, prefill_tokens] = ByRole(encoder, this_time);
    int64_t tokens[3] = {}, slots[3] = {};
    for (size_t i = 0; i < reqs; ++i) {
      const int64_t place = static_cast<int64_t>(i);
      const int group = place < decodes ? 0 : place < decodes + prefills ? 1 : 2;
      ASSERT_EQ(group, roles[by_role.order[i]]);
      ++slots[group];
      tokens[group] += this_time[by_role.order[i]];
    }
    ASSERT_EQ(Split(slots[0], slots[1], tokens[0], tokens[1]), Split(decodes, prefills, decode_tokens, prefill_tokens));
    ASSERT_EQ(0, tokens[2]);
  }
}

TEST(LengthErrors, SplitRefusesWithItsNumbers) {
  const Ints lens{1, 2}, negative{1, -2}, large{INT32_MAX, 1};
  const uint8_t flags[2] = {0, 0};
  const auto args_of = [](const Ints& query_lens) {
    fwdmeta_length_split_args_t args = FWDMETA_LENGTH_SPLIT_ARGS_INITIALIZER;
    args.query_lens = query_lens.data();
    args.num_reqs = Size(query_lens);
    return args;
  };
  fwdmeta_batch_split_t out = FWDMETA_BATCH_SPLIT_INITIALIZER;
  out.num_decodes = kCanary;
  const auto refused = [&](fwdmeta_length_split_args_t args, fwdmeta_status_t status, std::vector<int64_t> numbers) {
    EXPECT_STATUS(status, fwdmeta_split_by_length(&args, &out));
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), numbers)) << fwdmeta_last_error();
    EXPECT_EQ(kCanary, out.num_decodes);
  };
  fwdmeta_length_split_args_t args = args_of(lens);
  for (const int64_t bad : {int64_t{-1}, kPastInt32, FWDMETA_DEFAULT}) {
    (args = args_of(lens)).num_reqs = bad;
    refused(args, FWDMETA_INVALID_ARGUMENT, {bad});
    (args = args_of(lens)).threshold = bad;
    refused(args, FWDMETA_INVALID_ARGUMENT, {bad});
    if (bad == FWDMETA_DEFAULT) continue;
    (args = args_of(lens)).num_tokens = bad;
    refused(args, FWDMETA_INVALID_ARGUMENT, {bad});
  }
  (args = args_of(lens)).threshold = 0;
  refused(args, FWDMETA_INVALID_ARGUMENT, {0, 1});
  (args = args_of(lens)).num_tokens = 2;
  refused(args, FWDMETA_INVALID_ARGUMENT, {2, 3});
  (args = args_of(lens)).require_uniform = 2;
  refused(args, FWDMETA_INVALID_ARGUMENT, {2});
  (args = args_of(lens)).treat_short_extends_as_decodes = -1;
  refused(args, FWDMETA_INVALID_ARGUMENT, {-1});
  (args = args_of(lens)).query_lens = nullptr;
  refused(args, FWDMETA_INVALID_ARGUMENT, {2});
  (args = args_of(lens)).treat_short_extends_as_decodes = 0;
  refused(args, FWDMETA_INVALID_ARGUMENT, {2});
  refused(args_of(negative), FWDMETA_INVALID_BATCH, {1, -2});
  refused(args_of(large), FWDMETA_INVALID_BATCH, {2147483648});
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_split_by_length(nullptr, &out));
  args = args_of(lens);
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_split_by_length(&args, nullptr));
  args.struct_size = 0;
  refused(args, FWDMETA_INVALID_ARGUMENT, {0});
  struct {
    fwdmeta_length_split_args_t args;
    int64_t tail;
  } longer = {args_of(lens), 1};
  longer.args.struct_size = sizeof longer;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_split_by_length(&longer.args, &out));
  longer.tail = 0;
  longer.args.is_prefilling = flags;
  EXPECT_OK(fwdmeta_split_by_length(&longer.args, &out));
  // An older caller's struct ends before `threshold`, whose default is 1.
  args = args_of(lens);
  args.struct_size = offsetof(fwdmeta_length_split_args_t, threshold);
  args.threshold = 99;
  EXPECT_OK(fwdmeta_split_by_length(&args, &out));
  EXPECT_EQ(Split(1, 1, 1, 2), SplitOf(out));
}

TEST(LengthErrors, ReorderRefusesWithItsNumbers) {
  const Ints good{1, 2}, negative{1, -2};
  Ints order(2, kCanary);
  int32_t changed = kCanary;
  const auto call = [&](const Ints* lens, const Ints* computed, const Ints* prompts, int64_t reqs, int64_t threshold) {
    const auto data = [](const Ints* values) { return values == nullptr ? nullptr : values->data(); };
    return fwdmeta_reorder_by_length(data(lens), data(computed), data(prompts), reqs, threshold, order.data(),
                                     &changed);
  };
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, call(nullptr, &good, &good, 2, 1));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, call(&good, nullptr, &good, 2, 1));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, call(&good, &good, nullptr, 2, 1));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, call(&good, &good, &good, -1, 1));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, call(&good, &good, &good, kPastInt32, 1));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, call(&good, &good, &good, 2, 0));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, call(&good, &good, &good, 2, kPastInt32));
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {kPastInt32})) << fwdmeta_last_error();
  EXPECT_STATUS(FWDMETA_INVALID_BATCH, call(&negative, &good, &good, 2, 1));
  EXPECT_STATUS(FWDMETA_INVALID_BATCH, call(&good, &negative, &good, 2, 1));
  EXPECT_STATUS(FWDMETA_INVALID_BATCH, call(&good, &good, &negative, 2, 1));
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {1, -2})) << fwdmeta_last_error();
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT,
                fwdmeta_reorder_by_length(good.data(), good.data(), good.data(), 2, 1, nullptr, &changed));
  EXPECT_EQ(Ints(2, kCanary), order);
  EXPECT_EQ(kCanary, changed);
  EXPECT_OK(fwdmeta_reorder_by_length(nullptr, nullptr, nullptr, 0, 1, nullptr, nullptr));
}

// ---------------------------------------------------------------------------------------- local attention --

struct Local {
  Ints query_lens, seq_lens, table, request;
};

// `table` of one width; rows behind `row_lengths` where given.
Local LocalAttention(const Ints& query_lens, const Ints& seq_lens, int64_t chunk, int64_t block_size, const Ints& table,
                     int64_t width, const Ints* row_lengths = nullptr) {
  fwdmeta_local_attention_args_t args = FWDMETA_LOCAL_ATTENTION_ARGS_INITIALIZER;
  args.query_lens = query_lens.data();
  args.seq_lens = seq_lens.data();
  args.num_reqs = Size(query_lens);
  args.attn_chunk_size = chunk;
  args.block_size = block_size;
  args.block_table = {table.data(), width, width, row_lengths == nullptr ? nullptr : row_lengths->data()};
  int64_t count = kCanary;
  EXPECT_OK(fwdmeta_local_attention(&args, 0, nullptr, nullptr, nullptr, nullptr, &count));
  const size_t rows = static_cast<size_t>(count), columns = static_cast<size_t>(chunk / block_size);
  Local out{Ints(rows + 1, kCanary), Ints(rows + 1, kCanary), Ints(rows * columns + 1, kCanary),
            Ints(rows + 1, kCanary)};
  int64_t again = kCanary;
  EXPECT_OK(fwdmeta_local_attention(&args, count, out.query_lens.data(), out.seq_lens.data(), out.table.data(),
                                    out.request.data(), &again));
  EXPECT_EQ(count, again);
  for (Ints* array : {&out.query_lens, &out.seq_lens, &out.table, &out.request}) {
    EXPECT_EQ(kCanary, array->back()) << "written past the count";
    array->pop_back();
  }
  return out;
}

Ints Arange(int64_t count) {
  Ints values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

// vLLM's table of local attention (reference 2.7), over tables that count on.
TEST(LocalAttention, VectorsOfVllm) {
  const struct {
    int64_t chunk, block_size;
    Ints query_lens, seq_lens;
    int64_t width;
    Ints virtual_query_lens, virtual_seq_lens, table, request;
  } rows[] = {
      {4,
       2,
       {4, 10, 5},
       {6, 17, 9},
       9,
       {2, 2, 1, 4, 4, 1, 4, 1},
       {4, 2, 4, 4, 4, 1, 4, 1},
       {0, 1, 2, 3, 11, 12, 13, 14, 15, 16, 17, 17, 20, 21, 22, 23},
       {0, 0, 1, 1, 1, 1, 2, 2}},
      {4, 2, {8}, {12}, 6, {4, 4}, {4, 4}, {2, 3, 4, 5}, {0, 0}},
      {4, 2, {7}, {10}, 5, {1, 4, 2}, {4, 4, 2}, {0, 1, 2, 3, 4, 4}, {0, 0, 0}},
      {10, 2, {4}, {6}, 3, {4}, {6}, {0, 1, 2, 2, 2}, {0}},
      {4, 4, {6, 6}, {8, 8}, 2, {2, 4, 2, 4}, {4, 4, 4, 4}, {0, 1, 2, 3}, {0, 0, 1, 1}},
      {4, 2, {1}, {5}, 3, {1}, {1}, {2, 2}, {0}},
      // A padded request gives none, where vLLM has one that reads column -2.
      {4, 2, {0}, {0}, 3, {}, {}, {}, {}},
      {4, 2, {0, 1, 0}, {7, 5, 0}, 3, {1}, {1}, {5, 5}, {1}},
      // The longest numbers.
      {INT32_MAX, INT32_MAX, {INT32_MAX}, {INT32_MAX}, 1, {INT32_MAX}, {INT32_MAX}, {0}, {0}},
      {1 << 30, 1 << 30, {1}, {INT32_MAX}, 2, {1}, {(1 << 30) - 1}, {1}, {0}},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(::testing::PrintToString(row.query_lens));
    const Local got = LocalAttention(row.query_lens, row.seq_lens, row.chunk, row.block_size,
                                     Arange(row.width * Size(row.query_lens)), row.width);
    EXPECT_EQ(row.virtual_query_lens, got.query_lens);
    EXPECT_EQ(row.virtual_seq_lens, got.seq_lens);
    EXPECT_EQ(row.table, got.table);
    EXPECT_EQ(row.request, got.request);
  }
}

TEST(LocalAttention, ColumnsAreClampedToTheRow) {
  const Ints lengths{1, 0, 9};
  const Ints table{5, 99, 99, 98, 98, 98, 7, 8, 9};
  const Local got = LocalAttention({1, 1, 1}, {6, 3, 5}, 4, 2, table, 3, &lengths);
  EXPECT_EQ((Ints{5, 5, -1, -1, 9, 9}), got.table) << "a row without pages has none to repeat";
  EXPECT_EQ((Ints{-1, -1}), LocalAttention({1}, {3}, 4, 2, table, 0).table);
}

// Token by token: a token sees the positions of its own chunk up to itself, on the pages of its request's row.
TEST(LocalAttention, VirtualRequestsSeeWhatTheirTokensSee) {
  Random random(3);
  for (int round = 0; round < 10000; ++round) {
    SCOPED_TRACE(round);
    const int64_t block_size = random.Pick({1, 2, 4, 16});
    const int64_t columns = random.Int(1, 5), chunk = block_size * columns;
    const size_t reqs = static_cast<size_t>(random.Int(0, 6));
    Ints query_lens, seq_lens;
    for (size_t i = 0; i < reqs; ++i) {
      query_lens.push_back(static_cast<int32_t>(random.Chance(0.2) ? 0 : random.Int(1, 40)));
      seq_lens.push_back(query_lens.back() + static_cast<int32_t>(random.Int(0, 60)));
    }
    const int64_t width = (100 + block_size - 1) / block_size;
    Ints table(reqs * static_cast<size_t>(width) + 1);
    for (int32_t& page : table) page = static_cast<int32_t>(random.Int(0, 1 << 20));
    const Local got = LocalAttention(query_lens, seq_lens, chunk, block_size, table, width);
    size_t row = 0;
    for (size_t i = 0; i < reqs; ++i) {
      int32_t sum = 0;
      const int32_t begin = seq_lens[i] - query_lens[i];
      int32_t in_row = 0;
      for (int32_t p = begin; p < seq_lens[i]; ++p) {
        const int64_t first_seen = p / chunk * chunk;
        if (p > begin && p % chunk == 0) {
          ASSERT_EQ(in_row, got.query_lens[row++]);
          in_row = 0;
        }
        ASSERT_LT(row, got.query_lens.size());
        ASSERT_EQ(static_cast<int32_t>(i), got.request[row]);
        // Causal: the last of q queries over k keys sees all k, the one before k - 1, and so on.
        const int64_t seen = got.seq_lens[row] - (got.query_lens[row] - 1 - in_row);
        ASSERT_EQ(p - first_seen + 1, seen);
        for (int64_t key = 0; key < seen; ++key) {
          ASSERT_EQ(table[i * static_cast<size_t>(width) + static_cast<size_t>((first_seen + key) / block_size)],
                    got.table[row * static_cast<size_t>(columns) + static_cast<size_t>(key / block_size)]);
        }
        ++in_row;
        ++sum;
      }
      ASSERT_EQ(query_lens[i], sum);
      if (in_row > 0) {
        ASSERT_EQ(in_row, got.query_lens[row++]);
      }
    }
    ASSERT_EQ(row, got.query_lens.size());
    ASSERT_EQ(std::accumulate(query_lens.begin(), query_lens.end(), 0),
              std::accumulate(got.query_lens.begin(), got.query_lens.end(), 0));
  }
}

struct LocalArgs {
  Ints query_lens{4, 3}, seq_lens{6, 3}, table{1, 2, 3, 4, 5, 6};
  fwdmeta_local_attention_args_t args = FWDMETA_LOCAL_ATTENTION_ARGS_INITIALIZER;
  LocalArgs() {
    args.query_lens = query_lens.data();
    args.seq_lens = seq_lens.data();
    args.num_reqs = 2;
    args.attn_chunk_size = 4;
    args.block_size = 2;
    args.block_table = {table.data(), 3, 3, nullptr};
  }
};

TEST(LocalAttention, CapacityAndCount) {
  LocalArgs in;
  Ints lens(4, kCanary);
  int64_t count = kCanary;
  for (const int64_t capacity : {0, 1, 2}) {
    count = kCanary;
    EXPECT_STATUS(FWDMETA_CAPACITY_EXCEEDED,
                  fwdmeta_local_attention(&in.args, capacity, lens.data(), nullptr, nullptr, nullptr, &count));
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {3, capacity})) << fwdmeta_last_error();
    EXPECT_EQ(3, count);
    EXPECT_EQ(Ints(4, kCanary), lens);
  }
  EXPECT_OK(fwdmeta_local_attention(&in.args, 4, lens.data(), nullptr, nullptr, nullptr, &count));
  EXPECT_EQ((Ints{2, 2, 3, kCanary}), lens);
  // Without a table all but the tables can be had.
  in.args.block_table = FWDMETA_ROWS_INITIALIZER;
  Ints request(3);
  EXPECT_OK(fwdmeta_local_attention(&in.args, 3, nullptr, lens.data(), nullptr, request.data(), &count));
  EXPECT_EQ((Ints{4, 2, 3, kCanary}), lens);
  EXPECT_EQ((Ints{0, 0, 1}), request);
  Ints table(6, kCanary);
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT,
                fwdmeta_local_attention(&in.args, 3, nullptr, nullptr, table.data(), nullptr, &count));
  // No request at all.
  const fwdmeta_local_attention_args_t none = [&] {
    fwdmeta_local_attention_args_t args = FWDMETA_LOCAL_ATTENTION_ARGS_INITIALIZER;
    args.attn_chunk_size = args.block_size = 1;
    return args;
  }();
  EXPECT_OK(fwdmeta_local_attention(&none, 0, lens.data(), nullptr, nullptr, nullptr, &count));
  EXPECT_EQ(0, count);
}

TEST(LocalAttention, RefusesWithItsNumbers) {
  const struct {
    const char* name;
    void (*change)(LocalArgs*);
    fwdmeta_status_t status;
    std::vector<int64_t> numbers;
  } rows[] = {
      {"num_reqs -1", [](LocalArgs* a) { a->args.num_reqs = -1; }, FWDMETA_INVALID_ARGUMENT, {-1}},
      {"num_reqs past int32",
       [](LocalArgs* a) { a->args.num_reqs = kPastInt32; },
       FWDMETA_INVALID_ARGUMENT,
       {kPastInt32}},
      {"chunk 0", [](LocalArgs* a) { a->args.attn_chunk_size = 0; }, FWDMETA_INVALID_ARGUMENT, {0, 1}},
      {"chunk past int32",
       [](LocalArgs* a) { a->args.attn_chunk_size = kPastInt32; },
       FWDMETA_INVALID_ARGUMENT,
       {kPastInt32}},
      {"block 0", [](LocalArgs* a) { a->args.block_size = 0; }, FWDMETA_INVALID_ARGUMENT, {0, 1}},
      {"no multiple", [](LocalArgs* a) { a->args.block_size = 3; }, FWDMETA_INVALID_ARGUMENT, {4, 3}},
      {"no query_lens", [](LocalArgs* a) { a->args.query_lens = nullptr; }, FWDMETA_INVALID_ARGUMENT, {2}},
      {"no seq_lens", [](LocalArgs* a) { a->args.seq_lens = nullptr; }, FWDMETA_INVALID_ARGUMENT, {2}},
      {"width", [](LocalArgs* a) { a->args.block_table.width = -1; }, FWDMETA_INVALID_ARGUMENT, {-1}},
      {"stride", [](LocalArgs* a) { a->args.block_table.row_stride = 2; }, FWDMETA_INVALID_ARGUMENT, {2, 3}},
      {"negative", [](LocalArgs* a) { a->query_lens[1] = -1; }, FWDMETA_INVALID_BATCH, {1, -1}},
      {"seq_len < query_len", [](LocalArgs* a) { a->seq_lens[1] = 2; }, FWDMETA_INVALID_BATCH, {1, 2, 3}},
      {"sum", [](LocalArgs* a) { a->query_lens[0] = a->seq_lens[0] = INT32_MAX; }, FWDMETA_INVALID_BATCH, {2147483650}},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    LocalArgs in;
    row.change(&in);
    int32_t lens[3] = {kCanary, kCanary, kCanary};
    int64_t count = kCanary;
    EXPECT_STATUS(row.status, fwdmeta_local_attention(&in.args, 3, lens, nullptr, nullptr, nullptr, &count));
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), row.numbers)) << fwdmeta_last_error();
    EXPECT_EQ(kCanary, lens[0]);
    EXPECT_EQ(kCanary, count);
  }
  LocalArgs in;
  int64_t count;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT,
                fwdmeta_local_attention(nullptr, 0, nullptr, nullptr, nullptr, nullptr, &count));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT,
                fwdmeta_local_attention(&in.args, 0, nullptr, nullptr, nullptr, nullptr, nullptr));
  for (const int64_t capacity : {int64_t{-1}, kPastInt32}) {
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT,
                  fwdmeta_local_attention(&in.args, capacity, nullptr, nullptr, nullptr, nullptr, &count));
  }
  in.args.struct_size = 0;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT,
                fwdmeta_local_attention(&in.args, 0, nullptr, nullptr, nullptr, nullptr, &count));
  // An older caller's struct ends before the table.
  in.args.struct_size = offsetof(fwdmeta_local_attention_args_t, block_table);
  in.args.block_table.width = -1;
  EXPECT_OK(fwdmeta_local_attention(&in.args, 0, nullptr, nullptr, nullptr, nullptr, &count));
  EXPECT_EQ(3, count);
}

// -------------------------------------------------------------------------------------------- page lists --

struct Pages {
  Ints indptr, last_page_len;
};

Pages PagesOf(const Ints& seq_lens, int64_t page_size) {
  Pages pages{Ints(seq_lens.size() + 2, kCanary), Ints(seq_lens.size() + 1, kCanary)};
  EXPECT_OK(fwdmeta_paged_indptr(seq_lens.data(), Size(seq_lens), page_size, pages.indptr.data(),
                                 pages.last_page_len.data()));
  EXPECT_EQ(kCanary, pages.indptr.back());
  EXPECT_EQ(kCanary, pages.last_page_len.back());
  pages.indptr.pop_back();
  pages.last_page_len.pop_back();
  return pages;
}

TEST(PagedIndptr, VectorsOfReferenceAndBugs) {
  const struct {
    const char* name;
    Ints seq_lens;
    int64_t page_size;
    Ints indptr, last_page_len;
  } rows[] = {
      {"FlashInfer's last page", {0, 1, 15, 16, 17, 32}, 16, {0, 0, 1, 2, 3, 5, 7}, {0, 1, 15, 16, 1, 16}},
      {"B19, flashinfer#725", {1, 2, 3, 0}, 2, {0, 1, 2, 4, 4}, {1, 2, 1, 0}},
      {"B20, flashinfer#2079", {100, 96, 97}, 16, {0, 7, 13, 20}, {4, 16, 1}},
      {"B41, sglang#22257", {3, 0, 2}, 1, {0, 3, 3, 5}, {1, 0, 1}},
      {"no sequence", {}, 16, {0}, {}},
      {"the longest", {INT32_MAX}, 1, {0, INT32_MAX}, {1}},
      {"one page", {INT32_MAX, 1}, INT32_MAX, {0, 1, 2}, {INT32_MAX, 1}},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    const Pages pages = PagesOf(row.seq_lens, row.page_size);
    EXPECT_EQ(row.indptr, pages.indptr);
    EXPECT_EQ(row.last_page_len, pages.last_page_len);
  }
}

TEST(PagedIndptr, PagesHoldTheTokensOfRandomBatches) {
  Random random(4);
  for (int round = 0; round < 5000; ++round) {
    Ints seq_lens(static_cast<size_t>(random.Int(0, 10)));
    for (int32_t& length : seq_lens) length = static_cast<int32_t>(random.Int(0, random.Pick({1, 20, 300})));
    const int64_t page_size = random.Int(1, 40);
    const Pages pages = PagesOf(seq_lens, page_size);
    int32_t total = 0;
    for (size_t i = 0; i < seq_lens.size(); ++i) {
      int64_t in_page = 0;
      ASSERT_EQ(total, pages.indptr[i]);
      for (int32_t token = 0; token < seq_lens[i]; ++token) {
        if (in_page == 0 || in_page == page_size) ++total, in_page = 0;
        ++in_page;
      }
      ASSERT_EQ(in_page, pages.last_page_len[i]);
    }
    ASSERT_EQ(total, pages.indptr.back());
  }
}

TEST(PagedIndptr, Errors) {
  const Ints lens{1, 2}, negative{1, -2}, large{INT32_MAX, 1};
  Ints indptr(3, kCanary), last(2, kCanary);
  EXPECT_STATUS(FWDMETA_INVALID_BATCH, fwdmeta_paged_indptr(negative.data(), 2, 4, indptr.data(), last.data()));
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {1, -2})) << fwdmeta_last_error();
  EXPECT_STATUS(FWDMETA_INVALID_BATCH, fwdmeta_paged_indptr(large.data(), 2, 1, indptr.data(), last.data()));
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {2147483648})) << fwdmeta_last_error();
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_paged_indptr(nullptr, 2, 4, indptr.data(), last.data()));
  for (const int64_t bad : {int64_t{-1}, kPastInt32}) {
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_paged_indptr(lens.data(), bad, 4, indptr.data(), last.data()));
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_paged_indptr(lens.data(), 2, bad, indptr.data(), last.data()));
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {bad})) << fwdmeta_last_error();
  }
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_paged_indptr(lens.data(), 2, 0, indptr.data(), last.data()));
  EXPECT_EQ(Ints(3, kCanary), indptr);
  EXPECT_EQ(Ints(2, kCanary), last);
  EXPECT_OK(fwdmeta_paged_indptr(large.data(), 2, 2, indptr.data(), nullptr));
  EXPECT_EQ((Ints{0, 1 << 30, (1 << 30) + 1}), indptr);
  EXPECT_OK(fwdmeta_paged_indptr(lens.data(), 2, 4, nullptr, last.data()));
  EXPECT_EQ(lens, last);
  EXPECT_OK(fwdmeta_paged_indptr(lens.data(), 2, 4, nullptr, nullptr));
  EXPECT_OK(fwdmeta_paged_indptr(nullptr, 0, 4, indptr.data(), nullptr));
  EXPECT_EQ(0, indptr[0]);
}

Ints Expanded(const Ints& blocks, int64_t block_size, int64_t kernel_block_size) {
  Ints out(blocks.size() * static_cast<size_t>(block_size / kernel_block_size) + 1, kCanary);
  EXPECT_OK(fwdmeta_expand_block_table(blocks.data(), Size(blocks), block_size, kernel_block_size, out.data()));
  EXPECT_EQ(kCanary, out.back());
  out.pop_back();
  return out;
}

TEST(ExpandBlockTable, VectorsOfReference) {
  const struct {
    Ints blocks;
    int64_t block_size, kernel_block_size;
    Ints expanded;
  } rows[] = {
      {{2, 5}, 32, 16, {4, 5, 10, 11}},
      // Staged groups of (16, 16), (32, 16), (8, 8).
      {{1, 2}, 16, 16, {1, 2}},
      {{10, 11}, 32, 16, {20, 21, 22, 23}},
      {{3}, 16, 16, {3}},
      {{12}, 32, 16, {24, 25}},
      {{5, 6}, 8, 8, {5, 6}},
      {{1, 2, 7}, 16, 16, {1, 2, 7}},
      {{10, 11, 13}, 32, 16, {20, 21, 22, 23, 26, 27}},
      {{}, 32, 16, {}},
      {{-1, 3, INT32_MIN, 0}, 64, 32, {-1, -1, 6, 7, -1, -1, 0, 1}},
      {{(1 << 30) - 1}, 2, 1, {INT32_MAX - 1, INT32_MAX}},
      {{INT32_MAX}, INT32_MAX, INT32_MAX, {INT32_MAX}},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(row.expanded, Expanded(row.blocks, row.block_size, row.kernel_block_size))
        << ::testing::PrintToString(row.blocks);
  }
  // The slots that the first row's table gives.
  const Ints positions{0, 15, 16, 31, 32, 47, 48, 63}, slots{64, 79, 80, 95, 160, 175, 176, 191};
  for (size_t i = 0; i < positions.size(); ++i) {
    EXPECT_EQ(slots[i], rows[0].expanded[static_cast<size_t>(positions[i] / 16)] * 16 + positions[i] % 16);
  }
}

// vllm#27547: either view of the pool gives the same slot.
TEST(ExpandBlockTable, B34_ManagerBlocksAsKernelPages) {
  const Ints blocks{3, 1};
  const Ints kernel = Expanded(blocks, 128, 64);
  EXPECT_EQ((Ints{6, 7, 2, 3}), kernel);
  EXPECT_EQ(454, kernel[70 / 64] * 64 + 70 % 64);
  for (int32_t position = 0; position < 256; ++position) {
    EXPECT_EQ(blocks[static_cast<size_t>(position / 128)] * 128 + position % 128,
              kernel[static_cast<size_t>(position / 64)] * 64 + position % 64);
  }
}

TEST(ExpandBlockTable, Errors) {
  const Ints blocks{1, 1 << 30};
  Ints out(8, kCanary);
  EXPECT_STATUS(FWDMETA_OUT_OF_RANGE, fwdmeta_expand_block_table(blocks.data(), 2, 2, 1, out.data()));
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {1, 1 << 30, 2147483649})) << fwdmeta_last_error();
  const Ints last{INT32_MAX};
  EXPECT_STATUS(FWDMETA_OUT_OF_RANGE, fwdmeta_expand_block_table(last.data(), 1, INT32_MAX, 1, out.data()));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_expand_block_table(blocks.data(), 2, 64, 48, out.data()));
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {64, 48})) << fwdmeta_last_error();
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_expand_block_table(blocks.data(), 2, 16, 32, out.data()));
  for (const int64_t bad : {int64_t{-1}, kPastInt32}) {
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_expand_block_table(blocks.data(), bad, 2, 1, out.data()));
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_expand_block_table(blocks.data(), 2, bad, 1, out.data()));
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_expand_block_table(blocks.data(), 2, 2, bad, out.data()));
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {bad})) << fwdmeta_last_error();
  }
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_expand_block_table(blocks.data(), 2, 0, 1, out.data()));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_expand_block_table(blocks.data(), 2, 2, 0, out.data()));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_expand_block_table(nullptr, 2, 2, 1, out.data()));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_expand_block_table(blocks.data(), 2, 2, 1, nullptr));
  EXPECT_EQ(Ints(8, kCanary), out);
  EXPECT_OK(fwdmeta_expand_block_table(nullptr, 0, 2, 1, nullptr));
}

}  // namespace
}  // namespace fwdmeta_test
