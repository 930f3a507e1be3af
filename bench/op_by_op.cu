#include <algorithm>

#include "op_by_op.h"

namespace fwdmeta_bench {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kCandidates = 12;
constexpr int64_t kChunksPerSlot = 1024;  // what FastDeploy sizes the decoder's lists for
constexpr int kNumMaxima = 6;
constexpr unsigned kAllLanes = 0xffffffffu;
// A tail that long of decoder_batch_ids is looked at.
constexpr int64_t kCheckedTail = 4096;

// Where the scalars lie in their buffer.
enum Scalar { kMaxima = 0, kDecoderCount = 9, kEncoderCount, kKvCount, kChunk, kNumScalars };
// And the counts in pinned memory.
enum Pinned { kPinnedDecoder, kPinnedEncoder, kPinnedKv, kNumPinned };

struct Lengths {
  const int32_t *encoder, *decoder, *this_time;
  int32_t slots;
};

__host__ __device__ inline int32_t CeilDiv(int64_t a, int64_t b) { return static_cast<int32_t>((a + b - 1) / b); }

__global__ void MaximaKernel(Lengths in, int32_t* out) {
  __shared__ int32_t partial[kNumMaxima][kMaxThreads / 32];
  int32_t most[kNumMaxima] = {0, 0, 0, 0, 0, 0};
  for (int32_t b = threadIdx.x; b < in.slots; b += blockDim.x) {
    const int32_t n = in.this_time[b], e = in.encoder[b], d = in.decoder[b];
    most[0] = max(most[0], n);
    most[1] = max(most[1], e);
    most[2] = max(most[2], d);
    if (n <= 0) continue;
    most[3] = max(most[3], d + n);
    if (e <= 0) most[4] = max(most[4], d);
    if (d != 0) most[5] = max(most[5], d + n);
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = 0; i < kNumMaxima; ++i) {
    for (int offset = 16; offset > 0; offset /= 2) most[i] = max(most[i], __shfl_down_sync(kAllLanes, most[i], offset));
    if (lane == 0) partial[i][warp] = most[i];
  }
  __syncthreads();
  if (warp >= kNumMaxima) return;
  int32_t value = lane < blockDim.x / 32 ? partial[warp][lane] : 0;
  for (int offset = 16; offset > 0; offset /= 2) value = max(value, __shfl_down_sync(kAllLanes, value, offset));
  if (lane == 0) out[warp] = value;
}

// Query tiles of decode slots (by N) or of prefill slots (by E): one warp, 32 slots at a time, each lane writing its
// slot's tiles one by one.
__global__ void SplitQueryKernel(Lengths in, bool decode, int32_t group, int32_t rows, int32_t* ids, int32_t* tiles,
                                 int32_t* count) {
  const int lane = threadIdx.x;
  int32_t done = 0;
  for (int32_t first = 0; first < in.slots; first += 32) {
    const int32_t b = first + lane;
    int32_t own = 0;
    if (b < in.slots) {
      const int32_t tokens = decode ? (in.encoder[b] > 0 ? 0 : in.this_time[b]) : in.encoder[b];
      own = tokens > 0 ? CeilDiv(int64_t{tokens} * group, rows) : 0;
    }
    int32_t inclusive = own;
    for (int offset = 1; offset < 32; offset *= 2) {
      const int32_t before = __shfl_up_sync(kAllLanes, inclusive, offset);
      if (lane >= offset) inclusive += before;
    }
    const int32_t begin = done + inclusive - own;
    for (int32_t t = 0; t < own; ++t) {
      ids[begin + t] = b;
      tiles[begin + t] = t;
    }
    done += __shfl_sync(kAllLanes, inclusive, 31);
  }
  if (lane == 0) *count = done;
}

// KV pages of prefill slots, by one thread.
__global__ void SplitPagesKernel(Lengths in, int32_t block_size, int32_t* ids, int32_t* tiles, int32_t* count) {
  if (threadIdx.x != 0) return;
  int32_t done = 0;
  for (int32_t b = 0; b < in.slots; ++b) {
    const int32_t e = in.encoder[b];
    if (e <= 0) continue;
    const int32_t pages = CeilDiv(int64_t{e} + in.decoder[b] % block_size, block_size);
    for (int32_t t = 0; t < pages; ++t) {
      ids[done] = b;
      tiles[done++] = t;
    }
  }
  *count = done;
}

// The MLA chunk: each of twelve threads adds up one candidate's tiles over all slots.
__global__ void SearchChunkKernel(Lengths in, int32_t block_size, int32_t num_sms, int32_t* chunk, int32_t* count) {
  __shared__ int32_t total[kCandidates];
  if (threadIdx.x < kCandidates) {
    const int32_t size = block_size << threadIdx.x;
    int32_t sum = 0;
    for (int32_t b = 0; b < in.slots; ++b) {
      const int32_t n = in.this_time[b];
      if (n == 0 || in.encoder[b] > 0) continue;
      sum += CeilDiv(int64_t{in.decoder[b]} + n, size);
    }
    total[threadIdx.x] = sum;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  int best = 0;
  int32_t remainder = 0;
  for (int i = 1; i < kCandidates; ++i) {
    if (total[i] % num_sms >= remainder) {
      best = i;
      remainder = total[i] % num_sms;
    }
  }
  *chunk = block_size << best;
  *count = total[best];
}

__global__ void SplitChunksKernel(Lengths in, const int32_t* chunk, int32_t* ids, int32_t* tiles) {
  if (threadIdx.x != 0) return;
  const int32_t size = *chunk;
  int32_t done = 0;
  for (int32_t b = 0; b < in.slots; ++b) {
    const int32_t n = in.this_time[b];
    if (n == 0 || in.encoder[b] > 0) continue;
    const int32_t chunks = CeilDiv(int64_t{in.decoder[b]} + n, size);
    for (int32_t t = 0; t < chunks; ++t) {
      ids[done] = b;
      tiles[done++] = t;
    }
  }
}

Lengths LengthsOf(const DeviceInputs& inputs, const Case& c) {
  const InputPointers p = inputs.pointers();
  return {p.encoder, p.decoder, p.this_time, static_cast<int32_t>(c.slots())};
}

int64_t DecoderEntries(const Case& c) {
  const int64_t tokens = std::max<int64_t>(1, c.decode_tokens);
  return kChunksPerSlot * c.slots() * CeilDiv(tokens * kHeadsPerKvHead, kDecoderRows);
}
int64_t EncoderEntries(const Case& c) { return c.slots() * CeilDiv(c.max_model_len * kHeadsPerKvHead, kEncoderRows); }
int64_t KvEntries(const Case& c) { return c.slots() * CeilDiv(c.max_model_len, kBlockSize); }

}  // namespace

OpByOp::OpByOp(CaseFixture* fixture)
    : fixture_(fixture),
      case_(fixture->spec()),
      stream_(TheGpu().stream),
      inputs_(case_, fixture->table_width()),
      decoder_ids_(DecoderEntries(case_) * 4),
      decoder_tiles_(DecoderEntries(case_) * 4),
      encoder_ids_(EncoderEntries(case_) * 4),
      encoder_tiles_(EncoderEntries(case_) * 4),
      kv_ids_(KvEntries(case_) * 4),
      kv_tiles_(KvEntries(case_) * 4),
      scalars_(kNumScalars * 4),
      pinned_(kNumPinned * 4),
      max_len_(kMaxLenEntries),
      encoder_count_(1),
      kv_count_(1) {
  inputs_.Upload(fixture->timed());
  Poison();
  RunEager();
  BENCH_CUDA(cudaStreamSynchronize(stream_));
  Compare(false);
}

void OpByOp::RunEager() {
  num_launches_ = 2;
  int32_t* const maxima = scalars_.data<int32_t>() + kMaxima;
  MaximaKernel<<<1, kMaxThreads, 0, stream_>>>(LengthsOf(inputs_, case_), maxima);
  BENCH_CUDA(cudaMemcpyAsync(max_len_.data(), maxima, kMaxLenEntries * 4, cudaMemcpyDeviceToHost, stream_));
  BENCH_CUDA(cudaStreamSynchronize(stream_));
  BuildLists(false);
  if (!case_.mla) BENCH_CUDA(cudaStreamSynchronize(stream_));
}

void OpByOp::EnqueueCaptured() {
  MaximaKernel<<<1, kMaxThreads, 0, stream_>>>(LengthsOf(inputs_, case_), scalars_.data<int32_t>() + kMaxima);
  BuildLists(true);
}

void OpByOp::BuildLists(bool captured) {
  const Lengths in = LengthsOf(inputs_, case_);
  int32_t* const scalars = scalars_.data<int32_t>();
  int32_t* const pinned = pinned_.data<int32_t>();
  const auto group = static_cast<int32_t>(kHeadsPerKvHead);
  if (max_len_[2] > 0 && case_.mla) {
    BuildMlaLists();
    return;
  }
  if (max_len_[2] > 0) {
    BENCH_CUDA(cudaMemsetAsync(decoder_ids_.data(), 0xFF, decoder_ids_.size(), stream_));
    SplitQueryKernel<<<1, 32, 0, stream_>>>(in, true, group, static_cast<int32_t>(kDecoderRows),
                                            decoder_ids_.data<int32_t>(), decoder_tiles_.data<int32_t>(),
                                            scalars + kDecoderCount);
    num_launches_ += 2;
    if (!captured) CopyCount(pinned + kPinnedDecoder, scalars + kDecoderCount);
  }
  if (max_len_[1] > 0) {
    const size_t kv_bytes = case_.slots() * CeilDiv(max_len_[3], kBlockSize) * size_t{4};
    BENCH_CUDA(cudaMemsetAsync(kv_ids_.data(), 0, kv_bytes, stream_));
    BENCH_CUDA(cudaMemsetAsync(kv_tiles_.data(), 0, kv_bytes, stream_));
    SplitPagesKernel<<<1, 32, 0, stream_>>>(in, static_cast<int32_t>(kBlockSize), kv_ids_.data<int32_t>(),
                                            kv_tiles_.data<int32_t>(), scalars + kKvCount);
    CopyCount(captured ? pinned + kPinnedKv : kv_count_.data(), scalars + kKvCount);
    const size_t encoder_bytes = case_.slots() * CeilDiv(max_len_[3] * kHeadsPerKvHead, kEncoderRows) * size_t{4};
    BENCH_CUDA(cudaMemsetAsync(encoder_ids_.data(), 0, encoder_bytes, stream_));
    BENCH_CUDA(cudaMemsetAsync(encoder_tiles_.data(), 0, encoder_bytes, stream_));
    SplitQueryKernel<<<1, 32, 0, stream_>>>(in, false, group, static_cast<int32_t>(kEncoderRows),
                                            encoder_ids_.data<int32_t>(), encoder_tiles_.data<int32_t>(),
                                            scalars + kEncoderCount);
    CopyCount(captured ? pinned + kPinnedEncoder : encoder_count_.data(), scalars + kEncoderCount);
    num_launches_ += 6;
  }
  BENCH_CUDA(cudaGetLastError());
}

void OpByOp::BuildMlaLists() {
  const Lengths in = LengthsOf(inputs_, case_);
  int32_t* const scalars = scalars_.data<int32_t>();
  BENCH_CUDA(cudaMemsetAsync(scalars + kChunk, 64, 4, stream_));
  BENCH_CUDA(cudaMemsetAsync(scalars + kDecoderCount, 0, 4, stream_));
  SearchChunkKernel<<<1, 32, 0, stream_>>>(in, static_cast<int32_t>(kBlockSize),
                                           static_cast<int32_t>(fixture_->num_sms()), scalars + kChunk,
                                           scalars + kDecoderCount);
  BENCH_CUDA(cudaMemsetAsync(decoder_ids_.data(), 0, decoder_ids_.size(), stream_));
  BENCH_CUDA(cudaMemsetAsync(decoder_tiles_.data(), 0, decoder_tiles_.size(), stream_));
  SplitChunksKernel<<<1, 32, 0, stream_>>>(in, scalars + kChunk, decoder_ids_.data<int32_t>(),
                                           decoder_tiles_.data<int32_t>());
  num_launches_ += 6;
  BENCH_CUDA(cudaGetLastError());
}

void OpByOp::CopyCount(int32_t* to, const int32_t* from) {
  BENCH_CUDA(cudaMemcpyAsync(to, from, 4, cudaMemcpyDeviceToHost, stream_));
  ++num_launches_;
}

void OpByOp::CheckCaptured(const Graph& graph) {
  Poison();
  graph.Replay();
  BENCH_CUDA(cudaStreamSynchronize(stream_));
  Compare(true);
}

void OpByOp::Poison() {
  for (const DeviceBuffer* buffer :
       {&decoder_ids_, &decoder_tiles_, &encoder_ids_, &encoder_tiles_, &kv_ids_, &kv_tiles_, &scalars_}) {
    BENCH_CUDA(cudaMemset(buffer->data(), 0x5A, buffer->size()));
  }
  std::fill_n(pinned_.data<int32_t>(), static_cast<int>(kNumPinned), 0x5A5A5A5A);
  encoder_count_[0] = kv_count_[0] = 0x5A5A5A5A;
  BENCH_CUDA(cudaDeviceSynchronize());
}

void OpByOp::CompareList(const char* name, const DeviceBuffer& got, fwdmeta_field_t field, int64_t count) {
  fwdmeta_tensor_t want = FWDMETA_TENSOR_INITIALIZER;
  BENCH_OK(fwdmeta_meta_get_field(fixture_->meta(), field, 0, &want));
  std::vector<int32_t> values(count);
  if (count > 0) BENCH_CUDA(cudaMemcpy(values.data(), got.data(), count * 4, cudaMemcpyDeviceToHost));
  if (!std::equal(values.begin(), values.end(), static_cast<const int32_t*>(want.data))) {
    throw Failure(std::string("op_by_op: ") + name + " differs from the host backend's");
  }
}

void OpByOp::Compare(bool captured) {
  const fwdmeta_counts_t want = fixture_->Build(fixture_->timed());
  std::vector<int32_t> scalars(kNumScalars);
  BENCH_CUDA(cudaMemcpy(scalars.data(), scalars_.data(), kNumScalars * 4, cudaMemcpyDeviceToHost));
  const int32_t* const pinned = pinned_.data<int32_t>();
  const auto expect = [](const char* name, int32_t got, int32_t expected) {
    if (got != expected) {
      throw Failure(std::string("op_by_op: ") + name + " is " + std::to_string(got) + ", not " +
                    std::to_string(expected));
    }
  };
  for (int i = 0; i < kNumMaxima; ++i) {
    expect("a maximum", scalars[kMaxima + i], want.max_len[i]);
    expect("a maximum on the host", max_len_[i], want.max_len[i]);
  }
  if (max_len_[2] > 0) {
    expect("the decoder's count", scalars[kDecoderCount], want.decoder_num_blocks);
    if (!captured && !case_.mla) expect("the decoder's count", pinned[kPinnedDecoder], want.decoder_num_blocks);
    if (case_.mla) expect("the chunk", scalars[kChunk], want.decoder_chunk_size);
    CompareList("decoder_batch_ids", decoder_ids_, FWDMETA_FIELD_DECODER_BATCH_IDS, want.decoder_num_blocks);
    CompareList("decoder_tile_ids", decoder_tiles_, FWDMETA_FIELD_DECODER_TILE_IDS_PER_BATCH, want.decoder_num_blocks);
    const int64_t tail = std::min<int64_t>(kCheckedTail, DecoderEntries(case_) - want.decoder_num_blocks);
    std::vector<int32_t> values(tail);
    if (tail > 0) {
      BENCH_CUDA(cudaMemcpy(values.data(), decoder_ids_.data<int32_t>() + want.decoder_num_blocks, tail * 4,
                            cudaMemcpyDeviceToHost));
    }
    for (const int32_t value : values) expect("the decoder's tail", value, case_.mla ? 0 : -1);
  }
  if (max_len_[1] > 0 && !case_.mla) {
    expect("the kv count", scalars[kKvCount], want.kv_num_blocks);
    expect("the kv count", captured ? pinned[kPinnedKv] : kv_count_[0], want.kv_num_blocks);
    expect("the encoder's count", scalars[kEncoderCount], want.encoder_num_blocks);
    expect("the encoder's count", captured ? pinned[kPinnedEncoder] : encoder_count_[0], want.encoder_num_blocks);
    CompareList("kv_batch_ids", kv_ids_, FWDMETA_FIELD_KV_BATCH_IDS, want.kv_num_blocks);
    CompareList("kv_tile_ids", kv_tiles_, FWDMETA_FIELD_KV_TILE_IDS_PER_BATCH, want.kv_num_blocks);
    CompareList("encoder_batch_ids", encoder_ids_, FWDMETA_FIELD_ENCODER_BATCH_IDS, want.encoder_num_blocks);
    CompareList("encoder_tile_ids", encoder_tiles_, FWDMETA_FIELD_ENCODER_TILE_IDS_PER_BATCH, want.encoder_num_blocks);
  }
}

}  // namespace fwdmeta_bench
