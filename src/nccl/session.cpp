#include "nccl/session.h"

#include <sched.h>
#include <time.h>

#include <cstring>

#include "nccl/watchdog.h"

#if NCCL_VERSION_CODE < 21400
#error "the plug-in needs NCCL 2.14, the first with non-blocking communicators"
#endif

namespace fwdmeta {
namespace {

Status NcclFail(ncclResult_t result, const char* what, ncclComm_t comm) {
  const char* detail = ncclGetLastError(comm);
  const bool has_detail = detail != nullptr && *detail != '\0';
  return Fail(FWDMETA_UNAVAILABLE, "%s: %s (NCCL %d)%s%s", what, ncclGetErrorString(result), static_cast<int>(result),
              has_detail ? ": " : "", has_detail ? detail : "");
}

#define FWDMETA_NCCL_TRY(call, comm)                                             \
  do {                                                                           \
    const ncclResult_t nccl_result_ = (call);                                    \
    if (nccl_result_ != ncclSuccess) return NcclFail(nccl_result_, #call, comm); \
  } while (0)

// Ever longer pauses between two looks: most gathers end within the spin, and a peer that is late costs no core.
class Pause {
 public:
  // False: the deadline has passed.
  bool Next(int64_t deadline_ns) {
    const int64_t now_ns = MonotonicNs();
    if (now_ns >= deadline_ns) return false;
    if (now_ns - start_ns_ > kYieldNs) {
      const timespec sleep = {0, kSleepNs};
      nanosleep(&sleep, nullptr);
    } else if (now_ns - start_ns_ > kSpinNs) {
      sched_yield();
    }
    return true;
  }

 private:
  static constexpr int64_t kSpinNs = 100000, kYieldNs = 1000000;
  static constexpr long kSleepNs = 50000;
  int64_t start_ns_ = MonotonicNs();
};

}  // namespace

Status NcclSession::Open(int64_t num_ranks, int64_t rank, size_t bytes) {
  ncclResult_t state = ncclSuccess;
  FWDMETA_NCCL_TRY(ncclCommGetAsyncError(comm_, &state), comm_);
  if (state == ncclInProgress) return Fail(FWDMETA_NOT_READY, "the communicator is still being made");
  if (state != ncclSuccess) return NcclFail(state, "the communicator", comm_);
  int count = 0, own = 0, device = 0;
  FWDMETA_NCCL_TRY(ncclCommCount(comm_, &count), comm_);
  FWDMETA_NCCL_TRY(ncclCommUserRank(comm_, &own), comm_);
  FWDMETA_NCCL_TRY(ncclCommCuDevice(comm_, &device), comm_);
  if (count != num_ranks || own != rank) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "the communicator is rank %d of %d, the transport is rank %lld of %lld", own,
                count, (long long)rank, (long long)num_ranks);
  }
  num_ranks_ = num_ranks;
  rank_ = rank;
  bytes_ = bytes;
  FWDMETA_TRY(context_.Bind(device));
  const ContextGuard guard(context_);
  FWDMETA_CUDA_TRY(cudaMalloc(reinterpret_cast<void**>(&device_), num_ranks * bytes));
  FWDMETA_CUDA_TRY(cudaHostAlloc(reinterpret_cast<void**>(&host_), (num_ranks + 1) * bytes, cudaHostAllocDefault));
  FWDMETA_CUDA_TRY(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming));
  return FWDMETA_OK;
}

NcclSession::~NcclSession() {
  if (context_.context() == nullptr) return;
  const ContextGuard guard(context_);
  // Buffers that the device may still write to are left to it: freeing them would wait, perhaps for ever.
  if (enqueuing_ || (done_ != nullptr && cudaEventQuery(done_) == cudaErrorNotReady)) return;
  if (done_ != nullptr) cudaEventDestroy(done_);
  cudaFreeHost(host_);
  cudaFree(device_);
  cudaGetLastError();
}

Status NcclSession::Gather(const void* send, void* recv, int64_t deadline_ns) {
  if (failed_) return Fail(FWDMETA_UNAVAILABLE, "an earlier gather was the last: %s", failure_.c_str());
  const ContextGuard guard(context_);
  FWDMETA_TRY(CheckStream());
  failed_ = true;
  Status status = Enqueue(send, deadline_ns);
  if (status == FWDMETA_OK) status = Wait(deadline_ns);
  if (status != FWDMETA_OK) {
    failure_ = LastError();
    if (enqueuing_ && cudaEventRecord(done_, stream_) == cudaSuccess) enqueuing_ = false;
    cudaGetLastError();
    return status;
  }
  failed_ = false;
  connected_ = true;
  std::memcpy(recv, host_, num_ranks_ * bytes_);
  return FWDMETA_OK;
}

Status NcclSession::CheckStream() const {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  FWDMETA_CUDA_TRY(cudaStreamIsCapturing(stream_, &capture));
  if (capture == cudaStreamCaptureStatusNone) return FWDMETA_OK;
  return Fail(FWDMETA_NOT_CAPTURABLE, "the transport's stream is being captured, and a gather waits for it");
}

Status NcclSession::Enqueue(const void* send, int64_t deadline_ns) {
  char* const row = host_ + num_ranks_ * bytes_;
  std::memcpy(row, send, bytes_);
  enqueuing_ = true;
  FWDMETA_CUDA_TRY(cudaMemcpyAsync(device_ + rank_ * bytes_, row, bytes_, cudaMemcpyHostToDevice, stream_));
  FWDMETA_TRY(AllGather(deadline_ns));
  FWDMETA_CUDA_TRY(cudaMemcpyAsync(host_, device_, num_ranks_ * bytes_, cudaMemcpyDeviceToHost, stream_));
  FWDMETA_CUDA_TRY(cudaEventRecord(done_, stream_));
  enqueuing_ = false;
  return FWDMETA_OK;
}

Status NcclSession::AllGather(int64_t deadline_ns) {
  ncclResult_t result;
  {
    // The first collective of a blocking communicator connects the ranks within the call, and waits for them there.
    Watchdog watchdog(comm_, context_, connected_ ? INT64_MAX : deadline_ns);
    result = ncclAllGather(device_ + rank_ * bytes_, device_, bytes_, ncclUint8, comm_, stream_);
    if (watchdog.Stop()) return TimeOut();
  }
  Pause pause;
  while (result == ncclInProgress) {  // a non-blocking communicator has yet to enqueue
    if (!pause.Next(deadline_ns)) {
      ncclCommAbort(comm_);
      return TimeOut();
    }
    FWDMETA_NCCL_TRY(ncclCommGetAsyncError(comm_, &result), comm_);
  }
  if (result != ncclSuccess) return NcclFail(result, "ncclAllGather", comm_);
  return FWDMETA_OK;
}

Status NcclSession::Wait(int64_t deadline_ns) {
  for (Pause pause;;) {
    const cudaError_t query = cudaEventQuery(done_);
    if (query == cudaSuccess) return FWDMETA_OK;
    if (query != cudaErrorNotReady) return CudaFail(query, "the gather");
    ncclResult_t state = ncclSuccess;
    FWDMETA_NCCL_TRY(ncclCommGetAsyncError(comm_, &state), comm_);
    if (state != ncclSuccess && state != ncclInProgress) return NcclFail(state, "the gather", comm_);
    if (!pause.Next(deadline_ns)) {
      ncclCommAbort(comm_);
      return TimeOut();
    }
  }
}

Status NcclSession::TimeOut() {
  return Fail(FWDMETA_TIMEOUT,
              "rank %lld of %lld: the rows of all ranks had not come by the deadline; the communicator was aborted",
              (long long)rank_, (long long)num_ranks_);
}

}  // namespace fwdmeta
