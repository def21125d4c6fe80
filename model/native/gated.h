// What a gated feed-forward makes of its first product: activation(gate) * up; as steady.apply_gate.
//
// torch takes the last numbers of what a thread gets of a row one by one, by other formulas: so
// here threads get whole rows, and never a single one, whose part is contiguous, for which torch
// has another kernel. SiLU takes one step by rows.cpp, if it gives torch's bits on this processor.

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
#include <c10/core/InferenceMode.h>

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
    const auto pairs = std::max<int64_t>(1, rows / 2);
    const auto halves = both.chunk(2, -1);
    auto y = at::empty({rows, inner}, both.options());
    const bool own = brief && both.scalar_type() == at::kFloat && inner % AT_ONCE == 0;
    // what one thread takes alone it takes in one call, odd rows included
    const auto least = std::max<int64_t>(1, (GRAIN / inner - 1) / 2);
    headlight::share_out(pairs, least, [&](int64_t first, int64_t last) {
      const c10::InferenceMode mode;  // another thread's may write to what this one's made
      const auto start = 2 * first, count = (last == pairs ? rows : 2 * last) - start;
      const auto gate = halves[0].narrow(0, start, count), up = halves[1].narrow(0, start, count);
      auto some = y.narrow(0, start, count);
      if (own) return multiply(gate, up, some);
      // of wide rows two or three are cut for several threads too
      const auto wide = std::max(MOST_AT_ONCE, GRAIN / count / MOST_AT_ONCE * MOST_AT_ONCE);
      for (int64_t from = 0; from < inner; from += wide) {
        const auto width = std::min(wide, inner - from);
        auto part = some.narrow(1, from, width);
        activate(gate.narrow(1, from, width), part);
      }
      some.mul_(up);
    });
    return y;
  }

 private:
  static constexpr int64_t AT_ONCE = 32;  // numbers that torch takes at most; the rest one by one
  static constexpr int64_t MOST_AT_ONCE = 2 * AT_ONCE;  // in half precision
  static inline headlight::Swish* const swish = headlight::choose(
      at::get_cpu_capability(), headlight::AVX2::swish, headlight::AVX512::swish,
      headlight::NEON::swish);

  // SiLU and product in one step.
  static void multiply(const Tensor& gate, const Tensor& up, Tensor& y) {
    const auto apart = gate.stride(0), inner = y.size(1);
    const auto *from = gate.const_data_ptr<float>(), *by = up.const_data_ptr<float>();
    auto* to = y.mutable_data_ptr<float>();
    for (int64_t row = 0; row < y.size(0); ++row) {
      swish(from + row * apart, by + row * apart, inner, to + row * inner);
    }
  }

  void activate(const Tensor& x, Tensor& y) const {
    if (activation == "relu") {
      at::relu_out(y, x);
    } else if (activation == "swish") {
      at::silu_out(y, x);
    } else {
      at::gelu_out(y, x, algorithm);
    }
  }

  static bool same_swish() {
    static const bool same = swish && same_bits(
        [](const Tensor& x) {
          auto y = at::empty_like(x);
          const auto ones = at::ones_like(x);
          swish(x.const_data_ptr<float>(), ones.const_data_ptr<float>(), x.numel(),
              y.mutable_data_ptr<float>());
          return y;
        },
        [](const Tensor& x) {
          std::vector<Tensor> parts;  // small enough for one thread
          for (const auto& part : x.split(GRAIN)) parts.push_back(at::silu(part));
          return at::cat(parts);
        });
    return same;
  }
};

}  // namespace
