// A decode step captured once and replayed: build, a consumer on a fixed grid, advance. Between replays the host does
// nothing; it reads the counts from the mirror when it wants them. Exits with 77 where there is no GPU.
#include <cuda_runtime.h>

#include <cstdio>
#include <fwdmeta/fwdmeta.hpp>
#include <stdexcept>

static void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

// Stands for an attention kernel. Its grid is the bucket's bound, so most thread blocks find -1 and leave.
__global__ void consume(const int32_t* slot_of, const int32_t* tile_of, int32_t* steps_seen) {
  const int32_t slot = slot_of[blockIdx.x];
  if (slot < 0) return;
  if (tile_of[blockIdx.x] == 0 && threadIdx.x == 0) ++steps_seen[slot];
}

int main() try {
  constexpr int kSlots = 4, kSteps = 3;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no GPU: skipped\n");
    return 77;
  }
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream));

  fwdmeta::Config config;
  config.backend = FWDMETA_BACKEND_CUDA;
  config.max_batch_size = 64;
  config.max_num_tokens = 256;
  config.max_model_len = 4096;
  config.num_q_heads = 64;
  config.num_kv_heads = 8;
  fwdmeta::Builder builder(config);
  fwdmeta::CapacityQuery bucket;
  bucket.slots = kSlots;
  bucket.tokens = kSlots;
  const fwdmeta::Capacities bounds = fwdmeta::capacities(config, &bucket);

  // E, D, N and the consumer's result, on the device. Slot 2 is idle.
  const int32_t lengths[3][kSlots] = {{0, 0, 0, 0}, {10, 200, 0, 7}, {1, 1, 0, 1}};
  int32_t* device = nullptr;
  check(cudaMalloc(&device, sizeof(lengths) + kSlots * sizeof(int32_t)));
  check(cudaMemcpy(device, lengths, sizeof(lengths), cudaMemcpyHostToDevice));
  int32_t* const steps_seen = device + 3 * kSlots;
  check(cudaMemset(steps_seen, 0, kSlots * sizeof(int32_t)));

  fwdmeta::Batch batch;
  batch.batch_size = kSlots;
  batch.num_padded_tokens = kSlots;
  batch.seq_lens_encoder = device;
  batch.seq_lens_decoder = device + kSlots;
  batch.seq_lens_this_time = device + 2 * kSlots;
  batch.stream = stream;
  fwdmeta::AdvanceArgs next;
  next.batch_size = kSlots;
  next.seq_lens_encoder = device;
  next.seq_lens_decoder = device + kSlots;
  next.seq_lens_this_time = device + 2 * kSlots;
  next.stream = stream;

  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  const fwdmeta::Meta meta = builder.build(batch);
  consume<<<static_cast<unsigned>(bounds.decoder), 32, 0, stream>>>(
      meta.field<int32_t>(FWDMETA_FIELD_DECODER_BATCH_IDS).data(),
      meta.field<int32_t>(FWDMETA_FIELD_DECODER_TILE_IDS_PER_BATCH).data(), steps_seen);
  builder.advance(next);
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec = nullptr;
  check(cudaGraphInstantiate(&exec, graph, 0));

  for (int replay = 1; replay <= kSteps; ++replay) {
    check(cudaGraphLaunch(exec, stream));
    const fwdmeta::Counts counts = builder.wait_replay(replay);
    std::printf("replay %d: %d live slots, %d key tokens, %d decoder tiles of a grid of %lld\n", replay,
                counts.num_live, counts.num_kv_tokens, counts.decoder_num_blocks,
                static_cast<long long>(bounds.decoder));
  }

  int32_t done[kSlots];
  check(cudaMemcpyAsync(done, steps_seen, sizeof(done), cudaMemcpyDeviceToHost, stream));
  check(cudaStreamSynchronize(stream));
  const bool right = done[0] == kSteps && done[1] == kSteps && done[2] == 0 && done[3] == kSteps;
  std::printf("steps seen per slot: %d %d %d %d: %s\n", done[0], done[1], done[2], done[3], right ? "right" : "WRONG");

  check(cudaGraphExecDestroy(exec));
  check(cudaGraphDestroy(graph));
  check(cudaFree(device));
  builder.reset();
  check(cudaStreamDestroy(stream));
  return right ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
