#include "ranks_file.h"

#include <charconv>

#include "json_fields.h"

namespace fwdmeta::command {

namespace {

// "0x" and 1 to 16 hexadecimal digits.
uint64_t read_hash(const JsonFile& file, const JsonValue& value) {
  const std::string& text = file.string(value, "config");
  uint64_t hash = 0;
  if (text.size() > 2 && text.size() <= 18 && text[0] == '0' && text[1] == 'x') {
    const char* end = text.data() + text.size();
    const auto [read, error] = std::from_chars(text.data() + 2, end, hash, 16);
    if (error == std::errc() && read == end) return hash;
  }
  file.fail(value.offset, "config is " + printable(text) + ", expected a number of 64 bits like \"0x1f\"");
}

RankRow read_row(const JsonFile& file, const JsonValue& value) {
  const JsonObject object(file, value, "a row of table",
                          {"num_tokens", "num_reqs", "max_mode", "query_len", "wants_slices", "config", "step"});
  RankRow row;
  row.row.num_tokens = object.required_integer("num_tokens");
  row.row.num_reqs = object.required_integer("num_reqs");
  if (const JsonValue* mode = object.find("max_mode")) row.row.max_mode = read_runtime_mode(file, *mode, "max_mode");
  row.query_len = object.integer_or("query_len", 0);
  if (const JsonValue* wants = object.find("wants_slices")) row.row.wants_slices = file.boolean(*wants, "wants_slices");
  if (const JsonValue* config = object.find("config")) row.row.config = read_hash(file, *config);
  row.row.step = object.integer_or("step", 0);
  return row;
}

}  // namespace

RanksFile read_ranks_file(const std::string& path) {
  const JsonFile file(path);
  const JsonObject object(
      file, file.root(), "the ranks file",
      {"schema", "num_tokens", "table", "graphs", "num_slices", "sp_size", "max_chunk", "chunk_index"});
  check_schema(file, object, kRanksSchema);
  RanksFile ranks;
  const JsonValue* table = object.find("table");
  if (table != nullptr) {
    if (const JsonValue* counts = object.find("num_tokens")) {
      file.fail(counts->offset, "num_tokens is given beside table, which it is computed from");
    }
    ranks.table.emplace();
    for (const JsonValue& row : file.list(*table, "table")) ranks.table->push_back(read_row(file, row));
    ranks.graphs = read_graphs_config(file, object.require("graphs"));
    ranks.num_slices = object.integer_or("num_slices", ranks.num_slices);
  } else {
    for (const char* key : {"graphs", "num_slices"}) {
      if (const JsonValue* value = object.find(key)) file.fail(value->offset, std::string(key) + " needs a table");
    }
    if (object.find("num_tokens") == nullptr) {
      file.fail(file.root().offset, "the ranks file lacks \"num_tokens\", or in its place \"table\"");
    }
    ranks.num_tokens = read_integers(file, object.require("num_tokens"), "num_tokens");
  }
  ranks.sp_size = object.integer_or("sp_size", ranks.sp_size);
  if (object.find("max_chunk") != nullptr) ranks.max_chunk = object.required_integer("max_chunk");
  ranks.chunk_index = object.integer_or("chunk_index", ranks.chunk_index);
  return ranks;
}

}  // namespace fwdmeta::command
