// The keys of captured graphs and which of them are captured, behind a handle.
#pragma once

#include <memory>

#include "base/handle_table.h"
#include "context/dispatch_table.h"
#include "context/graph_config.h"

namespace fwdmeta {

class Dispatcher {
 public:
  static Status Create(const fwdmeta_dispatcher_config_t* config, fwdmeta_dispatcher_t* out);
  static Status Destroy(fwdmeta_dispatcher_t handle);
  static Status Find(fwdmeta_dispatcher_t handle, std::shared_ptr<Dispatcher>* out);

  ~Dispatcher();
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  const DispatchTable& table() const { return table_; }
  const std::vector<int32_t>& sizes() const { return config_.sizes; }
  std::vector<fwdmeta_graph_key_t> Keys() const;  // in the order to capture them
  fwdmeta_dispatcher_info_t Info() const;
  Status Dispatch(const DispatchArgs& args, DispatchResult* out) const;
  Status MarkCaptured(const fwdmeta_graph_key_t* key);  // null: all

 private:
  Dispatcher() = default;
  Status Derive();
  uint8_t* FindFlag(const fwdmeta_graph_key_t& key);
  int64_t num_piecewise_keys() const { return static_cast<int64_t>(piecewise_sizes_.size() * config_.cases.size()); }

  GraphConfig config_ = {};
  std::vector<int32_t> piecewise_sizes_;
  std::vector<std::vector<int32_t>> full_sizes_;
  std::vector<Ladder> full_;
  std::vector<uint8_t> captured_;  // a flag a key: PIECEWISE, then ladder after ladder, each [size][case]
  DispatchTable table_ = {};
  uint64_t config_hash_ = 0;
  bool reserved_handle_ = false;
};

// Why the arguments are refused, as this thread's message.
Status FailDispatchArgs(const DispatchTable& table, const DispatchArgs& args, ArgsFault fault);

const char* DispatchReasonName(fwdmeta_dispatch_reason_t reason);  // null for any other number

}  // namespace fwdmeta
