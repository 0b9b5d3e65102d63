#include "autodiff/update_formulas.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/broadcast.h"
#include "plimsoll/ops.h"

namespace plimsoll {

Formulas::Formulas(Graph& graph, const UpdateTensors& tensors, const OptimizerSettings& settings, std::string layer,
                   AddState add_state)
    : graph_(graph),
      tensors_(tensors),
      settings_(settings),
      parameter_name_(graph.tensor(tensors.parameter).name),
      layer_(std::move(layer)),
      add_state_(std::move(add_state)) {}

Term Formulas::leaf(TensorId id) {
  const auto known = std::ranges::find(leaves_, id);
  const auto i = static_cast<int32_t>(known - leaves_.begin());
  if (known == leaves_.end()) leaves_.push_back(id);
  return {this, builder_.input(i)};
}

Term Formulas::gradient() {
  Term gradient = leaf(tensors_.gradient);
  if (tensors_.scale.valid()) gradient = leaf(tensors_.scale) * gradient;
  return has("maximize") ? -gradient : gradient;
}

Term Formulas::operator[](std::string_view name) {
  const Tensor rate = graph_.tensor(tensors_.learning_rate);  // a copy: the tensor list grows below
  const std::string full = factor_name(rate.name, name);
  const TensorId known = graph_.find_tensor(full);
  return leaf(known.valid() ? known : graph_.add_source(full, {}, rate.dtype, Role::hyperparameter));
}

TensorId Formulas::tensor_of(Term leaf) const { return leaves_[static_cast<size_t>(builder_.node(leaf.node).input)]; }

Term Formulas::state(std::string_view suffix, double first) {
  const TensorId id = add_state_(suffix, shape(), first);
  states_.emplace_back(id, id);
  return leaf(id);
}

Term Formulas::state(std::string_view suffix, const Shape& shape) {
  const TensorId id = add_state_(suffix, shape, 0);
  states_.emplace_back(id, id);
  return leaf(id);
}

Term Formulas::next(Term state, Term formula) {
  const TensorId before = tensor_of(state);
  const std::string name = graph_.tensor(before).name;
  const TensorId after = append(name + "/update", before, unless_waiting(state, formula), {}, name + ".next");
  std::ranges::find(states_, before, &std::pair<TensorId, TensorId>::first)->second = after;
  return leaf(after);
}

void Formulas::next_behind(Term state, Term formula) { behind_.emplace_back(state, formula); }

Term Formulas::computed(std::string_view name, Term formula) {
  const std::string full = fmt::format("{}/{}", parameter_name_, name);
  return leaf(append(full, {}, formula, {}, full + ":0"));
}

Term Formulas::reduce(std::string_view name, TensorId of, std::string_view function, size_t dimension) {
  const std::string full = fmt::format("{}/{}", parameter_name_, name);
  const Attributes attributes{
      {"function", std::string(function)}, {"dims", Shape{static_cast<int64_t>(dimension)}}, {"keep_dims", int64_t{1}}};
  return leaf(graph_.output(graph_.add_op("Reduce", full, layer_, {of}, attributes, Phase::update, {full + ":0"})));
}

Term Formulas::mean(std::string_view name, Term term, size_t dimension) {
  return reduce(name, tensor_of(term), "mean", dimension);
}

Term Formulas::mean_of_squares(std::string_view name, size_t dimension) {
  const Term squares = reduce(name, tensors_.gradient, "mean_of_squares", dimension);
  if (!tensors_.scale.valid()) return squares;
  const Term scale = leaf(tensors_.scale);
  return scale * scale * squares;
}

Term Formulas::root_mean_square(std::string_view name, Term term) {
  const std::string full = fmt::format("{}/{}", parameter_name_, name);
  const TensorId of = tensor_of(term);
  const auto elements = static_cast<double>(element_count(graph_.tensor(of).shape));
  const Attributes attributes{{"row_major", int64_t{1}}};
  const OpId op = graph_.add_op("GradientNorm", full, layer_, {of}, attributes, Phase::update, {full + ":0"});
  return leaf(graph_.output(op)) * number(1 / std::sqrt(elements));
}

TensorId Formulas::finish(Term formula, Attributes attributes) {
  const TensorId changed = append(parameter_name_ + "/update", tensors_.parameter, unless_waiting(parameter(), formula),
                                  std::move(attributes), parameter_name_ + ".next");
  updated_ = true;
  for (const auto& [state, later] : behind_) next(state, later);
  return changed;
}

// With a scale below 0 there is nothing to update yet.
Term Formulas::unless_waiting(Term old, Term formula) {
  if (!tensors_.scale.valid()) return formula;
  return where(call(Function::lt, leaf(tensors_.scale), number(0)), old, formula);
}

// What has the result's shape is the first input, of all that have it the parameter, read or not: where it lies, all lie.
TensorId Formulas::append(std::string_view name, TensorId place, Term formula, Attributes attributes,
                          std::string output) {
  Expression expression = builder_.take(formula.node);
  Shape whole;
  for (const ExpressionNode& node : expression.nodes) {
    if (node.kind != ExpressionNode::Kind::input) continue;
    whole = joint_shape(whole, graph_.tensor(leaves_[static_cast<size_t>(node.input)]).shape).value();
  }
  // Behind its update the parameter's old value is gone.
  TensorId like = updated_ ? place : tensors_.parameter;
  for (const ExpressionNode& node : expression.nodes) {
    if (graph_.tensor(like).shape == whole) break;
    if (node.kind == ExpressionNode::Kind::input) like = leaves_[static_cast<size_t>(node.input)];
  }
  std::vector<TensorId> inputs = {like};
  const auto number_of = [&](TensorId id) {
    const auto known = std::ranges::find(inputs, id);
    const auto number = static_cast<int32_t>(known - inputs.begin());
    if (known == inputs.end()) inputs.push_back(id);
    return number;
  };
  for (ExpressionNode& node : expression.nodes) {
    if (node.kind == ExpressionNode::Kind::input) node.input = number_of(leaves_[static_cast<size_t>(node.input)]);
  }
  attributes.set("expression", to_string(expression));
  attributes.set("place", place.valid() ? int64_t{number_of(place)} : int64_t{-1});
  return graph_.output(
      graph_.add_op("PointwiseUpdate", std::string(name), layer_, inputs, attributes, Phase::update, {output}));
}

Term Formulas::call(Function function, Term a, Term b, Term c) {
  return {this, builder_.call(function, a.node, b.node, c.node)};
}

Term operator+(Term a, Term b) { return a.of->call(Function::add, a, b); }
Term operator-(Term a, Term b) { return a.of->call(Function::sub, a, b); }
Term operator*(Term a, Term b) { return a.of->call(Function::mul, a, b); }
Term operator/(Term a, Term b) { return a.of->call(Function::div, a, b); }
Term operator-(Term a) { return a.of->call(Function::neg, a); }
Term sqrt(Term a) { return a.of->call(Function::sqrt, a); }
Term sign(Term a) { return a.of->call(Function::sign, a); }
Term abs(Term a) { return a.of->call(Function::abs, a); }
Term max(Term a, Term b) { return a.of->call(Function::max, a, b); }
Term where(Term condition, Term yes, Term no) { return yes.of->call(Function::where, condition, yes, no); }

std::string factor_name(std::string_view learning_rate, std::string_view factor) {
  return factor == "learning_rate" ? std::string(learning_rate) : fmt::format("{}/{}", learning_rate, factor);
}

}  // namespace plimsoll
