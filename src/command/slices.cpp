#include "slices.h"

#include <algorithm>
#include <limits>

#include "json_fields.h"

namespace fwdmeta::command {

namespace {

constexpr int64_t kDefaultSlices = 2;
constexpr int64_t kShownRequests = 24;  // of each slice

bool fits_int32(int64_t value) {
  return value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max();
}

std::vector<fwdmeta_slice_t> plan(const fwdmeta_slice_args_t& args) {
  std::vector<fwdmeta_slice_t> slices(FWDMETA_MAX_SLICES);
  check(fwdmeta_plan_slices(&args, slices.data()));
  slices.resize(static_cast<size_t>(args.num_slices));
  return slices;
}

// The API's arrays are int32, so the command has to refuse larger lengths itself, once all but the lengths is accepted.
void refuse_lengths_past_int32(const SlicesFile& file) {
  for (const auto& [name, values] : {std::pair<const char*, const std::vector<int64_t>&>{"query_len", file.query_lens},
                                     {"seq_len", file.seq_lens}}) {
    const auto large = std::find_if_not(values.begin(), values.end(), fits_int32);
    if (large == values.end()) continue;
    const std::vector<int32_t> idle(values.size());
    fwdmeta_slice_args_t args = file.args;
    args.query_lens = args.seq_lens = idle.data();
    plan(args);
    throw LibraryError(FWDMETA_INVALID_BATCH, "request " + std::to_string(large - values.begin()) + ": " + name + " " +
                                                  std::to_string(*large) + " is past int32");
  }
}

std::string range(int32_t begin, int32_t end) { return "[" + std::to_string(begin) + ", " + std::to_string(end) + ")"; }

// The requests of one slice with their lengths in it.
std::string request_rows(const ShownSlice& slice, size_t number, int64_t num_reqs) {
  const int64_t first = slice.range.first_req;
  const int64_t count = std::max<int64_t>(std::min<int64_t>(slice.range.end_req, num_reqs) - first, 0);
  std::string text;
  for (int64_t i = 0; i < std::min(count, kShownRequests); ++i) {
    const int32_t tokens = slice.query_start_loc[i + 1] - slice.query_start_loc[i];
    text += printed("  %5zu  %10lld  %10d  %10d  %10d\n", number, static_cast<long long>(first + i),
                    slice.seq_lens[i] - tokens, tokens, slice.seq_lens[i]);
  }
  if (count > kShownRequests) text += printed("  ... %lld more\n", static_cast<long long>(count - kShownRequests));
  const int64_t padded = slice.range.end_req - first - count;
  if (padded > 0) text += printed("  %5zu  %lld padded\n", number, static_cast<long long>(padded));
  return text;
}

}  // namespace

SlicesFile read_slices_file(const std::string& path) {
  const JsonFile file(path);
  const JsonObject object(
      file, file.root(), "the slices file",
      {"schema", "query_lens", "seq_lens", "num_padded_tokens", "num_padded_reqs", "num_slices", "split"});
  check_schema(file, object, kSlicesSchema);
  SlicesFile slices;
  slices.query_lens = read_integers(file, object.require("query_lens"), "query_lens");
  slices.seq_lens = read_integers(file, object.require("seq_lens"), "seq_lens");
  require_length(file, object.require("seq_lens"), slices.seq_lens.size(), slices.query_lens.size(), "seq_lens",
                 "in query_lens");
  slices.args.num_reqs = static_cast<int64_t>(slices.query_lens.size());
  slices.args.num_slices = kDefaultSlices;
  set(object, "num_padded_tokens", slices.args.num_padded_tokens);
  set(object, "num_padded_reqs", slices.args.num_padded_reqs);
  set(object, "num_slices", slices.args.num_slices);
  set(object, "split", slices.args.split);
  return slices;
}

std::vector<ShownSlice> plan_slices(const SlicesFile& file) {
  refuse_lengths_past_int32(file);
  const std::vector<int32_t> query_lens(file.query_lens.begin(), file.query_lens.end());
  const std::vector<int32_t> seq_lens(file.seq_lens.begin(), file.seq_lens.end());
  fwdmeta_slice_args_t args = file.args;
  args.query_lens = query_lens.data();
  args.seq_lens = seq_lens.data();
  std::vector<ShownSlice> shown;
  for (const fwdmeta_slice_t& slice : plan(args)) {
    ShownSlice& next = shown.emplace_back();
    next.range = slice;
    const size_t requests = static_cast<size_t>(slice.end_req) - static_cast<size_t>(slice.first_req);
    next.query_start_loc.resize(requests + 1);
    next.seq_lens.resize(requests);
    check(fwdmeta_slice_lengths(&args, &slice, next.query_start_loc.data(), next.seq_lens.data(), nullptr));
  }
  return shown;
}

Json to_json(const std::vector<ShownSlice>& slices) {
  Json json = answer(kSlicesSchema, "ok");
  Json& list = json["slices"] = Json::array();
  for (const ShownSlice& slice : slices) {
    list.push_back(Json{{"requests", {slice.range.first_req, slice.range.end_req}},
                        {"tokens", {slice.range.first_token, slice.range.end_token}},
                        {"query_start_loc", slice.query_start_loc},
                        {"seq_lens", slice.seq_lens},
                        {"empty", slice.range.empty != 0}});
  }
  return json;
}

std::string to_table(const std::vector<ShownSlice>& slices, const SlicesFile& file) {
  std::string text = "slices\n";
  text += printed("  %5s  %24s  %24s  %11s\n", "slice", "requests", "tokens", "real tokens");
  for (size_t j = 0; j < slices.size(); ++j) {
    const fwdmeta_slice_t& slice = slices[j].range;
    text += printed("  %5zu  %24s  %24s  %11d\n", j, range(slice.first_req, slice.end_req).c_str(),
                    range(slice.first_token, slice.end_token).c_str(), slice.num_tokens);
  }
  text += "\nrequests\n";
  text += printed("  %5s  %10s  %10s  %10s  %10s\n", "slice", "request", "computed", "tokens", "seq_len");
  for (size_t j = 0; j < slices.size(); ++j) text += request_rows(slices[j], j, file.args.num_reqs);
  return text;
}

}  // namespace fwdmeta::command
