// What stands in for the CUDA backend in a library that was built without nvcc.
#include "build/backend.h"

namespace fwdmeta {

const char* WhyNoCuda() { return "built without the CUDA backend"; }

ArenaBytes CudaArenaBytes(const Config& config, const Plan& plan) { return HostArenaBytes(config, plan); }

Status CreateCudaBackend(Config*, Plan*, BackendPtr*) {
  return Fail(FWDMETA_NO_DEVICE, "this library was built without the CUDA backend");
}

NoCudaCalls::NoCudaCalls() = default;
NoCudaCalls::~NoCudaCalls() = default;

}  // namespace fwdmeta
