// What the soak of either backend is told, and what it tells.
#ifndef FWDMETA_TESTS_SOAK_SOAK_H_
#define FWDMETA_TESTS_SOAK_SOAK_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "device.h"
#include "pool.h"

namespace fwdmeta_soak {

struct Options {
  int64_t steps = 0;    // 0: until the time is over
  int64_t seconds = 0;  // 0: until the steps are done
  int64_t threads = 2;  // host backend
  uint64_t seed = 1;
};

// A number of bytes that should not grow, looked at from time to time.
struct Level {
  int64_t first = -1, latest = 0, most = 0;
  void See(int64_t bytes) {
    if (first < 0) first = bytes;
    latest = bytes;
    most = bytes > most ? bytes : most;
  }
  int64_t growth() const { return first < 0 ? 0 : latest - first; }
};

// Shared by all threads of a soak.
class Progress {
 public:
  explicit Progress(const Options& options);

  void Add(int64_t steps) { steps_ += steps; }
  void AddArrays(int64_t arrays) { arrays_ += arrays; }
  void AddMismatches(int64_t entries, const std::string& first);
  int64_t steps() const { return steps_; }
  int64_t mismatches() const { return mismatches_; }
  // Whether the steps or the time are used up. A mismatch ends the soak too: what follows tells nothing new.
  bool Done() const;
  // Now and then a line on standard error.
  void Show(int64_t device_bytes);
  // The levels of a moment at which builders have all ended or, on the host backend, all are warm.
  void Rest(int64_t device_bytes);
  // The answer, as one line of JSON; whether nothing differs, leaks or grows. `live_bytes` are the allocators'.
  bool Report(const char* backend, int64_t live_bytes, int64_t builders);

 private:
  const Options options_;
  const std::chrono::steady_clock::time_point begin_;
  std::atomic<int64_t> steps_{0}, arrays_{0}, mismatches_{0};
  std::mutex mutex_;
  std::string first_mismatch_;
  double shown_ = -1e9;
  int64_t rests_ = 0;
  Level rss_, device_;
};

int64_t ResidentBytes();

inline void Check(fwdmeta_status_t status, const char* call) {
  if (status == FWDMETA_OK) return;
  throw std::runtime_error(std::string(call) + ": " + fwdmeta_status_name(status) + ": " + fwdmeta_last_error());
}
#define SOAK_OK(call) ::fwdmeta_soak::Check((call), #call)

// Counts of a step compared with the model's; "" or what differs.
std::string CompareCounts(const Pool& pool, int64_t batch, int64_t step, fwdmeta_status_t status,
                          fwdmeta_counts_t counts);

// Each returns the exit status.
int RunOnHost(const std::vector<Case>& cases, const Options& options);
int RunOnCuda(const std::vector<Case>& cases, const Options& options);

}  // namespace fwdmeta_soak

#endif  // FWDMETA_TESTS_SOAK_SOAK_H_
