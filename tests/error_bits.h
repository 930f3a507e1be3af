// Batches that have exactly the errors they are asked for, of the seven of contract §7, and the configurations in which
// each can be had.
#ifndef FWDMETA_TESTS_ERROR_BITS_H_
#define FWDMETA_TESTS_ERROR_BITS_H_

#include "harness.h"

namespace fwdmeta_test {

constexpr int32_t kAllErrors = 127;
constexpr int32_t kLongest = 1 << 30;

// The sum of D + N passes int32 before the limit of keys, or the other way round.
inline reference::Config ErrorBitsConfig(int32_t bits) {
  reference::Config config;
  config.max_batch_size = 8;
  config.max_num_tokens = 32;
  config.max_model_len = kLongest;
  config.max_num_kv_tokens = (bits & FWDMETA_ERROR_NUM_KV_TOKENS) != 0 ? 150 : int64_t{1} << 33;
  config.groups = {{1 << 20, 1 << 20, false}};  // or the lists would have a page for each 64 keys
  return config;
}

// Three bad slots, idle where their bit is not asked for, and three that are good by themselves.
inline reference::Batch BatchWithErrors(int32_t bits) {
  std::vector<Slot> slots(3, Slot{0, 0, 0});
  if ((bits & FWDMETA_ERROR_NEGATIVE) != 0) slots[0] = {0, 5, -3};
  if ((bits & FWDMETA_ERROR_ENCODER_MISMATCH) != 0) slots[1] = {9, 0, 8};
  if ((bits & FWDMETA_ERROR_MODEL_LEN) != 0) slots[2] = {0, kLongest, 1};
  const int32_t n = (bits & FWDMETA_ERROR_NUM_TOKENS) != 0 ? 11 : 1;
  const int32_t d = (bits & FWDMETA_ERROR_SUM_OVERFLOW) != 0    ? kLongest - 20
                    : (bits & FWDMETA_ERROR_NUM_KV_TOKENS) != 0 ? 60
                                                                : 5;
  for (int i = 0; i < 3; ++i) slots.push_back({0, d, n});
  return MakeBatch(slots, (bits & FWDMETA_ERROR_PADDED_TOKENS) != 0 ? 1 : -1);
}

}  // namespace fwdmeta_test

#endif  // FWDMETA_TESTS_ERROR_BITS_H_
