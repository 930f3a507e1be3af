// The attention kernels of examples/attention, whose only knowledge of a batch is the metadata, against dense attention
// in float32: the metadata is what such kernels need, in every mix of roles.
#include <attention.h>
#include <dense_truth.h>
#include <layer.h>
#include <synthetic.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#include "harness.h"

namespace fwdmeta_test {
namespace {

using attention::DenseSequence;
using attention::DenseTruth;
using attention::DeviceArray;
using attention::Dtype;
using attention::Grid;
using attention::Kind;
using attention::Layer;
using attention::LayerShape;

constexpr int64_t kSlots = 16;
constexpr int kKvHeads = 2, kMaxDecodeTokens = 8;
// Parts of append attention; with a grid for so many tokens make_grid has one.
constexpr int kSplits = 5;
constexpr int64_t kPrefixChunk = 5000;  // of cached tokens written by one step; no multiple of a page
constexpr uint16_t kPoison = 0xffff;    // a NaN in both dtypes

struct Mix {
  const char* name;
  std::vector<Slot> slots;
  int64_t padding = 0;  // tokens
};

std::vector<Mix> Mixes() {
  return {
      {"decode", {{0, 0, 1}, {0, 1, 1}, {0, 15, 1}, {0, 63, 1}, {0, 64, 1}, {0, 255, 1}, {0, 777, 1}, {0, 4096, 1}}},
      {"decode, one slot", {{0, 1000, 1}}},
      {"prefill", {{1, 0, 1}, {64, 0, 64}, {200, 0, 200}, {16, 0, 16}, {65, 0, 65}, {517, 0, 517}}},
      {"chunk, D aligned", {{128, 64, 128}, {64, 512, 64}, {1, 128, 1}, {300, 1024, 300}}},
      {"chunk, D not aligned", {{100, 37, 100}, {33, 129, 33}, {1, 77, 1}, {64, 1001, 64}, {256, 15, 256}}},
      {"prefix hits", {{20, 640, 20}, {7, 1000, 7}, {1, 2048, 1}, {130, 3071, 130}}},
      {"idle holes",
       {{7, 50, 0}, {0, 90, 1}, {0, 0, 0}, {20, 118, 20}, {64, -3, 0}, {0, 200, 3}, {5, 0, 5}, {9, 9, 0}, {0, 9, 0}},
       5},
      {"drafts",
       {{0, 10, 2}, {0, 300, 3}, {0, 0, 4}, {0, 63, 5}, {0, 62, 6}, {0, 129, 7}, {0, 1500, 8}, {0, 255, 8}, {0, 8, 1}}},
      {"all roles",
       {{0, 10, 3}, {7, 50, 0}, {20, 118, 20}, {0, 200, 1}, {64, 0, 64}, {0, 1023, 8}, {300, 513, 300}},
       40},
      {"128 K among short ones", {{0, 20, 1}, {0, (1 << 17) - 1, 1}, {0, 300, 4}, {33, 40, 33}, {0, 5, 1}}},
      {"chunk behind 128 K", {{0, 20, 1}, {64, (1 << 17) - 64, 64}, {0, 300, 1}}},
      {"all idle", {{0, 20, 0}, {5, 0, 0}}, 3},
  };
}

// The largest relative errors (Frobenius) of each mix over all shapes, for the table at the end.
struct Errors {
  double append = 0, mla = 0, mla_forced = 0, prefill = 0;
};
std::map<std::pair<std::string, std::string>, Errors>& Table() {
  static std::map<std::pair<std::string, std::string>, Errors> table;
  return table;
}

class PrintTable : public ::testing::Environment {
  void TearDown() override {
    if (Table().empty()) return;
    std::printf("largest relative errors (Frobenius) against dense float32\n%-24s %-5s %10s %10s %10s %10s\n", "mix",
                "", "prefill", "append", "mla", "mla 256");
    for (const auto& [key, e] : Table()) {
      std::printf("%-24s %-5s", key.first.c_str(), key.second.c_str());
      for (const double error : {e.prefill, e.append, e.mla, e.mla_forced}) {
        error > 0 ? std::printf(" %10.2e", error) : std::printf(" %10s", "-");
      }
      std::printf("\n");
    }
  }
};
const auto* const kPrintTable = ::testing::AddGlobalTestEnvironment(new PrintTable);

struct Shape {
  Dtype dtype;
  int head_dim;
  int64_t page_size;
  int group;
};
const char* DtypeName(Dtype dtype) { return dtype == Dtype::kBf16 ? "bf16" : "fp16"; }
double Bound(Dtype dtype) { return dtype == Dtype::kBf16 ? 1e-2 : 2e-3; }

struct Sizes {
  int64_t step_tokens, positions, pool_tokens;
};
constexpr Sizes kLarge{8192, (1 << 17) + 64, 160 * 1024}, kSmall{1024, 2048, 4096};

LayerShape ToLayer(const Shape& shape, const Sizes& sizes) {
  return {shape.dtype,       shape.head_dim,  kKvHeads * shape.group,
          kKvHeads,          shape.page_size, sizes.pool_tokens / shape.page_size,
          sizes.step_tokens, sizes.positions};
}

// A builder of one kind of attention and the grid for whole batches.
struct Consumer {
  Consumer(const Layer& layer, fwdmeta_attention_t kind, int64_t chunk)
      : config(attention::builder_config(layer.shape())), attention(kind) {
    config.max_batch_size = kSlots;
    config.attention = kind;
    config.mla_chunk_size = chunk;
    grid = attention::make_grid(config, kSlots, layer.shape().num_tokens, kMaxDecodeTokens);
    if (kind == FWDMETA_ATTENTION_APPEND) grid.splits = kSplits;
    builder = fwdmeta::Builder(config);
  }
  fwdmeta::Config config;
  fwdmeta_attention_t attention;
  Grid grid;
  fwdmeta::Builder builder;
};

// A layer with three builders over one cache and one table, and sequences in random pages.
class Engine {
 public:
  Engine(const Shape& shape, const Sizes& sizes)
      : layer(ToLayer(shape, sizes)),
        append(layer, FWDMETA_ATTENTION_APPEND, 0),
        mla(layer, FWDMETA_ATTENTION_MLA, 0),
        mla_forced(layer, FWDMETA_ATTENTION_MLA, 256),
        columns(fwdmeta::capacities(append.config).block_table_width[0]),
        table(std::vector<int32_t>(kSlots * columns, -1)),
        seeds(std::vector<uint64_t>(kSlots)),
        truth(stream.get()) {
    for (Consumer* consumer : {&append, &mla, &mla_forced}) {
      layer.set_on(consumer->builder, table.data(), kSlots, columns);
      layer.reserve(consumer->grid, consumer->attention);
    }
  }

  // Gives the slots fresh seeds and random pages, empties the cache, and writes the cached tokens by steps of prefill.
  void Begin(const std::vector<Slot>& slots) {
    host_seeds.assign(kSlots, 0);
    for (uint64_t& seed : host_seeds) seed = random();
    seeds.upload(host_seeds);
    std::vector<int32_t> pages(layer.shape().num_pages);
    for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int32_t>(i);
    std::shuffle(pages.begin(), pages.end(), random);
    host_table.assign(kSlots * columns, -1);
    for (size_t b = 0; b < slots.size(); ++b) {
      if (slots[b].n == 0) continue;
      const int64_t size = layer.shape().page_size;
      for (int64_t i = 0; i < (slots[b].d + slots[b].n + size - 1) / size; ++i) {
        host_table[b * columns + i] = pages.back();
        pages.pop_back();
      }
    }
    table.upload(host_table);
    layer.k_cache().fill(kPoison & 0xff);
    layer.v_cache().fill(kPoison & 0xff);
    layer.missing_pages().fill(0);

    std::vector<int32_t> cached;
    for (const Slot& slot : slots) cached.push_back(slot.n > 0 ? slot.d : 0);
    attention::write_cached(layer, append.builder, append.grid, Rows(), seeds.data(), cached, kPrefixChunk,
                            stream.get());
  }

  fwdmeta_rows_t Rows() const { return {table.data(), columns, columns, nullptr}; }

  fwdmeta::Meta Build(Consumer& consumer, const std::vector<Slot>& slots, int64_t num_padded_tokens) {
    const reference::Batch lengths = MakeBatch(slots);
    fwdmeta::Batch batch;
    batch.memory_kind = FWDMETA_MEMORY_HOST;
    batch.batch_size = static_cast<int64_t>(slots.size());
    batch.num_padded_tokens = num_padded_tokens;
    batch.seq_lens_encoder = lengths.encoder.data();
    batch.seq_lens_decoder = lengths.decoder.data();
    batch.seq_lens_this_time = lengths.this_time.data();
    const fwdmeta_rows_t rows = Rows();
    batch.num_block_tables = 1;
    batch.block_tables = &rows;
    batch.stream = stream.get();
    return consumer.builder.build(batch);
  }
  attention::Step View(const fwdmeta::Meta& meta) const {
    return attention::read_step(meta, layer.shape().num_q_heads);
  }

  // One whole step; the output is poisoned first. Its tokens' rows come back.
  std::vector<uint16_t> Run(Consumer& consumer, const std::vector<Slot>& slots, int64_t padding) {
    int64_t tokens = padding;
    for (const Slot& slot : slots) tokens += slot.n;
    layer.out().fill(kPoison & 0xff);
    const fwdmeta::Meta meta = Build(consumer, slots, tokens);
    const attention::Step step = View(meta);
    layer.make_tokens(step, seeds.data(), tokens, stream.get());
    layer.prefill_and_decode(step, consumer.grid, consumer.attention, stream.get());
    stream.synchronize();
    EXPECT_EQ(0, meta.wait(-1, FWDMETA_WAIT_FINAL).num_invalid_slots);
    std::vector<uint16_t> out(tokens * layer.out_stride() / 2);
    ATTENTION_CUDA(cudaMemcpy(out.data(), layer.out().data(), out.size() * 2, cudaMemcpyDeviceToHost));
    return out;
  }

  // Dense attention of a slot's new tokens.
  const float* Truth(size_t slot, int64_t cached, int64_t count, bool rotate = true) {
    const LayerShape& s = layer.shape();
    const int64_t keys = cached + count;
    const auto make = [&](Kind kind, int64_t first, int64_t tokens, int heads, DeviceArray<uint16_t>& to) {
      if (to.size() < static_cast<size_t>(tokens * heads * s.head_dim)) {
        to = DeviceArray<uint16_t>(tokens * heads * s.head_dim);
      }
      attention::make_sequence(s.dtype, kind, host_seeds[slot], first, tokens, heads, s.head_dim, to.data(),
                               stream.get());
    };
    make(Kind::kQuery, cached, count, s.num_q_heads, q);
    make(Kind::kKey, 0, keys, s.num_kv_heads, k);
    make(Kind::kValue, 0, keys, s.num_kv_heads, v);
    return truth.attend({s.dtype, s.head_dim, s.num_kv_heads, s.num_q_heads / s.num_kv_heads, keys, count, q.data(),
                         k.data(), v.data(), rotate});
  }

  std::mt19937_64 random{std::random_device{}()};
  attention::Stream stream;
  Layer layer;
  Consumer append, mla, mla_forced;
  int64_t columns;
  DeviceArray<int32_t> table;
  DeviceArray<uint64_t> seeds;
  std::vector<int32_t> host_table;
  std::vector<uint64_t> host_seeds;
  DenseTruth truth;
  DeviceArray<uint16_t> q, k, v;
};

// Sums over the slots of one role, and what a failure shows: the error of each slot.
struct Comparison {
  double difference = 0, want = 0;
  std::string slots;
  double error() const { return want == 0 ? 0 : std::sqrt(difference / want); }
  void Add(size_t slot, const Slot& lengths, const DenseTruth::Norms& norms) {
    difference += norms.difference;
    want += norms.want;
    char line[128];
    std::snprintf(line, sizeof line, "  slot %zu (E %d, D %d, N %d): %.3e\n", slot, lengths.e, lengths.d, lengths.n,
                  std::sqrt(norms.difference / norms.want));
    slots += line;
  }
};

class AttentionTest : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override { FWDMETA_SKIP_WITHOUT(FWDMETA_BACKEND_CUDA); }
};

TEST_P(AttentionTest, EveryMixOfRolesIsDenseAttention) {
  const double bound = Bound(GetParam().dtype);
  Engine engine(GetParam(), kLarge);
  for (const Mix& mix : Mixes()) {
    SCOPED_TRACE(mix.name);
    engine.Begin(mix.slots);
    Consumer* const consumers[] = {&engine.append, &engine.mla, &engine.mla_forced};
    const char* const names[] = {"append", "mla", "mla, chunk 256"};
    DeviceArray<uint16_t> outs[3];
    for (int i = 0; i < 3; ++i) {
      const std::vector<uint16_t> out = engine.Run(*consumers[i], mix.slots, mix.padding);
      const size_t end = out.size() - mix.padding * engine.layer.out_stride() / 2;
      EXPECT_EQ(mix.padding * engine.layer.out_stride() / 2, std::count(out.begin() + end, out.end(), kPoison))
          << names[i] << " writes no row of a padding token";
      outs[i] = DeviceArray<uint16_t>(out);
    }
    EXPECT_EQ(0, engine.layer.missing_pages().download()[0]);

    Comparison decode[3], prefill;
    int64_t token = 0;
    for (size_t b = 0; b < mix.slots.size(); ++b) {
      const Slot& slot = mix.slots[b];
      if (slot.n == 0) continue;
      const float* want = engine.Truth(b, slot.d, slot.n);
      const int64_t size = slot.n * engine.layer.out_stride() / 2, first = token * engine.layer.out_stride() / 2;
      for (int i = 0; i < 3; ++i) {
        const auto norms = engine.truth.compare(GetParam().dtype, outs[i].data() + first, want, size);
        if (slot.e == 0) decode[i].Add(b, slot, norms);
        if (slot.e > 0 && i == 0) prefill.Add(b, slot, norms);
      }
      token += slot.n;
    }
    for (int i = 0; i < 3; ++i) EXPECT_LT(decode[i].error(), bound) << names[i] << "\n" << decode[i].slots;
    EXPECT_LT(prefill.error(), bound) << "prefill\n" << prefill.slots;
    Errors& errors = Table()[{mix.name, DtypeName(GetParam().dtype)}];
    errors.append = std::max(errors.append, decode[0].error());
    errors.mla = std::max(errors.mla, decode[1].error());
    errors.mla_forced = std::max(errors.mla_forced, decode[2].error());
    errors.prefill = std::max(errors.prefill, prefill.error());
  }
}

TEST_P(AttentionTest, KvWriteFillsTheNewPositionsAndNothingElse) {
  Engine engine(GetParam(), kSmall);
  const LayerShape& s = engine.layer.shape();
  const std::vector<Slot> slots = {{0, 10, 3}, {7, 50, 0}, {20, 118, 20}, {0, 200, 1}, {64, 0, 64}, {300, 513, 300}};
  engine.Begin(slots);
  engine.Run(engine.append, slots, 0);
  const std::vector<uint16_t> k = engine.layer.k_cache().download(), v = engine.layer.v_cache().download();
  std::vector<uint16_t> want(v.size(), kPoison);
  for (size_t b = 0; b < slots.size(); ++b) {
    if (slots[b].n == 0) continue;
    const int64_t keys = slots[b].d + slots[b].n;
    DeviceArray<uint16_t> values(keys * s.num_kv_heads * s.head_dim);
    attention::make_sequence(s.dtype, Kind::kValue, engine.host_seeds[b], 0, keys, s.num_kv_heads, s.head_dim,
                             values.data(), engine.stream.get());
    engine.stream.synchronize();
    const std::vector<uint16_t> rows = values.download();
    for (int64_t p = 0; p < keys; ++p) {
      const int64_t page = engine.host_table[b * engine.columns + p / s.page_size];
      for (int h = 0; h < s.num_kv_heads; ++h) {
        std::copy_n(rows.begin() + (p * s.num_kv_heads + h) * s.head_dim, s.head_dim,
                    want.begin() + ((page * s.num_kv_heads + h) * s.page_size + p % s.page_size) * s.head_dim);
      }
    }
  }
  EXPECT_TRUE(want == v) << "V";
  size_t differ = 0;
  for (size_t i = 0; i < k.size(); ++i) differ += (k[i] == kPoison) != (want[i] == kPoison);
  EXPECT_EQ(0u, differ) << "elements of K that are written and should not be, or the other way round";
}

TEST_P(AttentionTest, RotaryThatIsAlreadyAppliedIsNotAppliedAgain) {
  Engine engine(GetParam(), kSmall);
  const std::vector<Slot> slots = {{0, 0, 8}, {70, 0, 70}};
  engine.Begin(slots);
  engine.layer.out().fill(kPoison & 0xff);
  fwdmeta::Meta meta = engine.Build(engine.append, slots, -1);
  meta.set_attr(FWDMETA_ATTR_ROPE_ALREADY_APPLIED, 1);
  const attention::Step step = engine.View(meta);
  engine.layer.make_tokens(step, engine.seeds.data(), 78, engine.stream.get());
  engine.layer.prefill_and_decode(step, engine.append.grid, engine.append.attention, engine.stream.get());
  int64_t token = 0;
  for (size_t b = 0; b < slots.size(); token += slots[b++].n) {
    const int64_t stride = engine.layer.out_stride() / 2;
    const auto norms = engine.truth.compare(GetParam().dtype, engine.layer.out().data() + token * stride,
                                            engine.Truth(b, slots[b].d, slots[b].n, false), slots[b].n * stride);
    EXPECT_LT(std::sqrt(norms.difference / norms.want), Bound(GetParam().dtype)) << "slot " << b;
  }
}

// Build, KV write, attention and advance as one graph, whose replays move the lengths on; the host does nothing
// between.
TEST_P(AttentionTest, CapturedDecodeStepFollowsTheLengths) {
  constexpr int kReplays = 70;  // past a page of 64
  const std::vector<Slot> slots = {{0, 10, 1}, {5, 5, 0}, {0, 63, 1}, {0, 500, 1}, {0, 0, 1}};
  const auto count = static_cast<int64_t>(slots.size());
  std::vector<Slot> last = slots;
  for (Slot& slot : last) slot.d += slot.n * (kReplays - 1);
  Engine engine(GetParam(), kSmall);
  for (Consumer* consumer : {&engine.append, &engine.mla}) {
    SCOPED_TRACE(consumer == &engine.append ? "append" : "mla");
    engine.Begin(last);  // pages of all steps; the last ones' keys are overwritten with the same on the way
    engine.stream.synchronize();
    std::vector<int32_t> lengths;
    for (const Slot& slot : slots) lengths.push_back(slot.e);
    for (const Slot& slot : slots) lengths.push_back(slot.d);
    for (const Slot& slot : slots) lengths.push_back(slot.n);
    const DeviceArray<int32_t> device(lengths);
    const Grid grid = attention::make_grid(consumer->config, count, count, 1);
    const fwdmeta_rows_t rows = engine.Rows();
    fwdmeta::Batch batch;
    fwdmeta::AdvanceArgs next;
    batch.batch_size = next.batch_size = batch.num_padded_tokens = count;
    batch.seq_lens_encoder = next.seq_lens_encoder = device.data();
    batch.seq_lens_decoder = next.seq_lens_decoder = device.data() + count;
    batch.seq_lens_this_time = next.seq_lens_this_time = device.data() + 2 * count;
    batch.num_block_tables = 1;
    batch.block_tables = &rows;
    batch.stream = next.stream = engine.stream.get();

    engine.layer.out().fill(kPoison & 0xff);
    // A builder of its own: the first one's only set would be the graph's from here on.
    fwdmeta::Builder builder(consumer->config);
    engine.layer.set_on(builder, engine.table.data(), kSlots, engine.columns);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    ATTENTION_CUDA(cudaStreamBeginCapture(engine.stream.get(), cudaStreamCaptureModeThreadLocal));
    const fwdmeta::Meta meta = builder.build(batch);
    const attention::Step step = engine.View(meta);
    engine.layer.make_tokens(step, engine.seeds.data(), count, engine.stream.get());
    engine.layer.decode(step, grid, consumer->attention, engine.stream.get());
    builder.advance(next);
    ATTENTION_CUDA(cudaStreamEndCapture(engine.stream.get(), &graph));
    ATTENTION_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < kReplays; ++i) ATTENTION_CUDA(cudaGraphLaunch(exec, engine.stream.get()));
    engine.stream.synchronize();
    ATTENTION_CUDA(cudaGraphExecDestroy(exec));
    ATTENTION_CUDA(cudaGraphDestroy(graph));

    Comparison compared;
    int64_t token = 0;
    for (size_t b = 0; b < last.size(); ++b) {
      if (last[b].n == 0) continue;
      const int64_t stride = engine.layer.out_stride() / 2;
      compared.Add(b, last[b],
                   engine.truth.compare(GetParam().dtype, engine.layer.out().data() + token++ * stride,
                                        engine.Truth(b, last[b].d, 1), stride));
    }
    EXPECT_LT(compared.error(), Bound(GetParam().dtype)) << compared.slots;
  }
}

// Not a page for a new token: the step is refused on the device, and nothing is written, in any kernel.
TEST_P(AttentionTest, StepWithAMissingPageWritesNothing) {
  Engine engine(GetParam(), kSmall);
  const std::vector<Slot> slots = {{0, 10, 1}, {200, 0, 200}, {0, 300, 3}};
  for (const size_t missing : {size_t{0}, size_t{1}, size_t{2}}) {
    engine.Begin(slots);
    const int64_t column = (slots[missing].d + slots[missing].n - 1) / engine.layer.shape().page_size;
    engine.host_table[missing * engine.columns + column] = -1;
    engine.stream.synchronize();
    engine.table.upload(engine.host_table);
    const std::vector<uint16_t> k = engine.layer.k_cache().download(), v = engine.layer.v_cache().download();
    for (Consumer* consumer : {&engine.append, &engine.mla}) {
      engine.layer.out().fill(kPoison & 0xff);
      const fwdmeta::Meta meta = engine.Build(*consumer, slots, -1);
      const attention::Step step = engine.View(meta);
      engine.layer.prefill_and_decode(step, consumer->grid, consumer->attention, engine.stream.get());
      engine.stream.synchronize();
      const fwdmeta::Counts counts = meta.wait(-1, FWDMETA_WAIT_FINAL);
      EXPECT_GT(counts.num_invalid_slots, 0);
      EXPECT_EQ(FWDMETA_WARNING_INVALID_SLOTS, counts.warnings);
      EXPECT_TRUE(k == engine.layer.k_cache().download() && v == engine.layer.v_cache().download()) << "caches";
      const std::vector<uint16_t> out = engine.layer.out().download();
      EXPECT_EQ(static_cast<int64_t>(out.size()), std::count(out.begin(), out.end(), kPoison)) << "output";
    }
  }
}

// Not a page for a cached token: the metadata does not look there, so the kernels count it and read nothing.
TEST_P(AttentionTest, MissingCachedPageIsCounted) {
  Engine engine(GetParam(), kSmall);
  const std::vector<Slot> slots = {{0, 300, 1}, {70, 300, 70}};
  for (const size_t missing : {size_t{0}, size_t{1}}) {
    engine.Begin(slots);
    engine.stream.synchronize();
    engine.host_table[missing * engine.columns + 1] = missing == 0 ? -1 : static_cast<int32_t>(1 << 30);
    engine.table.upload(engine.host_table);
    for (Consumer* consumer : {&engine.append, &engine.mla}) {
      engine.layer.missing_pages().fill(0);
      engine.Run(*consumer, slots, 0);
      EXPECT_GT(engine.layer.missing_pages().download()[0], 0);
    }
  }
}

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kFp16}) {
    for (const int head_dim : {64, 128}) {
      for (const int64_t page_size : {16, 64}) {
        for (const int group : {1, 4, 8}) shapes.push_back({dtype, head_dim, page_size, group});
      }
    }
  }
  return shapes;
}
INSTANTIATE_TEST_SUITE_P(On, AttentionTest, ::testing::ValuesIn(Shapes()), [](const auto& shape) {
  return std::string(DtypeName(shape.param.dtype)) + "_d" + std::to_string(shape.param.head_dim) + "_page" +
         std::to_string(shape.param.page_size) + "_group" + std::to_string(shape.param.group);
});

// A step of the host backend with caches of any kind: what is refused is refused before an array is looked at.
class RefusedShapes : public ::testing::Test {
 protected:
  void SetUp() override {
    fwdmeta::Config config;
    config.backend = FWDMETA_BACKEND_HOST;
    config.max_batch_size = config.max_num_tokens = config.max_model_len = 64;
    config.num_q_heads = config.num_kv_heads = 1;
    builder_ = fwdmeta::Builder(config);
    meta_ = builder_.build(fwdmeta::Batch());
  }

  static fwdmeta::Tensor Cache(fwdmeta_dtype_code_t code, int bits, int64_t page_size, int64_t head_dim) {
    static int anything;
    fwdmeta::Tensor cache;
    cache.data = &anything;
    cache.device = 0;
    cache.dtype_code = code;
    cache.dtype_bits = static_cast<uint8_t>(bits);
    cache.ndim = 4;
    const int64_t shape[] = {1, 1, page_size, head_dim};
    for (int64_t i = 4, stride = 1; i-- > 0; stride *= shape[i]) cache.shape[i] = shape[i], cache.strides[i] = stride;
    return cache;
  }

  std::string Refusal(const fwdmeta::Tensor& k, const fwdmeta::Tensor& v, int num_q_heads = 1) {
    meta_.set("caches[0]", k);
    meta_.set("caches[1]", v);
    try {
      attention::read_step(meta_, num_q_heads);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  }

  fwdmeta::Builder builder_;
  fwdmeta::Meta meta_;
};

TEST_F(RefusedShapes, NameWhatIsNotSupported) {
  const fwdmeta::Tensor good = Cache(FWDMETA_DTYPE_BFLOAT, 16, 64, 128);
  const auto refusal = [&](const fwdmeta::Tensor& cache) { return Refusal(cache, cache); };
  EXPECT_TRUE(HoldsNumbers(refusal(Cache(FWDMETA_DTYPE_BFLOAT, 16, 64, 96)), {96, 64, 128}));
  EXPECT_TRUE(HoldsNumbers(refusal(Cache(FWDMETA_DTYPE_BFLOAT, 16, 24, 128)), {24, 16}));
  EXPECT_TRUE(HoldsNumbers(refusal(Cache(FWDMETA_DTYPE_FLOAT, 32, 64, 128)), {2, 32}));
  EXPECT_TRUE(HoldsNumbers(refusal(Cache(FWDMETA_DTYPE_INT, 16, 64, 128)), {0, 16}));
  EXPECT_NE("", Refusal(good, Cache(FWDMETA_DTYPE_FLOAT, 16, 64, 128)));
  EXPECT_NE("", Refusal(good, Cache(FWDMETA_DTYPE_BFLOAT, 16, 16, 128)));
  fwdmeta::Tensor strided = good;
  strided.strides[2] = 256;
  EXPECT_NE("", refusal(strided));
  EXPECT_TRUE(HoldsNumbers(Refusal(good, good, 0), {0, 1}));
}

TEST(AttentionGrid, RefusesTilesAndChunksThatTheKernelsDoNotHave) {
  fwdmeta::Config config;
  config.max_batch_size = config.max_num_tokens = config.max_model_len = 64;
  config.num_q_heads = config.num_kv_heads = 1;
  config.backend = FWDMETA_BACKEND_HOST;
  EXPECT_NO_THROW(attention::make_grid(config, 1, 1, 1));
  config.encoder_block_shape_q = 32;
  EXPECT_THROW(attention::make_grid(config, 1, 1, 1), std::invalid_argument);
  config.encoder_block_shape_q = 64;
  config.attention = FWDMETA_ATTENTION_MLA;
  config.mla_chunk_size = 100;
  EXPECT_THROW(attention::make_grid(config, 1, 1, 1), std::invalid_argument);
}

TEST(AttentionDevice, IsAskedForBeforeAnythingElse) {
  if (NoCudaReason().empty()) GTEST_SKIP() << "there is a GPU";
  EXPECT_THROW(attention::require_device(), std::runtime_error);
}

}  // namespace
}  // namespace fwdmeta_test
