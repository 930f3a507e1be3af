// The command's pictures: well-formed SVG that can be read in light and in dark, with the numbers of the JSON answers.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <regex>
#include <set>
#include <sstream>

#include "command_runner.h"
#include "xml_reader.h"

namespace fwdmeta_test {
namespace {

std::string example(const char* name) { return std::string(FWDMETA_SOURCE_DIR "/examples/") + name; }

std::string picture(const std::string& arguments, const std::string& input = "") {
  const Outcome outcome = fwdmeta(arguments + " --backend host --format svg", input);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  return outcome.out;
}

// Prompts of many pages, decodes with and without drafts, and idle slots with stale lengths, by turns.
Json batch_of(int64_t slots) {
  Json encoder = Json::array(), decoder = Json::array(), this_time = Json::array();
  int64_t tokens = 0;
  for (int64_t slot = 0; slot < slots; ++slot) {
    const int64_t role = slots == 1 ? 0 : slot % 4;
    const int64_t prompt = role == 0 ? 20 + 37 * slot % 250 : 0;
    encoder.push_back(role == 3 ? 7 : prompt);
    decoder.push_back(101 * slot % 3000);
    this_time.push_back(role == 0 ? prompt : role == 3 ? 0 : role);
    tokens += this_time.back().get<int64_t>();
  }
  return Json{{"schema", "fwdmeta.batch/1"},
              {"config",
               {{"max_batch_size", slots + 2},
                {"max_num_tokens", tokens + 100},
                {"max_model_len", 4096},
                {"num_q_heads", 64},
                {"num_kv_heads", 8}}},
              {"batch",
               {{"seq_lens_encoder", encoder},
                {"seq_lens_decoder", decoder},
                {"seq_lens_this_time", this_time},
                {"num_padded_tokens", tokens + 9}}}};
}

// Lengths and capacities of ten digits.
Json large_batch() {
  return Json::parse(R"({"schema": "fwdmeta.batch/1",
    "config": {"max_batch_size": 3, "max_num_tokens": 20000, "max_model_len": 2147483647, "num_q_heads": 64,
               "num_kv_heads": 1, "block_size": 1048576, "max_num_kv_tokens": 2147483647},
    "batch": {"seq_lens_encoder": [20000, 0, 9], "seq_lens_decoder": [1073741824, 1073700000, 2147483647],
              "seq_lens_this_time": [20000, 0, 0]}})");
}

void collect(const Element& element, const std::string& name, std::vector<const Element*>* found) {
  for (const Element& child : element.children) {
    if (child.name == name) found->push_back(&child);
    collect(child, name, found);
  }
}
std::vector<const Element*> all(const Element& root, const std::string& name) {
  std::vector<const Element*> found;
  collect(root, name, &found);
  return found;
}

std::string style_of(const Element& element) {
  return element.has("class") ? element.attributes.at("class") : std::string();
}
std::string title_of(const Element& element) {
  return element.children.empty() || element.children[0].name != "title" ? "" : element.children[0].text;
}

// The value that stands in the picture under a name; "" where there is none.
std::string named(const Element& root, const std::string& name) {
  for (const Element* text : all(root, "text")) {
    if (text->has("data-name") && text->attributes.at("data-name") == name) return text->text;
  }
  return "";
}

struct Box {
  double left, top, right, bottom;
};

// Where a text stands, by the mean width of a character of DejaVu Sans.
Box box_of(const Element& text) {
  const double size = text.number("font-size");
  const auto is_continued = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; };
  const auto characters = text.text.size() - std::count_if(text.text.begin(), text.text.end(), is_continued);
  const double width = (style_of(text) == "b" ? 0.68 : 0.6) * size * static_cast<double>(characters);
  const std::string anchor = text.has("text-anchor") ? text.attributes.at("text-anchor") : "start";
  const double left = text.number("x") - (anchor == "end" ? width : anchor == "middle" ? width / 2 : 0);
  return {left, text.number("y") - 0.76 * size, left + width, text.number("y") + 0.2 * size};
}

// What every picture has to be.
Element expect_legible(const std::string& svg) {
  Element root;
  try {
    root = XmlReader::read(svg);
  } catch (const std::runtime_error& error) {
    ADD_FAILURE() << error.what();
    return root;
  }
  EXPECT_EQ(root.name, "svg");
  EXPECT_EQ(root.attributes["xmlns"], "http://www.w3.org/2000/svg");
  EXPECT_EQ(root.attributes["viewBox"], "0 0 " + root.attributes["width"] + " " + root.attributes["height"]);
  EXPECT_FALSE(title_of(root).empty());
  EXPECT_EQ(all(root, "script").size() + all(root, "image").size() + all(root, "foreignObject").size(), 0u);
  for (const char* foreign : {"href", "@import", "@font-face", "url(http"}) {
    EXPECT_EQ(svg.find(foreign), std::string::npos) << foreign;
  }
  EXPECT_NE(svg.find("@media (prefers-color-scheme: dark)"), std::string::npos);
  const double width = root.number("width"), height = root.number("height");
  std::vector<std::pair<Box, std::string>> boxes;
  for (const Element* text : all(root, "text")) {
    EXPECT_GE(text->number("font-size"), 10) << text->text;
    const Box box = box_of(*text);
    EXPECT_GE(box.left, 0) << text->text;
    EXPECT_GE(box.top, 0) << text->text;
    EXPECT_LE(box.right, width) << text->text;
    EXPECT_LE(box.bottom, height) << text->text;
    for (const auto& [other, words] : boxes) {
      const bool apart = box.right <= other.left || other.right <= box.left || box.bottom <= other.top + 0.5 ||
                         other.bottom <= box.top + 0.5;
      EXPECT_TRUE(apart) << "\"" << text->text << "\" stands on \"" << words << "\"";
    }
    boxes.push_back({box, text->text});
  }
  for (const Element* rect : all(root, "rect")) {
    EXPECT_GE(rect->number("width"), 0);
    EXPECT_LE(rect->number("x") + rect->number("width"), width + 0.1);
    EXPECT_LE(rect->number("y") + rect->number("height"), height + 0.1);
  }
  return root;
}

// The slots of each thread block of a mapping, by its bars; a bar of several slots fills in the first and the last.
std::vector<std::pair<int64_t, int64_t>> drawn_blocks(const Element& root, const std::string& mapping) {
  static const std::regex kTitle("slots? (\\d+)(?: to (\\d+))?: thread blocks? (\\d+)(?: to (\\d+))?(?:, tile \\d+)?");
  std::vector<std::pair<int64_t, int64_t>> blocks;
  for (const Element* rect : all(root, "rect")) {
    std::smatch match;
    const std::string title = title_of(*rect);
    if (style_of(*rect) != mapping || !std::regex_match(title, match, kTitle)) continue;
    const auto last = [&](int group) { return std::stoll(match[group + (match[group + 1].matched ? 1 : 0)]); };
    for (int64_t block = std::stoll(match[3]); block <= last(3); ++block) {
      EXPECT_EQ(block, static_cast<int64_t>(blocks.size())) << title;
      blocks.push_back({std::stoll(match[1]), last(1)});
    }
  }
  return blocks;
}

int64_t count_of(const Element& root, const std::string& style, const std::string& title_part) {
  int64_t count = 0;
  for (const Element* rect : all(root, "rect")) {
    count += style_of(*rect) == style && title_of(*rect).find(title_part) != std::string::npos;
  }
  return count;
}

// The picture of a batch against the two JSON answers about it.
Element expect_picture_of(const Json& batch) {
  const std::string text = batch.dump();
  const Json json = fwdmeta("inspect - --backend host --format json", text).json();
  const Json capacities = fwdmeta("inspect - --backend host --format json --capacities", text).json();
  const Element root = expect_legible(picture("inspect -", text));
  for (const auto& [name, value] : json["counts"].items()) EXPECT_EQ(named(root, name), value.dump()) << name;
  for (const std::string mapping : {"decoder", "encoder", "kv", "pre_cache"}) {
    const int64_t needed = json["fields"][mapping + "_batch_ids"].size();
    const int64_t capacity = capacities["capacities"][mapping];
    EXPECT_EQ(named(root, mapping + "_needed"), std::to_string(needed));
    EXPECT_EQ(named(root, mapping + "_capacity"), std::to_string(capacity));
    EXPECT_EQ(named(root, mapping + "_tail"), std::to_string(capacity - needed));
    EXPECT_EQ(named(root, mapping + "_launched"),
              capacities.contains("bucket") ? capacities["bucket"][mapping].dump() : std::to_string(capacity));
    const auto blocks = drawn_blocks(root, mapping);
    EXPECT_EQ(static_cast<int64_t>(blocks.size()), needed) << mapping;
    for (size_t block = 0; block < blocks.size(); ++block) {
      const int64_t slot = json["fields"][mapping + "_batch_ids"][block];
      EXPECT_LE(blocks[block].first, slot) << mapping << " " << block;
      EXPECT_GE(blocks[block].second, slot) << mapping << " " << block;
    }
  }
  const int64_t padding =
      json["counts"]["num_padded_tokens"].get<int64_t>() - json["counts"]["num_tokens"].get<int64_t>();
  EXPECT_EQ(count_of(root, "padding", std::to_string(padding) + " padding"), padding > 0);
  return root;
}

// --------------------------------------------------------------------------------------------------- reader --

TEST(Xml, TheReaderRefusesWhatIsNotWellFormed) {
  EXPECT_EQ(XmlReader::read("<a b=\"&lt;\"><c/>d &amp; e</a>").text, "d & e");
  for (const char* bad : {"<a>", "<a></b>", "<a b=c/>", "<a b=\"1\" b=\"2\"/>", "<a b=\"<\"/>", "<a>&nbsp;</a>",
                          "<a>&</a>", "<a/><b/>", "<a b=\"1\"c=\"2\"/>", "<1/>", "text", ""}) {
    EXPECT_THROW(XmlReader::read(bad), std::runtime_error) << bad;
  }
}

// -------------------------------------------------------------------------------------------------- inspect --

TEST(InspectPicture, HasASlotALineUpTo64) {
  for (const int64_t slots : {1, 8, 64}) {
    SCOPED_TRACE(slots);
    const Element root = expect_picture_of(batch_of(slots));
    EXPECT_EQ(count_of(root, "idle", "slot "), slots / 4);
    for (const auto& [first, last] : drawn_blocks(root, "encoder")) EXPECT_EQ(first, last);
  }
}

TEST(InspectPicture, SaysHowManySlotsALineHasWhereTheyDoNotFit) {
  const std::string svg = picture("inspect -", batch_of(300).dump());
  EXPECT_NE(svg.find("A line is 5 consecutive slots"), std::string::npos);
  EXPECT_NE(svg.find(">295–299<"), std::string::npos);
  expect_picture_of(batch_of(300));
  EXPECT_EQ(picture("inspect -", batch_of(64).dump()).find("consecutive slots"), std::string::npos);
}

TEST(InspectPicture, LaunchesTheBucketThatTheStepFits) {
  const Json batch = Json::parse(read_file(example("batch.json")));
  EXPECT_EQ(named(expect_picture_of(batch), "encoder_launched"), "13");
  Json small = batch;
  small["bucket"] = {{"slots", 5}, {"tokens", 64}};
  const std::string svg = picture("inspect -", small.dump());
  EXPECT_NE(svg.find("The step does not fit the bucket."), std::string::npos);
  const Element root = expect_legible(svg);
  EXPECT_EQ(named(root, "encoder_launched"), named(root, "encoder_capacity"));
}

TEST(InspectPicture, CountsTheRoomInTiles) {
  // Slot 0 has 20 rows of one head in tiles of 16, slot 1 has 70 in tiles of 64, on pages 1 and 2 of 32 positions.
  const Json batch = Json::parse(R"({"schema": "fwdmeta.batch/1",
    "config": {"max_batch_size": 2, "max_num_tokens": 128, "max_model_len": 256, "num_q_heads": 1, "num_kv_heads": 1,
               "block_size": 32},
    "batch": {"seq_lens_encoder": [0, 70], "seq_lens_decoder": [5, 40], "seq_lens_this_time": [20, 70]}})");
  const Element root = expect_picture_of(batch);
  const std::vector<std::pair<const char*, std::pair<const char*, const char*>>> wanted = {
      {"decoder", {"32", "20"}}, {"encoder", {"128", "70"}}, {"kv", {"96", "70"}}, {"pre_cache", {"64", "40"}}};
  for (const auto& [mapping, numbers] : wanted) {
    EXPECT_EQ(named(root, std::string(mapping) + "_room"), numbers.first) << mapping;
    EXPECT_EQ(named(root, std::string(mapping) + "_used"), numbers.second) << mapping;
  }
}

TEST(InspectPicture, IsLegibleAtItsLimits) {
  expect_picture_of(large_batch());
  Json empty = batch_of(1);
  for (const char* lengths : {"seq_lens_encoder", "seq_lens_decoder", "seq_lens_this_time"}) {
    empty["batch"][lengths] = Json::array();
  }
  empty["batch"]["num_padded_tokens"] = 0;
  expect_picture_of(empty);
  Json mla = batch_of(8);
  mla["config"]["attention"] = "mla";
  expect_picture_of(mla);
  expect_picture_of(batch_of(5000));
}

TEST(InspectPicture, IsRefusedWhereThereIsNone) {
  expect_refused_input(fwdmeta("inspect - --format svg --capacities", batch_of(1).dump()), "no picture");
  for (const char* command : {"graphs", "ranks", "slices"}) {
    const Outcome outcome = fwdmeta(std::string(command) + " - --format svg", "{}");
    EXPECT_EQ(outcome.status, 2) << command;
    EXPECT_EQ(outcome.out, "") << command;
  }
  Json wrong = batch_of(8);
  wrong["batch"]["seq_lens_this_time"][0] = -1;
  expect_library_error(fwdmeta("inspect - --backend host --format svg", wrong.dump()), "fwdmeta.result/1",
                       "INVALID_BATCH");
}

// --------------------------------------------------------------------------------------------------- replay --

std::vector<std::pair<double, double>> points_of(const Element& root, const std::string& style) {
  std::vector<std::pair<double, double>> points;
  for (const Element* path : all(root, "path")) {
    if (style_of(*path) != style) continue;
    std::string data = path->attributes.at("d").substr(1);
    if (data.back() == 'z') data.pop_back();
    std::istringstream numbers(data);
    for (double x, y; numbers >> x >> y;) points.push_back({x, y});
  }
  return points;
}

// Every number but the times, which no two runs share.
Element expect_picture_of_replay(const std::string& arguments, const std::string& trace) {
  const Json json = fwdmeta("replay - --backend host --format json " + arguments, trace).json();
  const Element root = expect_legible(picture("replay - " + arguments, trace));
  for (const char* name : {"steps", "tokens", "decoder_tiles", "encoder_tiles", "kv_tiles"}) {
    EXPECT_EQ(named(root, name), json[name].dump()) << name;
  }
  const double median = std::stod(named(root, "build_us.median")), p99 = std::stod(named(root, "build_us.p99"));
  EXPECT_LE(median, p99);
  EXPECT_LE(p99, std::stod(named(root, "build_us.max")));
  for (const char* style : {"other band", "decoder line", "encoder line", "kv band", "pre_cache line"}) {
    for (const auto& [x, y] : points_of(root, style)) {
      EXPECT_GE(x, 0);
      EXPECT_GE(y, 0);
      EXPECT_LE(x, root.number("width"));
      EXPECT_LE(y, root.number("height"));
    }
  }
  return root;
}

constexpr const char* kTrace =
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "0,100,40\n"
    "1,60,12\n"
    "2,900,30\n";

TEST(ReplayPicture, DrawsEveryStepOfAShortTrace) {
  const Element root = expect_picture_of_replay("--chunk 200 --check", kTrace);
  EXPECT_EQ(named(root, "mismatches"), "0");
  const auto steps = std::stoul(named(root, "steps"));
  for (const char* mapping : {"decoder", "kv", "pre_cache"}) {
    const auto line = points_of(root, mapping + std::string(" line"));
    ASSERT_EQ(line.size(), 2 * steps) << mapping;
    // Heights are in proportion: the highest is the most of a step, the bottom of the band is 0.
    double bottom = 0, top = 1e9, sum = 0;
    for (const auto& [x, y] : points_of(root, mapping + std::string(" band"))) {
      bottom = std::max(bottom, y);
      top = std::min(top, y);
    }
    const double most = std::stod(named(root, mapping + std::string("_tiles.most")));
    for (size_t i = 0; i < line.size(); i += 2) sum += std::round((bottom - line[i].second) / (bottom - top) * most);
    EXPECT_EQ(sum, std::stod(named(root, mapping + std::string("_tiles")))) << mapping;
  }
}

TEST(ReplayPicture, SaysHowALongTraceIsCut) {
  std::string trace = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  for (int i = 0; i < 3; ++i) trace += std::to_string(i) + ",50," + std::to_string(700 + i) + "\n";
  const std::string svg = picture("replay -", trace);
  EXPECT_NE(svg.find("234 columns of 3 consecutive steps: the band goes from a column's least"), std::string::npos)
      << "702 steps";
  const Element root = expect_picture_of_replay("", trace);
  EXPECT_EQ(named(root, "steps"), "702");
  EXPECT_EQ(points_of(root, "decoder line").size(), 2 * 234u);
}

TEST(ReplayPicture, IsLegibleWithoutAStepAndWithOne) {
  expect_picture_of_replay("", "TIMESTAMP,ContextTokens,GeneratedTokens\n");
  expect_picture_of_replay("", "TIMESTAMP,ContextTokens,GeneratedTokens\n0,1,1\n");
}

// ------------------------------------------------------------------------------------------------ rendering --

class Rendered {
 public:
  explicit Rendered(const std::string& svg) {
    const std::string source = scratch_file("picture.svg", svg), image = scratch_file("picture.png", "");
    const std::string script = FWDMETA_SOURCE_DIR "/tests/png_colors.py", colors = scratch_file("colors", "");
    const std::string render = "rsvg-convert " + quoted(source) + " -o " + quoted(image);
    EXPECT_EQ(std::system(render.c_str()), 0);
    EXPECT_EQ(std::system(("python3 " + quoted(script) + " " + quoted(image) + " >" + quoted(colors)).c_str()), 0);
    std::istringstream lines(read_file(colors));
    std::string color;
    for (int64_t pixels; lines >> color >> pixels;) pixels_[color] = pixels;
  }
  int64_t pixels(const std::string& color) const { return pixels_.count(color) ? pixels_.at(color) : 0; }
  size_t num_colors() const { return pixels_.size(); }

 private:
  std::map<std::string, int64_t> pixels_;
};

// As on a dark screen: the rules for it without their condition.
std::string darkened(const std::string& svg) {
  const std::string condition = "@media (prefers-color-scheme: dark) {";
  const size_t begin = svg.find(condition), end = svg.find("\n    }\n", begin);
  return svg.substr(0, begin) + svg.substr(begin + condition.size(), end - begin - condition.size()) +
         svg.substr(end + 7);
}

// Background, and the fills of the decoder, encoder, kv and pre_cache mappings.
constexpr const char* kLight[] = {"ffffff", "cfe3f7", "fbe0c2", "d5ecd0", "e6dbf3"};
constexpr const char* kDark[] = {"15191d", "1d4468", "5c3a10", "24502a", "46306b"};

TEST(Pictures, RenderWithEachMappingsColor) {
  for (const char* tool : {"rsvg-convert --version", "python3 --version"}) {
    if (std::system((std::string(tool) + " >/dev/null 2>&1").c_str()) != 0) GTEST_SKIP() << "no " << tool;
  }
  const std::string pictures[] = {picture("inspect " + quoted(example("batch.json"))),
                                  picture("inspect -", batch_of(300).dump()),
                                  picture("replay " + quoted(example("trace.csv")))};
  for (const std::string& svg : pictures) {
    for (const bool dark : {false, true}) {
      const Rendered image(dark ? darkened(svg) : svg);
      EXPECT_GT(image.num_colors(), 20u) << "a blank picture";
      for (const char* color : dark ? kDark : kLight) EXPECT_GE(image.pixels(color), 40) << color;
      for (const char* color : dark ? kLight : kDark) EXPECT_LT(image.pixels(color), 40) << color;
    }
  }
}

}  // namespace
}  // namespace fwdmeta_test
