// Forward-context contract §5: the plan of microbatch slices, the lengths in each, and conflicts between them.
#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "harness.h"
#include "random_batch.h"

namespace fwdmeta_test {
namespace {

using Ints = std::vector<int32_t>;

constexpr int32_t kCanary = -77;

// A step, and how it is to be cut.
struct Step {
  Ints query_lens, seq_lens;
  int64_t num_slices = 2;
  int64_t split = FWDMETA_DEFAULT, num_padded_tokens = FWDMETA_DEFAULT, num_padded_reqs = FWDMETA_DEFAULT;

  int32_t num_reqs() const { return static_cast<int32_t>(query_lens.size()); }
  int32_t num_tokens() const { return std::accumulate(query_lens.begin(), query_lens.end(), 0); }
  int32_t padded_tokens() const {
    return num_padded_tokens == FWDMETA_DEFAULT ? num_tokens() : static_cast<int32_t>(num_padded_tokens);
  }
  int32_t padded_reqs() const {
    return num_padded_reqs == FWDMETA_DEFAULT ? num_reqs() : static_cast<int32_t>(num_padded_reqs);
  }
  fwdmeta_slice_args_t args() const {
    fwdmeta_slice_args_t args = FWDMETA_SLICE_ARGS_INITIALIZER;
    args.query_lens = query_lens.data();
    args.seq_lens = seq_lens.data();
    args.num_reqs = num_reqs();
    args.num_padded_tokens = num_padded_tokens;
    args.num_padded_reqs = num_padded_reqs;
    args.num_slices = num_slices;
    args.split = split;
    return args;
  }
};

// A step of which only the lengths of this step matter.
Step Queries(const Ints& query_lens) { return {query_lens, query_lens}; }

struct Lengths {
  Ints query_start_loc, seq_lens, computed;
};

bool operator==(const Lengths& a, const Lengths& b) {
  return a.query_start_loc == b.query_start_loc && a.seq_lens == b.seq_lens && a.computed == b.computed;
}

std::vector<fwdmeta_slice_t> Plan(const Step& step) {
  const fwdmeta_slice_args_t args = step.args();
  fwdmeta_slice_t canary;
  std::memset(&canary, 0x5a, sizeof canary);
  std::vector<fwdmeta_slice_t> slices(static_cast<size_t>(step.num_slices) + 1, canary);
  EXPECT_OK(fwdmeta_plan_slices(&args, slices.data()));
  EXPECT_EQ(0, std::memcmp(&slices.back(), &canary, sizeof canary)) << "written past num_slices";
  slices.pop_back();
  return slices;
}

Lengths LengthsOf(const Step& step, const fwdmeta_slice_t& slice) {
  const fwdmeta_slice_args_t args = step.args();
  const size_t rows = static_cast<size_t>(slice.end_req - slice.first_req);
  Lengths lengths{Ints(rows + 2, kCanary), Ints(rows + 1, kCanary), Ints(rows + 1, kCanary)};
  EXPECT_OK(fwdmeta_slice_lengths(&args, &slice, lengths.query_start_loc.data(), lengths.seq_lens.data(),
                                  lengths.computed.data()));
  for (Ints* array : {&lengths.query_start_loc, &lengths.seq_lens, &lengths.computed}) {
    EXPECT_EQ(kCanary, array->back()) << "written past the slice's requests";
    array->pop_back();
  }
  return lengths;
}

Lengths LengthsOf(const Step& step, size_t slice) { return LengthsOf(step, Plan(step)[slice]); }

// first_req, end_req, first_token, end_token
using Range = std::tuple<int32_t, int32_t, int32_t, int32_t>;

std::vector<Range> Ranges(const Step& step) {
  std::vector<Range> ranges;
  for (const fwdmeta_slice_t& slice : Plan(step)) {
    ranges.emplace_back(slice.first_req, slice.end_req, slice.first_token, slice.end_token);
  }
  return ranges;
}

// ------------------------------------------------------------------------------------------------- vectors --

// vLLM's table of slices (reference 2.5).
TEST(SlicePlan, VectorsOfVllm) {
  struct Row {
    Ints query_lens;
    int64_t padded_tokens, padded_reqs, num_slices, split;
    std::vector<Range> ranges;
  };
  constexpr int64_t kEven = FWDMETA_DEFAULT;
  const Row rows[] = {
      {Ints(8, 1), 8, 8, 2, kEven, {{0, 4, 0, 4}, {4, 8, 4, 8}}},
      {Ints(7, 1), 8, 8, 2, kEven, {{0, 4, 0, 4}, {4, 8, 4, 8}}},
      {Ints(7, 1), 8, 7, 2, kEven, {{0, 4, 0, 4}, {4, 7, 4, 8}}},
      {{8, 8}, 16, 2, 2, 12, {{0, 2, 0, 12}, {1, 2, 12, 16}}},
      {{8, 8}, 16, 2, 2, 4, {{0, 1, 0, 4}, {0, 2, 4, 16}}},
      {{10, 6}, 16, 2, 2, kEven, {{0, 1, 0, 8}, {0, 2, 8, 16}}},
      {{16}, 16, 1, 2, kEven, {{0, 1, 0, 8}, {0, 1, 8, 16}}},
      {{3, 5}, 12, 2, 3, kEven, {{0, 2, 0, 4}, {1, 2, 4, 8}, {2, 2, 8, 12}}},
  };
  for (const Row& row : rows) {
    Step step = Queries(row.query_lens);
    step.num_padded_tokens = row.padded_tokens;
    step.num_padded_reqs = row.padded_reqs;
    step.num_slices = row.num_slices;
    step.split = row.split;
    SCOPED_TRACE(::testing::PrintToString(row.query_lens));
    EXPECT_EQ(row.ranges, Ranges(step));
  }
}

TEST(SlicePlan, SaysWhatIsRealAndWhatIsEmpty) {
  Step step = Queries(Ints(7, 1));
  step.num_padded_tokens = step.num_padded_reqs = 8;
  std::vector<fwdmeta_slice_t> slices = Plan(step);
  EXPECT_EQ(4, slices[0].num_tokens);
  EXPECT_EQ(3, slices[1].num_tokens);
  EXPECT_EQ(0, slices[0].empty);
  EXPECT_EQ(0, slices[1].empty);
  // Padding does not fill a slice: [3,5] padded to 12 in three.
  step = Queries({3, 5});
  step.num_padded_tokens = 12;
  step.num_slices = 3;
  slices = Plan(step);
  EXPECT_EQ(0, slices[1].empty);
  EXPECT_EQ(1, slices[2].empty);
  EXPECT_EQ(0, slices[2].num_tokens);
  EXPECT_EQ((Ints{0}), LengthsOf(step, slices[2]).query_start_loc);
}

// afd-plugin#99, #100, and vLLM's guard that (n 1, N 1, k 2) slips past: fewer tokens than slices.
TEST(SlicePlan, FewerTokensThanSlicesGoToTheLast) {
  Step step = Queries({1});
  EXPECT_EQ((std::vector<Range>{{0, 0, 0, 0}, {0, 1, 0, 1}}), Ranges(step));
  EXPECT_EQ(1, Plan(step)[0].empty);
  EXPECT_EQ(0, Plan(step)[1].empty);
  step = Queries({2, 1});
  step.num_slices = 4;
  EXPECT_EQ((std::vector<Range>{{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 2, 0, 3}}), Ranges(step));
}

// A split that leaves nothing: slices end at n, never behind it, and the last has all padding.
TEST(SlicePlan, CutsStopAtTheLastToken) {
  Step step = Queries({3, 2});
  step.num_slices = 4;
  step.split = 4;
  step.num_padded_tokens = 16;
  step.num_padded_reqs = 6;
  EXPECT_EQ((std::vector<Range>{{0, 2, 0, 4}, {1, 2, 4, 5}, {2, 2, 5, 5}, {2, 6, 5, 16}}), Ranges(step));
  EXPECT_EQ((Lengths{{0, 0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}), LengthsOf(step, 3));
  step.split = INT32_MAX;  // j * split is past int32
  step.num_slices = FWDMETA_MAX_SLICES;
  const std::vector<Range> ranges = Ranges(step);
  EXPECT_EQ(Range(0, 2, 0, 5), ranges[0]);
  EXPECT_EQ(Range(2, 2, 5, 5), ranges[1]);
  EXPECT_EQ(Range(2, 6, 5, 16), ranges[15]);
}

TEST(SlicePlan, ARequestWithoutTokensAtACutBelongsToNeitherSlice) {
  Step step{{4, 0, 0, 4}, {9, 7, 6, 20}};
  EXPECT_EQ((std::vector<Range>{{0, 1, 0, 4}, {3, 4, 4, 8}}), Ranges(step));
  // Within a slice it stays, with its length and no token.
  step = {{2, 0, 2, 4}, {9, 7, 6, 20}};
  EXPECT_EQ((std::vector<Range>{{0, 3, 0, 4}, {3, 4, 4, 8}}), Ranges(step));
  EXPECT_EQ((Lengths{{0, 2, 2, 4}, {9, 7, 6}, {7, 7, 4}}), LengthsOf(step, 0));
  // At the step's end it is in the last slice, whose requests go to P. At its begin it is before the first.
  step = {{0, 4, 4, 0}, {3, 9, 20, 5}};
  EXPECT_EQ((std::vector<Range>{{1, 2, 0, 4}, {2, 4, 4, 8}}), Ranges(step));
  EXPECT_EQ((Lengths{{0, 4, 4}, {20, 5}, {16, 5}}), LengthsOf(step, 1));
}

TEST(SlicePlan, AStepWithoutTokens) {
  for (const Ints& idle : {Ints{}, Ints{0, 0, 0}}) {
    Step step{idle, idle};
    step.num_slices = 3;
    const int32_t reqs = step.num_reqs();
    EXPECT_EQ((std::vector<Range>{{reqs, reqs, 0, 0}, {reqs, reqs, 0, 0}, {reqs, reqs, 0, 0}}), Ranges(step));
    step.num_padded_tokens = 7;
    step.num_padded_reqs = 5;
    EXPECT_EQ((std::vector<Range>{{reqs, reqs, 0, 0}, {reqs, reqs, 0, 0}, {reqs, 5, 0, 7}}), Ranges(step));
    for (const fwdmeta_slice_t& slice : Plan(step)) {
      EXPECT_EQ(1, slice.empty);
      const Lengths lengths = LengthsOf(step, slice);
      EXPECT_EQ(Ints(lengths.seq_lens.size() + 1, 0), lengths.query_start_loc);
    }
  }
  // Null arrays of no requests.
  fwdmeta_slice_args_t args = FWDMETA_SLICE_ARGS_INITIALIZER;
  fwdmeta_slice_t slice;
  EXPECT_OK(fwdmeta_plan_slices(&args, &slice));
  EXPECT_EQ(1, slice.empty);
  EXPECT_EQ(0, slice.end_req);
}

// vLLM's vectors of sliced offsets and lengths (reference 2.5). A slice that ends within the step there is the last one
// of a shorter step here, as slices of one plan have one size.
TEST(SliceLengths, VectorsOfVllm) {
  struct Row {
    const char* name;
    Ints query_lens, seq_lens;
    int64_t num_slices, split;
    size_t slice;
    Ints query_start_loc, seqs;
  };
  const Ints seqs5{105, 107, 108, 115, 115};
  const Row rows[] = {
      {"(1,3)", {5, 7, 8}, {105, 107, 108}, 2, 5, 1, {0, 7, 15}, {107, 108}},
      {"(0,2)", {5, 7, 8, 15, 15}, seqs5, 2, 12, 0, {0, 5, 12}, {105, 107}},
      {"(3,5)", {5, 7, 8, 15, 15}, seqs5, 2, 20, 1, {0, 15, 30}, {115, 115}},
      {"(2,3)", {5, 7, 8}, {105, 107, 108}, 2, 12, 1, {0, 8}, {108}},
      {"(0,5)", {5, 7, 8, 15, 15}, seqs5, 1, 50, 0, {0, 5, 12, 20, 35, 50}, seqs5},
      {"(4,5)", {5, 7, 8, 15, 15}, seqs5, 2, 35, 1, {0, 15}, {115}},
      {"decodes", {1, 1, 1, 1}, {32, 40, 48, 56}, 4, 1, 0, {0, 1}, {32}},
      {"mixed_small", {1, 1, 5}, {32, 40, 48}, 2, 1, 1, {0, 1, 6}, {40, 48}},
      {"split 12, first", {8, 8}, {32, 40}, 2, 12, 0, {0, 8, 12}, {32, 36}},
      {"split 12, second", {8, 8}, {32, 40}, 2, 12, 1, {0, 4}, {40}},
      {"split 4, first", {8, 8}, {32, 40}, 2, 4, 0, {0, 4}, {28}},
      {"split 4, second", {8, 8}, {32, 40}, 2, 4, 1, {0, 4, 12}, {32, 40}},
      {"one prompt, first", {16}, {16}, 2, 8, 0, {0, 8}, {8}},
      {"one prompt, second", {16}, {16}, 2, 8, 1, {0, 8}, {16}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    Step step{row.query_lens, row.seq_lens, row.num_slices, row.split};
    const Lengths lengths = LengthsOf(step, row.slice);
    EXPECT_EQ(row.query_start_loc, lengths.query_start_loc);
    EXPECT_EQ(row.seqs, lengths.seq_lens);
  }
}

// Six decodes padded to eight in two slices: padded requests repeat the total and have length 0.
TEST(SliceLengths, PaddedRequestsOfTheLastSlice) {
  Step step{Ints(6, 1), Ints(6, 64)};
  step.num_padded_tokens = step.num_padded_reqs = 8;
  EXPECT_EQ((Lengths{{0, 1, 2, 3, 4}, {64, 64, 64, 64}, {63, 63, 63, 63}}), LengthsOf(step, 0));
  EXPECT_EQ((Lengths{{0, 1, 2, 2, 2}, {64, 64, 0, 0}, {63, 63, 0, 0}}), LengthsOf(step, 1));
}

// vllm#56031: the second part of a request that is cut starts where the first ends.
TEST(SliceLengths, B72_ComputedTokensOfARequestCutInTwo) {
  Step step{{8}, {32}, 2, 4};
  EXPECT_EQ((Lengths{{0, 4}, {28}, {24}}), LengthsOf(step, 0));
  EXPECT_EQ((Lengths{{0, 4}, {32}, {28}}), LengthsOf(step, 1));
  step = {{1, 8, 1}, {6, 32, 10}, 2, 5};
  EXPECT_EQ((std::vector<Range>{{0, 2, 0, 5}, {1, 3, 5, 10}}), Ranges(step));
  EXPECT_EQ((Lengths{{0, 1, 5}, {6, 28}, {5, 24}}), LengthsOf(step, 0));
  EXPECT_EQ((Lengths{{0, 4, 5}, {32, 10}, {28, 9}}), LengthsOf(step, 1));
  EXPECT_EQ((Ints{1, 8, 1}), step.query_lens) << "the step's own arrays are not changed";
  EXPECT_EQ((Ints{6, 32, 10}), step.seq_lens);
}

// vllm#43966, #49542: positions and roles survive the cut. A request of a slice is found in the step by first_req + i,
// so its role is the one that the step states for it.
TEST(SliceLengths, B73_PositionsAndRolesOfSlices) {
  const Step step{{6, 1}, {16, 21}, 2, 4};
  const Ints prefill{1, 0};
  const Ints positions[] = {{10, 11, 12, 13}, {14, 15, 20}};
  const Ints flags[] = {{1}, {1, 0}};
  const std::vector<fwdmeta_slice_t> slices = Plan(step);
  EXPECT_EQ((Lengths{{0, 4}, {14}, {10}}), LengthsOf(step, 0));
  EXPECT_EQ((Lengths{{0, 2, 3}, {16, 21}, {14, 20}}), LengthsOf(step, 1));
  for (size_t j = 0; j < 2; ++j) {
    const Lengths lengths = LengthsOf(step, j);
    Ints got_positions, got_flags;
    for (size_t i = 0; i < lengths.seq_lens.size(); ++i) {
      got_flags.push_back(prefill[static_cast<size_t>(slices[j].first_req) + i]);
      for (int32_t p = lengths.computed[i]; p < lengths.seq_lens[i]; ++p) got_positions.push_back(p);
    }
    EXPECT_EQ(positions[j], got_positions);
    EXPECT_EQ(flags[j], got_flags);
  }
}

// torchtitan#4098: offsets of a slice start at 0.
TEST(SliceLengths, B76_OffsetsAreRebased) {
  Step step = Queries({3, 2, 2, 3});
  step.split = 5;
  EXPECT_EQ((Ints{0, 3, 5}), LengthsOf(step, 0).query_start_loc);
  EXPECT_EQ((Ints{0, 2, 5}), LengthsOf(step, 1).query_start_loc);
}

TEST(SliceLengths, EachArrayMayBeNull) {
  const Step step{{6, 1}, {16, 21}, 2, 4};
  const fwdmeta_slice_args_t args = step.args();
  const fwdmeta_slice_t slice = Plan(step)[1];
  const Lengths want = LengthsOf(step, slice);
  Lengths got{Ints(3), Ints(2), Ints(2)};
  EXPECT_OK(fwdmeta_slice_lengths(&args, &slice, nullptr, nullptr, nullptr));
  EXPECT_OK(fwdmeta_slice_lengths(&args, &slice, got.query_start_loc.data(), nullptr, nullptr));
  EXPECT_OK(fwdmeta_slice_lengths(&args, &slice, nullptr, got.seq_lens.data(), nullptr));
  EXPECT_OK(fwdmeta_slice_lengths(&args, &slice, nullptr, nullptr, got.computed.data()));
  EXPECT_TRUE(want == got);
}

// -------------------------------------------------------------------------------------------------- limits --

TEST(SlicePlan, NumbersUpToInt32) {
  Step step{{INT32_MAX}, {INT32_MAX}};
  step.num_slices = FWDMETA_MAX_SLICES;
  const std::vector<fwdmeta_slice_t> slices = Plan(step);
  EXPECT_EQ(INT32_MAX / 16 * 15, slices[15].first_token);
  EXPECT_EQ(INT32_MAX, slices[15].end_token);
  EXPECT_EQ((Lengths{{0, INT32_MAX / 16}, {INT32_MAX / 16 * 2}, {INT32_MAX / 16}}), LengthsOf(step, 1));
  step = {{1}, {1}, 1};
  step.num_padded_tokens = step.num_padded_reqs = INT32_MAX;
  EXPECT_EQ((std::vector<Range>{{0, INT32_MAX, 0, INT32_MAX}}), Ranges(step));
}

struct BadArgs {
  const char* name;
  void (*change)(Step*);
  fwdmeta_status_t status;
  std::vector<int64_t> numbers;
};

const BadArgs kBadArgs[] = {
    {"no slices", [](Step* s) { s->num_slices = 0; }, FWDMETA_INVALID_ARGUMENT, {0, 16}},
    {"17 slices", [](Step* s) { s->num_slices = 17; }, FWDMETA_INVALID_ARGUMENT, {17, 16}},
    {"slices past int32",
     [](Step* s) { s->num_slices = (int64_t{1} << 32) + 1; },
     FWDMETA_INVALID_ARGUMENT,
     {4294967297, 16}},
    {"split 0", [](Step* s) { s->split = 0; }, FWDMETA_INVALID_ARGUMENT, {0, 1}},
    {"split -1", [](Step* s) { s->split = -1; }, FWDMETA_INVALID_ARGUMENT, {-1, 1}},
    {"split past int32", [](Step* s) { s->split = int64_t{1} << 31; }, FWDMETA_INVALID_ARGUMENT, {2147483648}},
    {"N < n", [](Step* s) { s->num_padded_tokens = 15; }, FWDMETA_INVALID_ARGUMENT, {15, 16}},
    {"N < 0", [](Step* s) { s->num_padded_tokens = -1; }, FWDMETA_INVALID_ARGUMENT, {-1}},
    {"N past int32", [](Step* s) { s->num_padded_tokens = int64_t{1} << 31; }, FWDMETA_INVALID_ARGUMENT, {2147483648}},
    {"P < R", [](Step* s) { s->num_padded_reqs = 1; }, FWDMETA_INVALID_ARGUMENT, {1, 2}},
    {"P past int32", [](Step* s) { s->num_padded_reqs = int64_t{1} << 31; }, FWDMETA_INVALID_ARGUMENT, {2147483648}},
    {"negative query", [](Step* s) { s->query_lens[1] = -3; }, FWDMETA_INVALID_BATCH, {1, -3}},
    {"negative length", [](Step* s) { s->query_lens[0] = 0, s->seq_lens[0] = -4; }, FWDMETA_INVALID_BATCH, {0, -4}},
    {"seq_len < query_len", [](Step* s) { s->seq_lens[1] = 7; }, FWDMETA_INVALID_BATCH, {1, 7, 8}},
    {"a sum past int32",
     [](Step* s) {
       s->query_lens = s->seq_lens = {INT32_MAX, 1};
     },
     FWDMETA_INVALID_BATCH,
     {2147483648, 2147483647}},
    {"arguments before the batch", [](Step* s) { s->query_lens[1] = -3, s->split = 0; }, FWDMETA_INVALID_ARGUMENT, {0}},
    {"the batch before its sum",
     [](Step* s) { s->query_lens[1] = -3, s->num_padded_tokens = 1; },
     FWDMETA_INVALID_BATCH,
     {-3}},
};

TEST(SliceErrors, ArgumentsAreRefusedWithTheirNumbersAndNothingIsWritten) {
  for (const BadArgs& bad : kBadArgs) {
    SCOPED_TRACE(bad.name);
    Step step{{8, 8}, {32, 40}};
    const fwdmeta_slice_t slice = Plan(step)[0];
    const Ints table{1, 2, 3, 4};
    const fwdmeta_rows_t rows{table.data(), 2, 2, nullptr};
    bad.change(&step);
    const fwdmeta_slice_args_t args = step.args();
    fwdmeta_slice_t out[FWDMETA_MAX_SLICES];
    std::memset(out, 0x5a, sizeof out);
    const std::vector<fwdmeta_slice_t> before(out, out + FWDMETA_MAX_SLICES);
    EXPECT_STATUS(bad.status, fwdmeta_plan_slices(&args, out));
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), bad.numbers)) << fwdmeta_last_error();
    EXPECT_EQ(0, std::memcmp(out, before.data(), sizeof out));
    Ints array(8, kCanary);
    EXPECT_STATUS(bad.status, fwdmeta_slice_lengths(&args, &slice, array.data(), nullptr, nullptr));
    EXPECT_EQ(Ints(8, kCanary), array);
    fwdmeta_slice_conflict_t conflict = FWDMETA_SLICE_CONFLICT_INITIALIZER;
    conflict.conflict = kCanary;
    EXPECT_STATUS(bad.status, fwdmeta_slices_conflict(&args, out, &rows, 16, &conflict));
    EXPECT_EQ(kCanary, conflict.conflict);
  }
}

TEST(SliceErrors, NullPointersAndCounts) {
  const Step step{{8, 8}, {32, 40}};
  fwdmeta_slice_args_t args = step.args();
  fwdmeta_slice_t out[2];
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_plan_slices(nullptr, out));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_plan_slices(&args, nullptr));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_slice_lengths(&args, nullptr, nullptr, nullptr, nullptr));
  args.query_lens = nullptr;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_plan_slices(&args, out));
  args = step.args();
  args.seq_lens = nullptr;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_plan_slices(&args, out));
  args.seq_lens = reinterpret_cast<const int32_t*>(reinterpret_cast<const char*>(step.seq_lens.data()) + 1);
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_plan_slices(&args, out));
  for (const int64_t reqs : {int64_t{-1}, int64_t{1} << 31, FWDMETA_DEFAULT}) {
    args = step.args();
    args.num_reqs = reqs;
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_plan_slices(&args, out));
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {reqs})) << fwdmeta_last_error();
  }
}

TEST(SliceErrors, StructSizes) {
  const Step step{{8, 8}, {32, 40}};
  struct {
    fwdmeta_slice_args_t args;
    uint64_t tail[2];
  } longer = {step.args(), {0, 0}};
  fwdmeta_slice_t out[2];
  longer.args.struct_size = 0;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_plan_slices(&longer.args, out));
  longer.args.struct_size = sizeof longer;
  EXPECT_OK(fwdmeta_plan_slices(&longer.args, out));
  longer.tail[1] = 1;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_plan_slices(&longer.args, out));
  // An older caller's struct ends before `num_slices`, whose default is 1.
  longer.args.struct_size = offsetof(fwdmeta_slice_args_t, num_slices);
  longer.args.num_slices = 99;
  EXPECT_OK(fwdmeta_plan_slices(&longer.args, out));
  EXPECT_EQ(16, out[0].end_token);
}

TEST(SliceErrors, ASliceMustBeOfThePlan) {
  const Step step{{8, 8}, {32, 40}};
  const fwdmeta_slice_args_t args = step.args();
  const std::vector<fwdmeta_slice_t> plan = Plan(step);
  for (int32_t fwdmeta_slice_t::*member :
       {&fwdmeta_slice_t::first_req, &fwdmeta_slice_t::end_req, &fwdmeta_slice_t::first_token,
        &fwdmeta_slice_t::end_token, &fwdmeta_slice_t::num_tokens, &fwdmeta_slice_t::empty}) {
    for (const int32_t value : {-1, 3, INT32_MIN, INT32_MAX}) {
      std::vector<fwdmeta_slice_t> changed = plan;
      changed[1].*member = value;
      int32_t array[1] = {kCanary};
      EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_slice_lengths(&args, &changed[1], array, nullptr, nullptr));
      EXPECT_EQ(kCanary, array[0]);
      const Ints table{1, 2};
      const fwdmeta_rows_t rows{table.data(), 1, 1, nullptr};
      fwdmeta_slice_conflict_t conflict = FWDMETA_SLICE_CONFLICT_INITIALIZER;
      EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_slices_conflict(&args, changed.data(), &rows, 16, &conflict));
    }
  }
}

// ---------------------------------------------------------------------------------------------- properties --

Step RandomStep(Random& random) {
  Step step;
  const int64_t reqs = random.Int(0, 12);
  const double idle = random.Pick({0.0, 0.3, 0.9});
  for (int64_t i = 0; i < reqs; ++i) {
    const int64_t query_len = random.Chance(idle) ? 0 : random.Int(1, random.Pick({1, 4, 30}));
    step.query_lens.push_back(static_cast<int32_t>(query_len));
    step.seq_lens.push_back(static_cast<int32_t>(query_len + random.Int(0, 40)));
  }
  if (random.Chance(0.5)) step.num_padded_tokens = step.num_tokens() + random.Int(0, 20);
  if (random.Chance(0.5)) step.num_padded_reqs = reqs + random.Int(0, 4);
  step.num_slices = random.Int(1, FWDMETA_MAX_SLICES);
  if (random.Chance(0.5)) step.split = random.Int(1, step.num_tokens() + 4);
  return step;
}

// The slice and the request of every token, in order.
struct Token {
  int32_t slice, request, position;
};
std::vector<Token> Tokens(const Step& step) {
  const int64_t split = step.split == FWDMETA_DEFAULT ? step.padded_tokens() / step.num_slices : step.split;
  std::vector<Token> tokens;
  for (int32_t i = 0; i < step.num_reqs(); ++i) {
    for (int32_t left = step.query_lens[i]; left > 0; --left) {
      int64_t slice = step.num_slices - 1;
      if (split > 0) slice = std::min<int64_t>(slice, static_cast<int64_t>(tokens.size()) / split);
      tokens.push_back({static_cast<int32_t>(slice), i, step.seq_lens[i] - left});
    }
  }
  return tokens;
}

TEST(SliceProperties, PlansAndLengthsAreThoseOfTheTokensOneByOne) {
  Random random(1);
  for (int round = 0; round < 20000; ++round) {
    const Step step = RandomStep(random);
    const std::vector<Token> tokens = Tokens(step);
    const std::vector<fwdmeta_slice_t> slices = Plan(step);
    const int32_t n = step.num_tokens(), reqs = step.num_reqs();
    Ints starts{0};
    for (const int32_t length : step.query_lens) starts.push_back(starts.back() + length);
    SCOPED_TRACE(::testing::Message() << "round " << round << ", query_lens "
                                      << ::testing::PrintToString(step.query_lens) << ", slices " << step.num_slices
                                      << ", split " << step.split << ", N " << step.num_padded_tokens << ", P "
                                      << step.num_padded_reqs);
    int32_t first = 0, padded_sum = 0;
    for (size_t j = 0; j < slices.size(); ++j) {
      const fwdmeta_slice_t& slice = slices[j];
      const bool last = j + 1 == slices.size();
      const auto in_slice = [&](const Token& token) { return token.slice == static_cast<int32_t>(j); };
      const int32_t count = static_cast<int32_t>(std::count_if(tokens.begin(), tokens.end(), in_slice));
      ASSERT_EQ(first, slice.first_token);
      ASSERT_EQ(count, slice.num_tokens);
      ASSERT_EQ(count == 0, slice.empty == 1);
      ASSERT_EQ(last ? step.padded_tokens() : first + count, slice.end_token);
      int32_t want_first = 0, want_end = 0;
      while (want_first < reqs && starts[want_first + 1] <= first) ++want_first;
      while (starts[want_end] < first + count) ++want_end;
      ASSERT_EQ(want_first, slice.first_req);
      ASSERT_EQ(last ? step.padded_reqs() : count == 0 ? want_first : want_end, slice.end_req);
      if (first == n) {
        ASSERT_EQ(reqs, slice.first_req);
      }

      Lengths want{{0}, {}, {}};
      for (int32_t i = slice.first_req; i < slice.end_req; ++i) {
        int32_t own = 0, later = 0;
        for (const Token& token : tokens) {
          own += token.request == i && in_slice(token);
          later += token.request == i && token.slice > static_cast<int32_t>(j);
        }
        want.query_start_loc.push_back(want.query_start_loc.back() + own);
        want.seq_lens.push_back(i < reqs ? step.seq_lens[i] - later : 0);
        want.computed.push_back(want.seq_lens.back() - own);
      }
      ASSERT_TRUE(want == LengthsOf(step, slice));
      first += count;
      padded_sum += slice.end_token - slice.first_token;
    }
    ASSERT_EQ(n, first);
    ASSERT_EQ(step.padded_tokens(), padded_sum);
  }
}

TEST(SliceProperties, SlicesPutTogetherAreTheStep) {
  Random random(2);
  for (int round = 0; round < 10000; ++round) {
    const Step step = RandomStep(random);
    SCOPED_TRACE(round);
    // Positions in the order of the tokens, tokens of each request, and where each request stands before every slice.
    Ints positions, lengths(step.query_lens.size());
    Ints computed(step.query_lens.size());
    for (size_t i = 0; i < computed.size(); ++i) computed[i] = step.seq_lens[i] - step.query_lens[i];
    for (const fwdmeta_slice_t& slice : Plan(step)) {
      const Lengths got = LengthsOf(step, slice);
      ASSERT_EQ(slice.num_tokens, got.query_start_loc.back());
      ASSERT_TRUE(std::is_sorted(got.query_start_loc.begin(), got.query_start_loc.end()));
      for (size_t row = 0; row < got.seq_lens.size(); ++row) {
        const size_t i = static_cast<size_t>(slice.first_req) + row;
        const int32_t tokens = got.query_start_loc[row + 1] - got.query_start_loc[row];
        ASSERT_EQ(got.seq_lens[row], got.computed[row] + tokens);
        if (i >= lengths.size()) {
          ASSERT_EQ(0, got.seq_lens[row]);
          continue;
        }
        ASSERT_EQ(computed[i], got.computed[row]);
        computed[i] = got.seq_lens[row];
        lengths[i] += tokens;
        for (int32_t p = got.computed[row]; p < got.seq_lens[row]; ++p) positions.push_back(p);
      }
    }
    ASSERT_EQ(step.query_lens, lengths);
    ASSERT_EQ(step.seq_lens, computed);
    Ints want;
    for (const Token& token : Tokens(step)) want.push_back(token.position);
    ASSERT_EQ(want, positions);
  }
}

// ----------------------------------------------------------------------------------------------- conflicts --

// Rows of one width, filled up with `fill`, behind row lengths where these are wanted.
fwdmeta_slice_conflict_t Conflict(const Step& step, const std::vector<Ints>& table, int64_t block_size,
                                  bool with_lengths = false, int32_t fill = -1) {
  size_t width = 0;
  for (const Ints& row : table) width = std::max(width, row.size());
  const size_t stride = width + 3;
  Ints data(table.size() * stride + 1, fill), lengths;
  for (size_t i = 0; i < table.size(); ++i) {
    std::copy(table[i].begin(), table[i].end(), data.begin() + static_cast<int64_t>(i * stride));
    lengths.push_back(static_cast<int32_t>(table[i].size()));
  }
  const fwdmeta_rows_t rows{data.data(), static_cast<int64_t>(width), static_cast<int64_t>(stride),
                            with_lengths ? lengths.data() : nullptr};
  const fwdmeta_slice_args_t args = step.args();
  const std::vector<fwdmeta_slice_t> slices = Plan(step);
  fwdmeta_slice_conflict_t out = FWDMETA_SLICE_CONFLICT_INITIALIZER;
  EXPECT_OK(fwdmeta_slices_conflict(&args, slices.data(), &rows, block_size, &out));
  return out;
}

// conflict, cross_request, reader, writer, page
using Found = std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t>;
Found FoundIn(const fwdmeta_slice_conflict_t& c) {
  EXPECT_EQ(sizeof c, c.struct_size);
  EXPECT_EQ(0, c.reserved);
  return {c.conflict, c.cross_request, c.reader, c.writer, c.page};
}
const Found kNone{0, 0, -1, -1, -1};

// vllm#51402: a request whose prefix another one computes in the same step runs in an earlier slice.
TEST(SliceConflict, Issue51402_ThePrefixIsWrittenInALaterSlice) {
  const Step step{{8, 16}, {24, 16}, 2, 8};
  EXPECT_EQ(Found(1, 1, 0, 1, 7), FoundIn(Conflict(step, {{7, 8}, {7}}, 16)));
  EXPECT_EQ(kNone, FoundIn(Conflict(step, {{7, 8}, {9}}, 16)));
  // In the right order it is a conflict all the same: slices may run at the same time.
  const Step ordered{{16, 8}, {16, 24}, 2, 16};
  EXPECT_EQ(Found(1, 1, 1, 0, 7), FoundIn(Conflict(ordered, {{7}, {7, 8}}, 16)));
  // In one slice there is none.
  EXPECT_EQ(kNone, FoundIn(Conflict({{8, 16}, {24, 16}, 1}, {{7, 8}, {7}}, 16)));
}

TEST(SliceConflict, ARequestThatIsCutReadsWhatItsFirstPartWrites) {
  EXPECT_EQ(Found(1, 0, 1, 0, 5), FoundIn(Conflict({{32}, {32}}, {{5, 6}}, 16)));
  // A cut within a page: the first part reads a page that the second writes as well.
  EXPECT_EQ(Found(1, 0, 0, 1, 5), FoundIn(Conflict({{8}, {12}}, {{5}}, 16)));
  // Two requests with pages of their own.
  EXPECT_EQ(kNone, FoundIn(Conflict({{4, 4}, {20, 36}}, {{1, 2}, {3, 4, 5}}, 16)));
}

TEST(SliceConflict, TellsOfARequestAcrossFirst) {
  // Slice 1 reads page 1 of its own request's first part; slice 2 reads page 1 as another request.
  const Step step{{8, 4}, {8, 8}, 3, 4};
  EXPECT_EQ(Found(1, 1, 2, 0, 1), FoundIn(Conflict(step, {{1, 2}, {1, 3}}, 4)));
  EXPECT_EQ(Found(1, 0, 1, 0, 1), FoundIn(Conflict(step, {{1, 2}, {4, 3}}, 4)));
}

TEST(SliceConflict, OnlyPagesOfTheRowCount) {
  const Step step{{8, 16}, {24, 16}, 2, 8};
  EXPECT_EQ(kNone, FoundIn(Conflict(step, {{-1, 8}, {-1}}, 16))) << "-1 is no page";
  EXPECT_EQ(kNone, FoundIn(Conflict(step, {{}, {}}, 16))) << "rows of no width";
  EXPECT_EQ(kNone, FoundIn(Conflict(step, {{7, 8}, {}}, 16, true, 7))) << "the second row is empty";
  EXPECT_EQ(Found(1, 1, 0, 1, 7), FoundIn(Conflict(step, {{7, 8}, {}}, 16, false, 7)));
  EXPECT_EQ(Found(1, 1, 0, 1, 0), FoundIn(Conflict(step, {{0, 8}, {0}}, 16))) << "page 0 is a page";
}

TEST(SliceConflict, ARequestWithoutTokensReadsNothing) {
  const Step step{{2, 0, 2, 4}, {2, 16, 2, 4}};
  EXPECT_EQ(kNone, FoundIn(Conflict(step, {{1}, {9}, {2}, {9}}, 16)));
}

TEST(SliceConflict, NoRequests) {
  EXPECT_EQ(kNone, FoundIn(Conflict({{}, {}}, {}, 16)));
  const Step nothing{{}, {}};
  const fwdmeta_slice_args_t args = nothing.args();
  const std::vector<fwdmeta_slice_t> slices = Plan(nothing);
  const fwdmeta_rows_t rows = FWDMETA_ROWS_INITIALIZER;
  fwdmeta_slice_conflict_t out = FWDMETA_SLICE_CONFLICT_INITIALIZER;
  EXPECT_OK(fwdmeta_slices_conflict(&args, slices.data(), &rows, 16, &out));
}

TEST(SliceConflict, ErrorsOfItsOwn) {
  const Step step{{8, 8}, {32, 40}};
  const fwdmeta_slice_args_t args = step.args();
  const std::vector<fwdmeta_slice_t> slices = Plan(step);
  const Ints table{1, 2, 3, 4};
  const fwdmeta_rows_t rows{table.data(), 2, 2, nullptr};
  fwdmeta_slice_conflict_t out = FWDMETA_SLICE_CONFLICT_INITIALIZER;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_slices_conflict(nullptr, slices.data(), &rows, 16, &out));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_slices_conflict(&args, nullptr, &rows, 16, &out));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_slices_conflict(&args, slices.data(), nullptr, 16, &out));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_slices_conflict(&args, slices.data(), &rows, 16, nullptr));
  for (const int64_t block_size : {int64_t{0}, int64_t{-1}, int64_t{1} << 31}) {
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_slices_conflict(&args, slices.data(), &rows, block_size, &out));
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {block_size})) << fwdmeta_last_error();
  }
  const fwdmeta_rows_t bad_rows[] = {{nullptr, 2, 2, nullptr},
                                     {table.data(), -1, 2, nullptr},
                                     {table.data(), int64_t{1} << 31, int64_t{1} << 31, nullptr},
                                     {table.data(), 2, 1, nullptr},
                                     {reinterpret_cast<const char*>(table.data()) + 1, 1, 1, nullptr}};
  for (const fwdmeta_rows_t& bad : bad_rows) {
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_slices_conflict(&args, slices.data(), &bad, 16, &out));
  }
  out.struct_size = 0;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_slices_conflict(&args, slices.data(), &rows, 16, &out));
  // An older caller's struct ends before `reader`; a newer one's tail is left alone.
  out = FWDMETA_SLICE_CONFLICT_INITIALIZER;
  out.struct_size = offsetof(fwdmeta_slice_conflict_t, reader);
  out.reader = kCanary;
  EXPECT_OK(fwdmeta_slices_conflict(&args, slices.data(), &rows, 16, &out));
  EXPECT_EQ(kCanary, out.reader);
  struct {
    fwdmeta_slice_conflict_t out;
    int32_t tail;
  } longer = {FWDMETA_SLICE_CONFLICT_INITIALIZER, kCanary};
  longer.out.struct_size = sizeof longer;
  EXPECT_OK(fwdmeta_slices_conflict(&args, slices.data(), &rows, 16, &longer.out));
  EXPECT_EQ(sizeof longer, longer.out.struct_size);
  EXPECT_EQ(kCanary, longer.tail);
}

// Position by position: who reads and who writes each page.
Found SlowConflict(const Step& step, const std::vector<Ints>& table, int32_t block_size) {
  using Users = std::map<int32_t, std::set<int32_t>>;  // requests by page
  std::vector<Users> reads(static_cast<size_t>(step.num_slices)), writes = reads;
  const auto page = [&](int32_t request, int32_t position) {
    const size_t column = static_cast<size_t>(position / block_size);
    return column < table[request].size() ? table[request][column] : -1;
  };
  std::map<std::pair<int32_t, int32_t>, int32_t> first_position;  // of the tokens of a request in a slice
  for (const Token& token : Tokens(step)) {
    first_position.emplace(std::make_pair(token.slice, token.request), token.position);
    if (page(token.request, token.position) >= 0) {
      writes[token.slice][page(token.request, token.position)].insert(token.request);
    }
  }
  for (const auto& [user, end] : first_position) {
    for (int32_t position = 0; position < end; ++position) {
      if (page(user.second, position) >= 0) reads[user.first][page(user.second, position)].insert(user.second);
    }
  }
  std::set<std::tuple<int32_t, int32_t, int32_t, int32_t>> found;  // not across, reader, writer, page
  for (int32_t reader = 0; reader < step.num_slices; ++reader) {
    for (const auto& [p, readers] : reads[reader]) {
      for (int32_t writer = 0; writer < step.num_slices; ++writer) {
        if (writer == reader || writes[writer].count(p) == 0) continue;
        const std::set<int32_t>& writers = writes[writer][p];
        const bool across = readers.size() > 1 || writers.size() > 1 || *readers.begin() != *writers.begin();
        found.emplace(!across, reader, writer, p);
      }
    }
  }
  if (found.empty()) return kNone;
  const auto [own, reader, writer, p] = *found.begin();
  return {1, 1 - own, reader, writer, p};
}

TEST(SliceProperties, ConflictsAreThoseOfThePositionsOneByOne) {
  Random random(3);
  std::map<std::pair<int32_t, int32_t>, int> kinds;
  for (int round = 0; round < 10000; ++round) {
    const Step step = RandomStep(random);
    const int32_t block_size = random.Pick({1, 2, 4, 16, 64});
    const int64_t pages = random.Pick({4, 100, 3000});
    std::vector<Ints> table;
    for (const int32_t length : step.seq_lens) {
      const int64_t columns = (length + block_size - 1) / block_size;
      Ints& row = table.emplace_back(random.Chance(0.8) ? columns : random.Int(0, columns + 2));
      for (int32_t& page : row) page = static_cast<int32_t>(random.Chance(0.05) ? -1 : random.Int(0, pages));
    }
    const Found want = SlowConflict(step, table, block_size);
    ++kinds[{std::get<0>(want), std::get<1>(want)}];
    ASSERT_EQ(want, FoundIn(Conflict(step, table, block_size, random.Chance(0.5)))) << "round " << round;
  }
  EXPECT_GT((kinds[{0, 0}]), 100);
  EXPECT_GT((kinds[{1, 0}]), 100);
  EXPECT_GT((kinds[{1, 1}]), 100);
}

}  // namespace
}  // namespace fwdmeta_test
