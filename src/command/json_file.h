#ifndef FWDMETA_COMMAND_JSON_FILE_H
#define FWDMETA_COMMAND_JSON_FILE_H

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace fwdmeta::command {

// The whole of a file, or of standard input for "-". InputError where it cannot be read.
std::string read_text(const std::string& path);

// The name under which messages speak of `path`.
std::string display_name(const std::string& path);

// Text of the input as a message may hold it: nothing that a terminal would obey, and no more than `longest` bytes.
std::string plain(std::string_view text, size_t longest);
// A key or word of the input as a message shows it: short, in quotes.
std::string printable(std::string_view text);

// A JSON value that knows the byte at which it begins. All numbers are int64: the formats have no others.
struct JsonValue {
  struct Member;
  using List = std::vector<JsonValue>;
  using Object = std::vector<Member>;

  size_t offset = 0;
  std::variant<std::monostate, bool, int64_t, std::string, List, Object> value;

  bool is_null() const { return std::holds_alternative<std::monostate>(value); }
};

struct JsonValue::Member {
  std::string key;
  size_t offset;
  JsonValue value;
};

// A strictly read JSON file: no duplicate keys, no fractions, no numbers past int64, nothing after the value. All
// failures are InputErrors that begin with file:line:column.
class JsonFile {
 public:
  explicit JsonFile(const std::string& path);

  const JsonValue& root() const { return root_; }
  [[noreturn]] void fail(size_t offset, const std::string& message) const;

  // `what` names the value in the message.
  int64_t integer(const JsonValue& value, const std::string& what) const;
  bool boolean(const JsonValue& value, const std::string& what) const;
  const std::string& string(const JsonValue& value, const std::string& what) const;
  const JsonValue::List& list(const JsonValue& value, const std::string& what) const;

 private:
  template <typename T>
  const T& get(const JsonValue& value, const std::string& what, const char* wanted) const;

  std::string name_;
  std::string text_;
  JsonValue root_;
};

// Access to the members of an object by key. A null member is one left out.
class JsonObject {
 public:
  // Fails when `value` is no object or has a key that is not in `known`.
  JsonObject(const JsonFile& file, const JsonValue& value, std::string what,
             std::initializer_list<std::string_view> known);

  const JsonValue* find(std::string_view key) const;
  const JsonValue& require(std::string_view key) const;
  int64_t integer_or(std::string_view key, int64_t fallback) const;
  int64_t required_integer(std::string_view key) const;

 private:
  const JsonFile& file_;
  const JsonValue& value_;
  std::string what_;
};

}  // namespace fwdmeta::command

#endif
