// Aborts a communicator at a deadline while another thread is inside a call on it.
#pragma once

#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "build/cuda/context.h"

namespace fwdmeta {

class Watchdog {
 public:
  // INT64_MAX: no thread is started. Made right before the call: an abort that came before the call has been entered
  // would leave it a communicator that is gone, so none comes within kEntryNs.
  Watchdog(ncclComm_t comm, const DeviceContext& context, int64_t deadline_ns) {
    if (deadline_ns == INT64_MAX) return;
    thread_ = std::thread([this, comm, &context, deadline_ns] {
      const std::chrono::steady_clock::time_point deadline{
          std::chrono::nanoseconds(std::max(deadline_ns, entered_ns_ + kEntryNs))};
      std::unique_lock<std::mutex> lock(mutex_);
      if (stopped_changed_.wait_until(lock, deadline, [this] { return stopped_; })) return;
      aborted_ = true;
      const ContextGuard guard(context);
      ncclCommAbort(comm);
    });
  }
  ~Watchdog() { Stop(); }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // True: the communicator has been aborted, and is gone.
  bool Stop() {
    if (!thread_.joinable()) return aborted_;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopped_ = true;
    }
    stopped_changed_.notify_all();
    thread_.join();
    return aborted_;
  }

 private:
  static constexpr int64_t kEntryNs = 100000000;

  const int64_t entered_ns_ = MonotonicNs();
  std::mutex mutex_;
  std::condition_variable stopped_changed_;
  bool stopped_ = false, aborted_ = false;
  std::thread thread_;
};

}  // namespace fwdmeta
