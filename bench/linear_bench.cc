// linear_bench [FORMAT,...] [M,...] [THREADS] [SHAPES]: the linear kernels of the path in force
// (SUB8_CPU) on this machine. SHAPES: "135M" or "8B" (a prefix of the names in bench_shapes()).
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "kernels/linear/bench.h"

namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> out;
  std::stringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) out.push_back(item);
  return out;
}

int fail(const sub8::Error& error) {
  std::fprintf(stderr, "linear_bench: %s\n", error.message.c_str());
  return sub8::exit_status(error.code);
}

}  // namespace

int main(int argc, char** argv) {
  const auto formats = split(argc > 1 ? argv[1] : "e3m2,e2m3,e2m2,e2m1,nvfp4,mxfp4,e4m3,bf16");
  const auto rows = split(argc > 2 ? argv[2] : "1,8,64,512");
  const int threads = argc > 3 ? std::atoi(argv[3]) : sub8::ThreadPool::default_threads();
  const std::string shapes = argc > 4 ? argv[4] : "135M";
  if (threads < 1) return fail(sub8::invalid_argument("THREADS must be at least 1"));
  sub8::ThreadPool pool(threads);
  const sub8::Result<sub8::CpuPath> path = sub8::selected_cpu_path();
  if (!path.ok()) return fail(path.error());
  const sub8::Result<double> read = sub8::measure_read_bandwidth(pool);
  if (!read.ok()) return fail(read.error());
  std::printf("%s, %d threads, reads %.1f GB/s\n", sub8::cpu_features().model.c_str(), threads,
              *read);
  std::printf("%-34s %-14s %4s %10s %10s %8s %6s %8s %9s\n", "kernel", "shape", "M", "best us",
              "median us", "GB/s", "read%", "Gw/s", "GFLOP/s");
  for (const std::string& name : formats) {
    const auto format = sub8::format::parse_weight_format(name);
    if (!format.ok()) return fail(format.error());
    for (const sub8::LinearShape& shape : sub8::bench_shapes()) {
      if (std::string(shape.name).find(shapes) == std::string::npos) continue;
      for (const std::string& m : rows) {
        const auto result =
            sub8::bench_linear({*format, shape.rows, shape.cols, std::atoll(m.c_str()), *path,
                                sub8::ActivationType::kBF16,
                                m == "1" ? sub8::RowClass::kGenerated : sub8::RowClass::kPrompt},
                               pool, *read);
        if (!result.ok()) return fail(result.error());
        std::printf("%-34s %-14s %4s %10.1f %10.1f %8.2f %6.0f %8.2f %9.1f\n",
                    result->kernel.c_str(), shape.name, m.c_str(), result->best_seconds * 1e6,
                    result->median_seconds * 1e6, result->packed_gb_per_s, result->read_share * 100,
                    result->gweights_per_s, result->gflop_per_s);
        std::fflush(stdout);
      }
    }
  }
  return 0;
}
