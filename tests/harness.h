// What the tests share: a builder of one backend whose every step is compared with the reference model.
#ifndef FWDMETA_TESTS_HARNESS_H_
#define FWDMETA_TESTS_HARNESS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device.h"
#include "fwdmeta.h"
#include "reference.h"

namespace fwdmeta_test {

// Statuses compared by name, a failure with the library's message.
std::string Name(fwdmeta_status_t status);
::testing::AssertionResult IsStatus(const char* call, fwdmeta_status_t want, fwdmeta_status_t got);
#define EXPECT_STATUS(want, call) EXPECT_TRUE(::fwdmeta_test::IsStatus(#call, want, call))
#define EXPECT_OK(call) EXPECT_STATUS(FWDMETA_OK, call)
#define ASSERT_OK(call) ASSERT_TRUE(::fwdmeta_test::IsStatus(#call, FWDMETA_OK, call))
// For those who include the CUDA runtime.
#define CUDA_OK(call) ASSERT_EQ(cudaSuccess, call) << cudaGetErrorString(cudaGetLastError())

// One slot's E, D, N and rejected count, one behind another in memory that the backend can write.
fwdmeta_advance_args_t AdvanceOfSlot(int32_t* numbers);

// `text` holds each number, not as a part of a longer one.
bool HoldsNumbers(const std::string& text, const std::vector<int64_t>& numbers);
// `text` holds the numbers of a step's error: the value, its limit (but for the 0 that a length is below), the slot.
bool HoldsNumbersOf(const std::string& text, const fwdmeta_counts_t& error);

// Skips a test of a backend that is not here, with the reason.
#define FWDMETA_SKIP_WITHOUT(backend)                                                   \
  do {                                                                                  \
    if ((backend) == FWDMETA_BACKEND_CUDA && !::fwdmeta_test::NoCudaReason().empty()) { \
      if (::fwdmeta_test::CudaRequired()) FAIL() << ::fwdmeta_test::NoCudaReason();     \
      GTEST_SKIP() << ::fwdmeta_test::NoCudaReason();                                   \
    }                                                                                   \
  } while (false)
bool CudaRequired();

// A fixture that runs on both backends: INSTANTIATE_BACKENDS(Suite) after its TEST_Ps.
class BackendTest : public ::testing::TestWithParam<fwdmeta_backend_t> {
 protected:
  void SetUp() override { FWDMETA_SKIP_WITHOUT(GetParam()); }
  fwdmeta_backend_t backend() const { return GetParam(); }
};
std::string BackendName(const ::testing::TestParamInfo<fwdmeta_backend_t>& info);
#define INSTANTIATE_BACKENDS(suite)                                                                  \
  INSTANTIATE_TEST_SUITE_P(On, suite, ::testing::Values(FWDMETA_BACKEND_HOST, FWDMETA_BACKEND_CUDA), \
                           ::fwdmeta_test::BackendName)

// The C struct of a configuration; `groups` keeps what it points to.
fwdmeta_config_t ToC(const reference::Config& config, fwdmeta_backend_t backend,
                     std::vector<fwdmeta_group_config_t>* groups);

// The arguments of builds over batches, with their arrays where the backend wants them.
class Inputs {
 public:
  explicit Inputs(fwdmeta_backend_t backend) : backend_(backend) {}
  // On the host backend the struct points into `batch`; on the CUDA backend arrays are copied to the device, packed
  // with no more than their natural alignment from `skew` bytes (a multiple of 4) on. Equal shapes get equal addresses
  // until something larger has come.
  fwdmeta_batch_t Put(const reference::Batch&& batch, fwdmeta_memory_kind_t kind, size_t skew = 0) = delete;
  fwdmeta_batch_t Put(const reference::Batch& batch, fwdmeta_memory_kind_t kind, size_t skew = 0);

 private:
  fwdmeta_backend_t backend_;
  std::unique_ptr<Buffer> buffer_;
  std::vector<fwdmeta_rows_t> tables_;
};

// Where a builder's memory comes from. Ends with everything freed, soon, and one allocation for each free.
struct Allocators {
  CountingAllocator device{Memory::kDevice}, pinned{Memory::kPinned}, host{Memory::kHost};
  ~Allocators();
  fwdmeta_config_t Config(const reference::Config& config, fwdmeta_backend_t backend,
                          std::vector<fwdmeta_group_config_t>* groups);
};

class Builder {
 public:
  Builder(fwdmeta_backend_t backend, const reference::Config& config);
  // One that somebody else has created and will end.
  Builder(fwdmeta_backend_t backend, const reference::Config& config, fwdmeta_builder_t of_others,
          std::shared_ptr<Allocators> allocators);
  ~Builder();
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  fwdmeta_backend_t backend() const { return backend_; }
  const reference::Config& config() const { return config_; }
  fwdmeta_builder_t handle() const { return handle_; }
  fwdmeta_meta_t meta() const { return meta_; }
  int64_t step() const { return step_; }
  Inputs& inputs() { return inputs_; }
  CountingAllocator& arrays() { return backend_ == FWDMETA_BACKEND_CUDA ? allocators_->device : allocators_->host; }
  int allocations() const {
    return allocators_->device.allocs() + allocators_->host.allocs() + allocators_->pinned.allocs();
  }
  fwdmeta_stream_t stream = nullptr;

  // One build as it is asked for; on success meta() and step() are its.
  fwdmeta_status_t Build(const fwdmeta_batch_t& batch);
  fwdmeta_status_t Build(const reference::Batch& batch, fwdmeta_memory_kind_t kind = FWDMETA_MEMORY_DEVICE,
                         int64_t generation = FWDMETA_DEFAULT);

  // One build compared with the model in every array at full capacity and in every count. What it must write is
  // poisoned first: [0, max(previous, new)) of lists and token arrays, all else whole. With generations > 1 the set
  // has to be named for that. Returns false after a mismatch, which is reported with the batch.
  bool Run(const reference::Batch& batch, fwdmeta_memory_kind_t kind = FWDMETA_MEMORY_DEVICE,
           int64_t generation = FWDMETA_DEFAULT);

  // A build that was asked of the builder's owner: its view, which is the builder's from now on.
  void Adopt(fwdmeta_meta_t meta);

  // Compares the latest build, in every array and count, with what it should have given.
  bool Expect(const reference::Result& want);
  // Compares counts, all final, with what a step should have given but for its number.
  static bool ExpectCounts(const reference::Result& want, fwdmeta_status_t status, const fwdmeta_counts_t& got);
  // Compares a view of any step, arrays alone; `step` is what counts_i64 must hold.
  bool ExpectArrays(fwdmeta_meta_t meta, const reference::Result& want, int64_t step);

  // The counts of the latest build, final.
  fwdmeta_counts_t Counts();
  fwdmeta_tensor_t Tensor(fwdmeta_field_t field, int32_t group = 0);
  // A whole array of the latest build, or its first `size` entries.
  std::vector<int64_t> Read(fwdmeta_field_t field, int32_t group = 0);
  std::vector<int64_t> Head(fwdmeta_field_t field, int64_t size, int32_t group = 0);
  // A mapping by its batch_ids field: (slot, tile) of every entry before the count.
  std::vector<std::pair<int64_t, int64_t>> Tiles(fwdmeta_field_t batch_ids);

  // Poisons what the next build or replay of a set must write, once Remember has said what the set holds.
  void Poison(int64_t set, const fwdmeta_counts_t& next);
  // Keeps the addresses and counts of a set after a step; false where an array has moved.
  bool Remember(int64_t set, fwdmeta_meta_t meta, const reference::Result& step);
  // Forgets that the arrays hold anything, after a reset.
  void ForgetExtents() { sets_.clear(); }

 private:
  struct Set {
    std::map<std::pair<int, int>, fwdmeta_tensor_t> tensors;
    fwdmeta_counts_t counts;
  };

  const fwdmeta_backend_t backend_;
  const reference::Config config_;
  const std::shared_ptr<Allocators> allocators_;
  fwdmeta_builder_t handle_ = 0;
  const bool owned_ = true;
  fwdmeta_meta_t meta_ = 0;
  int64_t step_ = 0;
  Inputs inputs_;
  std::map<int64_t, Set> sets_;
  reference::Result last_;
  int64_t skew_ = 0;
};

// The entries of an array, whatever their type, from plain memory.
std::vector<int64_t> Values(const void* data, const fwdmeta_tensor_t& tensor);

// A mapping of the public header, by its first field.
struct Mapping {
  const char* name;
  fwdmeta_field_t batch_ids, tile_ids, cu_tiles;
  int32_t fwdmeta_counts_t::*count;
  int64_t fwdmeta_capacities_t::*capacity;
  int64_t reference::Capacities::*model_capacity;
};
extern const Mapping kMappings[4];

// The 32-bit members of the counts, in their order from batch_size to error_slot.
struct CountName {
  const char* name;
  int32_t fwdmeta_counts_t::*member;
};
extern const CountName kCountNames[18];

// The batch as a JSON text of the fwdmeta.batch/1 form, cut when long.
std::string Describe(const reference::Config& config, const reference::Batch& batch);

// A batch of slots (E, D, N), to write tests with.
struct Slot {
  int32_t e, d, n;
};
reference::Batch MakeBatch(const std::vector<Slot>& slots, int64_t num_padded_tokens = -1);

}  // namespace fwdmeta_test

#endif  // FWDMETA_TESTS_HARNESS_H_
