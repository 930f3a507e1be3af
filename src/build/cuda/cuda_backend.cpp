// The CUDA backend: memory, launches, captures, readers. What a build computes is in build_kernel.cu.
#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/log.h"
#include "base/math.h"
#include "base/metrics.h"
#include "build/cuda/context.h"
#include "build/cuda/kernel_args.h"
#include "build/cuda/reaper.h"

namespace fwdmeta {
namespace {

constexpr int32_t kReadersPerSet = 16;

bool Aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// Where things lie in the two arenas.
struct Layout {
  int64_t set_bytes;  // the outputs of one set
  int64_t set_states, builder_state, chunks, staged_copy, slice, device;
  int64_t staging, staging_entry, host_slice, pinned;
};

Layout MakeLayout(const Config& config, const Plan& plan) {
  Layout layout = {};
  const bool chunked = config.max_batch_size > kSingleLaunchSlots;
  // E, D and N of every slot, and of a slice the offset.
  const int64_t num_arrays = config.of_slice ? 4 : 3;
  const int64_t lengths = num_arrays * SliceArrayBytes(config);
  layout.set_bytes = PlaceOutputs(config, plan, nullptr, nullptr);
  int64_t at = layout.set_bytes * config.generations;
  layout.set_states = at;
  at += AlignUp(static_cast<int64_t>(sizeof(SetState)) * config.generations);
  layout.builder_state = at;
  at += AlignUp(sizeof(BuilderState));
  layout.chunks = at;
  at += chunked ? AlignUp(sizeof(ChunkSums)) : 0;
  layout.staged_copy = at;
  at += chunked ? lengths : 0;
  layout.slice = at;
  at += SliceArraysBytes(config);
  layout.device = at;
  layout.staging = AlignUp(MirrorBytes(config));
  layout.staging_entry = lengths;
  layout.host_slice = layout.staging + lengths * config.depth;
  layout.pinned = layout.host_slice + SliceArraysBytes(config);
  return layout;
}

class CudaBackend final : public Reapable {
 public:
  CudaBackend() = default;
  ~CudaBackend() override {
    if (context_.context() == nullptr) return;
    ContextGuard guard(context_);
    for (ReaderState& set : readers_) {
      for (cudaEvent_t event : set.events) DestroyEvent(event);
      DestroyEvent(set.built);
    }
    DestroyEvent(work_event_);
    if (private_stream_ != nullptr) cudaStreamDestroy(private_stream_);
    if (device_arena_ != nullptr) FreeDevice(device_arena_);
    if (pinned_arena_ != nullptr) FreePinned(pinned_arena_);
  }

  Status Create(Config* config, Plan* plan) {
    FWDMETA_TRY(context_.Bind(config->device));
    config->device = context_.device();
    ContextGuard guard(context_);
    int sms = 0;
    FWDMETA_CUDA_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, context_.device()));
    num_sms_ = sms;
    if (config->num_sms == FWDMETA_DEFAULT) config->num_sms = sms;
    *plan = MakePlan(*config, config->num_sms);
    config_ = *config;
    plan_ = *plan;
    if (config_.max_batch_size > kMaxCudaSlots) {
      return Fail(FWDMETA_UNSUPPORTED, "max_batch_size %d passes the CUDA backend's %d slots", config_.max_batch_size,
                  kMaxCudaSlots);
    }
    FWDMETA_CUDA_TRY(LoadBuildKernels());
    FWDMETA_CUDA_TRY(LoadSmallKernels());
    if (config_.of_slice) FWDMETA_CUDA_TRY(LoadCutKernel());
    FWDMETA_CUDA_TRY(cudaStreamCreateWithFlags(&private_stream_, cudaStreamNonBlocking));
    FWDMETA_CUDA_TRY(cudaEventCreateWithFlags(&work_event_, cudaEventDisableTiming));
    for (int32_t i = 0; i < config_.generations; ++i) {
      FWDMETA_CUDA_TRY(cudaEventCreateWithFlags(&readers_[i].built, cudaEventDisableTiming));
      for (cudaEvent_t& event : readers_[i].events) {
        FWDMETA_CUDA_TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
      }
    }
    return Allocate();
  }

  fwdmeta_backend_t kind() const override { return FWDMETA_BACKEND_CUDA; }
  int32_t device() const override { return context_.device(); }
  int64_t single_launch_slots() const override { return kSingleLaunchSlots; }
  int32_t* advance_counts() const override { return builder_state_->advance_counts; }

  Status IsCapturing(fwdmeta_stream_t stream, bool* capturing) override {
    CurrentContext guard(context_);
    cudaStreamCaptureStatus status;
    const cudaError_t error = cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status);
    if (error != cudaSuccess) return StreamFail(stream, error, "cudaStreamIsCapturing");
    if (status == cudaStreamCaptureStatusInvalidated) {
      return Fail(FWDMETA_NOT_CAPTURABLE, "the stream's capture has been invalidated");
    }
    *capturing = status == cudaStreamCaptureStatusActive;
    return FWDMETA_OK;
  }

  Status HoldByCapture(fwdmeta_stream_t stream, std::shared_ptr<void> owner) override {
    ContextGuard guard(context_);
    cudaStreamCaptureStatus status;
    cudaGraph_t graph = nullptr;
#if CUDART_VERSION >= 13000
    FWDMETA_CUDA_TRY(cudaStreamGetCaptureInfo(static_cast<cudaStream_t>(stream), &status, nullptr, &graph, nullptr,
                                              nullptr, nullptr));
#else
    FWDMETA_CUDA_TRY(
        cudaStreamGetCaptureInfo_v2(static_cast<cudaStream_t>(stream), &status, nullptr, &graph, nullptr, nullptr));
#endif
    auto* held = new std::shared_ptr<void>(std::move(owner));
    cudaUserObject_t object;
    const auto release = [](void* pointer) {
      NoCudaCalls none;
      delete static_cast<std::shared_ptr<void>*>(pointer);
    };
    const cudaError_t error = cudaUserObjectCreate(&object, held, release, 1, cudaUserObjectNoDestructorSync);
    if (error != cudaSuccess) {
      delete held;
      return CudaFail(error, "cudaUserObjectCreate");
    }
    const cudaError_t retained = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
    if (retained == cudaSuccess) return FWDMETA_OK;
    cudaUserObjectRelease(object, 1);
    return CudaFail(retained, "cudaGraphRetainUserObject");
  }

  Status CheckDevice() override {
    ContextGuard guard(context_);
    const cudaError_t error = cudaStreamQuery(private_stream_);
    if (error == cudaSuccess) return FWDMETA_OK;
    if (error != cudaErrorNotReady) return CudaFail(error, "a staging entry will not come free");
    cudaGetLastError();
    return FWDMETA_OK;
  }

  Status Build(const BuildRequest& request) override {
    CurrentContext guard(context_);
    const cudaStream_t stream = static_cast<cudaStream_t>(request.stream);
    BuildLaunch launch;
    std::memcpy(&launch, &prepared_[request.generation], sizeof(launch));
    BuildArgs& args = launch.build;
    args.inputs = request.inputs;
    args.step = request.step;
    args.captured = request.captured;
    args.staged = request.summary != nullptr;
    MirrorEntry& entry = ring_[request.step % config_.depth];
    args.entry = OnDevice(&entry);
    if (args.staged) StageLengths(request, &args);
    const Grid grid = MakeGrid(request, &args);
    if (!request.captured) FWDMETA_TRY(WaitForReaders(request.generation, stream));
    const bool plain = MayBePlain(grid, args);
    if (plain) PreparePlain(args, &launch.plain);
    const cudaError_t error = plain ? LaunchPlainBuild(launch, grid.blocks, grid.threads, stream)
                                    : LaunchBuild(args, grid.blocks, grid.threads, stream);
    if (error != cudaSuccess) return StreamFail(request.stream, error, "the launch of a build");
    if (!request.captured) {
      ForgetReaders(request.generation);
      NoteWork(stream);
    }
    token_bounds_[request.generation] = grid.token_bound;
    if (args.staged) StoreCounts(request.summary->block, request.step, &entry);
    return FWDMETA_OK;
  }

  Status Cut(const CutRequest& request) override {
    ContextGuard guard(context_);
    CutArgs args = {};
    args.plan = plan_;
    args.encoder = request.batch->encoder;
    args.decoder = request.batch->decoder;
    args.this_time = request.batch->this_time;
    args.batch_size = request.batch->batch_size;
    args.num_padded_tokens = request.batch->num_padded_tokens;
    args.token_limit = TokenLimit(*request.batch);
    args.num_slices = request.num_slices;
    args.split = request.split;
    std::copy_n(request.slices, request.num_slices, args.slices);
    const cudaError_t error = LaunchCut(args, static_cast<cudaStream_t>(request.stream));
    return error == cudaSuccess ? FWDMETA_OK : StreamFail(request.stream, error, "the launch of a cut");
  }

  Status Advance(const AdvanceRequest& request) override {
    ContextGuard guard(context_);
    AdvanceArgs args;
    args.plan = plan_;
    args.request = request;
    args.builder = builder_state_;
    args.mirror = OnDevice(tail_);
    const cudaError_t error = LaunchAdvance(args, static_cast<cudaStream_t>(request.stream));
    if (error != cudaSuccess) return StreamFail(request.stream, error, "the launch of an advance");
    if (!request.captured) NoteWork(static_cast<cudaStream_t>(request.stream));
    return FWDMETA_OK;
  }

  Status Reset(fwdmeta_stream_t stream) override {
    ContextGuard guard(context_);
    for (int32_t generation = 0; generation < config_.generations; ++generation) {
      FWDMETA_TRY(WaitForReaders(generation, static_cast<cudaStream_t>(stream)));
      FillArgs args = {};
      args.set = set_states_ + generation;
      for (int32_t i = 0; i < FWDMETA_FIELD_COUNT; ++i) {
        const Field& field = kFields[i];
        const bool by_group = field.shape == Shape::kTokensByGroup;
        for (int32_t copy = 0; copy < (by_group ? plan_.num_groups : 1); ++copy) {
          void* data = by_group ? outputs_[generation].slot_mapping[copy] : outputs_[generation].array[i];
          if (data == nullptr) continue;
          args.range[args.num_ranges++] = {data, ElementCount(plan_, field.shape), TailValue(plan_, field.tail),
                                           static_cast<int32_t>(ElementSize(field.dtype))};
        }
      }
      const cudaError_t error = LaunchFill(args, static_cast<cudaStream_t>(stream));
      if (error != cudaSuccess) return StreamFail(stream, error, "the launch of a reset");
      ForgetReaders(generation);
    }
    NoteWork(static_cast<cudaStream_t>(stream));
    return FWDMETA_OK;
  }

  Status ReaderBegin(int32_t generation, fwdmeta_stream_t build_stream, fwdmeta_stream_t reader) override {
    FWDMETA_TRY(RefuseCapture(build_stream));
    FWDMETA_TRY(RefuseCapture(reader));
    ContextGuard guard(context_);
    std::lock_guard<std::mutex> lock(readers_mutex_);
    ReaderState& set = readers_[generation];
    if (set.open + set.pending >= kReadersPerSet) {
      return Fail(FWDMETA_BUSY, "%d readers of set %d are open or pending, the limit is %d", set.open + set.pending,
                  generation, kReadersPerSet);
    }
    FWDMETA_TRY(WaitForStream(set.built, build_stream, reader));
    ++set.open;
    return FWDMETA_OK;
  }

  Status ReaderEnd(int32_t generation, fwdmeta_stream_t reader) override {
    FWDMETA_TRY(RefuseCapture(reader));
    ContextGuard guard(context_);
    std::lock_guard<std::mutex> lock(readers_mutex_);
    ReaderState& set = readers_[generation];
    if (set.open == 0) return Fail(FWDMETA_INVALID_ARGUMENT, "no reader of set %d has begun", generation);
    FWDMETA_CUDA_TRY(cudaEventRecord(set.events[set.pending], static_cast<cudaStream_t>(reader)));
    --set.open;
    ++set.pending;
    return FWDMETA_OK;
  }

  int32_t open_readers(int32_t generation) const override {
    std::lock_guard<std::mutex> lock(readers_mutex_);
    return readers_[generation].open;
  }
  int32_t pending_readers(int32_t generation) const override {
    std::lock_guard<std::mutex> lock(readers_mutex_);
    return readers_[generation].pending;
  }

  Status OrderAfterBuild(int32_t generation, fwdmeta_stream_t build_stream, fwdmeta_stream_t consumer) override {
    FWDMETA_TRY(RefuseCapture(build_stream));
    FWDMETA_TRY(RefuseCapture(consumer));
    ContextGuard guard(context_);
    std::lock_guard<std::mutex> lock(readers_mutex_);
    return WaitForStream(readers_[generation].built, build_stream, consumer);
  }

  Status Synchronize(fwdmeta_stream_t stream) override {
    FWDMETA_TRY(RefuseCapture(stream));
    ContextGuard guard(context_);
    FWDMETA_CUDA_TRY(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
    return FWDMETA_OK;
  }

  Status CopyToHost(const void* source, int64_t bytes, void* target) override {
    ContextGuard guard(context_);
    FWDMETA_CUDA_TRY(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToHost, private_stream_));
    FWDMETA_CUDA_TRY(cudaStreamSynchronize(private_stream_));
    return FWDMETA_OK;
  }

  void NoteWork(fwdmeta_stream_t stream) override {
    ContextGuard guard(context_);
    NoteWork(static_cast<cudaStream_t>(stream));
  }

  bool Done() override {
    ContextGuard guard(context_);
    bool done = !work_noted_ || cudaEventQuery(work_event_) != cudaErrorNotReady;
    for (const ReaderState& set : readers_) {
      for (int32_t i = 0; i < set.pending; ++i) done = done && cudaEventQuery(set.events[i]) != cudaErrorNotReady;
    }
    cudaGetLastError();
    return done;
  }
  bool FreesAtOnce() const override {
    return config_.device_allocator.free != nullptr && config_.pinned_allocator.free != nullptr;
  }

 private:
  struct ReaderState {
    cudaEvent_t built = nullptr;  // recorded on the build's stream for another stream to wait on
    cudaEvent_t events[kReadersPerSet] = {};
    int32_t open = 0, pending = 0;
  };
  struct Grid {
    int32_t blocks, threads, token_bound;
  };

  static void DestroyEvent(cudaEvent_t event) {
    if (event != nullptr) cudaEventDestroy(event);
  }

  // ------------------------------------------------------------------------------------------------- memory --

  Status Allocate() {
    const Layout layout = MakeLayout(config_, plan_);
    bytes_ = CudaArenaBytes(config_, plan_);
    FWDMETA_TRY(AllocateArena(config_.device_allocator, bytes_.device, "device", Memory::kDevice, &device_arena_,
                              [](void** out, size_t bytes) { return cudaMalloc(out, bytes); }));
    FWDMETA_TRY(AllocateArena(config_.pinned_allocator, bytes_.pinned, "pinned", Memory::kPinned, &pinned_arena_,
                              [](void** out, size_t bytes) {
                                return cudaHostAlloc(out, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
                              }));
    void* alias = nullptr;
    FWDMETA_CUDA_TRY(cudaHostGetDevicePointer(&alias, pinned_arena_, 0));
    pinned_alias_ = static_cast<unsigned char*>(alias);
    std::memset(pinned_arena_, 0, bytes_.pinned);
    ring_ = reinterpret_cast<MirrorEntry*>(pinned_arena_);
    tail_ = reinterpret_cast<MirrorTail*>(ring_ + config_.depth);
    staging_ = pinned_arena_ + layout.staging;
    staging_entry_ = layout.staging_entry;
    set_states_ = reinterpret_cast<SetState*>(device_arena_ + layout.set_states);
    builder_state_ = reinterpret_cast<BuilderState*>(device_arena_ + layout.builder_state);
    FWDMETA_CUDA_TRY(
        cudaMemsetAsync(device_arena_ + layout.set_states, 0, layout.device - layout.set_states, private_stream_));
    const bool chunked = config_.max_batch_size > kSingleLaunchSlots;
    for (int32_t i = 0; i < config_.generations; ++i) {
      PlaceOutputs(config_, plan_, device_arena_ + layout.set_bytes * i, &outputs_[i]);
      prepared_[i] = {};
      BuildArgs& args = prepared_[i].build;
      args.plan = plan_;
      args.out = outputs_[i];
      args.set = set_states_ + i;
      args.builder = builder_state_;
      args.mirror = OnDevice(tail_);
      args.chunks = chunked ? reinterpret_cast<ChunkSums*>(device_arena_ + layout.chunks) : nullptr;
      prepared_[i].plain = MakePlain(args);
    }
    staged_copy_ = chunked ? reinterpret_cast<int32_t*>(device_arena_ + layout.staged_copy) : nullptr;
    if (config_.of_slice) {
      slice_arrays_ = PlaceSliceArrays(config_, device_arena_ + layout.slice);
      host_slice_arrays_ = PlaceSliceArrays(config_, pinned_arena_ + layout.host_slice);
    }
    FWDMETA_TRY(Reset(private_stream_));
    FWDMETA_CUDA_TRY(cudaStreamSynchronize(private_stream_));
    return FWDMETA_OK;
  }

  template <class Default>
  static Status AllocateArena(const fwdmeta_allocator_t& allocator, int64_t bytes, const char* name, Memory kind,
                              unsigned char** out, Default by_default) {
    void* memory = nullptr;
    if (allocator.alloc != nullptr) {
      memory = allocator.alloc(bytes, 256, allocator.user);
      if (memory == nullptr) {
        return Fail(FWDMETA_OUT_OF_MEMORY, "the %s allocator gave none of %lld bytes", name, (long long)bytes);
      }
    } else {
      cudaError_t error = by_default(&memory, bytes);
      if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        DrainReaper();  // ended builders may still hold what is missing
        error = by_default(&memory, bytes);
      }
      if (error != cudaSuccess) {
        cudaGetLastError();
        return Fail(error == cudaErrorMemoryAllocation ? FWDMETA_OUT_OF_MEMORY : FWDMETA_CUDA_ERROR,
                    "%lld bytes of %s memory: %s", (long long)bytes, name, cudaGetErrorString(error));
      }
    }
    *out = static_cast<unsigned char*>(memory);
    AddBytes(kind, bytes);
    return CheckArenaAlignment(memory, name);
  }
  void FreeDevice(void* memory) {
    AddBytes(Memory::kDevice, -bytes_.device);
    const fwdmeta_allocator_t& allocator = config_.device_allocator;
    if (allocator.free != nullptr) {
      allocator.free(memory, bytes_.device, allocator.user);
    } else {
      cudaFree(memory);
    }
  }
  void FreePinned(void* memory) {
    AddBytes(Memory::kPinned, -bytes_.pinned);
    const fwdmeta_allocator_t& allocator = config_.pinned_allocator;
    if (allocator.free != nullptr) {
      allocator.free(memory, bytes_.pinned, allocator.user);
    } else {
      cudaFreeHost(memory);
    }
  }
  // The device's address of something in the pinned arena.
  template <class T>
  T* OnDevice(T* pointer) const {
    return reinterpret_cast<T*>(pinned_alias_ + (reinterpret_cast<unsigned char*>(pointer) - pinned_arena_));
  }

  // ------------------------------------------------------------------------------------------------- builds --

  void StageLengths(const BuildRequest& request, BuildArgs* args) {
    const int64_t count = request.inputs.batch_size;
    const int64_t stride = SliceArrayBytes(config_) / static_cast<int64_t>(sizeof(int32_t));
    const bool of_slice = request.inputs.offsets != nullptr;
    int32_t* staged = reinterpret_cast<int32_t*>(staging_ + staging_entry_ * (request.step % config_.depth));
    if (count > 0) {
      std::memcpy(staged, request.inputs.encoder, count * sizeof(int32_t));
      std::memcpy(staged + stride, request.inputs.decoder, count * sizeof(int32_t));
      std::memcpy(staged + 2 * stride, request.inputs.this_time, count * sizeof(int32_t));
      if (of_slice) std::memcpy(staged + 3 * stride, request.inputs.offsets, count * sizeof(int32_t));
    }
    args->inputs.encoder = OnDevice(staged);
    args->inputs.decoder = OnDevice(staged + stride);
    args->inputs.this_time = OnDevice(staged + 2 * stride);
    if (of_slice) args->inputs.offsets = OnDevice(staged + 3 * stride);
    args->staged_copy = count > kSingleLaunchSlots ? staged_copy_ : nullptr;
    args->staged_stride = static_cast<int32_t>(stride);
  }

  int32_t TokenLimit(const Inputs& inputs) const {
    return inputs.num_padded_tokens >= 0 ? inputs.num_padded_tokens : plan_.max_num_tokens;
  }

  // How many blocks each role gets: as many as its outputs may need, from what the host knows of the step.
  Grid MakeGrid(const BuildRequest& request, BuildArgs* args) {
    const int64_t slots = request.inputs.batch_size;
    const int64_t longest = slots * plan_.max_model_len;
    const int64_t limit = std::min<int64_t>(plan_.max_num_kv_tokens, INT32_MAX);
    args->token_limit = TokenLimit(request.inputs);
    args->wide_sums = longest > INT32_MAX;
    args->check_kv = longest > limit;
    args->vector_loads =
        Aligned16(args->inputs.encoder) && Aligned16(args->inputs.decoder) && Aligned16(args->inputs.this_time);
    const int64_t stated = request.summary != nullptr              ? request.summary->block.counts[kNumTokens]
                           : request.most_tokens >= 0              ? request.most_tokens
                           : request.inputs.num_padded_tokens >= 0 ? request.inputs.num_padded_tokens
                                                                   : plan_.max_num_tokens;
    const int64_t token_bound = std::min<int64_t>(stated, std::min<int64_t>(longest, plan_.max_num_tokens));
    const int64_t tokens = std::max<int64_t>(token_bound, token_bounds_[request.generation]);
    const bool chunked = slots > kSingleLaunchSlots;
    const int64_t items = slots > kOneItemSlots && !chunked ? kSingleLaunchItems : 1;
    const int64_t narrowest = tokens > 2048 ? 256 : 128;
    const int64_t threads =
        chunked ? kChunkSlots / kChunkItems : std::max(narrowest, CeilDiv(CeilDiv(slots, items), 32) * 32);
    const int64_t chunks = chunked ? CeilDiv(slots, kChunkSlots) : 1;
    args->short_slots = token_bound <= 2 * slots;
    args->num_chunks = chunked ? static_cast<int32_t>(chunks) : 0;

    const int64_t per_pass = 4 * threads;  // entries that a block writes in one pass
    const int64_t rows = tokens * plan_.heads_per_kv_head;
    const auto tiles_of = [&](const FastDiv& rows_per_tile) { return rows / rows_per_tile.divisor + slots; };
    const int64_t pages = tokens / plan_.block.divisor + 2 * slots;
    const int64_t tail = CeilDiv(plan_.max_batch_size - slots, 32 * threads);
    const auto clamp = [&](int64_t blocks, int64_t most) {
      return static_cast<int32_t>(std::max<int64_t>(1, std::min(std::max(CeilDiv(blocks, chunks), tail), most)));
    };
    args->shares[kRoleCounts] = 1;
    args->shares[kRoleLengths] = clamp(0, 16);
    // An MLA step's tiles follow from lengths that the host does not know.
    const int64_t mla_tiles = std::min<int64_t>(plan_.capacity[kDecoder], 16 * per_pass);
    const int64_t decoder_tiles = std::max(tiles_of(plan_.decoder_rows), plan_.mla != 0 ? mla_tiles : 0);
    args->shares[kRoleTiles + kDecoder] = clamp(CeilDiv(decoder_tiles, 2 * per_pass), 64);
    args->shares[kRoleTiles + kEncoder] = clamp(CeilDiv(tiles_of(plan_.encoder_rows), per_pass), 64);
    args->shares[kRoleTiles + kKv] = clamp(CeilDiv(pages, per_pass), 16);
    args->shares[kRoleTiles + kPreCache] = args->shares[kRoleTiles + kKv];
    args->shares[kRoleRows] = clamp(CeilDiv(std::min(tokens, 8 * slots), 4 * per_pass), 16);
    const int64_t most = std::max<int64_t>(1, int64_t{num_sms_} * kMaxThreads / threads / chunks);
    // One token to a lane while that keeps the blocks to one per multiprocessor.
    const int64_t per_block = tokens <= threads * num_sms_ ? std::min<int64_t>(threads, 512) : per_pass;
    args->shares[kRoleTokens] = clamp(CeilDiv(tokens, per_block), most);
    args->simple_rows = RowsAreSimple(*args);
    args->warps_per_share = static_cast<int32_t>(CeilDiv(threads / 32, args->shares[kRoleTokens]));
    args->tokens_per_share = static_cast<int32_t>(CeilDiv(CeilDiv(token_bound, args->shares[kRoleTokens]), 128) * 128);
    int32_t blocks = 0;
    for (int32_t role = 0; role < kNumRoles; ++role) {
      args->first_block[role] = blocks;
      blocks += role == kRoleCounts ? 1 : args->shares[role] * static_cast<int32_t>(chunks);
    }
    return {blocks, static_cast<int32_t>(threads), static_cast<int32_t>(token_bound)};
  }

  bool RowsAreSimple(const BuildArgs& args) const {
    const Inputs& inputs = args.inputs;
    const PlanGroup& group = plan_.groups[0];
    const bool simple_table = inputs.tables[0].data != nullptr && inputs.tables[0].row_lengths == nullptr &&
                              group.ranks == 1 && group.pages_per_block == 1 && group.page.divisor != 0;
    return (simple_table || args.out.slot_mapping[0] == nullptr) && inputs.offsets == nullptr &&
           inputs.input_ids.row_lengths == nullptr && inputs.draft_tokens.row_lengths == nullptr;
  }
  // Whether every slot may have one token at most, in a batch for which PlainBlock has been written.
  bool MayBePlain(const Grid& grid, const BuildArgs& args) const {
    return grid.token_bound <= args.inputs.batch_size && args.num_chunks == 0 &&
           args.inputs.batch_size <= kOneItemSlots && args.first_block[kRoleTokens] == kRoleTokens && plan_.mla == 0 &&
           plan_.cp_size == 1 && !args.wide_sums && !args.check_kv && args.inputs.offsets == nullptr &&
           TilesPerPlainSlot() <= kOwnerEntries;
  }
  uint32_t TilesPerPlainSlot() const { return plan_.decoder_rows.Quotient(plan_.heads_per_kv_head - 1) + 1; }

  // What does not change from step to step.
  PlainArgs MakePlain(const BuildArgs& args) const {
    const Outputs& out = args.out;
    PlainArgs plain = {};
    plain.max_batch_size = plan_.max_batch_size;
    plain.max_model_len = plan_.max_model_len;
    plain.tiles_per_slot = TilesPerPlainSlot();
    plain.set = args.set;
    plain.builder = args.builder;
    plain.page = plan_.groups[0].page;
    plain.slot_mapping = out.slot_mapping[0];
    plain.ids_remove_padding = out.i64(FWDMETA_FIELD_IDS_REMOVE_PADDING);
    plain.position_ids = out.i64(FWDMETA_FIELD_POSITION_IDS);
    plain.batch_id_per_token = out.i32(FWDMETA_FIELD_BATCH_ID_PER_TOKEN);
    plain.mask_encoder_batch = out.i32(FWDMETA_FIELD_MASK_ENCODER_BATCH);
    plain.is_padding = out.u8(FWDMETA_FIELD_IS_PADDING);
    plain.pad_token_id = plan_.pad_token_id;
    const auto want = [&plain](bool wanted, PlainWants bit) {
      if (wanted) plain.wants |= bit;
    };
    want(plain.batch_id_per_token != nullptr, kWantsBatchIds);
    want(plain.position_ids != nullptr, kWantsPositions);
    want(plain.is_padding != nullptr, kWantsIsPadding);
    want(plain.mask_encoder_batch != nullptr, kWantsMask);
    want(plain.slot_mapping != nullptr, kWantsSlots);
    want(plain.ids_remove_padding != nullptr, kWantsIds);
    want(plan_.num_groups > 1, kOtherGroups);
    plain.pad_seq_len = plan_.pad_seq_len;
    plain.cu_seqlens_q = out.i32(FWDMETA_FIELD_CU_SEQLENS_Q);
    plain.cu_seqlens_k = out.i32(FWDMETA_FIELD_CU_SEQLENS_K);
    plain.attn_cu_seqlens_k = out.i32(FWDMETA_FIELD_ATTN_CU_SEQLENS_K);
    plain.seq_lens_kv = out.i32(FWDMETA_FIELD_SEQ_LENS_KV);
    plain.last_token_index = out.i32(FWDMETA_FIELD_LAST_TOKEN_INDEX);
    plain.cu_seqlens_q_output = out.i32(FWDMETA_FIELD_CU_SEQLENS_Q_OUTPUT);
    plain.seq_lens_output = out.i32(FWDMETA_FIELD_SEQ_LENS_OUTPUT);
    plain.batch_id_per_token_output = out.i32(FWDMETA_FIELD_BATCH_ID_PER_TOKEN_OUTPUT);
    plain.logits_indices = out.i32(FWDMETA_FIELD_LOGITS_INDICES);
    for (int32_t i = 0; i < kNumMappings; ++i) {
      const MappingFields& fields = kMappingFields[i];
      plain.mapping[i] = {out.i32(fields.batch_ids), out.i32(fields.tile_ids), out.i32(fields.cu_tiles)};
    }
    plain.counts = MakeCountsOut(out);
    return plain;
  }
  void PreparePlain(const BuildArgs& args, PlainArgs* plain) const {
    plain->encoder = args.inputs.encoder;
    plain->decoder = args.inputs.decoder;
    plain->this_time = args.inputs.this_time;
    plain->batch_size = args.inputs.batch_size;
    plain->num_padded_tokens = args.inputs.num_padded_tokens;
    plain->token_limit = args.token_limit;
    plain->captured = args.captured;
    plain->staged = args.staged;
    plain->entry = args.captured ? &args.mirror->replay : args.entry;
    plain->step = args.step;
    plain->token_blocks = args.shares[kRoleTokens];
    plain->warps_per_block = args.warps_per_share;
    const auto is_simple = [&](const auto& rows) {
      return rows.data != nullptr && rows.row_lengths == nullptr && rows.row_stride >= 0 &&
             rows.row_stride <= INT32_MAX / (kOneItemSlots + 1);
    };
    if ((plain->wants & kWantsSlots) != 0) {
      const PlanGroup& group = plan_.groups[0];
      const Rows<int32_t>& table = args.inputs.tables[0];
      plain->wants |= is_simple(table) && group.ranks == 1 && group.pages_per_block == 1 && group.page.divisor != 0 &&
                              table.width <= table.row_stride
                          ? kPlainTable
                          : kOtherTable;
      plain->table = table.data;
      plain->table_width = table.width;
      plain->table_stride = static_cast<int32_t>(table.row_stride);
    }
    if ((plain->wants & kWantsIds) != 0) {
      const Rows<int64_t>& ids =
          args.inputs.draft_tokens.data != nullptr ? args.inputs.draft_tokens : args.inputs.input_ids;
      if (ids.data != nullptr) plain->wants |= is_simple(ids) && ids.width > 0 ? kPlainIds : kOtherIds;
      plain->ids = ids.data;
      plain->ids_stride = static_cast<int32_t>(ids.row_stride);
    }
  }

  Status WaitForReaders(int32_t generation, cudaStream_t stream) {
    std::lock_guard<std::mutex> lock(readers_mutex_);
    const ReaderState& set = readers_[generation];
    for (int32_t i = 0; i < set.pending; ++i) FWDMETA_CUDA_TRY(cudaStreamWaitEvent(stream, set.events[i], 0));
    return FWDMETA_OK;
  }
  // `later` waits for what `earlier` holds. Under the lock, as the event is the set's.
  static Status WaitForStream(cudaEvent_t event, fwdmeta_stream_t earlier, fwdmeta_stream_t later) {
    FWDMETA_CUDA_TRY(cudaEventRecord(event, static_cast<cudaStream_t>(earlier)));
    FWDMETA_CUDA_TRY(cudaStreamWaitEvent(static_cast<cudaStream_t>(later), event, 0));
    return FWDMETA_OK;
  }
  // Once what waits for them has been launched.
  void ForgetReaders(int32_t generation) {
    std::lock_guard<std::mutex> lock(readers_mutex_);
    readers_[generation].pending = 0;
  }

  // Memory of the caller's own allocators may go back only after the work that uses it. The stream may be gone by then,
  // so the work is noted as it is issued.
  void NoteWork(cudaStream_t stream) {
    if (config_.device_allocator.free == nullptr && config_.pinned_allocator.free == nullptr) return;
    if (cudaEventRecord(work_event_, stream) == cudaSuccess) {
      work_noted_ = true;
    } else {
      cudaGetLastError();
      Log(FWDMETA_LOG_ERROR, "the work of a builder could not be noted for its allocators' frees");
    }
  }

  Status RefuseCapture(fwdmeta_stream_t stream) {
    bool capturing = false;
    FWDMETA_TRY(IsCapturing(stream, &capturing));
    return capturing ? Fail(FWDMETA_NOT_CAPTURABLE, "the stream is being captured") : FWDMETA_OK;
  }

  // A stream of another device is the caller's mistake, and CUDA's text does not say so.
  Status StreamFail(fwdmeta_stream_t stream, cudaError_t error, const char* what) {
    cudaGetLastError();
#if CUDART_VERSION >= 12080
    int device = -1;
    if (stream != nullptr && cudaStreamGetDevice(static_cast<cudaStream_t>(stream), &device) == cudaSuccess &&
        device != context_.device()) {
      return Fail(FWDMETA_INVALID_ARGUMENT, "%s: the stream is of device %d, the builder of %d (%s)", what, device,
                  context_.device(), cudaGetErrorString(error));
    }
    cudaGetLastError();
#endif
    return CudaFail(error, what);
  }

  DeviceContext context_;
  Config config_ = {};
  Plan plan_ = {};
  int32_t num_sms_ = 0;
  unsigned char* device_arena_ = nullptr;
  unsigned char* pinned_arena_ = nullptr;
  unsigned char* pinned_alias_ = nullptr;
  unsigned char* staging_ = nullptr;
  int64_t staging_entry_ = 0;
  int32_t* staged_copy_ = nullptr;
  SetState* set_states_ = nullptr;
  BuilderState* builder_state_ = nullptr;
  BuildLaunch prepared_[64];
  int32_t token_bounds_[64] = {};  // of each set's latest build
  cudaStream_t private_stream_ = nullptr;
  cudaEvent_t work_event_ = nullptr;
  bool work_noted_ = false;
  mutable std::mutex readers_mutex_;
  ReaderState readers_[64];
};

}  // namespace

const char* WhyNoCuda() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (error != cudaSuccess) return cudaGetErrorString(error);
  if (count == 0) return "there is none";
  return Driver() == nullptr ? "the driver lacks what is needed" : nullptr;
}

ArenaBytes CudaArenaBytes(const Config& config, const Plan& plan) {
  const Layout layout = MakeLayout(config, plan);
  return {layout.device, layout.pinned, 0};
}

Status CreateCudaBackend(Config* config, Plan* plan, BackendPtr* out) {
  std::unique_ptr<CudaBackend> backend(new CudaBackend);
  FWDMETA_TRY(backend->Create(config, plan));
  PrepareReaper();
  *out = BackendPtr(backend.release(), [](Backend* ended) { Reap(static_cast<Reapable*>(ended)); });
  return FWDMETA_OK;
}

}  // namespace fwdmeta
