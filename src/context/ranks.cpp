#include "context/ranks.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/math.h"
#include "base/struct_io.h"

namespace fwdmeta {
namespace {

constexpr int64_t kMost = INT32_MAX;  // of every number

// A list of at least one count, none of them negative.
Status CheckCounts(const char* name, const int64_t* counts, const char* length_name, int64_t length) {
  FWDMETA_TRY(CheckRange(length_name, length, 1, kMost));
  if (counts == nullptr) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "%s is null, %s is %lld", name, length_name, (long long)length);
  }
  for (int64_t i = 0; i < length; ++i) {
    if (counts[i] < 0 || counts[i] > kMost) {
      return Fail(FWDMETA_INVALID_ARGUMENT, "%s[%lld] is %lld, expected 0..%lld", name, (long long)i,
                  (long long)counts[i], (long long)kMost);
    }
  }
  return FWDMETA_OK;
}

Status CheckOut(const int64_t* out) {
  return out != nullptr ? FWDMETA_OK : Fail(FWDMETA_INVALID_ARGUMENT, "out is null");
}

}  // namespace

Status MakeDpMetadata(const fwdmeta_dp_metadata_args_t* in, fwdmeta_dp_metadata_t* out) {
  const fwdmeta_dp_metadata_args_t defaults = FWDMETA_DP_METADATA_ARGS_INITIALIZER;
  fwdmeta_dp_metadata_args_t args;
  FWDMETA_TRY(ReadStruct(in, defaults, "args", &args));
  FWDMETA_TRY(CheckOutStruct(out, "out"));
  FWDMETA_TRY(CheckRange("sequence_parallel_moe", args.sequence_parallel_moe, 0, 1));
  if (args.is_moe != 1 && args.is_moe != -1) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "is_moe is %d, expected 1 or -1: %s", args.is_moe,
                args.is_moe == 0 ? "a model without experts has no use for it" : "no such value");
  }
  FWDMETA_TRY(CheckRange("dp_size", args.dp_size, args.sequence_parallel_moe == 1 ? 1 : 2, kMost));
  if (args.dp_rank < 0 || args.dp_rank >= args.dp_size) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "dp_rank is %lld, dp_size is %lld", (long long)args.dp_rank,
                (long long)args.dp_size);
  }
  FWDMETA_TRY(CheckCounts("table", args.table, "dp_size", args.dp_size));
  if (args.table[args.dp_rank] != args.num_tokens) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "table[%lld] is %lld, num_tokens is %lld", (long long)args.dp_rank,
                (long long)args.table[args.dp_rank], (long long)args.num_tokens);
  }
  fwdmeta_dp_metadata_t result = FWDMETA_DP_METADATA_INITIALIZER;
  result.dp_size = args.dp_size;
  result.dp_rank = args.dp_rank;
  result.num_tokens = args.table;
  for (int64_t i = 0; i < args.dp_size; ++i) {
    result.max_tokens = std::max(result.max_tokens, args.table[i]);
    result.sum_tokens += args.table[i];
  }
  WriteStruct(result, out);
  return FWDMETA_OK;
}

Status SpSizes(const int64_t* num_tokens, int64_t num_ranks, int64_t sp_size, int64_t* out) {
  FWDMETA_TRY(CheckCounts("num_tokens", num_tokens, "num_ranks", num_ranks));
  FWDMETA_TRY(CheckRange("sp_size", sp_size, 1, kMost));
  FWDMETA_TRY(CheckOut(out));
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    std::fill_n(out + rank * sp_size, sp_size, CeilDiv(num_tokens[rank], sp_size));
  }
  return FWDMETA_OK;
}

Status CuSizes(const int64_t* sizes, int64_t count, int64_t* out) {
  FWDMETA_TRY(CheckCounts("sizes", sizes, "count", count));
  FWDMETA_TRY(CheckOut(out));
  int64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) out[i] = sum += sizes[i];
  return FWDMETA_OK;
}

Status ChunkSizes(const int64_t* sizes, int64_t count, int64_t max_chunk, int64_t index, int64_t* out) {
  FWDMETA_TRY(CheckCounts("sizes", sizes, "count", count));
  FWDMETA_TRY(CheckRange("max_chunk", max_chunk, 1, kMost));
  FWDMETA_TRY(CheckRange("index", index, 0, kMost));
  FWDMETA_TRY(CheckOut(out));
  for (int64_t i = 0; i < count; ++i) {
    out[i] = std::max<int64_t>(std::min(max_chunk, sizes[i] - max_chunk * index), 1);
  }
  return FWDMETA_OK;
}

Status NumChunks(const int64_t* sizes, int64_t count, int64_t max_chunk, int64_t* out) {
  FWDMETA_TRY(CheckCounts("sizes", sizes, "count", count));
  FWDMETA_TRY(CheckRange("max_chunk", max_chunk, 1, kMost));
  FWDMETA_TRY(CheckOut(out));
  *out = std::max<int64_t>(1, CeilDiv(*std::max_element(sizes, sizes + count), max_chunk));
  return FWDMETA_OK;
}

Status ShardSizes(int64_t num_tokens, int64_t num_ranks, int32_t padded, int64_t* sizes, int64_t* starts, int64_t* live,
                  uint8_t* mask) {
  FWDMETA_TRY(CheckRange("num_tokens", num_tokens, 0, kMost));
  FWDMETA_TRY(CheckRange("num_ranks", num_ranks, 1, kMost));
  FWDMETA_TRY(CheckRange("padded", padded, 0, 1));
  if (mask != nullptr && padded == 0) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "mask is set and padded is 0: uneven shards have no padding");
  }
  const int64_t even = num_tokens / num_ranks, rest = num_tokens % num_ranks;
  const int64_t row = CeilDiv(num_tokens, num_ranks);  // of every padded shard
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    const int64_t size = padded == 1 ? row : even + (rank < rest ? 1 : 0);
    const int64_t start = padded == 1 ? rank * row : rank * even + std::min(rank, rest);
    if (sizes != nullptr) sizes[rank] = size;
    if (starts != nullptr) starts[rank] = start;
    if (live != nullptr) live[rank] = std::clamp<int64_t>(num_tokens - start, 0, size);
  }
  if (mask != nullptr) {
    std::memset(mask, 1, num_tokens);
    std::memset(mask + num_tokens, 0, num_ranks * row - num_tokens);
  }
  return FWDMETA_OK;
}

}  // namespace fwdmeta
