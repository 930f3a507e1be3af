// The ABI's rule for structs that grow: input over defaults, output cut to what the caller knows.
#pragma once

#include <algorithm>
#include <cstring>

#include "base/status.h"

namespace fwdmeta {

// Overlays the caller's first bytes onto `defaults`; refuses size 0 and a tail of unknown fields that is not all zero.
template <class T>
Status ReadStruct(const T* in, const T& defaults, const char* name, T* out) {
  if (in == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "%s is null", name);
  uint64_t size;
  std::memcpy(&size, in, sizeof(size));
  constexpr uint64_t kLargest = 1 << 16;  // anything beyond is a struct_size that was never set
  if (size < sizeof(size) || size > kLargest) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "%s.struct_size is %llu, expected %zu", name, (unsigned long long)size,
                sizeof(T));
  }
  const unsigned char* bytes = reinterpret_cast<const unsigned char*>(in);
  for (uint64_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) {
      return Fail(FWDMETA_INVALID_ARGUMENT, "%s.struct_size is %llu, this library knows %zu bytes and byte %llu is set",
                  name, (unsigned long long)size, sizeof(T), (unsigned long long)i);
    }
  }
  *out = defaults;
  std::memcpy(static_cast<void*>(out), in, std::min<uint64_t>(size, sizeof(T)));
  return FWDMETA_OK;
}

// Checks an output struct before any work is done for it.
template <class T>
Status CheckOutStruct(const T* out, const char* name) {
  if (out == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "%s is null", name);
  if (out->struct_size < sizeof(uint64_t)) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "%s.struct_size is %llu, expected %zu", name,
                (unsigned long long)out->struct_size, sizeof(T));
  }
  return FWDMETA_OK;
}

// Writes the first min(caller, library) bytes; the caller's struct_size stays.
template <class T>
void WriteStruct(const T& value, T* out) {
  const uint64_t size = out->struct_size;
  std::memcpy(static_cast<void*>(out), &value, std::min<uint64_t>(size, sizeof(T)));
  out->struct_size = size;
}

}  // namespace fwdmeta
