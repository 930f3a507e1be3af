// Checks of single numbers, with the message that they fail with.
#pragma once

#include "base/status.h"

namespace fwdmeta {

inline Status CheckRange(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return FWDMETA_OK;
  return Fail(FWDMETA_INVALID_ARGUMENT, "%s is %lld, expected %lld..%lld", name, (long long)value, (long long)low,
              (long long)high);
}

// An array that is filled up to a capacity: null is for asking the count alone.
template <class T>
Status CheckFill(const T* out, int64_t capacity, const int64_t* count) {
  if (count == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "count is null");
  if (capacity < 0 || (out == nullptr && capacity > 0)) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "capacity is %lld and out is %s", (long long)capacity,
                out == nullptr ? "null" : "not null");
  }
  return FWDMETA_OK;
}

}  // namespace fwdmeta
