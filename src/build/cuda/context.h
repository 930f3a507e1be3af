// The device and CUcontext that a builder is bound to, and a guard that leaves the caller's own current.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "base/status.h"

namespace fwdmeta {

// Turns a runtime error into a status with CUDA's own text.
Status CudaFail(cudaError_t error, const char* what);

#define FWDMETA_CUDA_TRY(call)                                                      \
  do {                                                                              \
    const cudaError_t cuda_error_ = (call);                                         \
    if (cuda_error_ != cudaSuccess) return ::fwdmeta::CudaFail(cuda_error_, #call); \
  } while (0)

// The driver's context calls, found at run time: the library links no libcuda.
struct DriverCalls {
  CUresult (*get_current)(CUcontext*);
  CUresult (*push)(CUcontext);
  CUresult (*pop)(CUcontext*);
  CUresult (*get_device)(CUdevice*);
  CUresult (*retain_primary)(CUcontext*, CUdevice);
  CUresult (*release_primary)(CUdevice);
};
// Null where there is no driver.
const DriverCalls* Driver();

class DeviceContext {
 public:
  DeviceContext() = default;
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;
  ~DeviceContext();

  // Binds to the calling thread's current context where that is on the wanted device (FWDMETA_DEFAULT: whichever is
  // current), else to the device's primary context.
  Status Bind(int64_t device);

  int32_t device() const { return device_; }
  CUcontext context() const { return context_; }

 private:
  int32_t device_ = -1;
  CUcontext context_ = nullptr;
  bool retained_ = false;
};

// Makes the context current for its own life.
class CurrentContext {
 public:
  explicit CurrentContext(const DeviceContext& context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  bool pushed_ = false;
};

// Likewise, and lets calls that a capture would forbid pass, as none of them touches a captured stream. Launches, events
// and questions about captures need no such leave.
class ContextGuard {
 public:
  explicit ContextGuard(const DeviceContext& context);
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  CurrentContext current_;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace fwdmeta
