#include "plimsoll/cost_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/by_id.h"
#include "plimsoll/device.h"
#include "plimsoll/ops.h"

namespace plimsoll {

CostTable costs_of(const CostGraph& costs) {
  CostTable table;
  for (OpId id{0}; id.index < costs.graph.op_count(); ++id.index) {
    const Op& op = costs.graph.op(id);
    if (op.type->is_view) continue;
    const double ms = op.attributes.real("ms");
    KernelSpec kernel{.name = costs.kernels[id.index].kernel, .workspace = costs.kernels[id.index].workspace};
    kernel.estimate.ms = ms;
    table.note(costs.graph, op, kernel);  // for tables without what was measured
    table.put({op_signature(costs.graph, op), kernel.name, 0},
              {.source = Cost::Source::measured, .time_ms = ms, .workspace = kernel.workspace});
  }
  return table;
}

bool holds_only_costs(const Graph& graph) {
  return graph.op_count() > 0 &&
         std::ranges::all_of(graph.ops(), [](const Op& op) { return op.type->name.starts_with("Costed"); });
}

Bytes keeping_everything(const CostGraph& costs) {
  const Graph& graph = costs.graph;
  ById<TensorId, TensorId> root(graph.tensor_count());  // what a view shows
  for (TensorId id : root.ids()) {
    const OpId producer = graph.tensor(id).producer;
    root[id] = producer.valid() && graph.op(producer).type->is_view ? root[graph.op(producer).inputs[0]] : id;
  }
  constexpr int32_t kEnd = INT32_MAX;
  ById<TensorId, int32_t> last(graph.tensor_count(), -1);
  for (OpId id{0}; id.index < graph.op_count(); ++id.index) {
    for (TensorId output : graph.op(id).outputs) last[root[output]] = std::max(last[root[output]], id.index);
    for (TensorId input : graph.op(id).inputs) last[root[input]] = std::max(last[root[input]], id.index);
  }
  for (TensorId id : graph.outputs) last[root[id]] = kEnd;
  for (const State& state : graph.states) last[root[state.before]] = last[root[state.after]] = kEnd;
  ById<TensorId, bool> replaced(graph.tensor_count(), false);  // its bytes are another's now
  Bytes live, peak;
  for (TensorId id : root.ids()) {
    if (!graph.tensor(id).producer.valid() && last[id] >= 0) live += graph.tensor(id).bytes();
  }
  peak = live;
  for (OpId id{0}; id.index < graph.op_count(); ++id.index) {
    const Op& op = graph.op(id);
    if (op.type->is_view) continue;
    const std::vector<InPlace> pairs = op.type->in_place(graph, op);
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      const auto taken = std::find_if(pairs.begin(), pairs.end(), [&](const InPlace& pair) {
        const TensorId input = root[op.inputs[pair.input]];
        return pair.output == static_cast<int>(o) && !replaced[input] && (pair.required || last[input] == id.index);
      });
      if (taken == pairs.end()) {
        live += graph.tensor(op.outputs[o]).bytes();
      } else {
        replaced[root[op.inputs[taken->input]]] = true;
      }
    }
    peak = std::max(peak, live + costs.kernels[id.index].workspace);
    std::vector<TensorId> ended;
    for (const auto* list : {&op.inputs, &op.outputs}) {
      for (TensorId tensor : *list) {
        const TensorId t = root[tensor];
        if (last[t] == id.index && !replaced[t]) ended.push_back(t);
      }
    }
    std::sort(ended.begin(), ended.end());
    ended.erase(std::unique(ended.begin(), ended.end()), ended.end());
    for (TensorId t : ended) live = live - graph.tensor(t).bytes();
  }
  return peak;
}

namespace {

class Extraction {
 public:
  Extraction(const Graph& from, const Plan& plan)
      : from_(from), plan_(plan), ids_(from.tensor_count()), op_ids_(from.op_count()) {}

  CostGraph extract() {
    costs_.graph.name = from_.name;
    add_sources();
    for (const Step& step : plan_.steps) {
      if (!step.recompute) add(step);
    }
    for (TensorId id : from_.outputs) costs_.graph.outputs.push_back(ids_[id]);
    costs_.graph.states.clear();
    for (const State& state : from_.states) costs_.graph.states.push_back({ids_[state.before], ids_[state.after]});
    return std::move(costs_);
  }

 private:
  // States first and in their order, which is that of their places in the arena.
  void add_sources() {
    const auto add = [&](TensorId id) {
      if (ids_[id].valid()) return;
      const Tensor& tensor = from_.tensor(id);
      ids_[id] = costs_.graph.add_source(tensor.name, {tensor.bytes().count}, DType::u8, tensor.role);
    };
    for (const State& state : from_.states) add(state.before);
    for (TensorId id : ids_.ids()) {
      if (!from_.tensor(id).producer.valid()) add(id);
    }
  }

  // Those that are allowed where tensors are no more than bytes.
  std::vector<int64_t> pairs_of(const Op& op) const {
    std::vector<int64_t> flat;
    if (!op.type->in_place) return flat;
    for (const InPlace& pair : op.type->in_place(from_, op)) {
      const Tensor& in = from_.tensor(op.inputs[static_cast<size_t>(pair.input)]);
      const Tensor& out = from_.tensor(op.outputs[static_cast<size_t>(pair.output)]);
      const bool same = in.bytes() == out.bytes() && in.dtype == out.dtype && in.layout == out.layout;
      if (pair.required || same) flat.insert(flat.end(), {pair.output, pair.input, pair.required ? 1 : 0});
    }
    return flat;
  }

  void add(const Step& step) {
    const Op& op = from_.op(step.op);
    if (op.type->is_collective) {
      throw Error(
          ErrorCode::unsupported,
          fmt::format("'{}' is run by several ranks together: a graph of costs has no messages; leave out --ranks",
                      op.name));
    }
    std::vector<TensorId> inputs;
    for (TensorId id : op.inputs) inputs.push_back(ids_[id]);
    std::vector<int64_t> bytes;
    std::vector<std::string> names;
    for (TensorId id : op.outputs) {
      bytes.push_back(from_.tensor(id).bytes().count);
      names.push_back(from_.tensor(id).name);
    }
    const bool view = op.type->is_view;
    Attributes attributes{{"ms", step.time_ms}, {"kind", std::string(to_string(layer_kind(op)))}};
    if (!view) attributes.set("bytes", bytes);
    if (const auto pairs = pairs_of(op); !view && !pairs.empty()) attributes.set("in_place", pairs);
    if (step.workspace.count > 0) attributes.set("workspace", step.workspace.count);
    if (const std::vector<int> states = state_outputs(op); !states.empty())
      attributes.set("state_outputs", std::vector<int64_t>(states.begin(), states.end()));
    const std::string_view type = view ? "CostedView" : op.type->changes_state ? "CostedOnce" : "Costed";
    const OpId id = costs_.graph.add_op(type, op.name, op.layer, std::move(inputs), std::move(attributes), op.phase,
                                        std::move(names));
    if (op.forward.valid()) costs_.graph.op(id).forward = op_ids_[op.forward];
    op_ids_[step.op] = id;
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      const TensorId made = costs_.graph.output(id, o);
      ids_[op.outputs[o]] = made;
      costs_.graph.tensor(made).role = from_.tensor(op.outputs[o]).role;
    }
    costs_.kernels.push_back({step.kernel, step.workspace});
  }

  const Graph& from_;
  const Plan& plan_;
  CostGraph costs_;
  ById<TensorId, TensorId> ids_;
  ById<OpId, OpId> op_ids_;
};

}  // namespace

CostGraph cost_graph_of(const Graph& graph, const Plan& plan) { return Extraction(graph, plan).extract(); }

}  // namespace plimsoll
