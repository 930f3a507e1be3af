#include "device_memory.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "errors.h"

namespace fwdmeta::command {

namespace {

using Result = int;                 // CUresult
using DevicePointer = uint64_t;     // CUdeviceptr
constexpr Result kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY
constexpr const char* kDriver = "libcuda.so.1";

DevicePointer device_pointer(const void* ptr) { return reinterpret_cast<DevicePointer>(ptr); }

}  // namespace

struct Device::Driver {
  void* library = nullptr;
  Result (*init)(unsigned) = nullptr;
  Result (*retain_primary_context)(void**, int) = nullptr;
  Result (*release_primary_context)(int) = nullptr;
  Result (*set_current_context)(void*) = nullptr;
  Result (*allocate)(DevicePointer*, size_t) = nullptr;
  Result (*free)(DevicePointer) = nullptr;
  Result (*copy_to_device)(DevicePointer, const void*, size_t) = nullptr;
  Result (*copy_to_host)(void*, DevicePointer, size_t) = nullptr;
  Result (*error_name)(Result, const char**) = nullptr;

  Driver() : library(dlopen(kDriver, RTLD_NOW | RTLD_LOCAL)) {
    if (library == nullptr) throw LibraryError(FWDMETA_NO_DEVICE, dlerror());
    find("cuInit", init);
    find("cuDevicePrimaryCtxRetain", retain_primary_context);
    find("cuDevicePrimaryCtxRelease_v2", release_primary_context);
    find("cuCtxSetCurrent", set_current_context);
    find("cuMemAlloc_v2", allocate);
    find("cuMemFree_v2", free);
    find("cuMemcpyHtoD_v2", copy_to_device);
    find("cuMemcpyDtoH_v2", copy_to_host);
    find("cuGetErrorName", error_name);
  }

  template <typename Function>
  void find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) throw LibraryError(FWDMETA_CUDA_ERROR, std::string(kDriver) + " has no " + name);
  }

  void check(Result result, const char* what) const {
    if (result == 0) return;
    const char* name = nullptr;
    error_name(result, &name);
    throw LibraryError(result == kOutOfMemory ? FWDMETA_OUT_OF_MEMORY : FWDMETA_CUDA_ERROR,
                       std::string(what) + ": " + (name != nullptr ? name : std::to_string(result)));
  }
};

std::unique_ptr<Device> Device::of(const fwdmeta_builder_info_t& info) {
  if (info.backend == FWDMETA_BACKEND_HOST) return nullptr;
  return std::unique_ptr<Device>(new Device(info.device));
}

Device::Device(int ordinal) : driver_(std::make_unique<Driver>()), ordinal_(ordinal) {
  void* context = nullptr;
  driver_->check(driver_->init(0), "cuInit");
  driver_->check(driver_->retain_primary_context(&context, ordinal), "cuDevicePrimaryCtxRetain");
  driver_->check(driver_->set_current_context(context), "cuCtxSetCurrent");
}

// The driver stays loaded: the library's own use of it does not end with this object.
Device::~Device() { driver_->release_primary_context(ordinal_); }

void* Device::allocate(size_t bytes) {
  DevicePointer ptr = 0;
  driver_->check(driver_->allocate(&ptr, std::max<size_t>(bytes, 1)), "cuMemAlloc");
  return reinterpret_cast<void*>(ptr);
}

void Device::release(void* ptr) { driver_->free(device_pointer(ptr)); }

void Device::upload(void* to, const void* from, size_t bytes) {
  if (bytes > 0) driver_->check(driver_->copy_to_device(device_pointer(to), from, bytes), "cuMemcpyHtoD");
}

void Device::download(void* to, const void* from, size_t bytes) {
  if (bytes > 0) driver_->check(driver_->copy_to_host(to, device_pointer(from), bytes), "cuMemcpyDtoH");
}

Input::~Input() {
  if (memory_ != nullptr) device_->release(memory_);
}

Input::Input(Input&& other) noexcept
    : device_(other.device_), memory_(std::exchange(other.memory_, nullptr)), capacity_(other.capacity_) {}

const void* Input::place(const void* host, size_t bytes) {
  if (device_ == nullptr) return host;
  if (memory_ == nullptr || bytes > capacity_) {
    if (memory_ != nullptr) device_->release(std::exchange(memory_, nullptr));
    memory_ = device_->allocate(bytes);
    capacity_ = bytes;
  }
  device_->upload(memory_, host, bytes);
  return memory_;
}

}  // namespace fwdmeta::command
