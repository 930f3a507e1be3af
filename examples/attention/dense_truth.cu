#include <cmath>

#include "dense_truth.h"
#include "dispatch.cuh"

namespace attention {

namespace {

constexpr int kThreads = 256;
constexpr double kRotaryBase = 10000;

void check_cublas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error(std::string(call) + ": " + cublasGetStatusString(status));
  }
}
#define CHECK_CUBLAS(call) check_cublas((call), #call)

void grow(DeviceArray<float>& array, int64_t size) {
  if (array.size() < static_cast<size_t>(size)) array = DeviceArray<float>(static_cast<size_t>(size));
}

__device__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ float to_float(__half value) { return __half2float(value); }

// [tokens, heads * group, head_dim] to [heads][tokens * group][head_dim] in float, rotated by first_position + token.
template <class T>
__global__ void by_head(const T* from, int heads, int group, int head_dim, int64_t first_position, bool rotate,
                        float* to) {
  const int64_t token = blockIdx.x, tokens = gridDim.x;
  const int half = head_dim / 2;
  for (int i = threadIdx.x; i < heads * group * half; i += kThreads) {
    const int head = i / half, c = i % half;
    const T* pair = from + (token * heads * group + head) * head_dim + c;
    double low = to_float(pair[0]), high = to_float(pair[half]);
    if (rotate) {
      const double angle =
          static_cast<double>(first_position + token) * pow(kRotaryBase, -static_cast<double>(c) / half);
      const double from_low = low, cosine = cos(angle), sine = sin(angle);
      low = low * cosine - high * sine;
      high = high * cosine + from_low * sine;
    }
    float* row = to + ((head / group * tokens + token) * group + head % group) * head_dim + c;
    row[0] = static_cast<float>(low);
    row[half] = static_cast<float>(high);
  }
}

// The sum over the block of what each thread has, or the maximum.
template <class Combine>
__device__ float combine(float value, float* shared, const Combine& with) {
  __syncthreads();
  shared[threadIdx.x] = value;
  for (int width = kThreads / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) shared[threadIdx.x] = with(shared[threadIdx.x], shared[threadIdx.x + width]);
  }
  __syncthreads();
  return shared[0];
}

// Rows [keys] of scores become weights: row r is of query r / group, which sees keys up to its own position.
__global__ void softmax(float* scores, int64_t keys, int64_t queries, int group, float scale) {
  __shared__ float shared[kThreads];
  const int64_t row = blockIdx.x, seen = keys - queries + row / group + 1;
  float* const of_row = scores + (int64_t{blockIdx.y} * gridDim.x + row) * keys;
  float maximum = of_row[0];
  for (int64_t i = threadIdx.x; i < seen; i += kThreads) maximum = fmaxf(maximum, of_row[i]);
  maximum = combine(maximum, shared, [](float a, float b) { return fmaxf(a, b); });
  float sum = 0;
  for (int64_t i = threadIdx.x; i < seen; i += kThreads) {
    of_row[i] = expf((of_row[i] - maximum) * scale);
    sum += of_row[i];
  }
  sum = combine(sum, shared, [](float a, float b) { return a + b; });
  for (int64_t i = threadIdx.x; i < keys; i += kThreads) of_row[i] = i < seen ? of_row[i] / sum : 0;
}

// [heads][queries * group][head_dim] to [queries, heads * group, head_dim].
__global__ void by_token(const float* from, int heads, int group, int head_dim, float* to) {
  const int64_t token = blockIdx.x, tokens = gridDim.x;
  for (int i = threadIdx.x; i < heads * group * head_dim; i += kThreads) {
    const int head = i / head_dim, c = i % head_dim;
    to[token * heads * group * head_dim + i] =
        from[((head / group * tokens + token) * group + head % group) * head_dim + c];
  }
}

template <class T>
__global__ void add_norms(const T* got, const float* want, int64_t size, double* norms) {
  double difference = 0, square = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < size; i += int64_t{gridDim.x} * kThreads) {
    const double w = want[i], d = to_float(got[i]) - w;
    difference += d * d;
    square += w * w;
  }
  atomicAdd(norms, difference);
  atomicAdd(norms + 1, square);
}

template <class Launch>
void with_type(Dtype dtype, const char* what, const Launch& launch) {
  if (dtype == Dtype::kBf16) {
    launch(Type<__nv_bfloat16>());
  } else {
    launch(Type<__half>());
  }
  check(cudaGetLastError(), what);
}

}  // namespace

DenseTruth::DenseTruth(cudaStream_t stream) : stream_(stream) {
  CHECK_CUBLAS(cublasCreate(&cublas_));
  CHECK_CUBLAS(cublasSetStream(cublas_, stream));
  CHECK_CUBLAS(cublasSetMathMode(cublas_, CUBLAS_PEDANTIC_MATH));  // float32 is float32
}

DenseTruth::~DenseTruth() { cublasDestroy(cublas_); }

const float* DenseTruth::attend(const DenseSequence& s) {
  const int64_t rows = s.num_queries * s.group, heads = s.num_kv_heads, d = s.head_dim;
  grow(q_, heads * rows * d);
  grow(k_, heads * s.num_keys * d);
  grow(v_, heads * s.num_keys * d);
  grow(scores_, heads * rows * s.num_keys);
  grow(rows_, heads * rows * d);
  grow(out_, heads * rows * d);
  with_type(s.dtype, "by_head", [&](auto type) {
    using T = typename decltype(type)::type;
    const auto reorder = [&](const void* from, int64_t tokens, int group, bool rotate, float* to) {
      by_head<<<grid_of(tokens, 1), kThreads, 0, stream_>>>(static_cast<const T*>(from), s.num_kv_heads, group,
                                                            s.head_dim, s.num_keys - tokens, rotate, to);
    };
    reorder(s.q, s.num_queries, s.group, s.rotate, q_.data());
    reorder(s.k, s.num_keys, 1, s.rotate, k_.data());
    reorder(s.v, s.num_keys, 1, false, v_.data());
  });

  // cuBLAS counts by columns: a matrix of rows here is its transpose there.
  const float one = 1, zero = 0;
  const int m = static_cast<int>(s.num_keys), n = static_cast<int>(rows), k = s.head_dim;
  CHECK_CUBLAS(cublasSgemmStridedBatched(cublas_, CUBLAS_OP_T, CUBLAS_OP_N, m, n, k, &one, k_.data(), k, s.num_keys * d,
                                         q_.data(), k, rows * d, &zero, scores_.data(), m, rows * s.num_keys,
                                         s.num_kv_heads));
  softmax<<<grid_of(rows, s.num_kv_heads), kThreads, 0, stream_>>>(
      scores_.data(), s.num_keys, s.num_queries, s.group, static_cast<float>(1 / std::sqrt(static_cast<double>(d))));
  check(cudaGetLastError(), "softmax");
  CHECK_CUBLAS(cublasSgemmStridedBatched(cublas_, CUBLAS_OP_N, CUBLAS_OP_N, k, n, m, &one, v_.data(), k, s.num_keys * d,
                                         scores_.data(), m, rows * s.num_keys, &zero, rows_.data(), k, rows * d,
                                         s.num_kv_heads));
  by_token<<<grid_of(s.num_queries, 1), kThreads, 0, stream_>>>(rows_.data(), s.num_kv_heads, s.group, s.head_dim,
                                                                out_.data());
  check(cudaGetLastError(), "by_token");
  return out_.data();
}

DenseTruth::Norms DenseTruth::compare(Dtype dtype, const void* got, const float* want, int64_t size) {
  ATTENTION_CUDA(cudaMemsetAsync(norms_.data(), 0, norms_.bytes(), stream_));
  with_type(dtype, "add_norms", [&](auto type) {
    using T = typename decltype(type)::type;
    add_norms<<<grid_of(std::min<int64_t>((size + kThreads - 1) / kThreads, 64), 1), kThreads, 0, stream_>>>(
        static_cast<const T*>(got), want, size, norms_.data());
  });
  double norms[2];
  ATTENTION_CUDA(cudaMemcpyAsync(norms, norms_.data(), sizeof norms, cudaMemcpyDeviceToHost, stream_));
  ATTENTION_CUDA(cudaStreamSynchronize(stream_));
  return {norms[0], norms[1]};
}

}  // namespace attention
