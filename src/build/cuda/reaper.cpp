#include "build/cuda/reaper.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace fwdmeta {
namespace {

thread_local int no_cuda_calls = 0;

class Reaper {
 public:
  // When the library is unloaded. What is left then goes with the process: its work may still be running.
  void Stop() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  void Add(Reapable* backend) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return;
    try {
      waiting_.push_back(backend);
      if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
    } catch (const std::exception&) {
      // Nobody to tell, in a destructor: it waits for the next one that comes, or stays with the process.
    }
    changed_.notify_all();
  }

  void Drain() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(2), [this] { return waiting_.empty() && !busy_; });
  }

 private:
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      std::vector<Reapable*> batch;
      batch.swap(waiting_);
      busy_ = true;
      lock.unlock();
      size_t left = 0;
      for (Reapable* backend : batch) {
        if (backend->Done()) {
          delete backend;
        } else {
          batch[left++] = backend;
        }
      }
      lock.lock();
      waiting_.insert(waiting_.end(), batch.begin(), batch.begin() + left);
      busy_ = false;
      changed_.notify_all();
      if (left > 0) changed_.wait_for(lock, std::chrono::milliseconds(1), [this] { return stopping_; });
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Reapable*> waiting_;
  bool stopping_ = false, busy_ = false;
  std::thread thread_;
};

Reaper& TheReaper() {
  static Reaper* reaper = new Reaper;  // never destroyed: the last holder may let go while the process exits
  static const struct AtExit {
    ~AtExit() { reaper->Stop(); }
  } at_exit;
  return *reaper;
}

}  // namespace

void PrepareReaper() { TheReaper(); }

void Reap(Reapable* backend) {
  if (no_cuda_calls == 0 && backend->FreesAtOnce() && backend->Done()) {
    delete backend;
  } else {
    TheReaper().Add(backend);
  }
}

void DrainReaper() { TheReaper().Drain(); }

NoCudaCalls::NoCudaCalls() { ++no_cuda_calls; }
NoCudaCalls::~NoCudaCalls() { --no_cuda_calls; }

}  // namespace fwdmeta
