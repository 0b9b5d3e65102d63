#include "passes/rebuilder.h"

#include <fmt/format.h>

#include "plimsoll/ops.h"

namespace plimsoll {

Rebuilder::Rebuilder(const Graph& before, const std::map<TensorId, RowBounds>& split,
                     const std::set<TensorId>& left_out)
    : before_(before), new_ids_(before.tensor_count()), new_op_(before.op_count()) {
  after_.name = before.name;
  for (int32_t i = 0; i < before.tensor_count(); ++i) {
    const Tensor& t = before.tensor({i});
    if (t.producer.valid() || left_out.contains({i})) continue;
    std::vector<TensorId>& parts = new_ids_[TensorId{i}];
    if (const auto bounds = split.find({i}); bounds != split.end()) {
      add_blocks(t, bounds->second, parts);
      continue;
    }
    parts = {after_.add_source(t.name, t.shape, t.dtype, t.role, t.init)};
    after_.tensor(parts[0]).layout = t.layout;
    after_.tensor(parts[0]).block = t.block;
    after_.tensor(parts[0]).shard = t.shard;
  }
}

void Rebuilder::add_blocks(const Tensor& whole, const RowBounds& bounds, std::vector<TensorId>& parts) {
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    const RowBlock block{whole.name, bounds[i], whole.shape[0]};
    Shape shape = whole.shape;
    shape[0] = bounds[i + 1] - bounds[i];
    parts.push_back(after_.add_source(block_name(block, shape[0]), shape, whole.dtype, whole.role, whole.init));
    after_.tensor(parts.back()).block = block;
  }
}

void Rebuilder::copy(OpId id) {
  const Op& op = before_.op(id);
  replace({id}, op.type->name, op.name, op.layer, map(op.inputs), op.attributes, op.outputs, op.phase);
  if (!op.forward.valid()) return;
  after_.op(new_op_[id]).forward = new_op_[op.forward];
}

void Rebuilder::replace(const std::vector<OpId>& replaced, const std::string& type, std::string name, std::string layer,
                        std::vector<TensorId> inputs, const Attributes& attributes,
                        const std::vector<TensorId>& outputs, Phase phase) {
  std::vector<std::string> names;
  for (TensorId id : outputs) names.push_back(before_.tensor(id).name);
  const OpId op =
      after_.add_op(type, std::move(name), std::move(layer), std::move(inputs), attributes, phase, std::move(names));
  for (size_t i = 0; i < outputs.size(); ++i) {
    const TensorId id = after_.output(op, i);
    after_.tensor(id).role = before_.tensor(outputs[i]).role;
    after_.tensor(id).layout = before_.tensor(outputs[i]).layout;
    new_ids_[outputs[i]] = {id};
  }
  for (OpId id : replaced) new_op_[id] = op;
}

TensorId Rebuilder::map(TensorId old) const { return old.valid() ? parts(old).at(0) : TensorId{}; }

std::vector<TensorId> Rebuilder::map(const std::vector<TensorId>& old) const {
  std::vector<TensorId> result;
  for (TensorId id : old) result.push_back(map(id));
  return result;
}

bool Rebuilder::is_taken(const std::string& op_name) const {
  return after_.find_op(op_name).valid() || before_.find_op(op_name).valid();
}

std::string Rebuilder::free_name(const std::string& stem) const {
  std::string name = stem;
  for (int i = 2; is_taken(name); ++i) name = fmt::format("{}.{}", stem, i);
  return name;
}

void Rebuilder::finish(Network& network) {
  after_.inputs = map(before_.inputs);
  after_.outputs = map(before_.outputs);
  after_.states.clear();
  for (const State& state : before_.states) {
    if (parts(state.before).size() == 1) {
      after_.states.push_back({map(state.before), map(state.after)});
    } else {
      for (TensorId part : parts(state.before)) after_.states.push_back({part, part});
    }
  }
  network.data = map(network.data);
  network.labels = map(network.labels);
  network.correct = map(network.correct);
  network.gradient_norm = map(network.gradient_norm);
  for (Objective& objective : network.objectives) {
    objective.loss = map(objective.loss);
    std::vector<TensorId> parameters;
    for (TensorId id : objective.parameters) parameters.insert(parameters.end(), parts(id).begin(), parts(id).end());
    objective.parameters = std::move(parameters);
  }
  network.graph = std::move(after_);
}

void replace_ops(Network& network, const std::vector<std::vector<OpId>>& ops_of,
                 const std::function<void(Rebuilder&, const Graph&, size_t)>& make) {
  constexpr int32_t kNone = -1;
  if (ops_of.empty()) return;
  const Graph before = std::move(network.graph);
  ById<OpId, int32_t> ends(before.op_count(), kNone);
  ById<OpId, bool> gone(ends.size(), false);
  for (size_t i = 0; i < ops_of.size(); ++i) {
    ends[ops_of[i].back()] = static_cast<int32_t>(i);
    for (OpId id : ops_of[i]) gone[id] = true;
  }
  Rebuilder rebuilder(before);
  for (OpId id{0}; id.index < before.op_count(); ++id.index) {
    if (ends[id] != kNone) {
      make(rebuilder, before, static_cast<size_t>(ends[id]));
    } else if (!gone[id]) {
      rebuilder.copy(id);
    }
  }
  rebuilder.finish(network);
}

}  // namespace plimsoll
