// The view of a step, the mirror, sets of arrays, advance, memory and the log (contract §5 and §6).
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "harness.h"
#include "random_batch.h"

namespace fwdmeta_test {
namespace {

reference::Config SmallConfig() {
  reference::Config config;
  config.max_batch_size = 8;
  config.max_num_tokens = 64;
  config.max_model_len = 256;
  return config;
}

// A batch whose arrays differ from those of any other `k`.
reference::Batch Numbered(int32_t k) {
  reference::Batch batch = MakeBatch({{0, 10 + k, 1 + k % 3}, {3 + k, k, 3 + k}});
  batch.input_ids = reference::Rows<int64_t>::Of(std::vector<std::vector<int64_t>>(2, std::vector<int64_t>(3 + k, k)));
  return batch;
}

class Meta : public BackendTest {
 protected:
  int64_t Attr(fwdmeta_meta_t meta, fwdmeta_attr_t attr) {
    int64_t value = -99;
    EXPECT_OK(fwdmeta_meta_get_attr(meta, attr, &value)) << attr;
    return value;
  }
};

// ---- fields

TEST(Fields, NamesAreTheContracts) {
  const char* names[] = {"decoder_batch_ids",
                         "decoder_tile_ids_per_batch",
                         "decoder_num_blocks_device",
                         "decoder_num_blocks_cpu",
                         "decoder_cu_tiles",
                         "encoder_batch_ids",
                         "encoder_tile_ids_per_batch",
                         "encoder_num_blocks_x",
                         "encoder_num_blocks_x_cpu",
                         "encoder_cu_tiles",
                         "kv_batch_ids",
                         "kv_tile_ids_per_batch",
                         "kv_num_blocks_x",
                         "kv_num_blocks_x_cpu",
                         "kv_cu_tiles",
                         "pre_cache_batch_ids",
                         "pre_cache_tile_ids_per_batch",
                         "pre_cache_num_blocks",
                         "pre_cache_num_blocks_cpu",
                         "pre_cache_cu_tiles",
                         "decoder_chunk_size_device",
                         "cu_seqlens_q",
                         "cu_seqlens_k",
                         "attn_cu_seqlens_k",
                         "seq_lens_kv",
                         "seq_lens_kv_local",
                         "batch_id_per_token",
                         "position_ids",
                         "slot_mapping",
                         "is_padding",
                         "mask_encoder_batch",
                         "ids_remove_padding",
                         "seq_lens_output",
                         "cu_seqlens_q_output",
                         "batch_id_per_token_output",
                         "logits_indices",
                         "last_token_index",
                         "max_len_tensor",
                         "max_len_tensor_cpu",
                         "counts",
                         "counts_i64"};
  static_assert(sizeof(names) / sizeof(names[0]) == FWDMETA_FIELD_COUNT, "one name a field");
  for (int f = 0; f < FWDMETA_FIELD_COUNT; ++f) EXPECT_STREQ(names[f], fwdmeta_field_name(f));
  for (int f : {-1, static_cast<int>(FWDMETA_FIELD_COUNT), INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(nullptr, fwdmeta_field_name(f));
  }
}

TEST_P(Meta, FieldsByNameAndByNumber) {
  reference::Config config = SmallConfig();
  config.groups = {{64, 64, false}, {32, 16, true}, {64, 64, false}};
  Builder builder(backend(), config);
  ASSERT_TRUE(builder.Run(Numbered(1)));
  fwdmeta_tensor_t a = FWDMETA_TENSOR_INITIALIZER, b = FWDMETA_TENSOR_INITIALIZER;
  for (int f = 0; f < FWDMETA_FIELD_COUNT; ++f) {
    const fwdmeta_status_t want = f == FWDMETA_FIELD_SEQ_LENS_KV_LOCAL ? FWDMETA_NOT_FOUND : FWDMETA_OK;
    EXPECT_STATUS(want, fwdmeta_meta_get(builder.meta(), fwdmeta_field_name(f), &a)) << fwdmeta_field_name(f);
    EXPECT_STATUS(want, fwdmeta_meta_get_field(builder.meta(), f, 0, &b));
    EXPECT_EQ(0, std::memcmp(&a, &b, sizeof a)) << fwdmeta_field_name(f);
    if (f != FWDMETA_FIELD_SLOT_MAPPING) {
      EXPECT_STATUS(FWDMETA_NOT_FOUND, fwdmeta_meta_get_field(builder.meta(), f, 1, &b));
    }
  }
  std::set<void*> mappings;
  for (int32_t g = 0; g < 3; ++g) {
    EXPECT_OK(fwdmeta_meta_get(builder.meta(), ("slot_mapping[" + std::to_string(g) + "]").c_str(), &a));
    EXPECT_OK(fwdmeta_meta_get_field(builder.meta(), FWDMETA_FIELD_SLOT_MAPPING, g, &b));
    EXPECT_EQ(a.data, b.data);
    mappings.insert(a.data);
  }
  EXPECT_EQ(3u, mappings.size());
  for (const char* name : {"slot_mapping[3]", "slot_mapping[-1]", "slot_mapping[]", "slot_mapping[0",
                           "slot_mapping[00]", "slot_mapping[0]x", "counts[0]", "no_such", "Counts", "position_ids "}) {
    EXPECT_STATUS(FWDMETA_NOT_FOUND, fwdmeta_meta_get(builder.meta(), name, &a)) << name;
  }
  for (int f : {-1, static_cast<int>(FWDMETA_FIELD_COUNT), 1000}) {
    EXPECT_STATUS(FWDMETA_OUT_OF_RANGE, fwdmeta_meta_get_field(builder.meta(), f, 0, &a));
  }
  for (int32_t group : {3, -1}) {
    EXPECT_STATUS(FWDMETA_NOT_FOUND, fwdmeta_meta_get_field(builder.meta(), FWDMETA_FIELD_SLOT_MAPPING, group, &a));
  }
}

TEST_P(Meta, OnlyWantedArraysAreBuilt) {
  for (int f = 0; f < FWDMETA_FIELD_COUNT; ++f) {
    reference::Config config = SmallConfig();
    config.cp_size = 2;
    config.outputs = uint64_t{1} << f;
    // Counts, maxima, the chunk and block counts are written always.
    for (int always : {2, 3, 7, 8, 12, 13, 17, 18, 20, 37, 38, 39, 40}) config.outputs |= uint64_t{1} << always;
    Builder builder(backend(), config);
    ASSERT_TRUE(builder.Run(Numbered(1))) << fwdmeta_field_name(f);
  }
  reference::Config config = SmallConfig();
  std::vector<fwdmeta_group_config_t> groups;
  fwdmeta_config_t c = ToC(config, backend(), &groups);
  c.outputs = 0;
  fwdmeta_builder_t builder = 0;
  ASSERT_OK(fwdmeta_builder_create(&c, &builder));
  fwdmeta_batch_t batch = FWDMETA_BATCH_INITIALIZER;
  fwdmeta_meta_t meta = 0;
  ASSERT_OK(fwdmeta_build(builder, &batch, &meta, nullptr));
  fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
  for (int always : {2, 3, 7, 8, 12, 13, 17, 18, 20, 37, 38, 39, 40}) {
    EXPECT_OK(fwdmeta_meta_get_field(meta, always, 0, &tensor)) << fwdmeta_field_name(always);
  }
  EXPECT_STATUS(FWDMETA_NOT_FOUND, fwdmeta_meta_get_field(meta, FWDMETA_FIELD_POSITION_IDS, 0, &tensor));
  EXPECT_OK(fwdmeta_meta_destroy(meta));
  EXPECT_OK(fwdmeta_builder_destroy(builder));
}

// ---- flags

TEST_P(Meta, DerivedFlags) {
  Builder builder(backend(), SmallConfig());
  const struct {
    reference::Batch batch;
    int64_t mode, exist_prefill, real_bsz, zero_size;
  } cases[] = {{MakeBatch({{5, 0, 5}, {0, 9, 0}, {1, 7, 1}}), FWDMETA_FORWARD_EXTEND, 1, 2, 0},
               {MakeBatch({{0, 5, 1}, {9, 9, 0}, {0, 7, 4}}), FWDMETA_FORWARD_DECODE, 0, 2, 0},
               {MakeBatch({{0, 5, 1}, {4, 0, 4}}), FWDMETA_FORWARD_MIXED, 1, 2, 0},
               {MakeBatch({{3, 5, 0}}), FWDMETA_FORWARD_MIXED, 0, 0, 1},
               {MakeBatch({}), FWDMETA_FORWARD_MIXED, 0, 0, 1},
               {MakeBatch({{3, 5, 0}}, 8), FWDMETA_FORWARD_MIXED, 0, 0, 0}};
  for (const auto& c : cases) {
    for (const auto kind : {FWDMETA_MEMORY_DEVICE, FWDMETA_MEMORY_HOST}) {
      ASSERT_TRUE(builder.Run(c.batch, kind));
      EXPECT_EQ(c.mode, Attr(builder.meta(), FWDMETA_ATTR_FORWARD_MODE));
      EXPECT_EQ(c.exist_prefill, Attr(builder.meta(), FWDMETA_ATTR_EXIST_PREFILL));
      EXPECT_EQ(c.real_bsz, Attr(builder.meta(), FWDMETA_ATTR_REAL_BSZ));
      EXPECT_EQ(c.zero_size, Attr(builder.meta(), FWDMETA_ATTR_IS_ZERO_SIZE));
      EXPECT_EQ(builder.step(), Attr(builder.meta(), FWDMETA_ATTR_STEP));
      EXPECT_EQ(0, Attr(builder.meta(), FWDMETA_ATTR_GENERATION));
    }
  }
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 0, -1}})));
  int64_t value = 0;
  for (int attr = FWDMETA_ATTR_FORWARD_MODE; attr <= FWDMETA_ATTR_IS_ZERO_SIZE; ++attr) {
    EXPECT_STATUS(FWDMETA_INVALID_BATCH, fwdmeta_meta_get_attr(builder.meta(), attr, &value)) << attr;
  }
}

TEST_P(Meta, TheEnginesFlags) {
  Builder builder(backend(), SmallConfig());
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 5, 1}})));
  const fwdmeta_meta_t meta = builder.meta();
  const struct {
    fwdmeta_attr_t attr;
    int64_t start;
    std::vector<int64_t> good, bad;
  } attrs[] = {
      {FWDMETA_ATTR_STEP_USE_CUDAGRAPH, 0, {1, 0}, {2, -1}},
      {FWDMETA_ATTR_ROPE_ALREADY_APPLIED, 0, {1, 0}, {2, -1}},
      {FWDMETA_ATTR_IS_DUMMY_OR_PROFILE_RUN, 0, {1, 0}, {2, INT64_MIN}},
      {FWDMETA_ATTR_PRE_CACHES_LENGTH, 0, {1, INT64_MAX, 0}, {-1}},
      {FWDMETA_ATTR_MOE_NUM_CHUNK, 1, {2, INT32_MAX, 1}, {0, -1}},
      {FWDMETA_ATTR_MAX_MOE_NUM_CHUNK, 1, {7, 1}, {0, -1}},
  };
  for (const auto& a : attrs) {
    EXPECT_EQ(a.start, Attr(meta, a.attr)) << a.attr;
    for (int64_t value : a.good) {
      EXPECT_OK(fwdmeta_meta_set_attr(meta, a.attr, value)) << a.attr;
      EXPECT_EQ(value, Attr(meta, a.attr)) << a.attr;
      for (int64_t bad : a.bad) EXPECT_STATUS(FWDMETA_OUT_OF_RANGE, fwdmeta_meta_set_attr(meta, a.attr, bad)) << a.attr;
      EXPECT_EQ(value, Attr(meta, a.attr)) << a.attr;
    }
  }
  for (int attr = FWDMETA_ATTR_EXIST_PREFILL; attr <= FWDMETA_ATTR_GENERATION; ++attr) {
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_meta_set_attr(meta, attr, 1)) << attr;
  }
  int64_t value = 0;
  for (int attr : {-1, static_cast<int>(FWDMETA_ATTR_COUNT), 100}) {
    EXPECT_STATUS(FWDMETA_NOT_FOUND, fwdmeta_meta_get_attr(meta, attr, &value));
    EXPECT_STATUS(FWDMETA_NOT_FOUND, fwdmeta_meta_set_attr(meta, attr, 1));
  }
  EXPECT_OK(fwdmeta_meta_set_attr(meta, FWDMETA_ATTR_FORWARD_MODE, FWDMETA_FORWARD_NATIVE));
  EXPECT_EQ(FWDMETA_FORWARD_NATIVE, Attr(meta, FWDMETA_ATTR_FORWARD_MODE));
  for (int64_t bad : {1, 2, 3, 5, -1}) {  // the derived modes cannot be set, others there are none
    EXPECT_STATUS(FWDMETA_OUT_OF_RANGE, fwdmeta_meta_set_attr(meta, FWDMETA_ATTR_FORWARD_MODE, bad)) << bad;
  }
  EXPECT_OK(fwdmeta_meta_set_attr(meta, FWDMETA_ATTR_FORWARD_MODE, 0));
  EXPECT_EQ(FWDMETA_FORWARD_DECODE, Attr(meta, FWDMETA_ATTR_FORWARD_MODE));
  // A new step begins with the defaults.
  EXPECT_OK(fwdmeta_meta_set_attr(meta, FWDMETA_ATTR_MOE_NUM_CHUNK, 9));
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 5, 1}})));
  EXPECT_EQ(1, Attr(builder.meta(), FWDMETA_ATTR_MOE_NUM_CHUNK));
}

TEST_P(Meta, AttentionBackend) {
  Builder builder(backend(), SmallConfig());
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 5, 1}})));
  const char* name = nullptr;
  void* pointer = nullptr;
  int object = 0;
  EXPECT_STATUS(FWDMETA_NOT_SET, fwdmeta_meta_get_attn_backend(builder.meta(), &name, &pointer));
  std::string given = "append_attention";
  EXPECT_OK(fwdmeta_meta_set_attn_backend(builder.meta(), given.c_str(), &object));
  given.assign(given.size(), 'x');  // it was copied
  EXPECT_OK(fwdmeta_meta_get_attn_backend(builder.meta(), &name, &pointer));
  EXPECT_STREQ("append_attention", name);
  EXPECT_EQ(&object, pointer);
  EXPECT_OK(fwdmeta_meta_set_attn_backend(builder.meta(), std::string(63, 'n').c_str(), nullptr));
  EXPECT_OK(fwdmeta_meta_get_attn_backend(builder.meta(), &name, &pointer));
  EXPECT_EQ(std::string(63, 'n'), name);
  EXPECT_EQ(nullptr, pointer);
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT,
                fwdmeta_meta_set_attn_backend(builder.meta(), std::string(64, 'n').c_str(), nullptr));
}

// ---- tensors by name

fwdmeta_tensor_t HostTensor(void* data, std::vector<int64_t> shape) {
  fwdmeta_tensor_t t = FWDMETA_TENSOR_INITIALIZER;
  t.data = data;
  t.memory_kind = FWDMETA_MEMORY_HOST;
  t.ndim = static_cast<int32_t>(shape.size());
  int64_t stride = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    t.shape[i] = shape[static_cast<size_t>(i)];
    t.strides[i] = stride;
    stride *= t.shape[i];
  }
  return t;
}

TEST_P(Meta, TensorsByName) {
  Builder builder(backend(), SmallConfig());
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 5, 1}})));
  const fwdmeta_builder_t b = builder.handle();
  const fwdmeta_meta_t m = builder.meta();
  int32_t one[6] = {1, 2, 3, 4, 5, 6}, two[6] = {};
  fwdmeta_tensor_t a = HostTensor(one, {2, 3}), c = HostTensor(two, {6}), got = FWDMETA_TENSOR_INITIALIZER;
  const std::string longest(63, 'n');
  for (const char* name : {"rotary_embs", "attn_mask", "attn_mask_offsets", "block_tables", "caches[3]", "caches[12]",
                           "routing_replay_table", "x", longest.c_str()}) {
    EXPECT_STATUS(FWDMETA_NOT_FOUND, fwdmeta_meta_get(m, name, &got)) << name;
    EXPECT_OK(fwdmeta_builder_set_tensor(b, name, &a)) << name;
    EXPECT_OK(fwdmeta_meta_get(m, name, &got)) << name;
    EXPECT_EQ(0, std::memcmp(&a, &got, sizeof a)) << name;
    EXPECT_EQ(one, got.data) << "not copied";
    EXPECT_OK(fwdmeta_meta_set_tensor(m, name, &c));  // the meta's own comes first
    EXPECT_OK(fwdmeta_meta_get(m, name, &got));
    EXPECT_EQ(two, got.data);
    EXPECT_OK(fwdmeta_meta_set_tensor(m, name, nullptr));
    EXPECT_OK(fwdmeta_meta_get(m, name, &got));
    EXPECT_EQ(one, got.data);
    EXPECT_OK(fwdmeta_builder_set_tensor(b, name, &c));  // a later one replaces the former
    EXPECT_OK(fwdmeta_meta_get(m, name, &got));
    EXPECT_EQ(two, got.data);
    EXPECT_OK(fwdmeta_builder_set_tensor(b, name, nullptr));
    EXPECT_STATUS(FWDMETA_NOT_FOUND, fwdmeta_meta_get(m, name, &got)) << name;
  }
  for (int f = 0; f < FWDMETA_FIELD_COUNT; ++f) {
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_builder_set_tensor(b, fwdmeta_field_name(f), &a));
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_meta_set_tensor(m, fwdmeta_field_name(f), &a));
  }
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_meta_set_tensor(m, "slot_mapping[0]", &a));
  for (const std::string& name : {std::string(), std::string(64, 'n'), std::string(1000, 'n')}) {
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_builder_set_tensor(b, name.c_str(), &a));
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_meta_set_tensor(m, name.c_str(), &a));
  }
  for (int32_t ndim : {-1, 9}) {
    fwdmeta_tensor_t bad = a;
    bad.ndim = ndim;
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_builder_set_tensor(b, "x", &bad));
  }
  fwdmeta_tensor_t sizeless = a;
  sizeless.struct_size = 0;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_builder_set_tensor(b, "x", &sizeless));
}

TEST_P(Meta, TensorsOfBuilderAndMetaHaveLimits) {
  Builder builder(backend(), SmallConfig());
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 5, 1}})));
  int32_t data = 0;
  const fwdmeta_tensor_t t = HostTensor(&data, {1});
  for (int i = 0; i < 1024; ++i) {
    ASSERT_OK(fwdmeta_builder_set_tensor(builder.handle(), ("b" + std::to_string(i)).c_str(), &t));
  }
  EXPECT_STATUS(FWDMETA_CAPACITY_EXCEEDED, fwdmeta_builder_set_tensor(builder.handle(), "one_more", &t));
  EXPECT_OK(fwdmeta_builder_set_tensor(builder.handle(), "b7", &t)) << "a replacement needs no room";
  for (int i = 0; i < 32; ++i) {
    ASSERT_OK(fwdmeta_meta_set_tensor(builder.meta(), ("m" + std::to_string(i)).c_str(), &t));
  }
  EXPECT_STATUS(FWDMETA_CAPACITY_EXCEEDED, fwdmeta_meta_set_tensor(builder.meta(), "one_more", &t));
  EXPECT_OK(fwdmeta_meta_set_tensor(builder.meta(), "m3", nullptr));
  EXPECT_OK(fwdmeta_meta_set_tensor(builder.meta(), "one_more", &t));
  // The builder's are seen by the metas of later steps, a meta's own are not.
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 6, 1}})));
  fwdmeta_tensor_t got = FWDMETA_TENSOR_INITIALIZER;
  EXPECT_OK(fwdmeta_meta_get(builder.meta(), "b1023", &got));
  EXPECT_STATUS(FWDMETA_NOT_FOUND, fwdmeta_meta_get(builder.meta(), "m1", &got));
}

// ---- dump

std::string Dump(fwdmeta_meta_t meta, fwdmeta_dump_format_t format) {
  std::string text;
  const auto append = [](const char* data, size_t size, void* user) -> int32_t {
    static_cast<std::string*>(user)->append(data, size);
    return 0;
  };
  EXPECT_OK(fwdmeta_meta_dump(meta, format, append, &text));
  return text;
}

TEST_P(Meta, Dump) {
  reference::Config config = SmallConfig();
  config.cp_size = 2;
  config.max_num_tokens = 512;
  config.groups = {{64, 64, false}, {64, 64, true}};
  Builder builder(backend(), config);
  reference::Batch batch = Numbered(2);
  batch.num_padded_tokens = 512;
  ASSERT_TRUE(builder.Run(batch));
  int32_t mask[4] = {4, 5, 6, 7};
  const fwdmeta_tensor_t t = HostTensor(mask, {2, 2});
  EXPECT_OK(fwdmeta_builder_set_tensor(builder.handle(), "quote\"d", &t));
  EXPECT_OK(fwdmeta_meta_set_attr(builder.meta(), FWDMETA_ATTR_MOE_NUM_CHUNK, 5));

  EXPECT_TRUE(nlohmann::json::parse(Dump(builder.meta(), FWDMETA_DUMP_JSON))["attn_backend"].is_null());
  EXPECT_OK(fwdmeta_meta_set_attn_backend(builder.meta(), "flash\"", mask));
  const nlohmann::json dump = nlohmann::json::parse(Dump(builder.meta(), FWDMETA_DUMP_JSON));
  EXPECT_EQ(builder.step(), dump["step"]);
  const fwdmeta_counts_t counts = builder.Counts();
  for (const CountName& count : kCountNames) EXPECT_EQ(counts.*count.member, dump["counts"][count.name]) << count.name;
  EXPECT_EQ("OK", dump["status"]);
  EXPECT_EQ((nlohmann::json{{"forward_mode", FWDMETA_FORWARD_MIXED},
                            {"exist_prefill", 1},
                            {"real_bsz", 2},
                            {"is_zero_size", 0},
                            {"step", builder.step()},
                            {"generation", 0},
                            {"step_use_cudagraph", 0},
                            {"rope_already_applied", 0},
                            {"is_dummy_or_profile_run", 0},
                            {"pre_caches_length", 0},
                            {"moe_num_chunk", 5},
                            {"max_moe_num_chunk", 1}}),
            dump["attributes"]);
  EXPECT_EQ("flash\"", dump["attn_backend"]["name"]);
  EXPECT_EQ(mask,
            reinterpret_cast<void*>(std::stoull(dump["attn_backend"]["address"].get<std::string>(), nullptr, 16)));
  std::map<std::string, nlohmann::json> fields;
  for (const auto& field : dump["fields"]) fields[field["name"]] = field;
  const std::string text = Dump(builder.meta(), FWDMETA_DUMP_TEXT);
  for (int f = 0; f < FWDMETA_FIELD_COUNT; ++f) {
    const bool grouped = f == FWDMETA_FIELD_SLOT_MAPPING;
    for (int32_t g = 0; g < (grouped ? 2 : 1); ++g) {
      const std::string name = fwdmeta_field_name(f) + (grouped ? "[" + std::to_string(g) + "]" : std::string());
      ASSERT_EQ(1u, fields.count(name)) << name;
      EXPECT_NE(std::string::npos, text.find(name)) << name;
      const nlohmann::json& field = fields[name];
      const fwdmeta_tensor_t tensor = builder.Tensor(f, g);
      const std::vector<int64_t> values = builder.Read(f, g);
      EXPECT_EQ(std::vector<int64_t>{tensor.shape[0]}, field["shape"].get<std::vector<int64_t>>()) << name;
      EXPECT_EQ((tensor.dtype_code == FWDMETA_DTYPE_UINT ? "uint" : "int") + std::to_string(tensor.dtype_bits),
                field["dtype"]);
      EXPECT_EQ(tensor.data, reinterpret_cast<void*>(std::stoull(field["address"].get<std::string>(), nullptr, 16)));
      EXPECT_EQ(tensor.memory_kind == FWDMETA_MEMORY_HOST ? "host" : "cuda:0", field["device"]);
      const auto content = field["content"].get<std::vector<int64_t>>();
      ASSERT_LE(content.size(), values.size());
      EXPECT_TRUE(std::equal(content.begin(), content.end(), values.begin())) << name;
      const int64_t elided = field.contains("elided") ? field["elided"].get<int64_t>() : 0;
      EXPECT_EQ(static_cast<int64_t>(values.size()), static_cast<int64_t>(content.size()) + elided) << name;
    }
  }
  for (const auto& [name, value] : dump["attributes"].items()) {
    EXPECT_NE(std::string::npos, text.find("\n" + name + " ")) << name;
  }
  EXPECT_NE(std::string::npos, text.find(" flash\" 0x"));
  EXPECT_EQ((std::vector<int64_t>{4, 5, 6, 7}), fields["quote\"d"]["content"].get<std::vector<int64_t>>());
  EXPECT_LT(text.size(), 40000u) << "long arrays are elided";

  int calls = 0;
  const auto stop = [](const char*, size_t, void* user) -> int32_t { return ++*static_cast<int*>(user); };
  EXPECT_STATUS(FWDMETA_UNAVAILABLE, fwdmeta_meta_dump(builder.meta(), FWDMETA_DUMP_JSON, stop, &calls));
  EXPECT_EQ(1, calls);
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_meta_dump(builder.meta(), 2, stop, &calls));
}

// A step that has an error, and one whose mirror entry is another step's by now, are dumped too, and say so.
TEST_P(Meta, DumpsSayWhyCountsAreMissing) {
  reference::Config config = SmallConfig();
  Builder builder(backend(), config);
  ASSERT_OK(builder.Build(MakeBatch({{4, 0, 3}})));
  nlohmann::json dump = nlohmann::json::parse(Dump(builder.meta(), FWDMETA_DUMP_JSON));
  EXPECT_EQ("INVALID_BATCH", dump["status"]);
  EXPECT_EQ(FWDMETA_ERROR_ENCODER_MISMATCH, dump["counts"]["error"]);
  EXPECT_TRUE(dump["attributes"]["real_bsz"].is_null());

  ASSERT_OK(builder.Build(Numbered(1)));
  Inputs inputs(backend());
  const reference::Batch source = Numbered(2);
  const fwdmeta_batch_t batch = inputs.Put(source, FWDMETA_MEMORY_DEVICE);
  for (int i = 0; i < 4; ++i) ASSERT_OK(fwdmeta_build(builder.handle(), &batch, nullptr, nullptr));
  dump = nlohmann::json::parse(Dump(builder.meta(), FWDMETA_DUMP_JSON));
  EXPECT_EQ("EXPIRED", dump["status"]);
  EXPECT_TRUE(dump["attributes"]["real_bsz"].is_null());
  EXPECT_EQ(1, dump["attributes"]["moe_num_chunk"]);
  EXPECT_NE(std::string::npos, Dump(builder.meta(), FWDMETA_DUMP_TEXT).find("status EXPIRED"));
}

// ---- the mirror's ring

TEST_P(Meta, CountsExpireAfterDepthSteps) {
  for (int64_t depth : {2, 3, 5}) {
    reference::Config config = SmallConfig();
    config.depth = depth;
    config.generations = 8;
    Builder builder(backend(), config);
    const fwdmeta_builder_t b = builder.handle();
    fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
    EXPECT_STATUS(FWDMETA_OUT_OF_RANGE, fwdmeta_counts_wait(b, 1, 0, 0, &counts));
    std::vector<fwdmeta_meta_t> metas = {0};
    for (int64_t step = 1; step <= 8; ++step) {
      const reference::Batch source = Numbered(static_cast<int32_t>(step));
      fwdmeta_batch_t batch = builder.inputs().Put(source, FWDMETA_MEMORY_DEVICE);
      fwdmeta_meta_t meta = 0;
      int64_t number = 0;
      ASSERT_OK(fwdmeta_build(b, &batch, &meta, &number));
      ASSERT_EQ(step, number);
      metas.push_back(meta);
      Synchronize(backend());
      for (int64_t s = 1; s <= step; ++s) {
        const fwdmeta_status_t want = s + depth <= step ? FWDMETA_EXPIRED : FWDMETA_OK;
        EXPECT_STATUS(want, fwdmeta_counts_wait(b, s, FWDMETA_WAIT_FINAL, -1, &counts)) << s << " of " << step;
        EXPECT_TRUE(want != FWDMETA_OK || counts.step == s);
        const fwdmeta_meta_t m = metas[static_cast<size_t>(s)];
        EXPECT_STATUS(want, fwdmeta_meta_wait(m, 0, 0, &counts));
        int64_t value = 0;
        EXPECT_STATUS(want, fwdmeta_meta_get_attr(m, FWDMETA_ATTR_REAL_BSZ, &value));
        EXPECT_OK(fwdmeta_meta_get_attr(m, FWDMETA_ATTR_STEP, &value));
        EXPECT_EQ(s, value);
        fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
        for (int f : {FWDMETA_FIELD_MAX_LEN_TENSOR_CPU, FWDMETA_FIELD_KV_NUM_BLOCKS_X_CPU}) {
          EXPECT_STATUS(want, fwdmeta_meta_get_field(m, f, 0, &tensor));
        }
        EXPECT_OK(fwdmeta_meta_get_field(m, FWDMETA_FIELD_POSITION_IDS, 0, &tensor));
        // What has not expired is the step's own.
        if (want == FWDMETA_OK) {
          EXPECT_TRUE(builder.ExpectArrays(m, reference::Build(config, Numbered(static_cast<int32_t>(s))), s));
        }
      }
      for (int64_t s : {int64_t{0}, int64_t{-1}, step + 1, INT64_MAX, INT64_MIN}) {
        EXPECT_STATUS(FWDMETA_OUT_OF_RANGE, fwdmeta_counts_wait(b, s, 0, 0, &counts)) << s;
      }
    }
    for (fwdmeta_meta_t meta : metas) EXPECT_OK(fwdmeta_meta_destroy(meta));
  }
}

TEST_P(Meta, NoReplayYet) {
  Builder builder(backend(), SmallConfig());
  ASSERT_TRUE(builder.Run(MakeBatch({{0, 5, 1}})));
  fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
  EXPECT_STATUS(FWDMETA_NOT_READY, fwdmeta_replay_wait(builder.handle(), 0, 0, 0, &counts));
  EXPECT_STATUS(FWDMETA_NOT_READY, fwdmeta_replay_wait(builder.handle(), 1, 0, 0, &counts));
  EXPECT_STATUS(FWDMETA_TIMEOUT, fwdmeta_replay_wait(builder.handle(), 1, 0, 1000, &counts));
  EXPECT_STATUS(FWDMETA_OUT_OF_RANGE, fwdmeta_replay_wait(builder.handle(), -1, 0, 0, &counts));
}

// With host lengths the counts are there when the call returns.
TEST_P(Meta, CountsOfHostLengthsAreThereAtOnce) {
  Builder builder(backend(), SmallConfig());
  for (int32_t k = 0; k < 20; ++k) {
    ASSERT_OK(builder.Build(Numbered(k), FWDMETA_MEMORY_HOST));
    fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
    EXPECT_OK(fwdmeta_counts_wait(builder.handle(), builder.step(), 0, 0, &counts));
    EXPECT_EQ(1 + k % 3 + 3 + k, counts.num_tokens);
    EXPECT_EQ(FWDMETA_FORWARD_MIXED, Attr(builder.meta(), FWDMETA_ATTR_FORWARD_MODE));
  }
  EXPECT_TRUE(builder.Expect(reference::Build(builder.config(), Numbered(19))));
}

// ---- sets of arrays

TEST_P(Meta, SetsRotate) {
  reference::Config config = SmallConfig();
  config.generations = 3;
  config.depth = 4;
  Builder builder(backend(), config);
  std::vector<fwdmeta_meta_t> metas;
  std::map<int64_t, void*> address;
  for (int32_t k = 0; k < 7; ++k) {
    const reference::Batch source = Numbered(k);
    const fwdmeta_batch_t batch = builder.inputs().Put(source, FWDMETA_MEMORY_DEVICE);
    fwdmeta_meta_t meta = 0;
    ASSERT_OK(fwdmeta_build(builder.handle(), &batch, &meta, nullptr));
    Synchronize(backend());
    metas.push_back(meta);
    const int64_t set = Attr(meta, FWDMETA_ATTR_GENERATION);
    EXPECT_TRUE(k < 3 || Attr(metas[static_cast<size_t>(k - 3)], FWDMETA_ATTR_GENERATION) == set);
    fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
    ASSERT_OK(fwdmeta_meta_get_field(meta, FWDMETA_FIELD_POSITION_IDS, 0, &tensor));
    EXPECT_TRUE(address.count(set) == 0 || address[set] == tensor.data) << "an address never changes";
    address[set] = tensor.data;
    // The arrays of a step last until the build `generations` steps later.
    for (int32_t back = 0; back < 3 && back <= k; ++back) {
      EXPECT_TRUE(builder.ExpectArrays(metas[static_cast<size_t>(k - back)],
                                       reference::Build(config, Numbered(k - back)), k - back + 1));
    }
  }
  EXPECT_EQ(3u, address.size());
  std::set<void*> distinct;
  for (const auto& a : address) distinct.insert(a.second);
  EXPECT_EQ(3u, distinct.size());
  for (fwdmeta_meta_t meta : metas) EXPECT_OK(fwdmeta_meta_destroy(meta));
  for (int64_t set : {2, 0, 2, 1}) {
    ASSERT_TRUE(builder.Run(Numbered(1), FWDMETA_MEMORY_DEVICE, set));
    EXPECT_EQ(set, Attr(builder.meta(), FWDMETA_ATTR_GENERATION));
  }
}

TEST_P(Meta, ResetRefillsEverySet) {
  reference::Config config = SmallConfig();
  config.generations = 2;
  Builder builder(backend(), config);
  const reference::Result padding = reference::Padding(config);
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(builder.Run(Numbered(9), FWDMETA_MEMORY_DEVICE, 0));
    ASSERT_TRUE(builder.Run(Numbered(7), FWDMETA_MEMORY_DEVICE, 1));
    ASSERT_OK(fwdmeta_builder_reset(builder.handle(), nullptr));
    Synchronize(backend());
    for (int f = FWDMETA_FIELD_DECODER_BATCH_IDS; f <= FWDMETA_FIELD_LAST_TOKEN_INDEX; ++f) {
      const std::string name = fwdmeta_field_name(f);
      if (!padding.present[f] || name.find("_cpu") != std::string::npos ||
          f == FWDMETA_FIELD_DECODER_CHUNK_SIZE_DEVICE) {
        continue;
      }
      EXPECT_EQ(padding.fields[f], builder.Read(f)) << name;
    }
    builder.ForgetExtents();
    ASSERT_TRUE(builder.Run(Numbered(2), FWDMETA_MEMORY_DEVICE, 1));
    ASSERT_TRUE(builder.Run(Numbered(3), FWDMETA_MEMORY_DEVICE, 0));
  }
}

// ---- lifetimes and memory

TEST_P(Meta, MetasOutliveTheBuilder) {
  reference::Config config = SmallConfig();
  std::vector<fwdmeta_group_config_t> groups;
  CountingAllocator device(Memory::kDevice), pinned(Memory::kPinned), host(Memory::kHost);
  fwdmeta_config_t c = ToC(config, backend(), &groups);
  c.device_allocator = device.Get();
  c.pinned_allocator = pinned.Get();
  c.host_allocator = host.Get();
  fwdmeta_builder_t builder = 0;
  ASSERT_OK(fwdmeta_builder_create(&c, &builder));
  Inputs inputs(backend());
  const reference::Batch source = Numbered(1);
  const fwdmeta_batch_t batch = inputs.Put(source, FWDMETA_MEMORY_DEVICE);
  fwdmeta_meta_t first = 0, second = 0;
  ASSERT_OK(fwdmeta_build(builder, &batch, &first, nullptr));
  ASSERT_OK(fwdmeta_build(builder, &batch, &second, nullptr));
  Synchronize(backend());
  ASSERT_OK(fwdmeta_builder_destroy(builder));
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_builder_destroy(builder));
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_build(builder, &batch, nullptr, nullptr));
  ASSERT_OK(fwdmeta_meta_destroy(first));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_GT(device.live() + host.live(), 0) << "the last holder has not gone";
  fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
  EXPECT_OK(fwdmeta_meta_wait(second, FWDMETA_WAIT_FINAL, -1, &counts));
  EXPECT_EQ(6, counts.num_tokens);
  fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
  ASSERT_OK(fwdmeta_meta_get(second, "position_ids", &tensor));
  int64_t position = 0;
  Download(backend(), &position, tensor.data, sizeof position);
  EXPECT_EQ(11, position);
  ASSERT_OK(fwdmeta_meta_destroy(second));
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_meta_destroy(second));
  for (const CountingAllocator* a : {&device, &pinned, &host}) {
    EXPECT_TRUE(a->WaitUntilEmpty());
    EXPECT_EQ("", a->misuse());
  }
}

TEST_P(Meta, HandlesOfMetasAreBounded) {
  reference::Config config = SmallConfig();
  config.max_metas = 3;
  Builder builder(backend(), config);
  const reference::Batch source = Numbered(1);
  const fwdmeta_batch_t batch = builder.inputs().Put(source, FWDMETA_MEMORY_DEVICE);
  std::vector<fwdmeta_meta_t> metas(3);
  for (fwdmeta_meta_t& meta : metas) ASSERT_OK(fwdmeta_build(builder.handle(), &batch, &meta, nullptr));
  fwdmeta_meta_t none = 0;
  int64_t step = 0;
  EXPECT_STATUS(FWDMETA_BUSY, fwdmeta_build(builder.handle(), &batch, &none, &step));
  EXPECT_EQ(0u, none);
  EXPECT_EQ(0, step);
  fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
  EXPECT_OK(fwdmeta_builder_get_info(builder.handle(), &info));
  EXPECT_EQ(3, info.last_step) << "nothing is enqueued";
  EXPECT_OK(fwdmeta_build(builder.handle(), &batch, nullptr, &step)) << "without a handle there is room";
  EXPECT_EQ(4, step);
  for (int i = 0; i < 10; ++i) {
    EXPECT_OK(fwdmeta_meta_destroy(metas[static_cast<size_t>(i % 3)]));
    EXPECT_OK(fwdmeta_build(builder.handle(), &batch, &metas[static_cast<size_t>(i % 3)], nullptr));
  }
  for (fwdmeta_meta_t meta : metas) EXPECT_OK(fwdmeta_meta_destroy(meta));
}

TEST_P(Meta, AllocatesAtCreationAloneAndWhatCapacitiesSay) {
  Random random(7);
  for (int round = 0; round < 20; ++round) {
    const reference::Config config = RandomConfig(random, 64);
    std::vector<fwdmeta_group_config_t> groups;
    CountingAllocator device(Memory::kDevice), pinned(Memory::kPinned), host(Memory::kHost);
    fwdmeta_config_t c = ToC(config, backend(), &groups);
    c.device_allocator = device.Get();
    c.pinned_allocator = pinned.Get();
    c.host_allocator = host.Get();
    fwdmeta_capacities_t capacities = FWDMETA_CAPACITIES_INITIALIZER;
    ASSERT_OK(fwdmeta_get_capacities(&c, nullptr, &capacities));
    EXPECT_EQ(0, device.allocs() + pinned.allocs() + host.allocs()) << "capacities allocate nothing";
    fwdmeta_builder_t builder = 0;
    ASSERT_OK(fwdmeta_builder_create(&c, &builder));
    fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
    EXPECT_OK(fwdmeta_builder_get_info(builder, &info));
    const std::pair<const CountingAllocator*, std::pair<int64_t, int64_t>> sizes[] = {
        {&device, {capacities.device_bytes, info.device_bytes}},
        {&pinned, {capacities.pinned_bytes, info.pinned_bytes}},
        {&host, {capacities.host_bytes, info.host_bytes}}};
    for (const auto& s : sizes) {
      EXPECT_EQ(s.second.first, static_cast<int64_t>(s.first->bytes()));
      EXPECT_EQ(s.second.second, static_cast<int64_t>(s.first->bytes()));
    }
    EXPECT_EQ(backend(), info.backend);
    EXPECT_EQ(backend() == FWDMETA_BACKEND_HOST ? -1 : CurrentDevice(), info.device);
    EXPECT_EQ(config.num_sms, info.num_sms);
    EXPECT_EQ(config.generations, info.generations);
    EXPECT_EQ(config.depth, info.depth);
    EXPECT_EQ(0, info.last_step);
    EXPECT_EQ(0, info.last_advance);
    if (backend() == FWDMETA_BACKEND_HOST) {
      EXPECT_EQ(0, info.single_launch_slots);
    } else {
      EXPECT_GE(info.single_launch_slots, 2048);
    }
    const int after_creation = device.allocs() + pinned.allocs() + host.allocs();
    EXPECT_GT(after_creation, 0);
    Inputs inputs(backend());
    for (int step = 0; step < 10; ++step) {
      const reference::Batch source = RandomBatch(random, config);
      const fwdmeta_batch_t batch = inputs.Put(source, step % 2 ? FWDMETA_MEMORY_HOST : FWDMETA_MEMORY_DEVICE);
      fwdmeta_meta_t meta = 0;
      ASSERT_OK(fwdmeta_build(builder, &batch, &meta, nullptr));
      Synchronize(backend());
      Dump(meta, FWDMETA_DUMP_JSON);
      fwdmeta_advance_args_t args = FWDMETA_ADVANCE_ARGS_INITIALIZER;
      ASSERT_OK(fwdmeta_advance(builder, &args));
      ASSERT_OK(fwdmeta_builder_reset(builder, nullptr));
      ASSERT_OK(fwdmeta_meta_destroy(meta));
    }
    EXPECT_EQ(after_creation, device.allocs() + pinned.allocs() + host.allocs()) << "none after creation";
    ASSERT_OK(fwdmeta_builder_destroy(builder));
    for (const CountingAllocator* a : {&device, &pinned, &host}) {
      EXPECT_TRUE(a->WaitUntilEmpty());
      EXPECT_EQ(a->allocs(), a->frees());
      EXPECT_EQ("", a->misuse());
    }
  }
}

// Whichever allocation fails, creation says so and gives back the others.
TEST_P(Meta, FailingAllocations) {
  std::vector<fwdmeta_group_config_t> groups;
  for (int which = 0; which < 3; ++which) {
    for (int after = 0;; ++after) {
      CountingAllocator device(Memory::kDevice), pinned(Memory::kPinned), host(Memory::kHost);
      CountingAllocator* all[] = {&device, &pinned, &host};
      all[which]->FailAfter(after);
      fwdmeta_config_t c = ToC(SmallConfig(), backend(), &groups);
      c.device_allocator = device.Get();
      c.pinned_allocator = pinned.Get();
      c.host_allocator = host.Get();
      fwdmeta_builder_t builder = 0;
      const fwdmeta_status_t status = fwdmeta_builder_create(&c, &builder);
      if (status == FWDMETA_OK) {
        EXPECT_LE(all[which]->allocs(), after);
        EXPECT_OK(fwdmeta_builder_destroy(builder));
      } else {
        EXPECT_EQ(Name(FWDMETA_OUT_OF_MEMORY), Name(status));
        EXPECT_EQ(0u, builder);
      }
      for (const CountingAllocator* a : all) {
        EXPECT_TRUE(a->WaitUntilEmpty());
        EXPECT_EQ("", a->misuse());
      }
      if (status == FWDMETA_OK) break;
      ASSERT_LT(after, 1000);
    }
  }
}

// ---- advance

// Lengths that live where the backend wants them, and the arrays of an advance beside them.
struct Lengths {
  Lengths(fwdmeta_backend_t where, int64_t slots)
      : backend(where), size(slots), memory(where, static_cast<size_t>(slots) * 21 + 64) {}
  int32_t* at(int which) const { return static_cast<int32_t*>(memory.data()) + which * size; }
  void Put(const reference::Batch& batch) {
    Upload(backend, at(0), batch.encoder.data(), batch.encoder.size() * 4);
    Upload(backend, at(1), batch.decoder.data(), batch.decoder.size() * 4);
    Upload(backend, at(2), batch.this_time.data(), batch.this_time.size() * 4);
  }
  reference::Batch Get() const {
    reference::Batch batch;
    for (auto* v : {&batch.encoder, &batch.decoder, &batch.this_time}) v->resize(static_cast<size_t>(size));
    Download(backend, batch.encoder.data(), at(0), static_cast<size_t>(size) * 4);
    Download(backend, batch.decoder.data(), at(1), static_cast<size_t>(size) * 4);
    Download(backend, batch.this_time.data(), at(2), static_cast<size_t>(size) * 4);
    return batch;
  }
  fwdmeta_advance_args_t Args(const reference::Advance& advance) {
    fwdmeta_advance_args_t args = FWDMETA_ADVANCE_ARGS_INITIALIZER;
    args.batch_size = size;
    args.seq_lens_encoder = at(0);
    args.seq_lens_decoder = at(1);
    args.seq_lens_this_time = at(2);
    args.num_draft_tokens = advance.num_draft_tokens;
    if (!advance.num_rejected.empty()) {
      Upload(backend, at(3), advance.num_rejected.data(), advance.num_rejected.size() * 4);
      args.num_rejected = at(3);
    }
    if (!advance.prompt_lens.empty()) {
      Upload(backend, at(4), advance.prompt_lens.data(), advance.prompt_lens.size() * 4);
      args.prompt_lens = at(4);
    }
    if (!advance.stop.empty()) {
      Upload(backend, at(5), advance.stop.data(), advance.stop.size());
      args.stop = reinterpret_cast<uint8_t*>(at(5));
    }
    return args;
  }
  fwdmeta_batch_t Batch() const {
    fwdmeta_batch_t batch = FWDMETA_BATCH_INITIALIZER;
    batch.batch_size = size;
    batch.seq_lens_encoder = at(0);
    batch.seq_lens_decoder = at(1);
    batch.seq_lens_this_time = at(2);
    return batch;
  }
  fwdmeta_backend_t backend;
  int64_t size;
  Buffer memory;
};

TEST_P(Meta, AdvanceRules) {
  reference::Config config = SmallConfig();
  config.max_num_tokens = 256;
  const struct {
    const char* name;
    Slot before;
    int32_t rejected;  // INT32_MIN: not given
    uint8_t stop;
    int32_t prompt;  // 0: not given
    int64_t drafts;
    Slot after;
    int32_t stopped, limited;
    bool clamped;
  } cases[] = {
      {"decode", {0, 10, 1}, INT32_MIN, 0, 0, 0, {0, 11, 1}, 0, 0, false},
      {"drafts", {0, 10, 4}, 2, 0, 0, 3, {0, 12, 4}, 0, 0, false},
      {"all drafts accepted", {0, 10, 4}, 0, 0, 0, 3, {0, 14, 4}, 0, 0, false},
      {"all drafts rejected", {0, 10, 4}, 3, 0, 0, 3, {0, 11, 4}, 0, 0, false},
      {"rejected past N - 1", {0, 10, 4}, 4, 0, 0, 3, {0, 11, 4}, 0, 0, true},
      {"rejected negative", {0, 10, 4}, -1, 0, 0, 3, {0, 14, 4}, 0, 0, true},
      {"rejected of one token", {0, 10, 1}, 1, 0, 0, 0, {0, 11, 1}, 0, 0, true},
      {"rejected is of decodes", {5, 0, 5}, 3, 0, 0, 0, {0, 5, 1}, 0, 0, false},
      {"prefill", {5, 7, 5}, INT32_MIN, 0, 0, 2, {0, 12, 3}, 0, 0, false},
      {"prefill, last chunk", {5, 7, 5}, INT32_MIN, 0, 12, 0, {0, 12, 1}, 0, 0, false},
      {"prefill, more to come", {5, 7, 5}, INT32_MIN, 0, 13, 0, {5, 7, 5}, 0, 0, false},
      {"prompt length of a decode", {0, 7, 1}, INT32_MIN, 0, 50, 0, {0, 8, 1}, 0, 0, false},
      {"idle", {9, 40, 0}, 3, 1, 50, 4, {9, 40, 0}, 0, 0, false},
      {"stop", {0, 10, 1}, INT32_MIN, 1, 0, 0, {0, 11, 0}, 1, 0, false},
      {"stop by any non-zero byte", {0, 10, 1}, INT32_MIN, 128, 0, 0, {0, 11, 0}, 1, 0, false},
      {"stop of a prefill", {5, 7, 5}, INT32_MIN, 1, 0, 0, {0, 12, 0}, 1, 0, false},
      {"model length", {0, 255, 1}, INT32_MIN, 0, 0, 0, {0, 256, 0}, 0, 1, false},
      {"one before it", {0, 254, 1}, INT32_MIN, 0, 0, 3, {0, 255, 1}, 0, 0, false},
      {"fewer drafts near it", {0, 250, 4}, 0, 0, 0, 3, {0, 254, 2}, 0, 0, false},
      {"stop at it", {0, 255, 1}, INT32_MIN, 1, 0, 0, {0, 256, 0}, 1, 0, false},
      {"more drafts than int32", {0, 10, 1}, INT32_MIN, 0, 0, INT64_MAX, {0, 11, 245}, 0, 0, false},
  };
  Builder builder(backend(), config);
  Lengths lengths(backend(), 1);
  int64_t ordinal = 0;
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    reference::Advance advance;
    advance.num_draft_tokens = c.drafts;
    if (c.rejected != INT32_MIN) advance.num_rejected = {c.rejected};
    if (c.stop != 0) advance.stop = {c.stop};
    if (c.prompt != 0) advance.prompt_lens = {c.prompt};
    lengths.Put(MakeBatch({c.before}));
    const fwdmeta_advance_args_t args = lengths.Args(advance);
    ASSERT_OK(fwdmeta_advance(builder.handle(), &args));
    fwdmeta_advance_counts_t counts = FWDMETA_ADVANCE_COUNTS_INITIALIZER;
    ASSERT_OK(fwdmeta_advance_wait(builder.handle(), ++ordinal, -1, &counts));
    EXPECT_EQ(ordinal, counts.advance);
    EXPECT_EQ(c.stopped, counts.num_stopped);
    EXPECT_EQ(c.limited, counts.num_length_limited);
    const reference::Batch after = lengths.Get();
    EXPECT_EQ(c.after.e, after.encoder[0]);
    EXPECT_EQ(c.after.d, after.decoder[0]);
    EXPECT_EQ(c.after.n, after.this_time[0]);
    fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
    ASSERT_OK(fwdmeta_builder_get_info(builder.handle(), &info));
    EXPECT_EQ(ordinal, info.last_advance);
    int32_t device_counts[2];
    Download(backend(), device_counts, info.advance_counts, sizeof device_counts);
    EXPECT_EQ(c.stopped, device_counts[0]);
    EXPECT_EQ(c.limited, device_counts[1]);
    // The warning is of the next good build, and of that one alone.
    const fwdmeta_batch_t next = lengths.Batch();
    const int32_t want = c.clamped ? FWDMETA_WARNING_REJECTED_CLAMPED : 0;
    reference::Batch bad = MakeBatch({{0, 0, -1}});
    EXPECT_OK(builder.Build(bad));
    ASSERT_OK(builder.Build(next));
    EXPECT_EQ(want, builder.Counts().warnings);
    EXPECT_EQ(want, builder.Read(FWDMETA_FIELD_COUNTS)[15]);
    ASSERT_OK(builder.Build(next));
    EXPECT_EQ(0, builder.Counts().warnings);
  }
}

TEST_P(Meta, AdvanceOfRandomSteps) {
  Random random(11);
  for (int round = 0; round < 40; ++round) {
    reference::Config config = RandomConfig(random, 300);
    config.generations = 1;
    Builder builder(backend(), config);
    reference::Batch batch = RandomBatch(random, config, config.max_batch_size);
    batch.block_tables.clear();
    batch.input_ids = batch.draft_tokens = {};
    batch.num_padded_tokens = -1;
    Lengths lengths(backend(), batch.size());
    lengths.Put(batch);
    for (int step = 0; step < 8; ++step) {
      reference::Advance advance;
      advance.num_draft_tokens = random.Int(0, 3);
      for (int64_t b = 0; b < batch.size(); ++b) {
        advance.num_rejected.push_back(static_cast<int32_t>(random.Int(-1, 4)));
        advance.stop.push_back(static_cast<uint8_t>(random.Chance(0.1) ? random.Int(1, 255) : 0));
        advance.prompt_lens.push_back(static_cast<int32_t>(random.Int(0, config.max_model_len)));
        // A stop of an unfinished prompt is the engine's to decide, not this test's.
        if (batch.encoder[b] > 0 && batch.this_time[b] > 0) advance.stop.back() = 0;
      }
      if (random.Chance(0.3)) advance.num_rejected.clear();
      if (random.Chance(0.3)) advance.stop.clear();
      if (random.Chance(0.3)) advance.prompt_lens.clear();
      const fwdmeta_advance_args_t args = lengths.Args(advance);
      ASSERT_OK(fwdmeta_advance(builder.handle(), &args));
      const reference::Advanced want = reference::AdvanceLengths(config, advance, &batch);
      fwdmeta_advance_counts_t counts = FWDMETA_ADVANCE_COUNTS_INITIALIZER;
      ASSERT_OK(fwdmeta_advance_wait(builder.handle(), step + 1, -1, &counts));
      EXPECT_EQ(want.num_stopped, counts.num_stopped);
      EXPECT_EQ(want.num_length_limited, counts.num_length_limited);
      const reference::Batch got = lengths.Get();
      ASSERT_EQ(batch.encoder, got.encoder);
      ASSERT_EQ(batch.decoder, got.decoder);
      ASSERT_EQ(batch.this_time, got.this_time);
      const fwdmeta_batch_t next = lengths.Batch();
      ASSERT_OK(builder.Build(next));
      reference::Result result = reference::Build(config, batch);
      if (result.counts.error == 0 && want.clamped) {
        result.counts.warnings |= FWDMETA_WARNING_REJECTED_CLAMPED;
        result.fields[FWDMETA_FIELD_COUNTS][15] |= FWDMETA_WARNING_REJECTED_CLAMPED;
      }
      ASSERT_TRUE(builder.Expect(result)) << round << " " << step;
      if (result.counts.error != 0) break;  // out of tokens: the warning would be of a later build
    }
  }
}

TEST_P(Meta, AdvanceWaits) {
  Builder builder(backend(), SmallConfig());
  const fwdmeta_builder_t b = builder.handle();
  fwdmeta_advance_counts_t counts = FWDMETA_ADVANCE_COUNTS_INITIALIZER;
  EXPECT_STATUS(FWDMETA_NOT_READY, fwdmeta_advance_wait(b, 0, 0, &counts));
  EXPECT_STATUS(FWDMETA_NOT_READY, fwdmeta_advance_wait(b, 1, 0, &counts));
  EXPECT_STATUS(FWDMETA_TIMEOUT, fwdmeta_advance_wait(b, 1, 1000, &counts));
  const fwdmeta_advance_args_t args = FWDMETA_ADVANCE_ARGS_INITIALIZER;
  for (int64_t i = 1; i <= 5; ++i) {
    ASSERT_OK(fwdmeta_advance(b, &args));
    ASSERT_OK(fwdmeta_advance_wait(b, i, -1, &counts));
    EXPECT_EQ(i, counts.advance);
    EXPECT_OK(fwdmeta_advance_wait(b, 0, 0, &counts));
    EXPECT_EQ(i, counts.advance);
    EXPECT_STATUS(i > 1 ? FWDMETA_EXPIRED : FWDMETA_OK, fwdmeta_advance_wait(b, i > 1 ? i - 1 : 1, 0, &counts));
    EXPECT_STATUS(FWDMETA_NOT_READY, fwdmeta_advance_wait(b, i + 1, 0, &counts));
  }
  EXPECT_STATUS(FWDMETA_OUT_OF_RANGE, fwdmeta_advance_wait(b, -1, 0, &counts));
}

// ---- threads

// Calls that only read may come from any thread while another builds.
TEST_P(Meta, ReadersOnOtherThreads) {
  reference::Config config = SmallConfig();
  config.depth = 8;
  Builder builder(backend(), config);
  ASSERT_TRUE(builder.Run(Numbered(1)));
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0}, good{0};
  std::vector<std::thread> readers;
  const fwdmeta_meta_t meta = builder.meta();
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      while (!stop) {
        fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
        if (fwdmeta_builder_get_info(builder.handle(), &info) != FWDMETA_OK) ++wrong;
        fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
        const fwdmeta_status_t status = fwdmeta_counts_wait(builder.handle(), info.last_step, 0, 0, &counts);
        if (status == FWDMETA_OK) {
          ++good;
          // All of one step: N of step s is 1 + s % 7 in one decode slot of D = 20 + s.
          const int64_t k = counts.step % 7;
          if (counts.step > 1 && (counts.step != info.last_step || counts.num_tokens != 1 + k ||
                                  counts.num_kv_tokens != 21 + 2 * k || counts.max_len[2] != 20 + k)) {
            ++wrong;
          }
        } else if (status != FWDMETA_EXPIRED && status != FWDMETA_NOT_READY) {
          ++wrong;
        }
        fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
        if (fwdmeta_meta_get(meta, "position_ids", &tensor) != FWDMETA_OK) ++wrong;
      }
    });
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (int32_t step = 2; step < 3000 || (good < 1000 && std::chrono::steady_clock::now() < end); ++step) {
    const reference::Batch batch = MakeBatch({{0, 20 + step % 7, 1 + step % 7}});
    const fwdmeta_batch_t c = builder.inputs().Put(batch, FWDMETA_MEMORY_HOST);
    EXPECT_OK(fwdmeta_build(builder.handle(), &c, nullptr, nullptr));
    if (step % 64 == 0) std::this_thread::yield();
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(0, wrong);
  EXPECT_GE(good, 1000);
}

// Builders are created, used and destroyed by many threads at once.
TEST_P(Meta, BuildersOfManyThreads) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        std::vector<fwdmeta_group_config_t> groups;
        const fwdmeta_config_t c = ToC(SmallConfig(), backend(), &groups);
        fwdmeta_builder_t builder = 0;
        if (fwdmeta_builder_create(&c, &builder) != FWDMETA_OK) ++wrong;
        const reference::Batch batch = Numbered(t);
        Inputs inputs(backend());
        const fwdmeta_batch_t b = inputs.Put(batch, FWDMETA_MEMORY_HOST);
        fwdmeta_meta_t meta = 0;
        if (fwdmeta_build(builder, &b, &meta, nullptr) != FWDMETA_OK) ++wrong;
        fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
        if (fwdmeta_meta_wait(meta, FWDMETA_WAIT_FINAL, -1, &counts) != FWDMETA_OK) ++wrong;
        if (counts.num_tokens != 1 + t % 3 + 3 + t) ++wrong;
        if (fwdmeta_builder_destroy(builder) != FWDMETA_OK) ++wrong;
        if (fwdmeta_meta_destroy(meta) != FWDMETA_OK) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(0, wrong);
}

// On the host backend readers do nothing, and say so with OK.
TEST_P(Meta, ReadersWithinAStream) {
  Builder builder(backend(), SmallConfig());
  ASSERT_TRUE(builder.Run(Numbered(1)));
  EXPECT_OK(fwdmeta_meta_reader_begin(builder.meta(), nullptr));
  EXPECT_OK(fwdmeta_meta_reader_end(builder.meta(), nullptr));
  ASSERT_TRUE(builder.Run(Numbered(2)));
}

// ---- what the engine hands over

TEST_P(Meta, DumpsDoNotFollowWhatTheyCannotRead) {
  Builder builder(backend(), SmallConfig());
  ASSERT_TRUE(builder.Run(Numbered(1)));
  fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;  // device memory
  tensor.ndim = 1;
  tensor.shape[0] = 4;
  tensor.strides[0] = 2;  // not row-major: read on no backend
  tensor.data = reinterpret_cast<void*>(0x7f1200000000);
  ASSERT_OK(fwdmeta_meta_set_tensor(builder.meta(), "strided", &tensor));
  if (backend() == FWDMETA_BACKEND_HOST) {
    tensor.strides[0] = 1;
    ASSERT_OK(fwdmeta_builder_set_tensor(builder.handle(), "caches[0]", &tensor));
  }
  std::string text;
  const auto write = [](const char* data, size_t size, void* user) -> int32_t {
    static_cast<std::string*>(user)->append(data, size);
    return 0;
  };
  EXPECT_STATUS(FWDMETA_INVALID_HANDLE, fwdmeta_meta_destroy(77));
  const std::string before = fwdmeta_last_error();
  ASSERT_OK(fwdmeta_meta_dump(builder.meta(), FWDMETA_DUMP_JSON, write, &text));
  EXPECT_EQ(before, fwdmeta_last_error()) << "the message is that of the latest failed call";
  const nlohmann::json dump = nlohmann::json::parse(text);
  for (const auto& field : dump["fields"]) {
    if (field["origin"] == "engine") {
      EXPECT_TRUE(field["content"].is_null()) << field;
    }
  }
}

TEST_P(Meta, TensorsThatCannotBe) {
  Builder builder(backend(), SmallConfig());
  int64_t data = 0;
  fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
  tensor.data = &data;
  tensor.memory_kind = FWDMETA_MEMORY_HOST;
  tensor.ndim = 2;
  tensor.shape[0] = tensor.shape[1] = int64_t{1} << 32;
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_builder_set_tensor(builder.handle(), "past int64", &tensor));
  tensor.shape[0] = tensor.shape[1] = 1;
  for (const char* name : {"a\xff", "line\n", "\x7f"}) {
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_builder_set_tensor(builder.handle(), name, &tensor));
  }
  EXPECT_OK(fwdmeta_builder_set_tensor(builder.handle(), "one", &tensor));
  const struct {
    const char* name;
    void (*spoil)(fwdmeta_tensor_t&);
  } cases[] = {
      {"memory kind", [](fwdmeta_tensor_t& t) { t.memory_kind = 2; }},
      {"shape", [](fwdmeta_tensor_t& t) { t.shape[1] = -1; }},
      {"ndim -1", [](fwdmeta_tensor_t& t) { t.ndim = -1; }},
      {"ndim 9", [](fwdmeta_tensor_t& t) { t.ndim = 9; }},
      {"data", [](fwdmeta_tensor_t& t) { t.data = nullptr; }},
      {"bits", [](fwdmeta_tensor_t& t) { t.dtype_bits = 0; }},
      {"lanes", [](fwdmeta_tensor_t& t) { t.dtype_lanes = 0; }},
  };
  for (const auto& c : cases) {
    fwdmeta_tensor_t bad = tensor;
    c.spoil(bad);
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_builder_set_tensor(builder.handle(), "one", &bad)) << c.name;
  }
}

// Elements of every type, as the JSON of a dump has them: infinities and NaN are null.
TEST_P(Meta, DumpsEveryElementType) {
  Builder builder(backend(), SmallConfig());
  ASSERT_TRUE(builder.Run(Numbered(1)));
  const nlohmann::json null;
  const struct {
    const char* name;
    fwdmeta_dtype_code_t code;
    uint8_t bits;
    std::vector<uint64_t> elements;  // their bits
    nlohmann::json want;             // null: not printed
  } cases[] = {
      {"i8", FWDMETA_DTYPE_INT, 8, {0xFB, 0x7F}, {-5, 127}},
      {"i16", FWDMETA_DTYPE_INT, 16, {0x8000, 2}, {-32768, 2}},
      {"i32", FWDMETA_DTYPE_INT, 32, {0xFFFFFFFF, 3}, {-1, 3}},
      {"i64", FWDMETA_DTYPE_INT, 64, {1ull << 63, 4}, {INT64_MIN, 4}},
      {"u8", FWDMETA_DTYPE_UINT, 8, {255, 1}, {255, 1}},
      {"u16", FWDMETA_DTYPE_UINT, 16, {65535, 1}, {65535, 1}},
      {"u32", FWDMETA_DTYPE_UINT, 32, {0xFFFFFFFF, 1}, {0xFFFFFFFFu, 1}},
      {"u64", FWDMETA_DTYPE_UINT, 64, {UINT64_MAX, 1}, {UINT64_MAX, 1}},
      {"bool", FWDMETA_DTYPE_BOOL, 8, {0, 1}, {0, 1}},
      {"f16",
       FWDMETA_DTYPE_FLOAT,
       16,
       {0x3C00, 0xC500, 0x0001, 0x7C00, 0xFC00, 0x7E00},
       {1.0, -5.0, 5.9604644775390625e-08, null, null, null}},
      {"bf16", FWDMETA_DTYPE_BFLOAT, 16, {0x3FC0, 0xC0A0, 0x7F80}, {1.5, -5.0, null}},
      {"f32", FWDMETA_DTYPE_FLOAT, 32, {0x3E800000, 0x7FC00000}, {0.25, null}},
      {"f64", FWDMETA_DTYPE_FLOAT, 64, {0x3FB999999999999Aull, 0xFFF0000000000000ull}, {0.1, null}},
      {"f8", FWDMETA_DTYPE_FLOAT, 8, {1, 2}, null},
      {"bf32", FWDMETA_DTYPE_BFLOAT, 32, {1, 2}, null},
      {"i4", FWDMETA_DTYPE_INT, 4, {1, 2}, null},
      {"complex", 5, 64, {1, 2}, null},
  };
  std::vector<std::vector<char>> memory;
  for (const auto& c : cases) {
    std::vector<char> bytes(c.elements.size() * 8);
    for (size_t i = 0; i < c.elements.size(); ++i)
      std::memcpy(&bytes[i * c.bits / 8], &c.elements[i], (c.bits + 7) / 8);
    memory.push_back(bytes);
    fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
    tensor.data = memory.back().data();
    tensor.memory_kind = FWDMETA_MEMORY_HOST;
    tensor.dtype_code = c.code;
    tensor.dtype_bits = c.bits;
    tensor.ndim = 1;
    tensor.shape[0] = static_cast<int64_t>(c.elements.size());
    tensor.strides[0] = 1;
    ASSERT_OK(fwdmeta_meta_set_tensor(builder.meta(), c.name, &tensor));
  }
  const nlohmann::json dump = nlohmann::json::parse(Dump(builder.meta(), FWDMETA_DUMP_JSON));
  std::map<std::string, nlohmann::json> fields;
  for (const auto& field : dump["fields"]) fields[field["name"]] = field;
  for (const auto& c : cases) {
    ASSERT_EQ(1u, fields.count(c.name)) << c.name;
    EXPECT_EQ(c.want, fields[c.name].value("content", null)) << c.name << " " << fields[c.name].dump();
  }
}

TEST_P(Meta, AnOpenReaderKeepsItsMeta) {
  Builder builder(backend(), SmallConfig());
  ASSERT_TRUE(builder.Run(Numbered(1)));
  const fwdmeta_meta_t meta = builder.meta();
  EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_meta_reader_end(meta, nullptr)) << "none has begun";
  ASSERT_OK(fwdmeta_meta_reader_begin(meta, nullptr));
  EXPECT_STATUS(FWDMETA_BUSY, fwdmeta_meta_destroy(meta));
  ASSERT_OK(fwdmeta_meta_reader_end(meta, nullptr));
  EXPECT_TRUE(builder.Run(Numbered(2))) << "and the set is free again";
}

TEST_P(Meta, MisalignedMemoryIsRefused) {
  std::vector<fwdmeta_group_config_t> groups;
  for (size_t offset : {1, 8, 16, 128}) {
    CountingAllocator device(Memory::kDevice), pinned(Memory::kPinned), host(Memory::kHost);
    struct Shifted {
      fwdmeta_allocator_t inner;
      size_t offset;
    } shifted{backend() == FWDMETA_BACKEND_HOST ? host.Get() : pinned.Get(), offset};
    const fwdmeta_allocator_t shifting = {
        [](size_t bytes, size_t alignment, void* user) -> void* {
          const Shifted* s = static_cast<Shifted*>(user);
          return static_cast<char*>(s->inner.alloc(bytes + 256, alignment, s->inner.user)) + s->offset;
        },
        [](void* memory, size_t bytes, void* user) {
          const Shifted* s = static_cast<Shifted*>(user);
          s->inner.free(static_cast<char*>(memory) - s->offset, bytes + 256, s->inner.user);
        },
        &shifted};
    fwdmeta_config_t c = ToC(SmallConfig(), backend(), &groups);
    c.device_allocator = device.Get();
    c.pinned_allocator = shifting;
    c.host_allocator = shifting;
    fwdmeta_builder_t builder = 0;
    EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_builder_create(&c, &builder)) << offset;
    for (const CountingAllocator* a : {&device, &pinned, &host}) {
      EXPECT_TRUE(a->WaitUntilEmpty());
      EXPECT_EQ("", a->misuse());
    }
  }
}

INSTANTIATE_BACKENDS(Meta);

// ---- the log

struct Records {
  std::vector<std::pair<int, std::string>> all;
  static void Add(fwdmeta_log_level_t level, const char* message, void* user) {
    static_cast<Records*>(user)->all.emplace_back(level, message);
    fwdmeta_log_set_callback(&Records::Add, user);  // no lock is held
  }
};

// With AUTO, the first builder that goes to the host for want of a device says so once.
TEST(Log, LevelsAndCallback) {
  Records records;
  ASSERT_OK(fwdmeta_log_set_callback(&Records::Add, &records));
  fwdmeta_config_t config = FWDMETA_CONFIG_INITIALIZER;
  config.max_batch_size = config.max_num_tokens = config.max_model_len = 4;
  config.num_q_heads = config.num_kv_heads = 1;
  fwdmeta_builder_t builder = 0;
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK(fwdmeta_log_set_level(FWDMETA_LOG_WARN));
    ASSERT_OK(fwdmeta_builder_create(&config, &builder));
    fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
    ASSERT_OK(fwdmeta_builder_get_info(builder, &info));
    EXPECT_EQ(NoCudaReason().empty() ? FWDMETA_BACKEND_CUDA : FWDMETA_BACKEND_HOST, info.backend);
    EXPECT_EQ(NoCudaReason().empty() ? 0u : 1u, records.all.size());
    for (const auto& record : records.all) {
      EXPECT_EQ(FWDMETA_LOG_WARN, record.first);
      EXPECT_NE("", record.second);
      EXPECT_EQ(std::string::npos, record.second.find('\n'));
    }
    ASSERT_OK(fwdmeta_builder_destroy(builder));
  }
  // Everything is recorded at TRACE, nothing at OFF.
  ASSERT_OK(fwdmeta_log_set_level(FWDMETA_LOG_TRACE));
  records.all.clear();
  ASSERT_OK(fwdmeta_builder_create(&config, &builder));
  ASSERT_OK(fwdmeta_builder_destroy(builder));
  EXPECT_FALSE(records.all.empty());
  ASSERT_OK(fwdmeta_log_set_level(FWDMETA_LOG_OFF));
  records.all.clear();
  ASSERT_OK(fwdmeta_builder_create(&config, &builder));
  ASSERT_OK(fwdmeta_builder_destroy(builder));
  EXPECT_TRUE(records.all.empty());
  for (int bad : {-1, 6, 100}) EXPECT_STATUS(FWDMETA_INVALID_ARGUMENT, fwdmeta_log_set_level(bad));
  ASSERT_OK(fwdmeta_log_set_callback(nullptr, nullptr));
  ASSERT_OK(fwdmeta_log_set_level(FWDMETA_LOG_WARN));
}

}  // namespace
}  // namespace fwdmeta_test
