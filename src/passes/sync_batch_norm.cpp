#include "passes/sync_batch_norm.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "passes/rebuilder.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

bool takes_statistics(const Op& op) {
  return op.type->name == "BatchNormForward" && op.phase == Phase::forward && op.attributes.integer("training", 1) != 0;
}

// Mean and deviation of a part of the batch, as the op leaves them, are nowhere now.
void expect_unread_statistics(const Graph& graph, const ById<TensorId, std::vector<OpId>>& readers, const Op& op) {
  for (const TensorId id : {op.outputs[1], op.outputs[2]}) {
    const bool kept = std::find(graph.outputs.begin(), graph.outputs.end(), id) != graph.outputs.end();
    if (readers[id].empty() && !kept) continue;
    throw Error(ErrorCode::unsupported, fmt::format("--sync-batch-norm: the network reads '{}', a statistic of op '{}'",
                                                    graph.tensor(id).name, op.name));
  }
}

void synchronise(Rebuilder& rebuilder, const Graph& before, OpId id, int ranks) {
  const Op& op = before.op(id);
  Graph& graph = rebuilder.graph();
  const std::string_view end = op.name.ends_with("/forward") ? "/forward" : "";
  const std::string stem = op.name.substr(0, op.name.size() - end.size());
  const Attribute of_ranks = int64_t{ranks};
  const OpId moments =
      graph.add_op("BatchMoments", rebuilder.free_name(stem + "/moments"), op.layer, {rebuilder.map(op.inputs[0])});
  const std::vector<TensorId> mine = graph.op(moments).outputs;
  const Shape& shape = before.tensor(op.inputs[0]).shape;
  const OpId all = graph.add_op("CombineMoments", rebuilder.free_name(stem + "/all_moments"), op.layer, mine,
                                {{"ranks", of_ranks}, {"count", element_count(shape) / shape[1]}});
  std::vector<TensorId> inputs = rebuilder.map(op.inputs);
  const std::vector<TensorId> whole = graph.op(all).outputs;
  inputs.insert(inputs.begin() + 5, whole.begin(), whole.end());
  Attributes attributes{{"ranks", of_ranks},
                        {"epsilon", op.attributes.real("epsilon", 1e-5)},
                        {"momentum", op.attributes.real("momentum", 0.1)},
                        {"activation", op.attributes.text("activation", "none")}};
  std::vector<TensorId> outputs{op.outputs[0]};
  outputs.insert(outputs.end(), op.outputs.begin() + 3, op.outputs.end());
  rebuilder.replace({id}, "SyncBatchNormForward", op.name, op.layer, inputs, attributes, outputs);
}

}  // namespace

int synchronise_batch_norm(Network& network, int ranks) {
  int found = 0;
  const ById<TensorId, std::vector<OpId>> readers(network.graph.readers());
  for (const Op& op : network.graph.ops()) {
    if (!takes_statistics(op)) continue;
    expect_unread_statistics(network.graph, readers, op);
    ++found;
  }
  if (found == 0) return 0;
  const Graph before = std::move(network.graph);
  Rebuilder rebuilder(before);
  for (int32_t i = 0; i < before.op_count(); ++i) {
    if (takes_statistics(before.op({i}))) {
      synchronise(rebuilder, before, {i}, ranks);
    } else {
      rebuilder.copy({i});
    }
  }
  rebuilder.finish(network);
  return found;
}

}  // namespace plimsoll
