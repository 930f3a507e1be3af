// Builds steps for as long as it is told, compares every array of each with the reference model, and watches memory.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "errors.h"
#include "soak.h"

namespace {

int Run(int argc, char** argv) {
  fwdmeta_soak::Options options;
  std::string backend = "host", trace;
  int64_t batches = 1024;
  CLI::App app("Builds random and trace-made steps and compares every array of each with the reference model.");
  app.add_option("--steps", options.steps, "Steps to build; 0 for no bound")->check(CLI::NonNegativeNumber);
  app.add_option("--seconds", options.seconds, "Time to take; 0 for no bound")->check(CLI::NonNegativeNumber);
  app.add_option("--backend", backend, "host or cuda")->check(CLI::IsMember({"host", "cuda"}));
  app.add_option("--trace", trace, "A trace as fwdmeta replay reads it; every other batch is then one of its steps");
  app.add_option("--seed", options.seed, "Of batches and of their order");
  app.add_option("--threads", options.threads, "Builders at a time on the host backend")->check(CLI::Range(1, 256));
  app.add_option("--batches", batches, "The most batches of one shape")->check(CLI::Range(1, 100000));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (options.steps == 0 && options.seconds == 0) options.steps = 100000;
  if (backend == "cuda" && !fwdmeta_test::NoCudaReason().empty()) {
    std::printf("skipped: %s\n", fwdmeta_test::NoCudaReason().c_str());
    return 77;
  }
  std::vector<fwdmeta::command::Request> requests;
  if (!trace.empty()) requests = fwdmeta::command::read_trace(trace);
  std::fprintf(stderr, "%s\n",
               requests.empty() ? "no trace: random batches alone" : "every other batch is the trace's");
  const auto cases = fwdmeta_soak::MakeCases(options.seed, batches, requests);
  int64_t made = 0;
  for (const auto& of : cases) {
    for (const auto& pool : of.pools) made += pool.num_batches;
  }
  std::fprintf(stderr, "%lld batches of the reference model\n", static_cast<long long>(made));
  return backend == "cuda" ? fwdmeta_soak::RunOnCuda(cases, options) : fwdmeta_soak::RunOnHost(cases, options);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Run(argc, argv);
  } catch (const fwdmeta::command::InputError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
