#include "stub.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <new>
#include <set>
#include <thread>
#include <vector>

namespace stub {

constexpr size_t kMaxBytes = 256;

// A rank that posts gather s has seen the end of gather s - 1, which all ranks have posted; so two sets of slots do.
struct World {
  int num_ranks;
  std::atomic<int64_t> posted[kMaxRanks];  // gathers of each rank
  char slots[2][kMaxRanks][kMaxBytes];
};

namespace {

std::mutex mutex;                                          // of all below
std::set<const void*>& live = *new std::set<const void*>;  // outlives what the plug-in leaves to a hung stream
std::string violations;

void Violate(const std::string& what) {
  std::lock_guard<std::mutex> lock(mutex);
  violations += what + "\n";
}

thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
thread_local std::vector<CUcontext> contexts;
char primaries[kMaxRanks];  // their addresses are the contexts

int DeviceOf(CUcontext context) { return static_cast<int>(reinterpret_cast<char*>(context) - primaries); }
int CurrentDevice() { return contexts.empty() || contexts.back() == nullptr ? 0 : DeviceOf(contexts.back()); }

// What a capture of another thread forbids to threads that have not said otherwise.
void CheckCaptureMode(const char* call) {
  if (capture_mode != cudaStreamCaptureModeRelaxed) Violate(std::string(call) + " would break a capture");
}

cudaError_t New(void** pointer, size_t bytes) {
  *pointer = std::calloc(1, bytes);
  std::lock_guard<std::mutex> lock(mutex);
  live.insert(*pointer);
  return cudaSuccess;
}

cudaError_t Delete(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (live.erase(pointer) == 0) return cudaErrorInvalidValue;
  }
  std::free(pointer);
  return cudaSuccess;
}

CUresult GetCurrent(CUcontext* out) {
  *out = contexts.empty() ? nullptr : contexts.back();
  return CUDA_SUCCESS;
}
CUresult Push(CUcontext context) {
  contexts.push_back(context);
  return CUDA_SUCCESS;
}
CUresult Pop(CUcontext* out) {
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *out = contexts.back();
  contexts.pop_back();
  return CUDA_SUCCESS;
}
CUresult GetDevice(CUdevice* out) {
  *out = CurrentDevice();
  return CUDA_SUCCESS;
}
CUresult RetainPrimary(CUcontext* out, CUdevice device) {
  *out = PrimaryContext(device);
  return CUDA_SUCCESS;
}
CUresult ReleasePrimary(CUdevice) { return CUDA_SUCCESS; }

}  // namespace
}  // namespace stub

using namespace stub;

// Work is done when somebody looks: the front operation returns false until it has ended.
struct CUstream_st {
  int device;
  bool capturing = false;
  cudaError_t error = cudaSuccess;
  std::mutex mutex;
  std::deque<std::function<bool()>> work;

  void Enqueue(const char* call, std::function<bool()> operation) {
    if (CurrentDevice() != device) Violate(std::string(call) + " with another device current");
    std::lock_guard<std::mutex> lock(mutex);
    work.push_back(std::move(operation));
  }
  void Advance() {
    std::lock_guard<std::mutex> lock(mutex);
    while (!work.empty() && work.front()()) work.pop_front();
  }
};

struct CUevent_st {
  cudaStream_t stream = nullptr;
  std::atomic<int> pending{0};
};

struct ncclComm {
  World* world;
  int rank, device;
  Fault fault = Fault::kNone;
  int fault_gather = -1;
  int64_t gathers = 0;
  std::atomic<bool> aborted{false};
  std::atomic<int> state{ncclSuccess};
  int looks = 0;  // until pending work is enqueued
  std::function<void()> pending_work;

  void CheckAlive(const char* call) const {
    if (aborted) Violate(std::string(call) + " after the communicator's abort");
  }
};

namespace stub {

World* NewWorld(int num_ranks) {
  void* memory = mmap(nullptr, sizeof(World), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  World* world = new (memory) World{};
  world->num_ranks = num_ranks;
  return world;
}
void DeleteWorld(World* world) { munmap(world, sizeof(World)); }
int64_t Posted(const World* world, int rank) { return world->posted[rank].load(std::memory_order_acquire); }

ncclComm_t NewComm(World* world, int rank, int device) {
  ncclComm_t comm = new ncclComm;
  comm->world = world;
  comm->rank = rank;
  comm->device = device;
  return comm;
}
void DeleteComm(ncclComm_t comm) { delete comm; }
bool Aborted(ncclComm_t comm) { return comm->aborted; }

cudaStream_t NewStream(int device) {
  cudaStream_t stream = new CUstream_st;
  stream->device = device;
  return stream;
}
void DeleteStream(cudaStream_t stream) { delete stream; }
void SetCapturing(cudaStream_t stream, bool capturing) { stream->capturing = capturing; }

void SetFault(ncclComm_t comm, Fault fault, int gather) {
  comm->fault = fault;
  comm->fault_gather = gather;
  comm->state = fault == Fault::kNotYetMade ? ncclInProgress : ncclSuccess;
}

CUcontext PrimaryContext(int device) { return reinterpret_cast<CUcontext>(primaries + device); }
CUcontext CurrentContext() { return contexts.empty() ? nullptr : contexts.back(); }
void SetCurrentContext(CUcontext context) { contexts.assign(1, context); }

int64_t Live() {
  std::lock_guard<std::mutex> lock(mutex);
  return static_cast<int64_t>(live.size());
}
std::string Violations() {
  std::lock_guard<std::mutex> lock(mutex);
  return violations;
}

}  // namespace stub

// ---- CUDA

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kMaxRanks;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorLaunchFailure ? "stubLaunchFailure" : "stub";
}
const char* cudaGetErrorString(cudaError_t error) { return error == cudaSuccess ? "no error" : "stub error"; }

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int, unsigned long long,
                                             enum cudaDriverEntryPointQueryResult* result) {
  const struct {
    const char* name;
    void* function;
  } functions[] = {{"cuCtxGetCurrent", reinterpret_cast<void*>(GetCurrent)},
                   {"cuCtxPushCurrent", reinterpret_cast<void*>(Push)},
                   {"cuCtxPopCurrent", reinterpret_cast<void*>(Pop)},
                   {"cuCtxGetDevice", reinterpret_cast<void*>(GetDevice)},
                   {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(RetainPrimary)},
                   {"cuDevicePrimaryCtxRelease", reinterpret_cast<void*>(ReleasePrimary)}};
  *result = cudaDriverEntryPointSymbolNotFound;
  for (const auto& known : functions) {
    if (std::strcmp(known.name, symbol) != 0) continue;
    *function = known.function;
    *result = cudaDriverEntryPointSuccess;
  }
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus* status) {
  *status = stream->capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  CheckCaptureMode("cudaMalloc");
  return New(pointer, bytes);
}
cudaError_t cudaFree(void* pointer) {
  CheckCaptureMode("cudaFree");
  return Delete(pointer);
}
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned int) {
  CheckCaptureMode("cudaHostAlloc");
  return New(pointer, bytes);
}
cudaError_t cudaFreeHost(void* pointer) {
  CheckCaptureMode("cudaFreeHost");
  return Delete(pointer);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, enum cudaMemcpyKind, cudaStream_t stream) {
  stream->Enqueue("cudaMemcpyAsync", [=] {
    std::memcpy(to, from, bytes);
    return true;
  });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  *event = new CUevent_st;
  std::lock_guard<std::mutex> lock(mutex);
  live.insert(*event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    live.erase(event);
  }
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->stream = stream;
  ++event->pending;
  stream->Enqueue("cudaEventRecord", [event] {
    --event->pending;
    return true;
  });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  CheckCaptureMode("cudaEventQuery");
  if (event->stream == nullptr) return cudaSuccess;
  if (event->stream->error != cudaSuccess) return event->stream->error;
  event->stream->Advance();
  return event->pending == 0 ? cudaSuccess : cudaErrorNotReady;
}

// ---- NCCL

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclSystemError:
      return "stub system error";
    case ncclRemoteError:
      return "stub remote error";
    default:
      return "stub other error";
  }
}
const char* ncclGetLastError(ncclComm_t comm) {
  if (comm != nullptr) comm->CheckAlive("ncclGetLastError");
  return "the stub's detail";
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  comm->CheckAlive("ncclCommGetAsyncError");
  if (comm->pending_work != nullptr && --comm->looks == 0) {
    comm->pending_work();
    comm->pending_work = nullptr;
  }
  *error = static_cast<ncclResult_t>(comm->state.load());
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  comm->CheckAlive("ncclCommCount");
  *count = comm->world->num_ranks;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  comm->CheckAlive("ncclCommUserRank");
  *rank = comm->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  comm->CheckAlive("ncclCommCuDevice");
  *device = comm->device;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->CheckAlive("ncclCommAbort");
  comm->aborted = true;
  return ncclSuccess;
}

ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t, ncclComm_t comm,
                           cudaStream_t stream) {
  comm->CheckAlive("ncclAllGather");
  if (count > kMaxBytes) return ncclInvalidArgument;
  const int64_t gather = comm->gathers++;
  const Fault fault = gather == comm->fault_gather ? comm->fault : Fault::kNone;
  const auto enqueue = [=] {
    // As a kernel: posts the rank's row, waits for all of them, and ends where the communicator is aborted.
    stream->Enqueue("ncclAllGather", [=, posted = false]() mutable {
      World& world = *comm->world;
      if (comm->aborted) return true;
      if (!posted) {
        posted = true;
        std::memcpy(world.slots[gather % 2][comm->rank], send, count);
        world.posted[comm->rank].store(gather + 1, std::memory_order_release);
      }
      for (int rank = 0; rank < world.num_ranks; ++rank) {
        if (world.posted[rank].load(std::memory_order_acquire) <= gather) return false;
      }
      if (fault == Fault::kAsyncError) return false;
      for (int rank = 0; rank < world.num_ranks; ++rank) {
        std::memcpy(static_cast<char*>(recv) + rank * count, world.slots[gather % 2][rank], count);
      }
      return true;
    });
  };
  switch (fault) {
    case Fault::kCallFails:
      return ncclSystemError;
    case Fault::kCallBlocks:
      while (!comm->aborted) usleep(100);
      return ncclInternalError;
    case Fault::kCallInProgress:
      comm->looks = 5;
      comm->state = ncclInProgress;
      comm->pending_work = [=] {
        comm->state = ncclSuccess;
        enqueue();
      };
      return ncclInProgress;
    case Fault::kCallStaysPending:
      comm->state = ncclInProgress;
      return ncclInProgress;
    case Fault::kCallPendingFails:
      comm->looks = 3;
      comm->state = ncclInProgress;
      comm->pending_work = [=] { comm->state = ncclRemoteError; };
      return ncclInProgress;
    case Fault::kAsyncError:
      comm->state = ncclRemoteError;
      break;
    case Fault::kDeviceError:
      stream->error = cudaErrorLaunchFailure;
      break;
    case Fault::kNone:
    case Fault::kNotYetMade:
      break;
  }
  enqueue();
  return ncclSuccess;
}
