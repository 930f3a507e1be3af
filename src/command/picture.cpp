#include "picture.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace fwdmeta::command {

namespace {

// Light colours are those of docs/mapping.svg. Readers that know no media query draw the light picture.
constexpr const char* kStyle = R"svg(  <style>
    text { fill: #1c2733 } .dim { fill: #5c6670 } .b { font-weight: bold }
    .paper { fill: #ffffff } .grid { stroke: #e3e7ea } .axis { stroke: #5c6670 } .mark { stroke: #5c6670; stroke-dasharray: 4 3 }
    .decoder { fill: #cfe3f7; stroke: #2f6ea8 } .encoder { fill: #fbe0c2; stroke: #b5701c }
    .kv { fill: #d5ecd0; stroke: #4a8a3c } .pre_cache { fill: #e6dbf3; stroke: #7b54a8 }
    .other { fill: #dde2e6; stroke: #5c6670 }
    .idle { fill: #f1f2f3; stroke: #9aa3ab; stroke-dasharray: 4 3 }
    .padding { fill: url(#hatch); stroke: #b8bfc6 } .hatch { stroke: #b8bfc6 } .hatched { fill: #f7f7f8 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e4e8ec } .dim { fill: #a3adb6 }
      .paper { fill: #15191d } .grid { stroke: #2b3238 } .axis, .mark { stroke: #a3adb6 }
      .decoder { fill: #1d4468; stroke: #74b3ec } .encoder { fill: #5c3a10; stroke: #eda955 }
      .kv { fill: #24502a; stroke: #80c873 } .pre_cache { fill: #46306b; stroke: #bb98e8 }
      .other { fill: #39424a; stroke: #a3adb6 }
      .idle { fill: #1d2226; stroke: #66717a }
      .padding { stroke: #56616a } .hatch { stroke: #56616a } .hatched { fill: #1d2226 }
    }
    .band { stroke: none } .line { fill: none; stroke-width: 1.4; stroke-linejoin: round }
  </style>
  <defs>
    <pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
      <rect class="hatched" width="6" height="6"/><line class="hatch" x1="0" y1="3" x2="6" y2="3"/>
    </pattern>
  </defs>
)svg";

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

// Tenths of a pixel, without a point where they are zero.
std::string number(double value) {
  const auto tenths = static_cast<int64_t>(std::llround(value * 10));
  std::string text = (tenths < 0 ? "-" : "") + std::to_string(std::abs(tenths) / 10);
  return tenths % 10 == 0 ? text : text + "." + std::to_string(std::abs(tenths) % 10);
}

std::string attribute(const char* name, double value) { return std::string(" ") + name + "=\"" + number(value) + "\""; }
std::string attribute(const char* name, const std::string& value) {
  return std::string(" ") + name + "=\"" + escaped(value) + "\"";
}

}  // namespace

void Picture::rect(const std::string& style, double x, double y, double width, double height,
                   const std::string& title) {
  body_ += "  <rect" + attribute("class", style) + attribute("x", x) + attribute("y", y) + attribute("width", width) +
           attribute("height", height);
  body_ += title.empty() ? "/>\n" : "><title>" + escaped(title) + "</title></rect>\n";
}

void Picture::line(const std::string& style, double x1, double y1, double x2, double y2) {
  body_ += "  <line" + attribute("class", style) + attribute("x1", x1) + attribute("y1", y1) + attribute("x2", x2) +
           attribute("y2", y2) + "/>\n";
}

void Picture::path(const std::string& style, const std::vector<std::pair<double, double>>& points, bool closed) {
  std::string data;
  for (const auto& [x, y] : points) data += (data.empty() ? "M" : " ") + number(x) + " " + number(y);
  body_ += "  <path" + attribute("class", style) + attribute("d", data + (closed ? "z" : "")) + "/>\n";
}

void Picture::text(double x, double y, const std::string& text, const TextStyle& style) {
  constexpr const char* kAnchors[] = {"", "middle", "end"};
  body_ += "  <text" + attribute("x", x) + attribute("y", y) + attribute("font-size", style.size);
  if (style.anchor != Anchor::start) body_ += attribute("text-anchor", kAnchors[static_cast<int>(style.anchor)]);
  if (*style.style != '\0') body_ += attribute("class", style.style);
  if (!style.name.empty()) body_ += attribute("data-name", style.name);
  body_ += ">" + escaped(text) + "</text>\n";
}

void Picture::row(double x, double y, double width, const std::string& label, const std::string& value,
                  const std::string& name) {
  text(x, y, label, {Anchor::start, "dim"});
  if (!value.empty()) text(x + width, y, value, {Anchor::end, "", 11, name});
}

std::string Picture::finish(double width, double height, const std::string& title) const {
  const std::string w = number(width), h = number(height);
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + w + " " + h + "\" width=\"" + w + "\" height=\"" +
         h + "\" role=\"img\" font-family=\"DejaVu Sans, Verdana, sans-serif\" font-size=\"11\">\n  <title>" +
         escaped(title) + "</title>\n" + kStyle + "  <rect class=\"paper\" width=\"" + w + "\" height=\"" + h +
         "\"/>\n" + body_ + "</svg>\n";
}

double text_width(const std::string& text, double size) {
  const auto is_continued = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; };
  const auto characters = text.size() - std::count_if(text.begin(), text.end(), is_continued);
  return 0.65 * size * static_cast<double>(characters);
}

std::string percent(int64_t part, int64_t whole) {
  if (part == 0 || whole == 0) return "0 %";
  if (part == whole) return "100 %";
  const double share = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  return std::to_string(std::clamp(static_cast<int>(std::lround(share)), 1, 99)) + " %";
}

}  // namespace fwdmeta::command
