#ifndef FWDMETA_COMMAND_RANKS_H
#define FWDMETA_COMMAND_RANKS_H

#include <fwdmeta.h>

#include <optional>
#include <string>
#include <vector>

#include "output.h"
#include "ranks_file.h"

namespace fwdmeta::command {

struct RanksReport {
  std::vector<int64_t> num_tokens;  // of each rank; with a table those agreed on
  std::optional<fwdmeta_agreement_t> agreement;
  int64_t max_tokens = 0;
  int64_t sum_tokens = 0;
  std::vector<int64_t> sp_sizes;
  std::vector<int64_t> cu_tokens;
  std::optional<std::vector<int64_t>> chunk_sizes;  // with a max_chunk
  std::optional<int64_t> num_chunks;
};

// Ranks whose rows are not of one configuration and step.
class RankMismatch : public LibraryError {
 public:
  RankMismatch(const std::string& message, int32_t rank) : LibraryError(FWDMETA_RANK_MISMATCH, message), rank_(rank) {}
  int32_t rank() const { return rank_; }

 private:
  int32_t rank_;
};

RanksReport report_ranks(const RanksFile& file);

Json to_json(const RanksReport& report);
Json to_json(const RankMismatch& mismatch);
std::string to_table(const RanksReport& report, const RanksFile& file);

}  // namespace fwdmeta::command

#endif
