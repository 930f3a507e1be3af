// Checks of single arguments, with the message that they fail with.
#pragma once

#include <algorithm>

#include "base/status.h"

namespace fwdmeta {

inline Status CheckRange(const char* name, int64_t value, int64_t low, int64_t high = INT32_MAX) {
  if (value >= low && value <= high) return FWDMETA_OK;
  return Fail(FWDMETA_INVALID_ARGUMENT, "%s is %lld, expected %lld..%lld", name, (long long)value, (long long)low,
              (long long)high);
}

// Of the header that a configuration was compiled with.
inline Status CheckApiVersion(int32_t api_version) {
  if (api_version >= 0 && api_version / 10000 == FWDMETA_VERSION_MAJOR) return FWDMETA_OK;
  return Fail(FWDMETA_INVALID_ARGUMENT, "api_version is %d, this library is %d", api_version, FWDMETA_VERSION);
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

// All `size` values, where they are wanted and fit; the count in any case.
template <class T, class Iterator>
Status Fill(Iterator values, int64_t size, T* out, int64_t capacity, int64_t* count) {
  *count = size;
  if (out == nullptr) return FWDMETA_OK;
  if (capacity < size) {
    return Fail(FWDMETA_CAPACITY_EXCEEDED, "capacity is %lld, there are %lld", (long long)capacity, (long long)size);
  }
  std::copy_n(values, size, out);
  return FWDMETA_OK;
}

}  // namespace fwdmeta
