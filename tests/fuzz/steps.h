// Configurations and batches out of bytes, and steps compared with the model.
#ifndef FWDMETA_TESTS_FUZZ_STEPS_H_
#define FWDMETA_TESTS_FUZZ_STEPS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "byte_reader.h"
#include "fwdmeta.h"
#include "reference.h"

namespace fwdmeta_fuzz {

// Host memory with a bound, so that no configuration takes long. Ends with everything freed.
class BoundedMemory {
 public:
  ~BoundedMemory();
  fwdmeta_allocator_t allocator();
  int64_t refused() const { return refused_; }

 private:
  static void* Alloc(size_t bytes, size_t alignment, void* user);
  static void Free(void* memory, size_t bytes, void* user);

  int64_t blocks_ = 0, bytes_ = 0, refused_ = 0;
};

// A configuration of the host backend, most often good and always small where it is; `groups` keeps what it points to.
fwdmeta_config_t ReadConfig(ByteReader& bytes, std::vector<fwdmeta_group_config_t>* groups);

// The model of a configuration that a builder has accepted.
reference::Config ModelOf(const fwdmeta_config_t& config);
// Whether the model's arrays are small enough to be written for every step.
bool HasModel(const fwdmeta_config_t& config);

// A batch for the configuration, most often a good one.
reference::Batch ReadBatch(ByteReader& bytes, const reference::Config& config);

// The struct of a batch, with arrays in memory that ends where they do.
class BatchArgs {
 public:
  explicit BatchArgs(const reference::Batch& batch);
  fwdmeta_batch_t c = FWDMETA_BATCH_INITIALIZER;
  // The lengths, for an advance.
  int32_t *encoder = nullptr, *decoder = nullptr, *this_time = nullptr;

 private:
  template <class T>
  T* Copy(const std::vector<T>& values);
  template <class T>
  fwdmeta_rows_t CopyRows(const reference::Rows<T>& rows);

  std::vector<std::unique_ptr<char[]>> memory_;
  std::vector<fwdmeta_rows_t> tables_;
};

// What the arrays hold after creation and a reset: their tails, and 0 in all counts.
reference::Result Tails(const reference::Config& config);

// Each ends the process where the library's numbers are not the model's.
void CheckCounts(const reference::Result& want, int64_t step, const fwdmeta_counts_t& got);
// All arrays in the backend's memory, at full capacity.
void CheckArrays(fwdmeta_meta_t meta, const reference::Config& config, const reference::Result& want, int64_t step);
// The arrays of the mirror.
void CheckMirror(fwdmeta_meta_t meta, const reference::Result& want);

// The step of a slice batch, as fwdmeta_build_slices has it; `split` may be FWDMETA_DEFAULT.
reference::Result BuildSlice(const reference::Config& config, const reference::Batch& batch, int64_t slice,
                             int64_t num_slices, int64_t split);

}  // namespace fwdmeta_fuzz

#endif  // FWDMETA_TESTS_FUZZ_STEPS_H_
