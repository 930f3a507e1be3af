// The smallest step with a decode and a prompt, on the host backend, for tests of how the library is loaded and
// watched.
#ifndef FWDMETA_TESTS_TWO_SLOTS_H_
#define FWDMETA_TESTS_TWO_SLOTS_H_

#include <cstdint>

#include "fwdmeta.h"

namespace fwdmeta_test {

// The batch points into the object, which therefore stays where it is.
struct TwoSlots {
  TwoSlots() {
    config.backend = FWDMETA_BACKEND_HOST;
    config.max_batch_size = 2;
    config.max_num_tokens = 8;
    config.max_model_len = 64;
    config.num_q_heads = config.num_kv_heads = 1;
    batch.memory_kind = FWDMETA_MEMORY_HOST;
    batch.batch_size = 2;
    batch.seq_lens_encoder = encoder;
    batch.seq_lens_decoder = decoder;
    batch.seq_lens_this_time = this_time;
  }
  TwoSlots(const TwoSlots&) = delete;
  TwoSlots& operator=(const TwoSlots&) = delete;

  fwdmeta_config_t config = FWDMETA_CONFIG_INITIALIZER;
  fwdmeta_batch_t batch = FWDMETA_BATCH_INITIALIZER;
  int32_t encoder[2] = {0, 4}, decoder[2] = {9, 0}, this_time[2] = {2, 4};
};

}  // namespace fwdmeta_test

#endif  // FWDMETA_TESTS_TWO_SLOTS_H_
