#include "report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "measure.h"

namespace fwdmeta_bench {
namespace {

// How often and by which clock is the same for every benchmark, so it is no part of the names.
std::string Trim(benchmark::BenchmarkName* name) {
  name->iterations.clear();
  name->repetitions.clear();
  name->time_type.clear();
  name->min_time.clear();
  name->min_warmup_time.clear();
  return name->str();
}

std::string Join(const std::string& variant, const std::string& measure, const std::string& case_name) {
  return variant + "/" + measure + "/" + case_name;
}

}  // namespace

std::string Cell(double value, const char* format) {
  if (std::isnan(value)) return "-";
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

void Results::Add(const std::string& name, double microseconds, const benchmark::UserCounters& counters) {
  Result& result = results_[name];
  result.microseconds.push_back(microseconds);
  for (const auto& counter : counters) result.counters[counter.first].push_back(counter.second.value);
}

double Results::Time(const std::string& variant, const std::string& measure, const std::string& case_name) const {
  const auto found = results_.find(Join(variant, measure, case_name));
  return found == results_.end() ? NAN : Median(found->second.microseconds);
}

double Results::Counter(const std::string& variant, const std::string& measure, const std::string& case_name,
                        const std::string& counter) const {
  const auto result = results_.find(Join(variant, measure, case_name));
  if (result == results_.end()) return NAN;
  const auto found = result->second.counters.find(counter);
  return found == result->second.counters.end() ? NAN : Median(found->second);
}

bool DisplayReporter::ReportContext(const Context&) {
  std::printf("%-38s %10s %10s %10s  us, of the repetitions\n", "benchmark", "median", "least", "most");
  return true;
}

void DisplayReporter::ReportRuns(const std::vector<Run>& runs) {
  std::vector<double> times;
  std::string name;
  for (const Run& run : runs) {
    if (run.run_type != Run::RT_Iteration) continue;
    benchmark::BenchmarkName trimmed = run.run_name;
    name = Trim(&trimmed);
    // A failure is known by the benchmark's name: how a run says it changes with versions of Google Benchmark.
    if (Failures().count(name) != 0) continue;
    times.push_back(run.GetAdjustedRealTime());
    results_.Add(name, times.back(), run.counters);
  }
  if (name.empty()) return;
  if (times.empty()) {
    std::printf("%-38s FAILED: %s\n", name.c_str(), Failures().at(name).c_str());
  } else {
    const auto range = std::minmax_element(times.begin(), times.end());
    std::printf("%-38s %10.3f %10.3f %10.3f\n", name.c_str(), Median(times), *range.first, *range.second);
  }
  std::fflush(stdout);
}

bool RecordReporter::ReportContext(const Context& context) {
  std::ostream& out = GetOutputStream();
  std::ostringstream text;
  SetOutputStream(&text);
  const bool go_on = JSONReporter::ReportContext(context);
  SetOutputStream(&out);
  std::istringstream lines(text.str());
  for (std::string line; std::getline(lines, line);) {
    if (line.find("\"host_name\":") != std::string::npos) continue;
    out << line << (lines.eof() ? "" : "\n");
  }
  return go_on;
}

void RecordReporter::ReportRuns(const std::vector<Run>& runs) {
  std::vector<Run> trimmed = runs;
  for (Run& run : trimmed) Trim(&run.run_name);
  JSONReporter::ReportRuns(trimmed);
}

void PrintTable(const Results& results) {
  std::printf(
      "\nMedians in us. Floors: an empty graph node, launch + synchronise, a memset node of the bytes written, a\n"
      "bare launch with as many arguments. xop: how many times faster than op by op.\n");
  std::printf("%-16s %6s %6s %6s %6s|%6s %5s %6s %5s|%6s %6s|%8s %8s|%8s\n", "case", "empty", "sync", "memset",
              "launch", "graph", "xop", "sync", "xop", "enq", "enqhst", "op graph", "op sync", "host");
  for (const Case& c : AllCases()) {
    const auto time = [&](const char* variant, const char* measure) { return results.Time(variant, measure, c.name); };
    const double graph = time("fwdmeta", "graph"), sync = time("fwdmeta", "sync");
    const double op_graph = time("op_by_op", "graph"), op_sync = time("op_by_op", "sync");
    const double host = time("host", "step");
    if (std::isnan(graph) && std::isnan(sync) && std::isnan(host)) continue;
    std::printf("%-16s %6s %6s %6s %6s|%6s %5s %6s %5s|%6s %6s|%8s %8s|%8s\n", c.name.c_str(),
                Cell(time("empty", "graph"), "%.2f").c_str(), Cell(time("empty", "sync"), "%.2f").c_str(),
                Cell(time("memset", "graph"), "%.2f").c_str(), Cell(time("empty", "enqueue"), "%.2f").c_str(),
                Cell(graph, "%.2f").c_str(), Cell(op_graph / graph, "%.1f").c_str(), Cell(sync, "%.2f").c_str(),
                Cell(op_sync / sync, "%.1f").c_str(), Cell(time("fwdmeta", "enqueue"), "%.2f").c_str(),
                Cell(time("fwdmeta", "enqueue_host"), "%.2f").c_str(), Cell(op_graph, "%.1f").c_str(),
                Cell(op_sync, "%.1f").c_str(), Cell(host, "%.2f").c_str());
  }
}

}  // namespace fwdmeta_bench
