// An evaluation as a document: Markdown or HTML with tables and plots.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "study/bootstrap.h"
#include "study/evaluate.h"
#include "study/plot.h"
#include "study/weight_error.h"

namespace sub8::study {

struct ReportRow {
  std::string label;
  Evaluation score;
  std::vector<WeightError> errors;
};

struct Report {
  std::string title;
  std::vector<std::string> facts;  // one sentence each: text, windows, reference, machine
  bool has_reference = false;
  std::vector<ReportRow> rows;
  size_t baseline = 0;  // what differences are to
  BootstrapOptions bootstrap;
};

// Plots of a report, with the names of their files ("kl_divergence.svg"): score of every window,
// and the weight error of every matrix where there is a reference.
std::vector<std::pair<std::string, std::string>> report_plots(const Report& report);

// `images` are the plots' paths as the document refers to them, in their order.
std::string render_markdown(const Report& report, const std::vector<std::string>& images);
// One file, plots inside.
std::string render_html(const Report& report);

}  // namespace sub8::study
