// One attention layer of an engine: its cache, its tokens, and the calls of a step, in their order.
#ifndef FWDMETA_EXAMPLES_ATTENTION_LAYER_H_
#define FWDMETA_EXAMPLES_ATTENTION_LAYER_H_

#include "attention.h"
#include "cuda_objects.h"

namespace attention {

struct LayerShape {
  Dtype dtype = Dtype::kBf16;
  int head_dim = 128;
  int num_q_heads = 32, num_kv_heads = 8;
  int64_t page_size = 64;
  int64_t num_pages = 0;
  int64_t num_tokens = 0;     // of a step
  int64_t num_positions = 0;  // of a sequence
};

// A builder's configuration for these kernels; sizes of the batch are left to the caller.
fwdmeta::Config builder_config(const LayerShape& shape);

class Layer {
 public:
  explicit Layer(const LayerShape& shape);

  // Sets `caches[0]`, `caches[1]`, `rotary_embs` and `block_tables` (int32 [slots, columns] on the device) on a
  // builder, so that each of its metas has them.
  void set_on(fwdmeta::Builder& builder, int32_t* table, int64_t slots, int64_t columns) const;
  // Makes room for what a grid's parts need. Not while a step is under way.
  void reserve(const Grid& grid, fwdmeta_attention_t attention);

  // Q, K and V of the step's tokens, as a model's projection would give them; seeds [slots] are the device's.
  void make_tokens(const Step& step, const uint64_t* seeds, int64_t num_tokens, cudaStream_t stream) const;
  // KV write and decode attention: a step without prefill.
  void decode(const Step& step, const Grid& grid, fwdmeta_attention_t attention, cudaStream_t stream) const;
  // The same with prefill.
  void prefill_and_decode(const Step& step, const Grid& grid, fwdmeta_attention_t attention, cudaStream_t stream) const;

  const LayerShape& shape() const { return shape_; }
  Tokens tokens() const { return {q_.data(), k_.data(), v_.data(), out_.data()}; }
  Workspace workspace() const { return {parts_.data(), max_and_sum_.data(), missing_pages_.data()}; }
  // The bytes of a token's output.
  int64_t out_stride() const { return int64_t{2} * shape_.num_q_heads * shape_.head_dim; }
  DeviceArray<uint16_t>& k_cache() { return k_cache_; }
  DeviceArray<uint16_t>& v_cache() { return v_cache_; }
  DeviceArray<uint16_t>& out() { return out_; }
  DeviceArray<int32_t>& missing_pages() { return missing_pages_; }

 private:
  LayerShape shape_;
  DeviceArray<uint16_t> k_cache_, v_cache_, q_, k_, v_, out_;
  DeviceArray<float> rotary_, parts_;
  DeviceArray<float2> max_and_sum_;
  DeviceArray<int32_t> missing_pages_{1};
};

// Fills the cache with the first cached[b] tokens of each slot, by steps of prefill of up to `chunk` tokens a slot. The
// table is the device's.
void write_cached(const Layer& layer, fwdmeta::Builder& builder, const Grid& grid, const fwdmeta_rows_t& table,
                  const uint64_t* seeds, const std::vector<int32_t>& cached, int64_t chunk, cudaStream_t stream);

}  // namespace attention

#endif  // FWDMETA_EXAMPLES_ATTENTION_LAYER_H_
