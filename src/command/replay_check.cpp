#include "replay_check.h"

#include <cstring>

namespace fwdmeta::command {

namespace {

fwdmeta_config_t reference_config(fwdmeta_config_t config, const fwdmeta_builder_info_t& info) {
  config.backend = FWDMETA_BACKEND_HOST;
  config.num_sms = info.num_sms;
  // Two sets of arrays, so that the tails of the two builders have different histories even on one backend.
  config.generations = 2;
  return config;
}

size_t num_entries(const fwdmeta_tensor_t& tensor) {
  size_t entries = 1;
  for (int32_t dim = 0; dim < tensor.ndim; ++dim) entries *= static_cast<size_t>(tensor.shape[dim]);
  return entries;
}

}  // namespace

ReplayCheck::ReplayCheck(const fwdmeta_config_t& config, const fwdmeta_builder_info_t& info, Device* device)
    : reference_(reference_config(config, info)), device_(device) {}

void ReplayCheck::compare(const Step& tested, const fwdmeta_batch_t& batch) {
  const Step reference(reference_, batch);
  const fwdmeta_counts_t tested_counts = tested.wait(FWDMETA_WAIT_FINAL);
  const fwdmeta_counts_t reference_counts = reference.wait(FWDMETA_WAIT_FINAL);
  const int64_t step = reference_counts.step;
  compare_bytes("the counts", &tested_counts, &reference_counts, sizeof tested_counts, sizeof(int32_t), step);

  for (fwdmeta_field_t field = 0; field < FWDMETA_FIELD_COUNT; ++field) {
    fwdmeta_tensor_t tested_tensor = FWDMETA_TENSOR_INITIALIZER, reference_tensor = FWDMETA_TENSOR_INITIALIZER;
    const fwdmeta_status_t status = fwdmeta_meta_get_field(reference.meta(), field, 0, &reference_tensor);
    // The configuration does not have this field, seq_lens_kv_local for one.
    if (status == FWDMETA_NOT_FOUND) continue;
    check(status);
    check(fwdmeta_meta_get_field(tested.meta(), field, 0, &tested_tensor));
    const size_t entry = reference_tensor.dtype_bits / 8;
    const size_t bytes = num_entries(reference_tensor) * entry;
    compare_bytes(fwdmeta_field_name(field), on_host(tested_tensor, bytes), reference_tensor.data, bytes, entry, step);
  }
}

const void* ReplayCheck::on_host(const fwdmeta_tensor_t& tensor, size_t bytes) {
  if (tensor.memory_kind == FWDMETA_MEMORY_HOST) return tensor.data;
  if (copy_.size() < bytes) copy_.resize(bytes);
  device_->download(copy_.data(), tensor.data, bytes);
  return copy_.data();
}

void ReplayCheck::compare_bytes(const std::string& name, const void* tested, const void* reference, size_t bytes,
                                size_t entry, int64_t step) {
  ++num_arrays_;
  if (std::memcmp(tested, reference, bytes) == 0) return;
  if (++num_mismatches_ > 1) return;
  const auto *a = static_cast<const unsigned char*>(tested), *b = static_cast<const unsigned char*>(reference);
  size_t at = 0;
  while (a[at] == b[at]) ++at;
  first_mismatch_ = name + " in step " + std::to_string(step) + " at entry " + std::to_string(at / entry);
}

}  // namespace fwdmeta::command
