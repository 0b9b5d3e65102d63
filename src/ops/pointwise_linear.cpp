// An expression of elements and the linear layer that alone reads it as one op, so that a device may make the expression
// of some rows at a time: it is the widest tensor of a transformer's MLP, and never lies there whole; nor does its
// gradient.
//
//   PointwiseLinearForward    x0[..,F], x1, .., w[D,F][, step, seed][, bias[D]]      ->  y[..,D]
//   PointwiseLinearBackward   x0, x1, .., w[, step, seed], dy                        ->  [dx0][, dx1]..[, dw][, dbias]
//
// y = f(x0, x1, ..) w' + bias, where f is "expression" as Pointwise has it, of as many inputs as "operands" says. They have
// one shape, but for those that are [F], the same for every row. With "p", dropout of f's elements as DropoutForward has it, by "salt". With "transposed", w is [F,D]. The
// backward op makes f again. "gradients" has the places of those that are wanted: of x0, x1, .., of w, and after it of the
// bias.
#include "ops/pointwise_linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/random.h"
#include "ops/families.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

size_t operand_count(const Attributes& attributes) {
  const int64_t count = attributes.integer("operands");
  if (count >= 1 && count < kMostExpressionInputs) return static_cast<size_t>(count);
  throw Error(ErrorCode::invalid_input,
              fmt::format("operands is {}; 1 to {} are possible", count, kMostExpressionInputs - 1));
}

// The first of those that have rows.
size_t row_operand(std::span<const Tensor* const> in, size_t operands) {
  for (size_t i = 0; i < operands; ++i) {
    if (in[i]->shape.size() >= 2) return i;
  }
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' is {}; two or more dimensions are expected", in[0]->name, to_string(in[0]->shape)));
}

void expect_rows(const Attributes& attributes, std::span<const Tensor* const> in, const PointwiseLinear& layout) {
  const Tensor &x = *in[row_operand(in, layout.operands)], &w = *in[layout.weights];
  const Expression expression = parse_expression(attributes.text("expression"));
  if (input_count(expression) > static_cast<int>(layout.operands)) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("the expression '{}' reads x{}, but there are {} operands", attributes.text("expression"),
                            input_count(expression) - 1, layout.operands));
  }
  for (size_t i = 0; i < layout.operands; ++i) {
    if (in[i]->shape != Shape{x.shape.back()}) expect_same_shape(x, *in[i]);
    expect_same_dtype(x, *in[i]);
  }
  expect_rank(w, 2);
  expect_same_dtype(x, w);
  if (const int64_t features = w.shape[layout.transposed ? 0 : 1]; features != x.shape.back()) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("'{}' has {} features; the weights take {}", x.name, x.shape.back(), features));
  }
  if (!layout.drops()) return;
  expect_counter(*in[*layout.step]);
  expect_seed(*in[*layout.step + 1]);
  if (layout.p >= 0 && layout.p < 1) return;
  throw Error(ErrorCode::invalid_input, fmt::format("p is {}; the share that falls lies in [0, 1)", layout.p));
}

Shape result_shape(const Tensor& x, const Tensor& w, bool transposed) {
  Shape shape = x.shape;
  shape.back() = w.shape[transposed ? 1 : 0];
  return shape;
}

std::vector<TensorSpec> infer_layer_forward(const Attributes& attributes, std::span<const Tensor* const> in) {
  const size_t least = operand_count(attributes) + 1 + (attributes.has("p") ? 2 : 0);
  expect_inputs(in, least, least + 1);
  const PointwiseLinear layout = pointwise_linear(attributes, in.size(), false);
  expect_rows(attributes, in, layout);
  const Tensor& x = *in[row_operand(in, layout.operands)];
  const Shape shape = result_shape(x, *in[layout.weights], layout.transposed);
  if (layout.bias) {
    const Tensor& bias = *in[*layout.bias];
    expect_same_dtype(*in[0], bias);
    if (bias.shape != Shape{shape.back()}) {
      throw Error(ErrorCode::invalid_input, fmt::format("'{}' is {}; one number for each of {} outputs is expected",
                                                        bias.name, to_string(bias.shape), shape.back()));
    }
  }
  return {{shape, in[0]->dtype}};
}

std::vector<TensorSpec> infer_layer_backward(const Attributes& attributes, std::span<const Tensor* const> in) {
  const size_t count = operand_count(attributes) + 2 + (attributes.has("p") ? 2 : 0);
  expect_inputs(in, count);
  const PointwiseLinear layout = pointwise_linear(attributes, in.size(), true);
  expect_rows(attributes, in, layout);
  const Tensor &x = *in[row_operand(in, layout.operands)], &w = *in[layout.weights], &dy = *in[layout.dy];
  expect_same_dtype(x, dy);
  const Shape shape = result_shape(x, w, layout.transposed);
  if (dy.shape != shape) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("'{}' is {}; {} is expected", dy.name, to_string(dy.shape), to_string(shape)));
  }
  std::vector<TensorSpec> out;
  int64_t before = -1;
  for (const int64_t place : layout.gradients) {
    if (place <= before || place > static_cast<int64_t>(layout.weights) + 1) {
      throw Error(ErrorCode::invalid_input, fmt::format("gradients has {} after {}; they rise, to {} at most", place,
                                                        before, layout.weights + 1));
    }
    before = place;
    const bool of_bias = place > static_cast<int64_t>(layout.weights);
    out.push_back({of_bias ? Shape{shape.back()} : in[static_cast<size_t>(place)]->shape, x.dtype});
  }
  return out;
}

std::vector<TensorId> pointwise_linear_gradient(Graph& graph, OpId id, std::span<const TensorId> dy,
                                                const std::vector<bool>& wanted) {
  const Op op = graph.op(id);
  std::vector<TensorId> result(op.inputs.size());
  if (!dy[0].valid()) return result;
  const PointwiseLinear layout = pointwise_linear(op, false);
  const auto derivatives = operand_derivatives(op.attributes);
  std::vector<int64_t> gradients;
  std::vector<size_t> of;
  const auto want = [&](size_t place, size_t input) {
    if (!wanted[input]) return;
    gradients.push_back(static_cast<int64_t>(place));
    of.push_back(input);
  };
  for (size_t i = 0; i < layout.operands; ++i) {
    if (derivatives[i]) want(i, i);
  }
  want(layout.weights, layout.weights);
  if (layout.bias) want(layout.weights + 1, *layout.bias);
  if (of.empty()) return result;
  std::vector<TensorId> inputs = op.inputs;
  if (layout.bias) inputs.pop_back();
  inputs.push_back(dy[0]);
  Attributes attributes = op.attributes;
  attributes.set("gradients", gradients);
  const OpId back =
      add_backward(graph, "PointwiseLinearBackward", id, "backward", std::move(inputs), std::move(attributes));
  for (size_t i = 0; i < of.size(); ++i) result[of[i]] = graph.output(back, i);
  return result;
}

Work work_of(const Graph& graph, const Op& op, bool backward) {
  const PointwiseLinear layout = pointwise_linear(op, backward);
  const double weights = static_cast<double>(element_count(graph.tensor(op.inputs[layout.weights]).shape));
  const Shape& x = graph.tensor(op.inputs[row_operand(graph, op)]).shape;
  const double elements = static_cast<double>(element_count(x));
  const double rows = elements / static_cast<double>(x.back());
  double products = backward ? 0 : 1, flops = flops_of(parse_expression(op.attributes.text("expression")));
  if (backward) {
    const auto derivatives = operand_derivatives(op.attributes);
    bool data = false;
    for (const int64_t place : layout.gradients) {
      if (place == static_cast<int64_t>(layout.weights)) ++products;
      if (place >= static_cast<int64_t>(layout.operands)) continue;
      data = true;
      flops += flops_of(*derivatives[static_cast<size_t>(place)]);
    }
    products += data ? 1 : 0;
  }
  return {2 * products * rows * weights + flops * elements,
          static_cast<double>((bytes_of(graph, op.inputs) + bytes_of(graph, op.outputs)).count)};
}

const Shape& row_shape(std::span<const TensorView> in, size_t operands) {
  return std::ranges::find_if(in.first(operands), [](const TensorView& x) { return x.shape.size() >= 2; })->shape;
}

// The sizes of an op's tensors, and its elements one row after the other.
struct Rows {
  const Op& op;
  PointwiseLinear layout;
  std::span<const TensorView> in;
  Shape x_shape;
  int64_t rows, width, outputs;
  Expression expression;
  std::vector<double> x, values;

  Rows(const Op& of, std::span<const TensorView> inputs, bool backward)
      : op(of),
        layout(pointwise_linear(of, backward)),
        in(inputs),
        x_shape(row_shape(in, layout.operands)),
        rows(element_count(x_shape) / x_shape.back()),
        width(x_shape.back()),
        outputs(in[layout.weights].shape[layout.transposed ? 1 : 0]),
        expression(parse_expression(of.attributes.text("expression"))),
        x(layout.operands + 1),
        values(expression.nodes.size()) {}

  double weight(int64_t d, int64_t f) const {
    return load(in[layout.weights], layout.transposed ? f * outputs + d : d * width + f);
  }
  // What dropout makes of 1 there.
  double kept(int64_t i) const {
    if (!layout.drops()) return 1;
    const auto numbers = [](const TensorView& view) {
      return std::span(static_cast<const int64_t*>(view.data), static_cast<size_t>(element_count(view.shape)));
    };
    const RandomStream stream = stream_of(numbers(in[*layout.step + 1]), numbers(in[*layout.step])[0],
                                          static_cast<uint32_t>(op.attributes.integer("salt", 0)), rows * width);
    return stream.bits(i) >= dropout_threshold(layout.p) ? 1 / (1 - layout.p) : 0;
  }
  void read(int64_t i) {
    for (size_t k = 0; k < layout.operands; ++k) x[k] = load(in[k], in[k].shape.size() == 1 ? i % width : i);
  }
  double value(int64_t i) {
    read(i);
    return evaluate(expression, x, values) * kept(i);
  }
};

void run_layer_forward(const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
  Rows all(op, in, false);
  std::vector<double> f(static_cast<size_t>(all.width));
  for (int64_t r = 0; r < all.rows; ++r) {
    for (int64_t k = 0; k < all.width; ++k) f[static_cast<size_t>(k)] = all.value(r * all.width + k);
    for (int64_t d = 0; d < all.outputs; ++d) {
      double sum = all.layout.bias ? load(in[*all.layout.bias], d) : 0;
      for (int64_t k = 0; k < all.width; ++k) sum += f[static_cast<size_t>(k)] * all.weight(d, k);
      store(out[0], r * all.outputs + d, sum);
    }
  }
}

void run_layer_backward(const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
  Rows all(op, in, true);
  const auto derivatives = operand_derivatives(op.attributes);
  const auto [rows, width, outputs] = std::tuple(all.rows, all.width, all.outputs);
  const TensorView& dy = in[all.layout.dy];
  std::vector<std::vector<double>> gradients;
  for (const TensorView& view : out) gradients.emplace_back(static_cast<size_t>(element_count(view.shape)));
  std::vector<double> df(static_cast<size_t>(width)), f(df.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < width; ++k) {
      double sum = 0;
      for (int64_t d = 0; d < outputs; ++d) sum += load(dy, r * outputs + d) * all.weight(d, k);
      df[static_cast<size_t>(k)] = sum * all.kept(r * width + k);
      f[static_cast<size_t>(k)] = all.value(r * width + k);
    }
    for (size_t g = 0; g < gradients.size(); ++g) {
      const size_t place = static_cast<size_t>(all.layout.gradients[g]);
      std::vector<double>& to = gradients[g];
      if (place < all.layout.operands) {
        std::vector<double> scratch(derivatives[place]->nodes.size());
        for (int64_t k = 0; k < width; ++k) {
          all.read(r * width + k);
          all.x.back() = df[static_cast<size_t>(k)];
          const int64_t at = in[place].shape.size() == 1 ? k : r * width + k;
          to[static_cast<size_t>(at)] += evaluate(*derivatives[place], all.x, scratch);
        }
        continue;
      }
      for (int64_t d = 0; d < outputs; ++d) {
        const double of_row = load(dy, r * outputs + d);
        if (place > all.layout.weights) {
          to[static_cast<size_t>(d)] += of_row;
          continue;
        }
        for (int64_t k = 0; k < width; ++k) {
          to[static_cast<size_t>(all.layout.transposed ? k * outputs + d : d * width + k)] +=
              of_row * f[static_cast<size_t>(k)];
        }
      }
    }
  }
  for (size_t g = 0; g < gradients.size(); ++g) {
    for_each_element(out[g], [&](int64_t i) { store(out[g], i, gradients[g][static_cast<size_t>(i)]); });
  }
}

// dx0 may take the place of x0, and so on: a row's gradients are written when nothing more is read of it.
std::vector<InPlace> operands_in_place(const Graph& graph, const Op& op) {
  const PointwiseLinear layout = pointwise_linear(op, true);
  std::vector<InPlace> pairs;
  for (size_t g = 0; g < layout.gradients.size(); ++g) {
    const auto place = static_cast<size_t>(layout.gradients[g]);
    if (place < layout.operands && graph.tensor(op.inputs[place]).shape.size() >= 2)
      pairs.push_back({static_cast<int>(g), static_cast<int>(place)});
  }
  return pairs;
}

}  // namespace

PointwiseLinear pointwise_linear(const Attributes& attributes, size_t inputs, bool backward) {
  PointwiseLinear layout{.operands = operand_count(attributes),
                         .p = attributes.real("p", 0),
                         .transposed = attributes.integer("transposed", 0) != 0,
                         .gradients = attributes.integers("gradients", {})};
  layout.weights = layout.operands;
  size_t next = layout.weights + 1;
  if (attributes.has("p")) {
    layout.step = next;
    next += 2;
  }
  if (backward) {
    layout.dy = next;
  } else if (inputs > next) {
    layout.bias = next;
  }
  return layout;
}

size_t row_operand(const Graph& graph, const Op& op) {
  size_t i = 0;
  while (graph.tensor(op.inputs[i]).shape.size() < 2) ++i;
  return i;
}

PointwiseLinear pointwise_linear(const Op& op, bool backward) {
  return pointwise_linear(op.attributes, op.inputs.size(), backward);
}

std::vector<std::optional<Expression>> operand_derivatives(const Attributes& attributes, bool by_result) {
  ExpressionBuilder builder;
  std::vector<int32_t> operands;
  const auto count = static_cast<int32_t>(operand_count(attributes));
  for (int32_t i = 0; i < count; ++i) operands.push_back(builder.input(i));
  const int32_t result = builder.insert(parse_expression(attributes.text("expression")), operands);
  const std::vector<int32_t> nodes = builder.differentiate(result, builder.input(count), operands);
  const std::pair<int32_t, int32_t> value{result, count + 1};
  const bool computed = by_result && builder.node(result).kind == ExpressionNode::Kind::call;
  const std::span<const std::pair<int32_t, int32_t>> given(&value, computed ? 1 : 0);
  std::vector<std::optional<Expression>> derivatives;
  for (const int32_t node : nodes) {
    derivatives.push_back(node < 0 ? std::nullopt : std::optional(builder.take(node, given)));
  }
  return derivatives;
}

std::vector<OpType> pointwise_linear_ops() {
  OpType forward{
      .name = "PointwiseLinearForward",
      .infer = infer_layer_forward,
      .gradient = pointwise_linear_gradient,
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return work_of(graph, op, false); },
      .reference = run_layer_forward,
  };
  OpType backward{
      .name = "PointwiseLinearBackward",
      .infer = infer_layer_backward,
      .gradient = {},
      .in_place = operands_in_place,
      .work = [](const Graph& graph, const Op& op) { return work_of(graph, op, true); },
      .reference = run_layer_backward,
  };
  return of_kind(LayerKind::fully_connected, {std::move(forward), std::move(backward)});
}

}  // namespace plimsoll
