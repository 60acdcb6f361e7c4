// Activation functions of MLPs.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/cpu.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/activation/names.h"
#include "kernels/rows.h"

namespace sub8::kernels {

// Names as in config.json (hidden_act, hidden_activation, activation_function): silu, swish, gelu,
// gelu_new, gelu_fast, gelu_pytorch_tanh, relu, quick_gelu. An error lists them.
Result<Activation> parse_activation(std::string_view name);

// out[r][i] = f(gate[r][i]) * up[r][i]: FP32, rounded once.
void gated_activation(CpuPath path, ThreadPool& pool, Activation f, InputRows gate, InputRows up,
                      int64_t rows, int64_t cols, OutputRows out);

// out[r][i] = f(x[r][i]). `out` may be x itself (f32, same stride).
void activation(CpuPath path, ThreadPool& pool, Activation f, InputRows x, int64_t rows,
                int64_t cols, OutputRows out);

}  // namespace sub8::kernels
