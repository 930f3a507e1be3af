#include "batch_file.h"

#include <algorithm>
#include <string_view>

#include "json_fields.h"

namespace fwdmeta::command {

namespace {

constexpr const char* kSchema = "fwdmeta.batch/1";

fwdmeta_attention_t read_attention(const JsonFile& file, const JsonValue& value) {
  const std::string& name = file.string(value, "attention");
  if (name == "append") return FWDMETA_ATTENTION_APPEND;
  if (name == "mla") return FWDMETA_ATTENTION_MLA;
  file.fail(value.offset, "unknown attention " + printable(name) + "; it is \"append\" or \"mla\"");
}

std::vector<fwdmeta_group_config_t> read_groups(const JsonFile& file, const JsonValue& value) {
  std::vector<fwdmeta_group_config_t> groups;
  for (const JsonValue& item : file.list(value, "groups")) {
    const JsonObject object(file, item, "a group", {"block_size", "kernel_block_size", "replicated"});
    fwdmeta_group_config_t& group = groups.emplace_back(fwdmeta_group_config_t{64, FWDMETA_DEFAULT, 0});
    set(object, "block_size", group.block_size);
    set(object, "kernel_block_size", group.kernel_block_size);
    const JsonValue* replicated = object.find("replicated");
    if (replicated != nullptr) group.replicated = file.boolean(*replicated, "replicated");
  }
  return groups;
}

void read_config(const JsonFile& file, const JsonValue& value, BatchFile& batch) {
  const JsonObject object(
      file, value, "config",
      {"max_batch_size", "max_num_tokens", "max_model_len", "num_q_heads", "num_kv_heads", "block_size",
       "encoder_block_shape_q", "decoder_block_shape_q", "attention", "mla_chunk_size", "num_sms", "pad_token_id",
       "pad_seq_len", "max_num_kv_tokens", "cp_size", "cp_rank", "cp_interleave", "kernel_block_size", "groups"});
  fwdmeta_config_t& config = batch.config;
  config.max_batch_size = object.required_integer("max_batch_size");
  config.max_num_tokens = object.required_integer("max_num_tokens");
  config.max_model_len = object.required_integer("max_model_len");
  config.num_q_heads = object.required_integer("num_q_heads");
  config.num_kv_heads = object.required_integer("num_kv_heads");
  set(object, "block_size", config.block_size);
  set(object, "encoder_block_shape_q", config.encoder_block_shape_q);
  set(object, "decoder_block_shape_q", config.decoder_block_shape_q);
  if (const JsonValue* attention = object.find("attention")) config.attention = read_attention(file, *attention);
  set(object, "mla_chunk_size", config.mla_chunk_size);
  set(object, "num_sms", config.num_sms);
  set(object, "pad_token_id", config.pad_token_id);
  set(object, "pad_seq_len", config.pad_seq_len);
  set(object, "max_num_kv_tokens", config.max_num_kv_tokens);
  set(object, "cp_size", config.cp_size);
  set(object, "cp_rank", config.cp_rank);
  set(object, "cp_interleave", config.cp_interleave);
  set(object, "kernel_block_size", config.kernel_block_size);
  if (const JsonValue* groups = object.find("groups")) batch.groups = read_groups(file, *groups);
}

Rows read_rows(const JsonFile& file, const JsonValue& value, size_t slots, const std::string& what) {
  std::vector<std::vector<int64_t>> rows;
  for (const JsonValue& item : file.list(value, what)) rows.push_back(read_integers(file, item, "a row of " + what));
  require_length(file, value, rows.size(), slots, what, "slots");
  Rows result;
  for (const auto& row : rows) {
    result.lengths.push_back(static_cast<int32_t>(row.size()));
    result.width = std::max<int64_t>(result.width, row.size());
  }
  result.values.resize(rows.size() * result.width);
  for (size_t slot = 0; slot < rows.size(); ++slot) {
    std::copy(rows[slot].begin(), rows[slot].end(), result.values.begin() + slot * result.width);
  }
  return result;
}

std::vector<Rows> read_block_tables(const JsonFile& file, const JsonValue& value, const BatchFile& batch) {
  const size_t slots = batch.seq_lens_this_time.size();
  if (!batch.groups) return {read_rows(file, value, slots, "block_tables")};
  std::vector<Rows> tables;
  for (const JsonValue& table : file.list(value, "block_tables")) {
    tables.push_back(read_rows(file, table, slots, "a table of block_tables"));
  }
  require_length(file, value, tables.size(), batch.groups->size(), "block_tables", "groups");
  return tables;
}

void read_batch(const JsonFile& file, const JsonValue& value, BatchFile& batch) {
  const JsonObject object(file, value, "batch",
                          {"seq_lens_encoder", "seq_lens_decoder", "seq_lens_this_time", "block_tables", "input_ids",
                           "draft_tokens", "num_padded_tokens"});
  const auto lengths = [&](const char* key) { return read_integers(file, object.require(key), key); };
  batch.seq_lens_encoder = lengths("seq_lens_encoder");
  batch.seq_lens_decoder = lengths("seq_lens_decoder");
  batch.seq_lens_this_time = lengths("seq_lens_this_time");
  const size_t slots = batch.seq_lens_encoder.size();
  require_length(file, object.require("seq_lens_decoder"), batch.seq_lens_decoder.size(), slots, "seq_lens_decoder",
                 "in seq_lens_encoder");
  require_length(file, object.require("seq_lens_this_time"), batch.seq_lens_this_time.size(), slots,
                 "seq_lens_this_time", "in seq_lens_encoder");
  if (const JsonValue* tables = object.find("block_tables"))
    batch.block_tables = read_block_tables(file, *tables, batch);
  if (const JsonValue* ids = object.find("input_ids")) batch.input_ids = read_rows(file, *ids, slots, "input_ids");
  if (const JsonValue* drafts = object.find("draft_tokens")) {
    batch.draft_tokens = read_rows(file, *drafts, slots, "draft_tokens");
  }
  batch.num_padded_tokens = object.integer_or("num_padded_tokens", -1);
}

fwdmeta_capacity_query_t read_bucket(const JsonFile& file, const JsonValue& value) {
  const JsonObject object(file, value, "bucket", {"slots", "tokens"});
  fwdmeta_capacity_query_t query = FWDMETA_CAPACITY_QUERY_INITIALIZER;
  set(object, "slots", query.slots);
  set(object, "tokens", query.tokens);
  return query;
}

}  // namespace

BatchFile read_batch_file(const std::string& path) {
  const JsonFile file(path);
  const JsonObject object(file, file.root(), "the batch file", {"schema", "config", "batch", "bucket"});
  object.require("schema");
  check_schema(file, object, kSchema);
  BatchFile batch;
  read_config(file, object.require("config"), batch);
  read_batch(file, object.require("batch"), batch);
  if (const JsonValue* bucket = object.find("bucket")) batch.bucket = read_bucket(file, *bucket);
  return batch;
}

}  // namespace fwdmeta::command
