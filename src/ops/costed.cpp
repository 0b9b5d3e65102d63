// Ops that are nothing but their costs: they are planned and never run. A graph of costs only is made of them
// (plimsoll/cost_graph.h).
//
//   Costed       may run again
//   CostedOnce   runs exactly once a step
//   CostedView   its one output is its one input under another name: the same bytes
//
// Attributes: "ms"; "bytes": of each output; "workspace"; "in_place": triples of output, input, and 1 where it must be so;
// "state_outputs" as OpType has them; "kind" as in layer_kind_named.
#include <fmt/format.h>

#include "ops/families.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

std::vector<TensorSpec> outputs_of(const Attributes& attributes, std::span<const Tensor* const>) {
  std::vector<TensorSpec> specs;
  for (int64_t bytes : attributes.integers("bytes", {})) specs.push_back({{bytes}, DType::u8});
  return specs;
}

std::vector<TensorSpec> view_of(const Attributes&, std::span<const Tensor* const> in) {
  if (in.size() != 1) throw Error(ErrorCode::invalid_input, fmt::format("a view has one input, not {}", in.size()));
  return {{in[0]->shape, in[0]->dtype}};
}

std::vector<InPlace> pairs_of(const Graph& graph, const Op& op) {
  const std::vector<int64_t> flat = op.attributes.integers("in_place", {});
  std::vector<InPlace> pairs;
  for (size_t i = 0; i + 2 < flat.size(); i += 3) {
    const InPlace pair{static_cast<int>(flat[i]), static_cast<int>(flat[i + 1]), flat[i + 2] != 0};
    const auto tensor = [&](const std::vector<TensorId>& list, int64_t at) {
      if (at < 0 || at >= std::ssize(list))
        throw Error(ErrorCode::invalid_input, fmt::format("op '{}': in_place names tensor {} of {}", op.name, at, list.size()));
      return graph.tensor(list[static_cast<size_t>(at)]).bytes();
    };
    if (tensor(op.outputs, flat[i]) != tensor(op.inputs, flat[i + 1]))
      throw Error(ErrorCode::invalid_input,
                  fmt::format("op '{}': output {} is not as large as input {}, whose bytes it would take", op.name, flat[i], flat[i + 1]));
    pairs.push_back(pair);
  }
  return pairs;
}

OpType costed(std::string name) {
  return {.name = std::move(name),
          .infer = outputs_of,
          .gradient = {},
          .in_place = pairs_of,
          .work = {},
          .reference = {},
          .kind = LayerKind::other};
}

OpType once() {
  OpType type = costed("CostedOnce");
  type.changes_state = true;
  return type;
}

OpType view() {
  OpType type = costed("CostedView");
  type.infer = view_of;
  type.in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{{0, 0, true}}; };
  type.is_view = true;
  return type;
}

}  // namespace

std::vector<OpType> costed_ops() { return {costed("Costed"), once(), view()}; }

}  // namespace plimsoll
