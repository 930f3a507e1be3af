// Statuses with a message per thread.
#pragma once

#include "fwdmeta.h"

namespace fwdmeta {

using Status = fwdmeta_status_t;

// Stores the printf-style message for fwdmeta_last_error() of this thread and returns `status`.
__attribute__((format(printf, 2, 3))) Status Fail(Status status, const char* format, ...);

const char* LastError();

// Brings back the thread's message at the end of a call that succeeds although something within it failed.
class KeepLastError {
 public:
  KeepLastError();
  ~KeepLastError();
  KeepLastError(const KeepLastError&) = delete;
  KeepLastError& operator=(const KeepLastError&) = delete;
  void Drop() { dropped_ = true; }  // the message within is the call's own

 private:
  char message_[512];
  bool dropped_ = false;
};

const char* StatusName(Status status);

}  // namespace fwdmeta

// Returns from the calling function unless `expression` is FWDMETA_OK.
#define FWDMETA_TRY(expression)                         \
  do {                                                  \
    const ::fwdmeta::Status try_status_ = (expression); \
    if (try_status_ != FWDMETA_OK) return try_status_;  \
  } while (0)
