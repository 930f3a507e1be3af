// A step's arrays as DLPack tensors.
#include "meta/dlpack.h"

#include "build/builder.h"

namespace fwdmeta {
namespace {

constexpr int64_t kLegacyStream = 1, kPerThreadStream = 2;  // Python's numbers, and CUDA's handles

// What the tensor and its holder's pointer lie in.
template <class Managed>
struct Exported {
  std::shared_ptr<Builder> builder;
  int64_t shape, stride;
  Managed managed;
};

template <class Managed>
void Delete(Managed* managed) {
  NoCudaCalls none;  // should the builder end here, another thread gives its memory back
  delete static_cast<Exported<Managed>*>(managed->manager_ctx);
}

void Mark(DLManagedTensor*) {}
void Mark(DLManagedTensorVersioned* managed) {
  managed->version = kDlVersion;
  managed->flags = kDlReadOnly;
}

// The legacy default stream has two names.
fwdmeta_stream_t OneName(fwdmeta_stream_t stream) {
  return stream == reinterpret_cast<fwdmeta_stream_t>(kLegacyStream) ? nullptr : stream;
}

}  // namespace

Status Meta::DlpackDevice(const fwdmeta_tensor_t& tensor, int32_t asked, DlDevice* out) const {
  if (tensor.memory_kind == FWDMETA_MEMORY_DEVICE) {
    *out = {FWDMETA_DLPACK_CUDA, tensor.device};
  } else {
    *out = {builder_->backend().device() >= 0 ? FWDMETA_DLPACK_CUDA_HOST : FWDMETA_DLPACK_CPU, 0};
  }
  if (asked == 0 || asked == out->type) return FWDMETA_OK;
  if (asked != FWDMETA_DLPACK_CPU || out->type != FWDMETA_DLPACK_CUDA_HOST) {
    return Fail(FWDMETA_UNSUPPORTED, "device_type is %d and the array's is %d: that would be a copy", asked, out->type);
  }
  out->type = FWDMETA_DLPACK_CPU;
  return FWDMETA_OK;
}

Status Meta::DescribeDlpack(const fwdmeta_dlpack_args_t& args, DlTensor* out, int64_t* size) const {
  if (args.shape != FWDMETA_DLPACK_CAPACITY && args.shape != FWDMETA_DLPACK_LIVE) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "shape is %d, expected 0 (capacity) or 1 (live)", args.shape);
  }
  fwdmeta_tensor_t tensor;
  FWDMETA_TRY(GetField(args.field, args.group, &tensor));
  *out = {};
  FWDMETA_TRY(DlpackDevice(tensor, args.device_type, &out->device));
  *size = tensor.shape[0];
  const Field& field = kFields[args.field];
  if (args.shape == FWDMETA_DLPACK_LIVE) {
    fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
    FWDMETA_TRY(Wait(0, 0, &counts));
    *size = LiveElementCount(builder_->plan(), field.shape, counts);
  }
  out->data = *size > 0 ? tensor.data : nullptr;
  out->ndim = 1;
  const uint8_t code = field.dtype == DType::kU8 ? static_cast<uint8_t>(FWDMETA_DTYPE_BOOL) : tensor.dtype_code;
  out->dtype = {code, tensor.dtype_bits, 1};
  return FWDMETA_OK;
}

Status Meta::OrderAfterBuild(int64_t number) const {
  if (number == kDlNoSync) return FWDMETA_OK;
  if (number <= 0) {
    return Fail(FWDMETA_INVALID_ARGUMENT,
                "stream is %lld, expected 1 (legacy default), 2 (per-thread default), a cudaStream_t, or -1 (no "
                "synchronisation)",
                (long long)number);
  }
  const fwdmeta_stream_t stream = OneName(reinterpret_cast<fwdmeta_stream_t>(number));
  if (stream == OneName(stream_) && number != kPerThreadStream) return FWDMETA_OK;
  if (captured()) {
    return Fail(FWDMETA_UNAVAILABLE,
                "replays of a captured build are ordered by the engine: a stream can only be the build's own, or -1");
  }
  return builder_->backend().OrderAfterBuild(generation_, OneName(stream_), stream);
}

template <class Managed>
Status Meta::ToDlpack(const std::shared_ptr<Builder>& builder, const fwdmeta_dlpack_args_t& args, int64_t stream,
                      Managed** out) const {
  DlTensor tensor;
  int64_t size;
  FWDMETA_TRY(DescribeDlpack(args, &tensor, &size));
  FWDMETA_TRY(OrderAfterBuild(stream));
  auto* exported = new Exported<Managed>{builder, size, 1, {}};
  tensor.shape = &exported->shape;
  tensor.strides = &exported->stride;
  Managed& managed = exported->managed;
  managed.dl_tensor = tensor;
  managed.manager_ctx = exported;
  managed.deleter = &Delete<Managed>;
  Mark(&managed);
  *out = &managed;
  return FWDMETA_OK;
}

template Status Meta::ToDlpack(const std::shared_ptr<Builder>&, const fwdmeta_dlpack_args_t&, int64_t,
                               DLManagedTensor**) const;
template Status Meta::ToDlpack(const std::shared_ptr<Builder>&, const fwdmeta_dlpack_args_t&, int64_t,
                               DLManagedTensorVersioned**) const;

}  // namespace fwdmeta
