#include "autodiff/backward.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/by_id.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

// Ops from which one of `outputs` is computed.
std::vector<bool> ancestors(const Graph& graph, std::span<const TensorId> outputs) {
  ById<OpId, bool> seen(graph.op_count(), false);
  std::vector<OpId> open;
  const auto reach = [&](TensorId tensor) {
    const OpId producer = graph.tensor(tensor).producer;
    if (!producer.valid() || seen[producer]) return;
    seen[producer] = true;
    open.push_back(producer);
  };
  for (TensorId output : outputs) reach(output);
  while (!open.empty()) {
    const OpId op = open.back();
    open.pop_back();
    for (TensorId input : graph.op(op).inputs) reach(input);
  }
  return seen;
}

std::string unused_op_name(const Graph& graph, const std::string& stem) {
  std::string name = stem;
  for (int i = 2; graph.find_op(name).valid(); ++i) name = fmt::format("{}.{}", stem, i);
  return name;
}

}  // namespace

Backward::Backward(Graph& graph, std::span<const TensorId> outputs, std::span<const TensorId> wanted)
    : graph_(graph), leads_to_wanted_(graph.tensor_count(), false) {
  const auto leads = [&](TensorId id) { return leads_to_wanted_[id]; };
  for (TensorId id : wanted) leads_to_wanted_[id] = true;
  const std::vector<bool> relevant = ancestors(graph, outputs);
  for (int32_t i = 0; i < graph.op_count(); ++i) {
    const Op& op = graph.op({i});
    if (!relevant[i] || std::none_of(op.inputs.begin(), op.inputs.end(), leads)) continue;
    ops_.push_back({i});
    for (TensorId output : op.outputs) leads_to_wanted_[output] = true;
  }
}

TensorId Backward::gradient(TensorId tensor) const {
  const auto it = gradients_.find(tensor);
  return it == gradients_.end() ? TensorId{} : it->second;
}

void Backward::accumulate(TensorId tensor, TensorId gradient) {
  const Tensor& t = graph_.tensor(tensor);
  const Tensor& g = graph_.tensor(gradient);
  if (t.shape != g.shape) {
    throw Error(ErrorCode::internal, fmt::format("'{}' is {} but its gradient '{}' is {}", t.name, to_string(t.shape),
                                                 g.name, to_string(g.shape)));
  }
  auto [it, first] = gradients_.emplace(tensor, gradient);
  if (first) return;
  const OpId beside = t.producer.valid() ? t.producer : g.producer;
  const std::string layer = beside.valid() ? graph_.op(beside).layer : "";
  const std::string name = unused_op_name(graph_, fmt::format("{}/gradient_sum", t.name));
  it->second = graph_.output(graph_.add_op("Add", name, layer, {it->second, gradient}, {}, Phase::backward));
}

void Backward::visit(OpId id) {
  const Op op = graph_.op(id);  // a copy: the op list grows below
  std::vector<TensorId> output_gradients;
  for (TensorId output : op.outputs) output_gradients.push_back(gradient(output));
  const auto came = [](TensorId g) { return g.valid(); };
  if (std::none_of(output_gradients.begin(), output_gradients.end(), came)) return;

  if (!op.type->gradient) {
    throw Error(ErrorCode::unsupported,
                fmt::format("op '{}' ({}) has no gradient, and training needs one", op.name, op.type->name));
  }
  std::vector<bool> wanted;
  for (TensorId input : op.inputs) wanted.push_back(leads_to_wanted_[input]);
  const std::vector<TensorId> input_gradients = op.type->gradient(graph_, id, output_gradients, wanted);
  if (input_gradients.size() != op.inputs.size()) {
    throw Error(ErrorCode::internal, fmt::format("the gradient of op '{}' ({}) has {} entries for {} inputs", op.name,
                                                 op.type->name, input_gradients.size(), op.inputs.size()));
  }
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    if (wanted[i] && input_gradients[i].valid()) accumulate(op.inputs[i], input_gradients[i]);
  }
}

TensorId append_seed(Graph& graph, TensorId loss) {
  const Tensor& t = graph.tensor(loss);
  if (!t.shape.empty() || (t.dtype != DType::f32 && t.dtype != DType::f64)) {
    throw Error(ErrorCode::invalid_input, fmt::format("a loss is a floating scalar, but '{}' is {} of {}", t.name,
                                                      to_string(t.shape), to_string(t.dtype)));
  }
  Attributes attributes{{"shape", std::vector<int64_t>{}}, {"value", 1.0}};
  if (t.dtype == DType::f64) attributes.set("dtype", std::string("f64"));
  const std::string layer = t.producer.valid() ? graph.op(t.producer).layer : "";
  const std::string name = unused_op_name(graph, fmt::format("{}/seed", t.name));
  return graph.output(graph.add_op("Constant", name, layer, {}, std::move(attributes), Phase::backward));
}

std::vector<TensorId> append_backward(Graph& graph, std::span<const Seed> seeds, std::span<const TensorId> wanted) {
  std::vector<TensorId> outputs, result;
  for (const Seed& seed : seeds) outputs.push_back(seed.tensor);
  Backward backward(graph, outputs, wanted);
  for (const Seed& seed : seeds) backward.accumulate(seed.tensor, seed.gradient);
  const std::vector<OpId> ops(backward.ops().begin(), backward.ops().end());
  for (auto op = ops.rbegin(); op != ops.rend(); ++op) backward.visit(*op);
  for (TensorId id : wanted) result.push_back(backward.gradient(id));
  return result;
}

std::vector<TensorId> append_backward(Graph& graph, TensorId loss, std::span<const TensorId> wanted) {
  const Seed seed{loss, append_seed(graph, loss)};
  return append_backward(graph, std::span(&seed, 1), wanted);
}

}  // namespace plimsoll
