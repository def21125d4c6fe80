// Products and attention of bfloat16, whose sums are float32, for processors with avx512_bf16.
//
// Two numbers of bfloat16, a pair, are multiplied and added at once. The order of the sums follows
// from the length of a row alone.

#include <immintrin.h>

#include "activate.h"
#include "look.h"
#include "mix.h"
#include "panel.h"
#include "tile.h"

namespace headlight::CPU_CAPABILITY {
namespace {

// Of a vector's numbers, the first `count`.
__mmask16 first(int64_t count) { return (1u << std::clamp<int64_t>(count, 0, SIZE)) - 1; }

__m256i round(const Vec& some) { return (__m256i)_mm512_cvtneps_pbh(some); }

// Store the first `count` numbers, rounded. A masked store is slow to be read again.
void store_half(const Vec& some, int64_t count, uint16_t* to) {
  if (count < SIZE) return _mm256_mask_storeu_epi16(to, first(count), round(some));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), round(some));
}

struct Pairs {
  using Unit = Pair;
  using Some = __m512i;

  static int64_t units(int64_t numbers) { return (numbers + 1) / 2; }
  static Some load(const Unit* from) { return _mm512_loadu_si512(from); }
  static Some repeat(Unit each) { return _mm512_set1_epi32(static_cast<int>(each)); }
  static Vec add(const Some& each, const Some& some, const Vec& sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)each, (__m512bh)some);
  }
  static Vec exponential(const Vec& x) { return x.fexp_u20(); }  // more exact than their rounding

  // Numbers as pairs, the last of which is filled up with 0.
  static void write(const float* from, int64_t count, Unit* to) {
    auto* numbers = reinterpret_cast<uint16_t*>(to);
    for (int64_t i = 0; i < count; i += SIZE) {
      const auto some = std::min(SIZE, count - i);
      store_half(Vec::loadu(from + i, some), some + some % 2, numbers + i);
    }
  }
  static void write(const Vec& some, int64_t i, Unit* to) {
    store_half(some, SIZE, reinterpret_cast<uint16_t*>(to) + i);
  }

  // So many numbers as one half of the pairs in the i / 2-th line of some of this width; the other
  // half and the rest of it are 0 until they are laid.
  static void lay(const float* from, int64_t count, int64_t i, int64_t width, Unit* to) {
    auto* line = to + i / 2 * width;
    for (int64_t j = 0; j < width; j += SIZE) {
      const auto some = Vec(_mm512_maskz_loadu_ps(first(count - j), from + j));
      const auto wide = _mm512_cvtepu16_epi32(round(some));
      const auto pairs = i % 2 ? _mm512_or_si512(load(line + j), _mm512_slli_epi32(wide, 16)) : wide;
      _mm512_storeu_si512(line + j, pairs);
    }
  }
};

}  // namespace

void halve(const float* x, int64_t count, uint16_t* y) {
  for (int64_t i = 0; i < count; i += SIZE) {
    const auto some = std::min(SIZE, count - i);
    store_half(Vec::loadu(x + i, some), some, y + i);
  }
}

void half_product(const Panel<Pair>& panel, const Pair* x, int64_t rows, const float* residual,
                  void* y) {
  by_panel<Pairs>(panel, x, rows, [&](int64_t row, float* sums) {
    const auto place = row * panel.outputs;
    const bool rounded = panel.activation != Activation::NONE;
    add(panel, residual ? residual + place : nullptr, sums, [&](int64_t i, Vec x, int64_t count) {
      if (!rounded) return x.store(static_cast<float*>(y) + place + i, count);
      store_half(activate(panel.activation, x), count, static_cast<uint16_t*>(y) + place + i);
    });
  });
}

void half_attend(const Look& look) { mix<Pairs>(look); }

}  // namespace headlight::CPU_CAPABILITY
