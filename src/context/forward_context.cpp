#include "context/forward_context.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/handle_table.h"
#include "base/struct_io.h"
#include "context/arrays.h"
#include "context/graph_mode.h"

namespace fwdmeta {
namespace {

constexpr int64_t kMostValues = 1024;

// A handle and nothing else: without a destructor or a key of the threads library the library can be unloaded while
// threads that have used it live on. Its address also tells threads apart.
thread_local fwdmeta_context_t current_context = 0;

HandleTable<std::shared_ptr<ForwardContext>, 7>& Contexts() { return TheTable<std::shared_ptr<ForwardContext>, 7>(); }

Status NoContext(fwdmeta_context_t handle) {
  return Fail(FWDMETA_INVALID_HANDLE, "0x%llx is no forward context", (unsigned long long)handle);
}

// A borrowed array and its count.
template <class T>
Status CheckBorrowed(const T* data, int64_t count, int64_t least, const char* name) {
  FWDMETA_TRY(CheckRange("count", count, least));
  return CheckArray(data, count, name);
}

template <class T>
Status ReadField(const std::optional<T>& field, const char* name, T* out) {
  if (!field.has_value()) return Fail(FWDMETA_NOT_SET, "%s is not set", name);
  *out = *field;
  return FWDMETA_OK;
}

}  // namespace

ForwardContext::ForwardContext(std::shared_ptr<Layers> layers, int64_t max_slices, int64_t max_values)
    : layers_(std::move(layers)),
      max_slices_(max_slices),
      max_values_(static_cast<size_t>(max_values)),
      attn_metadata_("attn_metadata", layers_ != nullptr ? layers_->Freeze() : 0, max_slices),
      slot_mappings_("slot_mapping", layers_ != nullptr ? layers_->Freeze() : 0, max_slices) {
  values_.reserve(max_values_);
}

Status ForwardContext::Create(const fwdmeta_context_config_t* in, fwdmeta_context_t* out) {
  fwdmeta_context_config_t config;
  static const fwdmeta_context_config_t defaults = FWDMETA_CONTEXT_CONFIG_INITIALIZER;
  FWDMETA_TRY(ReadStruct(in, defaults, "config", &config));
  if (out == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "out is null");
  FWDMETA_TRY(CheckApiVersion(config.api_version));
  FWDMETA_TRY(CheckRange("reserved", config.reserved, 0, 0));
  FWDMETA_TRY(CheckRange("max_slices", config.max_slices, 1, FWDMETA_MAX_SLICES));
  FWDMETA_TRY(CheckRange("max_values", config.max_values, 0, kMostValues));
  std::shared_ptr<Layers> layers;
  if (config.layers != 0) FWDMETA_TRY(Layers::Find(config.layers, &layers));
  auto context = std::make_shared<ForwardContext>(std::move(layers), config.max_slices, config.max_values);
  if (!Contexts().Reserve(1)) return Fail(FWDMETA_OUT_OF_MEMORY, "no context handle is left");
  *out = Contexts().Insert(std::move(context));
  return FWDMETA_OK;
}

Status ForwardContext::Destroy(fwdmeta_context_t handle) {
  if (handle == 0) return FWDMETA_OK;
  std::shared_ptr<ForwardContext> context;
  FWDMETA_TRY(Find(handle, &context));
  {
    std::lock_guard<std::mutex> lock(context->mutex_);
    if (context->phase_ == Phase::kDestroyed) return NoContext(handle);
    if (context->phase_ == Phase::kPushed) {
      return Fail(FWDMETA_BUSY, "context 0x%llx is pushed", (unsigned long long)handle);
    }
    context->phase_ = Phase::kDestroyed;  // a push on its way in another thread ends here
  }
  Contexts().Remove(handle);
  Contexts().Unreserve(1);
  return FWDMETA_OK;
}

Status ForwardContext::Find(fwdmeta_context_t handle, std::shared_ptr<ForwardContext>* out) {
  *out = Contexts().Find(handle);
  return *out != nullptr ? FWDMETA_OK : NoContext(handle);
}

// ---- stack

// A context that has others of its own thread above it cannot be popped, even where an override made it current.
// False: it is of another thread, or no longer pushed.
bool ForwardContext::CountAbove(fwdmeta_context_t handle, int change) {
  const std::shared_ptr<ForwardContext> context = Contexts().Find(handle);
  if (context == nullptr) return false;
  std::lock_guard<std::mutex> lock(context->mutex_);
  if (context->phase_ != Phase::kPushed || context->thread_ != &current_context) return false;
  context->num_above_ += change;
  return true;
}

Status ForwardContext::Push(fwdmeta_context_t handle) {
  std::shared_ptr<ForwardContext> context;
  FWDMETA_TRY(Find(handle, &context));
  {
    std::lock_guard<std::mutex> lock(context->mutex_);
    if (context->phase_ == Phase::kDestroyed) return NoContext(handle);
    if (context->phase_ == Phase::kPushed) {
      return Fail(FWDMETA_ALREADY_EXISTS, "context 0x%llx is on the stack of %s thread", (unsigned long long)handle,
                  context->thread_ == &current_context ? "this" : "another");
    }
    context->predecessor_ = current_context;
    context->thread_ = &current_context;
    context->num_above_ = 0;
    context->cursor_ = Cursor();
    context->phase_.store(Phase::kPushed, std::memory_order_release);
  }
  // A former override may have left the context's own handle behind.
  context->counts_above_predecessor_ = current_context != handle && CountAbove(current_context, +1);
  current_context = handle;
  return FWDMETA_OK;
}

Status ForwardContext::Pop(fwdmeta_context_t handle) {
  std::shared_ptr<ForwardContext> context;
  FWDMETA_TRY(Find(handle, &context));
  bool counts_above;
  {
    std::lock_guard<std::mutex> lock(context->mutex_);
    if (context->phase_ != Phase::kPushed) {
      return Fail(FWDMETA_NOT_SET, "context 0x%llx is not pushed", (unsigned long long)handle);
    }
    if (context->thread_ != &current_context) {
      return Fail(FWDMETA_INVALID_ARGUMENT, "context 0x%llx was pushed by another thread", (unsigned long long)handle);
    }
    if (current_context != handle || context->num_above_ > 0) {
      return Fail(FWDMETA_INVALID_ARGUMENT, "context 0x%llx is not the top one: 0x%llx is current, %d lie above",
                  (unsigned long long)handle, (unsigned long long)current_context, context->num_above_);
    }
    current_context = context->predecessor_;
    counts_above = context->counts_above_predecessor_;
    context->phase_.store(Phase::kPopped, std::memory_order_release);
  }
  if (counts_above) CountAbove(current_context, -1);
  return FWDMETA_OK;
}

fwdmeta_context_t ForwardContext::Current() { return current_context; }

Status ForwardContext::Override(fwdmeta_context_t handle, fwdmeta_context_t* out_previous) {
  if (handle != 0) {
    std::shared_ptr<ForwardContext> context;
    FWDMETA_TRY(Find(handle, &context));
    FWDMETA_TRY(context->CheckCursor());
  }
  if (out_previous != nullptr) *out_previous = current_context;
  current_context = handle;
  return FWDMETA_OK;
}

// ---- phases

Status ForwardContext::CheckBuilding() const {
  switch (phase_.load(std::memory_order_acquire)) {
    case Phase::kBuilding:
      return FWDMETA_OK;
    case Phase::kPushed:
      return Fail(FWDMETA_INVALID_ARGUMENT, "the context is pushed, and frozen by that");
    default:
      return Fail(FWDMETA_EXPIRED, "the context has been popped; reset it before setting");
  }
}

Status ForwardContext::CheckReadable() const {
  const Phase phase = phase_.load(std::memory_order_acquire);
  if (phase == Phase::kBuilding || phase == Phase::kPushed) return FWDMETA_OK;
  return Fail(FWDMETA_EXPIRED, "the context has been popped");
}

Status ForwardContext::CheckCursor() const {
  FWDMETA_TRY(CheckReadable());
  if (phase_ == Phase::kPushed) return FWDMETA_OK;
  return Fail(FWDMETA_INVALID_ARGUMENT, "the context is not pushed");
}

Status ForwardContext::Reset() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (phase_ == Phase::kPushed) return Fail(FWDMETA_BUSY, "the context is pushed");
  attn_metadata_.Clear();
  slot_mappings_.Clear();
  contents_ = Contents();
  values_.clear();
  if (phase_ == Phase::kPopped) phase_ = Phase::kBuilding;
  return FWDMETA_OK;
}

// ---- contents

Status ForwardContext::SetAttnMetadata(int64_t layer, int64_t slice, const fwdmeta_attn_metadata_t* metadata) {
  if (metadata == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "metadata is null");
  if (metadata->pointer == nullptr && metadata->meta == 0) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "metadata has neither a pointer nor a meta");
  }
  FWDMETA_TRY(CheckBuilding());
  return attn_metadata_.Set(layer, slice, *metadata);
}

Status ForwardContext::GetAttnMetadata(int64_t layer, int64_t slice, fwdmeta_attn_metadata_t* out) const {
  FWDMETA_TRY(CheckReadable());
  return attn_metadata_.Get(layer, slice, out);
}

Status ForwardContext::SetSlotMapping(int64_t layer, int64_t slice, const int64_t* slot_mapping, int64_t count) {
  FWDMETA_TRY(CheckBorrowed(slot_mapping, count, 0, "slot_mapping"));
  FWDMETA_TRY(CheckBuilding());
  return slot_mappings_.Set(layer, slice, {slot_mapping, count});
}

Status ForwardContext::GetSlotMapping(int64_t layer, int64_t slice, Borrowed<int64_t>* out) const {
  FWDMETA_TRY(CheckReadable());
  return slot_mappings_.Get(layer, slice, out);
}

Status ForwardContext::SetDpMetadata(const fwdmeta_dp_metadata_t* in) {
  static const fwdmeta_dp_metadata_t defaults = FWDMETA_DP_METADATA_INITIALIZER;
  fwdmeta_dp_metadata_t metadata;
  FWDMETA_TRY(ReadStruct(in, defaults, "dp_metadata", &metadata));
  metadata.struct_size = sizeof(metadata);
  if (metadata.dp_size < 1 || metadata.dp_size > INT32_MAX || metadata.dp_rank < 0 ||
      metadata.dp_rank >= metadata.dp_size) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "dp_metadata is of rank %lld of %lld", (long long)metadata.dp_rank,
                (long long)metadata.dp_size);
  }
  if (metadata.num_tokens == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "dp_metadata.num_tokens is null");
  FWDMETA_TRY(CheckBuilding());
  contents_.dp_metadata = metadata;
  return FWDMETA_OK;
}

Status ForwardContext::GetDpMetadata(fwdmeta_dp_metadata_t* out) const {
  FWDMETA_TRY(CheckReadable());
  return ReadField(contents_.dp_metadata, "dp_metadata", out);
}

Status ForwardContext::SetRuntimeMode(fwdmeta_graph_mode_t mode) {
  if (!IsRuntimeMode(mode)) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "mode is %d, expected a runtime mode: 0, 1 or 2", mode);
  }
  FWDMETA_TRY(CheckBuilding());
  contents_.runtime_mode = mode;
  return FWDMETA_OK;
}

Status ForwardContext::GetRuntimeMode(fwdmeta_graph_mode_t* out) const {
  FWDMETA_TRY(CheckReadable());
  return ReadField(contents_.runtime_mode, "runtime_mode", out);
}

Status ForwardContext::SetDescriptor(const fwdmeta_batch_descriptor_t* descriptor) {
  if (descriptor == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "descriptor is null");
  FWDMETA_TRY(CheckBuilding());
  contents_.descriptor = *descriptor;
  return FWDMETA_OK;
}

Status ForwardContext::GetDescriptor(fwdmeta_batch_descriptor_t* out) const {
  FWDMETA_TRY(CheckReadable());
  return ReadField(contents_.descriptor, "descriptor", out);
}

Status ForwardContext::SetSlices(const fwdmeta_slice_t* slices, int64_t count) {
  if (slices == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "slices is null");
  if (count < 1 || count > max_slices_) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "%lld slices, expected 1..%lld (max_slices)", (long long)count,
                (long long)max_slices_);
  }
  FWDMETA_TRY(CheckBuilding());
  std::copy_n(slices, count, contents_.slices);
  contents_.num_slices = count;
  return FWDMETA_OK;
}

Status ForwardContext::GetSlices(fwdmeta_slice_t* out, int64_t capacity, int64_t* count) const {
  FWDMETA_TRY(CheckFill(out, capacity, count));
  FWDMETA_TRY(CheckReadable());
  if (contents_.num_slices == 0) return Fail(FWDMETA_NOT_SET, "slices is not set");
  return Fill(contents_.slices, contents_.num_slices, out, capacity, count);
}

Status ForwardContext::SetIsPadding(const uint8_t* is_padding, int64_t count) {
  FWDMETA_TRY(CheckBorrowed(is_padding, count, 0, "is_padding"));
  FWDMETA_TRY(CheckBuilding());
  contents_.is_padding = {is_padding, count};
  return FWDMETA_OK;
}

Status ForwardContext::GetIsPadding(Borrowed<uint8_t>* out) const {
  FWDMETA_TRY(CheckReadable());
  return ReadField(contents_.is_padding, "is_padding", out);
}

Status ForwardContext::SetSkipCompiled(int32_t skip) {
  FWDMETA_TRY(CheckRange("skip", skip, 0, 1));
  FWDMETA_TRY(CheckBuilding());
  contents_.skip_compiled = skip;
  return FWDMETA_OK;
}

Status ForwardContext::GetSkipCompiled(int32_t* out) const {
  FWDMETA_TRY(CheckReadable());
  return ReadField(contents_.skip_compiled, "skip_compiled", out);
}

// ---- additional values

template <>
struct ForwardContext::Kind<void*> {
  static constexpr int number = 0;
  static constexpr auto member = &Value::pointer;
};
template <>
struct ForwardContext::Kind<int64_t> {
  static constexpr int number = 1;
  static constexpr auto member = &Value::int64;
};
template <>
struct ForwardContext::Kind<double> {
  static constexpr int number = 2;
  static constexpr auto member = &Value::float64;
};

const ForwardContext::Value* ForwardContext::FindValue(const char* name) const {
  for (const Value& value : values_) {
    if (std::strcmp(value.name, name) == 0) return &value;
  }
  return nullptr;
}

template <class T>
Status ForwardContext::SetValue(const char* name, T content) {
  size_t length = 0;
  FWDMETA_TRY(CheckNameLength(name, kLongestValueName, &length));
  FWDMETA_TRY(CheckBuilding());
  Value* value = const_cast<Value*>(FindValue(name));
  if (value == nullptr) {
    if (values_.size() == max_values_) {
      return Fail(FWDMETA_CAPACITY_EXCEEDED, "no room for \"%s\": %zu values are set, max_values is %zu", name,
                  values_.size(), max_values_);
    }
    value = &values_.emplace_back();
    std::memcpy(value->name, name, length + 1);
  }
  value->kind = Kind<T>::number;
  value->*Kind<T>::member = content;
  return FWDMETA_OK;
}

template <class T>
Status ForwardContext::GetValue(const char* name, T* out) const {
  static constexpr const char* kKinds[] = {"a pointer", "an int64", "a double"};
  size_t length = 0;
  FWDMETA_TRY(CheckNameLength(name, kLongestValueName, &length));
  FWDMETA_TRY(CheckReadable());
  const Value* value = FindValue(name);
  if (value == nullptr) return Fail(FWDMETA_NOT_FOUND, "\"%s\" is none of the %zu values", name, values_.size());
  if (value->kind != Kind<T>::number) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "\"%s\" is %s, not %s", name, kKinds[value->kind], kKinds[Kind<T>::number]);
  }
  *out = value->*Kind<T>::member;
  return FWDMETA_OK;
}

template Status ForwardContext::SetValue(const char*, void*);
template Status ForwardContext::SetValue(const char*, int64_t);
template Status ForwardContext::SetValue(const char*, double);
template Status ForwardContext::GetValue(const char*, void**) const;
template Status ForwardContext::GetValue(const char*, int64_t*) const;
template Status ForwardContext::GetValue(const char*, double*) const;

// ---- layers and the cursor

Status ForwardContext::FindLayer(const char* name, int64_t* out_index) const {
  FWDMETA_TRY(CheckReadable());
  if (layers_ == nullptr) return Fail(FWDMETA_NOT_SET, "the context has no layers registry");
  return layers_->IndexOf(name, out_index);
}

Status ForwardContext::GetLayer(int64_t index, const char** out_name, void** out_layer) const {
  FWDMETA_TRY(CheckReadable());
  if (layers_ == nullptr) return Fail(FWDMETA_NOT_SET, "the context has no layers registry");
  return layers_->Get(index, out_name, out_layer);
}

Status ForwardContext::NextMoeLayer(int64_t* out_index) {
  std::lock_guard<std::mutex> lock(mutex_);
  FWDMETA_TRY(CheckCursor());
  if (layers_ == nullptr) return Fail(FWDMETA_NOT_SET, "the context has no layers registry");
  const std::vector<int64_t>& moe = layers_->moe();
  if (cursor_.moe == moe.size()) {
    return Fail(FWDMETA_OUT_OF_RANGE, "the cursor has passed all %zu MoE layers", moe.size());
  }
  *out_index = moe[cursor_.moe++];
  return FWDMETA_OK;
}

Status ForwardContext::PushLocalSizes(const int64_t* sizes, int64_t count) {
  FWDMETA_TRY(CheckBorrowed(sizes, count, 1, "sizes"));
  for (int64_t i = 0; i < count; ++i) {
    if (sizes[i] < 0 || sizes[i] > INT32_MAX) {
      return Fail(FWDMETA_INVALID_ARGUMENT, "sizes[%lld] is %lld, expected 0..%d", (long long)i, (long long)sizes[i],
                  INT32_MAX);
    }
  }
  std::lock_guard<std::mutex> lock(mutex_);
  FWDMETA_TRY(CheckCursor());
  if (cursor_.num_local_sizes == kMaxLocalSizes) {
    return Fail(FWDMETA_CAPACITY_EXCEEDED, "local sizes are nested %d deep, which is the limit", kMaxLocalSizes);
  }
  cursor_.local_sizes[cursor_.num_local_sizes++] = {sizes, count};
  return FWDMETA_OK;
}

Status ForwardContext::PopLocalSizes() {
  std::lock_guard<std::mutex> lock(mutex_);
  FWDMETA_TRY(CheckCursor());
  if (cursor_.num_local_sizes == 0) return Fail(FWDMETA_NOT_SET, "no local sizes are set");
  --cursor_.num_local_sizes;
  return FWDMETA_OK;
}

Status ForwardContext::GetLocalSizes(Borrowed<int64_t>* out) const {
  std::lock_guard<std::mutex> lock(mutex_);
  FWDMETA_TRY(CheckCursor());
  if (cursor_.num_local_sizes == 0) return Fail(FWDMETA_NOT_SET, "no local sizes are set");
  *out = cursor_.local_sizes[cursor_.num_local_sizes - 1];
  return FWDMETA_OK;
}

}  // namespace fwdmeta
