// Consumers of the mappings as docs/attention.md writes them down, in plain C++ over the host backend: KV write by kv
// tiles and slots, attention by encoder tiles, decoder tiles and MLA chunks. Each new position is written once, each
// query row comes out once, and what comes out is dense attention of the sequence.
#include <algorithm>
#include <array>
#include <cmath>
#include <fwdmeta/fwdmeta.hpp>
#include <random>

#include "harness.h"

namespace fwdmeta_test {
namespace {

constexpr int kDim = 4, kKvHeads = 2, kPrefillRows = 8, kDecodeRows = 4;
constexpr int64_t kSlots = 9, kTokens = 200, kPositions = 160;
using Vector = std::array<double, kDim>;

double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (int i = 0; i < kDim; ++i) sum += a[i] * b[i];
  return sum;
}

// Softmax attention so far, which further keys and other parts can be added to.
struct Row {
  double sum = 0;
  Vector out{};
  void Add(const Vector& query, const Vector& key, const Vector& value) {
    const double weight = std::exp(Dot(query, key));
    sum += weight;
    for (int i = 0; i < kDim; ++i) out[i] += weight * value[i];
  }
  void Add(const Row& part) {
    sum += part.sum;
    for (int i = 0; i < kDim; ++i) out[i] += part.out[i];
  }
};

// Everything of one random step, and what its consumers write.
class Step {
 public:
  Step(std::mt19937_64* random, fwdmeta_attention_t kind)
      : random_(*random), page_size_(Pick({1, 3, 4, 16})), group_(Pick({1, 2, 3, 8})) {
    fwdmeta::Config config;
    config.backend = FWDMETA_BACKEND_HOST;
    config.max_batch_size = kSlots;
    config.max_num_tokens = kTokens;
    config.max_model_len = kPositions;
    config.num_q_heads = kKvHeads * group_;
    config.num_kv_heads = kKvHeads;
    config.block_size = page_size_;
    config.encoder_block_shape_q = kPrefillRows;
    config.decoder_block_shape_q = kDecodeRows;
    config.attention = kind;
    config.mla_chunk_size = kind == FWDMETA_ATTENTION_MLA ? Pick({0, 1, 7, 16, 64}) : 0;
    columns_ = fwdmeta::capacities(config).block_table_width[0];
    MakeBatch();
    MakeSequences();

    fwdmeta::Batch batch;
    batch.memory_kind = FWDMETA_MEMORY_HOST;
    batch.batch_size = static_cast<int64_t>(encoder_.size());
    batch.num_padded_tokens = std::min(num_tokens_ + Pick({0, 5}), kTokens);
    batch.seq_lens_encoder = encoder_.data();
    batch.seq_lens_decoder = decoder_.data();
    batch.seq_lens_this_time = this_time_.data();
    const fwdmeta_rows_t rows = {table_.data(), columns_, columns_, nullptr};
    batch.num_block_tables = 1;
    batch.block_tables = &rows;
    builder_ = fwdmeta::Builder(config);
    meta_ = builder_.build(batch);
    const fwdmeta::Counts counts = meta_.wait(-1, FWDMETA_WAIT_FINAL);
    EXPECT_EQ(0, counts.num_invalid_slots);
    chunk_ = counts.decoder_chunk_size;
    num_padded_tokens_ = counts.num_padded_tokens;
    cu_seqlens_q_ = Field(FWDMETA_FIELD_CU_SEQLENS_Q);
    seq_lens_kv_ = Field(FWDMETA_FIELD_SEQ_LENS_KV);
  }

  void WriteKv() {
    const auto slots = Field(FWDMETA_FIELD_KV_BATCH_IDS), tiles = Field(FWDMETA_FIELD_KV_TILE_IDS_PER_BATCH);
    for (size_t x = 0; x < slots.size(); ++x) {
      const int32_t b = slots[x];
      if (b < 0) continue;
      const int64_t column = Cached(b) / page_size_ + tiles[x], page_begin = column * page_size_;
      const int64_t begin = std::max(page_begin, Cached(b)), end = std::min(page_begin + page_size_, Length(b));
      EXPECT_LT(begin, end) << "a kv tile with nothing to write";
      for (int64_t p = begin; p < end; ++p) {
        Write(table_[b * columns_ + column] * page_size_ + p - page_begin, b, p, cu_seqlens_q_[b] + p - Cached(b));
      }
    }
    const auto batch_ids = Field(FWDMETA_FIELD_BATCH_ID_PER_TOKEN),
               is_prefill = Field(FWDMETA_FIELD_MASK_ENCODER_BATCH);
    const auto cache_slots = meta_.field<int64_t>(FWDMETA_FIELD_SLOT_MAPPING);
    const auto positions = meta_.field<int64_t>(FWDMETA_FIELD_POSITION_IDS);
    for (int64_t t = 0; t < num_padded_tokens_; ++t) {
      if (batch_ids[t] < 0 || is_prefill[t] != 0) continue;
      Write(cache_slots[t], batch_ids[t], positions[t], t);
    }
    for (int64_t t = 0; t < num_tokens_; ++t) EXPECT_EQ(1, written_[t]) << "writes of token " << t;
  }

  void AttendPrefill() {
    AttendRows(FWDMETA_FIELD_ENCODER_BATCH_IDS, FWDMETA_FIELD_ENCODER_TILE_IDS_PER_BATCH, kPrefillRows);
  }
  void AttendDecode() {
    AttendRows(FWDMETA_FIELD_DECODER_BATCH_IDS, FWDMETA_FIELD_DECODER_TILE_IDS_PER_BATCH, kDecodeRows);
  }

  void AttendDecodeByChunks() {
    const auto slots = Field(FWDMETA_FIELD_DECODER_BATCH_IDS), tiles = Field(FWDMETA_FIELD_DECODER_TILE_IDS_PER_BATCH),
               cu_tiles = Field(FWDMETA_FIELD_DECODER_CU_TILES);
    std::vector<std::vector<Row>> parts(slots.size());  // by tile, then by KV head and row
    for (size_t x = 0; x < slots.size(); ++x) {
      const int32_t b = slots[x];
      if (b < 0) continue;
      const int64_t begin = int64_t{tiles[x]} * chunk_, end = std::min<int64_t>(begin + chunk_, Length(b));
      EXPECT_LT(begin, end) << "a chunk without keys";
      for (int head = 0; head < kKvHeads; ++head) {
        for (int64_t row = 0; row < Rows(b); ++row) parts[x].push_back(Attend(b, head, row, begin, end));
      }
    }
    for (int32_t b = 0; b < static_cast<int32_t>(encoder_.size()); ++b) {
      if (cu_tiles[b + 1] == cu_tiles[b]) continue;
      for (int head = 0; head < kKvHeads; ++head) {
        for (int64_t row = 0; row < Rows(b); ++row) {
          Row sum;
          for (int32_t x = cu_tiles[b]; x < cu_tiles[b + 1]; ++x) sum.Add(parts[x][head * Rows(b) + row]);
          Store(b, head, row, sum);
        }
      }
    }
  }

  void ExpectDense() {
    for (size_t b = 0; b < encoder_.size(); ++b) {
      for (int64_t i = 0; i < this_time_[b]; ++i) {
        for (int head = 0; head < kKvHeads * group_; ++head) {
          const int64_t at = (first_token_[b] + i) * kKvHeads * group_ + head;
          ASSERT_EQ(1, stored_[at]) << "rows of slot " << b << ", token " << i << ", head " << head;
          Row want;
          for (int64_t p = 0; p <= decoder_[b] + i; ++p) {
            want.Add(q_[at], k_[b][p * kKvHeads + head / group_], v_[b][p * kKvHeads + head / group_]);
          }
          for (int d = 0; d < kDim; ++d) {
            ASSERT_NEAR(want.out[d] / want.sum, out_[at][d], 1e-9) << "slot " << b << ", token " << i;
          }
        }
      }
    }
  }

 private:
  int64_t Pick(std::initializer_list<int64_t> values) { return values.begin()[random_() % values.size()]; }

  void MakeBatch() {
    const int64_t slots = static_cast<int64_t>(random_() % kSlots) + 1;
    for (int64_t b = 0; b < slots; ++b) {
      int64_t tokens = Pick({0, 1, 1, 1, 2, 5, 8, 17, 40});
      tokens = std::min(tokens, kTokens - num_tokens_);
      const bool is_prefill = random_() % 2 == 0;
      encoder_.push_back(static_cast<int32_t>(is_prefill ? tokens : 0));
      decoder_.push_back(static_cast<int32_t>(Pick({0, 1, 3, 4, 15, 16, 63, 64, 100})));
      this_time_.push_back(static_cast<int32_t>(tokens));
      first_token_.push_back(num_tokens_);
      num_tokens_ += tokens;
      if (tokens == 0 && is_prefill) encoder_.back() = 9;  // a stale prompt
    }
  }

  // Keys and values of all positions, queries of the new tokens, and the cached positions in pages of any order.
  void MakeSequences() {
    std::normal_distribution<double> normal;
    const auto vector = [&] {
      Vector made;
      for (double& x : made) x = normal(random_);
      return made;
    };
    std::vector<int32_t> pages(kSlots * ((kPositions + page_size_ - 1) / page_size_));
    for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int32_t>(i);
    std::shuffle(pages.begin(), pages.end(), random_);
    Vector nan;
    nan.fill(std::nan(""));
    k_cache_.assign(pages.size() * page_size_ * kKvHeads, nan);
    v_cache_ = k_cache_;
    table_.assign(encoder_.size() * columns_, -1);
    k_.resize(encoder_.size());
    v_.resize(encoder_.size());
    for (size_t b = 0; b < encoder_.size(); ++b) {
      if (this_time_[b] == 0) continue;
      for (int64_t p = 0; p < decoder_[b] + this_time_[b]; ++p) {
        int32_t& page = table_[b * columns_ + p / page_size_];
        if (page < 0) page = pages.back(), pages.pop_back();
        for (int head = 0; head < kKvHeads; ++head) {
          k_[b].push_back(vector());
          v_[b].push_back(vector());
          if (p >= decoder_[b]) continue;
          k_cache_[(page * page_size_ + p % page_size_) * kKvHeads + head] = k_[b].back();
          v_cache_[(page * page_size_ + p % page_size_) * kKvHeads + head] = v_[b].back();
        }
      }
    }
    for (int64_t i = 0; i < num_tokens_ * kKvHeads * group_; ++i) q_.push_back(vector());
    out_.assign(q_.size(), nan);
    stored_.assign(q_.size(), 0);
    written_.assign(num_tokens_, 0);
  }

  std::vector<int32_t> Field(fwdmeta_field_t field) const {
    const auto values = meta_.field<int32_t>(field);
    return {values.begin(), values.end()};
  }
  int64_t Length(int32_t b) const { return seq_lens_kv_[b]; }
  int64_t Cached(int32_t b) const { return Length(b) - (cu_seqlens_q_[b + 1] - cu_seqlens_q_[b]); }
  int64_t Rows(int32_t b) const { return (cu_seqlens_q_[b + 1] - cu_seqlens_q_[b]) * group_; }

  // Position p of slot b, which is token t, to a slot of the cache.
  void Write(int64_t cache_slot, int32_t b, int64_t p, int64_t t) {
    EXPECT_EQ(first_token_[b] + p - decoder_[b], t);
    ++written_.at(t);
    for (int head = 0; head < kKvHeads; ++head) {
      k_cache_.at(cache_slot * kKvHeads + head) = k_[b].at(p * kKvHeads + head);
      v_cache_.at(cache_slot * kKvHeads + head) = v_[b].at(p * kKvHeads + head);
    }
  }

  int64_t QueryOf(int32_t b, int head, int64_t row) const {
    return (cu_seqlens_q_[b] + row / group_) * kKvHeads * group_ + head * group_ + row % group_;
  }
  Row Attend(int32_t b, int head, int64_t row, int64_t begin, int64_t end) const {
    Row sum;
    for (int64_t p = begin; p < std::min(end, Cached(b) + row / group_ + 1); ++p) {
      const int64_t at = (table_[b * columns_ + p / page_size_] * page_size_ + p % page_size_) * kKvHeads + head;
      sum.Add(q_.at(QueryOf(b, head, row)), k_cache_.at(at), v_cache_.at(at));
    }
    return sum;
  }
  void Store(int32_t b, int head, int64_t row, const Row& sum) {
    const int64_t at = QueryOf(b, head, row);
    ++stored_.at(at);
    for (int d = 0; d < kDim; ++d) out_[at][d] = sum.out[d] / sum.sum;
  }

  void AttendRows(fwdmeta_field_t batch_ids, fwdmeta_field_t tile_ids, int64_t rows_of_tile) {
    const auto slots = Field(batch_ids), tiles = Field(tile_ids);
    for (size_t x = 0; x < slots.size(); ++x) {
      const int32_t b = slots[x];
      if (b < 0) continue;
      const int64_t begin = tiles[x] * rows_of_tile, end = std::min(begin + rows_of_tile, Rows(b));
      EXPECT_LT(begin, end) << "a tile without rows";
      for (int head = 0; head < kKvHeads; ++head) {
        for (int64_t row = begin; row < end; ++row) Store(b, head, row, Attend(b, head, row, 0, Length(b)));
      }
    }
  }

  std::mt19937_64& random_;
  const int64_t page_size_, group_;
  int64_t columns_ = 0, num_tokens_ = 0, num_padded_tokens_ = 0, chunk_ = 0;
  std::vector<int32_t> encoder_, decoder_, this_time_, table_;
  std::vector<int64_t> first_token_;
  std::vector<std::vector<Vector>> k_, v_;  // by slot, [positions, KV heads]
  std::vector<Vector> q_, out_, k_cache_, v_cache_;
  std::vector<int> stored_, written_;
  fwdmeta::Builder builder_;
  fwdmeta::Meta meta_;
  std::vector<int32_t> cu_seqlens_q_, seq_lens_kv_;
};

void RunSteps(fwdmeta_attention_t kind) {
  const uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  for (int i = 0; i < 150 && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("step " + std::to_string(i) + " of seed " + std::to_string(seed));
    Step step(&random, kind);
    step.WriteKv();
    step.AttendPrefill();
    kind == FWDMETA_ATTENTION_MLA ? step.AttendDecodeByChunks() : step.AttendDecode();
    step.ExpectDense();
  }
}

TEST(MappingConsumers, OfTheAppendMappingsGiveDenseAttention) { RunSteps(FWDMETA_ATTENTION_APPEND); }
TEST(MappingConsumers, OfTheMlaMappingsGiveDenseAttention) { RunSteps(FWDMETA_ATTENTION_MLA); }

}  // namespace
}  // namespace fwdmeta_test
