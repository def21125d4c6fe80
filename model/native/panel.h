// Some rows of a linear times one panel of its weight, while the next panel comes from memory.
//
// A few rows are done with a panel sooner than memory brings the next one, so it is asked for while
// this one is computed (docs/decisions/0025-products-by-panels.md).

#pragma once

#include <algorithm>

#include "product.h"
#include "tile.h"

namespace headlight::CPU_CAPABILITY {
namespace {

// Up to so many rows registers hold a panel's columns rather than rows, where they do not hold both:
// what memory brings is then used up sooner.
constexpr int64_t FEW = SIZE == 8 ? 20 : 0;

// A panel, WIDE vectors of columns at a time; of the lines to fetch each strip takes as many as its
// columns.
template <typename Format, int64_t WIDE, int64_t LINES>
void multiply_panel(int64_t rows, const typename Format::Unit* x, int64_t apart,
                    const typename Format::Unit* w, int64_t depth, float* y,
                    const typename Format::Unit* ahead) {
  constexpr int64_t STRIP = WIDE * SIZE;
  constexpr int64_t EACH = std::max<int64_t>(1, LINES * STRIP / PANEL);  // of the lines, in a strip
  for (int64_t start = 0; start < PANEL; start += STRIP) {
    if (start / STRIP * EACH < LINES) {
      multiply_some<Format, WIDE, LINES ? EACH : 0>(rows, x, apart, w + start, PANEL, depth, y + start,
                                                    PANEL, ahead);
      ahead += EACH * LINE * depth;
    } else {
      multiply_some<Format, WIDE, 0>(rows, x, apart, w + start, PANEL, depth, y + start, PANEL, ahead);
    }
  }
}

// Shares the lines of the next panel out among `blocks` blocks of rows; the first take the most.
// An even share comes too late: the last of three blocks would fetch half.
int64_t share(int64_t block, int64_t blocks) {
  return blocks == 1 ? 4 : blocks == 2 ? 2 : block < 4 ? blocks == 3 && block == 0 ? 2 : 1 : 0;
}

// y = x W^T by a panel, WIDE vectors of columns by at most ROWS rows at a time.
template <typename Format, int64_t WIDE, int64_t ROWS, typename Finish>
void by_tiles(const Panel<typename Format::Unit>& panel, const typename Format::Unit* x,
              int64_t rows, const Finish& finish) {
  using Run = decltype(multiply_panel<Format, WIDE, 0>);
  static constexpr Run* BY_LINES[] = {multiply_panel<Format, WIDE, 0>, multiply_panel<Format, WIDE, 1>,
                                      multiply_panel<Format, WIDE, 2>, nullptr,
                                      multiply_panel<Format, WIDE, 4>};
  const auto inputs = panel.inputs;
  const auto blocks = (rows + ROWS - 1) / ROWS;
  const auto* ahead = panel.next;
  float part[ROWS * PANEL], sums[ROWS * PANEL];
  for (int64_t block = 0; block < blocks; ++block) {
    const auto from = rows * block / blocks, to = rows * (block + 1) / blocks;
    const auto lines = panel.next ? share(block, blocks) : 0;
    for (int64_t input = 0; input < inputs; input += panel.depth) {
      const auto depth = std::min(panel.depth, inputs - input);
      BY_LINES[lines](to - from, x + from * inputs + input, inputs, panel.weights + input * PANEL,
                      depth, input ? part : sums, ahead);
      ahead += lines * LINE * depth;
      if (!input) continue;
      for (int64_t i = 0; i < (to - from) * PANEL; ++i) sums[i] += part[i];
    }
    for (auto row = from; row < to; ++row) finish(row, sums + (row - from) * PANEL);
  }
}

// y = x W^T by a panel; finish(row, sums) is called with each row's sums.
template <typename Format, typename Finish>
void by_panel(const Panel<typename Format::Unit>& panel, const typename Format::Unit* x,
              int64_t rows, const Finish& finish) {
  if (rows <= FEW) return by_tiles<Format, 4, 3>(panel, x, rows, finish);
  by_tiles<Format, SIDE, MOST>(panel, x, rows, finish);
}

// Add bias and residual, where there are any, to the sums of one row; `store(i, x, count)` takes each
// vector of the result, or the `count` numbers of it that there are.
template <typename Unit, typename Store>
void add(const Panel<Unit>& panel, const float* residual, const float* sums, const Store& store) {
  for (int64_t i = 0; i < panel.width; i += SIZE) {
    const auto count = std::min(SIZE, panel.width - i);
    auto x = Vec::loadu(sums + i);
    if (panel.bias) x = x + Vec::loadu(panel.bias + i, count);
    if (residual) x = x + Vec::loadu(residual + i, count);
    store(i, x, count);
  }
}

}  // namespace
}  // namespace headlight::CPU_CAPABILITY
