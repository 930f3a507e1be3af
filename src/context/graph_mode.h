// Modes of captured graphs: a runtime mode for uniform decode batches and one for all others.
#pragma once

#include "base/hd.h"
#include "base/status.h"

namespace fwdmeta {

FWDMETA_HD bool IsRuntimeMode(fwdmeta_graph_mode_t mode) {
  return mode >= FWDMETA_GRAPH_NONE && mode <= FWDMETA_GRAPH_FULL;
}
FWDMETA_HD bool IsGraphMode(fwdmeta_graph_mode_t mode) {
  return IsRuntimeMode(mode) || mode == FWDMETA_GRAPH_FULL_DECODE_ONLY || mode == FWDMETA_GRAPH_FULL_AND_PIECEWISE;
}
// Whether decode batches have keys of their own.
FWDMETA_HD bool HasSeparateRoutine(fwdmeta_graph_mode_t mode) { return !IsRuntimeMode(mode); }
FWDMETA_HD fwdmeta_graph_mode_t DecodeMode(fwdmeta_graph_mode_t mode) {
  return HasSeparateRoutine(mode) ? mode >> 8 : mode;
}
FWDMETA_HD fwdmeta_graph_mode_t MixedMode(fwdmeta_graph_mode_t mode) { return mode & 0xff; }
FWDMETA_HD bool Contains(fwdmeta_graph_mode_t mode, fwdmeta_graph_mode_t runtime_mode) {
  return DecodeMode(mode) == runtime_mode || MixedMode(mode) == runtime_mode;
}

const char* GraphModeName(fwdmeta_graph_mode_t mode);  // null for a number that is no mode

fwdmeta_graph_mode_info_t DescribeGraphMode(fwdmeta_graph_mode_t mode);

// The mode that can be had, and the last rule that changed it.
Status ResolveGraphMode(fwdmeta_graph_mode_t mode, fwdmeta_graph_support_t support, int64_t query_len,
                        int32_t piecewise_available, fwdmeta_graph_mode_t* out_mode,
                        fwdmeta_resolve_reason_t* out_reason);

// FNV-1a with 64 bits over the little-endian bytes of integers.
class Fnv1a {
 public:
  template <class Integer>
  void Add(Integer value) {
    for (size_t i = 0; i < sizeof(value); ++i) {
      hash_ = (hash_ ^ (static_cast<uint64_t>(value) >> (8 * i) & 0xff)) * 0x100000001b3;
    }
  }
  uint64_t hash() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325;
};

uint64_t HashDescriptor(const fwdmeta_batch_descriptor_t& descriptor);
bool SameDescriptor(const fwdmeta_batch_descriptor_t& a, const fwdmeta_batch_descriptor_t& b);

}  // namespace fwdmeta
