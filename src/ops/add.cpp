// Add: y = act(a + b + ...). The gradient of every operand is dy itself, which costs nothing; with a ReLU inside it
// passes through ReluBackward first.
#include <fmt/format.h>

#include <algorithm>

#include "ops/families.h"
#include "ops/layer_inputs.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

OpType add() {
  return {
      .name = "Add",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            has_relu(attributes);
            if (in.size() < 2) {
              throw Error(ErrorCode::invalid_input, fmt::format("takes two or more inputs, got {}", in.size()));
            }
            for (const Tensor* other : in.subspan(1)) {
              expect_same_shape(*in[0], *other);
              expect_same_dtype(*in[0], *other);
            }
            return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            std::vector<TensorId> result(wanted.size());
            const bool any = std::find(wanted.begin(), wanted.end(), true) != wanted.end();
            if (!dy[0].valid() || !any) return result;
            TensorId g = dy[0];
            if (has_relu(graph.op(id).attributes)) {
              g = graph.output(add_backward(graph, "ReluBackward", id, "backward", {g, graph.output(id)}));
            }
            for (size_t i = 0; i < result.size(); ++i) {
              if (wanted[i]) result[i] = g;
            }
            return result;
          },
      .in_place =
          [](const Graph&, const Op& op) {
            std::vector<InPlace> pairs;
            for (size_t i = 0; i < op.inputs.size(); ++i) pairs.push_back({0, static_cast<int>(i)});
            return pairs;
          },
      .work = [](const Graph& graph,
                 const Op& op) { return elementwise_work(graph, op, static_cast<double>(op.inputs.size() - 1)); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const bool relu = has_relu(op.attributes);
            for_each_element(out[0], [&](int64_t i) {
              double sum = 0;
              for (const TensorView& view : in) sum += load(view, i);
              store(out[0], i, relu && !(sum > 0) ? 0 : sum);
            });
          },
  };
}

}  // namespace

std::vector<OpType> add_ops() { return of_kind(LayerKind::join, {add()}); }

}  // namespace plimsoll
