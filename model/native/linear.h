// A linear of packed weight, as kernels.PackedLinear, with a shorter way.
//
// oneDNN describes each product anew, which for few rows takes as long again as the product, and
// makes a kernel for each number of rows. Its innermost kernel is called instead, for some rows and
// a panel of the weight at a time, if that gives the same bits on this processor
// (docs/decisions/0025-products-by-panels.md).

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

#include "quantised.h"

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
  Quantised quantised;  // of int8, by which the weight then is
  const float* panels = nullptr;  // the weight's, (panels, inputs, PANEL); null is the long way
  int64_t depth = 0;  // inputs that oneDNN sums up before it adds them to those before

  Linear() = default;
  Linear(const Maybe& weight, const Maybe& bias, std::string activation = "none",
         std::string algorithm = "", const Quantised& quantised = {})
      : weight(weight), bias(bias), activation(activation), algorithm(algorithm),
        quantised(quantised) {
    if (!weight || quantised || !(panels = panelled())) return;
    for (const int64_t inputs : {weight->size(1), int64_t{1024}, int64_t{512}}) {
      depth = inputs;
      if (proven()) return;
    }
    panels = nullptr;
  }

  explicit operator bool() const { return weight.has_value(); }

  // Whether no bit and no kernel of its own follows from a number of rows up to MOST.
  bool any_rows() const { return panels; }

  Tensor operator()(const Tensor& x) const {
    if (!brief(x)) return whole(x);
    const auto rows = x.size(0);
    if (activation == "gelu") {  // torch's is oneDNN's, which keeps one for each number of rows
      auto y = product(x, few(rows));
      return at::gelu_(y, algorithm).narrow(0, 0, rows);
    }
    auto y = product(x, rows);
    return activation == "relu" ? at::relu_(y) : y;
  }

  // x W^T + b + residual, of a linear without activation.
  Tensor add(const Tensor& x, const Tensor& residual) const {
    if (!brief(x)) return whole(x, residual);
    const auto rows = x.size(0), outputs = weight->size(0);
    TORCH_CHECK(residual.dim() == 2 && residual.size(0) == rows && residual.size(1) == outputs,
                "a residual of other shape");
    const auto own = residual.contiguous();
    return product(x, rows, own.const_data_ptr<float>());
  }

  static constexpr int64_t MOST = 1024;  // rows; beyond, both ways are as fast

 private:
  static constexpr int64_t PANEL = 64;  // outputs whose weights lie together, as AVX-512 wants them
  static constexpr int64_t PIECE = 64;  // most rows of one call of the kernel

  bool brief(const Tensor& x) const { return panels && x.size(0) <= MOST; }

  // So many rows or a few more: one of eight numbers in each octave, at least 4 apart; as
  // packing.filled.
  static int64_t few(int64_t rows) {
    int64_t apart = 4;
    while (apart * 16 <= rows) apart *= 2;
    return divided(rows, apart) * apart;
  }

  Tensor whole(const Tensor& x) const {
    if (quantised) return quantised(x, *weight, bias, activation, algorithm);
    using Run = Tensor(const Tensor&, const Tensor&, const Maybe&, std::string_view,
                       c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
    static const auto run = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                                .typed<Run>();
    const c10::List<std::optional<at::Scalar>> none;
    return run.call(x, *weight, bias, activation, none, algorithm);
  }

  Tensor whole(const Tensor& x, const Tensor& residual) const {
    if (quantised) return quantised.add(x, *weight, bias, residual);
    using Run = Tensor(const Tensor&, const Tensor&, const Tensor&, const Maybe&, std::string_view);
    static const auto run = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("mkldnn::_linear_pointwise", "binary")
                                .typed<Run>();
    return run.call(x, residual, *weight, bias, "add");
  }

  // x W^T + b, and a residual where there is one, a panel and a piece of the rows at a time; in
  // the first rows of so many, of which the others are zero.
  Tensor product(const Tensor& x, int64_t held, const float* residual = nullptr) const {
    const auto rows = x.size(0), outputs = weight->size(0);
    TORCH_CHECK(x.dim() == 2 && x.size(1) == weight->size(1), "an input of other width");
    const auto panels = divided(outputs, PANEL), pieces = divided(rows, PIECE);
    auto y = at::empty({held, outputs}, x.options());
    if (held > rows) y.narrow(0, rows, held - rows).zero_();
    const auto own = x.contiguous();
    const auto* from = own.const_data_ptr<float>();
    auto* to = y.mutable_data_ptr<float>();
    at::parallel_for(0, panels * pieces, 1, [&](int64_t first, int64_t last) {
      for (auto i = first; i < last; ++i) {  // all rows by a panel, then all by the next
        const auto piece = i % pieces;
        multiply(from, rows * piece / pieces, rows * (piece + 1) / pieces, i / pieces * PANEL, to,
                 residual);
      }
    });
    return y;
  }

  // Some rows of the product, from one row up to another, and of these one panel's outputs.
  void multiply(const float* x, int64_t from, int64_t to, int64_t column, float* y,
                const float* residual) const {
    const auto inputs = weight->size(1), outputs = weight->size(0);
    const auto width = std::min(PANEL, outputs - column);
    const auto* panel = panels + column * inputs;  // (inputs, PANEL)
    for (int64_t input = 0; input < inputs; input += depth) {
      at::native::cpublas::brgemm(to - from, width, std::min(depth, inputs - input), inputs, PANEL,
                                  outputs, input > 0, x + from * inputs + input,
                                  panel + input * PANEL, y + from * outputs + column);
    }
    for (auto row = from; row < to; ++row) {
      const auto start = row * outputs + column;
      if (bias) accumulate(y + start, bias->const_data_ptr<float>() + column, width);
      if (residual) accumulate(y + start, residual + start, width);
    }
  }

  static void accumulate(float* sums, const float* by, int64_t count) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) sums[i] += by[i];
  }

  static int64_t divided(int64_t count, int64_t by) { return (count + by - 1) / by; }

  // The weight's own memory, where oneDNN keeps it in panels, the last filled up with zeros.
  const float* panelled() const {
    if (!weight->is_mkldnn() || weight->scalar_type() != at::kFloat) return nullptr;
    const auto outputs = weight->size(0), inputs = weight->size(1);
    auto rows = at::zeros({divided(outputs, PANEL) * PANEL, inputs});
    rows.narrow(0, 0, outputs).copy_(weight->to_dense());
    const auto expected = rows.view({-1, PANEL, inputs}).transpose(1, 2).contiguous();
    const auto bytes = static_cast<int64_t>(expected.nbytes());
    const auto* memory = at::native::data_ptr_from_mkldnn(*weight);
    const bool same = at::native::nbytes_from_mkldnn(*weight) == bytes &&
                      std::memcmp(memory, expected.const_data_ptr(), bytes) == 0;
    return same ? static_cast<const float*>(memory) : nullptr;
  }

  // Whether both ways give the same bits on this processor, up to 66 rows.
  bool proven() const {
    if (activation != "none" && activation != "relu" && activation != "gelu") return false;
    const auto wave = [](int64_t columns) {
      return at::arange((PIECE + 2) * columns, at::kFloat).sin_().view({PIECE + 2, columns});
    };
    const auto x = wave(weight->size(1)), residual = wave(weight->size(0));
    const auto expected = whole(x);
    const auto sum = activation == "none" ? whole(x, residual) : expected;
    for (const int64_t rows : {int64_t{1}, int64_t{19}, PIECE, PIECE + 2}) {
      const auto some = x.narrow(0, 0, rows);
      if (!(*this)(some).equal(expected.narrow(0, 0, rows))) return false;
      if (activation != "none") continue;
      if (!add(some, residual.narrow(0, 0, rows)).equal(sum.narrow(0, 0, rows))) return false;
    }
    return true;
  }
};

}  // namespace
