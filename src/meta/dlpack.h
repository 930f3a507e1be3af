// DLPack's structs by their published layout: the C API of DLPack, https://dmlc.github.io/dlpack/latest/c_api.html. The
// 0.x struct has not changed since 0.2; the versioned one is that of 1.0, and later 1.x keep it. 64-bit pointers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fwdmeta {

struct DlDevice {
  int32_t type;  // kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3
  int32_t id;
};

struct DlDataType {
  uint8_t code;  // kDLInt = 0, kDLUInt = 1, kDLBool = 6
  uint8_t bits;
  uint16_t lanes;
};

struct DlTensor {
  void* data;
  DlDevice device;
  int32_t ndim;
  DlDataType dtype;
  int64_t* shape;
  int64_t* strides;  // elements
  uint64_t byte_offset;
};

struct DlVersion {
  uint32_t major, minor;
};
constexpr DlVersion kDlVersion = {1, 0};
constexpr uint64_t kDlReadOnly = 1;
constexpr int64_t kDlNoSync = -1;  // of Python's stream numbers

}  // namespace fwdmeta

struct DLManagedTensor {
  fwdmeta::DlTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

struct DLManagedTensorVersioned {
  fwdmeta::DlVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  uint64_t flags;
  fwdmeta::DlTensor dl_tensor;
};

static_assert(sizeof(fwdmeta::DlTensor) == 48 && offsetof(fwdmeta::DlTensor, device) == 8 &&
              offsetof(fwdmeta::DlTensor, ndim) == 16 && offsetof(fwdmeta::DlTensor, dtype) == 20 &&
              offsetof(fwdmeta::DlTensor, shape) == 24 && offsetof(fwdmeta::DlTensor, strides) == 32 &&
              offsetof(fwdmeta::DlTensor, byte_offset) == 40);
static_assert(sizeof(DLManagedTensor) == 64 && offsetof(DLManagedTensor, manager_ctx) == 48 &&
              offsetof(DLManagedTensor, deleter) == 56);
static_assert(sizeof(DLManagedTensorVersioned) == 80 && offsetof(DLManagedTensorVersioned, manager_ctx) == 8 &&
              offsetof(DLManagedTensorVersioned, deleter) == 16 && offsetof(DLManagedTensorVersioned, flags) == 24 &&
              offsetof(DLManagedTensorVersioned, dl_tensor) == 32);
