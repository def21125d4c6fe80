// Norms, rotations and gates of rows, each in one step over what lies in the cache.
//
// The bits are those of torch's operators, which take ten, eleven and two steps: norm.h and gated.h
// compare them. setup.py keeps a product and a sum that are no fmadd apart (-ffp-contract=off).

#include <algorithm>
#include <cmath>

#include "rows.h"
#include "tile.h"

namespace headlight::CPU_CAPABILITY {
namespace {

// How torch adds up a row: in so many sums side by side, which are emptied after so many steps.
constexpr int64_t LANES = 8, SUMS = 4 * LANES, STEPS = 16;
constexpr int64_t COUNT = SUMS / SIZE;  // vectors that hold them

// The sum of a row's squares, in torch's order up to 256 steps of SUMS numbers.
float squares(const float* x, int64_t width) {
  Vec inner[COUNT], outer[COUNT];
#pragma GCC unroll 4
  for (int64_t j = 0; j < COUNT; ++j) inner[j] = outer[j] = Vec(0);
  int64_t i = 0;
  for (int64_t step = 1; i + SUMS <= width; i += SUMS, ++step) {
#pragma GCC unroll 4
    for (int64_t j = 0; j < COUNT; ++j) {
      const auto some = Vec::loadu(x + i + j * SIZE);
      inner[j] = inner[j] + some * some;
    }
    if (step % STEPS) continue;
#pragma GCC unroll 4
    for (int64_t j = 0; j < COUNT; ++j) {
      outer[j] = outer[j] + inner[j];
      inner[j] = Vec(0);
    }
  }
  float sums[SUMS], total = 0;
#pragma GCC unroll 4
  for (int64_t j = 0; j < COUNT; ++j) (inner[j] + outer[j]).store(sums + j * SIZE);
  for (; i + LANES <= width; i += LANES) {
    for (int64_t lane = 0; lane < LANES; ++lane) sums[lane] += x[i + lane] * x[i + lane];
  }
  for (int64_t j = LANES; j < SUMS; ++j) sums[j % LANES] += sums[j];
  for (; i < width; ++i) total += x[i] * x[i];
  for (int64_t lane = 0; lane < LANES; ++lane) total += sums[lane];
  return total;
}

}  // namespace

void rms(const float* x, int64_t rows, const float* weight, int64_t width, float eps, float* y) {
  for (const auto* end = x + rows * width; x < end; x += width, y += width) {
    const Vec by(1 / std::sqrt(squares(x, width) / static_cast<float>(width) + eps));
    for (int64_t i = 0; i < width; i += SIZE) {
      const auto some = std::min(SIZE, width - i);
      (Vec::loadu(x + i, some) * by * Vec::loadu(weight + i, some)).store(y + i, some);
    }
  }
}

void turn(float* x, int64_t heads, int64_t head, const float* cos, const float* sin) {
  const auto half = head / 2;
  for (auto* end = x + heads * head; x < end; x += head) {
    for (int64_t i = 0; i < half; i += SIZE) {
      const auto some = std::min(SIZE, half - i);
      const auto c = Vec::loadu(cos + i, some), s = Vec::loadu(sin + i, some);
      const auto left = Vec::loadu(x + i, some), right = Vec::loadu(x + half + i, some);
      (left * c - right * s).store(x + i, some);
      (right * c + left * s).store(x + half + i, some);
    }
  }
}

void swish(const float* gate, const float* up, int64_t count, float* y) {
  for (int64_t i = 0; i < count; i += SIZE) {
    const auto some = std::min(SIZE, count - i);
    const auto x = Vec::loadu(gate + i, some);
    (x / (Vec(1) + x.neg().exp()) * Vec::loadu(up + i, some)).store(y + i, some);
  }
}

}  // namespace headlight::CPU_CAPABILITY
