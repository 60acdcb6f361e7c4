// The forward pass as data: a list of operations on views into buffers that were planned
// beforehand.
//
// A builder (llama.cc, opt.cc) writes the list once, at load. An executor runs it for a batch of
// token rows: every buffer has `max_rows` rows, so nothing is allocated per step, and no operation
// needs a value back on the host, so a device executor can enqueue the whole list. Adding a device
// means adding an executor and kernels, not a model.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "format/activation.h"
#include "kernels/activation/activation.h"
#include "kernels/norm/norm.h"
#include "kernels/rope/rope.h"
#include "pack/linear_cpu.h"
#include "tensor/stored_matrix.h"

namespace sub8::model {

// Element type of a buffer. kActivation is what linear layers read: bf16, or f32 with
// `--activations f32`.
enum class BufferType : uint8_t { kF32, kActivation };

struct BufferPlan {
  std::string name;
  BufferType type = BufferType::kF32;
  int64_t cols = 0;
  bool logit_rows = false;  // has one row per wanted logit row instead of one per token row
};

// Columns [column, column + cols) of a buffer.
struct View {
  int buffer = -1;
  int64_t column = 0;
  int64_t cols = 0;
};

// x = table[token] * multiplier
struct EmbedOp {
  const StoredMatrix* table = nullptr;
  float multiplier = 1.0f;
  View out;
};

// x += table[position + offset]
struct PositionOp {
  const StoredMatrix* table = nullptr;
  int32_t offset = 0;
  View out;
};

struct RmsNormOp {
  kernels::RmsNormWeights weights;
  View in, out;
};

struct LayerNormOp {
  kernels::LayerNormWeights weights;
  View in, out;
};

// Every head of `x` normalised on its own, in place.
struct HeadNormOp {
  kernels::RmsNormWeights weights;
  View x;
  int heads = 0;
};

// How much of the residue prompt rows get. Between 0 and 1 (K-Ext): the selected channels and the
// weight columns that go with them.
struct Compensation {
  float ratio = 0;
  std::span<const uint8_t> masks;           // ceil(K/8)
  const PackedMatrix* extension = nullptr;  // [N, selected channels]
};

// Where the alpha of a layer's quantised activations comes from.
struct InputAlpha {
  format::AlphaSource source = format::AlphaSource::kRow;
  float value = 0;  // kStatic: positive

  bool operator==(const InputAlpha&) const = default;
};

// out = in W^T + bias, or out += that.
struct LinearOp {
  std::string name;                  // module, or several joined with '+', for reports
  std::vector<std::string> modules;  // the modules, in the order of the weight's rows
  const PackedMatrix* weight = nullptr;
  const float* bias = nullptr;
  bool accumulate = false;
  View in, out;
  InputAlpha nvfp4_alpha, fp8_alpha;  // by the activations that the mode gives the layer
  Compensation prompt;                // of prompt rows, where the mode has one
};

// Rotates q and k in place with rope table `table` of the program.
struct RopeOp {
  int table = 0;
  View x;
  int heads = 0;
};

struct KvWriteOp {
  int layer = 0;
  View k, v;
};

struct AttentionOp {
  int layer = 0;
  float soft_cap = 0;
  float scale = 0;
  int window = 0;  // 0: none
  View q, out;
};

// out = f(gate) * up
struct GatedOp {
  kernels::Activation function{};
  View gate, up, out;
};

struct ActivationOp {
  kernels::Activation function{};
  View in, out;
};

// x += y
struct AddOp {
  View x, y;
};

// out = in, rounded where the types differ.
struct ConvertOp {
  View in, out;
};

// Rows of `in` whose logits are wanted, in order, into `out`, a buffer of logit rows.
struct GatherOp {
  View in, out;
};

// logits = cap * tanh(logits / cap)
struct SoftCapOp {
  float cap = 0;
  View x;
};

// The layer's output is complete in `x`: where observers look.
struct LayerEndOp {
  int layer = 0;
  View x;
};

using Op = std::variant<EmbedOp, PositionOp, RmsNormOp, LayerNormOp, HeadNormOp, LinearOp, RopeOp,
                        KvWriteOp, AttentionOp, GatedOp, ActivationOp, AddOp, ConvertOp, GatherOp,
                        SoftCapOp, LayerEndOp>;

struct Program {
  std::vector<BufferPlan> buffers;
  std::vector<kernels::RopeFrequencies> rope_tables;
  std::vector<Op> body;  // embeds the tokens and runs all layers
  std::vector<Op> head;  // from the wanted rows of the residual stream to logits; may run more than
                         // once per body
  int logits = -1;       // the buffer that holds them

  int add_buffer(std::string name, BufferType type, int64_t cols, bool logit_rows = false) {
    buffers.push_back({std::move(name), type, cols, logit_rows});
    return static_cast<int>(buffers.size()) - 1;
  }
  View view(int buffer) const { return {buffer, 0, buffers[static_cast<size_t>(buffer)].cols}; }
  View view(int buffer, int64_t column, int64_t cols) const { return {buffer, column, cols}; }
};

}  // namespace sub8::model
