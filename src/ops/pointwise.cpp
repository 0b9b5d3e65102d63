// Pointwise: an expression of the elements of up to some inputs, stretched over each other as in numpy. The gradient is
// Pointwise ops again, by symbolic derivatives, and sums where an input was stretched. Either the output or the inputs
// are read for it, whatever must be kept less.
//
// PointwiseUpdate is the same as a part of an optimizer's update: it has the shape and the layout of the parameter, its
// first input, and must lie in the bytes of the input number "place", a state or the parameter. Where "place" is -1 it is
// a value that several of them read, and may take the place of an input that nobody reads any more, as Pointwise.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "ops/broadcast.h"
#include "ops/expression.h"
#include "ops/families.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

Expression expression_of(const Attributes& attributes) { return parse_expression(attributes.text("expression")); }

std::vector<TensorSpec> infer_pointwise(const Attributes& attributes, std::span<const Tensor* const> in) {
  const Expression expression = expression_of(attributes);
  expect_inputs(in, 1, kMostExpressionInputs);
  if (const size_t wanted = static_cast<size_t>(input_count(expression)); wanted > in.size()) {
    throw Error(ErrorCode::invalid_input, fmt::format("the expression '{}' reads x{}, but there are {} inputs",
                                                      attributes.text("expression"), wanted - 1, in.size()));
  }
  Shape shape;
  const Tensor* floating = nullptr;
  for (const Tensor* tensor : in) {
    const std::optional<Shape> joint = joint_shape(shape, tensor->shape);
    if (!joint) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("'{}' is {}, which cannot be stretched over the {} of the inputs before it", tensor->name,
                              to_string(tensor->shape), to_string(shape)));
    }
    shape = *joint;
    if (tensor->dtype == DType::bit) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("'{}' has elements of one bit; f32, f64, i32, i64 or u8 is expected", tensor->name));
    }
    if (tensor->dtype != DType::f32 && tensor->dtype != DType::f64) continue;
    if (floating == nullptr) floating = tensor;
    expect_same_dtype(*floating, *tensor);
  }
  return {{shape, floating == nullptr ? DType::f32 : floating->dtype}};
}

// The gradients of an op as expressions of its inputs x0.., of dy, and of y where that is better.
struct Derivatives {
  std::vector<TensorId> tensors;                     // what xK of the expressions is
  std::vector<std::optional<Expression>> of_inputs;  // by input; nothing where there is no gradient
};

// Bytes that the expressions read of what the forward pass must keep for them: what comes from outside is there anyway.
int64_t kept_bytes(const Graph& graph, const Derivatives& derivatives, TensorId dy) {
  std::set<TensorId> kept;
  for (const std::optional<Expression>& expression : derivatives.of_inputs) {
    if (!expression) continue;
    for (const ExpressionNode& node : expression->nodes) {
      if (node.kind == ExpressionNode::Kind::input) kept.insert(derivatives.tensors[static_cast<size_t>(node.input)]);
    }
  }
  int64_t bytes = 0;
  for (TensorId id : kept) {
    if (id != dy && graph.tensor(id).producer.valid()) bytes += graph.tensor(id).bytes().count;
  }
  return bytes;
}

Derivatives derive(const Graph& graph, const Op& op, TensorId dy, const std::vector<bool>& wanted) {
  ExpressionBuilder builder;
  std::vector<int32_t> inputs, by;
  const int32_t count = static_cast<int32_t>(op.inputs.size());
  for (int32_t i = 0; i < count; ++i) inputs.push_back(builder.input(i));
  const int32_t result = builder.insert(expression_of(op.attributes), inputs);
  const int32_t gradient = builder.input(count);
  std::vector<size_t> places;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const DType dtype = graph.tensor(op.inputs[i]).dtype;
    if (!wanted[i] || (dtype != DType::f32 && dtype != DType::f64)) continue;
    places.push_back(i);
    by.push_back(inputs[i]);
  }
  const std::vector<int32_t> nodes = builder.differentiate(result, gradient, by);
  Derivatives with_y{.tensors = op.inputs, .of_inputs = {}};
  with_y.tensors.push_back(dy);
  with_y.tensors.push_back(op.outputs[0]);
  with_y.of_inputs.resize(op.inputs.size());
  Derivatives without_y = with_y;
  const std::pair<int32_t, int32_t> output{result, count + 1};
  const bool computed = builder.node(result).kind == ExpressionNode::Kind::call;
  for (size_t k = 0; k < places.size(); ++k) {
    if (nodes[k] < 0) continue;
    without_y.of_inputs[places[k]] = builder.take(nodes[k]);
    if (computed) with_y.of_inputs[places[k]] = builder.take(nodes[k], std::span(&output, 1));
  }
  // Where both keep as much, the output: what reads it may keep it too.
  if (computed && kept_bytes(graph, with_y, dy) <= kept_bytes(graph, without_y, dy)) return with_y;
  return without_y;
}

// The expression with its inputs numbered anew, without gaps, and which they were.
std::pair<Expression, std::vector<int32_t>> without_gaps(Expression expression) {
  std::vector<int32_t> used;
  for (const ExpressionNode& node : expression.nodes) {
    if (node.kind == ExpressionNode::Kind::input) used.push_back(node.input);
  }
  std::sort(used.begin(), used.end());
  for (ExpressionNode& node : expression.nodes) {
    if (node.kind != ExpressionNode::Kind::input) continue;
    node.input = static_cast<int32_t>(std::lower_bound(used.begin(), used.end(), node.input) - used.begin());
  }
  return {std::move(expression), std::move(used)};
}

std::vector<TensorId> gradient_of_pointwise(Graph& graph, OpId id, std::span<const TensorId> dy,
                                            const std::vector<bool>& wanted) {
  std::vector<TensorId> result(wanted.size());
  if (!dy[0].valid()) return result;
  const Op op = graph.op(id);
  const Derivatives derivatives = derive(graph, op, dy[0], wanted);
  std::map<std::string, TensorId> made;  // by expression
  const bool several = std::count(wanted.begin(), wanted.end(), true) > 1;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!derivatives.of_inputs[i]) continue;
    const auto& [expression, used] = without_gaps(*derivatives.of_inputs[i]);
    std::vector<TensorId> inputs;
    for (int32_t k : used) inputs.push_back(derivatives.tensors[static_cast<size_t>(k)]);
    const std::string text = to_string(expression);
    const std::string suffix = several ? fmt::format("backward_{}", i) : "backward";
    TensorId& whole = made[to_string(*derivatives.of_inputs[i])];
    if (!whole.valid()) {
      whole = text == "x0" && inputs[0] == dy[0]
                  ? dy[0]
                  : graph.output(add_backward(graph, "Pointwise", id, suffix, inputs, {{"expression", text}}));
    }
    result[i] = sum_to_shape(graph, id, whole, graph.tensor(op.inputs[i]).shape, suffix + "_sum");
  }
  return result;
}

OpType pointwise() {
  return {
      .name = "Pointwise",
      .infer = infer_pointwise,
      .gradient = gradient_of_pointwise,
      .in_place =
          [](const Graph& graph, const Op& op) {
            std::vector<InPlace> pairs;
            const Tensor& y = graph.tensor(op.outputs[0]);
            for (size_t i = 0; i < op.inputs.size(); ++i) {
              const Tensor& x = graph.tensor(op.inputs[i]);
              if (x.shape == y.shape && x.dtype == y.dtype) pairs.push_back({0, static_cast<int>(i)});
            }
            return pairs;
          },
      .work = [](const Graph& graph,
                 const Op& op) { return elementwise_work(graph, op, flops_of(expression_of(op.attributes))); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const Expression expression = expression_of(op.attributes);
            std::vector<double> inputs(in.size()), values(expression.nodes.size());
            std::vector<std::vector<int64_t>> strides;
            for (const TensorView& view : in) strides.push_back(strides_over(view.shape, out[0].shape));
            for_each_stretched(out[0].shape, strides, [&](int64_t i, const std::vector<int64_t>& offsets) {
              for (size_t k = 0; k < in.size(); ++k) inputs[k] = load(in[k], offsets[k]);
              store(out[0], i, evaluate(expression, inputs, values));
            });
          },
  };
}

std::vector<TensorSpec> infer_update(const Attributes& attributes, std::span<const Tensor* const> in) {
  const std::vector<TensorSpec> specs = infer_pointwise(attributes, in);
  const int64_t place = attributes.integer("place"), inputs = static_cast<int64_t>(in.size());
  if (place < -1 || place >= inputs) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("place is {}; -1 or one of the {} inputs is expected", place, inputs));
  }
  if (specs[0].shape != in[0]->shape || specs[0].dtype != in[0]->dtype) {
    throw Error(ErrorCode::invalid_input, fmt::format("the result is {}, which is not the parameter '{}' of {}",
                                                      to_string(specs[0].shape), in[0]->name, to_string(in[0]->shape)));
  }
  if (place < 0) return {{specs[0].shape, specs[0].dtype, Role::gradient}};
  const Tensor& old = *in[static_cast<size_t>(place)];
  expect_same_shape(*in[0], old);
  expect_same_dtype(*in[0], old);
  return {{old.shape, old.dtype, old.role}};
}

OpType pointwise_update() {
  OpType type = pointwise();
  type.name = "PointwiseUpdate";
  type.infer = infer_update;
  type.gradient = {};
  type.in_place = [free = type.in_place](const Graph& graph, const Op& op) {
    const int64_t place = op.attributes.integer("place");
    return place < 0 ? free(graph, op) : std::vector<InPlace>{{0, static_cast<int>(place), true}};
  };
  type.changes_state = true;
  return type;
}

}  // namespace

std::vector<OpType> pointwise_ops() {
  std::vector<OpType> types = of_kind(LayerKind::activation, {pointwise()});
  types.push_back(of_kind(LayerKind::other, {pointwise_update()})[0]);
  return types;
}

}  // namespace plimsoll
