// The host backend, and a memset of what it writes.
#include <cstring>

#include "variants.h"

namespace fwdmeta_bench {
namespace {

// Enough calls that reading the clock does not show.
int CallsPerBatch(const Case& c) { return c.tokens() <= 4096 ? 16 : 1; }

}  // namespace

void RegisterHost(const NamedFixture& c) {
  const LazyPtr<CaseFixture> lazy = c.fixture;
  Register("host", "step", lazy, c.spec.name, [lazy, calls = CallsPerBatch(c.spec)]() -> Sample {
    CaseFixture& fixture = lazy->Get();
    const BatchArgs args(fixture.spec(), fixture.table_width(), PointersTo(fixture.timed()), nullptr);
    fixture.Build(fixture.timed());
    const auto step = [&] { BENCH_OK(fwdmeta_build(fixture.builder(), &args.batch, nullptr, nullptr)); };
    return {TimeCalls(calls, step, nullptr), {}};
  });
  Register("host_memset", "step", lazy, c.spec.name, [lazy, calls = CallsPerBatch(c.spec)]() -> Sample {
    std::vector<char> buffer(lazy->Get().bytes_written());
    // The compiler must not see that nobody reads the buffer.
    char* volatile target = buffer.data();
    return {TimeCalls(
                calls, [&] { std::memset(target, 1, buffer.size()); }, nullptr),
            {}};
  });
}

}  // namespace fwdmeta_bench
