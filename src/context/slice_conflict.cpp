// Whether a slice of a step reads pages that another one writes, so that their order matters.
#include <tuple>
#include <vector>

#include "base/math.h"
#include "base/struct_io.h"
#include "context/arrays.h"
#include "context/slices.h"

namespace fwdmeta {
namespace {

// That a slice writes a page: for which request, and for which other one where there are several (-1: none).
struct Write {
  int32_t page, slice, request, other;
};

// The pages of a request's row in columns [begin, end).
template <class Visit>
void ForEachPage(const Rows<int32_t>& table, int32_t request, int64_t begin, int64_t end, Visit visit) {
  for (int64_t column = begin; column < std::min<int64_t>(end, table.width); ++column) {
    if (!table.Contains(request, static_cast<uint32_t>(column))) return;
    const int32_t page = table.At(request, static_cast<uint32_t>(column));
    if (page >= 0) visit(page);
  }
}

// Ascending by page and slice, one entry for each pair.
std::vector<Write> FindWrites(const SliceArgs& args, const fwdmeta_slice_t* slices, const Rows<int32_t>& table,
                              int64_t block_size) {
  std::vector<Write> writes;
  for (int32_t j = 0; j < args.num_slices; ++j) {
    ForEachPiece(args, slices[j], [&](int32_t request, const Piece& piece) {
      if (piece.tokens == 0) return;
      ForEachPage(table, request, piece.computed() / block_size, CeilDiv(piece.seq_len, block_size), [&](int32_t page) {
        writes.push_back({page, j, request, -1});
      });
    });
  }
  const auto key = [](const Write& write) { return std::tie(write.page, write.slice, write.request); };
  std::sort(writes.begin(), writes.end(), [&](const Write& a, const Write& b) { return key(a) < key(b); });
  size_t kept = 0;
  for (const Write& write : writes) {
    Write* last = kept > 0 ? &writes[kept - 1] : nullptr;
    if (last == nullptr || last->page != write.page || last->slice != write.slice) {
      writes[kept++] = write;
    } else if (last->request != write.request) {
      last->other = write.request;
    }
  }
  writes.resize(kept);
  return writes;
}

}  // namespace

Status SlicesConflict(const fwdmeta_slice_args_t* in, const fwdmeta_slice_t* slices, const fwdmeta_rows_t* block_table,
                      int64_t block_size, fwdmeta_slice_conflict_t* out) {
  SliceArgs args;
  FWDMETA_TRY(ReadSliceArgs(in, &args));
  FWDMETA_TRY(CheckOutStruct(out, "out"));
  FWDMETA_TRY(CheckArray(slices, args.num_slices, "slices"));
  FWDMETA_TRY(CheckRange("block_size", block_size, 1));
  if (block_table == nullptr || (block_table->data == nullptr && args.num_reqs > 0)) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "block_table is null and num_reqs is %d", args.num_reqs);
  }
  Rows<int32_t> table;
  FWDMETA_TRY(ReadRows(*block_table, args.num_reqs, "block_table", &table));
  fwdmeta_slice_t plan[FWDMETA_MAX_SLICES];
  PlanSlices(args, plan);
  for (int32_t j = 0; j < args.num_slices; ++j) {
    if (SameSlice(plan[j], slices[j])) continue;
    return Fail(FWDMETA_INVALID_ARGUMENT,
                "slice %d: requests [%d, %d) with tokens [%d, %d), these arguments give [%d, %d) with [%d, %d)", j,
                slices[j].first_req, slices[j].end_req, slices[j].first_token, slices[j].end_token, plan[j].first_req,
                plan[j].end_req, plan[j].first_token, plan[j].end_token);
  }
  const std::vector<Write> writes = FindWrites(args, plan, table, block_size);
  const auto before = [](const Write& write, int32_t page) { return write.page < page; };
  fwdmeta_slice_conflict_t found = FWDMETA_SLICE_CONFLICT_INITIALIZER;
  const auto rank = [](const fwdmeta_slice_conflict_t& conflict) {
    return std::make_tuple(-conflict.conflict, -conflict.cross_request, conflict.reader, conflict.writer,
                           conflict.page);
  };
  for (int32_t j = 0; j < args.num_slices; ++j) {
    ForEachPiece(args, plan[j], [&](int32_t request, const Piece& piece) {
      if (piece.tokens == 0) return;
      ForEachPage(table, request, 0, CeilDiv(piece.computed(), block_size), [&](int32_t page) {
        for (auto write = std::lower_bound(writes.begin(), writes.end(), page, before);
             write != writes.end() && write->page == page; ++write) {
          if (write->slice == j) continue;
          fwdmeta_slice_conflict_t conflict = FWDMETA_SLICE_CONFLICT_INITIALIZER;
          conflict.conflict = 1;
          conflict.cross_request = write->request != request || write->other >= 0;
          conflict.reader = j;
          conflict.writer = write->slice;
          conflict.page = page;
          if (rank(conflict) < rank(found)) found = conflict;
        }
      });
    });
  }
  WriteStruct(found, out);
  return FWDMETA_OK;
}

}  // namespace fwdmeta
