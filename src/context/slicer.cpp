#include "context/slicer.h"

#include <algorithm>

#include "base/check.h"
#include "base/struct_io.h"
#include "build/cut.h"

namespace fwdmeta {
namespace {

HandleTable<std::shared_ptr<Slicer>, 5>& Slicers() { return TheTable<std::shared_ptr<Slicer>, 5>(); }

}  // namespace

Status Slicer::Create(const fwdmeta_config_t* config, int64_t max_slices, fwdmeta_slicer_t* out) {
  if (out == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "out is null");
  FWDMETA_TRY(CheckRange("max_slices", max_slices, 1, FWDMETA_MAX_SLICES));
  std::shared_ptr<Slicer> slicer(new Slicer);
  slicer->handles_.reserve(max_slices);
  slicer->builders_.resize(max_slices);
  slicer->pending_.resize(max_slices);
  for (std::shared_ptr<Builder>& builder : slicer->builders_) {
    fwdmeta_builder_t handle = 0;
    FWDMETA_TRY(Builder::CreateOfSlice(config, &handle));
    slicer->handles_.push_back(handle);
    FWDMETA_TRY(Builder::Find(handle, &builder));
  }
  if (!Slicers().Reserve(1)) return Fail(FWDMETA_OUT_OF_MEMORY, "no slicer handle is left");
  slicer->reserved_handle_ = true;
  *out = Slicers().Insert(std::move(slicer));
  return FWDMETA_OK;
}

Slicer::~Slicer() {
  for (fwdmeta_builder_t handle : handles_) Builder::DestroyOfSlice(handle);
  if (reserved_handle_) Slicers().Unreserve(1);
}

Status Slicer::Destroy(fwdmeta_slicer_t handle) {
  if (handle == 0 || Slicers().Remove(handle) != nullptr) return FWDMETA_OK;
  return Fail(FWDMETA_INVALID_HANDLE, "0x%llx is no slicer", (unsigned long long)handle);
}

Status Slicer::Find(fwdmeta_slicer_t handle, std::shared_ptr<Slicer>* out) {
  *out = Slicers().Find(handle);
  if (*out != nullptr) return FWDMETA_OK;
  return Fail(FWDMETA_INVALID_HANDLE, "0x%llx is no slicer", (unsigned long long)handle);
}

Status Slicer::GetBuilder(int64_t slice, fwdmeta_builder_t* out) const {
  if (out == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "out is null");
  if (slice < 0 || slice >= static_cast<int64_t>(handles_.size())) {
    return Fail(FWDMETA_OUT_OF_RANGE, "slice is %lld, the slicer has %zu", (long long)slice, handles_.size());
  }
  *out = handles_[slice];
  return FWDMETA_OK;
}

Status Slicer::ReadSplit(const PendingBuild& whole, int32_t num_slices, int64_t split, int32_t* out) const {
  if (split != FWDMETA_DEFAULT) {
    FWDMETA_TRY(CheckRange("split", split, 1));
    *out = static_cast<int32_t>(split);
    return FWDMETA_OK;
  }
  const int32_t padded = whole.request.inputs.num_padded_tokens;
  if (padded < 0 && !whole.host_lengths) {
    return Fail(FWDMETA_INVALID_ARGUMENT,
                "split and num_padded_tokens are both left out: the sum of device lengths is not known on the host");
  }
  *out = (padded >= 0 ? padded : whole.summary.block.counts[kNumTokens]) / num_slices;
  return FWDMETA_OK;
}

// The next set of the rotation that no capture has taken in any of the slices.
Status Slicer::ChooseGeneration(int32_t num_slices, PendingBuild* whole) const {
  if (whole->generation != FWDMETA_DEFAULT || whole->request.captured) return FWDMETA_OK;
  const int32_t generations = builders_[0]->config().generations;
  for (int32_t i = 0; i < generations; ++i) {
    const int32_t generation = (next_generation_ + i) % generations;
    const auto captured = [&](const std::shared_ptr<Builder>& builder) { return builder->captured(generation); };
    if (std::any_of(builders_.begin(), builders_.begin() + num_slices, captured)) continue;
    whole->generation = generation;
    return FWDMETA_OK;
  }
  return Fail(FWDMETA_UNAVAILABLE, "all %d sets belong to captured builds; raise generations for eager builds",
              generations);
}

void Slicer::PutSlice(const CutRequest& cut, const PendingBuild& whole, int32_t slice) {
  const SliceArrays& arrays = cut.slices[slice];
  PendingBuild& pending = pending_[slice];
  pending.request = whole.request;
  pending.flags = whole.flags;
  pending.generation = whole.generation;
  pending.host_lengths = whole.host_lengths;
  Inputs& inputs = pending.request.inputs;
  inputs.encoder = arrays.encoder;
  inputs.decoder = arrays.decoder;
  inputs.this_time = arrays.this_time;
  inputs.offsets = arrays.offsets;
  if (whole.host_lengths) {
    const TokenRange range = RangeOfSlice(slice, cut.num_slices, cut.split, whole.summary.block.counts[kNumTokens]);
    inputs.num_padded_tokens = range.end - range.begin + *arrays.num_padding;
    return;
  }
  inputs.num_padding = arrays.num_padding;
  const bool last = slice == cut.num_slices - 1;
  const int32_t padded = inputs.num_padded_tokens;
  if (padded >= 0) {
    const int64_t rest = std::max<int64_t>(padded - int64_t{slice} * cut.split, 0);
    pending.request.most_tokens = static_cast<int32_t>(last ? rest : std::min<int64_t>(rest, cut.split));
  } else if (!last) {
    pending.request.most_tokens = cut.split;
  }
}

Status Slicer::Build(const fwdmeta_batch_t* in, int64_t count, int64_t asked_split, fwdmeta_meta_t* metas) {
  static const fwdmeta_batch_t defaults = FWDMETA_BATCH_INITIALIZER;
  fwdmeta_batch_t batch;
  FWDMETA_TRY(ReadStruct(in, defaults, "batch", &batch));
  FWDMETA_TRY(CheckRange("num_slices", count, 1, static_cast<int64_t>(builders_.size())));
  const int32_t num_slices = static_cast<int32_t>(count);
  PendingBuild whole;
  FWDMETA_TRY(builders_[0]->Read(batch, &whole));
  const Inputs& inputs = whole.request.inputs;
  if (whole.host_lengths) {
    Summarize(builders_[0]->plan(), inputs, &whole.summary);
    FWDMETA_TRY(StatusOfStep(whole.summary.block));
  }
  CutRequest cut = {&inputs, num_slices, 0, {}, batch.stream};
  FWDMETA_TRY(ReadSplit(whole, num_slices, asked_split, &cut.split));
  FWDMETA_TRY(ChooseGeneration(num_slices, &whole));
  for (int32_t i = 0; i < num_slices; ++i) {
    const Backend& backend = builders_[i]->backend();
    cut.slices[i] = whole.host_lengths ? backend.host_slice_arrays() : backend.slice_arrays();
  }
  if (whole.host_lengths) CutOnHost(cut, whole.summary.block.counts[kNumTokens]);

  // What a refusal leaves unused goes back to the builders' pools.
  struct Forget {
    std::vector<PendingBuild>& all;
    ~Forget() {
      for (PendingBuild& pending : all) pending.meta.reset();
    }
  } forget{pending_};
  for (int32_t i = 0; i < num_slices; ++i) {
    PutSlice(cut, whole, i);
    FWDMETA_TRY(builders_[i]->Prepare(builders_[i], metas != nullptr, &pending_[i]));
  }
  Status status = whole.host_lengths ? FWDMETA_OK : builders_[0]->backend().Cut(cut);
  for (int32_t i = 0; i < num_slices && status == FWDMETA_OK; ++i) status = builders_[i]->Issue(pending_[i]);
  if (status != FWDMETA_OK) {
    // The cut may be under way in the memory of builders whose own build is not.
    if (!whole.request.captured) {
      for (int32_t i = 0; i < num_slices; ++i) builders_[i]->backend().NoteWork(batch.stream);
    }
    return status;
  }
  next_generation_ = (whole.request.captured ? next_generation_ : pending_[0].request.generation + 1) %
                     builders_[0]->config().generations;
  for (int32_t i = 0; i < num_slices && metas != nullptr; ++i) {
    metas[i] = builders_[i]->Publish(builders_[i], &pending_[i]);
  }
  return FWDMETA_OK;
}

}  // namespace fwdmeta
