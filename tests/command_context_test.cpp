// The command's `graphs` and `ranks`, by the formats fwdmeta.graphs/1 and fwdmeta.ranks/1.
#include <algorithm>
#include <sstream>

#include "command_runner.h"

namespace fwdmeta_test {
namespace {

constexpr const char* kGraphs = "fwdmeta.graphs/1";
constexpr const char* kRanks = "fwdmeta.ranks/1";
constexpr int64_t kPast = int64_t{1} << 31;

Outcome graphs(const std::string& text, const std::string& options = "--format json") {
  return fwdmeta("graphs - " + options, text);
}
Outcome graphs(const Json& file) { return graphs(file.dump()); }
Outcome ranks(const std::string& text, const std::string& options = "--format json") {
  return fwdmeta("ranks - " + options, text);
}
Outcome ranks(const Json& file) { return ranks(file.dump()); }

// No line of a table is wider than a terminal.
void expect_80_columns(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

Json graphs_file() {
  return Json::parse(R"({"mode": "FULL_AND_PIECEWISE", "max_num_seqs": 8, "max_num_tokens": 8192,
                         "batches": [{"num_tokens": 3, "num_reqs": 3, "query_len": 1}]})");
}

// ---------------------------------------------------------------------------------------------------- graphs --

TEST(Graphs, AnswersTheExampleOfTheFormat) {
  const Outcome outcome = graphs(std::string(
      R"({"mode": "FULL_AND_PIECEWISE", "support": "ALWAYS", "piecewise_available": true, "capture_sizes": null,
          "max_capture_size": null, "max_num_seqs": 8, "max_num_tokens": 8192, "query_lens": [1],
          "round_piecewise": false, "max_loras": 0, "specialize_active_loras": false, "max_full_reqs": null,
          "batches": [{"num_tokens": 3, "num_reqs": 3, "query_len": 1, "num_active_loras": 0,
                       "allowed": ["NONE", "PIECEWISE", "FULL"]}]})"));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  // Compared as text too: the order of keys is the format's.
  EXPECT_EQ(outcome.json().dump(), Json::parse(R"({"schema": "fwdmeta.graphs/1", "status": "ok",
    "resolved_mode": "FULL_AND_PIECEWISE", "capture_sizes": [1, 2, 4, 8, 16],
    "piecewise_keys": [
      {"num_tokens": 16, "num_reqs": -1, "uniform": false, "has_lora": false, "num_active_loras": 0},
      {"num_tokens": 8, "num_reqs": -1, "uniform": false, "has_lora": false, "num_active_loras": 0},
      {"num_tokens": 4, "num_reqs": -1, "uniform": false, "has_lora": false, "num_active_loras": 0},
      {"num_tokens": 2, "num_reqs": -1, "uniform": false, "has_lora": false, "num_active_loras": 0},
      {"num_tokens": 1, "num_reqs": -1, "uniform": false, "has_lora": false, "num_active_loras": 0}],
    "full_keys": [
      {"num_tokens": 8, "num_reqs": 8, "uniform": true, "has_lora": false, "num_active_loras": 0},
      {"num_tokens": 4, "num_reqs": 4, "uniform": true, "has_lora": false, "num_active_loras": 0},
      {"num_tokens": 2, "num_reqs": 2, "uniform": true, "has_lora": false, "num_active_loras": 0},
      {"num_tokens": 1, "num_reqs": 1, "uniform": true, "has_lora": false, "num_active_loras": 0}],
    "dispatched": [{"mode": "FULL", "num_tokens": 4, "num_reqs": 4, "uniform": true, "has_lora": false,
                    "num_active_loras": 0, "reason": ""}]})")
                                       .dump());
  EXPECT_EQ(graphs(graphs_file()).out, outcome.out) << "the defaults are those of the format";
}

TEST(Graphs, PassesEveryKeyOn) {
  Json file = graphs_file();
  file["schema"] = kGraphs;
  file["support"] = "UNIFORM_BATCH";
  file["mode"] = "FULL";
  file["capture_sizes"] = {9, 2, 4};
  file["max_capture_size"] = 12;
  file["query_lens"] = {1, 2};
  file["round_piecewise"] = true;
  file["max_loras"] = 3;
  file["specialize_active_loras"] = true;
  file["max_full_reqs"] = 4;
  file["batches"] = Json::array();
  const Json json = graphs(file).json();
  EXPECT_EQ(json["resolved_mode"], "FULL_AND_PIECEWISE");
  EXPECT_EQ(json["capture_sizes"], Json({2, 4, 9, 12}));
  EXPECT_EQ(json["piecewise_keys"].size(), 4u * 4);  // 2, 4, 10, 12, with 0, 1, 2 and 4 LoRAs
  EXPECT_EQ(json["piecewise_keys"][4], Json::parse(R"({"num_tokens": 10, "num_reqs": -1, "uniform": false,
                                                       "has_lora": true, "num_active_loras": 4})"));
  EXPECT_EQ(json["full_keys"].size(), 4u * 4);  // 2 and 4 by 1; 2 and 4 by 2 (10 and 12 have 5 and 6 requests)
  EXPECT_EQ(json["dispatched"], Json::array());
  file["piecewise_available"] = false;
  EXPECT_EQ(graphs(file).json()["resolved_mode"], "FULL_DECODE_ONLY");
  EXPECT_EQ(graphs(file).json()["piecewise_keys"], Json::array());
}

TEST(Graphs, PutsWhatIsRefusedInItsPlace) {
  Json file = graphs_file();
  file["batches"] = {{{"num_tokens", 3}, {"num_reqs", 3}},
                     {{"num_tokens", 3}, {"num_reqs", 9}},
                     {{"num_tokens", 99}, {"num_reqs", 1}, {"allowed", {"PIECEWISE", "FULL"}}},
                     {{"num_tokens", 99}, {"num_reqs", 1}, {"allowed", {"NONE"}}},
                     {{"num_tokens", 1}, {"num_reqs", 1}, {"allowed", Json::array()}},
                     {{"num_tokens", kPast}, {"num_reqs", 1}},
                     {{"num_tokens", 1}, {"num_reqs", INT64_MIN}},
                     {{"num_tokens", 1}, {"num_reqs", 1}, {"num_active_loras", 1}},
                     {{"num_tokens", 0}, {"num_reqs", 0}, {"query_len", nullptr}, {"allowed", nullptr}}};
  const Outcome outcome = graphs(file);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json dispatched = outcome.json()["dispatched"];
  ASSERT_EQ(dispatched.size(), 9u);
  EXPECT_EQ(dispatched[0]["reason"], "NOT_UNIFORM");
  EXPECT_EQ(dispatched[3]["reason"], "NOT_ALLOWED");
  EXPECT_EQ(dispatched[8]["reason"], "ZERO_TOKENS");
  const char* codes[] = {"",
                         "INVALID_ARGUMENT",
                         "NO_GRAPH",
                         "",
                         "INVALID_ARGUMENT",
                         "INVALID_ARGUMENT",
                         "INVALID_ARGUMENT",
                         "INVALID_ARGUMENT",
                         ""};
  for (int i = 0; i < 9; ++i) {
    if (codes[i][0] == '\0') continue;
    EXPECT_EQ(dispatched[i].size(), 2u) << i;
    EXPECT_EQ(dispatched[i]["code"], codes[i]) << i;
    EXPECT_NE(dispatched[i]["message"], "") << i;
  }
  EXPECT_NE(dispatched[5]["message"].get<std::string>().find("2147483648"), std::string::npos);
}

TEST(Graphs, PassesOnWhatTheLibraryRefuses) {
  struct Case {
    const char* key;
    Json value;
    const char* code;
  };
  const Case cases[] = {{"max_num_seqs", 0, "INVALID_ARGUMENT"},
                        {"max_num_seqs", kPast, "INVALID_ARGUMENT"},
                        {"max_num_tokens", INT64_MIN, "INVALID_ARGUMENT"},
                        {"capture_sizes", {1, 0}, "INVALID_ARGUMENT"},
                        {"capture_sizes", {kPast}, "INVALID_ARGUMENT"},
                        {"max_capture_size", 0, "INVALID_ARGUMENT"},
                        {"max_capture_size", INT64_MIN, "INVALID_ARGUMENT"},  // no default here
                        {"query_lens", Json::array(), "INVALID_ARGUMENT"},
                        {"query_lens", {INT64_MIN}, "INVALID_ARGUMENT"},
                        {"max_loras", -1, "INVALID_ARGUMENT"},
                        {"max_full_reqs", INT64_MIN, "INVALID_ARGUMENT"},
                        {"piecewise_available", false, "UNSUPPORTED"}};
  for (const Case& refused : cases) {
    SCOPED_TRACE(std::string(refused.key) + " = " + refused.value.dump());
    Json file = graphs_file();
    file[refused.key] = refused.value;
    expect_library_error(graphs(file), kGraphs, refused.code);
  }
  Json file = graphs_file();
  file["mode"] = "FULL";
  file["support"] = "NEVER";
  expect_library_error(graphs(file), kGraphs, "UNSUPPORTED");
}

TEST(Graphs, RefusesWhatIsNotOfTheFormat) {
  const std::vector<RefusedInput> cases = {
      {"/schema", "fwdmeta.graphs/2", "schema must be \"fwdmeta.graphs/1\""},
      {"/schema", 1, "schema must be a string"},
      {"/modus", 1, "unknown key \"modus\""},
      {"/mode", 2, "mode must be a string"},
      {"/mode", "full", "unknown mode \"full\"; it is one of NONE, PIECEWISE, FULL,"},
      {"/mode", "\x1b[31m", "unknown mode \"?[31m\""},
      {"/support", "SOMETIMES", "unknown support \"SOMETIMES\""},
      {"/piecewise_available", 1, "piecewise_available must be true or false"},
      {"/round_piecewise", "no", "round_piecewise must be true or false"},
      {"/capture_sizes", 3, "capture_sizes must be a list"},
      {"/capture_sizes", {"1"}, "an entry of capture_sizes must be an integer"},
      {"/query_lens", {nullptr}, "an entry of query_lens must be an integer"},
      {"/max_num_seqs", "8", "max_num_seqs must be an integer"},
      {"/max_num_seqs", nullptr, "lacks \"max_num_seqs\""},
      {"/batches", Json::object(), "batches must be a list"},
      {"/batches", {1}, "a batch must be an object"},
      {"/batches/0/tokens", 1, "unknown key \"tokens\""},
      {"/batches/0/num_reqs", nullptr, "lacks \"num_reqs\""},
      {"/batches/0/num_tokens", true, "num_tokens must be an integer"},
      {"/batches/0/allowed", "FULL", "allowed must be a list"},
      {"/batches/0/allowed", {"FULL_DECODE_ONLY"}, "unknown allowed mode \"FULL_DECODE_ONLY\""},
      {"/batches/0/allowed", {2}, "allowed mode must be a string"}};
  expect_refused_inputs(graphs_file(), cases, [](const Json& json) { return graphs(json); });
  for (const char* key : {"mode", "max_num_seqs", "max_num_tokens", "batches"}) {
    Json file = graphs_file();
    file.erase(key);
    expect_refused_input(graphs(file), "lacks \"" + std::string(key) + "\"");
  }
  for (const std::string number : {"1.0", "1e3", "9223372036854775808"}) {
    expect_refused_input(graphs("{\"mode\": \"FULL\",\n \"max_num_seqs\": " + number + "}"), "<stdin>:2:");
  }
  expect_refused_input(graphs(graphs_file().dump() + "1"), "<stdin>:1:");
  expect_refused_input(graphs(std::string("{\"mode\": \"FU")), "<stdin>:1:");
  EXPECT_EQ(fwdmeta("graphs").status, 2);
  EXPECT_EQ(fwdmeta("graphs - --format svg").status, 2);
}

TEST(Graphs, DrawsATable) {
  Json file = graphs_file();
  file["max_num_seqs"] = 512;
  file["query_lens"] = {1, 4};
  file["max_loras"] = 7;
  file["specialize_active_loras"] = true;
  file["batches"].push_back({{"num_tokens", 8000}, {"num_reqs", 512}, {"num_active_loras", 9}});
  file["batches"].push_back({{"num_tokens", 3}, {"num_reqs", 513}});
  const Outcome outcome = graphs(file.dump(), "--format table");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  expect_80_columns(outcome.out);
  for (const char* part : {"FULL_AND_PIECEWISE", "FULL q=4", "LORA_NOT_CAPTURED", "INVALID_ARGUMENT"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
  }
  file["mode"] = "FULL";
  file["support"] = "UNIFORM_SINGLE_TOKEN_DECODE";
  EXPECT_NE(graphs(file.dump(), "--format table").out.find("FULL was asked for: "), std::string::npos);
  file["mode"] = "NONE";
  file["batches"] = Json::array();
  expect_80_columns(graphs(file.dump(), "--format table").out);
}

// ----------------------------------------------------------------------------------------------------- ranks --

TEST(Ranks, AnswersTheExampleOfTheFormat) {
  const Outcome outcome =
      ranks(std::string(R"({"num_tokens": [5, 3], "sp_size": 2, "max_chunk": null, "chunk_index": 0})"));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.json().dump(), Json::parse(R"({"schema": "fwdmeta.ranks/1", "status": "ok", "max_tokens": 5,
    "sum_tokens": 8, "sp_sizes": [3, 3, 2, 2], "cu_tokens": [3, 6, 8, 10], "chunk_sizes": null, "num_chunks": null})")
                                       .dump());
}

TEST(Ranks, DefaultsAndChunks) {
  const Json plain = ranks(Json{{"schema", kRanks}, {"num_tokens", {5, 3}}}).json();
  EXPECT_EQ(plain["sp_sizes"], Json({5, 3}));
  EXPECT_EQ(plain["cu_tokens"], Json({5, 8}));
  // B63, vllm.md §2.4.
  Json file = {{"num_tokens", {500, 200, 256}}, {"max_chunk", 256}};
  EXPECT_EQ(ranks(file).json()["chunk_sizes"], Json({256, 200, 256}));
  EXPECT_EQ(ranks(file).json()["num_chunks"], 2);
  file["chunk_index"] = 1;
  EXPECT_EQ(ranks(file).json()["chunk_sizes"], Json({244, 1, 1}));
  // B64, over the sequence-parallel sizes.
  file = {{"num_tokens", {0, 37}}, {"sp_size", 2}, {"max_chunk", 64}};
  EXPECT_EQ(ranks(file).json()["chunk_sizes"], Json({1, 1, 19, 19}));
  EXPECT_EQ(ranks(file).json()["sp_sizes"], Json({0, 0, 19, 19}));
}

Json agreement_file() {
  return Json::parse(R"({"table": [
      {"num_tokens": 12, "num_reqs": 4, "max_mode": "FULL", "query_len": 3, "wants_slices": false, "config": "0x1",
       "step": 7},
      {"num_tokens": 9, "num_reqs": 2, "max_mode": "FULL", "query_len": 0, "wants_slices": false, "config": "0x1",
       "step": 7}],
    "graphs": {"mode": "FULL_AND_PIECEWISE", "max_num_seqs": 8, "max_num_tokens": 8192, "query_lens": [3],
               "capture_sizes": [1, 2, 4, 8, 16]},
    "num_slices": 2})");
}

TEST(Ranks, Agree) {
  const Outcome outcome = ranks(agreement_file());
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.json().dump(), Json::parse(R"({"schema": "fwdmeta.ranks/1", "status": "ok", "max_tokens": 16,
    "sum_tokens": 32, "sp_sizes": [16, 16], "cu_tokens": [16, 32], "chunk_sizes": null, "num_chunks": null,
    "agreement": {"mode": "PIECEWISE", "num_tokens": [16, 16], "query_len": 0, "num_reqs": -1, "sliced": false,
                  "skip": false, "reason": "NOT_UNIFORM"}})")
                                       .dump());
}

TEST(Ranks, AgreeWithEveryKey) {
  Json file = agreement_file();
  file["table"] = {{{"num_tokens", 600}, {"num_reqs", 2}, {"wants_slices", true}, {"max_mode", "PIECEWISE"}},
                   {{"num_tokens", 800}, {"num_reqs", 1}, {"wants_slices", true}, {"config", "0x0"}, {"step", 0}}};
  file["sp_size"] = 3;
  file["max_chunk"] = 100;
  file["chunk_index"] = 2;
  file.erase("num_slices");  // 2
  const Json json = ranks(file).json();
  EXPECT_EQ(json["agreement"], Json::parse(R"({"mode": "NONE", "num_tokens": [800, 800], "query_len": 0,
    "num_reqs": -1, "sliced": true, "skip": false, "reason": "ABOVE_LARGEST"})"))
      << json["agreement"];
  EXPECT_EQ(json["sp_sizes"], Json({267, 267, 267, 267, 267, 267}));
  EXPECT_EQ(json["chunk_sizes"], Json({67, 67, 67, 67, 67, 67}));
  EXPECT_EQ(json["num_chunks"], 3);
  file["num_slices"] = 1;
  EXPECT_EQ(ranks(file).json()["agreement"]["num_tokens"], Json({600, 800}));
  for (Json& row : file["table"]) row["num_tokens"] = 0;
  EXPECT_EQ(ranks(file).json()["agreement"], Json::parse(R"({"mode": "NONE", "num_tokens": [0, 0], "query_len": 0,
    "num_reqs": -1, "sliced": false, "skip": true, "reason": "ZERO_TOKENS"})"));
}

TEST(Ranks, AMismatchCarriesItsRank) {
  Json file = agreement_file();
  file["table"].push_back(file["table"][0]);
  for (const auto& [key, value] : {std::pair<const char*, Json>{"config", "0xfFffffffffffffff"}, {"step", 8}}) {
    Json changed = file;
    changed["table"][2][key] = value;
    const Outcome outcome = ranks(changed);
    EXPECT_EQ(outcome.status, 1);
    const Json json = outcome.json();
    EXPECT_EQ(json["schema"], kRanks);
    EXPECT_EQ(json["status"], "error");
    EXPECT_EQ(json["code"], "RANK_MISMATCH");
    EXPECT_EQ(json["rank"], 2);
    EXPECT_EQ(json.size(), 5u);
    EXPECT_NE(outcome.err.find(json["message"].get<std::string>()), std::string::npos);
  }
}

TEST(Ranks, PassesOnWhatTheLibraryRefuses) {
  for (const Json& file :
       {Json{{"num_tokens", Json::array()}}, Json{{"num_tokens", {1, -1}}}, Json{{"num_tokens", {kPast}}},
        Json{{"num_tokens", {1}}, {"sp_size", 0}}, Json{{"num_tokens", {1}}, {"sp_size", kPast}},
        Json{{"num_tokens", {1}}, {"sp_size", INT64_MIN}}, Json{{"num_tokens", {1}}, {"max_chunk", 0}},
        Json{{"num_tokens", {1}}, {"max_chunk", INT64_MIN}},
        Json{{"num_tokens", {1}}, {"max_chunk", 4}, {"chunk_index", -1}}}) {
    SCOPED_TRACE(file.dump());
    expect_library_error(ranks(file), kRanks, "INVALID_ARGUMENT");
  }
  expect_library_error(ranks(Json{{"num_tokens", {1, 1}}, {"sp_size", kPast - 1}}), kRanks, "CAPACITY_EXCEEDED");
  struct Case {
    const char* pointer;
    Json value;
  };
  const Case cases[] = {{"/table", Json::array()},
                        {"/table/0/num_tokens", -1},
                        {"/table/1/num_reqs", 9},
                        {"/table/1/num_tokens", kPast},
                        {"/table/1/query_len", kPast},
                        {"/table/1/query_len", -1},
                        {"/num_slices", 0},
                        {"/num_slices", 17},
                        {"/graphs/max_num_seqs", 0}};
  for (const Case& refused : cases) {
    SCOPED_TRACE(std::string(refused.pointer) + " = " + refused.value.dump());
    Json file = agreement_file();
    file[Json::json_pointer(refused.pointer)] = refused.value;
    expect_library_error(ranks(file), kRanks, "INVALID_ARGUMENT");
  }
}

TEST(Ranks, RefusesWhatIsNotOfTheFormat) {
  const std::vector<RefusedInput> cases = {{"/schema", "fwdmeta.slices/1", "schema must be \"fwdmeta.ranks/1\""},
                                           {"/num_tokens", {1, 2}, "num_tokens is given beside table"},
                                           {"/ranks", 1, "unknown key \"ranks\""},
                                           {"/sp_size", "2", "sp_size must be an integer"},
                                           {"/max_chunk", true, "max_chunk must be an integer"},
                                           {"/table", 1, "table must be a list"},
                                           {"/table/0", 1, "a row of table must be an object"},
                                           {"/table/0/rank", 1, "unknown key \"rank\""},
                                           {"/table/0/num_tokens", nullptr, "lacks \"num_tokens\""},
                                           {"/table/0/max_mode", "FULL_AND_PIECEWISE", "unknown max_mode"},
                                           {"/table/0/wants_slices", 0, "wants_slices must be true or false"},
                                           {"/table/0/config", 1, "config must be a string"},
                                           {"/table/0/config", "1", "config is \"1\""},
                                           {"/table/0/config", "0x", "config is \"0x\""},
                                           {"/table/0/config", "0x-1", "config is \"0x-1\""},
                                           {"/table/0/config", "0x1g", "config is \"0x1g\""},
                                           {"/table/0/config", "0x11112222333344445", "config is \"0x1111"},
                                           {"/graphs", nullptr, "lacks \"graphs\""},
                                           {"/graphs/batches", Json::array(), "unknown key \"batches\" in graphs"},
                                           {"/graphs/mode", nullptr, "graphs lacks \"mode\""}};
  expect_refused_inputs(agreement_file(), cases, [](const Json& json) { return ranks(json); });
  expect_refused_input(ranks(Json::object()), "lacks \"num_tokens\"");
  expect_refused_input(ranks(Json{{"num_tokens", {1}}, {"num_slices", 2}}), "num_slices needs a table");
  expect_refused_input(ranks(Json{{"num_tokens", {1}}, {"graphs", Json::object()}}), "graphs needs a table");
  expect_refused_input(ranks(Json{{"num_tokens", 3}}), "num_tokens must be a list");
  expect_refused_input(ranks(std::string("{\"num_tokens\": [1.5]}")), "1.5 is not an integer");
}

TEST(Ranks, DrawsATable) {
  Json file = {{"num_tokens", Json(40, 2147483647)}, {"sp_size", 2}, {"max_chunk", 1000}};
  Outcome outcome = ranks(file.dump(), "--format table");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  expect_80_columns(outcome.out);
  EXPECT_NE(outcome.out.find("... 56 more"), std::string::npos) << outcome.out;
  file = agreement_file();
  file["sp_size"] = 2;
  file["max_chunk"] = 4;
  outcome = ranks(file.dump(), "--format table");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  expect_80_columns(outcome.out);
  EXPECT_NE(outcome.out.find("agreement: PIECEWISE (NOT_UNIFORM)"), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace fwdmeta_test
