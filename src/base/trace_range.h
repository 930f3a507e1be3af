// A range on a profiler's timeline, from here to the end of the scope: an NVTX range of the domain "fwdmeta" where the
// library is built with FWDMETA_NVTX, else nothing.
#pragma once

#if FWDMETA_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace fwdmeta {

#if FWDMETA_NVTX
class TraceRange {
 public:
  // `name` is a string that stays.
  explicit TraceRange(const char* name) {
    nvtxEventAttributes_t attributes = {};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
    attributes.message.ascii = name;
    nvtxDomainRangePushEx(Domain(), &attributes);
  }
  ~TraceRange() { nvtxDomainRangePop(Domain()); }
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;

 private:
  static nvtxDomainHandle_t Domain() {
    static const nvtxDomainHandle_t domain = nvtxDomainCreateA("fwdmeta");
    return domain;
  }
};
#else
class TraceRange {
 public:
  explicit TraceRange(const char*) {}
  // Not defaulted, so that a range that is not read is no unused variable. NOLINTNEXTLINE(modernize-use-equals-default)
  ~TraceRange() {}
};
#endif

}  // namespace fwdmeta
