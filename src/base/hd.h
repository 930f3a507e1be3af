// Marks functions that both backends call: plain C++ where no CUDA compiler is.
#pragma once

#if defined(__CUDACC__)
#define FWDMETA_HD __host__ __device__ __forceinline__
#else
#define FWDMETA_HD inline
#endif
