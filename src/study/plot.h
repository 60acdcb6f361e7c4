// Line and point plots as stand-alone SVG text.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace sub8::study {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // in drawing order
  bool line = true;
};

struct Plot {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool log_x = false;  // values that are not positive are left out
  bool log_y = false;
  std::vector<Series> series;
};

// Text in titles and names is escaped. An empty plot says that it has no data.
std::string render_svg(const Plot& plot);

}  // namespace sub8::study
