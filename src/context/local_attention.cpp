// Chunked local attention: a token sees its own chunk of positions only, so each chunk is a request of its own.
#include <algorithm>

#include "base/struct_io.h"
#include "context/arrays.h"
#include "context/helpers.h"

namespace fwdmeta {
namespace {

// Calls visit(request, first position of the chunk, tokens in it, end of the keys) for every chunk with a token.
template <class Visit>
void ForEachChunk(const fwdmeta_local_attention_args_t& args, Visit visit) {
  for (int32_t i = 0; i < args.num_reqs; ++i) {
    const int64_t seq_len = args.seq_lens[i], query_len = args.query_lens[i];
    for (int64_t position = seq_len - query_len; position < seq_len;) {
      const int64_t chunk = position - position % args.attn_chunk_size;
      const int64_t end = std::min(chunk + args.attn_chunk_size, seq_len);
      visit(i, chunk, static_cast<int32_t>(end - position), end);
      position = end;
    }
  }
}

int64_t CountChunks(const fwdmeta_local_attention_args_t& args) {
  int64_t count = 0;
  for (int64_t i = 0; i < args.num_reqs; ++i) {
    if (args.query_lens[i] == 0) continue;
    const int64_t first = (args.seq_lens[i] - args.query_lens[i]) / args.attn_chunk_size;
    count += (args.seq_lens[i] - 1) / args.attn_chunk_size - first + 1;
  }
  return count;
}

// The pages of a chunk. Columns past the row's last page repeat it: a kernel may load them before it masks them.
void WritePages(const Rows<int32_t>& table, int32_t request, int64_t first_column, int64_t columns, int32_t* out) {
  int64_t width = table.width;
  if (table.row_lengths != nullptr) width = std::min<int64_t>(width, table.row_lengths[request]);
  for (int64_t j = 0; j < columns; ++j) {
    const int64_t column = std::min(first_column + j, width - 1);
    out[j] = column < 0 ? -1 : table.At(request, static_cast<uint32_t>(column));
  }
}

}  // namespace

Status LocalAttention(const fwdmeta_local_attention_args_t* in, int64_t capacity, int32_t* query_lens,
                      int32_t* seq_lens, int32_t* block_table, int32_t* request, int64_t* count) {
  const fwdmeta_local_attention_args_t defaults = FWDMETA_LOCAL_ATTENTION_ARGS_INITIALIZER;
  fwdmeta_local_attention_args_t args;
  FWDMETA_TRY(ReadStruct(in, defaults, "args", &args));
  FWDMETA_TRY(CheckArray(count, 1, "count"));
  FWDMETA_TRY(CheckRange("num_reqs", args.num_reqs, 0));
  FWDMETA_TRY(CheckRange("attn_chunk_size", args.attn_chunk_size, 1));
  FWDMETA_TRY(CheckRange("block_size", args.block_size, 1));
  if (args.attn_chunk_size % args.block_size != 0) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "attn_chunk_size %lld is not a multiple of block_size %lld",
                (long long)args.attn_chunk_size, (long long)args.block_size);
  }
  FWDMETA_TRY(CheckRange("capacity", capacity, 0));
  FWDMETA_TRY(CheckArray(args.query_lens, args.num_reqs, "args.query_lens"));
  FWDMETA_TRY(CheckArray(args.seq_lens, args.num_reqs, "args.seq_lens"));
  Rows<int32_t> table;
  FWDMETA_TRY(ReadRows(args.block_table, args.num_reqs, "args.block_table", &table));
  if (block_table != nullptr && table.data == nullptr && args.num_reqs > 0) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "block_table is wanted and args.block_table.data is null with %lld requests",
                (long long)args.num_reqs);
  }
  FWDMETA_TRY(CheckAligned(query_lens, "query_lens"));
  FWDMETA_TRY(CheckAligned(seq_lens, "seq_lens"));
  FWDMETA_TRY(CheckAligned(block_table, "block_table"));
  FWDMETA_TRY(CheckAligned(request, "request"));
  int32_t num_tokens;
  FWDMETA_TRY(CheckRequests(args.query_lens, args.seq_lens, static_cast<int32_t>(args.num_reqs), &num_tokens));

  *count = CountChunks(args);
  const bool asks_count =
      capacity == 0 && query_lens == nullptr && seq_lens == nullptr && block_table == nullptr && request == nullptr;
  if (asks_count) return FWDMETA_OK;
  if (*count > capacity) {
    return Fail(FWDMETA_CAPACITY_EXCEEDED, "%lld virtual requests pass the capacity %lld", (long long)*count,
                (long long)capacity);
  }
  const int64_t columns = args.attn_chunk_size / args.block_size;
  int64_t row = 0;
  ForEachChunk(args, [&](int32_t i, int64_t chunk, int32_t tokens, int64_t end) {
    if (query_lens != nullptr) query_lens[row] = tokens;
    if (seq_lens != nullptr) seq_lens[row] = static_cast<int32_t>(end - chunk);
    if (block_table != nullptr) WritePages(table, i, chunk / args.block_size, columns, block_table + row * columns);
    if (request != nullptr) request[row] = i;
    ++row;
  });
  return FWDMETA_OK;
}

}  // namespace fwdmeta
