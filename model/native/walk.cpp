// The walk over one head's map, some rows at a time: their scores, then all sums of a row while it lies in the cache; as statistics._walk, which takes twelve operators.

#include <algorithm>
#include <cmath>

#include "look.h"
#include "tile.h"

namespace headlight::CPU_CAPABILITY {
namespace {

constexpr float LOG2E = 1.4426950408889634, LN2 = 0.6931471805599453;
constexpr float NEVER = -1e30;  // the logarithm of no probability; as tiles.NEVER

// Lay out the keys as the product reads them, (panels, head, PANEL); beyond the last it stands again.
void lay(const Look& look, float* keys) {
  for (int64_t first = 0; first < filled(look.tokens); first += SIZE) {
    int32_t rows[SIZE];
    for (int64_t i = 0; i < SIZE; ++i) {
      rows[i] = static_cast<int32_t>(std::min(first + i, look.tokens - 1) * look.k_apart);
    }
    const auto places = at::vec::Vectorized<int32_t>::loadu(rows);
    auto* to = keys + first / PANEL * PANEL * look.head + first % PANEL;
    for (int64_t i = 0; i < look.head; ++i) {
      at::vec::gather<sizeof(float)>(look.k + i, places).store(to + i * PANEL);
    }
  }
}

// What is added to the scores of some keys, and 0 beyond the last.
Vec added(const float* bias, int64_t key, int64_t tokens) {
  return key < tokens ? Vec::loadu(bias + key, std::min(SIZE, tokens - key)) : Vec(0);
}

// Turn a row's scores into weights, and add up what follows from this row alone; returns what its
// weights are to be divided by.
float weigh(const Look& look, float* scores, int64_t query, int64_t from, int64_t to,
            const float* counted, Sums& sums) {
  const Vec scale(look.scale * LOG2E), shift(-look.normaliser[query] * LOG2E);
  const Vec here(query), least(-look.before), furthest(look.after), end(look.tokens - 1);
  const auto* bias = look.bias ? look.bias + query * look.tokens : nullptr;
  const auto steps = Vec::arange(0, 1);
  Vec whole(0), surprise(0), far(0), most(0);
  for (auto start = from * PANEL; start < to * PANEL; start += SIDE * SIZE) {
    auto* part = scores + start / PANEL * BLOCK * PANEL + start % PANEL;
    Vec logs[SIDE], weights[SIDE], distances[SIDE];
#pragma GCC unroll 4
    for (int64_t i = 0; i < SIDE; ++i) {
      const auto place = steps + Vec(start + i * SIZE);
      const auto ahead = place - here;
      distances[i] = ahead.abs();
      logs[i] = at::vec::fmadd(Vec::loadu(part + i * SIZE), scale, shift);
      if (bias) {
        logs[i] = at::vec::fmadd(added(bias, start + i * SIZE, look.tokens), Vec(LOG2E), logs[i]);
      }
      const auto beyond = (ahead < least) | (ahead > furthest) | (place > end);
      logs[i] = Vec::blendv(logs[i], Vec(NEVER), beyond);
    }
#pragma GCC unroll 4
    for (int64_t i = 0; i < SIDE; ++i) weights[i] = logs[i].exp2();
#pragma GCC unroll 4
    for (int64_t i = 0; i < SIDE; ++i) {
      weights[i].store(part + i * SIZE);
      whole = whole + weights[i];
      surprise = at::vec::fmadd(weights[i], logs[i], surprise);
      far = at::vec::fmadd(weights[i], distances[i], far);
      most = at::vec::clamp_min(weights[i] * Vec::loadu(counted + start + i * SIZE), most);
    }
  }
  const auto sum = whole.reduce_add();
  const auto at = [&](int64_t key) {
    return scores[key / PANEL * BLOCK * PANEL + key % PANEL] / sum;
  };
  sums.self += at(query);
  if (query && look.before) sums.previous += at(query - 1);
  if (query + 1 < look.tokens && look.after) sums.next += at(query + 1);
  sums.entropy += (std::log2(sum) - surprise.reduce_add() / sum) * LN2;
  sums.confidence += most.reduce_max() / sum;
  sums.distance += far.reduce_add() / sum;
  return sum;
}

// Add what the keys of some panels receive from some rows.
void receive(const float* map, const float* shares, int64_t rows, int64_t from, int64_t to,
             float* received) {
  for (auto panel = from; panel < to; ++panel) {
    for (int64_t i = 0; i < PANEL; i += SIZE) {
      auto total = Vec::loadu(received + panel * PANEL + i);
      const auto* weights = map + panel * BLOCK * PANEL + i;
      for (int64_t row = 0; row < rows; ++row) {
        total = at::vec::fmadd(Vec::loadu(weights + row * PANEL), Vec(shares[row]), total);
      }
      total.store(received + panel * PANEL + i);
    }
  }
}

}  // namespace

void walk(const Look& look, const float* counted, float* room, Sums& sums) {
  auto *keys = room, *map = room + filled(look.tokens) * look.head;  // (panels, BLOCK, PANEL)
  lay(look, keys);
  for (int64_t first = 0; first < look.tokens; first += BLOCK) {
    const auto rows = std::min(BLOCK, look.tokens - first);
    const auto from = std::max<int64_t>(0, first - look.before) / PANEL;
    const auto to = filled(std::min(look.tokens, first + rows + look.after)) / PANEL;
    for (auto panel = from; panel < to; ++panel) {
      const auto* some = keys + panel * PANEL * look.head;
      auto* part = map + panel * BLOCK * PANEL;
      const auto scores = [&](int64_t row, auto multiply) {
        multiply(look.q + (first + row) * look.q_apart, look.q_apart, some, look.head,
                 part + row * PANEL, nullptr);
      };
      int64_t row = 0;
      for (; row + 4 <= rows; row += 4) scores(row, multiply<4>);
      for (; row < rows; ++row) scores(row, multiply<1>);
    }
    float shares[BLOCK];
    for (int64_t row = 0; row < rows; ++row) {
      shares[row] = 1 / weigh(look, map + row * PANEL, first + row, from, to, counted, sums);
    }
    receive(map, shares, rows, from, to, sums.received);
  }
}

}  // namespace headlight::CPU_CAPABILITY
