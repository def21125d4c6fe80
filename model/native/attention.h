// The self-attention of one layer; as attention.MultiHeadAttention.

#pragma once

#include <algorithm>
#include <limits>
#include <tuple>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "linear.h"
#include "look.h"
#include "norm.h"
#include "rows.h"
#include "team.h"

namespace {

using Tensors = std::vector<Tensor>;

// `count` sequences of `length` tokens each, from row `start` on; as packing.Group.
struct Group {
  int64_t start, count, length;
  Maybe bias;  // what is added to the scores, (1 or heads, query, key)
};

// In which rows, from which to before which, and of which head; and what is done there to its mixed
// values: what multiplies them, or what replaces them, (tokens, head).
using Gate = std::tuple<int64_t, int64_t, int64_t, double>;
using Patch = std::tuple<int64_t, int64_t, int64_t, Tensor>;
using Edits = std::tuple<std::vector<Gate>, std::vector<Patch>>;  // of one layer

// What is common to all layers.
struct Heads {
  int64_t count, shared, size;  // of queries; of keys and of values; channels of each
  double scale;  // of the scores
  int64_t tile;  // queries at a time, where not all keys are needed
  bool half;  // whether queries, keys, values and weights are rounded to bfloat16
};

// How many tokens before and after itself a query looks at; negative is all. As reach.Reach.
struct Reach {
  int64_t before, after;

  // Both as numbers, for a sequence of so many tokens.
  Reach cut(int64_t tokens) const {
    const auto most = tokens - 1;
    return {before < 0 ? most : std::min(before, most), after < 0 ? most : std::min(after, most)};
  }
};

// What one layer's attention leaves behind, as attention.Trace.
struct Trace {
  Tensor q, k, v, z;  // (rows, heads, head), keys and values of fewer; z (rows, heads * head)
  Tensors normalisers;  // per group, (sequences, heads, tokens)
};

// What to add to a tile's scores, (1, query, key): -inf beyond reach; as positions.hiding_bias.
Tensor hide(int64_t first, int64_t last, int64_t from, int64_t to, const Reach& reach,
            const Tensor& q) {
  auto mask = at::zeros({1, last - first, to - from}, at::kFloat);
  auto* row = mask.mutable_data_ptr<float>() - from;
  for (auto query = first; query < last; ++query, row += to - from) {
    const auto begin = std::clamp(query - reach.before, from, to);
    const auto end = std::clamp(query + reach.after + 1, from, to);
    std::fill(row + from, row + begin, -std::numeric_limits<float>::infinity());
    std::fill(row + end, row + to, -std::numeric_limits<float>::infinity());
  }
  return mask.to(q.scalar_type());
}

// softmax(scale q k^T + bias) v of each head of each sequence, (sequences, heads, tokens, head), into
// `mixed`, and the log of each row's sum, (sequences, heads, tokens), into `sums`; the channels of a
// head lie end to end. Keys and values may have fewer heads, which several of queries share.
void attend(const Heads& heads, const Tensor& q, const Tensor& k, const Tensor& v,
            const Maybe& bias, const Tensor& mixed, const Tensor& sums) {
  static const auto single = headlight::choose(at::get_cpu_capability(), headlight::AVX2::attend,
                                               headlight::AVX512::attend, headlight::NEON::attend);
  static const auto half = headlight::choose_half(at::get_cpu_capability(),
                                                  headlight::AVX512::half_attend);
  constexpr int64_t UNITS = 4;  // of work for each thread, where one has less its heads are cut
  const auto run = heads.half ? half : single;
  TORCH_CHECK(run, "no attention of this processor");
  const auto count = q.size(1), queries = q.size(2), sharing = count / k.size(1);
  const auto units = q.size(0) * count;
  const auto threads = std::max<int64_t>(at::get_num_threads(), headlight::Team::own().members());
  const auto chunks = std::min(queries, (UNITS * threads + units - 1) / units);
  const auto added = bias && bias->stride(-1) != 1 ? Maybe(bias->contiguous()) : bias;
  const auto place = [](const Tensor& x, int64_t sequence, int64_t head, int64_t token) {
    return sequence * x.stride(0) + head * x.stride(1) + token * x.stride(2);
  };
  const auto *from = q.const_data_ptr<float>(), *keys = k.const_data_ptr<float>(),
             *values = v.const_data_ptr<float>();
  auto *to = mixed.mutable_data_ptr<float>(), *logs = sums.mutable_data_ptr<float>();
  headlight::share_out(units * chunks, 1, [&](int64_t begin, int64_t end) {
    for (auto i = begin; i < end; ++i) {
      const auto first = queries * (i % chunks) / chunks, last = queries * (i % chunks + 1) / chunks;
      const auto head = i / chunks % count, sequence = i / chunks / count;
      const auto* row = added ? added->const_data_ptr<float>() + first * added->stride(1) +
                                    (added->size(0) > 1 ? head * added->stride(0) : 0)
                              : nullptr;
      run({from + place(q, sequence, head, first), keys + place(k, sequence, head / sharing, 0),
           values + place(v, sequence, head / sharing, 0), q.stride(2), k.stride(2), v.stride(2),
           row, added ? added->stride(1) : 0, last - first, k.size(2), heads.size,
           static_cast<float>(heads.scale), to + place(mixed, sequence, head, first),
           logs + place(sums, sequence, head, first), mixed.stride(2), sums.stride(2)});
    }
  });
}

struct Attention {
  Linear project;
  Normed output;
  Norm query_norm, key_norm;  // of each head's
  Maybe cos, sin;  // of the rotation, (positions, head / 2)
  Reach reach;

  // residual + MultiHead(x), (rows, width).
  Tensor operator()(const Heads& heads, const Tensor& x, const Tensor& residual,
                    const Tensor& positions, const std::vector<Group>& groups, const Edits& edits,
                    Trace& trace) const {
    auto [q, k, v] = turned(heads, project(x), positions);
    trace = {q, k, v, {}, {}};
    const auto rows = groups.back().start + groups.back().count * groups.back().length;
    trace.z = at::empty({x.size(0), heads.count * heads.size}, x.options());
    if (rows < x.size(0)) trace.z.narrow(0, rows, x.size(0) - rows).zero_();  // fill mixes nothing
    const auto z = trace.z.view({x.size(0), heads.count, heads.size});
    for (const auto& group : groups) {
      const auto each = [&](const Tensor& part) {
        return part.narrow(0, group.start, group.count * group.length)
            .view({group.count, group.length, part.size(1), heads.size})
            .transpose(1, 2);
      };
      const auto sums = at::empty({group.count, group.length, heads.count}, at::kFloat);
      trace.normalisers.push_back(sums.transpose(1, 2));
      look(heads, each(q), each(k), each(v), group.bias, each(z), trace.normalisers.back());
    }
    edit(heads, trace.z, edits);
    return output.add(trace.z, residual);
  }

  // Replace, then scale some heads' mixed values, (rows, heads * head), in place.
  static void edit(const Heads& heads, Tensor& z, const Edits& edits) {
    const auto part = [&](int64_t start, int64_t stop, int64_t head) {
      return z.slice(0, start, stop).narrow(1, head * heads.size, heads.size);
    };
    const auto& [gates, patches] = edits;
    for (const auto& [start, stop, head, value] : patches) part(start, stop, head).copy_(value);
    for (const auto& [start, stop, head, scale] : gates) part(start, stop, head).mul_(scale);
  }

 private:
  static inline headlight::Turn* const turn = headlight::choose(
      at::get_cpu_capability(), headlight::AVX2::turn, headlight::AVX512::turn,
      headlight::NEON::turn);

  // Queries, keys and values as they are multiplied, (rows, heads, head) each, of what the input
  // projections made.
  std::tuple<Tensor, Tensor, Tensor> turned(const Heads& heads, const Tensor& rows,
                                            const Tensor& positions) const {
    const auto all = rows.view({rows.size(0), -1, heads.size});
    const auto parts = all.split_with_sizes({heads.count, heads.shared, heads.shared}, 1);
    auto q = parts[0], k = parts[1];
    const bool brief = turn && rows.scalar_type() == at::kFloat &&
                       (!query_norm || (query_norm.brief && key_norm.brief));
    if (brief) {
      turn_in_place(heads, all, positions);
      return {q, k, parts[2]};
    }
    q = query_norm(q), k = key_norm(k);
    if (cos) q = rotate(q, positions), k = rotate(k, positions);
    return {q, k, parts[2]};
  }

  // Normalise and turn the queries and keys of all rows, (rows, heads of all three, head).
  void turn_in_place(const Heads& heads, const Tensor& all, const Tensor& positions) const {
    if (!cos && !query_norm) return;
    const auto* places = positions.const_data_ptr<int64_t>();
    const auto rows = all.size(0), apart = all.stride(0), half = heads.size / 2;
    if (cos) {
      const auto [least, most] = std::minmax_element(places, places + rows);
      TORCH_CHECK(0 <= *least && *most < cos->size(0), "a position without angles");
    }
    const auto *c = cos ? cos->const_data_ptr<float>() : nullptr,
               *s = cos ? sin->const_data_ptr<float>() : nullptr;
    auto* numbers = all.mutable_data_ptr<float>();
    const auto least = std::max<int64_t>(1, GRAIN / apart);
    headlight::share_out(rows, least, [&](int64_t first, int64_t last) {
      for (auto row = first; row < last; ++row) {
        auto *q = numbers + row * apart, *k = q + heads.count * heads.size;
        if (query_norm) query_norm.apply(q, heads.count, q), key_norm.apply(k, heads.shared, k);
        if (!cos) continue;
        const auto place = places[row] * half;
        turn(q, heads.count + heads.shared, heads.size, c + place, s + place);
      }
    });
  }

  // x, (rows, heads, head), turned by each row's position; as rotation.Rotation.
  Tensor rotate(const Tensor& x, const Tensor& positions) const {
    const auto c = cos->index_select(0, positions).unsqueeze(1);
    const auto s = sin->index_select(0, positions).unsqueeze(1);
    const auto halves = x.to(at::kFloat).chunk(2, -1);
    const auto &left = halves[0], &right = halves[1];
    return at::cat(Tensors{left * c - right * s, right * c + left * s}, -1).to(x.scalar_type());
  }

  // Attention of one group, (sequences, heads, tokens, head), into `mixed`, and its normaliser,
  // (sequences, heads, tokens), into `sums`.
  void look(const Heads& heads, const Tensor& q, const Tensor& k, const Tensor& v,
            const Maybe& bias, const Tensor& mixed, const Tensor& sums) const {
    const auto tokens = q.size(2);
    const auto near = reach.cut(tokens);
    if (std::min(near.before, near.after) == tokens - 1) {
      return attend(heads, q, k, v, bias, mixed, sums);
    }
    for (int64_t first = 0; first < tokens; first += heads.tile) {
      const auto last = std::min(first + heads.tile, tokens);
      const auto from = std::max<int64_t>(0, first - near.before);
      const auto to = std::min(tokens, last + near.after);
      auto mask = hide(first, last, from, to, near, q);
      if (bias) mask = mask + bias->slice(1, first, last).slice(2, from, to);
      attend(heads, q.slice(2, first, last), k.slice(2, from, to), v.slice(2, from, to), mask,
             mixed.slice(2, first, last), sums.slice(2, first, last));
    }
  }
};

}  // namespace
