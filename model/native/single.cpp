// Products and attention in float32.
//
// The sums of a product are oneDNN's, in its order, where its weights are multiplied: linear.h compares
// them to the bit.

#include "activate.h"
#include "look.h"
#include "panel.h"
#include "tile.h"
#include "mix.h"

namespace headlight::CPU_CAPABILITY {

void gelu(float* x, int64_t count) {
  for (int64_t i = 0; i < count; i += SIZE) {
    const auto width = std::min(SIZE, count - i);
    erf_gelu(Vec::loadu(x + i, width)).store(x + i, width);
  }
}

void product(const Panel<Number>& panel, const Number* x, int64_t rows, const float* residual,
             float* y) {
  by_panel<Single>(panel, x, rows, [&](int64_t row, float* sums) {
    const auto place = row * panel.outputs;
    add(panel, residual ? residual + place : nullptr, sums, [&](int64_t i, Vec x, int64_t count) {
      activate(panel.activation, x).store(y + place + i, count);
    });
  });
}

void attend(const Look& look) { mix<Single>(look); }

}  // namespace headlight::CPU_CAPABILITY
