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
constexpr int64_t SIDE = SIZE == 8 ? 2 : 4;  // vectors at a time, as registers allow: 16, or 32
constexpr int64_t MOST = 6;  // rows at a time, as registers allow
constexpr int64_t LINE = 16;  // units of a cache line
constexpr int64_t STEP = 16;  // columns that a product takes at least

// How float32 is multiplied.
struct Single {
  using Unit = Number;
  using Some = Vec;

  static int64_t units(int64_t numbers) { return numbers; }
  static Some load(const Unit* from) { return Vec::loadu(from); }
  static Some repeat(Unit each) { return Vec(each); }
  static Vec add(const Some& each, const Some& some, const Vec& sum) {
    return at::vec::fmadd(each, some, sum);
  }
  static Vec exponential(const Vec& x) { return x.exp_u20(); }

  // Numbers as units, and a vector of them from number i on.
  static void write(const float* from, int64_t count, Unit* to) { std::copy_n(from, count, to); }
  static void write(const Vec& some, int64_t i, Unit* to) { some.store(to + i); }

  // So many numbers as the i-th line of some of this width, the rest of which is 0.
  static void lay(const float* from, int64_t count, int64_t i, int64_t width, Unit* to) {
    std::fill(std::copy_n(from, count, to + i * width), to + (i + 1) * width, 0.0f);
  }
};

// y = x W of WIDE vectors of columns, x (ROWS, depth), W (depth, columns), y (ROWS, WIDE vectors),
// with so many units from a row to the next; the sums run over depth in order. LINES lines from
// `ahead` on are fetched for each step, so that memory works while this computes.
template <typename Format, int64_t ROWS, int64_t WIDE, int64_t LINES>
void multiply(const typename Format::Unit* x, int64_t apart, const typename Format::Unit* w,
              int64_t w_apart, int64_t depth, float* y, int64_t y_apart, const typename Format::Unit* ahead) {
  Vec sums[ROWS][WIDE];
#pragma GCC unroll 8
  for (auto& row : sums) {
#pragma GCC unroll 4
    for (auto& sum : row) sum = Vec(0);
  }
  for (int64_t i = 0; i < depth; ++i) {
#pragma GCC unroll 4
    for (int64_t line = 0; line < LINES; ++line, ahead += LINE) __builtin_prefetch(ahead, 0, 2);
    typename Format::Some some[WIDE];
#pragma GCC unroll 4
    for (int64_t j = 0; j < WIDE; ++j) some[j] = Format::load(w + i * w_apart + j * SIZE);
#pragma GCC unroll 8
    for (int64_t row = 0; row < ROWS; ++row) {
      const auto each = Format::repeat(x[row * apart + i]);
#pragma GCC unroll 4
      for (int64_t j = 0; j < WIDE; ++j) sums[row][j] = Format::add(each, some[j], sums[row][j]);
    }
  }
#pragma GCC unroll 8
  for (int64_t row = 0; row < ROWS; ++row) {
#pragma GCC unroll 4
    for (int64_t j = 0; j < WIDE; ++j) sums[row][j].store(y + row * y_apart + j * SIZE);
  }
}

// The same of up to MOST rows.
template <typename Format, int64_t WIDE, int64_t LINES>
void multiply_some(int64_t rows, const typename Format::Unit* x, int64_t apart,
                   const typename Format::Unit* w, int64_t w_apart, int64_t depth, float* y,
                   int64_t y_apart, const typename Format::Unit* ahead) {
  switch (rows) {
    case 1: return multiply<Format, 1, WIDE, LINES>(x, apart, w, w_apart, depth, y, y_apart, ahead);
    case 2: return multiply<Format, 2, WIDE, LINES>(x, apart, w, w_apart, depth, y, y_apart, ahead);
    case 3: return multiply<Format, 3, WIDE, LINES>(x, apart, w, w_apart, depth, y, y_apart, ahead);
    case 4: return multiply<Format, 4, WIDE, LINES>(x, apart, w, w_apart, depth, y, y_apart, ahead);
    case 5: return multiply<Format, 5, WIDE, LINES>(x, apart, w, w_apart, depth, y, y_apart, ahead);
    default: return multiply<Format, MOST, WIDE, LINES>(x, apart, w, w_apart, depth, y, y_apart, ahead);
  }
}

// The same of so many columns, a multiple of STEP.
template <typename Format>
void multiply_columns(int64_t columns, int64_t rows, const typename Format::Unit* x, int64_t apart,
                      const typename Format::Unit* w, int64_t w_apart, int64_t depth, float* y,
                      int64_t y_apart) {
  constexpr typename Format::Unit* NONE = nullptr;
  for (int64_t start = 0; start < columns; start += SIDE * SIZE) {
    const auto vectors = std::min(SIDE, (columns - start) / SIZE);
    const auto run = vectors == 1   ? multiply_some<Format, 1, 0>
                     : vectors == 2 ? multiply_some<Format, 2, 0>
                     : vectors == 3 ? multiply_some<Format, std::min<int64_t>(3, SIDE), 0>
                                    : multiply_some<Format, SIDE, 0>;
    run(rows, x, apart, w + start, w_apart, depth, y + start, y_apart, NONE);
  }
}

}  // namespace
}  // namespace headlight::CPU_CAPABILITY
