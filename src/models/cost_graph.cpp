#include "plimsoll/cost_graph.h"

#include <algorithm>
#include <map>

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

double all_ops_ms(const Graph& graph) {
  double ms = 0;
  for (const Op& op : graph.ops()) ms += op.attributes.real("ms", 0);
  return ms;
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

}  // namespace plimsoll
