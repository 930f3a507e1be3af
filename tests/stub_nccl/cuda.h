// Types of CUDA's driver interface, for the stub: its calls are found at run time.
#ifndef FWDMETA_STUB_CUDA_H_
#define FWDMETA_STUB_CUDA_H_

typedef enum cudaError_enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_CONTEXT = 201 } CUresult;
typedef struct CUctx_st* CUcontext;
typedef int CUdevice;

#endif  // FWDMETA_STUB_CUDA_H_
