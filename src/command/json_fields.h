#ifndef FWDMETA_COMMAND_JSON_FIELDS_H
#define FWDMETA_COMMAND_JSON_FIELDS_H

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "json_file.h"

namespace fwdmeta::command {

// Fails where the file says that it is of another schema.
void check_schema(const JsonFile& file, const JsonObject& object, const char* schema);

// Sets a field of the API, where the key is given, to its integer. The lowest int64, which asks for a default there, is
// a number like any other here, for the library to refuse.
void set(const JsonObject& object, std::string_view key, int64_t& field);

std::vector<int64_t> read_integers(const JsonFile& file, const JsonValue& value, const std::string& what);

// Fails unless `length`, of the list `value`, is `wanted`.
void require_length(const JsonFile& file, const JsonValue& value, size_t length, size_t wanted, const std::string& what,
                    const std::string& per);

}  // namespace fwdmeta::command

#endif
