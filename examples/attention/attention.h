// Paged attention driven by libfwdmeta: what an engine calls in a step. Everything that the kernels know of the batch
// comes from a fwdmeta::Meta; grids are fixed, so that each call may be captured in a graph and replayed.
#ifndef FWDMETA_EXAMPLES_ATTENTION_ATTENTION_H_
#define FWDMETA_EXAMPLES_ATTENTION_ATTENTION_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <fwdmeta/fwdmeta.hpp>

namespace attention {

constexpr int kPrefillRows = 64;  // query rows of an encoder tile: the builder's encoder_block_shape_q
constexpr int kDecodeRows = 16;   // query rows of a decoder tile: the builder's decoder_block_shape_q
constexpr int kKeyUnit = 16;      // keys that are loaded together, all of one page
constexpr int kMaxSplits = 32;    // parts that the keys of one slot are split in at most (append attention)

enum class Dtype { kBf16, kFp16 };

// Tile i of the mapping is tiles[i] of slot slots[i], or nobody's where slots[i] is -1.
struct Mapping {
  const int32_t* slots;
  const int32_t* tiles;
  const int32_t* cu_tiles;
};

// What a step's kernels read of the metadata, and the tensors that the engine has set by name.
struct Step {
  Mapping decoder, encoder, kv;
  const int32_t* chunk_size;          // decoder_chunk_size_device
  const int32_t* cu_seqlens_q;        // [max_batch_size + 1]
  const int32_t* seq_lens_kv;         // [max_batch_size], D + N
  const int32_t* batch_id_per_token;  // [max_num_tokens]
  const int32_t* mask_encoder_batch;
  const int64_t* position_ids;
  const int64_t* slot_mapping;
  const int32_t* num_invalid_slots;  // in the device's counts; no kernel writes where it is not 0

  const int32_t* block_table;  // `block_tables`, int32 [slots, columns]
  int64_t table_stride;
  const float* rotary;  // `rotary_embs`, float32 [2, positions, head_dim / 2]: cosines, sines; null: already applied
  int64_t rotary_positions;
  void *k_cache, *v_cache;  // `caches[0]`, `caches[1]`, [pages, kv heads, page size, head_dim]
  int64_t num_pages;
  Dtype dtype;
  int head_dim, num_kv_heads, page_size;
  int group;  // query heads per KV head
};

// The tokens of a step, packed: q and out [T, num_q_heads, head_dim], k and v [T, num_kv_heads, head_dim].
struct Tokens {
  const void *q, *k, *v;
  void* out;
};

// Bounds of a bucket, as fwdmeta_get_capacities gives them: what the launches are sized by.
struct Grid {
  int64_t slots, tokens;
  int64_t kv_tiles, encoder_tiles, decoder_tiles;
  int max_decode_tokens = 1;  // N of a decoding slot
  int splits = 1;             // parts that the keys of a slot are split in at most (append attention)
};

// What the parts of a split sequence are merged from.
struct Workspace {
  float* out;              // [parts, kDecodeRows, head_dim], not normalised
  float2* max_and_sum;     // [parts, kDecodeRows]
  int32_t* missing_pages;  // counts pages of cached positions that the table does not have; never reset here
};

// Reads a meta of the CUDA backend. std::invalid_argument, naming what is not supported, before anything is launched:
// head_dim other than 64 and 128, dtypes other than bf16 and fp16, page sizes that 16 does not divide, shapes that do
// not fit together.
Step read_step(const fwdmeta::Meta& meta, int num_q_heads);

// std::runtime_error where there is no GPU, or one without the tensor-core instructions (before sm_80).
void require_device();

Grid make_grid(const fwdmeta_config_t& config, int64_t slots, int64_t tokens, int max_decode_tokens);
// Parts that `out` and `max_and_sum` need room for.
int64_t num_parts(const Grid& grid, int num_kv_heads, int group, fwdmeta_attention_t attention);

// Writes the new K and V to their pages, K rotated: prefill by kv tiles, decode by slot_mapping.
void write_kv(const Step& step, const Tokens& tokens, const Grid& grid, cudaStream_t stream);
// Attention of prefill slots over encoder tiles.
void attend_prefill(const Step& step, const Tokens& tokens, const Grid& grid, cudaStream_t stream,
                    const Workspace& workspace);
// Attention of decode slots over decoder tiles: rows of queries in append attention, chunks of keys in mla attention.
void attend_decode(const Step& step, const Tokens& tokens, const Grid& grid, cudaStream_t stream,
                   const Workspace& workspace);
void attend_decode_mla(const Step& step, const Tokens& tokens, const Grid& grid, cudaStream_t stream,
                       const Workspace& workspace);

}  // namespace attention

#endif  // FWDMETA_EXAMPLES_ATTENTION_ATTENTION_H_
