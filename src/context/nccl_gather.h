// Rows of all ranks through the engine's NCCL communicator. NCCL is in a plug-in, loaded here at run time.
#pragma once

#include <memory>

#include "base/status.h"
#include "nccl/plugin.h"

namespace fwdmeta {

class NcclGather {
 public:
  // Loads the plug-in of `config` and opens it for rows of `bytes` bytes.
  static Status Open(const fwdmeta_transport_config_t& config, size_t bytes, std::unique_ptr<NcclGather>* out);
  ~NcclGather();
  NcclGather(const NcclGather&) = delete;
  NcclGather& operator=(const NcclGather&) = delete;

  Status Gather(const void* send, void* recv, int64_t deadline_ns);

 private:
  NcclGather() = default;
  Status Load(const char* plugin_path);

  void* file_ = nullptr;  // of dlopen, which counts: the plug-in goes with the last transport that uses it
  const fwdmeta_nccl_plugin_t* plugin_ = nullptr;
  void* session_ = nullptr;
};

}  // namespace fwdmeta
