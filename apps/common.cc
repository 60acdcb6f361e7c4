#include "common.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/interrupt.h"
#include "quantize/extension.h"
#include "quantize/fake_int.h"
#include "quantize/load_source.h"
#include "study/planner.h"
#include "text/utf8.h"

namespace sub8::apps {
namespace {

constexpr auto kTerminalInterval = std::chrono::milliseconds(100);
constexpr auto kPlainInterval = std::chrono::seconds(5);
constexpr int kMaxThreads = 1024;

int terminal_columns() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

bool stderr_is_terminal() {
  const char* term = std::getenv("TERM");
  return isatty(STDERR_FILENO) != 0 && term != nullptr && std::string_view(term) != "dumb";
}

bool stderr_has_color() {
  const char* no_color = std::getenv("NO_COLOR");
  return stderr_is_terminal() && (no_color == nullptr || *no_color == '\0');
}

std::string format_bytes(double bytes) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  int unit = 0;
  while (bytes >= 999.5 && unit < 4) {
    bytes /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.3g} {}", bytes, units[unit]);
}

std::string format_duration(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole >= 3600) return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
  if (whole >= 60) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return seconds < 10 ? fmt::format("{:.1f} s", seconds) : fmt::format("{} s", whole);
}

double ProgressBar::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void ProgressBar::update(double done, double total, std::string_view detail) {
  const auto now = std::chrono::steady_clock::now();
  const bool terminal = stderr_is_terminal();
  if (terminal ? now - last_ < kTerminalInterval : now - std::max(last_, start_) < kPlainInterval)
    return;
  last_ = now;
  const double share = total > 0 ? std::clamp(done / total, 0.0, 1.0) : 0.0;
  std::string eta;
  if (share > 0.01 && seconds() > 1)
    eta = ", " + format_duration(seconds() / share * (1 - share)) + " left";
  if (!terminal) {
    fmt::print(stderr, "{}: {:.0f}%{} ({})\n", title_, 100 * share, eta, detail);
    return;
  }
  constexpr int kWidth = 24;
  const int filled = static_cast<int>(share * kWidth);
  std::string line = fmt::format("{} [{:#<{}}{:.<{}}] {:3.0f}%{}  {}", title_, "", filled, "",
                                 kWidth - filled, 100 * share, eta, detail);
  const auto columns = static_cast<size_t>(terminal_columns() - 1);
  if (line.size() > columns) line.resize(columns);
  fmt::print(stderr, "\r\x1b[K{}", line);
  std::fflush(stderr);
  drawn_ = true;
}

void ProgressBar::clear() {
  if (!drawn_) return;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
  drawn_ = false;
}

std::string printable(std::string_view text) {
  std::string out;
  const auto escape = [&](std::string_view bytes) {
    for (const char byte : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  };
  while (!text.empty()) {
    const size_t valid = std::min(find_invalid_utf8(text), text.size());
    for (size_t at = 0; at < valid;) {
      const size_t begin = at;
      const char32_t c = next_scalar(text, &at);
      const bool control = (c < 0x20 && c != '\n') || (c >= 0x7f && c < 0xa0);
      if (control) {
        escape(text.substr(begin, at - begin));
      } else {
        out += text.substr(begin, at - begin);
      }
    }
    text.remove_prefix(valid);
    if (text.empty()) break;
    escape(text.substr(0, 1));
    text.remove_prefix(1);
  }
  return out;
}

void print_warning(std::string_view text) {
  const bool color = stderr_has_color();
  fmt::print(stderr, "{}warning:{} {}\n", color ? "\x1b[33m" : "", color ? "\x1b[0m" : "",
             printable(text));
}

std::string valid_utf8(std::string_view text) {
  std::string out;
  append_lossy_utf8(text, &out);
  return out;
}

void ModelArgs::add_to(CLI::App& app) {
  app.add_option("MODEL", model, "A Hugging Face directory or a .gguf file")->required();
  app.add_option("--weights", weights,
                 "Quantise the weights to this format while loading, e.g. e3m2");
  app.add_option("--lm-head", lm_head, "Quantise the output head too, to this format");
  app.add_flag("--four-over-six", four_over_six,
               "With --weights nvfp4: map block maxima to 4 or 6, whichever is closer");
  app.add_option("--activations", activations,
                 "bf16, or f32 for the reference mode with exact weights")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  app.add_option(
         "--mode", mode,
         "How rows are executed: auto, weight-only, plain, residue, fp8, fp8-residue, paper")
      ->capture_default_str();
  app.add_option("--prefill-ratio", prefill_ratio,
                 "With --mode residue or paper: share of channels compensated in prompt rows: 0, "
                 "1, or after "
                 "`sub8 calibrate` 0.125, 0.25, 0.5 [0.25 for calibrated mxfp4, else 0]")
      ->check(CLI::Range(0.0f, 1.0f));
  app.add_option("--alpha", alpha,
                 "What the alpha of NVFP4 and FP8 activations is taken from: auto, row, static "
                 "(calibrated, or the export's input scales), or tensor (of a step's rows: not "
                 "batch-invariant). auto: what the calibration names, else NVFP4 exports' input "
                 "scales, else row")
      ->capture_default_str();
  app.add_option("--calibration", calibration,
                 "Directory whose sub8/residue.* is used (from `sub8 calibrate MODEL --out DIR`) "
                 "[MODEL's own]");
  app.add_option("--kv-cache-dtype", kv_cache_dtype,
                 "KV cache elements: f32, bf16, fp8 or nvfp4 [bf16; f32 with --activations f32]");
  app.add_option("--attention", attention,
                 "How generated rows attend: auto, 16-bit, fp8-query, fp4-query, resattn, "
                 "resattn-v8, resattn-pv16. auto: resattn with --mode residue or paper and "
                 "--kv-cache-dtype nvfp4, else 16-bit")
      ->capture_default_str();
  app.add_option("--max-model-len", max_model_len,
                 "Tokens of prompt and answer together [the model's limit, at most 8192]")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 31));
  app.add_option("--threads", threads, "CPU threads [all that this process may use]")
      ->check(CLI::Range(1, kMaxThreads));
}

Result<int> ModelArgs::thread_count() const {
  return threads > 0 ? threads : ThreadPool::default_threads();
}

Result<engine::RunOptions> ModelArgs::run_options() const {
  engine::RunOptions out;
  const bool exact = activations == "f32";
  out.activations = exact ? ActivationType::kF32 : ActivationType::kBF16;
  out.kv_type = exact ? kernels::KvType::kF32 : kernels::KvType::kBF16;
  if (!kv_cache_dtype.empty()) {
    Result<kernels::KvType> type = kernels::parse_kv_type(kv_cache_dtype);
    if (!type.ok()) return type.error().within("--kv-cache-dtype");
    out.kv_type = *type;
  }
  Result<model::ExecutionMode> parsed = model::parse_execution_mode(mode);
  if (!parsed.ok()) return parsed.error().within("--mode");
  out.mode.mode = *parsed;
  if (prefill_ratio >= 0) out.mode.prefill_ratio = prefill_ratio;
  if (attention != "auto") {
    Result<kernels::AttentionKind> kind = kernels::parse_attention_kind(attention);
    if (!kind.ok()) return kind.error().within("--attention");
    out.mode.attention = *kind;
  }
  if (alpha != "auto") {
    out.mode.alpha = format::parse_alpha_source(alpha);
    if (!out.mode.alpha) {
      return invalid_argument(
          fmt::format("--alpha must be one of auto, row, static, tensor, got '{}'", alpha));
    }
  }
  out.max_model_len = max_model_len;
  return out;
}

Status check_output_file(std::string_view option, const std::string& path) {
  if (path.empty() || path == "-") return {};
  std::error_code failed;
  // A device or a pipe is written to; its directory need not be writable. A link is followed.
  if (std::filesystem::is_other(path, failed)) return {};
  const std::filesystem::path target = std::filesystem::is_symlink(path, failed)
                                           ? std::filesystem::weakly_canonical(path, failed)
                                           : std::filesystem::path(path);
  const std::filesystem::path folder = target.parent_path();
  const std::string where = folder.empty() ? "." : folder.string();
  if (!std::filesystem::is_directory(where, failed)) {
    return not_found(
        fmt::format("{}: '{}' cannot be written: there is no directory '{}'", option, path, where));
  }
  if (std::filesystem::is_directory(path, failed))
    return invalid_argument(fmt::format("{}: '{}' is a directory", option, path));
  if (::access(where.c_str(), W_OK) != 0) {
    return invalid_argument(
        fmt::format("{}: '{}' cannot be written: the directory '{}' is not "
                    "writable",
                    option, path, where));
  }
  return {};
}

Status check_output_files(const std::vector<NamedPath>& outputs,
                          const std::vector<NamedPath>& inputs) {
  namespace fs = std::filesystem;
  std::vector<NamedPath> seen;
  for (const NamedPath& output : outputs) {
    SUB8_RETURN_IF_ERROR(check_output_file(output.option, output.path));
    std::error_code failed;
    if (output.path.empty() || output.path == "-" || fs::is_other(output.path, failed)) continue;
    const fs::path target = fs::weakly_canonical(fs::absolute(output.path), failed);
    for (const NamedPath& other : seen) {
      if (target != fs::weakly_canonical(fs::absolute(other.path), failed)) continue;
      return invalid_argument(fmt::format("{} and {} name the same file '{}'", other.option,
                                          output.option, output.path));
    }
    for (const NamedPath& input : inputs) {
      if (input.path.empty() || !fs::exists(target, failed)) continue;
      const bool same = fs::equivalent(target, input.path, failed);
      const bool inside = fs::is_directory(input.path, failed) &&
                          fs::equivalent(target.parent_path(), input.path, failed);
      if (!same && !inside) continue;
      return invalid_argument(fmt::format("{}: '{}' would replace {} of {}; choose another name",
                                          output.option, output.path,
                                          inside ? "a file" : "the input", input.option));
    }
    seen.push_back(output);
  }
  return {};
}

Result<std::vector<quantize::LayerOption>> parse_layer_options(
    const std::vector<std::string>& names, std::vector<float> ratios, bool residue) {
  std::vector<std::optional<format::WeightFormat>> formats;
  for (const std::string& name : names) {
    std::optional<format::WeightFormat> format;
    if (name != quantize::kOriginalName) {
      auto parsed = format::parse_weight_format(name);
      if (!parsed.ok()) return parsed.error().within("--formats");
      if (Status fits = format::check_quantizable(*parsed); !fits.ok())
        return fits.error().within("--formats");
      format = *parsed;
    }
    if (std::find(formats.begin(), formats.end(), format) != formats.end())
      return invalid_argument(fmt::format("--formats names {} twice", name));
    formats.push_back(format);
  }
  std::sort(ratios.begin(), ratios.end());
  for (size_t i = 0; i < ratios.size(); ++i) {
    const bool known =
        ratios[i] == 0 || ratios[i] == 1 || checkpoint::select_ratio_index(ratios[i]);
    if (!known || (i > 0 && ratios[i] == ratios[i - 1])) {
      return invalid_argument(fmt::format(
          "--ratios: expected some of 0, 0.125, 0.25, 0.5, 1, each once, got {}", ratios[i]));
    }
  }
  return study::plan_options(formats, ratios, residue);
}

Result<std::vector<size_t>> parse_select_ratios(const std::vector<float>& ratios) {
  std::vector<size_t> out;
  for (const float ratio : ratios) {
    const auto place = checkpoint::select_ratio_index(ratio);
    if (!place) {
      return invalid_argument(
          fmt::format("--ratios: expected some of 0.125, 0.25, 0.5, got {}", ratio));
    }
    out.push_back(*place);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

Status check_model_args(const ModelArgs& args) {
  SUB8_ASSIGN_OR_RETURN(const engine::RunOptions run, args.run_options());
  SUB8_RETURN_IF_ERROR(model::check_mode_options(run.mode));
  if (args.weights.empty()) {
    if (!args.lm_head.empty())
      return invalid_argument("--lm-head quantises while loading, so it needs --weights too");
    if (args.four_over_six)
      return invalid_argument(
          "--four-over-six quantises while loading, so it needs --weights nvfp4");
    return {};
  }
  if (args.weights.starts_with("int")) {
    Result<quantize::FakeInt> rule = quantize::parse_fake_int(args.weights);
    return rule.ok() ? Status() : rule.error().within("--weights");
  }
  Result<format::WeightFormat> weights = format::parse_weight_format(args.weights);
  if (!weights.ok()) return weights.error().within("--weights");
  const model::ExecutionMode mode = run.mode.mode;
  const bool weight_only =
      mode == model::ExecutionMode::kAuto || mode == model::ExecutionMode::kWeightOnly;
  if (!weight_only &&
      model::row_execution(mode, *weights, 0, RowClass::kGenerated, 1).weight_only) {
    return unsupported(
        fmt::format("the mode '{}' needs nvfp4 or mxfp4 weights, got {}", args.mode, args.weights));
  }
  return {};
}

Result<std::unique_ptr<checkpoint::WeightSource>> open_source(const ModelArgs& args,
                                                              ThreadPool& pool) {
  SUB8_RETURN_IF_ERROR(check_model_args(args));
  SUB8_ASSIGN_OR_RETURN(auto source, checkpoint::open_checkpoint(args.model));
  if (args.weights.empty()) return source;
  if (args.weights.starts_with("int")) {
    SUB8_ASSIGN_OR_RETURN(quantize::FakeInt rule, quantize::parse_fake_int(args.weights));
    if (!args.lm_head.empty() && args.lm_head != args.weights) {
      return invalid_argument("--lm-head must equal --weights where that is an integer baseline");
    }
    if (args.four_over_six)
      return invalid_argument("--four-over-six is for nvfp4, not for integer baselines");
    rule.lm_head = !args.lm_head.empty();
    return quantize::fake_quantize(std::move(source), rule);
  }
  quantize::Recipe recipe;
  Result<format::WeightFormat> weights = format::parse_weight_format(args.weights);
  if (!weights.ok()) return weights.error().within("--weights");
  recipe.weights = *weights;
  if (!args.lm_head.empty()) {
    Result<format::WeightFormat> head = format::parse_weight_format(args.lm_head);
    if (!head.ok()) return head.error().within("--lm-head");
    recipe.lm_head = *head;
  }
  recipe.rules.block.four_over_six = args.four_over_six;
  return quantize::quantize_at_load(std::move(source), recipe, pool.size());
}

bool can_use_calibration(const engine::RunOptions& run) {
  const bool coded_cache =
      run.kv_type == kernels::KvType::kFp8 || run.kv_type == kernels::KvType::kNvfp4;
  return run.mixed_modes || coded_cache || model::quantises_activations(run.mode.mode);
}

Result<Calibrated> open_calibration(const ModelArgs& args, const checkpoint::WeightSource& source,
                                    const engine::RunOptions& run, ThreadPool& pool) {
  Calibrated out;
  const std::string directory = args.calibration.empty() ? args.model : args.calibration;
  if (!checkpoint::has_residue(directory)) {
    if (args.calibration.empty()) return out;
    return not_found(fmt::format(
        "--calibration: '{}' has no sub8/residue.json; `sub8 calibrate MODEL --out {}` writes it",
        directory, directory));
  }
  if (!can_use_calibration(run)) {
    if (args.calibration.empty()) return out;
    return invalid_argument(fmt::format(
        "--calibration has no use in the mode '{}' with a KV cache in {}: give a --mode with "
        "activations in 4 or 8 bits, or --kv-cache-dtype fp8 or nvfp4",
        args.mode, kernels::kv_type_name(run.kv_type)));
  }
  SUB8_ASSIGN_OR_RETURN(out.residue, checkpoint::read_residue(directory, source.stored()));
  if (args.weights.empty()) return out;
  format::BlockRules rules;
  rules.four_over_six = args.four_over_six;
  out.extend = [&source, &pool, rules](const StoredMatrix& base, std::string_view module,
                                       std::span<const uint8_t> masks) {
    return quantize::extension_columns(base, source.stored(), module, masks, rules, pool);
  };
  return out;
}

void say_decoded_memory(const checkpoint::WeightSource& source, bool exact) {
  const int64_t element = exact ? 4 : 2;
  int64_t stored = 0;
  int64_t held = 0;
  if (source.quantization().starts_with("fake ")) return;  // a baseline: nothing is stored so
  for (const checkpoint::WeightInfo& info : source.weights()) {
    if (info.kind == checkpoint::WeightKind::kVector || !info.format.dense) continue;
    if (info.stored_type == format::dtype_name(info.format.dtype)) continue;
    // A tied table is held twice: for look-ups, and packed for the head.
    const bool twice = source.tied_head() && source.find("lm_head") == &info;
    stored += info.stored_bytes;
    held += info.rows * info.cols * element * (twice ? 2 : 1);
  }
  if (held == 0) return;
  fmt::print(stderr,
             "{} of block-quantised weights are decoded to {} and will take about {} of memory; "
             "`sub8 quantize`, or --weights and --lm-head here, makes them small again\n",
             format_bytes(static_cast<double>(stored)), exact ? "f32" : "bf16",
             format_bytes(static_cast<double>(held)));
}

std::string describe_cache(const engine::EngineInfo& info) {
  return fmt::format("KV cache {} ({} bytes per token{}), attention of generated rows {}",
                     info.kv_type, info.kv_token_bytes(),
                     info.kv_scales.empty() ? "" : ", scales " + info.kv_scales, info.attention);
}

Result<LoadedModel> load_model(const ModelArgs& args, engine::RunOptions options,
                               const Prepare& prepare) {
  const InterruptEndsProcess nothing_to_clean_up;
  LoadedModel out;
  SUB8_ASSIGN_OR_RETURN(const int threads, args.thread_count());
  out.pool = std::make_unique<ThreadPool>(threads);
  SUB8_ASSIGN_OR_RETURN(auto source, open_source(args, *out.pool));
  SUB8_ASSIGN_OR_RETURN(out.bundle, engine::make_bundle(std::move(source)));
  for (const std::string& warning : out.bundle.warnings) print_warning(warning);
  say_decoded_memory(*out.bundle.source, options.activations == ActivationType::kF32);
  if (prepare) SUB8_RETURN_IF_ERROR(prepare(out.bundle, options));
  SUB8_ASSIGN_OR_RETURN(Calibrated calibrated,
                        open_calibration(args, *out.bundle.source, options, *out.pool));
  options.residue = std::move(calibrated.residue);
  options.extend = std::move(calibrated.extend);
  ProgressBar bar("loading");
  options.progress = [&](const model::LoadProgress& p) {
    bar.update(static_cast<double>(p.done_bytes), static_cast<double>(p.total_bytes), p.module);
  };
  SUB8_ASSIGN_OR_RETURN(out.engine, engine::make_engine(out.bundle, options, *out.pool));
  bar.clear();
  const engine::EngineInfo& info = out.engine->info();
  fmt::print(stderr, "{}\n{}\n", info.mode_text, describe_cache(info));
  return out;
}

}  // namespace sub8::apps
