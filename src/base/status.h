// Statuses with a message per thread.
#pragma once

#include "fwdmeta.h"

namespace fwdmeta {

using Status = fwdmeta_status_t;

// Stores the printf-style message for fwdmeta_last_error() of this thread and returns `status`.
__attribute__((format(printf, 2, 3))) Status Fail(Status status, const char* format, ...);

const char* LastError();
const char* StatusName(Status status);

}  // namespace fwdmeta

// Returns from the calling function unless `expression` is FWDMETA_OK.
#define FWDMETA_TRY(expression)                                  \
  do {                                                           \
    const ::fwdmeta::Status try_status_ = (expression);          \
    if (try_status_ != FWDMETA_OK) return try_status_;           \
  } while (0)
