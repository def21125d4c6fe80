// What a gated feed-forward makes of its first product: activation(gate) * up.
//
// SiLU takes one step by rows.cpp, if it gives torch's bits on this processor. torch takes the last
// numbers of a part of a row one by one, with other bits, and cuts rows into parts by the number of
// threads; rows.cpp never does.

#pragma once

#include <algorithm>
#include <string>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>

#include "linear.h"
#include "norm.h"
#include "rows.h"

namespace {

struct Gated {
  std::string activation, algorithm;  // as oneDNN calls them
  bool brief;  // by our own kernel

  Gated(std::string activation, std::string algorithm)
      : activation(activation), algorithm(algorithm),
        brief(activation == "swish" && same_swish()) {}

  // (rows, 2 * inner), the gate and then what it scales, -> (rows, inner).
  Tensor operator()(const Tensor& both) const {
    const auto rows = both.size(0), inner = both.size(1) / 2;
    if (!brief || both.scalar_type() != at::kFloat || inner % AT_ONCE) {
      const auto halves = both.chunk(2, -1);
      return activate(halves[0]) * halves[1];
    }
    auto y = at::empty({rows, inner}, both.options());
    const auto* from = both.const_data_ptr<float>();
    auto* to = y.mutable_data_ptr<float>();
    at::parallel_for(0, rows, std::max<int64_t>(1, GRAIN / inner), [&](int64_t first, int64_t last) {
      for (auto row = first; row < last; ++row) {
        const auto* gate = from + 2 * row * inner;
        own(gate, gate + inner, inner, to + row * inner);
      }
    });
    return y;
  }

 private:
  static constexpr int64_t AT_ONCE = 32;  // numbers that torch takes at most; the rest one by one
  static inline headlight::Swish* const own = headlight::choose(
      at::get_cpu_capability(), headlight::AVX2::swish, headlight::AVX512::swish);

  Tensor activate(const Tensor& x) const {
    if (activation == "relu") return at::relu(x);
    if (activation == "swish") return at::silu(x);
    return at::gelu(x, algorithm);
  }

  static bool same_swish() {
    static const bool same = own && same_bits(
        [](const Tensor& x) {
          auto y = at::empty_like(x);
          const auto ones = at::ones_like(x);
          own(x.const_data_ptr<float>(), ones.const_data_ptr<float>(), x.numel(),
              y.mutable_data_ptr<float>());
          return y;
        },
        [](const Tensor& x) {
          std::vector<Tensor> parts;  // small enough for one thread
          for (const auto& part : x.split(GRAIN / 2)) parts.push_back(at::silu(part));
          return at::cat(parts);
        });
    return same;
  }
};

}  // namespace
