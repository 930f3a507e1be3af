#include "build/cuda/context.h"

namespace fwdmeta {
namespace {

template <class Function>
bool FindCall(const char* name, unsigned int version, Function* out) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult result;
  if (cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &result) != cudaSuccess ||
      result != cudaDriverEntryPointSuccess) {
    return false;
  }
  *out = reinterpret_cast<Function>(address);
  return true;
}

Status DriverFail(CUresult result, const char* what) {
  return Fail(FWDMETA_CUDA_ERROR, "%s: driver error %d", what, static_cast<int>(result));
}

}  // namespace

Status CudaFail(cudaError_t error, const char* what) {
  cudaGetLastError();  // the error has been reported; the next call starts clean
  Status status = FWDMETA_CUDA_ERROR;
  if (error == cudaErrorMemoryAllocation) status = FWDMETA_OUT_OF_MEMORY;
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver) status = FWDMETA_NO_DEVICE;
  if (error == cudaErrorInvalidDevice) status = FWDMETA_INVALID_ARGUMENT;
  if (error == cudaErrorStreamCaptureImplicit || error == cudaErrorStreamCaptureUnsupported) {
    status = FWDMETA_NOT_CAPTURABLE;
  }
  return Fail(status, "%s%s: %s (%s)", status == FWDMETA_NO_DEVICE ? "no usable CUDA device or driver; " : "", what,
              cudaGetErrorString(error), cudaGetErrorName(error));
}

const DriverCalls* Driver() {
  static const struct Loaded {
    DriverCalls calls = {};
    bool ok;
    Loaded() {
      constexpr unsigned int kVersion = 12000;
      ok = FindCall("cuCtxGetCurrent", kVersion, &calls.get_current) &&
           FindCall("cuCtxPushCurrent", kVersion, &calls.push) && FindCall("cuCtxPopCurrent", kVersion, &calls.pop) &&
           FindCall("cuCtxGetDevice", kVersion, &calls.get_device) &&
           FindCall("cuDevicePrimaryCtxRetain", kVersion, &calls.retain_primary) &&
           FindCall("cuDevicePrimaryCtxRelease", kVersion, &calls.release_primary);
      cudaGetLastError();
    }
  } loaded;
  return loaded.ok ? &loaded.calls : nullptr;
}

Status DeviceContext::Bind(int64_t wanted) {
  int count = 0;
  FWDMETA_CUDA_TRY(cudaGetDeviceCount(&count));
  const DriverCalls* driver = Driver();
  if (count == 0 || driver == nullptr) return Fail(FWDMETA_NO_DEVICE, "no CUDA device");
  if (wanted != FWDMETA_DEFAULT && wanted >= count) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "device is %lld, there are %d", (long long)wanted, count);
  }
  CUcontext current = nullptr;
  CUdevice current_device = 0;
  CUresult result = driver->get_current(&current);
  if (result == CUDA_SUCCESS && current != nullptr) result = driver->get_device(&current_device);
  if (result != CUDA_SUCCESS) return DriverFail(result, "the current context");
  device_ = wanted == FWDMETA_DEFAULT ? current_device : static_cast<int32_t>(wanted);
  if (current != nullptr && current_device == device_) {
    context_ = current;
    return FWDMETA_OK;
  }
  result = driver->retain_primary(&context_, device_);
  if (result != CUDA_SUCCESS) return DriverFail(result, "cuDevicePrimaryCtxRetain");
  retained_ = true;
  return FWDMETA_OK;
}

DeviceContext::~DeviceContext() {
  if (retained_) Driver()->release_primary(device_);
}

CurrentContext::CurrentContext(const DeviceContext& context) {
  CUcontext current = nullptr;
  if (Driver()->get_current(&current) != CUDA_SUCCESS || current != context.context()) {
    pushed_ = Driver()->push(context.context()) == CUDA_SUCCESS;
  }
}

CurrentContext::~CurrentContext() {
  CUcontext popped;
  if (pushed_) Driver()->pop(&popped);
}

ContextGuard::ContextGuard(const DeviceContext& context) : current_(context) {
  cudaThreadExchangeStreamCaptureMode(&mode_);
}

ContextGuard::~ContextGuard() { cudaThreadExchangeStreamCaptureMode(&mode_); }

}  // namespace fwdmeta
