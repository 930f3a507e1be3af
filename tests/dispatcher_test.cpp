// Modes, sizes, keys and dispatch: the sentences of the contract, the vectors of vLLM's tests and the public bugs that
// concern them, and a slow model that finds keys in another way.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <new>
#include <random>
#include <set>
#include <thread>

#include "graph_model.h"
#include "harness.h"

namespace {
std::atomic<int64_t> allocations{0};
}

__attribute__((noinline)) void* operator new(std::size_t size) {
  ++allocations;
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace fwdmeta_test {
namespace {

class Dispatcher {
 public:
  explicit Dispatcher(const GraphConfig& setup, bool captured = true) {
    const fwdmeta_dispatcher_config_t config = setup.ToC();
    EXPECT_OK(fwdmeta_dispatcher_create(&config, &handle_));
    if (captured) {
      EXPECT_OK(fwdmeta_dispatcher_mark_captured(handle_, nullptr));
    }
  }
  ~Dispatcher() { EXPECT_OK(fwdmeta_dispatcher_destroy(handle_)); }
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  fwdmeta_dispatcher_t handle() const { return handle_; }

  Sizes sizes() const {
    int64_t count = -1;
    EXPECT_OK(fwdmeta_dispatcher_get_sizes(handle_, nullptr, 0, &count));
    Sizes sizes(count);
    EXPECT_OK(fwdmeta_dispatcher_get_sizes(handle_, sizes.data(), count, &count));
    return sizes;
  }
  std::vector<fwdmeta_graph_key_t> keys() const {
    int64_t count = -1;
    EXPECT_OK(fwdmeta_dispatcher_get_keys(handle_, nullptr, 0, &count));
    std::vector<fwdmeta_graph_key_t> keys(count);
    EXPECT_OK(fwdmeta_dispatcher_get_keys(handle_, keys.data(), count, &count));
    return keys;
  }
  // The sizes of one kind of keys, ascending.
  Sizes KeySizes(fwdmeta_graph_mode_t mode) const {
    std::set<int64_t> sizes;
    for (const fwdmeta_graph_key_t& key : keys()) {
      if (key.mode == mode) sizes.insert(key.descriptor.num_tokens);
    }
    return {sizes.begin(), sizes.end()};
  }
  Sizes full() const { return KeySizes(FWDMETA_GRAPH_FULL); }
  Sizes piecewise() const { return KeySizes(FWDMETA_GRAPH_PIECEWISE); }
  std::vector<std::string> KeyTexts() const {
    std::vector<std::string> texts;
    for (const fwdmeta_graph_key_t& key : keys()) texts.push_back(Text(key.mode, key.descriptor));
    return texts;
  }
  fwdmeta_dispatcher_info_t info() const {
    fwdmeta_dispatcher_info_t info = FWDMETA_DISPATCHER_INFO_INITIALIZER;
    EXPECT_OK(fwdmeta_dispatcher_get_info(handle_, &info));
    return info;
  }
  // "FULL(4,4,T)", with the reason behind it unless it is OK, or the status.
  std::string operator()(const Batch& batch) const {
    const fwdmeta_dispatch_args_t args = ToC(batch);
    fwdmeta_dispatch_result_t result = FWDMETA_DISPATCH_RESULT_INITIALIZER;
    const fwdmeta_status_t status = fwdmeta_dispatch(handle_, &args, &result);
    if (status != FWDMETA_OK) return fwdmeta_status_name(status);
    const std::string reason =
        result.reason == FWDMETA_DISPATCH_OK ? "" : std::string(" ") + fwdmeta_dispatch_reason_name(result.reason);
    return Text(result.mode, result.descriptor) + reason;
  }

 private:
  fwdmeta_dispatcher_t handle_ = 0;
};

fwdmeta_status_t Create(const fwdmeta_dispatcher_config_t& config) {
  fwdmeta_dispatcher_t handle = 0;
  const fwdmeta_status_t status = fwdmeta_dispatcher_create(&config, &handle);
  EXPECT_EQ(status == FWDMETA_OK, handle != 0);
  fwdmeta_dispatcher_destroy(handle);
  return status;
}
fwdmeta_status_t Create(const GraphConfig& setup) { return Create(setup.ToC()); }

Sizes Range(int64_t first, int64_t last, int64_t step) {
  Sizes sizes;
  for (int64_t i = first; i <= last; i += step) sizes.push_back(i);
  return sizes;
}
Sizes Join(std::initializer_list<Sizes> lists) {
  Sizes all;
  for (const Sizes& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// --------------------------------------------------------------------------------------------- modes and keys --

// vllm.md §1.2.
TEST(GraphMode, Predicates) {
  struct Row {
    fwdmeta_graph_mode_t mode;
    const char* name;
    int32_t decode, mixed, max, separate, full, piecewise, runtime, modes;
  };
  const Row rows[] = {{0, "NONE", 0, 0, 0, 0, 0, 0, 1, 0b001},
                      {1, "PIECEWISE", 1, 1, 1, 0, 0, 1, 1, 0b010},
                      {2, "FULL", 2, 2, 2, 0, 1, 0, 1, 0b100},
                      {0x200, "FULL_DECODE_ONLY", 2, 0, 2, 1, 1, 0, 0, 0b101},
                      {0x201, "FULL_AND_PIECEWISE", 2, 1, 2, 1, 1, 1, 0, 0b110}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    fwdmeta_graph_mode_info_t info = FWDMETA_GRAPH_MODE_INFO_INITIALIZER;
    EXPECT_OK(fwdmeta_graph_mode_get_info(row.mode, &info));
    EXPECT_EQ(row.decode, info.decode_mode);
    EXPECT_EQ(row.mixed, info.mixed_mode);
    EXPECT_EQ(row.max, info.max_mode);
    EXPECT_EQ(row.separate, info.separate_routine);
    EXPECT_EQ(row.full, info.has_full);
    EXPECT_EQ(row.piecewise, info.has_piecewise);
    EXPECT_EQ(row.runtime, info.is_runtime_mode);
    EXPECT_EQ(row.modes, info.modes);
    EXPECT_STREQ(row.name, fwdmeta_graph_mode_name(row.mode));
  }
  for (const int32_t mode : {-1, 3, 0x100, 0x102, 0x202, 0x1ff, 0x10201, INT32_MAX, INT32_MIN}) {
    fwdmeta_graph_mode_info_t info = FWDMETA_GRAPH_MODE_INFO_INITIALIZER;
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_graph_mode_get_info(mode, &info));
    EXPECT_EQ(nullptr, fwdmeta_graph_mode_name(mode));
  }
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_graph_mode_get_info(FWDMETA_GRAPH_FULL, nullptr));
}

constexpr fwdmeta_graph_mode_t kModes[] = {FWDMETA_GRAPH_NONE, FWDMETA_GRAPH_PIECEWISE, FWDMETA_GRAPH_FULL,
                                           FWDMETA_GRAPH_FULL_DECODE_ONLY, FWDMETA_GRAPH_FULL_AND_PIECEWISE};

// The rules 1 to 4 of vllm.md §1.2, as a table: rows (support, q > 1), a column a mode; '!' is UNSUPPORTED.
TEST(GraphMode, Resolve) {
  constexpr fwdmeta_graph_mode_t n = FWDMETA_GRAPH_NONE, p = FWDMETA_GRAPH_PIECEWISE, f = FWDMETA_GRAPH_FULL,
                                 d = FWDMETA_GRAPH_FULL_DECODE_ONLY, b = FWDMETA_GRAPH_FULL_AND_PIECEWISE;
  constexpr int32_t refused = -1;
  struct Row {
    fwdmeta_graph_support_t support;
    int64_t query_len;
    int32_t available;
    fwdmeta_graph_mode_t want[5];
    fwdmeta_resolve_reason_t reason[5];
  };
  const Row rows[] = {
      {FWDMETA_SUPPORT_ALWAYS, 1, 1, {n, p, f, d, b}, {0, 0, 0, 0, 0}},
      {FWDMETA_SUPPORT_ALWAYS, 4, 0, {n, p, f, d, b}, {0, 0, 0, 0, 0}},
      {FWDMETA_SUPPORT_UNIFORM_BATCH, 1, 1, {n, p, b, d, b}, {0, 0, 1, 0, 0}},
      {FWDMETA_SUPPORT_UNIFORM_BATCH, 4, 0, {n, p, d, d, b}, {0, 0, 1, 0, 0}},
      {FWDMETA_SUPPORT_UNIFORM_SINGLE_TOKEN_DECODE, 1, 1, {n, p, b, d, b}, {0, 0, 1, 0, 0}},
      {FWDMETA_SUPPORT_UNIFORM_SINGLE_TOKEN_DECODE, 2, 1, {n, p, p, p, p}, {0, 0, 3, 3, 3}},
      {FWDMETA_SUPPORT_UNIFORM_SINGLE_TOKEN_DECODE, 2, 0, {n, p, n, n, n}, {0, 0, 3, 3, 3}},
      {FWDMETA_SUPPORT_NEVER, 1, 1, {n, p, refused, p, p}, {0, 0, 0, 2, 2}},
      {FWDMETA_SUPPORT_NEVER, 2, 0, {n, p, refused, n, n}, {0, 0, 0, 2, 2}},
  };
  for (const Row& row : rows) {
    for (int i = 0; i < 5; ++i) {
      SCOPED_TRACE("support " + std::to_string(row.support) + ", q " + std::to_string(row.query_len) + ", mode " +
                   fwdmeta_graph_mode_name(kModes[i]));
      fwdmeta_graph_mode_t mode = refused;
      fwdmeta_resolve_reason_t reason = -1;
      EXPECT_STATUS(row.want[i] == refused ? FWDMETA_UNSUPPORTED : FWDMETA_OK,
                    fwdmeta_graph_mode_resolve(kModes[i], row.support, row.query_len, row.available, &mode, &reason));
      EXPECT_EQ(row.want[i], mode);
      EXPECT_EQ(row.want[i] == refused ? -1 : row.reason[i], reason);
    }
  }
}

TEST(GraphMode, ResolveRefusesWhatIsNoArgument) {
  fwdmeta_graph_mode_t mode = 77;
  const auto resolve = [&](int32_t asked, int32_t support, int64_t query_len, int32_t available) {
    return fwdmeta_graph_mode_resolve(asked, support, query_len, available, &mode, nullptr);
  };
  EXPECT_OK(resolve(FWDMETA_GRAPH_FULL, FWDMETA_SUPPORT_ALWAYS, INT32_MAX, 1));
  EXPECT_EQ(FWDMETA_GRAPH_FULL, mode);
  mode = 77;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, resolve(3, 3, 1, 1));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, resolve(2, -1, 1, 1));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, resolve(2, 4, 1, 1));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, resolve(2, 3, 0, 1));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, resolve(2, 3, int64_t{INT32_MAX} + 1, 1));
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {int64_t{INT32_MAX} + 1}));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, resolve(2, 3, 1, 2));
  EXPECT_EQ(77, mode);
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_graph_mode_resolve(2, 3, 1, 1, nullptr, nullptr));
}

TEST(BatchDescriptor, HashAndEquality) {
  const fwdmeta_batch_descriptor_t uniform = {4, 4, 1, 0, 0}, any = {4, -1, 0, 0, 0};
  EXPECT_EQ(0xac87def485f34e44u, fwdmeta_batch_descriptor_hash(&uniform));
  EXPECT_EQ(0x9e272e84db81168du, fwdmeta_batch_descriptor_hash(&any));
  EXPECT_EQ(0u, fwdmeta_batch_descriptor_hash(nullptr));
  EXPECT_EQ(0, fwdmeta_batch_descriptor_equal(&uniform, &any));
  EXPECT_EQ(0, fwdmeta_batch_descriptor_equal(&uniform, nullptr));
  EXPECT_EQ(0, fwdmeta_batch_descriptor_equal(nullptr, &any));
  EXPECT_EQ(0, fwdmeta_batch_descriptor_equal(nullptr, nullptr));
  const fwdmeta_batch_descriptor_t copy = uniform;
  EXPECT_EQ(1, fwdmeta_batch_descriptor_equal(&uniform, &copy));
  // All five fields take part.
  int32_t fwdmeta_batch_descriptor_t::*const fields[] = {
      &fwdmeta_batch_descriptor_t::num_tokens, &fwdmeta_batch_descriptor_t::num_reqs,
      &fwdmeta_batch_descriptor_t::uniform, &fwdmeta_batch_descriptor_t::has_lora,
      &fwdmeta_batch_descriptor_t::num_active_loras};
  for (const auto field : fields) {
    fwdmeta_batch_descriptor_t other = uniform;
    other.*field ^= 2;
    EXPECT_EQ(0, fwdmeta_batch_descriptor_equal(&uniform, &other));
    EXPECT_NE(fwdmeta_batch_descriptor_hash(&uniform), fwdmeta_batch_descriptor_hash(&other));
  }
}

// ----------------------------------------------------------------------------------------------------- sizes --

// vllm.md §2.1, as the contract has it.
TEST(Sizes, DefaultList) {
  const auto sizes = [](int64_t max_num_seqs, int64_t query_len, int64_t max_num_tokens, int64_t stated = kDefault) {
    GraphConfig setup;
    setup.max_num_seqs = max_num_seqs;
    setup.query_lens = {query_len};
    setup.max_num_tokens = max_num_tokens;
    setup.max_capture_size = stated;
    return Dispatcher(setup).sizes();
  };
  const Sizes to_512 = Join({{1, 2, 4}, Range(8, 248, 8), Range(256, 512, 16)});
  ASSERT_EQ(51u, to_512.size());
  EXPECT_EQ(to_512, sizes(256, 1, 8192));
  EXPECT_EQ(Join({{1, 2, 4}, Range(8, 256, 8)}), sizes(128, 1, 2048));
  EXPECT_EQ(35u, sizes(128, 1, 2048).size());
  EXPECT_EQ((Sizes{1, 2, 4, 8, 10}), sizes(5, 1, 8192));                         // the top itself
  EXPECT_EQ(Join({{1, 2, 4}, Range(8, 80, 8), {84}}), sizes(6, 7, 8192));        // 2 * 7 * 6
  EXPECT_EQ(Join({{1, 2, 4}, Range(8, 40, 8), {42}}), sizes(256, 1, 8192, 42));  // B48, #54933
  EXPECT_EQ(Join({{1, 2, 4}, Range(8, 256, 8), {257}}), sizes(256, 1, 8192, 257));
  EXPECT_EQ(257, sizes(128, 1, 2048, 257).back());  // a larger one than the formula's
  EXPECT_EQ(Join({{1, 2, 4}, Range(8, 256, 8), {257}}), sizes(256, 1, 257, 2048));
  EXPECT_EQ(256, sizes(128, 1, 2048).back());
  // max(512, q * min(max_num_seqs, 512)): 17 * 32 = 544; 4 * 512 = 2048, though 2 * 4 * 1000 are more.
  EXPECT_EQ(544, sizes(32, 17, 8192).back());
  EXPECT_EQ(2048, sizes(1000, 4, 8192).back());
  EXPECT_EQ(512, sizes(4096, 1, 8192).back());
  EXPECT_EQ((Sizes{1}), sizes(1, 1, 1));
  EXPECT_EQ((Sizes{1, 2}), sizes(1, 1, 100));
  EXPECT_EQ((Sizes{1, 2, 3}), sizes(100, 1, 3));
  EXPECT_EQ((Sizes{1, 2, 4, 7}), sizes(100, 1, 7));
}

TEST(Sizes, GivenList) {
  EXPECT_EQ((Sizes{1, 2, 4}), Dispatcher(Given({4, 1, 2, 4, 1}, 8)).sizes());
  EXPECT_EQ((Sizes{1, 256}), Dispatcher(Given({1, 256}, 8)).sizes());
  EXPECT_EQ((Sizes{1, 2, 4, 15}), Dispatcher(Given({1, 2, 4, 15}, 8)).sizes());
  GraphConfig setup = Given({1, 2, 4, 15}, 8);
  setup.max_num_tokens = 8;
  EXPECT_EQ((Sizes{1, 2, 4}), Dispatcher(setup).sizes());
  setup = Given({1, 2, 4}, 8);
  setup.max_capture_size = 4;
  EXPECT_EQ((Sizes{1, 2, 4}), Dispatcher(setup).sizes());
  setup.max_capture_size = 8;
  EXPECT_EQ((Sizes{1, 2, 4, 8}), Dispatcher(setup).sizes());
  setup.max_capture_size = 3;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, Create(setup));
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {4, 3}));
  // Dropped before the maximum is looked at, which is clipped and so is a size.
  setup = Given({2, 100}, 8);
  setup.max_num_tokens = 10;
  setup.max_capture_size = 50;
  EXPECT_EQ((Sizes{2, 10}), Dispatcher(setup).sizes());
}

TEST(Sizes, AnEmptyListGivesNoKey) {
  GraphConfig setup = Given({}, 8);
  for (const bool all_dropped : {false, true}) {
    if (all_dropped) setup = Given({9000}, 8);
    const Dispatcher dispatch(setup);
    EXPECT_EQ(Sizes{}, dispatch.sizes());
    EXPECT_TRUE(dispatch.keys().empty());
    EXPECT_EQ("NONE(1,-1,F) ABOVE_LARGEST", dispatch({1, 1, 1}));
  }
  EXPECT_EQ("NONE(1,-1,F) NO_FULL_SIZE", Dispatcher(Given({}, 8).With(FWDMETA_GRAPH_FULL))({1, 1}));
}

TEST(Sizes, ADroppedSizeIsLoggedAsAWarning) {
  std::vector<std::string> warnings;
  fwdmeta_log_set_callback(
      [](fwdmeta_log_level_t level, const char* message, void* user) {
        if (level == FWDMETA_LOG_WARN) static_cast<std::vector<std::string>*>(user)->push_back(message);
      },
      &warnings);
  GraphConfig setup = Given({1, 2, 4, 15}, 8);
  { Dispatcher dispatch(setup); }
  EXPECT_TRUE(warnings.empty());
  setup.max_num_tokens = 8;
  { Dispatcher dispatch(setup); }
  fwdmeta_log_set_callback(nullptr, nullptr);
  ASSERT_EQ(1u, warnings.size());
  EXPECT_TRUE(HoldsNumbers(warnings[0], {15, 8})) << warnings[0];
}

TEST(Sizes, ModeNoneHasNone) {
  GraphConfig setup = GraphConfig().With(FWDMETA_GRAPH_NONE);
  setup.max_loras = 3;
  EXPECT_EQ(Sizes{}, Dispatcher(setup).sizes());
  EXPECT_TRUE(Dispatcher(setup).keys().empty());
  setup.max_capture_size = 0;  // §2.1: (None, 0, NONE) -> 0
  EXPECT_EQ(Sizes{}, Dispatcher(setup).sizes());
  EXPECT_EQ(Sizes{}, Dispatcher(Given({}, 8).With(FWDMETA_GRAPH_NONE)).sizes());
  EXPECT_EQ(Sizes{}, Dispatcher(Given({1, 2}, 8).With(FWDMETA_GRAPH_NONE)).sizes());
  // Resolved to NONE.
  const GraphConfig decode_only = GraphConfig().With(FWDMETA_GRAPH_FULL_DECODE_ONLY);
  fwdmeta_dispatcher_config_t config = decode_only.ToC();
  config.support = FWDMETA_SUPPORT_NEVER;
  config.piecewise_available = 0;
  fwdmeta_dispatcher_t handle = 0;
  ASSERT_OK(fwdmeta_dispatcher_create(&config, &handle));
  fwdmeta_dispatcher_info_t info = FWDMETA_DISPATCHER_INFO_INITIALIZER;
  EXPECT_OK(fwdmeta_dispatcher_get_info(handle, &info));
  EXPECT_EQ(FWDMETA_GRAPH_NONE, info.resolved_mode);
  EXPECT_EQ(FWDMETA_RESOLVE_NO_FULL, info.resolve_reason);
  EXPECT_EQ(0, info.num_capture_sizes + info.num_full_keys + info.num_piecewise_keys + info.num_captured);
  EXPECT_OK(fwdmeta_dispatcher_destroy(handle));
}

TEST(Keys, UniformLaddersAreMultiplesOfTheQueryLength) {
  // vllm.md §2.1, "adjust".
  EXPECT_EQ((Sizes{3, 6, 9, 18, 24}), Dispatcher(Given({1, 2, 4, 8, 16, 24}, 8, 3)).full());
  EXPECT_EQ((Sizes{5, 10, 20, 25}), Dispatcher(Given({1, 2, 4, 8, 16, 24, 32}, 8, 5)).full());
  EXPECT_EQ(Sizes{}, Dispatcher(Given({1, 2}, 8, 4)).full());
  for (const int64_t stated : {4, 5, 7}) {
    GraphConfig setup = Given({1, 2}, 8, 4);
    setup.max_capture_size = stated;
    EXPECT_EQ(Sizes{4}, Dispatcher(setup).full());
  }
  // Not past q * max_num_seqs, which a given list does not gain.
  EXPECT_EQ((Sizes{2, 4, 8}), Dispatcher(Given({1, 4, 7, 10, 16}, 4, 2)).full());
  EXPECT_EQ((Sizes{1, 2, 4}), Dispatcher(Given({1, 2, 4, 8}, 5)).full());
  // The default list does: 5 is no size, nor is 21 = 7 * 3 reached from 16.
  GraphConfig setup;
  setup.max_num_seqs = 5;
  EXPECT_EQ((Sizes{1, 2, 4, 5}), Dispatcher(setup).full());
  setup.query_lens = {7};
  setup.max_num_seqs = 9;
  EXPECT_EQ((Sizes{7, 14, 21, 28, 35, 42, 49, 56, 63}), Dispatcher(setup).full());
  setup.max_capture_size = 60;  // but not past the top
  EXPECT_EQ((Sizes{7, 14, 21, 28, 35, 42, 49, 56}), Dispatcher(setup).full());
}

TEST(Keys, OneLadderForEachQueryLength) {
  GraphConfig setup = Given({1, 2, 4, 8, 16}, 8);
  setup.query_lens = {3, 1, 3};
  EXPECT_EQ((std::vector<std::string>{"PIECEWISE(16,-1,F)", "PIECEWISE(8,-1,F)", "PIECEWISE(4,-1,F)",
                                      "PIECEWISE(2,-1,F)", "PIECEWISE(1,-1,F)", "FULL(9,3,T)", "FULL(8,8,T)",
                                      "FULL(6,2,T)", "FULL(4,4,T)", "FULL(3,1,T)", "FULL(2,2,T)", "FULL(1,1,T)"}),
            Dispatcher(setup).KeyTexts());
}

// "each descending by (num_tokens, num_active_loras, num_reqs)".
TEST(Keys, CaptureOrder) {
  GraphConfig setup = Given({2, 4}, 8);
  setup.query_lens = {1, 2};
  setup.max_loras = 1;
  EXPECT_EQ(
      (std::vector<std::string>{"PIECEWISE(4,-1,F,lora2)", "PIECEWISE(4,-1,F)", "PIECEWISE(2,-1,F,lora2)",
                                "PIECEWISE(2,-1,F)", "FULL(4,4,T,lora2)", "FULL(4,2,T,lora2)", "FULL(4,4,T)",
                                "FULL(4,2,T)", "FULL(2,2,T,lora2)", "FULL(2,1,T,lora2)", "FULL(2,2,T)", "FULL(2,1,T)"}),
      Dispatcher(setup).KeyTexts());
}

TEST(Keys, PiecewiseSizesAreRoundedOnlyWhenAsked) {
  GraphConfig setup = Given({1, 2, 4, 8, 16, 24}, 8, 3);
  EXPECT_EQ((Sizes{1, 2, 4, 8, 16, 24}), Dispatcher(setup).piecewise());
  setup.round_piecewise = true;
  EXPECT_EQ((Sizes{3, 6, 9, 18, 24}), Dispatcher(setup).piecewise());
  setup = Given({1, 2, 4, 8, 16}, 8, 3);
  setup.query_lens = {1, 3};
  setup.round_piecewise = true;  // to multiples of the largest; 18 is past the top
  EXPECT_EQ((Sizes{3, 6, 9}), Dispatcher(setup).piecewise());
}

TEST(Keys, MaxFullReqs) {
  GraphConfig setup = Given({1, 2, 4, 8}, 8);
  setup.max_full_reqs = 3;
  EXPECT_EQ((Sizes{1, 2}), Dispatcher(setup).full());
  EXPECT_EQ((Sizes{1, 2, 4, 8}), Dispatcher(setup).piecewise());
  EXPECT_EQ("PIECEWISE(4,-1,F) NO_FULL_SIZE", Dispatcher(setup)({4, 4, 1}));
  setup.query_lens = {2};
  EXPECT_EQ((Sizes{2, 4}), Dispatcher(setup).full());  // 1 and 2 requests; 8 has 4
  setup.mode = FWDMETA_GRAPH_FULL;
  EXPECT_EQ((Sizes{1, 2}), Dispatcher(setup).full());
  setup.max_full_reqs = 8;
  EXPECT_EQ((Sizes{1, 2, 4, 8}), Dispatcher(setup).full());
  setup.max_num_seqs = 4;
  setup.max_full_reqs = 4;  // min(8, 4) requests
  EXPECT_EQ((Sizes{1, 2, 4, 8}), Dispatcher(setup).full());
  setup.max_full_reqs = 0;
  EXPECT_EQ(Sizes{}, Dispatcher(setup).full());
}

// vllm.md §2.1, LoRA counts; the case 0 is always there. B53: 3 of at most 4 adapters run in the case 4.
TEST(Keys, LoraCases) {
  const std::map<int64_t, Sizes> specialized = {
      {1, {0, 1, 2}},       {2, {0, 1, 2, 3}},    {3, {0, 1, 2, 4}},       {4, {0, 1, 2, 4, 5}},
      {5, {0, 1, 2, 4, 6}}, {7, {0, 1, 2, 4, 8}}, {8, {0, 1, 2, 4, 8, 9}}, {0, {0}}};
  for (const auto& [max_loras, cases] : specialized) {
    for (const bool specialize : {true, false}) {
      GraphConfig setup = Given({1, 8}, 8).With(FWDMETA_GRAPH_PIECEWISE);
      setup.max_loras = max_loras;
      setup.specialize = specialize;
      std::set<int64_t> got;
      const Dispatcher dispatch(setup);
      for (const fwdmeta_graph_key_t& key : dispatch.keys()) got.insert(key.descriptor.num_active_loras);
      const Sizes want = specialize ? cases : max_loras == 0 ? Sizes{0} : Sizes{0, max_loras + 1};
      EXPECT_EQ(want, Sizes(got.begin(), got.end())) << max_loras;
      EXPECT_EQ(2 * want.size(), dispatch.keys().size());  // 10 with max_loras 4, specialised (§2.2)
    }
  }
}

// -------------------------------------------------------------------------------------------------- dispatch --

// vllm.md §2.2, sizes [1, 8].
TEST(Dispatch, V1Table) {
  const GraphConfig base = Given({1, 8}, 8);
  const Dispatcher full(base.With(FWDMETA_GRAPH_FULL)), decode_only(base.With(FWDMETA_GRAPH_FULL_DECODE_ONLY)),
      both(base), piecewise(base.With(FWDMETA_GRAPH_PIECEWISE));
  struct Row {
    const char* name;
    Batch batch;
    const char* want[4];
  };
  const Row rows[] = {
      {"8 tokens, non-uniform",
       {8, 3},
       {"FULL(8,8,F)", "NONE(8,-1,F) NOT_UNIFORM", "PIECEWISE(8,-1,F) NOT_UNIFORM", "PIECEWISE(8,-1,F)"}},
      {"8 tokens, uniform", {8, 8, 1}, {"FULL(8,8,F)", "FULL(8,8,T)", "FULL(8,8,T)", "PIECEWISE(8,-1,F)"}},
      {"15 tokens",
       {15, 3},
       {"NONE(15,-1,F) NO_FULL_SIZE", "NONE(15,-1,F) NOT_UNIFORM", "NONE(15,-1,F) ABOVE_LARGEST",
        "NONE(15,-1,F) ABOVE_LARGEST"}},
      {"8 tokens, FULL not allowed",
       {8, 8, 1, 0, FWDMETA_ALLOW_NONE | FWDMETA_ALLOW_PIECEWISE},
       {"NONE(8,-1,F) NOT_ALLOWED", "NONE(8,-1,F) NOT_ALLOWED", "PIECEWISE(8,-1,F) NOT_ALLOWED", "PIECEWISE(8,-1,F)"}},
      {"8 tokens, only NONE allowed",
       {8, 8, 1, 0, FWDMETA_ALLOW_NONE},
       {"NONE(8,-1,F) NOT_ALLOWED", "NONE(8,-1,F) NOT_ALLOWED", "NONE(8,-1,F) NOT_ALLOWED",
        "NONE(8,-1,F) NOT_ALLOWED"}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(row.want[0], full(row.batch));
    EXPECT_EQ(row.want[1], decode_only(row.batch));
    EXPECT_EQ(row.want[2], both(row.batch));
    EXPECT_EQ(row.want[3], piecewise(row.batch));
  }
  const auto count = [](const Dispatcher& dispatch) {
    const fwdmeta_dispatcher_info_t info = dispatch.info();
    EXPECT_EQ(info.num_full_keys + info.num_piecewise_keys, info.num_captured);
    return std::make_pair(info.num_full_keys, info.num_piecewise_keys);
  };
  EXPECT_EQ(std::make_pair(int64_t{2}, int64_t{0}), count(full));
  EXPECT_EQ(std::make_pair(int64_t{2}, int64_t{0}), count(decode_only));
  EXPECT_EQ(std::make_pair(int64_t{2}, int64_t{2}), count(both));
  EXPECT_EQ(std::make_pair(int64_t{0}, int64_t{2}), count(piecewise));
  // Capture groups of [1, 4, 8, 16].
  EXPECT_EQ((std::vector<std::string>{"FULL(16,8,F)", "FULL(8,8,F)", "FULL(4,4,F)", "FULL(1,1,F)"}),
            Dispatcher(Given({1, 4, 8, 16}, 8).With(FWDMETA_GRAPH_FULL)).KeyTexts());
  EXPECT_EQ((std::vector<std::string>{"PIECEWISE(16,-1,F)", "PIECEWISE(8,-1,F)", "PIECEWISE(4,-1,F)",
                                      "PIECEWISE(1,-1,F)", "FULL(8,8,T)", "FULL(4,4,T)", "FULL(1,1,T)"}),
            Dispatcher(Given({1, 4, 8, 16}, 8)).KeyTexts());
  EXPECT_EQ((std::vector<std::string>{"FULL(8,8,T)", "FULL(4,4,T)", "FULL(1,1,T)"}),
            Dispatcher(Given({1, 4, 8, 16}, 8).With(FWDMETA_GRAPH_FULL_DECODE_ONLY)).KeyTexts());
  EXPECT_EQ(
      (std::vector<std::string>{"PIECEWISE(16,-1,F)", "PIECEWISE(8,-1,F)", "PIECEWISE(4,-1,F)", "PIECEWISE(1,-1,F)"}),
      Dispatcher(Given({1, 4, 8, 16}, 8).With(FWDMETA_GRAPH_PIECEWISE)).KeyTexts());
}

// vllm.md §2.1, the bucket of every number of tokens.
TEST(Dispatch, Buckets) {
  const std::pair<Sizes, Sizes> tables[] = {{{1, 2, 4, 8}, {0, 1, 2, 4, 4, 8, 8, 8, 8}},
                                            {{3, 6, 9}, {0, 3, 3, 3, 6, 6, 6, 9, 9, 9}}};
  for (const auto& [sizes, buckets] : tables) {
    const Dispatcher dispatch(Given(sizes, 16).With(FWDMETA_GRAPH_PIECEWISE));
    EXPECT_EQ("NONE(0,-1,F) ZERO_TOKENS", dispatch({0, 0}));
    const int64_t last = static_cast<int64_t>(buckets.size()) - 1;
    for (int64_t n = 1; n <= last; ++n) {
      EXPECT_EQ("PIECEWISE(" + std::to_string(buckets[n]) + ",-1,F)", dispatch({n, 1})) << n;
    }
    EXPECT_EQ("NONE(" + std::to_string(last + 1) + ",-1,F) ABOVE_LARGEST", dispatch({last + 1, 1}));
  }
}

TEST(Dispatch, V1FurtherRows) {
  // Sizes [1, 2, 4, 8] with 5 sequences: a given list does not gain 5.
  const Dispatcher five(Given({1, 2, 4, 8}, 5));
  const std::vector<std::string> want = {
      "NONE(0,-1,F) ZERO_TOKENS",      "FULL(1,1,T)", "FULL(2,2,T)", "FULL(4,4,T)", "FULL(4,4,T)",
      "PIECEWISE(8,-1,F) NO_FULL_SIZE"};
  for (int64_t n = 0; n < 6; ++n) EXPECT_EQ(want[n], five({n, n, 1})) << n;
  for (int64_t n = 6; n < 9; ++n) EXPECT_EQ("PIECEWISE(8,-1,F) NO_FULL_SIZE", five({n, 5, 1})) << n;
  EXPECT_EQ("NONE(9,-1,F) ABOVE_LARGEST", five({9, 5, 1}));

  const Dispatcher two(Given({2, 4, 8}, 4, 2));
  EXPECT_EQ("FULL(2,1,T)", two({2, 1, 2}));
  EXPECT_EQ("FULL(4,2,T)", two({4, 2, 2}));
  EXPECT_EQ("FULL(8,4,T)", two({6, 3, 2}));
  EXPECT_EQ("FULL(8,4,T)", two({8, 4, 2}));
  EXPECT_EQ("PIECEWISE(4,-1,F) NOT_UNIFORM", two({3, 1}));
  EXPECT_EQ("PIECEWISE(8,-1,F) NOT_UNIFORM", two({8, 1}));
  EXPECT_EQ("NONE(9,-1,F) ABOVE_LARGEST", two({9, 1}));
  EXPECT_EQ("NONE(0,-1,F) ZERO_TOKENS", two({0, 0}));

  const Dispatcher full(Given({1, 2, 4, 8}, 4).With(FWDMETA_GRAPH_FULL));
  EXPECT_EQ("FULL(1,1,F)", full({1, 1}));
  EXPECT_EQ("FULL(4,4,F)", full({3, 3}));
  EXPECT_EQ("FULL(8,4,F)", full({5, 2}));
  EXPECT_EQ("FULL(8,4,F)", full({8, 1}));
  EXPECT_EQ("NONE(9,-1,F) NO_FULL_SIZE", full({9, 1}));
  // #36165: query_len has no say in mode FULL, whether there is a ladder for it or not.
  EXPECT_EQ("FULL(4,4,F)", full({4, 2, 2}));
  EXPECT_EQ("FULL(4,4,F)", full({4, 4, 1}));
  // A graph has to hold the requests, too.
  EXPECT_EQ("FULL(4,4,F)", full({1, 3}));
}

TEST(Dispatch, LoraRows) {
  GraphConfig setup = Given({1, 2, 4, 8}, 8);
  setup.max_loras = 4;
  setup.specialize = true;
  const Dispatcher specialized(setup);
  const std::map<int64_t, std::string> want = {{0, ")"},       {1, ",lora1)"}, {2, ",lora2)"},
                                               {3, ",lora4)"}, {4, ",lora4)"}, {5, ",lora5)"}};
  for (const auto& [loras, text] : want) {
    EXPECT_EQ("PIECEWISE(4,-1,F" + text + " NOT_UNIFORM", specialized({3, 3, 0, loras})) << loras;
    EXPECT_EQ("FULL(4,4,T" + text, specialized({3, 3, 1, loras})) << loras;
  }
  EXPECT_EQ("NONE(3,-1,F) LORA_NOT_CAPTURED", specialized({3, 3, 0, 6}));
  EXPECT_EQ("NONE(3,-1,F) LORA_NOT_CAPTURED", specialized({3, 3, 1, INT32_MAX}));
  setup.specialize = false;
  const Dispatcher plain(setup);
  EXPECT_EQ("FULL(4,4,T)", plain({3, 3, 1, 0}));
  EXPECT_EQ("FULL(4,4,T,lora5)", plain({3, 3, 1, 1}));
  EXPECT_EQ("FULL(4,4,T,lora5)", plain({3, 3, 1, 3}));
  // §2.2, PIECEWISE with the specialisation off: a batch without adapters has a graph here.
  const Dispatcher piecewise(setup.With(FWDMETA_GRAPH_PIECEWISE));
  EXPECT_EQ("PIECEWISE(4,-1,F)", piecewise({3, 3, 0, 0}));
  EXPECT_EQ("PIECEWISE(4,-1,F,lora5)", piecewise({3, 3, 0, 1}));
  setup.max_loras = 0;
  EXPECT_EQ("INVALID_ARGUMENT", Dispatcher(setup)({3, 3, 0, 1}));
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {1, 0}));
}

// vllm.md §2.3 with split ladders (#53407, #52000): 4 and 5 requests find FULL 18.
TEST(Dispatch, V2SplitLadders) {
  const Dispatcher dispatch(Given({1, 2, 4, 8, 16, 24}, 8, 3));
  const char* want[] = {"FULL(3,1,T)",  "FULL(6,2,T)",  "FULL(9,3,T)",  "FULL(18,6,T)",
                        "FULL(18,6,T)", "FULL(18,6,T)", "FULL(24,8,T)", "FULL(24,8,T)"};
  for (int64_t reqs = 1; reqs <= 8; ++reqs) EXPECT_EQ(want[reqs - 1], dispatch({3 * reqs, reqs, 3})) << reqs;
}

// vllm.md §2.10, dynamic speculative decoding, every size captured (#56136).
TEST(Dispatch, V2DynamicSpeculation) {
  GraphConfig setup = Given(Range(1, 4096, 1), 512);
  setup.query_lens = {1, 2, 3, 4, 5, 6, 7, 8};
  const Dispatcher dynamic(setup);
  setup.query_lens = {8};
  const Dispatcher fixed(setup);
  for (int64_t reqs = 1; reqs <= 512; ++reqs) {
    for (int64_t q = 1; q <= 8; ++q) {
      const std::string tokens = std::to_string(reqs * q);
      const std::string full = "FULL(" + tokens + "," + std::to_string(reqs) + ",T)";
      ASSERT_EQ(full, dynamic({reqs * q, reqs, q}));
      ASSERT_EQ(q == 8 ? full : "PIECEWISE(" + tokens + ",-1,F) NO_FULL_SIZE", fixed({reqs * q, reqs, q}));
    }
  }
  EXPECT_EQ("PIECEWISE(3,-1,F) NOT_UNIFORM", dynamic({3, 2}));
}

TEST(Dispatch, Bugs) {
  {  // B48: the largest batch of 6 requests with 6 drafts each. 41 tokens are not uniform.
    GraphConfig setup = Given({1, 2, 4, 8, 16, 24, 32, 40}, 6, 7);
    setup.max_capture_size = 42;
    const Dispatcher dispatch(setup);
    EXPECT_EQ(42, dispatch.sizes().back());
    EXPECT_EQ("PIECEWISE(42,-1,F) NOT_UNIFORM", dispatch({41, 6}));
    EXPECT_EQ("FULL(42,6,T)", dispatch({42, 6, 7}));
    setup.max_capture_size = kDefault;
    EXPECT_EQ("NONE(42,-1,F) ABOVE_LARGEST", Dispatcher(setup)({42, 6, 7}));
    GraphConfig wide;
    wide.max_num_seqs = 32;
    wide.query_lens = {17};
    EXPECT_EQ("FULL(544,32,T)", Dispatcher(wide)({544, 32, 17}));
  }
  {  // B50: above the largest, and nothing at all.
    const Dispatcher dispatch(Given({1, 2, 4, 8}, 16));
    EXPECT_EQ("NONE(9,-1,F) ABOVE_LARGEST", dispatch({9, 9}));
    EXPECT_EQ("PIECEWISE(8,-1,F) NOT_UNIFORM", dispatch({8, 8}));
    EXPECT_EQ("NONE(0,-1,F) ZERO_TOKENS", dispatch({0, 0}));
  }
  {  // B44: requests and tokens are padded together.
    EXPECT_EQ("FULL(2,2,T)", Dispatcher(Given({2}, 2))({1, 1, 1}));
  }
  {  // B43: one dummy request of 3 drafts is a batch of 4 tokens, not of 1.
    fwdmeta_dummy_batch_t dummy = FWDMETA_DUMMY_BATCH_INITIALIZER;
    int32_t length = 0;
    dummy.num_reqs = 1;
    dummy.query_len = 4;
    dummy.seq_lens_this_time = &length;
    EXPECT_OK(fwdmeta_make_dummy(&dummy));
    EXPECT_EQ(4, length);
    EXPECT_EQ("FULL(4,1,T)", Dispatcher(Given({1, 2, 4, 8}, 8, 4))({length, 1, 4}));
  }
}

TEST(Dispatch, ReasonsInTheirOrder) {
  GraphConfig setup = Given({2, 4, 8}, 8, 2);
  setup.max_loras = 2;
  const Dispatcher dispatch(setup);
  const int32_t no_full = FWDMETA_ALLOW_NONE | FWDMETA_ALLOW_PIECEWISE;
  // Argument errors come before all else.
  EXPECT_EQ("INVALID_ARGUMENT", dispatch({0, 0, 2, -1}));
  EXPECT_EQ("INVALID_ARGUMENT", dispatch({0, 1, 2}));
  EXPECT_EQ("INVALID_ARGUMENT", Dispatcher(setup.With(FWDMETA_GRAPH_NONE))({3, 1, 2}));
  // ZERO_TOKENS, MODE_NONE, LORA_NOT_CAPTURED.
  EXPECT_EQ("NONE(0,-1,F) ZERO_TOKENS", Dispatcher(setup.With(FWDMETA_GRAPH_NONE))({0, 0, 0, 9}));
  EXPECT_EQ("NONE(4,-1,F) MODE_NONE", Dispatcher(setup.With(FWDMETA_GRAPH_NONE))({4, 2, 2, 9}));
  EXPECT_EQ("NONE(4,-1,F) LORA_NOT_CAPTURED", dispatch({4, 2, 0, 9, no_full}));
  EXPECT_EQ("NONE(99,-1,F) LORA_NOT_CAPTURED", dispatch({99, 2, 0, 9}));
  // The first met on the FULL side.
  EXPECT_EQ("PIECEWISE(4,-1,F) NOT_ALLOWED", dispatch({4, 2, 0, 0, no_full}));
  EXPECT_EQ("PIECEWISE(4,-1,F) NOT_UNIFORM", dispatch({4, 2}));
  EXPECT_EQ("PIECEWISE(4,-1,F) NO_FULL_SIZE", dispatch({3, 1, 3}));  // no ladder
  const Dispatcher fresh(setup, false);
  EXPECT_EQ("NONE(4,-1,F) NOT_CAPTURED", fresh({4, 2, 2}));
  EXPECT_EQ("NONE(4,-1,F) NOT_UNIFORM", fresh({4, 2}));
  EXPECT_EQ("NONE(99,-1,F) ABOVE_LARGEST", fresh({99, 2}));
  EXPECT_EQ("NONE(4,-1,F) NOT_CAPTURED", Dispatcher(setup.With(FWDMETA_GRAPH_PIECEWISE), false)({4, 2, 2}));
  // What FULL missed stands where PIECEWISE is not allowed.
  EXPECT_EQ("NONE(4,-1,F) NOT_UNIFORM", dispatch({4, 2, 0, 0, FWDMETA_ALLOW_NONE | FWDMETA_ALLOW_FULL}));
}

TEST(Dispatch, NoGraphWhereNoneIsNotAllowed) {
  const int32_t graphs = FWDMETA_ALLOW_PIECEWISE | FWDMETA_ALLOW_FULL;
  const Dispatcher dispatch(Given({1, 2, 4, 8}, 16));
  EXPECT_EQ("FULL(4,4,T)", dispatch({4, 4, 1, 0, FWDMETA_ALLOW_FULL}));
  EXPECT_EQ("PIECEWISE(4,-1,F) NOT_UNIFORM", dispatch({4, 4, 0, 0, graphs}));
  EXPECT_EQ("NO_GRAPH", dispatch({4, 4, 0, 0, FWDMETA_ALLOW_FULL}));
  EXPECT_EQ("NO_GRAPH", dispatch({9, 9, 0, 0, graphs}));
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {9}));
  EXPECT_EQ("NO_GRAPH", dispatch({0, 0, 0, 0, graphs}));
  EXPECT_EQ("NO_GRAPH", Dispatcher(GraphConfig().With(FWDMETA_GRAPH_NONE))({1, 1, 0, 0, graphs}));
  // The result stays as it was.
  fwdmeta_dispatch_result_t result = FWDMETA_DISPATCH_RESULT_INITIALIZER;
  result.mode = 77;
  result.descriptor.num_tokens = 78;
  const fwdmeta_dispatch_args_t args = ToC({9, 9, 0, 0, graphs});
  EXPECT_STATUS(FWDMETA_NO_GRAPH, fwdmeta_dispatch(dispatch.handle(), &args, &result));
  EXPECT_EQ(77, result.mode);
  EXPECT_EQ(78, result.descriptor.num_tokens);
}

TEST(Dispatch, RefusesArguments) {
  for (const fwdmeta_graph_mode_t mode : kModes) {
    const Dispatcher dispatch(Given({1, 2, 4, 8}, 4, 2).With(mode));
    const Batch bad[] = {{-1, 0},
                         {int64_t{INT32_MAX} + 1, 1},
                         {4, -1},
                         {8, 5},  // past max_num_seqs
                         {4, int64_t{1} << 40},
                         {4, 2, -1},
                         {4, 2, int64_t{1} << 32},
                         {3, 1, 2},  // no multiple
                         {2, 2, 2},  // too few tokens for the requests
                         {4, 2, 2, -1},
                         {4, 2, 2, 1},  // no LoRAs
                         {4, 2, 2, int64_t{1} << 33},
                         {4, 2, 2, 0, 0},
                         {4, 2, 2, 0, 8},
                         {4, 2, 2, 0, -1},
                         {INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN}};
    for (const Batch& batch : bad) {
      EXPECT_EQ("INVALID_ARGUMENT", dispatch(batch)) << batch.tokens << " " << batch.reqs << " " << batch.query_len;
    }
    EXPECT_EQ("INVALID_ARGUMENT", dispatch({8, 5}));
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {5, 4})) << fwdmeta_last_error();
    EXPECT_EQ("INVALID_ARGUMENT", dispatch({2, 2, 2}));
    EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {2})) << fwdmeta_last_error();
  }
}

TEST(Dispatch, ReasonNames) {
  const char* names[] = {"OK",           "MODE_NONE",         "ZERO_TOKENS", "ABOVE_LARGEST", "NOT_UNIFORM",
                         "NO_FULL_SIZE", "LORA_NOT_CAPTURED", "NOT_ALLOWED", "NOT_CAPTURED"};
  for (int32_t i = 0; i < 9; ++i) EXPECT_STREQ(names[i], fwdmeta_dispatch_reason_name(i));
  for (const int32_t i : {-1, 9, INT32_MAX, INT32_MIN}) EXPECT_EQ(nullptr, fwdmeta_dispatch_reason_name(i));
}

// ------------------------------------------------------------------------------------------ capturing and hash --

TEST(MarkCaptured, AKeyIsDispatchableOnceMarked) {
  const Dispatcher dispatch(Given({2, 4}, 4), false);
  const std::vector<fwdmeta_graph_key_t> keys = dispatch.keys();
  ASSERT_EQ(4u, keys.size());
  EXPECT_EQ(0, dispatch.info().num_captured);
  EXPECT_EQ("NONE(2,-1,F) NOT_CAPTURED", dispatch({2, 2, 1}));
  EXPECT_OK(fwdmeta_dispatcher_mark_captured(dispatch.handle(), &keys[0]));  // PIECEWISE 4
  EXPECT_EQ(1, dispatch.info().num_captured);
  EXPECT_EQ("PIECEWISE(4,-1,F) NOT_CAPTURED", dispatch({4, 4, 1}));
  EXPECT_EQ("NONE(2,-1,F) NOT_CAPTURED", dispatch({2, 2, 1}));  // the smallest key of all, not of those marked
  EXPECT_OK(fwdmeta_dispatcher_mark_captured(dispatch.handle(), &keys[2]));  // FULL 4
  EXPECT_OK(fwdmeta_dispatcher_mark_captured(dispatch.handle(), &keys[2]));
  EXPECT_EQ(2, dispatch.info().num_captured);
  EXPECT_EQ("FULL(4,4,T)", dispatch({3, 3, 1}));
  EXPECT_EQ("PIECEWISE(4,-1,F) NOT_UNIFORM", dispatch({3, 3}));
  EXPECT_OK(fwdmeta_dispatcher_mark_captured(dispatch.handle(), nullptr));
  EXPECT_EQ(4, dispatch.info().num_captured);
  EXPECT_EQ("FULL(2,2,T)", dispatch({2, 2, 1}));
}

TEST(MarkCaptured, NotFoundForAnyOtherKey) {
  GraphConfig setup = Given({2, 4}, 4);
  setup.query_lens = {1, 2};
  setup.max_loras = 2;
  const Dispatcher dispatch(setup, false);
  std::set<std::vector<int32_t>> keys;
  const auto list = [](const fwdmeta_graph_key_t& key) {
    const fwdmeta_batch_descriptor_t& d = key.descriptor;
    return std::vector<int32_t>{key.mode, d.num_tokens, d.num_reqs, d.uniform, d.has_lora, d.num_active_loras};
  };
  for (const fwdmeta_graph_key_t& key : dispatch.keys()) keys.insert(list(key));
  int64_t marked = 0;
  for (const int32_t mode : {-1, 0, 1, 2, 0x200, 0x201}) {
    for (const int32_t tokens : {INT32_MIN, 0, 1, 2, 3, 4, 8, INT32_MAX}) {
      for (const int32_t reqs : {INT32_MIN, -1, 0, 1, 2, 4, INT32_MAX}) {
        for (const int32_t uniform : {0, 1, 2}) {
          for (const auto& lora : {std::make_pair(0, 0), std::make_pair(1, 3), std::make_pair(0, 3),
                                   std::make_pair(1, 0), std::make_pair(1, 2), std::make_pair(1, 4)}) {
            const fwdmeta_graph_key_t key = {mode, {tokens, reqs, uniform, lora.first, lora.second}};
            const bool known = keys.count(list(key)) > 0;
            EXPECT_STATUS(known ? FWDMETA_OK : FWDMETA_NOT_FOUND,
                          fwdmeta_dispatcher_mark_captured(dispatch.handle(), &key));
            marked += known;
          }
        }
      }
    }
  }
  EXPECT_EQ(static_cast<int64_t>(keys.size()), marked);
  EXPECT_EQ(marked, dispatch.info().num_captured);
  const Dispatcher none(GraphConfig().With(FWDMETA_GRAPH_NONE), false);
  const fwdmeta_graph_key_t key = {FWDMETA_GRAPH_FULL, {2, 2, 1, 0, 0}};
  EXPECT_STATUS(FWDMETA_NOT_FOUND, fwdmeta_dispatcher_mark_captured(none.handle(), &key));
  EXPECT_OK(fwdmeta_dispatcher_mark_captured(none.handle(), nullptr));
}

TEST(ConfigHash, IsOfTheConfigurationAndTheCapturedSet) {
  const GraphConfig setup = Given({1, 2, 4, 8}, 8);
  const Dispatcher a(setup, false), b(setup, false);
  EXPECT_EQ(a.info().config_hash, b.info().config_hash);
  // Not of the order of marking.
  std::vector<fwdmeta_graph_key_t> keys = a.keys();
  std::set<uint64_t> seen = {a.info().config_hash};
  for (const fwdmeta_graph_key_t& key : keys) {
    EXPECT_OK(fwdmeta_dispatcher_mark_captured(a.handle(), &key));
    EXPECT_TRUE(seen.insert(a.info().config_hash).second);
  }
  std::reverse(keys.begin(), keys.end());
  for (const fwdmeta_graph_key_t& key : keys) {
    EXPECT_NE(a.info().config_hash, b.info().config_hash);
    EXPECT_OK(fwdmeta_dispatcher_mark_captured(b.handle(), &key));
  }
  EXPECT_EQ(a.info().config_hash, b.info().config_hash);
  EXPECT_EQ(a.info().config_hash, Dispatcher(setup).info().config_hash);
  // Every field counts.
  std::vector<std::function<void(GraphConfig*)>> changes = {
      [](GraphConfig* s) { s->mode = FWDMETA_GRAPH_FULL; },
      [](GraphConfig* s) { s->mode = FWDMETA_GRAPH_NONE; },
      [](GraphConfig* s) { s->max_num_seqs = 9; },
      [](GraphConfig* s) { s->max_num_tokens = 8193; },
      [](GraphConfig* s) {
        s->sizes = {1, 2, 4, 7};
      },
      [](GraphConfig* s) { s->max_capture_size = 9; },
      [](GraphConfig* s) {
        s->query_lens = {1, 2};
      },
      [](GraphConfig* s) { s->max_loras = 1; },
      [](GraphConfig* s) { s->max_loras = 2; },
      [](GraphConfig* s) { s->max_full_reqs = 8; },
      [](GraphConfig* s) { s->default_sizes = true; },
      [](GraphConfig* s) { s->round_piecewise = true; },
      [](GraphConfig* s) { s->max_loras = 2, s->specialize = true; }};
  std::set<uint64_t> hashes = {a.info().config_hash};
  for (const auto& change : changes) {
    GraphConfig changed = setup;
    change(&changed);
    EXPECT_TRUE(hashes.insert(Dispatcher(changed).info().config_hash).second) << hashes.size();
  }
  // The same configuration, told in another way.
  GraphConfig same = Given({8, 4, 2, 1, 4}, 8);
  same.query_lens = {1, 1};
  EXPECT_EQ(a.info().config_hash, Dispatcher(same).info().config_hash);
}

// ---------------------------------------------------------------------------------------------------- helpers --

struct RoleBatch {
  std::vector<int32_t> encoder, this_time;
};

fwdmeta_dispatch_args_t FromLengths(const RoleBatch& batch, int64_t query_len) {
  fwdmeta_dispatch_args_t args = FWDMETA_DISPATCH_ARGS_INITIALIZER;
  EXPECT_OK(fwdmeta_dispatch_args_from_lengths(batch.encoder.data(), batch.this_time.data(),
                                               static_cast<int64_t>(batch.encoder.size()), query_len, &args));
  return args;
}

struct Dummy {
  fwdmeta_dummy_batch_t c = FWDMETA_DUMMY_BATCH_INITIALIZER;
  std::vector<int32_t> encoder, decoder, this_time;
  std::vector<int64_t> slots;
  std::vector<uint8_t> padding;
  Dummy(int64_t num_reqs, int64_t num_tokens, int64_t query_len, int64_t room = 64)
      : encoder(room, 77), decoder(room, 77), this_time(room, 77), slots(room, 77), padding(room, 77) {
    c.num_reqs = num_reqs;
    c.num_tokens = num_tokens;
    c.query_len = query_len;
    c.seq_lens_encoder = encoder.data();
    c.seq_lens_decoder = decoder.data();
    c.seq_lens_this_time = this_time.data();
    c.slot_mapping = slots.data();
    c.is_padding = padding.data();
  }
};

// B42: a prompt with the shape of a draft verification is no uniform decode.
TEST(ArgsFromLengths, GoesByRole) {
  EXPECT_EQ(0, FromLengths({{4}, {4}}, 4).query_len);
  EXPECT_EQ(4, FromLengths({{0, 0}, {4, 4}}, 4).query_len);
  EXPECT_EQ(0, FromLengths({{0, 4}, {4, 4}}, 4).query_len);
  EXPECT_EQ(0, FromLengths({{4}, {4}}, 4).query_len);  // the second chunk of a prompt of 12
  EXPECT_EQ(0, FromLengths({{0, 0}, {4, 3}}, 4).query_len);
  // B14: idle slots with stale lengths do not count.
  const fwdmeta_dispatch_args_t args = FromLengths({{7, 0, -9, 0}, {0, 1, 0, 1}}, 1);
  EXPECT_EQ(2, args.num_tokens);
  EXPECT_EQ(2, args.num_reqs);
  EXPECT_EQ(1, args.query_len);
  EXPECT_EQ(0, FromLengths({{}, {}}, 1).query_len);
  EXPECT_EQ(0, FromLengths({{3, 3}, {0, 0}}, 1).query_len);
  EXPECT_EQ(0, FromLengths({{3, 3}, {0, 0}}, 1).num_reqs);
}

// vllm.md §2.10, is_uniform_decode. The row (1, 1, 16, 15) cannot be had: 15 requests of one token are 15.
TEST(ArgsFromLengths, V1Rows) {
  const auto decode = [](const std::vector<int32_t>& lengths, int64_t query_len) {
    return FromLengths({std::vector<int32_t>(lengths.size()), lengths}, query_len).query_len;
  };
  EXPECT_EQ(1, decode(std::vector<int32_t>(16, 1), 1));
  std::vector<int32_t> two(16, 1);
  two[3] = 2;
  two[4] = 0;
  EXPECT_EQ(0, decode(two, 1));
  EXPECT_EQ(5, decode(std::vector<int32_t>(6, 5), 5));
  EXPECT_EQ(0, decode(std::vector<int32_t>(6, 5), 4));
  EXPECT_EQ(0, decode({5, 5, 5, 5, 5, 4, 1}, 5));
}

// vllm.md §2.6, the uniform count of V2: prompts of the shape of a decode are told from it by their state.
TEST(ArgsFromLengths, V2Rows) {
  const auto count = [](const std::vector<int32_t>& prompts, const std::vector<int32_t>& decodes) {
    RoleBatch batch = {prompts, prompts};
    batch.encoder.resize(prompts.size() + decodes.size());
    batch.this_time.insert(batch.this_time.end(), decodes.begin(), decodes.end());
    return FromLengths(batch, 8).query_len;
  };
  EXPECT_EQ(8, count({}, std::vector<int32_t>(6, 8)));
  EXPECT_EQ(8, count({}, {8, 8}));
  EXPECT_EQ(0, count({}, {8, 4}));  // a verification that was cut
  EXPECT_EQ(0, count({8, 8}, std::vector<int32_t>(6, 8)));
  EXPECT_EQ(0, FromLengths({{1}, {1}}, 1).query_len);
  EXPECT_EQ(0, count({8}, {}));
  Dummy dummy(4, kDefault, 8);
  ASSERT_OK(fwdmeta_make_dummy(&dummy.c));
  dummy.encoder.resize(4);
  dummy.this_time.resize(4);
  const fwdmeta_dispatch_args_t args = FromLengths({dummy.encoder, dummy.this_time}, 8);
  EXPECT_EQ(8, args.query_len);
  EXPECT_EQ(32, args.num_tokens);
}

TEST(ArgsFromLengths, LeavesTheRestAndRefuses) {
  fwdmeta_dispatch_args_t args = FWDMETA_DISPATCH_ARGS_INITIALIZER;
  args.num_active_loras = 5;
  args.allowed_modes = FWDMETA_ALLOW_FULL;
  const int32_t encoder[] = {0, 3}, this_time[] = {2, 3};
  EXPECT_OK(fwdmeta_dispatch_args_from_lengths(encoder, this_time, 2, 2, &args));
  EXPECT_EQ(5, args.num_tokens);
  EXPECT_EQ(2, args.num_reqs);
  EXPECT_EQ(0, args.query_len);
  EXPECT_EQ(5, args.num_active_loras);
  EXPECT_EQ(FWDMETA_ALLOW_FULL, args.allowed_modes);
  EXPECT_EQ(sizeof(args), args.struct_size);
  const auto run = [&](const std::vector<int32_t>& e, const std::vector<int32_t>& n) {
    return fwdmeta_dispatch_args_from_lengths(e.data(), n.data(), static_cast<int64_t>(e.size()), 2, &args);
  };
  EXPECT_STATUS(FWDMETA_INVALID_BATCH, run({0, 0}, {1, -7}));
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {1, -7}));
  EXPECT_STATUS(FWDMETA_INVALID_BATCH, run({-1}, {1}));
  EXPECT_STATUS(FWDMETA_INVALID_BATCH, run({9}, {8}));
  EXPECT_STATUS(FWDMETA_INVALID_BATCH, run({0, 0}, {INT32_MAX, 1}));
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {int64_t{INT32_MAX} + 1})) << fwdmeta_last_error();
  EXPECT_EQ(5, args.num_tokens);
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_dispatch_args_from_lengths(nullptr, this_time, 2, 2, &args));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_dispatch_args_from_lengths(encoder, nullptr, 2, 2, &args));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_dispatch_args_from_lengths(encoder, this_time, -1, 2, &args));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_dispatch_args_from_lengths(encoder, this_time, 1LL << 31, 2, &args));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_dispatch_args_from_lengths(encoder, this_time, 2, 0, &args));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_dispatch_args_from_lengths(encoder, this_time, 2, 1LL << 31, &args));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_dispatch_args_from_lengths(encoder, this_time, 2, 2, nullptr));
  args.struct_size = 0;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_dispatch_args_from_lengths(encoder, this_time, 2, 2, &args));
  // An older caller's struct: what it does not know is not written.
  args.struct_size = offsetof(fwdmeta_dispatch_args_t, num_reqs);
  args.num_reqs = 99;
  EXPECT_OK(fwdmeta_dispatch_args_from_lengths(encoder, this_time, 2, 2, &args));
  EXPECT_EQ(99, args.num_reqs);
  EXPECT_OK(fwdmeta_dispatch_args_from_lengths(nullptr, nullptr, 0, 2, &args));
}

TEST(MakeDummy, FloorOrCeilOfTheMeanNonDecreasing) {
  for (int64_t reqs = 1; reqs <= 9; ++reqs) {
    for (int64_t tokens = reqs; tokens <= 40; ++tokens) {
      for (const int64_t query_len : {int64_t{0}, (tokens + reqs - 1) / reqs}) {
        Dummy dummy(reqs, tokens, query_len);
        ASSERT_OK(fwdmeta_make_dummy(&dummy.c));
        int64_t sum = 0;
        for (int64_t i = 0; i < reqs; ++i) {
          const int32_t length = dummy.this_time[i];
          ASSERT_TRUE(length == tokens / reqs || length == (tokens + reqs - 1) / reqs);
          ASSERT_TRUE(i == 0 || dummy.this_time[i - 1] <= length);
          ASSERT_EQ(query_len == 0 ? length : 0, dummy.encoder[i]);
          ASSERT_EQ(0, dummy.decoder[i]);
          sum += length;
        }
        ASSERT_EQ(tokens, sum);
        for (int64_t i = 0; i < tokens; ++i) ASSERT_TRUE(dummy.slots[i] == -1 && dummy.padding[i] == 1);
        ASSERT_EQ(77, dummy.this_time[reqs] + dummy.encoder[reqs] - 77);
        ASSERT_TRUE(dummy.slots[tokens] == 77 && dummy.padding[tokens] == 77);
      }
    }
  }
  Dummy uniform(3, kDefault, 4);
  ASSERT_OK(fwdmeta_make_dummy(&uniform.c));
  EXPECT_EQ((std::vector<int32_t>{4, 4, 4, 77}),
            std::vector<int32_t>(uniform.this_time.begin(), uniform.this_time.begin() + 4));
  EXPECT_EQ(77, uniform.slots[12]);
}

// vllm.md §2.8.
TEST(MakeDummy, VectorsOfVllm) {
  std::vector<int32_t> ones_and_twos(256, 2);
  std::fill_n(ones_and_twos.begin(), 16, 1);
  const std::pair<int64_t, std::vector<int32_t>> rows[] = {
      {496, ones_and_twos}, {512, std::vector<int32_t>(128, 4)}, {8, {2, 3, 3}}, {7, {7}}};
  for (const auto& [tokens, lengths] : rows) {
    Dummy dummy(static_cast<int64_t>(lengths.size()), tokens, 0, 512);
    ASSERT_OK(fwdmeta_make_dummy(&dummy.c));
    dummy.this_time.resize(lengths.size());
    EXPECT_EQ(lengths, dummy.this_time);
  }
}

TEST(MakeDummy, Refuses) {
  const auto run = [](int64_t num_reqs, int64_t num_tokens, int64_t query_len) {
    Dummy dummy(num_reqs, num_tokens, query_len);
    const fwdmeta_status_t status = fwdmeta_make_dummy(&dummy.c);
    if (status != FWDMETA_OK) {
      EXPECT_EQ(77, dummy.this_time[0]);
    }
    return status;
  };
  EXPECT_OK(run(4, 4, 1));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, run(0, 4, 0));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, run(-1, 4, 0));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, run(5, 4, 0));  // fewer tokens than requests
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {4, 5}));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, run(1, 4, -1));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, run(2, 7, 3));  // one of 4
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {7, 4, 3}));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, run(2, kDefault, 0));  // no tokens
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, run(1 << 16, kDefault, 1 << 16));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, run(1, int64_t{1} << 31, 0));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, run(1, 1, int64_t{1} << 31));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_make_dummy(nullptr));
  Dummy nothing(2, 3, 0);
  nothing.c.seq_lens_encoder = nothing.c.seq_lens_decoder = nothing.c.seq_lens_this_time = nullptr;
  nothing.c.slot_mapping = nullptr;
  nothing.c.is_padding = nullptr;
  EXPECT_OK(fwdmeta_make_dummy(&nothing.c));
  nothing.c.num_reqs = nothing.c.num_tokens = INT32_MAX;  // of which nothing is written, so nothing is walked over
  EXPECT_OK(fwdmeta_make_dummy(&nothing.c));
  nothing.c.struct_size = 0;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_make_dummy(&nothing.c));
}

// ------------------------------------------------------------------------------------------------------- ABI --

TEST(Create, Refuses) {
  const auto refused = [](const std::function<void(fwdmeta_dispatcher_config_t*)>& change,
                          fwdmeta_status_t want = FWDMETA_INVALID_ARGUMENT) {
    static const int64_t sizes[] = {1, 2}, query_lens[] = {1, 2};
    fwdmeta_dispatcher_config_t config = FWDMETA_DISPATCHER_CONFIG_INITIALIZER;
    config.mode = FWDMETA_GRAPH_FULL_AND_PIECEWISE;
    config.max_num_seqs = config.max_num_tokens = 8;
    config.capture_sizes = sizes;
    config.num_capture_sizes = 2;
    config.query_lens = query_lens;
    config.num_query_lens = 2;
    EXPECT_OK(Create(config));
    change(&config);
    EXPECT_STATUS(want, Create(config));
  };
  using Config = fwdmeta_dispatcher_config_t;
  constexpr int64_t kPast = int64_t{INT32_MAX} + 1;
  static const int64_t zero[] = {1, 0}, past[] = {kPast, 1}, lowest[] = {kDefault};
  refused([](Config* c) { c->struct_size = 0; });
  refused([](Config* c) { c->struct_size = 7; });
  refused([](Config* c) { c->api_version = 990000; });
  refused([](Config* c) { c->api_version = -1; });
  refused([](Config* c) { c->mode = 3; });
  refused([](Config* c) { c->support = 4; });
  refused([](Config* c) { c->support = -1; });
  refused([](Config* c) { c->piecewise_available = 2; });
  for (int64_t Config::*field : {&Config::max_num_seqs, &Config::max_num_tokens}) {
    for (const int64_t value : {int64_t{0}, int64_t{-1}, kPast, kDefault}) {
      refused([&](Config* c) { c->*field = value; });
    }
  }
  for (int64_t Config::*field : {&Config::num_capture_sizes, &Config::num_query_lens, &Config::max_loras,
                                 &Config::max_full_reqs, &Config::max_capture_size}) {
    for (const int64_t value : {int64_t{-1}, kPast, INT64_MAX}) {
      refused([&](Config* c) { c->*field = value; });
    }
  }
  refused([](Config* c) { c->max_loras = kDefault; });
  refused([](Config* c) { c->max_loras = INT32_MAX; });  // one more is no int32
  refused([](Config* c) { c->max_capture_size = 0; });
  refused([](Config* c) { c->max_capture_size = 1; });  // below a given size
  refused([](Config* c) { c->num_query_lens = 0; });    // no q
  refused([](Config* c) { c->query_lens = nullptr; });
  refused([](Config* c) { c->query_lens = zero; });
  refused([](Config* c) { c->query_lens = past; });
  refused([](Config* c) { c->capture_sizes = nullptr; });
  refused([](Config* c) { c->capture_sizes = zero; });
  refused([](Config* c) { c->capture_sizes = past; });
  refused([](Config* c) { c->capture_sizes = lowest, c->num_capture_sizes = 1; });
  refused([](Config* c) { c->capture_sizes = zero, c->mode = FWDMETA_GRAPH_NONE; });
  refused([](Config* c) { c->max_capture_size = -1, c->mode = FWDMETA_GRAPH_NONE; });
  refused([](Config* c) { c->round_piecewise = 2; });
  refused([](Config* c) { c->specialize_active_loras = -1; });
  refused([](Config* c) { c->mode = FWDMETA_GRAPH_FULL, c->support = FWDMETA_SUPPORT_NEVER; }, FWDMETA_UNSUPPORTED);
  // §2.2: a mode with PIECEWISE graphs needs a model that can be cut.
  refused([](Config* c) { c->piecewise_available = 0; }, FWDMETA_UNSUPPORTED);
  refused([](Config* c) { c->piecewise_available = 0, c->mode = FWDMETA_GRAPH_PIECEWISE; }, FWDMETA_UNSUPPORTED);
  // No list that fills the memory.
  refused([](Config* c) { c->num_capture_sizes = kDefault, c->max_num_tokens = c->max_capture_size = INT32_MAX; });
  const GraphConfig plain;
  const fwdmeta_dispatcher_config_t good = plain.ToC();
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_dispatcher_create(&good, nullptr));
  fwdmeta_dispatcher_t handle = 0;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_dispatcher_create(nullptr, &handle));
}

TEST(Create, LargestNumbers) {
  GraphConfig setup = Given({1, INT32_MAX}, INT32_MAX, INT32_MAX);
  setup.max_num_tokens = INT32_MAX;
  setup.max_loras = INT32_MAX - 1;
  setup.specialize = true;
  const Dispatcher dispatch(setup);
  EXPECT_EQ((Sizes{INT32_MAX}), dispatch.full());
  EXPECT_EQ("FULL(2147483647,1,T,lora2147483647)", dispatch({INT32_MAX, 1, INT32_MAX, INT32_MAX}));
  EXPECT_EQ("FULL(2147483647,1,T,lora1073741824)", dispatch({INT32_MAX, 1, INT32_MAX, (1 << 29) + 1}));
  EXPECT_EQ("PIECEWISE(2147483647,-1,F) NOT_UNIFORM", dispatch({2, INT32_MAX}));
  setup = GraphConfig();
  setup.max_num_seqs = setup.max_num_tokens = INT32_MAX;
  EXPECT_EQ(512, Dispatcher(setup).sizes().back());
}

TEST(Create, AnOlderAndANewerStruct) {
  struct Longer {
    fwdmeta_dispatcher_config_t config;
    int64_t unknown;
  };
  const GraphConfig plain;
  Longer longer = {plain.ToC(), 0};
  longer.config.struct_size = sizeof(longer);
  EXPECT_OK(Create(longer.config));
  longer.unknown = 1;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, Create(longer.config));
  fwdmeta_dispatcher_config_t shorter = plain.ToC();
  shorter.struct_size = offsetof(fwdmeta_dispatcher_config_t, max_loras);
  shorter.max_loras = -7;
  EXPECT_OK(Create(shorter));
}

TEST(Handles, RefuseWhatIsNoDispatcher) {
  const GraphConfig plain;
  const fwdmeta_dispatcher_config_t config = plain.ToC();
  fwdmeta_dispatcher_t freed = 0;
  ASSERT_OK(fwdmeta_dispatcher_create(&config, &freed));
  ASSERT_OK(fwdmeta_dispatcher_destroy(freed));
  EXPECT_OK(fwdmeta_dispatcher_destroy(0));
  reference::Config small;
  Builder builder(FWDMETA_BACKEND_HOST, small);
  const Dispatcher other(GraphConfig{});
  const fwdmeta_dispatch_args_t args = ToC({1, 1});
  for (const uint64_t handle : {uint64_t{0}, freed, builder.handle(), other.handle() + 1, ~uint64_t{0}}) {
    fwdmeta_dispatcher_info_t info = FWDMETA_DISPATCHER_INFO_INITIALIZER;
    fwdmeta_dispatch_result_t result = FWDMETA_DISPATCH_RESULT_INITIALIZER;
    int64_t count = 0;
    EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_dispatcher_get_info(handle, &info));
    EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_dispatcher_get_sizes(handle, nullptr, 0, &count));
    EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_dispatcher_get_keys(handle, nullptr, 0, &count));
    EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_dispatcher_mark_captured(handle, nullptr));
    EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_dispatch(handle, &args, &result));
    if (handle != 0) {
      EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_dispatcher_destroy(handle));
    }
  }
}

TEST(Structs, SizesAndNulls) {
  const Dispatcher dispatch(GraphConfig{});
  fwdmeta_dispatch_args_t args = ToC({1, 1});
  fwdmeta_dispatch_result_t result = FWDMETA_DISPATCH_RESULT_INITIALIZER;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_dispatch(dispatch.handle(), nullptr, &result));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_dispatch(dispatch.handle(), &args, nullptr));
  args.reserved = 1;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_dispatch(dispatch.handle(), &args, &result));
  args.reserved = 0;
  args.struct_size = 0;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_dispatch(dispatch.handle(), &args, &result));
  args.struct_size = offsetof(fwdmeta_dispatch_args_t, query_len);  // the rest has its defaults
  args.query_len = args.num_active_loras = -1;
  result.struct_size = offsetof(fwdmeta_dispatch_result_t, reason);
  result.reason = 99;
  EXPECT_OK(fwdmeta_dispatch(dispatch.handle(), &args, &result));
  EXPECT_EQ(FWDMETA_GRAPH_PIECEWISE, result.mode);
  EXPECT_EQ(99, result.reason);
  result.struct_size = 0;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_dispatch(dispatch.handle(), &args, &result));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_dispatcher_get_info(dispatch.handle(), nullptr));
  fwdmeta_dispatcher_info_t info = {};
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_dispatcher_get_info(dispatch.handle(), &info));
}

TEST(Structs, CapacitiesOfLists) {
  const Dispatcher dispatch(Given({1, 2, 4}, 8));
  int64_t count = -1, sizes[4] = {-7, -7, -7, -7};
  fwdmeta_graph_key_t keys[6] = {};
  const fwdmeta_dispatcher_t handle = dispatch.handle();
  EXPECT_STATUS(FWDMETA_CAPACITY_EXCEEDED, fwdmeta_dispatcher_get_sizes(handle, sizes, 2, &count));
  EXPECT_TRUE(HoldsNumbers(fwdmeta_last_error(), {2, 3}));
  EXPECT_EQ(3, count);
  EXPECT_EQ(-7, sizes[0]);
  EXPECT_STATUS(FWDMETA_CAPACITY_EXCEEDED, fwdmeta_dispatcher_get_sizes(handle, sizes, 0, &count));
  EXPECT_OK(fwdmeta_dispatcher_get_sizes(handle, sizes, 4, &count));
  EXPECT_EQ((Sizes{1, 2, 4, -7}), Sizes(sizes, sizes + 4));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_dispatcher_get_sizes(handle, nullptr, 4, &count));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_dispatcher_get_sizes(handle, sizes, -1, &count));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_dispatcher_get_sizes(handle, sizes, 4, nullptr));
  EXPECT_STATUS(FWDMETA_CAPACITY_EXCEEDED, fwdmeta_dispatcher_get_keys(handle, keys, 5, &count));
  EXPECT_EQ(6, count);
  EXPECT_EQ(0, keys[0].mode);
  EXPECT_OK(fwdmeta_dispatcher_get_keys(handle, keys, 6, &count));
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_dispatcher_get_keys(handle, keys, 6, nullptr));
}

TEST(Dispatch, AllocatesNothing) {
  const int64_t before_create = allocations;
  const Dispatcher dispatch(Given({1, 2, 4, 8}, 8));
  ASSERT_GT(allocations, before_create) << "the library does not use this test's operator new";
  const fwdmeta_dispatch_args_t args[] = {ToC({3, 3, 1}), ToC({3, 3}), ToC({9, 3}), ToC({0, 0})};
  const fwdmeta_graph_key_t key = {FWDMETA_GRAPH_FULL, {4, 4, 1, 0, 0}};
  fwdmeta_dispatch_result_t result = FWDMETA_DISPATCH_RESULT_INITIALIZER;
  fwdmeta_status_t status = FWDMETA_OK;
  const int64_t before = allocations;
  for (int i = 0; i < 1000; ++i) status |= fwdmeta_dispatch(dispatch.handle(), &args[i % 4], &result);
  status |= fwdmeta_dispatcher_mark_captured(dispatch.handle(), &key);
  const int64_t after = allocations;
  EXPECT_EQ(FWDMETA_OK, status);
  EXPECT_EQ(before, after);
}

// Eight threads dispatch while another marks: an answer is a captured key or says that it is not.
TEST(Dispatch, WhileKeysAreMarked) {
  const Dispatcher dispatch(Given(Range(1, 64, 1), 64), false);
  std::atomic<bool> done{false};
  std::atomic<int64_t> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      bool seen[65] = {};
      bool last_round = false;
      while (!last_round) {
        last_round = done;
        for (int64_t n = 1 + t % 2; n <= 64; ++n) {
          const fwdmeta_dispatch_args_t args = ToC({n, n, 1, 0, FWDMETA_ALLOW_NONE | FWDMETA_ALLOW_FULL});
          fwdmeta_dispatch_result_t result = FWDMETA_DISPATCH_RESULT_INITIALIZER;
          const bool ok = fwdmeta_dispatch(dispatch.handle(), &args, &result) == FWDMETA_OK;
          const bool hit = result.mode == FWDMETA_GRAPH_FULL;
          const bool right = ok && result.descriptor.num_tokens == n &&
                             result.reason == (hit ? FWDMETA_DISPATCH_OK : FWDMETA_DISPATCH_NOT_CAPTURED);
          if (!right || (seen[n] && !hit) || (last_round && !hit)) ++wrong;
          seen[n] = hit;
        }
      }
    });
  }
  for (const fwdmeta_graph_key_t& key : dispatch.keys()) {
    EXPECT_OK(fwdmeta_dispatcher_mark_captured(dispatch.handle(), &key));
    std::this_thread::yield();
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(0, wrong);
}

// -------------------------------------------------------------------------------------------------- the model --

class RandomGraphs {
 public:
  int64_t Between(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(generator_);
  }
  bool OneIn(int64_t n) { return Between(1, n) == 1; }

  GraphConfig MakeSetup() {
    GraphConfig s;
    s.mode = kModes[OneIn(2) ? 4 : Between(0, 4)];
    s.max_num_seqs = Between(1, OneIn(4) ? 90 : 12);
    s.max_num_tokens = Between(1, OneIn(2) ? 700 : 40);
    s.query_lens.clear();
    for (int64_t i = Between(1, 3); i > 0; --i) s.query_lens.push_back(Between(1, 7));
    if (OneIn(3)) s.max_capture_size = Between(1, OneIn(2) ? 300 : 30);
    s.default_sizes = OneIn(3);
    for (int64_t i = Between(0, 8); !s.default_sizes && i > 0; --i) {
      const int64_t size = Between(1, OneIn(4) ? 200 : 40);
      if (s.max_capture_size == kDefault || size <= s.max_capture_size) s.sizes.push_back(size);
    }
    if (OneIn(2)) s.max_loras = Between(1, 9);
    s.specialize = OneIn(2);
    if (OneIn(3)) s.max_full_reqs = Between(0, 12);
    s.round_piecewise = OneIn(3);
    return s;
  }
  Batch MakeBatch(const GraphConfig& s) {
    Batch b = {Between(0, OneIn(3) ? 250 : 40), Between(0, s.max_num_seqs + OneIn(20))};
    if (!OneIn(3)) {
      b.query_len = OneIn(5) ? Between(1, 7) : s.query_lens[Between(0, s.query_lens.size() - 1)];
      if (!OneIn(20)) b.tokens = b.query_len * Between(std::min(b.reqs, s.max_num_seqs), s.max_num_seqs + 1);
    }
    if (OneIn(2)) b.loras = Between(0, s.max_loras + 2);
    if (OneIn(3)) b.allowed = static_cast<int32_t>(Between(0, 7));
    return b;
  }

 private:
  std::mt19937_64 generator_{20260101};
};

TEST(Dispatch, AgreesWithASlowModel) {
  RandomGraphs random;
  fwdmeta_log_set_level(FWDMETA_LOG_ERROR);
  std::map<std::string, int> seen;
  for (int round = 0; round < 400; ++round) {
    const GraphConfig setup = random.MakeSetup();
    const Model model(setup);
    const Dispatcher dispatch(setup, false);
    const std::vector<fwdmeta_graph_key_t> keys = dispatch.keys();
    const std::vector<std::string> texts = dispatch.KeyTexts();
    ASSERT_EQ(model.KeyTexts(), std::multiset<std::string>(texts.begin(), texts.end())) << "round " << round;
    std::set<std::string> captured;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (round % 2 == 0 && random.OneIn(4)) continue;
      ASSERT_OK(fwdmeta_dispatcher_mark_captured(dispatch.handle(), &keys[i]));
      captured.insert(texts[i]);
    }
    const auto is_captured = [&](const fwdmeta_graph_key_t& key) {
      return captured.count(Text(key.mode, key.descriptor)) > 0;
    };
    for (int i = 0; i < 50; ++i) {
      const Batch b = random.MakeBatch(setup);
      const std::string got = dispatch(b);
      ASSERT_EQ(model.Answer(b, is_captured), got)
          << "round " << round << ": " << b.tokens << " tokens, " << b.reqs << " requests, q " << b.query_len << ", "
          << b.loras << " LoRAs, allowed " << b.allowed << ", mode " << fwdmeta_graph_mode_name(setup.mode);
      ++seen[got.substr(0, got.find('(')) + got.substr(std::min(got.size(), got.find(' ')))];
    }
  }
  fwdmeta_log_set_level(FWDMETA_LOG_WARN);
  EXPECT_EQ(seen.size(), 16u) << "the random batches miss an outcome";
}

// As n grows, so does the graph, and what has outgrown a mode does not come back to it. A uniform graph divides evenly.
TEST(Dispatch, IsMonotoneAndDividesEvenly) {
  RandomGraphs random;
  fwdmeta_log_set_level(FWDMETA_LOG_ERROR);
  int hits[3] = {}, uniform = 0;
  for (int round = 0; round < 300; ++round) {
    const GraphConfig setup = random.MakeSetup();
    const Dispatcher dispatch(setup);
    Sizes query_lens = setup.query_lens;
    query_lens.push_back(0);  // no uniform decode
    for (const int64_t q : query_lens) {
      const int64_t step = std::max<int64_t>(q, 1);
      int64_t largest = 0;
      fwdmeta_graph_mode_t mode = FWDMETA_GRAPH_FULL;
      for (int64_t n = step; n <= 300; n += step) {
        const fwdmeta_dispatch_args_t args = ToC({n, std::min(n / step, setup.max_num_seqs), q});
        fwdmeta_dispatch_result_t result = FWDMETA_DISPATCH_RESULT_INITIALIZER;
        ASSERT_OK(fwdmeta_dispatch(dispatch.handle(), &args, &result));
        const fwdmeta_batch_descriptor_t& d = result.descriptor;
        ASSERT_GE(d.num_tokens, n);
        ASSERT_LE(result.mode, mode);
        if (result.mode == mode) {
          ASSERT_GE(d.num_tokens, largest);
        }
        mode = result.mode;
        largest = d.num_tokens;
        ++hits[mode];
        if (mode != FWDMETA_GRAPH_FULL) continue;
        ASSERT_GE(d.num_reqs, args.num_reqs);
        if (d.uniform == 0) continue;
        ASSERT_EQ(d.num_tokens, d.num_reqs * q);
        ++uniform;
      }
    }
  }
  fwdmeta_log_set_level(FWDMETA_LOG_WARN);
  for (const int count : hits) EXPECT_GT(count, 1000);
  EXPECT_GT(uniform, 1000);
}

}  // namespace
}  // namespace fwdmeta_test
