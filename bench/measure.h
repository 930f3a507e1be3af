// What all variants share: failures, lazily made fixtures, host timing, and the registration of a benchmark.
#ifndef FWDMETA_BENCH_MEASURE_H_
#define FWDMETA_BENCH_MEASURE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cases.h"

namespace fwdmeta_bench {

// A call that failed or an array that differs: the benchmark is skipped with the message, and the program ends with 1.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void CheckStatus(fwdmeta_status_t status, const char* call);
#define BENCH_OK(call) ::fwdmeta_bench::CheckStatus((call), #call)

// Made at first use, once: a fixture that failed is not tried again.
template <class T>
class Lazy {
 public:
  explicit Lazy(std::function<std::unique_ptr<T>()> make) : make_(std::move(make)) {}
  T& Get() {
    if (!failure_.empty()) throw Failure(failure_);
    if (value_ == nullptr) {
      try {
        value_ = make_();
      } catch (const std::exception& e) {
        failure_ = e.what();
        throw;
      }
    }
    return *value_;
  }

 private:
  std::function<std::unique_ptr<T>()> make_;
  std::unique_ptr<T> value_;
  std::string failure_;
};
template <class T>
using LazyPtr = std::shared_ptr<Lazy<T>>;

double Median(std::vector<double> values);

double Now();  // seconds

// Median seconds of one call, after warm-up. `calls` calls are timed as one; `drain` (may be empty) follows them
// untimed.
double TimeCalls(int calls, const std::function<void()>& call, const std::function<void()>& drain);

struct Sample {
  double seconds;
  std::map<std::string, double> counters;
};

// One repetition of VARIANT/MEASURE/CASE calls `run` once; its seconds are the repetition's time. `fixture`: whose
// sizes are counters; null where the case is no batch.
class CaseFixture;
void Register(const std::string& variant, const std::string& measure, const LazyPtr<CaseFixture>& fixture,
              const std::string& case_name, std::function<Sample()> run);

// Messages by benchmark name, of those that failed.
const std::map<std::string, std::string>& Failures();

}  // namespace fwdmeta_bench

#endif  // FWDMETA_BENCH_MEASURE_H_
