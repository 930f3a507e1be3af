// Transports over NCCL: the plug-in's own sources, over a stub of NCCL and CUDA that faults on demand.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "ranks_harness.h"
#include "stub.h"

namespace fwdmeta_test {
namespace {

using stub::Fault;

constexpr char kVariable[] = "FWDMETA_PLUGIN_PATH";
constexpr int kDevice = 1;

// A rank of a world: its communicator, its stream and the transport over them.
class Rank {
 public:
  Rank(stub::World* world, int rank) : comm_(stub::NewComm(world, rank, kDevice)), stream_(stub::NewStream(kDevice)) {}
  ~Rank() {
    Destroy();
    stub::DeleteStream(stream_);
    stub::DeleteComm(comm_);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  fwdmeta_transport_config_t Config(int64_t num_ranks, int64_t rank) const {
    fwdmeta_transport_config_t config = FWDMETA_TRANSPORT_CONFIG_INITIALIZER;
    config.num_ranks = num_ranks;
    config.rank = rank;
    config.nccl_comm = comm_;
    config.stream = stream_;
    config.plugin_path = FWDMETA_STUB_PLUGIN;
    return config;
  }
  fwdmeta_status_t Create(int64_t num_ranks, int64_t rank) {
    num_ranks_ = num_ranks;
    const fwdmeta_transport_config_t config = Config(num_ranks, rank);
    return fwdmeta_transport_create(&config, &transport_);
  }
  void Destroy() {
    EXPECT_OK(fwdmeta_transport_destroy(transport_));
    transport_ = 0;
  }
  Agreed Agree(const RanksDispatcher& dispatcher, const fwdmeta_rank_row_t& row, int64_t timeout_us = -1) const {
    return AgreeThrough(transport_, dispatcher, row, num_ranks_, timeout_us);
  }

  fwdmeta_transport_t handle() const { return transport_; }
  ncclComm_t comm() const { return comm_; }
  cudaStream_t stream() const { return stream_; }

 private:
  ncclComm_t comm_;
  cudaStream_t stream_;
  int64_t num_ranks_ = 0;
  fwdmeta_transport_t transport_ = 0;
};

class NcclStub : public ::testing::Test {
 protected:
  void SetUp() override {
    unsetenv(kVariable);
    live_ = stub::Live();
    stub::SetCurrentContext(nullptr);
  }
  void TearDown() override {
    EXPECT_EQ("", stub::Violations());
    EXPECT_EQ(live_ + leaked_, stub::Live());
  }

  RanksDispatcher dispatcher_;
  int64_t live_ = 0, leaked_ = 0;
};

// One rank of one, whose gathers would end at once.
class OneRank : public NcclStub {
 protected:
  OneRank() : world_(stub::NewWorld(1)), rank_(world_, 0) {}
  ~OneRank() override {
    rank_.Destroy();
    stub::DeleteWorld(world_);
  }
  void SetUp() override {
    NcclStub::SetUp();
    ASSERT_OK(rank_.Create(1, 0));
  }
  void TearDown() override {
    rank_.Destroy();
    NcclStub::TearDown();
  }
  Agreed Agree(int64_t timeout_us = -1) { return rank_.Agree(dispatcher_, row_, timeout_us); }
  void ExpectFailure(fwdmeta_status_t status, const std::vector<std::string>& texts, const Agreed& agreed) {
    EXPECT_EQ(Name(status), Name(agreed.status)) << fwdmeta_last_error();
    for (const std::string& text : texts) EXPECT_NE(nullptr, std::strstr(fwdmeta_last_error(), text.c_str())) << text;
  }
  // What every gather after the last one says: it names what ended it.
  void ExpectUnavailable(const std::string& text) {
    for (int i = 0; i < 2; ++i) ExpectFailure(FWDMETA_UNAVAILABLE, {"was the last", text}, Agree(1000));
  }

  stub::World* world_;
  Rank rank_;
  fwdmeta_rank_row_t row_ = dispatcher_.Row(4, 3, 3, 1);
};

TEST_F(OneRank, Agrees) {
  for (int64_t timeout_us : {-1, 10000000}) {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(AgreeOn(dispatcher_, {row_}), Agree(timeout_us));
  }
}

TEST_F(OneRank, CallThatFails) {
  EXPECT_OK(Agree().status);
  stub::SetFault(rank_.comm(), Fault::kCallFails, 1);
  ExpectFailure(FWDMETA_UNAVAILABLE, {"stub system error", "2", "the stub's detail"}, Agree());
  ExpectUnavailable("stub system error");
  EXPECT_FALSE(stub::Aborted(rank_.comm())) << "it is the engine's";
}

TEST_F(OneRank, ErrorThatComesLater) {
  EXPECT_OK(Agree().status);
  stub::SetFault(rank_.comm(), Fault::kAsyncError, 1);
  ExpectFailure(FWDMETA_UNAVAILABLE, {"stub remote error", "6"}, Agree());
  ExpectUnavailable("stub remote error");
  EXPECT_FALSE(stub::Aborted(rank_.comm())) << "it is the engine's";
  ncclCommAbort(rank_.comm());  // by the engine: the stream goes on, and the buffers are freed with the transport
}

// Without that abort the stream still uses the buffers: destroying leaves them to it rather than wait.
TEST_F(OneRank, DestroyingDoesNotWaitForAHungStream) {
  stub::SetFault(rank_.comm(), Fault::kAsyncError, 0);
  ExpectFailure(FWDMETA_UNAVAILABLE, {"stub remote error"}, Agree());
  leaked_ = 3;
}

TEST_F(OneRank, DeviceThatFails) {
  stub::SetFault(rank_.comm(), Fault::kDeviceError, 0);
  ExpectFailure(FWDMETA_CUDA_ERROR, {"stubLaunchFailure"}, Agree());
  ExpectUnavailable("stubLaunchFailure");
}

// The first collective of a blocking communicator connects the ranks inside the call, where nothing polls.
TEST_F(OneRank, CallThatBlocksEndsAtTheDeadline) {
  stub::SetFault(rank_.comm(), Fault::kCallBlocks, 0);
  ExpectFailure(FWDMETA_TIMEOUT, {"rank 0 of 1", "aborted"}, Agree(20000));
  EXPECT_TRUE(stub::Aborted(rank_.comm()));
  ExpectUnavailable("rank 0 of 1");
}

TEST_F(OneRank, NonBlockingCommunicator) {
  for (int gather = 0; gather < 3; ++gather) {
    stub::SetFault(rank_.comm(), Fault::kCallInProgress, gather);
    EXPECT_EQ(AgreeOn(dispatcher_, {row_}), Agree(10000000));
  }
  stub::SetFault(rank_.comm(), Fault::kCallPendingFails, 3);
  ExpectFailure(FWDMETA_UNAVAILABLE, {"stub remote error"}, Agree());
  ExpectUnavailable("stub remote error");
}

TEST_F(OneRank, NonBlockingCommunicatorThatNeverEnqueues) {
  stub::SetFault(rank_.comm(), Fault::kCallStaysPending, 0);
  ExpectFailure(FWDMETA_TIMEOUT, {"rank 0 of 1", "aborted"}, Agree(20000));
  EXPECT_TRUE(stub::Aborted(rank_.comm()));
  ExpectUnavailable("deadline");
}

TEST_F(OneRank, CapturedStreamIsRefusedAndLeftAlone) {
  stub::SetCapturing(rank_.stream(), true);
  ExpectFailure(FWDMETA_NOT_CAPTURABLE, {"captured"}, Agree());
  stub::SetCapturing(rank_.stream(), false);
  EXPECT_OK(Agree().status);
}

TEST_F(OneRank, LeavesTheThreadsContext) {
  const CUcontext contexts[] = {nullptr, stub::PrimaryContext(3), stub::PrimaryContext(kDevice)};
  for (CUcontext context : contexts) {
    stub::SetCurrentContext(context);
    stub::World* world = stub::NewWorld(1);
    {
      Rank rank(world, 0);
      ASSERT_OK(rank.Create(1, 0));
      EXPECT_EQ(context, stub::CurrentContext());
      EXPECT_OK(rank.Agree(dispatcher_, row_).status);
      EXPECT_EQ(context, stub::CurrentContext());
      stub::SetFault(rank.comm(), Fault::kCallFails, 1);
      EXPECT_STATUS(FWDMETA_UNAVAILABLE, rank.Agree(dispatcher_, row_).status);
      EXPECT_EQ(context, stub::CurrentContext());
    }
    EXPECT_EQ(context, stub::CurrentContext());
    stub::DeleteWorld(world);
  }
}

TEST_F(NcclStub, CreationChecksTheCommunicator) {
  stub::World* world = stub::NewWorld(3);
  {
    Rank rank(world, 1);
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, rank.Create(3, 2));
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {1, 3, 2})) << fwdmeta_last_error();
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, rank.Create(4, 1));
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {1, 3, 4})) << fwdmeta_last_error();
    stub::SetFault(rank.comm(), Fault::kNotYetMade, 0);
    EXPECT_STATUS(FWDMETA_NOT_READY, rank.Create(3, 1));
    stub::SetFault(rank.comm(), Fault::kNone, 0);
    EXPECT_OK(rank.Create(3, 1));
  }
  stub::DeleteWorld(world);
}

// ---- several ranks

TEST_F(NcclStub, ThreadsAgreeOverManySteps) {
  for (int num_ranks : {2, 3, 4}) {
    stub::World* world = stub::NewWorld(num_ranks);
    std::vector<std::thread> threads;
    for (int r = 0; r < num_ranks; ++r) {
      threads.emplace_back([&, r] {
        Rank rank(world, r);
        EXPECT_OK(rank.Create(num_ranks, r));
        for (int64_t step = 0; step < 200; ++step) {
          const Rows rows = dispatcher_.RowsOf(step, num_ranks);
          EXPECT_EQ(AgreeOn(dispatcher_, rows), rank.Agree(dispatcher_, rows[r], step % 2 == 0 ? -1 : 60000000));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    stub::DeleteWorld(world);
  }
}

// Runs `body` in a process a rank, and expects each to report no failure.
template <class Body>
void InProcesses(int num_ranks, Body body) {
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int r = 0; r < num_ranks; ++r) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      body(r);
      EXPECT_EQ("", stub::Violations());
      std::fflush(nullptr);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  for (int r = 0; r < num_ranks; ++r) {
    int status = -1;
    waitpid(children[r], &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << r << " ended with " << status;
  }
}

TEST_F(NcclStub, ProcessesAgreeOverManySteps) {
  for (int num_ranks : {2, 4}) {
    stub::World* world = stub::NewWorld(num_ranks);
    InProcesses(num_ranks, [&](int r) {
      const RanksDispatcher dispatcher;  // of its own, as an engine's ranks have
      Rank rank(world, r);
      ASSERT_OK(rank.Create(num_ranks, r));
      for (int64_t step = 0; step < 200; ++step) {
        const Rows rows = dispatcher.RowsOf(step, num_ranks, 2);
        EXPECT_EQ(AgreeOn(dispatcher, rows), rank.Agree(dispatcher, rows[r], 60000000));
      }
    });
    stub::DeleteWorld(world);
  }
}

TEST_F(NcclStub, MismatchIsTheSameOnAllRanks) {
  stub::World* world = stub::NewWorld(3);
  InProcesses(3, [&](int r) {
    Rank rank(world, r);
    ASSERT_OK(rank.Create(3, r));
    // Rank 2 has lost a step.
    const Agreed agreed = rank.Agree(dispatcher_, dispatcher_.Row(r == 2 ? 6 : 7, 5, 5), 60000000);
    EXPECT_STATUS(FWDMETA_RANK_MISMATCH, agreed.status);
    EXPECT_EQ(2, agreed.agreement.mismatch_rank);
    // The gather itself was whole: the transport goes on.
    EXPECT_OK(rank.Agree(dispatcher_, dispatcher_.Row(8, 5, 5), 60000000).status);
  });
  stub::DeleteWorld(world);
}

// A peer that stops in the middle is TIMEOUT on all others, and then each of their transports is gone.
TEST_F(NcclStub, StalledPeerEndsInTimeout) {
  constexpr int64_t kLastStep = 10;
  stub::World* world = stub::NewWorld(3);
  InProcesses(3, [&](int r) {
    Rank rank(world, r);
    ASSERT_OK(rank.Create(3, r));
    for (int64_t step = 0; step < kLastStep; ++step) {
      EXPECT_OK(rank.Agree(dispatcher_, dispatcher_.RowsOf(step, 3)[r], 60000000).status);
    }
    if (r == 2) return;
    EXPECT_STATUS(FWDMETA_TIMEOUT, rank.Agree(dispatcher_, dispatcher_.Row(kLastStep, 1, 1), 50000).status);
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {r, 3})) << fwdmeta_last_error();
    EXPECT_TRUE(stub::Aborted(rank.comm()));
    EXPECT_STATUS(FWDMETA_UNAVAILABLE, rank.Agree(dispatcher_, dispatcher_.Row(kLastStep + 1, 1, 1), 50000).status);
    rank.Destroy();
    EXPECT_EQ(live_, stub::Live());
  });
  stub::DeleteWorld(world);
}

TEST_F(NcclStub, DeadlineOfZeroAndAPeerThatNeverCame) {
  stub::World* world = stub::NewWorld(2);
  {
    Rank rank(world, 0);
    ASSERT_OK(rank.Create(2, 0));
    EXPECT_STATUS(FWDMETA_TIMEOUT, rank.Agree(dispatcher_, dispatcher_.Row(0, 1, 1), 0).status);
    EXPECT_STATUS(FWDMETA_UNAVAILABLE, rank.Agree(dispatcher_, dispatcher_.Row(1, 1, 1), -1).status);
  }
  stub::DeleteWorld(world);
}

TEST_F(NcclStub, SecondThreadIsBusy) {
  stub::World* world = stub::NewWorld(2);
  {
    Rank waiting(world, 0), late(world, 1);
    ASSERT_OK(waiting.Create(2, 0));
    ASSERT_OK(late.Create(2, 1));
    const Rows rows = {dispatcher_.Row(3, 1, 1), dispatcher_.Row(3, 2, 2)};
    std::thread first([&] { EXPECT_EQ(AgreeOn(dispatcher_, rows), waiting.Agree(dispatcher_, rows[0])); });
    while (stub::Posted(world, 0) == 0) std::this_thread::yield();
    EXPECT_STATUS(FWDMETA_BUSY, waiting.Agree(dispatcher_, rows[0]).status);
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {0, 2})) << fwdmeta_last_error();
    EXPECT_STATUS(FWDMETA_BUSY, fwdmeta_transport_destroy(waiting.handle()));
    EXPECT_EQ(AgreeOn(dispatcher_, rows), late.Agree(dispatcher_, rows[1]));
    first.join();
  }
  stub::DeleteWorld(world);
}

// ---- finding and loading the plug-in

class Loading : public NcclStub {
 protected:
  void SetUp() override {
    NcclStub::SetUp();
    char name[] = "/tmp/fwdmeta_plugin_XXXXXX";
    ASSERT_NE(nullptr, mkdtemp(name));
    folder_ = name;
    before_ = std::filesystem::current_path();
    world_ = stub::NewWorld(1);
    rank_ = std::make_unique<Rank>(world_, 0);
  }
  void TearDown() override {
    std::filesystem::current_path(before_);
    unsetenv(kVariable);
    std::filesystem::remove_all(folder_);
    rank_.reset();
    stub::DeleteWorld(world_);
    NcclStub::TearDown();
  }

  fwdmeta_status_t Create(const char* plugin_path) {
    fwdmeta_transport_config_t config = rank_->Config(1, 0);
    config.plugin_path = plugin_path;
    fwdmeta_transport_t transport = 0;
    const fwdmeta_status_t status = fwdmeta_transport_create(&config, &transport);
    EXPECT_OK(fwdmeta_transport_destroy(transport));
    return status;
  }
  static bool Says(const std::string& text) { return std::strstr(fwdmeta_last_error(), text.c_str()) != nullptr; }
  // Whether the plug-in is in this process.
  static bool Loaded() {
    void* file = dlopen(FWDMETA_STUB_PLUGIN, RTLD_NOW | RTLD_NOLOAD);
    if (file != nullptr) dlclose(file);
    return file != nullptr;
  }

  std::filesystem::path folder_, before_;
  stub::World* world_ = nullptr;
  std::unique_ptr<Rank> rank_;
};

TEST_F(Loading, MissingFile) {
  const std::string path = folder_ / "missing.so";
  EXPECT_STATUS(FWDMETA_UNAVAILABLE, Create(path.c_str()));
  EXPECT_TRUE(Says(path) && Says("No such file")) << fwdmeta_last_error();
}

TEST_F(Loading, NoLibrary) {
  const std::string path = folder_ / "text.so";
  std::ofstream(path) << "This is a text, long enough to be taken for the header of a library, but it is none.\n";
  EXPECT_STATUS(FWDMETA_UNAVAILABLE, Create(path.c_str()));
  EXPECT_TRUE(Says(path) && Says("ELF")) << fwdmeta_last_error();
  EXPECT_STATUS(FWDMETA_UNAVAILABLE, Create(folder_.c_str()));
  EXPECT_TRUE(Says(folder_)) << fwdmeta_last_error();
}

TEST_F(Loading, LibraryThatIsNoPlugin) {
  EXPECT_STATUS(FWDMETA_UNAVAILABLE, Create(FWDMETA_STUB_NCCL));
  EXPECT_TRUE(Says(FWDMETA_STUB_NCCL) && Says("fwdmeta_nccl_plugin")) << fwdmeta_last_error();
}

TEST_F(Loading, OtherVersions) {
  EXPECT_STATUS(FWDMETA_UNSUPPORTED, Create(FWDMETA_PLUGIN_OF_WRONG_VERSION));
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {42, 1})) << fwdmeta_last_error();
  EXPECT_STATUS(FWDMETA_UNSUPPORTED, Create(FWDMETA_PLUGIN_OF_WRONG_SIZE));
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {40, 48})) << fwdmeta_last_error();
}

TEST_F(Loading, UnloadedWithTheLastTransport) {
  EXPECT_FALSE(Loaded());
  ASSERT_OK(rank_->Create(1, 0));
  EXPECT_TRUE(Loaded());
  EXPECT_OK(Create(FWDMETA_STUB_PLUGIN));
  EXPECT_TRUE(Loaded()) << "one transport is left";
  EXPECT_OK(rank_->Agree(dispatcher_, dispatcher_.Row(0, 1, 1)).status);
  rank_->Destroy();
  EXPECT_FALSE(Loaded());
}

TEST_F(Loading, PathsAreAbsolute) {
  std::filesystem::copy(FWDMETA_STUB_PLUGIN, folder_ / "libfwdmeta_nccl.so.1");
  std::filesystem::current_path(folder_);
  for (const char* path : {"libfwdmeta_nccl.so.1", "./libfwdmeta_nccl.so.1", ""}) {
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, Create(path));
    EXPECT_TRUE(Says("plugin_path") && Says(path)) << fwdmeta_last_error();
  }
  setenv(kVariable, "./libfwdmeta_nccl.so.1", 1);
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, Create(nullptr));
  EXPECT_TRUE(Says(kVariable) && Says("./libfwdmeta_nccl.so.1")) << fwdmeta_last_error();
}

TEST_F(Loading, StatedPathBeforeTheVariable) {
  const std::string missing = folder_ / "missing.so", other = folder_ / "other.so";
  setenv(kVariable, FWDMETA_STUB_PLUGIN, 1);
  EXPECT_STATUS(FWDMETA_UNAVAILABLE, Create(missing.c_str()));
  EXPECT_OK(Create(nullptr));
  setenv(kVariable, other.c_str(), 1);
  EXPECT_STATUS(FWDMETA_UNAVAILABLE, Create(nullptr));
  EXPECT_TRUE(Says(other)) << fwdmeta_last_error();
  EXPECT_OK(Create(FWDMETA_STUB_PLUGIN));
}

// A copy of the library in a folder of its own, whose calls are found by name.
class Copy {
 public:
  explicit Copy(const std::filesystem::path& folder) {
    const std::filesystem::path path = folder / "libfwdmeta.so.1";
    std::filesystem::copy(FWDMETA_LIBRARY, path);
    file_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(nullptr, file_) << dlerror();
  }

  template <class Function>
  Function* Get(Function*, const char* name) const {
    return reinterpret_cast<Function*>(dlsym(file_, name));
  }
#define COPY_CALL(copy, name) (copy).Get(&name, #name)

 private:
  void* file_;  // never closed: what the library keeps until the process ends would look like a leak
};

TEST_F(Loading, BesideTheLibraryAndNotInTheWorkingDirectory) {
  const std::filesystem::path beside = folder_ / "lib", elsewhere = folder_ / "cwd";
  std::filesystem::create_directories(beside);
  std::filesystem::create_directories(elsewhere);
  std::filesystem::copy(FWDMETA_STUB_PLUGIN, elsewhere / "libfwdmeta_nccl.so.1");
  std::filesystem::current_path(elsewhere);
  const Copy copy(beside);
  fwdmeta_transport_config_t config = rank_->Config(1, 0);
  config.plugin_path = nullptr;
  fwdmeta_transport_t transport = 0;
  setenv(kVariable, "", 1);  // as if unset
  ASSERT_EQ(FWDMETA_UNAVAILABLE, COPY_CALL(copy, fwdmeta_transport_create)(&config, &transport));
  const std::string message = COPY_CALL(copy, fwdmeta_last_error)();
  EXPECT_NE(std::string::npos, message.find(beside / "libfwdmeta_nccl.so.1")) << message;
  std::filesystem::copy(FWDMETA_STUB_PLUGIN, beside / "libfwdmeta_nccl.so.1");
  EXPECT_EQ(FWDMETA_OK, COPY_CALL(copy, fwdmeta_transport_create)(&config, &transport))
      << COPY_CALL(copy, fwdmeta_last_error)();
  EXPECT_EQ(FWDMETA_OK, COPY_CALL(copy, fwdmeta_transport_destroy)(transport));
}

}  // namespace
}  // namespace fwdmeta_test
