#ifndef FWDMETA_COMMAND_INSPECT_OUTPUT_H
#define FWDMETA_COMMAND_INSPECT_OUTPUT_H

#include <string>
#include <utility>
#include <vector>

#include "inspect.h"
#include "output.h"

namespace fwdmeta::command {

inline constexpr const char* kResultSchema = "fwdmeta.result/1";
inline constexpr const char* kCapacitiesSchema = "fwdmeta.capacities/1";

// The counts of the answer, by its names.
std::vector<std::pair<std::string, int64_t>> named(const fwdmeta_counts_t& counts);

// `grouped`: slot_mapping is a list of arrays, one a cache group.
Json to_json(const Inspection& inspection, bool grouped);
Json to_json(const CapacityReport& report);

std::string to_table(const Inspection& inspection, const BatchFile& file);
std::string to_table(const CapacityReport& report);

}  // namespace fwdmeta::command

#endif
