// What the ranks of a data parallel training do together. Between a gradient and the update that reads it:
//
//   gradient ──> AllReduce ──> the mean of all ranks' gradients, in the gradient's bytes ──> update
//
// Sums run in the order of the ranks, element by element, whatever the messages: ((x0 + x1) + x2) + x3, times one over
// their number. The attribute "ranks" is that number. With the attribute "scaled" the last input is the scale of sums of
// gradients (accumulate.cpp): where it is below 0 there is no update yet, nothing is sent, and the output is meaningless.
//
// A process that is alone computes what ranks with equal gradients would: their mean is the gradient.
#include <fmt/format.h>

#include "ops/families.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

// Inputs of AllReduce. The parameter is not read: as of every op that changes a state, it says how all of them are laid
// out, which so is the same on all ranks.
constexpr int kReducedParameter = 0, kReducedGradient = 1;

OpType all_reduce() {
  return {
      .name = "AllReduce",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            const bool scaled = attributes.integer("scaled", 0) != 0;
            expect_inputs(in, scaled ? 3 : 2);
            expect_same_shape(*in[kReducedParameter], *in[kReducedGradient]);
            expect_same_dtype(*in[kReducedParameter], *in[kReducedGradient]);
            if (attributes.integer("ranks") < 1)
              throw Error(ErrorCode::invalid_input,
                          fmt::format("{} ranks; at least 1 is needed", attributes.integer("ranks")));
            if (scaled && !in.back()->shape.empty())
              throw Error(ErrorCode::invalid_input, fmt::format("'{}' must be a scalar", in.back()->name));
            const Tensor& gradient = *in[kReducedGradient];
            return std::vector<TensorSpec>{{gradient.shape, gradient.dtype, Role::gradient}};
          },
      .gradient = {},
      .in_place =
          [](const Graph& graph, const Op& op) {
            // A sum of gradients stays for the next batch.
            if (graph.tensor(op.inputs[kReducedGradient]).role == Role::optimizer_state) return std::vector<InPlace>{};
            return std::vector<InPlace>{{0, kReducedGradient}};
          },
      .work =
          [](const Graph& graph, const Op& op) {
            const Tensor& gradient = graph.tensor(op.inputs[kReducedGradient]);
            const double ranks = static_cast<double>(op.attributes.integer("ranks"));
            return Work{static_cast<double>(element_count(gradient.shape)) * (ranks - 1) / ranks,
                        2 * static_cast<double>(gradient.bytes().count)};
          },
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            for_each_element(out[0], [&](int64_t i) { store(out[0], i, load(in[kReducedGradient], i)); });
          },
      .changes_state = true,
      .is_collective = true,
  };
}

}  // namespace

std::vector<OpType> collective_ops() { return of_kind(LayerKind::other, {all_reduce()}); }

}  // namespace plimsoll
