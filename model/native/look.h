// One head of one layer over one sequence: what a walk over its map reads, and what it adds up.

#pragma once

#include "kinds.h"

namespace headlight {

// As tiles.Look, of whole tokens and one head.
struct Look {
  const float *q, *k;  // (tokens, head)
  const float* normaliser;  // (tokens,)
  const float* bias;  // added to the scores, (tokens, tokens), or null
  int64_t tokens, head;
  int64_t q_apart, k_apart;  // numbers from one row to the next
  int64_t before, after;  // how far a query looks to either side
  float scale;
};

// Sums over the rows of a map; of `received` one for each key, filled up to whole panels.
struct Sums {
  double self = 0, previous = 0, next = 0, entropy = 0, confidence = 0, distance = 0;
  float* received;
};

constexpr int64_t BLOCK = 16;  // queries at a time: so 512 keys' weights lie in the first cache

constexpr int64_t filled(int64_t count) { return (count + PANEL - 1) / PANEL * PANEL; }

// Numbers that a walk needs for itself: keys and weights.
constexpr int64_t room(int64_t tokens, int64_t head) { return filled(tokens) * (head + BLOCK); }

// Add up a head's map. `counted`, filled up like `received`, is 0 for the keys that confidence
// leaves out and 1 for the others.
using Walk = void(const Look& look, const float* counted, float* room, Sums& sums);

// null where setup.py compiles none
namespace AVX2 { [[gnu::weak]] Walk walk; }
namespace AVX512 { [[gnu::weak]] Walk walk; }

}  // namespace headlight
