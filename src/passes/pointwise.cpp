#include "passes/pointwise.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/by_id.h"
#include "ops/broadcast.h"
#include "ops/expression.h"
#include "ops/known_functions.h"
#include "passes/rebuilder.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr size_t kMostFusedInputs = 16, kMostFusedNodes = 96;

// What an op computes, with all that was fused into it.
struct FusedOp {
  std::vector<OpId> chain;  // in the order of the graph; the last gives place and output
  Expression expression;
  std::vector<TensorId> inputs;
  bool is_sum = false;  // an Add, which is worth an expression only beside a Pointwise
};

class PointwiseFusion {
 public:
  PointwiseFusion(const Network& network, Phase phase)
      : graph_(network.graph),
        phase_(phase),
        readers_(graph_.tensor_count()),
        kept_(readers_.size(), false),
        trained_(readers_.size(), false),
        ops_(graph_.op_count()) {
    for (int32_t i = 0; i < graph_.op_count(); ++i) {
      for (TensorId id : graph_.op({i}).inputs) readers_[id].insert({i});
    }
    for (TensorId id : graph_.outputs) kept_[id] = true;
    for (const State& state : graph_.states) kept_[state.after] = true;
    for (const Objective& objective : network.objectives) {
      kept_[objective.loss] = true;
      for (TensorId id : objective.parameters) trained_[id] = true;
    }
    for (TensorId id : {network.correct, network.gradient_norm}) {
      if (id.valid()) kept_[id] = true;
    }
    for (const Op& op : graph_.ops()) {
      const bool any = std::any_of(op.inputs.begin(), op.inputs.end(), [&](TensorId id) { return trained_[id]; });
      if (!any) continue;
      for (TensorId id : op.outputs) trained_[id] = true;
    }
  }

  void run() {
    for (int32_t i = 0; i < graph_.op_count(); ++i) {
      if (!begin({i})) continue;
      while (take_one({i})) {
      }
    }
    for (OpId id : Ids<OpId>(ops_.size())) {
      if (ops_[id] && ops_[id]->is_sum && ops_[id]->chain.size() == 1) ops_[id].reset();
    }
  }
  // By op: what stands in its place.
  const ById<OpId, std::optional<FusedOp>>& ops() const { return ops_; }
  const std::set<OpId>& gone() const { return gone_; }
  bool changed() const { return changed_; }

 private:
  bool begin(OpId id) {
    const Op& op = graph_.op(id);
    if (op.phase != phase_) return false;
    ExpressionBuilder builder;
    if (op.type->name == "Pointwise") {
      ops_[id] = FusedOp{{id}, parse_expression(op.attributes.text("expression")), op.inputs};
      return true;
    }
    if (op.type->name != "Add" || op.attributes.text("activation", "none") != "none" ||
        op.inputs.size() > kMostFusedInputs) {
      return false;
    }
    int32_t sum = builder.input(0);
    for (size_t i = 1; i < op.inputs.size(); ++i)
      sum = builder.call(Function::add, sum, builder.input(static_cast<int32_t>(i)));
    ops_[id] = FusedOp{{id}, builder.take(sum), op.inputs, true};
    return true;
  }

  const Tensor& output(OpId id) const { return graph_.tensor(graph_.output(id)); }

  // Takes one of the op's inputs into it, if one can be taken.
  bool take_one(OpId id) {
    const std::vector<TensorId> inputs = ops_[id]->inputs;
    for (TensorId input : inputs) {
      const OpId from = graph_.tensor(input).producer;
      if (!from.valid() || kept_[input]) continue;
      if (!ops_[id]->is_sum && take_around(id, input, from)) return true;
      if (ops_[from] && !gone_.contains(from) && fuse(id, input, from)) return true;
    }
    return false;
  }

  // Reads what an Expand or a Cast reads.
  bool take_around(OpId id, TensorId input, OpId from) {
    const Op& op = graph_.op(from);
    const TensorId inner = op.type->name == "Expand" || op.type->name == "Cast" ? op.inputs[0] : TensorId{};
    if (!inner.valid() || op.phase != phase_) return false;
    const DType dtype = graph_.tensor(inner).dtype, to = graph_.tensor(input).dtype;
    const bool converts = to == DType::f32 && (dtype == DType::i32 || dtype == DType::i64 || dtype == DType::u8);
    if (op.type->name == "Cast" && !converts) return false;
    FusedOp changed = *ops_[id];
    std::replace(changed.inputs.begin(), changed.inputs.end(), input, inner);
    if (!is_same_output(id, changed.inputs)) return false;
    set(id, std::move(changed), input);
    return true;
  }

  bool is_same_output(OpId id, const std::vector<TensorId>& inputs) const {
    Shape shape;
    DType dtype = DType::f32;
    for (TensorId input : inputs) {
      const std::optional<Shape> joint = joint_shape(shape, graph_.tensor(input).shape);
      if (!joint) return false;
      shape = *joint;
      if (graph_.tensor(input).dtype == DType::f64) dtype = DType::f64;
    }
    return shape == output(id).shape && dtype == output(id).dtype;
  }

  bool fuse(OpId id, TensorId input, OpId from) {
    const FusedOp &outer = *ops_[id], &inner = *ops_[from];
    if (readers_[input] != std::set<OpId>{id} || (outer.is_sum && inner.is_sum)) return false;
    if (graph_.tensor(input).shape != output(id).shape || graph_.tensor(input).dtype != output(id).dtype) return false;
    FusedOp fused = joined(outer, input, inner);
    if (fused.inputs.size() > kMostFusedInputs || fused.expression.nodes.size() > kMostFusedNodes) return false;
    if (!is_same_output(id, fused.inputs)) return false;
    if (phase_ == Phase::forward ? keeps_more(outer, inner, fused) : waits_longer(id, outer, from, inner)) return false;
    gone_.insert(from);
    ops_[from].reset();
    set(id, std::move(fused), input);
    return true;
  }

  FusedOp joined(const FusedOp& outer, TensorId between, const FusedOp& inner) const {
    FusedOp fused{inner.chain, {}, {}};
    fused.chain.insert(fused.chain.end(), outer.chain.begin(), outer.chain.end());
    std::sort(fused.chain.begin(), fused.chain.end());
    ExpressionBuilder builder;
    const auto node_of = [&](TensorId tensor) {
      const auto place = std::find(fused.inputs.begin(), fused.inputs.end(), tensor);
      const int32_t i = static_cast<int32_t>(place - fused.inputs.begin());
      if (place == fused.inputs.end()) fused.inputs.push_back(tensor);
      return builder.input(i);
    };
    std::vector<int32_t> nodes;
    for (TensorId tensor : inner.inputs) nodes.push_back(node_of(tensor));
    const int32_t value = builder.insert(inner.expression, nodes);
    nodes.clear();
    for (TensorId tensor : outer.inputs) nodes.push_back(tensor == between ? value : node_of(tensor));
    fused.expression = builder.take(builder.insert(outer.expression, nodes));
    if (phase_ == Phase::forward) fused.expression = with_known_functions(fused.expression);
    return fused;
  }

  void set(OpId id, FusedOp fused, TensorId without) {
    changed_ = true;
    for (TensorId input : fused.inputs) {
      std::set<OpId>& readers = readers_[input];
      for (OpId part : fused.chain) readers.erase(part);
      readers.insert(id);
    }
    readers_[without].erase(id);
    ops_[id] = std::move(fused);
    // An Expand that nobody reads any more.
    const OpId made = graph_.tensor(without).producer;
    if (readers_[without].empty() && !ops_[made]) gone_.insert(made);
  }

  // Bytes of the forward pass that the gradients of these ops read, by a graph of them alone.
  int64_t bytes_kept(std::span<const FusedOp* const> ops) const {
    Graph scratch;
    std::map<TensorId, TensorId> there;
    std::vector<TensorId> wanted;
    std::vector<Seed> seeds;
    for (const FusedOp* op : ops) {
      std::vector<TensorId> inputs;
      for (TensorId id : op->inputs) {
        auto [place, fresh] = there.try_emplace(id);
        if (fresh) {
          const Tensor& tensor = graph_.tensor(id);
          place->second = scratch.add_source(fmt::format("{}", id.index), tensor.shape, tensor.dtype, Role::input);
          if (tensor.producer.valid()) {
            const std::string name = fmt::format("made {}", id.index);
            place->second =
                scratch.output(scratch.add_op("Reshape", name, "", {place->second}, {{"shape", tensor.shape}}));
          }
          const bool floating = tensor.dtype == DType::f32 || tensor.dtype == DType::f64;
          if (trained_[id] && floating) wanted.push_back(place->second);
        }
        inputs.push_back(place->second);
      }
      const TensorId y = scratch.output(scratch.add_op("Pointwise", fmt::format("op {}", op->chain.back().index), "",
                                                       inputs, {{"expression", to_string(op->expression)}}));
      there[graph_.output(op->chain.back())] = y;
    }
    const TensorId last = there.at(graph_.output(ops.back()->chain.back()));
    const Tensor y = scratch.tensor(last);
    seeds.push_back({last, scratch.add_source("seed", y.shape, y.dtype, Role::input)});
    append_backward(scratch, seeds, wanted);
    std::set<TensorId> kept;
    for (const Op& op : scratch.ops()) {
      if (op.phase == Phase::backward) kept.insert(op.inputs.begin(), op.inputs.end());
    }
    int64_t bytes = 0;
    for (TensorId id : kept) {
      const Tensor& tensor = scratch.tensor(id);
      if (tensor.producer.valid() && scratch.op(tensor.producer).phase == Phase::forward) bytes += tensor.bytes().count;
    }
    return bytes;
  }
  bool keeps_more(const FusedOp& outer, const FusedOp& inner, const FusedOp& fused) const {
    const FusedOp* const before[] = {&inner, &outer};
    const FusedOp* const after[] = {&fused};
    return bytes_kept(after) > bytes_kept(before);
  }

  // Whether the inner op's inputs would lie in memory for the sake of the outer op, and be more than its result was.
  bool waits_longer(OpId id, const FusedOp& outer, OpId from, const FusedOp& inner) const {
    bool adjacent = true;
    for (int32_t i = from.index + 1; i < id.index; ++i) {
      const OpId between{i};
      const bool ours =
          gone_.contains(between) || std::find(outer.chain.begin(), outer.chain.end(), between) != outer.chain.end();
      adjacent = adjacent && (ours || graph_.op(between).type->is_view);
    }
    if (adjacent) return false;
    int64_t bytes = 0;
    for (TensorId input : inner.inputs) {
      const bool read_anyway = std::find(outer.inputs.begin(), outer.inputs.end(), input) != outer.inputs.end();
      if (!read_anyway) bytes += graph_.tensor(input).bytes().count;
    }
    return bytes > graph_.tensor(graph_.output(from)).bytes().count;
  }

  const Graph& graph_;
  Phase phase_;
  ById<TensorId, std::set<OpId>> readers_;
  ById<TensorId, bool> kept_, trained_;
  ById<OpId, std::optional<FusedOp>> ops_;
  std::set<OpId> gone_;
  bool changed_ = false;
};

// "silu+mul"; a name that several ops share stands once.
std::string layers_of(const Graph& graph, const std::vector<OpId>& chain) {
  std::string joined, last;
  for (OpId id : chain) {
    const std::string& layer = graph.op(id).layer;
    if (layer.empty() || layer == last) continue;
    joined += (joined.empty() ? "" : "+") + layer;
    last = layer;
  }
  return joined;
}

}  // namespace

int fuse_pointwise(Network& network, Phase phase) {
  PointwiseFusion fusion(network, phase);
  fusion.run();
  if (!fusion.changed()) return 0;
  const Graph before = std::move(network.graph);
  Rebuilder rebuilder(before);
  for (int32_t i = 0; i < before.op_count(); ++i) {
    const OpId id{i};
    if (fusion.gone().contains(id)) continue;
    const std::optional<FusedOp>& fused = fusion.ops()[id];
    const Op& op = before.op(id);
    if (!fused || (fused->chain.size() == 1 && fused->inputs == op.inputs)) {
      rebuilder.copy(id);
      continue;
    }
    rebuilder.replace(fused->chain, "Pointwise", op.name, layers_of(before, fused->chain), rebuilder.map(fused->inputs),
                      {{"expression", to_string(fused->expression)}}, {op.outputs[0]}, op.phase);
    if (op.forward.valid()) rebuilder.graph().op(rebuilder.map(id)).forward = rebuilder.map(op.forward);
  }
  rebuilder.finish(network);
  return static_cast<int>(fusion.gone().size());
}

}  // namespace plimsoll
