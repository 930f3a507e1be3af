#include "dispatch.cuh"
#include "synthetic.h"

namespace attention {

namespace {

constexpr int kThreads = 256;
constexpr double kRotaryBase = 10000;

// The finalizer of splitmix64.
__device__ uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__device__ float normal(uint64_t seed, Kind kind, int64_t position, int channel) {
  const uint64_t token = mix(seed + 0x9e3779b97f4a7c15ull * (3 * static_cast<uint64_t>(position) + 1) +
                             static_cast<uint64_t>(kind) * 0xd1342543de82ef95ull);
  const uint64_t bits = mix(token + 0x9e3779b97f4a7c15ull * (static_cast<uint64_t>(channel) + 1));
  const float u = (static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f;
  const float angle = static_cast<float>(bits & 0xffffff) * 0x1p-24f;
  return sqrtf(-2 * logf(u)) * cospif(2 * angle);
}

__device__ void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16(value); }
__device__ void store(__half* to, float value) { *to = __float2half(value); }

template <class T>
__device__ void make_token(uint64_t seed, Kind kind, int64_t position, int channels, T* out) {
  for (int c = threadIdx.x; c < channels; c += kThreads) store(out + c, normal(seed, kind, position, c));
}

template <class T>
__global__ void tokens_of_step(Step step, const uint64_t* seeds, T* q, T* k, T* v) {
  const int64_t token = blockIdx.x;
  const int32_t slot = step.batch_id_per_token[token];
  if (slot < 0) return;
  const int64_t position = step.position_ids[token];
  const int kv_channels = step.num_kv_heads * step.head_dim, q_channels = kv_channels * step.group;
  make_token(seeds[slot], Kind::kQuery, position, q_channels, q + token * q_channels);
  make_token(seeds[slot], Kind::kKey, position, kv_channels, k + token * kv_channels);
  make_token(seeds[slot], Kind::kValue, position, kv_channels, v + token * kv_channels);
}

template <class T>
__global__ void tokens_of_sequence(Kind kind, uint64_t seed, int64_t first, int channels, T* out) {
  make_token(seed, kind, first + blockIdx.x, channels, out + int64_t{blockIdx.x} * channels);
}

__global__ void rotary(int64_t positions, int half, float* out) {
  const int64_t position = blockIdx.x;
  for (int c = threadIdx.x; c < half; c += blockDim.x) {
    const double angle = static_cast<double>(position) * pow(kRotaryBase, -static_cast<double>(c) / half);
    out[position * half + c] = static_cast<float>(cos(angle));
    out[(positions + position) * half + c] = static_cast<float>(sin(angle));
  }
}

}  // namespace

void make_tokens(const Step& step, const uint64_t* seeds, int64_t num_tokens, void* q, void* k, void* v,
                 cudaStream_t stream) {
  if (num_tokens == 0) return;
  dispatch(step, "make_tokens", [&](auto type, auto) {
    using T = typename decltype(type)::type;
    tokens_of_step<T><<<grid_of(num_tokens, 1), kThreads, 0, stream>>>(step, seeds, static_cast<T*>(q),
                                                                       static_cast<T*>(k), static_cast<T*>(v));
  });
}

void make_sequence(Dtype dtype, Kind kind, uint64_t seed, int64_t first, int64_t count, int heads, int head_dim,
                   void* out, cudaStream_t stream) {
  if (count == 0) return;
  const auto launch = [&](auto* to) {
    tokens_of_sequence<<<grid_of(count, 1), kThreads, 0, stream>>>(kind, seed, first, heads * head_dim, to);
  };
  if (dtype == Dtype::kBf16) {
    launch(static_cast<__nv_bfloat16*>(out));
  } else {
    launch(static_cast<__half*>(out));
  }
  check(cudaGetLastError(), "make_sequence");
}

void make_rotary(int64_t positions, int head_dim, float* out, cudaStream_t stream) {
  rotary<<<grid_of(positions, 1), 64, 0, stream>>>(positions, head_dim / 2, out);
  check(cudaGetLastError(), "make_rotary");
}

}  // namespace attention
