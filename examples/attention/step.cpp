#include <algorithm>
#include <stdexcept>
#include <string>

#include "attention.h"

namespace attention {

namespace {

constexpr int kCountOfInvalidSlots = 13;  // num_invalid_slots in FWDMETA_FIELD_COUNTS

void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument("attention: " + message);
}

fwdmeta::Tensor device_tensor(const fwdmeta::Meta& meta, const char* name, int32_t ndim) {
  fwdmeta::Tensor tensor = meta.get(name);
  require(tensor.ndim == ndim,
          std::string(name) + " has " + std::to_string(tensor.ndim) + " dimensions, not " + std::to_string(ndim));
  require(tensor.memory_kind == FWDMETA_MEMORY_DEVICE, std::string(name) + " is not in device memory");
  return tensor;
}

fwdmeta::Tensor cache(const fwdmeta::Meta& meta, const char* name) {
  fwdmeta::Tensor tensor = device_tensor(meta, name, 4);
  const bool is_16_bit_float = tensor.dtype_bits == 16 && tensor.dtype_lanes == 1 &&
                               (tensor.dtype_code == FWDMETA_DTYPE_BFLOAT || tensor.dtype_code == FWDMETA_DTYPE_FLOAT);
  require(is_16_bit_float, std::string(name) + " has dtype code " + std::to_string(tensor.dtype_code) + " of " +
                               std::to_string(tensor.dtype_bits) + " bits; bf16 and fp16 are supported");
  const int64_t page_size = tensor.shape[2], head_dim = tensor.shape[3];
  require(head_dim == 64 || head_dim == 128,
          std::string(name) + " has head_dim " + std::to_string(head_dim) + "; 64 and 128 are supported");
  require(page_size >= kKeyUnit && page_size % kKeyUnit == 0,
          std::string(name) + " has pages of " + std::to_string(page_size) + " positions; multiples of " +
              std::to_string(kKeyUnit) + " are supported");
  int64_t stride = 1;
  for (int i = 3; i >= 0; stride *= tensor.shape[i--]) {
    require(tensor.strides[i] == stride, std::string(name) + " is not contiguous");
  }
  return tensor;
}

Mapping mapping(const fwdmeta::Meta& meta, fwdmeta_field_t slots, fwdmeta_field_t tiles, fwdmeta_field_t cu_tiles) {
  return {meta.field<int32_t>(slots).data(), meta.field<int32_t>(tiles).data(), meta.field<int32_t>(cu_tiles).data()};
}

}  // namespace

Step read_step(const fwdmeta::Meta& meta, int num_q_heads) {
  Step step{};
  const fwdmeta::Tensor k = cache(meta, "caches[0]"), v = cache(meta, "caches[1]");
  require(k.dtype_code == v.dtype_code && std::equal(k.shape, k.shape + 4, v.shape),
          "caches[0] and caches[1] differ in dtype or shape");
  step.k_cache = k.data;
  step.v_cache = v.data;
  step.dtype = k.dtype_code == FWDMETA_DTYPE_BFLOAT ? Dtype::kBf16 : Dtype::kFp16;
  step.num_pages = k.shape[0];
  step.num_kv_heads = static_cast<int>(k.shape[1]);
  step.page_size = static_cast<int>(k.shape[2]);
  step.head_dim = static_cast<int>(k.shape[3]);
  require(num_q_heads >= 1 && num_q_heads % step.num_kv_heads == 0,
          std::to_string(num_q_heads) + " query heads are no multiple of " + std::to_string(step.num_kv_heads) +
              " KV heads");
  step.group = num_q_heads / step.num_kv_heads;

  const fwdmeta::Tensor table = device_tensor(meta, "block_tables", 2);
  require(table.dtype_code == FWDMETA_DTYPE_INT && table.dtype_bits == 32, "block_tables is not int32");
  step.block_table = static_cast<const int32_t*>(table.data);
  step.table_stride = table.strides[0];
  if (meta.attr(FWDMETA_ATTR_ROPE_ALREADY_APPLIED) == 0) {
    const fwdmeta::Tensor rotary = device_tensor(meta, "rotary_embs", 3);
    require(rotary.dtype_code == FWDMETA_DTYPE_FLOAT && rotary.dtype_bits == 32 && rotary.shape[0] == 2 &&
                rotary.shape[2] == step.head_dim / 2,
            "rotary_embs is not float32 [2, positions, " + std::to_string(step.head_dim / 2) + "]");
    step.rotary = static_cast<const float*>(rotary.data);
    step.rotary_positions = rotary.shape[1];
  }

  step.decoder = mapping(meta, FWDMETA_FIELD_DECODER_BATCH_IDS, FWDMETA_FIELD_DECODER_TILE_IDS_PER_BATCH,
                         FWDMETA_FIELD_DECODER_CU_TILES);
  step.encoder = mapping(meta, FWDMETA_FIELD_ENCODER_BATCH_IDS, FWDMETA_FIELD_ENCODER_TILE_IDS_PER_BATCH,
                         FWDMETA_FIELD_ENCODER_CU_TILES);
  step.kv = mapping(meta, FWDMETA_FIELD_KV_BATCH_IDS, FWDMETA_FIELD_KV_TILE_IDS_PER_BATCH, FWDMETA_FIELD_KV_CU_TILES);
  step.chunk_size = meta.field<int32_t>(FWDMETA_FIELD_DECODER_CHUNK_SIZE_DEVICE).data();
  step.cu_seqlens_q = meta.field<int32_t>(FWDMETA_FIELD_CU_SEQLENS_Q).data();
  step.seq_lens_kv = meta.field<int32_t>(FWDMETA_FIELD_SEQ_LENS_KV).data();
  step.batch_id_per_token = meta.field<int32_t>(FWDMETA_FIELD_BATCH_ID_PER_TOKEN).data();
  step.mask_encoder_batch = meta.field<int32_t>(FWDMETA_FIELD_MASK_ENCODER_BATCH).data();
  step.position_ids = meta.field<int64_t>(FWDMETA_FIELD_POSITION_IDS).data();
  step.slot_mapping = meta.field<int64_t>(FWDMETA_FIELD_SLOT_MAPPING).data();
  step.num_invalid_slots = meta.field<int32_t>(FWDMETA_FIELD_COUNTS).data() + kCountOfInvalidSlots;
  return step;
}

void require_device() {
  int devices = 0, device = 0, major = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess || devices == 0) {
    throw std::runtime_error(std::string("attention: no GPU: ") +
                             cudaGetErrorString(found != cudaSuccess ? found : cudaErrorNoDevice));
  }
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) {
    throw std::runtime_error("attention: the device cannot be asked for its compute capability");
  }
  if (major < 8) {
    throw std::runtime_error("attention: device " + std::to_string(device) + " has compute capability " +
                             std::to_string(major) + ".x; 8.0 is the least");
  }
}

Grid make_grid(const fwdmeta_config_t& config, int64_t slots, int64_t tokens, int max_decode_tokens) {
  if (config.attention == FWDMETA_ATTENTION_MLA) {
    require(config.mla_chunk_size % kKeyUnit == 0, "mla_chunk_size " + std::to_string(config.mla_chunk_size) +
                                                       " is no multiple of " + std::to_string(kKeyUnit));
  }
  require(config.encoder_block_shape_q == kPrefillRows && config.decoder_block_shape_q == kDecodeRows,
          "tiles of " + std::to_string(config.encoder_block_shape_q) + " and " +
              std::to_string(config.decoder_block_shape_q) + " query rows; the kernels are for " +
              std::to_string(kPrefillRows) + " and " + std::to_string(kDecodeRows));
  fwdmeta::CapacityQuery bucket;
  bucket.slots = slots;
  bucket.tokens = tokens;
  const fwdmeta::Capacities bounds = fwdmeta::capacities(config, &bucket);
  Grid grid{slots, tokens, bounds.kv, bounds.encoder, bounds.decoder, max_decode_tokens, 1};

  // Enough parts that a step of few slots fills the GPU, and that a long sequence does not keep it waiting. Parts are
  // cut when a slot is short, so too many cost little more than blocks that leave at once.
  constexpr int64_t kBlocksPerSm = 16;
  int device = 0, sms = 1;
  if (cudaGetDevice(&device) == cudaSuccess) cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  const int64_t blocks = std::max<int64_t>(grid.decoder_tiles * config.num_kv_heads, 1);
  grid.splits = static_cast<int>(std::clamp<int64_t>(kBlocksPerSm * sms / blocks, 1, kMaxSplits));
  return grid;
}

int64_t num_parts(const Grid& grid, int num_kv_heads, int group, fwdmeta_attention_t attention) {
  const int64_t rows = int64_t{grid.max_decode_tokens} * group;
  const int64_t per_tile = attention == FWDMETA_ATTENTION_MLA ? (rows + kDecodeRows - 1) / kDecodeRows : grid.splits;
  return grid.decoder_tiles * per_tile * num_kv_heads;
}

}  // namespace attention
