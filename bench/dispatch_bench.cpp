// The look-up of a step's captured graph, on the host.
#include "variants.h"

namespace fwdmeta_bench {
namespace {

constexpr int kCalls = 4096;  // enough that reading the clock does not show

// A dispatcher with the default sizes for up to 256 requests of 1 or 4 tokens, every key captured.
class DispatchFixture {
 public:
  DispatchFixture() {
    const int64_t query_lens[] = {1, 4};
    fwdmeta_dispatcher_config_t config = FWDMETA_DISPATCHER_CONFIG_INITIALIZER;
    config.mode = FWDMETA_GRAPH_FULL_AND_PIECEWISE;
    config.max_num_seqs = 256;
    config.max_num_tokens = 8192;
    config.query_lens = query_lens;
    config.num_query_lens = 2;
    BENCH_OK(fwdmeta_dispatcher_create(&config, &handle_));
    BENCH_OK(fwdmeta_dispatcher_mark_captured(handle_, nullptr));
  }
  ~DispatchFixture() { fwdmeta_dispatcher_destroy(handle_); }
  DispatchFixture(const DispatchFixture&) = delete;
  DispatchFixture& operator=(const DispatchFixture&) = delete;
  fwdmeta_dispatcher_t handle() const { return handle_; }

 private:
  fwdmeta_dispatcher_t handle_ = 0;
};

struct DispatchCase {
  const char* name;
  int64_t num_tokens, num_reqs, query_len;
  fwdmeta_graph_mode_t want;
};

constexpr DispatchCase kCases[] = {{"full", 300, 75, 4, FWDMETA_GRAPH_FULL},
                                   {"piecewise", 300, 20, 0, FWDMETA_GRAPH_PIECEWISE},
                                   {"miss", 8000, 20, 0, FWDMETA_GRAPH_NONE}};

}  // namespace

void RegisterDispatch() {
  const auto fixture =
      std::make_shared<Lazy<DispatchFixture>>([] { return std::unique_ptr<DispatchFixture>(new DispatchFixture); });
  for (const DispatchCase& c : kCases) {
    Register("fwdmeta", "dispatch", nullptr, c.name, [fixture, c]() -> Sample {
      const fwdmeta_dispatcher_t handle = fixture->Get().handle();
      fwdmeta_dispatch_args_t args = FWDMETA_DISPATCH_ARGS_INITIALIZER;
      args.num_tokens = c.num_tokens;
      args.num_reqs = c.num_reqs;
      args.query_len = c.query_len;
      fwdmeta_dispatch_result_t result = FWDMETA_DISPATCH_RESULT_INITIALIZER;
      const double seconds = TimeCalls(
          1,
          [&] {
            for (int i = 0; i < kCalls; ++i) BENCH_OK(fwdmeta_dispatch(handle, &args, &result));
          },
          nullptr);
      if (result.mode != c.want) throw Failure("dispatched to mode " + std::to_string(result.mode));
      return {seconds / kCalls, {}};
    });
  }
}

}  // namespace fwdmeta_bench
