// What the tests of the agreement share on host and device: dispatchers, rows, and random tables of them.
#ifndef FWDMETA_TESTS_RANDOM_RANKS_H_
#define FWDMETA_TESTS_RANDOM_RANKS_H_

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "harness.h"

namespace fwdmeta_test {

using Rows = std::vector<fwdmeta_rank_row_t>;

inline fwdmeta_rank_row_t Row(int64_t tokens, int64_t reqs, int32_t query_len = 0,
                              fwdmeta_graph_mode_t max_mode = FWDMETA_GRAPH_FULL, int32_t wants_slices = 0) {
  return {tokens, reqs, 0xabcdef, 7, max_mode, query_len, wants_slices, {}};
}

struct GraphSetup {
  std::vector<int64_t> sizes;
  int64_t max_num_seqs;
  std::vector<int64_t> query_lens;
  fwdmeta_graph_mode_t mode = FWDMETA_GRAPH_FULL_AND_PIECEWISE;
  int64_t max_loras = 0;
};

class Dispatcher {
 public:
  explicit Dispatcher(const GraphSetup& setup, bool captured = true) {
    fwdmeta_dispatcher_config_t config = FWDMETA_DISPATCHER_CONFIG_INITIALIZER;
    config.mode = setup.mode;
    config.max_num_seqs = setup.max_num_seqs;
    config.max_num_tokens = 8192;
    config.capture_sizes = setup.sizes.data();
    config.num_capture_sizes = static_cast<int64_t>(setup.sizes.size());
    config.query_lens = setup.query_lens.data();
    config.num_query_lens = static_cast<int64_t>(setup.query_lens.size());
    config.max_loras = setup.max_loras;
    EXPECT_OK(fwdmeta_dispatcher_create(&config, &handle_));
    if (captured) {
      EXPECT_OK(fwdmeta_dispatcher_mark_captured(handle_, nullptr));
    }
  }
  ~Dispatcher() { EXPECT_OK(fwdmeta_dispatcher_destroy(handle_)); }
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;
  fwdmeta_dispatcher_t handle() const { return handle_; }

 private:
  fwdmeta_dispatcher_t handle_ = 0;
};

// What random tables are dispatched by. Any of their tables fits each.
inline const std::vector<GraphSetup>& RandomSetups() {
  static const std::vector<GraphSetup> setups = {{{1, 2, 4, 8, 16, 32, 64, 128}, 64, {1, 2, 3}},
                                                 {{1, 2, 4, 8, 16, 32, 64}, 64, {1, 3}, FWDMETA_GRAPH_FULL_DECODE_ONLY},
                                                 {{4, 8, 40}, 64, {1}, FWDMETA_GRAPH_FULL},
                                                 {{8, 64, 200}, 64, {1}, FWDMETA_GRAPH_PIECEWISE},
                                                 {{}, 64, {1}, FWDMETA_GRAPH_NONE}};
  return setups;
}

// Good tables of 1 to 4096 ranks, one after another.
class RandomTables {
 public:
  Rows Next() {
    const int64_t ranks = round_ % 500 == 0 ? 4096 : Between(1, int64_t{1} << Between(0, 12));
    // What most ranks of the table have in common.
    const int32_t query_len = static_cast<int32_t>(Between(0, 3));
    const bool eager = OneIn(4), want = !OneIn(3), some_idle = OneIn(4);
    const int64_t least = OneIn(2) ? 1 : 33, most = Between(least, 64);
    const int64_t odd_one_in = OneIn(2) ? 1 << 20 : ranks;
    Rows rows;
    for (int64_t i = 0; i < ranks; ++i) {
      const int64_t reqs = Between(least, most);
      rows.push_back(
          Row(reqs * std::max(query_len, 1), reqs, query_len, eager ? FWDMETA_GRAPH_NONE : FWDMETA_GRAPH_FULL, want));
      fwdmeta_rank_row_t& row = rows.back();
      if (OneIn(odd_one_in)) {
        row = Row(Between(0, 100), Between(0, 64), static_cast<int32_t>(Between(0, 3)),
                  static_cast<int32_t>(Between(0, 2)), static_cast<int32_t>(Between(0, 1)));
      }
      if (some_idle && OneIn(4)) row.num_tokens = row.num_reqs = 0;
      if (round_ % 97 == 0) row.num_tokens = 0;
    }
    ++round_;
    return rows;
  }

  int64_t Between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_() % static_cast<uint64_t>(most - least + 1));
  }
  bool OneIn(int64_t n) { return Between(1, n) == 1; }
  std::mt19937_64& random() { return random_; }

 private:
  std::mt19937_64 random_{20260102};
  int round_ = 0;
};

}  // namespace fwdmeta_test

#endif  // FWDMETA_TESTS_RANDOM_RANKS_H_
