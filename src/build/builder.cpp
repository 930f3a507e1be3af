#include "build/builder.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>

#include "base/log.h"
#include "base/metrics.h"
#include "base/struct_io.h"
#include "build/read_rows.h"

namespace fwdmeta {
namespace {

constexpr size_t kBuilderTensors = 1024;

HandleTable<std::shared_ptr<Builder>, 1>& Builders() { return TheTable<std::shared_ptr<Builder>, 1>(); }

// Polls until `ready` says so: first spinning, as most waits end within microseconds, then yielding.
template <class Ready>
Status Poll(int64_t timeout_us, const char* what, int64_t number, Ready ready) {
  constexpr int kSpins = 20000;
  Status status = FWDMETA_NOT_READY;
  if (ready(&status)) return status;
  if (timeout_us == 0) return Fail(FWDMETA_NOT_READY, "%s %lld is not ready", what, (long long)number);
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t spin = 0;; ++spin) {
    if (ready(&status)) return status;
    if (spin < kSpins) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    } else {
      std::this_thread::yield();
    }
    // The clock is read now and then only: a look at it costs as much as several polls.
    if (timeout_us > 0 && spin % 32 == 0) {
      const auto waited = std::chrono::steady_clock::now() - begin;
      if (std::chrono::duration_cast<std::chrono::microseconds>(waited).count() >= timeout_us) {
        return Fail(FWDMETA_TIMEOUT, "%s %lld was not ready after %lld us", what, (long long)number,
                    (long long)timeout_us);
      }
    }
  }
}

struct EntryCopy {
  CountsBlock block;
  InvalidWords invalid;
  bool final = false;
};

// Copies an entry and returns the step it is of; 0 while it is incomplete.
int64_t CopyEntry(const MirrorEntry& entry, bool need_final, EntryCopy* out) {
  const int64_t step = LoadCounts(entry, &out->block);
  if (step == 0) return 0;
  out->final = LoadInvalid(entry, step, &out->invalid);
  return need_final && !out->final ? 0 : step;
}

// Whether the plain copy of an entry that the device writes, which *_cpu fields point to, has arrived too.
bool ViewArrived(const MirrorEntry& entry, const CountsBlock& block) {
  const int32_t* view = reinterpret_cast<const int32_t*>(&entry.view);
  const int32_t* words = reinterpret_cast<const int32_t*>(&block);
  for (int32_t i = 0; i < kCountsWords; ++i) {
    if (__atomic_load_n(view + i, __ATOMIC_ACQUIRE) != words[i]) return false;
  }
  return true;
}

// Hands a copied entry to the caller and returns the step's own status.
Status Deliver(const EntryCopy& entry, int64_t number, fwdmeta_counts_t* out) {
  static_assert(offsetof(fwdmeta_counts_t, error_slot) - offsetof(fwdmeta_counts_t, batch_size) ==
                    (kNumCounts - 1) * sizeof(int32_t),
                "the public counts are in the order of CountIndex");
  if (out != nullptr) {
    fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
    counts.step = number;
    counts.error_value = entry.block.error_value;
    counts.error_limit = entry.block.error_limit;
    std::memcpy(&counts.batch_size, entry.block.counts, sizeof(entry.block.counts));
    if (entry.final) {
      const uint32_t slots = static_cast<uint32_t>(entry.invalid.slots);
      const uint32_t ids = static_cast<uint32_t>(entry.invalid.ids) & ~kClampedBit;
      counts.num_invalid_slots = static_cast<int32_t>(slots);
      counts.num_invalid_ids = static_cast<int32_t>(ids);
      counts.warnings = WarningsOf(slots, ids, (entry.invalid.ids & kClampedBit) != 0);
    }
    std::memcpy(counts.max_len, entry.block.max_len, sizeof(counts.max_len));
    counts.decoder_chunk_size = entry.block.decoder_chunk_size;
    counts.is_final = entry.final;
    WriteStruct(counts, out);
  }
  return StatusOfStep(entry.block);
}

}  // namespace

Status Builder::Find(fwdmeta_builder_t handle, std::shared_ptr<Builder>* out) {
  *out = Builders().Find(handle);
  if (*out != nullptr) return FWDMETA_OK;
  return Fail(FWDMETA_INVALID_HANDLE, "0x%llx is no builder", (unsigned long long)handle);
}

Status Builder::Create(const fwdmeta_config_t* config, fwdmeta_builder_t* out) { return Make(config, false, out); }

Status Builder::CreateOfSlice(const fwdmeta_config_t* config, fwdmeta_builder_t* out) {
  return Make(config, true, out);
}

Status Builder::Make(const fwdmeta_config_t* in, bool of_slice, fwdmeta_builder_t* out) {
  if (out == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "out is null");
  std::shared_ptr<Builder> builder(new Builder);
  Config& config = builder->config_;
  FWDMETA_TRY(ParseConfig(in, &config));
  FWDMETA_TRY(CheckCapacities(config));
  config.of_slice = of_slice;
  if (config.backend == FWDMETA_BACKEND_AUTO) {
    const bool fits = config.max_batch_size <= kMaxCudaSlots;
    const char* why = fits ? WhyNoCuda() : "max_batch_size passes the CUDA backend's limit";
    config.backend = why == nullptr ? FWDMETA_BACKEND_CUDA : FWDMETA_BACKEND_HOST;
    if (config.backend == FWDMETA_BACKEND_HOST) {
      static std::atomic<bool> said{false};
      if (!said.exchange(true)) {
        Log(FWDMETA_LOG_WARN,
            "the CUDA backend cannot be used (%s); builders that leave the choice open use the host backend", why);
      }
    }
  }
  if (config.backend == FWDMETA_BACKEND_CUDA) {
    FWDMETA_TRY(CreateCudaBackend(&config, &builder->plan_, &builder->backend_));
  } else {
    if (config.num_sms == FWDMETA_DEFAULT) config.num_sms = kHostBackendSms;
    builder->plan_ = MakePlan(config, config.num_sms);
    FWDMETA_TRY(CreateHostBackend(config, builder->plan_, &builder->backend_));
  }
  builder->captured_sets_.resize(config.generations);
  builder->staged_entries_ = std::vector<std::atomic<bool>>(config.depth);
  builder->tensors_.Reserve(kBuilderTensors);
  if (!Builders().Reserve(1)) return Fail(FWDMETA_OUT_OF_MEMORY, "no builder handle is left");
  builder->reserved_builder_ = true;
  if (!Metas().Reserve(config.max_metas)) {
    return Fail(FWDMETA_OUT_OF_MEMORY, "max_metas is %d and so many handles are not left", config.max_metas);
  }
  builder->reserved_metas_ = true;
  for (int32_t i = 0; i < config.max_metas; ++i) builder->metas_.push_back(std::make_shared<Meta>());
  const ArenaBytes& bytes = builder->backend_->bytes();
  Log(FWDMETA_LOG_DEBUG, "builder: backend %s, device %lld, %lld + %lld + %lld bytes (device, pinned, host)",
      config.backend == FWDMETA_BACKEND_CUDA ? "cuda" : "host", (long long)builder->backend_->device(),
      (long long)bytes.device, (long long)bytes.pinned, (long long)bytes.host);
  *out = Builders().Insert(builder);
  return FWDMETA_OK;
}

Builder::~Builder() {
  if (reserved_builder_) Builders().Unreserve(1);
  if (reserved_metas_) Metas().Unreserve(config_.max_metas);
}

Status Builder::Destroy(fwdmeta_builder_t handle) {
  if (handle == 0) return FWDMETA_OK;
  std::shared_ptr<Builder> builder;
  FWDMETA_TRY(Find(handle, &builder));
  FWDMETA_TRY(builder->CheckOwn());
  if (Builders().Remove(handle) != nullptr) return FWDMETA_OK;
  return Fail(FWDMETA_INVALID_HANDLE, "0x%llx is no builder", (unsigned long long)handle);
}

void Builder::DestroyOfSlice(fwdmeta_builder_t handle) { Builders().Remove(handle); }

Status Builder::CheckOwn() const {
  if (!config_.of_slice) return FWDMETA_OK;
  return Fail(FWDMETA_INVALID_ARGUMENT, "the builder is of a slice: its slicer builds with it and ends it");
}

Status Builder::ReadBatch(const fwdmeta_batch_t& batch, Inputs* out) const {
  if (batch.memory_kind != FWDMETA_MEMORY_DEVICE && batch.memory_kind != FWDMETA_MEMORY_HOST) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "memory_kind is %d", batch.memory_kind);
  }
  if ((batch.flags & ~FWDMETA_BUILD_NO_WAIT) != 0) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "flags has unknown bits: %d", batch.flags);
  }
  if (batch.batch_size < 0) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "batch_size is %lld", (long long)batch.batch_size);
  }
  if (batch.num_padded_tokens < -1) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "num_padded_tokens is %lld", (long long)batch.num_padded_tokens);
  }
  if (batch.batch_size > 0 &&
      (batch.seq_lens_encoder == nullptr || batch.seq_lens_decoder == nullptr || batch.seq_lens_this_time == nullptr)) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "a length array is null and batch_size is %lld", (long long)batch.batch_size);
  }
  FWDMETA_TRY(CheckAligned(batch.seq_lens_encoder, "seq_lens_encoder"));
  FWDMETA_TRY(CheckAligned(batch.seq_lens_decoder, "seq_lens_decoder"));
  FWDMETA_TRY(CheckAligned(batch.seq_lens_this_time, "seq_lens_this_time"));
  if (batch.num_block_tables != 0 && batch.num_block_tables != config_.num_groups) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "num_block_tables is %lld, expected 0 or %d",
                (long long)batch.num_block_tables, config_.num_groups);
  }
  if ((batch.num_block_tables > 0) != (batch.block_tables != nullptr)) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "num_block_tables is %lld and block_tables is %s",
                (long long)batch.num_block_tables, batch.block_tables == nullptr ? "null" : "not null");
  }
  for (int64_t i = 0; i < batch.num_block_tables; ++i) {
    FWDMETA_TRY(ReadRows(batch.block_tables[i], batch.batch_size, "block_tables", &out->tables[i]));
  }
  FWDMETA_TRY(ReadRows(batch.input_ids, batch.batch_size, "input_ids", &out->input_ids));
  FWDMETA_TRY(ReadRows(batch.draft_tokens, batch.batch_size, "draft_tokens", &out->draft_tokens));
  if (batch.batch_size > config_.max_batch_size) {
    return Fail(FWDMETA_CAPACITY_EXCEEDED, "batch_size %lld passes max_batch_size %d", (long long)batch.batch_size,
                config_.max_batch_size);
  }
  if (batch.num_padded_tokens > config_.max_num_tokens) {
    return Fail(FWDMETA_CAPACITY_EXCEEDED, "num_padded_tokens %lld passes max_num_tokens %d",
                (long long)batch.num_padded_tokens, config_.max_num_tokens);
  }
  out->encoder = batch.seq_lens_encoder;
  out->decoder = batch.seq_lens_decoder;
  out->this_time = batch.seq_lens_this_time;
  out->batch_size = static_cast<int32_t>(batch.batch_size);
  out->num_padded_tokens = static_cast<int32_t>(batch.num_padded_tokens);
  return FWDMETA_OK;
}

Status Builder::ChooseGeneration(int64_t asked, bool captured, int32_t* out) const {
  if (asked != FWDMETA_DEFAULT && (asked < 0 || asked >= config_.generations)) {
    return Fail(FWDMETA_OUT_OF_RANGE, "generation is %lld, the builder has %d", (long long)asked, config_.generations);
  }
  if (captured) {
    *out = asked == FWDMETA_DEFAULT ? 0 : static_cast<int32_t>(asked);
    return FWDMETA_OK;
  }
  if (asked != FWDMETA_DEFAULT) {
    if (captured_sets_[asked]) {
      return Fail(FWDMETA_UNAVAILABLE, "set %lld belongs to a captured build", (long long)asked);
    }
    *out = static_cast<int32_t>(asked);
    return FWDMETA_OK;
  }
  for (int32_t i = 0; i < config_.generations; ++i) {
    *out = (next_generation_ + i) % config_.generations;
    if (!captured_sets_[*out]) return FWDMETA_OK;
  }
  return Fail(FWDMETA_UNAVAILABLE, "all %d sets belong to captured builds; raise generations for eager builds",
              config_.generations);
}

Status Builder::CheckReaders(int32_t generation, bool captured) const {
  const int32_t open = backend_->open_readers(generation);
  if (open > 0) {
    return Fail(FWDMETA_BUSY, "%d readers of set %d have begun and not ended", open, generation);
  }
  if (captured && backend_->pending_readers(generation) > 0) {
    return Fail(FWDMETA_BUSY, "%d readers of set %d are pending; an eager build of it would wait for them",
                backend_->pending_readers(generation), generation);
  }
  return FWDMETA_OK;
}

// Waits until the device has no more use for the ring entry, and the staged lengths, that `step` will overwrite.
Status Builder::ReleaseEntry(int64_t step, fwdmeta_build_flags_t flags) {
  const int64_t previous = step - config_.depth;
  if (previous <= 0) return FWDMETA_OK;
  const MirrorEntry& entry = backend_->ring()[step % config_.depth];
  const bool staged = staged_entries_[step % config_.depth].load(std::memory_order_relaxed);
  // Final counters: the tokens are written, for which a slice's staged offsets are read. The stamp: so are the lengths.
  const auto released = [&](Status* status) {
    *status = FWDMETA_OK;
    EntryCopy copy;
    return CopyEntry(entry, true, &copy) == previous && (!staged || LoadStamp(&entry.inputs_read) >= previous);
  };
  Status status;
  if (released(&status)) return FWDMETA_OK;
  if ((flags & FWDMETA_BUILD_NO_WAIT) != 0) {
    return Fail(FWDMETA_BUSY, "all %d staging entries are in flight, the oldest is step %lld", config_.depth,
                (long long)previous);
  }
  host_waits_.fetch_add(1, std::memory_order_relaxed);
  CountHostWait();
  // A device that has failed never releases it. Asking costs more than a look at the entry.
  constexpr int64_t kLooksPerQuestion = 4096;
  int64_t looks = 0;
  return Poll(-1, "step", previous, [&](Status* answer) {
    if (released(answer)) return true;
    if (++looks % kLooksPerQuestion != 0) return false;
    *answer = backend_->CheckDevice();
    return *answer != FWDMETA_OK;
  });
}

std::shared_ptr<Meta> Builder::FreeMeta() {
  for (size_t i = 0; i < metas_.size(); ++i) {
    std::shared_ptr<Meta>& meta = metas_[(next_meta_ + i) % metas_.size()];
    if (meta.use_count() != 1) continue;
    std::atomic_thread_fence(std::memory_order_acquire);  // pairs with the last holder's release
    next_meta_ = (next_meta_ + i + 1) % metas_.size();
    return meta;
  }
  return nullptr;
}

Status Builder::Build(const std::shared_ptr<Builder>& self, const fwdmeta_batch_t* in, fwdmeta_meta_t* out_meta,
                      int64_t* out_step) {
  static const fwdmeta_batch_t defaults = FWDMETA_BATCH_INITIALIZER;
  fwdmeta_batch_t batch;
  FWDMETA_TRY(CheckOwn());
  FWDMETA_TRY(ReadStruct(in, defaults, "batch", &batch));
  PendingBuild pending;
  FWDMETA_TRY(Read(batch, &pending));
  FWDMETA_TRY(Prepare(self, out_meta != nullptr, &pending));
  FWDMETA_TRY(Issue(pending));
  if (out_meta != nullptr) *out_meta = Publish(self, &pending);
  if (out_step != nullptr) *out_step = pending.request.step;
  return FWDMETA_OK;
}

Status Builder::Read(const fwdmeta_batch_t& batch, PendingBuild* out) const {
  FWDMETA_TRY(ReadBatch(batch, &out->request.inputs));
  FWDMETA_TRY(backend_->IsCapturing(batch.stream, &out->request.captured));
  out->host_lengths = batch.memory_kind == FWDMETA_MEMORY_HOST;
  if (out->request.captured && out->host_lengths) {
    return Fail(FWDMETA_NOT_CAPTURABLE, "lengths in host memory cannot be captured: a replay would not see new ones");
  }
  out->request.stream = batch.stream;
  out->request.most_tokens = -1;
  out->flags = batch.flags;
  out->generation = batch.generation;
  return FWDMETA_OK;
}

Status Builder::Prepare(const std::shared_ptr<Builder>& self, bool wants_meta, PendingBuild* pending) {
  BuildRequest& request = pending->request;
  FWDMETA_TRY(ChooseGeneration(pending->generation, request.captured, &request.generation));
  FWDMETA_TRY(CheckReaders(request.generation, request.captured));
  request.step = request.captured ? 0 : last_step_.load(std::memory_order_relaxed) + 1;
  if (pending->host_lengths) {
    Summarize(plan_, request.inputs, &pending->summary);
    FWDMETA_TRY(StatusOfStep(pending->summary.block));
    request.summary = &pending->summary;
  }
  if (wants_meta) {
    pending->meta = FreeMeta();
    if (pending->meta == nullptr) {
      return Fail(FWDMETA_BUSY, "all %d meta handles are in use: destroy those of past steps", config_.max_metas);
    }
  }
  if (pending->host_lengths) FWDMETA_TRY(ReleaseEntry(request.step, pending->flags));
  return request.captured ? backend_->HoldByCapture(request.stream, self) : FWDMETA_OK;
}

Status Builder::Issue(const PendingBuild& pending) {
  const BuildRequest& request = pending.request;
  // Readers see that the entry's former step has expired before anything overwrites it.
  std::atomic<bool>& staged = staged_entries_[request.step % config_.depth];
  const bool was_staged = staged.load(std::memory_order_relaxed);
  if (!request.captured) {
    staged.store(pending.host_lengths, std::memory_order_relaxed);
    last_step_.store(request.step, std::memory_order_release);
  }
  const Status status = backend_->Build(request);
  if (status != FWDMETA_OK) {
    if (!request.captured) {  // the entry is still the former step's
      staged.store(was_staged, std::memory_order_relaxed);
      last_step_.store(request.step - 1, std::memory_order_release);
    }
    return status;
  }
  CountBuild(backend_->kind(), pending.host_lengths, request.captured);
  if (request.captured) {
    captured_sets_[request.generation] = true;
  } else {
    if (pending.generation == FWDMETA_DEFAULT) next_generation_ = (request.generation + 1) % config_.generations;
  }
  return FWDMETA_OK;
}

fwdmeta_meta_t Builder::Publish(const std::shared_ptr<Builder>& self, PendingBuild* pending) {
  const BuildRequest& request = pending->request;
  MirrorEntry* entry = request.captured ? &backend_->tail()->replay : &backend_->ring()[request.step % config_.depth];
  CountsBlock* view = pending->host_lengths ? &entry->host_view : &entry->view;
  pending->meta->Begin(this, request.generation, request.step, request.stream, view);
  return Metas().Insert({std::move(pending->meta), self});
}

Status Builder::Advance(const std::shared_ptr<Builder>& self, const fwdmeta_advance_args_t* in) {
  static const fwdmeta_advance_args_t defaults = FWDMETA_ADVANCE_ARGS_INITIALIZER;
  fwdmeta_advance_args_t args;
  FWDMETA_TRY(ReadStruct(in, defaults, "args", &args));
  if (args.batch_size < 0) return Fail(FWDMETA_INVALID_ARGUMENT, "batch_size is %lld", (long long)args.batch_size);
  if (args.num_draft_tokens < 0) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "num_draft_tokens is %lld", (long long)args.num_draft_tokens);
  }
  if (args.batch_size > 0 &&
      (args.seq_lens_encoder == nullptr || args.seq_lens_decoder == nullptr || args.seq_lens_this_time == nullptr)) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "a length array is null and batch_size is %lld", (long long)args.batch_size);
  }
  FWDMETA_TRY(CheckAligned(args.seq_lens_encoder, "seq_lens_encoder"));
  FWDMETA_TRY(CheckAligned(args.seq_lens_decoder, "seq_lens_decoder"));
  FWDMETA_TRY(CheckAligned(args.seq_lens_this_time, "seq_lens_this_time"));
  FWDMETA_TRY(CheckAligned(args.num_rejected, "num_rejected"));
  FWDMETA_TRY(CheckAligned(args.prompt_lens, "prompt_lens"));
  if (args.batch_size > config_.max_batch_size) {
    return Fail(FWDMETA_CAPACITY_EXCEEDED, "batch_size %lld passes max_batch_size %d", (long long)args.batch_size,
                config_.max_batch_size);
  }
  bool capturing = false;
  FWDMETA_TRY(backend_->IsCapturing(args.stream, &capturing));
  if (capturing) FWDMETA_TRY(backend_->HoldByCapture(args.stream, self));
  AdvanceRequest request = {};
  request.batch_size = static_cast<int32_t>(args.batch_size);
  request.encoder = args.seq_lens_encoder;
  request.decoder = args.seq_lens_decoder;
  request.this_time = args.seq_lens_this_time;
  request.num_rejected = args.num_rejected;
  request.stop = args.stop;
  request.prompt_lens = args.prompt_lens;
  request.tokens_per_step = static_cast<int32_t>(std::min<int64_t>(args.num_draft_tokens, INT32_MAX - 1)) + 1;
  request.captured = capturing;
  request.stream = args.stream;
  FWDMETA_TRY(backend_->Advance(request));
  if (!capturing) last_advance_.fetch_add(1, std::memory_order_release);
  return FWDMETA_OK;
}

Status Builder::Reset(fwdmeta_stream_t stream) {
  bool capturing = false;
  FWDMETA_TRY(backend_->IsCapturing(stream, &capturing));
  if (capturing) return Fail(FWDMETA_NOT_CAPTURABLE, "a reset cannot be captured");
  for (int32_t i = 0; i < config_.generations; ++i) FWDMETA_TRY(CheckReaders(i, false));
  return backend_->Reset(stream);
}

Status Builder::WaitStep(int64_t step, fwdmeta_wait_flags_t flags, int64_t timeout_us, fwdmeta_counts_t* out) const {
  if (step < 1 || step > last_step_.load(std::memory_order_acquire)) {
    return Fail(FWDMETA_OUT_OF_RANGE, "step is %lld, the latest is %lld", (long long)step,
                (long long)last_step_.load(std::memory_order_acquire));
  }
  const MirrorEntry& entry = backend_->ring()[step % config_.depth];
  const bool staged = staged_entries_[step % config_.depth].load(std::memory_order_relaxed);
  EntryCopy copy;
  const auto expired = [&] {
    return Fail(FWDMETA_EXPIRED, "step %lld has expired: the mirror keeps %d steps and the latest is %lld",
                (long long)step, config_.depth, (long long)last_step_.load(std::memory_order_acquire));
  };
  return Poll(timeout_us, "step", step, [&](Status* status) {
    if (Expired(step)) {
      *status = expired();
      return true;
    }
    const bool there = CopyEntry(entry, (flags & FWDMETA_WAIT_FINAL) != 0, &copy) == step &&
                       (staged || ViewArrived(entry, copy.block));
    // An entry that is not there may be one that was, and is being overwritten: asked again, or it would seem to come.
    const bool gone = Expired(step);
    if (!there && !gone) return false;
    *status = gone ? expired() : Deliver(copy, step, out);
    return true;
  });
}

Status Builder::WaitReplay(int64_t replay, fwdmeta_wait_flags_t flags, int64_t timeout_us,
                           fwdmeta_counts_t* out) const {
  if (replay < 0) return Fail(FWDMETA_OUT_OF_RANGE, "replay is %lld", (long long)replay);
  const MirrorEntry& entry = backend_->tail()->replay;
  EntryCopy copy;
  return Poll(timeout_us, "replay", replay, [&](Status* status) {
    const int64_t newest = LoadCounts(entry, &copy.block);
    if (newest == 0 || newest < replay) return false;
    if (replay != 0 && newest > replay) {
      *status =
          Fail(FWDMETA_EXPIRED, "replay %lld has expired: the latest is %lld", (long long)replay, (long long)newest);
      return true;
    }
    copy.final = LoadInvalid(entry, newest, &copy.invalid);
    if ((flags & FWDMETA_WAIT_FINAL) != 0 && !copy.final) return false;
    if (!ViewArrived(entry, copy.block)) return false;
    *status = Deliver(copy, newest, out);
    return true;
  });
}

Status Builder::WaitAdvance(int64_t advance, int64_t timeout_us, fwdmeta_advance_counts_t* out) const {
  if (advance < 0) return Fail(FWDMETA_OUT_OF_RANGE, "advance is %lld", (long long)advance);
  const AdvanceEntry* entries = backend_->tail()->advance;
  const auto newest = [&] { return std::max(LoadStamp(&entries[0].stamp), LoadStamp(&entries[1].stamp)); };
  return Poll(timeout_us, "advance", advance, [&](Status* status) {
    const int64_t wanted = advance == 0 ? newest() : advance;
    if (wanted == 0 || newest() < wanted) return false;
    const volatile AdvanceEntry& entry = entries[wanted & 1];
    fwdmeta_advance_counts_t counts = FWDMETA_ADVANCE_COUNTS_INITIALIZER;
    counts.advance = wanted;
    counts.num_stopped = entry.num_stopped;
    counts.num_length_limited = entry.num_length_limited;
    std::atomic_thread_fence(std::memory_order_acquire);
    const int64_t latest = newest();
    if (latest > wanted) {
      if (advance == 0) return false;
      *status =
          Fail(FWDMETA_EXPIRED, "advance %lld has expired: the latest is %lld", (long long)advance, (long long)latest);
      return true;
    }
    if (out != nullptr) WriteStruct(counts, out);
    *status = FWDMETA_OK;
    return true;
  });
}

void Builder::GetInfo(fwdmeta_builder_info_t* out) const {
  fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
  info.backend = backend_->kind();
  info.device = backend_->device();
  info.num_sms = plan_.num_sms;
  info.generations = config_.generations;
  info.depth = config_.depth;
  info.single_launch_slots = backend_->single_launch_slots();
  info.last_step = last_step_.load(std::memory_order_acquire);
  info.last_advance = last_advance_.load(std::memory_order_acquire);
  info.host_waits = host_waits_.load(std::memory_order_relaxed);
  info.device_bytes = backend_->bytes().device;
  info.pinned_bytes = backend_->bytes().pinned;
  info.host_bytes = backend_->bytes().host;
  info.advance_counts = backend_->advance_counts();
  WriteStruct(info, out);
}

Status Builder::SetTensor(const char* name, const fwdmeta_tensor_t* tensor) {
  return SetEngineTensor(name, tensor, &tensors_mutex_, &tensors_);
}

Status Builder::FindTensor(const char* name, fwdmeta_tensor_t* out) const {
  std::lock_guard<std::mutex> lock(tensors_mutex_);
  const fwdmeta_tensor_t* found = tensors_.Find(name);
  if (found == nullptr) return Fail(FWDMETA_NOT_FOUND, "\"%s\" is neither built nor set", name);
  *out = *found;
  return FWDMETA_OK;
}

}  // namespace fwdmeta
