// What layers read while the model runs: contents that push freezes, and a cursor that moves.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "context/layer_table.h"
#include "context/layers.h"

namespace fwdmeta {

// A borrowed array.
template <class T>
struct Borrowed {
  const T* data;
  int64_t count;
};

class ForwardContext {
 public:
  ForwardContext(std::shared_ptr<Layers> layers, int64_t max_slices, int64_t max_values);

  static Status Create(const fwdmeta_context_config_t* config, fwdmeta_context_t* out);
  static Status Destroy(fwdmeta_context_t handle);
  static Status Find(fwdmeta_context_t handle, std::shared_ptr<ForwardContext>* out);

  // The stack of the calling thread.
  static Status Push(fwdmeta_context_t handle);
  static Status Pop(fwdmeta_context_t handle);
  static fwdmeta_context_t Current();  // 0: none
  static Status Override(fwdmeta_context_t handle, fwdmeta_context_t* out_previous);

  Status Reset();

  Status SetAttnMetadata(int64_t layer, int64_t slice, const fwdmeta_attn_metadata_t* metadata);
  Status GetAttnMetadata(int64_t layer, int64_t slice, fwdmeta_attn_metadata_t* out) const;
  Status SetSlotMapping(int64_t layer, int64_t slice, const int64_t* slot_mapping, int64_t count);
  Status GetSlotMapping(int64_t layer, int64_t slice, Borrowed<int64_t>* out) const;
  Status SetDpMetadata(const fwdmeta_dp_metadata_t* dp_metadata);
  Status GetDpMetadata(fwdmeta_dp_metadata_t* out) const;
  Status SetRuntimeMode(fwdmeta_graph_mode_t mode);
  Status GetRuntimeMode(fwdmeta_graph_mode_t* out) const;
  Status SetDescriptor(const fwdmeta_batch_descriptor_t* descriptor);
  Status GetDescriptor(fwdmeta_batch_descriptor_t* out) const;
  Status SetSlices(const fwdmeta_slice_t* slices, int64_t count);
  Status GetSlices(fwdmeta_slice_t* out, int64_t capacity, int64_t* count) const;
  Status SetIsPadding(const uint8_t* is_padding, int64_t count);
  Status GetIsPadding(Borrowed<uint8_t>* out) const;
  Status SetSkipCompiled(int32_t skip);
  Status GetSkipCompiled(int32_t* out) const;

  // An additional value; T is void*, int64_t or double.
  template <class T>
  Status SetValue(const char* name, T value);
  template <class T>
  Status GetValue(const char* name, T* out) const;

  Status FindLayer(const char* name, int64_t* out_index) const;
  Status GetLayer(int64_t index, const char** out_name, void** out_layer) const;

  Status NextMoeLayer(int64_t* out_index);
  Status PushLocalSizes(const int64_t* sizes, int64_t count);
  Status PopLocalSizes();
  Status GetLocalSizes(Borrowed<int64_t>* out) const;

 private:
  enum class Phase { kBuilding, kPushed, kPopped, kDestroyed };
  static constexpr size_t kLongestValueName = 63;
  static constexpr int kMaxLocalSizes = 8;

  // What a step sets once; each part may be unset.
  struct Contents {
    std::optional<fwdmeta_dp_metadata_t> dp_metadata;
    std::optional<fwdmeta_graph_mode_t> runtime_mode;
    std::optional<fwdmeta_batch_descriptor_t> descriptor;
    std::optional<Borrowed<uint8_t>> is_padding;
    std::optional<int32_t> skip_compiled;
    int64_t num_slices = 0;  // 0: unset
    fwdmeta_slice_t slices[FWDMETA_MAX_SLICES] = {};
  };
  struct Value {
    char name[kLongestValueName + 1];
    int kind;
    union {
      void* pointer;
      int64_t int64;
      double float64;
    };
  };
  template <class T>
  struct Kind;
  struct Cursor {
    size_t moe = 0;  // of the MoE list
    int num_local_sizes = 0;
    Borrowed<int64_t> local_sizes[kMaxLocalSizes] = {};
  };

  Status CheckBuilding() const;
  Status CheckReadable() const;
  Status CheckCursor() const;
  const Value* FindValue(const char* name) const;
  static bool CountAbove(fwdmeta_context_t handle, int change);

  const std::shared_ptr<Layers> layers_;  // frozen; null: none
  const int64_t max_slices_;
  const size_t max_values_;
  LayerTable<fwdmeta_attn_metadata_t> attn_metadata_;
  LayerTable<Borrowed<int64_t>> slot_mappings_;
  Contents contents_;
  std::vector<Value> values_;

  // Written with the mutex held. A release store publishes what was set before.
  std::atomic<Phase> phase_{Phase::kBuilding};
  mutable std::mutex mutex_;           // guards changes of phase and what follows
  fwdmeta_context_t predecessor_ = 0;  // what was current when this one was pushed
  const void* thread_ = nullptr;       // whose stack it is on
  int num_above_ = 0;                  // contexts of its thread that were pushed while this one was current
  Cursor cursor_;
  bool counts_above_predecessor_ = false;  // used by its own thread alone
};

}  // namespace fwdmeta
