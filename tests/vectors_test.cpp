// The vectors that came with the contract: the model must give them, and the library on each backend.
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "harness.h"

namespace fwdmeta_test {
namespace {

using nlohmann::json;

struct Vector {
  std::string name;
  reference::Config config;
  reference::Batch batch;
  json counts, fields;
};

template <typename T>
reference::Rows<T> RowsOf(const json& rows) {
  return reference::Rows<T>::Of(rows.get<std::vector<std::vector<T>>>());
}

bool Has(const json& object, const char* key) { return object.contains(key) && !object[key].is_null(); }

Vector Parse(const std::string& line) {
  const json all = json::parse(line);
  const json& c = all["input"]["config"];
  const json& b = all["input"]["batch"];
  Vector v;
  v.name = all["name"];
  const auto set = [&c](const char* key, int64_t* to) {
    if (Has(c, key)) *to = c[key];
  };
  set("max_batch_size", &v.config.max_batch_size);
  set("max_num_tokens", &v.config.max_num_tokens);
  set("max_model_len", &v.config.max_model_len);
  set("max_num_kv_tokens", &v.config.max_num_kv_tokens);
  set("num_q_heads", &v.config.num_q_heads);
  set("num_kv_heads", &v.config.num_kv_heads);
  set("encoder_block_shape_q", &v.config.encoder_block_shape_q);
  set("decoder_block_shape_q", &v.config.decoder_block_shape_q);
  set("mla_chunk_size", &v.config.mla_chunk_size);
  set("num_sms", &v.config.num_sms);
  set("pad_token_id", &v.config.pad_token_id);
  set("pad_seq_len", &v.config.pad_seq_len);
  set("cp_size", &v.config.cp_size);
  set("cp_rank", &v.config.cp_rank);
  set("cp_interleave", &v.config.cp_interleave);
  v.config.mla = c.value("attention", "append") == "mla";
  const auto group = [](const json& from) {
    reference::Group g;
    if (Has(from, "block_size")) g.block_size = from["block_size"];
    g.kernel_block_size = Has(from, "kernel_block_size") ? from["kernel_block_size"].get<int64_t>() : g.block_size;
    g.replicated = from.value("replicated", false);
    return g;
  };
  v.config.groups.clear();
  const bool grouped = Has(c, "groups");
  if (grouped) {
    for (const json& g : c["groups"]) v.config.groups.push_back(group(g));
  } else {
    v.config.groups.push_back(group(c));
  }
  v.batch.encoder = b["seq_lens_encoder"].get<std::vector<int32_t>>();
  v.batch.decoder = b["seq_lens_decoder"].get<std::vector<int32_t>>();
  v.batch.this_time = b["seq_lens_this_time"].get<std::vector<int32_t>>();
  if (Has(b, "num_padded_tokens")) v.batch.num_padded_tokens = b["num_padded_tokens"];
  if (Has(b, "block_tables")) {
    if (grouped) {
      for (const json& table : b["block_tables"]) v.batch.block_tables.push_back(RowsOf<int32_t>(table));
    } else {
      v.batch.block_tables.push_back(RowsOf<int32_t>(b["block_tables"]));
    }
  }
  if (Has(b, "input_ids")) v.batch.input_ids = RowsOf<int64_t>(b["input_ids"]);
  if (Has(b, "draft_tokens")) v.batch.draft_tokens = RowsOf<int64_t>(b["draft_tokens"]);
  v.counts = all["expected"]["counts"];
  v.fields = all["expected"]["fields"];
  return v;
}

const std::vector<Vector>& Vectors() {
  static const std::vector<Vector> vectors = [] {
    std::vector<Vector> out;
    const char* elsewhere = std::getenv("FWDMETA_TEST_DATA");  // where the tests run far from their sources
    std::ifstream file(std::string(elsewhere != nullptr ? elsewhere : FWDMETA_TEST_DATA) + "/batches.jsonl");
    for (std::string line; std::getline(file, line);) {
      if (!line.empty()) out.push_back(Parse(line));
    }
    return out;
  }();
  return vectors;
}

int FieldByName(const std::string& name) {
  for (int f = 0; f < FWDMETA_FIELD_COUNT; ++f) {
    if (name == fwdmeta_field_name(f)) return f;
  }
  return -1;
}

// Compares a vector's lists, which are live prefixes, with what `read(field, group)` gives.
template <typename ReadField>
void ExpectVector(const Vector& v, const fwdmeta_counts_t& counts, const ReadField& read) {
  for (const auto& [name, value] : v.counts.items()) {
    bool known = false;
    for (const CountName& count : kCountNames) {
      if (name != count.name) continue;
      known = true;
      EXPECT_EQ(value.template get<int64_t>(), counts.*count.member) << v.name << " " << name;
    }
    EXPECT_TRUE(known) << name;
  }
  for (const auto& [name, value] : v.fields.items()) {
    const int field = FieldByName(name);
    ASSERT_GE(field, 0) << name;
    const bool nested = !value.empty() && value[0].is_array();
    const size_t groups = nested ? value.size() : 1;
    for (size_t g = 0; g < groups; ++g) {
      const auto want = (nested ? value[g] : value).template get<std::vector<int64_t>>();
      std::vector<int64_t> got = read(field, static_cast<int32_t>(g));
      ASSERT_LE(want.size(), got.size()) << v.name << " " << name;
      got.resize(want.size());
      EXPECT_EQ(want, got) << v.name << " " << name;
    }
  }
}

TEST(VectorsOfTheModel, All) {
  ASSERT_EQ(72u, Vectors().size());
  for (const Vector& v : Vectors()) {
    const reference::Result result = reference::Build(v.config, v.batch);
    ASSERT_EQ(0, result.counts.error) << v.name;
    ExpectVector(v, result.counts, [&](int field, int32_t group) {
      const std::vector<int64_t>& all = result.fields[field];
      const auto size =
          static_cast<int64_t>(all.size() / (field == FWDMETA_FIELD_SLOT_MAPPING ? v.config.groups.size() : 1));
      return std::vector<int64_t>(all.begin() + group * size, all.begin() + (group + 1) * size);
    });
  }
}

class VectorsOfTheLibrary : public BackendTest {};

TEST_P(VectorsOfTheLibrary, All) {
  ASSERT_EQ(72u, Vectors().size());
  for (const Vector& v : Vectors()) {
    Builder builder(backend(), v.config);
    for (const fwdmeta_memory_kind_t kind : {FWDMETA_MEMORY_DEVICE, FWDMETA_MEMORY_HOST}) {
      ASSERT_TRUE(builder.Run(v.batch, kind)) << v.name;
      ExpectVector(v, builder.Counts(), [&](int field, int32_t group) { return builder.Read(field, group); });
    }
  }
}

INSTANTIATE_BACKENDS(VectorsOfTheLibrary);

}  // namespace
}  // namespace fwdmeta_test
