// What the tests of the device view share: the answers of the functions of fwdmeta/device.cuh in plain integers, and
// what they should be by the model.
#ifndef FWDMETA_TESTS_DEVICE_VIEW_H_
#define FWDMETA_TESTS_DEVICE_VIEW_H_

#include <fwdmeta/device.cuh>

#include "harness.h"
#include "random_batch.h"

namespace fwdmeta_test {

// A tile as a kernel finds it, and what it consists of; the ranges are those of a valid tile, else 0.
struct Found {
  int32_t slot, tile, valid;
  int64_t first_row, end_row, first_position, end_position;
  bool operator==(const Found& other) const {
    return slot == other.slot && tile == other.tile && valid == other.valid && first_row == other.first_row &&
           end_row == other.end_row && first_position == other.first_position && end_position == other.end_position;
  }
};
inline std::ostream& operator<<(std::ostream& out, const Found& f) {
  return out << (f.valid ? "tile " : "no tile ") << f.tile << " of slot " << f.slot << ", rows " << f.first_row
             << " to " << f.end_row << ", positions " << f.first_position << " to " << f.end_position;
}

#if defined(__CUDACC__)
__host__ __device__
#endif
    inline Found
    Describe(const fwdmeta_device_view_v1_t& view, fwdmeta_mapping_t mapping, const fwdmeta::Tile& tile) {
  Found found = {tile.slot, tile.tile, tile.valid, 0, 0, 0, 0};
  if (!tile.valid) return found;
  const fwdmeta::Slot slot = fwdmeta::slot_of(view, tile.slot);
  if (mapping == FWDMETA_MAPPING_DECODER || mapping == FWDMETA_MAPPING_ENCODER) {
    const fwdmeta::Range rows = fwdmeta::query_rows(view, mapping, tile, slot);
    found.first_row = rows.begin;
    found.end_row = rows.end;
  }
  const fwdmeta::Range positions = fwdmeta::positions(view, mapping, tile, slot);
  found.first_position = positions.begin;
  found.end_position = positions.end;
  return found;
}

// The tiles of a mapping by the contract's §2, slot by slot, up to `entries`, the rest without a tile.
inline std::vector<Found> WantTiles(const reference::Config& config, const reference::Batch& batch,
                                    const reference::Result& step, fwdmeta_mapping_t mapping, int64_t entries) {
  std::vector<Found> want;
  const int64_t group = config.num_q_heads / config.num_kv_heads, block = config.groups[0].block_size;
  for (int64_t b = 0; b < batch.size() && step.counts.error == 0; ++b) {
    const int64_t e = batch.encoder[b], n = batch.this_time[b], d = batch.decoder[b];
    const bool decodes = n > 0 && e == 0, prefills = n > 0 && e > 0;
    const auto add = [&](Found found) {
      found.slot = static_cast<int32_t>(b);
      found.valid = 1;
      want.push_back(found);
    };
    int32_t tile = 0;
    if (mapping == FWDMETA_MAPPING_DECODER && config.mla && decodes) {
      const int64_t chunk = step.counts.decoder_chunk_size;
      for (int64_t p = 0; p < d + n; p += chunk) add({0, tile++, 0, 0, n * group, p, std::min(p + chunk, d + n)});
    } else if ((mapping == FWDMETA_MAPPING_DECODER && decodes) || (mapping == FWDMETA_MAPPING_ENCODER && prefills)) {
      const int64_t rows = decodes ? config.decoder_block_shape_q : config.encoder_block_shape_q;
      for (int64_t r = 0; r < n * group; r += rows) {
        const int64_t end = std::min(r + rows, n * group);
        add({0, tile++, 0, r, end, 0, d + (end - 1) / group + 1});
      }
    } else if (mapping == FWDMETA_MAPPING_KV && prefills) {
      for (int64_t page = d / block; page * block < d + n; ++page) {
        add({0, tile++, 0, 0, 0, std::max(page * block, d), std::min(page * block + block, d + n)});
      }
    } else if (mapping == FWDMETA_MAPPING_PRE_CACHE && prefills) {
      for (int64_t p = 0; p < d; p += block) add({0, tile++, 0, 0, 0, p, std::min(p + block, d)});
    }
  }
  EXPECT_EQ(step.counts.*kMappings[mapping].count, static_cast<int64_t>(want.size())) << kMappings[mapping].name;
  want.resize(static_cast<size_t>(entries), Found{-1, -1, 0, 0, 0, 0, 0});
  return want;
}

// Every list of the mappings.
constexpr uint64_t kListFields =
    uint64_t{1} << FWDMETA_FIELD_DECODER_BATCH_IDS | uint64_t{1} << FWDMETA_FIELD_DECODER_TILE_IDS_PER_BATCH |
    uint64_t{1} << FWDMETA_FIELD_ENCODER_BATCH_IDS | uint64_t{1} << FWDMETA_FIELD_ENCODER_TILE_IDS_PER_BATCH |
    uint64_t{1} << FWDMETA_FIELD_KV_BATCH_IDS | uint64_t{1} << FWDMETA_FIELD_KV_TILE_IDS_PER_BATCH |
    uint64_t{1} << FWDMETA_FIELD_PRE_CACHE_BATCH_IDS | uint64_t{1} << FWDMETA_FIELD_PRE_CACHE_TILE_IDS_PER_BATCH;

// A random configuration with all arrays, or without the lists.
inline reference::Config RandomViewConfig(Random& random, int64_t max_slots, bool with_lists) {
  reference::Config config = RandomConfig(random, max_slots);
  config.outputs = with_lists ? UINT64_MAX : ~kListFields;
  return config;
}

// Random steps of random builders, the last of each with errors. next(random): a configuration; check(builder, batch,
// the model's step).
template <class Next, class Check>
void RunViewSteps(fwdmeta_backend_t backend, int num_builders, Next next, Check check) {
  const uint64_t seed = std::random_device{}();
  Random random(seed);
  int64_t tiles = 0;
  for (int i = 0; i < num_builders; ++i) {
    const reference::Config config = next(random);
    Builder builder(backend, config);
    for (int n = 0; n < 4; ++n) {
      reference::Batch batch = RandomBatch(random, config);
      if (n == 3) Spoil(random, config, &batch);
      SCOPED_TRACE("step " + std::to_string(n) + " of " + std::to_string(i) + ", seed " + std::to_string(seed) + "\n" +
                   Describe(config, batch));
      const reference::Result step = reference::Build(config, batch);
      ASSERT_OK(builder.Build(batch));
      check(builder, batch, step);
      if (::testing::Test::HasFailure()) return;
      tiles += step.counts.decoder_num_blocks + step.counts.encoder_num_blocks;
    }
  }
  EXPECT_GT(tiles, 1000);
}

}  // namespace fwdmeta_test

#endif  // FWDMETA_TESTS_DEVICE_VIEW_H_
