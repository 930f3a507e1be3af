#include "dense_check.h"

#include <algorithm>
#include <cmath>

namespace serve_loop {

namespace {

constexpr size_t kSlotsOfStep = 4;
constexpr int64_t kTokensOfSlot = 64;

}  // namespace

void DenseCheck::compare(const Plan& plan, attention::Layer& layer) {
  const double bound = layer.shape().dtype == attention::Dtype::kBf16 ? 1e-2 : 2e-3;
  std::vector<std::pair<size_t, int64_t>> live;  // slot, its first token
  int64_t token = 0;
  for (size_t b = 0; b < plan.this_time.size(); ++b) {
    if (plan.this_time[b] > 0) live.emplace_back(b, token);
    token += plan.this_time[b];
  }
  std::shuffle(live.begin(), live.end(), random_);
  live.resize(std::min(live.size(), kSlotsOfStep));
  for (const auto& [slot, first] : live) {
    const double of_slot = error(plan, slot, first, layer);
    if (!(of_slot < bound)) {
      throw std::runtime_error(format("slot %zu (E %d, D %d, N %d) differs from dense attention by %.3e, more than %g",
                                      slot, plan.encoder[slot], plan.decoder[slot], plan.this_time[slot], of_slot,
                                      bound));
    }
    largest_error_ = std::max(largest_error_, of_slot);
    ++num_slots_;
  }
  ++num_steps_;
}

double DenseCheck::error(const Plan& plan, size_t slot, int64_t first_token, attention::Layer& layer) {
  const attention::LayerShape& s = layer.shape();
  const int64_t keys = plan.decoder[slot] + plan.this_time[slot];
  const int64_t queries = std::min<int64_t>(plan.this_time[slot], kTokensOfSlot);
  const uint64_t seed = plan.seeds[slot];
  const void* q = sequence(attention::Kind::kQuery, s, seed, keys - queries, queries, s.num_q_heads, q_);
  const void* k = sequence(attention::Kind::kKey, s, seed, 0, keys, s.num_kv_heads, k_);
  const void* v = sequence(attention::Kind::kValue, s, seed, 0, keys, s.num_kv_heads, v_);
  const float* want = truth_.attend(
      {s.dtype, s.head_dim, s.num_kv_heads, s.num_q_heads / s.num_kv_heads, keys, queries, q, k, v, true});
  const int64_t stride = layer.out_stride() / 2, first = first_token + plan.this_time[slot] - queries;
  const auto norms = truth_.compare(s.dtype, layer.out().data() + first * stride, want, queries * stride);
  return std::sqrt(norms.difference / norms.want);
}

const void* DenseCheck::sequence(attention::Kind kind, const attention::LayerShape& shape, uint64_t seed, int64_t first,
                                 int64_t count, int heads, attention::DeviceArray<uint16_t>& to) {
  const auto size = static_cast<size_t>(count * heads * shape.head_dim);
  if (to.size() < size) to = attention::DeviceArray<uint16_t>(size);
  attention::make_sequence(shape.dtype, kind, seed, first, count, heads, shape.head_dim, to.data(), stream_);
  return to.data();
}

}  // namespace serve_loop
