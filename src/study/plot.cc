#include "study/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace sub8::study {
namespace {

constexpr double kWidth = 820;
constexpr double kHeight = 460;
constexpr double kLeft = 80;
constexpr double kRight = 20;
constexpr double kTop = 46;
constexpr double kBottom = 60;
// Distinguishable with the common colour-vision deficiencies (Okabe and Ito).
constexpr std::array<const char*, 7> kColors = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                "#e69f00", "#56b4e9", "#000000"};

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

// Maps values to pixels along one direction.
class Axis {
 public:
  Axis(bool log, double pixel_low, double pixel_high)
      : log_(log), pixel_low_(pixel_low), pixel_high_(pixel_high) {}

  bool takes(double value) const { return std::isfinite(value) && (!log_ || value > 0); }
  void include(double value) {
    low_ = std::min(low_, scaled(value));
    high_ = std::max(high_, scaled(value));
  }
  bool empty() const { return low_ > high_; }
  void finish() {
    if (high_ - low_ < 1e-12) {
      low_ -= 0.5;
      high_ += 0.5;
    }
    const double margin = 0.04 * (high_ - low_);
    low_ -= margin;
    high_ += margin;
  }
  double pixel(double value) const {
    return pixel_low_ + (scaled(value) - low_) / (high_ - low_) * (pixel_high_ - pixel_low_);
  }
  std::vector<double> ticks() const {
    std::vector<double> out;
    if (log_) {
      // Whole decades, or 1-2-5 steps where few decades are shown.
      const bool fine = high_ - low_ < 2.5;
      for (double decade = std::floor(low_); decade <= high_; decade += 1) {
        for (const double step : {1.0, 2.0, 5.0}) {
          const double value = step * std::pow(10.0, decade);
          if ((step == 1.0 || fine) && scaled(value) >= low_ && scaled(value) <= high_)
            out.push_back(value);
        }
      }
      return out;
    }
    const double rough = (high_ - low_) / 6;
    const double power = std::pow(10.0, std::floor(std::log10(rough)));
    const double step = rough < 2 * power ? 2 * power : rough < 5 * power ? 5 * power : 10 * power;
    for (double value = std::ceil(low_ / step) * step; value <= high_; value += step) {
      out.push_back(std::abs(value) < step * 1e-9 ? 0.0 : value);
    }
    return out;
  }

 private:
  double scaled(double value) const { return log_ ? std::log10(value) : value; }
  bool log_;
  double pixel_low_, pixel_high_;
  double low_ = std::numeric_limits<double>::infinity();
  double high_ = -std::numeric_limits<double>::infinity();
};

void draw_grid(std::string& out, const Axis& x, const Axis& y) {
  for (const double value : x.ticks()) {
    const double at = x.pixel(value);
    out += fmt::format("<line x1='{0:.1f}' y1='{1}' x2='{0:.1f}' y2='{2}' stroke='#ddd'/>\n", at,
                       kTop, kHeight - kBottom);
    out += fmt::format("<text x='{:.1f}' y='{}' text-anchor='middle'>{:.4g}</text>\n", at,
                       kHeight - kBottom + 18, value);
  }
  for (const double value : y.ticks()) {
    const double at = y.pixel(value);
    out += fmt::format("<line x1='{1}' y1='{0:.1f}' x2='{2}' y2='{0:.1f}' stroke='#ddd'/>\n", at,
                       kLeft, kWidth - kRight);
    out += fmt::format("<text x='{}' y='{:.1f}' text-anchor='end'>{:.4g}</text>\n", kLeft - 8,
                       at + 4, value);
  }
}

void draw_series(std::string& out, const Series& series, const Axis& x, const Axis& y,
                 size_t index) {
  const char* color = kColors[index % kColors.size()];
  std::string path;
  std::string dots;
  for (const auto& [px, py] : series.points) {
    if (!x.takes(px) || !y.takes(py)) continue;
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : " L", x.pixel(px), y.pixel(py));
    dots += fmt::format("<circle cx='{:.1f}' cy='{:.1f}' r='2.5' fill='{}'/>\n", x.pixel(px),
                        y.pixel(py), color);
  }
  if (series.line && !path.empty())
    out += fmt::format("<path d='{}' fill='none' stroke='{}' stroke-width='1.5'/>\n", path, color);
  out += dots;
  const double row = kTop + 14 + 16 * static_cast<double>(index);
  out += fmt::format("<rect x='{}' y='{}' width='12' height='3' fill='{}'/>\n", kLeft + 10, row - 5,
                     color);
  out += fmt::format("<text x='{}' y='{}'>{}</text>\n", kLeft + 28, row, escape(series.name));
}

}  // namespace

std::string render_svg(const Plot& plot) {
  Axis x(plot.log_x, kLeft, kWidth - kRight);
  Axis y(plot.log_y, kHeight - kBottom, kTop);
  for (const Series& series : plot.series) {
    for (const auto& [px, py] : series.points) {
      if (!x.takes(px) || !y.takes(py)) continue;
      x.include(px);
      y.include(py);
    }
  }
  std::string out = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='{0}' height='{1}' viewBox='0 0 {0} {1}' "
      "font-family='sans-serif' "
      "font-size='12'>\n<rect width='100%' height='100%' fill='white'/>\n"
      "<text x='{2}' y='24' text-anchor='middle' font-size='16'>{3}</text>\n",
      kWidth, kHeight, kWidth / 2, escape(plot.title));
  if (x.empty()) {
    return out + fmt::format("<text x='{}' y='{}' text-anchor='middle'>no data</text>\n</svg>\n",
                             kWidth / 2, kHeight / 2);
  }
  x.finish();
  y.finish();
  draw_grid(out, x, y);
  out += fmt::format("<rect x='{}' y='{}' width='{}' height='{}' fill='none' stroke='#888'/>\n",
                     kLeft, kTop, kWidth - kLeft - kRight, kHeight - kTop - kBottom);
  out += fmt::format("<text x='{}' y='{}' text-anchor='middle'>{}</text>\n", kWidth / 2,
                     kHeight - 16, escape(plot.x_label));
  out +=
      fmt::format("<text transform='translate(18 {}) rotate(-90)' text-anchor='middle'>{}</text>\n",
                  kHeight / 2, escape(plot.y_label));
  for (size_t i = 0; i < plot.series.size(); ++i) draw_series(out, plot.series[i], x, y, i);
  return out + "</svg>\n";
}

}  // namespace sub8::study
