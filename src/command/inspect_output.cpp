#include "inspect_output.h"

#include <algorithm>
#include <array>

namespace fwdmeta::command {

namespace {

constexpr size_t kShownLines = 24;
constexpr int64_t kShownMarks = 48;

using NamedValues = std::vector<std::pair<std::string, int64_t>>;

NamedValues named(const fwdmeta_capacities_t& capacities) {
  return {{"decoder", capacities.decoder},
          {"encoder", capacities.encoder},
          {"kv", capacities.kv},
          {"pre_cache", capacities.pre_cache},
          {"block_table_width", capacities.block_table_width[0]}};
}

Json object(const NamedValues& values) {
  Json json = Json::object();
  for (const auto& [name, value] : values) json[name] = value;
  return json;
}

std::string slot_table(const BatchFile& file) {
  const size_t slots = file.seq_lens_this_time.size();
  std::string text = "slots\n";
  text += printed("  %7s  %-7s  %10s  %10s  %10s\n", "slot", "role", "encoder", "decoder", "this_time");
  for (size_t slot = 0; slot < std::min(slots, kShownLines); ++slot) {
    const int64_t encoder = file.seq_lens_encoder[slot], decoder = file.seq_lens_decoder[slot],
                  this_time = file.seq_lens_this_time[slot];
    text +=
        printed("  %7zu  %-7s  %10lld  %10lld  %10lld\n", slot, role(encoder, this_time),
                static_cast<long long>(encoder), static_cast<long long>(decoder), static_cast<long long>(this_time));
  }
  if (slots > kShownLines) text += printed("  ... %zu more\n", slots - kShownLines);
  return text;
}

std::string range(int64_t begin, int64_t end) {
  return end - begin == 1 ? std::to_string(begin) : std::to_string(begin) + ".." + std::to_string(end - 1);
}

// Each slot that has tiles: its thread blocks, its tiles, and a bar of as many marks.
std::string mapping_table(const Inspection& inspection, const char* name, fwdmeta_field_t slots_field,
                          fwdmeta_field_t tiles_field, int64_t count) {
  const std::vector<int64_t>&slots = inspection.array(slots_field), &tiles = inspection.array(tiles_field);
  std::vector<std::array<std::string, 3>> rows = {{"slot", "thread blocks", "tiles"}};
  std::vector<int64_t> bars = {0};
  size_t hidden = 0;
  for (int64_t begin = 0, end = 0; begin < count; begin = end) {
    while (end < count && slots[end] == slots[begin]) ++end;
    if (rows.size() > kShownLines) {
      ++hidden;
      continue;
    }
    rows.push_back({std::to_string(slots[begin]), range(begin, end), range(tiles[begin], tiles[end - 1] + 1)});
    bars.push_back(end - begin);
  }
  std::string text = printed("%s: %lld thread blocks\n", name, static_cast<long long>(count));
  if (count == 0) return text;
  int widths[3] = {7, 0, 0};
  for (const auto& row : rows) {
    for (int i = 0; i < 3; ++i) widths[i] = std::max(widths[i], static_cast<int>(row[i].size()));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    std::string line = printed("  %*s  %-*s  %-*s  ", widths[0], rows[i][0].c_str(), widths[1], rows[i][1].c_str(),
                               widths[2], rows[i][2].c_str());
    const auto room = std::min(static_cast<int64_t>(kColumns - line.size()) - 1, kShownMarks);
    line += std::string(std::min(bars[i], room), '#') + (bars[i] > room ? "+" : "");
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  if (hidden > 0) text += printed("  ... %zu more slots\n", hidden);
  return text;
}

}  // namespace

std::vector<std::pair<std::string, int64_t>> named(const fwdmeta_counts_t& counts) {
  return {{"batch_size", counts.batch_size},
          {"num_live", counts.num_live},
          {"num_prefill", counts.num_prefill},
          {"num_decode", counts.num_decode},
          {"num_tokens", counts.num_tokens},
          {"num_padded_tokens", counts.num_padded_tokens},
          {"num_kv_tokens", counts.num_kv_tokens},
          {"num_attn_kv_tokens", counts.num_attn_kv_tokens},
          {"decoder_num_blocks", counts.decoder_num_blocks},
          {"encoder_num_blocks", counts.encoder_num_blocks},
          {"kv_num_blocks", counts.kv_num_blocks},
          {"pre_cache_num_blocks", counts.pre_cache_num_blocks},
          {"num_output_tokens", counts.num_output_tokens},
          {"num_invalid_slots", counts.num_invalid_slots},
          {"num_invalid_ids", counts.num_invalid_ids},
          {"warnings", counts.warnings}};
}

Json to_json(const Inspection& inspection, bool grouped) {
  Json json = answer(kResultSchema, "ok");
  json["backend"] = backend_name(inspection.backend);
  json["counts"] = object(named(inspection.counts));
  Json& fields = json["fields"] = Json::object();
  for (const auto& [field, arrays] : inspection.fields) {
    Json& value = fields[fwdmeta_field_name(field)];
    if (field == FWDMETA_FIELD_SLOT_MAPPING && grouped) {
      value = arrays;
    } else {
      value = arrays.front();
    }
  }
  return json;
}

Json to_json(const CapacityReport& report) {
  Json json = answer(kCapacitiesSchema, "ok");
  json["capacities"] = object(named(report.capacities));
  if (report.bucket) json["bucket"] = object(named(*report.bucket));
  return json;
}

std::string to_table(const Inspection& inspection, const BatchFile& file) {
  const fwdmeta_counts_t& counts = inspection.counts;
  std::string text = printed("backend: %s\n\n", backend_name(inspection.backend));
  text += slot_table(file);
  text += "\ncounts\n" + name_value_table(named(counts)) + "\n";
  text += mapping_table(inspection, "decoder", FWDMETA_FIELD_DECODER_BATCH_IDS,
                        FWDMETA_FIELD_DECODER_TILE_IDS_PER_BATCH, counts.decoder_num_blocks);
  text += mapping_table(inspection, "encoder", FWDMETA_FIELD_ENCODER_BATCH_IDS,
                        FWDMETA_FIELD_ENCODER_TILE_IDS_PER_BATCH, counts.encoder_num_blocks);
  text += mapping_table(inspection, "kv", FWDMETA_FIELD_KV_BATCH_IDS, FWDMETA_FIELD_KV_TILE_IDS_PER_BATCH,
                        counts.kv_num_blocks);
  text += mapping_table(inspection, "pre_cache", FWDMETA_FIELD_PRE_CACHE_BATCH_IDS,
                        FWDMETA_FIELD_PRE_CACHE_TILE_IDS_PER_BATCH, counts.pre_cache_num_blocks);
  text += "\nfields\n";
  for (const auto& [field, arrays] : inspection.fields) {
    for (size_t group = 0; group < arrays.size(); ++group) {
      std::string name = fwdmeta_field_name(field);
      if (arrays.size() > 1) name += "[" + std::to_string(group) + "]";
      const std::string label = printed("  %-28s  ", name.c_str());
      text += label + fitted(arrays[group], kColumns - label.size()) + "\n";
    }
  }
  return text;
}

std::string to_table(const CapacityReport& report) {
  std::string text = "capacities\n" + name_value_table(named(report.capacities));
  if (report.bucket) text += "bucket\n" + name_value_table(named(*report.bucket));
  return text;
}

}  // namespace fwdmeta::command
