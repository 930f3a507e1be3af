#include "json_fields.h"

#include <fwdmeta.h>

namespace fwdmeta::command {

namespace {

int64_t not_default(int64_t value) { return value == FWDMETA_DEFAULT ? value + 1 : value; }

}  // namespace

void check_schema(const JsonFile& file, const JsonObject& object, const char* schema) {
  const JsonValue* given = object.find("schema");
  if (given != nullptr && file.string(*given, "schema") != schema) {
    file.fail(given->offset, "schema must be \"" + std::string(schema) + "\"");
  }
}

void set(const JsonObject& object, std::string_view key, int64_t& field) {
  if (object.find(key) != nullptr) field = not_default(object.required_integer(key));
}

std::vector<int64_t> read_integers(const JsonFile& file, const JsonValue& value, const std::string& what) {
  std::vector<int64_t> integers;
  for (const JsonValue& item : file.list(value, what)) integers.push_back(file.integer(item, "an entry of " + what));
  return integers;
}

void require_length(const JsonFile& file, const JsonValue& value, size_t length, size_t wanted, const std::string& what,
                    const std::string& per) {
  if (length == wanted) return;
  file.fail(value.offset,
            what + " has " + std::to_string(length) + " entries, but there are " + std::to_string(wanted) + " " + per);
}

}  // namespace fwdmeta::command
