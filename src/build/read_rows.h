// Checks of the arrays that a caller hands in.
#pragma once

#include "base/status.h"
#include "build/inputs.h"

namespace fwdmeta {

template <class T>
Status CheckAligned(const T* pointer, const char* name) {
  if (reinterpret_cast<uintptr_t>(pointer) % alignof(T) == 0) return FWDMETA_OK;
  return Fail(FWDMETA_INVALID_ARGUMENT, "%s %p is not aligned to %zu bytes", name, (const void*)pointer, alignof(T));
}

template <class T>
Status ReadRows(const fwdmeta_rows_t& in, int64_t batch_size, const char* name, Rows<T>* out) {
  *out = {};
  if (in.data == nullptr) return FWDMETA_OK;
  if (in.width < 0 || in.width > INT32_MAX) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "%s.width is %lld, expected 0..%d", name, (long long)in.width, INT32_MAX);
  }
  if (batch_size > 1 && in.row_stride < in.width) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "%s.row_stride %lld is below its width %lld", name, (long long)in.row_stride,
                (long long)in.width);
  }
  out->data = static_cast<const T*>(in.data);
  out->width = static_cast<int32_t>(in.width);
  out->row_stride = in.row_stride;
  out->row_lengths = in.row_lengths;
  FWDMETA_TRY(CheckAligned(out->data, name));
  return CheckAligned(out->row_lengths, name);
}

}  // namespace fwdmeta
