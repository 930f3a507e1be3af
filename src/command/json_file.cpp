#include "json_file.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "errors.h"

namespace fwdmeta::command {

std::string plain(std::string_view text, size_t longest) {
  std::string shown;
  for (const char c : text.substr(0, longest)) shown += c >= 0x20 && c < 0x7f ? c : '?';
  return shown + (text.size() > longest ? "..." : "");
}

std::string printable(std::string_view text) { return "\"" + plain(text, 60) + "\""; }

namespace {

// Deeper than any format of the command, and shallow enough for recursive destruction.
constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxKeys = 256;

// Tells how far the parser has read, which its events do not.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, const char** furthest) : at_(at), furthest_(furthest) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    *furthest_ = ++at_;
    return *this;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** furthest_;
};

struct Failure {
  size_t offset;
  std::string message;
};

// Builds the tree; every event says false at the first failure, which ends the parse.
class TreeBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit TreeBuilder(std::string_view text) : text_(text), furthest_(text.data()) {}

  const char** furthest() { return &furthest_; }
  JsonValue& root() { return root_; }
  const Failure& failure() const { return failure_; }

  bool null() override { return add({}); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(int64_t{value}); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return refuse_number();
    return add(static_cast<int64_t>(value));
  }
  bool number_float(number_float_t, const string_t&) override { return refuse_number(); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return fail(token_begin(), "binary values are not JSON"); }

  bool start_array(std::size_t) override { return add(JsonValue::List{}) && open(); }
  bool start_object(std::size_t) override { return add(JsonValue::Object{}) && open(); }
  bool end_array() override { return close(); }
  bool end_object() override { return close(); }

  bool key(string_t& value) override {
    auto& members = std::get<JsonValue::Object>(open_.back()->value);
    // No format of the command has so many keys; the look at all earlier ones stays short.
    if (members.size() == kMaxKeys) return fail(token_begin(), "an object has too many keys");
    const auto same = [&](const JsonValue::Member& member) { return member.key == value; };
    if (std::any_of(members.begin(), members.end(), same))
      return fail(token_begin(), "key " + printable(value) + " is given twice");
    members.push_back({std::move(value), token_begin(), {}});
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    // The parser's text begins with its own name for the error and, for most, its own count of lines.
    std::string message = error.what();
    for (const char* mark : {"] ", ": "}) {
      const size_t at = message.find(mark);
      if (at != std::string::npos) message.erase(0, at + 2);
    }
    // It holds the token as it stands in the text.
    return fail(position == 0 ? 0 : position - 1, plain(message, 160));
  }

 private:
  using Value = decltype(JsonValue::value);

  bool fail(size_t offset, std::string message) {
    failure_ = {offset, std::move(message)};
    return false;
  }

  bool refuse_number() {
    const size_t begin = token_begin();
    const std::string number(text_.substr(begin, text_.find_first_not_of("+-.0123456789eE", begin) - begin));
    const bool fraction = number.find_first_of(".eE") != std::string::npos;
    return fail(begin, "number " + plain(number, 60) + (fraction ? " is not an integer" : " is past int64"));
  }

  bool add(Value value) {
    JsonValue* target = &root_;
    if (!open_.empty()) {
      if (auto* list = std::get_if<JsonValue::List>(&open_.back()->value)) {
        target = &list->emplace_back();
      } else {
        target = &std::get<JsonValue::Object>(open_.back()->value).back().value;
      }
    }
    target->offset = token_begin();
    target->value = std::move(value);
    latest_ = target;
    return true;
  }

  bool open() {
    if (open_.size() == kMaxDepth) return fail(token_begin(), "nested more than 32 levels deep");
    open_.push_back(latest_);
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  // Where the token that the parser has just read begins. It may have read one character more to end a number.
  size_t token_begin() const {
    const auto literal = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '+' || c == '.';
    };
    size_t at = furthest_ - text_.data() - 1;
    if (text_[at] == '"') return string_begin(at);
    if (text_[at] == '[' || text_[at] == '{') return at;
    if (!literal(text_[at])) --at;
    while (at > 0 && literal(text_[at - 1])) --at;
    return at;
  }

  size_t string_begin(size_t end) const {
    for (size_t at = end; at > 0;) {
      if (text_[--at] != '"') continue;
      size_t backslashes = 0;
      while (backslashes < at && text_[at - 1 - backslashes] == '\\') ++backslashes;
      if (backslashes % 2 == 0) return at;
    }
    return end;
  }

  std::string_view text_;
  const char* furthest_;
  JsonValue root_;
  JsonValue* latest_ = nullptr;
  std::vector<JsonValue*> open_;  // stable: only the innermost container grows
  Failure failure_{};
};

}  // namespace

std::string read_text(const std::string& path) {
  std::ifstream file;
  if (path != "-") {
    errno = 0;
    file.open(path, std::ios::binary);
    if (!file) throw InputError(path + ": " + std::strerror(errno));
  }
  std::istream& in = path == "-" ? std::cin : file;
  std::string text;
  char block[1 << 16];
  while (in.read(block, sizeof block) || in.gcount() > 0) text.append(block, in.gcount());
  if (in.bad()) throw InputError(display_name(path) + ": cannot be read");
  return text;
}

std::string display_name(const std::string& path) { return path == "-" ? "<stdin>" : path; }

JsonFile::JsonFile(const std::string& path) : name_(display_name(path)), text_(read_text(path)) {
  // The parser would take it for the end of the text.
  const size_t nul = text_.find('\0');
  if (nul != std::string::npos) fail(nul, "a NUL byte is not JSON");
  TreeBuilder tree(text_);
  const char* end = text_.data() + text_.size();
  if (!nlohmann::json::sax_parse(CountingIterator(text_.data(), tree.furthest()),
                                 CountingIterator(end, tree.furthest()), &tree)) {
    fail(tree.failure().offset, tree.failure().message);
  }
  root_ = std::move(tree.root());
}

void JsonFile::fail(size_t offset, const std::string& message) const {
  const std::string_view before(text_.data(), std::min(offset, text_.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t column = 1 + before.size() - (newline == std::string_view::npos ? 0 : newline + 1);
  throw InputError(name_ + ":" + std::to_string(line) + ":" + std::to_string(column) + ": " + message);
}

template <typename T>
const T& JsonFile::get(const JsonValue& value, const std::string& what, const char* wanted) const {
  const T* held = std::get_if<T>(&value.value);
  if (held == nullptr) fail(value.offset, what + " must be " + wanted);
  return *held;
}

int64_t JsonFile::integer(const JsonValue& value, const std::string& what) const {
  return get<int64_t>(value, what, "an integer");
}

bool JsonFile::boolean(const JsonValue& value, const std::string& what) const {
  return get<bool>(value, what, "true or false");
}

const std::string& JsonFile::string(const JsonValue& value, const std::string& what) const {
  return get<std::string>(value, what, "a string");
}

const JsonValue::List& JsonFile::list(const JsonValue& value, const std::string& what) const {
  return get<JsonValue::List>(value, what, "a list");
}

JsonObject::JsonObject(const JsonFile& file, const JsonValue& value, std::string what,
                       std::initializer_list<std::string_view> known)
    : file_(file), value_(value), what_(std::move(what)) {
  const auto* members = std::get_if<JsonValue::Object>(&value.value);
  if (members == nullptr) file.fail(value.offset, what_ + " must be an object");
  for (const auto& member : *members) {
    if (std::find(known.begin(), known.end(), member.key) == known.end()) {
      std::string keys;
      for (const std::string_view key : known) keys += (keys.empty() ? "" : ", ") + std::string(key);
      file.fail(member.offset, "unknown key " + printable(member.key) + " in " + what_ + "; the keys are " + keys);
    }
  }
}

const JsonValue* JsonObject::find(std::string_view key) const {
  for (const auto& member : std::get<JsonValue::Object>(value_.value)) {
    if (member.key == key) return member.value.is_null() ? nullptr : &member.value;
  }
  return nullptr;
}

const JsonValue& JsonObject::require(std::string_view key) const {
  const JsonValue* value = find(key);
  if (value == nullptr) file_.fail(value_.offset, what_ + " lacks \"" + std::string(key) + "\"");
  return *value;
}

int64_t JsonObject::integer_or(std::string_view key, int64_t fallback) const {
  const JsonValue* value = find(key);
  return value == nullptr ? fallback : file_.integer(*value, std::string(key));
}

int64_t JsonObject::required_integer(std::string_view key) const {
  return file_.integer(require(key), std::string(key));
}

}  // namespace fwdmeta::command
