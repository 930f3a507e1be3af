// What a run prints and records.
#ifndef FWDMETA_BENCH_REPORT_H_
#define FWDMETA_BENCH_REPORT_H_

#include <benchmark/benchmark.h>

#include <map>
#include <string>
#include <vector>

namespace fwdmeta_bench {

// Medians over the repetitions of each benchmark.
class Results {
 public:
  void Add(const std::string& name, double microseconds, const benchmark::UserCounters& counters);
  bool empty() const { return results_.empty(); }
  // Not a number where the benchmark has not run or has failed.
  double Time(const std::string& variant, const std::string& measure, const std::string& case_name) const;
  double Counter(const std::string& variant, const std::string& measure, const std::string& case_name,
                 const std::string& counter) const;

 private:
  struct Result {
    std::vector<double> microseconds;
    std::map<std::string, std::vector<double>> counters;
  };
  std::map<std::string, Result> results_;
};

// One line per benchmark, and the results.
class DisplayReporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;
  const Results& results() const { return results_; }

 private:
  Results results_;
};

// The library's JSON with the names as they are meant, and nothing about the machine that is not about the figures.
class RecordReporter : public benchmark::JSONReporter {
 public:
  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;
};

// The figures of each case, and the bars. Bars that are missed are said to be; they are no failure of the program.
void PrintTable(const Results& results);
void PrintBars(const Results& results);
// Nothing where their variants have not run.
void PrintViews(const Results& results);
void PrintPlanners(const Results& results);

std::string Cell(double value, const char* format);  // "-" for no figure

}  // namespace fwdmeta_bench

#endif  // FWDMETA_BENCH_REPORT_H_
