// Constant: a tensor of one value, made anew in every step. Autodiff begins a backward pass with one.
#include <fmt/format.h>

#include "ops/families.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

OpType constant() {
  return {
      .name = "Constant",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            if (!in.empty()) throw Error(ErrorCode::invalid_input, fmt::format("takes no inputs, got {}", in.size()));
            attributes.real("value");
            return std::vector<TensorSpec>{{attributes.integers("shape"), floating_dtype(attributes)}};
          },
      .gradient = [](Graph&, OpId, std::span<const TensorId>,
                     const std::vector<bool>&) { return std::vector<TensorId>{}; },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 0); },
      .reference =
          [](const Op& op, std::span<const TensorView>, std::span<const TensorView> out) {
            const double value = op.attributes.real("value");
            for_each_element(out[0], [&](int64_t i) { store(out[0], i, value); });
          },
  };
}

}  // namespace

std::vector<OpType> constant_ops() { return of_kind(LayerKind::other, {constant()}); }

}  // namespace plimsoll
