#include <fwdmeta.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <functional>
#include <iostream>
#include <limits>
#include <new>
#include <string>

#include "errors.h"
#include "graphs.h"
#include "inspect_output.h"
#include "inspect_picture.h"
#include "ranks.h"
#include "replay.h"
#include "replay_picture.h"
#include "slices.h"
#include "trace.h"
#include "usage.h"

namespace fwdmeta::command {

namespace {

constexpr int kLibraryRefused = 1;
constexpr int kBadInput = 2;

// A subcommand's result as JSON and, where another format is asked for, in that.
struct Answer {
  Json json;
  std::string other;
};

struct CommonOptions {
  std::string format;
  std::string backend = "auto";

  void add_to(CLI::App& app, bool has_picture = false) {
    const std::string choices = has_picture ? "json, table for people, or svg, a picture" : "json, or table for people";
    app.add_option("--format", format, choices + " (default: table on a terminal, else json)")
        ->check(has_picture ? CLI::IsMember({"json", "table", "svg"}) : CLI::IsMember({"json", "table"}));
    app.add_option("--backend", backend, "auto, host or cuda")
        ->check(CLI::IsMember({"auto", "host", "cuda"}))
        ->capture_default_str();
  }

  bool as_picture() const { return format == "svg"; }
  bool as_json() const { return format.empty() ? isatty(STDOUT_FILENO) != 1 : format == "json"; }

  fwdmeta_backend_t backend_id() const {
    if (backend == "auto") return FWDMETA_BACKEND_AUTO;
    return backend == "host" ? FWDMETA_BACKEND_HOST : FWDMETA_BACKEND_CUDA;
  }
};

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

// A decimal int64. CLI11's own conversion reads octal, and saturates past int64.
void add_integer(CLI::App& app, const std::string& name, const std::string& description, int64_t least, int64_t most,
                 const std::function<void(int64_t)>& set) {
  const auto parse = [=](const std::string& text) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
      throw CLI::ValidationError(
          name, text + " is not an integer from " + std::to_string(least) + " to " + std::to_string(most));
    }
    set(value);
  };
  app.add_option_function<std::string>(name, parse, description)->type_name("INT");
}

void add_integer(CLI::App& app, const std::string& name, const std::string& description, int64_t least,
                 int64_t& value) {
  add_integer(app, name, description + " [" + std::to_string(value) + "]", least, kMaxInt64,
              [&value](int64_t given) { value = given; });
}

std::string version() {
  const int32_t version = fwdmeta_version();
  return "fwdmeta " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

int print(const std::string& text, int status) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return status;
  std::cerr << "fwdmeta: cannot write to standard output\n";
  return kLibraryRefused;
}

int refuse(const Json& json) {
  std::cerr << "fwdmeta: " << json["code"].get<std::string>() << ": " << json["message"].get<std::string>() << "\n";
  return print(to_text(json), kLibraryRefused);
}

int answer_with(const char* schema, const CommonOptions& options, const std::function<Answer()>& make) {
  try {
    const Answer result = make();
    if (result.json["status"] == "error") return refuse(result.json);
    return print(options.as_json() ? to_text(result.json) : result.other, 0);
  } catch (const InputError& error) {
    std::cerr << "fwdmeta: " << error.what() << "\n";
    return kBadInput;
  } catch (const LibraryError& error) {
    return refuse(error_answer(schema, error.status(), error.what()));
  } catch (const std::bad_alloc&) {
    return refuse(error_answer(schema, FWDMETA_OUT_OF_MEMORY, "not enough host memory"));
  }
}

struct InspectCommand {
  CommonOptions common;
  std::string path;
  bool full = false;
  bool capacities = false;

  CLI::App* add_to(CLI::App& app) {
    CLI::App* command = app.add_subcommand("inspect", "Build one batch and show everything that the build wrote");
    command->add_option("BATCH", path, "a fwdmeta.batch/1 file, or - for standard input")->required();
    common.add_to(*command, true);
    command->add_flag("--full", full, "show arrays up to their capacity, tails included");
    command->add_flag("--capacities", capacities, "show the capacities and the bucket's bounds, and build nothing");
    return command;
  }

  int run() const {
    return answer_with(capacities ? kCapacitiesSchema : kResultSchema, common, [&] {
      const BatchFile file = read_batch_file(path);
      if (capacities) {
        if (common.as_picture()) throw InputError("--capacities has no picture, only json and table");
        const CapacityReport report = inspect_capacities(file, common.backend_id());
        return Answer{to_json(report), to_table(report)};
      }
      const Inspection inspection = inspect(file, common.backend_id(), full);
      const std::string other = common.as_picture()
                                    ? to_picture(inspection, file, inspect_capacities(file, common.backend_id()))
                                    : to_table(inspection, file);
      return Answer{to_json(inspection, file.groups.has_value()), other};
    });
  }
};

struct ReplayCommand {
  CommonOptions common;
  std::string path;
  ReplayOptions options;

  CLI::App* add_to(CLI::App& app) {
    CLI::App* command = app.add_subcommand(
        "replay",
        "Serve a request trace with a continuous-batching scheduler and build every step.\n"
        "The trace is replayed as fast as it goes: all requests wait from the start, and timestamps only order them.");
    command
        ->add_option("TRACE", path,
                     "CSV with TIMESTAMP,ContextTokens,GeneratedTokens, or JSON lines; - for standard input")
        ->required();
    common.add_to(*command, true);
    constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
    add_integer(*command, "--max-batch", "slots", 1, options.max_batch);
    add_integer(*command, "--token-budget", "tokens of one step", 1, options.token_budget);
    add_integer(*command, "--chunk", "prompt tokens of one request in one step", 1, options.chunk);
    add_integer(*command, "--block-size", "positions of one page", 1, options.block_size);
    add_integer(*command, "--max-model-len", "longer requests are cut to it [what the longest request needs]", 1,
                kMaxInt64, [this](int64_t value) { options.max_model_len = value; });
    add_integer(*command, "--pool-blocks", "pages of the KV cache [what --max-batch requests of --max-model-len need]",
                1, kMaxInt32, [this](int64_t value) { options.pool_blocks = value; });
    add_integer(*command, "--spec", "draft tokens of a decoding request in one step [0]", 0, kMaxInt32,
                [this](int64_t value) { options.spec = value; });
    add_integer(*command, "--steps", "stop after so many steps; 0: at the end of the trace", 0, options.steps);
    add_integer(*command, "--seed", "of token ids and accepted drafts", 0, options.seed);
    add_integer(*command, "--num-q-heads", "query heads", 1, options.num_q_heads);
    add_integer(*command, "--num-kv-heads", "key-value heads", 1, options.num_kv_heads);
    command->add_flag("--check", options.check, "compare every array of every step with the host backend");
    return command;
  }

  int run() {
    options.backend = common.backend_id();
    return answer_with(kReplaySchema, common, [&] {
      const ReplayReport report = replay(read_trace(path), options);
      return Answer{to_json(report), common.as_picture() ? to_picture(report) : to_table(report, options.check)};
    });
  }
};

struct GraphsCommand {
  CommonOptions common;
  std::string path;

  CLI::App* add_to(CLI::App& app) {
    CLI::App* command = app.add_subcommand("graphs", "Show which graphs are captured, and which one a batch runs in");
    command->add_option("FILE", path, "a fwdmeta.graphs/1 file, or - for standard input")->required();
    common.add_to(*command);
    return command;
  }

  int run() const {
    return answer_with(kGraphsSchema, common, [&] {
      const GraphsFile file = read_graphs_file(path);
      const GraphsReport report = dispatch(file);
      return Answer{to_json(report), to_table(report, file)};
    });
  }
};

struct RanksCommand {
  CommonOptions common;
  std::string path;

  CLI::App* add_to(CLI::App& app) {
    CLI::App* command =
        app.add_subcommand("ranks", "Show the sizes of data-parallel ranks, and what they agree to run");
    command->add_option("FILE", path, "a fwdmeta.ranks/1 file, or - for standard input")->required();
    common.add_to(*command);
    return command;
  }

  int run() const {
    return answer_with(kRanksSchema, common, [&] {
      const RanksFile file = read_ranks_file(path);
      try {
        const RanksReport report = report_ranks(file);
        return Answer{to_json(report), to_table(report, file)};
      } catch (const RankMismatch& mismatch) {
        return Answer{to_json(mismatch), ""};
      }
    });
  }
};

struct SlicesCommand {
  CommonOptions common;
  std::string path;

  CLI::App* add_to(CLI::App& app) {
    CLI::App* command = app.add_subcommand("slices", "Cut a step into microbatches and show the lengths of each");
    command->add_option("FILE", path, "a fwdmeta.slices/1 file, or - for standard input")->required();
    common.add_to(*command);
    return command;
  }

  int run() const {
    return answer_with(kSlicesSchema, common, [&] {
      const SlicesFile file = read_slices_file(path);
      const std::vector<ShownSlice> slices = plan_slices(file);
      return Answer{to_json(slices), to_table(slices, file)};
    });
  }
};

// Two commands that the installation is made with. Those of the empty group are left out of --help.
struct InstallationCommands {
  std::string shell;
  const CLI::App* completion = nullptr;
  const CLI::App* man = nullptr;

  void add_to(CLI::App& app) {
    CLI::App* command = app.add_subcommand("completion", "Print the completion script of a shell")->group("");
    command->add_option("SHELL", shell, "bash")->required()->check(CLI::IsMember({"bash"}));
    completion = command;
    man = app.add_subcommand("man", "Print the manual page as troff source")->group("");
  }
};

int run(int argc, char** argv) {
  CLI::App app("The forward metadata of LLM serving steps, from the command line.", "fwdmeta");
  app.set_version_flag("--version", version());
  app.require_subcommand(1);
  InspectCommand inspect_command;
  ReplayCommand replay_command;
  GraphsCommand graphs_command;
  RanksCommand ranks_command;
  SlicesCommand slices_command;
  InstallationCommands installation_commands;
  const CLI::App* inspect_app = inspect_command.add_to(app);
  replay_command.add_to(app);
  const CLI::App* graphs_app = graphs_command.add_to(app);
  const CLI::App* ranks_app = ranks_command.add_to(app);
  const CLI::App* slices_app = slices_command.add_to(app);
  installation_commands.add_to(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kBadInput;
  }
  if (inspect_app->parsed()) return inspect_command.run();
  if (graphs_app->parsed()) return graphs_command.run();
  if (ranks_app->parsed()) return ranks_command.run();
  if (slices_app->parsed()) return slices_command.run();
  if (installation_commands.completion->parsed()) return print(bash_completion(app), 0);
  if (installation_commands.man->parsed()) return print(man_page(app, version()), 0);
  return replay_command.run();
}

}  // namespace

}  // namespace fwdmeta::command

// Without memory it ends by the exception. NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) { return fwdmeta::command::run(argc, argv); }
