// FlashInfer's planners on the same cases.
#include "flashinfer_planner.h"
#include "variants.h"

namespace fwdmeta_bench {
namespace {

void Drain() { BENCH_CUDA(cudaStreamSynchronize(TheGpu().stream)); }

// The case's own plan, once that and one of scrambled lengths have been checked.
std::unique_ptr<FlashinferPlanner> MakeChecked(CaseFixture* fixture) {
  std::unique_ptr<FlashinferPlanner> planner;
  for (const Inputs& inputs : {fixture->Scrambled(), fixture->timed()}) {
    planner = MakeFlashinferPlanner(fixture->spec(), inputs);
    planner->Plan();
    Drain();
    planner->Check();
  }
  return planner;
}

}  // namespace

void RegisterFlashinfer(const NamedFixture& c) {
  const LazyPtr<CaseFixture> fixture = c.fixture;
  const auto planner = std::make_shared<Lazy<FlashinferPlanner>>([fixture] { return MakeChecked(&fixture->Get()); });
  Register("flashinfer", "sync", fixture, c.spec.name, [planner]() -> Sample {
    FlashinferPlanner& made = planner->Get();
    const auto call = [&] {
      made.Plan();
      Drain();
    };
    return {TimeCalls(1, call, nullptr), {}};
  });
  // Drained after each call: the next one writes the pinned memory that this one copies from.
  Register("flashinfer", "enqueue_host", fixture, c.spec.name, [planner]() -> Sample {
    FlashinferPlanner& made = planner->Get();
    return {TimeCalls(
                1, [&] { made.Plan(); }, Drain),
            {}};
  });
}

}  // namespace fwdmeta_bench
