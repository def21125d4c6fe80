// A linear of packed weight, as kernels.PackedLinear, with a shorter way for few rows.
//
// oneDNN describes each product anew, which for few rows takes as long again as the product. There
// its innermost kernel is called instead, a panel of the weight at a time, if that gives the same
// bits on this processor (docs/decisions/0025-short-products.md).

#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>

// what torch/csrc/inductor calls too; its own header is not among torch's
namespace at::native {
int64_t nbytes_from_mkldnn(const Tensor& packed);
void* data_ptr_from_mkldnn(const Tensor& packed);
}  // namespace at::native

namespace {

using at::Tensor;
using Maybe = std::optional<Tensor>;

// x W^T + b, then an activation where one is named; without a weight there is none.
struct Linear {
  Maybe weight, bias;
  std::string activation = "none", algorithm;  // as oneDNN calls them
  const float* panels = nullptr;  // the weight's, (panels, inputs, PANEL); null is the long way
  int64_t depth = 0;  // inputs that oneDNN sums up before it adds them to those before

  Linear() = default;
  Linear(const Maybe& weight, const Maybe& bias, std::string activation = "none",
         std::string algorithm = "")
      : weight(weight), bias(bias), activation(activation), algorithm(algorithm) {
    if (!weight || !(panels = panelled())) return;
    for (const int64_t inputs : {weight->size(1), int64_t{1024}, int64_t{512}}) {
      depth = inputs;
      if (proven()) return;
    }
    panels = nullptr;
  }

  explicit operator bool() const { return weight.has_value(); }

  Tensor operator()(const Tensor& x) const {
    if (!brief(x)) return whole(x);
    const auto y = product(x);
    if (activation == "gelu") return at::gelu(y, algorithm);
    return activation == "relu" ? at::relu(y) : y;
  }

  // x W^T + b + residual, of a linear without activation.
  Tensor add(const Tensor& x, const Tensor& residual) const {
    const bool both = brief(x) && residual.is_contiguous();
    return both ? product(x, residual.const_data_ptr<float>()) : whole(x, residual);
  }

 private:
  static constexpr int64_t PANEL = 64;  // outputs whose weights lie together, as AVX-512 wants them
  static constexpr int64_t FEW = 64;  // rows; beyond, both ways are as fast

  bool brief(const Tensor& x) const { return panels && x.size(0) <= FEW && x.is_contiguous(); }

  Tensor whole(const Tensor& x) const {
    using Run = Tensor(const Tensor&, const Tensor&, const Maybe&, std::string_view,
                       c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
    static const auto run = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                                .typed<Run>();
    const c10::List<std::optional<at::Scalar>> none;
    return run.call(x, *weight, bias, activation, none, algorithm);
  }

  Tensor whole(const Tensor& x, const Tensor& residual) const {
    using Run = Tensor(const Tensor&, const Tensor&, const Tensor&, const Maybe&, std::string_view);
    static const auto run = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("mkldnn::_linear_pointwise", "binary")
                                .typed<Run>();
    return run.call(x, residual, *weight, bias, "add");
  }

  // x W^T + b, and a residual where there is one, a panel at a time.
  Tensor product(const Tensor& x, const float* residual = nullptr) const {
    const auto rows = x.size(0), inputs = weight->size(1), outputs = weight->size(0);
    auto y = at::empty({rows, outputs}, x.options());
    const auto *from = x.const_data_ptr<float>(),
               *shift = bias ? bias->const_data_ptr<float>() : nullptr;
    auto* to = y.mutable_data_ptr<float>();
    at::parallel_for(0, (outputs + PANEL - 1) / PANEL, 1, [&](int64_t first, int64_t last) {
      for (auto column = first * PANEL; column < std::min(last * PANEL, outputs); column += PANEL) {
        const auto width = std::min(PANEL, outputs - column);
        const auto* panel = panels + column * inputs;  // (inputs, PANEL)
        for (int64_t input = 0; input < inputs; input += depth) {
          at::native::cpublas::brgemm(rows, width, std::min(depth, inputs - input), inputs, PANEL,
                                      outputs, input > 0, from + input, panel + input * PANEL,
                                      to + column);
        }
        for (int64_t row = 0; row < rows; ++row) {
          const auto start = row * outputs + column;
          if (shift) accumulate(to + start, shift + column, width);
          if (residual) accumulate(to + start, residual + start, width);
        }
      }
    });
    return y;
  }

  static void accumulate(float* sums, const float* by, int64_t count) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) sums[i] += by[i];
  }

  // The weight's own memory, where oneDNN keeps it in panels, the last filled up with zeros.
  const float* panelled() const {
    if (!weight->is_mkldnn() || weight->scalar_type() != at::kFloat) return nullptr;
    const auto outputs = weight->size(0), inputs = weight->size(1);
    auto rows = at::zeros({(outputs + PANEL - 1) / PANEL * PANEL, inputs});
    rows.narrow(0, 0, outputs).copy_(weight->to_dense());
    const auto expected = rows.view({-1, PANEL, inputs}).transpose(1, 2).contiguous();
    const auto bytes = static_cast<int64_t>(expected.nbytes());
    const auto* memory = at::native::data_ptr_from_mkldnn(*weight);
    const bool same = at::native::nbytes_from_mkldnn(*weight) == bytes &&
                      std::memcmp(memory, expected.const_data_ptr(), bytes) == 0;
    return same ? static_cast<const float*>(memory) : nullptr;
  }

  // Whether both ways give the same bits on this processor.
  bool proven() const {
    if (activation != "none" && activation != "relu" && activation != "gelu") return false;
    for (const int64_t rows : {int64_t{4}, int64_t{19}, FEW}) {
      const auto x = at::arange(rows * weight->size(1), at::kFloat).sin_().view({rows, -1});
      if (!(*this)(x).equal(whole(x))) return false;
      if (activation != "none") continue;
      const auto residual = at::arange(rows * weight->size(0), at::kFloat).sin_().view({rows, -1});
      if (!add(x, residual).equal(whole(x, residual))) return false;
    }
    return true;
  }
};

}  // namespace
