#include "context/graph_mode.h"

#include <algorithm>

#include "base/check.h"

namespace fwdmeta {

const char* GraphModeName(fwdmeta_graph_mode_t mode) {
  switch (mode) {
    case FWDMETA_GRAPH_NONE:
      return "NONE";
    case FWDMETA_GRAPH_PIECEWISE:
      return "PIECEWISE";
    case FWDMETA_GRAPH_FULL:
      return "FULL";
    case FWDMETA_GRAPH_FULL_DECODE_ONLY:
      return "FULL_DECODE_ONLY";
    case FWDMETA_GRAPH_FULL_AND_PIECEWISE:
      return "FULL_AND_PIECEWISE";
    default:
      return nullptr;
  }
}

fwdmeta_graph_mode_info_t DescribeGraphMode(fwdmeta_graph_mode_t mode) {
  fwdmeta_graph_mode_info_t info = FWDMETA_GRAPH_MODE_INFO_INITIALIZER;
  info.decode_mode = DecodeMode(mode);
  info.mixed_mode = MixedMode(mode);
  info.max_mode = std::max(info.decode_mode, info.mixed_mode);
  info.separate_routine = HasSeparateRoutine(mode);
  info.has_full = Contains(mode, FWDMETA_GRAPH_FULL);
  info.has_piecewise = Contains(mode, FWDMETA_GRAPH_PIECEWISE);
  info.is_runtime_mode = IsRuntimeMode(mode);
  info.modes = 1 << info.decode_mode | 1 << info.mixed_mode;
  return info;
}

Status ResolveGraphMode(fwdmeta_graph_mode_t mode, fwdmeta_graph_support_t support, int64_t query_len,
                        int32_t piecewise_available, fwdmeta_graph_mode_t* out_mode,
                        fwdmeta_resolve_reason_t* out_reason) {
  if (!IsGraphMode(mode)) return Fail(FWDMETA_INVALID_ARGUMENT, "mode is 0x%x, which is no graph mode", (unsigned)mode);
  FWDMETA_TRY(CheckRange("support", support, FWDMETA_SUPPORT_NEVER, FWDMETA_SUPPORT_ALWAYS));
  FWDMETA_TRY(CheckRange("query_len", query_len, 1));
  FWDMETA_TRY(CheckRange("piecewise_available", piecewise_available, 0, 1));
  fwdmeta_resolve_reason_t reason = FWDMETA_RESOLVE_AS_ASKED;
  if (MixedMode(mode) == FWDMETA_GRAPH_FULL && support != FWDMETA_SUPPORT_ALWAYS) {
    if (support == FWDMETA_SUPPORT_NEVER) {
      return Fail(FWDMETA_UNSUPPORTED, "mode FULL captures mixed batches whole, and support is %d (NEVER)", support);
    }
    mode = piecewise_available ? FWDMETA_GRAPH_FULL_AND_PIECEWISE : FWDMETA_GRAPH_FULL_DECODE_ONLY;
    reason = FWDMETA_RESOLVE_NO_FULL_MIXED;
  }
  const bool multi_token = query_len > 1 && support < FWDMETA_SUPPORT_UNIFORM_BATCH;
  if (DecodeMode(mode) == FWDMETA_GRAPH_FULL && (support == FWDMETA_SUPPORT_NEVER || multi_token)) {
    mode = piecewise_available ? FWDMETA_GRAPH_PIECEWISE : FWDMETA_GRAPH_NONE;
    reason = support == FWDMETA_SUPPORT_NEVER ? FWDMETA_RESOLVE_NO_FULL : FWDMETA_RESOLVE_NO_MULTI_TOKEN;
  }
  *out_mode = mode;
  *out_reason = reason;
  return FWDMETA_OK;
}

uint64_t HashDescriptor(const fwdmeta_batch_descriptor_t& descriptor) {
  Fnv1a hash;
  hash.Add(descriptor.num_tokens);
  hash.Add(descriptor.num_reqs);
  hash.Add(descriptor.uniform);
  hash.Add(descriptor.has_lora);
  hash.Add(descriptor.num_active_loras);
  return hash.hash();
}

bool SameDescriptor(const fwdmeta_batch_descriptor_t& a, const fwdmeta_batch_descriptor_t& b) {
  return a.num_tokens == b.num_tokens && a.num_reqs == b.num_reqs && a.uniform == b.uniform &&
         a.has_lora == b.has_lora && a.num_active_loras == b.num_active_loras;
}

}  // namespace fwdmeta
