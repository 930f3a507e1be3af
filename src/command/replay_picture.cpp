#include "replay_picture.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "picture.h"

namespace fwdmeta::command {

namespace {

constexpr double kMargin = 16;
constexpr double kPlotLeft = 84, kPlotWidth = 640, kPlotRight = kPlotLeft + kPlotWidth;
constexpr double kTotalsLeft = kPlotRight + 64, kTotalsWidth = 210;
constexpr size_t kMostColumns = 320;
constexpr double kLine = 15;

// Some consecutive steps.
struct Column {
  double least, most, mean;
};

template <class Value>
std::vector<Column> columns_of(const std::vector<StepSample>& samples, size_t steps_a_column, Value value) {
  std::vector<Column> columns;
  for (size_t begin = 0; begin < samples.size(); begin += steps_a_column) {
    const size_t end = std::min(begin + steps_a_column, samples.size());
    Column column{value(samples[begin]), value(samples[begin]), 0};
    for (size_t step = begin; step < end; ++step) {
      column.least = std::min(column.least, value(samples[step]));
      column.most = std::max(column.most, value(samples[step]));
      column.mean += value(samples[step]) / static_cast<double>(end - begin);
    }
    columns.push_back(column);
  }
  return columns;
}

double most_of(const std::vector<Column>& columns) {
  double most = 0;
  for (const Column& column : columns) most = std::max(most, column.most);
  return most;
}

std::string fixed(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

std::string decade(int exponent) {
  constexpr const char* kUnits[] = {"ns", "µs", "ms", "s"};
  const int thousands = std::clamp((exponent + 3) / 3, 0, 3);
  return fixed(std::pow(10, exponent + 3 - 3 * thousands), 0) + " " + kUnits[thousands];
}

class Drawing {
 public:
  explicit Drawing(const ReplayReport& report) : report_(report) {
    const size_t steps = report.samples.size();
    steps_a_column_ = std::max<size_t>((steps + kMostColumns - 1) / kMostColumns, 1);
    num_columns_ = (steps + steps_a_column_ - 1) / steps_a_column_;
  }

  std::string draw() {
    const std::string title = "Replay of " + std::to_string(report_.steps) + (report_.steps == 1 ? " step" : " steps") +
                              " on the " + backend_name(report_.backend) + " backend";
    picture_.text(kMargin, 28, title, {Anchor::start, "b", 15});
    picture_.text(kMargin, 46, rule(), {Anchor::start, "dim"});
    double y = 72;
    y = draw_tokens(y);
    y = draw_tiles(y, "decoder", "decoder_tiles", report_.decoder_tiles, &StepSample::decoder_tiles);
    y = draw_tiles(y, "encoder", "encoder_tiles", report_.encoder_tiles, &StepSample::encoder_tiles);
    y = draw_tiles(y, "kv", "kv_tiles", report_.kv_tiles, &StepSample::kv_tiles);
    int64_t pre_cache_tiles = 0;
    for (const StepSample& sample : report_.samples) pre_cache_tiles += sample.pre_cache_tiles;
    y = draw_tiles(y, "pre_cache", "pre_cache_tiles", pre_cache_tiles, &StepSample::pre_cache_tiles);
    y = draw_build_time(y);
    return picture_.finish(kTotalsLeft + kTotalsWidth + kMargin, y + 4, title);
  }

 private:
  std::string rule() const {
    if (steps_a_column_ == 1) return "Every step is drawn.";
    const std::string steps = std::to_string(steps_a_column_);
    return std::to_string(num_columns_) + " columns of " + steps +
           " consecutive steps: the band goes from a column's least to its most, the line is its mean.";
  }

  // Where a column begins; the last may have fewer steps.
  double x_of(size_t column) const {
    const size_t step = std::min(column * steps_a_column_, report_.samples.size());
    return kPlotLeft + kPlotWidth * static_cast<double>(step) / static_cast<double>(report_.samples.size());
  }

  template <class Height>
  void draw_columns(const std::string& style, const std::vector<Column>& columns, double bottom, Height y_of) {
    if (columns.empty()) return;
    std::vector<std::pair<double, double>> upper, lower, mean;
    for (size_t i = 0; i < columns.size(); ++i) {
      for (const double x : {x_of(i), x_of(i + 1)}) {
        upper.push_back({x, y_of(columns[i].most)});
        lower.push_back({x, steps_a_column_ == 1 ? bottom : y_of(columns[i].least)});
        mean.push_back({x, y_of(columns[i].mean)});
      }
    }
    upper.insert(upper.end(), lower.rbegin(), lower.rend());
    picture_.path(style + " band", upper, true);
    picture_.path(style + " line", mean, false);
  }

  void draw_frame(double y, double height, const std::string& style, const std::string& name) {
    picture_.rect(style, kPlotLeft, y - 16, 10, 10);
    picture_.text(kPlotLeft + 16, y - 7, name, {Anchor::start, "b"});
    picture_.line("axis", kPlotLeft, y + height, kPlotRight, y + height);
  }

  // The axis from 0 to the most.
  void draw_counts_axis(double y, double height, double most) {
    picture_.line("grid", kPlotLeft, y, kPlotRight, y);
    picture_.text(kPlotLeft - 6, y + 4, shortened(std::llround(most), 7), {Anchor::end, "dim", 10});
    picture_.text(kPlotLeft - 6, y + height + 4, "0", {Anchor::end, "dim", 10});
  }

  double draw_tokens(double y) {
    constexpr double kHeight = 80;
    y += 20;
    const auto columns = columns_of(report_.samples, steps_a_column_,
                                    [](const StepSample& sample) { return static_cast<double>(sample.tokens); });
    const auto prompts = columns_of(report_.samples, steps_a_column_, [](const StepSample& sample) {
      return static_cast<double>(sample.prefill_tokens);
    });
    const double most = most_of(columns);
    draw_frame(y, kHeight, "other", "tokens");
    picture_.rect("encoder", kPlotLeft + 80, y - 16, 10, 10);
    picture_.text(kPlotLeft + 96, y - 7, "of them in prompts, mean", {});
    draw_counts_axis(y, kHeight, most);
    const auto y_of = [&](double value) { return y + kHeight - kHeight * value / std::max(most, 1.0); };
    draw_columns("other", columns, y + kHeight, y_of);
    std::vector<std::pair<double, double>> line;
    int64_t prompt_tokens = 0;
    for (size_t i = 0; i < prompts.size(); ++i) {
      line.push_back({x_of(i), y_of(prompts[i].mean)});
      line.push_back({x_of(i + 1), y_of(prompts[i].mean)});
    }
    for (const StepSample& sample : report_.samples) prompt_tokens += sample.prefill_tokens;
    if (!line.empty()) picture_.path("encoder line", line, false);
    total(y + 8, "steps", std::to_string(report_.steps), "steps");
    total(y + 8 + kLine, "tokens", std::to_string(report_.tokens), "tokens");
    total(y + 8 + 2 * kLine, "in prompts", std::to_string(prompt_tokens));
    total(y + 8 + 3 * kLine, "most in a step", fixed(most, 0), "tokens.most");
    return y + kHeight + 8;
  }

  double draw_tiles(double y, const std::string& mapping, const char* name, int64_t sum, int64_t StepSample::*tiles) {
    constexpr double kHeight = 60;
    y += 24;
    const auto columns = columns_of(report_.samples, steps_a_column_,
                                    [=](const StepSample& sample) { return static_cast<double>(sample.*tiles); });
    const double most = most_of(columns);
    draw_frame(y, kHeight, mapping, mapping + " tiles");
    draw_counts_axis(y, kHeight, most);
    draw_columns(mapping, columns, y + kHeight,
                 [&](double value) { return y + kHeight - kHeight * value / std::max(most, 1.0); });
    total(y + 8, mapping + " tiles", std::to_string(sum), name);
    total(y + 8 + kLine, "most in a step", fixed(most, 0), std::string(name) + ".most");
    return y + kHeight + 8;
  }

  double draw_build_time(double y) {
    constexpr double kHeight = 110;
    y += 24;
    const auto columns =
        columns_of(report_.samples, steps_a_column_, [](const StepSample& sample) { return sample.build_us; });
    draw_frame(y, kHeight, "other", "build time, logarithmic");
    const BuildTime time = build_time(report_);
    if (!columns.empty()) {
      double least = columns[0].least;
      for (const Column& column : columns) least = std::min(least, column.least);
      const double low = std::floor(std::log10(std::max(least, 0.001)));
      const double high = std::max(std::ceil(std::log10(std::max(time.max, 0.001))), low + 1);
      const auto y_of = [&](double value) {
        const double share = (std::log10(std::max(value, 0.001)) - low) / (high - low);
        return y + kHeight * (1 - std::clamp(share, 0.0, 1.0));
      };
      for (int exponent = static_cast<int>(low); exponent <= static_cast<int>(high); ++exponent) {
        const double at = y_of(std::pow(10, exponent));
        if (exponent > low) picture_.line("grid", kPlotLeft, at, kPlotRight, at);
        picture_.text(kPlotLeft - 6, at + 4, decade(exponent), {Anchor::end, "dim", 10});
      }
      draw_columns("other", columns, y + kHeight, y_of);
      const double median = y_of(time.median), p99 = y_of(time.p99);
      picture_.line("mark", kPlotLeft, median, kPlotRight, median);
      picture_.line("mark", kPlotLeft, p99, kPlotRight, p99);
      picture_.text(kPlotRight + 6, median + 4, "median", {Anchor::start, "dim"});
      picture_.text(kPlotRight + 6, std::min(p99, median - 13) + 4, "p99", {Anchor::start, "dim"});
      picture_.text(kPlotLeft, y + kHeight + 16, "step 1", {Anchor::start, "dim"});
      if (report_.steps > 1) {
        picture_.text(kPlotRight, y + kHeight + 16, std::to_string(report_.steps), {Anchor::end, "dim"});
      }
    } else {
      picture_.text(kPlotLeft, y + kHeight + 16, "no step", {Anchor::start, "dim"});
    }
    total(y + 8, "build time, µs", "");
    total(y + 8 + kLine, "median", fixed(time.median, 2), "build_us.median");
    total(y + 8 + 2 * kLine, "p99", fixed(time.p99, 2), "build_us.p99");
    total(y + 8 + 3 * kLine, "max", fixed(time.max, 2), "build_us.max");
    if (report_.checked_arrays > 0) {
      total(y + 8 + 5 * kLine, "arrays compared", std::to_string(report_.checked_arrays), "checked_arrays");
      total(y + 8 + 6 * kLine, "that differ", std::to_string(report_.mismatches), "mismatches");
    }
    return y + kHeight + 24;
  }

  void total(double y, const std::string& label, const std::string& value, const std::string& name = "") {
    picture_.row(kTotalsLeft, y, kTotalsWidth, label, value, name);
  }

  const ReplayReport& report_;
  Picture picture_;
  size_t steps_a_column_, num_columns_;
};

}  // namespace

std::string to_picture(const ReplayReport& report) { return Drawing(report).draw(); }

}  // namespace fwdmeta::command
