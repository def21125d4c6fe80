// What the files compiled once for each kind of processor (setup.py) share with the rest, which is
// compiled once.

#pragma once

#include <cstdint>
#include <string>

namespace headlight {

constexpr int64_t PANEL = 64;  // columns side by side, as AVX-512 wants them

// What a product reads at once: a number, or two of bfloat16, of which the first lies lower.
using Number = float;
using Pair = uint32_t;

// Of a function compiled for each kind, the one for this processor, or null where there is none.
template <typename Function>
Function* choose(const std::string& kind, Function* avx2, Function* avx512, Function* neon) {
#ifdef __aarch64__
  return neon;  // which every one has, whatever else torch finds
#else
  return kind == "AVX512" ? avx512 : kind == "AVX2" ? avx2 : nullptr;
#endif
}

// The same of a function that needs avx512_bf16.
template <typename Function>
Function* choose_half(const std::string& kind, Function* avx512) {
#ifdef __x86_64__
  return kind == "AVX512" && __builtin_cpu_supports("avx512bf16") ? avx512 : nullptr;
#else
  return nullptr;
#endif
}

}  // namespace headlight
