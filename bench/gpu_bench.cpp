// The variants that need a device: the library, the baseline and the floors.
#include <algorithm>
#include <cstring>

#include "floor_kernels.h"
#include "gpu_builder.h"
#include "op_by_op.h"
#include "variants.h"

namespace fwdmeta_bench {
namespace {

constexpr int64_t kWaitMicroseconds = 5000000;
constexpr int kRounds = 7;
constexpr double kLeastSeconds = 1e-9;  // of a difference that noise has made negative

void Drain() { BENCH_CUDA(cudaStreamSynchronize(TheGpu().stream)); }

// A T of the case, made when first asked for.
template <class T>
LazyPtr<T> MakeOnFixture(const LazyPtr<CaseFixture>& fixture) {
  return std::make_shared<Lazy<T>>([fixture] { return std::make_unique<T>(&fixture->Get()); });
}

// ------------------------------------------------------------------------------------------------ the floors --

struct EmptyNode {
  explicit EmptyNode(CaseFixture*) : timer([] { BENCH_CUDA(LaunchEmpty(TheGpu().stream)); }) {}
  GraphTimer timer;
};

struct MemsetNode {
  // A multiple of 16 bytes, which is the memset's fast way.
  explicit MemsetNode(CaseFixture* fixture)
      : buffer((fixture->bytes_written() + 15) / 16 * 16),
        timer([this] { BENCH_CUDA(cudaMemsetAsync(buffer.data(), 1, buffer.size(), TheGpu().stream)); }) {}
  DeviceBuffer buffer;
  GraphTimer timer;
};

void RegisterFloors(const NamedFixture& c) {
  const LazyPtr<EmptyNode> empty = MakeOnFixture<EmptyNode>(c.fixture);
  Register("empty", "graph", c.fixture, c.spec.name, [empty]() -> Sample { return {empty->Get().timer.Time(), {}}; });
  const LazyPtr<MemsetNode> memset = MakeOnFixture<MemsetNode>(c.fixture);
  Register("memset", "graph", c.fixture, c.spec.name, [memset]() -> Sample {
    return {memset->Get().timer.Time(), {}};
  });
  if (c.spec.curve_only) return;
  Register("empty", "sync", c.fixture, c.spec.name, []() -> Sample {
    const auto call = [] {
      BENCH_CUDA(LaunchEmpty(TheGpu().stream));
      Drain();
    };
    return {TimeCalls(1, call, nullptr), {}};
  });
  Register("empty", "enqueue", c.fixture, c.spec.name, []() -> Sample {
    return {TimeCalls(
                kDepth, [] { BENCH_CUDA(LaunchEmptyWithArgs(TheGpu().stream)); }, Drain),
            {}};
  });
  // The copy of the lengths that host inputs cannot do without.
  const LazyPtr<CaseFixture> lazy = c.fixture;
  Register("memcpy", "enqueue_host", lazy, c.spec.name, [lazy]() -> Sample {
    const Inputs& inputs = lazy->Get().timed();
    const size_t bytes = inputs.encoder.size() * 4;
    PinnedBuffer pinned(3 * bytes);
    char* volatile target = pinned.data<char>();
    const auto call = [&] {
      std::memcpy(target, inputs.encoder.data(), bytes);
      std::memcpy(target + bytes, inputs.decoder.data(), bytes);
      std::memcpy(target + 2 * bytes, inputs.this_time.data(), bytes);
    };
    return {TimeCalls(kDepth, call, nullptr), {}};
  });
}

// ------------------------------------------------------------------------------------------- the library --

void RegisterLibrary(const NamedFixture& c, const LazyPtr<CapturedBuilder>& captured) {
  Register("fwdmeta", "graph", c.fixture, c.spec.name, [captured]() -> Sample {
    const GraphTimer& timer = captured->Get().timer();
    return {timer.Time(), {{"graph_nodes", static_cast<double>(timer.one().num_nodes())}}};
  });
  if (c.spec.curve_only) return;
  const LazyPtr<EagerBuilder> eager = MakeOnFixture<EagerBuilder>(c.fixture);
  Register("fwdmeta", "sync", c.fixture, c.spec.name, [eager]() -> Sample {
    EagerBuilder& builder = eager->Get();
    fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
    const auto call = [&] {
      int64_t step = 0;
      BENCH_OK(fwdmeta_build(builder.handle(), &builder.args().batch, nullptr, &step));
      BENCH_OK(fwdmeta_counts_wait(builder.handle(), step, 0, kWaitMicroseconds, &counts));
    };
    return {TimeCalls(1, call, Drain), {}};
  });
  Register("fwdmeta", "enqueue", c.fixture, c.spec.name, [eager]() -> Sample {
    EagerBuilder& builder = eager->Get();
    const auto call = [&] { BENCH_OK(fwdmeta_build(builder.handle(), &builder.args().batch, nullptr, nullptr)); };
    return {TimeCalls(kDepth, call, Drain), {}};
  });
  Register("fwdmeta", "enqueue_host", c.fixture, c.spec.name, [eager]() -> Sample {
    EagerBuilder& builder = eager->Get();
    const auto call = [&] { BENCH_OK(fwdmeta_build(builder.handle(), &builder.host_args().batch, nullptr, nullptr)); };
    const double seconds = TimeCalls(kDepth, call, Drain);
    fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
    BENCH_OK(fwdmeta_builder_get_info(builder.handle(), &info));
    return {seconds, {{"host_waits", static_cast<double>(info.host_waits)}}};
  });
}

// ------------------------------------------------------------------------------------------- the baseline --

struct OpByOpGraph {
  explicit OpByOpGraph(CaseFixture* fixture) : op(fixture), timer([this] { op.EnqueueCaptured(); }) {
    op.CheckCaptured(timer.one());
  }
  OpByOp op;
  GraphTimer timer;
};

void RegisterOpByOp(const NamedFixture& c) {
  const LazyPtr<OpByOpGraph> graph = MakeOnFixture<OpByOpGraph>(c.fixture);
  Register("op_by_op", "graph", c.fixture, c.spec.name, [graph]() -> Sample {
    const GraphTimer& timer = graph->Get().timer;
    return {timer.Time(), {{"graph_nodes", static_cast<double>(timer.one().num_nodes())}}};
  });
  if (c.spec.curve_only) return;
  Register("op_by_op", "sync", c.fixture, c.spec.name, [graph]() -> Sample {
    OpByOp& op = graph->Get().op;
    const double seconds = TimeCalls(
        1, [&] { op.RunEager(); }, Drain);
    return {seconds, {{"launches", static_cast<double>(op.num_launches())}}};
  });
}

// --------------------------------------------------------------------------- a build on a forked branch --

constexpr int kStepKernels = 3;
constexpr double kSpinSeconds = 1.5e-6;  // with its launch, a kernel of about 2 us

// A captured decode step of three small kernels, with something before the first or beside the first two.
class ForkGraphs {
 public:
  explicit ForkGraphs(CapturedBuilder* builder)
      : builder_(builder),
        alone_([this] { Step({}, {}); }),
        in_line_([this] { Step([this] { builder_->Enqueue(TheGpu().stream); }, {}); }),
        programmatic_([this] { Step([this] { builder_->Enqueue(TheGpu().stream); }, {}, true); }),
        forked_([this] { Step({}, [this] { builder_->Enqueue(TheGpu().side); }); }),
        forked_empty_([this] { Step({}, [] { BENCH_CUDA(LaunchEmpty(TheGpu().side)); }); }) {
    for (const GraphTimer* timer : {&in_line_, &programmatic_, &forked_}) {
      builder_->Check(builder_->fixture().timed(), [timer] { timer->one().Replay(); });
      builder_->Check(builder_->fixture().timed(), [timer] { timer->TimeOnce(); });
    }
  }

  // What `with` adds to the step, interleaved with the step alone.
  double Added(const GraphTimer& with) const {
    std::vector<double> added;
    for (int i = 0; i < kRounds; ++i) {
      const double alone = alone_.TimeOnce();
      added.push_back(with.TimeOnce() - alone);
    }
    return Median(std::move(added));
  }
  const GraphTimer& alone() const { return alone_; }
  const GraphTimer& in_line() const { return in_line_; }
  const GraphTimer& programmatic() const { return programmatic_; }
  const GraphTimer& forked() const { return forked_; }
  const GraphTimer& forked_empty() const { return forked_empty_; }

 private:
  // `programmatic`: the first kernel is launched to begin while what is before it still runs.
  void Step(const std::function<void()>& before, const std::function<void()>& beside, bool programmatic = false) const {
    const Gpu& gpu = TheGpu();
    const auto cycles = static_cast<int64_t>(kSpinSeconds * static_cast<double>(gpu.cycles_per_second));
    if (before) before();
    if (beside) {
      BENCH_CUDA(cudaEventRecord(gpu.fork, gpu.stream));
      BENCH_CUDA(cudaStreamWaitEvent(gpu.side, gpu.fork, 0));
      beside();
      BENCH_CUDA(cudaEventRecord(gpu.join, gpu.side));
    }
    for (int i = 0; i < kStepKernels; ++i) {
      if (beside && i == kStepKernels - 1) BENCH_CUDA(cudaStreamWaitEvent(gpu.stream, gpu.join, 0));
      BENCH_CUDA(LaunchSpin(gpu.num_sms, cycles, gpu.stream, programmatic && i == 0));
    }
  }

  CapturedBuilder* const builder_;
  GraphTimer alone_, in_line_, programmatic_, forked_, forked_empty_;
};

}  // namespace

LazyPtr<CapturedBuilder> Captured(const NamedFixture& c) {
  // One builder serves all measures that replay a case.
  if (*c.captured == nullptr) *c.captured = MakeOnFixture<CapturedBuilder>(c.fixture);
  return *c.captured;
}

void RegisterGpu(const NamedFixture& c) {
  RegisterLibrary(c, Captured(c));
  RegisterOpByOp(c);
  RegisterFloors(c);
}

void RegisterFork(const NamedFixture& c) {
  const LazyPtr<CapturedBuilder> captured = Captured(c);
  const auto graphs =
      std::make_shared<Lazy<ForkGraphs>>([captured] { return std::make_unique<ForkGraphs>(&captured->Get()); });
  Register("fwdmeta", "fork", c.fixture, c.spec.name, [graphs]() -> Sample {
    const ForkGraphs& g = graphs->Get();
    const double added = g.Added(g.forked());
    return {std::max(added, kLeastSeconds),
            {{"added_us", added * 1e6},
             {"in_line_us", g.Added(g.in_line()) * 1e6},
             {"programmatic_us", g.Added(g.programmatic()) * 1e6},
             {"step_us", g.alone().Time() * 1e6}}};
  });
  Register("empty", "fork", c.fixture, c.spec.name, [graphs]() -> Sample {
    const ForkGraphs& g = graphs->Get();
    const double added = g.Added(g.forked_empty());
    return {std::max(added, kLeastSeconds), {{"added_us", added * 1e6}}};
  });
}

void RegisterGrowth(const NamedFixture& n, const NamedFixture& n_plus_1) {
  const LazyPtr<CapturedBuilder> small = Captured(n), large = Captured(n_plus_1);
  Register("fwdmeta", "growth", n.fixture, n.spec.name, [small, large]() -> Sample {
    const GraphTimer& before = small->Get().timer();
    const GraphTimer& after = large->Get().timer();
    std::vector<double> ratios, before_seconds, after_seconds;
    for (int i = 0; i < kRounds; ++i) {
      before_seconds.push_back(before.TimeOnce());
      after_seconds.push_back(after.TimeOnce());
      ratios.push_back(after_seconds.back() / before_seconds.back());
    }
    return {Median(std::move(after_seconds)),
            {{"ratio", Median(std::move(ratios))}, {"n_us", Median(std::move(before_seconds)) * 1e6}}};
  });
}

}  // namespace fwdmeta_bench
