#include "graphs_file.h"

#include "json_fields.h"

namespace fwdmeta::command {

namespace {

struct Named {
  const char* name;
  int32_t value;
};

constexpr Named kModes[] = {{"NONE", FWDMETA_GRAPH_NONE},
                            {"PIECEWISE", FWDMETA_GRAPH_PIECEWISE},
                            {"FULL", FWDMETA_GRAPH_FULL},
                            {"FULL_DECODE_ONLY", FWDMETA_GRAPH_FULL_DECODE_ONLY},
                            {"FULL_AND_PIECEWISE", FWDMETA_GRAPH_FULL_AND_PIECEWISE}};
constexpr int kNumRuntimeModes = 3;

constexpr Named kSupports[] = {{"NEVER", FWDMETA_SUPPORT_NEVER},
                               {"UNIFORM_SINGLE_TOKEN_DECODE", FWDMETA_SUPPORT_UNIFORM_SINGLE_TOKEN_DECODE},
                               {"UNIFORM_BATCH", FWDMETA_SUPPORT_UNIFORM_BATCH},
                               {"ALWAYS", FWDMETA_SUPPORT_ALWAYS}};

int32_t read_name(const JsonFile& file, const JsonValue& value, const std::string& what, const Named* names,
                  size_t count) {
  const std::string& name = file.string(value, what);
  std::string known;
  for (const Named* entry = names; entry != names + count; ++entry) {
    if (name == entry->name) return entry->value;
    known += (known.empty() ? "" : ", ") + std::string(entry->name);
  }
  file.fail(value.offset, "unknown " + what + " " + printable(name) + "; it is one of " + known);
}

void set_boolean(const JsonFile& file, const JsonObject& object, const char* key, int32_t& field) {
  if (const JsonValue* value = object.find(key)) field = file.boolean(*value, key);
}

GraphsConfig read_config(const JsonFile& file, const JsonObject& object) {
  GraphsConfig config;
  fwdmeta_dispatcher_config_t& values = config.values;
  values.mode = read_name(file, object.require("mode"), "mode", kModes, std::size(kModes));
  if (const JsonValue* support = object.find("support")) {
    values.support = read_name(file, *support, "support", kSupports, std::size(kSupports));
  }
  values.max_num_seqs = object.required_integer("max_num_seqs");
  values.max_num_tokens = object.required_integer("max_num_tokens");
  set_boolean(file, object, "piecewise_available", values.piecewise_available);
  if (const JsonValue* sizes = object.find("capture_sizes")) {
    config.capture_sizes = read_integers(file, *sizes, "capture_sizes");
  }
  if (const JsonValue* lens = object.find("query_lens")) config.query_lens = read_integers(file, *lens, "query_lens");
  set(object, "max_capture_size", values.max_capture_size);
  set_boolean(file, object, "round_piecewise", values.round_piecewise);
  set(object, "max_loras", values.max_loras);
  set_boolean(file, object, "specialize_active_loras", values.specialize_active_loras);
  set(object, "max_full_reqs", values.max_full_reqs);
  return config;
}

fwdmeta_dispatch_args_t read_batch(const JsonFile& file, const JsonValue& value) {
  const JsonObject object(file, value, "a batch",
                          {"num_tokens", "num_reqs", "query_len", "num_active_loras", "allowed"});
  fwdmeta_dispatch_args_t batch = FWDMETA_DISPATCH_ARGS_INITIALIZER;
  batch.num_tokens = object.required_integer("num_tokens");
  batch.num_reqs = object.required_integer("num_reqs");
  set(object, "query_len", batch.query_len);
  set(object, "num_active_loras", batch.num_active_loras);
  if (const JsonValue* allowed = object.find("allowed")) {
    batch.allowed_modes = 0;
    for (const JsonValue& mode : file.list(*allowed, "allowed")) {
      batch.allowed_modes |= 1 << read_runtime_mode(file, mode, "allowed mode");
    }
  }
  return batch;
}

}  // namespace

fwdmeta_graph_mode_t read_runtime_mode(const JsonFile& file, const JsonValue& value, const std::string& what) {
  return read_name(file, value, what, kModes, kNumRuntimeModes);
}

GraphsFile read_graphs_file(const std::string& path) {
  const JsonFile file(path);
  const JsonObject object(file, file.root(), "the graphs file",
                          {"schema", "mode", "support", "piecewise_available", "capture_sizes", "max_capture_size",
                           "max_num_seqs", "max_num_tokens", "query_lens", "round_piecewise", "max_loras",
                           "specialize_active_loras", "max_full_reqs", "batches"});
  check_schema(file, object, kGraphsSchema);
  GraphsFile graphs;
  graphs.config = read_config(file, object);
  for (const JsonValue& batch : file.list(object.require("batches"), "batches")) {
    graphs.batches.push_back(read_batch(file, batch));
  }
  return graphs;
}

GraphsConfig read_graphs_config(const JsonFile& file, const JsonValue& value) {
  const JsonObject object(
      file, value, "graphs",
      {"mode", "support", "piecewise_available", "capture_sizes", "max_capture_size", "max_num_seqs", "max_num_tokens",
       "query_lens", "round_piecewise", "max_loras", "specialize_active_loras", "max_full_reqs"});
  return read_config(file, object);
}

}  // namespace fwdmeta::command
