// Ops that draw random numbers: from a counter-based generator keyed by the user's seed, the step and the layer
// (`salt`), by the row-major index of the element. So the backward pass draws dropout's mask again instead of keeping
// it, and a recomputation, another layout or another device draws the same one.
#include "base/random.h"

#include <fmt/format.h>

#include "ops/families.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

double probability(const Attributes& attributes) {
  const double p = attributes.real("p");
  if (p >= 0 && p < 1) return p;
  throw Error(ErrorCode::invalid_input, fmt::format("p is {}; the share that falls lies in [0, 1)", p));
}

void expect_enough_draws(const Shape& shape) {
  if (element_count(shape) <= int64_t{1} << 34) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("{} elements are more than the 2^34 draws of a stream", element_count(shape)));
}

// `step_number`, then the seed; `drawn` has the elements.
RandomStream draws_of(const Op& op, std::span<const TensorView> counters, const TensorView& drawn) {
  const auto numbers = [](const TensorView& view) {
    return std::span(static_cast<const int64_t*>(view.data), static_cast<size_t>(element_count(view.shape)));
  };
  return stream_of(numbers(counters[1]), numbers(counters[0])[0],
                   static_cast<uint32_t>(op.attributes.integer("salt", 0)), element_count(drawn.shape));
}

// Forward and backward are the same op under two names: what falls is 0, what stays is scaled by 1 / (1 - p).
OpType dropout(std::string name) {
  return {
      .name = std::move(name),
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 3);
            expect_counter(*in[1]);
            expect_seed(*in[2]);
            expect_enough_draws(in[0]->shape);
            probability(attributes);
            return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
          },
      .gradient = {},
      .in_place =
          [](const Graph&, const Op&) {
            return std::vector<InPlace>{{0, 0}};
          },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 1); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const RandomStream stream = draws_of(op, in.subspan(1), out[0]);
            const double p = probability(op.attributes);
            for_each_element(out[0], [&](int64_t i) {
              store(out[0], i, stream.bits(i) >= dropout_threshold(p) ? load(in[0], i) / (1 - p) : 0);
            });
          },
  };
}

// Of what draws its elements from counters alone, as its attributes say.
std::vector<TensorSpec> drawn(const Attributes& attributes, std::span<const Tensor* const> in) {
  expect_inputs(in, 2);
  expect_counter(*in[0]);
  expect_seed(*in[1]);
  const Shape shape = attributes.integers("shape");
  expect_enough_draws(shape);
  return {{shape, floating_dtype(attributes)}};
}

// Ones where dropout with 1 - p would keep.
OpType bernoulli() {
  return {
      .name = "Bernoulli",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            const double p = attributes.real("p");
            if (!(p >= 0 && p <= 1)) {
              throw Error(ErrorCode::invalid_input, fmt::format("p is {}; the share of ones lies in [0, 1]", p));
            }
            return drawn(attributes, in);
          },
      .gradient = [](Graph&, OpId, std::span<const TensorId>,
                     const std::vector<bool>& wanted) { return std::vector<TensorId>(wanted.size()); },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 1); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const RandomStream stream = draws_of(op, in, out[0]);
            const double p = op.attributes.real("p");
            for_each_element(out[0], [&](int64_t i) {
              store(out[0], i, p > 0 && stream.bits(i) >= dropout_threshold(1 - p) ? 1 : 0);
            });
          },
  };
}

OpType random_normal() {
  return {
      .name = "RandomNormal",
      .infer = drawn,
      .gradient = [](Graph&, OpId, std::span<const TensorId>,
                     const std::vector<bool>& wanted) { return std::vector<TensorId>(wanted.size()); },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 30); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const RandomStream stream = draws_of(op, in, out[0]);
            const double mean = op.attributes.real("mean", 0), stddev = op.attributes.real("stddev", 1);
            for_each_element(out[0], [&](int64_t i) { store(out[0], i, mean + stddev * stream.normal(i)); });
          },
  };
}

}  // namespace

std::vector<OpType> random_ops() {
  OpType forward = dropout("DropoutForward");
  forward.gradient = [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
    std::vector<TensorId> result(3);
    if (!wanted[0] || !dy[0].valid()) return result;
    const Op op = graph.op(id);
    result[0] = graph.output(
        add_backward(graph, "DropoutBackward", id, "backward", {dy[0], op.inputs[1], op.inputs[2]}, op.attributes));
    return result;
  };
  std::vector<OpType> types = of_kind(LayerKind::dropout, {std::move(forward), dropout("DropoutBackward")});
  for (OpType& type : of_kind(LayerKind::other, {bernoulli(), random_normal()})) types.push_back(std::move(type));
  return types;
}

}  // namespace plimsoll
