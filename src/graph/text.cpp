#include <fmt/format.h>

#include "plimsoll/graph.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

// "conv1/y f32 64x96x55x55 aBcd16b"
std::string describe(const Tensor& t) {
  std::string text = fmt::format("{} {} {}", t.name, to_string(t.dtype), to_string(t.shape));
  return t.layout.tag.empty() ? text : text + " " + t.layout.tag;
}

std::string describe(const Attribute& attribute) {
  return std::visit(
      [](const auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::vector<int64_t>> || std::is_same_v<T, std::vector<double>>) {
          return fmt::format("[{}]", fmt::join(value, ","));
        } else {
          return fmt::format("{}", value);
        }
      },
      attribute);
}

}  // namespace

std::string to_text(const Graph& graph) {
  std::string text = fmt::format("graph {}\n", graph.name);
  for (const Tensor& t : graph.tensors()) {
    if (!t.producer.valid()) text += fmt::format("{} {}\n", to_string(t.role), describe(t));
  }
  for (const Op& op : graph.ops()) {
    std::vector<std::string> inputs, outputs, attributes;
    for (TensorId id : op.inputs) inputs.push_back(graph.tensor(id).name);
    for (TensorId id : op.outputs) outputs.push_back(describe(graph.tensor(id)));
    for (const auto& [name, value] : op.attributes.items())
      attributes.push_back(fmt::format("{}={}", name, describe(value)));
    text += fmt::format("{} {}: {} = {}({})", to_string(op.phase), op.name, fmt::join(outputs, ", "), op.type->name,
                        fmt::join(inputs, ", "));
    if (!attributes.empty()) text += fmt::format(" {}", fmt::join(attributes, " "));
    text += "\n";
  }
  for (const State& state : graph.states) {
    if (state.before != state.after)
      text += fmt::format("state {} -> {}\n", graph.tensor(state.before).name, graph.tensor(state.after).name);
  }
  for (TensorId id : graph.outputs) text += fmt::format("output {}\n", graph.tensor(id).name);
  return text;
}

}  // namespace plimsoll
