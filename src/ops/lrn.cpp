// Local response normalisation across channels (A. Krizhevsky, I. Sutskever, G. Hinton, NIPS 2012), with PyTorch's
// scaling:
//
//   s[c] = k + alpha / size * sum of x[j]^2 over the `size` channels j around c,   y[c] = x[c] * s[c]^-beta
//
// Channels outside count as zeros. The backward pass makes s again instead of keeping it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/families.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

struct Lrn {
  int64_t size;
  double alpha, beta, k;
};

Lrn settings(const Attributes& attributes) {
  const Lrn lrn{attributes.integer("size", 5), attributes.real("alpha", 1e-4), attributes.real("beta", 0.75),
                attributes.real("k", 1)};
  if (lrn.size < 1)
    throw Error(ErrorCode::invalid_input, fmt::format("size is {}; one channel or more is expected", lrn.size));
  return lrn;
}

void expect_lrn_channels(const Tensor& x) {
  if (x.shape.size() >= 2) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' is {}; two or more dimensions are expected, the second of them channels", x.name,
                          to_string(x.shape)));
}

// Runs body(line) for every position of the image: line[c] is the element's index for channel c.
template <class Body>
void for_each_line(const Shape& shape, Body body) {
  const int64_t channels = shape[1], inner = element_count(shape) / (shape[0] * channels);
  std::vector<int64_t> line(channels);
  for (int64_t n = 0; n < shape[0]; ++n) {
    for (int64_t i = 0; i < inner; ++i) {
      for (int64_t c = 0; c < channels; ++c) line[c] = (n * channels + c) * inner + i;
      body(line);
    }
  }
}

// s[c] along a line.
std::vector<double> scales(const Lrn& lrn, const TensorView& x, const std::vector<int64_t>& line) {
  const int64_t channels = static_cast<int64_t>(line.size());
  std::vector<double> result;
  for (int64_t c = 0; c < channels; ++c) {
    double squares = 0;
    for (int64_t j = std::max<int64_t>(0, c - lrn.size / 2); j <= std::min(channels - 1, c + (lrn.size - 1) / 2); ++j) {
      squares += load(x, line[j]) * load(x, line[j]);
    }
    result.push_back(lrn.k + lrn.alpha / static_cast<double>(lrn.size) * squares);
  }
  return result;
}

void run_lrn_forward(const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
  const Lrn lrn = settings(op.attributes);
  for_each_line(in[0].shape, [&](const std::vector<int64_t>& line) {
    const std::vector<double> s = scales(lrn, in[0], line);
    for (size_t c = 0; c < line.size(); ++c) store(out[0], line[c], load(in[0], line[c]) * std::pow(s[c], -lrn.beta));
  });
}

void run_lrn_backward(const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
  const Lrn lrn = settings(op.attributes);
  for_each_line(in[0].shape, [&](const std::vector<int64_t>& line) {
    const int64_t channels = static_cast<int64_t>(line.size());
    const std::vector<double> s = scales(lrn, in[0], line);
    for (int64_t j = 0; j < channels; ++j) {
      double sum = 0;  // over the channels whose window holds j
      for (int64_t c = std::max<int64_t>(0, j - (lrn.size - 1) / 2); c <= std::min(channels - 1, j + lrn.size / 2);
           ++c) {
        const size_t at = c;
        sum += load(in[1], line[at]) * load(in[0], line[at]) * std::pow(s[at], -lrn.beta - 1);
      }
      const size_t at = j;
      store(out[0], line[at],
            load(in[1], line[at]) * std::pow(s[at], -lrn.beta) -
                2 * lrn.alpha * lrn.beta / static_cast<double>(lrn.size) * load(in[0], line[at]) * sum);
    }
  });
}

}  // namespace

std::vector<OpType> lrn_ops() {
  OpType forward{
      .name = "LrnForward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            expect_lrn_channels(*in[0]);
            settings(attributes);
            return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            if (!wanted[0] || !dy[0].valid()) return std::vector<TensorId>{TensorId{}};
            const Op op = graph.op(id);
            return std::vector<TensorId>{
                graph.output(add_backward(graph, "LrnBackward", id, "backward", {op.inputs[0], dy[0]}, op.attributes))};
          },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work =
          [](const Graph& graph, const Op& op) {
            return elementwise_work(graph, op, 2 * static_cast<double>(settings(op.attributes).size) + 20);
          },
      .reference = run_lrn_forward,
  };
  OpType backward{
      .name = "LrnBackward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            expect_lrn_channels(*in[0]);
            expect_same_shape(*in[0], *in[1]);
            expect_same_dtype(*in[0], *in[1]);
            settings(attributes);
            return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
          },
      .gradient = {},
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work =
          [](const Graph& graph, const Op& op) {
            return elementwise_work(graph, op, 4 * static_cast<double>(settings(op.attributes).size) + 30);
          },
      .reference = run_lrn_backward,
  };
  return of_kind(LayerKind::lrn,
                 {in_parts(std::move(forward), {{0}, {0}}), in_parts(std::move(backward), {{0, 1}, {0}})});
}

}  // namespace plimsoll
