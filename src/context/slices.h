// Microbatch slices: a step's tokens cut into ranges, and the lengths that each range has as a batch of its own.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/status.h"

namespace fwdmeta {

// fwdmeta_slice_args_t, checked.
struct SliceArgs {
  const int32_t *query_lens, *seq_lens;
  int32_t num_reqs, num_tokens;  // R, n
  int32_t padded_reqs, padded_tokens;
  int32_t num_slices;
  int32_t split;  // tokens a slice; 0 where fewer tokens than slices are split evenly: all go to the last
};
Status ReadSliceArgs(const fwdmeta_slice_args_t* in, SliceArgs* out);

// `out` [num_slices].
void PlanSlices(const SliceArgs& args, fwdmeta_slice_t* out);
Status PlanSlices(const fwdmeta_slice_args_t* in, fwdmeta_slice_t* out);

// What a slice has of one request.
struct Piece {
  int32_t tokens;
  int32_t seq_len;  // in the cache once the slice has run
  int32_t computed() const { return seq_len - tokens; }
};

// The piece of a request of the slice; `begin` is the request's first token in the step.
inline Piece PieceOfRequest(const SliceArgs& args, const fwdmeta_slice_t& slice, int32_t request, int32_t begin) {
  const int32_t end = begin + args.query_lens[request];
  const int32_t slice_end = slice.first_token + slice.num_tokens;
  const int32_t first = std::max(begin, slice.first_token), last = std::min(end, slice_end);
  return {std::max(last - first, 0), args.seq_lens[request] - std::max(end - slice_end, 0)};
}

// Calls visit(request, piece) for the requests of the slice that are not padding.
template <class Visit>
void ForEachPiece(const SliceArgs& args, const fwdmeta_slice_t& slice, Visit visit) {
  int32_t begin = 0;
  for (int32_t i = 0; i < std::min(slice.end_req, args.num_reqs); ++i) {
    if (i >= slice.first_req) visit(i, PieceOfRequest(args, slice, i, begin));
    begin += args.query_lens[i];
  }
}

Status SliceLengths(const fwdmeta_slice_args_t* in, const fwdmeta_slice_t* slice, int32_t* query_start_loc,
                    int32_t* seq_lens, int32_t* computed);

Status SlicesConflict(const fwdmeta_slice_args_t* in, const fwdmeta_slice_t* slices, const fwdmeta_rows_t* block_table,
                      int64_t block_size, fwdmeta_slice_conflict_t* out);

inline bool SameSlice(const fwdmeta_slice_t& a, const fwdmeta_slice_t& b) {
  return a.first_req == b.first_req && a.end_req == b.end_req && a.first_token == b.first_token &&
         a.end_token == b.end_token && a.num_tokens == b.num_tokens && a.empty == b.empty;
}

}  // namespace fwdmeta
