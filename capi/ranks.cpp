// The C ABI of what data-parallel ranks share.
#include "context/ranks.h"

#include "context/transport.h"
#include "fwdmeta.h"
#include "guard.h"

using namespace fwdmeta;

fwdmeta_status_t fwdmeta_dp_metadata_make(const fwdmeta_dp_metadata_args_t* args, fwdmeta_dp_metadata_t* out) {
  return Guard([&] { return MakeDpMetadata(args, out); });
}

fwdmeta_status_t fwdmeta_sp_sizes(const int64_t* num_tokens, int64_t num_ranks, int64_t sp_size, int64_t* out) {
  return Guard([&] { return SpSizes(num_tokens, num_ranks, sp_size, out); });
}

fwdmeta_status_t fwdmeta_cu_sizes(const int64_t* sizes, int64_t count, int64_t* out) {
  return Guard([&] { return CuSizes(sizes, count, out); });
}

fwdmeta_status_t fwdmeta_chunk_sizes(const int64_t* sizes, int64_t count, int64_t max_chunk, int64_t index,
                                     int64_t* out) {
  return Guard([&] { return ChunkSizes(sizes, count, max_chunk, index, out); });
}

fwdmeta_status_t fwdmeta_num_chunks(const int64_t* sizes, int64_t count, int64_t max_chunk, int64_t* out) {
  return Guard([&] { return NumChunks(sizes, count, max_chunk, out); });
}

fwdmeta_status_t fwdmeta_shard_sizes(int64_t num_tokens, int64_t num_ranks, int32_t padded, int64_t* sizes,
                                     int64_t* starts, int64_t* live, uint8_t* mask) {
  return Guard([&] { return ShardSizes(num_tokens, num_ranks, padded, sizes, starts, live, mask); });
}

fwdmeta_status_t fwdmeta_transport_create(const fwdmeta_transport_config_t* config, fwdmeta_transport_t* out) {
  return Guard([&] { return Transport::Create(config, out); });
}

fwdmeta_status_t fwdmeta_transport_destroy(fwdmeta_transport_t transport) {
  return Guard([&] { return Transport::Destroy(transport); });
}

fwdmeta_status_t fwdmeta_agree_through(fwdmeta_transport_t transport, fwdmeta_dispatcher_t dispatcher,
                                       const fwdmeta_rank_row_t* row, int64_t num_slices, int64_t timeout_us,
                                       int64_t* num_tokens, fwdmeta_agreement_t* out) {
  return Guard([&] { return Transport::Agree(transport, dispatcher, row, num_slices, timeout_us, num_tokens, out); });
}
