// Parameters of which every rank has a piece, gathered where they are read:
//
//   before   w ──> conv ──> ...  ──> conv'
//   after    w[/4] ──> AllGather ──> w ──> conv ──> ...
//            w[/4] ──> AllGather ──> w again ──────────────> conv'      not there in between
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "passes/passes.h"
#include "passes/rebuilder.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

TensorId gather(Graph& graph, TensorId piece, const std::string& name, const std::string& tensor,
                const std::string& layer, Phase phase) {
  const Shard shard = graph.tensor(piece).shard;  // a copy: the tensor list grows below
  const OpId op = graph.add_op("AllGather", name, layer, {piece}, {{"ranks", shard.ranks}, {"shape", shard.shape}},
                               phase, {tensor});
  return graph.output(op);
}

}  // namespace

void divide_parameters(Network& network, const Sharding& sharding, int ranks) {
  if (sharding.stage < 3) return;
  std::set<TensorId> divided;
  for (const State& state : network.graph.states) {
    const Tensor& t = network.graph.tensor(state.before);
    if (t.role == Role::parameter && t.dtype == DType::f32 && is_divided(t.shape, sharding, ranks))
      divided.insert(state.before);
  }
  if (divided.empty()) return;
  const Graph before = std::move(network.graph);
  Rebuilder rebuilder(before, {}, divided);
  Graph& graph = rebuilder.graph();
  std::map<TensorId, TensorId> pieces;
  for (TensorId id : divided) {
    const Tensor& whole = before.tensor(id);
    const Shard shard{whole.name, whole.shape, ranks};
    const TensorId piece =
        graph.add_source(shard_name(shard), {shard_elements(whole.shape, ranks)}, whole.dtype, whole.role, whole.init);
    graph.tensor(piece).shard = shard;
    graph.tensor(piece).block = whole.block;
    pieces[id] = piece;
    rebuilder.put(id, piece);  // until it is read
  }
  std::set<TensorId> gathered;
  for (OpId id{0}; id.index < before.op_count(); ++id.index) {
    const Op& op = before.op(id);
    for (TensorId input : op.inputs) {
      if (!divided.contains(input) || !gathered.insert(input).second) continue;
      const std::string& name = before.tensor(input).name;
      rebuilder.put(input, gather(graph, pieces[input], name + "/all_gather", name, op.layer, op.phase));
    }
    rebuilder.copy(id);
  }
  rebuilder.finish(network);
  for (State& state : network.graph.states) {
    if (!is_gathered(network.graph, state.before)) continue;
    state.before = state.after = piece_of(network.graph, state.before);
  }
}

void gather_again(Network& network) {
  const Graph before = std::move(network.graph);
  // By gathered parameter, the last op of the forward pass that reads it, and the first of the backward pass; and between
  // these, how many ops read any that is gathered.
  struct Reads {
    int forward = -1, backward = -1;
  };
  std::map<TensorId, Reads> reads;
  std::vector<int> reading_until{0};
  for (int i = 0; i < before.op_count(); ++i) {
    const Op& op = before.op({i});
    int count = 0;
    for (TensorId input : op.inputs) {
      if (!is_gathered(before, input)) continue;
      Reads& of = reads[input];
      if (op.phase == Phase::forward) of.forward = i;
      if (op.phase == Phase::backward && of.backward < 0) of.backward = i;
      ++count;
    }
    reading_until.push_back(reading_until.back() + count);
  }
  std::map<int, std::vector<TensorId>> again;  // by op
  for (const auto& [id, of] : reads) {
    if (of.forward < 0 || of.backward < 0) continue;
    if (reading_until[of.backward] > reading_until[of.forward + 1]) again[of.backward].push_back(id);
  }
  Rebuilder rebuilder(before);
  for (int i = 0; i < before.op_count(); ++i) {
    if (const auto here = again.find(i); here != again.end()) {
      for (TensorId id : here->second) {
        const Op& first = before.op(before.tensor(id).producer);
        const std::string name = first.name + "/backward";
        rebuilder.put(id, gather(rebuilder.graph(), rebuilder.map(first.inputs[0]), name, name + ":0", first.layer,
                                 Phase::backward));
      }
    }
    rebuilder.copy({i});
  }
  rebuilder.finish(network);
}

Network make_training_step(const Network& forward, const OptimizerOptions& optimizer, const FusionOptions& fusion,
                           std::vector<PassReport>* reports) {
  Network training = forward;
  std::vector<PassReport> done = run_fusion_passes(training, fusion_for(optimizer, fusion));
  for (PassReport& report : run_rank_passes(training, optimizer)) done.push_back(std::move(report));
  divide_parameters(training, optimizer.sharding, optimizer.ranks);
  training = make_training_network(training, optimizer);
  gather_again(training);
  for (PassReport& report : run_training_passes(training, fusion)) done.push_back(std::move(report));
  if (reports != nullptr) *reports = std::move(done);
  return training;
}

}  // namespace plimsoll
