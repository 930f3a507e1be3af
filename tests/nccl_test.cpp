// The NCCL plug-in with NCCL itself, on the devices that are here. NCCL is found at run time, as an engine's would be;
// where it, a device or the plug-in is missing, the tests are skipped and say so.
#include <dlfcn.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "ranks_harness.h"

#if FWDMETA_TEST_CUDA && defined(FWDMETA_NCCL_PLUGIN)
#include <cuda_runtime_api.h>
#include <nccl.h>

namespace fwdmeta_test {
namespace {

// The calls of NCCL that an engine would make.
struct Nccl {
  decltype(&ncclCommInitAll) init_all = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init_rank_config = nullptr;
  decltype(&ncclCommGetAsyncError) get_async_error = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  std::string missing;

  Nccl() {
    void* file = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (file == nullptr) file = dlopen(FWDMETA_NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (file == nullptr) {
      missing = dlerror();
      return;
    }
    Find(file, "ncclCommInitAll", &init_all);
    Find(file, "ncclGetUniqueId", &get_unique_id);
    Find(file, "ncclCommInitRankConfig", &init_rank_config);
    Find(file, "ncclCommGetAsyncError", &get_async_error);
    Find(file, "ncclCommDestroy", &destroy);
  }

 private:
  template <class Function>
  void Find(void* file, const char* name, Function* out) {
    *out = reinterpret_cast<Function>(dlsym(file, name));
    if (*out == nullptr) missing = name;
  }
};

const Nccl& GetNccl() {
  static const Nccl* nccl = new Nccl;
  return *nccl;
}

#define ASSERT_NCCL(call) ASSERT_EQ(ncclSuccess, call)
#define ASSERT_CUDA(call) ASSERT_EQ(cudaSuccess, call)

class RealNccl : public ::testing::Test {
 protected:
  void SetUp() override {
    FWDMETA_SKIP_WITHOUT(FWDMETA_BACKEND_CUDA);
    if (!GetNccl().missing.empty()) GTEST_SKIP() << "NCCL cannot be loaded: " << GetNccl().missing;
    ASSERT_CUDA(cudaSetDevice(0));
    ASSERT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    const int device = 0;
    ASSERT_NCCL(GetNccl().init_all(&comm_, 1, &device));
  }
  void TearDown() override {
    EXPECT_OK(fwdmeta_transport_destroy(transport_));
    if (comm_ != nullptr) {
      EXPECT_EQ(ncclSuccess, GetNccl().destroy(comm_));
    }
    if (stream_ != nullptr) {
      EXPECT_EQ(cudaSuccess, cudaStreamDestroy(stream_));
    }
  }

  static fwdmeta_transport_config_t Config(ncclComm_t comm, cudaStream_t stream, int64_t num_ranks, int64_t rank) {
    fwdmeta_transport_config_t config = FWDMETA_TRANSPORT_CONFIG_INITIALIZER;
    config.num_ranks = num_ranks;
    config.rank = rank;
    config.nccl_comm = comm;
    config.stream = stream;
    config.plugin_path = FWDMETA_NCCL_PLUGIN;
    return config;
  }
  void Create(cudaStream_t stream) {
    const fwdmeta_transport_config_t config = Config(comm_, stream, 1, 0);
    ASSERT_OK(fwdmeta_transport_create(&config, &transport_));
  }
  Agreed Agree(int64_t step, int64_t timeout_us = 60000000) {
    return AgreeThrough(transport_, dispatcher_, dispatcher_.RowsOf(step, 1)[0], 1, timeout_us);
  }
  void ExpectAgreement(int64_t step, int64_t timeout_us = 60000000) {
    EXPECT_EQ(AgreeOn(dispatcher_, dispatcher_.RowsOf(step, 1)), Agree(step, timeout_us)) << fwdmeta_last_error();
  }

  RanksDispatcher dispatcher_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  fwdmeta_transport_t transport_ = 0;
};

TEST_F(RealNccl, OneRankAgreesOverManySteps) {
  for (cudaStream_t stream : {stream_, cudaStream_t{nullptr}}) {
    Create(stream);
    for (int64_t step = 0; step < 200; ++step) ExpectAgreement(step, step % 2 == 0 ? -1 : 60000000);
    EXPECT_OK(fwdmeta_transport_destroy(transport_));
    transport_ = 0;
  }
}

TEST_F(RealNccl, RanksOfTheCommunicatorAreChecked) {
  const fwdmeta_transport_config_t config = Config(comm_, stream_, 2, 1);
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_transport_create(&config, &transport_));
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {0, 1, 2})) << fwdmeta_last_error();
}

TEST_F(RealNccl, CaptureOfItsStreamIsRefusedAndOthersGoOn) {
  Create(stream_);
  ExpectAgreement(0);
  cudaStream_t other = nullptr;
  ASSERT_CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  for (cudaStream_t captured : {stream_, other}) {
    cudaGraph_t graph = nullptr;
    ASSERT_CUDA(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal));
    if (captured == stream_) {
      EXPECT_STATUS(FWDMETA_NOT_CAPTURABLE, Agree(1).status);
    } else {
      ExpectAgreement(1);
    }
    EXPECT_EQ(cudaSuccess, cudaStreamEndCapture(captured, &graph));
    if (graph != nullptr) {
      EXPECT_EQ(cudaSuccess, cudaGraphDestroy(graph));
    }
    ExpectAgreement(2);
  }
  EXPECT_EQ(cudaSuccess, cudaStreamDestroy(other));
}

TEST_F(RealNccl, NonBlockingCommunicator) {
  ncclUniqueId id;
  ASSERT_NCCL(GetNccl().get_unique_id(&id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  const ncclResult_t begun = GetNccl().init_rank_config(&comm, 1, id, 0, &config);
  ASSERT_TRUE(begun == ncclSuccess || begun == ncclInProgress) << begun;
  const fwdmeta_transport_config_t transport = Config(comm, stream_, 1, 0);
  fwdmeta_status_t status;
  while ((status = fwdmeta_transport_create(&transport, &transport_)) == FWDMETA_NOT_READY) std::this_thread::yield();
  EXPECT_OK(status);
  for (int64_t step = 0; step < 20; ++step) ExpectAgreement(step);
  EXPECT_OK(fwdmeta_transport_destroy(transport_));
  transport_ = 0;
  const ncclResult_t ended = GetNccl().destroy(comm);
  EXPECT_TRUE(ended == ncclSuccess || ended == ncclInProgress) << ended;
}

// Work of the engine's on the stream that does not end: what a stalled peer looks like from here.
class Blocker {
 public:
  explicit Blocker(cudaStream_t stream) { EXPECT_EQ(cudaSuccess, cudaLaunchHostFunc(stream, Wait, this)); }
  void Release() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      released_ = true;
    }
    changed_.notify_all();
  }

 private:
  static void CUDART_CB Wait(void* self) {
    Blocker& blocker = *static_cast<Blocker*>(self);
    std::unique_lock<std::mutex> lock(blocker.mutex_);
    // Not for ever: should the abort wait for the stream, the test fails by its status and does not hang.
    blocker.changed_.wait_for(lock, std::chrono::seconds(20), [&blocker] { return blocker.released_; });
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool released_ = false;
};

TEST_F(RealNccl, DeadlineAbortsTheCommunicator) {
  Create(stream_);
  ExpectAgreement(0);
  Blocker blocker(stream_);
  EXPECT_STATUS(FWDMETA_TIMEOUT, Agree(1, 50000).status);
  EXPECT_STATUS(FWDMETA_UNAVAILABLE, Agree(2, 50000).status);
  comm_ = nullptr;  // aborted: no longer ours to destroy
  blocker.Release();
  EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(stream_));
  EXPECT_OK(fwdmeta_transport_destroy(transport_));
  transport_ = 0;
}

TEST_F(RealNccl, LeavesTheThreadsDevice) {
  int count = 0;
  ASSERT_CUDA(cudaGetDeviceCount(&count));
  ASSERT_CUDA(cudaSetDevice(count - 1));
  int device = -1;
  Create(stream_);
  ExpectAgreement(0);
  ASSERT_CUDA(cudaGetDevice(&device));
  EXPECT_EQ(count - 1, device);
  EXPECT_OK(fwdmeta_transport_destroy(transport_));
  transport_ = 0;
  ASSERT_CUDA(cudaGetDevice(&device));
  EXPECT_EQ(count - 1, device);
  ASSERT_CUDA(cudaSetDevice(0));
}

// Threads that have used it end after it is gone, and it can be loaded again.
TEST_F(RealNccl, PluginIsUnloaded) {
  for (int round = 0; round < 3; ++round) {
    std::thread thread([this] {
      Create(stream_);
      ExpectAgreement(0);
      EXPECT_OK(fwdmeta_transport_destroy(transport_));
      transport_ = 0;
      EXPECT_EQ(nullptr, dlopen(FWDMETA_NCCL_PLUGIN, RTLD_NOW | RTLD_NOLOAD));
    });
    thread.join();
  }
}

// A rank a device, as threads. The last one stops: TIMEOUT on the others.
TEST_F(RealNccl, RanksOnSeveralDevices) {
  int num_ranks = 0;
  ASSERT_CUDA(cudaGetDeviceCount(&num_ranks));
  if (num_ranks < 2) GTEST_SKIP() << "one device";
  std::vector<ncclComm_t> comms(num_ranks);
  ASSERT_NCCL(GetNccl().init_all(comms.data(), num_ranks, nullptr));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      constexpr int64_t kSteps = 100;
      EXPECT_EQ(cudaSuccess, cudaSetDevice(rank));
      cudaStream_t stream = nullptr;
      EXPECT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      const fwdmeta_transport_config_t config = Config(comms[rank], stream, num_ranks, rank);
      fwdmeta_transport_t transport = 0;
      EXPECT_OK(fwdmeta_transport_create(&config, &transport));
      for (int64_t step = 0; step < kSteps; ++step) {
        const Rows rows = dispatcher_.RowsOf(step, num_ranks);
        EXPECT_EQ(AgreeOn(dispatcher_, rows), AgreeThrough(transport, dispatcher_, rows[rank], num_ranks, 60000000));
      }
      if (rank != num_ranks - 1) {
        const fwdmeta_rank_row_t row = dispatcher_.Row(kSteps, 1, 1);
        EXPECT_STATUS(FWDMETA_TIMEOUT, AgreeThrough(transport, dispatcher_, row, num_ranks, 200000).status);
        EXPECT_STATUS(FWDMETA_UNAVAILABLE, AgreeThrough(transport, dispatcher_, row, num_ranks, 200000).status);
      }
      EXPECT_OK(fwdmeta_transport_destroy(transport));
      EXPECT_EQ(cudaSuccess, cudaStreamDestroy(stream));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ncclSuccess, GetNccl().destroy(comms.back()));
}

}  // namespace
}  // namespace fwdmeta_test

#else

TEST(RealNccl, Skipped) { GTEST_SKIP() << "built without CUDA or without the NCCL plug-in"; }

#endif
