#include "layer.h"

#include <initializer_list>

#include "synthetic.h"

namespace attention {

namespace {

fwdmeta::Tensor tensor_of(void* data, fwdmeta_dtype_code_t code, int bits, std::initializer_list<int64_t> shape) {
  fwdmeta::Tensor tensor;
  tensor.data = data;
  ATTENTION_CUDA(cudaGetDevice(&tensor.device));
  tensor.dtype_code = code;
  tensor.dtype_bits = static_cast<uint8_t>(bits);
  tensor.ndim = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), tensor.shape);
  for (int64_t i = tensor.ndim, stride = 1; i-- > 0; stride *= tensor.shape[i]) tensor.strides[i] = stride;
  return tensor;
}

}  // namespace

fwdmeta::Config builder_config(const LayerShape& shape) {
  fwdmeta::Config config;
  config.backend = FWDMETA_BACKEND_CUDA;
  config.max_num_tokens = shape.num_tokens;
  config.max_model_len = shape.num_positions;
  config.max_num_kv_tokens = shape.num_pages * shape.page_size;
  config.num_q_heads = shape.num_q_heads;
  config.num_kv_heads = shape.num_kv_heads;
  config.block_size = shape.page_size;
  config.encoder_block_shape_q = kPrefillRows;
  config.decoder_block_shape_q = kDecodeRows;
  return config;
}

Layer::Layer(const LayerShape& shape)
    : shape_(shape),
      k_cache_(shape.num_pages * shape.page_size * shape.num_kv_heads * shape.head_dim),
      v_cache_(k_cache_.size()),
      q_(shape.num_tokens * shape.num_q_heads * shape.head_dim),
      k_(shape.num_tokens * shape.num_kv_heads * shape.head_dim),
      v_(k_.size()),
      out_(q_.size()),
      rotary_(shape.num_positions * shape.head_dim) {
  missing_pages_.fill(0);
  make_rotary(shape.num_positions, shape.head_dim, rotary_.data(), nullptr);
  ATTENTION_CUDA(cudaDeviceSynchronize());
}

void Layer::set_on(fwdmeta::Builder& builder, int32_t* table, int64_t slots, int64_t columns) const {
  const fwdmeta_dtype_code_t code = shape_.dtype == Dtype::kBf16 ? FWDMETA_DTYPE_BFLOAT : FWDMETA_DTYPE_FLOAT;
  const auto cache = [&](const DeviceArray<uint16_t>& array) {
    return tensor_of(array.data(), code, 16,
                     {shape_.num_pages, shape_.num_kv_heads, shape_.page_size, shape_.head_dim});
  };
  builder.set("caches[0]", cache(k_cache_));
  builder.set("caches[1]", cache(v_cache_));
  builder.set("rotary_embs",
              tensor_of(rotary_.data(), FWDMETA_DTYPE_FLOAT, 32, {2, shape_.num_positions, shape_.head_dim / 2}));
  builder.set("block_tables", tensor_of(table, FWDMETA_DTYPE_INT, 32, {slots, columns}));
}

void Layer::reserve(const Grid& grid, fwdmeta_attention_t attention) {
  const int group = shape_.num_q_heads / shape_.num_kv_heads;
  const size_t rows = num_parts(grid, shape_.num_kv_heads, group, attention) * kDecodeRows;
  if (max_and_sum_.size() >= rows) return;
  max_and_sum_ = DeviceArray<float2>(rows);
  parts_ = DeviceArray<float>(rows * shape_.head_dim);
}

void Layer::make_tokens(const Step& step, const uint64_t* seeds, int64_t num_tokens, cudaStream_t stream) const {
  attention::make_tokens(step, seeds, num_tokens, q_.data(), k_.data(), v_.data(), stream);
}

void Layer::decode(const Step& step, const Grid& grid, fwdmeta_attention_t attention, cudaStream_t stream) const {
  write_kv(step, tokens(), grid, stream);
  (attention == FWDMETA_ATTENTION_MLA ? attend_decode_mla : attend_decode)(step, tokens(), grid, stream, workspace());
}

void Layer::prefill_and_decode(const Step& step, const Grid& grid, fwdmeta_attention_t attention,
                               cudaStream_t stream) const {
  decode(step, grid, attention, stream);
  attend_prefill(step, tokens(), grid, stream, workspace());
}

void write_cached(const Layer& layer, fwdmeta::Builder& builder, const Grid& grid, const fwdmeta_rows_t& table,
                  const uint64_t* seeds, const std::vector<int32_t>& cached, int64_t chunk, cudaStream_t stream) {
  std::vector<int32_t> done(cached.size(), 0), counts(cached.size(), 0);
  fwdmeta::Batch batch;
  batch.memory_kind = FWDMETA_MEMORY_HOST;
  batch.batch_size = static_cast<int64_t>(cached.size());
  batch.seq_lens_encoder = batch.seq_lens_this_time = counts.data();
  batch.seq_lens_decoder = done.data();
  batch.num_block_tables = 1;
  batch.block_tables = &table;
  batch.stream = stream;
  for (;;) {
    int64_t tokens = 0;
    for (size_t b = 0; b < cached.size(); ++b) {
      counts[b] = static_cast<int32_t>(
          std::min<int64_t>({int64_t{cached[b]} - done[b], chunk, layer.shape().num_tokens - tokens}));
      tokens += counts[b];
    }
    if (tokens == 0) return;
    const fwdmeta::Meta meta = builder.build(batch);
    const Step step = read_step(meta, layer.shape().num_q_heads);
    layer.make_tokens(step, seeds, tokens, stream);
    write_kv(step, layer.tokens(), grid, stream);
    for (size_t b = 0; b < cached.size(); ++b) done[b] += counts[b];
  }
}

}  // namespace attention
