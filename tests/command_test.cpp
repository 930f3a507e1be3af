// Runs the built command and looks at what a caller sees: standard output, standard error, exit status.
#include <cstdlib>

#include "command_runner.h"

namespace fwdmeta_test {
namespace {

std::string example(const char* name) { return std::string(FWDMETA_SOURCE_DIR "/examples/") + name; }

Outcome inspect(const std::string& text, const std::string& options = "") {
  return fwdmeta("inspect - --backend host --format json " + options, text);
}
Outcome inspect(const Json& batch, const std::string& options = "") { return inspect(batch.dump(), options); }

Outcome replay(const std::string& trace, const std::string& options = "") {
  return fwdmeta("replay - --backend host --format json " + options, trace);
}

// A decoding slot, an idle one with stale lengths, a prompt chunk behind one full page and a bit.
Json small_batch() {
  return Json::parse(R"({
    "schema": "fwdmeta.batch/1",
    "config": {"max_batch_size": 4, "max_num_tokens": 64, "max_model_len": 128, "num_q_heads": 8, "num_kv_heads": 1,
               "block_size": 16},
    "batch": {"seq_lens_encoder": [0, 9, 20], "seq_lens_decoder": [10, 99, 18], "seq_lens_this_time": [1, 0, 20]}})");
}

// ---------------------------------------------------------------------------------------------------- usage --

TEST(Command, PrintsItsVersion) {
  const Outcome outcome = fwdmeta("--version");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out, "fwdmeta 1.0.0\n");
}

constexpr const char* kSubcommands[] = {"inspect", "replay", "graphs", "ranks", "slices"};

TEST(Command, ExplainsItself) {
  const Outcome whole = fwdmeta("--help");
  EXPECT_EQ(whole.status, 0);
  for (const std::string subcommand : kSubcommands) {
    SCOPED_TRACE(subcommand);
    EXPECT_NE(whole.out.find("\n  " + subcommand + " "), std::string::npos) << whole.out;
    const Outcome outcome = fwdmeta(subcommand + " --help");
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(outcome.err, "");
    for (const auto& fragment : {"fwdmeta " + subcommand, std::string("--format"), std::string("--backend")}) {
      EXPECT_NE(outcome.out.find(fragment), std::string::npos) << fragment << " in\n" << outcome.out;
    }
  }
}

// What packages are made with is no command of a user: the help leaves it out. Its content has tests of its own.
TEST(Command, PrintsItsCompletionAndItsManualPage) {
  for (const char* arguments : {"completion bash", "man"}) {
    const Outcome outcome = fwdmeta(arguments);
    EXPECT_EQ(outcome.status, 0) << arguments;
    EXPECT_NE(outcome.out.find("inspect"), std::string::npos) << arguments;
    EXPECT_EQ(outcome.err, "") << arguments;
  }
  EXPECT_EQ(fwdmeta("--help").out.find("completion"), std::string::npos);
  for (const char* arguments : {"completion", "completion zsh", "man 1"}) {
    const Outcome outcome = fwdmeta(arguments);
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
  }
}

TEST(Command, RefusesWrongUsage) {
  for (const char* arguments : {"",
                                "frobnicate",
                                "inspect",
                                "replay",
                                "graphs",
                                "ranks",
                                "slices",
                                "graphs - -",
                                "ranks - -",
                                "slices - -",
                                "graphs - --steps 1",
                                "ranks - --capacities",
                                "slices - --full",
                                "graphs - --format yaml",
                                "inspect - --format yaml",
                                "inspect - --backend tpu",
                                "inspect - -",
                                "replay - --max-batch 0",
                                "replay - --max-batch 1.5",
                                "replay - --max-batch 010x",
                                "replay - --spec -1",
                                "replay - --steps 9223372036854775808",
                                "replay - --pool-blocks 2147483648",
                                "replay - --chunk"}) {
    const Outcome outcome = fwdmeta(arguments, small_batch().dump());
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_NE(outcome.err, "") << arguments;
  }
}

TEST(Command, NamesAFileThatIsNotThere) {
  for (const std::string subcommand : kSubcommands) {
    expect_refused_input(fwdmeta(subcommand + " /nonexistent/file"), "/nonexistent/file");
  }
}

// -------------------------------------------------------------------------------------------------- inspect --

TEST(Inspect, AnswersWithCountsAndFields) {
  const Outcome outcome = inspect(small_batch());
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json json = outcome.json();
  EXPECT_EQ(json, Json::parse(R"({
    "schema": "fwdmeta.result/1", "status": "ok", "backend": "host",
    "counts": {"batch_size": 3, "num_live": 2, "num_prefill": 1, "num_decode": 1, "num_tokens": 21,
               "num_padded_tokens": 21, "num_kv_tokens": 49, "num_attn_kv_tokens": 39, "decoder_num_blocks": 1,
               "encoder_num_blocks": 3, "kv_num_blocks": 2, "pre_cache_num_blocks": 2, "num_output_tokens": 2,
               "num_invalid_slots": 0, "num_invalid_ids": 0, "warnings": 0},
    "fields": {"max_len_tensor_cpu": [20, 20, 99, 38, 10, 38, 0, 0, 0], "decoder_chunk_size_device": [0],
               "decoder_batch_ids": [0], "decoder_tile_ids_per_batch": [0], "decoder_cu_tiles": [0, 1, 1, 1],
               "encoder_batch_ids": [2, 2, 2], "encoder_tile_ids_per_batch": [0, 1, 2],
               "encoder_cu_tiles": [0, 0, 0, 3],
               "kv_batch_ids": [2, 2], "kv_tile_ids_per_batch": [0, 1], "kv_cu_tiles": [0, 0, 0, 2],
               "pre_cache_batch_ids": [2, 2], "pre_cache_tile_ids_per_batch": [0, 1],
               "pre_cache_cu_tiles": [0, 0, 0, 2],
               "cu_seqlens_q": [0, 1, 1, 21], "cu_seqlens_k": [0, 11, 11, 49], "attn_cu_seqlens_k": [0, 1, 1, 39],
               "seq_lens_kv": [11, 0, 38],
               "batch_id_per_token": [0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2],
               "position_ids": [10, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37],
               "mask_encoder_batch": [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
               "is_padding": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
               "last_token_index": [0, -1, 20], "seq_lens_output": [1, 0, 1], "cu_seqlens_q_output": [0, 1, 1, 2],
               "batch_id_per_token_output": [0, 2], "logits_indices": [0, 20]}})"));
}

TEST(Inspect, ShowsSlotsAndIdsOfRaggedRows) {
  Json batch = small_batch();
  batch["batch"]["num_padded_tokens"] = 23;
  batch["batch"]["block_tables"] = {{7}, Json::array(), {2, 3}};
  batch["batch"]["input_ids"] = {
      Json::array(), Json::array(), {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19}};
  batch["batch"]["draft_tokens"] = {{77}, Json::array(), Json::array()};
  const Json json = inspect(batch).json();
  // Positions 18..31 are on the second page of the row, 32..37 on a third that it lacks.
  EXPECT_EQ(json["fields"]["slot_mapping"],
            Json({122, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, -1, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(json["fields"]["ids_remove_padding"],
            Json({77, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 0, 0, 0}));
  EXPECT_EQ(json["counts"]["num_invalid_slots"], 6);
  EXPECT_EQ(json["counts"]["num_invalid_ids"], 1);
  EXPECT_EQ(json["counts"]["warnings"], 3);
}

TEST(Inspect, ShowsAFieldOnlyWithItsInput) {
  Json batch = small_batch();
  EXPECT_FALSE(inspect(batch).json()["fields"].contains("slot_mapping"));
  EXPECT_FALSE(inspect(batch).json()["fields"].contains("ids_remove_padding"));
  EXPECT_FALSE(inspect(batch).json()["fields"].contains("seq_lens_kv_local"));
  batch["batch"]["draft_tokens"] = {{5}, Json::array(), Json::array()};
  batch["config"]["cp_size"] = 2;
  batch["config"]["cp_interleave"] = 16;
  const Json fields = inspect(batch).json()["fields"];
  EXPECT_EQ(fields["seq_lens_kv_local"], Json({11, 0, 22}));
  EXPECT_TRUE(fields.contains("ids_remove_padding"));
}

TEST(Inspect, GivesOneSlotMappingPerGroup) {
  Json batch = small_batch();
  batch["config"]["groups"] = {{{"block_size", 16}},
                               {{"block_size", 64}, {"kernel_block_size", 32}, {"replicated", true}}};
  batch["batch"]["seq_lens_encoder"] = batch["batch"]["seq_lens_this_time"] = {0, 0, 3};
  batch["batch"]["block_tables"] = {{Json::array(), Json::array(), {4, 5}}, {Json::array(), Json::array(), {9}}};
  EXPECT_EQ(inspect(batch).json()["fields"]["slot_mapping"], Json({{82, 83, 84}, {306, 307, 308}}));
}

TEST(Inspect, TakesNullAsLeftOut) {
  Json batch = small_batch();
  const Outcome plain = inspect(batch);
  for (const char* key : {"max_num_kv_tokens", "num_sms", "attention", "kernel_block_size", "groups"}) {
    batch["config"][key] = nullptr;
  }
  for (const char* key : {"block_tables", "input_ids", "draft_tokens", "num_padded_tokens"})
    batch["batch"][key] = nullptr;
  batch["bucket"] = nullptr;
  EXPECT_EQ(inspect(batch).out, plain.out);
  batch["config"]["num_q_heads"] = nullptr;
  expect_refused_input(inspect(batch), "num_q_heads");
}

TEST(Inspect, ShowsTailsWhenFull) {
  const Json full = inspect(small_batch(), "--full").json()["fields"];
  const Json capacities = inspect(small_batch(), "--capacities").json()["capacities"];
  for (const std::string mapping : {"decoder", "encoder", "kv", "pre_cache"}) {
    const auto slots = full[mapping + "_batch_ids"].get<std::vector<int64_t>>();
    ASSERT_EQ(slots.size(), capacities[mapping].get<size_t>()) << mapping;
    EXPECT_EQ(slots.back(), -1) << mapping;
  }
  EXPECT_EQ(full["cu_seqlens_q"], Json({0, 1, 1, 21, 21}));
  EXPECT_EQ(full["position_ids"].size(), 64u);
}

TEST(Inspect, AcceptsAnEmptyBatch) {
  Json batch = small_batch();
  batch["batch"] = {{"seq_lens_encoder", Json::array()},
                    {"seq_lens_decoder", Json::array()},
                    {"seq_lens_this_time", Json::array()},
                    {"block_tables", Json::array()}};
  const Json json = inspect(batch).json();
  EXPECT_EQ(json["status"], "ok");
  EXPECT_EQ(json["counts"]["num_tokens"], 0);
  EXPECT_EQ(json["fields"]["slot_mapping"], Json::array());
  EXPECT_EQ(json["fields"]["cu_seqlens_q"], Json({0}));
}

TEST(Inspect, PrintsCapacitiesAndBucketBounds) {
  Json batch = small_batch();
  const Json plain = inspect(batch, "--capacities").json();
  EXPECT_EQ(plain, Json::parse(R"({"schema": "fwdmeta.capacities/1", "status": "ok",
    "capacities": {"decoder": 35, "encoder": 11, "kv": 11, "pre_cache": 32, "block_table_width": 8}})"));
  batch["bucket"] = {{"slots", 2}, {"tokens", 16}};
  EXPECT_EQ(inspect(batch, "--capacities").json()["bucket"],
            Json::parse(R"({"decoder": 9, "encoder": 3, "kv": 4, "pre_cache": 16, "block_table_width": 8})"));
  batch["bucket"]["slots"] = 5;
  expect_library_error(inspect(batch, "--capacities"), "fwdmeta.capacities/1", "CAPACITY_EXCEEDED");
  batch["bucket"]["slots"] = 0;
  expect_library_error(inspect(batch, "--capacities"), "fwdmeta.capacities/1", "INVALID_ARGUMENT");
}

TEST(Inspect, PassesOnWhatTheLibraryRefuses) {
  struct Case {
    const char* pointer;
    Json value;
    const char* code;
  };
  const Case cases[] = {
      {"/config/max_batch_size", 0, "INVALID_ARGUMENT"},
      {"/config/max_batch_size", 2, "CAPACITY_EXCEEDED"},
      {"/config/max_model_len", int64_t{1} << 40, "INVALID_ARGUMENT"},
      {"/config/num_q_heads", 0, "INVALID_ARGUMENT"},
      {"/config/num_sms", INT64_MIN, "INVALID_ARGUMENT"},
      {"/config/groups", Json::array(), "INVALID_ARGUMENT"},
      {"/config/groups", Json(9, Json::object()), "INVALID_ARGUMENT"},
      {"/batch/num_padded_tokens", -2, "INVALID_ARGUMENT"},
      {"/batch/num_padded_tokens", 20, "CAPACITY_EXCEEDED"},
      {"/batch/num_padded_tokens", int64_t{1} << 40, "CAPACITY_EXCEEDED"},
      {"/batch/seq_lens_this_time/0", -1, "INVALID_BATCH"},
      {"/batch/seq_lens_this_time/0", int64_t{1} << 31, "INVALID_BATCH"},
      {"/batch/seq_lens_decoder/1", INT64_MIN, "INVALID_BATCH"},
      {"/batch/block_tables", {{1}, {2}, {int64_t{1} << 31}}, "INVALID_ARGUMENT"},
  };
  for (const Case& refused : cases) {
    SCOPED_TRACE(std::string(refused.pointer) + " = " + refused.value.dump());
    Json batch = small_batch();
    batch[Json::json_pointer(refused.pointer)] = refused.value;
    expect_library_error(inspect(batch), "fwdmeta.result/1", refused.code);
  }
}

TEST(Inspect, JudgesTheBatchSizeBeforeALengthPastInt32) {
  Json batch = small_batch();
  batch["config"]["max_batch_size"] = 2;
  batch["batch"]["seq_lens_decoder"][0] = int64_t{1} << 40;
  expect_library_error(inspect(batch), "fwdmeta.result/1", "CAPACITY_EXCEEDED");
}

TEST(Inspect, PointsAtUnreadableText) {
  const std::string good = small_batch().dump();
  expect_refused_input(inspect(std::string()), "<stdin>:1:1: ");
  expect_refused_input(inspect(std::string("{\n  \"schema\": \"fwdmeta.bat")), "<stdin>:2:25: ");
  expect_refused_input(inspect(good.substr(0, good.size() - 1)), "<stdin>:1:" + std::to_string(good.size()) + ": ");
  expect_refused_input(inspect(good + "\n{}"), "<stdin>:2:1: ");
  expect_refused_input(inspect(std::string("[1, 2]")), "<stdin>:1:1: the batch file must be an object");
  expect_refused_input(inspect(std::string("{\"config\": {},\n \"config\": {}}")),
                       "<stdin>:2:2: key \"config\" is given twice");
  expect_refused_input(inspect(good + std::string(1, '\0') + " trailing"), "a NUL byte");
  std::string many = "{";
  for (int i = 0; i < 100000; ++i) many += "\"k" + std::to_string(i) + "\": 1, ";
  expect_refused_input(inspect(many + "\"end\": 1}"), "too many keys");
  const Outcome hostile = inspect("{\"\\u001b[31m" + std::string(1 << 20, 'x') + "\": 1}");
  expect_refused_input(hostile, "unknown key \"?[31mxxx");
  EXPECT_LT(hostile.err.size(), 500u);
  EXPECT_EQ(hostile.err.find('\x1b'), std::string::npos);
  const std::string path = scratch_file("bad.json", "\n\n nonsense");
  expect_refused_input(fwdmeta("inspect " + quoted(path)), path + ":3:");
}

TEST(Inspect, RefusesNumbersThatAreNoInt64) {
  for (const char* number : {"1.0", "0.5", "1e3", "9223372036854775808", "-9223372036854775809",
                             "123456789012345678901234567890", "1e999"}) {
    SCOPED_TRACE(number);
    const std::string text =
        "{\"schema\": \"fwdmeta.batch/1\",\n \"config\": {\"max_batch_size\": " + std::string(number) + "}}";
    expect_refused_input(inspect(text), number);
    expect_refused_input(inspect(text), "<stdin>:2:");
  }
}

TEST(Inspect, RefusesWhatIsNotOfTheFormat) {
  struct Case {
    const char* pointer;
    Json value;
    const char* fragment;
  };
  const Case cases[] = {
      {"/schema", "fwdmeta.batch/2", "fwdmeta.batch/1"},
      {"/schema", 1, "schema must be a string"},
      {"/extra", 1, "unknown key \"extra\""},
      {"/config/max_batch", 1, "unknown key \"max_batch\""},
      {"/config/attention", "flash", "flash"},
      {"/config/max_batch_size", "4", "max_batch_size must be an integer"},
      {"/config/max_batch_size", true, "max_batch_size must be an integer"},
      {"/config/groups", Json::object(), "groups must be a list"},
      {"/config/groups", {{{"size", 1}}}, "unknown key \"size\""},
      {"/config/groups", {{{"replicated", 1}}}, "replicated must be true or false"},
      {"/config", Json::array(), "config must be an object"},
      {"/batch/seq_lens", Json::array(), "unknown key \"seq_lens\""},
      {"/batch/seq_lens_encoder", 3, "seq_lens_encoder must be a list"},
      {"/batch/seq_lens_encoder", {1, 2}, "seq_lens_decoder has 3 entries"},
      {"/batch/seq_lens_encoder/1", nullptr, "an entry of seq_lens_encoder must be an integer"},
      {"/batch/block_tables", {{1}, {2}}, "block_tables has 2 entries"},
      {"/batch/block_tables", {1, 2, 3}, "a row of block_tables must be a list"},
      {"/batch/input_ids", {{1}, {2}, {"..."}}, "an entry of a row of input_ids must be an integer"},
      {"/batch/draft_tokens", Json::array(), "draft_tokens has 0 entries"},
      {"/bucket", {{"slot", 1}}, "unknown key \"slot\""},
  };
  for (const Case& refused : cases) {
    SCOPED_TRACE(std::string(refused.pointer) + " = " + refused.value.dump());
    Json batch = small_batch();
    batch[Json::json_pointer(refused.pointer)] = refused.value;
    expect_refused_input(inspect(batch), refused.fragment);
  }
  const Json whole = small_batch();
  for (const char* section : {"config", "batch"}) {
    for (const auto& [key, value] : whole[section].items()) {
      SCOPED_TRACE(key);
      Json batch = small_batch();
      batch[section].erase(key);
      if (key != "block_size") expect_refused_input(inspect(batch), section + (" lacks \"" + key + "\""));
    }
  }
  for (const char* section : {"schema", "config", "batch"}) {
    Json batch = small_batch();
    batch.erase(section);
    expect_refused_input(inspect(batch), "lacks \"" + std::string(section) + "\"");
  }
}

TEST(Inspect, WantsOneTablePerGroup) {
  Json batch = small_batch();
  batch["config"]["groups"] = {{{"block_size", 16}}, {{"block_size", 32}}};
  batch["batch"]["block_tables"] = Json::array({{{1}, {2}, {3}}});
  expect_refused_input(inspect(batch), "block_tables has 1 entries");
}

TEST(Inspect, DrawsATable) {
  const Outcome outcome = fwdmeta("inspect " + quoted(example("batch.json")) + " --backend host --format table");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  // The encoder's mapping: slot 1 has its thread blocks 0 to 2.
  EXPECT_NE(outcome.out.find("\n        1  0..2           0..2   ###\n"), std::string::npos) << outcome.out;
}

TEST(Inspect, AnswersInJsonWhenNobodyWatches) {
  EXPECT_EQ(Json::parse(fwdmeta("inspect " + quoted(example("batch.json")) + " --backend host").out)["status"], "ok");
}

// --------------------------------------------------------------------------------------------------- replay --

constexpr const char* kTrace =
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-01-01 00:00:00.5,100,10\n"
    "2024-01-01 00:00:00.1,1,1\n"
    "2024-01-01 00:00:01.0,0,0\n"
    "2024-01-01 00:00:02.0,5000,30\n";
// Each request: its prompt, and all output tokens but the last, which is never fed back.
constexpr int64_t kTraceTokens = (100 + 9) + 1 + 1 + (5000 + 29);

TEST(Replay, AnswersWithTheseKeys) {
  const Outcome outcome = replay(kTrace, "--check");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json json = outcome.json();
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"schema", "status", "steps", "tokens", "decoder_tiles", "encoder_tiles",
                                            "kv_tiles", "mismatches", "build_us", "backend", "checked_arrays"}));
  EXPECT_EQ(json["schema"], "fwdmeta.replay/1");
  EXPECT_EQ(json["status"], "ok");
  EXPECT_EQ(json["tokens"], kTraceTokens);
  EXPECT_EQ(json["mismatches"], 0);
  EXPECT_GT(json["checked_arrays"], json["steps"]);
  EXPECT_LE(json["build_us"]["median"], json["build_us"]["p99"]);
  EXPECT_LE(json["build_us"]["p99"], json["build_us"]["max"]);
}

TEST(Replay, SplitsPromptsIntoChunks) {
  // 5000 tokens in chunks of 100 are 50 steps, the other requests fit beside them, and 29 decode steps follow.
  EXPECT_EQ(replay(kTrace, "--chunk 100").json()["steps"], 50 + 29);
  EXPECT_EQ(replay(kTrace, "--chunk 5000").json()["steps"], 1 + 29);
}

TEST(Replay, KeepsToTheTokenBudget) {
  const Json json = replay(kTrace, "--token-budget 7 --check").json();
  EXPECT_EQ(json["tokens"], kTraceTokens);
  EXPECT_GE(json["steps"], (kTraceTokens + 6) / 7);
  EXPECT_EQ(json["mismatches"], 0);
}

TEST(Replay, ReadsBothFormatsAlike) {
  const std::string json_lines =
      "{\"timestamp\": 500, \"input_length\": 100, \"output_length\": 10, \"hash_ids\": [1, 2]}\n"
      "{\"timestamp\": 100.5, \"input_length\": 1, \"output_length\": 1}\r\n"
      "\n"
      "{\"timestamp\": 1000, \"input_length\": 0, \"output_length\": 0}\n"
      "{\"timestamp\": 2000, \"input_length\": 5000, \"output_length\": 30}";
  std::string crlf = kTrace;
  for (size_t at = 0; (at = crlf.find('\n', at)) != std::string::npos; at += 2) crlf.replace(at, 1, "\r\n");
  Json expected = replay(kTrace, "--max-batch 2 --spec 2").json();
  for (const std::string& trace : {json_lines, crlf}) {
    Json json = replay(trace, "--max-batch 2 --spec 2").json();
    json["build_us"] = expected["build_us"];
    EXPECT_EQ(json, expected);
  }
}

TEST(Replay, DependsOnNothingButItsSeed) {
  const auto run = [](const std::string& seed) {
    Json json = replay(kTrace, "--spec 3 --seed " + seed).json();
    json.erase("build_us");
    return json;
  };
  EXPECT_EQ(run("1"), run("1"));
  EXPECT_NE(run("1"), run("2"));
}

TEST(Replay, PreemptsTheNewestWhenThePoolIsDry) {
  std::string trace = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  int64_t tokens = 0;
  for (int i = 0; i < 12; ++i) {
    trace += std::to_string(i) + ",60," + std::to_string(100 + i) + "\n";
    tokens += 60 + 100 + i - 1;
  }
  const Json roomy = replay(trace, "--block-size 16 --max-batch 12 --check").json();
  const Json tight = replay(trace, "--block-size 16 --max-batch 12 --pool-blocks 25 --check").json();
  EXPECT_EQ(roomy["tokens"], tokens);
  EXPECT_GT(tight["tokens"], tokens);  // preempted requests are prefilled again
  EXPECT_GT(tight["steps"], roomy["steps"]);
  EXPECT_EQ(tight["mismatches"], 0);
  expect_refused_input(replay(trace, "--block-size 16 --pool-blocks 10"), "--pool-blocks 10");
}

TEST(Replay, StopsWhenToldTo) {
  EXPECT_EQ(replay(kTrace, "--steps 3").json()["steps"], 3);
  EXPECT_EQ(replay("TIMESTAMP,ContextTokens,GeneratedTokens\n").json()["steps"], 0);
}

TEST(Replay, CutsRequestsToTheModelLength) {
  const Json json = replay(kTrace, "--max-model-len 105 --check").json();
  EXPECT_EQ(json["tokens"], (100 + 5) + 1 + 1 + 105);
  EXPECT_EQ(json["mismatches"], 0);
}

TEST(Replay, PointsAtUnreadableLines) {
  const std::string header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  for (const std::string line : {"2024-01-01 00:00:00,1", "2024-01-01 00:00:00,1,2,3", "yesterday,1,2", "0,1.5,2",
                                 "0,-1,2", "0,1,9223372036854775808", "0,,2", "{}"}) {
    expect_refused_input(replay(header + "0,1,2\n" + line + "\n"), "<stdin>:3: ");
  }
  for (const std::string line :
       {"{\"timestamp\": 1}", "{\"timestamp\": 1, \"input_length\": 1.5, \"output_length\": 1}", "{\"timestamp\"", "[]",
        "{\"timestamp\": 1, \"input_length\": 18446744073709551615, \"output_length\": 1}",
        "{\"input_length\": 1, \"output_length\": 1}"}) {
    expect_refused_input(replay("{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1}\n" + line + "\n"),
                         "<stdin>:2: ");
  }
  expect_refused_input(replay("a,b,c\n"), "<stdin>:1: ");
  expect_refused_input(replay(""), "<stdin>:1: ");
}

TEST(Replay, PassesOnWhatTheLibraryRefuses) {
  expect_library_error(replay(kTrace, "--max-batch 2147483648"), "fwdmeta.replay/1", "INVALID_ARGUMENT");
  expect_library_error(replay(kTrace, "--num-q-heads 3 --num-kv-heads 2"), "fwdmeta.replay/1", "INVALID_ARGUMENT");
  expect_library_error(replay("TIMESTAMP,ContextTokens,GeneratedTokens\n0,9223372036854775807,9223372036854775807\n"),
                       "fwdmeta.replay/1", "INVALID_ARGUMENT");
}

TEST(Replay, PrintsATable) {
  const Outcome outcome = fwdmeta("replay - --backend host --format table --check", kTrace);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("0 differ"), std::string::npos) << outcome.out;
}

// ------------------------------------------------------------------------------------------------- examples --

TEST(Examples, TheTraceIsWhatItsGeneratorMakes) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3";
  const std::string path = scratch_file("trace.csv", "");
  ASSERT_EQ(std::system(("python3 " + quoted(example("make_trace.py")) + " >" + quoted(path)).c_str()), 0);
  EXPECT_EQ(read_file(path), read_file(example("trace.csv")));
}

TEST(Examples, TheTraceReplaysWithoutAMismatch) {
  const Json json =
      fwdmeta("replay " + quoted(example("trace.csv")) + " --backend host --spec 3 --max-batch 32 --check").json();
  EXPECT_EQ(json["status"], "ok");
  EXPECT_EQ(json["mismatches"], 0);
}

}  // namespace
}  // namespace fwdmeta_test
