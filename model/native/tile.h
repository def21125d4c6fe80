// Some rows times a panel of columns, for the files compiled once for each kind of processor.
//
// Such a file includes next to nothing: an inline function of another header, made for AVX-512
// there, could be linked where there is none.

#pragma once

#include <algorithm>

#include <ATen/cpu/vec/vec.h>

#include "kinds.h"

namespace headlight::CPU_CAPABILITY {
namespace {

using Vec = at::vec::Vectorized<float>;

constexpr int64_t SIZE = Vec::size();
constexpr int64_t SIDE = SIZE == 16 ? 4 : 2;  // vectors at a time, as registers allow
constexpr int64_t LINE = 16;  // numbers of a cache line

// y = x W, x (ROWS, depth), W (depth, PANEL), y (ROWS, PANEL); the sums run over depth in order.
// LINES lines from `ahead` on are fetched for each step, so that memory works while this computes.
template <int64_t ROWS, int64_t LINES>
void multiply(const float* x, int64_t apart, const float* w, int64_t depth, float* y,
              const float* ahead) {
  constexpr int64_t STRIP = SIDE * SIZE;
  constexpr int64_t EACH = std::max<int64_t>(1, LINES * STRIP / PANEL);  // of the lines, in a strip
  for (int64_t start = 0; start < PANEL; start += STRIP) {
    Vec sums[ROWS][SIDE];
#pragma GCC unroll 8
    for (auto& row : sums) {
#pragma GCC unroll 4
      for (auto& sum : row) sum = Vec(0);
    }
    for (int64_t i = 0; i < depth; ++i) {
      if (start / STRIP * EACH < LINES) {
#pragma GCC unroll 4
        for (int64_t line = 0; line < EACH; ++line, ahead += LINE) __builtin_prefetch(ahead, 0, 2);
      }
      Vec some[SIDE];
#pragma GCC unroll 4
      for (int64_t j = 0; j < SIDE; ++j) some[j] = Vec::loadu(w + i * PANEL + start + j * SIZE);
#pragma GCC unroll 8
      for (int64_t row = 0; row < ROWS; ++row) {
        const Vec each(x[row * apart + i]);
#pragma GCC unroll 4
        for (int64_t j = 0; j < SIDE; ++j) {
          sums[row][j] = at::vec::fmadd(each, some[j], sums[row][j]);
        }
      }
    }
#pragma GCC unroll 8
    for (int64_t row = 0; row < ROWS; ++row) {
#pragma GCC unroll 4
      for (int64_t j = 0; j < SIDE; ++j) sums[row][j].store(y + row * PANEL + start + j * SIZE);
    }
  }
}

}  // namespace
}  // namespace headlight::CPU_CAPABILITY
