#ifndef FWDMETA_COMMAND_BATCH_FILE_H
#define FWDMETA_COMMAND_BATCH_FILE_H

#include <fwdmeta.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fwdmeta::command {

// Rows of unequal lengths, filled up to the longest with values that no build reads.
struct Rows {
  std::vector<int64_t> values;
  std::vector<int32_t> lengths;
  int64_t width = 0;
};

// The content of a fwdmeta.batch/1 file. What is left out has the library's default.
struct BatchFile {
  fwdmeta_config_t config = FWDMETA_CONFIG_INITIALIZER;  // without its cache groups
  std::optional<std::vector<fwdmeta_group_config_t>> groups;
  std::vector<int64_t> seq_lens_encoder;
  std::vector<int64_t> seq_lens_decoder;
  std::vector<int64_t> seq_lens_this_time;
  std::optional<std::vector<Rows>> block_tables;  // one a group
  std::optional<Rows> input_ids;
  std::optional<Rows> draft_tokens;
  int64_t num_padded_tokens = -1;
  std::optional<fwdmeta_capacity_query_t> bucket;
};

// Throws InputError for whatever is not of the format. Numbers that only the library can judge are left to it.
BatchFile read_batch_file(const std::string& path);

}  // namespace fwdmeta::command

#endif
