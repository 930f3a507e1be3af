// The C ABI: handles to objects, exceptions to statuses. Each function checks and forwards.
#include "base/log.h"
#include "base/struct_io.h"
#include "base/trace_range.h"
#include "build/builder.h"
#include "fwdmeta.h"
#include "guard.h"

namespace fwdmeta {
namespace {

template <class Body>
Status WithBuilder(fwdmeta_builder_t handle, Body body) {
  return Guard([&] {
    std::shared_ptr<Builder> builder;
    FWDMETA_TRY(Builder::Find(handle, &builder));
    return body(builder);
  });
}

template <class Body>
Status WithMeta(fwdmeta_meta_t handle, Body body) {
  return Guard([&] {
    MetaRef meta;
    FWDMETA_TRY(FindMeta(handle, &meta));
    return body(meta);
  });
}

Status CheckWait(fwdmeta_wait_flags_t flags, const fwdmeta_counts_t* out) {
  if ((flags & ~FWDMETA_WAIT_FINAL) != 0) return Fail(FWDMETA_INVALID_ARGUMENT, "flags has unknown bits: %d", flags);
  return out != nullptr ? CheckOutStruct(out, "out") : FWDMETA_OK;
}

Status GetCapacities(const fwdmeta_config_t* in, const fwdmeta_capacity_query_t* asked, fwdmeta_capacities_t* out) {
  Config config;
  FWDMETA_TRY(ParseConfig(in, &config));
  FWDMETA_TRY(CheckOutStruct(out, "out"));
  const fwdmeta_capacity_query_t defaults = FWDMETA_CAPACITY_QUERY_INITIALIZER;
  fwdmeta_capacity_query_t query = defaults;
  if (asked != nullptr) FWDMETA_TRY(ReadStruct(asked, defaults, "query", &query));
  if (query.slots == FWDMETA_DEFAULT) query.slots = config.max_batch_size;
  if (query.tokens == FWDMETA_DEFAULT) query.tokens = config.max_num_tokens;
  if (query.slots < 1 || query.tokens < 1) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "bucket of %lld slots and %lld tokens: both must be at least 1",
                (long long)query.slots, (long long)query.tokens);
  }
  if (query.slots > config.max_batch_size || query.tokens > config.max_num_tokens) {
    return Fail(FWDMETA_CAPACITY_EXCEEDED,
                "bucket of %lld slots and %lld tokens passes max_batch_size %d or max_num_tokens %d",
                (long long)query.slots, (long long)query.tokens, config.max_batch_size, config.max_num_tokens);
  }
  if (query.block_table_alignment < 1 || query.block_table_alignment > INT32_MAX) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "block_table_alignment is %lld, expected 1..%d",
                (long long)query.block_table_alignment, INT32_MAX);
  }
  FWDMETA_TRY(CheckCapacities(config));
  const bool fits = config.max_batch_size <= kMaxCudaSlots;
  if (config.backend == FWDMETA_BACKEND_CUDA && !fits) {
    return Fail(FWDMETA_UNSUPPORTED, "max_batch_size %d passes the CUDA backend's %d slots", config.max_batch_size,
                kMaxCudaSlots);
  }
  fwdmeta_capacities_t result = FWDMETA_CAPACITIES_INITIALIZER;
  const Capacities capacities = ComputeCapacities(config, query.slots, query.tokens);
  result.decoder = capacities.mapping[kDecoder];
  result.encoder = capacities.mapping[kEncoder];
  result.kv = capacities.mapping[kKv];
  result.pre_cache = capacities.mapping[kPreCache];
  for (int32_t i = 0; i < config.num_groups; ++i) {
    result.block_table_width[i] = BlockTableWidth(config, i, query.block_table_alignment);
  }
  const Plan plan = MakePlan(config, 1);
  const bool cuda =
      config.backend == FWDMETA_BACKEND_CUDA || (config.backend == FWDMETA_BACKEND_AUTO && fits && WhyNoCuda() == nullptr);
  const ArenaBytes bytes = cuda ? CudaArenaBytes(config, plan) : HostArenaBytes(config, plan);
  result.device_bytes = bytes.device;
  result.pinned_bytes = bytes.pinned;
  result.host_bytes = bytes.host;
  WriteStruct(result, out);
  return FWDMETA_OK;
}

}  // namespace
}  // namespace fwdmeta

using namespace fwdmeta;

int32_t fwdmeta_version(void) { return FWDMETA_VERSION; }

const char* fwdmeta_status_name(fwdmeta_status_t status) { return StatusName(status); }

const char* fwdmeta_last_error(void) { return LastError(); }

fwdmeta_status_t fwdmeta_log_set_level(fwdmeta_log_level_t level) {
  return Guard([&] {
    if (level < FWDMETA_LOG_TRACE || level > FWDMETA_LOG_OFF) {
      return Fail(FWDMETA_INVALID_ARGUMENT, "log level is %d, expected %d..%d", level, FWDMETA_LOG_TRACE,
                  FWDMETA_LOG_OFF);
    }
    SetLogLevel(level);
    return Status{FWDMETA_OK};
  });
}

fwdmeta_status_t fwdmeta_log_set_callback(fwdmeta_log_callback_t callback, void* user) {
  return Guard([&] {
    SetLogCallback(callback, user);
    return Status{FWDMETA_OK};
  });
}

fwdmeta_status_t fwdmeta_get_capacities(const fwdmeta_config_t* config, const fwdmeta_capacity_query_t* query,
                                        fwdmeta_capacities_t* out) {
  return Guard([&] { return GetCapacities(config, query, out); });
}

fwdmeta_status_t fwdmeta_builder_create(const fwdmeta_config_t* config, fwdmeta_builder_t* out) {
  return Guard([&] { return Builder::Create(config, out); });
}

fwdmeta_status_t fwdmeta_builder_destroy(fwdmeta_builder_t builder) {
  return Guard([&] { return Builder::Destroy(builder); });
}

fwdmeta_status_t fwdmeta_builder_get_info(fwdmeta_builder_t handle, fwdmeta_builder_info_t* out) {
  return WithBuilder(handle, [&](const std::shared_ptr<Builder>& builder) {
    FWDMETA_TRY(CheckOutStruct(out, "out"));
    builder->GetInfo(out);
    return Status{FWDMETA_OK};
  });
}

fwdmeta_status_t fwdmeta_builder_reset(fwdmeta_builder_t handle, fwdmeta_stream_t stream) {
  return WithBuilder(handle, [&](const std::shared_ptr<Builder>& builder) { return builder->Reset(stream); });
}

fwdmeta_status_t fwdmeta_build(fwdmeta_builder_t handle, const fwdmeta_batch_t* batch, fwdmeta_meta_t* out_meta,
                               int64_t* out_step) {
  const TraceRange range("fwdmeta_build");
  return WithBuilder(handle, [&](const std::shared_ptr<Builder>& builder) {
    return builder->Build(builder, batch, out_meta, out_step);
  });
}

fwdmeta_status_t fwdmeta_counts_wait(fwdmeta_builder_t handle, int64_t step, fwdmeta_wait_flags_t flags,
                                     int64_t timeout_us, fwdmeta_counts_t* out) {
  return WithBuilder(handle, [&](const std::shared_ptr<Builder>& builder) {
    FWDMETA_TRY(CheckWait(flags, out));
    return builder->WaitStep(step, flags, timeout_us, out);
  });
}

fwdmeta_status_t fwdmeta_replay_wait(fwdmeta_builder_t handle, int64_t replay, fwdmeta_wait_flags_t flags,
                                     int64_t timeout_us, fwdmeta_counts_t* out) {
  return WithBuilder(handle, [&](const std::shared_ptr<Builder>& builder) {
    FWDMETA_TRY(CheckWait(flags, out));
    return builder->WaitReplay(replay, flags, timeout_us, out);
  });
}

fwdmeta_status_t fwdmeta_advance(fwdmeta_builder_t handle, const fwdmeta_advance_args_t* args) {
  const TraceRange range("fwdmeta_advance");
  return WithBuilder(handle, [&](const std::shared_ptr<Builder>& builder) { return builder->Advance(builder, args); });
}

fwdmeta_status_t fwdmeta_advance_wait(fwdmeta_builder_t handle, int64_t advance, int64_t timeout_us,
                                      fwdmeta_advance_counts_t* out) {
  return WithBuilder(handle, [&](const std::shared_ptr<Builder>& builder) {
    if (out != nullptr) FWDMETA_TRY(CheckOutStruct(out, "out"));
    return builder->WaitAdvance(advance, timeout_us, out);
  });
}

const char* fwdmeta_field_name(fwdmeta_field_t field) {
  return field >= 0 && field < FWDMETA_FIELD_COUNT ? kFields[field].name : nullptr;
}

fwdmeta_status_t fwdmeta_meta_destroy(fwdmeta_meta_t handle) {
  return Guard([&] {
    if (handle == 0) return Status{FWDMETA_OK};
    MetaRef meta;
    FWDMETA_TRY(FindMeta(handle, &meta));
    FWDMETA_TRY(meta->CheckNoOpenReader());
    if (Metas().Remove(handle)) return Status{FWDMETA_OK};
    return Fail(FWDMETA_INVALID_HANDLE, "0x%llx is no forward meta", (unsigned long long)handle);
  });
}

fwdmeta_status_t fwdmeta_meta_get(fwdmeta_meta_t handle, const char* name, fwdmeta_tensor_t* out) {
  return WithMeta(handle, [&](const MetaRef& meta) {
    FWDMETA_TRY(CheckOutStruct(out, "out"));
    fwdmeta_tensor_t tensor;
    FWDMETA_TRY(meta->Get(name, &tensor));
    WriteStruct(tensor, out);
    return Status{FWDMETA_OK};
  });
}

fwdmeta_status_t fwdmeta_meta_get_field(fwdmeta_meta_t handle, fwdmeta_field_t field, int32_t group,
                                        fwdmeta_tensor_t* out) {
  return WithMeta(handle, [&](const MetaRef& meta) {
    FWDMETA_TRY(CheckOutStruct(out, "out"));
    fwdmeta_tensor_t tensor;
    FWDMETA_TRY(meta->GetField(field, group, &tensor));
    WriteStruct(tensor, out);
    return Status{FWDMETA_OK};
  });
}

fwdmeta_status_t fwdmeta_builder_set_tensor(fwdmeta_builder_t handle, const char* name,
                                            const fwdmeta_tensor_t* tensor) {
  return WithBuilder(handle, [&](const std::shared_ptr<Builder>& builder) { return builder->SetTensor(name, tensor); });
}

fwdmeta_status_t fwdmeta_meta_set_tensor(fwdmeta_meta_t handle, const char* name, const fwdmeta_tensor_t* tensor) {
  return WithMeta(handle, [&](const MetaRef& meta) { return meta->SetTensor(name, tensor); });
}

fwdmeta_status_t fwdmeta_meta_wait(fwdmeta_meta_t handle, fwdmeta_wait_flags_t flags, int64_t timeout_us,
                                   fwdmeta_counts_t* out) {
  return WithMeta(handle, [&](const MetaRef& meta) {
    FWDMETA_TRY(CheckWait(flags, out));
    return meta->Wait(flags, timeout_us, out);
  });
}

fwdmeta_status_t fwdmeta_meta_get_attr(fwdmeta_meta_t handle, fwdmeta_attr_t attr, int64_t* out) {
  return WithMeta(handle, [&](const MetaRef& meta) {
    if (out == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "out is null");
    return meta->GetAttr(attr, out);
  });
}

fwdmeta_status_t fwdmeta_meta_set_attr(fwdmeta_meta_t handle, fwdmeta_attr_t attr, int64_t value) {
  return WithMeta(handle, [&](const MetaRef& meta) { return meta->SetAttr(attr, value); });
}

fwdmeta_status_t fwdmeta_meta_set_attn_backend(fwdmeta_meta_t handle, const char* name, void* backend) {
  return WithMeta(handle, [&](const MetaRef& meta) { return meta->SetAttnBackend(name, backend); });
}

fwdmeta_status_t fwdmeta_meta_get_attn_backend(fwdmeta_meta_t handle, const char** name, void** backend) {
  return WithMeta(handle, [&](const MetaRef& meta) { return meta->GetAttnBackend(name, backend); });
}

fwdmeta_status_t fwdmeta_meta_reader_begin(fwdmeta_meta_t handle, fwdmeta_stream_t stream) {
  return WithMeta(handle, [&](const MetaRef& meta) { return meta->ReaderBegin(stream); });
}

fwdmeta_status_t fwdmeta_meta_reader_end(fwdmeta_meta_t handle, fwdmeta_stream_t stream) {
  return WithMeta(handle, [&](const MetaRef& meta) { return meta->ReaderEnd(stream); });
}

fwdmeta_status_t fwdmeta_device_view_v1(fwdmeta_meta_t handle, fwdmeta_device_view_v1_t* out) {
  return WithMeta(handle, [&](const MetaRef& meta) {
    if (out == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "out is null");
    *out = meta->DeviceView();
    return Status{FWDMETA_OK};
  });
}

fwdmeta_status_t fwdmeta_meta_dump(fwdmeta_meta_t handle, fwdmeta_dump_format_t format, fwdmeta_write_callback_t write,
                                   void* user) {
  return WithMeta(handle, [&](const MetaRef& meta) { return meta->Dump(format, write, user); });
}

fwdmeta_status_t fwdmeta_metrics_write(fwdmeta_write_callback_t write, void* user) {
  return Guard([&] { return WriteMetrics(write, user); });
}
