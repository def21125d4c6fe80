// Some rows of a linear times one panel of its weight, while the next panel comes from memory.
//
// A few rows are done with a panel sooner than memory brings the next one, so it is asked for while
// this one is computed (docs/decisions/0025-products-by-panels.md). The sums are oneDNN's, in its
// order: linear.h compares them to the bit.

#include <algorithm>

#include "gelu.h"
#include "product.h"
#include "tile.h"

namespace headlight::CPU_CAPABILITY {
namespace {

constexpr int64_t MOST = 6;  // rows at a time, as registers allow

// Up to MOST rows, and so many lines of the next panel for each input.
template <int64_t LINES>
void some(int64_t rows, const float* x, int64_t apart, const float* w, int64_t depth, float* y,
          const float* ahead) {
  switch (rows) {
    case 1: return multiply<1, LINES>(x, apart, w, depth, y, ahead);
    case 2: return multiply<2, LINES>(x, apart, w, depth, y, ahead);
    case 3: return multiply<3, LINES>(x, apart, w, depth, y, ahead);
    case 4: return multiply<4, LINES>(x, apart, w, depth, y, ahead);
    case 5: return multiply<5, LINES>(x, apart, w, depth, y, ahead);
    default: return multiply<MOST, LINES>(x, apart, w, depth, y, ahead);
  }
}

using Some = decltype(some<0>);

// Shares the lines of the next panel out among `blocks` blocks of rows; the first take the most.
// An even share comes too late: the last of three blocks would fetch half.
int64_t share(int64_t block, int64_t blocks) {
  return blocks == 1 ? 4 : blocks == 2 ? 2 : block < 4 ? blocks == 3 && block == 0 ? 2 : 1 : 0;
}

// Write the sums over some inputs of one row to y, or add them; behind the last, all that follows.
void add(const Panel& panel, int64_t input, int64_t depth, const float* sums,
         const float* residual, float* y) {
  const auto width = panel.width;
  for (int64_t i = 0; i < width; ++i) y[i] = input ? y[i] + sums[i] : sums[i];
  if (input + depth < panel.inputs) return;
  if (panel.bias) {
    for (int64_t i = 0; i < width; ++i) y[i] += panel.bias[i];
  }
  if (residual) {
    for (int64_t i = 0; i < width; ++i) y[i] += residual[i];
  }
  if (panel.gelu) gelu(y, width);
}

}  // namespace

void gelu(float* x, int64_t count) {
  for (int64_t i = 0; i < count; i += SIZE) {
    const auto width = std::min(SIZE, count - i);
    erf_gelu(Vec::loadu(x + i, width)).store(x + i, width);
  }
}

void product(const Panel& panel, const float* x, int64_t rows, const float* residual, float* y) {
  static constexpr Some* BY_LINES[] = {some<0>, some<1>, some<2>, nullptr, some<4>};
  const auto inputs = panel.inputs, outputs = panel.outputs;
  const auto blocks = (rows + MOST - 1) / MOST;
  const auto* ahead = panel.next;
  float part[MOST * PANEL];
  for (int64_t block = 0; block < blocks; ++block) {
    const auto from = rows * block / blocks, to = rows * (block + 1) / blocks;
    const auto lines = panel.next ? share(block, blocks) : 0;
    for (int64_t input = 0; input < inputs; input += panel.depth) {
      const auto depth = std::min(panel.depth, inputs - input);
      BY_LINES[lines](to - from, x + from * inputs + input, inputs, panel.weights + input * PANEL,
                      depth, part, ahead);
      ahead += lines * LINE * depth;
      for (auto row = from; row < to; ++row) {
        const auto* sums = part + (row - from) * PANEL;
        add(panel, input, depth, sums, residual ? residual + row * outputs : nullptr,
            y + row * outputs);
      }
    }
  }
}

}  // namespace headlight::CPU_CAPABILITY
