// ForwardMeta: the view of one step, with the engine's flags and tensors.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "base/handle_table.h"
#include "meta/tensors.h"

namespace fwdmeta {

class Builder;
class DumpOutput;
struct CountsBlock;
struct DlDevice;
struct DlTensor;

class Meta {
 public:
  Meta();

  // Takes the object into use for a new step.
  void Begin(Builder* builder, int32_t generation, int64_t step, fwdmeta_stream_t stream, CountsBlock* view);

  Status Get(const char* name, fwdmeta_tensor_t* out) const;
  Status GetField(fwdmeta_field_t field, int32_t group, fwdmeta_tensor_t* out) const;
  Status SetTensor(const char* name, const fwdmeta_tensor_t* tensor);
  Status Wait(fwdmeta_wait_flags_t flags, int64_t timeout_us, fwdmeta_counts_t* out) const;
  Status GetAttr(fwdmeta_attr_t attr, int64_t* out) const;
  Status SetAttr(fwdmeta_attr_t attr, int64_t value);
  Status SetAttnBackend(const char* name, void* backend);
  Status GetAttnBackend(const char** name, void** backend) const;
  Status ReaderBegin(fwdmeta_stream_t stream);
  Status ReaderEnd(fwdmeta_stream_t stream);
  Status CheckNoOpenReader() const;
  fwdmeta_device_view_v1_t DeviceView() const;
  // Of a tensor that GetField gave; `asked` may be 0.
  Status DlpackDevice(const fwdmeta_tensor_t& tensor, int32_t asked, DlDevice* out) const;
  // A struct of DLPack that holds `builder`. `stream` is a number as in fwdmeta_meta_to_dlpack, kDlNoSync among them.
  template <class Managed>
  Status ToDlpack(const std::shared_ptr<Builder>& builder, const fwdmeta_dlpack_args_t& args, int64_t stream,
                  Managed** out) const;
  Status Dump(fwdmeta_dump_format_t format, fwdmeta_write_callback_t write, void* user) const;

  bool captured() const { return step_ == 0; }

 private:
  void DumpAttributes(bool json, DumpOutput* out) const;
  Status DumpAll(bool json, fwdmeta_write_callback_t write, void* user) const;
  Status GetDerived(fwdmeta_attr_t attr, int64_t* out) const;
  // All of a DLPack tensor but where its shape and strides lie.
  Status DescribeDlpack(const fwdmeta_dlpack_args_t& args, DlTensor* out, int64_t* size) const;
  Status OrderAfterBuild(int64_t stream) const;

  Builder* builder_ = nullptr;  // kept alive by the handle
  int32_t generation_ = 0;
  int64_t step_ = 0;  // 0: of a captured build
  fwdmeta_stream_t stream_ = nullptr;
  std::atomic<int32_t> open_readers_{0};
  CountsBlock* view_ = nullptr;  // where its *_cpu fields lie
  mutable std::mutex mutex_;     // guards what follows
  int64_t attrs_[FWDMETA_ATTR_COUNT] = {};
  TensorTable tensors_;
  bool has_attn_backend_ = false;
  char attn_backend_name_[kLongestName + 1] = {};
  void* attn_backend_ = nullptr;
};

// What a meta's handle owns: the object, and the builder whose memory it views.
struct MetaRef {
  std::shared_ptr<Meta> meta;
  std::shared_ptr<Builder> builder;
  explicit operator bool() const { return meta != nullptr; }
  Meta* operator->() const { return meta.get(); }
};

HandleTable<MetaRef, 2>& Metas();
Status FindMeta(fwdmeta_meta_t handle, MetaRef* out);

// Sets or removes what an engine hands over, in a table that the mutex guards.
Status SetEngineTensor(const char* name, const fwdmeta_tensor_t* tensor, std::mutex* mutex, TensorTable* table);

// The built field that a name stands for, "slot_mapping[3]" included; false: none.
bool ParseFieldName(const char* name, int32_t* field, int32_t* group);

}  // namespace fwdmeta
