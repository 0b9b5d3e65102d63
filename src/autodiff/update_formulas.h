// Writes the update of one parameter as ops, from formulas that read like PyTorch's documentation:
//
//   Term square = f.state("square_avg");
//   square = f.next(square, f["alpha"] * square + f["rest"] * g * g);    -> a PointwiseUpdate in the state's bytes
//   f.finish(f.parameter() - f["learning_rate"] * g / sqrt(square));     -> another, in the parameter's
//
// Terms are tensors or expressions of them. A state's old value and its next are two terms, as they are two tensors; an op
// that overwrites bytes comes after all that read them. A term may be smaller than the parameter, the mean of its rows for
// one: it is stretched over what it meets, as in numpy.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/expression.h"
#include "plimsoll/autodiff.h"

namespace plimsoll {

class Formulas;

struct Term {
  Formulas* of = nullptr;
  int32_t node = -1;
};

struct UpdateTensors {
  TensorId parameter, gradient, learning_rate;
  TensorId scale;  // invalid: the gradient is taken as it is
};

class Formulas {
 public:
  // `add_state` adds a state by the end of its name, its shape and its first value.
  using AddState = std::function<TensorId(std::string_view suffix, const Shape& shape, double first)>;
  Formulas(Graph& graph, const UpdateTensors& tensors, const OptimizerSettings& settings, std::string layer,
           AddState add_state);

  double setting(std::string_view name) const { return settings_.find(name)->second; }
  bool has(std::string_view name) const { return setting(name) != 0; }

  const Shape& shape() const { return graph_.tensor(tensors_.parameter).shape; }
  Term parameter() { return leaf(tensors_.parameter); }
  Term gradient();                         // times its scale, negated with the setting "maximize"
  Term operator[](std::string_view name);  // a factor: a number that comes from outside before every step
  Term state(std::string_view suffix, double first = 0);  // of the parameter's shape
  Term state(std::string_view suffix, const Shape& shape);
  Term next(Term state, Term formula);         // of a state
  void next_behind(Term state, Term formula);  // the same, behind the parameter's, which reads the state's old one
  Term computed(std::string_view name, Term formula);  // once, for several formulas
  // Of what has been computed, or lies there: the mean along a dimension, which has then one element, and the root of the
  // mean of all squares.
  Term mean(std::string_view name, Term term, size_t dimension);
  Term root_mean_square(std::string_view name, Term term);
  // Of the gradient, with its scale.
  Term mean_of_squares(std::string_view name, size_t dimension);
  TensorId finish(Term formula, Attributes attributes);  // the parameter's next value

  const std::vector<std::pair<TensorId, TensorId>>& states() const { return states_; }  // before and after

  Term number(double value) { return {this, builder_.number(value)}; }
  Term call(Function function, Term a, Term b = {}, Term c = {});

 private:
  Term leaf(TensorId id);
  TensorId tensor_of(Term leaf) const;
  Term reduce(std::string_view name, TensorId of, std::string_view function, size_t dimension);
  Term unless_waiting(Term old, Term formula);
  TensorId append(std::string_view name, TensorId place, Term formula, Attributes attributes, std::string output);

  Graph& graph_;
  const UpdateTensors tensors_;
  const OptimizerSettings& settings_;
  const std::string parameter_name_, layer_;
  const AddState add_state_;
  ExpressionBuilder builder_;
  std::vector<TensorId> leaves_;  // what the builder's inputs are
  std::vector<std::pair<TensorId, TensorId>> states_;
  std::vector<std::pair<Term, Term>> behind_;  // states and their formulas
  bool updated_ = false;
};

Term operator+(Term a, Term b);
Term operator-(Term a, Term b);
Term operator*(Term a, Term b);
Term operator/(Term a, Term b);
Term operator-(Term a);
Term sqrt(Term a);
Term abs(Term a);
Term sign(Term a);
Term max(Term a, Term b);
Term where(Term condition, Term yes, Term no);

// The input that a factor comes from, by the name of the group's learning rate: "learning_rate.1/alpha".
std::string factor_name(std::string_view learning_rate, std::string_view factor);

}  // namespace plimsoll
