// The forward pass as one call: what model/encoder.py's loop does, without the interpreter.
//
//     embeddings -> layers (attention, feed-forward, residuals, norms) -> last norm
//
// Statement for statement the loop of encoder.py, attention.py, positions.py and pooling.py, over
// the same kernels of ATen and oneDNN, called through torch's dispatcher; attention, norms and most
// products (linear.h) go past it. Change both together: agreement.py compares them, to the bit, at
// every start. torch calls these methods with Python's lock released, so that other threads run.
//
// Shapes are written as there, outermost axis first; a packed weight is in oneDNN's own layout.

// as torch's own wheel is built: its stubs have a kernel for each
#if defined(__x86_64__)
#define HAVE_AVX2_CPU_DEFINITION
#define HAVE_AVX512_CPU_DEFINITION
#elif defined(__aarch64__)
#define HAVE_SVE_CPU_DEFINITION
#endif

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <torch/custom_class.h>

#include "attention.h"
#include "gated.h"
#include "linear.h"
#include "norm.h"
#include "team.h"

namespace {

using Ints = std::vector<int64_t>;
using Pair = std::tuple<Maybe, Maybe>;  // weight and bias, or cosines and sines; none: nothing

// What stack.py hands over as its Batch, field for field; its Edits are in attention.h.
using Vectors = std::vector<std::tuple<int64_t, Tensor>>;
using Groups = std::vector<std::tuple<int64_t, int64_t, int64_t, Maybe>>;
using Entry = std::optional<std::tuple<int64_t, Tensor, Tensor>>;
using Batch = std::tuple<Tensor, Tensor, Tensor, Vectors, Groups, Entry>;

template <typename Value>
using ByLayer = c10::Dict<int64_t, Value>;
using Left = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensors>;  // what a Trace has, in its order

// What is common to all layers; as config.EncoderConfig.
struct Shape {
  Heads heads;
  double eps;  // of every norm
  bool rms, pre_norm;  // which kind all norms are; normalise before each block rather than after
  std::string activation, algorithm;  // as oneDNN calls them
  std::optional<Gated> gated;

  Norm norm(const Pair& pair) const {
    const auto& [weight, bias] = pair;
    return {weight, bias, eps, rms};
  }
};

// The word, segment and position tables, and what follows them; as embeddings.Embeddings.
struct Embeddings {
  Tensor word;
  Maybe position, types;
  Norm norm;
  Linear project;
  int64_t offset;  // row of `position` for position 0

  Tensor operator()(const Tensor& ids, const Tensor& positions, const Tensor& segments,
                    const Vectors& vectors) const {
    auto x = at::embedding(word, ids);
    for (const auto& [start, own] : vectors) x.narrow(0, start, own.size(0)).copy_(own);
    if (types) x.add_(at::embedding(*types, segments));
    if (position) x.add_(at::embedding(*position, positions + offset));
    x = norm(x);
    return project ? project(x) : x;
  }
};

struct Layer {
  Attention attention;
  Linear up;
  Normed down;
  Norm attention_norm, feed_forward_norm;

  // The next residual stream, (rows, width); as encoder.Layer.
  Tensor operator()(const Shape& shape, const Tensor& x, const Tensor& positions,
                    const std::vector<Group>& groups, const Edits& edits, Trace& trace) const {
    const auto entered = shape.pre_norm ? attention_norm(x) : x;
    return after(shape, attention(shape.heads, entered, x, positions, groups, edits, trace));
  }

  // The same from mixed values that are known, (rows, heads * head); as encoder.Layer.resume.
  Tensor resume(const Shape& shape, const Tensor& x, const Tensor& mixed,
                const Edits& edits) const {
    auto z = mixed.clone();
    Attention::edit(shape.heads, z, edits);
    return after(shape, attention.output.add(z, x));
  }

 private:
  // What follows the attention and its residual.
  Tensor after(const Shape& shape, const Tensor& attended) const {
    if (shape.pre_norm) return feed_forward(shape, feed_forward_norm(attended), attended);
    const auto a = attention_norm(attended);
    return feed_forward_norm(feed_forward(shape, a, a));
  }

  Tensor feed_forward(const Shape& shape, const Tensor& x, const Tensor& residual) const {
    return down.add(shape.gated ? (*shape.gated)(up(x)) : up(x), residual);
  }
};

// One vector of a sequence's (tokens, width); as pooling._reduce.
Tensor reduce(const Tensor& tokens, const std::string& mode) {
  const auto count = tokens.size(0);
  if (mode == "max") return tokens.amax(0);
  if (mode == "cls") return tokens.select(0, 0);
  if (mode == "last") return tokens.select(0, -1);
  if (mode == "mean_sqrt_len") return tokens.sum(0) / std::sqrt(static_cast<double>(count));
  if (mode == "weightedmean") {
    const auto places = at::arange(1, count + 1, tokens.options());
    return (tokens * places.unsqueeze(1)).sum(0) / places.sum();
  }
  TORCH_CHECK(mode == "mean", "no such mode: ", mode);
  return tokens.mean(0);
}

// An encoder's weights, held for as long as stack.py's Stack holds this. All lanes run the same:
// nothing in it changes once it has its layers.
struct Stack : torch::CustomClassHolder {
  Stack(int64_t heads, int64_t shared, int64_t head, double scale, int64_t tile, double eps,
        bool rms, bool pre_norm, bool gated, std::string activation, std::string algorithm,
        bool half)
      : shape_{{heads, shared, head, scale, tile, half}, eps, rms, pre_norm, activation, algorithm, {}} {
    if (gated) shape_.gated.emplace(activation, algorithm);
  }

  // The embeddings, and the norm after the last layer.
  void embed(const Tensor& word, const Maybe& position, const Maybe& types, int64_t offset,
             const Pair& norm, const Pair& project, const Pair& last) {
    const auto& [weight, bias] = norm;
    embeddings_ = {word, position, types, {weight, bias, shape_.eps, false}, linear(project), offset};
    norm_ = shape_.norm(last);
  }

  // One more layer: what it has by name; and how far a query looks, negative for all.
  void add(const c10::Dict<std::string, Pair>& weights, int64_t before, int64_t after) {
    const auto norm = [&](const char* name) { return shape_.norm(weights.at(name)); };
    const auto plain = [&](const char* name) { return linear(weights.at(name)); };
    const auto [cos, sin] = weights.at("rotation");
    const auto up = shape_.gated
                        ? plain("up")
                        : linear(weights.at("up"), shape_.activation, shape_.algorithm);
    layers_.push_back({{plain("project"), {plain("output"), norm("output_norm")},
                        norm("query_norm"), norm("key_norm"), cos, sin, {before, after}},
                       up,
                       {plain("down"), norm("down_norm")},
                       norm("attention_norm"),
                       norm("feed_forward_norm")});
    auto& layer = layers_.back();
    layer.attention.project.precede(layer.attention.output.linear);
    layer.attention.output.linear.precede(layer.up);
    layer.up.precede(layer.down.linear);
    if (layers_.size() > 1) {
      layers_[layers_.size() - 2].down.linear.precede(layer.attention.project);
    }
  }

  // Up to how many rows a batch may have any number of them: no linear minds.
  int64_t unpadded_rows() const {
    auto least = embeddings_.project ? embeddings_.project.unpadded_rows() : Linear::ANY;
    for (const auto& layer : layers_) {
      for (const auto* linear : {&layer.attention.project, &layer.attention.output.linear,
                                 &layer.up, &layer.down.linear}) {
        least = std::min(least, linear->unpadded_rows());
      }
    }
    return least;
  }

  // Encode a packed batch; as encoder.Encoder.run_layers. Returns the last state, the hidden ones and the
  // traces that are wanted, and whether all of the last state is finite.
  std::tuple<Tensor, ByLayer<Tensor>, ByLayer<Left>, bool> run(
      const Batch& batch, const std::vector<std::tuple<int64_t, Edits>>& edits, const Ints& hidden,
      const Ints& traces) const {
    const auto& [ids, positions, segments, vectors, runs, entry] = batch;
    std::vector<Group> groups;
    for (const auto& [start, count, length, bias] : runs) {
      groups.push_back({start, count, length, bias});
    }
    const auto& end = groups.back();
    const headlight::Together together(end.start + end.count * end.length <= unpadded_rows());
    const auto count = static_cast<int64_t>(layers_.size());
    const auto place = [&](int64_t layer) {
      TORCH_CHECK(0 <= layer && layer < count, "no such layer: ", layer, " of ", count);
      return layer;
    };
    const auto first = place(entry ? std::get<0>(*entry) : 0);
    std::vector<Edits> own(count);
    for (const auto& [layer, each] : edits) own[place(layer)] = each;

    ByLayer<Tensor> states;
    ByLayer<Left> left;
    const auto wanted = [](const Ints& some, int64_t i) {
      return std::find(some.begin(), some.end(), i) != some.end();
    };
    auto x = entry ? std::get<1>(*entry) : embeddings_(ids, positions, segments, vectors);
    if (!entry && wanted(hidden, 0)) states.insert(0, x);
    for (auto i = first; i < count; ++i) {
      if (entry && i == first) {
        x = layers_[i].resume(shape_, x, std::get<2>(*entry), own[i]);
      } else {
        Trace t;
        x = layers_[i](shape_, x, positions, groups, own[i], t);
        if (wanted(traces, i)) {
          left.insert(i, Left(rounded(t.q), rounded(t.k), rounded(t.v), t.z, t.normalisers));
        }
      }
      if (i + 1 == count) x = norm_(x);
      if (wanted(hidden, i + 1)) states.insert(i + 1, x);
    }
    return {x, states, left, finite(x)};
  }

  // Vectors of some sequences, (sequences, size or dimensions); as pooling.pool_each, without dense
  // layers. rows: first row and length of each. dimensions: 0 keeps all.
  Tensor pool(const Tensor& last, const std::vector<std::tuple<int64_t, int64_t>>& rows,
              const std::vector<std::string>& modes, bool normalize, int64_t dimensions) const {
    Tensors vectors;
    for (const auto& [start, length] : rows) {
      const auto tokens = last.narrow(0, start, length).to(at::kFloat);
      Tensors parts;
      for (const auto& mode : modes) parts.push_back(reduce(tokens, mode));
      auto vector = at::cat(parts);
      if (dimensions) vector = vector.slice(0, 0, dimensions);
      // a zero vector stays zero, as by torch.nn.functional.normalize
      if (normalize) vector = vector / at::linalg_vector_norm(vector, 2, 0, true).clamp_min(1e-12);
      vectors.push_back(vector);
    }
    return at::stack(vectors);
  }

 private:
  static Linear linear(const Pair& pair, const std::string& activation = "none",
                       const std::string& algorithm = "") {
    const auto& [weight, bias] = pair;
    return {weight, bias, activation, algorithm};
  }

  // As the attention multiplied it.
  Tensor rounded(const Tensor& x) const {
    return shape_.heads.half ? x.to(at::kBFloat16).to(at::kFloat) : x;
  }

  static bool finite(const Tensor& rows) {
    const auto [least, most] = rows.aminmax();
    return std::isfinite(least.item<double>()) && std::isfinite(most.item<double>());
  }

  Shape shape_;
  Embeddings embeddings_;
  Norm norm_;
  std::vector<Layer> layers_;
};

// What is in `Attention` for one group, of a layer that runs in Python; as kernels.attend_plain.
std::tuple<Tensor, Tensor> attend_group(const Tensor& q, const Tensor& k, const Tensor& v,
                                        const Maybe& bias, double scale, bool half) {
  const auto ready = [](const Tensor& x) {
    const auto numbers = x.to(at::kFloat);
    return numbers.stride(-1) == 1 ? numbers : numbers.contiguous();
  };
  const auto added = bias ? Maybe(bias->to(at::kFloat)) : bias;
  const auto options = q.options().dtype(at::kFloat);
  const auto mixed = at::empty({q.size(0), q.size(2), q.size(1), q.size(3)}, options).transpose(1, 2);
  const auto sums = at::empty({q.size(0), q.size(2), q.size(1)}, options).transpose(1, 2);
  attend({q.size(1), k.size(1), q.size(3), scale, 0, half}, ready(q), ready(k), ready(v), added,
         mixed, sums);
  return {mixed, sums};
}

// A linear of a layer that runs in Python, whose weight lies in panels of our own; as kernels.Linear.
Tensor panel_linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                    const Maybe& residual, const std::string& activation,
                    const std::string& algorithm) {
  const Linear linear(weight, bias, activation, algorithm);
  return residual ? linear.add(x, *residual) : linear(x);
}

}  // namespace

TORCH_LIBRARY(headlight, library) {
  library.def("attend(Tensor q, Tensor k, Tensor v, Tensor? bias, float scale, bool half)"
              " -> (Tensor, Tensor)", attend_group);
  library.def("panel_linear(Tensor x, Tensor weight, Tensor bias, Tensor? residual,"
              " str activation, str algorithm) -> Tensor", panel_linear);
  library.class_<Stack>("Stack")
      .def(torch::init<int64_t, int64_t, int64_t, double, int64_t, double, bool, bool, bool,
                       std::string, std::string, bool>())
      .def("embed", &Stack::embed)
      .def("add", &Stack::add)
      .def("unpadded_rows", &Stack::unpadded_rows)
      .def("run", &Stack::run)
      .def("pool", &Stack::pool);
}
