#include "inspect_calibration.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "checkpoint/residue.h"
#include "common.h"
#include "quantize/awq.h"

namespace sub8::apps {
namespace {

namespace json = boost::json;
using checkpoint::Residue;

struct Span {
  double low = 0;
  double high = 0;
  bool any = false;
  void add(double value) {
    low = any ? std::min(low, value) : value;
    high = any ? std::max(high, value) : value;
    any = true;
  }
  json::value to_json() const { return any ? json::value{low, high} : json::value(nullptr); }
};

// By ratio: how many modules have columns, and their bytes.
json::array extensions(const Residue& residue) {
  json::array out;
  for (size_t r = 0; r < checkpoint::kSelectRatios.size(); ++r) {
    int64_t modules = 0;
    size_t bytes = 0;
    for (const auto& [name, module] : residue.modules) {
      if (!module.extensions[r]) continue;
      ++modules;
      bytes += module.extensions[r]->codes.size() + module.extensions[r]->block_scales.size();
    }
    if (modules > 0)
      out.push_back(
          {{"ratio", checkpoint::kSelectRatios[r]}, {"modules", modules}, {"bytes", bytes}});
  }
  return out;
}

json::object facts_of(const Residue& residue) {
  Span alphas;
  Span k;
  Span v;
  std::map<float, int64_t> planned;
  for (const auto& [name, module] : residue.modules) {
    alphas.add(format::activation_alpha(format::ActivationFormat::kNvfp4, module.amax));
    if (module.prefill_ratio) ++planned[*module.prefill_ratio];
  }
  for (const checkpoint::KvScalePair& pair : residue.kv_scales) {
    k.add(pair.k);
    v.add(pair.v);
  }
  json::array ratios;
  for (const auto& [ratio, modules] : planned)
    ratios.push_back({{"ratio", ratio}, {"modules", modules}});
  return {
      {"text", residue.text},
      {"samples", residue.samples},
      {"length", residue.length},
      {"tokens", residue.tokens},
      {"seed", residue.seed},
      {"original", residue.original.empty() ? json::value(nullptr) : json::value(residue.original)},
      {"modules", residue.modules.size()},
      {"activation_alpha", residue.alpha ? json::value(format::alpha_source_name(*residue.alpha))
                                         : json::value(nullptr)},
      {"nvfp4_alpha", alphas.to_json()},
      {"kv_scale_layers", residue.kv_scales.size()},
      {"k_scale", k.to_json()},
      {"v_scale", v.to_json()},
      {"extensions", extensions(residue)},
      {"planned_prefill_ratios", std::move(ratios)}};
}

std::string range(const json::value& span) {
  if (span.is_null()) return "none";
  const json::array& bounds = span.as_array();
  return fmt::format("{:.3e} to {:.3e}", bounds[0].to_number<double>(),
                     bounds[1].to_number<double>());
}

}  // namespace

std::optional<CalibrationReport> inspect_calibration(const checkpoint::WeightSource& source) {
  if (!checkpoint::has_residue(source.path())) return std::nullopt;
  const auto residue = checkpoint::read_residue(source.path(), source);
  if (!residue.ok()) return CalibrationReport{{}, residue.error().message};
  return CalibrationReport{facts_of(**residue), {}};
}

std::optional<AwqFacts> inspect_awq(const checkpoint::WeightSource& source) {
  const auto record = quantize::read_awq(source.path());
  if (!record.ok())
    return AwqFacts{{{"error", record.error().message}}, "AWQ: " + record.error().message};
  if (!*record) return std::nullopt;
  const quantize::AwqRecord& awq = **record;
  return AwqFacts{
      {{"inputs", awq.scales.size()},
       {"text", awq.text},
       {"samples", awq.samples},
       {"tokens", awq.tokens}},
      fmt::format("AWQ: {} inputs scaled, searched on {} tokens of {}; folded into the weights",
                  awq.scales.size(), awq.tokens, awq.text)};
}

std::string describe_calibration(const CalibrationReport& report) {
  if (!report.error.empty()) return "calibration: cannot be used: " + report.error;
  const json::object& f = report.facts;
  const auto text = [&](std::string_view key) {
    return f.at(key).is_null() ? std::string("-") : std::string(f.at(key).as_string());
  };
  const auto count = [&](std::string_view key) { return f.at(key).to_number<int64_t>(); };
  std::string out =
      fmt::format("calibration: {} tokens of {} ({} samples of at most {}, seed {}), {} modules\n",
                  count("tokens"), text("text"), count("samples"), count("length"), count("seed"),
                  count("modules"));
  out += fmt::format("  alpha of activations: {}; static NVFP4 alphas {}\n",
                     f.at("activation_alpha").is_null() ? "not named" : text("activation_alpha"),
                     range(f.at("nvfp4_alpha")));
  out += fmt::format("  KV scales of {} layers: K {}, V {}\n", count("kv_scale_layers"),
                     range(f.at("k_scale")), range(f.at("v_scale")));
  out += "  masks for ratios 0.125, 0.25, 0.5";
  for (const json::value& e : f.at("extensions").as_array()) {
    out += fmt::format("\n  columns for ratio {}: {} modules, {}", e.at("ratio").to_number<float>(),
                       e.at("modules").to_number<int64_t>(),
                       format_bytes(e.at("bytes").to_number<double>()));
  }
  if (!f.at("extensions").as_array().empty())
    out += fmt::format(", from {}", f.at("original").is_null() ? std::string("decoded weights")
                                                               : text("original"));
  for (const json::value& p : f.at("planned_prefill_ratios").as_array()) {
    out += fmt::format("\n  planned prefill ratio {}: {} modules", p.at("ratio").to_number<float>(),
                       p.at("modules").to_number<int64_t>());
  }
  return out;
}

}  // namespace sub8::apps
