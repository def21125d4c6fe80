// The attention of some queries of one head to its keys, and of one position to all it may see.

#pragma once

#include "kinds.h"

namespace headlight {

struct Look {
  const float *q, *k, *v;  // of the first tokens
  int64_t q_apart, k_apart, v_apart;  // numbers from one token to the next
  const float* bias;  // what is added to the scores, or null
  int64_t bias_apart;  // numbers from one query to the next
  int64_t queries, keys, head;  // channels of a head
  float scale;  // of the scores
  float *mixed, *sums;  // mixed values; log of each row's sum
  int64_t mixed_apart, sums_apart;
};

using Attend = void(const Look& look);

// null where setup.py compiles none
namespace NEON { [[gnu::weak]] Attend attend; }
namespace AVX2 { [[gnu::weak]] Attend attend; }
namespace AVX512 { [[gnu::weak]] Attend attend; [[gnu::weak]] Attend half_attend; }

}  // namespace headlight
