// A case made ready: its timed inputs, and what the host backend builds from any inputs.
#ifndef FWDMETA_BENCH_FIXTURE_H_
#define FWDMETA_BENCH_FIXTURE_H_

#include "measure.h"

namespace fwdmeta_bench {

int64_t SizeOfType(const fwdmeta_tensor_t& tensor);
int64_t NumEntries(const fwdmeta_tensor_t& tensor);
// Entries of a field that a build with these counts has to write; past them lie tails that it only has to keep.
int64_t EntriesWritten(fwdmeta_field_t field, const fwdmeta_tensor_t& tensor, const fwdmeta_counts_t& counts);
bool IsMirrorField(fwdmeta_field_t field);  // *_cpu

class Builder {
 public:
  explicit Builder(const fwdmeta_config_t& config) { BENCH_OK(fwdmeta_builder_create(&config, &handle_)); }
  ~Builder() { fwdmeta_builder_destroy(handle_); }
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;
  fwdmeta_builder_t handle() const { return handle_; }

 private:
  fwdmeta_builder_t handle_ = 0;
};

class Meta {
 public:
  Meta() = default;
  ~Meta() { fwdmeta_meta_destroy(handle_); }
  Meta(const Meta&) = delete;
  Meta& operator=(const Meta&) = delete;
  fwdmeta_meta_t handle() const { return handle_; }
  fwdmeta_meta_t* Renew() {
    fwdmeta_meta_destroy(handle_);
    handle_ = 0;
    return &handle_;
  }

 private:
  fwdmeta_meta_t handle_ = 0;
};

class CaseFixture {
 public:
  CaseFixture(const Case& spec, int64_t num_sms, uint64_t seed);

  const Case& spec() const { return spec_; }
  int64_t num_sms() const { return num_sms_; }
  int64_t table_width() const { return table_width_; }
  int64_t bytes_written() const { return bytes_written_; }  // by a build of the timed inputs, the mirror left out
  const Inputs& timed() const { return timed_; }
  Inputs Scrambled() { return MakeScrambledInputs(spec_, table_width_, &random_); }

  // Builds on the host backend; the view and the counts are those of the latest call.
  const fwdmeta_counts_t& Build(const Inputs& inputs);
  fwdmeta_meta_t meta() const { return meta_.handle(); }
  const fwdmeta_counts_t& counts() const { return counts_; }
  fwdmeta_builder_t builder() const { return builder_.handle(); }

 private:
  const Case spec_;
  const int64_t num_sms_;
  Random random_;
  Builder builder_;
  Meta meta_;
  fwdmeta_counts_t counts_ = FWDMETA_COUNTS_INITIALIZER;
  int64_t table_width_ = 0;
  int64_t bytes_written_ = 0;
  Inputs timed_;
};

LazyPtr<CaseFixture> MakeFixture(const Case& spec, int64_t num_sms, uint64_t seed);

}  // namespace fwdmeta_bench

#endif  // FWDMETA_BENCH_FIXTURE_H_
