#include "inspect_picture.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "inspect_output.h"
#include "picture.h"

namespace fwdmeta::command {

namespace {

constexpr int64_t kMostRows = 64;
constexpr double kMargin = 16, kGap = 14;
constexpr double kPanelWidth = 160, kCountsWidth = 220;
constexpr double kWidestCell = 26, kNarrowestCell = 8, kNarrowestBar = 1.5;
constexpr double kLine = 15;
constexpr int kShownDigits = 12;

struct Mapping {
  const char* name;
  fwdmeta_field_t tile_ids, cu_tiles;
  int64_t needed;    // thread blocks with a tile
  int64_t launched;  // thread blocks of a captured consumer's grid
  int64_t capacity;
  const char* unit;  // what a tile holds
  int64_t room;      // of all tiles
  int64_t used;
};

// Consecutive slots that share a line of the picture, mostly one.
struct Row {
  int64_t begin = 0, end = 0;
  int64_t num_prefill = 0, num_decode = 0;
  int64_t cached = 0, tokens = 0;  // of live slots

  int64_t num_slots() const { return end - begin; }
  int64_t num_idle() const { return num_slots() - num_prefill - num_decode; }
  std::string slots() const { return std::to_string(begin) + (num_slots() > 1 ? "–" + std::to_string(end - 1) : ""); }
};

std::vector<Row> rows_of(const BatchFile& file, int64_t slots_a_row) {
  std::vector<Row> rows;
  const auto slots = static_cast<int64_t>(file.seq_lens_this_time.size());
  for (int64_t slot = 0; slot < slots; ++slot) {
    if (slot % slots_a_row == 0) rows.emplace_back().begin = slot;
    Row& row = rows.back();
    row.end = slot + 1;
    if (file.seq_lens_this_time[slot] == 0) continue;
    ++(file.seq_lens_encoder[slot] > 0 ? row.num_prefill : row.num_decode);
    row.cached += file.seq_lens_decoder[slot];
    row.tokens += file.seq_lens_this_time[slot];
  }
  return rows;
}

struct Totals {
  int64_t prefill_tokens = 0, decode_tokens = 0, prefill_cached = 0, decode_cached = 0;
};

Totals totals_of(const BatchFile& file) {
  Totals totals;
  for (size_t slot = 0; slot < file.seq_lens_this_time.size(); ++slot) {
    if (file.seq_lens_this_time[slot] == 0) continue;
    const bool prefill = file.seq_lens_encoder[slot] > 0;
    (prefill ? totals.prefill_tokens : totals.decode_tokens) += file.seq_lens_this_time[slot];
    (prefill ? totals.prefill_cached : totals.decode_cached) += file.seq_lens_decoder[slot];
  }
  return totals;
}

std::vector<Mapping> mappings_of(const Inspection& inspection, const BatchFile& file, const fwdmeta_capacities_t& grid,
                                 const fwdmeta_capacities_t& whole) {
  const fwdmeta_counts_t& counts = inspection.counts;
  const fwdmeta_config_t& config = file.config;
  const Totals totals = totals_of(file);
  const int64_t heads = config.num_q_heads / config.num_kv_heads;
  const int64_t block_size = file.groups ? file.groups->front().block_size : config.block_size;
  const bool mla = config.attention == FWDMETA_ATTENTION_MLA;
  const int64_t decoder_tile = mla ? counts.decoder_chunk_size : config.decoder_block_shape_q;
  const int64_t decoder_used = mla ? totals.decode_cached + totals.decode_tokens : totals.decode_tokens * heads;
  return {
      {"decoder", FWDMETA_FIELD_DECODER_TILE_IDS_PER_BATCH, FWDMETA_FIELD_DECODER_CU_TILES, counts.decoder_num_blocks,
       grid.decoder, whole.decoder, mla ? "keys" : "rows", counts.decoder_num_blocks * decoder_tile, decoder_used},
      {"encoder", FWDMETA_FIELD_ENCODER_TILE_IDS_PER_BATCH, FWDMETA_FIELD_ENCODER_CU_TILES, counts.encoder_num_blocks,
       grid.encoder, whole.encoder, "rows", counts.encoder_num_blocks * config.encoder_block_shape_q,
       totals.prefill_tokens * heads},
      {"kv", FWDMETA_FIELD_KV_TILE_IDS_PER_BATCH, FWDMETA_FIELD_KV_CU_TILES, counts.kv_num_blocks, grid.kv, whole.kv,
       "keys", counts.kv_num_blocks * block_size, totals.prefill_tokens},
      {"pre_cache", FWDMETA_FIELD_PRE_CACHE_TILE_IDS_PER_BATCH, FWDMETA_FIELD_PRE_CACHE_CU_TILES,
       counts.pre_cache_num_blocks, grid.pre_cache, whole.pre_cache, "keys", counts.pre_cache_num_blocks * block_size,
       totals.prefill_cached},
  };
}

std::string plural(int64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string range(const char* noun, int64_t begin, int64_t end) {
  const std::string first = std::to_string(begin);
  return end - begin == 1 ? noun + (" " + first) : noun + ("s " + first + " to " + std::to_string(end - 1));
}

class Drawing {
 public:
  Drawing(const Inspection& inspection, const BatchFile& file, const CapacityReport& capacities)
      : inspection_(inspection), file_(file) {
    const fwdmeta_counts_t& counts = inspection.counts;
    slots_a_row_ = std::max<int64_t>((counts.batch_size + kMostRows - 1) / kMostRows, 1);
    rows_ = rows_of(file, slots_a_row_);
    fits_bucket_ = file.bucket && fits(*file.bucket);
    mappings_ =
        mappings_of(inspection, file, fits_bucket_ ? *capacities.bucket : capacities.capacities, capacities.capacities);
    row_height_ = rows_.size() > 24 ? 13 : 18;
    for (const Row& row : rows_) {
      slot_width_ = std::max(slot_width_, text_width(row.slots()));
      cached_width_ = std::max(cached_width_, text_width(std::to_string(row.cached)));
      tokens_width_ = std::max(tokens_width_, text_width(std::to_string(row.tokens)));
    }
    slot_right_ = kMargin + slot_width_;
    cached_right_ = slot_right_ + kGap + role_width_ + kGap + cached_width_;
    tokens_right_ = cached_right_ + kGap + tokens_width_;
    panels_left_ = tokens_right_ + kGap;
    counts_left_ = panel_left(mappings_.size()) + kGap;
  }

  std::string draw() {
    const fwdmeta_counts_t& counts = inspection_.counts;
    const std::string title =
        "One step: " + plural(counts.batch_size, "slot") + " and " + plural(counts.num_tokens, "token");
    picture_.text(kMargin, 28, title, {Anchor::start, "b", 15});
    picture_.text(kMargin, 46,
                  "which thread blocks of a kernel work on which slot, in each mapping; slots go down,"
                  " thread blocks go right",
                  {Anchor::start, "dim"});
    double y = draw_tokens(64);
    y = draw_panels(y + 24);
    y = draw_waste(y + 24);
    y = draw_notes(y + 8);
    const double counts_end = draw_counts(64);
    return picture_.finish(counts_left_ + kCountsWidth + kMargin, std::max(y, counts_end) + 8, title);
  }

 private:
  bool fits(const fwdmeta_capacity_query_t& bucket) const {
    const int64_t slots = bucket.slots == FWDMETA_DEFAULT ? file_.config.max_batch_size : bucket.slots;
    const int64_t tokens = bucket.tokens == FWDMETA_DEFAULT ? file_.config.max_num_tokens : bucket.tokens;
    return inspection_.counts.batch_size <= slots && inspection_.counts.num_padded_tokens <= tokens;
  }

  double panel_left(size_t panel) const { return panels_left_ + static_cast<double>(panel) * (kPanelWidth + kGap); }
  double panels_width() const { return panel_left(mappings_.size()) - kGap - panels_left_; }

  // The tokens by role, and padding up to T.
  double draw_tokens(double y) {
    const fwdmeta_counts_t& counts = inspection_.counts;
    const int64_t prefill = totals_of(file_).prefill_tokens, padding = counts.num_padded_tokens - counts.num_tokens;
    picture_.text(kMargin, y + 14, "tokens by role", {Anchor::start, "b"});
    const double scale = panels_width() / static_cast<double>(std::max(counts.num_padded_tokens, 1));
    double x = panels_left_;
    std::string words;
    for (const auto& [style, noun, tokens] : {std::tuple("decoder", "decode", counts.num_tokens - prefill),
                                              {"encoder", "prefill", prefill},
                                              {"padding", "padding", padding}}) {
      if (tokens > 0) {
        picture_.rect(style, x, y, scale * static_cast<double>(tokens), 18, std::to_string(tokens) + " " + noun);
      }
      x += scale * static_cast<double>(tokens);
      words += std::to_string(tokens) + " " + noun + (std::string(noun) == "padding" ? " = " : " + ");
    }
    picture_.text(panels_left_, y + 33, words + std::to_string(counts.num_padded_tokens), {Anchor::start, "dim"});
    return y + 36;
  }

  double draw_panels(double y) {
    picture_.text(slot_right_, y, "slot", {Anchor::end, "b"});
    picture_.text(slot_right_ + kGap, y, "role", {Anchor::start, "b"});
    picture_.text(cached_right_, y, "cached", {Anchor::end, "b"});
    picture_.text(tokens_right_, y, "new", {Anchor::end, "b"});
    for (size_t m = 0; m < mappings_.size(); ++m) {
      picture_.rect(mappings_[m].name, panel_left(m), y - 9, 10, 10);
      picture_.text(panel_left(m) + 16, y, mappings_[m].name, {Anchor::start, "b"});
    }
    y += 8;
    for (const Row& row : rows_) {
      draw_row(row, y);
      y += row_height_;
    }
    if (rows_.empty()) {
      picture_.text(kMargin, y + 12, "no slot", {Anchor::start, "dim"});
      y += row_height_;
    }
    for (size_t m = 0; m < mappings_.size(); ++m) draw_axis(mappings_[m], panel_left(m), y);
    return y + 18;
  }

  void draw_row(const Row& row, double y) {
    const double baseline = y + row_height_ / 2 + 4;
    picture_.text(slot_right_, baseline, row.slots(), {Anchor::end});
    const bool idle = row.num_idle() == row.num_slots();
    if (row.num_slots() == 1) {
      const char* name = role(file_.seq_lens_encoder[row.begin], file_.seq_lens_this_time[row.begin]);
      picture_.text(slot_right_ + kGap, baseline, name, {Anchor::start, idle ? "dim" : ""});
    } else {
      draw_roles(row, y);
    }
    const double bar_y = y + 1.5, bar_height = row_height_ - 3;
    if (idle) {
      picture_.rect("idle", panels_left_, bar_y, panels_width(), bar_height, range("slot", row.begin, row.end));
      return;
    }
    picture_.text(cached_right_, baseline, std::to_string(row.cached), {Anchor::end});
    picture_.text(tokens_right_, baseline, std::to_string(row.tokens), {Anchor::end});
    picture_.line("grid", panels_left_, y + row_height_, panels_left_ + panels_width(), y + row_height_);
    for (size_t m = 0; m < mappings_.size(); ++m) draw_blocks(mappings_[m], row, panel_left(m), bar_y, bar_height);
  }

  // What the slots of a row are, in proportion.
  void draw_roles(const Row& row, double y) {
    double x = slot_right_ + kGap;
    for (const auto& [style, noun, slots] : {std::tuple("encoder", "prefill", row.num_prefill),
                                             {"decoder", "decode", row.num_decode},
                                             {"idle", "idle", row.num_idle()}}) {
      if (slots == 0) continue;
      const double width = role_width_ * static_cast<double>(slots) / static_cast<double>(row.num_slots());
      picture_.rect(style, x, y + 2.5, width, row_height_ - 5, std::to_string(slots) + " " + noun);
      x += width;
    }
  }

  static double cell_width(const Mapping& mapping) {
    return std::min(kWidestCell, kPanelWidth / static_cast<double>(std::max<int64_t>(mapping.needed, 1)));
  }

  void draw_blocks(const Mapping& mapping, const Row& row, double left, double y, double height) {
    const std::vector<int64_t>& cu_tiles = inspection_.array(mapping.cu_tiles);
    const int64_t begin = cu_tiles[row.begin], end = cu_tiles[row.end];
    if (begin == end) return;
    const double cell = cell_width(mapping);
    const std::string slots = range("slot", row.begin, row.end);
    if (cell < kNarrowestCell) {
      const double width = std::max(cell * static_cast<double>(end - begin), kNarrowestBar);
      widened_ = widened_ || width > cell * static_cast<double>(end - begin);
      const double x = std::min(left + cell * static_cast<double>(begin), left + kPanelWidth - width);
      picture_.rect(mapping.name, x, y, width, height, slots + ": " + range("thread block", begin, end));
      return;
    }
    const std::vector<int64_t>& tiles = inspection_.array(mapping.tile_ids);
    for (int64_t block = begin; block < end; ++block) {
      const double x = left + cell * static_cast<double>(block);
      const std::string tile = std::to_string(tiles[block]);
      picture_.rect(
          mapping.name, x, y, cell, height,
          slots + ": " + range("thread block", block, block + 1) + (row.num_slots() == 1 ? ", tile " + tile : ""));
      if (row.num_slots() == 1 && height >= 12 && text_width(tile, 10) + 3 <= cell) {
        picture_.text(x + cell / 2, y + height / 2 + 3.5, tile, {Anchor::middle, "", 10});
      }
    }
  }

  void draw_axis(const Mapping& mapping, double left, double y) {
    const double width = cell_width(mapping) * static_cast<double>(mapping.needed);
    picture_.line("axis", left, y + 2, left + kPanelWidth, y + 2);
    if (mapping.needed == 0) {
      picture_.text(left, y + 15, "no thread block", {Anchor::start, "dim"});
      return;
    }
    picture_.line("axis", left, y + 2, left, y + 6);
    picture_.line("axis", left + width, y + 2, left + width, y + 6);
    const std::string end = std::to_string(mapping.needed);
    picture_.text(left, y + 16, "0", {Anchor::start, "dim", 10});
    picture_.text(std::max(left + width, left + 12 + text_width(end, 10)), y + 16, end, {Anchor::end, "dim", 10});
  }

  // Below each panel: the thread blocks of a fixed grid that find a tile, and how full the tiles are.
  double draw_waste(double y) {
    for (size_t m = 0; m < mappings_.size(); ++m) {
      const Mapping& mapping = mappings_[m];
      const double left = panel_left(m), share = static_cast<double>(mapping.needed) /
                                                 static_cast<double>(std::max<int64_t>(mapping.launched, 1));
      const double width = mapping.needed == 0 ? 0 : std::max(share * kPanelWidth, kNarrowestBar);
      if (mapping.launched > mapping.needed) picture_.rect("padding", left + width, y, kPanelWidth - width, 10);
      if (width > 0) picture_.rect(mapping.name, left, y, width, 10);
      const std::string name = mapping.name;
      const std::pair<const char*, int64_t> blocks[] = {{"needed", mapping.needed},
                                                        {"launched", mapping.launched},
                                                        {"capacity", mapping.capacity},
                                                        {"tail", mapping.capacity - mapping.needed}};
      double line = y + 26;
      for (const auto& [label, value] : blocks) {
        picture_.row(left, line, kPanelWidth, label, std::to_string(value), name + "_" + label);
        line += kLine;
      }
      picture_.row(left, line, kPanelWidth, "launched in vain",
                   percent(mapping.launched - mapping.needed, mapping.launched));
      line += kLine + 5;
      picture_.row(left, line, kPanelWidth, std::string(mapping.unit) + " in tiles",
                   shortened(mapping.room, kShownDigits), name + "_room");
      picture_.row(left, line + kLine, kPanelWidth, std::string(mapping.unit) + " used",
                   shortened(mapping.used, kShownDigits), name + "_used");
      picture_.row(left, line + 2 * kLine, kPanelWidth, "room in vain",
                   percent(mapping.room - mapping.used, mapping.room));
    }
    picture_.text(kMargin, y + 9, "waste", {Anchor::start, "b"});
    return y + 26 + 7 * kLine + 5;
  }

  double draw_notes(double y) {
    std::vector<std::string> notes;
    notes.push_back(std::string("launched: the grid of a captured consumer, which is the ") +
                    (fits_bucket_ ? "bound of the bucket" : "capacity") + "; tail: the entries that are −1");
    if (file_.bucket && !fits_bucket_) notes.push_back("The step does not fit the bucket.");
    if (slots_a_row_ > 1) {
      notes.push_back("A line is " + std::to_string(slots_a_row_) +
                      " consecutive slots: their roles in proportion, the sums of "
                      "their lengths, and the thread blocks of all of them.");
    }
    if (widened_) {
      notes.push_back("A bar is at least 1.5 pixels wide, however few thread blocks it stands for.");
    }
    for (const std::string& note : notes) {
      y += kLine;
      picture_.text(kMargin, y, note, {Anchor::start, "dim"});
    }
    return y + 6;
  }

  double draw_counts(double y) {
    picture_.text(counts_left_, y + 14, "counts", {Anchor::start, "b"});
    y += 14;
    for (const auto& [name, value] : named(inspection_.counts)) {
      y += kLine + 1;
      picture_.row(counts_left_, y, kCountsWidth, name, std::to_string(value), name);
    }
    y += kLine + 9;
    picture_.row(counts_left_, y, kCountsWidth, "max_batch_size", std::to_string(file_.config.max_batch_size));
    y += kLine + 1;
    picture_.row(counts_left_, y, kCountsWidth, "max_num_tokens", std::to_string(file_.config.max_num_tokens));
    y += kLine + 1;
    picture_.row(counts_left_, y, kCountsWidth, "backend", backend_name(inspection_.backend));
    y += kLine + 9;
    for (const auto& [style, words] :
         {std::pair("idle", "idle slot, no thread block"), {"padding", "padding, or launched in vain"}}) {
      picture_.rect(style, counts_left_, y - 10, 18, 12);
      picture_.text(counts_left_ + 26, y, words, {Anchor::start, "dim"});
      y += kLine + 3;
    }
    return y;
  }

  const Inspection& inspection_;
  const BatchFile& file_;
  Picture picture_;
  std::vector<Mapping> mappings_;
  std::vector<Row> rows_;
  int64_t slots_a_row_;
  bool fits_bucket_;
  bool widened_ = false;
  double row_height_;
  double slot_width_ = text_width("slot"), role_width_ = text_width("prefill"), cached_width_ = text_width("cached"),
         tokens_width_ = text_width("new");
  double slot_right_, cached_right_, tokens_right_, panels_left_, counts_left_;
};

}  // namespace

std::string to_picture(const Inspection& inspection, const BatchFile& file, const CapacityReport& capacities) {
  return Drawing(inspection, file, capacities).draw();
}

}  // namespace fwdmeta::command
