#ifndef FWDMETA_COMMAND_HANDLES_H
#define FWDMETA_COMMAND_HANDLES_H

#include <fwdmeta.h>

#include "errors.h"

namespace fwdmeta::command {

class Builder {
 public:
  explicit Builder(const fwdmeta_config_t& config) { check(fwdmeta_builder_create(&config, &handle_)); }
  ~Builder() { fwdmeta_builder_destroy(handle_); }
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  fwdmeta_builder_t get() const { return handle_; }

  fwdmeta_builder_info_t info() const {
    fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
    check(fwdmeta_builder_get_info(handle_, &info));
    return info;
  }

 private:
  fwdmeta_builder_t handle_ = 0;
};

// A build of one step and the view of what it wrote.
class Step {
 public:
  Step(const Builder& builder, const fwdmeta_batch_t& batch) : builder_(builder.get()) {
    check(fwdmeta_build(builder_, &batch, &meta_, &number_));
  }
  ~Step() { fwdmeta_meta_destroy(meta_); }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  fwdmeta_meta_t meta() const { return meta_; }

  fwdmeta_counts_t wait(fwdmeta_wait_flags_t flags) const {
    fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
    check(fwdmeta_counts_wait(builder_, number_, flags, -1, &counts));
    return counts;
  }

 private:
  fwdmeta_builder_t builder_;
  fwdmeta_meta_t meta_ = 0;
  int64_t number_ = 0;
};

}  // namespace fwdmeta::command

#endif
