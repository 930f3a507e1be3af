// The C ABI of the forward context: layers, contexts, the stack of a thread. Each function checks and forwards.
#include "base/struct_io.h"
#include "context/forward_context.h"
#include "guard.h"

namespace fwdmeta {
namespace {

template <class Body>
Status WithLayers(fwdmeta_layers_t handle, Body body) {
  return Guard([&] {
    std::shared_ptr<Layers> layers;
    FWDMETA_TRY(Layers::Find(handle, &layers));
    return body(*layers);
  });
}

template <class Body>
Status WithContext(fwdmeta_context_t handle, Body body) {
  return Guard([&] {
    std::shared_ptr<ForwardContext> context;
    FWDMETA_TRY(ForwardContext::Find(handle, &context));
    return body(*context);
  });
}

// For functions whose only result is *out.
template <class T, class Body>
Status GetFrom(fwdmeta_context_t handle, T* out, Body body) {
  return WithContext(handle, [&](ForwardContext& context) {
    if (out == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "out is null");
    return body(context);
  });
}

// For functions that hand out a borrowed array.
template <class T, class Body>
Status GetArray(fwdmeta_context_t handle, const T** out, int64_t* out_count, Body body) {
  return WithContext(handle, [&](ForwardContext& context) {
    if (out == nullptr || out_count == nullptr) {
      return Fail(FWDMETA_INVALID_ARGUMENT, "%s is null", out == nullptr ? "out" : "out_count");
    }
    Borrowed<T> array;
    FWDMETA_TRY(body(context, &array));
    *out = array.data;
    *out_count = array.count;
    return Status{FWDMETA_OK};
  });
}

}  // namespace
}  // namespace fwdmeta

using namespace fwdmeta;

fwdmeta_status_t fwdmeta_layers_create(fwdmeta_layers_t* out) {
  return Guard([&] { return Layers::Create(out); });
}

fwdmeta_status_t fwdmeta_layers_destroy(fwdmeta_layers_t layers) {
  return Guard([&] { return Layers::Destroy(layers); });
}

fwdmeta_status_t fwdmeta_layers_add(fwdmeta_layers_t handle, const char* name, void* layer, int32_t is_moe,
                                    int64_t* out_index) {
  return WithLayers(handle, [&](Layers& layers) { return layers.Add(name, layer, is_moe, out_index); });
}

fwdmeta_status_t fwdmeta_layers_find(fwdmeta_layers_t handle, const char* name, int64_t* out_index) {
  return WithLayers(handle, [&](Layers& layers) {
    if (out_index == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "out_index is null");
    return layers.IndexOf(name, out_index);
  });
}

fwdmeta_status_t fwdmeta_layers_get(fwdmeta_layers_t handle, int64_t index, const char** out_name, void** out_layer) {
  return WithLayers(handle, [&](Layers& layers) { return layers.Get(index, out_name, out_layer); });
}

fwdmeta_status_t fwdmeta_layers_count(fwdmeta_layers_t handle, int64_t* out_count, int64_t* out_num_moe) {
  return WithLayers(handle, [&](Layers& layers) {
    layers.Count(out_count, out_num_moe);
    return Status{FWDMETA_OK};
  });
}

fwdmeta_status_t fwdmeta_context_create(const fwdmeta_context_config_t* config, fwdmeta_context_t* out) {
  return Guard([&] { return ForwardContext::Create(config, out); });
}

fwdmeta_status_t fwdmeta_context_destroy(fwdmeta_context_t context) {
  return Guard([&] { return ForwardContext::Destroy(context); });
}

fwdmeta_status_t fwdmeta_context_reset(fwdmeta_context_t handle) {
  return WithContext(handle, [&](ForwardContext& context) { return context.Reset(); });
}

fwdmeta_status_t fwdmeta_context_set_attn_metadata(fwdmeta_context_t handle, int64_t layer, int64_t slice,
                                                   const fwdmeta_attn_metadata_t* metadata) {
  return WithContext(handle, [&](ForwardContext& context) { return context.SetAttnMetadata(layer, slice, metadata); });
}

fwdmeta_status_t fwdmeta_context_get_attn_metadata(fwdmeta_context_t handle, int64_t layer, int64_t slice,
                                                   fwdmeta_attn_metadata_t* out) {
  return GetFrom(handle, out, [&](ForwardContext& context) { return context.GetAttnMetadata(layer, slice, out); });
}

fwdmeta_status_t fwdmeta_context_set_slot_mapping(fwdmeta_context_t handle, int64_t layer, int64_t slice,
                                                  const int64_t* slot_mapping, int64_t count) {
  return WithContext(
      handle, [&](ForwardContext& context) { return context.SetSlotMapping(layer, slice, slot_mapping, count); });
}

fwdmeta_status_t fwdmeta_context_get_slot_mapping(fwdmeta_context_t handle, int64_t layer, int64_t slice,
                                                  const int64_t** out, int64_t* out_count) {
  return GetArray(handle, out, out_count, [&](ForwardContext& context, Borrowed<int64_t>* array) {
    return context.GetSlotMapping(layer, slice, array);
  });
}

fwdmeta_status_t fwdmeta_context_set_dp_metadata(fwdmeta_context_t handle, const fwdmeta_dp_metadata_t* dp_metadata) {
  return WithContext(handle, [&](ForwardContext& context) { return context.SetDpMetadata(dp_metadata); });
}

fwdmeta_status_t fwdmeta_context_get_dp_metadata(fwdmeta_context_t handle, fwdmeta_dp_metadata_t* out) {
  return WithContext(handle, [&](ForwardContext& context) {
    FWDMETA_TRY(CheckOutStruct(out, "out"));
    fwdmeta_dp_metadata_t metadata;
    FWDMETA_TRY(context.GetDpMetadata(&metadata));
    WriteStruct(metadata, out);
    return Status{FWDMETA_OK};
  });
}

fwdmeta_status_t fwdmeta_context_set_runtime_mode(fwdmeta_context_t handle, fwdmeta_graph_mode_t mode) {
  return WithContext(handle, [&](ForwardContext& context) { return context.SetRuntimeMode(mode); });
}

fwdmeta_status_t fwdmeta_context_get_runtime_mode(fwdmeta_context_t handle, fwdmeta_graph_mode_t* out) {
  return GetFrom(handle, out, [&](ForwardContext& context) { return context.GetRuntimeMode(out); });
}

fwdmeta_status_t fwdmeta_context_set_descriptor(fwdmeta_context_t handle,
                                                const fwdmeta_batch_descriptor_t* descriptor) {
  return WithContext(handle, [&](ForwardContext& context) { return context.SetDescriptor(descriptor); });
}

fwdmeta_status_t fwdmeta_context_get_descriptor(fwdmeta_context_t handle, fwdmeta_batch_descriptor_t* out) {
  return GetFrom(handle, out, [&](ForwardContext& context) { return context.GetDescriptor(out); });
}

fwdmeta_status_t fwdmeta_context_set_slices(fwdmeta_context_t handle, const fwdmeta_slice_t* slices, int64_t count) {
  return WithContext(handle, [&](ForwardContext& context) { return context.SetSlices(slices, count); });
}

fwdmeta_status_t fwdmeta_context_get_slices(fwdmeta_context_t handle, fwdmeta_slice_t* out, int64_t capacity,
                                            int64_t* count) {
  return WithContext(handle, [&](ForwardContext& context) {
    if (count == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "count is null");
    return context.GetSlices(out, capacity, count);
  });
}

fwdmeta_status_t fwdmeta_context_set_is_padding(fwdmeta_context_t handle, const uint8_t* is_padding, int64_t count) {
  return WithContext(handle, [&](ForwardContext& context) { return context.SetIsPadding(is_padding, count); });
}

fwdmeta_status_t fwdmeta_context_get_is_padding(fwdmeta_context_t handle, const uint8_t** out, int64_t* out_count) {
  return GetArray(handle, out, out_count,
                  [&](ForwardContext& context, Borrowed<uint8_t>* array) { return context.GetIsPadding(array); });
}

fwdmeta_status_t fwdmeta_context_set_skip_compiled(fwdmeta_context_t handle, int32_t skip) {
  return WithContext(handle, [&](ForwardContext& context) { return context.SetSkipCompiled(skip); });
}

fwdmeta_status_t fwdmeta_context_get_skip_compiled(fwdmeta_context_t handle, int32_t* out) {
  return GetFrom(handle, out, [&](ForwardContext& context) { return context.GetSkipCompiled(out); });
}

fwdmeta_status_t fwdmeta_context_set_pointer(fwdmeta_context_t handle, const char* name, void* value) {
  return WithContext(handle, [&](ForwardContext& context) { return context.SetValue(name, value); });
}

fwdmeta_status_t fwdmeta_context_set_int64(fwdmeta_context_t handle, const char* name, int64_t value) {
  return WithContext(handle, [&](ForwardContext& context) { return context.SetValue(name, value); });
}

fwdmeta_status_t fwdmeta_context_set_double(fwdmeta_context_t handle, const char* name, double value) {
  return WithContext(handle, [&](ForwardContext& context) { return context.SetValue(name, value); });
}

fwdmeta_status_t fwdmeta_context_get_pointer(fwdmeta_context_t handle, const char* name, void** out) {
  return GetFrom(handle, out, [&](ForwardContext& context) { return context.GetValue(name, out); });
}

fwdmeta_status_t fwdmeta_context_get_int64(fwdmeta_context_t handle, const char* name, int64_t* out) {
  return GetFrom(handle, out, [&](ForwardContext& context) { return context.GetValue(name, out); });
}

fwdmeta_status_t fwdmeta_context_get_double(fwdmeta_context_t handle, const char* name, double* out) {
  return GetFrom(handle, out, [&](ForwardContext& context) { return context.GetValue(name, out); });
}

fwdmeta_status_t fwdmeta_context_find_layer(fwdmeta_context_t handle, const char* name, int64_t* out_index) {
  return WithContext(handle, [&](ForwardContext& context) {
    if (out_index == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "out_index is null");
    return context.FindLayer(name, out_index);
  });
}

fwdmeta_status_t fwdmeta_context_get_layer(fwdmeta_context_t handle, int64_t index, const char** out_name,
                                           void** out_layer) {
  return WithContext(handle, [&](ForwardContext& context) { return context.GetLayer(index, out_name, out_layer); });
}

fwdmeta_status_t fwdmeta_context_push(fwdmeta_context_t context) {
  return Guard([&] { return ForwardContext::Push(context); });
}

fwdmeta_status_t fwdmeta_context_pop(fwdmeta_context_t context) {
  return Guard([&] { return ForwardContext::Pop(context); });
}

fwdmeta_status_t fwdmeta_context_current(fwdmeta_context_t* out) {
  return Guard([&] {
    if (out == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "out is null");
    *out = ForwardContext::Current();
    return *out != 0 ? Status{FWDMETA_OK} : Fail(FWDMETA_NOT_SET, "this thread has no current forward context");
  });
}

fwdmeta_status_t fwdmeta_context_override(fwdmeta_context_t context, fwdmeta_context_t* out_previous) {
  return Guard([&] { return ForwardContext::Override(context, out_previous); });
}

fwdmeta_status_t fwdmeta_context_next_moe_layer(fwdmeta_context_t handle, int64_t* out_index) {
  return WithContext(handle, [&](ForwardContext& context) {
    if (out_index == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "out_index is null");
    return context.NextMoeLayer(out_index);
  });
}

fwdmeta_status_t fwdmeta_context_push_local_sizes(fwdmeta_context_t handle, const int64_t* sizes, int64_t count) {
  return WithContext(handle, [&](ForwardContext& context) { return context.PushLocalSizes(sizes, count); });
}

fwdmeta_status_t fwdmeta_context_pop_local_sizes(fwdmeta_context_t handle) {
  return WithContext(handle, [&](ForwardContext& context) { return context.PopLocalSizes(); });
}

fwdmeta_status_t fwdmeta_context_get_local_sizes(fwdmeta_context_t handle, const int64_t** out, int64_t* out_count) {
  return GetArray(handle, out, out_count,
                  [&](ForwardContext& context, Borrowed<int64_t>* array) { return context.GetLocalSizes(array); });
}
