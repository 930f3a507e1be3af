// Transports that gather through the engine's callback: contract-context §4.
#include <time.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "ranks_harness.h"

namespace fwdmeta_test {
namespace {

int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

// A gather as a function object.
struct Gather {
  std::function<fwdmeta_status_t(const void* send, void* recv, size_t bytes, int64_t deadline_ns)> body;
  static fwdmeta_status_t Call(const void* send, void* recv, size_t bytes, int64_t deadline_ns, void* user) {
    return static_cast<Gather*>(user)->body(send, recv, bytes, deadline_ns);
  }
};

fwdmeta_transport_config_t CallbackConfig(Gather* gather, int64_t num_ranks, int64_t rank) {
  fwdmeta_transport_config_t config = FWDMETA_TRANSPORT_CONFIG_INITIALIZER;
  config.num_ranks = num_ranks;
  config.rank = rank;
  config.gather = Gather::Call;
  config.user = gather;
  return config;
}

// The callback transport of one rank whose peers' rows are a table.
class Callback : public ::testing::Test {
 protected:
  void SetUp() override {
    rows_ = {dispatcher_.Row(4, 3, 3, 1), dispatcher_.Row(4, 0, 0), dispatcher_.Row(4, 9, 9, 1)};
    gather_.body = [this](const void* send, void* recv, size_t bytes, int64_t deadline_ns) {
      ++calls_;
      deadline_ns_ = deadline_ns;
      EXPECT_EQ(sizeof(fwdmeta_rank_row_t), bytes);
      std::memcpy(recv, rows_.data(), rows_.size() * bytes);
      std::memcpy(static_cast<char*>(recv) + kRank * bytes, send, bytes);
      return FWDMETA_OK;
    };
    const fwdmeta_transport_config_t config = CallbackConfig(&gather_, 3, kRank);
    ASSERT_OK(fwdmeta_transport_create(&config, &transport_));
  }
  void TearDown() override { EXPECT_OK(fwdmeta_transport_destroy(transport_)); }

  Agreed Agree(int64_t timeout_us = -1) { return AgreeThrough(transport_, dispatcher_, rows_[kRank], 3, timeout_us); }
  // `status`, with the numbers in the message and the answer as it was.
  void ExpectFailure(fwdmeta_status_t status, const std::vector<int64_t>& numbers, const Agreed& agreed) {
    EXPECT_EQ(Name(status), Name(agreed.status)) << fwdmeta_last_error();
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), numbers)) << fwdmeta_last_error();
    Agreed untouched;
    untouched.num_tokens.assign(agreed.num_tokens.size(), -9);
    untouched.status = agreed.status;
    EXPECT_EQ(untouched, agreed);
  }

  static constexpr int64_t kRank = 2;
  RanksDispatcher dispatcher_;
  Rows rows_;
  Gather gather_;
  int calls_ = 0;
  int64_t deadline_ns_ = 0;
  fwdmeta_transport_t transport_ = 0;
};

TEST_F(Callback, AgreesOnTheGatheredRowsB65) {
  const Agreed agreed = Agree();
  EXPECT_EQ(AgreeOn(dispatcher_, rows_), agreed);
  EXPECT_STATUS(FWDMETA_OK, agreed.status);
  EXPECT_EQ(FWDMETA_GRAPH_FULL, agreed.agreement.mode);
  EXPECT_EQ((std::vector<int64_t>{16, 16, 16}), agreed.num_tokens);
  EXPECT_EQ(1, calls_);
}

TEST_F(Callback, NumTokensMayBeNull) {
  fwdmeta_agreement_t agreement = FWDMETA_AGREEMENT_INITIALIZER;
  EXPECT_OK(fwdmeta_agree_through(transport_, dispatcher_.handle(), &rows_[kRank], 1, -1, nullptr, &agreement));
  EXPECT_EQ(16, agreement.descriptor.num_tokens);
}

TEST_F(Callback, DeadlineIsMonotonicTime) {
  EXPECT_OK(Agree(-1).status);
  EXPECT_EQ(INT64_MAX, deadline_ns_);
  EXPECT_OK(Agree(INT64_MIN).status);
  EXPECT_EQ(INT64_MAX, deadline_ns_);
  for (int64_t timeout_us : {int64_t{0}, int64_t{1500}, int64_t{INT32_MAX} + 5}) {
    const int64_t before = NowNs();
    EXPECT_OK(Agree(timeout_us).status);
    EXPECT_GE(deadline_ns_, before + timeout_us * 1000);
    EXPECT_LE(deadline_ns_, NowNs() + timeout_us * 1000);
  }
  // A time past int64 is no deadline, not one in the past.
  EXPECT_OK(Agree(INT64_MAX).status);
  EXPECT_EQ(INT64_MAX, deadline_ns_);
  EXPECT_OK(Agree(INT64_MAX / 1000).status);
  EXPECT_EQ(INT64_MAX, deadline_ns_);
}

TEST_F(Callback, ItsStatusIsTheAnswer) {
  for (fwdmeta_status_t status = FWDMETA_INVALID_ARGUMENT; status < FWDMETA_STATUS_COUNT; ++status) {
    gather_.body = [status](const void*, void*, size_t, int64_t) { return status; };
    ExpectFailure(status, {kRank, 3, 4}, Agree());
    EXPECT_NE(nullptr, std::strstr(fwdmeta_last_error(), fwdmeta_status_name(status)));
  }
  for (fwdmeta_status_t status : {-1, int32_t{FWDMETA_STATUS_COUNT}, 4711}) {
    gather_.body = [status](const void*, void*, size_t, int64_t) { return status; };
    ExpectFailure(FWDMETA_INTERNAL, {std::abs(status)}, Agree());
  }
}

// The engine's own timeout leaves its transport usable: what it gathers with is its own.
TEST_F(Callback, WorksAgainAfterATimeout) {
  const auto works = gather_.body;
  gather_.body = [](const void*, void*, size_t, int64_t) { return FWDMETA_TIMEOUT; };
  ExpectFailure(FWDMETA_TIMEOUT, {kRank, 3, 4}, Agree(10));
  gather_.body = works;
  EXPECT_OK(Agree().status);
}

TEST_F(Callback, MismatchNamesTheLowestRank) {
  rows_[1].step = 3;
  const Agreed agreed = Agree();
  EXPECT_STATUS(FWDMETA_RANK_MISMATCH, agreed.status);
  EXPECT_EQ(1, agreed.agreement.mismatch_rank);
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {1, 3, 0, 4})) << fwdmeta_last_error();
}

// Sent as it is, so that every rank refuses it, and none waits for one that never came.
TEST_F(Callback, BadRowsAreRefusedAfterTheGather) {
  rows_[kRank].reserved[3] = 8;
  ExpectFailure(FWDMETA_INVALID_ARGUMENT, {kRank}, Agree());
  EXPECT_EQ(1, calls_);
  rows_[kRank].reserved[3] = 0;
  rows_[0].num_tokens = int64_t{INT32_MAX} + 1;
  ExpectFailure(FWDMETA_INVALID_ARGUMENT, {0, int64_t{INT32_MAX} + 1}, Agree());
  EXPECT_EQ(2, calls_);
}

TEST_F(Callback, OwnRowMustComeBackInItsPlace) {
  const Rows swapped = {rows_[2], rows_[1], rows_[0]};
  gather_.body = [&swapped](const void*, void* recv, size_t bytes, int64_t) {
    std::memcpy(recv, swapped.data(), 3 * bytes);
    return FWDMETA_OK;
  };
  ExpectFailure(FWDMETA_INVALID_ARGUMENT, {kRank, 3, 9}, Agree());
}

TEST_F(Callback, IsCalledWithNoLockHeld) {
  const auto works = gather_.body;
  gather_.body = [&](const void* send, void* recv, size_t bytes, int64_t deadline_ns) {
    // Creates, dispatches and destroys what the outer call uses the tables of.
    const RanksDispatcher inner;
    Gather none = {[](const void*, void*, size_t, int64_t) { return FWDMETA_UNAVAILABLE; }};
    const fwdmeta_transport_config_t config = CallbackConfig(&none, 1, 0);
    fwdmeta_transport_t transport = 0;
    EXPECT_OK(fwdmeta_transport_create(&config, &transport));
    EXPECT_STATUS(FWDMETA_UNAVAILABLE, AgreeThrough(transport, inner, inner.Row(0, 1, 1), 1).status);
    EXPECT_OK(fwdmeta_transport_destroy(transport));
    // Its own transport is taken.
    EXPECT_STATUS(FWDMETA_BUSY, Agree().status);
    EXPECT_STATUS(FWDMETA_BUSY, fwdmeta_transport_destroy(transport_));
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {kRank, 3})) << fwdmeta_last_error();
    return works(send, recv, bytes, deadline_ns);
  };
  EXPECT_EQ(AgreeOn(dispatcher_, rows_), Agree());
}

TEST_F(Callback, IsCalledOnTheCallersThread) {
  std::thread::id id;
  const auto works = gather_.body;
  gather_.body = [&](const void* send, void* recv, size_t bytes, int64_t deadline_ns) {
    id = std::this_thread::get_id();
    return works(send, recv, bytes, deadline_ns);
  };
  EXPECT_OK(Agree().status);
  EXPECT_EQ(std::this_thread::get_id(), id);
}

// It must not throw; what does is still no crash, and the transport is free again.
TEST_F(Callback, AThrowIsCaught) {
  const auto works = gather_.body;
  gather_.body = [](const void*, void*, size_t, int64_t) -> fwdmeta_status_t { throw std::runtime_error("of mine"); };
  ExpectFailure(FWDMETA_INTERNAL, {}, Agree());
  gather_.body = works;
  EXPECT_OK(Agree().status);
}

TEST_F(Callback, SecondThreadIsBusy) {
  std::mutex mutex;
  std::condition_variable changed;
  bool inside = false, leave = false;
  const auto works = gather_.body;
  gather_.body = [&](const void* send, void* recv, size_t bytes, int64_t deadline_ns) {
    std::unique_lock<std::mutex> lock(mutex);
    inside = true;
    changed.notify_all();
    changed.wait(lock, [&] { return leave; });
    return works(send, recv, bytes, deadline_ns);
  };
  std::thread first([&] { EXPECT_OK(Agree().status); });
  {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return inside; });
  }
  ExpectFailure(FWDMETA_BUSY, {kRank, 3}, Agree());
  EXPECT_STATUS(FWDMETA_BUSY, fwdmeta_transport_destroy(transport_));
  {
    std::lock_guard<std::mutex> lock(mutex);
    leave = true;
  }
  changed.notify_all();
  first.join();
  EXPECT_OK(Agree().status);
}

TEST_F(Callback, OwnMistakesAreRefusedBeforeTheGather) {
  fwdmeta_agreement_t out = FWDMETA_AGREEMENT_INITIALIZER;
  const fwdmeta_rank_row_t& row = rows_[kRank];
  const fwdmeta_dispatcher_t d = dispatcher_.handle();
  const auto agree = [](fwdmeta_transport_t transport, fwdmeta_dispatcher_t dispatcher, const fwdmeta_rank_row_t* r,
                        int64_t slices, fwdmeta_agreement_t* to) {
    return fwdmeta_agree_through(transport, dispatcher, r, slices, -1, nullptr, to);
  };
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, agree(transport_, d, nullptr, 1, &out));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, agree(transport_, d, &row, 1, nullptr));
  for (int64_t slices : {int64_t{0}, int64_t{-2}, int64_t{FWDMETA_MAX_SLICES} + 1, int64_t{1} << 32}) {
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, agree(transport_, d, &row, slices, &out));
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {std::abs(slices)})) << fwdmeta_last_error();
  }
  out.struct_size = 0;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, agree(transport_, d, &row, 1, &out));
  out = FWDMETA_AGREEMENT_INITIALIZER;
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, agree(0, d, &row, 1, &out));
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, agree(d, d, &row, 1, &out));
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, agree(transport_ + 1, d, &row, 1, &out));
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, agree(transport_, 0, &row, 1, &out));
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, agree(transport_, transport_, &row, 1, &out));
  EXPECT_EQ(0, calls_);
}

TEST(Transport, DestroyedHandles) {
  Gather gather = {[](const void*, void*, size_t, int64_t) { return FWDMETA_OK; }};
  const fwdmeta_transport_config_t config = CallbackConfig(&gather, 1, 0);
  fwdmeta_transport_t transport = 0, second = 0;
  ASSERT_OK(fwdmeta_transport_create(&config, &transport));
  EXPECT_OK(fwdmeta_transport_destroy(transport));
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_transport_destroy(transport));
  ASSERT_OK(fwdmeta_transport_create(&config, &second));
  EXPECT_NE(transport, second);
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_transport_destroy(transport));
  EXPECT_OK(fwdmeta_transport_destroy(second));
  EXPECT_OK(fwdmeta_transport_destroy(0));
  const RanksDispatcher dispatcher;
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_transport_destroy(dispatcher.handle()));
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_dispatcher_destroy(second));
}

TEST(Transport, CreationRefuses) {
  Gather gather = {[](const void*, void*, size_t, int64_t) { return FWDMETA_OK; }};
  fwdmeta_transport_t transport = 77;
  const auto refused = [&](fwdmeta_status_t status, const std::vector<int64_t>& numbers, auto change) {
    fwdmeta_transport_config_t config = CallbackConfig(&gather, 4, 1);
    change(config);
    EXPECT_STATUS(status, fwdmeta_transport_create(&config, &transport));
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), numbers)) << fwdmeta_last_error();
  };
  using Config = fwdmeta_transport_config_t;
  const int64_t large = int64_t{INT32_MAX} + 1;
  refused(FWDMETA_INVALID_ARGUMENT, {0}, [](Config& c) { c.num_ranks = 0; });
  refused(FWDMETA_INVALID_ARGUMENT, {4}, [](Config& c) { c.num_ranks = -4; });
  refused(FWDMETA_INVALID_ARGUMENT, {large}, [&](Config& c) { c.num_ranks = large; });
  refused(FWDMETA_INVALID_ARGUMENT, {4}, [](Config& c) { c.rank = 4; });
  refused(FWDMETA_INVALID_ARGUMENT, {1, 4}, [](Config& c) { c.rank = -1; });
  refused(FWDMETA_INVALID_ARGUMENT, {0, 1}, [](Config& c) { c.gather = nullptr; });
  refused(FWDMETA_INVALID_ARGUMENT, {2, 1}, [](Config& c) { c.nccl_comm = &c; });
  refused(FWDMETA_INVALID_ARGUMENT, {0}, [](Config& c) { c.struct_size = 0; });
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_transport_create(nullptr, &transport));
  const Config good = CallbackConfig(&gather, 4, 1);
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_transport_create(&good, nullptr));
  EXPECT_EQ(77u, transport);

  // A caller that knows of the callback alone.
  Config shorter = good;
  shorter.struct_size = offsetof(Config, nccl_comm);
  shorter.nccl_comm = &shorter;
  ASSERT_OK(fwdmeta_transport_create(&shorter, &transport));
  EXPECT_OK(fwdmeta_transport_destroy(transport));
}

// ---- ranks as threads that meet in the callback

class Meeting {
 public:
  explicit Meeting(int64_t num_ranks) : rows_(num_ranks) {}

  fwdmeta_status_t Gather(int64_t rank, const void* send, void* recv, size_t bytes) {
    std::unique_lock<std::mutex> lock(mutex_);
    std::memcpy(&rows_[rank], send, bytes);
    const int64_t round = round_;
    if (++here_ == rows_.size()) {
      gathered_ = rows_;
      here_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round; });
    std::memcpy(recv, gathered_.data(), gathered_.size() * bytes);
    return FWDMETA_OK;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Rows rows_, gathered_;
  size_t here_ = 0;
  int64_t round_ = 0;
};

TEST(Transport, RanksOfOneProcessAgree) {
  constexpr int64_t kSteps = 300;
  for (int64_t num_ranks : {1, 2, 4}) {
    Meeting meeting(num_ranks);
    const RanksDispatcher dispatcher;
    std::vector<std::thread> threads;
    for (int64_t rank = 0; rank < num_ranks; ++rank) {
      threads.emplace_back([&, rank] {
        fwdmeta_test::Rows rows;
        Gather gather = {[&, rank](const void* send, void* recv, size_t bytes, int64_t) {
          return meeting.Gather(rank, send, recv, bytes);
        }};
        const fwdmeta_transport_config_t config = CallbackConfig(&gather, num_ranks, rank);
        fwdmeta_transport_t transport = 0;
        EXPECT_OK(fwdmeta_transport_create(&config, &transport));
        for (int64_t step = 0; step < kSteps; ++step) {
          rows = dispatcher.RowsOf(step, num_ranks);
          EXPECT_EQ(AgreeOn(dispatcher, rows), AgreeThrough(transport, dispatcher, rows[rank], num_ranks));
        }
        EXPECT_OK(fwdmeta_transport_destroy(transport));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// B64: counts [0, 37]. Both ranks run the graph of 40; the idle one has 40 rows of padding.
TEST(Transport, IdleRankTakesPartB64) {
  Meeting meeting(2);
  const RanksDispatcher dispatcher;
  const Rows rows = {dispatcher.Row(0, 0, 0), dispatcher.Row(0, 37, 5)};
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Gather gather = {[&, rank](const void* send, void* recv, size_t bytes, int64_t) {
        return meeting.Gather(rank, send, recv, bytes);
      }};
      const fwdmeta_transport_config_t config = CallbackConfig(&gather, 2, rank);
      fwdmeta_transport_t transport = 0;
      EXPECT_OK(fwdmeta_transport_create(&config, &transport));
      const Agreed agreed = AgreeThrough(transport, dispatcher, rows[rank], 2);
      EXPECT_OK(agreed.status);
      EXPECT_EQ((std::vector<int64_t>{40, 40}), agreed.num_tokens);
      EXPECT_EQ(FWDMETA_GRAPH_PIECEWISE, agreed.agreement.mode);
      EXPECT_OK(fwdmeta_transport_destroy(transport));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Destroying races with gathers: each call is one of OK, BUSY and INVALID_HANDLE, and one destroys.
TEST(Transport, DestroyRacesWithGathers) {
  const RanksDispatcher dispatcher;
  Gather gather = {[](const void* send, void* recv, size_t bytes, int64_t) {
    std::memcpy(recv, send, bytes);
    return FWDMETA_OK;
  }};
  for (int round = 0; round < 200; ++round) {
    const fwdmeta_transport_config_t config = CallbackConfig(&gather, 1, 0);
    fwdmeta_transport_t transport = 0;
    ASSERT_OK(fwdmeta_transport_create(&config, &transport));
    std::atomic<int> destroyed{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (;;) {
          const fwdmeta_status_t status = t == 0
                                              ? AgreeThrough(transport, dispatcher, dispatcher.Row(0, 1, 1), 1).status
                                              : fwdmeta_transport_destroy(transport);
          if (t != 0 && status == FWDMETA_OK) ++destroyed;
          if (status == FWDMETA_INVALID_HANDLE) return;
          EXPECT_TRUE(status == FWDMETA_OK || status == FWDMETA_BUSY) << fwdmeta_last_error();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(1, destroyed);
  }
}

}  // namespace
}  // namespace fwdmeta_test
