#include "random_batch.h"

#include <algorithm>

#include "fwdmeta.h"

namespace fwdmeta_test {
namespace {

int64_t Divisor(Random& random, int64_t of) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= of; ++d) {
    if (of % d == 0) divisors.push_back(d);
  }
  return divisors[static_cast<size_t>(random.Int(0, static_cast<int64_t>(divisors.size()) - 1))];
}

template <typename T>
reference::Rows<T> RandomRows(Random& random, int64_t slots, int64_t width, T low, T high) {
  reference::Rows<T> rows;
  rows.given = true;
  rows.width = width;
  rows.stride = width + (random.Chance(0.3) ? random.Int(0, 5) : 0);
  rows.data.resize(static_cast<size_t>(slots > 0 ? (slots - 1) * rows.stride + width : 0));
  for (T& value : rows.data) value = static_cast<T>(random.Int(low, high));
  if (random.Chance(0.4)) {
    for (int64_t b = 0; b < slots; ++b) {
      rows.lengths.push_back(static_cast<int32_t>(random.Chance(0.8) ? width : random.Int(0, width + 2)));
    }
  }
  return rows;
}

}  // namespace

reference::Config RandomConfig(Random& random, int64_t max_slots) {
  reference::Config c;
  c.max_batch_size = std::min(max_slots, random.Pick<int64_t>({1,  2,  3,  4,   5,   7,   8,   16,  31,   32,  33,
                                                               40, 64, 65, 100, 128, 200, 256, 300, 1000, 2000}));
  c.max_model_len = random.Pick<int64_t>({1, 2, 17, 64, 100, 129, 300, 512, 1000, 2049, 5000});
  c.max_num_tokens = random.Chance(0.15)
                         ? random.Int(1, 3)
                         : c.max_batch_size + random.Int(0, std::min<int64_t>(600, 4 * c.max_model_len));
  if (random.Chance(0.3)) c.max_num_kv_tokens = random.Int(1, c.max_batch_size * c.max_model_len);
  if (c.KvTokens() > 100000) c.max_num_kv_tokens = random.Int(20000, 100000);  // lists of a size to compare quickly
  c.num_kv_heads = random.Pick<int64_t>({1, 2, 4, 8});
  c.num_q_heads = c.num_kv_heads * random.Pick<int64_t>({1, 1, 2, 3, 4, 5, 7, 8, 8, 14, 16, 128});
  const int num_groups = static_cast<int>(random.Chance(0.7) ? 1 : random.Int(1, FWDMETA_MAX_CACHE_GROUPS));
  c.groups.clear();
  for (int g = 0; g < num_groups; ++g) {
    reference::Group group;
    group.block_size = random.Pick<int64_t>({1, 2, 3, 4, 16, 16, 24, 32, 48, 64, 64, 64, 100, 128, 256, 512});
    group.kernel_block_size = random.Chance(0.6) ? group.block_size : Divisor(random, group.block_size);
    group.replicated = random.Chance(num_groups > 1 ? 0.3 : 0.05);
    c.groups.push_back(group);
  }
  c.encoder_block_shape_q = random.Pick<int64_t>({1, 7, 16, 64, 64, 128});
  c.decoder_block_shape_q = random.Pick<int64_t>({1, 5, 16, 16, 32, 64});
  c.mla = random.Chance(0.35);
  if (c.mla && random.Chance(0.4)) c.mla_chunk_size = random.Pick<int64_t>({1, 17, 64, 128, 1024, 100000});
  c.num_sms = random.Pick<int64_t>({1, 2, 7, 16, 78, 108, 132, 148});
  if (!c.mla && random.Chance(0.3)) {
    c.cp_size = random.Int(2, 5);
    c.cp_rank = random.Int(0, c.cp_size - 1);
    int64_t common = 0;
    for (const auto& group : c.groups) {
      int64_t a = group.block_size;
      for (int64_t b = common; b != 0;) std::swap(a %= b, b);
      common = a;
    }
    c.cp_interleave = Divisor(random, common);
  }
  c.pad_token_id = random.Pick<int64_t>({0, 0, 1, 2, -1, 151643, INT32_MAX, INT32_MIN});
  c.pad_seq_len = random.Pick<int64_t>({0, 0, 1, -1, INT32_MAX});
  if (random.Chance(0.2)) {
    c.outputs = 0;
    for (int f = 0; f < FWDMETA_FIELD_COUNT; ++f) c.outputs |= uint64_t{random.Chance(0.6)} << f;
  }
  c.outputs |= reference::kAlwaysWritten;
  c.generations = random.Chance(0.7) ? 1 : random.Int(2, 4);
  c.depth = random.Int(2, 6);
  return c;
}

reference::Batch RandomBatch(Random& random, const reference::Config& config, int64_t slots) {
  reference::Batch batch;
  // What a batch is mostly made of: decodes, prompts, both, or idle slots.
  const double idle = random.Pick({0.0, 0.1, 0.5, 1.0, 0.1, 0.1});
  const double prefill = random.Pick({0.0, 0.1, 0.5, 1.0, 0.02, 0.3});
  const int64_t drafts = random.Pick<int64_t>({0, 0, 1, 3, 7});
  const double fresh = random.Pick({0.0, 0.3, 1.0});
  int64_t tokens = config.max_num_tokens, kv_tokens = config.KvTokens(), widest = 0, longest = 0;
  if (random.Chance(0.3)) tokens = random.Int(0, tokens);
  for (int64_t b = 0; b < slots; ++b) {
    int32_t e = 0, d = 0, n = 0;
    const int64_t most = std::min({config.max_model_len, tokens, kv_tokens});
    if (most > 0 && !random.Chance(idle)) {
      const bool is_prefill = random.Chance(prefill);
      const int64_t share = std::max<int64_t>(1, random.Chance(0.2) ? most : tokens / (slots - b) * 2);
      n = static_cast<int32_t>(
          is_prefill ? random.Int(1, std::min(most, share))
                     : random.Int(random.Chance(0.5) ? 1 : std::min(most, 1 + drafts), std::min(most, 1 + drafts)));
      if (is_prefill) e = n;
      const int64_t room = std::min(config.max_model_len, kv_tokens) - n;
      const int64_t wanted = random.Chance(0.2) ? room : std::min(room, kv_tokens / (slots - b));
      d = static_cast<int32_t>(random.Chance(fresh) ? 0 : random.Int(0, std::max<int64_t>(0, wanted)));
      tokens -= n;
      kv_tokens -= d + n;
      longest = std::max<int64_t>(longest, d + n);
    } else if (random.Chance(0.5)) {  // a stopped slot keeps stale values
      e = static_cast<int32_t>(random.Chance(0.5) ? 0 : random.Int(-3, config.max_model_len + 5));
      d = static_cast<int32_t>(random.Int(-3, config.max_model_len + 5));
    }
    widest = std::max<int64_t>(widest, n);
    batch.encoder.push_back(e);
    batch.decoder.push_back(d);
    batch.this_time.push_back(n);
  }
  int64_t sum = 0;
  for (int32_t n : batch.this_time) sum += n;
  batch.num_padded_tokens = random.Chance(0.5)   ? -1
                            : random.Chance(0.3) ? config.max_num_tokens
                                                 : random.Int(sum, config.max_num_tokens);

  if (random.Chance(0.6)) {
    const auto width = reference::GetCapacities(config).block_table_width;
    for (size_t g = 0; g < config.groups.size(); ++g) {
      batch.block_tables.emplace_back();
      if (random.Chance(0.08)) continue;  // this group's is not given
      // As wide as this batch needs, now and then too short. Wide enough for the longest is wide enough for all ranks.
      const int64_t needed = std::min(width[g], longest / config.groups[g].kernel_block_size + 1);
      const int64_t columns = random.Chance(0.75) ? needed : random.Int(0, needed);
      const int32_t high = random.Chance(0.2) ? INT32_MAX : 5000;
      batch.block_tables[g] = RandomRows<int32_t>(random, slots, columns, random.Chance(0.7) ? 0 : -high / 20, high);
    }
  }
  const auto id_rows = [&] {
    const int64_t columns = random.Chance(0.8) ? widest : random.Int(0, widest + 1);
    return RandomRows<int64_t>(random, slots, columns, random.Chance(0.9) ? 0 : INT64_MIN,
                               random.Chance(0.9) ? 200000 : INT64_MAX);
  };
  if (random.Chance(0.5)) batch.input_ids = id_rows();
  if (random.Chance(0.4)) batch.draft_tokens = id_rows();
  return batch;
}

void Spoil(Random& random, const reference::Config& config, reference::Batch* batch) {
  const int64_t slots = batch->size();
  const int64_t kind = slots == 0 ? 6 : random.Int(0, 8);
  const auto at = static_cast<size_t>(slots == 0 ? 0 : random.Int(0, slots - 1));
  const auto live = [&](size_t b) {
    if (batch->this_time[b] == 0) {
      batch->this_time[b] = 1;
      batch->encoder[b] = batch->decoder[b] = 0;
    }
  };
  switch (kind) {
    case 0:
      batch->this_time[at] = random.Pick<int32_t>({-1, -7, INT32_MIN});
      break;
    case 1:
      live(at);
      batch->encoder[at] = random.Pick<int32_t>({-1, INT32_MIN});
      break;
    case 2:
      live(at);
      batch->decoder[at] = random.Pick<int32_t>({-1, INT32_MIN});
      break;
    case 3:
      live(at);
      batch->encoder[at] = batch->this_time[at] + static_cast<int32_t>(random.Pick<int64_t>({1, 100}));
      break;
    case 4:
      live(at);
      batch->decoder[at] = static_cast<int32_t>(
          std::min<int64_t>(INT32_MAX, config.max_model_len + random.Pick<int64_t>({0, 1, 1000, INT32_MAX})));
      break;
    case 5:  // more tokens than fit, in slots that are right by themselves
      for (int64_t b = 0; b < slots; ++b) {
        batch->this_time[b] = static_cast<int32_t>(random.Int(1, config.max_model_len));
        batch->encoder[b] = random.Chance(0.5) ? batch->this_time[b] : 0;
        batch->decoder[b] = 0;
      }
      break;
    case 6: {  // T < sum of N, if there is one
      int64_t sum = 0;
      for (int32_t n : batch->this_time) sum += n;
      if (sum > 0) batch->num_padded_tokens = random.Int(0, sum - 1);
      break;
    }
    case 7:  // more keys than fit
      for (int64_t b = 0; b < slots; ++b) {
        batch->this_time[b] = 1;
        batch->encoder[b] = random.Chance(0.5) ? 1 : 0;
        batch->decoder[b] = static_cast<int32_t>(config.max_model_len - 1);
      }
      break;
    case 8:  // several at once
      for (int64_t b = 0; b < slots; ++b) {
        batch->encoder[b] = static_cast<int32_t>(random.Int(-2, 3));
        batch->decoder[b] = static_cast<int32_t>(random.Int(-2, config.max_model_len + 1));
        batch->this_time[b] = static_cast<int32_t>(random.Int(-1, 3));
      }
      break;
  }
}

}  // namespace fwdmeta_test
