// The functions of fwdmeta/device.cuh in kernels: every thread of every block of a grid of the capacity, and beyond it,
// finds what the model has; eager and in replays of a captured step.
#include <memory>

#include "device_view.h"

namespace fwdmeta_test {
namespace {

constexpr int kThreads = 96;    // three warps, which have to agree
constexpr int64_t kBeyond = 3;  // blocks past the capacity
enum How { kByList, kBySearch, kByWarpSearch, kWays };
constexpr const char* kHowNames[] = {"by list", "by search", "by warp search"};

__device__ bool IsSame(const Found& a, const Found& b) {
  return a.slot == b.slot && a.tile == b.tile && a.valid == b.valid && a.first_row == b.first_row &&
         a.end_row == b.end_row && a.first_position == b.first_position && a.end_position == b.end_position;
}

// Block x writes what it found, or -2 for the slot where its threads do not agree.
__global__ void FindTiles(const __grid_constant__ fwdmeta_device_view_v1_t view, fwdmeta_mapping_t mapping, How how,
                          Found* found) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  const fwdmeta::Tile tile = how == kByList     ? fwdmeta::tile_of(view, mapping, blockIdx.x)
                             : how == kBySearch ? fwdmeta::tile_of_search(view, mapping, blockIdx.x)
                                                : fwdmeta::tile_of_warp_search(view, mapping, blockIdx.x);
  const Found mine = Describe(view, mapping, tile);
  __shared__ Found first;
  if (threadIdx.x == 0) first = mine;
  __syncthreads();
  const int differ = __syncthreads_or(!IsSame(first, mine));
  if (threadIdx.x == 0) {
    found[blockIdx.x] = mine;
    if (differ) found[blockIdx.x].slot = -2;
  }
}

__global__ void CountTiles(const __grid_constant__ fwdmeta_device_view_v1_t view, int32_t* counts) {
  counts[threadIdx.x] = fwdmeta::num_tiles(view, static_cast<fwdmeta_mapping_t>(threadIdx.x));
}

// The consumers of a view: every mapping, in every way that it has arrays for.
class Consumers {
 public:
  explicit Consumers(fwdmeta_meta_t meta) {
    EXPECT_OK(fwdmeta_device_view_v1(meta, &view_));
    int64_t entries = 0;
    for (fwdmeta_mapping_t i = 0; i < FWDMETA_MAPPING_COUNT; ++i) {
      entries_[i] = view_.mappings[i].capacity + kBeyond;
      entries += entries_[i];
    }
    found_ = std::make_unique<Buffer>(FWDMETA_BACKEND_CUDA, kWays * entries * sizeof(Found));
    counts_ = std::make_unique<Buffer>(FWDMETA_BACKEND_CUDA, FWDMETA_MAPPING_COUNT * sizeof(int32_t));
  }

  // `programmatic`: each may begin while the kernel before it runs, and waits for that where it reads the first array.
  void Launch(cudaStream_t stream, bool programmatic = false) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t launch = {};
    launch.blockDim = dim3(kThreads);
    launch.stream = stream;
    launch.attrs = &attribute;
    launch.numAttrs = programmatic && HasProgrammaticLaunch() ? 1 : 0;
    auto* to = static_cast<Found*>(found_->data());
    for (fwdmeta_mapping_t i = 0; i < FWDMETA_MAPPING_COUNT; ++i) {
      for (int how = with_lists() ? kByList : kBySearch; how < kWays; ++how, to += entries_[i]) {
        launch.gridDim = dim3(static_cast<unsigned>(entries_[i]));
        ASSERT_EQ(cudaSuccess, cudaLaunchKernelEx(&launch, FindTiles, view_, i, static_cast<How>(how), to));
      }
    }
    CountTiles<<<1, FWDMETA_MAPPING_COUNT, 0, stream>>>(view_, static_cast<int32_t*>(counts_->data()));
    ASSERT_EQ(cudaSuccess, cudaGetLastError());
  }

  // Compares what the latest launch wrote, after all work on the device, and spoils it.
  void Expect(const reference::Config& config, const reference::Batch& batch, const reference::Result& step) {
    ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
    auto* from = static_cast<Found*>(found_->data());
    int32_t counts[FWDMETA_MAPPING_COUNT];
    Download(FWDMETA_BACKEND_CUDA, counts, counts_->data(), sizeof counts);
    for (fwdmeta_mapping_t i = 0; i < FWDMETA_MAPPING_COUNT; ++i) {
      const std::vector<Found> want = WantTiles(config, batch, step, i, entries_[i]);
      std::vector<Found> got(want.size());
      for (int how = with_lists() ? kByList : kBySearch; how < kWays; ++how, from += entries_[i]) {
        Download(FWDMETA_BACKEND_CUDA, got.data(), from, got.size() * sizeof(Found));
        for (size_t x = 0; x < want.size(); ++x) {
          ASSERT_EQ(want[x], got[x]) << kMappings[i].name << " " << kHowNames[how] << ", block " << x;
        }
      }
      EXPECT_EQ(step.counts.*kMappings[i].count, counts[i]) << kMappings[i].name;
    }
    ASSERT_EQ(cudaSuccess, cudaMemset(found_->data(), 0x5A, found_->size()));
    ASSERT_EQ(cudaSuccess, cudaMemset(counts_->data(), 0x5A, counts_->size()));
    ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
  }

 private:
  static bool HasProgrammaticLaunch() {
    int major = 0;
    EXPECT_EQ(cudaSuccess, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    return major >= 9;
  }
  bool with_lists() const { return view_.mappings[0].batch_ids != nullptr; }

  fwdmeta_device_view_v1_t view_ = {};
  int64_t entries_[FWDMETA_MAPPING_COUNT];
  std::unique_ptr<Buffer> found_, counts_;
};

// Around the sizes at which a warp's search takes another round, and far from them.
reference::Config NextConfig(Random& random, bool with_lists) {
  return RandomViewConfig(random, random.Pick<int64_t>({1, 5, 31, 32, 33, 100, 1000, 2000}), with_lists);
}

void RunEagerSteps(bool with_lists) {
  RunViewSteps(
      FWDMETA_BACKEND_CUDA, 60, [with_lists](Random& random) { return NextConfig(random, with_lists); },
      [](const Builder& builder, const reference::Batch& batch, const reference::Result& step) {
        Consumers consumers(builder.meta());
        consumers.Launch(nullptr);
        consumers.Expect(builder.config(), batch, step);
      });
}

class DeviceCodeOnDevice : public ::testing::Test {
 protected:
  void SetUp() override { FWDMETA_SKIP_WITHOUT(FWDMETA_BACKEND_CUDA); }
};

TEST_F(DeviceCodeOnDevice, FindsTheModelsTilesInEveryWay) { RunEagerSteps(true); }
TEST_F(DeviceCodeOnDevice, FindsThemWithoutTheLists) { RunEagerSteps(false); }

// One, two and three rounds of a warp's search, and one more slot than each can do, on batches that fill them.
TEST_F(DeviceCodeOnDevice, FindsTheTilesOfFullBatches) {
  Random random(5);
  for (const int64_t slots : {1, 31, 32, 33, 1023, 1024, 1025, 1056, 1057, 4096, 32768, 32769, 70000}) {
    reference::Config config;
    config.max_batch_size = config.max_num_tokens = slots;
    config.max_num_kv_tokens = slots * 256;
    config.outputs = slots % 2 == 0 ? UINT64_MAX : ~kListFields;
    reference::Batch batch;
    for (int64_t b = 0; b < slots; ++b) {
      batch.encoder.push_back(static_cast<int32_t>(random.Int(0, 1)));
      batch.decoder.push_back(static_cast<int32_t>(random.Int(0, 200)));
      batch.this_time.push_back(static_cast<int32_t>(batch.encoder.back() != 0 || random.Chance(0.8)));
    }
    SCOPED_TRACE(std::to_string(slots) + " slots");
    Builder builder(FWDMETA_BACKEND_CUDA, config);
    ASSERT_OK(builder.Build(batch));
    Consumers consumers(builder.meta());
    consumers.Launch(nullptr);
    consumers.Expect(config, batch, reference::Build(config, batch));
    if (::testing::Test::HasFailure()) return;
  }
}

// A build and its consumers in one graph, whose grids are the capacities: replays follow the lengths.
void RunReplays(bool programmatic) {
  const uint64_t seed = std::random_device{}();
  Random random(seed);
  for (int i = 0; i < 24; ++i) {
    const reference::Config config = NextConfig(random, i % 2 == 0);
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    {
      Builder builder(FWDMETA_BACKEND_CUDA, config);
      const int64_t slots = random.Int(1, config.max_batch_size);
      const auto next_batch = [&] {
        reference::Batch batch = RandomBatch(random, config, slots);
        batch.num_padded_tokens = config.max_num_tokens;
        batch.block_tables.clear();
        batch.input_ids = {};
        batch.draft_tokens = {};
        return batch;
      };
      Inputs inputs(FWDMETA_BACKEND_CUDA);
      const reference::Batch shape = next_batch();
      fwdmeta_batch_t captured = inputs.Put(shape, FWDMETA_MEMORY_DEVICE);
      captured.stream = stream;
      captured.generation = 0;
      // What the consumers need is allocated before the capture. The set is that of the replays.
      fwdmeta_meta_t meta = 0;
      ASSERT_OK(fwdmeta_build(builder.handle(), &captured, &meta, nullptr));
      Consumers consumers(meta);
      ASSERT_OK(fwdmeta_meta_destroy(meta));
      consumers.Launch(stream);
      consumers.Expect(config, shape, reference::Build(config, shape));
      if (::testing::Test::HasFailure()) return;

      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      ASSERT_EQ(cudaSuccess, cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      EXPECT_OK(fwdmeta_build(builder.handle(), &captured, nullptr, nullptr));
      consumers.Launch(stream, programmatic);
      ASSERT_EQ(cudaSuccess, cudaStreamEndCapture(stream, &graph));
      ASSERT_EQ(cudaSuccess, cudaGraphInstantiate(&exec, graph, 0));
      for (int n = 0; n < 6 && !::testing::Test::HasFailure(); ++n) {
        reference::Batch batch = n == 0 ? shape : next_batch();
        if (n == 4) Spoil(random, config, &batch);
        if (batch.size() != slots || batch.num_padded_tokens != shape.num_padded_tokens) continue;
        SCOPED_TRACE("replay " + std::to_string(n) + " of " + std::to_string(i) + ", seed " + std::to_string(seed) +
                     "\n" + fwdmeta_test::Describe(config, batch));
        const fwdmeta_batch_t now = inputs.Put(batch, FWDMETA_MEMORY_DEVICE);
        ASSERT_EQ(captured.seq_lens_this_time, now.seq_lens_this_time);
        ASSERT_EQ(cudaSuccess, cudaGraphLaunch(exec, stream));
        consumers.Expect(config, batch, reference::Build(config, batch));
      }
      EXPECT_EQ(cudaSuccess, cudaGraphExecDestroy(exec));
      EXPECT_EQ(cudaSuccess, cudaGraphDestroy(graph));
    }
    EXPECT_EQ(cudaSuccess, cudaStreamDestroy(stream));
    if (::testing::Test::HasFailure()) return;
  }
}

TEST_F(DeviceCodeOnDevice, FollowsTheReplaysOfACapturedStep) { RunReplays(false); }
// Consumers that begin while the build runs read what it has written.
TEST_F(DeviceCodeOnDevice, FollowsThemUnderProgrammaticLaunch) { RunReplays(true); }

}  // namespace
}  // namespace fwdmeta_test
