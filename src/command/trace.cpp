#include "trace.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <variant>

#include "errors.h"
#include "json_file.h"

namespace fwdmeta::command {

namespace {

constexpr std::string_view kHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";

// A number, or a date and time whose text sorts as its time does.
using Timestamp = std::variant<double, std::string>;

struct TimedRequest {
  Timestamp timestamp;
  Request request;
};

// Why a line is not readable.
struct BadLine {
  std::string reason;
};

template <typename T>
std::optional<T> number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional<T>(value) : std::nullopt;
}

Timestamp timestamp(std::string_view text) {
  const auto seconds = number<double>(text);
  if (seconds && std::isfinite(*seconds)) return *seconds;  // a NaN has no place in an order
  constexpr std::string_view kDate = "dddd-dd-dd dd:dd:dd";
  const auto fits = [](char c, char pattern) {
    if (pattern == 'd') return std::isdigit(static_cast<unsigned char>(c)) != 0;
    return c == pattern || (pattern == ' ' && c == 'T');
  };
  if (text.size() < kDate.size() ||
      !std::equal(kDate.begin(), kDate.end(), text.begin(), [&](char pattern, char c) { return fits(c, pattern); })) {
    throw BadLine{"timestamp " + printable(text) + " is neither a number nor a date and time"};
  }
  return std::string(text);
}

int64_t length(const char* name, std::optional<int64_t> value) {
  if (!value || *value < 0) throw BadLine{std::string(name) + " must be an integer from 0 to 2^63-1"};
  return *value;
}

TimedRequest csv_request(std::string_view line) {
  const size_t first = line.find(','), second = first == line.npos ? line.npos : line.find(',', first + 1);
  if (second == line.npos || line.find(',', second + 1) != line.npos) throw BadLine{"a row must have three columns"};
  return {timestamp(line.substr(0, first)),
          {length("ContextTokens", number<int64_t>(line.substr(first + 1, second - first - 1))),
           length("GeneratedTokens", number<int64_t>(line.substr(second + 1)))}};
}

int64_t json_length(const nlohmann::json& object, const char* name) {
  const nlohmann::json value = object.value(name, nlohmann::json());
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() ||
                     value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  return length(name, fits ? std::optional<int64_t>(value.get<int64_t>()) : std::nullopt);
}

TimedRequest json_request(std::string_view line) {
  nlohmann::json object;
  try {
    object = nlohmann::json::parse(line);
  } catch (const nlohmann::json::exception&) {
    throw BadLine{"not valid JSON"};
  }
  if (!object.is_object()) throw BadLine{"not a JSON object"};
  const nlohmann::json time = object.value("timestamp", nlohmann::json());
  if (!time.is_number() && !time.is_string()) throw BadLine{"timestamp must be a number or a string"};
  return {time.is_number() ? Timestamp(time.get<double>()) : timestamp(time.get_ref<const std::string&>()),
          {json_length(object, "input_length"), json_length(object, "output_length")}};
}

}  // namespace

std::vector<Request> read_trace(const std::string& path) {
  const std::string text = read_text(path);
  const size_t content = text.find_first_not_of(" \t\r\n");
  const bool is_json = content != std::string::npos && text[content] == '{';

  std::vector<TimedRequest> timed;
  size_t line_number = 0;
  bool header_seen = false;
  const auto fail = [&](const std::string& reason) {
    throw InputError(display_name(path) + ":" + std::to_string(std::max<size_t>(line_number, 1)) + ": " + reason);
  };
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) continue;
    try {
      if (is_json) {
        timed.push_back(json_request(line));
      } else if (header_seen) {
        timed.push_back(csv_request(line));
      } else if (line == kHeader) {
        header_seen = true;
      } else {
        throw BadLine{"neither a JSON object nor the header " + std::string(kHeader)};
      }
    } catch (const BadLine& bad) {
      fail(bad.reason);
    }
  }
  if (!is_json && !header_seen) fail("the trace is empty");

  std::stable_sort(timed.begin(), timed.end(),
                   [](const TimedRequest& a, const TimedRequest& b) { return a.timestamp < b.timestamp; });
  std::vector<Request> requests;
  requests.reserve(timed.size());
  for (const TimedRequest& item : timed) requests.push_back(item.request);
  return requests;
}

}  // namespace fwdmeta::command
