// fwdmeta_metrics_write: a valid Prometheus exposition, and each counter counts what its HELP says.
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fwdmeta_context.h"
#include "harness.h"

#if FWDMETA_TEST_CUDA
#include <cuda_runtime_api.h>
#endif

namespace fwdmeta_test {
namespace {

std::string Written() {
  std::string text;
  const auto append = [](const char* data, size_t size, void* user) -> int32_t {
    static_cast<std::string*>(user)->append(data, size);
    return 0;
  };
  EXPECT_OK(fwdmeta_metrics_write(append, &text));
  return text;
}

// A reader of the text format 0.0.4 as strict as this library's output has to be: for each metric one HELP, one TYPE
// and at least one sample, in this order and together; integers as values; no comment, blank line or timestamp.
class Exposition {
 public:
  explicit Exposition(const std::string& text) : text_(text) {
    while (at_ < text_.size() && ok_) Family();
  }

  bool ok() const { return ok_; }
  const std::string& error() const { return error_; }
  const std::map<std::string, std::string>& types() const { return types_; }
  const std::map<std::string, int64_t>& samples() const { return samples_; }

 private:
  using Accept = bool (*)(char, bool first);

  static bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
  static bool IsDigit(char c) { return c >= '0' && c <= '9'; }
  static bool InMetricName(char c, bool first) { return IsLetter(c) || c == ':' || (!first && IsDigit(c)); }
  static bool InLabelName(char c, bool first) { return IsLetter(c) || (!first && IsDigit(c)); }

  void Fail(const std::string& what) {
    if (ok_) error_ = what + " at: " + text_.substr(at_, 60);
    ok_ = false;
  }
  bool Next(const std::string& token) const { return text_.compare(at_, token.size(), token) == 0; }
  void Take(const std::string& token) {
    if (!Next(token)) return Fail("expected \"" + token + "\"");
    at_ += token.size();
  }
  std::string Word(Accept accept) {
    const size_t begin = at_;
    while (at_ < text_.size() && accept(text_[at_], at_ == begin)) ++at_;
    if (at_ == begin) Fail("expected a name");
    return text_.substr(begin, at_ - begin);
  }

  void Family() {
    Take("# HELP ");
    const std::string name = Word(InMetricName);
    Take(" ");
    const size_t end = text_.find('\n', at_);
    if (end == std::string::npos || end == at_) return Fail("expected a help text and a line's end");
    for (; at_ < end; ++at_) {
      if (text_[at_] != '\\') continue;
      ++at_;
      if (text_[at_] != '\\' && text_[at_] != 'n') return Fail("unknown escape");
    }
    Take("\n# TYPE " + name + " ");
    const std::string type = Next("counter\n") ? "counter" : "gauge";
    Take(type + "\n");
    if (!types_.emplace(name, type).second) return Fail(name + " stands twice");
    size_t count = 0;
    for (; ok_ && at_ < text_.size() && !Next("#"); ++count) Sample(name);
    if (count == 0) Fail(name + " has no sample");
  }

  void Sample(const std::string& family) {
    const size_t begin = at_;
    if (Word(InMetricName) != family) return Fail("a sample of another metric than " + family);
    std::set<std::string> labels;
    if (Next("{")) {
      const char* before = "{";
      do {
        Take(before);
        if (!labels.insert(Word(InLabelName)).second) return Fail("a label stands twice");
        Take("=\"");
        for (; ok_ && !Next("\""); ++at_) {
          if (at_ >= text_.size() || text_[at_] == '\n') return Fail("a label's value does not end");
          if (text_[at_] == '\\' && std::string("\\\"n").find(text_[++at_]) == std::string::npos)
            Fail("unknown escape");
        }
        Take("\"");
        before = ",";
      } while (ok_ && Next(","));
      Take("}");
    }
    const std::string key = text_.substr(begin, at_ - begin);
    Take(" ");
    const bool negative = Next("-");
    if (negative) ++at_;
    int64_t value = 0;
    const size_t digits = at_;
    for (; at_ < text_.size() && IsDigit(text_[at_]); ++at_) value = value * 10 + (text_[at_] - '0');
    if (at_ == digits || at_ - digits > 18) return Fail("expected an integer");
    Take("\n");
    if (!samples_.emplace(key, negative ? -value : value).second) Fail(key + " stands twice");
  }

  const std::string text_;
  size_t at_ = 0;
  bool ok_ = true;
  std::string error_;
  std::map<std::string, std::string> types_;
  std::map<std::string, int64_t> samples_;
};

std::map<std::string, int64_t> Metrics() {
  const Exposition exposition(Written());
  EXPECT_TRUE(exposition.ok()) << exposition.error();
  return exposition.samples();
}

// What has changed since `before`, without what has not.
std::map<std::string, int64_t> Since(const std::map<std::string, int64_t>& before) {
  std::map<std::string, int64_t> changes;
  for (const auto& [key, value] : Metrics()) {
    if (value != before.at(key)) changes[key] = value - before.at(key);
  }
  return changes;
}

using Changes = std::map<std::string, int64_t>;

// Where no builder lives: whether all memory is free before long. The CUDA backend's is freed by another thread.
bool NoMemoryLives() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (;;) {
    const auto now = Metrics();
    int64_t bytes = 0;
    for (const char* kind : {"host", "device", "pinned"}) {
      bytes += now.at("fwdmeta_memory_bytes{memory=\"" + std::string(kind) + "\"}");
    }
    if (bytes == 0 || std::chrono::steady_clock::now() > end) return bytes == 0;
    std::this_thread::yield();
  }
}

reference::Config SmallConfig() {
  reference::Config config;
  config.max_batch_size = 8;
  config.max_num_tokens = 64;
  config.max_model_len = 256;
  return config;
}

class Metric : public BackendTest {
 protected:
  std::string Builds(const char* lengths, const char* mode = "eager") const {
    const std::string name = backend() == FWDMETA_BACKEND_CUDA ? "cuda" : "host";
    return "fwdmeta_builds_total{backend=\"" + name + "\",lengths=\"" + lengths + "\",mode=\"" + mode + "\"}";
  }
};
INSTANTIATE_BACKENDS(Metric);

TEST(Metrics, TheReaderRefusesWhatIsNoExposition) {
  const std::string good = "# HELP a_total Text.\n# TYPE a_total counter\na_total{b=\"c\"} 1\n";
  EXPECT_TRUE(Exposition(good).ok()) << Exposition(good).error();
  for (const char* bad :
       {"a_total 1\n", "# HELP a_total Text.\na_total 1\n", "# HELP a Text.\n# TYPE a counter\n",
        "# HELP a Text.\n# TYPE a summary\na 1\n", "# HELP a Text.\n# TYPE b counter\nb 1\n",
        "# HELP a Text.\n# TYPE a gauge\na 1", "# HELP a Text.\n# TYPE a gauge\na{} 1\n",
        "# HELP a Text.\n# TYPE a gauge\na{b=\"c} 1\n", "# HELP a Text.\n# TYPE a gauge\na{b=\"c\",b=\"d\"} 1\n",
        "# HELP a Text.\n# TYPE a gauge\na{1b=\"c\"} 1\n", "# HELP a Text.\n# TYPE a gauge\na 1\na 2\n",
        "# HELP a Text.\n# TYPE a gauge\na 1.5\n", "# HELP a Text.\n# TYPE a gauge\nb 1\n",
        "# HELP a \\q.\n# TYPE a gauge\na 1\n", "# HELP a Text.\n# TYPE a gauge\n\na 1\n"}) {
    EXPECT_FALSE(Exposition(bad).ok()) << bad;
  }
}

TEST(Metrics, AreAValidExposition) {
  const Exposition exposition(Written());
  ASSERT_TRUE(exposition.ok()) << exposition.error();
  EXPECT_EQ((std::map<std::string, std::string>{{"fwdmeta_builds_total", "counter"},
                                                {"fwdmeta_errors_total", "counter"},
                                                {"fwdmeta_host_waits_total", "counter"},
                                                {"fwdmeta_live_handles", "gauge"},
                                                {"fwdmeta_memory_bytes", "gauge"}}),
            exposition.types());
  std::set<std::string> keys;
  for (const auto& [key, value] : exposition.samples()) {
    keys.insert(key);
    EXPECT_GE(value, 0) << key;
  }
  std::set<std::string> wanted = {"fwdmeta_host_waits_total"};
  for (const char* build : {"host\",lengths=\"device\",mode=\"eager", "host\",lengths=\"host\",mode=\"eager",
                            "cuda\",lengths=\"device\",mode=\"eager", "cuda\",lengths=\"host\",mode=\"eager",
                            "cuda\",lengths=\"device\",mode=\"captured"}) {
    wanted.insert("fwdmeta_builds_total{backend=\"" + std::string(build) + "\"}");
  }
  for (fwdmeta_status_t status = 1; status < FWDMETA_STATUS_COUNT; ++status) {
    wanted.insert("fwdmeta_errors_total{status=\"" + std::string(fwdmeta_status_name(status)) + "\"}");
  }
  for (const char* kind : {"device", "pinned", "host"}) {
    wanted.insert("fwdmeta_memory_bytes{memory=\"" + std::string(kind) + "\"}");
  }
  for (const char* type : {"builder", "meta", "dispatcher", "transport", "slicer", "layers", "context"}) {
    wanted.insert("fwdmeta_live_handles{type=\"" + std::string(type) + "\"}");
  }
  EXPECT_EQ(wanted, keys);
}

TEST(Metrics, AreWrittenAsFarAsTheCallbackWants) {
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_metrics_write(nullptr, nullptr));
  int calls = 0;
  const auto stop = [](const char*, size_t, void* user) -> int32_t { return ++*static_cast<int*>(user); };
  EXPECT_STATUS(FWDMETA_UNAVAILABLE, fwdmeta_metrics_write(stop, &calls));
  EXPECT_EQ(1, calls);
}

TEST(Metrics, CountErrorsByStatus) {
  const auto before = Metrics();
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_builder_destroy(77));
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_meta_destroy(77));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_log_set_level(99));
  EXPECT_OK(fwdmeta_builder_destroy(0));
  EXPECT_EQ((Changes{{"fwdmeta_errors_total{status=\"INVALID_HANDLE\"}", 2},
                     {"fwdmeta_errors_total{status=\"INVALID_ARGUMENT\"}", 1}}),
            Since(before));
}

TEST(Metrics, CountHandlesOfTheForwardContext) {
  const auto before = Metrics();
  fwdmeta_dispatcher_config_t config = FWDMETA_DISPATCHER_CONFIG_INITIALIZER;
  config.max_num_seqs = 4;
  config.max_num_tokens = 64;
  fwdmeta_dispatcher_t dispatcher = 0;
  ASSERT_OK(fwdmeta_dispatcher_create(&config, &dispatcher));
  fwdmeta_layers_t layers = 0;
  ASSERT_OK(fwdmeta_layers_create(&layers));
  EXPECT_EQ((Changes{{"fwdmeta_live_handles{type=\"dispatcher\"}", 1}, {"fwdmeta_live_handles{type=\"layers\"}", 1}}),
            Since(before));
  EXPECT_OK(fwdmeta_dispatcher_destroy(dispatcher));
  EXPECT_OK(fwdmeta_layers_destroy(layers));
  EXPECT_EQ(Changes{}, Since(before));
}

TEST_P(Metric, CountsSuccessfulBuildsByTheMemoryOfTheirLengths) {
  Builder builder(backend(), SmallConfig());
  const reference::Batch batch = MakeBatch({{0, 10, 2}, {3, 0, 3}});
  auto before = Metrics();
  ASSERT_OK(builder.Build(batch, FWDMETA_MEMORY_DEVICE));
  EXPECT_EQ(1, Since(before)[Builds("device")]);
  before = Metrics();
  for (int i = 0; i < 3; ++i) ASSERT_OK(builder.Build(batch, FWDMETA_MEMORY_HOST));
  EXPECT_EQ(3, Since(before)[Builds("host")]);
  before = Metrics();
  const reference::Batch wrong = MakeBatch({{4, 0, 3}});
  EXPECT_STATUS(FWDMETA_INVALID_BATCH, builder.Build(wrong, FWDMETA_MEMORY_HOST));
  EXPECT_EQ((Changes{{"fwdmeta_errors_total{status=\"INVALID_BATCH\"}", 1}}), Since(before)) << "no build, an error";
  // With device lengths the build succeeds, and whoever reads its counts gets the error.
  ASSERT_OK(builder.Build(wrong, FWDMETA_MEMORY_DEVICE));
  EXPECT_STATUS(FWDMETA_INVALID_BATCH, fwdmeta_counts_wait(builder.handle(), builder.step(), 0, -1, nullptr));
  const Changes changes = Since(before);
  EXPECT_EQ(1, changes.at(Builds("device")));
  EXPECT_EQ(2, changes.at("fwdmeta_errors_total{status=\"INVALID_BATCH\"}"));
}

TEST_P(Metric, CountsABuildForEachSlice) {
  std::vector<fwdmeta_group_config_t> groups;
  const fwdmeta_config_t config = ToC(SmallConfig(), backend(), &groups);
  const auto before = Metrics();
  fwdmeta_slicer_t slicer = 0;
  ASSERT_OK(fwdmeta_slicer_create(&config, 2, &slicer));
  Inputs inputs(backend());
  const reference::Batch source = MakeBatch({{0, 10, 2}, {4, 0, 4}});
  const fwdmeta_batch_t batch = inputs.Put(source, FWDMETA_MEMORY_HOST);
  ASSERT_OK(fwdmeta_build_slices(slicer, &batch, 2, FWDMETA_DEFAULT, nullptr));
  Changes changes = Since(before);
  EXPECT_EQ(2, changes[Builds("host")]);
  EXPECT_EQ(1, changes["fwdmeta_live_handles{type=\"slicer\"}"]);
  EXPECT_EQ(2, changes["fwdmeta_live_handles{type=\"builder\"}"]);
  Synchronize(backend());
  EXPECT_OK(fwdmeta_slicer_destroy(slicer));
  changes = Since(before);
  EXPECT_EQ(0u, changes.count("fwdmeta_live_handles{type=\"slicer\"}"));
  EXPECT_EQ(0u, changes.count("fwdmeta_live_handles{type=\"builder\"}"));
}

TEST_P(Metric, HaveTheHandlesAndTheMemoryThatLive) {
  std::vector<fwdmeta_group_config_t> groups;
  const fwdmeta_config_t config = ToC(SmallConfig(), backend(), &groups);
  fwdmeta_capacities_t capacities = FWDMETA_CAPACITIES_INITIALIZER;
  ASSERT_OK(fwdmeta_get_capacities(&config, nullptr, &capacities));
  ASSERT_TRUE(NoMemoryLives()) << "what earlier tests have destroyed is freed soon";
  const auto before = Metrics();
  fwdmeta_builder_t builder = 0;
  ASSERT_OK(fwdmeta_builder_create(&config, &builder));
  Changes wanted = {{"fwdmeta_live_handles{type=\"builder\"}", 1}};
  for (const auto& [kind, bytes] :
       {std::pair("device", capacities.device_bytes), std::pair("pinned", capacities.pinned_bytes),
        std::pair("host", capacities.host_bytes)}) {
    if (bytes > 0) wanted["fwdmeta_memory_bytes{memory=\"" + std::string(kind) + "\"}"] = bytes;
  }
  EXPECT_EQ(wanted, Since(before));

  Inputs inputs(backend());
  const reference::Batch source = MakeBatch({{0, 10, 2}});
  const fwdmeta_batch_t batch = inputs.Put(source, FWDMETA_MEMORY_DEVICE);
  fwdmeta_meta_t metas[2] = {};
  for (fwdmeta_meta_t& meta : metas) ASSERT_OK(fwdmeta_build(builder, &batch, &meta, nullptr));
  EXPECT_EQ(2, Since(before)["fwdmeta_live_handles{type=\"meta\"}"]);
  EXPECT_OK(fwdmeta_meta_destroy(metas[0]));
  EXPECT_EQ(1, Since(before)["fwdmeta_live_handles{type=\"meta\"}"]);
  Synchronize(backend());
  EXPECT_OK(fwdmeta_builder_destroy(builder));
  Changes changes = Since(before);
  EXPECT_EQ(0u, changes.count("fwdmeta_live_handles{type=\"builder\"}"));
  EXPECT_EQ(capacities.host_bytes, changes["fwdmeta_memory_bytes{memory=\"host\"}"]) << "a meta holds the memory";
  EXPECT_OK(fwdmeta_meta_destroy(metas[1]));
  EXPECT_TRUE(NoMemoryLives());
}

TEST_P(Metric, CountsHostWaitsOfAllBuilders) {
  const auto before = Metrics();
  Builder builder(backend(), SmallConfig());
  const reference::Batch batch = MakeBatch({{0, 10, 2}});
  for (int i = 0; i < 200; ++i) ASSERT_OK(builder.Build(batch, FWDMETA_MEMORY_HOST));
  fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
  ASSERT_OK(fwdmeta_builder_get_info(builder.handle(), &info));
  EXPECT_EQ(info.host_waits, Since(before)["fwdmeta_host_waits_total"]);
}

// Counters lose nothing when threads build at once.
TEST(Metrics, CountOverAllThreads) {
  constexpr int kThreads = 4, kBuilds = 500;
  const auto before = Metrics();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([] {
      std::vector<fwdmeta_group_config_t> groups;
      const fwdmeta_config_t config = ToC(SmallConfig(), FWDMETA_BACKEND_HOST, &groups);
      fwdmeta_builder_t builder = 0;
      EXPECT_OK(fwdmeta_builder_create(&config, &builder));
      Inputs inputs(FWDMETA_BACKEND_HOST);
      const reference::Batch source = MakeBatch({{0, 10, 2}});
      const fwdmeta_batch_t batch = inputs.Put(source, FWDMETA_MEMORY_HOST);
      for (int i = 0; i < kBuilds; ++i) {
        fwdmeta_meta_t meta = 0;
        EXPECT_OK(fwdmeta_build(builder, &batch, &meta, nullptr));
        EXPECT_OK(fwdmeta_meta_destroy(meta));
        EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_meta_destroy(meta));
      }
      EXPECT_OK(fwdmeta_builder_destroy(builder));
    });
  }
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(Exposition(Written()).ok());
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ((Changes{{"fwdmeta_builds_total{backend=\"host\",lengths=\"host\",mode=\"eager\"}", kThreads * kBuilds},
                     {"fwdmeta_errors_total{status=\"INVALID_HANDLE\"}", kThreads * kBuilds}}),
            Since(before));
}

#if FWDMETA_TEST_CUDA
TEST(Metrics, CountACapturedBuildOnceAndItsReplaysNever) {
  FWDMETA_SKIP_WITHOUT(FWDMETA_BACKEND_CUDA);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Builder builder(FWDMETA_BACKEND_CUDA, SmallConfig());
  const reference::Batch source = MakeBatch({{0, 10, 2}});
  fwdmeta_batch_t batch = builder.inputs().Put(source, FWDMETA_MEMORY_DEVICE);
  batch.stream = stream;
  const auto before = Metrics();
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaSuccess, cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  EXPECT_OK(fwdmeta_build(builder.handle(), &batch, nullptr, nullptr));
  Written();
  ASSERT_EQ(cudaSuccess, cudaStreamEndCapture(stream, &graph)) << "the capture was broken";
  cudaGraphExec_t replay = nullptr;
  ASSERT_EQ(cudaSuccess, cudaGraphInstantiate(&replay, graph, 0));
  for (int i = 0; i < 3; ++i) ASSERT_EQ(cudaSuccess, cudaGraphLaunch(replay, stream));
  ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(stream));
  EXPECT_EQ((Changes{{"fwdmeta_builds_total{backend=\"cuda\",lengths=\"device\",mode=\"captured\"}", 1}}),
            Since(before));
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}
#endif

}  // namespace
}  // namespace fwdmeta_test
