#include "context/batch_shape.h"

#include "base/struct_io.h"
#include "batch/slot.h"
#include "context/arrays.h"

namespace fwdmeta {

Status DispatchArgsFromLengths(const int32_t* seq_lens_encoder, const int32_t* seq_lens_this_time, int64_t batch_size,
                               int64_t query_len, fwdmeta_dispatch_args_t* out) {
  FWDMETA_TRY(CheckRange("query_len", query_len, 1));
  FWDMETA_TRY(CheckOutStruct(out, "out"));
  int32_t num_tokens;
  FWDMETA_TRY(CheckRoles(seq_lens_encoder, seq_lens_this_time, batch_size, &num_tokens));
  int64_t num_reqs = 0;
  bool uniform = true;
  for (int64_t i = 0; i < batch_size; ++i) {
    const Slot slot = MakeSlot(seq_lens_encoder[i], 0, seq_lens_this_time[i], 0);
    if (!slot.live()) continue;
    ++num_reqs;
    uniform = uniform && slot.decode() && slot.this_time == query_len;
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
  FWDMETA_TRY(CheckRange("query_len", in.query_len, 0));
  FWDMETA_TRY(CheckRange("num_reqs", in.num_reqs, 1));
  const int64_t num_tokens = in.num_tokens == FWDMETA_DEFAULT ? in.num_reqs * in.query_len : in.num_tokens;
  FWDMETA_TRY(CheckRange("num_tokens", num_tokens, in.num_reqs));
  const int64_t floor = num_tokens / in.num_reqs, longer = num_tokens % in.num_reqs;
  const int64_t longest = floor + (longer > 0 ? 1 : 0);
  if (in.query_len > 0 && longest > in.query_len) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "%lld tokens of %lld requests give one %lld, more than query_len %lld",
                (long long)num_tokens, (long long)in.num_reqs, (long long)longest, (long long)in.query_len);
  }
  // Array by array: where none is wanted, any number of requests takes no time.
  const auto fill_lengths = [&](int32_t* lengths) {
    lengths = std::fill_n(lengths, in.num_reqs - longer, static_cast<int32_t>(floor));
    std::fill_n(lengths, longer, static_cast<int32_t>(longest));
  };
  if (in.seq_lens_encoder != nullptr && in.query_len == 0) fill_lengths(in.seq_lens_encoder);
  if (in.seq_lens_encoder != nullptr && in.query_len > 0) std::fill_n(in.seq_lens_encoder, in.num_reqs, 0);
  if (in.seq_lens_decoder != nullptr) std::fill_n(in.seq_lens_decoder, in.num_reqs, 0);
  if (in.seq_lens_this_time != nullptr) fill_lengths(in.seq_lens_this_time);
  if (in.slot_mapping != nullptr) std::fill_n(in.slot_mapping, num_tokens, int64_t{-1});
  if (in.is_padding != nullptr) std::fill_n(in.is_padding, num_tokens, uint8_t{1});
  return FWDMETA_OK;
}

}  // namespace fwdmeta
