/* A decoy of CUDA's runtime, as some programs have one in scope to run without CUDA. Each function counts its calls. */
int decoy_calls = 0;

#define DECOY(name) \
  int name(void) {  \
    ++decoy_calls;  \
    return 0;       \
  }
DECOY(__cudaRegisterFatBinary)
DECOY(__cudaRegisterFatBinaryEnd)
DECOY(__cudaRegisterFunction)
DECOY(__cudaRegisterVar)
DECOY(__cudaUnregisterFatBinary)
DECOY(__cudaPushCallConfiguration)
DECOY(__cudaPopCallConfiguration)
DECOY(cudaDeviceGetAttribute)
DECOY(cudaDriverGetVersion)
DECOY(cudaEventCreateWithFlags)
DECOY(cudaFree)
DECOY(cudaFuncGetAttributes)
DECOY(cudaGetDevice)
DECOY(cudaGetDeviceCount)
DECOY(cudaGetDriverEntryPointByVersion)
DECOY(cudaGetErrorName)
DECOY(cudaGetErrorString)
DECOY(cudaGetLastError)
DECOY(cudaHostAlloc)
DECOY(cudaLaunchKernel)
DECOY(cudaMalloc)
DECOY(cudaRuntimeGetVersion)
DECOY(cudaStreamCreateWithFlags)
DECOY(cudaStreamIsCapturing)
