// The attention of one head, for the files compiled once for each kind of processor.
//
//     z = softmax(scale q k^T + bias) v
//
// Keys and values are laid out as panels, as a linear's weight is; a few queries then see all keys
// before their softmax, in scores that fit the nearest cache. What a query gets follows from its own
// row and from the keys alone, not from the other queries.

#pragma once

#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "look.h"
#include "tile.h"

namespace headlight::CPU_CAPABILITY {
namespace {

constexpr int64_t round_up(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

template <typename Unit>
auto reserve(int64_t count) { return std::make_unique_for_overwrite<Unit[]>(count); }

// Softmax of a row of scores, without its division, up to whole vectors, past `keys` 0. Returns its
// sum and the log of it.
template <typename Format>
std::pair<float, float> soften(float* scores, const float* bias, int64_t keys, float scale,
                               typename Format::Unit* to) {
  const Vec least(-std::numeric_limits<float>::infinity());
  if (bias) {
    for (int64_t i = 0; i < keys; i += SIZE) {
      const auto added = Vec::loadu(bias + i, std::min(SIZE, keys - i));
      at::vec::fmadd(Vec::loadu(scores + i), Vec(scale), added).store(scores + i);
    }
    scale = 1;
  }
  auto most = least;
  for (int64_t i = 0; i < keys; i += SIZE) {
    const auto x = Vec::loadu(scores + i);
    most = at::vec::maximum(most, keys - i < SIZE ? Vec::set(least, x, keys - i) : x);
  }
  float lanes[SIZE];
  most.store(lanes);
  const bool ordered = std::none_of(lanes, lanes + SIZE, [](float x) { return std::isnan(x); });
  const auto largest = *std::max_element(lanes, lanes + SIZE) * scale;
  const Vec by(scale), top(-largest);
  Vec total(0);
  for (int64_t i = 0; i < keys; i += SIZE) {
    auto p = Format::exponential(at::vec::fmadd(Vec::loadu(scores + i), by, top));
    if (keys - i < SIZE) p = Vec::set(Vec(0), p, keys - i);
    total = total + p;
    Format::write(p, i, to);
  }
  total.store(lanes);
  // what is not finite would else become a large number: exp_u20 takes it for the largest it knows
  const bool finite = ordered && std::isfinite(largest);
  const auto sum = finite ? std::accumulate(lanes, lanes + SIZE, 0.0f) : NAN;
  return {sum, largest + std::log(sum)};
}

// The keys of one head as panels of columns, (panels, depth, PANEL), the last filled up with zeros.
template <typename Format>
void lay_keys(const Look& look, typename Format::Unit* to) {
  const auto depth = Format::units(look.head);
  auto row = reserve<typename Format::Unit>(depth);
  for (int64_t key = 0; key < round_up(look.keys, STEP); ++key) {
    auto* column = to + key / PANEL * PANEL * depth + key % PANEL;
    if (key < look.keys) {
      Format::write(look.k + key * look.k_apart, look.head, row.get());
    } else {
      std::fill_n(row.get(), depth, typename Format::Unit{});
    }
    for (int64_t i = 0; i < depth; ++i) column[i * PANEL] = row[i];
  }
}

// The attention of one head, with scratch for MOST queries at a time.
template <typename Format>
void mix(const Look& look) {
  using Unit = typename Format::Unit;
  const auto depth = Format::units(look.head), keys = look.keys;
  const auto padded = round_up(keys, STEP), head = round_up(look.head, STEP);
  const auto rows_apart = Format::units(padded), value_depth = Format::units(keys);
  const auto laid_keys = reserve<Unit>(round_up(keys, PANEL) * depth);
  const auto laid_values = reserve<Unit>(value_depth * head);
  const auto queries = reserve<Unit>(MOST * depth), weights = reserve<Unit>(MOST * rows_apart);
  const auto scores = reserve<float>(MOST * padded), mixed = reserve<float>(MOST * head);
  lay_keys<Format>(look, laid_keys.get());
  for (int64_t key = 0; key < keys; ++key) {
    Format::lay(look.v + key * look.v_apart, look.head, key, head, laid_values.get());
  }
  for (int64_t first = 0; first < look.queries; first += MOST) {
    const auto rows = std::min(MOST, look.queries - first);
    for (int64_t row = 0; row < rows; ++row) {
      Format::write(look.q + (first + row) * look.q_apart, look.head, queries.get() + row * depth);
    }
    for (int64_t key = 0; key < padded; key += PANEL) {
      multiply_columns<Format>(std::min(PANEL, padded - key), rows, queries.get(), depth,
                               laid_keys.get() + key * depth, PANEL, depth, scores.get() + key, padded);
    }
    float sums[MOST];
    for (int64_t row = 0; row < rows; ++row) {
      auto* to = weights.get() + row * rows_apart;
      const auto* bias = look.bias ? look.bias + (first + row) * look.bias_apart : nullptr;
      const auto [sum, log] =
          soften<Format>(scores.get() + row * padded, bias, keys, look.scale, to);
      sums[row] = sum;
      look.sums[(first + row) * look.sums_apart] = log;
    }
    multiply_columns<Format>(head, rows, weights.get(), rows_apart, laid_values.get(), head,
                             value_depth, mixed.get(), head);
    for (int64_t row = 0; row < rows; ++row) {
      auto* to = look.mixed + (first + row) * look.mixed_apart;
      for (int64_t i = 0; i < look.head; ++i) to[i] = mixed[row * head + i] / sums[row];
    }
  }
}

}  // namespace
}  // namespace headlight::CPU_CAPABILITY
