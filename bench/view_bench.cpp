// What it costs a consumer to find its tiles, alone and together with a build that has to make what it looks in.
#include "gpu_builder.h"
#include "variants.h"
#include "view_kernels.h"

namespace fwdmeta_bench {
namespace {

// The mapping with the most tiles.
fwdmeta_mapping_t MappingOf(const Case& c) {
  return c.kind == Kind::kDecode ? FWDMETA_MAPPING_DECODER : FWDMETA_MAPPING_ENCODER;
}

// Of a mapping by the prefix sums of the host backend's latest build, for every entry of a grid of the capacity.
std::vector<WrittenTile> WantTiles(const CaseFixture& fixture, fwdmeta_mapping_t mapping) {
  fwdmeta_device_view_v1_t host = {};
  BENCH_OK(fwdmeta_device_view_v1(fixture.meta(), &host));
  const fwdmeta_device_mapping_v1_t& of = host.mappings[mapping];
  std::vector<WrittenTile> want;
  for (int32_t slot = 0; slot < host.max_batch_size; ++slot) {
    for (int32_t tile = 0; tile < of.cu_tiles[slot + 1] - of.cu_tiles[slot]; ++tile) want.push_back({slot, tile});
  }
  want.resize(static_cast<size_t>(of.capacity), WrittenTile{-1, -1});
  return want;
}

// A consumer of a builder's captured steps, and the graphs of it.
class Consumer {
 public:
  Consumer(CapturedBuilder* builder, TileBy by) : builder_(builder), by_(by) {
    BENCH_OK(fwdmeta_device_view_v1(builder->meta(), &view_));
    mapping_ = MappingOf(builder->fixture().spec());
    out_ = std::make_unique<DeviceBuffer>(static_cast<size_t>(grid()) * sizeof(WrittenTile));
  }

  int64_t grid() const { return view_.mappings[mapping_].capacity; }
  CapturedBuilder& builder() const { return *builder_; }
  void Enqueue() const { BENCH_CUDA(LaunchConsumer(view_, mapping_, by_, out(), TheGpu().stream)); }
  void EnqueueWithBuild() const {
    builder_->Enqueue(TheGpu().stream);
    Enqueue();
  }

  void Poison() const {
    BENCH_CUDA(cudaMemset(out_->data(), 0x5A, out_->size()));
    BENCH_CUDA(cudaDeviceSynchronize());
  }
  // What has been written is what the host backend's latest build has.
  void Compare() const {
    if (by_ == TileBy::kNothing) return;
    const std::vector<WrittenTile> want = WantTiles(builder_->fixture(), mapping_);
    std::vector<WrittenTile> got(want.size());
    BENCH_CUDA(cudaStreamSynchronize(TheGpu().stream));
    BENCH_CUDA(cudaMemcpy(got.data(), out(), got.size() * sizeof(WrittenTile), cudaMemcpyDeviceToHost));
    for (size_t x = 0; x < want.size(); ++x) {
      if (got[x].slot == want[x].slot && got[x].tile == want[x].tile) continue;
      throw Failure("block " + std::to_string(x) + " found tile " + std::to_string(got[x].tile) + " of slot " +
                    std::to_string(got[x].slot) + ", not tile " + std::to_string(want[x].tile) + " of slot " +
                    std::to_string(want[x].slot));
    }
  }

 private:
  WrittenTile* out() const { return out_->data<WrittenTile>(); }

  CapturedBuilder* const builder_;
  const TileBy by_;
  fwdmeta_mapping_t mapping_;
  fwdmeta_device_view_v1_t view_ = {};
  std::unique_ptr<DeviceBuffer> out_;
};

// The consumer over what the builder's latest step, which is the case's own, has left.
struct ConsumerAlone {
  ConsumerAlone(CapturedBuilder* builder, TileBy by) : consumer(builder, by), timer([this] { consumer.Enqueue(); }) {
    builder->fixture().Build(builder->fixture().timed());
    consumer.Poison();
    timer.one().Replay();
    consumer.Compare();
  }
  Consumer consumer;
  GraphTimer timer;
};

struct ConsumerWithBuild {
  ConsumerWithBuild(CapturedBuilder* builder, TileBy by)
      : consumer(builder, by), timer([this] { consumer.EnqueueWithBuild(); }) {
    Check(builder->fixture().Scrambled(), [this] { timer.one().Replay(); });
    Check(builder->fixture().timed(), [this] { timer.TimeOnce(); });
  }
  void Check(const Inputs& inputs, const std::function<void()>& run) {
    consumer.Poison();
    consumer.builder().Check(inputs, run);
    consumer.Compare();
  }
  Consumer consumer;
  GraphTimer timer;
};

// There are many of these, so each repetition is two runs, of which the first is a warm-up.
double TimeBriefly(const GraphTimer& timer) {
  timer.TimeOnce();
  return timer.TimeOnce();
}

template <class T>
void RegisterConsumer(const char* variant, const char* measure, const NamedFixture& c, TileBy by) {
  const LazyPtr<CapturedBuilder> captured = Captured(c);
  const auto lazy = std::make_shared<Lazy<T>>([captured, by] { return std::make_unique<T>(&captured->Get(), by); });
  Register(variant, measure, c.fixture, c.spec.name, [lazy]() -> Sample {
    const T& made = lazy->Get();
    return {TimeBriefly(made.timer), {{"grid", static_cast<double>(made.consumer.grid())}}};
  });
}

}  // namespace

Case WithoutLists(Case c) {
  for (const fwdmeta_field_t list :
       {FWDMETA_FIELD_DECODER_BATCH_IDS, FWDMETA_FIELD_DECODER_TILE_IDS_PER_BATCH, FWDMETA_FIELD_ENCODER_BATCH_IDS,
        FWDMETA_FIELD_ENCODER_TILE_IDS_PER_BATCH, FWDMETA_FIELD_KV_BATCH_IDS, FWDMETA_FIELD_KV_TILE_IDS_PER_BATCH,
        FWDMETA_FIELD_PRE_CACHE_BATCH_IDS, FWDMETA_FIELD_PRE_CACHE_TILE_IDS_PER_BATCH}) {
    c.outputs &= ~(uint64_t{1} << list);
  }
  return c;
}

void RegisterViews(const NamedFixture& c, const NamedFixture& without_lists) {
  RegisterConsumer<ConsumerAlone>("view_none", "graph", c, TileBy::kNothing);
  RegisterConsumer<ConsumerAlone>("view_list", "graph", c, TileBy::kList);
  RegisterConsumer<ConsumerWithBuild>("view_list", "with_build", c, TileBy::kList);
  for (const auto& search :
       {std::make_pair("view_search", TileBy::kSearch), std::make_pair("view_warp_search", TileBy::kWarpSearch)}) {
    RegisterConsumer<ConsumerAlone>(search.first, "graph", without_lists, search.second);
    RegisterConsumer<ConsumerWithBuild>(search.first, "with_build", without_lists, search.second);
  }
  const LazyPtr<CapturedBuilder> captured = Captured(without_lists);
  Register("no_lists", "graph", without_lists.fixture, without_lists.spec.name, [captured]() -> Sample {
    return {TimeBriefly(captured->Get().timer()), {}};
  });
}

}  // namespace fwdmeta_bench
