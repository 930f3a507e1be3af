// The clock of deadlines.
#pragma once

#include <time.h>

#include <cstdint>

namespace fwdmeta {

// CLOCK_MONOTONIC, which std::chrono::steady_clock is on Linux, in ns.
inline int64_t MonotonicNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

}  // namespace fwdmeta
