// How the ranks' rows come together: through the engine's callback or its NCCL communicator.
#pragma once

#include <atomic>
#include <memory>

#include "base/status.h"
#include "context/nccl_gather.h"

namespace fwdmeta {

class Transport {
 public:
  static Status Create(const fwdmeta_transport_config_t* config, fwdmeta_transport_t* out);
  static Status Destroy(fwdmeta_transport_t handle);
  // Gathers the rows of all ranks and agrees.
  static Status Agree(fwdmeta_transport_t handle, fwdmeta_dispatcher_t dispatcher, const fwdmeta_rank_row_t* row,
                      int64_t num_slices, int64_t timeout_us, int64_t* num_tokens, fwdmeta_agreement_t* out);

  ~Transport();

 private:
  Transport() = default;
  static Status Find(fwdmeta_transport_t handle, std::shared_ptr<Transport>* out);
  // Takes the transport from kIdle to `state`: BUSY while it is running, INVALID_HANDLE once destroyed.
  Status Take(fwdmeta_transport_t handle, int state);
  Status Gather(const fwdmeta_rank_row_t& row, int64_t timeout_us);

  enum { kIdle, kRunning, kDestroyed };
  std::atomic<int> state_{kIdle};
  bool reserved_ = false;
  fwdmeta_transport_config_t config_ = {};
  std::unique_ptr<fwdmeta_rank_row_t[]> rows_;  // [num_ranks], of the running gather
  std::unique_ptr<NcclGather> nccl_;            // null: the callback gathers
};

}  // namespace fwdmeta
