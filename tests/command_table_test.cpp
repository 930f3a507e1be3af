// The tables of every subcommand on a terminal of 80 columns.
#include <cstdint>
#include <set>
#include <sstream>

#include "command_runner.h"

namespace fwdmeta_test {
namespace {

constexpr int64_t kMaxInt32 = 2147483647;
constexpr int64_t kMaxInt64 = INT64_MAX;

std::string example(const char* name) { return std::string(FWDMETA_SOURCE_DIR "/examples/") + name; }

// The table, of which no line is wider than the terminal or ends in a space.
std::string table(const std::string& arguments, const std::string& input = "") {
  const Outcome outcome = fwdmeta(arguments + " --backend host --format table", input);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80u) << line;
    EXPECT_TRUE(line.empty() || line.back() != ' ') << "\"" << line << "\"";
  }
  return outcome.out;
}
std::string table(const std::string& command, const Json& file, const std::string& options = "") {
  return table(command + " - " + options, file.dump());
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
}

TEST(Tables, OfABatch) {
  const std::string text = table("inspect " + quoted(example("batch.json")));
  expect_part(text,
              "\n     slot  role        encoder     decoder   this_time\n        0  decode            0          40");
  expect_part(text,
              "encoder: 4 thread blocks\n     slot  thread blocks  tiles\n        1  0..2           0..2   ###\n");
  expect_part(text, "\n  kv_batch_ids                  [1, 1, 5]\n");
  expect_part(text, "\n  is_padding                    [0, 0, 0, 0, 0, 0, 0, 0, 0, ..., 1] (36 values)\n");
  table("inspect " + quoted(example("batch.json")) + " --full");
  table("inspect " + quoted(example("batch.json")) + " --capacities");
}

TEST(Tables, OfABatchOfLargeNumbers) {
  const Json batch = Json::parse(R"({"schema": "fwdmeta.batch/1",
    "config": {"max_batch_size": 3, "max_num_tokens": 200000, "max_model_len": 2147483647, "num_q_heads": 64,
               "num_kv_heads": 1, "block_size": 65536, "max_num_kv_tokens": 2147483647},
    "batch": {"seq_lens_encoder": [200000, 2147483647, 9], "seq_lens_decoder": [2147283447, 2147483647, 2147483647],
              "seq_lens_this_time": [200000, 0, 0],
              "block_tables": [[2147483647], [], []], "input_ids": [[9223372036854775807, -9223372036854775808], [], []]}})");
  // 200000 marks do not fit: the bar ends in a plus.
  expect_part(table("inspect", batch), "#+\n");
  table("inspect", batch, "--capacities");
  Json many = batch;
  const std::vector<int64_t> idle(5000);
  many["config"]["max_batch_size"] = 5000;
  many["batch"] = {{"seq_lens_encoder", idle}, {"seq_lens_decoder", idle}, {"seq_lens_this_time", idle}};
  for (int slot = 0; slot < 5000; ++slot) many["batch"]["seq_lens_this_time"][slot] = slot % 7;
  expect_part(table("inspect", many), "  ... 4976 more\n");
}

TEST(Tables, OfAReplay) {
  const std::string text = table("replay " + quoted(example("trace.csv")) + " --max-batch 32 --check");
  expect_part(text, " us\n");
  expect_part(text, ", 0 differ\n");
  // The numbers end in one column.
  std::istringstream lines(text);
  std::set<size_t> ends;
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, 2, "  ") == 0) ends.insert(line.find_last_of("0123456789"));
  }
  EXPECT_EQ(ends.size(), 1u) << text;
}

TEST(Tables, OfGraphs) {
  Json file = Json::parse(R"({"mode": "FULL_AND_PIECEWISE", "max_num_seqs": 512, "max_num_tokens": 8192,
    "query_lens": [1, 2, 4], "max_loras": 8, "specialize_active_loras": true,
    "batches": [{"num_tokens": 3, "num_reqs": 3, "query_len": 1}]})");
  expect_part(table("graphs", file), "    0       3     3    1     0  FULL            4     4     0\n");
  for (const int64_t number : {kMaxInt32, kMaxInt64, INT64_MIN}) {
    file["batches"].push_back({{"num_tokens", number}, {"num_reqs", number}});
    file["batches"].push_back(
        {{"num_tokens", number}, {"num_reqs", number}, {"query_len", number}, {"num_active_loras", number}});
    file["batches"].push_back({{"num_tokens", number}, {"num_reqs", 1}, {"allowed", {"FULL"}}});
  }
  expect_part(table("graphs", file), "9.22E");
  file["mode"] = "FULL";
  file["support"] = "UNIFORM_SINGLE_TOKEN_DECODE";
  table("graphs", file);
}

TEST(Tables, OfRanks) {
  expect_part(table("ranks", Json{{"num_tokens", {5, 3}}, {"sp_size", 2}, {"max_chunk", 2}}),
              "  rank      tokens  sp rank        size         up to    in chunk\n");
  const std::string large = table(
      "ranks", Json{{"num_tokens", std::vector<int64_t>(8, kMaxInt32)}, {"sp_size", 1}, {"max_chunk", kMaxInt32}});
  expect_part(large, "17179869176");
  Json agreement = Json::parse(R"({"table": [
      {"num_tokens": 12, "num_reqs": 4, "max_mode": "FULL", "query_len": 3, "wants_slices": true, "config": "0x1"},
      {"num_tokens": 2147483647, "num_reqs": 1, "max_mode": "FULL", "query_len": 0, "wants_slices": true,
       "config": "0x1"}],
    "graphs": {"mode": "FULL_AND_PIECEWISE", "max_num_seqs": 8, "max_num_tokens": 2147483647}, "num_slices": 2,
    "max_chunk": 2147483647})");
  expect_part(table("ranks", agreement), "agreement: ");
}

TEST(Tables, OfSlices) {
  table("slices", Json{{"query_lens", {8, 8}}, {"seq_lens", {32, 40}}, {"num_slices", 2}});
  table("slices", Json{{"query_lens", {kMaxInt32 - 9, 1}},
                       {"seq_lens", {kMaxInt32, kMaxInt32}},
                       {"num_padded_tokens", kMaxInt32},
                       {"num_padded_reqs", 9}});
}

}  // namespace
}  // namespace fwdmeta_test
