#include "output.h"

#include <algorithm>

namespace fwdmeta::command {

namespace {

constexpr int kBrokenLevels = 2;
constexpr size_t kShownHead = 16;
constexpr size_t kShownTail = 4;

void append(std::string& text, const Json& json, int level) {
  if (!json.is_object() || json.empty() || level == kBrokenLevels) {
    text += json.dump(-1, ' ', false, Json::error_handler_t::replace);
    return;
  }
  const std::string indent(2 * (level + 1), ' ');
  const char* separator = "{\n";
  for (const auto& [key, value] : json.items()) {
    text += separator + indent + Json(key).dump() + ": ";
    append(text, value, level + 1);
    separator = ",\n";
  }
  text += "\n" + std::string(2 * level, ' ') + "}";
}

}  // namespace

Json answer(const char* schema, const char* status) { return Json{{"schema", schema}, {"status", status}}; }

Json error_answer(const char* schema, fwdmeta_status_t status, const std::string& message) {
  Json json = answer(schema, "error");
  json["code"] = fwdmeta_status_name(status);
  json["message"] = message;
  return json;
}

const char* backend_name(fwdmeta_backend_t backend) { return backend == FWDMETA_BACKEND_CUDA ? "cuda" : "host"; }

std::string to_text(const Json& json) {
  std::string text;
  append(text, json, 0);
  return text + "\n";
}

std::string elided(const std::vector<int64_t>& values) {
  const bool cut = values.size() > kShownHead + kShownTail;
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (cut && i == kShownHead) {
      text += ", ...";
      i = values.size() - kShownTail;
    }
    text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  }
  text += "]";
  return cut ? text + " (" + std::to_string(values.size()) + " values)" : text;
}

std::string name_value_table(const std::vector<std::pair<std::string, int64_t>>& rows) {
  size_t name_width = 0, value_width = 0;
  for (const auto& [name, value] : rows) {
    name_width = std::max(name_width, name.size());
    value_width = std::max(value_width, std::to_string(value).size());
  }
  std::string text;
  for (const auto& [name, value] : rows) {
    const std::string number = std::to_string(value);
    text += "  " + name + std::string(name_width - name.size() + 2 + value_width - number.size(), ' ') + number + "\n";
  }
  return text;
}

}  // namespace fwdmeta::command
