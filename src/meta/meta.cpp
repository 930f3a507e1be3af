#include "meta/meta.h"

#include <cstring>

#include "build/builder.h"

namespace fwdmeta {
namespace {

constexpr size_t kMetaTensors = 32;
constexpr char kSlotMapping[] = "slot_mapping";

struct AttrRule {
  int64_t initial, low, high;  // low > high: read-only
};
constexpr AttrRule kAttrRules[FWDMETA_ATTR_COUNT] = {
    {0, 0, FWDMETA_FORWARD_NATIVE},  // forward_mode: 0 (derived) or NATIVE
    {0, 1, 0},                       // exist_prefill
    {0, 1, 0},                       // real_bsz
    {0, 1, 0},                       // is_zero_size
    {0, 1, 0},                       // step
    {0, 1, 0},                       // generation
    {0, 0, 1},                       // step_use_cudagraph
    {0, 0, 1},                       // rope_already_applied
    {0, 0, 1},                       // is_dummy_or_profile_run
    {0, 0, INT64_MAX},               // pre_caches_length
    {1, 1, INT64_MAX},               // moe_num_chunk
    {1, 1, INT64_MAX},               // max_moe_num_chunk
};

uint8_t DTypeCode(DType dtype) { return dtype == DType::kU8 ? FWDMETA_DTYPE_UINT : FWDMETA_DTYPE_INT; }

// Where a *_cpu field lies in a published block.
int32_t* MirrorField(CountsBlock* block, int32_t field) {
  for (int i = 0; i < kNumMappings; ++i) {
    if (field == kMappingFields[i].num_blocks_cpu) return &block->counts[kDecoderNumBlocks + i];
  }
  return block->max_len;
}

}  // namespace

HandleTable<MetaRef, 2>& Metas() { return TheTable<MetaRef, 2>(); }

Status FindMeta(fwdmeta_meta_t handle, MetaRef* out) {
  *out = Metas().Find(handle);
  if (*out) return FWDMETA_OK;
  return Fail(FWDMETA_INVALID_HANDLE, "0x%llx is no forward meta", (unsigned long long)handle);
}

bool ParseFieldName(const char* name, int32_t* field, int32_t* group) {
  *group = 0;
  for (*field = 0; *field < FWDMETA_FIELD_COUNT; ++*field) {
    if (std::strcmp(name, kFields[*field].name) == 0) return true;
  }
  constexpr size_t kPrefix = sizeof(kSlotMapping) - 1;
  if (std::strncmp(name, kSlotMapping, kPrefix) != 0) return false;
  const char* index = name + kPrefix;
  if (index[0] != '[' || index[1] < '0' || index[1] >= '0' + FWDMETA_MAX_CACHE_GROUPS || index[2] != ']' ||
      index[3] != '\0') {
    return false;
  }
  *field = FWDMETA_FIELD_SLOT_MAPPING;
  *group = index[1] - '0';
  return true;
}

Meta::Meta() { tensors_.Reserve(kMetaTensors); }

void Meta::Begin(Builder* builder, int32_t generation, int64_t step, fwdmeta_stream_t stream, CountsBlock* view) {
  builder_ = builder;
  generation_ = generation;
  step_ = step;
  stream_ = stream;
  view_ = view;
  open_readers_ = 0;
  std::lock_guard<std::mutex> lock(mutex_);
  for (int i = 0; i < FWDMETA_ATTR_COUNT; ++i) attrs_[i] = kAttrRules[i].initial;
  tensors_.Clear();
  has_attn_backend_ = false;
}

Status Meta::GetField(fwdmeta_field_t index, int32_t group, fwdmeta_tensor_t* out) const {
  if (index < 0 || index >= FWDMETA_FIELD_COUNT) {
    return Fail(FWDMETA_OUT_OF_RANGE, "field is %d, expected 0..%d", index, FWDMETA_FIELD_COUNT - 1);
  }
  const Field& field = kFields[index];
  const int32_t groups = field.shape == Shape::kTokensByGroup ? builder_->plan().num_groups : 1;
  if (group < 0 || group >= groups) {
    return Fail(FWDMETA_NOT_FOUND, "%s[%d] is not built: there are %d", field.name, group, groups);
  }
  Backend& backend = builder_->backend();
  void* data;
  if (field.in_mirror) {
    if (!captured() && builder_->Expired(step_)) {
      return Fail(FWDMETA_EXPIRED, "%s of step %lld has expired with its mirror entry", field.name, (long long)step_);
    }
    data = MirrorField(view_, index);
  } else {
    const Outputs& outputs = backend.outputs(generation_);
    data = index == FWDMETA_FIELD_SLOT_MAPPING ? outputs.slot_mapping[group] : outputs.array[index];
    if (data == nullptr) {
      return Fail(FWDMETA_NOT_FOUND, "%s is not built: outputs leaves it out, or the configuration has no use for it",
                  field.name);
    }
  }
  fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
  tensor.data = data;
  const bool on_device = !field.in_mirror && backend.device() >= 0;
  tensor.memory_kind = on_device ? FWDMETA_MEMORY_DEVICE : FWDMETA_MEMORY_HOST;
  tensor.device = on_device ? backend.device() : -1;
  tensor.dtype_code = DTypeCode(field.dtype);
  tensor.dtype_bits = static_cast<uint8_t>(8 * ElementSize(field.dtype));
  tensor.ndim = 1;
  tensor.shape[0] = ElementCount(builder_->plan(), field.shape);
  tensor.strides[0] = 1;
  *out = tensor;
  return FWDMETA_OK;
}

Status Meta::Get(const char* name, fwdmeta_tensor_t* out) const {
  FWDMETA_TRY(CheckName(name));
  int32_t field, group;
  if (ParseFieldName(name, &field, &group)) return GetField(field, group, out);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const fwdmeta_tensor_t* found = tensors_.Find(name);
    if (found != nullptr) {
      *out = *found;
      return FWDMETA_OK;
    }
  }
  return builder_->FindTensor(name, out);
}

Status SetEngineTensor(const char* name, const fwdmeta_tensor_t* tensor, std::mutex* mutex, TensorTable* table) {
  FWDMETA_TRY(CheckName(name));
  int32_t field, group;
  if (ParseFieldName(name, &field, &group)) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "\"%s\" is a built field", name);
  }
  fwdmeta_tensor_t copy;
  if (tensor != nullptr) FWDMETA_TRY(ReadTensor(tensor, &copy));
  std::lock_guard<std::mutex> lock(*mutex);
  return table->Set(name, tensor != nullptr ? &copy : nullptr);
}

Status Meta::SetTensor(const char* name, const fwdmeta_tensor_t* tensor) {
  return SetEngineTensor(name, tensor, &mutex_, &tensors_);
}

Status Meta::Wait(fwdmeta_wait_flags_t flags, int64_t timeout_us, fwdmeta_counts_t* out) const {
  return captured() ? builder_->WaitReplay(0, flags, timeout_us, out)
                    : builder_->WaitStep(step_, flags, timeout_us, out);
}

Status Meta::GetDerived(fwdmeta_attr_t attr, int64_t* out) const {
  fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
  FWDMETA_TRY(Wait(0, 0, &counts));
  switch (attr) {
    case FWDMETA_ATTR_FORWARD_MODE:
      *out = counts.num_live == 0 || (counts.num_prefill > 0 && counts.num_decode > 0) ? FWDMETA_FORWARD_MIXED
             : counts.num_prefill > 0                                                  ? FWDMETA_FORWARD_EXTEND
                                                                                       : FWDMETA_FORWARD_DECODE;
      break;
    case FWDMETA_ATTR_EXIST_PREFILL:
      *out = counts.num_prefill > 0;
      break;
    case FWDMETA_ATTR_REAL_BSZ:
      *out = counts.num_live;
      break;
    default:
      *out = counts.num_padded_tokens == 0;
      break;
  }
  return FWDMETA_OK;
}

Status Meta::GetAttr(fwdmeta_attr_t attr, int64_t* out) const {
  if (attr < 0 || attr >= FWDMETA_ATTR_COUNT) return Fail(FWDMETA_NOT_FOUND, "attribute %d is unknown", attr);
  if (attr == FWDMETA_ATTR_STEP || attr == FWDMETA_ATTR_GENERATION) {
    *out = attr == FWDMETA_ATTR_STEP ? step_ : generation_;
    return FWDMETA_OK;
  }
  if (attr <= FWDMETA_ATTR_IS_ZERO_SIZE) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (attr != FWDMETA_ATTR_FORWARD_MODE || attrs_[attr] != FWDMETA_FORWARD_NATIVE) {
      lock.unlock();
      return GetDerived(attr, out);
    }
  }
  std::lock_guard<std::mutex> lock(mutex_);
  *out = attrs_[attr];
  return FWDMETA_OK;
}

Status Meta::SetAttr(fwdmeta_attr_t attr, int64_t value) {
  if (attr < 0 || attr >= FWDMETA_ATTR_COUNT) return Fail(FWDMETA_NOT_FOUND, "attribute %d is unknown", attr);
  const AttrRule& rule = kAttrRules[attr];
  if (rule.low > rule.high) return Fail(FWDMETA_INVALID_ARGUMENT, "attribute %d is read-only", attr);
  if (attr == FWDMETA_ATTR_FORWARD_MODE && value != 0 && value != FWDMETA_FORWARD_NATIVE) {
    return Fail(FWDMETA_OUT_OF_RANGE, "forward_mode %lld cannot be set: only NATIVE (%d), or 0 for the derived mode",
                (long long)value, FWDMETA_FORWARD_NATIVE);
  }
  if (value < rule.low || value > rule.high) {
    return Fail(FWDMETA_OUT_OF_RANGE, "attribute %d cannot be %lld, expected %lld..%lld", attr, (long long)value,
                (long long)rule.low, (long long)rule.high);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  attrs_[attr] = value;
  return FWDMETA_OK;
}

Status Meta::SetAttnBackend(const char* name, void* backend) {
  FWDMETA_TRY(CheckName(name));
  std::lock_guard<std::mutex> lock(mutex_);
  std::strncpy(attn_backend_name_, name, kLongestName);
  attn_backend_name_[kLongestName] = '\0';
  attn_backend_ = backend;
  has_attn_backend_ = true;
  return FWDMETA_OK;
}

Status Meta::GetAttnBackend(const char** name, void** backend) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!has_attn_backend_) return Fail(FWDMETA_NOT_SET, "no attention backend is set");
  if (name != nullptr) *name = attn_backend_name_;
  if (backend != nullptr) *backend = attn_backend_;
  return FWDMETA_OK;
}

Status Meta::ReaderBegin(fwdmeta_stream_t stream) {
  if (captured()) {
    return Fail(FWDMETA_UNAVAILABLE, "a captured build has no readers: order its replays and their readers by events");
  }
  FWDMETA_TRY(builder_->backend().ReaderBegin(generation_, stream_, stream));
  ++open_readers_;
  return FWDMETA_OK;
}

Status Meta::ReaderEnd(fwdmeta_stream_t stream) {
  if (open_readers_ == 0) return Fail(FWDMETA_INVALID_ARGUMENT, "no reader of this step has begun");
  FWDMETA_TRY(builder_->backend().ReaderEnd(generation_, stream));
  --open_readers_;
  return FWDMETA_OK;
}

Status Meta::CheckNoOpenReader() const {
  const int32_t open = open_readers_;
  if (open == 0) return FWDMETA_OK;
  return Fail(FWDMETA_BUSY, "%d readers of the step have begun and not ended", open);
}

}  // namespace fwdmeta
