// One panel of a linear's outputs: what multiplies some rows by it, and what may follow at once.

#pragma once

#include "kinds.h"

namespace headlight {

enum class Activation { NONE, GELU, GELU_TANH, RELU, SILU };

template <typename Unit>
struct Panel {
  const Unit* weights;  // (inputs, PANEL)
  const Unit* next;  // of the panel that follows, fetched meanwhile; null if none does
  const float* bias;  // (width,) or null
  int64_t inputs, width;  // in units; up to PANEL outputs
  int64_t depth;  // inputs that are summed up before they are added to those before
  int64_t outputs;  // numbers from one row of the result to the next
  Activation activation;
};

// y = activation(x W^T + b), or with a residual instead, (rows, outputs) like y; x is (rows, inputs).
using Product = void(const Panel<Number>& panel, const Number* x, int64_t rows,
                     const float* residual, float* y);
// The same of pairs. With an activation y is bfloat16.
using HalfProduct = void(const Panel<Pair>& panel, const Pair* x, int64_t rows,
                         const float* residual, void* y);

// Round so many numbers to bfloat16.
using Halve = void(const float* x, int64_t count, uint16_t* y);

// GELU of so many numbers, in place.
using Gelu = void(float* x, int64_t count);

// null where setup.py compiles none
namespace NEON { [[gnu::weak]] Product product; [[gnu::weak]] Gelu gelu; }
namespace AVX2 { [[gnu::weak]] Product product; [[gnu::weak]] Gelu gelu; }
namespace AVX512 {
[[gnu::weak]] Product product;
[[gnu::weak]] Gelu gelu;
[[gnu::weak]] HalfProduct half_product;
[[gnu::weak]] Halve halve;
}  // namespace AVX512

}  // namespace headlight
