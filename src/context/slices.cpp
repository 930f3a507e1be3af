#include "context/slices.h"

#include "base/struct_io.h"
#include "batch/cut.h"
#include "context/arrays.h"

namespace fwdmeta {
namespace {

// Where a token of the step lies between requests, by the prefix sums of their lengths.
struct Place {
  int32_t lower;  // the first request that starts at or behind it
  int32_t upper;  // the last request that starts at or before it; the number of requests at the step's end
};

// Finds ascending tokens in one walk over the requests.
class Finder {
 public:
  explicit Finder(const SliceArgs& args) : args_(args) {}

  Place Find(int32_t token) {
    while (start_ < token) start_ += args_.query_lens[request_++];
    if (start_ > token) return {request_, request_ - 1};
    int32_t upper = request_;  // past requests without tokens
    while (upper < args_.num_reqs && args_.query_lens[upper] == 0) ++upper;
    return {request_, upper};
  }

 private:
  const SliceArgs& args_;
  int32_t request_ = 0;
  int32_t start_ = 0;  // the first token of request_
};

}  // namespace

Status ReadSliceArgs(const fwdmeta_slice_args_t* in, SliceArgs* out) {
  const fwdmeta_slice_args_t defaults = FWDMETA_SLICE_ARGS_INITIALIZER;
  fwdmeta_slice_args_t args;
  FWDMETA_TRY(ReadStruct(in, defaults, "args", &args));
  FWDMETA_TRY(CheckRange("num_reqs", args.num_reqs, 0));
  FWDMETA_TRY(CheckRange("num_slices", args.num_slices, 1, FWDMETA_MAX_SLICES));
  if (args.split != FWDMETA_DEFAULT) FWDMETA_TRY(CheckRange("split", args.split, 1));
  if (args.num_padded_reqs == FWDMETA_DEFAULT) args.num_padded_reqs = args.num_reqs;
  FWDMETA_TRY(CheckRange("num_padded_reqs", args.num_padded_reqs, 0));
  if (args.num_padded_reqs < args.num_reqs) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "num_padded_reqs %lld is below num_reqs %lld",
                (long long)args.num_padded_reqs, (long long)args.num_reqs);
  }
  const bool padded = args.num_padded_tokens != FWDMETA_DEFAULT;
  if (padded) FWDMETA_TRY(CheckRange("num_padded_tokens", args.num_padded_tokens, 0));
  FWDMETA_TRY(CheckArray(args.query_lens, args.num_reqs, "query_lens"));
  FWDMETA_TRY(CheckArray(args.seq_lens, args.num_reqs, "seq_lens"));
  out->query_lens = args.query_lens;
  out->seq_lens = args.seq_lens;
  out->num_reqs = static_cast<int32_t>(args.num_reqs);
  FWDMETA_TRY(CheckRequests(out->query_lens, out->seq_lens, out->num_reqs, &out->num_tokens));
  if (padded && args.num_padded_tokens < out->num_tokens) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "num_padded_tokens %lld is below the sum %d of query_lens",
                (long long)args.num_padded_tokens, out->num_tokens);
  }
  out->padded_reqs = static_cast<int32_t>(args.num_padded_reqs);
  out->padded_tokens = padded ? static_cast<int32_t>(args.num_padded_tokens) : out->num_tokens;
  out->num_slices = static_cast<int32_t>(args.num_slices);
  out->split = args.split != FWDMETA_DEFAULT ? static_cast<int32_t>(args.split) : out->padded_tokens / out->num_slices;
  return FWDMETA_OK;
}

void PlanSlices(const SliceArgs& args, fwdmeta_slice_t* out) {
  Finder finder(args);
  Place begin = finder.Find(0);
  for (int32_t j = 0; j < args.num_slices; ++j) {
    const bool last = j == args.num_slices - 1;
    const TokenRange range = RangeOfSlice(j, args.num_slices, args.split, args.num_tokens);
    const Place end = finder.Find(range.end);
    fwdmeta_slice_t& slice = out[j];
    slice.first_req = begin.upper;
    slice.first_token = range.begin;
    slice.num_tokens = range.end - range.begin;
    slice.empty = slice.num_tokens == 0;
    slice.end_req = last ? args.padded_reqs : slice.empty ? slice.first_req : end.lower;
    slice.end_token = last ? args.padded_tokens : range.end;
    begin = end;
  }
}

Status PlanSlices(const fwdmeta_slice_args_t* in, fwdmeta_slice_t* out) {
  SliceArgs args;
  FWDMETA_TRY(ReadSliceArgs(in, &args));
  FWDMETA_TRY(CheckArray(out, args.num_slices, "out"));
  PlanSlices(args, out);
  return FWDMETA_OK;
}

Status SliceLengths(const fwdmeta_slice_args_t* in, const fwdmeta_slice_t* slice, int32_t* query_start_loc,
                    int32_t* seq_lens, int32_t* computed) {
  SliceArgs args;
  FWDMETA_TRY(ReadSliceArgs(in, &args));
  FWDMETA_TRY(CheckArray(slice, 1, "slice"));
  FWDMETA_TRY(CheckAligned(query_start_loc, "query_start_loc"));
  FWDMETA_TRY(CheckAligned(seq_lens, "seq_lens"));
  FWDMETA_TRY(CheckAligned(computed, "computed"));
  fwdmeta_slice_t plan[FWDMETA_MAX_SLICES];
  PlanSlices(args, plan);
  const auto is_slice = [&](const fwdmeta_slice_t& planned) { return SameSlice(planned, *slice); };
  if (std::none_of(plan, plan + args.num_slices, is_slice)) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "requests [%d, %d) with tokens [%d, %d) are no slice of these arguments",
                slice->first_req, slice->end_req, slice->first_token, slice->end_token);
  }
  int64_t rows = 0;
  int32_t total = 0;
  const auto write = [&](const Piece& piece) {
    if (query_start_loc != nullptr) query_start_loc[rows] = total;
    if (seq_lens != nullptr) seq_lens[rows] = piece.seq_len;
    if (computed != nullptr) computed[rows] = piece.computed();
    total += piece.tokens;
    ++rows;
  };
  ForEachPiece(args, *slice, [&](int32_t, const Piece& piece) { write(piece); });
  while (rows < slice->end_req - slice->first_req) write({0, 0});  // padded requests
  if (query_start_loc != nullptr) query_start_loc[rows] = total;
  return FWDMETA_OK;
}

}  // namespace fwdmeta
