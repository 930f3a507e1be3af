// Runs the built command and keeps what a caller sees of it.
#ifndef FWDMETA_TESTS_COMMAND_RUNNER_H_
#define FWDMETA_TESTS_COMMAND_RUNNER_H_

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fwdmeta_test {

using Json = nlohmann::ordered_json;

struct Outcome {
  int status;
  std::string out;
  std::string err;
  Json json() const { return Json::parse(out); }
};

inline std::string quoted(const std::string& text) { return "'" + text + "'"; }

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::string scratch_file(const std::string& name, const std::string& content) {
  const std::string path = testing::TempDir() + "fwdmeta_command_" + std::to_string(getpid()) + "_" + name;
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

inline Outcome fwdmeta(const std::string& arguments, const std::string& input = "") {
  const std::string in = scratch_file("stdin", input), err = scratch_file("stderr", "");
  const std::string line = quoted(FWDMETA_COMMAND) + " " + arguments + " <" + quoted(in) + " 2>" + quoted(err);
  FILE* pipe = popen(line.c_str(), "r");
  std::string out;
  char block[4096];
  while (const size_t size = fread(block, 1, sizeof block, pipe)) out.append(block, size);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, out, read_file(err)};
}

inline void expect_refused_input(const Outcome& outcome, const std::string& fragment) {
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_NE(outcome.err.find(fragment), std::string::npos) << outcome.err;
}

// A file that has `value` at `pointer` is refused as unreadable, with a message that has `fragment`.
struct RefusedInput {
  const char* pointer;
  Json value;
  const char* fragment;
};
template <class Run>
void expect_refused_inputs(const Json& file, const std::vector<RefusedInput>& cases, Run run) {
  for (const RefusedInput& refused : cases) {
    SCOPED_TRACE(std::string(refused.pointer) + " = " + refused.value.dump());
    Json changed = file;
    changed[Json::json_pointer(refused.pointer)] = refused.value;
    expect_refused_input(run(changed), refused.fragment);
  }
}

inline void expect_library_error(const Outcome& outcome, const char* schema, const char* code) {
  EXPECT_EQ(outcome.status, 1);
  const Json json = outcome.json();
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"schema", "status", "code", "message"}));
  EXPECT_EQ(json["schema"], schema);
  EXPECT_EQ(json["status"], "error");
  EXPECT_EQ(json["code"], code) << json["message"];
  EXPECT_NE(outcome.err.find(json["message"].get<std::string>()), std::string::npos) << outcome.err;
}

}  // namespace fwdmeta_test

#endif  // FWDMETA_TESTS_COMMAND_RUNNER_H_
