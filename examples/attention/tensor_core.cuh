// The PTX that the kernels are made of: asynchronous copies into shared memory, fragments from there, and the product
// of two fragments on the tensor cores (sm_80 and later).
//
// Tiles in shared memory are rows of head_dim 16-bit numbers. The 16-byte pieces of a row are permuted by the row's
// number, so that eight rows at one column lie in different banks.
#ifndef FWDMETA_EXAMPLES_ATTENTION_TENSOR_CORE_CUH_
#define FWDMETA_EXAMPLES_ATTENTION_TENSOR_CORE_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace attention {

constexpr int kPieceBytes = 16, kPieceElements = 8;

template <int kHeadDim>
__device__ constexpr uint32_t piece_offset(int row, int piece) {
  return static_cast<uint32_t>(row * kHeadDim * 2 + ((piece ^ (row & 7)) * kPieceBytes));
}

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes, or writes 16 bytes of zeros and reads nothing.
__device__ inline void copy_piece(uint32_t to, const void* from, bool exists) {
  const int bytes = exists ? kPieceBytes : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for this thread's copies but those of the latest `kPending` commits.
template <int kPending>
__device__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Four 8x8 matrices; lane i gives the address of row i % 8 of matrix i / 8. A lane receives of each matrix the two
// elements of row lane / 4 from column 2 * (lane % 4) on, or, transposed, of the matrix's transpose.
__device__ inline void load_matrices(uint32_t (&out)[4], uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(row_address)
               : "memory");
}

__device__ inline void load_matrices_transposed(uint32_t (&out)[4], uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(row_address)
               : "memory");
}

// c += a * b. A is 16x16: a lane holds rows lane / 4 (a[0], a[2]) and lane / 4 + 8 (a[1], a[3]), columns
// 2 * (lane % 4) (a[0], a[1]) and 8 more (a[2], a[3]), two in a register. B is 16x8: column lane / 4, rows
// 2 * (lane % 4) (b0) and 8 more (b1). C is 16x8: rows lane / 4 (c[0], c[1]) and 8 more (c[2], c[3]), columns
// 2 * (lane % 4) and the next.
template <class T>
__device__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
__device__ inline void multiply<__nv_bfloat16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ inline void multiply<__half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two numbers in one register, the first in the lower half.
template <class T>
__device__ uint32_t pack(float low, float high);
template <>
__device__ inline uint32_t pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
template <>
__device__ inline uint32_t pack<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

template <class T>
__device__ float2 unpack(uint32_t pair);
template <>
__device__ inline float2 unpack<__nv_bfloat16>(uint32_t pair) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
}
template <>
__device__ inline float2 unpack<__half>(uint32_t pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

}  // namespace attention

#endif  // FWDMETA_EXAMPLES_ATTENTION_TENSOR_CORE_CUH_
