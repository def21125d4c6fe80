// The forward pass as one call: what model/encoder.py's loop does, without the interpreter.
//
//     embeddings -> layers (attention, feed-forward, residuals, LayerNorms) -> last LayerNorm
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
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/layer_norm.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/custom_class.h>

#include "linear.h"

namespace {

using Ints = std::vector<int64_t>;
using Tensors = std::vector<Tensor>;
using Maybes = std::vector<Maybe>;

// Weight and bias of a LayerNorm; without a weight there is none.
struct Affine {
  Maybe weight, bias;

  explicit operator bool() const { return weight.has_value(); }
};

// `count` sequences of `length` tokens each, from row `start` on; as packing.Group.
struct Group {
  int64_t start, count, length;
  Maybe bias;  // what is added to the scores, (1 or heads, query, key)
};

// What multiplies a head's mixed values in some rows.
struct Gate {
  int64_t start, stop, head;
  double scale;
};

// What replaces a head's mixed values in some rows.
struct Patch {
  int64_t start, stop, head;
  Tensor value;  // (tokens, head)
};

// What is done to the mixed values of one layer's heads.
struct Edits {
  std::vector<Gate> gates;
  std::vector<Patch> patches;
};

// What is common to all layers; as config.EncoderConfig and attention.MultiHeadAttention.
struct Shape {
  int64_t heads, head;
  double scale, eps;  // of the scores; of every LayerNorm
  bool pre_norm, gated;
  std::string activation, algorithm;  // as oneDNN calls them
  int64_t tile;  // queries at a time behind a window
};

Tensor normalise(const Tensor& x, const Affine& norm, double eps) {
  if (!norm) return x;
  const auto own = x.contiguous();
  auto y = at::empty_like(own);  // what native_layer_norm calls, without means and deviations
  at::native::LayerNormKernel(at::kCPU, own, *norm.weight, norm.bias.value_or(Tensor()), x.size(0),
                              x.size(1), eps, &y, nullptr, nullptr);
  return y;
}

Tensor activate(const Tensor& x, const Shape& shape) {
  if (shape.activation == "relu") return at::relu(x);
  if (shape.activation == "swish") return at::silu(x);
  return at::gelu(x, shape.algorithm);
}

// What to add to a tile's scores, (1, query, key): -inf beyond the window; as positions.hidden.
Tensor hide(int64_t first, int64_t last, int64_t from, int64_t to, int64_t window,
            const Tensor& q) {
  const auto apart = at::arange(first, last).unsqueeze(1) - at::arange(from, to).unsqueeze(0);
  const auto mask = at::zeros({last - first, to - from}, q.options());
  return mask.masked_fill_(apart.abs().gt(window), -std::numeric_limits<double>::infinity())
      .unsqueeze(0);
}

// The word, segment and position tables, and what follows them; as embeddings.Embeddings.
struct Embeddings {
  Tensor word;
  Maybe position, types;
  Affine norm;
  Linear project;
  int64_t offset;  // row of `position` for position 0

  Tensor operator()(const Tensor& ids, const Tensor& positions, const Tensor& segments,
                    const Ints& starts, const Tensors& vectors, double eps) const {
    auto x = at::embedding(word, ids);
    for (size_t i = 0; i < starts.size(); ++i) {
      x.narrow(0, starts[i], vectors[i].size(0)).copy_(vectors[i]);
    }
    if (types) x.add_(at::embedding(*types, segments));
    if (position) x.add_(at::embedding(*position, positions + offset));
    x = normalise(x, norm, eps);
    return project ? project(x) : x;
  }
};

// What one layer's attention leaves behind, as attention.Trace.
struct Trace {
  Tensor q, k, v, z;  // (rows, heads, head), z (rows, width)
  Tensors normalisers;  // per group, (sequences, heads, tokens)
};

struct Layer {
  Linear project, output, up, down;
  Affine attention_norm, feed_forward_norm;
  Maybe cos, sin;  // of the rotation, (positions, head / 2)
  int64_t window;  // how far a query looks to either side; negative is everywhere

  // The next residual stream, (rows, width); as encoder.Layer.
  Tensor operator()(const Shape& shape, const Tensor& x, const Tensor& positions,
                    const std::vector<Group>& groups, const Edits& edits, Trace& trace) const {
    const auto entered = shape.pre_norm ? normalise(x, attention_norm, shape.eps) : x;
    return after(shape, attend(shape, entered, x, positions, groups, edits, trace));
  }

  // The same from mixed values that are known, (rows, width); as encoder.Layer.resume.
  Tensor resume(const Shape& shape, const Tensor& x, const Tensor& mixed,
                const Edits& edits) const {
    auto z = mixed.clone();
    edit(shape, z, edits);
    return after(shape, output.add(z, x));
  }

 private:
  // What follows the attention and its residual.
  Tensor after(const Shape& shape, const Tensor& attended) const {
    if (shape.pre_norm) {
      return feed_forward(shape, normalise(attended, feed_forward_norm, shape.eps), attended);
    }
    const auto a = normalise(attended, attention_norm, shape.eps);
    return normalise(feed_forward(shape, a, a), feed_forward_norm, shape.eps);
  }

  // Replace, then scale some heads' mixed values, (rows, width), in place.
  static void edit(const Shape& shape, Tensor& z, const Edits& edits) {
    const auto part = [&](int64_t start, int64_t stop, int64_t head) {
      return z.slice(0, start, stop).narrow(1, head * shape.head, shape.head);
    };
    for (const auto& each : edits.patches) {
      part(each.start, each.stop, each.head).copy_(each.value);
    }
    for (const auto& each : edits.gates) part(each.start, each.stop, each.head).mul_(each.scale);
  }

  Tensor feed_forward(const Shape& shape, const Tensor& x, const Tensor& residual) const {
    if (!shape.gated) {
      return down.add(up(x), residual);
    }
    const auto halves = up(x).chunk(2, -1);  // the gate, then what it scales
    return down.add(activate(halves[0], shape) * halves[1], residual);
  }

  // residual + MultiHead(x); as attention.MultiHeadAttention.
  Tensor attend(const Shape& shape, const Tensor& x, const Tensor& residual,
                const Tensor& positions, const std::vector<Group>& groups,
                const Edits& edits, Trace& trace) const {
    auto qkv = project(x).view({x.size(0), 3, shape.heads, shape.head}).unbind(1);
    if (cos) {
      qkv[0] = rotate(qkv[0], positions);
      qkv[1] = rotate(qkv[1], positions);
    }
    trace = {qkv[0], qkv[1], qkv[2], {}, {}};
    const auto rows = groups.back().start + groups.back().count * groups.back().length;
    trace.z = at::empty({x.size(0), shape.heads * shape.head}, x.options());
    if (rows < x.size(0)) trace.z.narrow(0, rows, x.size(0) - rows).zero_();  // fill mixes nothing
    for (const auto& group : groups) {
      const auto each = [&](const Tensor& part) {
        return part.narrow(0, group.start, group.count * group.length)
            .view({group.count, group.length, shape.heads, shape.head})
            .transpose(1, 2);
      };
      const auto sums = at::empty({group.count, group.length, shape.heads}, at::kFloat);
      trace.normalisers.push_back(sums.transpose(1, 2));
      look(shape, each(qkv[0]), each(qkv[1]), each(qkv[2]), group.bias,
           each(trace.z.view({x.size(0), shape.heads, shape.head})), trace.normalisers.back());
    }
    edit(shape, trace.z, edits);
    return output.add(trace.z, residual);
  }

  // Attention of one group, (sequences, heads, tokens, head), into `mixed`, and its normaliser,
  // (sequences, heads, tokens), into `sums`.
  void look(const Shape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
            const Maybe& bias, const Tensor& mixed, const Tensor& sums) const {
    // what _scaled_dot_product_flash_attention_for_cpu calls, with axes of tokens before heads
    const auto flash = [&](const Tensor& q, const Tensor& k, const Tensor& v, const Maybe& mask,
                           const Tensor& mixed, const Tensor& sums) {
      const auto all = mask ? Maybe(mask->unsqueeze(0)) : Maybe();
      at::native::flash_attention_kernel(at::kCPU, mixed.transpose(1, 2), sums.transpose(1, 2), q,
                                         k, v, 0.0, false, all, shape.scale);
    };
    const auto tokens = q.size(2);
    if (window < 0 || tokens <= window + 1) return flash(q, k, v, bias, mixed, sums);
    for (int64_t first = 0; first < tokens; first += shape.tile) {
      const auto last = std::min(first + shape.tile, tokens);
      const auto from = std::max<int64_t>(0, first - window), to = std::min(tokens, last + window);
      auto mask = hide(first, last, from, to, window, q);
      if (bias) mask = mask + bias->slice(1, first, last).slice(2, from, to);
      flash(q.slice(2, first, last), k.slice(2, from, to), v.slice(2, from, to), mask,
            mixed.slice(2, first, last), sums.slice(2, first, last));
    }
  }

  // x, (rows, heads, head), turned by each row's position; as rotation.Rotation.
  Tensor rotate(const Tensor& x, const Tensor& positions) const {
    const auto c = cos->index_select(0, positions).unsqueeze(1);
    const auto s = sin->index_select(0, positions).unsqueeze(1);
    const auto halves = x.to(at::kFloat).chunk(2, -1);
    const auto &left = halves[0], &right = halves[1];
    return at::cat(Tensors{left * c - right * s, right * c + left * s}, -1).to(x.scalar_type());
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
  Stack(int64_t heads, int64_t head, double scale, double eps, bool pre_norm, bool gated,
        std::string activation, std::string algorithm, int64_t tile)
      : shape_{heads, head, scale, eps, pre_norm, gated, activation, algorithm, tile} {}

  // Tables, norm and projection of the embeddings, then the LayerNorm after the last layer.
  void embed(const Maybes& t, int64_t offset) {
    embeddings_ = {*t[0], t[1], t[2], {t[3], t[4]}, Linear(t[5], t[6]), offset};
    norm_ = {t[7], t[8]};
  }

  // One more layer, in the order of Layer's fields; then of each linear, in int8, what makes codes.
  void add(const Maybes& t, int64_t window) {
    const auto linear = [&](size_t i, const std::string& activation = "none",
                            const std::string& algorithm = "") {
      const auto* codes = &t[14 + 3 * i];
      return Linear(t[2 * i], t[2 * i + 1], activation, algorithm, {codes[0], codes[1], codes[2]});
    };
    const auto up = shape_.gated ? linear(2) : linear(2, shape_.activation, shape_.algorithm);
    layers_.push_back({linear(0), linear(1), up, linear(3), {t[8], t[9]}, {t[10], t[11]}, t[12],
                       t[13], window});
    auto& layer = layers_.back();
    layer.project.precede(layer.output);
    layer.output.precede(layer.up);
    layer.up.precede(layer.down);
    if (layers_.size() > 1) layers_[layers_.size() - 2].down.precede(layer.project);
  }

  // Up to how many rows a batch may have any number of them: no linear minds.
  int64_t any_rows() const {
    const auto minds = [](const Layer& layer) {
      return !layer.project.any_rows() || !layer.output.any_rows() || !layer.up.any_rows() ||
             !layer.down.any_rows();
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
    auto x = inside ? entry[0]
                    : embeddings_(ids, positions, segments, starts, vectors, shape_.eps);
    Tensors states, traced;
    if (wanted.count(0) && !inside) states.push_back(x);
    const auto count = static_cast<int64_t>(layers_.size());
    TORCH_CHECK(0 <= first && first < count, "no such layer: ", first, " of ", count);
    for (int64_t i = first; i < count; ++i) {
      const bool known = inside && i == first;
      Trace trace;
      x = known ? layers_[i].resume(shape_, x, entry[1], edits[i])
                : layers_[i](shape_, x, positions, batch, edits[i], trace);
      if (i + 1 == count) x = normalise(x, norm_, shape_.eps);
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
  Affine norm_;
  std::vector<Layer> layers_;
};

}  // namespace

TORCH_LIBRARY(headlight, library) {
  library.class_<Stack>("Stack")
      .def(torch::init<int64_t, int64_t, double, double, bool, bool, std::string, std::string,
                       int64_t>())
      .def("embed", &Stack::embed)
      .def("add", &Stack::add)
      .def("any_rows", &Stack::any_rows)
      .def("run", &Stack::run)
      .def("pool", &Stack::pool);
}
