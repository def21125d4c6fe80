// A linear of packed weight, as kernels.PackedLinear, with a shorter way.
//
// oneDNN describes each product anew, which for few rows takes as long again as the product, and
// makes a kernel for each number of rows. product.cpp multiplies instead, some rows by a panel of
// oneDNN's own weight at a time, if that gives the same bits on this processor
// (docs/decisions/0025-products-by-panels.md).

#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>

#include "product.h"

// what torch/csrc/inductor calls too; its own header is not among torch's
namespace at::native {
int64_t nbytes_from_mkldnn(const Tensor& packed);
void* data_ptr_from_mkldnn(const Tensor& packed);
}  // namespace at::native

namespace {

using at::Tensor;
using headlight::PANEL;
using Maybe = std::optional<Tensor>;

// Whether our activation gives the bits of torch's on this processor, of a million numbers from all
// over.
template <typename Own, typename Torchs>
bool same_bits(Own own, Torchs torchs) {
  constexpr int64_t APART = 4093;  // from the bits of one number to those of the next
  const auto x = at::arange(0, int64_t{1} << 32, APART, at::kLong).to(at::kInt).view(at::kFloat);
  const auto found = own(x), expected = torchs(x), undefined = expected.isnan();
  const auto bits = [&](const Tensor& y) { return y.masked_fill(undefined, 0).view(at::kInt); };
  return found.isnan().equal(undefined) && bits(found).equal(bits(expected));
}

// x W^T + b, then an activation where one is named; without a weight there is none.
struct Linear {
  Maybe weight, bias;
  std::string activation = "none", algorithm;  // as oneDNN calls them
  const float* panels = nullptr;  // the weight's, (panels, inputs, PANEL); null is the long way
  int64_t depth = 0;  // inputs that oneDNN sums up before it adds them to those before
  bool gelu = false;  // at the end of a panel; else torch's follows
  struct {
    const float* panels = nullptr;
    int64_t outputs, inputs;
  } after;  // of the linear that comes next

  Linear() = default;
  Linear(const Maybe& weight, const Maybe& bias, std::string activation = "none",
         std::string algorithm = "")
      : weight(weight), bias(bias), activation(activation), algorithm(algorithm) {
    if (!weight || !(panels = panelled())) return;
    gelu = activation == "gelu" && algorithm == "none" && same_gelu();
    for (const int64_t inputs : {weight->size(1), int64_t{1024}, int64_t{512}}) {
      depth = inputs;
      if (proven()) return;
    }
    panels = nullptr;
  }

  explicit operator bool() const { return weight.has_value(); }

  // Fetch the first panels of the linear that comes next while the last ones are computed.
  void precede(const Linear& next) {
    if (next.panels) after = {next.panels, next.weight->size(0), next.weight->size(1)};
  }

  // Whether no bit and no kernel of its own follows from a number of rows up to MOST.
  bool unpadded_rows() const { return panels; }

  Tensor operator()(const Tensor& x) const {
    if (!brief(x)) return whole(x);
    const auto rows = x.size(0);
    if (activation == "gelu" && !gelu) {  // oneDNN keeps a kernel for each number of rows
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
  static constexpr int64_t PIECE = 64;  // most rows at a time
  static inline headlight::Product* const multiply = headlight::choose(
      at::get_cpu_capability(), headlight::AVX2::product, headlight::AVX512::product);
  static inline headlight::Gelu* const own_gelu = headlight::choose(
      at::get_cpu_capability(), headlight::AVX2::gelu, headlight::AVX512::gelu);

  bool brief(const Tensor& x) const { return panels && x.size(0) <= MOST; }

  // So many rows or a few more: one of eight numbers in each octave, at least 4 apart; as
  // packing.filled_rows.
  static int64_t few(int64_t rows) {
    int64_t apart = 4;
    while (apart * 16 <= rows) apart *= 2;
    return divided(rows, apart) * apart;
  }

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

  // x W^T + b, and a residual where there is one, a panel and a piece of the rows at a time; in
  // the first rows of so many, of which the others are zero.
  Tensor product(const Tensor& x, int64_t held, const float* residual = nullptr) const {
    const auto rows = x.size(0), outputs = weight->size(0), inputs = weight->size(1);
    TORCH_CHECK(x.dim() == 2 && x.size(1) == weight->size(1), "an input of other width");
    const auto count = divided(outputs, PANEL), pieces = divided(rows, PIECE);
    auto y = at::empty({held, outputs}, x.options());
    if (held > rows) y.narrow(0, rows, held - rows).zero_();
    const auto own = x.contiguous();
    const auto* from = own.const_data_ptr<float>();
    auto* to = y.mutable_data_ptr<float>();
    at::parallel_for(0, count * pieces, 1, [&](int64_t first, int64_t last) {
      for (auto i = first; i < last; ++i) {  // all rows by a panel, then all by the next
        const auto piece = i % pieces, start = rows * piece / pieces, column = i / pieces * PANEL;
        const auto* weights = panels + column * inputs;
        const auto* next = i + 1 < last ? weights + PANEL * inputs : begins(pieces);
        const headlight::Panel panel{weights, piece + 1 == pieces ? next : nullptr,
                                     bias ? bias->const_data_ptr<float>() + column : nullptr,
                                     inputs, std::min(PANEL, outputs - column), depth, outputs, gelu};
        const auto place = start * outputs + column;
        multiply(panel, from + start * inputs, rows * (piece + 1) / pieces - start,
                 residual ? residual + place : nullptr, to + place);
      }
    });
    return y;
  }

  // The panel with which this thread begins in the linear that comes next, if it has any.
  const float* begins(int64_t pieces) const {
    if (!after.panels) return nullptr;
    const auto all = divided(after.outputs, PANEL) * pieces;
    const auto each = divided(all, std::min<int64_t>(at::get_num_threads(), all));
    return after.panels + at::get_thread_num() * each / pieces * PANEL * after.inputs;
  }

  static int64_t divided(int64_t count, int64_t by) { return (count + by - 1) / by; }

  static bool same_gelu() {
    static const bool same = own_gelu && same_bits(
        [](const Tensor& x) {
          auto y = x.clone();
          own_gelu(y.mutable_data_ptr<float>(), y.numel());
          return y;
        },
        [](const Tensor& x) { return at::gelu(x); });
    return same;
  }

  // The weight's own memory, where oneDNN keeps it in panels, the last filled up with zeros.
  const float* panelled() const {
    if (!multiply || !weight->is_mkldnn() || weight->scalar_type() != at::kFloat) return nullptr;
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
