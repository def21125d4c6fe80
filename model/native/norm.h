// LayerNorm or RMSNorm over the last axis; as kernels.normalise.
//
// torch has no kernel for RMSNorm on a CPU and takes ten steps. rows.cpp takes one, if it gives the
// same bits on this processor.

#pragma once

#include <algorithm>

#include <ATen/Version.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/layer_norm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rms_norm.h>
#include <c10/core/InferenceMode.h>

#include "linear.h"
#include "rows.h"
#include "team.h"

namespace {

constexpr int64_t GRAIN = 16384;  // numbers of which torch gives a second thread none

// Without a weight there is none.
struct Norm {
  Maybe weight, bias;
  double eps = 0;
  bool rms = false, brief = false;  // of RMSNorm: by our own kernel

  Norm() = default;
  Norm(const Maybe& weight, const Maybe& bias, double eps, bool rms)
      : weight(weight), bias(bias), eps(eps), rms(rms) {
    brief = rms && weight && own && weight->scalar_type() == at::kFloat && proven();
  }

  explicit operator bool() const { return weight.has_value(); }

  Tensor operator()(const Tensor& x) const {
    if (!weight) return x;
    const auto width = x.size(-1), rows = x.numel() / width;
    if (rms && !brief) return at::rms_norm(x, {width}, weight, eps);
    const auto from = x.contiguous();
    auto y = at::empty_like(from);
    const auto least = std::max<int64_t>(1, GRAIN / width);
    if (!rms) {  // what native_layer_norm calls, without means and deviations
      headlight::share_out(rows, least, [&](int64_t first, int64_t last) {
        const c10::InferenceMode mode;  // another thread's may write to what this one's made
        const auto some = from.view({rows, width}).narrow(0, first, last - first);
        auto part = y.view({rows, width}).narrow(0, first, last - first);
        at::native::LayerNormKernel(at::kCPU, some, *weight, bias.value_or(Tensor()), last - first,
                                    width, eps, &part, nullptr, nullptr);
      });
      return y;
    }
    const auto* numbers = from.const_data_ptr<float>();
    auto* to = y.mutable_data_ptr<float>();
    headlight::share_out(rows, least, [&](int64_t first, int64_t last) {
      apply(numbers + first * width, last - first, to + first * width);
    });
    return y;
  }

  // Rows that lie end to end, by our own kernel; y may be x.
  void apply(const float* x, int64_t rows, float* y) const {
    own(x, rows, weight->const_data_ptr<float>(), weight->size(0), static_cast<float>(eps), y);
  }

 private:
  static inline headlight::Rms* const own = headlight::choose(
      at::get_cpu_capability(), headlight::AVX2::rms, headlight::AVX512::rms,
      headlight::NEON::rms);

  // Whether both ways give the same bits of some rows.
  bool proven() const {
    constexpr int64_t ROWS = 19;
    const auto width = weight->size(0);
    const auto x = at::arange(ROWS * width, at::kFloat).sin_().view({ROWS, width});
    auto y = at::empty_like(x);
    apply(x.const_data_ptr<float>(), ROWS, y.mutable_data_ptr<float>());
    return y.equal(at::rms_norm(x, {width}, weight, eps));
  }
};

// A linear whose outputs may be normalised before they are added to anything.
struct Normed {
  Linear linear;
  Norm norm;

  Tensor add(const Tensor& x, const Tensor& residual) const {
    return norm ? norm(linear(x)).add_(residual) : linear.add(x, residual);
  }
};

}  // namespace
