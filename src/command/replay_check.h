#ifndef FWDMETA_COMMAND_REPLAY_CHECK_H
#define FWDMETA_COMMAND_REPLAY_CHECK_H

#include <fwdmeta.h>

#include <cstdint>
#include <string>
#include <vector>

#include "device_memory.h"
#include "handles.h"

namespace fwdmeta::command {

// Compares whole arrays, tails included, with what the host backend makes of the same inputs.
class ReplayCheck {
 public:
  // `config` and `info` are those of the builder under test, whose arrays are on `device` (null: host memory).
  ReplayCheck(const fwdmeta_config_t& config, const fwdmeta_builder_info_t& info, Device* device);

  // `batch` is the batch of `tested` with all its arrays in host memory.
  void compare(const Step& tested, const fwdmeta_batch_t& batch);

  int64_t num_arrays() const { return num_arrays_; }
  int64_t num_mismatches() const { return num_mismatches_; }
  const std::string& first_mismatch() const { return first_mismatch_; }

 private:
  void compare_bytes(const std::string& name, const void* tested, const void* reference, size_t bytes, size_t entry,
                     int64_t step);
  const void* on_host(const fwdmeta_tensor_t& tensor, size_t bytes);

  Builder reference_;
  Device* device_;
  std::vector<unsigned char> copy_;
  int64_t num_arrays_ = 0;
  int64_t num_mismatches_ = 0;
  std::string first_mismatch_;
};

}  // namespace fwdmeta::command

#endif
