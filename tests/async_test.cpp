// Steps that are in flight together keep apart (contract §5): a kernel holds the stream for 20 ms meanwhile. What
// graph_test has of the same: B77, B78, StagingEntriesInFlight, DestructionDoesNotWait.
#include "harness.h"

#if !FWDMETA_TEST_CUDA

namespace fwdmeta_test {
TEST(Async, NeedsTheCudaBackend) { FWDMETA_SKIP_WITHOUT(FWDMETA_BACKEND_CUDA); }
}  // namespace fwdmeta_test

#else

#include <cuda_runtime_api.h>

#include <cstring>

#include "fault_kernels.h"
#include "random_batch.h"

namespace fwdmeta_test {
namespace {

constexpr fwdmeta_backend_t kCuda = FWDMETA_BACKEND_CUDA;
constexpr int64_t kBlockedUs = 20000;

class Async : public ::testing::Test {
 protected:
  void SetUp() override {
    FWDMETA_SKIP_WITHOUT(kCuda);
    for (cudaStream_t* stream : {&build_, &read_}) CUDA_OK(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
  }
  void TearDown() override {
    for (cudaStream_t stream : {build_, read_}) {
      if (stream == nullptr) continue;
      cudaStreamSynchronize(stream);
      cudaStreamDestroy(stream);
    }
  }
  void Block(cudaStream_t stream) { CUDA_OK(LaunchSpin(kBlockedUs, stream)); }

  cudaStream_t build_ = nullptr, read_ = nullptr;
};

// Every array of a step: copied in a stream, or where it lies if that is the mirror, whose entry must still be the
// step's when it is looked at. The memory is there from the start: to pin some takes longer than a stream is held.
class Copies {
 public:
  Copies() { EXPECT_EQ(cudaSuccess, cudaMallocHost(reinterpret_cast<void**>(&memory_), kBytes)); }
  ~Copies() { cudaFreeHost(memory_); }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  void Take(fwdmeta_meta_t meta, const reference::Config& config, cudaStream_t stream) {
    for (int field = 0; field < FWDMETA_FIELD_COUNT; ++field) {
      for (int32_t group = 0; group < static_cast<int32_t>(config.groups.size()); ++group) {
        if (group > 0 && field != FWDMETA_FIELD_SLOT_MAPPING) break;
        fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
        const fwdmeta_status_t status = fwdmeta_meta_get_field(meta, field, group, &tensor);
        if (status == FWDMETA_NOT_FOUND) continue;
        ASSERT_OK(status);
        if (tensor.memory_kind == FWDMETA_MEMORY_HOST) {
          // To copy it would wait for the stream, which copies between host memories do on the host.
          tensors_.push_back({field, group, tensor, static_cast<const char*>(tensor.data)});
          continue;
        }
        const size_t bytes = static_cast<size_t>(tensor.shape[0]) * tensor.dtype_bits / 8;
        ASSERT_LE(used_ + bytes, kBytes);
        CUDA_OK(cudaMemcpyAsync(memory_ + used_, tensor.data, bytes, cudaMemcpyDefault, stream));
        tensors_.push_back({field, group, tensor, memory_ + used_});
        used_ += (bytes + 15) / 16 * 16;
      }
    }
  }

  // Once the stream is done.
  void Expect(const reference::Config& config, const reference::Result& want, int64_t step) const {
    const auto groups = static_cast<int64_t>(config.groups.size());
    EXPECT_FALSE(tensors_.empty());
    for (const Tensor& t : tensors_) {
      std::vector<int64_t> all = want.fields[t.field];
      if (t.field == FWDMETA_FIELD_SLOT_MAPPING) {
        const auto size = static_cast<int64_t>(all.size()) / groups;
        all = std::vector<int64_t>(all.begin() + t.group * size, all.begin() + (t.group + 1) * size);
      }
      if (t.field == FWDMETA_FIELD_COUNTS_I64) all[2] = step;
      EXPECT_EQ(all, Values(t.copy, t.tensor)) << fwdmeta_field_name(t.field) << " of step " << step;
    }
  }

 private:
  struct Tensor {
    int field;
    int32_t group;
    fwdmeta_tensor_t tensor;
    const char* copy;
  };
  static constexpr size_t kBytes = 1 << 20;
  char* memory_ = nullptr;
  size_t used_ = 0;
  std::vector<Tensor> tensors_;
};

reference::Config SmallConfig(int64_t generations, int64_t depth) {
  reference::Config config;
  config.max_batch_size = 12;
  config.max_num_tokens = 60;
  config.groups = {{64, 64, false}, {32, 16, true}};
  config.generations = generations;
  config.depth = depth;
  return config;
}

reference::Batch GoodBatch(Random& random, const reference::Config& config) {
  reference::Batch batch;
  do {
    batch = RandomBatch(random, config);
  } while (reference::Build(config, batch).status() != FWDMETA_OK);
  return batch;
}

// Good batches with inputs of their own, for one stream. Copies to the device wait for it, so they come before the
// stream is held.
struct Steps {
  Steps(Random& random, const reference::Config& config, int64_t count, fwdmeta_memory_kind_t kind,
        cudaStream_t stream) {
    for (int64_t i = 0; i < count; ++i) sources.push_back(GoodBatch(random, config));
    for (const reference::Batch& source : sources) {
      inputs.push_back(std::make_unique<Inputs>(kCuda));
      batches.push_back(inputs.back()->Put(source, kind));
      batches.back().stream = stream;
    }
  }
  std::vector<reference::Batch> sources;
  std::vector<std::unique_ptr<Inputs>> inputs;
  std::vector<fwdmeta_batch_t> batches;
};

// Three steps enqueued behind a held stream, with the caller's lengths overwritten at once: each step's arrays, mirror
// entry and staged lengths are its own, whatever the number of sets.
TEST_F(Async, StepsInFlightKeepApart) {
  for (int64_t generations : {1, 2, 3}) {
    for (const auto kind : {FWDMETA_MEMORY_HOST, FWDMETA_MEMORY_DEVICE}) {
      SCOPED_TRACE(std::to_string(generations) + " sets, kind " + std::to_string(kind));
      constexpr int kSteps = 3;
      Random random(static_cast<uint64_t>(generations) * 10 + static_cast<uint64_t>(kind));
      const reference::Config config = SmallConfig(generations, 4);
      Builder builder(kCuda, config);
      for (int round = 0; round < 5; ++round) {
        reference::Result wants[kSteps];
        int64_t numbers[kSteps];
        fwdmeta_meta_t metas[kSteps] = {};
        Copies copies[kSteps];
        Steps steps(random, config, kSteps, kind, build_);
        for (int i = 0; i < kSteps; ++i) wants[i] = reference::Build(config, steps.sources[static_cast<size_t>(i)]);
        Block(build_);
        for (int i = 0; i < kSteps; ++i) {
          ASSERT_OK(fwdmeta_build(builder.handle(), &steps.batches[static_cast<size_t>(i)], &metas[i], &numbers[i]));
          if (kind == FWDMETA_MEMORY_HOST) {
            reference::Batch& source = steps.sources[static_cast<size_t>(i)];
            for (auto* lengths : {&source.encoder, &source.decoder, &source.this_time}) {
              std::fill(lengths->begin(), lengths->end(), -99);
            }
          }
          copies[i].Take(metas[i], config, build_);
        }
        EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(build_)) << "nothing was in flight";
        fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
        for (int i = 0; i < kSteps; ++i) {
          const fwdmeta_status_t at_once = fwdmeta_counts_wait(builder.handle(), numbers[i], 0, 0, &counts);
          EXPECT_EQ(Name(kind == FWDMETA_MEMORY_HOST ? FWDMETA_OK : FWDMETA_NOT_READY), Name(at_once));
        }
        CUDA_OK(cudaStreamSynchronize(build_));
        for (int i = 0; i < kSteps; ++i) {
          copies[i].Expect(config, wants[i], numbers[i]);
          const fwdmeta_status_t status =
              fwdmeta_counts_wait(builder.handle(), numbers[i], FWDMETA_WAIT_FINAL, 20000000, &counts);
          EXPECT_TRUE(Builder::ExpectCounts(wants[i], status, counts));
          EXPECT_EQ(numbers[i], counts.step);
          fwdmeta_tensor_t longest = FWDMETA_TENSOR_INITIALIZER;
          ASSERT_OK(fwdmeta_meta_get_field(metas[i], FWDMETA_FIELD_MAX_LEN_TENSOR_CPU, 0, &longest));
          EXPECT_EQ(wants[i].fields[FWDMETA_FIELD_MAX_LEN_TENSOR_CPU], Values(longest.data, longest));
          EXPECT_OK(fwdmeta_meta_destroy(metas[i]));
        }
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

// A step whose entry later steps have taken has expired, although none of them has run yet.
TEST_F(Async, TheRingExpiresInFlight) {
  for (int64_t depth : {2, 3}) {
    const reference::Config config = SmallConfig(1, depth);
    Builder builder(kCuda, config);
    const reference::Batch source = MakeBatch({{0, 7, 1}, {5, 0, 5}});
    Inputs inputs(kCuda);
    fwdmeta_batch_t batch = inputs.Put(source, FWDMETA_MEMORY_DEVICE);
    batch.stream = build_;
    std::vector<fwdmeta_meta_t> metas(static_cast<size_t>(depth) + 2);
    Block(build_);
    for (fwdmeta_meta_t& meta : metas) ASSERT_OK(fwdmeta_build(builder.handle(), &batch, &meta, nullptr));
    const auto last = static_cast<int64_t>(metas.size());
    fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
    fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
    for (int64_t step = 1; step <= last; ++step) {
      const bool expired = step + depth <= last;
      const fwdmeta_meta_t meta = metas[static_cast<size_t>(step) - 1];
      EXPECT_STATUS(expired ? FWDMETA_EXPIRED : FWDMETA_NOT_READY,
                    fwdmeta_counts_wait(builder.handle(), step, 0, 0, &counts));
      EXPECT_STATUS(expired ? FWDMETA_EXPIRED : FWDMETA_NOT_READY, fwdmeta_meta_wait(meta, 0, 0, &counts));
      EXPECT_STATUS(expired ? FWDMETA_EXPIRED : FWDMETA_OK,
                    fwdmeta_meta_get_field(meta, FWDMETA_FIELD_MAX_LEN_TENSOR_CPU, 0, &tensor));
    }
    EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(build_)) << "nothing was in flight";
    CUDA_OK(cudaStreamSynchronize(build_));
    const reference::Result want = reference::Build(config, source);
    for (int64_t step = 1; step <= last; ++step) {
      counts = FWDMETA_COUNTS_INITIALIZER;
      const fwdmeta_status_t status =
          fwdmeta_counts_wait(builder.handle(), step, FWDMETA_WAIT_FINAL, 20000000, &counts);
      if (step + depth <= last) {
        EXPECT_EQ(Name(FWDMETA_EXPIRED), Name(status));
      } else {
        EXPECT_TRUE(Builder::ExpectCounts(want, status, counts));
        EXPECT_EQ(step, counts.step);
      }
      EXPECT_OK(fwdmeta_meta_destroy(metas[static_cast<size_t>(step) - 1]));
    }
  }
}

// Each set waits for its own readers, in the stream: with a slow reader of step N, the steps in other sets run, and the
// one that comes round to N's set runs after the reader, which has seen its own step alone.
TEST_F(Async, TheNextBuildOfASetWaitsForItsReader) {
  for (int64_t generations : {1, 2, 3}) {
    SCOPED_TRACE(std::to_string(generations) + " sets");
    const reference::Config config = SmallConfig(generations, 8);
    Builder builder(kCuda, config);
    Random random(static_cast<uint64_t>(generations));
    Steps steps(random, config, generations + 1, FWDMETA_MEMORY_DEVICE, build_);
    cudaEvent_t others = nullptr;
    CUDA_OK(cudaEventCreateWithFlags(&others, cudaEventDisableTiming));
    fwdmeta_meta_t read = 0;
    ASSERT_OK(fwdmeta_build(builder.handle(), &steps.batches[0], &read, nullptr));
    ASSERT_OK(fwdmeta_meta_reader_begin(read, read_));
    Copies seen;
    Block(read_);
    seen.Take(read, config, read_);
    ASSERT_OK(fwdmeta_meta_reader_end(read, read_));
    for (int64_t i = 1; i < generations; ++i) {
      ASSERT_OK(fwdmeta_build(builder.handle(), &steps.batches[static_cast<size_t>(i)], nullptr, nullptr));
    }
    CUDA_OK(cudaEventRecord(others, build_));
    ASSERT_OK(builder.Build(steps.batches.back()));  // the reader's set again: returns at once
    EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(read_)) << "the host has waited for the reader";
    CUDA_OK(cudaEventSynchronize(others));
    EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(read_)) << "other sets have waited for the reader";
    EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(build_)) << "the set has not waited for its reader";
    CUDA_OK(cudaStreamSynchronize(build_));
    EXPECT_EQ(cudaSuccess, cudaStreamQuery(read_)) << "the build has overtaken the reader";
    seen.Expect(config, reference::Build(config, steps.sources[0]), 1);
    EXPECT_TRUE(builder.Expect(reference::Build(config, steps.sources.back())));
    EXPECT_OK(fwdmeta_meta_destroy(read));
    cudaEventDestroy(others);
  }
}

// With all staging entries in flight: BUSY where the caller will not wait, else a wait for the oldest alone.
TEST_F(Async, AFullStagingRingIsBusyOrWaits) {
  for (int64_t generations : {1, 2, 3}) {
    const reference::Config config = SmallConfig(generations, 3);
    Builder builder(kCuda, config);
    Random random(static_cast<uint64_t>(generations) + 90);
    Steps steps(random, config, 4, FWDMETA_MEMORY_HOST, build_);
    for (int i = 0; i < 3; ++i) {
      Block(build_);  // before each: when the oldest is done the next is not
      ASSERT_OK(builder.Build(steps.batches[static_cast<size_t>(i)]));
    }
    fwdmeta_batch_t& last = steps.batches.back();
    last.flags = FWDMETA_BUILD_NO_WAIT;
    EXPECT_STATUS(FWDMETA_BUSY, builder.Build(last));
    EXPECT_EQ(3, builder.step()) << "a refused build takes no step";
    last.flags = 0;
    ASSERT_OK(builder.Build(last));
    fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
    EXPECT_OK(fwdmeta_builder_get_info(builder.handle(), &info));
    EXPECT_EQ(1, info.host_waits);
    EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(build_)) << "the call has waited for more than the oldest";
    CUDA_OK(cudaStreamSynchronize(build_));
    EXPECT_TRUE(builder.Expect(reference::Build(config, steps.sources.back())));
  }
}

}  // namespace
}  // namespace fwdmeta_test

#endif  // FWDMETA_TEST_CUDA
