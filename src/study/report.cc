#include "study/report.h"

#include <fmt/format.h>

namespace sub8::study {
namespace {

using Cells = std::vector<std::string>;
struct Table {
  std::string title;
  Cells head;
  std::vector<Cells> rows;
};

std::string bounds(const std::optional<Interval>& interval, int digits) {
  if (!interval) return "-";
  return fmt::format("{:.{}f} .. {:.{}f}", interval->low, digits, interval->high, digits);
}

std::string difference(const std::optional<Interval>& interval) {
  if (!interval) return "-";
  return fmt::format("{:+.5f} ({:+.5f} .. {:+.5f})", interval->estimate, interval->low,
                     interval->high);
}

Table score_table(const Report& report) {
  Table out{"Scores", {"configuration", "perplexity", "mean NLL", "interval"}, {}};
  if (report.has_reference) {
    for (const char* cell : {"KL divergence", "interval", "top-1"}) out.head.emplace_back(cell);
  }
  for (const ReportRow& row : report.rows) {
    const Evaluation& e = row.score;
    Cells cells = {
        row.label, fmt::format("{:.4f}", e.perplexity()), fmt::format("{:.5f}", e.mean_nll()),
        bounds(mean_interval(e.windows, &WindowScore::negative_log_likelihood, report.bootstrap),
               5)};
    if (report.has_reference) {
      cells.push_back(fmt::format("{:.6f}", e.kl_divergence()));
      cells.push_back(
          bounds(mean_interval(e.windows, &WindowScore::kl_divergence, report.bootstrap), 6));
      cells.push_back(fmt::format("{:.3f}%", 100 * e.top1_agreement()));
    }
    out.rows.push_back(std::move(cells));
  }
  return out;
}

Table difference_table(const Report& report) {
  const ReportRow& base = report.rows[report.baseline];
  Table out{"Differences to " + base.label, {"configuration", "mean NLL"}, {}};
  if (report.has_reference) out.head.emplace_back("KL divergence");
  for (size_t i = 0; i < report.rows.size(); ++i) {
    if (i == report.baseline) continue;
    const auto to_base = [&](double WindowScore::*field) {
      return difference(difference_interval(report.rows[i].score.windows, base.score.windows, field,
                                            report.bootstrap));
    };
    Cells cells = {report.rows[i].label, to_base(&WindowScore::negative_log_likelihood)};
    if (report.has_reference) cells.push_back(to_base(&WindowScore::kl_divergence));
    out.rows.push_back(std::move(cells));
  }
  return out;
}

std::vector<Table> tables(const Report& report) {
  std::vector<Table> out = {score_table(report)};
  if (report.rows.size() > 1) out.push_back(difference_table(report));
  return out;
}

std::string method(const Report& report) {
  return fmt::format(
      "Intervals: {:g}% percentile bounds of the paired bootstrap over windows, {} resamples, seed "
      "{}.",
      100 * report.bootstrap.confidence, report.bootstrap.resamples, report.bootstrap.seed);
}

Plot window_plot(const Report& report) {
  Plot plot{.title = report.has_reference ? "KL divergence by window" : "Mean NLL by window",
            .x_label = "window",
            .y_label = "nats per token"};
  for (const ReportRow& row : report.rows) {
    Series series{.name = row.label};
    double x = 0;
    for (const WindowScore& w : row.score.windows) {
      const double sum = report.has_reference ? w.kl_divergence : w.negative_log_likelihood;
      series.points.emplace_back(x++, sum / static_cast<double>(w.scored));
    }
    plot.series.push_back(std::move(series));
  }
  return plot;
}

Plot weight_plot(const Report& report) {
  Plot plot{.title = "Weight error by matrix",
            .x_label = "matrix, in the model's order",
            .y_label = "NMSE",
            .log_y = true};
  for (const ReportRow& row : report.rows) {
    if (row.errors.empty()) continue;
    Series series{.name = row.label};
    double x = 0;
    for (const WeightError& error : row.errors) series.points.emplace_back(x++, error.nmse);
    plot.series.push_back(std::move(series));
  }
  return plot;
}

// For a cell or a paragraph of Markdown.
std::string markdown_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|' || c == '<' || c == '*' || c == '_' || c == '`' || c == '\\' || c == '[')
      out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out;
}

std::string html_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string markdown_row(const Cells& cells) {
  std::string out = "|";
  for (const std::string& cell : cells) out += " " + markdown_text(cell) + " |";
  return out + "\n";
}

std::string html_row(const Cells& cells, std::string_view tag) {
  std::string out = "<tr>";
  for (const std::string& cell : cells) out += fmt::format("<{0}>{1}</{0}>", tag, html_text(cell));
  return out + "</tr>\n";
}

}  // namespace

std::vector<std::pair<std::string, std::string>> report_plots(const Report& report) {
  std::vector<std::pair<std::string, std::string>> out;
  out.emplace_back(report.has_reference ? "kl_divergence.svg" : "nll.svg",
                   render_svg(window_plot(report)));
  const Plot weights = weight_plot(report);
  if (!weights.series.empty()) out.emplace_back("weight_nmse.svg", render_svg(weights));
  return out;
}

std::string render_markdown(const Report& report, const std::vector<std::string>& images) {
  std::string out = "# " + markdown_text(report.title) + "\n\n";
  for (const std::string& fact : report.facts) out += markdown_text(fact) + "\n";
  out += method(report) + "\n";
  for (const Table& table : tables(report)) {
    out += "\n## " + markdown_text(table.title) + "\n\n" + markdown_row(table.head);
    out += markdown_row(Cells(table.head.size(), "---"));
    for (const Cells& row : table.rows) out += markdown_row(row);
  }
  if (!images.empty()) out += "\n## Plots\n";
  for (const std::string& image : images) out += "\n![](<" + image + ">)\n";
  return out;
}

std::string render_html(const Report& report) {
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang='en'>\n<head><meta charset='utf-8'><title>{0}</title>\n"
      "<style>body {{ font: 15px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 "
      "1em }}\ntable {{ border-collapse: collapse }}\ntd, th {{ border: 1px solid #ccc; padding: "
      "0.25em 0.6em; text-align: right }}\ntd:first-child, th:first-child {{ text-align: left "
      "}}\nsvg {{ max-width: 100%; height: auto }}</style></head>\n<body>\n<h1>{0}</h1>\n<p>",
      html_text(report.title));
  for (const std::string& fact : report.facts) out += html_text(fact) + " ";
  out += html_text(method(report)) + "</p>\n";
  for (const Table& table : tables(report)) {
    out += "<h2>" + html_text(table.title) + "</h2>\n<table>\n" + html_row(table.head, "th");
    for (const Cells& row : table.rows) out += html_row(row, "td");
    out += "</table>\n";
  }
  for (const auto& [name, svg] : report_plots(report)) out += svg + "\n";
  return out + "</body>\n</html>\n";
}

}  // namespace sub8::study
