#ifndef FWDMETA_COMMAND_RANKS_FILE_H
#define FWDMETA_COMMAND_RANKS_FILE_H

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graphs_file.h"

namespace fwdmeta::command {

inline constexpr const char* kRanksSchema = "fwdmeta.ranks/1";

// What a rank tells the others, each number as wide as the file can hold it.
struct RankRow {
  fwdmeta_rank_row_t row = {0, 0, 0, 0, FWDMETA_GRAPH_FULL, 0, 0, {}};  // without query_len
  int64_t query_len = 0;
};

// Counts of tokens, or the rows that they are agreed on by.
struct RanksFile {
  std::vector<int64_t> num_tokens;
  std::optional<std::vector<RankRow>> table;
  GraphsConfig graphs;  // with a table
  int64_t num_slices = 2;
  int64_t sp_size = 1;
  std::optional<int64_t> max_chunk;
  int64_t chunk_index = 0;
};

// Throws InputError for whatever is not of the format. Numbers that only the library can judge are left to it.
RanksFile read_ranks_file(const std::string& path);

}  // namespace fwdmeta::command

#endif
