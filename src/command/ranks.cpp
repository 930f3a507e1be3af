#include "ranks.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "graphs.h"

namespace fwdmeta::command {

namespace {

constexpr size_t kShownLines = 24;
constexpr int64_t kMostSizes = int64_t{1} << 24;  // of the expanded list that is printed
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// The API's query_len is an int32, so the command has to refuse larger ones itself.
std::vector<fwdmeta_rank_row_t> narrowed(const std::vector<RankRow>& table) {
  std::vector<fwdmeta_rank_row_t> rows;
  for (const RankRow& row : table) {
    if (row.query_len < std::numeric_limits<int32_t>::min() || row.query_len > kMaxInt32) {
      throw LibraryError(FWDMETA_INVALID_ARGUMENT, "rank " + std::to_string(rows.size()) + ": query_len " +
                                                       std::to_string(row.query_len) + " is past int32");
    }
    rows.push_back(row.row);
    rows.back().query_len = static_cast<int32_t>(row.query_len);
  }
  return rows;
}

void agree(const RanksFile& file, RanksReport& report) {
  const Dispatcher dispatcher(file.graphs);
  const std::vector<fwdmeta_rank_row_t> rows = narrowed(*file.table);
  report.num_tokens.resize(rows.size());
  fwdmeta_agreement_t agreement = FWDMETA_AGREEMENT_INITIALIZER;
  const fwdmeta_status_t status = fwdmeta_agree(dispatcher.get(), rows.data(), static_cast<int64_t>(rows.size()),
                                                file.num_slices, report.num_tokens.data(), &agreement);
  if (status == FWDMETA_RANK_MISMATCH) throw RankMismatch(fwdmeta_last_error(), agreement.mismatch_rank);
  check(status);
  report.agreement = agreement;
}

// Where the list is too long for this command. A size that the library refuses gets a list that it will not fill.
size_t num_sp_sizes(int64_t num_ranks, int64_t sp_size) {
  if (sp_size < 1 || sp_size > kMaxInt32) return static_cast<size_t>(num_ranks);
  if (num_ranks > kMostSizes / sp_size) {
    throw LibraryError(FWDMETA_CAPACITY_EXCEEDED, std::to_string(num_ranks) + " ranks of sp_size " +
                                                      std::to_string(sp_size) + " have more than the " +
                                                      std::to_string(kMostSizes) + " sizes that are printed");
  }
  return static_cast<size_t>(num_ranks * sp_size);
}

Json agreement_json(const fwdmeta_agreement_t& agreement, const std::vector<int64_t>& num_tokens) {
  return Json{
      {"mode", fwdmeta_graph_mode_name(agreement.mode)},
      {"num_tokens", num_tokens},
      {"query_len", agreement.query_len},
      {"num_reqs", agreement.num_reqs},
      {"sliced", agreement.sliced != 0},
      {"skip", agreement.skip != 0},
      {"reason", agreement.reason == FWDMETA_DISPATCH_OK ? "" : fwdmeta_dispatch_reason_name(agreement.reason)},
  };
}

std::string agreement_lines(const fwdmeta_agreement_t& agreement, int64_t num_slices) {
  std::string text = fwdmeta_graph_mode_name(agreement.mode);
  if (agreement.reason != FWDMETA_DISPATCH_OK) {
    text += std::string(" (") + fwdmeta_dispatch_reason_name(agreement.reason) + ")";
  }
  if (agreement.skip) return wrapped("agreement: ", text + ", no rank has a token: the step is skipped");
  if (agreement.mode != FWDMETA_GRAPH_NONE) text += printed(", graph of %d tokens", agreement.descriptor.num_tokens);
  if (agreement.num_reqs >= 0) text += printed(" and %d requests", agreement.num_reqs);
  return wrapped("agreement: ", text) + "  " +
         (agreement.query_len > 0 ? printed("uniform decode of %d tokens a request", agreement.query_len)
                                  : "not uniform") +
         (agreement.sliced ? printed(", %lld slices\n", static_cast<long long>(num_slices)) : ", not sliced\n");
}

}  // namespace

RanksReport report_ranks(const RanksFile& file) {
  RanksReport report;
  report.num_tokens = file.num_tokens;
  if (file.table) agree(file, report);
  const int64_t num_ranks = static_cast<int64_t>(report.num_tokens.size());
  report.sp_sizes.resize(num_sp_sizes(num_ranks, file.sp_size));
  check(fwdmeta_sp_sizes(report.num_tokens.data(), num_ranks, file.sp_size, report.sp_sizes.data()));
  report.max_tokens = *std::max_element(report.num_tokens.begin(), report.num_tokens.end());
  report.sum_tokens = std::accumulate(report.num_tokens.begin(), report.num_tokens.end(), int64_t{0});
  const int64_t count = static_cast<int64_t>(report.sp_sizes.size());
  report.cu_tokens.resize(report.sp_sizes.size());
  check(fwdmeta_cu_sizes(report.sp_sizes.data(), count, report.cu_tokens.data()));
  if (!file.max_chunk) return report;
  report.chunk_sizes.emplace(report.sp_sizes.size());
  check(fwdmeta_chunk_sizes(report.sp_sizes.data(), count, *file.max_chunk, file.chunk_index,
                            report.chunk_sizes->data()));
  check(fwdmeta_num_chunks(report.sp_sizes.data(), count, *file.max_chunk, &report.num_chunks.emplace()));
  return report;
}

Json to_json(const RanksReport& report) {
  Json json = answer(kRanksSchema, "ok");
  json["max_tokens"] = report.max_tokens;
  json["sum_tokens"] = report.sum_tokens;
  json["sp_sizes"] = report.sp_sizes;
  json["cu_tokens"] = report.cu_tokens;
  json["chunk_sizes"] = report.chunk_sizes ? Json(*report.chunk_sizes) : Json();
  json["num_chunks"] = report.num_chunks ? Json(*report.num_chunks) : Json();
  if (report.agreement) json["agreement"] = agreement_json(*report.agreement, report.num_tokens);
  return json;
}

Json to_json(const RankMismatch& mismatch) {
  Json json = error_answer(kRanksSchema, mismatch.status(), mismatch.what());
  json["rank"] = mismatch.rank();
  return json;
}

std::string to_table(const RanksReport& report, const RanksFile& file) {
  std::string text;
  if (report.agreement) text += agreement_lines(*report.agreement, file.num_slices) + "\n";
  std::vector<std::pair<std::string, int64_t>> sums = {{"max_tokens", report.max_tokens},
                                                       {"sum_tokens", report.sum_tokens}};
  if (report.num_chunks) sums.push_back({"num_chunks", *report.num_chunks});
  text += name_value_table(sums) + "\nranks\n";
  const bool table = file.table.has_value(), chunked = report.chunk_sizes.has_value();
  const auto number = [](int64_t value) { return printed("  %10s", shortened(value, 10).c_str()); };
  text += printed("  %4s  %10s", "rank", "tokens") + (table ? printed("  %10s", "run") : "") +
          printed("  %7s  %10s  %12s", "sp rank", "size", "up to") + (chunked ? printed("  %10s", "in chunk") : "") +
          "\n";
  for (size_t i = 0; i < std::min(report.sp_sizes.size(), kShownLines); ++i) {
    const size_t rank = i / static_cast<size_t>(file.sp_size), sp_rank = i % static_cast<size_t>(file.sp_size);
    const int64_t run = report.num_tokens[rank];
    text += printed("  %4zu", rank) + number(table ? (*file.table)[rank].row.num_tokens : run);
    if (table) text += number(run);
    text += printed("  %7zu", sp_rank) + number(report.sp_sizes[i]);
    text += printed("  %12s", shortened(report.cu_tokens[i], 12).c_str());
    if (chunked) text += number((*report.chunk_sizes)[i]);
    text += "\n";
  }
  if (report.sp_sizes.size() > kShownLines) text += printed("  ... %zu more\n", report.sp_sizes.size() - kShownLines);
  return text;
}

}  // namespace fwdmeta::command
