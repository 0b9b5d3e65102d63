#include "plan/placement/mobility.h"

#include <set>

#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

class Groups {
 public:
  Groups(const Graph& graph, std::span<const Step> steps) : graph_(graph), readers_(graph.readers()) {
    next_.assign(graph.op_count(), OpId{});
    OpId last;
    for (const Step& step : steps) {
      if (step.recompute || graph.op(step.op).type->is_view) continue;
      if (last.valid()) next_[last] = step.op;
      last = step.op;
    }
  }

  Mobility of(TensorId tensor) const {
    const OpId producer = graph_.tensor(tensor).producer;
    if (!producer.valid()) return Mobility::movable;
    const Op& op = graph_.op(producer);
    const LayerKind kind = layer_kind(op);
    LayerFacts facts{.is_fc_softmax_dropout = kind == LayerKind::fully_connected || kind == LayerKind::softmax ||
                                              kind == LayerKind::dropout};
    const bool forward = op.phase == Phase::forward;
    std::set<int32_t> layers;
    bool next_reads = false;
    visit_readers(tensor, [&](OpId reader) {
      const Op& other = graph_.op(reader);
      if ((other.phase == Phase::forward) != forward) return;
      layers.insert(other.forward.valid() ? other.forward.index : reader.index);
      next_reads |= next_[producer] == reader;
    });
    facts.reference_count = static_cast<int>(layers.size());
    facts.has_next = !forward || next_reads;
    return classify_mobility(facts);
  }

 private:
  template <class Visit>
  void visit_readers(TensorId tensor, const Visit& visit) const {
    for (OpId reader : readers_[tensor]) {
      if (graph_.op(reader).type->is_view) {
        visit_readers(graph_.op(reader).outputs[0], visit);
      } else {
        visit(reader);
      }
    }
  }

  const Graph& graph_;
  const ById<TensorId, std::vector<OpId>> readers_;
  ById<OpId, OpId> next_;  // the one that runs after it
};

}  // namespace

ById<TensorId, Mobility> group_by_mobility(const Graph& graph, std::span<const Step> steps) {
  const Groups groups(graph, steps);
  ById<TensorId, Mobility> result(graph.tensor_count());
  for (TensorId t : result.ids()) result[t] = groups.of(t);
  return result;
}

}  // namespace plimsoll
