// Token counts of data-parallel ranks: their metadata, sequence-parallel sizes, chunks and shards. Counts are at most
// INT32_MAX each, so that no sum or product of two of them leaves int64.
#pragma once

#include "base/status.h"

namespace fwdmeta {

Status MakeDpMetadata(const fwdmeta_dp_metadata_args_t* args, fwdmeta_dp_metadata_t* out);
Status SpSizes(const int64_t* num_tokens, int64_t num_ranks, int64_t sp_size, int64_t* out);
Status CuSizes(const int64_t* sizes, int64_t count, int64_t* out);
Status ChunkSizes(const int64_t* sizes, int64_t count, int64_t max_chunk, int64_t index, int64_t* out);
Status NumChunks(const int64_t* sizes, int64_t count, int64_t max_chunk, int64_t* out);
Status ShardSizes(int64_t num_tokens, int64_t num_ranks, int32_t padded, int64_t* sizes, int64_t* starts, int64_t* live,
                  uint8_t* mask);

}  // namespace fwdmeta
