#include "context/layers.h"

#include <cstring>

#include "base/check.h"
#include "base/handle_table.h"

namespace fwdmeta {
namespace {

constexpr size_t kLongestLayerName = 255;

HandleTable<std::shared_ptr<Layers>, 6>& Registries() { return TheTable<std::shared_ptr<Layers>, 6>(); }

}  // namespace

Status CheckNameLength(const char* name, size_t longest, size_t* length) {
  if (name == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "name is null");
  *length = strnlen(name, longest + 1);
  if (*length >= 1 && *length <= longest) return FWDMETA_OK;
  return Fail(FWDMETA_INVALID_ARGUMENT, "the name \"%.32s\" has %s%zu bytes, expected 1..%zu", name,
              *length == 0 ? "" : "at least ", *length, longest);
}

Status Layers::Create(fwdmeta_layers_t* out) {
  if (out == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "out is null");
  auto layers = std::make_shared<Layers>();
  if (!Registries().Reserve(1)) return Fail(FWDMETA_OUT_OF_MEMORY, "no layers handle is left");
  *out = Registries().Insert(std::move(layers));
  return FWDMETA_OK;
}

Status Layers::Destroy(fwdmeta_layers_t handle) {
  if (handle == 0) return FWDMETA_OK;
  if (Registries().Remove(handle) == nullptr) {
    return Fail(FWDMETA_INVALID_HANDLE, "0x%llx is no layers registry", (unsigned long long)handle);
  }
  Registries().Unreserve(1);
  return FWDMETA_OK;
}

Status Layers::Find(fwdmeta_layers_t handle, std::shared_ptr<Layers>* out) {
  *out = Registries().Find(handle);
  if (*out != nullptr) return FWDMETA_OK;
  return Fail(FWDMETA_INVALID_HANDLE, "0x%llx is no layers registry", (unsigned long long)handle);
}

Status Layers::Add(const char* name, void* layer, int32_t is_moe, int64_t* out_index) {
  size_t length = 0;
  FWDMETA_TRY(CheckNameLength(name, kLongestLayerName, &length));
  FWDMETA_TRY(CheckRange("is_moe", is_moe, 0, 1));
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t index = static_cast<int64_t>(layers_.size());
  if (frozen_) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "layer \"%s\" comes too late: a context has been made from the %lld layers",
                name, (long long)index);
  }
  const auto known = index_.find(std::string_view(name, length));
  if (known != index_.end()) {
    return Fail(FWDMETA_ALREADY_EXISTS, "layer \"%s\" is registered as %lld", name, (long long)known->second);
  }
  if (is_moe == 1) moe_.reserve(moe_.size() + 1);
  layers_.push_back({std::string(name, length), layer});
  try {
    index_.emplace(layers_.back().name, index);
  } catch (...) {
    layers_.pop_back();
    throw;
  }
  if (is_moe == 1) moe_.push_back(index);
  if (out_index != nullptr) *out_index = index;
  return FWDMETA_OK;
}

Status Layers::IndexOf(const char* name, int64_t* out_index) const {
  size_t length = 0;
  FWDMETA_TRY(CheckNameLength(name, kLongestLayerName, &length));
  const auto lock = ReadLock();
  const auto known = index_.find(std::string_view(name, length));
  if (known == index_.end()) {
    return Fail(FWDMETA_NOT_FOUND, "layer \"%s\" is none of the %zu registered ones", name, layers_.size());
  }
  *out_index = known->second;
  return FWDMETA_OK;
}

Status Layers::Get(int64_t index, const char** out_name, void** out_layer) const {
  const auto lock = ReadLock();
  if (index < 0 || index >= static_cast<int64_t>(layers_.size())) {
    return Fail(FWDMETA_OUT_OF_RANGE, "layer %lld: there are %zu", (long long)index, layers_.size());
  }
  const Layer& layer = layers_[static_cast<size_t>(index)];
  if (out_name != nullptr) *out_name = layer.name.c_str();
  if (out_layer != nullptr) *out_layer = layer.layer;
  return FWDMETA_OK;
}

void Layers::Count(int64_t* out_count, int64_t* out_num_moe) const {
  const auto lock = ReadLock();
  if (out_count != nullptr) *out_count = static_cast<int64_t>(layers_.size());
  if (out_num_moe != nullptr) *out_num_moe = static_cast<int64_t>(moe_.size());
}

int64_t Layers::Freeze() {
  std::lock_guard<std::mutex> lock(mutex_);
  frozen_ = true;
  return static_cast<int64_t>(layers_.size());
}

std::unique_lock<std::mutex> Layers::ReadLock() const {
  if (frozen_.load(std::memory_order_acquire)) return {};
  return std::unique_lock<std::mutex>(mutex_);
}

}  // namespace fwdmeta
