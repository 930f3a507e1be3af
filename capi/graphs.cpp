// The C ABI of graph modes, dispatchers and the agreement of ranks.
#include "base/check.h"
#include "base/struct_io.h"
#include "context/agreement.h"
#include "context/batch_shape.h"
#include "context/dispatcher.h"
#include "guard.h"

namespace fwdmeta {
namespace {

template <class Body>
Status WithDispatcher(fwdmeta_dispatcher_t handle, Body body) {
  return Guard([&] {
    std::shared_ptr<Dispatcher> dispatcher;
    FWDMETA_TRY(Dispatcher::Find(handle, &dispatcher));
    return body(*dispatcher);
  });
}

Status DispatchStep(const Dispatcher& dispatcher, const fwdmeta_dispatch_args_t* args, fwdmeta_dispatch_result_t* out) {
  static constexpr fwdmeta_dispatch_args_t kDefaults = FWDMETA_DISPATCH_ARGS_INITIALIZER;
  fwdmeta_dispatch_args_t in;
  FWDMETA_TRY(ReadStruct(args, kDefaults, "args", &in));
  FWDMETA_TRY(CheckRange("reserved", in.reserved, 0, 0));
  FWDMETA_TRY(CheckOutStruct(out, "out"));
  DispatchResult result;
  FWDMETA_TRY(
      dispatcher.Dispatch({in.num_tokens, in.num_reqs, in.query_len, in.num_active_loras, in.allowed_modes}, &result));
  WriteStruct(fwdmeta_dispatch_result_t{0, result.mode, result.reason, result.descriptor, 0}, out);
  return FWDMETA_OK;
}

}  // namespace
}  // namespace fwdmeta

using namespace fwdmeta;

fwdmeta_status_t fwdmeta_graph_mode_get_info(fwdmeta_graph_mode_t mode, fwdmeta_graph_mode_info_t* out) {
  return Guard([&] {
    if (!IsGraphMode(mode)) {
      return Fail(FWDMETA_INVALID_ARGUMENT, "mode is 0x%x, which is no graph mode", (unsigned)mode);
    }
    FWDMETA_TRY(CheckOutStruct(out, "out"));
    WriteStruct(DescribeGraphMode(mode), out);
    return Status{FWDMETA_OK};
  });
}

const char* fwdmeta_graph_mode_name(fwdmeta_graph_mode_t mode) { return GraphModeName(mode); }

fwdmeta_status_t fwdmeta_graph_mode_resolve(fwdmeta_graph_mode_t mode, fwdmeta_graph_support_t support,
                                            int64_t query_len, int32_t piecewise_available,
                                            fwdmeta_graph_mode_t* out_mode, fwdmeta_resolve_reason_t* out_reason) {
  return Guard([&] {
    if (out_mode == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "out_mode is null");
    fwdmeta_resolve_reason_t unread;
    return ResolveGraphMode(mode, support, query_len, piecewise_available, out_mode,
                            out_reason != nullptr ? out_reason : &unread);
  });
}

uint64_t fwdmeta_batch_descriptor_hash(const fwdmeta_batch_descriptor_t* descriptor) {
  return descriptor != nullptr ? HashDescriptor(*descriptor) : 0;
}

int32_t fwdmeta_batch_descriptor_equal(const fwdmeta_batch_descriptor_t* a, const fwdmeta_batch_descriptor_t* b) {
  return a != nullptr && b != nullptr && SameDescriptor(*a, *b) ? 1 : 0;
}

fwdmeta_status_t fwdmeta_dispatcher_create(const fwdmeta_dispatcher_config_t* config, fwdmeta_dispatcher_t* out) {
  return Guard([&] { return Dispatcher::Create(config, out); });
}

fwdmeta_status_t fwdmeta_dispatcher_destroy(fwdmeta_dispatcher_t dispatcher) {
  return Guard([&] { return Dispatcher::Destroy(dispatcher); });
}

fwdmeta_status_t fwdmeta_dispatcher_get_info(fwdmeta_dispatcher_t handle, fwdmeta_dispatcher_info_t* out) {
  return WithDispatcher(handle, [&](const Dispatcher& dispatcher) {
    FWDMETA_TRY(CheckOutStruct(out, "out"));
    WriteStruct(dispatcher.Info(), out);
    return Status{FWDMETA_OK};
  });
}

fwdmeta_status_t fwdmeta_dispatcher_get_sizes(fwdmeta_dispatcher_t handle, int64_t* out, int64_t capacity,
                                              int64_t* count) {
  return WithDispatcher(handle, [&](const Dispatcher& dispatcher) {
    FWDMETA_TRY(CheckFill(out, capacity, count));
    const std::vector<int32_t>& sizes = dispatcher.sizes();
    return Fill(sizes.begin(), static_cast<int64_t>(sizes.size()), out, capacity, count);
  });
}

fwdmeta_status_t fwdmeta_dispatcher_get_keys(fwdmeta_dispatcher_t handle, fwdmeta_graph_key_t* out, int64_t capacity,
                                             int64_t* count) {
  return WithDispatcher(handle, [&](const Dispatcher& dispatcher) {
    FWDMETA_TRY(CheckFill(out, capacity, count));
    const std::vector<fwdmeta_graph_key_t> keys = dispatcher.Keys();
    return Fill(keys.begin(), static_cast<int64_t>(keys.size()), out, capacity, count);
  });
}

fwdmeta_status_t fwdmeta_dispatcher_mark_captured(fwdmeta_dispatcher_t handle, const fwdmeta_graph_key_t* key) {
  return WithDispatcher(handle, [&](Dispatcher& dispatcher) { return dispatcher.MarkCaptured(key); });
}

const char* fwdmeta_dispatch_reason_name(fwdmeta_dispatch_reason_t reason) { return DispatchReasonName(reason); }

fwdmeta_status_t fwdmeta_dispatch(fwdmeta_dispatcher_t handle, const fwdmeta_dispatch_args_t* args,
                                  fwdmeta_dispatch_result_t* out) {
  return WithDispatcher(handle, [&](const Dispatcher& dispatcher) { return DispatchStep(dispatcher, args, out); });
}

fwdmeta_status_t fwdmeta_dispatch_args_from_lengths(const int32_t* seq_lens_encoder, const int32_t* seq_lens_this_time,
                                                    int64_t batch_size, int64_t query_len,
                                                    fwdmeta_dispatch_args_t* out) {
  return Guard(
      [&] { return DispatchArgsFromLengths(seq_lens_encoder, seq_lens_this_time, batch_size, query_len, out); });
}

fwdmeta_status_t fwdmeta_make_dummy(const fwdmeta_dummy_batch_t* dummy) {
  return Guard([&] { return MakeDummy(dummy); });
}

fwdmeta_status_t fwdmeta_agree(fwdmeta_dispatcher_t handle, const fwdmeta_rank_row_t* rows, int64_t num_ranks,
                               int64_t num_slices, int64_t* num_tokens, fwdmeta_agreement_t* out) {
  return WithDispatcher(handle, [&](const Dispatcher& dispatcher) {
    return AgreeOnRows(dispatcher, rows, num_ranks, num_slices, num_tokens, out);
  });
}
