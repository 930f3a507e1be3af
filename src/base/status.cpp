#include "base/status.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace fwdmeta {
namespace {

// A plain buffer: no destructor, so it is usable at any point of a thread's life.
thread_local char last_error[512];

constexpr const char* kNames[FWDMETA_STATUS_COUNT] = {"OK",
                                                      "INVALID_ARGUMENT",
                                                      "INVALID_HANDLE",
                                                      "INVALID_BATCH",
                                                      "CAPACITY_EXCEEDED",
                                                      "NOT_FOUND",
                                                      "NOT_SET",
                                                      "OUT_OF_RANGE",
                                                      "ALREADY_EXISTS",
                                                      "NOT_READY",
                                                      "EXPIRED",
                                                      "BUSY",
                                                      "NOT_CAPTURABLE",
                                                      "NO_GRAPH",
                                                      "RANK_MISMATCH",
                                                      "TIMEOUT",
                                                      "UNSUPPORTED",
                                                      "UNAVAILABLE",
                                                      "OUT_OF_MEMORY",
                                                      "NO_DEVICE",
                                                      "CUDA_ERROR",
                                                      "INTERNAL"};

}  // namespace

Status Fail(Status status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(last_error, sizeof(last_error), format, arguments);
  va_end(arguments);
  return status;
}

const char* LastError() { return last_error; }

KeepLastError::KeepLastError() { std::memcpy(message_, last_error, sizeof(message_)); }
KeepLastError::~KeepLastError() {
  static_assert(sizeof(message_) == sizeof(last_error));
  if (!dropped_) std::memcpy(last_error, message_, sizeof(message_));
}

const char* StatusName(Status status) {
  return status >= 0 && status < FWDMETA_STATUS_COUNT ? kNames[status] : "UNKNOWN";
}

}  // namespace fwdmeta
