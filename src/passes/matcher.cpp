#include "passes/matcher.h"

#include <algorithm>

#include "ops/expression.h"
#include "plimsoll/ops.h"

namespace plimsoll {

Matcher::Matcher(const Network& network)
    : graph_(network.graph),
      uses_(count_uses(network)),
      reader_(graph_.tensor_count()),
      trained_(graph_.tensor_count(), false) {
  for (const Objective& objective : network.objectives) {
    ++uses_[objective.loss];
    for (TensorId id : objective.parameters) trained_[id] = true;
  }
  for (OpId id{0}; id.index < graph_.op_count(); ++id.index) {
    const Op& op = graph_.op(id);
    for (TensorId input : op.inputs) reader_[input] = id;
    const bool any = std::ranges::any_of(op.inputs, [&](TensorId input) { return trained_[input]; });
    for (TensorId output : op.outputs) trained_[output] = any;
  }
}

bool Matcher::is_call(const Op& op, std::string_view type) const {
  return op.type->name == type && op.phase == Phase::forward && op.attributes.text("activation", "none") == "none";
}

bool Matcher::is_expression(const Op& op, std::string_view text) const {
  return is_call(op, "Pointwise") && to_string(parse_expression(op.attributes.text("expression"))) == text;
}

const Op* Matcher::only(TensorId tensor, std::vector<OpId>& ops) const {
  const OpId producer = graph_.tensor(tensor).producer;
  if (!producer.valid() || uses_[tensor] != 1) return nullptr;
  ops.push_back(producer);
  return &graph_.op(producer);
}

bool Matcher::is_last(const Op& op, TensorId of) const {
  return op.attributes.integer("axis") + 1 == static_cast<int64_t>(graph_.tensor(of).shape.size());
}

}  // namespace plimsoll
