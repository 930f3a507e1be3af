#include "meta/tensors.h"

#include <algorithm>
#include <cstring>

#include "base/struct_io.h"

namespace fwdmeta {

Status TensorTable::Set(const char* name, const fwdmeta_tensor_t* tensor) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [name](const Entry& entry) { return std::strcmp(entry.name, name) == 0; });
  if (tensor == nullptr) {
    if (found == entries_.end()) return Fail(FWDMETA_NOT_FOUND, "no tensor is set under \"%s\"", name);
    entries_.erase(found);
  } else if (found != entries_.end()) {
    found->tensor = *tensor;
  } else {
    if (entries_.size() == capacity_) {
      return Fail(FWDMETA_CAPACITY_EXCEEDED, "%zu tensors are set, the limit is %zu", entries_.size(), capacity_);
    }
    Entry entry = {};
    std::strncpy(entry.name, name, kLongestName);
    entry.tensor = *tensor;
    entries_.push_back(entry);
  }
  return FWDMETA_OK;
}

const fwdmeta_tensor_t* TensorTable::Find(const char* name) const {
  for (const Entry& entry : entries_) {
    if (std::strcmp(entry.name, name) == 0) return &entry.tensor;
  }
  return nullptr;
}

Status CheckName(const char* name) {
  if (name == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "name is null");
  const size_t length = strnlen(name, kLongestName + 1);
  if (length == 0 || length > kLongestName) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "a name has 1..%zu characters", kLongestName);
  }
  for (size_t i = 0; i < length; ++i) {
    if (name[i] < 0x20 || name[i] > 0x7e) return Fail(FWDMETA_INVALID_ARGUMENT, "a name is printable ASCII");
  }
  return FWDMETA_OK;
}

Status ReadTensor(const fwdmeta_tensor_t* in, fwdmeta_tensor_t* out) {
  const fwdmeta_tensor_t defaults = FWDMETA_TENSOR_INITIALIZER;
  FWDMETA_TRY(ReadStruct(in, defaults, "tensor", out));
  out->struct_size = sizeof(fwdmeta_tensor_t);
  if (out->ndim < 0 || out->ndim > FWDMETA_MAX_DIMS) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "ndim is %d, expected 0..%d", out->ndim, FWDMETA_MAX_DIMS);
  }
  if (out->memory_kind != FWDMETA_MEMORY_DEVICE && out->memory_kind != FWDMETA_MEMORY_HOST) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "memory_kind is %d", out->memory_kind);
  }
  bool empty = false;
  int64_t count = 1;
  for (int32_t i = 0; i < out->ndim; ++i) {
    if (out->shape[i] < 0) {
      return Fail(FWDMETA_INVALID_ARGUMENT, "shape[%d] is %lld", i, (long long)out->shape[i]);
    }
    empty = empty || out->shape[i] == 0;
    if (!empty && __builtin_mul_overflow(count, out->shape[i], &count)) {
      return Fail(FWDMETA_INVALID_ARGUMENT, "the tensor's elements are past int64");
    }
  }
  if (out->data == nullptr && !empty) return Fail(FWDMETA_INVALID_ARGUMENT, "data is null and the tensor is not empty");
  if (out->dtype_bits == 0 || out->dtype_lanes == 0) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "dtype has %d bits and %d lanes", out->dtype_bits, out->dtype_lanes);
  }
  return FWDMETA_OK;
}

}  // namespace fwdmeta
