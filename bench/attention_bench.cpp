// fwdmeta_attention_bench: the attention kernels of examples/attention. Decode attention against the bandwidth of a
// copy, and, on ragged lengths, the grid that the mapping gives against a naive one of slots times the longest slot,
// with the same kernels. Each variant is checked with dense attention before it is timed. Takes Google Benchmark's
// flags.
#include <attention.h>
#include <benchmark/benchmark.h>
#include <dense_truth.h>
#include <layer.h>
#include <synthetic.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <random>

namespace fwdmeta_bench {
namespace {

using attention::DeviceArray;
using attention::Dtype;
using attention::Grid;
using attention::Kind;
using attention::Layer;
using attention::LayerShape;
using attention::Step;

constexpr int kSlots = 64, kCallsTimed = 5;
constexpr int64_t kStepTokens = 8192, kChunk = 512;

// Seconds of one call on the GPU.
template <class Call>
double Time(cudaStream_t stream, const Call& call) {
  static cudaEvent_t begin = nullptr, end = nullptr;
  if (begin == nullptr) {
    ATTENTION_CUDA(cudaEventCreate(&begin));
    ATTENTION_CUDA(cudaEventCreate(&end));
  }
  call();
  ATTENTION_CUDA(cudaEventRecord(begin, stream));
  for (int i = 0; i < kCallsTimed; ++i) call();
  ATTENTION_CUDA(cudaEventRecord(end, stream));
  ATTENTION_CUDA(cudaEventSynchronize(end));
  float milliseconds = 0;
  ATTENTION_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
  return milliseconds * 1e-3 / kCallsTimed;
}

const char* DtypeName(Dtype dtype) { return dtype == Dtype::kBf16 ? "bf16" : "fp16"; }

struct Kernels {
  Dtype dtype;
  int head_dim, group, num_kv_heads;
  std::string name() const {
    return std::string(DtypeName(dtype)) + "_d" + std::to_string(head_dim) + "_group" + std::to_string(group);
  }
};

// 64 decoding slots of given lengths, in the cache.
class Slots {
 public:
  Slots(const Kernels& kernels, const std::vector<int32_t>& lengths, int64_t max_model_len)
      : lengths_(lengths), layer_(Shape(kernels, lengths, max_model_len)) {
    config_ = attention::builder_config(layer_.shape());
    config_.max_batch_size = kSlots;
    columns_ = fwdmeta::capacities(config_).block_table_width[0];
    std::mt19937_64 random(std::random_device{}());
    std::vector<int32_t> pages(layer_.shape().num_pages), table(kSlots * columns_, -1);
    for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int32_t>(i);
    std::shuffle(pages.begin(), pages.end(), random);
    for (int b = 0; b < kSlots; ++b) {
      for (int64_t i = 0; i < Pages(lengths[b], layer_.shape().page_size); ++i) {
        table[b * columns_ + i] = pages.back();
        pages.pop_back();
      }
      host_seeds_.push_back(random());
    }
    table_ = DeviceArray<int32_t>(table);
    seeds_ = DeviceArray<uint64_t>(host_seeds_);

    fwdmeta::Builder builder(config_);
    layer_.set_on(builder, table_.data(), kSlots, columns_);
    const Grid grid = attention::make_grid(config_, kSlots, kStepTokens, 1);
    std::vector<int32_t> cached(lengths);
    for (int32_t& length : cached) --length;
    attention::write_cached(layer_, builder, grid, Rows(), seeds_.data(), cached, kStepTokens, stream_.get());
    stream_.synchronize();
  }

  // The step's metadata by a builder of this kind; it has one new token a slot, which is in the cache afterwards.
  struct Built {
    fwdmeta::Config config;
    fwdmeta::Builder builder;
    fwdmeta::Meta meta;
    fwdmeta::Counts counts;
    Step step;
    Grid grid;
  };
  std::unique_ptr<Built> Build(fwdmeta_attention_t kind, int64_t chunk) {
    auto built = std::make_unique<Built>();
    built->config = config_;
    built->config.attention = kind;
    built->config.mla_chunk_size = chunk;
    built->builder = fwdmeta::Builder(built->config);
    layer_.set_on(built->builder, table_.data(), kSlots, columns_);
    std::vector<int32_t> encoder(kSlots, 0), decoder(lengths_), this_time(kSlots, 1);
    for (int32_t& length : decoder) --length;
    fwdmeta::Batch batch;
    batch.memory_kind = FWDMETA_MEMORY_HOST;
    batch.batch_size = kSlots;
    batch.seq_lens_encoder = encoder.data();
    batch.seq_lens_decoder = decoder.data();
    batch.seq_lens_this_time = this_time.data();
    const fwdmeta_rows_t rows = Rows();
    batch.num_block_tables = 1;
    batch.block_tables = &rows;
    batch.stream = stream_.get();
    built->meta = built->builder.build(batch);
    built->counts = built->meta.wait(-1, FWDMETA_WAIT_FINAL);
    built->step = attention::read_step(built->meta, layer_.shape().num_q_heads);
    built->grid = attention::make_grid(built->config, kSlots, kSlots, 1);
    layer_.reserve(built->grid, kind);
    layer_.make_tokens(built->step, seeds_.data(), kSlots, stream_.get());
    attention::write_kv(built->step, layer_.tokens(), built->grid, stream_.get());
    stream_.synchronize();
    return built;
  }

  // Poisons the output, calls, and compares two slots with dense attention; the error, NaN where a row is unwritten.
  template <class Call>
  double Error(const Call& call) {
    layer_.out().fill(0xff);
    call();
    stream_.synchronize();
    if (!truth_) truth_ = std::make_unique<attention::DenseTruth>(stream_.get());
    const auto longest = std::max_element(lengths_.begin(), lengths_.end()) - lengths_.begin();
    const LayerShape& s = layer_.shape();
    double difference = 0, want = 0;
    for (const int64_t slot : {int64_t{0}, int64_t{longest}}) {
      const int64_t keys = lengths_[slot];
      const auto make = [&](Kind kind, int64_t first, int64_t count, int heads) {
        DeviceArray<uint16_t> values(count * heads * s.head_dim);
        attention::make_sequence(s.dtype, kind, host_seeds_[slot], first, count, heads, s.head_dim, values.data(),
                                 stream_.get());
        return values;
      };
      const auto q = make(Kind::kQuery, keys - 1, 1, s.num_q_heads), k = make(Kind::kKey, 0, keys, s.num_kv_heads),
                 v = make(Kind::kValue, 0, keys, s.num_kv_heads);
      const float* out = truth_->attend({s.dtype, s.head_dim, s.num_kv_heads, s.num_q_heads / s.num_kv_heads, keys, 1,
                                         q.data(), k.data(), v.data(), true});
      const int64_t size = layer_.out_stride() / 2;
      const auto norms = truth_->compare(s.dtype, layer_.out().data() + slot * size, out, size);
      difference += norms.difference;
      want += norms.want;
    }
    return std::sqrt(difference / want);
  }

  int64_t key_bytes() const {
    int64_t keys = 0;
    for (const int32_t length : lengths_) keys += length;
    return keys * layer_.shape().num_kv_heads * layer_.shape().head_dim * 2 * 2;
  }
  const std::vector<int32_t>& lengths() const { return lengths_; }
  Layer& layer() { return layer_; }
  cudaStream_t stream() const { return stream_.get(); }

 private:
  static int64_t Pages(int64_t tokens, int64_t page_size) { return (tokens + page_size - 1) / page_size; }
  static LayerShape Shape(const Kernels& kernels, const std::vector<int32_t>& lengths, int64_t max_model_len) {
    LayerShape shape;
    shape.dtype = kernels.dtype;
    shape.head_dim = kernels.head_dim;
    shape.num_q_heads = kernels.num_kv_heads * kernels.group;
    shape.num_kv_heads = kernels.num_kv_heads;
    for (const int32_t length : lengths) shape.num_pages += Pages(length, shape.page_size);
    shape.num_tokens = kStepTokens;
    shape.num_positions = max_model_len;
    return shape;
  }
  fwdmeta_rows_t Rows() const { return {table_.data(), columns_, columns_, nullptr}; }

  std::vector<int32_t> lengths_;
  attention::Stream stream_;
  Layer layer_;
  fwdmeta::Config config_;
  int64_t columns_ = 0;
  DeviceArray<int32_t> table_;
  std::vector<uint64_t> host_seeds_;
  DeviceArray<uint64_t> seeds_;
  std::unique_ptr<attention::DenseTruth> truth_;
};

// What a thread block would find out for itself without a mapping: every slot has as many chunks as the longest, and a
// block whose chunk its slot does not reach leaves at once. The lists stand for that test.
class NaiveGrid {
 public:
  NaiveGrid(const std::vector<int32_t>& lengths, int64_t longest) {
    const int64_t chunks = (longest + kChunk - 1) / kChunk;
    std::vector<int32_t> slots, tiles, first;
    for (int b = 0; b < kSlots; ++b) {
      first.push_back(static_cast<int32_t>(slots.size()));
      for (int64_t t = 0; t < chunks; ++t) {
        slots.push_back(t * kChunk < lengths[b] ? b : -1);
        tiles.push_back(static_cast<int32_t>(t));
      }
    }
    first.push_back(static_cast<int32_t>(slots.size()));
    size_ = static_cast<int64_t>(slots.size());
    slots_ = DeviceArray<int32_t>(slots);
    tiles_ = DeviceArray<int32_t>(tiles);
    first_ = DeviceArray<int32_t>(first);
  }
  int64_t size() const { return size_; }
  attention::Mapping mapping() const { return {slots_.data(), tiles_.data(), first_.data()}; }

 private:
  int64_t size_;
  DeviceArray<int32_t> slots_, tiles_, first_;
};

struct Results {
  double copy = 0;                        // bytes per second, read and written
  std::map<std::string, double> seconds;  // best of each benchmark
  std::map<std::string, double> bandwidth;
  std::vector<std::string> failures;
};
Results& TheResults() {
  static Results results;
  return results;
}

// A variant on some slots: what has to be kept, and the call.
struct Variant {
  std::shared_ptr<Slots> slots;
  std::shared_ptr<void> keep;
  int64_t blocks = 0;  // of the first launch
  std::function<void()> call;
};
using MakeVariant = std::function<Variant()>;

void Register(const std::string& name, double bound, MakeVariant make) {
  const auto variant = std::make_shared<std::unique_ptr<Variant>>();
  benchmark::RegisterBenchmark(
      name.c_str(),
      [=](benchmark::State& state) {
        try {
          if (*variant == nullptr) {
            *variant = std::make_unique<Variant>(make());
            const double error = (*variant)->slots->Error((*variant)->call);
            if (!(error < bound))
              throw std::runtime_error("error " + std::to_string(error) + " against dense attention");
          }
          const Variant& v = **variant;
          double best = 0;
          for (auto _ : state) {
            const double seconds = Time(v.slots->stream(), v.call);
            state.SetIterationTime(seconds);
            best = best == 0 ? seconds : std::min(best, seconds);
          }
          const double bandwidth = static_cast<double>(v.slots->key_bytes()) / best;
          state.counters["GB/s"] = bandwidth * 1e-9;
          state.counters["of_copy"] = bandwidth / TheResults().copy;
          state.counters["blocks"] = static_cast<double>(v.blocks);
          double& kept = TheResults().seconds[name];
          kept = kept == 0 ? best : std::min(kept, best);
          TheResults().bandwidth[name] = static_cast<double>(v.slots->key_bytes()) / kept;
        } catch (const std::exception& error) {
          state.SkipWithError(error.what());
          TheResults().failures.push_back(name + ": " + error.what());
        }
      })
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->Iterations(10);
}

double Bound(Dtype dtype) { return dtype == Dtype::kBf16 ? 1e-2 : 2e-3; }

// Slots that several benchmarks share, made by the first and freed with the last of them.
class SharedSlots {
 public:
  explicit SharedSlots(std::function<std::shared_ptr<Slots>()> make) : make_(std::move(make)) {}
  std::shared_ptr<Slots> Get() {
    if (!slots_) slots_ = make_();
    return slots_;
  }

 private:
  std::function<std::shared_ptr<Slots>()> make_;
  std::shared_ptr<Slots> slots_;
};

// splits: of append attention, 0: as make_grid has them.
Variant Mapped(const std::shared_ptr<Slots>& slots, fwdmeta_attention_t kind, int64_t chunk, int splits = 0) {
  std::shared_ptr<Slots::Built> built = slots->Build(kind, chunk);
  if (splits > 0) built->grid.splits = splits;
  slots->layer().reserve(built->grid, kind);
  Variant variant{slots, built, built->grid.decoder_tiles * built->step.num_kv_heads * built->grid.splits, {}};
  variant.call = [slots, built = built.get(), kind] {
    const Layer& layer = slots->layer();
    (kind == FWDMETA_ATTENTION_MLA ? attention::attend_decode_mla : attention::attend_decode)(
        built->step, layer.tokens(), built->grid, slots->stream(), layer.workspace());
  };
  return variant;
}

Variant Naive(const std::shared_ptr<Slots>& slots, int64_t longest) {
  struct Kept {
    std::unique_ptr<Slots::Built> built;
    NaiveGrid naive;
  };
  auto kept =
      std::make_shared<Kept>(Kept{slots->Build(FWDMETA_ATTENTION_MLA, kChunk), NaiveGrid(slots->lengths(), longest)});
  Slots::Built& built = *kept->built;
  built.step.decoder = kept->naive.mapping();
  built.grid.decoder_tiles = kept->naive.size();
  slots->layer().reserve(built.grid, FWDMETA_ATTENTION_MLA);
  Variant variant{slots, kept, built.grid.decoder_tiles * built.step.num_kv_heads, {}};
  variant.call = [slots, kept = kept.get()] {
    const Layer& layer = slots->layer();
    attention::attend_decode_mla(kept->built->step, layer.tokens(), kept->built->grid, slots->stream(),
                                 layer.workspace());
  };
  return variant;
}

// With the splits that make_grid chooses, and with others.
void RegisterAppend(const std::string& prefix, double bound, const std::shared_ptr<SharedSlots>& slots) {
  for (const int splits : {0, 2, 4, 8, 16}) {
    const std::string suffix = splits == 0 ? "" : "_" + std::to_string(splits) + "_splits";
    Register(prefix + "append" + suffix, bound,
             [=] { return Mapped(slots->Get(), FWDMETA_ATTENTION_APPEND, 0, splits); });
  }
}

void RegisterUniform(const Kernels& kernels, int32_t length) {
  const auto slots = std::make_shared<SharedSlots>(
      [=] { return std::make_shared<Slots>(kernels, std::vector<int32_t>(kSlots, length), length); });
  const std::string prefix = "decode/64x" + std::to_string(length / 1024) + "K/" + kernels.name() + "/";
  const double bound = Bound(kernels.dtype);
  RegisterAppend(prefix, bound, slots);
  Register(prefix + "mla", bound, [=] { return Mapped(slots->Get(), FWDMETA_ATTENTION_MLA, 0); });
}

// Lengths as requests have them: most short, some long.
std::vector<int32_t> RaggedLengths(int32_t longest) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> length(std::log(1200.), 1.2);
  std::vector<int32_t> lengths;
  for (int b = 0; b < kSlots; ++b) {
    lengths.push_back(static_cast<int32_t>(std::clamp(length(random), 16., static_cast<double>(longest))));
  }
  lengths[kSlots / 2] = longest;
  return lengths;
}

constexpr int32_t kRaggedLongest = 32768, kModelLen = 131072;

void RegisterRagged() {
  const Kernels kernels{Dtype::kBf16, 128, 4, 8};
  const auto slots = std::make_shared<SharedSlots>(
      [=] { return std::make_shared<Slots>(kernels, RaggedLengths(kRaggedLongest), kModelLen); });
  const double bound = Bound(kernels.dtype);
  RegisterAppend("ragged/", bound, slots);
  Register("ragged/mla", bound, [=] { return Mapped(slots->Get(), FWDMETA_ATTENTION_MLA, 0); });
  Register("ragged/mla_512", bound, [=] { return Mapped(slots->Get(), FWDMETA_ATTENTION_MLA, kChunk); });
  Register("ragged/naive_512_longest", bound, [=] { return Naive(slots->Get(), kRaggedLongest); });
  Register("ragged/naive_512_model_len", bound, [=] { return Naive(slots->Get(), kModelLen); });
}

double CopyBandwidth() {
  constexpr size_t kBytes = size_t{2} << 30;
  const DeviceArray<char> from(kBytes), to(kBytes);
  const attention::Stream stream;
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    const double seconds = Time(stream.get(), [&] {
      ATTENTION_CUDA(cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, stream.get()));
    });
    best = std::max(best, 2 * static_cast<double>(kBytes) / seconds);
  }
  return best;
}

void PrintSummary() {
  const Results& results = TheResults();
  std::printf("\ncopy: %.0f GB/s, read and written\n", results.copy * 1e-9);
  for (const auto& [name, bandwidth] : results.bandwidth) {
    std::printf("%-40s %9.1f us %8.0f GB/s of keys and values, %5.1f %% of the copy\n", name.c_str(),
                results.seconds.at(name) * 1e6, bandwidth * 1e-9, 100 * bandwidth / results.copy);
  }
  const auto mapped = results.seconds.find("ragged/mla_512");
  for (const char* naive : {"ragged/naive_512_longest", "ragged/naive_512_model_len"}) {
    const auto found = results.seconds.find(naive);
    if (mapped == results.seconds.end() || found == results.seconds.end()) continue;
    std::printf("the mapping saves %.1f %% of %s\n", 100 * (1 - mapped->second / found->second), naive);
  }
  for (const std::string& failure : results.failures) std::printf("FAILED %s\n", failure.c_str());
}

int Run(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  attention::require_device();
  benchmark::BenchmarkReporter::Context::executable_name = "fwdmeta_attention_bench";
  TheResults().copy = CopyBandwidth();
  for (const Kernels& kernels : {Kernels{Dtype::kBf16, 128, 4, 8}, Kernels{Dtype::kFp16, 128, 8, 8},
                                 Kernels{Dtype::kBf16, 128, 1, 8}, Kernels{Dtype::kBf16, 64, 4, 8}}) {
    RegisterUniform(kernels, 8192);
  }
  RegisterUniform({Dtype::kBf16, 128, 4, 8}, 1024);
  RegisterRagged();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::ClearRegisteredBenchmarks();  // ends builders while the CUDA runtime is there
  benchmark::Shutdown();
  PrintSummary();
  return TheResults().failures.empty() ? 0 : 1;
}

}  // namespace
}  // namespace fwdmeta_bench

int main(int argc, char** argv) {
  try {
    return fwdmeta_bench::Run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fwdmeta_attention_bench: %s\n", error.what());
    return 1;
  }
}
