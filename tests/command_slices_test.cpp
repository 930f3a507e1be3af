// The command's `slices`, by the format fwdmeta.slices/1.
#include <algorithm>
#include <sstream>

#include "command_runner.h"

namespace fwdmeta_test {
namespace {

constexpr const char* kSchema = "fwdmeta.slices/1";

Outcome slices_of_text(const std::string& text, const std::string& options = "--format json") {
  return fwdmeta("slices - " + options, text);
}
Outcome slices(const Json& file) { return slices_of_text(file.dump()); }

Json file() { return Json{{"query_lens", {8, 8}}, {"seq_lens", {32, 40}}}; }

TEST(Slices, AnswersTheExampleOfTheFormat) {
  const Outcome outcome = slices_of_text(
      R"({"query_lens": [8, 8], "seq_lens": [32, 40], "num_padded_tokens": null, "num_padded_reqs": null, "num_slices": 2, "split": null})");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  // Compared as text too: the order of keys is the format's.
  EXPECT_EQ(outcome.json().dump(), Json::parse(R"({"schema": "fwdmeta.slices/1", "status": "ok", "slices": [
    {"requests": [0, 1], "tokens": [0, 8], "query_start_loc": [0, 8], "seq_lens": [32], "empty": false},
    {"requests": [1, 2], "tokens": [8, 16], "query_start_loc": [0, 8], "seq_lens": [40], "empty": false}]})")
                                       .dump());
}

TEST(Slices, HasTheDefaultsOfTheFormat) {
  const Outcome whole = slices_of_text(
      R"({"schema": "fwdmeta.slices/1", "query_lens": [8, 8], "seq_lens": [32, 40], "num_padded_tokens": 16, "num_padded_reqs": 2, "num_slices": 2, "split": 8})");
  EXPECT_EQ(slices(file()).out, whole.out);
  EXPECT_EQ(slices_of_text(file().dump(), "").out, whole.out) << "JSON where nobody watches";
  EXPECT_EQ(slices_of_text(file().dump(), "--backend host").out, whole.out);
}

TEST(Slices, GivesPaddingToTheLast) {
  Json padded = {{"query_lens", {3, 5}}, {"seq_lens", {30, 50}}, {"num_padded_tokens", 12}, {"num_padded_reqs", 4}};
  EXPECT_EQ(slices(padded).json()["slices"], Json::parse(R"([
    {"requests": [0, 2], "tokens": [0, 6], "query_start_loc": [0, 3, 6], "seq_lens": [30, 48], "empty": false},
    {"requests": [1, 4], "tokens": [6, 12], "query_start_loc": [0, 2, 2, 2], "seq_lens": [50, 0, 0],
     "empty": false}])"));
  padded["num_slices"] = 3;
  EXPECT_EQ(slices(padded).json()["slices"], Json::parse(R"([
    {"requests": [0, 2], "tokens": [0, 4], "query_start_loc": [0, 3, 4], "seq_lens": [30, 46], "empty": false},
    {"requests": [1, 2], "tokens": [4, 8], "query_start_loc": [0, 4], "seq_lens": [50], "empty": false},
    {"requests": [2, 4], "tokens": [8, 12], "query_start_loc": [0, 0, 0], "seq_lens": [0, 0], "empty": true}])"));
}

TEST(Slices, AnswersForNoRequests) {
  const Json nothing = {{"query_lens", Json::array()}, {"seq_lens", Json::array()}, {"num_slices", 1}};
  EXPECT_EQ(slices(nothing).json()["slices"],
            Json::parse(R"([{"requests": [0, 0], "tokens": [0, 0], "query_start_loc": [0], "seq_lens": [],
                             "empty": true}])"));
}

TEST(Slices, PassesOnWhatTheLibraryRefuses) {
  struct Case {
    const char* pointer;
    Json value;
    const char* code;
    const char* number;
  };
  constexpr int64_t kPast = int64_t{1} << 31;
  const Case cases[] = {
      {"/num_slices", 0, "INVALID_ARGUMENT", "0"},
      {"/num_slices", 17, "INVALID_ARGUMENT", "17"},
      {"/num_slices", INT64_MAX, "INVALID_ARGUMENT", "9223372036854775807"},
      {"/split", 0, "INVALID_ARGUMENT", "0"},
      {"/split", kPast, "INVALID_ARGUMENT", "2147483648"},
      // The number that the API takes for "not given" is a number here.
      {"/split", INT64_MIN, "INVALID_ARGUMENT", "-92233720368547758"},
      {"/num_padded_tokens", 15, "INVALID_ARGUMENT", "15"},
      {"/num_padded_tokens", INT64_MIN, "INVALID_ARGUMENT", "-92233720368547758"},
      {"/num_padded_tokens", kPast, "INVALID_ARGUMENT", "2147483648"},
      {"/num_padded_reqs", 1, "INVALID_ARGUMENT", "1"},
      {"/num_padded_reqs", kPast, "INVALID_ARGUMENT", "2147483648"},
      {"/query_lens/1", -1, "INVALID_BATCH", "-1"},
      {"/query_lens/0", 33, "INVALID_BATCH", "33"},
      {"/query_lens/1", kPast, "INVALID_BATCH", "2147483648"},
      {"/seq_lens/0", INT64_MIN, "INVALID_BATCH", "-9223372036854775808"},
      {"/seq_lens/1", 7, "INVALID_BATCH", "7"},
  };
  for (const Case& refused : cases) {
    SCOPED_TRACE(std::string(refused.pointer) + " = " + refused.value.dump());
    Json changed = file();
    changed[Json::json_pointer(refused.pointer)] = refused.value;
    const Outcome outcome = slices(changed);
    expect_library_error(outcome, kSchema, refused.code);
    EXPECT_NE(outcome.err.find(refused.number), std::string::npos) << outcome.err;
  }
}

TEST(Slices, JudgesTheArgumentsBeforeALengthPastInt32) {
  Json changed = file();
  changed["seq_lens"][0] = int64_t{1} << 40;
  changed["num_slices"] = 17;
  expect_library_error(slices(changed), kSchema, "INVALID_ARGUMENT");
}

TEST(Slices, RefusesWhatIsNotOfTheFormat) {
  const std::vector<RefusedInput> cases = {
      {"/schema", "fwdmeta.graphs/1", "schema must be \"fwdmeta.slices/1\""},
      {"/schema", 1, "schema must be a string"},
      {"/slices", 2, "unknown key \"slices\""},
      {"/query_lens", nullptr, "lacks \"query_lens\""},
      {"/seq_lens", nullptr, "lacks \"seq_lens\""},
      {"/query_lens", 8, "query_lens must be a list"},
      {"/query_lens", {8}, "seq_lens has 2 entries"},
      {"/query_lens/0", nullptr, "an entry of query_lens must be an integer"},
      {"/query_lens/0", 1.5, "1.5"},
      {"/seq_lens/1", "40", "an entry of seq_lens must be an integer"},
      {"/seq_lens/1", uint64_t{1} << 63, "9223372036854775808"},
      {"/num_slices", true, "num_slices must be an integer"},
      {"/num_slices", {2}, "num_slices must be an integer"},
      {"/split", "8", "split must be an integer"},
      {"/num_padded_tokens", 16.0, "16.0"},
      {"/num_padded_reqs", Json::object(), "num_padded_reqs must be an integer"},
  };
  expect_refused_inputs(file(), cases, [](const Json& json) { return slices(json); });
  expect_refused_input(slices_of_text("[]"), "<stdin>:1:1: the slices file must be an object");
  expect_refused_input(slices_of_text(file().dump() + "\n{}"), "<stdin>:2:1: ");
  expect_refused_input(slices_of_text("{\"query_lens\": [1,"), "<stdin>:1:");
  expect_refused_input(fwdmeta("slices /nonexistent/slices.json"), "/nonexistent/slices.json");
}

TEST(Slices, DrawsATableOf80Columns) {
  const Json large = {{"query_lens", {1000000000, 1000000000}},
                      {"seq_lens", {2000000000, 2147483647}},
                      {"num_padded_tokens", 2147483647},
                      {"num_padded_reqs", 5},
                      {"split", 1500000000}};
  Json many = {{"query_lens", Json::array()}, {"seq_lens", Json::array()}};
  for (int i = 0; i < 100; ++i) {
    many["query_lens"].push_back(1);
    many["seq_lens"].push_back(1000000 + i);
  }
  for (const Json& json : {file(), large, many}) {
    const Outcome outcome = slices_of_text(json.dump(), "--format table");
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    std::istringstream lines(outcome.out);
    size_t count = 0;
    for (std::string line; std::getline(lines, line); ++count) EXPECT_LE(line.size(), 80u) << line;
    EXPECT_LT(count, 80u) << "long slices are cut";
  }
  const std::string table = slices_of_text(large.dump(), "--format table").out;
  for (const char* fragment : {"[0, 1500000000)", "[1500000000, 2147483647)", "1647483647", "3 padded"}) {
    EXPECT_NE(table.find(fragment), std::string::npos) << fragment << " in\n" << table;
  }
  EXPECT_NE(slices_of_text(many.dump(), "--format table").out.find("... 26 more"), std::string::npos);
}

}  // namespace
}  // namespace fwdmeta_test
