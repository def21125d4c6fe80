// A linear of packed weight, as kernels.PackedLinear, with a shorter way.
//
// oneDNN describes each product anew, which for few rows takes as long again as the product, and
// makes a kernel for each number of rows. single.cpp multiplies instead, some rows by a panel of
// oneDNN's own weight at a time, if that gives the same bits on this processor
// (docs/decisions/0025-products-by-panels.md). Weights that come as panels of our own are multiplied by
// any number of rows: those of bfloat16 by half.cpp (docs/decisions/0034-bfloat16.md), those of
// float32, on processors without oneDNN's products, by single.cpp.

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
#include "team.h"

// what torch/csrc/inductor calls too; its own header is not among torch's
namespace at::native {
int64_t nbytes_from_mkldnn(const Tensor& packed);
void* data_ptr_from_mkldnn(const Tensor& packed);
}  // namespace at::native

namespace {

using at::Tensor;
using headlight::Activation;
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

// Our name of an activation, as oneDNN calls it.
Activation named(const std::string& activation, const std::string& algorithm) {
  if (activation == "none") return Activation::NONE;
  if (activation == "relu") return Activation::RELU;
  if (activation == "swish") return Activation::SILU;
  return algorithm == "tanh" ? Activation::GELU_TANH : Activation::GELU;
}

// x W^T + b, then an activation where one is named; without a weight there is none. In float32; but
// what is rounded to bfloat16, and only read by the next linear, is the result of an activation.
struct Linear {
  Maybe weight, bias;
  std::string activation = "none", algorithm;  // as oneDNN calls them
  bool half = false;  // a weight of bfloat16
  bool laid = false;  // in panels of our own, (panels, units, PANEL), a unit of bfloat16 being two
  const void* panels = nullptr;  // the weight's, (panels, units, PANEL); null is the long way
  int64_t outputs = 0, units = 0;
  int64_t depth = 0;  // units that are summed up before they are added to those before
  Activation end = Activation::NONE;  // at the end of a panel; else torch's follows
  struct {
    const void* panels = nullptr;
    int64_t outputs, units;
  } after;  // of the linear that comes next

  Linear() = default;
  Linear(const Maybe& weight, const Maybe& bias, std::string activation = "none",
         std::string algorithm = "")
      : weight(weight), bias(bias), activation(activation), algorithm(algorithm) {
    if (!weight) return;
    half = weight->scalar_type() == at::kBFloat16;
    laid = !weight->is_mkldnn();
    if (half && !laid) return;
    if (laid) {
      TORCH_CHECK(bias && (half ? by_pairs && weight->dim() == 4 : multiply && weight->dim() == 3),
                  "not a weight in panels");
      panels = weight->const_data_ptr(), outputs = bias->size(0), depth = units = weight->size(1);
      end = named(activation, algorithm);
      return;
    }
    outputs = weight->size(0), units = weight->size(1);
    if (!(panels = panelled())) return;
    if (activation == "gelu" && algorithm == "none" && same_gelu()) end = Activation::GELU;
    for (const int64_t inputs : {units, int64_t{1024}, int64_t{512}}) {
      depth = inputs;
      if (proven()) return;
    }
    panels = nullptr;
  }

  explicit operator bool() const { return weight.has_value(); }

  // Fetch the first panels of the linear that comes next while the last ones are computed.
  void precede(const Linear& next) {
    if (next.panels) after = {next.panels, next.outputs, next.units};
  }

  // Up to how many rows no bit and no kernel of its own follows from their number.
  int64_t unpadded_rows() const { return !panels ? 0 : laid ? ANY : MOST; }

  Tensor operator()(const Tensor& x) const {
    if (half && panels) return product<headlight::Pair>(by_pairs, halved(x), x.size(0));
    if (!brief(x)) return whole(x);
    const auto rows = x.size(0);
    if (activation == "gelu" && end == Activation::NONE) {  // oneDNN keeps a kernel for each number
      auto y = product<headlight::Number>(multiply, x, few(rows));  // of rows
      return at::gelu_(y, algorithm).narrow(0, 0, rows);
    }
    auto y = product<headlight::Number>(multiply, x, rows);
    return activation == "relu" && end == Activation::NONE ? at::relu_(y) : y;
  }

  // x W^T + b + residual, of a linear without activation.
  Tensor add(const Tensor& x, const Tensor& residual) const {
    if (half && !panels) return whole(x).add_(residual);
    if (!half && !brief(x)) return whole(x, residual);
    const auto rows = x.size(0);
    TORCH_CHECK(residual.dim() == 2 && residual.size(0) == rows && residual.size(1) == outputs,
                "a residual of other shape");
    const auto own = residual.contiguous();
    const auto* numbers = own.const_data_ptr<float>();
    return half ? product<headlight::Pair>(by_pairs, halved(x), rows, numbers)
                : product<headlight::Number>(multiply, x, rows, numbers);
  }

  // Rows of a batch: up to so many take panels in float32, beyond which both ways are as fast.
  static constexpr int64_t MOST = 1024, ANY = int64_t{1} << 31;

 private:
  static constexpr int64_t PIECE = 96, BLOCK = 6;  // most rows at a time, by so many
  static constexpr int64_t GRAIN = 16384;  // numbers that a thread rounds at least
  static inline headlight::Product* const multiply = headlight::choose(
      at::get_cpu_capability(), headlight::AVX2::product, headlight::AVX512::product,
      headlight::NEON::product);
  static inline headlight::Gelu* const own_gelu = headlight::choose(
      at::get_cpu_capability(), headlight::AVX2::gelu, headlight::AVX512::gelu,
      headlight::NEON::gelu);
  static inline headlight::HalfProduct* const by_pairs = headlight::choose_half(
      at::get_cpu_capability(), headlight::AVX512::half_product);
  static inline headlight::Halve* const halve = headlight::choose_half(
      at::get_cpu_capability(), headlight::AVX512::halve);

  bool brief(const Tensor& x) const { return panels && (laid || x.size(0) <= MOST); }

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
    if (!half) return run.call(x, *weight, bias, activation, none, algorithm);
    const auto y = run.call(x.to(at::kBFloat16), *weight, bias, activation, none, algorithm);
    return activation == "none" ? y.to(at::kFloat) : y;
  }

  Tensor whole(const Tensor& x, const Tensor& residual) const {
    using Run = Tensor(const Tensor&, const Tensor&, const Tensor&, const Maybe&, std::string_view);
    static const auto run = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("mkldnn::_linear_pointwise", "binary")
                                .typed<Run>();
    return run.call(x, residual, *weight, bias, "add");
  }

  // Rows as pairs of bfloat16, (rows, units * 2).
  Tensor halved(const Tensor& x) const {
    const auto rows = x.size(0), width = x.size(1);
    TORCH_CHECK(x.dim() == 2 && (width + 1) / 2 == units, "an input of other width");
    const auto own = x.contiguous();
    if (x.scalar_type() == at::kBFloat16 && width == 2 * units) return own;
    auto y = at::empty({rows, 2 * units}, x.options().dtype(at::kBFloat16));
    auto* to = static_cast<uint16_t*>(y.mutable_data_ptr());
    const auto from = own.to(at::kFloat);  // no copy, but of an odd width
    const auto* numbers = from.const_data_ptr<float>();
    headlight::share_out(rows, divided(GRAIN, width), [&](int64_t first, int64_t last) {
      if (width == 2 * units) {
        return halve(numbers + first * width, (last - first) * width, to + first * width);
      }
      for (auto row = first; row < last; ++row) {
        halve(numbers + row * width, width, to + row * 2 * units);
        to[(row + 1) * 2 * units - 1] = 0;
      }
    });
    return y;
  }

  // x W^T + b, and a residual where there is one, a panel and a piece of the rows at a time; in
  // the first rows of so many, of which the others are zero. x is (rows, units).
  template <typename Unit, typename Multiply>
  Tensor product(Multiply* multiply, const Tensor& x, int64_t held,
                 const float* residual = nullptr) const {
    const auto rows = x.size(0);
    TORCH_CHECK(x.dim() == 2 && x.nbytes() == rows * units * sizeof(Unit),
                "an input of other width");
    const auto count = divided(outputs, PANEL), pieces = divided(rows, PIECE);
    const auto piece_rows = divided(divided(rows, pieces), BLOCK) * BLOCK;
    const auto kind = half && end != Activation::NONE ? at::kBFloat16 : at::kFloat;
    auto y = at::empty({held, outputs}, x.options().dtype(kind));
    if (held > rows) y.narrow(0, rows, held - rows).zero_();
    const auto own = x.contiguous();
    const auto* from = static_cast<const Unit*>(own.const_data_ptr());
    const auto* all = static_cast<const Unit*>(panels);
    auto* to = static_cast<char*>(y.mutable_data_ptr());
    const auto bytes = y.itemsize();
    const auto members = headlight::Team::own().members();
    headlight::share_out(count * pieces, 1, [&](int64_t first, int64_t last) {
      for (auto i = first; i < last; ++i) {  // all rows by a panel, then all by the next
        const auto piece = i % pieces, start = std::min(rows, piece * piece_rows);
        const auto column = i / pieces * PANEL;
        const auto until = members > 1 ? count * pieces : last;
        const headlight::Panel<Unit> panel{
            all + column * units, following<Unit>(i, members, until, pieces),
            bias ? bias->const_data_ptr<float>() + column : nullptr,
            units, std::min(PANEL, outputs - column), depth, outputs, end};
        const auto place = start * outputs + column;
        multiply(panel, from + start * units, std::min(piece_rows, rows - start),
                 residual ? residual + place : nullptr, reinterpret_cast<float*>(to + place * bytes));
      }
    });
    return y;
  }

  // The panel that this thread comes to after the i-th piece, of those until `until`, if it is another one. Of a
  // team each is taken to come to every `members`-th.
  template <typename Unit>
  const Unit* following(int64_t i, int64_t members, int64_t until, int64_t pieces) const {
    const auto next = i + members;
    if (next / pieces == i / pieces) return nullptr;
    if (next < until) return static_cast<const Unit*>(panels) + next / pieces * PANEL * units;
    if (!after.panels) return nullptr;
    if (members > 1) {
      const auto first = std::min((next - until) / pieces, divided(after.outputs, PANEL) - 1);
      return static_cast<const Unit*>(after.panels) + first * PANEL * after.units;
    }
    return begins<Unit>(pieces);
  }

  // The panel with which this thread of OpenMP's begins in the linear that comes next.
  template <typename Unit>
  const Unit* begins(int64_t pieces) const {
    const auto all = divided(after.outputs, PANEL) * pieces;
    const auto each = divided(all, std::min<int64_t>(at::get_num_threads(), all));
    const auto first = at::get_thread_num() * each / pieces;
    return static_cast<const Unit*>(after.panels) + first * PANEL * after.units;
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
  const void* panelled() const {
    if (!multiply || weight->scalar_type() != at::kFloat) return nullptr;
    auto rows = at::zeros({divided(outputs, PANEL) * PANEL, units});
    rows.narrow(0, 0, outputs).copy_(weight->to_dense());
    const auto expected = rows.view({-1, PANEL, units}).transpose(1, 2).contiguous();
    const auto bytes = static_cast<int64_t>(expected.nbytes());
    const auto* memory = at::native::data_ptr_from_mkldnn(*weight);
    const bool same = at::native::nbytes_from_mkldnn(*weight) == bytes &&
                      std::memcmp(memory, expected.const_data_ptr(), bytes) == 0;
    return same ? memory : nullptr;
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
