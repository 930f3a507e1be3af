// What tests do to the stub: communicators of processes or threads, faults, and what the plug-in did wrong.
#ifndef FWDMETA_STUB_H_
#define FWDMETA_STUB_H_

#include <cuda.h>
#include <nccl.h>

#include <cstdint>
#include <string>

namespace stub {

constexpr int kMaxRanks = 8;

// The ranks' meeting place, in memory that forked processes share.
struct World;
World* NewWorld(int num_ranks);
void DeleteWorld(World* world);
// Gathers that the rank has come to.
int64_t Posted(const World* world, int rank);

// One rank's communicator on a device.
ncclComm_t NewComm(World* world, int rank, int device);
void DeleteComm(ncclComm_t comm);
bool Aborted(ncclComm_t comm);

cudaStream_t NewStream(int device);
void DeleteStream(cudaStream_t stream);
void SetCapturing(cudaStream_t stream, bool capturing);

enum class Fault {
  kNone,
  kCallFails,         // ncclAllGather returns ncclSystemError
  kCallBlocks,        // ncclAllGather returns only once the communicator has been aborted
  kCallInProgress,    // ncclAllGather returns ncclInProgress; the work is enqueued some looks later
  kCallStaysPending,  // the same, and never
  kCallPendingFails,  // the same, and ends in ncclRemoteError
  kAsyncError,        // the gather never ends, and the communicator says ncclRemoteError
  kDeviceError,       // the stream fails
  kNotYetMade         // the communicator is in progress from the start
};
// In the communicator's gather number `gather`, from 0.
void SetFault(ncclComm_t comm, Fault fault, int gather);

// The calling thread's context, as an engine's would be; null: none.
CUcontext PrimaryContext(int device);
CUcontext CurrentContext();
void SetCurrentContext(CUcontext context);

// Buffers and events that exist in this process.
int64_t Live();
// Rules that were broken in this process, one a line: a call that another thread's capture forbids, a call with another
// device current, a communicator used after its abort.
std::string Violations();

}  // namespace stub

#endif  // FWDMETA_STUB_H_
