#ifndef FWDMETA_COMMAND_OUTPUT_H
#define FWDMETA_COMMAND_OUTPUT_H

#include <cstdint>
#include <cstdio>
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

// ---- tables: no line is wider than this

constexpr size_t kColumns = 80;

template <typename... Args>
std::string printed(const char* format, Args... args) {
  char line[256];
  std::snprintf(line, sizeof line, format, args...);
  return line;
}

// `text` behind `label`, broken at spaces, with later lines under the first.
std::string wrapped(const std::string& label, const std::string& text);

// "131072", or where that has more than `digits` digits, three of them and a unit: "12.3M".
std::string shortened(int64_t value, int digits);

// "[0, 1, 2, ..., 9] (10 values)" beyond a few dozen values.
std::string elided(const std::vector<int64_t>& values);

// The same on one line of at most `width` columns, of which 48 always do.
std::string fitted(const std::vector<int64_t>& values, size_t width);

// Two columns, names left, values right-aligned.
std::string name_value_table(const std::vector<std::pair<std::string, int64_t>>& rows);

}  // namespace fwdmeta::command

#endif
