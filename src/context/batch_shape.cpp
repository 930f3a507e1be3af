#include "context/batch_shape.h"

#include "base/struct_io.h"
#include "batch/slot.h"
#include "context/check.h"

namespace fwdmeta {

Status DispatchArgsFromLengths(const int32_t* seq_lens_encoder, const int32_t* seq_lens_this_time, int64_t batch_size,
                               int64_t query_len, fwdmeta_dispatch_args_t* out) {
  FWDMETA_TRY(CheckRange("batch_size", batch_size, 0, INT32_MAX));
  if (batch_size > 0 && (seq_lens_encoder == nullptr || seq_lens_this_time == nullptr)) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "a length array is null and batch_size is %lld", (long long)batch_size);
  }
  FWDMETA_TRY(CheckRange("query_len", query_len, 1, INT32_MAX));
  FWDMETA_TRY(CheckOutStruct(out, "out"));
  int64_t num_tokens = 0, num_reqs = 0;
  bool uniform = true;
  for (int64_t i = 0; i < batch_size; ++i) {
    const int32_t encoder = seq_lens_encoder[i], this_time = seq_lens_this_time[i];
    const int32_t errors = SlotErrors(encoder, 0, this_time, INT32_MAX);
    if (errors != 0) {
      return Fail(FWDMETA_INVALID_BATCH, "slot %lld: seq_lens_encoder is %d and seq_lens_this_time %d", (long long)i,
                  encoder, this_time);
    }
    const Slot slot = MakeSlot(encoder, 0, this_time, 0);
    if (!slot.live()) continue;
    num_tokens += slot.this_time;
    ++num_reqs;
    uniform = uniform && slot.decode() && slot.this_time == query_len;
    if (num_tokens > INT32_MAX) {
      return Fail(FWDMETA_INVALID_BATCH, "slot %lld: the sum of seq_lens_this_time is %lld, past %d", (long long)i,
                  (long long)num_tokens, INT32_MAX);
    }
  }
  fwdmeta_dispatch_args_t args = FWDMETA_DISPATCH_ARGS_INITIALIZER;
  std::memcpy(static_cast<void*>(&args), out, std::min<uint64_t>(out->struct_size, sizeof(args)));
  args.num_tokens = num_tokens;
  args.num_reqs = num_reqs;
  args.query_len = uniform && num_reqs > 0 ? query_len : 0;
  WriteStruct(args, out);
  return FWDMETA_OK;
}

Status MakeDummy(const fwdmeta_dummy_batch_t* dummy) {
  static const fwdmeta_dummy_batch_t defaults = FWDMETA_DUMMY_BATCH_INITIALIZER;
  fwdmeta_dummy_batch_t in;
  FWDMETA_TRY(ReadStruct(dummy, defaults, "dummy", &in));
  FWDMETA_TRY(CheckRange("query_len", in.query_len, 0, INT32_MAX));
  FWDMETA_TRY(CheckRange("num_reqs", in.num_reqs, 1, INT32_MAX));
  const int64_t num_tokens = in.num_tokens == FWDMETA_DEFAULT ? in.num_reqs * in.query_len : in.num_tokens;
  FWDMETA_TRY(CheckRange("num_tokens", num_tokens, in.num_reqs, INT32_MAX));
  const int64_t floor = num_tokens / in.num_reqs, longer = num_tokens % in.num_reqs;
  const int64_t longest = floor + (longer > 0 ? 1 : 0);
  if (in.query_len > 0 && longest > in.query_len) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "%lld tokens of %lld requests give one %lld, more than query_len %lld",
                (long long)num_tokens, (long long)in.num_reqs, (long long)longest, (long long)in.query_len);
  }
  for (int64_t i = 0; i < in.num_reqs; ++i) {
    const int32_t length = static_cast<int32_t>(i < in.num_reqs - longer ? floor : longest);
    if (in.seq_lens_encoder != nullptr) in.seq_lens_encoder[i] = in.query_len == 0 ? length : 0;
    if (in.seq_lens_decoder != nullptr) in.seq_lens_decoder[i] = 0;
    if (in.seq_lens_this_time != nullptr) in.seq_lens_this_time[i] = length;
  }
  if (in.slot_mapping != nullptr) std::fill_n(in.slot_mapping, num_tokens, int64_t{-1});
  if (in.is_padding != nullptr) std::fill_n(in.is_padding, num_tokens, uint8_t{1});
  return FWDMETA_OK;
}

}  // namespace fwdmeta
