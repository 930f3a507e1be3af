// What a builder asks of a backend. One thread at a time issues Build, Advance, Reset and the reader calls.
#pragma once

#include <memory>

#include "base/math.h"
#include "build/inputs.h"
#include "build/mirror.h"
#include "build/summary.h"
#include "plan/fields.h"

namespace fwdmeta {

// The sizes that creation asks of each allocator.
struct ArenaBytes {
  int64_t device, pinned, host;
};

// One build, validated as far as the host can.
struct BuildRequest {
  Inputs inputs;
  const Summary* summary;  // host lengths: what they say; null for device lengths
  int32_t generation;
  bool captured;
  int64_t step;  // 0 for a captured build
  fwdmeta_stream_t stream;
  int32_t most_tokens;  // a bound on the sum of N that is closer than the inputs', or -1
};

// The cut of a batch's lengths into those of its slices. In an error step every slice gets the batch's own.
struct CutRequest {
  const Inputs* batch;
  int32_t num_slices, split;
  SliceArrays slices[FWDMETA_MAX_SLICES];
  fwdmeta_stream_t stream;
};

struct AdvanceRequest {
  int32_t batch_size;
  int32_t *encoder, *decoder, *this_time;
  const int32_t* num_rejected;
  const uint8_t* stop;
  const int32_t* prompt_lens;
  int32_t tokens_per_step;  // 1 + k, saturated
  bool captured;
  fwdmeta_stream_t stream;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual fwdmeta_backend_t kind() const = 0;
  virtual int32_t device() const = 0;  // -1: host
  virtual int64_t single_launch_slots() const = 0;
  virtual int32_t* advance_counts() const = 0;
  const ArenaBytes& bytes() const { return bytes_; }
  const Outputs& outputs(int32_t generation) const { return outputs_[generation]; }
  // Of a slice's builder: for a cut by the backend, and for one by the host.
  const SliceArrays& slice_arrays() const { return slice_arrays_; }
  const SliceArrays& host_slice_arrays() const { return host_slice_arrays_; }
  // `depth` entries, and what captured builds and advances publish to.
  MirrorEntry* ring() const { return ring_; }
  MirrorTail* tail() const { return tail_; }

  // Whether work given to the stream is being captured.
  virtual Status IsCapturing(fwdmeta_stream_t stream, bool* capturing) = 0;
  // Makes the graph under capture hold `owner` for as long as it, or anything instantiated from it, lives.
  virtual Status HoldByCapture(fwdmeta_stream_t stream, std::shared_ptr<void> owner) = 0;

  // Fails once the device has: what is in flight will then never be done.
  virtual Status CheckDevice() = 0;

  virtual Status Build(const BuildRequest& request) = 0;
  // Captured where the stream is.
  virtual Status Cut(const CutRequest& request) = 0;
  // Work on the stream that is not the backend's own uses its memory.
  virtual void NoteWork(fwdmeta_stream_t stream) = 0;
  virtual Status Advance(const AdvanceRequest& request) = 0;
  virtual Status Reset(fwdmeta_stream_t stream) = 0;

  virtual Status ReaderBegin(int32_t generation, fwdmeta_stream_t build_stream, fwdmeta_stream_t reader) = 0;
  virtual Status ReaderEnd(int32_t generation, fwdmeta_stream_t reader) = 0;
  // Readers that have begun and not ended, and those that the next build of the set will wait for.
  virtual int32_t open_readers(int32_t generation) const = 0;
  virtual int32_t pending_readers(int32_t generation) const = 0;

  // `consumer` waits for what the build's stream holds, on the device. The two are different streams.
  virtual Status OrderAfterBuild(int32_t generation, fwdmeta_stream_t build_stream, fwdmeta_stream_t consumer) = 0;

  // For dumps: the stream's work done, then device bytes to the host.
  virtual Status Synchronize(fwdmeta_stream_t stream) = 0;
  virtual Status CopyToHost(const void* source, int64_t bytes, void* target) = 0;

 protected:
  ArenaBytes bytes_ = {};
  Outputs outputs_[64] = {};
  SliceArrays slice_arrays_ = {}, host_slice_arrays_ = {};
  MirrorEntry* ring_ = nullptr;
  MirrorTail* tail_ = nullptr;
};

// Deleters give the memory back after the recorded work, without blocking the caller.
using BackendPtr = std::unique_ptr<Backend, void (*)(Backend*)>;

// While one lives on a thread, that thread makes no CUDA call on behalf of ended backends (CUDA's own callbacks, and
// whoever lets go of a builder where a call might fail).
struct NoCudaCalls {
  NoCudaCalls();
  ~NoCudaCalls();
  NoCudaCalls(const NoCudaCalls&) = delete;
  NoCudaCalls& operator=(const NoCudaCalls&) = delete;
};

constexpr int32_t kMaxCudaSlots = 131072;
constexpr int64_t kHostBackendSms = 132;  // of an H200, so that its tuning runs can be reproduced anywhere

ArenaBytes HostArenaBytes(const Config& config, const Plan& plan);
Status CreateHostBackend(const Config& config, const Plan& plan, BackendPtr* out);

// Why no CUDA device can be used; null where one can.
const char* WhyNoCuda();
// With no CUDA compiler at build time these answer NO_DEVICE.
ArenaBytes CudaArenaBytes(const Config& config, const Plan& plan);
// Resolves config->device and config->num_sms; *plan is made from them.
Status CreateCudaBackend(Config* config, Plan* plan, BackendPtr* out);

// Every array lies at a multiple of 256 bytes from its arena's begin.
inline Status CheckArenaAlignment(const void* arena, const char* name) {
  if (reinterpret_cast<uintptr_t>(arena) % 256 == 0) return FWDMETA_OK;
  return Fail(FWDMETA_INVALID_ARGUMENT, "the %s allocator gave %p, which is not aligned to 256 bytes", name, arena);
}

// The arrays of a slice in an arena, one behind another.
inline int64_t SliceArrayBytes(const Config& config) {
  return AlignUp(static_cast<int64_t>(sizeof(int32_t)) * config.max_batch_size);
}
inline int64_t SliceArraysBytes(const Config& config) {
  return config.of_slice ? 4 * SliceArrayBytes(config) + 256 : 0;
}
inline SliceArrays PlaceSliceArrays(const Config& config, unsigned char* base) {
  const auto array = [&](int i) { return reinterpret_cast<int32_t*>(base + i * SliceArrayBytes(config)); };
  return {array(0), array(1), array(2), array(3), array(4)};
}

// The common size of the mirror's part of an arena.
inline int64_t MirrorBytes(const Config& config) {
  return static_cast<int64_t>(sizeof(MirrorEntry)) * config.depth + static_cast<int64_t>(sizeof(MirrorTail));
}

}  // namespace fwdmeta
