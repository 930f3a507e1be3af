#ifndef FWDMETA_COMMAND_GRAPHS_FILE_H
#define FWDMETA_COMMAND_GRAPHS_FILE_H

#include <fwdmeta.h>

#include <optional>
#include <string>
#include <vector>

#include "json_file.h"

namespace fwdmeta::command {

inline constexpr const char* kGraphsSchema = "fwdmeta.graphs/1";

// A dispatcher's configuration. What is left out has the library's default.
struct GraphsConfig {
  fwdmeta_dispatcher_config_t values = FWDMETA_DISPATCHER_CONFIG_INITIALIZER;  // without the lists
  std::optional<std::vector<int64_t>> capture_sizes;
  std::optional<std::vector<int64_t>> query_lens;
};

struct GraphsFile {
  GraphsConfig config;
  std::vector<fwdmeta_dispatch_args_t> batches;
};

// Throw InputError for whatever is not of the format. Numbers that only the library can judge are left to it.
GraphsFile read_graphs_file(const std::string& path);
// The configuration alone, without batches, as a part of another file.
GraphsConfig read_graphs_config(const JsonFile& file, const JsonValue& value);

// NONE, PIECEWISE or FULL.
fwdmeta_graph_mode_t read_runtime_mode(const JsonFile& file, const JsonValue& value, const std::string& what);

}  // namespace fwdmeta::command

#endif
