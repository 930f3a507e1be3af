// Where each family of variants registers its benchmarks.
#ifndef FWDMETA_BENCH_VARIANTS_H_
#define FWDMETA_BENCH_VARIANTS_H_

#include <string>
#include <utility>
#include <vector>

#include "fixture.h"

namespace fwdmeta_bench {

class CapturedBuilder;

struct NamedFixture {
  Case spec;
  LazyPtr<CaseFixture> fixture;
  // Shared by the measures that replay the case; made by the first of them.
  std::shared_ptr<LazyPtr<CapturedBuilder>> captured;
};

void RegisterHost(const NamedFixture& c);
void RegisterDispatch();

// The device, and (key, value) pairs for the record's context. Empty where there is none.
struct GpuInfo {
  int64_t num_sms = 0;
  std::vector<std::pair<std::string, std::string>> context;
};
#if FWDMETA_BENCH_CUDA
// Throws Failure where a device is there but does not answer.
GpuInfo FindGpu();
LazyPtr<CapturedBuilder> Captured(const NamedFixture& c);
void RegisterGpu(const NamedFixture& c);
void RegisterFork(const NamedFixture& c);
// time(n + 1) / time(n), both decode cases.
void RegisterGrowth(const NamedFixture& n, const NamedFixture& n_plus_1);
// Consumers that find their tile: by the lists of a case, and by searches in the same case built without the lists.
Case WithoutLists(Case c);
void RegisterViews(const NamedFixture& c, const NamedFixture& without_lists);
#endif
#if FWDMETA_BENCH_FLASHINFER
void RegisterFlashinfer(const NamedFixture& c);
#endif

}  // namespace fwdmeta_bench

#endif  // FWDMETA_BENCH_VARIANTS_H_
