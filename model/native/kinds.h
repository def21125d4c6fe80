// What product.cpp and rows.cpp, compiled once for each kind of processor (setup.py), share with the
// rest, which is compiled once.

#pragma once

#include <cstdint>
#include <string>

namespace headlight {

constexpr int64_t PANEL = 64;  // columns side by side, as AVX-512 wants them

// Of a function compiled for each kind, the one for this processor, or null where there is none.
template <typename Function>
Function* choose(const std::string& kind, Function* avx2, Function* avx512) {
  return kind == "AVX512" ? avx512 : kind == "AVX2" ? avx2 : nullptr;
}

}  // namespace headlight
