// Statistics of attention in one call: what model/maps/statistics.py makes, of whole tokens.
//
// Each head of each layer is walked over by itself (walk.cpp), so neither the number of heads nor
// that of cores changes a bit. statistics.py holds both against each other at every start.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/Version.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <torch/custom_class.h>

#include "look.h"

namespace {

using namespace headlight;
using at::Tensor;

constexpr int64_t FIELDS = 11;
Walk* const walk = choose(at::get_cpu_capability(), AVX2::walk, AVX512::walk);

// The fields of a head from its sums, in the order of choices.FIELDS, but for the last.
void fill(const Look& look, const Sums& sums, int64_t cls, const std::vector<int64_t>& separators,
          float* to) {
  const double none = std::numeric_limits<double>::quiet_NaN(), tokens = look.tokens;
  double all = 0, most = 0, apart = 0;
  for (int64_t key = 0; key < look.tokens; ++key) {
    all += sums.received[key];
    most = std::max<double>(most, sums.received[key]);
  }
  for (const auto key : separators) apart += sums.received[key];
  const auto entropy = std::max(sums.entropy / tokens, 0.0);  // rounding can leave less
  const bool others = static_cast<int64_t>(separators.size()) < look.tokens, pair = tokens > 1;
  for (const double field :
       {sums.self / tokens, pair ? sums.previous / (tokens - 1) : none,
        pair ? sums.next / (tokens - 1) : none, cls < 0 ? none : sums.received[cls] / tokens,
        separators.empty() ? none : apart / tokens, entropy,
        pair ? entropy / std::log(tokens) : none, others ? sums.confidence / tokens : none,
        sums.distance / all, most / tokens}) {
    *to++ = static_cast<float>(field);
  }
}

// Rows of a sequence as the walk reads them, (tokens, heads, head): heads lie end to end.
Tensor readable(const Tensor& rows) {
  const auto real = rows.to(at::kFloat);
  return real.stride(2) == 1 && real.stride(1) == real.size(2) ? real : real.contiguous();
}

// One layer's trace of a sequence.
struct Layer {
  // (tokens, heads, head) twice, fewer heads of keys if some share them; (heads, tokens); as
  // Trace.bias
  Tensor q, k, normaliser, bias;
  int64_t before, after;  // how far a query looks; negative is all

  Layer(const Tensor* parts, int64_t before, int64_t after)
      : q(readable(parts[0])),
        k(readable(parts[1])),
        normaliser(parts[2].contiguous()),
        bias(parts[3].to(at::kFloat).contiguous()),
        before(before),
        after(after) {}

  Look look(int64_t head, float scale) const {
    const auto tokens = q.size(0), size = q.size(2), sharing = q.size(1) / k.size(1);
    const auto place = bias.size(0) > 1 ? head * tokens * tokens : 0;
    const auto cut = [most = tokens - 1](int64_t side) {
      return side < 0 ? most : std::min(side, most);
    };
    return {q.const_data_ptr<float>() + head * size,
            k.const_data_ptr<float>() + head / sharing * size,
            normaliser.const_data_ptr<float>() + head * tokens,
            bias.numel() ? bias.const_data_ptr<float>() + place : nullptr,
            tokens,
            size,
            q.stride(0),
            k.stride(0),
            cut(before),
            cut(after),
            scale};
  }
};

// Each head's share of what its layer's heads write, the mean over tokens, (heads,); as
// statistics._contributions.
Tensor contributions(const Tensor& mixed, const Tensor& triangles) {
  const auto tokens = mixed.size(0), heads = triangles.size(0);
  const auto z = mixed.to(at::kFloat).view({tokens, heads, -1}).transpose(0, 1);
  const auto lengths = at::linalg_vector_norm(at::matmul(z, triangles), 2, -1);
  return (lengths / lengths.sum(0, true)).mean(1);
}

// Holds nothing: a class, because torch finds one by its name as it finds Stack.
struct Statistics : torch::CustomClassHolder {
  // FIELDS of the heads asked, (heads, fields).
  //
  // parts: of each layer q, k, normaliser, bias (empty where there is none), z and triangles.
  // reaches: before and after of each layer. asked: place of the layer among these, and head, of
  // each. cls: negative where there is none.
  Tensor table(const std::vector<Tensor>& parts, const std::vector<int64_t>& reaches,
               const std::vector<int64_t>& asked, double scale, int64_t cls,
               const std::vector<int64_t>& separators) const {
    std::vector<Layer> layers;
    std::vector<Tensor> shares;
    for (size_t i = 0; i < reaches.size() / 2; ++i) {
      const auto* own = &parts[6 * i];
      layers.emplace_back(own, reaches[2 * i], reaches[2 * i + 1]);
      shares.push_back(contributions(own[4], own[5]));
    }
    const auto tokens = parts[0].size(0), head = parts[0].size(2);
    std::vector<float> counted(filled(tokens));
    std::fill_n(counted.begin(), tokens, 1.0f);
    for (const auto key : separators) counted[key] = 0;
    const auto count = static_cast<int64_t>(asked.size() / 2);
    auto out = at::empty({count, FIELDS}, at::kFloat);
    auto* fields = out.mutable_data_ptr<float>();
    at::parallel_for(0, count, 1, [&](int64_t first, int64_t last) {
      std::vector<float> received(filled(tokens)), own(room(tokens, head));
      for (auto i = first; i < last; ++i) {
        const auto layer = asked[2 * i], which = asked[2 * i + 1];
        const auto look = layers[layer].look(which, static_cast<float>(scale));
        std::fill(received.begin(), received.end(), 0.0f);
        Sums sums{.received = received.data()};
        walk(look, counted.data(), own.data(), sums);
        auto* to = fields + i * FIELDS;
        fill(look, sums, cls, separators, to);
        to[FIELDS - 1] = shares[layer].const_data_ptr<float>()[which];
      }
    });
    return out;
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(headlight, library) {
  if (!walk) return;  // the twin serves
  library.class_<Statistics>("Statistics")
      .def(torch::init<>())
      .def("table", &Statistics::table);
}
