#ifndef FWDMETA_COMMAND_INSPECT_H
#define FWDMETA_COMMAND_INSPECT_H

#include <fwdmeta.h>

#include <optional>
#include <string>
#include <vector>

#include "batch_file.h"

namespace fwdmeta::command {

// An array of the step, as far as it is shown. SLOT_MAPPING has one array a cache group, all others have one.
struct ShownField {
  fwdmeta_field_t field;
  std::vector<std::vector<int64_t>> arrays;
};

struct Inspection {
  fwdmeta_backend_t backend;  // HOST or CUDA
  fwdmeta_counts_t counts;
  std::vector<ShownField> fields;  // in the order of the answer

  // Of a field that every answer has.
  const std::vector<int64_t>& array(fwdmeta_field_t field) const;
};

// By the rule of the API: "idle", "prefill" or "decode".
const char* role(int64_t encoder, int64_t this_time);

struct CapacityReport {
  fwdmeta_capacities_t capacities;
  std::optional<fwdmeta_capacities_t> bucket;
};

// Builds the batch. `full` reads whole arrays, tails included, instead of their live parts.
Inspection inspect(const BatchFile& file, fwdmeta_backend_t backend, bool full);

CapacityReport inspect_capacities(const BatchFile& file, fwdmeta_backend_t backend);

}  // namespace fwdmeta::command

#endif
