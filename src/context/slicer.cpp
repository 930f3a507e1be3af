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
  const int64_t slots = slicer->builders_[0]->config().max_batch_size;
  slicer->host_arrays_.resize(max_slices * (4 * slots + 1));
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

SliceArrays Slicer::HostArrays(int32_t slice) {
  const int64_t slots = builders_[0]->config().max_batch_size;
  int32_t* arrays = host_arrays_.data() + slice * (4 * slots + 1);
  return {arrays, arrays + slots, arrays + 2 * slots, arrays + 3 * slots, arrays + 4 * slots};
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
  int32_t split = 0;
  FWDMETA_TRY(ReadSplit(whole, num_slices, asked_split, &split));

  const bool on_device = builders_[0]->backend().kind() == FWDMETA_BACKEND_CUDA && !whole.host_lengths;
  CutRequest cut = {&inputs, num_slices, split, {}, batch.stream};
  for (int32_t i = 0; i < num_slices; ++i) {
    cut.slices[i] = on_device ? builders_[i]->backend().slice_arrays() : HostArrays(i);
  }
  const int32_t num_tokens = whole.summary.block.counts[kNumTokens];
  if (whole.host_lengths) CutOnHost(cut, num_tokens);
  const auto forget = [&] {
    for (PendingBuild& pending : pending_) pending.meta.reset();
  };
  for (int32_t i = 0; i < num_slices; ++i) {
    PendingBuild& pending = pending_[i];
    pending.request = whole.request;
    pending.flags = whole.flags;
    pending.generation = whole.generation;
    pending.host_lengths = whole.host_lengths;
    Inputs& slice = pending.request.inputs;
    const SliceArrays& arrays = cut.slices[i];
    slice.encoder = arrays.encoder;
    slice.decoder = arrays.decoder;
    slice.this_time = arrays.this_time;
    slice.offsets = arrays.offsets;
    if (whole.host_lengths) {
      const TokenRange range = RangeOfSlice(i, num_slices, split, num_tokens);
      slice.num_padded_tokens = range.end - range.begin + *arrays.num_padding;
    } else {
      slice.num_padding = arrays.num_padding;
      const int64_t rest = std::max<int64_t>(int64_t{inputs.num_padded_tokens} - int64_t{i} * split, 0);
      if (inputs.num_padded_tokens >= 0) {
        pending.request.most_tokens = static_cast<int32_t>(i < num_slices - 1 ? std::min<int64_t>(rest, split) : rest);
      } else if (i < num_slices - 1) {
        pending.request.most_tokens = split;
      }
    }
    const Status status = builders_[i]->Prepare(metas != nullptr, &pending);
    if (status != FWDMETA_OK) {
      forget();
      return status;
    }
  }
  Status status = whole.host_lengths ? FWDMETA_OK : builders_[0]->backend().Cut(cut);
  fwdmeta_meta_t made[FWDMETA_MAX_SLICES] = {};
  for (int32_t i = 0; i < num_slices && status == FWDMETA_OK; ++i) {
    status = builders_[i]->Issue(builders_[i], &pending_[i], &made[i], nullptr);
  }
  forget();
  if (status != FWDMETA_OK) {
    for (fwdmeta_meta_t meta : made) Metas().Remove(meta);
    return status;
  }
  if (metas != nullptr) std::copy_n(made, num_slices, metas);
  return FWDMETA_OK;
}

}  // namespace fwdmeta
