// docs/formats.md against the command: its examples are answered as it says, its keys are known, those that it calls
// required are, and the others have the defaults that it gives.
#include <map>
#include <sstream>

#include "command_runner.h"

namespace fwdmeta_test {
namespace {

struct Example {
  std::string arguments;
  Json file, answer;
};

struct Key {
  std::string command;  // "inspect"
  std::string object;   // where in the file: "", "/config" or "/batch"
  std::string name, value;
};

struct Page {
  std::vector<Example> examples;
  std::vector<Key> keys;
};

// In the page's order: `<!-- fwdmeta ARGUMENTS -->` before a file, the next block is its answer;
// `<!-- answer of OPTION -->` before an answer that the same file has with the option. Rows of keys are
// | `key` | default | ... |.
Page read_page() {
  const std::map<std::string, std::string> commands = {{"## fwdmeta.batch/1", "inspect"},
                                                       {"## fwdmeta.graphs/1", "graphs"},
                                                       {"## fwdmeta.ranks/1", "ranks"},
                                                       {"## fwdmeta.slices/1", "slices"}};
  Page page;
  std::istringstream text(read_file(FWDMETA_SOURCE_DIR "/docs/formats.md"));
  std::string command, object, arguments, block, option;
  Json file;
  bool inside = false;
  for (std::string line; std::getline(text, line);) {
    if (line == "```json") {
      inside = true;
      block.clear();
    } else if (line == "```") {
      inside = false;
      if (!arguments.empty() && file.is_null()) {
        file = Json::parse(block);
      } else {
        page.examples.push_back({arguments + option, file, Json::parse(block)});
      }
    } else if (inside) {
      block += line + "\n";
    } else if (line.rfind("<!-- fwdmeta ", 0) == 0) {
      arguments = line.substr(13, line.size() - 13 - 4);
      option.clear();
      file = nullptr;
    } else if (line.rfind("<!-- answer of ", 0) == 0) {
      option = " " + line.substr(15, line.size() - 15 - 4);
    } else if (line.rfind("## ", 0) == 0) {
      const auto found = commands.find(line);
      command = found == commands.end() ? "" : found->second;
      object.clear();
    } else if (line.rfind("`config`, as", 0) == 0 || line.rfind("`batch`, as", 0) == 0) {
      object = "/" + line.substr(1, line.find('`', 1) - 1);
    } else if (!command.empty() && line.rfind("| `", 0) == 0) {
      const size_t end = line.find("` | ");
      const std::string cell = line.substr(end + 4, line.find(" |", end + 4) - end - 4);
      page.keys.push_back({command, object, line.substr(3, end - 3), cell});
    }
  }
  return page;
}

Outcome run(const std::string& arguments, const Json& file) {
  return fwdmeta(arguments + " --backend host --format json -", file.dump());
}

TEST(FormatsPage, ExamplesAreAnsweredAsItSays) {
  const Page page = read_page();
  EXPECT_EQ(page.examples.size(), 5u);
  for (const Example& example : page.examples) {
    SCOPED_TRACE(example.arguments);
    const Outcome outcome = run(example.arguments, example.file);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.json(), example.answer) << outcome.out;
  }
}

// A file of the command that has every required key.
Json file_of(const Page& page, const std::string& command) {
  if (command == "ranks") return Json{{"num_tokens", {3, 5}}};
  for (const Example& example : page.examples) {
    if (example.arguments == command) return example.file;
  }
  ADD_FAILURE() << "no example of " << command;
  return {};
}

TEST(FormatsPage, KeysAreRequiredOrHaveTheirDefault) {
  const Page page = read_page();
  EXPECT_GT(page.keys.size(), 40u);
  for (const Key& key : page.keys) {
    SCOPED_TRACE(key.command + " " + key.object + " " + key.name);
    Json without = file_of(page, key.command);
    without[Json::json_pointer(key.object)].erase(key.name);
    const Outcome left_out = run(key.command, without);
    if (key.value == "required") {
      expect_refused_input(left_out, "\"" + key.name + "\"");
      continue;
    }
    ASSERT_GT(key.value.size(), 2u) << key.value;
    Json with = without;
    with[Json::json_pointer(key.object)][key.name] = Json::parse(key.value.substr(1, key.value.size() - 2));
    const Outcome given = run(key.command, with);
    EXPECT_NE(given.status, 2) << given.err;
    EXPECT_EQ(given.status, left_out.status);
    EXPECT_EQ(given.out, left_out.out);
  }
}

}  // namespace
}  // namespace fwdmeta_test
