#include "output.h"

#include <algorithm>
#include <cmath>

namespace fwdmeta::command {

namespace {

constexpr size_t kBrokenLevels = 2;
constexpr size_t kShownHead = 16;
constexpr size_t kShownTail = 4;

void append(std::string& text, const Json& json, size_t level) {
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

// `text` behind `label`, broken at spaces, with later lines under the first.
std::string wrapped(const std::string& label, const std::string& text) {
  std::string result = label;
  size_t column = label.size();
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (begin > 0 && column + 1 + word.size() > kColumns) {
      result += "\n" + std::string(label.size(), ' ');
      column = label.size();
    } else if (begin > 0) {
      result += " ";
      ++column;
    }
    result += word;
    column += word.size();
    begin = end + 1;
  }
  return result + "\n";
}

std::string shortened(int64_t value, int digits) {
  std::string plain = std::to_string(value);
  if (static_cast<int>(plain.size()) <= digits) return plain;
  double scaled = std::fabs(static_cast<double>(value));
  const char* unit = "";
  for (const char* next : {"k", "M", "G", "T", "P", "E"}) {
    if (scaled < 999.5) break;
    scaled /= 1000;
    unit = next;
  }
  const int decimals = scaled < 9.995 ? 2 : scaled < 99.95 ? 1 : 0;
  return printed("%s%.*f%s", value < 0 ? "-" : "", decimals, scaled, unit);
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

std::string fitted(const std::vector<int64_t>& values, size_t width) {
  constexpr size_t kSeparator = 2;
  // As many from the front as fit beside the last one.
  const std::string end =
      values.empty() ? "]"
                     : "..., " + std::to_string(values.back()) + "] (" + std::to_string(values.size()) + " values)";
  std::string whole = "[", cut = "[";
  for (size_t i = 0; i < values.size() && whole.size() <= width; ++i) {
    whole += (i == 0 ? "" : ", ") + std::to_string(values[i]);
    if (whole.size() + kSeparator + end.size() <= width) cut = whole + ", ";
  }
  whole += "]";
  return whole.size() <= width ? whole : cut + end;
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
