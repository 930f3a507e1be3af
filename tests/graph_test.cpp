// Streams, graphs and other threads on the CUDA backend (contract §5).
#include "harness.h"

#if !FWDMETA_TEST_CUDA

namespace fwdmeta_test {
TEST(Graphs, NeedTheCudaBackend) { FWDMETA_SKIP_WITHOUT(FWDMETA_BACKEND_CUDA); }
}  // namespace fwdmeta_test

#else

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "error_bits.h"
#include "random_batch.h"
#include "slicer_harness.h"

namespace fwdmeta_test {
namespace {

constexpr fwdmeta_backend_t kCuda = FWDMETA_BACKEND_CUDA;

class Stream {
 public:
  explicit Stream(unsigned flags = cudaStreamNonBlocking) { cudaStreamCreateWithFlags(&stream_, flags); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void Wait() const { EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

// Holds a stream until it is opened.
class Gate {
 public:
  ~Gate() { Open(); }
  void Close(cudaStream_t stream) {
    ASSERT_EQ(cudaSuccess, cudaLaunchHostFunc(stream, &Gate::Wait, new std::shared_ptr<std::atomic<bool>>(open_)));
  }
  void Open() { *open_ = true; }

 private:
  static void Wait(void* user) {
    std::unique_ptr<std::shared_ptr<std::atomic<bool>>> open(static_cast<std::shared_ptr<std::atomic<bool>>*>(user));
    while (!**open) std::this_thread::yield();
  }
  std::shared_ptr<std::atomic<bool>> open_ = std::make_shared<std::atomic<bool>>(false);
};

// Pinned memory that copies in a stream end in.
template <typename T>
class Pinned {
 public:
  explicit Pinned(size_t size) : size_(size) {
    cudaMallocHost(reinterpret_cast<void**>(&data_), size * sizeof(T));
    std::memset(data_, 0x77, size * sizeof(T));
  }
  ~Pinned() { cudaFreeHost(data_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  void CopyFrom(const void* device, cudaStream_t stream) {
    ASSERT_EQ(cudaSuccess, cudaMemcpyAsync(data_, device, size_ * sizeof(T), cudaMemcpyDefault, stream));
  }
  std::vector<int64_t> Values() const { return std::vector<int64_t>(data_, data_ + size_); }

 private:
  size_t size_;
  T* data_ = nullptr;
};

class Graph {
 public:
  Graph() = default;
  ~Graph() { Destroy(); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void Begin(cudaStream_t stream, cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    stream_ = stream;
    ASSERT_EQ(cudaSuccess, cudaStreamBeginCapture(stream, mode));
  }
  void End() {
    ASSERT_EQ(cudaSuccess, cudaStreamEndCapture(stream_, &graph_)) << "the capture was broken";
    ASSERT_EQ(cudaSuccess, cudaGraphInstantiate(&exec_, graph_, 0));
  }
  void Launch() { ASSERT_EQ(cudaSuccess, cudaGraphLaunch(exec_, stream_)); }
  void Destroy() {
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
    exec_ = nullptr;
    graph_ = nullptr;
  }
  // (kernel nodes, all nodes)
  std::pair<int, int> Nodes() const {
    size_t count = 0;
    cudaGraphGetNodes(graph_, nullptr, &count);
    std::vector<cudaGraphNode_t> nodes(count);
    cudaGraphGetNodes(graph_, nodes.data(), &count);
    int kernels = 0;
    for (cudaGraphNode_t node : nodes) {
      cudaGraphNodeType type;
      cudaGraphNodeGetType(node, &type);
      kernels += type == cudaGraphNodeTypeKernel;
    }
    return {kernels, static_cast<int>(count)};
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

// Device inputs at addresses that stay, of one shape.
class Slots {
 public:
  explicit Slots(const reference::Batch& shape) : inputs_(kCuda), batch_(inputs_.Put(shape, FWDMETA_MEMORY_DEVICE)) {}
  const fwdmeta_batch_t& batch() const { return batch_; }
  // Another batch of the same shape at the same place.
  void Put(const reference::Batch& next) {
    const fwdmeta_batch_t now = inputs_.Put(next, FWDMETA_MEMORY_DEVICE);
    ASSERT_EQ(batch_.seq_lens_this_time, now.seq_lens_this_time);
    ASSERT_EQ(batch_.input_ids.data, now.input_ids.data);
  }

 private:
  Inputs inputs_;
  fwdmeta_batch_t batch_;
};

// The stream of a builder's builds must outlive it; tests make theirs before the builder, captures take this one.
Stream& CaptureStream() {
  static auto* stream = new Stream;
  return *stream;
}

// A captured build of a builder, whose replays are compared with the model.
class Captured {
 public:
  Captured(Builder& builder, const reference::Batch& shape, int64_t set = FWDMETA_DEFAULT)
      : builder_(builder), slots_(shape), set_(set == FWDMETA_DEFAULT ? 0 : set) {
    graph_.Begin(stream_);
    fwdmeta_batch_t batch = slots_.batch();
    batch.stream = static_cast<cudaStream_t>(stream_);
    batch.generation = set;
    int64_t step = -1;
    EXPECT_OK(fwdmeta_build(builder.handle(), &batch, &meta_, &step));
    EXPECT_EQ(0, step) << "a captured build has no step number";
    graph_.End();
  }
  ~Captured() { EXPECT_OK(fwdmeta_meta_destroy(meta_)); }
  fwdmeta_meta_t meta() const { return meta_; }
  Graph& graph() { return graph_; }

  // Replays with other contents, `ordinal` being the number of the replay over all graphs of the builder.
  bool Replay(const reference::Batch& batch, int64_t ordinal) {
    const reference::Result want = reference::Build(builder_.config(), batch);
    builder_.Poison(set_, want.counts);
    slots_.Put(batch);
    graph_.Launch();
    fwdmeta_counts_t got = FWDMETA_COUNTS_INITIALIZER, same = FWDMETA_COUNTS_INITIALIZER;
    const fwdmeta_status_t status =
        fwdmeta_replay_wait(builder_.handle(), ordinal, FWDMETA_WAIT_FINAL, 20 * 1000 * 1000, &got);
    bool right = Builder::ExpectCounts(want, status, got);
    EXPECT_EQ(ordinal, got.step);
    const fwdmeta_status_t by_meta = fwdmeta_meta_wait(meta_, FWDMETA_WAIT_FINAL, -1, &same);
    EXPECT_EQ(Name(status), Name(by_meta));
    EXPECT_EQ(0, std::memcmp(&got, &same, sizeof got));
    stream_.Wait();
    right &= builder_.ExpectArrays(meta_, want, ordinal) && got.step == ordinal;
    if (!right) ADD_FAILURE() << "replay " << ordinal << " " << Describe(builder_.config(), batch);
    return right && builder_.Remember(set_, meta_, want);
  }

 private:
  Builder& builder_;
  Stream& stream_ = CaptureStream();
  Slots slots_;
  Graph graph_;
  const int64_t set_;
  fwdmeta_meta_t meta_ = 0;
};

reference::Config ConfigFor(int64_t slots) {
  reference::Config config;
  config.max_batch_size = slots;
  config.max_num_tokens = 4 * slots;
  config.max_model_len = 512;
  return config;
}

reference::Batch Decodes(int64_t slots, int32_t d = 5) {
  reference::Batch batch;
  batch.encoder.assign(static_cast<size_t>(slots), 0);
  batch.decoder.assign(static_cast<size_t>(slots), d);
  batch.this_time.assign(static_cast<size_t>(slots), 1);
  return batch;
}

class Graphs : public ::testing::Test {
 protected:
  void SetUp() override { FWDMETA_SKIP_WITHOUT(kCuda); }
};

// ---- captured builds

TEST_F(Graphs, ACapturedBuildIsOneKernelNodeOrTwo) {
  fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
  {
    Builder builder(kCuda, ConfigFor(1));
    EXPECT_OK(fwdmeta_builder_get_info(builder.handle(), &info));
    cudaDeviceProp properties;
    CUDA_OK(cudaGetDeviceProperties(&properties, CurrentDevice()));
    const int sm = properties.major * 10 + properties.minor;
    EXPECT_GE(info.single_launch_slots, sm == 80 || sm == 90 || sm == 100 ? 4096 : 2048);
  }
  const int64_t edge = info.single_launch_slots;
  for (int64_t slots : {int64_t{1}, int64_t{32}, int64_t{1024}, int64_t{2048}, edge, edge + 1, 4 * edge}) {
    for (int features = 0; features < 3; ++features) {
      reference::Config config = ConfigFor(slots);
      reference::Batch batch = Decodes(slots);
      if (features > 0) {
        config.groups = {{64, 64, false}, {64, 32, true}};
        batch.block_tables.resize(2);
        for (auto& table : batch.block_tables) {
          table.given = true;
          table.width = table.stride = 1;
          table.data.assign(static_cast<size_t>(slots), 3);
          table.lengths.assign(static_cast<size_t>(slots), 1);
        }
        batch.input_ids.given = batch.draft_tokens.given = true;
        batch.input_ids.width = batch.input_ids.stride = batch.draft_tokens.width = batch.draft_tokens.stride = 1;
        batch.input_ids.data.assign(static_cast<size_t>(slots), 4);
        batch.draft_tokens.data.assign(static_cast<size_t>(slots), 5);
      }
      if (features == 1) {
        config.cp_size = 2;
        config.cp_interleave = 4;
      }
      config.mla = features == 2;
      config.max_num_kv_tokens = 1 << 20;
      Builder builder(kCuda, config);
      Captured captured(builder, batch);
      ASSERT_FALSE(HasFailure());
      const int kernels = slots <= edge ? 1 : 2;
      EXPECT_EQ(std::make_pair(kernels, kernels), captured.graph().Nodes()) << slots << " slots, features " << features;
      ASSERT_TRUE(captured.Replay(batch, 1)) << slots;
    }
  }
}

TEST_F(Graphs, ReplaysFollowLengths) {
  for (int64_t slots : {1, 8, 300, 5000}) {
    reference::Config config = ConfigFor(slots);
    config.max_num_kv_tokens = 512 * 300;
    Builder builder(kCuda, config);
    reference::Batch full = Decodes(slots, 20);
    ASSERT_TRUE(builder.Run(Decodes(std::min<int64_t>(slots, 3))));  // an eager build of the set before its capture
    Captured captured(builder, full);
    ASSERT_FALSE(HasFailure());
    reference::Batch longer = full, fewer = full, idle = full, bad = full, drafts = full, prompts = full;
    for (size_t b = 0; b < static_cast<size_t>(slots); ++b) {
      longer.decoder[b] = static_cast<int32_t>(b % 29);
      if (b % 3 != 0) fewer.this_time[b] = 0;
      idle.this_time[b] = 0;
      idle.encoder[b] = 7;
      drafts.this_time[b] = 4;
      if (b % 5 == 4) prompts.encoder[b] = prompts.this_time[b] = 4;
    }
    bad.this_time[static_cast<size_t>(slots) / 2] = -2;
    int64_t ordinal = 0;
    for (reference::Batch* batch : {&full, &longer, &fewer, &idle, &drafts, &bad, &full, &bad, &idle, &prompts, &fewer,
                                    &bad, &bad, &drafts, &full}) {
      ASSERT_TRUE(captured.Replay(*batch, ++ordinal)) << slots << " slots";
    }
  }
}

// Each error bit alone and with any others, in replays; the good replay after it is right, and so is an eager step.
TEST_F(Graphs, EveryErrorBitReplayed) {
  for (const int32_t kv : {0, static_cast<int32_t>(FWDMETA_ERROR_NUM_KV_TOKENS)}) {
    for (const int32_t padded : {0, static_cast<int32_t>(FWDMETA_ERROR_PADDED_TOKENS)}) {
      reference::Config config = ErrorBitsConfig(kv);
      config.generations = 2;
      Builder builder(kCuda, config);
      reference::Batch good = BatchWithErrors(padded);  // T is captured
      for (size_t b = 1; b < good.this_time.size(); ++b) good.this_time[b] = 0;
      good.this_time[0] = 1;
      Captured captured(builder, good);
      ASSERT_FALSE(HasFailure());
      int64_t ordinal = 0;
      for (int32_t bits = 1; bits <= kAllErrors; ++bits) {
        if ((bits & FWDMETA_ERROR_NUM_KV_TOKENS) != kv || (bits & FWDMETA_ERROR_PADDED_TOKENS) != padded) continue;
        const reference::Batch bad = BatchWithErrors(bits);
        ASSERT_EQ(bits, reference::Build(config, bad).counts.error) << "of the model";
        ASSERT_TRUE(captured.Replay(bad, ++ordinal)) << bits;
        if (bits % 3 == 0) {
          ASSERT_TRUE(captured.Replay(bad, ++ordinal)) << bits << " after itself";
        }
        if (bits % 5 == 0) {
          ASSERT_TRUE(builder.Run(good, FWDMETA_MEMORY_HOST, 1)) << bits;
        }
        ASSERT_TRUE(captured.Replay(good, ++ordinal)) << bits;
      }
    }
  }
}

// Random configurations; the token axis keeps the padded length of the capture.
TEST_F(Graphs, RandomReplaysBetweenEagerBuilds) {
  for (int round = 0; round < 40; ++round) {
    Random random(static_cast<uint64_t>(round) + 77);
    reference::Config config = RandomConfig(random, round % 8 == 0 ? 2000 : 100);
    config.generations = random.Int(2, 3);
    Builder builder(kCuda, config);
    const int64_t slots = random.Int(1, config.max_batch_size);
    reference::Batch shape = RandomBatch(random, config, slots);
    Captured captured(builder, shape);
    ASSERT_FALSE(HasFailure()) << round;
    int64_t ordinal = 0;
    for (int step = 0; step < 25; ++step) {
      if (random.Chance(0.4)) {  // an eager build of a set that no graph has
        ASSERT_TRUE(builder.Run(RandomBatch(random, config),
                                random.Chance(0.5) ? FWDMETA_MEMORY_HOST : FWDMETA_MEMORY_DEVICE,
                                random.Int(1, config.generations - 1)))
            << round << " " << step;
        continue;
      }
      reference::Batch next = RandomBatch(random, config, slots);
      if (random.Chance(0.1)) Spoil(random, config, &next);
      next.num_padded_tokens = shape.num_padded_tokens;
      next.block_tables = shape.block_tables;
      for (auto& table : next.block_tables) {
        for (int32_t& page : table.data) page = static_cast<int32_t>(random.Int(-2, 1000));
      }
      next.input_ids = shape.input_ids;
      next.draft_tokens = shape.draft_tokens;
      for (int64_t& id : next.input_ids.data) id = random.Int(0, 1000);
      ASSERT_TRUE(captured.Replay(next, ++ordinal)) << round << " " << step;
    }
  }
}

// ---- captured slices

TEST_F(Graphs, CapturedSlicesAreTheCutAndABuildEach) {
  Random random(81);
  for (int64_t slots : {1, 40, 1500, 5000}) {
    constexpr int64_t kSlices = 3;
    reference::Config config = ConfigFor(slots);
    config.max_num_kv_tokens = 512 * 300;
    config.generations = 2;
    reference::Batch batch = Decodes(slots, 20);
    batch.num_padded_tokens = config.max_num_tokens;
    batch.input_ids.given = true;
    batch.input_ids.width = batch.input_ids.stride = 4;
    for (int64_t i = 0; i < 4 * slots; ++i) batch.input_ids.data.push_back(i);
    Slots inputs(batch);
    Slicer slicer(kCuda, config, kSlices);
    Graph graph;  // ends before the slicer, whose memory it holds
    fwdmeta_meta_t metas[kSlices] = {};
    ASSERT_TRUE(slicer.Run(batch, FWDMETA_MEMORY_DEVICE, 2, FWDMETA_DEFAULT, 0));
    graph.Begin(CaptureStream());
    fwdmeta_batch_t c = inputs.batch();
    c.stream = static_cast<cudaStream_t>(CaptureStream());
    const int64_t split = std::max<int64_t>(1, slots / 2);
    EXPECT_OK(fwdmeta_build_slices(slicer.handle(), &c, kSlices, split, metas));
    c.memory_kind = FWDMETA_MEMORY_HOST;
    c.batch_size = 0;
    EXPECT_STATUS(FWDMETA_NOT_CAPTURABLE, fwdmeta_build_slices(slicer.handle(), &c, kSlices, split, nullptr));
    graph.End();
    ASSERT_FALSE(HasFailure());
    const int kernels = 1 + static_cast<int>(kSlices) * (slots <= 4096 ? 1 : 2);
    EXPECT_EQ(std::make_pair(kernels, kernels), graph.Nodes()) << slots;
    for (int64_t ordinal = 1; ordinal <= 12; ++ordinal) {
      for (size_t b = 0; b < static_cast<size_t>(slots); ++b) {
        batch.this_time[b] = static_cast<int32_t>(random.Int(0, 4));
        batch.encoder[b] = random.Chance(0.3) ? batch.this_time[b] : 0;
        batch.decoder[b] = static_cast<int32_t>(random.Int(0, 25));
      }
      if (ordinal % 4 == 3) batch.this_time[static_cast<size_t>(slots) / 2] = -2;
      inputs.Put(batch);
      graph.Launch();
      CaptureStream().Wait();
      for (int64_t i = 0; i < kSlices; ++i) {
        const reference::Result want = reference::Build(config, reference::SliceOf(config, batch, i, kSlices, split));
        fwdmeta_counts_t got = FWDMETA_COUNTS_INITIALIZER;
        const fwdmeta_status_t status =
            fwdmeta_replay_wait(slicer.slice(i).handle(), ordinal, FWDMETA_WAIT_FINAL, 20 * 1000 * 1000, &got);
        ASSERT_TRUE(Builder::ExpectCounts(want, status, got)) << slots << " slots, slice " << i;
        ASSERT_TRUE(slicer.slice(i).ExpectArrays(metas[i], want, ordinal)) << slots << " slots, slice " << i;
      }
      // An eager step between leaves the graph's set alone.
      if (ordinal % 3 == 0) {
        ASSERT_TRUE(slicer.Run(batch, FWDMETA_MEMORY_DEVICE, kSlices, split, 1));
      }
    }
    for (fwdmeta_meta_t meta : metas) EXPECT_OK(fwdmeta_meta_destroy(meta));
  }
}

// The graph holds the slices' builders, so it can be replayed when the slicer has ended.
TEST_F(Graphs, TheGraphOutlivesTheSlicer) {
  const reference::Batch batch = Decodes(8);
  Slots inputs(batch);
  Graph graph;
  const auto allocators = std::make_shared<Allocators>();
  std::vector<fwdmeta_group_config_t> groups;
  const reference::Config model = ConfigFor(8);
  const fwdmeta_config_t config = allocators->Config(model, kCuda, &groups);
  fwdmeta_slicer_t slicer = 0;
  ASSERT_OK(fwdmeta_slicer_create(&config, 2, &slicer));
  graph.Begin(CaptureStream());
  fwdmeta_batch_t c = inputs.batch();
  c.stream = static_cast<cudaStream_t>(CaptureStream());
  fwdmeta_builder_t second = 0;
  EXPECT_OK(fwdmeta_slicer_get_builder(slicer, 1, &second));
  fwdmeta_meta_t metas[2] = {};
  EXPECT_OK(fwdmeta_build_slices(slicer, &c, 2, 4, metas));
  graph.End();
  ASSERT_OK(fwdmeta_slicer_destroy(slicer));
  Builder view(kCuda, model, second, allocators);
  for (int64_t i = 1; i <= 3; ++i) {
    graph.Launch();
    CaptureStream().Wait();
    const reference::Result want = reference::Build(model, reference::SliceOf(model, batch, 1, 2, 4));
    EXPECT_TRUE(view.ExpectArrays(metas[1], want, i)) << "replay " << i;
  }
  // Without views the graph is the last that holds the memory.
  for (fwdmeta_meta_t meta : metas) EXPECT_OK(fwdmeta_meta_destroy(meta));
  graph.Launch();
  CaptureStream().Wait();
  EXPECT_EQ(2, allocators->device.live());
  graph.Destroy();
}

// Two graphs of other grids write the same set, and a third another: any order of replays is right.
TEST_F(Graphs, GraphsOfSeveralGrids) {
  reference::Config config = ConfigFor(256);
  config.generations = 3;
  Builder builder(kCuda, config);
  Captured large(builder, Decodes(256), 0), small(builder, Decodes(2), 0), other(builder, Decodes(40), 1);
  ASSERT_FALSE(HasFailure());
  Random random(5);
  int64_t ordinal = 0;
  for (int i = 0; i < 60; ++i) {
    Captured* which[] = {&large, &small, &other};
    const int64_t sizes[] = {256, 2, 40};
    const auto k = static_cast<size_t>(random.Int(0, 2));
    reference::Batch batch = Decodes(sizes[k], static_cast<int32_t>(random.Int(0, 400)));
    for (int32_t& n : batch.this_time) n = static_cast<int32_t>(random.Int(0, 1));
    if (random.Chance(0.15)) batch.this_time[0] = -1;
    ASSERT_TRUE(which[k]->Replay(batch, ++ordinal)) << i;
    ASSERT_TRUE(i % 7 != 0 || builder.Run(Decodes(9), FWDMETA_MEMORY_HOST, 2)) << i;
  }
}

// A consumer with the grid of the bucket sees nothing but -1 past the count.
TEST_F(Graphs, ConsumerOfTheTail) {
  constexpr int64_t kSlots = 64;
  const reference::Config config = ConfigFor(kSlots);
  Stream stream;
  Builder builder(kCuda, config);
  const int64_t grid = reference::GetCapacities(config, kSlots, kSlots).decoder;
  Slots slots(Decodes(kSlots));
  Pinned<int32_t> seen_ids(static_cast<size_t>(grid)), seen_tiles(static_cast<size_t>(grid));
  Graph graph;
  graph.Begin(stream);
  fwdmeta_batch_t batch = slots.batch();
  batch.stream = static_cast<cudaStream_t>(stream);
  fwdmeta_meta_t meta = 0;
  ASSERT_OK(fwdmeta_build(builder.handle(), &batch, &meta, nullptr));
  fwdmeta_tensor_t ids = FWDMETA_TENSOR_INITIALIZER, tiles = FWDMETA_TENSOR_INITIALIZER;
  ASSERT_OK(fwdmeta_meta_get(meta, "decoder_batch_ids", &ids));
  ASSERT_OK(fwdmeta_meta_get(meta, "decoder_tile_ids_per_batch", &tiles));
  seen_ids.CopyFrom(ids.data, stream);
  seen_tiles.CopyFrom(tiles.data, stream);
  graph.End();
  for (int64_t live : {64, 3, 0, 17, 63, 1, 64, 0}) {
    reference::Batch next = Decodes(kSlots);
    for (int64_t b = live; b < kSlots; ++b) next.this_time[static_cast<size_t>(b)] = 0;
    slots.Put(next);
    graph.Launch();
    stream.Wait();
    const reference::Result want = reference::Build(config, next);
    const auto head = [grid](std::vector<int64_t> all) { return all.resize(static_cast<size_t>(grid)), all; };
    EXPECT_EQ(head(want.fields[FWDMETA_FIELD_DECODER_BATCH_IDS]), seen_ids.Values()) << live;
    EXPECT_EQ(head(want.fields[FWDMETA_FIELD_DECODER_TILE_IDS_PER_BATCH]), seen_tiles.Values()) << live;
  }
  EXPECT_OK(fwdmeta_meta_destroy(meta));
}

TEST_F(Graphs, SetsOfCapturedBuilds) {
  reference::Config config = ConfigFor(8);
  config.generations = 2;
  Builder builder(kCuda, config);
  int64_t value = -1;
  {
    Captured captured(builder, Decodes(8));
    EXPECT_OK(fwdmeta_meta_get_attr(captured.meta(), FWDMETA_ATTR_GENERATION, &value));
    EXPECT_EQ(0, value) << "a captured build takes set 0 unless told";
    EXPECT_OK(fwdmeta_meta_get_attr(captured.meta(), FWDMETA_ATTR_STEP, &value));
    EXPECT_EQ(0, value);
    fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
    EXPECT_STATUS(FWDMETA_NOT_READY, fwdmeta_meta_wait(captured.meta(), 0, 0, &counts));
    EXPECT_STATUS(FWDMETA_NOT_READY, fwdmeta_replay_wait(builder.handle(), 0, 0, 0, &counts));
    EXPECT_STATUS(FWDMETA_NOT_READY, fwdmeta_meta_get_attr(captured.meta(), FWDMETA_ATTR_REAL_BSZ, &value));
    ASSERT_TRUE(captured.Replay(Decodes(8, 3), 1));
    for (int i = 0; i < 4; ++i) {  // eager builds leave set 0 alone
      ASSERT_OK(builder.Build(Decodes(4, 9)));
      EXPECT_OK(fwdmeta_meta_get_attr(builder.meta(), FWDMETA_ATTR_GENERATION, &value));
      EXPECT_EQ(1, value);
    }
    Synchronize(kCuda);
    EXPECT_TRUE(builder.ExpectArrays(captured.meta(), reference::Build(config, Decodes(8, 3)), 1));
    EXPECT_STATUS(FWDMETA_UNAVAILABLE, builder.Build(Decodes(4, 9), FWDMETA_MEMORY_DEVICE, 0));
    Captured second(builder, Decodes(8), 1);
    EXPECT_STATUS(FWDMETA_UNAVAILABLE, builder.Build(Decodes(4, 9)));
    ASSERT_TRUE(second.Replay(Decodes(8, 4), 2));
    // Ordinals run over all graphs; an old one has expired, a later one is not there yet.
    EXPECT_STATUS(FWDMETA_EXPIRED, fwdmeta_replay_wait(builder.handle(), 1, 0, 0, &counts));
    EXPECT_OK(fwdmeta_replay_wait(builder.handle(), 2, 0, 0, &counts));
    EXPECT_STATUS(FWDMETA_NOT_READY, fwdmeta_replay_wait(builder.handle(), 3, 0, 0, &counts));
    EXPECT_STATUS(FWDMETA_TIMEOUT, fwdmeta_replay_wait(builder.handle(), 3, 0, 1000, &counts));
    EXPECT_OK(fwdmeta_meta_get_attr(second.meta(), FWDMETA_ATTR_REAL_BSZ, &value));
    EXPECT_EQ(8, value);
  }
}

// Calls that cannot be captured say so, and the capture goes on.
TEST_F(Graphs, RefusalsLeaveTheCaptureValid) {
  for (const auto mode :
       {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed, cudaStreamCaptureModeGlobal}) {
    reference::Config config = ConfigFor(8);
    config.generations = 2;
    Stream stream, free_stream;
    Builder builder(kCuda, config), second(kCuda, config);
    ASSERT_TRUE(builder.Run(Decodes(3), FWDMETA_MEMORY_DEVICE, 1));
    const fwdmeta_meta_t eager = builder.meta();
    const reference::Batch shape = Decodes(8);
    Slots slots(shape);
    Graph graph;
    graph.Begin(stream, mode);
    fwdmeta_batch_t batch = slots.batch();
    batch.stream = static_cast<cudaStream_t>(stream);
    fwdmeta_batch_t host = builder.inputs().Put(shape, FWDMETA_MEMORY_HOST);
    host.stream = static_cast<cudaStream_t>(stream);
    fwdmeta_meta_t meta = 0;
    EXPECT_STATUS(FWDMETA_NOT_CAPTURABLE, fwdmeta_build(builder.handle(), &host, &meta, nullptr));
    EXPECT_STATUS(FWDMETA_NOT_CAPTURABLE, fwdmeta_builder_reset(builder.handle(), stream));
    EXPECT_STATUS(FWDMETA_NOT_CAPTURABLE, fwdmeta_meta_reader_begin(eager, stream));
    fwdmeta_batch_t wrong = batch;
    wrong.batch_size = 9;
    EXPECT_STATUS(FWDMETA_CAPACITY_EXCEEDED, fwdmeta_build(builder.handle(), &wrong, &meta, nullptr));
    ASSERT_OK(fwdmeta_build(builder.handle(), &batch, &meta, nullptr));
    const auto write = [](const char*, size_t, void*) -> int32_t { return 0; };
    EXPECT_STATUS(FWDMETA_NOT_CAPTURABLE, fwdmeta_meta_dump(meta, FWDMETA_DUMP_JSON, write, nullptr));
    EXPECT_OK(fwdmeta_meta_dump(eager, FWDMETA_DUMP_JSON, write, nullptr)) << "its own stream is not being captured";
    // What may be called while capturing.
    fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
    EXPECT_OK(fwdmeta_counts_wait(builder.handle(), builder.step(), FWDMETA_WAIT_FINAL, -1, &counts));
    fwdmeta_capacities_t capacities = FWDMETA_CAPACITIES_INITIALIZER;
    std::vector<fwdmeta_group_config_t> groups;
    const fwdmeta_config_t c = ToC(config, kCuda, &groups);
    EXPECT_OK(fwdmeta_get_capacities(&c, nullptr, &capacities));
    fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
    EXPECT_OK(fwdmeta_builder_get_info(builder.handle(), &info));
    fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
    EXPECT_OK(fwdmeta_meta_get(meta, "counts", &tensor));
    fwdmeta_batch_t aside = second.inputs().Put(shape, FWDMETA_MEMORY_HOST);  // eager, on another stream
    aside.stream = static_cast<cudaStream_t>(free_stream);
    fwdmeta_meta_t short_lived = 0;
    EXPECT_OK(fwdmeta_build(second.handle(), &aside, &short_lived, nullptr));
    EXPECT_OK(fwdmeta_meta_destroy(short_lived));
    graph.End();
    ASSERT_FALSE(HasFailure()) << "mode " << mode;
    EXPECT_EQ(std::make_pair(1, 1), graph.Nodes());
    graph.Launch();
    EXPECT_OK(fwdmeta_replay_wait(builder.handle(), 1, FWDMETA_WAIT_FINAL, 20000000, &counts));
    EXPECT_EQ(8, counts.num_tokens);
    stream.Wait();
    free_stream.Wait();
    EXPECT_OK(fwdmeta_meta_destroy(meta));
  }
}

// A builder may be created on a thread that captures in thread-local or relaxed mode, and destroyed in any.
TEST_F(Graphs, BuildersEndWhileCapturing) {
  std::vector<fwdmeta_group_config_t> groups;
  const fwdmeta_config_t c = ToC(ConfigFor(8), kCuda, &groups);
  for (const auto mode :
       {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed, cudaStreamCaptureModeGlobal}) {
    fwdmeta_builder_t used = 0, fresh = 0;
    ASSERT_OK(fwdmeta_builder_create(&c, &used));
    const reference::Batch shape = Decodes(8);
    Inputs inputs(kCuda);
    fwdmeta_batch_t batch = inputs.Put(shape, FWDMETA_MEMORY_DEVICE);
    fwdmeta_meta_t meta = 0;
    ASSERT_OK(fwdmeta_build(used, &batch, &meta, nullptr));
    Stream stream;
    Builder builder(kCuda, ConfigFor(8));
    Slots slots(shape);
    Graph graph;
    graph.Begin(stream, mode);
    EXPECT_OK(fwdmeta_meta_destroy(meta));
    EXPECT_OK(fwdmeta_builder_destroy(used));
    if (mode != cudaStreamCaptureModeGlobal) {
      EXPECT_OK(fwdmeta_builder_create(&c, &fresh));
      EXPECT_OK(fwdmeta_builder_destroy(fresh));
    }
    batch = slots.batch();
    batch.stream = static_cast<cudaStream_t>(stream);
    EXPECT_OK(fwdmeta_build(builder.handle(), &batch, nullptr, nullptr));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // for the library's threads to free what they may
    graph.End();
    ASSERT_FALSE(HasFailure()) << "mode " << mode;
    graph.Launch();
    stream.Wait();
    EXPECT_OK(fwdmeta_replay_wait(builder.handle(), 1, FWDMETA_WAIT_FINAL, 20000000, nullptr));
  }
}

// B95 (TensorRT#2888, DeepEP#62): another thread creates, builds and destroys while this one captures.
TEST_F(Graphs, B95_OtherThreadsDoNotBreakACapture) {
  for (const auto mode : {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeGlobal}) {
    Stream stream;
    Builder builder(kCuda, ConfigFor(8));
    const reference::Batch shape = Decodes(8);
    Slots slots(shape);
    Inputs inputs(kCuda);
    const fwdmeta_batch_t device_batch = inputs.Put(shape, FWDMETA_MEMORY_DEVICE);
    std::atomic<bool> stop{false};
    std::atomic<int> rounds{0}, wrong{0};
    std::thread other([&] {
      std::vector<fwdmeta_group_config_t> groups;
      const fwdmeta_config_t c = ToC(ConfigFor(8), kCuda, &groups);
      cudaStream_t side = nullptr;
      cudaStreamCaptureMode relaxed = cudaStreamCaptureModeRelaxed;
      cudaThreadExchangeStreamCaptureMode(&relaxed);  // for this test's own calls
      if (cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking) != cudaSuccess) ++wrong;
      cudaThreadExchangeStreamCaptureMode(&relaxed);
      while (!stop) {
        fwdmeta_builder_t b = 0;
        if (fwdmeta_builder_create(&c, &b) != FWDMETA_OK) ++wrong;
        for (const auto kind : {FWDMETA_MEMORY_DEVICE, FWDMETA_MEMORY_HOST}) {
          fwdmeta_batch_t batch = device_batch;
          if (kind == FWDMETA_MEMORY_HOST) {
            batch.memory_kind = kind;
            batch.seq_lens_encoder = shape.encoder.data();
            batch.seq_lens_decoder = shape.decoder.data();
            batch.seq_lens_this_time = shape.this_time.data();
          }
          batch.stream = side;
          fwdmeta_meta_t meta = 0;
          int64_t step = 0;
          if (fwdmeta_build(b, &batch, &meta, &step) != FWDMETA_OK) ++wrong;
          fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
          if (fwdmeta_counts_wait(b, step, FWDMETA_WAIT_FINAL, -1, &counts) != FWDMETA_OK) ++wrong;
          if (counts.num_tokens != 8) ++wrong;
          if (fwdmeta_meta_destroy(meta) != FWDMETA_OK) ++wrong;
        }
        if (fwdmeta_builder_destroy(b) != FWDMETA_OK) ++wrong;
        ++rounds;
      }
      cudaStreamSynchronize(side);
      cudaStreamDestroy(side);
    });
    while (rounds < 2) std::this_thread::yield();
    std::vector<std::unique_ptr<Graph>> graphs;
    const int before = rounds;
    for (int i = 0; i < 20 || rounds < before + 10; ++i) {
      graphs.push_back(std::make_unique<Graph>());
      graphs.back()->Begin(stream, mode);
      fwdmeta_batch_t batch = slots.batch();
      batch.stream = static_cast<cudaStream_t>(stream);
      EXPECT_OK(fwdmeta_build(builder.handle(), &batch, nullptr, nullptr));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      graphs.back()->End();
      if (HasFailure()) break;
    }
    stop = true;
    other.join();
    EXPECT_EQ(0, wrong);
    ASSERT_FALSE(HasFailure()) << "mode " << mode;
    int64_t ordinal = 0;
    for (auto& graph : graphs) {
      graph->Launch();
      ++ordinal;
    }
    stream.Wait();
    fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
    EXPECT_OK(fwdmeta_replay_wait(builder.handle(), ordinal, FWDMETA_WAIT_FINAL, 20000000, &counts));
    EXPECT_EQ(8, counts.num_tokens);
  }
}

// The graph holds the builder: its memory goes with the graph.
TEST_F(Graphs, TheGraphOutlivesTheBuilder) {
  std::vector<fwdmeta_group_config_t> groups;
  CountingAllocator device(Memory::kDevice), pinned(Memory::kPinned);
  const reference::Config config = ConfigFor(8);
  fwdmeta_config_t c = ToC(config, kCuda, &groups);
  c.device_allocator = device.Get();
  c.pinned_allocator = pinned.Get();
  fwdmeta_builder_t builder = 0;
  ASSERT_OK(fwdmeta_builder_create(&c, &builder));
  Stream stream;
  Graph graph;
  Slots slots(Decodes(8));
  Pinned<int32_t> cu(9);
  graph.Begin(stream);
  fwdmeta_batch_t batch = slots.batch();
  batch.stream = static_cast<cudaStream_t>(stream);
  fwdmeta_meta_t meta = 0;
  ASSERT_OK(fwdmeta_build(builder, &batch, &meta, nullptr));
  fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
  ASSERT_OK(fwdmeta_meta_get(meta, "cu_seqlens_q", &tensor));
  cu.CopyFrom(tensor.data, stream);
  graph.End();
  ASSERT_OK(fwdmeta_builder_destroy(builder));
  ASSERT_OK(fwdmeta_meta_destroy(meta));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_GT(device.live(), 0);
  for (int i = 0; i < 5; ++i) {
    reference::Batch batch_now = Decodes(8);
    batch_now.this_time[0] = i % 2;
    slots.Put(batch_now);
    graph.Launch();
    stream.Wait();
    EXPECT_EQ(7 + i % 2, cu.Values().back());
  }
  graph.Destroy();
  EXPECT_TRUE(device.WaitUntilEmpty());
  EXPECT_TRUE(pinned.WaitUntilEmpty());
  EXPECT_EQ("", device.misuse() + pinned.misuse());
}

// A builder's destruction returns at once and frees after the recorded work.
TEST_F(Graphs, DestructionDoesNotWait) {
  std::vector<fwdmeta_group_config_t> groups;
  CountingAllocator device(Memory::kDevice), pinned(Memory::kPinned);
  fwdmeta_config_t c = ToC(ConfigFor(8), kCuda, &groups);
  c.device_allocator = device.Get();
  c.pinned_allocator = pinned.Get();
  fwdmeta_builder_t builder = 0;
  ASSERT_OK(fwdmeta_builder_create(&c, &builder));
  Stream stream;
  Slots slots(Decodes(8));
  fwdmeta_batch_t batch = slots.batch();
  batch.stream = static_cast<cudaStream_t>(stream);
  {
    Gate gate;
    gate.Close(stream);
    ASSERT_OK(fwdmeta_build(builder, &batch, nullptr, nullptr));
    ASSERT_OK(fwdmeta_builder_destroy(builder));  // hangs here if it waits
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_GT(device.live(), 0) << "freed before its work was done";
    EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(stream));
  }
  EXPECT_TRUE(device.WaitUntilEmpty());
  EXPECT_TRUE(pinned.WaitUntilEmpty());
  stream.Wait();
}

// ---- streams

// B77 (TensorRT-LLM#15546, #16088): the host is a step ahead, and overwrites its inputs as soon as the call returns.
TEST_F(Graphs, B77_HostInputsMayBeOverwrittenAtOnce) {
  reference::Config config = ConfigFor(3);
  config.max_num_tokens = 8;
  Stream stream;
  Builder builder(kCuda, config);
  Pinned<int32_t> cu1(4), cu2(4);
  Pinned<int64_t> positions(5);
  std::vector<int32_t> e = {0, 0, 0}, d = {10, 20, 30}, n = {1, 1, 1};
  fwdmeta_batch_t batch = FWDMETA_BATCH_INITIALIZER;
  batch.memory_kind = FWDMETA_MEMORY_HOST;
  batch.batch_size = 3;
  batch.seq_lens_encoder = e.data();
  batch.seq_lens_decoder = d.data();
  batch.seq_lens_this_time = n.data();
  batch.stream = static_cast<cudaStream_t>(stream);
  Gate gate;
  gate.Close(stream);
  ASSERT_OK(builder.Build(batch));
  cu1.CopyFrom(builder.Tensor(FWDMETA_FIELD_CU_SEQLENS_Q).data, stream);
  e = {0, 0, 0};
  d = {11, 21, 31};
  n = {4, 0, 1};
  ASSERT_OK(builder.Build(batch));
  cu2.CopyFrom(builder.Tensor(FWDMETA_FIELD_CU_SEQLENS_Q).data, stream);
  positions.CopyFrom(builder.Tensor(FWDMETA_FIELD_POSITION_IDS).data, stream);
  e = d = n = {-99, -99, -99};
  // The counts of host lengths are there although the stream is held; final they are not.
  fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
  EXPECT_OK(fwdmeta_counts_wait(builder.handle(), 1, 0, 0, &counts));
  EXPECT_EQ(3, counts.num_tokens);
  EXPECT_EQ(0, counts.is_final);
  EXPECT_OK(fwdmeta_counts_wait(builder.handle(), 2, 0, 0, &counts));
  EXPECT_EQ(5, counts.num_tokens);
  EXPECT_STATUS(FWDMETA_NOT_READY, fwdmeta_counts_wait(builder.handle(), 2, FWDMETA_WAIT_FINAL, 0, &counts));
  EXPECT_STATUS(FWDMETA_TIMEOUT, fwdmeta_counts_wait(builder.handle(), 2, FWDMETA_WAIT_FINAL, 2000, &counts));
  gate.Open();
  EXPECT_OK(fwdmeta_counts_wait(builder.handle(), 2, FWDMETA_WAIT_FINAL, -1, &counts));
  EXPECT_EQ(1, counts.is_final);
  stream.Wait();
  EXPECT_EQ((std::vector<int64_t>{0, 1, 2, 3}), cu1.Values());
  EXPECT_EQ((std::vector<int64_t>{0, 4, 4, 5}), cu2.Values());
  EXPECT_EQ((std::vector<int64_t>{11, 12, 13, 14, 31}), positions.Values());
}

// With every staging entry in flight a build waits for the oldest, or returns BUSY when asked not to.
TEST_F(Graphs, StagingEntriesInFlight) {
  reference::Config config = ConfigFor(4);
  config.depth = 2;
  Stream stream;
  Builder builder(kCuda, config);
  const reference::Batch source = Decodes(4);
  fwdmeta_batch_t batch = builder.inputs().Put(source, FWDMETA_MEMORY_HOST);
  batch.stream = static_cast<cudaStream_t>(stream);
  const auto waits = [&] {
    fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
    EXPECT_OK(fwdmeta_builder_get_info(builder.handle(), &info));
    return info.host_waits;
  };
  Gate gate;
  gate.Close(stream);
  ASSERT_OK(builder.Build(batch));
  ASSERT_OK(builder.Build(batch));
  batch.flags = FWDMETA_BUILD_NO_WAIT;
  EXPECT_STATUS(FWDMETA_BUSY, builder.Build(batch));
  EXPECT_EQ(2, builder.step());
  EXPECT_EQ(0, waits());
  batch.flags = 0;
  std::thread opener([&gate] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gate.Open();
  });
  EXPECT_OK(builder.Build(batch));
  EXPECT_EQ(3, builder.step());
  EXPECT_EQ(1, waits());
  opener.join();
  stream.Wait();
  EXPECT_TRUE(builder.Expect(reference::Build(config, source)));
}

// Two steps of slices behind a gate, their host lengths overwritten at once, and a third that finds no entry.
TEST_F(Graphs, StagingEntriesOfSlicesInFlight) {
  constexpr int64_t kSlices = 2;
  for (int64_t slots : {300, 5000}) {
    reference::Config config = ConfigFor(slots);
    config.max_num_kv_tokens = 512 * 300;
    config.depth = config.generations = 2;
    Stream stream;
    Slicer slicer(kCuda, config, kSlices);
    Random random(82);
    reference::Batch batch = Decodes(slots);
    batch.input_ids.given = true;
    batch.input_ids.width = batch.input_ids.stride = 4;
    for (int64_t i = 0; i < 4 * slots; ++i) batch.input_ids.data.push_back(i);
    fwdmeta_batch_t c = slicer.inputs().Put(batch, FWDMETA_MEMORY_HOST);
    c.stream = static_cast<cudaStream_t>(stream);
    reference::Batch steps[2];
    fwdmeta_meta_t metas[2][kSlices] = {};
    Gate gate;
    gate.Close(stream);
    for (int step = 0; step < 2; ++step) {
      for (size_t b = 0; b < static_cast<size_t>(slots); ++b) {
        batch.this_time[b] = static_cast<int32_t>(random.Int(0, 4));
        batch.encoder[b] = random.Chance(0.3) ? batch.this_time[b] : 0;
        batch.decoder[b] = static_cast<int32_t>(random.Int(0, 25));
      }
      steps[step] = batch;
      ASSERT_OK(fwdmeta_build_slices(slicer.handle(), &c, kSlices, slots, metas[step]));
      for (auto* lengths : {&batch.encoder, &batch.decoder, &batch.this_time}) lengths->assign(lengths->size(), 1);
    }
    c.flags = FWDMETA_BUILD_NO_WAIT;
    EXPECT_STATUS(FWDMETA_BUSY, fwdmeta_build_slices(slicer.handle(), &c, kSlices, slots, nullptr));
    for (int64_t i = 0; i < kSlices; ++i) {
      fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
      EXPECT_OK(fwdmeta_builder_get_info(slicer.slice(i).handle(), &info));
      EXPECT_EQ(2, info.last_step);
      EXPECT_EQ(0, info.host_waits);
    }
    gate.Open();
    stream.Wait();
    for (int step = 0; step < 2; ++step) {
      for (int64_t i = 0; i < kSlices; ++i) {
        const reference::Result want =
            reference::Build(config, reference::SliceOf(config, steps[step], i, kSlices, slots));
        EXPECT_TRUE(slicer.slice(i).ExpectArrays(metas[step][i], want, step + 1)) << slots << " " << step << " " << i;
        EXPECT_OK(fwdmeta_meta_destroy(metas[step][i]));
      }
    }
  }
}

TEST_F(Graphs, DeviceLengthsAreReadyWhenTheStreamIs) {
  Stream stream;
  Builder builder(kCuda, ConfigFor(4));
  Slots slots(Decodes(4));
  fwdmeta_batch_t batch = slots.batch();
  batch.stream = static_cast<cudaStream_t>(stream);
  Gate gate;
  gate.Close(stream);
  ASSERT_OK(builder.Build(batch));
  fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
  int64_t value = 0;
  EXPECT_STATUS(FWDMETA_NOT_READY, fwdmeta_counts_wait(builder.handle(), 1, 0, 0, &counts));
  EXPECT_STATUS(FWDMETA_TIMEOUT, fwdmeta_counts_wait(builder.handle(), 1, 0, 2000, &counts));
  for (int attr = FWDMETA_ATTR_FORWARD_MODE; attr <= FWDMETA_ATTR_IS_ZERO_SIZE; ++attr) {
    EXPECT_STATUS(FWDMETA_NOT_READY, fwdmeta_meta_get_attr(builder.meta(), attr, &value)) << attr;
  }
  gate.Open();
  EXPECT_OK(fwdmeta_counts_wait(builder.handle(), 1, 0, -1, &counts));
  EXPECT_EQ(4, counts.num_tokens);
  EXPECT_OK(fwdmeta_meta_get_attr(builder.meta(), FWDMETA_ATTR_FORWARD_MODE, &value));
  stream.Wait();
}

// B78 (sglang#26380): the next build of a set waits in-stream for its readers, not on the host.
TEST_F(Graphs, B78_ReadersOnAnotherStream) {
  reference::Config config = ConfigFor(2);
  Stream build_stream, read_stream;
  Builder builder(kCuda, config);
  Slots first(Decodes(2, 10)), second(Decodes(2, 20)), third(Decodes(2, 30));
  const auto build = [&](const Slots& slots) {
    fwdmeta_batch_t batch = slots.batch();
    batch.stream = static_cast<cudaStream_t>(build_stream);
    return builder.Build(batch);
  };
  Pinned<int64_t> seen(2);
  Gate build_gate, read_gate;
  build_gate.Close(build_stream);
  ASSERT_OK(build(first));
  ASSERT_OK(fwdmeta_meta_reader_begin(builder.meta(), read_stream));  // waits in-stream for the held build
  read_gate.Close(read_stream);
  seen.CopyFrom(builder.Tensor(FWDMETA_FIELD_POSITION_IDS).data, read_stream);
  EXPECT_STATUS(FWDMETA_BUSY, build(second)) << "a reader has begun and not ended";
  ASSERT_OK(fwdmeta_meta_reader_end(builder.meta(), read_stream));
  {
    Graph graph;  // a capture while a reader is pending
    graph.Begin(CaptureStream());
    fwdmeta_batch_t batch = second.batch();
    batch.stream = static_cast<cudaStream_t>(CaptureStream());
    EXPECT_STATUS(FWDMETA_BUSY, fwdmeta_build(builder.handle(), &batch, nullptr, nullptr));
    graph.End();
  }
  ASSERT_OK(build(second));  // returns although the reader is held
  ASSERT_OK(build(third));
  build_gate.Open();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(build_stream)) << "the builds wait for the reader in-stream";
  read_gate.Open();
  read_stream.Wait();
  EXPECT_EQ((std::vector<int64_t>{10, 10}), seen.Values()) << "the reader sees its own step alone";
  build_stream.Wait();
  EXPECT_TRUE(builder.Expect(reference::Build(config, Decodes(2, 30))));
}

TEST_F(Graphs, ReadersOfOneSetDoNotHoldAnother) {
  reference::Config config = ConfigFor(2);
  config.generations = 2;
  Stream build_stream, read_stream;
  Builder builder(kCuda, config);
  Slots slots(Decodes(2, 10));
  fwdmeta_batch_t batch = slots.batch();
  batch.stream = static_cast<cudaStream_t>(build_stream);
  Gate gate;
  ASSERT_OK(builder.Build(batch));
  const fwdmeta_meta_t meta = builder.meta();
  ASSERT_OK(fwdmeta_meta_reader_begin(meta, read_stream));
  gate.Close(read_stream);
  fwdmeta_meta_t other = 0;
  ASSERT_OK(fwdmeta_build(builder.handle(), &batch, &other, nullptr));  // the other set
  build_stream.Wait();                                                  // done while the reader is held
  EXPECT_STATUS(FWDMETA_BUSY, fwdmeta_build(builder.handle(), &batch, nullptr, nullptr));
  gate.Open();
  ASSERT_OK(fwdmeta_meta_reader_end(meta, read_stream));
  EXPECT_OK(fwdmeta_build(builder.handle(), &batch, nullptr, nullptr));
  EXPECT_OK(fwdmeta_meta_destroy(other));
  // At most 16 readers of a set.
  ASSERT_OK(builder.Build(batch));
  for (int i = 0; i < 16; ++i) ASSERT_OK(fwdmeta_meta_reader_begin(builder.meta(), read_stream)) << i;
  EXPECT_STATUS(FWDMETA_BUSY, fwdmeta_meta_reader_begin(builder.meta(), read_stream));
  for (int i = 0; i < 16; ++i) ASSERT_OK(fwdmeta_meta_reader_end(builder.meta(), read_stream)) << i;
  Synchronize(kCuda);
}

// B84 (sglang#23500, #8340, flashinfer#3338): no copy back and no wait, in a thousand steps.
TEST_F(Graphs, B84_ThousandEagerBuilds) {
  Stream stream;
  Builder builder(kCuda, ConfigFor(64));
  Slots slots(Decodes(64, 100));
  const int allocations = builder.allocations();
  for (int i = 0; i < 1000; ++i) {
    fwdmeta_batch_t batch = slots.batch();
    const reference::Batch host = Decodes(64, i % 400);
    if (i % 2 == 1) batch = builder.inputs().Put(host, FWDMETA_MEMORY_HOST);
    batch.stream = static_cast<cudaStream_t>(stream);
    ASSERT_OK(builder.Build(batch)) << i;
  }
  EXPECT_EQ(allocations, builder.allocations());
  stream.Wait();
  EXPECT_TRUE(builder.Expect(reference::Build(builder.config(), Decodes(64, 999 % 400))));

  // Device lengths are never waited for: many builds behind a held stream, with a mirror of 4 steps. (The driver's
  // launch queue holds about a thousand.)
  Gate gate;
  gate.Close(stream);
  fwdmeta_batch_t batch = slots.batch();
  batch.stream = static_cast<cudaStream_t>(stream);
  for (int i = 0; i < 300; ++i) ASSERT_OK(builder.Build(batch)) << i;
  EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(stream));
  gate.Open();
  stream.Wait();
  EXPECT_TRUE(builder.Expect(reference::Build(builder.config(), Decodes(64, 100))));
}

TEST_F(Graphs, DefaultAndPerThreadStreams) {
  Stream blocking(cudaStreamDefault);
  Builder builder(kCuda, ConfigFor(8));
  for (cudaStream_t stream :
       {cudaStream_t{nullptr}, cudaStreamLegacy, cudaStreamPerThread, static_cast<cudaStream_t>(blocking)}) {
    builder.stream = stream;
    ASSERT_TRUE(builder.Run(Decodes(8, 1))) << stream;
    ASSERT_TRUE(builder.Run(Decodes(3, 2), FWDMETA_MEMORY_HOST)) << stream;
    ASSERT_OK(fwdmeta_builder_reset(builder.handle(), stream));
    builder.ForgetExtents();
  }
}

// The default stream cannot be used while a blocking stream of the thread is captured: a status, and the capture lives.
TEST_F(Graphs, DefaultStreamBesideACapture) {
  Stream blocking(cudaStreamDefault);
  Builder builder(kCuda, ConfigFor(8));
  Slots slots(Decodes(8));
  Graph graph;
  graph.Begin(blocking);
  fwdmeta_batch_t batch = slots.batch();
  EXPECT_NE(Name(FWDMETA_OK), Name(fwdmeta_build(builder.handle(), &batch, nullptr, nullptr)));
  batch.stream = static_cast<cudaStream_t>(blocking);
  EXPECT_OK(fwdmeta_build(builder.handle(), &batch, nullptr, nullptr));
  graph.End();
  EXPECT_EQ(std::make_pair(1, 1), graph.Nodes());
  graph.Launch();
  blocking.Wait();
  EXPECT_OK(fwdmeta_replay_wait(builder.handle(), 1, FWDMETA_WAIT_FINAL, 20000000, nullptr));
  cudaGetLastError();
}

// ---- advance

TEST_F(Graphs, ACapturedAdvanceIsOneNode) {
  Stream stream;
  Builder builder(kCuda, ConfigFor(3000));
  Buffer lengths(kCuda, 9000 * sizeof(int32_t));
  fwdmeta_advance_args_t args = FWDMETA_ADVANCE_ARGS_INITIALIZER;
  args.batch_size = 3000;
  args.seq_lens_encoder = static_cast<int32_t*>(lengths.data());
  args.seq_lens_decoder = args.seq_lens_encoder + 3000;
  args.seq_lens_this_time = args.seq_lens_encoder + 6000;
  args.stream = static_cast<cudaStream_t>(stream);
  Graph graph;
  graph.Begin(stream);
  ASSERT_OK(fwdmeta_advance(builder.handle(), &args));
  graph.End();
  EXPECT_EQ(std::make_pair(1, 1), graph.Nodes());
}

TEST_F(Graphs, CapturedStepsHaveNoReadersAndResetsWaitForThem) {
  reference::Config config = ConfigFor(8);
  config.generations = 2;
  Builder builder(kCuda, config);
  Captured captured(builder, Decodes(8));
  ASSERT_FALSE(HasFailure());
  Stream reader;
  for (int i = 0; i < 20; ++i) {
    EXPECT_STATUS(FWDMETA_UNAVAILABLE, fwdmeta_meta_reader_begin(captured.meta(), reader));
  }
  ASSERT_TRUE(builder.Run(Decodes(3), FWDMETA_MEMORY_DEVICE, 1));
  ASSERT_OK(fwdmeta_meta_reader_begin(builder.meta(), reader));
  EXPECT_STATUS(FWDMETA_BUSY, fwdmeta_builder_reset(builder.handle(), nullptr));
  ASSERT_OK(fwdmeta_meta_reader_end(builder.meta(), reader));
  EXPECT_OK(fwdmeta_builder_reset(builder.handle(), nullptr));
  Synchronize(kCuda);
}

// The stream of a build may go before its builder does.
TEST_F(Graphs, StreamsMayGoFirst) {
  std::vector<fwdmeta_group_config_t> groups;
  for (bool own_allocators : {false, true}) {
    CountingAllocator device(Memory::kDevice), pinned(Memory::kPinned);
    fwdmeta_config_t c = ToC(ConfigFor(8), kCuda, &groups);
    if (own_allocators) {
      c.device_allocator = device.Get();
      c.pinned_allocator = pinned.Get();
    }
    fwdmeta_builder_t builder = 0;
    ASSERT_OK(fwdmeta_builder_create(&c, &builder));
    Slots slots(Decodes(8));
    for (int i = 0; i < 3; ++i) {
      Stream stream;
      fwdmeta_batch_t batch = slots.batch();
      batch.stream = static_cast<cudaStream_t>(stream);
      ASSERT_OK(fwdmeta_build(builder, &batch, nullptr, nullptr));
      stream.Wait();
    }
    EXPECT_OK(fwdmeta_builder_destroy(builder));
    EXPECT_TRUE(device.WaitUntilEmpty());
    EXPECT_TRUE(pinned.WaitUntilEmpty());
  }
}

// A build that CUDA refuses takes no step and no staging entry.
TEST_F(Graphs, ARefusedBuildLeavesTheRingAsItWas) {
  reference::Config config = ConfigFor(8);
  config.depth = 2;
  for (const fwdmeta_memory_kind_t before : {FWDMETA_MEMORY_DEVICE, FWDMETA_MEMORY_HOST}) {
    Builder builder(kCuda, config);
    ASSERT_TRUE(builder.Run(Decodes(2), before));
    ASSERT_TRUE(builder.Run(Decodes(3), before));
    const int64_t step = builder.step();
    Stream blocking(cudaStreamDefault);
    Graph graph;
    graph.Begin(blocking);  // the default stream cannot be used now
    const reference::Batch four = Decodes(4);
    fwdmeta_batch_t batch = builder.inputs().Put(four, FWDMETA_MEMORY_HOST);
    EXPECT_NE(Name(FWDMETA_OK), Name(fwdmeta_build(builder.handle(), &batch, nullptr, nullptr)));
    graph.End();
    cudaGetLastError();
    fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
    EXPECT_OK(fwdmeta_counts_wait(builder.handle(), step, FWDMETA_WAIT_FINAL, 0, &counts));
    EXPECT_OK(fwdmeta_counts_wait(builder.handle(), step - 1, FWDMETA_WAIT_FINAL, 0, &counts));
    batch.flags = FWDMETA_BUILD_NO_WAIT;
    int64_t next = 0;
    EXPECT_OK(fwdmeta_build(builder.handle(), &batch, nullptr, &next));
    EXPECT_EQ(step + 1, next);
    EXPECT_OK(fwdmeta_counts_wait(builder.handle(), next, FWDMETA_WAIT_FINAL, 20000000, &counts));
  }
}

// A decode loop without the host: build, then advance, in one graph.
TEST_F(Graphs, ReplayedDecodeLoop) {
  reference::Config config = ConfigFor(40);
  config.max_model_len = 120;
  Stream stream;
  Builder builder(kCuda, config);
  reference::Batch batch;
  for (int b = 0; b < 40; ++b) {
    batch.encoder.push_back(b % 4 == 0 ? 1 + b % 3 : 0);
    batch.decoder.push_back(b * 3 % 118);
    batch.this_time.push_back(b % 4 == 0 ? 1 + b % 3 : b % 7 != 0);
  }
  Slots slots(batch);
  reference::Advance advance;
  advance.num_draft_tokens = 1;
  for (int b = 0; b < 40; ++b) advance.num_rejected.push_back(b % 3 == 0);
  Buffer rejected(kCuda, 40 * sizeof(int32_t));
  Upload(kCuda, rejected.data(), advance.num_rejected.data(), 40 * sizeof(int32_t));
  Graph graph;
  graph.Begin(stream);
  fwdmeta_batch_t args = slots.batch();
  args.stream = static_cast<cudaStream_t>(stream);
  fwdmeta_meta_t meta = 0;
  ASSERT_OK(fwdmeta_build(builder.handle(), &args, &meta, nullptr));
  fwdmeta_advance_args_t next = FWDMETA_ADVANCE_ARGS_INITIALIZER;
  next.batch_size = 40;
  next.seq_lens_encoder = const_cast<int32_t*>(args.seq_lens_encoder);
  next.seq_lens_decoder = const_cast<int32_t*>(args.seq_lens_decoder);
  next.seq_lens_this_time = const_cast<int32_t*>(args.seq_lens_this_time);
  next.num_rejected = static_cast<int32_t*>(rejected.data());
  next.num_draft_tokens = 1;
  next.stream = static_cast<cudaStream_t>(stream);
  ASSERT_OK(fwdmeta_advance(builder.handle(), &next));
  graph.End();
  EXPECT_EQ(std::make_pair(2, 2), graph.Nodes());
  bool clamped = false;
  for (int64_t step = 1; step <= 130; ++step) {
    graph.Launch();
    reference::Result want = reference::Build(config, batch);
    if (clamped) {
      want.counts.warnings |= FWDMETA_WARNING_REJECTED_CLAMPED;
      want.fields[FWDMETA_FIELD_COUNTS][15] = want.counts.warnings;
    }
    fwdmeta_counts_t got = FWDMETA_COUNTS_INITIALIZER;
    const fwdmeta_status_t status = fwdmeta_replay_wait(builder.handle(), step, FWDMETA_WAIT_FINAL, 20000000, &got);
    ASSERT_TRUE(Builder::ExpectCounts(want, status, got)) << step;
    stream.Wait();
    ASSERT_TRUE(builder.ExpectArrays(meta, want, step)) << step;
    const reference::Advanced advanced = reference::AdvanceLengths(config, advance, &batch);
    clamped = advanced.clamped;
    fwdmeta_advance_counts_t counts = FWDMETA_ADVANCE_COUNTS_INITIALIZER;
    ASSERT_OK(fwdmeta_advance_wait(builder.handle(), step, 20000000, &counts));
    EXPECT_EQ(step, counts.advance);
    EXPECT_EQ(advanced.num_length_limited, counts.num_length_limited);
  }
  fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
  EXPECT_OK(fwdmeta_replay_wait(builder.handle(), 130, 0, 0, &counts));
  EXPECT_EQ(0, counts.num_live) << "every slot has come to the model length";
  EXPECT_OK(fwdmeta_meta_destroy(meta));
}

}  // namespace
}  // namespace fwdmeta_test

#endif  // FWDMETA_TEST_CUDA
