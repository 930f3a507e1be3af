#include "pool.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "random_batch.h"
#include "scheduler.h"

namespace fwdmeta_soak {
namespace {

using fwdmeta::command::Request;
using fwdmeta::command::Scheduler;
using fwdmeta_test::Random;

constexpr int64_t kDraftColumns = 8;
constexpr int64_t kPoolBytes = 24 << 20;

int64_t Aligned(int64_t bytes) { return (bytes + 15) / 16 * 16; }

int32_t ElementSize(int field) {
  switch (field) {
    case FWDMETA_FIELD_IS_PADDING:
      return 1;
    case FWDMETA_FIELD_POSITION_IDS:
    case FWDMETA_FIELD_SLOT_MAPPING:
    case FWDMETA_FIELD_IDS_REMOVE_PADDING:
    case FWDMETA_FIELD_COUNTS_I64:
      return 8;
    default:
      return 4;
  }
}

// Where the inputs of a batch lie, one behind another.
struct InputPlaces {
  int64_t lengths[3], tables[FWDMETA_MAX_CACHE_GROUPS], table_lengths[FWDMETA_MAX_CACHE_GROUPS];
  int64_t table_width[FWDMETA_MAX_CACHE_GROUPS];
  int64_t ids, id_lengths, drafts, bytes;
};

InputPlaces PlaceInputs(const Case& of, int64_t slots) {
  InputPlaces places = {};
  const auto take = [&places](int64_t bytes) {
    const int64_t at = places.bytes;
    places.bytes = Aligned(at + bytes);
    return at;
  };
  for (int64_t& lengths : places.lengths) lengths = take(slots * 4);
  const std::vector<int64_t> widths = reference::GetCapacities(of.config).block_table_width;
  for (size_t g = 0; g < of.config.groups.size(); ++g) {
    places.table_width[g] = widths[g];
    places.tables[g] = take(slots * widths[g] * 4);
    places.table_lengths[g] = take(slots * 4);
  }
  places.ids = take(slots * of.id_columns * 8);
  places.id_lengths = take(slots * 4);
  places.drafts = take(slots * kDraftColumns * 8);
  return places;
}

template <typename T>
reference::Rows<T> FixedRows(int64_t slots, int64_t width) {
  reference::Rows<T> rows;
  rows.given = true;
  rows.width = rows.stride = width;
  rows.data.resize(static_cast<size_t>(slots * width));
  return rows;
}

// Steps of continuous batching over the trace, from the start again when it has ended.
class TraceSteps {
 public:
  TraceSteps(const Case& of, const Pool& pool, const std::vector<Request>& requests, uint64_t seed)
      : of_(of), pool_(pool), requests_(requests), seed_(seed) {
    const int64_t longest = of.config.max_model_len;
    for (Request& request : requests_) {
      request.prompt_tokens = std::clamp<int64_t>(request.prompt_tokens, 1, longest);
      request.output_tokens = std::clamp<int64_t>(request.output_tokens, 1, longest - request.prompt_tokens + 1);
    }
  }

  // The lengths of a step some way on, and the table of the first group where the scheduler's pages are kernel pages.
  void Next(Random& random, reference::Batch* batch) {
    for (int64_t skip = random.Int(1, 5); skip > 0; --skip) {
      if (scheduler_ != nullptr) scheduler_->advance();
      if (scheduler_ == nullptr || !scheduler_->plan()) Restart();
    }
    batch->encoder = scheduler_->seq_lens_encoder();
    batch->decoder = scheduler_->seq_lens_decoder();
    batch->this_time = scheduler_->seq_lens_this_time();
    const reference::Group& group = of_.config.groups[0];
    if (of_.config.cp_size == 1 && group.kernel_block_size == group.block_size) {
      batch->block_tables[0].data = scheduler_->block_table();
    }
  }

 private:
  void Restart() {
    const reference::Config& config = of_.config;
    const int64_t block = config.groups[0].block_size;
    fwdmeta::command::SchedulerLimits limits;
    limits.slots = pool_.slots;
    limits.token_budget = pool_.tokens;
    limits.chunk = std::min<int64_t>(pool_.tokens, 64);
    limits.block_size = block;
    limits.pool_blocks = config.KvTokens() / block;
    limits.table_width = (config.max_model_len + block - 1) / block;
    limits.draft_tokens = static_cast<int64_t>(seed_ % 4);
    scheduler_ = std::make_unique<Scheduler>(requests_, limits, seed_++);
    scheduler_->plan();
  }

  const Case& of_;
  const Pool& pool_;
  std::vector<Request> requests_;
  uint64_t seed_;
  std::unique_ptr<Scheduler> scheduler_;
};

// Random rows at the widths that all batches of the pool have: ragged, with holes, now and then.
void FillRows(Random& random, const Case& of, const InputPlaces& places, int64_t slots, reference::Batch* batch) {
  batch->block_tables.clear();
  const double holes = random.Chance(0.2) ? 0.01 : 0;
  const bool ragged = random.Chance(0.2);
  for (size_t g = 0; g < of.config.groups.size(); ++g) {
    reference::Rows<int32_t> table = FixedRows<int32_t>(slots, places.table_width[g]);
    for (int32_t& page : table.data) page = random.Chance(holes) ? -1 : static_cast<int32_t>(random.Int(0, 100000));
    for (int64_t b = 0; b < slots; ++b) {
      table.lengths.push_back(static_cast<int32_t>(ragged ? random.Int(0, table.width + 2) : table.width));
    }
    batch->block_tables.push_back(std::move(table));
  }
  batch->input_ids = FixedRows<int64_t>(slots, of.id_columns);
  for (int64_t& id : batch->input_ids.data) id = random.Int(0, 200000);
  for (int64_t b = 0; b < slots; ++b) {
    batch->input_ids.lengths.push_back(static_cast<int32_t>(random.Chance(0.95) ? of.id_columns : random.Int(0, 4)));
  }
  batch->draft_tokens = FixedRows<int64_t>(slots, kDraftColumns);
  for (int64_t& id : batch->draft_tokens.data) id = random.Int(0, 200000);
}

void StoreInputs(const reference::Batch& batch, const InputPlaces& places, char* to) {
  const auto store = [to](int64_t at, const auto& values) {
    std::memcpy(to + at, values.data(), values.size() * sizeof(values[0]));
  };
  store(places.lengths[0], batch.encoder);
  store(places.lengths[1], batch.decoder);
  store(places.lengths[2], batch.this_time);
  for (size_t g = 0; g < batch.block_tables.size(); ++g) {
    store(places.tables[g], batch.block_tables[g].data);
    store(places.table_lengths[g], batch.block_tables[g].lengths);
  }
  store(places.ids, batch.input_ids.data);
  store(places.id_lengths, batch.input_ids.lengths);
  store(places.drafts, batch.draft_tokens.data);
}

void StoreArrays(const reference::Result& result, const std::vector<ArrayPlace>& places, char* to) {
  for (const ArrayPlace& place : places) {
    const int64_t* from = result.fields[place.field].data() + place.group * place.count;
    char* at = to + place.offset;
    for (int64_t i = 0; i < place.count; ++i) {
      const auto store = [&](auto value) { std::memcpy(at + i * place.element_size, &value, sizeof value); };
      if (place.element_size == 1) store(static_cast<uint8_t>(from[i]));
      if (place.element_size == 4) store(static_cast<int32_t>(from[i]));
      if (place.element_size == 8) store(from[i]);
    }
  }
}

void PlaceArrays(Case* of, int64_t* bytes) {
  const reference::Result shape = reference::Padding(of->config);
  for (int field = 0; field < FWDMETA_FIELD_COUNT; ++field) {
    const int32_t copies = field == FWDMETA_FIELD_SLOT_MAPPING ? static_cast<int32_t>(of->config.groups.size()) : 1;
    for (int32_t group = 0; group < copies && shape.present[field]; ++group) {
      const int64_t count = static_cast<int64_t>(shape.fields[field].size()) / copies;
      of->places.push_back({field, group, ElementSize(field), *bytes, count});
      *bytes = Aligned(*bytes + count * ElementSize(field));
    }
  }
}

void FillPool(const Case& of, uint64_t seed, int64_t most_batches, const std::vector<Request>& requests, Pool* pool) {
  const InputPlaces places = PlaceInputs(of, pool->slots);
  pool->input_bytes = places.bytes;
  pool->num_batches =
      std::min(most_batches, std::max<int64_t>(16, kPoolBytes / (pool->input_bytes + pool->array_bytes)));
  pool->inputs.resize(static_cast<size_t>(pool->num_batches * pool->input_bytes));
  pool->arrays.resize(static_cast<size_t>(pool->num_batches * pool->array_bytes));
  Random random(seed);
  TraceSteps trace(of, *pool, requests, seed);
  reference::Config of_shape = of.config;  // so that the random tokens fit T
  of_shape.max_num_tokens = pool->tokens;
  for (int64_t i = 0; i < pool->num_batches; ++i) {
    reference::Batch batch = fwdmeta_test::RandomBatch(random, of_shape, pool->slots);
    FillRows(random, of, places, pool->slots, &batch);
    if (!requests.empty() && i % 2 == 1) trace.Next(random, &batch);
    if (random.Chance(0.03)) fwdmeta_test::Spoil(random, of_shape, &batch);
    batch.num_padded_tokens = pool->tokens;
    reference::Result result = reference::Build(of.config, batch);
    StoreInputs(batch, places, pool->inputs.data() + i * pool->input_bytes);
    StoreArrays(result, of.places, pool->arrays.data() + i * pool->array_bytes);
    result.counts.is_final = 1;
    pool->counts.push_back(result.counts);
    pool->statuses.push_back(result.status());
  }
}

void SetBounds(int64_t slots, int64_t tokens, int64_t model_len, Case* of) {
  reference::Config& config = of->config;
  config.max_batch_size = slots;
  config.max_num_tokens = tokens;
  config.max_model_len = model_len;
  config.num_q_heads = 32;
  config.num_kv_heads = 4;
  config.generations = 3;
  config.depth = 8;
}

}  // namespace

std::vector<Case> MakeCases(uint64_t seed, int64_t most_batches, const std::vector<Request>& requests) {
  std::vector<Case> cases(4);
  cases[0].name = "append, two cache groups";
  SetBounds(64, 256, 2048, &cases[0]);
  cases[0].config.groups = {{64, 64, false}, {128, 32, false}};
  cases[0].config.pad_token_id = 2;
  cases[0].config.pad_seq_len = 1;
  cases[1].name = "mla";
  SetBounds(64, 256, 2048, &cases[1]);
  cases[1].config.mla = true;
  cases[1].config.num_q_heads = 128;
  cases[1].config.num_kv_heads = 1;
  cases[2].name = "context parallel, rank 1 of 4";
  SetBounds(300, 512, 1024, &cases[2]);
  cases[2].config.groups = {{64, 64, false}, {64, 64, true}};
  cases[2].config.cp_size = 4;
  cases[2].config.cp_rank = 1;
  cases[2].config.cp_interleave = 16;
  cases[2].config.max_num_kv_tokens = 1 << 17;
  cases[3].name = "past one launch";
  SetBounds(5000, 6000, 512, &cases[3]);
  cases[3].config.max_num_kv_tokens = 300 * 512;
  const std::vector<std::pair<int64_t, int64_t>> shapes[] = {{{64, 256}, {64, 64}, {16, 32}, {1, 64}},
                                                             {{64, 256}, {40, 64}, {1, 8}},
                                                             {{300, 512}, {33, 64}},
                                                             {{5000, 6000}, {4097, 5000}, {100, 200}}};
  const int64_t id_columns[] = {64, 64, 16, 4};
  for (size_t c = 0; c < cases.size(); ++c) {
    Case& made = cases[c];
    made.id_columns = id_columns[c];
    int64_t array_bytes = 0;
    PlaceArrays(&made, &array_bytes);
    for (const auto& shape : shapes[c]) {
      Pool pool;
      pool.slots = shape.first;
      pool.tokens = shape.second;
      pool.array_bytes = array_bytes;
      FillPool(made, ++seed, most_batches, requests, &pool);
      made.pools.push_back(std::move(pool));
    }
  }
  return cases;
}

void Point(const Case& of, const Pool& pool, const char* inputs, BatchArgs* out) {
  const InputPlaces places = PlaceInputs(of, pool.slots);
  const auto at = [inputs](int64_t offset) { return reinterpret_cast<const int32_t*>(inputs + offset); };
  fwdmeta_batch_t batch = FWDMETA_BATCH_INITIALIZER;
  batch.batch_size = pool.slots;
  batch.num_padded_tokens = pool.tokens;
  batch.seq_lens_encoder = at(places.lengths[0]);
  batch.seq_lens_decoder = at(places.lengths[1]);
  batch.seq_lens_this_time = at(places.lengths[2]);
  for (size_t g = 0; g < of.config.groups.size(); ++g) {
    const int64_t width = places.table_width[g];
    out->tables[g] = {at(places.tables[g]), width, width, at(places.table_lengths[g])};
  }
  batch.num_block_tables = static_cast<int64_t>(of.config.groups.size());
  batch.block_tables = out->tables;
  batch.input_ids = {at(places.ids), of.id_columns, of.id_columns, at(places.id_lengths)};
  batch.draft_tokens = {at(places.drafts), kDraftColumns, kDraftColumns, nullptr};
  out->batch = batch;
}

}  // namespace fwdmeta_soak
