// fwdmeta_bench: every variant of every case, checked, then timed. Takes Google Benchmark's flags.
#include <cstdio>
#include <cstdlib>
#include <random>

#include "report.h"
#include "variants.h"

#ifndef FWDMETA_BENCH_COMMIT
#define FWDMETA_BENCH_COMMIT ""
#endif

namespace fwdmeta_bench {
namespace {

constexpr int64_t kHostSms = 132;  // of an H200; only the MLA chunk search asks

std::string FromEnvironment(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && value[0] != '\0' ? value : otherwise;
}

NamedFixture MakeNamed(const Case& spec, int64_t num_sms, uint64_t seed) {
  return {spec, MakeFixture(spec, num_sms, seed), std::make_shared<LazyPtr<CapturedBuilder>>()};
}

void RegisterAll(const GpuInfo& gpu, uint64_t seed) {
  const int64_t num_sms = gpu.num_sms > 0 ? gpu.num_sms : kHostSms;
  for (const Case& spec : AllCases()) {
    const NamedFixture c = MakeNamed(spec, num_sms, ++seed);
#if FWDMETA_BENCH_CUDA
    if (gpu.num_sms > 0) {
      RegisterGpu(c);
      for (const char* name : {"decode_32", "decode_256", "decode_1024"}) {
        if (spec.name == name) RegisterFork(c);
      }
      for (const char* name :
           {"decode_32", "decode_256", "decode_1024", "decode_4096", "mixed_224d_8p1k", "prefill_4x32k"}) {
        if (spec.name == name) RegisterViews(c, MakeNamed(WithoutLists(spec), num_sms, ++seed));
      }
#if FWDMETA_BENCH_FLASHINFER
      if (!spec.curve_only) RegisterFlashinfer(c);
#endif
      for (const int64_t slots : {32, 1024, 4096, 16384, 65536}) {
        if (spec.name == DecodeCase(slots).name) {
          RegisterGrowth(c, MakeNamed(DecodeCase(slots + 1), num_sms, ++seed));
        }
      }
    }
#endif
    if (!spec.curve_only) RegisterHost(c);
  }
#if FWDMETA_BENCH_CUDA
  // Across the last full warp of a block of 1024: not a case of its own.
  if (gpu.num_sms > 0) {
    const NamedFixture c = MakeNamed(DecodeCase(992), num_sms, ++seed);
    RegisterGrowth(c, MakeNamed(DecodeCase(993), num_sms, ++seed));
  }
#endif
}

int Run(int argc, char** argv) {
  // Repetitions of different benchmarks are interleaved, so that what is compared has seen the same machine. The
  // caller's own flags come later and win.
  std::string repetitions = "--benchmark_repetitions=5", interleaving = "--benchmark_enable_random_interleaving=true";
  std::vector<char*> args = {argv[0], &repetitions[0], &interleaving[0]};
  bool records = false;
  for (int i = 1; i < argc; ++i) {
    args.push_back(argv[i]);
    const std::string arg = argv[i];
    const std::string out = "--benchmark_out=";
    records = records || (arg.compare(0, out.size(), out) == 0 && arg.size() > out.size());
  }
  int count = static_cast<int>(args.size());
  args.push_back(nullptr);
  benchmark::Initialize(&count, args.data());
  if (benchmark::ReportUnrecognizedArguments(count, args.data())) return 2;
  benchmark::BenchmarkReporter::Context::executable_name = "fwdmeta_bench";  // a record is no place for a path

  GpuInfo gpu;
#if FWDMETA_BENCH_CUDA
  gpu = FindGpu();
  if (gpu.num_sms == 0) std::fprintf(stderr, "fwdmeta_bench: no CUDA device, so the host variants alone\n");
#endif
  const uint64_t seed =
      std::strtoull(FromEnvironment("FWDMETA_BENCH_SEED", std::to_string(std::random_device()())).c_str(), nullptr, 10);
  benchmark::AddCustomContext("fwdmeta_commit", FromEnvironment("FWDMETA_COMMIT", FWDMETA_BENCH_COMMIT));
  benchmark::AddCustomContext("fwdmeta_version", std::to_string(fwdmeta_version()));
  benchmark::AddCustomContext("seed", std::to_string(seed));
  for (const auto& entry : gpu.context) {
    benchmark::AddCustomContext(entry.first, entry.second);
    std::printf("%s: %s\n", entry.first.c_str(), entry.second.c_str());
  }
  std::printf("seed: %llu\n", static_cast<unsigned long long>(seed));

  const double begin = Now();
  RegisterAll(gpu, seed);
  RegisterDispatch();
  DisplayReporter display;
  RecordReporter record;
  benchmark::RunSpecifiedBenchmarks(&display, records ? &record : nullptr);
  benchmark::ClearRegisteredBenchmarks();  // ends builders and graphs while the CUDA runtime is there
  benchmark::Shutdown();

  if (!display.results().empty()) {
    PrintTable(display.results());
    PrintViews(display.results());
    PrintPlanners(display.results());
    PrintBars(display.results());
  }
  std::printf("%.0f s\n", Now() - begin);
  for (const auto& failure : Failures()) {
    std::printf("FAILED %s: %s\n", failure.first.c_str(), failure.second.c_str());
  }
  return Failures().empty() ? 0 : 1;
}

}  // namespace
}  // namespace fwdmeta_bench

int main(int argc, char** argv) {
  try {
    return fwdmeta_bench::Run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fwdmeta_bench: %s\n", e.what());
    return 1;
  }
}
