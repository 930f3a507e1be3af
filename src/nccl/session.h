// One rank's gathers through a communicator of the engine's.
#pragma once

#include <nccl.h>

#include <string>

#include "base/status.h"
#include "build/cuda/context.h"

namespace fwdmeta {

class NcclSession {
 public:
  NcclSession(ncclComm_t comm, cudaStream_t stream) : comm_(comm), stream_(stream) {}
  ~NcclSession();
  NcclSession(const NcclSession&) = delete;
  NcclSession& operator=(const NcclSession&) = delete;

  Status Open(int64_t num_ranks, int64_t rank, size_t bytes);
  // One gather at a time. Once it has begun to enqueue, a failure is the last: this rank is then out of step with the
  // others, and every later gather is UNAVAILABLE.
  Status Gather(const void* send, void* recv, int64_t deadline_ns);

 private:
  Status CheckStream() const;
  Status Enqueue(const void* send, int64_t deadline_ns);
  Status AllGather(int64_t deadline_ns);
  Status Wait(int64_t deadline_ns);
  Status TimeOut();

  ncclComm_t comm_;
  cudaStream_t stream_;
  DeviceContext context_;
  int64_t num_ranks_ = 0;
  int64_t rank_ = 0;
  size_t bytes_ = 0;        // of a rank
  char* device_ = nullptr;  // [num_ranks][bytes]; gathered in place
  char* host_ = nullptr;    // pinned, [num_ranks][bytes] that are received, then the row that is sent
  cudaEvent_t done_ = nullptr;
  bool connected_ = false;  // a gather has succeeded
  bool enqueuing_ = false;  // work was enqueued, but done_ not recorded behind it
  bool failed_ = false;     // a gather did not end
  std::string failure_;     // why
};

}  // namespace fwdmeta
