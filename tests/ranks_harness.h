// What the tests of transports share: a dispatcher, rows, and agreements compared with the pure function's.
#ifndef FWDMETA_TESTS_RANKS_HARNESS_H_
#define FWDMETA_TESTS_RANKS_HARNESS_H_

#include <random>

#include "harness.h"

namespace fwdmeta_test {

using Rows = std::vector<fwdmeta_rank_row_t>;

// B65's sizes and more, all captured; uniform decode of 1 or 3 tokens.
class RanksDispatcher {
 public:
  RanksDispatcher() {
    const int64_t sizes[] = {1, 2, 4, 8, 16, 24, 32, 40}, query_lens[] = {1, 3};
    fwdmeta_dispatcher_config_t config = FWDMETA_DISPATCHER_CONFIG_INITIALIZER;
    config.mode = FWDMETA_GRAPH_FULL_AND_PIECEWISE;
    config.max_num_seqs = 64;
    config.max_num_tokens = 8192;
    config.capture_sizes = sizes;
    config.num_capture_sizes = 8;
    config.query_lens = query_lens;
    config.num_query_lens = 2;
    EXPECT_OK(fwdmeta_dispatcher_create(&config, &handle_));
    EXPECT_OK(fwdmeta_dispatcher_mark_captured(handle_, nullptr));
    fwdmeta_dispatcher_info_t info = FWDMETA_DISPATCHER_INFO_INITIALIZER;
    EXPECT_OK(fwdmeta_dispatcher_get_info(handle_, &info));
    config_hash_ = info.config_hash;
  }
  ~RanksDispatcher() { EXPECT_OK(fwdmeta_dispatcher_destroy(handle_)); }
  RanksDispatcher(const RanksDispatcher&) = delete;
  RanksDispatcher& operator=(const RanksDispatcher&) = delete;

  fwdmeta_dispatcher_t handle() const { return handle_; }

  fwdmeta_rank_row_t Row(int64_t step, int64_t num_tokens, int64_t num_reqs, int32_t query_len = 0) const {
    return {num_tokens, num_reqs, config_hash_, step, FWDMETA_GRAPH_FULL, query_len, 0, {}};
  }

  // The rows of a step, the same on whichever rank asks: idle ranks, decodes, mixed batches, eager ranks.
  Rows RowsOf(int64_t step, int64_t num_ranks, uint32_t seed = 1) const {
    std::mt19937 random(static_cast<uint32_t>(step) * 7919 + seed);
    const auto below = [&random](uint32_t n) { return static_cast<int32_t>(random() % n); };
    const int32_t common_query_len = below(2) == 0 ? 1 : 3;
    Rows rows;
    for (int64_t rank = 0; rank < num_ranks; ++rank) {
      fwdmeta_rank_row_t row = Row(step, 0, 0);
      if (below(3) != 0) {
        const bool decode = below(2) == 0;
        row.num_reqs = 1 + below(16);
        row.query_len = decode ? common_query_len : 0;
        row.num_tokens = decode ? row.num_reqs * common_query_len : row.num_reqs + below(60);
        row.max_mode = below(5) == 0 ? below(2) : FWDMETA_GRAPH_FULL;
      }
      row.wants_slices = below(4) != 0;
      rows.push_back(row);
    }
    return rows;
  }

 private:
  fwdmeta_dispatcher_t handle_ = 0;
  uint64_t config_hash_ = 0;
};

// One rank's agreement, and the tokens that each rank runs.
struct Agreed {
  fwdmeta_status_t status = FWDMETA_INTERNAL;
  fwdmeta_agreement_t agreement = FWDMETA_AGREEMENT_INITIALIZER;
  std::vector<int64_t> num_tokens;

  bool operator==(const Agreed& other) const {
    const fwdmeta_agreement_t &a = agreement, &b = other.agreement;
    return status == other.status && num_tokens == other.num_tokens && a.mode == b.mode && a.reason == b.reason &&
           a.query_len == b.query_len && a.num_reqs == b.num_reqs && a.sliced == b.sliced && a.skip == b.skip &&
           a.mismatch_rank == b.mismatch_rank && fwdmeta_batch_descriptor_equal(&a.descriptor, &b.descriptor);
  }
};

inline Agreed AgreeThrough(fwdmeta_transport_t transport, const RanksDispatcher& dispatcher,
                           const fwdmeta_rank_row_t& row, int64_t num_ranks, int64_t timeout_us = -1,
                           int64_t num_slices = 2) {
  Agreed agreed;
  agreed.num_tokens.assign(num_ranks, -9);
  agreed.status = fwdmeta_agree_through(transport, dispatcher.handle(), &row, num_slices, timeout_us,
                                        agreed.num_tokens.data(), &agreed.agreement);
  return agreed;
}

// What the contract's pure function says of the table.
inline Agreed AgreeOn(const RanksDispatcher& dispatcher, const Rows& rows, int64_t num_slices = 2) {
  Agreed agreed;
  agreed.num_tokens.assign(rows.size(), -9);
  agreed.status = fwdmeta_agree(dispatcher.handle(), rows.data(), static_cast<int64_t>(rows.size()), num_slices,
                                agreed.num_tokens.data(), &agreed.agreement);
  return agreed;
}

}  // namespace fwdmeta_test

#endif  // FWDMETA_TESTS_RANKS_HARNESS_H_
