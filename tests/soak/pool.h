// What a soak builds and what must come out: for each case a configuration, and for each shape of a step a pool of
// batches, random ones and such that a trace gives, with every array that the reference model makes of them.
#ifndef FWDMETA_TESTS_SOAK_POOL_H_
#define FWDMETA_TESTS_SOAK_POOL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "pick.h"
#include "reference.h"
#include "trace.h"

namespace fwdmeta_soak {

// An array of a step, all of its capacity, within the expectation of one batch.
struct ArrayPlace {
  fwdmeta_field_t field;
  int32_t group;
  int32_t element_size;
  int64_t offset, count;
};

// A batch of a pool as the C API takes it.
struct BatchArgs {
  fwdmeta_rows_t tables[FWDMETA_MAX_CACHE_GROUPS];
  fwdmeta_batch_t batch;
};

// Batches of one shape: so many slots, T, and rows of the same widths, so that a captured build can replay them all.
struct Pool {
  int64_t slots = 0, tokens = 0, num_batches = 0;
  int64_t input_bytes = 0, array_bytes = 0;  // of one batch, multiples of 16
  std::vector<char> inputs, arrays;
  std::vector<fwdmeta_counts_t> counts;  // as fwdmeta_counts_wait gives them, but for the step
  std::vector<fwdmeta_status_t> statuses;

  int64_t Pick(uint64_t seed, int64_t step) const { return PickBatch(seed, step, num_batches); }
};

struct Case {
  std::string name;
  reference::Config config;
  int64_t id_columns;  // of input_ids; tokens past them count as invalid
  std::vector<ArrayPlace> places;
  std::vector<Pool> pools;
};

// `requests` may be empty: all batches are random then. `most_batches` bounds each pool.
std::vector<Case> MakeCases(uint64_t seed, int64_t most_batches,
                            const std::vector<fwdmeta::command::Request>& requests);

// The batch whose inputs lie at `inputs`, where the backend reads them.
void Point(const Case& of, const Pool& pool, const char* inputs, BatchArgs* out);

}  // namespace fwdmeta_soak

#endif  // FWDMETA_TESTS_SOAK_POOL_H_
