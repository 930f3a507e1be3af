// fwdmeta_device_view_v1, and the functions of fwdmeta/device.cuh as plain C++ over the host backend. The view's fields
// and statuses are tested on both backends; device_view_device_test.cu has the functions in kernels.
#include "device_view.h"

#include <fwdmeta/fwdmeta.hpp>

namespace fwdmeta_test {
namespace {

// Of each array of the view, the field that it has to be.
struct ViewField {
  fwdmeta_field_t field;
  const void* data;
};
std::vector<ViewField> FieldsOf(const fwdmeta_device_view_v1_t& view) {
  const fwdmeta_device_mapping_v1_t* m = view.mappings;
  return {{FWDMETA_FIELD_DECODER_BATCH_IDS, m[FWDMETA_MAPPING_DECODER].batch_ids},
          {FWDMETA_FIELD_DECODER_TILE_IDS_PER_BATCH, m[FWDMETA_MAPPING_DECODER].tile_ids},
          {FWDMETA_FIELD_DECODER_NUM_BLOCKS_DEVICE, m[FWDMETA_MAPPING_DECODER].num_blocks},
          {FWDMETA_FIELD_DECODER_CU_TILES, m[FWDMETA_MAPPING_DECODER].cu_tiles},
          {FWDMETA_FIELD_ENCODER_BATCH_IDS, m[FWDMETA_MAPPING_ENCODER].batch_ids},
          {FWDMETA_FIELD_ENCODER_TILE_IDS_PER_BATCH, m[FWDMETA_MAPPING_ENCODER].tile_ids},
          {FWDMETA_FIELD_ENCODER_NUM_BLOCKS_X, m[FWDMETA_MAPPING_ENCODER].num_blocks},
          {FWDMETA_FIELD_ENCODER_CU_TILES, m[FWDMETA_MAPPING_ENCODER].cu_tiles},
          {FWDMETA_FIELD_KV_BATCH_IDS, m[FWDMETA_MAPPING_KV].batch_ids},
          {FWDMETA_FIELD_KV_TILE_IDS_PER_BATCH, m[FWDMETA_MAPPING_KV].tile_ids},
          {FWDMETA_FIELD_KV_NUM_BLOCKS_X, m[FWDMETA_MAPPING_KV].num_blocks},
          {FWDMETA_FIELD_KV_CU_TILES, m[FWDMETA_MAPPING_KV].cu_tiles},
          {FWDMETA_FIELD_PRE_CACHE_BATCH_IDS, m[FWDMETA_MAPPING_PRE_CACHE].batch_ids},
          {FWDMETA_FIELD_PRE_CACHE_TILE_IDS_PER_BATCH, m[FWDMETA_MAPPING_PRE_CACHE].tile_ids},
          {FWDMETA_FIELD_PRE_CACHE_NUM_BLOCKS, m[FWDMETA_MAPPING_PRE_CACHE].num_blocks},
          {FWDMETA_FIELD_PRE_CACHE_CU_TILES, m[FWDMETA_MAPPING_PRE_CACHE].cu_tiles},
          {FWDMETA_FIELD_DECODER_CHUNK_SIZE_DEVICE, view.decoder_chunk_size},
          {FWDMETA_FIELD_CU_SEQLENS_Q, view.cu_seqlens_q},
          {FWDMETA_FIELD_CU_SEQLENS_K, view.cu_seqlens_k},
          {FWDMETA_FIELD_SEQ_LENS_KV, view.seq_lens_kv},
          {FWDMETA_FIELD_SEQ_LENS_KV_LOCAL, view.seq_lens_kv_local},
          {FWDMETA_FIELD_BATCH_ID_PER_TOKEN, view.batch_id_per_token},
          {FWDMETA_FIELD_POSITION_IDS, view.position_ids},
          {FWDMETA_FIELD_MASK_ENCODER_BATCH, view.mask_encoder_batch},
          {FWDMETA_FIELD_IDS_REMOVE_PADDING, view.ids_remove_padding},
          {FWDMETA_FIELD_SLOT_MAPPING, view.slot_mapping},
          {FWDMETA_FIELD_CU_SEQLENS_Q_OUTPUT, view.cu_seqlens_q_output},
          {FWDMETA_FIELD_BATCH_ID_PER_TOKEN_OUTPUT, view.batch_id_per_token_output},
          {FWDMETA_FIELD_LOGITS_INDICES, view.logits_indices},
          {FWDMETA_FIELD_LAST_TOKEN_INDEX, view.last_token_index},
          {FWDMETA_FIELD_COUNTS, view.counts}};
}

fwdmeta_device_view_v1_t ViewOf(fwdmeta_meta_t meta) {
  fwdmeta_device_view_v1_t view = {};
  EXPECT_OK(fwdmeta_device_view_v1(meta, &view));
  return view;
}

void ExpectView(const Builder& builder) {
  const reference::Config& config = builder.config();
  const fwdmeta_device_view_v1_t view = ViewOf(builder.meta());
  for (const ViewField& of : FieldsOf(view)) {
    fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
    const fwdmeta_status_t status = fwdmeta_meta_get_field(builder.meta(), of.field, 0, &tensor);
    EXPECT_EQ(status == FWDMETA_NOT_FOUND ? nullptr : tensor.data, of.data) << fwdmeta_field_name(of.field);
  }
  const auto groups = static_cast<int32_t>(config.groups.size());
  EXPECT_EQ(groups, view.num_cache_groups);
  for (int32_t group = 0; group < groups && view.slot_mapping != nullptr; ++group) {
    fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
    EXPECT_OK(fwdmeta_meta_get_field(builder.meta(), FWDMETA_FIELD_SLOT_MAPPING, group, &tensor));
    EXPECT_EQ(tensor.data, fwdmeta::slot_mapping(view, group)) << "group " << group;
  }
  const int64_t block = config.groups[0].block_size;
  const int64_t tile_sizes[] = {config.mla ? 0 : config.decoder_block_shape_q, config.encoder_block_shape_q, block,
                                block};
  const reference::Capacities capacities = reference::GetCapacities(config);
  for (fwdmeta_mapping_t i = 0; i < FWDMETA_MAPPING_COUNT; ++i) {
    EXPECT_EQ(capacities.*kMappings[i].model_capacity, view.mappings[i].capacity) << kMappings[i].name;
    EXPECT_EQ(tile_sizes[i], view.mappings[i].tile_size) << kMappings[i].name;
  }
  EXPECT_EQ(config.max_batch_size, view.max_batch_size);
  EXPECT_EQ(config.max_num_tokens, view.max_num_tokens);
  EXPECT_EQ(config.num_q_heads / config.num_kv_heads, view.heads_per_kv_head);
}

class DeviceView : public BackendTest {};

TEST_P(DeviceView, HasTheFieldsAndTheConfiguration) {
  Random random(std::random_device{}());
  for (int i = 0; i < 60 && !HasFailure(); ++i) {
    reference::Config config = RandomConfig(random, 40);
    Builder builder(backend(), config);
    for (int step = 0; step < 3; ++step) {
      ASSERT_OK(builder.Build(RandomBatch(random, config)));
      ExpectView(builder);
    }
  }
}

TEST_P(DeviceView, OfEachSetIsItsOwnAndStaysWhereItIs) {
  reference::Config config;
  config.generations = 3;
  Builder builder(backend(), config);
  std::vector<fwdmeta_device_view_v1_t> first, again;
  for (auto* views : {&first, &again}) {
    for (int64_t set = 0; set < config.generations; ++set) {
      ASSERT_OK(builder.Build(MakeBatch({{0, 5, 1}}), FWDMETA_MEMORY_DEVICE, set));
      views->push_back(ViewOf(builder.meta()));
    }
  }
  for (size_t set = 0; set < first.size(); ++set) {
    EXPECT_EQ(first[set].counts, again[set].counts);
    EXPECT_NE(first[set].counts, first[(set + 1) % first.size()].counts);
  }
}

TEST_P(DeviceView, StatesWhatIsWrongAndWritesNothing) {
  Builder builder(backend(), reference::Config());
  ASSERT_OK(builder.Build(MakeBatch({{0, 5, 1}})));
  fwdmeta_device_view_v1_t view = {};
  view.max_batch_size = 77;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_device_view_v1(builder.meta(), nullptr));
  EXPECT_STREQ("out is null", fwdmeta_last_error());
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_device_view_v1(0, &view));
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_device_view_v1(builder.handle(), &view));
  fwdmeta_meta_t meta = 0;
  const fwdmeta_batch_t batch = FWDMETA_BATCH_INITIALIZER;
  ASSERT_OK(fwdmeta_build(builder.handle(), &batch, &meta, nullptr));
  ASSERT_OK(fwdmeta_meta_destroy(meta));
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_device_view_v1(meta, &view));
  EXPECT_EQ(77, view.max_batch_size);
}

INSTANTIATE_BACKENDS(DeviceView);

// Everything that the functions answer of one mapping, for x up to its capacity and some beyond.
void ExpectTiles(const Builder& builder, const reference::Batch& batch, const reference::Result& step) {
  const fwdmeta_device_view_v1_t view = ViewOf(builder.meta());
  for (fwdmeta_mapping_t i = 0; i < FWDMETA_MAPPING_COUNT && !::testing::Test::HasFailure(); ++i) {
    const int64_t entries = view.mappings[i].capacity + 3;
    const std::vector<Found> want = WantTiles(builder.config(), batch, step, i, entries);
    std::vector<Found> by_search, by_list;
    for (uint32_t x = 0; x < entries; ++x) {
      by_search.push_back(Describe(view, i, fwdmeta::tile_of_search(view, i, x)));
      if (view.mappings[i].batch_ids != nullptr) by_list.push_back(Describe(view, i, fwdmeta::tile_of(view, i, x)));
    }
    EXPECT_EQ(want, by_search) << kMappings[i].name << " by search";
    if (view.mappings[i].batch_ids != nullptr) {
      EXPECT_EQ(want, by_list) << kMappings[i].name << " by list";
    }
    EXPECT_EQ(step.counts.*kMappings[i].count, fwdmeta::num_tiles(view, i));
    for (const uint32_t x : {uint32_t{INT32_MAX}, UINT32_MAX}) {
      EXPECT_FALSE(fwdmeta::tile_of_search(view, i, x).valid);
      EXPECT_FALSE(view.mappings[i].batch_ids != nullptr && fwdmeta::tile_of(view, i, x).valid);
    }
  }
}

void RunRandomSteps(bool with_lists) {
  RunViewSteps(
      FWDMETA_BACKEND_HOST, 200,
      [with_lists](Random& random) {
        return RandomViewConfig(random, random.Pick<int64_t>({1, 2, 8, 33, 70}), with_lists);
      },
      ExpectTiles);
}

TEST(DeviceCode, FindsTheModelsTilesByListAndBySearch) { RunRandomSteps(true); }
TEST(DeviceCode, FindsThemWithoutTheLists) { RunRandomSteps(false); }

TEST(DeviceCode, FindsNothingInAnEmptyBatchAndInIdleSlots) {
  Builder builder(FWDMETA_BACKEND_HOST, reference::Config());
  for (const reference::Batch& batch : {MakeBatch({}), MakeBatch({{9, 4, 0}, {0, 7, 0}, {0, -3, 0}})}) {
    ASSERT_OK(builder.Build(batch));
    const fwdmeta_device_view_v1_t view = ViewOf(builder.meta());
    for (fwdmeta_mapping_t i = 0; i < FWDMETA_MAPPING_COUNT; ++i) {
      EXPECT_EQ(0, fwdmeta::num_tiles(view, i));
      for (uint32_t x = 0; x < 5; ++x) {
        EXPECT_FALSE(fwdmeta::tile_of(view, i, x).valid);
        EXPECT_FALSE(fwdmeta::tile_of_search(view, i, x).valid);
      }
    }
  }
}

// Before the first build too: creation fills the arrays.
TEST(DeviceCode, FindsNothingAfterAReset) {
  Builder builder(FWDMETA_BACKEND_HOST, reference::Config());
  ASSERT_OK(builder.Build(MakeBatch({{0, 5, 1}, {8, 0, 8}})));
  ASSERT_OK(fwdmeta_builder_reset(builder.handle(), nullptr));
  const fwdmeta_device_view_v1_t view = ViewOf(builder.meta());
  for (fwdmeta_mapping_t i = 0; i < FWDMETA_MAPPING_COUNT; ++i) {
    EXPECT_EQ(0, fwdmeta::num_tiles(view, i));
    EXPECT_FALSE(fwdmeta::tile_of(view, i, 0).valid);
    EXPECT_FALSE(fwdmeta::tile_of_search(view, i, 0).valid);
  }
}

TEST(DeviceCode, ThroughTheCppLayer) {
  fwdmeta::Config config;
  config.backend = FWDMETA_BACKEND_HOST;
  config.max_batch_size = 4, config.max_num_tokens = 64, config.max_model_len = 256;
  config.num_q_heads = 64, config.num_kv_heads = 8;
  fwdmeta::Builder builder(config);
  const int32_t encoder[] = {0, 7, 20, 0}, decoder[] = {10, 50, 118, 200}, this_time[] = {3, 0, 20, 1};
  fwdmeta::Batch batch;
  batch.batch_size = 4;
  batch.seq_lens_encoder = encoder, batch.seq_lens_decoder = decoder, batch.seq_lens_this_time = this_time;
  const fwdmeta::Meta meta = builder.build(batch);
  const fwdmeta_device_view_v1_t view = meta.device_view();
  // The picture of docs/mappings.md.
  const fwdmeta::Tile tile = fwdmeta::tile_of_search(view, FWDMETA_MAPPING_DECODER, 1);
  EXPECT_TRUE(tile.valid);
  EXPECT_EQ(0, tile.slot);
  EXPECT_EQ(1, tile.tile);
  const fwdmeta::Range rows =
      fwdmeta::query_rows(view, FWDMETA_MAPPING_DECODER, tile, fwdmeta::slot_of(view, tile.slot));
  EXPECT_EQ(16, rows.begin);
  EXPECT_EQ(24, rows.end);
  const fwdmeta::Tile page = fwdmeta::tile_of(view, FWDMETA_MAPPING_KV, 0);
  const fwdmeta::Range written = fwdmeta::positions(view, FWDMETA_MAPPING_KV, page, fwdmeta::slot_of(view, page.slot));
  EXPECT_EQ(118, written.begin);
  EXPECT_EQ(128, written.end);
  EXPECT_THROW(fwdmeta::Meta().device_view(), fwdmeta::Error);
}

}  // namespace
}  // namespace fwdmeta_test
