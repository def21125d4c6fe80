// The forward pass as one call: what model/encoder.py's loop does, without the interpreter.
//
//     embeddings -> layers (attention, feed-forward, residuals, norms) -> last norm
//
// Statement for statement the loop of embeddings.py, attention.py, encoder.py, positions.py,
// rotation.py and pooling.py, over the same kernels of ATen and oneDNN, called through torch's
// dispatcher; attention, norms and most products (linear.h) go past it. Change both together:
// agreement.py compares them, to the bit, at every start. torch calls these methods with Python's
// lock released, so that other threads run.
//
// Shapes are written as there, outermost axis first; a packed weight is in oneDNN's own layout.

// as torch's own wheel is built: its stubs have a kernel for each
#if defined(__x86_64__)
#define HAVE_AVX2_CPU_DEFINITION
#define HAVE_AVX512_CPU_DEFINITION
#endif

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
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

namespace {

using Ints = std::vector<int64_t>;
using Maybes = std::vector<Maybe>;

// What is common to all layers; as config.EncoderConfig.
struct Shape {
  Heads heads;
  double eps;  // of every norm
  bool rms, pre_norm;  // which kind all norms are; normalise before each block rather than after
  std::string activation, algorithm;  // as oneDNN calls them
  std::optional<Gated> gated;

  Norm norm(const Maybe& weight, const Maybe& bias) const { return {weight, bias, eps, rms}; }
};

// The word, segment and position tables, and what follows them; as embeddings.Embeddings.
struct Embeddings {
  Tensor word;
  Maybe position, types;
  Norm norm;
  Linear project;
  int64_t offset;  // row of `position` for position 0

  Tensor operator()(const Tensor& ids, const Tensor& positions, const Tensor& segments,
                    const Ints& starts, const Tensors& vectors) const {
    auto x = at::embedding(word, ids);
    for (size_t i = 0; i < starts.size(); ++i) {
      x.narrow(0, starts[i], vectors[i].size(0)).copy_(vectors[i]);
    }
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
        bool rms, bool pre_norm, bool gated, std::string activation, std::string algorithm)
      : shape_{{heads, shared, head, scale, tile}, eps, rms, pre_norm, activation, algorithm, {}} {
    if (gated) shape_.gated.emplace(activation, algorithm);
  }

  // Tables, norm and projection of the embeddings, then the norm after the last layer.
  void embed(const Maybes& t, int64_t offset) {
    embeddings_ = {*t[0], t[1], t[2], {t[3], t[4], shape_.eps, false}, Linear(t[5], t[6]), offset};
    norm_ = shape_.norm(t[7], t[8]);
  }

  // One more layer: weights and biases of its linears and norms; the tables of its rotation; and how
  // far a query looks, negative for all.
  void add(const Maybes& linears, const Maybes& norms, const Maybes& turns, int64_t before,
           int64_t after) {
    const auto linear = [&](size_t i, const std::string& activation = "none",
                            const std::string& algorithm = "") {
      return Linear(linears[2 * i], linears[2 * i + 1], activation, algorithm);
    };
    const auto norm = [&](size_t i) { return shape_.norm(norms[2 * i], norms[2 * i + 1]); };
    const auto up = shape_.gated ? linear(2) : linear(2, shape_.activation, shape_.algorithm);
    layers_.push_back({{linear(0), {linear(1), norm(4)}, norm(2), norm(3), turns[0], turns[1],
                        {before, after}},
                       up,
                       {linear(3), norm(5)},
                       norm(0),
                       norm(1)});
    auto& layer = layers_.back();
    layer.attention.project.precede(layer.attention.output.linear);
    layer.attention.output.linear.precede(layer.up);
    layer.up.precede(layer.down.linear);
    if (layers_.size() > 1) {
      layers_[layers_.size() - 2].down.linear.precede(layer.attention.project);
    }
  }

  // Up to how many rows a batch may have any number of them: no linear minds.
  int64_t any_rows() const {
    const auto minds = [](const Layer& layer) {
      const auto& attention = layer.attention;
      return !attention.project.any_rows() || !attention.output.linear.any_rows() ||
             !layer.up.any_rows() || !layer.down.linear.any_rows();
    };
    const bool free = !embeddings_.project || embeddings_.project.any_rows();
    return free && std::none_of(layers_.begin(), layers_.end(), minds) ? Linear::MOST : 0;
  }

  // Encode a packed batch; as encoder.Encoder.
  //
  // groups: start, count and length of each, biases: of each, empty where none. gates, patches:
  // layer, first row, last row and head of each, scales, values: of each. first: the layer to begin
  // in, with its residual and mixed values in entry; empty begins at the embeddings. hidden, traces:
  // which to keep, in rising order. Returns the last state, those kept, of each layer kept q, k, v,
  // z and a normaliser a group; and whether all of the last state is finite.
  std::tuple<Tensors, bool> run(const Tensor& ids, const Tensor& positions, const Tensor& segments,
                                const Ints& starts, const Tensors& vectors, const Ints& groups,
                                const Tensors& biases, const Ints& gates,
                                const std::vector<double>& scales, const Ints& patches,
                                const Tensors& values, int64_t first, const Tensors& entry,
                                const Ints& hidden, const Ints& traces) const {
    const auto batch = grouped(groups, biases);
    const auto edits = edited(gates, scales, patches, values);
    const bool inside = !entry.empty();
    const std::set<int64_t> wanted(hidden.begin(), hidden.end());
    const std::set<int64_t> kept(traces.begin(), traces.end());
    auto x = inside ? entry[0] : embeddings_(ids, positions, segments, starts, vectors);
    Tensors states, traced;
    if (wanted.count(0) && !inside) states.push_back(x);
    const auto count = static_cast<int64_t>(layers_.size());
    TORCH_CHECK(0 <= first && first < count, "no such layer: ", first, " of ", count);
    for (int64_t i = first; i < count; ++i) {
      const bool known = inside && i == first;
      Trace trace;
      x = known ? layers_[i].resume(shape_, x, entry[1], edits[i])
                : layers_[i](shape_, x, positions, batch, edits[i], trace);
      if (i + 1 == count) x = norm_(x);
      if (wanted.count(i + 1)) states.push_back(x);
      if (known || !kept.count(i)) continue;
      traced.insert(traced.end(), {trace.q, trace.k, trace.v, trace.z});
      traced.insert(traced.end(), trace.normalisers.begin(), trace.normalisers.end());
    }
    Tensors out{x};
    out.insert(out.end(), states.begin(), states.end());
    out.insert(out.end(), traced.begin(), traced.end());
    return {out, finite(x)};
  }

  // Vectors of some sequences, (sequences, size or dimensions); as pooling.pool_each, without dense
  // layers. rows: first row and length of each. dimensions: 0 keeps all.
  Tensor pool(const Tensor& last, const Ints& rows, const std::vector<std::string>& modes,
              bool normalize, int64_t dimensions) const {
    Tensors vectors;
    for (size_t i = 0; i < rows.size(); i += 2) {
      Tensors parts;
      for (const auto& mode : modes) {
        parts.push_back(reduce(last.narrow(0, rows[i], rows[i + 1]).to(at::kFloat), mode));
      }
      auto vector = at::cat(parts);
      if (dimensions) vector = vector.slice(0, 0, dimensions);
      // a zero vector stays zero, as by torch.nn.functional.normalize
      if (normalize) vector = vector / at::linalg_vector_norm(vector, 2, 0, true).clamp_min(1e-12);
      vectors.push_back(vector);
    }
    return at::stack(vectors);
  }

 private:
  static std::vector<Group> grouped(const Ints& numbers, const Tensors& biases) {
    std::vector<Group> groups;
    for (size_t i = 0; i < numbers.size(); i += 3) {
      const auto bias = biases[i / 3].numel() ? Maybe(biases[i / 3]) : Maybe();
      groups.push_back({numbers[i], numbers[i + 1], numbers[i + 2], bias});
    }
    return groups;
  }

  // Gates and patches by layer; four numbers of each: layer, first row, last row, head. A layer that
  // is not there would be written past the end.
  std::vector<Edits> edited(const Ints& gates, const std::vector<double>& scales,
                            const Ints& patches, const Tensors& values) const {
    TORCH_CHECK(gates.size() == 4 * scales.size(), "four numbers a gate, not ", gates);
    TORCH_CHECK(patches.size() == 4 * values.size(), "four numbers a patch, not ", patches);
    std::vector<Edits> edits(layers_.size());
    const auto of = [&](int64_t layer) -> Edits& {
      const auto count = static_cast<int64_t>(edits.size());
      TORCH_CHECK(0 <= layer && layer < count, "no such layer: ", layer, " of ", count);
      return edits[layer];
    };
    for (size_t i = 0; i < scales.size(); ++i) {
      const auto* each = &gates[4 * i];
      of(each[0]).gates.push_back({each[1], each[2], each[3], scales[i]});
    }
    for (size_t i = 0; i < values.size(); ++i) {
      const auto* each = &patches[4 * i];
      of(each[0]).patches.push_back({each[1], each[2], each[3], values[i]});
    }
    return edits;
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

}  // namespace

TORCH_LIBRARY(headlight, library) {
  library.class_<Stack>("Stack")
      .def(torch::init<int64_t, int64_t, int64_t, double, int64_t, double, bool, bool, bool,
                       std::string, std::string>())
      .def("embed", &Stack::embed)
      .def("add", &Stack::add)
      .def("any_rows", &Stack::any_rows)
      .def("run", &Stack::run)
      .def("pool", &Stack::pool);
}
