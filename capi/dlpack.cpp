// The C ABI of the DLPack export.
#include "meta/dlpack.h"

#include "base/struct_io.h"
#include "build/builder.h"
#include "fwdmeta.h"
#include "guard.h"

namespace fwdmeta {
namespace {

Status ReadArgs(const fwdmeta_dlpack_args_t* in, fwdmeta_dlpack_args_t* out) {
  static const fwdmeta_dlpack_args_t defaults = FWDMETA_DLPACK_ARGS_INITIALIZER;
  return ReadStruct(in, defaults, "args", out);
}

template <class Managed>
Status Export(fwdmeta_meta_t handle, const fwdmeta_dlpack_args_t* in, int64_t stream, Managed** out) {
  return Guard([&] {
    MetaRef meta;
    FWDMETA_TRY(FindMeta(handle, &meta));
    fwdmeta_dlpack_args_t args;
    FWDMETA_TRY(ReadArgs(in, &args));
    if (out == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "out is null");
    return meta->ToDlpack(meta.builder, args, stream, out);
  });
}

}  // namespace
}  // namespace fwdmeta

using namespace fwdmeta;

fwdmeta_status_t fwdmeta_meta_dlpack_device(fwdmeta_meta_t handle, const fwdmeta_dlpack_args_t* in,
                                            fwdmeta_dlpack_device_t* out_type, int32_t* out_id) {
  return Guard([&] {
    MetaRef meta;
    FWDMETA_TRY(FindMeta(handle, &meta));
    fwdmeta_dlpack_args_t args;
    FWDMETA_TRY(ReadArgs(in, &args));
    fwdmeta_tensor_t tensor;
    FWDMETA_TRY(meta->GetField(args.field, args.group, &tensor));
    DlDevice device;
    FWDMETA_TRY(meta->DlpackDevice(tensor, args.device_type, &device));
    if (out_type != nullptr) *out_type = device.type;
    if (out_id != nullptr) *out_id = device.id;
    return Status{FWDMETA_OK};
  });
}

fwdmeta_status_t fwdmeta_meta_to_dlpack(fwdmeta_meta_t handle, const fwdmeta_dlpack_args_t* args, int64_t stream,
                                        DLManagedTensor** out) {
  return Export(handle, args, stream, out);
}

fwdmeta_status_t fwdmeta_meta_to_dlpack_versioned(fwdmeta_meta_t handle, const fwdmeta_dlpack_args_t* args,
                                                  int64_t stream, DLManagedTensorVersioned** out) {
  return Export(handle, args, stream, out);
}

fwdmeta_status_t fwdmeta_meta_to_dlpack_no_sync(fwdmeta_meta_t handle, const fwdmeta_dlpack_args_t* args,
                                                DLManagedTensor** out) {
  return Export(handle, args, kDlNoSync, out);
}

fwdmeta_status_t fwdmeta_meta_to_dlpack_versioned_no_sync(fwdmeta_meta_t handle, const fwdmeta_dlpack_args_t* args,
                                                          DLManagedTensorVersioned** out) {
  return Export(handle, args, kDlNoSync, out);
}
