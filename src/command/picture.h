#ifndef FWDMETA_COMMAND_PICTURE_H
#define FWDMETA_COMMAND_PICTURE_H

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace fwdmeta::command {

enum class Anchor { start, middle, end };

// How a text stands. `name` is kept as the attribute data-name, by which a program finds the number.
struct TextStyle {
  Anchor anchor = Anchor::start;
  const char* style = "";  // classes: dim, b, mono
  double size = 11;
  std::string name = {};
};

// An SVG picture. Its classes are colours for light and for dark screens: decoder, encoder, kv, pre_cache, other, idle,
// padding, each also as "... band" without an outline and "... line" without a fill; and axis, grid and mark for lines.
class Picture {
 public:
  void rect(const std::string& style, double x, double y, double width, double height, const std::string& title = "");
  void line(const std::string& style, double x1, double y1, double x2, double y2);
  // A line through points, or the area within them.
  void path(const std::string& style, const std::vector<std::pair<double, double>>& points, bool closed);
  void text(double x, double y, const std::string& text, const TextStyle& style = {});
  // `label` at the left and `value` at the right end of a line.
  void row(double x, double y, double width, const std::string& label, const std::string& value,
           const std::string& name = "");

  std::string finish(double width, double height, const std::string& title) const;

 private:
  std::string body_;
};

// The room that a text needs, from above, in the fonts that the picture asks for.
double text_width(const std::string& text, double size = 11);

// "0 %" to "100 %", these two only where they are exact.
std::string percent(int64_t part, int64_t whole);

}  // namespace fwdmeta::command

#endif
