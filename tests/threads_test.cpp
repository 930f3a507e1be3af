// Builders on many threads, and what a thread has current (contract §5). What graph_test has of the same:
// B95_OtherThreadsDoNotBreakACapture, BuildersEndWhileCapturing.
#include <dlfcn.h>

#include <atomic>
#include <thread>

#include "harness.h"
#include "random_batch.h"

#if FWDMETA_TEST_CUDA
#include <cuda_runtime_api.h>
#endif

namespace fwdmeta_test {
namespace {

constexpr int kThreads = 6;

// A stream of a thread's own; null on the host backend.
class OwnStream {
 public:
  explicit OwnStream(fwdmeta_backend_t backend) {
#if FWDMETA_TEST_CUDA
    cudaStream_t stream = nullptr;
    if (backend == FWDMETA_BACKEND_CUDA) {
      EXPECT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    }
    stream_ = stream;
#else
    (void)backend;
#endif
  }
  ~OwnStream() {
#if FWDMETA_TEST_CUDA
    if (stream_ != nullptr) cudaStreamDestroy(static_cast<cudaStream_t>(stream_));
#endif
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  fwdmeta_stream_t get() const { return stream_; }

 private:
  fwdmeta_stream_t stream_ = nullptr;
};

template <class Body>
void OnThreads(Body body) {
  std::vector<std::thread> threads;
  std::atomic<int> started{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      ++started;
      while (started < kThreads) std::this_thread::yield();
      body(t);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class BuildersOnThreads : public BackendTest {};

// Each thread has builders of its own, one after another, and sees its own steps alone, in every array.
TEST_P(BuildersOnThreads, AreIndependent) {
  OnThreads([this](int t) {
    const OwnStream stream(backend());
    Random random(static_cast<uint64_t>(t) + 400);
    for (int life = 0; life < 4; ++life) {
      const reference::Config config = RandomConfig(random, 40);
      Builder builder(backend(), config);
      builder.stream = stream.get();
      for (int step = 0; step < 12; ++step) {
        const bool host = random.Chance(0.5);
        const reference::Batch batch = RandomBatch(random, config);
        if (!builder.Run(batch, host ? FWDMETA_MEMORY_HOST : FWDMETA_MEMORY_DEVICE,
                         random.Int(0, config.generations - 1))) {
          return;
        }
      }
    }
  });
}

// One builder's steps come from one thread at a time, while any others look at them, take views and let them go.
TEST_P(BuildersOnThreads, WatchOneBuilder) {
  reference::Config config;
  config.generations = 2;
  config.max_metas = 256;
  Builder builder(backend(), config);
  const reference::Batch batch = MakeBatch({{0, 5, 1}, {7, 0, 7}});
  ASSERT_TRUE(builder.Run(batch, FWDMETA_MEMORY_DEVICE, 0));
  Inputs inputs(backend());
  fwdmeta_batch_t args = inputs.Put(batch, FWDMETA_MEMORY_HOST);
  std::atomic<fwdmeta_meta_t> handed{0};
  std::atomic<bool> done{false};
  OnThreads([&](int t) {
    if (t == 0) {
      for (int step = 0; step < 2000; ++step) {
        fwdmeta_meta_t meta = 0;
        EXPECT_OK(fwdmeta_build(builder.handle(), &args, &meta, nullptr));
        const fwdmeta_meta_t left = handed.exchange(meta);  // the one that nobody has taken
        EXPECT_OK(fwdmeta_meta_destroy(left));
      }
      done = true;
      return;
    }
    while (!done) {
      fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
      EXPECT_OK(fwdmeta_builder_get_info(builder.handle(), &info));
      fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
      const fwdmeta_status_t newest = fwdmeta_counts_wait(builder.handle(), info.last_step, 0, -1, &counts);
      EXPECT_TRUE(newest == FWDMETA_OK || newest == FWDMETA_EXPIRED) << fwdmeta_last_error();
      if (newest == FWDMETA_OK) {
        EXPECT_EQ(8, counts.num_tokens);
        EXPECT_EQ(info.last_step, counts.step);
      }
      const fwdmeta_meta_t meta = handed.exchange(0);
      if (meta == 0) continue;
      const fwdmeta_status_t status = fwdmeta_meta_wait(meta, FWDMETA_WAIT_FINAL, -1, &counts);
      EXPECT_TRUE(status == FWDMETA_OK || status == FWDMETA_EXPIRED) << fwdmeta_last_error();
      fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
      EXPECT_OK(fwdmeta_meta_get(meta, "position_ids", &tensor));
      int64_t value = 0;
      const fwdmeta_status_t attr = fwdmeta_meta_get_attr(meta, FWDMETA_ATTR_REAL_BSZ, &value);
      // What has been ready expires, and is not "not ready" while it is being overwritten.
      EXPECT_TRUE(attr == FWDMETA_OK || attr == FWDMETA_EXPIRED) << fwdmeta_last_error();
      EXPECT_OK(fwdmeta_meta_destroy(meta));
    }
  });
  EXPECT_OK(fwdmeta_meta_destroy(handed));
}

// A handle that other threads destroy meanwhile is good or invalid, nothing else.
TEST_P(BuildersOnThreads, EndUnderOthersHands) {
  std::vector<fwdmeta_group_config_t> groups;
  const fwdmeta_config_t config = ToC(reference::Config(), backend(), &groups);
  const reference::Batch batch = MakeBatch({{0, 5, 1}});
  Inputs inputs(backend());
  const fwdmeta_batch_t args = inputs.Put(batch, FWDMETA_MEMORY_HOST);
  for (int round = 0; round < 10; ++round) {
    fwdmeta_builder_t builder = 0;
    ASSERT_OK(fwdmeta_builder_create(&config, &builder));
    fwdmeta_meta_t meta = 0;
    ASSERT_OK(fwdmeta_build(builder, &args, &meta, nullptr));
    std::atomic<int> ended{0}, metas_ended{0}, wrong{0};
    OnThreads([&](int) {
      fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
      const auto good_or_gone = [&wrong](fwdmeta_status_t status) {
        if (status != FWDMETA_OK && status != FWDMETA_INVALID_HANDLE) ++wrong;
        return status == FWDMETA_OK;
      };
      good_or_gone(fwdmeta_counts_wait(builder, 1, 0, -1, &counts));
      good_or_gone(fwdmeta_meta_wait(meta, 0, -1, &counts));
      ended += good_or_gone(fwdmeta_builder_destroy(builder));
      good_or_gone(fwdmeta_meta_wait(meta, 0, -1, &counts));
      metas_ended += good_or_gone(fwdmeta_meta_destroy(meta));
    });
    EXPECT_EQ(0, wrong);
    EXPECT_EQ(1, ended) << "one thread ends the builder";
    EXPECT_EQ(1, metas_ended);
  }
}

INSTANTIATE_BACKENDS(BuildersOnThreads);

#if FWDMETA_TEST_CUDA

// The driver's calls, which the test does not link.
struct Driver {
  int (*create)(void**, unsigned, int) = nullptr;
  int (*destroy)(void*) = nullptr;
  int (*get_current)(void**) = nullptr;
  int (*set_current)(void*) = nullptr;
  Driver() {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == nullptr) return;
    create = reinterpret_cast<int (*)(void**, unsigned, int)>(dlsym(driver, "cuCtxCreate_v2"));
    destroy = reinterpret_cast<int (*)(void*)>(dlsym(driver, "cuCtxDestroy_v2"));
    get_current = reinterpret_cast<int (*)(void**)>(dlsym(driver, "cuCtxGetCurrent"));
    set_current = reinterpret_cast<int (*)(void*)>(dlsym(driver, "cuCtxSetCurrent"));
  }
  bool ok() const {
    return create != nullptr && destroy != nullptr && get_current != nullptr && set_current != nullptr;
  }
  void* Current() const {
    void* context = nullptr;
    EXPECT_EQ(0, get_current(&context));
    return context;
  }
};

// A thread with a second context current: a builder of the first one is used under it, one made under it is used under
// the first, and after each call the same context is current as before.
TEST(ContextsOfAThread, TheSecondOneStaysCurrent) {
  FWDMETA_SKIP_WITHOUT(FWDMETA_BACKEND_CUDA);
  const Driver driver;
  ASSERT_TRUE(driver.ok());
  ASSERT_EQ(cudaSuccess, cudaSetDevice(0));
  ASSERT_EQ(cudaSuccess, cudaFree(nullptr));
  void* const first = driver.Current();
  void* second = nullptr;
  ASSERT_EQ(0, driver.create(&second, 0, 0));
  ASSERT_EQ(0, driver.set_current(first));
  const reference::Batch batch = MakeBatch({{0, 5, 1}, {7, 0, 7}});
  Inputs inputs(FWDMETA_BACKEND_CUDA);
  const fwdmeta_batch_t good = inputs.Put(batch, FWDMETA_MEMORY_HOST);
  std::vector<fwdmeta_group_config_t> groups;
  fwdmeta_config_t config = ToC(reference::Config(), FWDMETA_BACKEND_CUDA, &groups);
  config.device = 0;
  for (void* of_builder : {first, second}) {
    for (void* current : {first, second}) {
      ASSERT_EQ(0, driver.set_current(of_builder));
      fwdmeta_builder_t builder = 0;
      EXPECT_OK(fwdmeta_builder_create(&config, &builder));
      EXPECT_EQ(of_builder, driver.Current());
      ASSERT_EQ(0, driver.set_current(current));
      const auto same = [&](fwdmeta_status_t want, fwdmeta_status_t got) {
        EXPECT_EQ(Name(want), Name(got)) << fwdmeta_last_error();
        EXPECT_EQ(current, driver.Current());
      };
      fwdmeta_meta_t meta = 0;
      int64_t step = 0;
      fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
      same(FWDMETA_OK, fwdmeta_build(builder, &good, &meta, &step));
      same(FWDMETA_OK, fwdmeta_counts_wait(builder, step, FWDMETA_WAIT_FINAL, 20000000, &counts));
      EXPECT_EQ(8, counts.num_tokens);
      fwdmeta_batch_t bad = good;
      bad.batch_size = 1000;
      same(FWDMETA_CAPACITY_EXCEEDED, fwdmeta_build(builder, &bad, nullptr, nullptr));
      fwdmeta_advance_args_t advance = FWDMETA_ADVANCE_ARGS_INITIALIZER;
      same(FWDMETA_OK, fwdmeta_advance(builder, &advance));
      same(FWDMETA_OK, fwdmeta_meta_reader_begin(meta, nullptr));
      same(FWDMETA_OK, fwdmeta_meta_reader_end(meta, nullptr));
      same(FWDMETA_OK, fwdmeta_meta_dump(
                           meta, FWDMETA_DUMP_TEXT, [](const char*, size_t, void*) -> int32_t { return 0; }, nullptr));
      same(FWDMETA_OK, fwdmeta_builder_reset(builder, nullptr));
      same(FWDMETA_OK, fwdmeta_meta_destroy(meta));
      same(FWDMETA_OK, fwdmeta_builder_destroy(builder));
    }
  }
  ASSERT_EQ(0, driver.set_current(first));
  EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
}

#endif  // FWDMETA_TEST_CUDA

}  // namespace
}  // namespace fwdmeta_test
