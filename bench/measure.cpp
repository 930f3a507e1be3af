#include "measure.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>

#include "fixture.h"

namespace fwdmeta_bench {
namespace {

std::map<std::string, std::string>& MutableFailures() {
  static std::map<std::string, std::string> failures;
  return failures;
}

// A repetition of a host measure ends after so many batches or so long, whichever is first.
constexpr int kMostBatches = 400;
constexpr int kFewestBatches = 7;
constexpr double kWarmSeconds = 0.008;
constexpr double kTimedSeconds = 0.03;

void CountSizes(const CaseFixture& fixture, benchmark::UserCounters* counters) {
  const Case& c = fixture.spec();
  const std::pair<const char*, int64_t> sizes[] = {{"max_batch_size", c.slots()},
                                                   {"max_num_tokens", c.tokens()},
                                                   {"max_model_len", c.max_model_len},
                                                   {"table_width", fixture.table_width()},
                                                   {"ids_width", c.ids_width()},
                                                   {"drafts_width", c.drafts_width()},
                                                   {"bytes_written", fixture.bytes_written()}};
  for (const auto& size : sizes) (*counters)[size.first] = static_cast<double>(size.second);
}

}  // namespace

void CheckStatus(fwdmeta_status_t status, const char* call) {
  if (status == FWDMETA_OK) return;
  throw Failure(std::string(call) + ": " + fwdmeta_status_name(status) + ": " + fwdmeta_last_error());
}

double Median(std::vector<double> values) {
  if (values.empty()) throw Failure("a median of nothing");
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double TimeCalls(int calls, const std::function<void()>& call, const std::function<void()>& drain) {
  const auto batch = [&] {
    const double begin = Now();
    for (int i = 0; i < calls; ++i) call();
    const double seconds = Now() - begin;
    if (drain) drain();
    return seconds / calls;
  };
  batch();
  for (const double end = Now() + kWarmSeconds; Now() < end;) batch();
  std::vector<double> samples;
  const double end = Now() + kTimedSeconds;
  while (static_cast<int>(samples.size()) < kFewestBatches ||
         (static_cast<int>(samples.size()) < kMostBatches && Now() < end)) {
    samples.push_back(batch());
  }
  return Median(std::move(samples));
}

void Register(const std::string& variant, const std::string& measure, const LazyPtr<CaseFixture>& fixture,
              const std::string& case_name, std::function<Sample()> run) {
  const std::string name = variant + "/" + measure + "/" + case_name;
  benchmark::RegisterBenchmark(name.c_str(),
                               [=](benchmark::State& state) {
                                 for (auto _ : state) {
                                   try {
                                     const Sample sample = run();
                                     state.SetIterationTime(sample.seconds);
                                     for (const auto& counter : sample.counters)
                                       state.counters[counter.first] = counter.second;
                                     if (fixture) CountSizes(fixture->Get(), &state.counters);
                                   } catch (const std::exception& e) {
                                     MutableFailures()[name] = e.what();
                                     state.SkipWithError(e.what());
                                     break;
                                   }
                                 }
                               })
      ->Iterations(1)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}

const std::map<std::string, std::string>& Failures() { return MutableFailures(); }

}  // namespace fwdmeta_bench
