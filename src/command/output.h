#ifndef FWDMETA_COMMAND_OUTPUT_H
#define FWDMETA_COMMAND_OUTPUT_H

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"

namespace fwdmeta::command {

// Keys keep the order in which they are written.
using Json = nlohmann::ordered_json;

// The beginning that every JSON answer has.
Json answer(const char* schema, const char* status);
Json error_answer(const char* schema, fwdmeta_status_t status, const std::string& message);

const char* backend_name(fwdmeta_backend_t backend);  // of HOST or CUDA

// One member a line down to the second level; what is below stands on its member's line.
std::string to_text(const Json& json);

// "[0, 1, 2, ..., 9] (10 values)" beyond a few dozen values.
std::string elided(const std::vector<int64_t>& values);

// Two columns, names left, values right-aligned.
std::string name_value_table(const std::vector<std::pair<std::string, int64_t>>& rows);

}  // namespace fwdmeta::command

#endif
