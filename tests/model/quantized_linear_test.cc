// A layer of 4-bit activations gives the same bits whether its rows are codes or values.
#include "model/quantized_linear.h"

#include <random>

#include <gtest/gtest.h>

#include "format/dtype.h"
#include "kernels/linear/bench.h"

namespace sub8::model {
namespace {

struct Layer {
  PackedMatrix weight, extension;
  std::vector<uint8_t> masks;
};

std::vector<float> run(const Layer& layer, const RowExecution& how, int64_t m,
                       std::optional<ActivationType> rows, ThreadPool& pool) {
  const int64_t k = layer.weight.cols;
  const int64_t n = layer.weight.rows;
  std::mt19937 rng(7);
  std::vector<uint16_t> x(static_cast<size_t>(m * k));
  for (uint16_t& value : x)
    value = format::float_to_bf16(static_cast<float>(static_cast<int>(rng() % 2001) - 1000) / 77);
  std::vector<float> bias(static_cast<size_t>(n), 0.5f);
  std::vector<float> y(static_cast<size_t>(m * n), 1.0f);
  const int64_t chunk = std::min(m, kQuantizedRows);
  auto buffers = QuantizedLinearBuffers::allocate(chunk, k, n, pool.size());
  auto workspace = AlignedBuffer<std::byte>::uninitialized(
      linear_workspace_bytes(layer.weight, 2 * chunk, pool.size()));
  EXPECT_TRUE(buffers.ok() && workspace.ok());
  QuantizedLinearArgs args;
  args.x = x.data();
  args.x_stride = k;
  args.m = m;
  args.weight = &layer.weight;
  args.how = how;
  args.prompt = {how.ratio, layer.masks, &layer.extension};
  args.bias = bias.data();
  args.accumulate = true;
  args.y = y.data();
  args.y_stride = n;
  args.row_class = RowClass::kGenerated;
  args.row_type = rows;
  quantized_linear(args, *buffers, pool, workspace->span());
  return y;
}

TEST(QuantizedLayer, CodesAndValuesGiveTheSameBits) {
  ThreadPool pool(2);
  for (const CpuPath path : available_cpu_paths()) {
    for (const format::WeightFormat& format :
         {format::nvfp4_format(), format::mx_format(format::kE2M1)}) {
      const int64_t k = 176;
      const int64_t n = 70;
      const StoredMatrix w = random_weight(format, n, k);
      const StoredMatrix columns = random_weight(format, n, k / 8 * 2);
      const StoredMatrix* parts[] = {&w};
      const StoredMatrix* extension[] = {&columns};
      auto weight = pack_linear(parts, path, pool);
      auto packed = pack_linear(extension, path, pool);
      ASSERT_TRUE(weight.ok() && packed.ok());
      const Layer layer{std::move(*weight), std::move(*packed),
                        std::vector<uint8_t>(static_cast<size_t>(k / 8), 0x24)};
      for (const float ratio : {0.0f, 0.25f, 1.0f}) {
        RowExecution how{.weight_only = false, .format = *fp4_activations(format), .ratio = ratio};
        EXPECT_EQ(quantized_row_type(layer.weight, &layer.extension, how, RowClass::kGenerated),
                  ActivationType::kE2M1);
        for (const int64_t m : {int64_t{1}, int64_t{5}, kQuantizedRows + 3}) {
          const auto codes = run(layer, how, m, std::nullopt, pool);
          EXPECT_EQ(codes, run(layer, how, m, ActivationType::kBF16, pool))
              << format.name() << " " << cpu_path_name(path) << " ratio " << ratio << " M " << m;
          EXPECT_NE(codes, std::vector<float>(codes.size(), 1.0f));
        }
      }
      // 8-bit rows have no codes of four bits.
      RowExecution fp8{.weight_only = false, .format = format::ActivationFormat::kFp8};
      EXPECT_EQ(quantized_row_type(layer.weight, nullptr, fp8, RowClass::kGenerated),
                ActivationType::kBF16);
    }
  }
}

}  // namespace
}  // namespace sub8::model
