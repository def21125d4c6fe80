// One panel of a linear's outputs: what multiplies some rows by it, and what may follow at once.

#pragma once

#include "kinds.h"

namespace headlight {

struct Panel {
  const float* weights;  // (inputs, PANEL)
  const float* next;  // of the panel that follows, fetched meanwhile; null if none does
  const float* bias;  // (width,) or null
  int64_t inputs, width;  // up to PANEL outputs
  int64_t depth;  // inputs that are summed up before they are added to those before
  int64_t outputs;  // numbers from one row of the result to the next
  bool gelu;  // of the result
};

// y = x W^T + b, and a residual where there is one, (rows, outputs) like y; x is (rows, inputs).
using Product = void(const Panel& panel, const float* x, int64_t rows, const float* residual,
                     float* y);

// GELU of so many numbers, in place.
using Gelu = void(float* x, int64_t count);

// null where setup.py compiles none
namespace AVX2 { [[gnu::weak]] Product product; [[gnu::weak]] Gelu gelu; }
namespace AVX512 { [[gnu::weak]] Product product; [[gnu::weak]] Gelu gelu; }

}  // namespace headlight
