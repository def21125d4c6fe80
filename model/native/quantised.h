// A linear of int8, as int8.Int8Linear: a row's codes, then oneDNN's product of them.

#pragma once

#include <optional>
#include <string>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

namespace {

// What makes codes of an input and numbers of their sums; without scales the linear is no int8.
struct Quantised {
  std::optional<at::Tensor> inverse, shift;  // (inputs,)
  std::optional<at::Tensor> scales;          // (outputs,)
  at::Tensor zeros;

  using None = c10::List<std::optional<at::Scalar>>;  // arguments of a product's activation

  Quantised() = default;
  Quantised(std::optional<at::Tensor> inverse, std::optional<at::Tensor> shift,
            std::optional<at::Tensor> scales)
      : inverse(inverse), shift(shift), scales(scales) {
    if (scales) zeros = at::zeros(scales->sizes(), at::kLong);
  }

  explicit operator bool() const { return scales.has_value(); }

  // activation(x W^T + b), from the packed weight.
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& weight,
                        const std::optional<at::Tensor>& bias, const std::string& activation,
                        const std::string& algorithm) const {
    using Run = at::Tensor(at::Tensor, double, int64_t, at::Tensor, at::Tensor, at::Tensor,
                           std::optional<at::Tensor>, double, int64_t,
                           std::optional<at::ScalarType>, std::string_view, None, std::string_view);
    static const auto run = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("onednn::qlinear_pointwise", "")
                                .typed<Run>();
    return run.call(codes(x), 1.0, 0, weight, *scales, zeros, bias, 1.0, 0, at::kFloat, activation,
                    None(), algorithm);
  }

  // x W^T + b + residual.
  at::Tensor add(const at::Tensor& x, const at::Tensor& weight,
                 const std::optional<at::Tensor>& bias, const at::Tensor& residual) const {
    using Run = at::Tensor(at::Tensor, double, int64_t, at::Tensor, at::Tensor, at::Tensor,
                           std::optional<at::Tensor>, std::optional<at::Tensor>, double, int64_t,
                           std::optional<at::ScalarType>, double, int64_t, std::string_view, double,
                           std::string_view, None, std::string_view);
    static const auto run = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("onednn::qlinear_pointwise", "binary")
                                .typed<Run>();
    return run.call(codes(x), 1.0, 0, weight, *scales, zeros, residual, bias, 1.0, 0, at::kFloat,
                    1.0, 0, "add", 1.0, "none", None(), "");
  }

 private:
  // The codes of rows, (rows, inputs); as Int8Linear.quantise, in one step.
  at::Tensor codes(const at::Tensor& x) const {
    TORCH_CHECK(x.dim() == 2 && x.size(1) == inverse->size(0), "an input of other width");
    const auto own = x.contiguous();
    auto out = at::empty(own.sizes(), own.options().dtype(at::kByte));
    const auto inputs = own.size(1);
    const auto *from = own.const_data_ptr<float>(), *by = inverse->const_data_ptr<float>(),
               *to = shift->const_data_ptr<float>();
    auto* code = out.mutable_data_ptr<uint8_t>();
    at::parallel_for(0, own.size(0), 16, [&](int64_t first, int64_t last) {
      for (auto row = first; row < last; ++row) {
        const auto* numbers = from + row * inputs;
        auto* written = code + row * inputs;
#pragma omp simd
        for (int64_t i = 0; i < inputs; ++i) {
          auto number = numbers[i] * by[i] + to[i];
          number = number > 0 ? number : 0;
          number = number < 255 ? number : 255;
          written[i] = static_cast<uint8_t>(static_cast<int32_t>(number));
        }
      }
    });
    return out;
  }
};

}  // namespace
