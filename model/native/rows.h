// What is done to rows between the products, in float32.

#pragma once

#include "kinds.h"

namespace headlight {

// RMSNorm of rows of `width` numbers that lie end to end; y may be x.
using Rms = void(const float* x, int64_t rows, const float* weight, int64_t width, float eps,
                 float* y);

// Turn heads that lie end to end, in place, by one position's (head / 2,) cosines and sines.
using Turn = void(float* x, int64_t heads, int64_t head, const float* cos, const float* sin);

// y = silu(gate) * up, so many numbers.
using Swish = void(const float* gate, const float* up, int64_t count, float* y);

// null where setup.py compiles none
namespace NEON { [[gnu::weak]] Rms rms; [[gnu::weak]] Turn turn; [[gnu::weak]] Swish swish; }
namespace AVX2 { [[gnu::weak]] Rms rms; [[gnu::weak]] Turn turn; [[gnu::weak]] Swish swish; }
namespace AVX512 { [[gnu::weak]] Rms rms; [[gnu::weak]] Turn turn; [[gnu::weak]] Swish swish; }

}  // namespace headlight
