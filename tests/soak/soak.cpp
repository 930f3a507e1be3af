#include "soak.h"

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>

namespace fwdmeta_soak {
namespace {

// What the C library's heap and CUDA's own pools may move by without anything being lost: a leaked builder a life is
// more within a minute.
constexpr int64_t kTolerance = 16 << 20;
constexpr double kShowEverySeconds = 5;

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

double MiB(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

int64_t ResidentBytes() {
  int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

Progress::Progress(const Options& options) : options_(options), begin_(std::chrono::steady_clock::now()) {}

void Progress::AddMismatches(int64_t entries, const std::string& first) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (mismatches_ == 0) first_mismatch_ = first;
  mismatches_ += entries;
}

bool Progress::Done() const {
  return mismatches_ > 0 || (options_.steps > 0 && steps_ >= options_.steps) ||
         (options_.seconds > 0 && Seconds(begin_) >= static_cast<double>(options_.seconds));
}

void Progress::Show(int64_t device_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const double now = Seconds(begin_);
  if (now < shown_ + kShowEverySeconds) return;
  shown_ = now;
  std::fprintf(stderr, "%7.1f s  %12lld steps  %lld mismatches  resident %.1f MiB  device %.1f MiB\n", now,
               static_cast<long long>(steps_), static_cast<long long>(mismatches_), MiB(ResidentBytes()),
               MiB(device_bytes));
}

void Progress::Rest(int64_t device_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++rests_;
  rss_.See(ResidentBytes());
  device_.See(device_bytes);
}

bool Progress::Report(const char* backend, int64_t live_bytes, int64_t builders) {
  std::lock_guard<std::mutex> lock(mutex_);
  const bool flat = live_bytes == 0 && rss_.growth() <= kTolerance && device_.growth() <= kTolerance;
  const auto number = [](int64_t value) { return std::to_string(value); };
  std::string quoted;
  for (char c : first_mismatch_) quoted += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  const std::string line =
      "{\"schema\":\"fwdmeta.soak/1\",\"backend\":\"" + std::string(backend) + "\",\"seed\":" + number(options_.seed) +
      ",\"steps\":" + number(steps_) + ",\"arrays\":" + number(arrays_) + ",\"mismatches\":" + number(mismatches_) +
      ",\"first_mismatch\":\"" + quoted + "\",\"builders\":" + number(builders) +
      ",\"seconds\":" + number(static_cast<int64_t>(Seconds(begin_))) + ",\"rests\":" + number(rests_) +
      ",\"rss_bytes\":{\"first\":" + number(rss_.first) + ",\"last\":" + number(rss_.latest) +
      ",\"most\":" + number(rss_.most) + "},\"device_bytes\":{\"first\":" + number(device_.first) +
      ",\"last\":" + number(device_.latest) + ",\"most\":" + number(device_.most) +
      "},\"bytes_not_freed\":" + number(live_bytes) + ",\"flat\":" + (flat ? "true" : "false") + "}";
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  return flat && mismatches_ == 0;
}

std::string CompareCounts(const Pool& pool, int64_t batch, int64_t step, fwdmeta_status_t status,
                          fwdmeta_counts_t counts) {
  fwdmeta_counts_t want = pool.counts[static_cast<size_t>(batch)];
  want.step = step;
  const fwdmeta_status_t want_status = pool.statuses[static_cast<size_t>(batch)];
  const std::string which = "step " + std::to_string(step) + ", batch " + std::to_string(batch) + " of " +
                            std::to_string(pool.slots) + " slots: ";
  if (status != want_status) {
    return which + "status " + fwdmeta_status_name(status) + ", want " + fwdmeta_status_name(want_status);
  }
  if (std::memcmp(&counts, &want, sizeof want) == 0) return "";
  return which + "the counts of the mirror differ";
}

}  // namespace fwdmeta_soak
