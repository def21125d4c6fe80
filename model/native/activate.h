// Activations of a product, of its sums in float32.

#pragma once

#include "gelu.h"
#include "product.h"

namespace headlight::CPU_CAPABILITY {
namespace {

Vec activate(Activation activation, const Vec& x) {
  switch (activation) {
    case Activation::GELU: return erf_gelu(x);
    case Activation::GELU_TANH: {
      const auto inner = (x + x * x * x * Vec(0.044715f)) * Vec(0.7978845608f);
      return Vec(0.5f) * x * (Vec(1) + inner.tanh());
    }
    case Activation::RELU: return at::vec::maximum(x, Vec(0));
    case Activation::SILU: return x / (Vec(1) + x.neg().exp());
    default: return x;
  }
}

}  // namespace
}  // namespace headlight::CPU_CAPABILITY
