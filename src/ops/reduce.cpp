// Reduce: the sum, mean, largest or smallest element along dimensions, or the mean of squares. Expand stretches a tensor as numpy does, Cast
// changes the dtype. The gradient of a sum is an Expand, that of an Expand a sum; a largest element's gradient is shared
// by all that are equal to it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/broadcast.h"
#include "ops/families.h"
#include "ops/reduced.h"
#include "ops/reference.h"

namespace plimsoll {

ReduceFunction reduce_function(const Attributes& attributes) {
  const std::string& name = attributes.text("function");
  if (name == "sum") return ReduceFunction::sum;
  if (name == "mean") return ReduceFunction::mean;
  if (name == "max") return ReduceFunction::max;
  if (name == "min") return ReduceFunction::min;
  if (name == "mean_of_squares") return ReduceFunction::mean_of_squares;
  throw Error(ErrorCode::invalid_input,
              fmt::format("function is '{}'; sum, mean, max, min or mean_of_squares is expected", name));
}

std::vector<bool> reduced_dimensions(const Attributes& attributes, const Shape& shape) {
  const std::vector<int64_t> dims = attributes.integers("dims", {});
  std::vector<bool> reduced(shape.size(), dims.empty());
  for (int64_t d : dims) {
    if (d < 0 || d >= static_cast<int64_t>(shape.size()) || reduced[static_cast<size_t>(d)]) {
      throw Error(ErrorCode::invalid_input, fmt::format("dims are [{}]; each one dimension of {}, once, is expected",
                                                        fmt::join(dims, ", "), to_string(shape)));
    }
    reduced[static_cast<size_t>(d)] = true;
  }
  return reduced;
}

namespace {

bool is_floating(DType dtype) { return dtype == DType::f32 || dtype == DType::f64; }

void expect_numbers(const Tensor& tensor) {
  if (tensor.dtype != DType::bit) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' has elements of one bit; f32, f64, i32, i64 or u8 is expected", tensor.name));
}

// With every reduced dimension of size 1.
Shape kept_shape(const Attributes& attributes, const Shape& shape) {
  const std::vector<bool> reduced = reduced_dimensions(attributes, shape);
  Shape kept = shape;
  for (size_t d = 0; d < kept.size(); ++d) {
    if (reduced[d]) kept[d] = 1;
  }
  return kept;
}

std::vector<TensorSpec> infer_reduce(const Attributes& attributes, std::span<const Tensor* const> in) {
  expect_inputs(in, 1);
  expect_numbers(*in[0]);
  reduce_function(attributes);
  const std::vector<bool> reduced = reduced_dimensions(attributes, in[0]->shape);
  const bool keep = attributes.integer("keep_dims", 0) != 0;
  Shape shape;
  for (size_t d = 0; d < reduced.size(); ++d) {
    if (!reduced[d]) shape.push_back(in[0]->shape[d]);
    if (reduced[d] && keep) shape.push_back(1);
  }
  return {{shape, is_floating(in[0]->dtype) ? in[0]->dtype : DType::f32}};
}

std::vector<TensorId> gradient_of_reduce(Graph& graph, OpId id, std::span<const TensorId> dy,
                                         const std::vector<bool>& wanted) {
  const Op op = graph.op(id);
  const TensorId x = op.inputs[0], y = op.outputs[0];
  const Shape shape = graph.tensor(x).shape, kept = kept_shape(op.attributes, shape);
  if (!wanted[0] || !dy[0].valid() || !is_floating(graph.tensor(x).dtype)) return {TensorId{}};
  const auto add = [&](std::string_view type, std::string_view suffix, std::vector<TensorId> inputs,
                       Attributes attributes) {
    return graph.output(add_backward(graph, type, id, suffix, std::move(inputs), std::move(attributes)));
  };
  const auto with_dims = [&](TensorId tensor, std::string_view suffix) {
    return graph.tensor(tensor).shape == kept ? tensor : add("Reshape", suffix, {tensor}, {{"shape", kept}});
  };
  const auto expression = [](std::string text) { return Attributes{{"expression", std::move(text)}}; };
  const ReduceFunction function = reduce_function(op.attributes);
  TensorId g = with_dims(dy[0], "backward_shape");
  if (function == ReduceFunction::max || function == ReduceFunction::min) {
    const TensorId best = with_dims(y, "backward_best");
    const TensorId equal = add("Pointwise", "backward_equal", {x, best}, expression("eq(x0,x1)"));
    Attributes count = op.attributes;
    count.set("function", std::string("sum"));
    count.set("keep_dims", int64_t{1});
    const TensorId equals = add("Reduce", "backward_count", {equal}, count);
    const TensorId shared = add("Pointwise", "backward_share", {g, equals}, expression("div(x0,x1)"));
    return {add("Pointwise", "backward", {x, best, shared}, expression("where(eq(x0,x1),x2,0)"))};
  }
  const int64_t count = element_count(shape) / element_count(kept);
  if (function == ReduceFunction::mean_of_squares)
    return {add("Pointwise", "backward", {x, g},
                expression(fmt::format("mul(div(x0,{}),x1)", 0.5 * static_cast<double>(count))))};
  if (function == ReduceFunction::mean && count > 1)
    g = add("Pointwise", "backward_mean", {g}, expression(fmt::format("div(x0,{})", count)));
  if (shape == kept) return {g};
  return {add("Expand", "backward", {g}, {{"shape", shape}})};
}

void reduce_plainly(const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
  const ReduceFunction function = reduce_function(op.attributes);
  const Shape& shape = in[0].shape;
  const Shape kept = kept_shape(op.attributes, shape);
  const int64_t count = element_count(kept);
  std::vector<double> results(static_cast<size_t>(count), reduce_start(function));
  for_each_stretched(shape, {strides_over(kept, shape)}, [&](int64_t i, const std::vector<int64_t>& offsets) {
    double& result = results[static_cast<size_t>(offsets[0])];
    const double value = load(in[0], i);
    switch (function) {
      case ReduceFunction::sum:
      case ReduceFunction::mean: result += value; break;
      case ReduceFunction::mean_of_squares: result += value * value; break;
      case ReduceFunction::max: result = std::isnan(value) || value > result ? value : result; break;
      case ReduceFunction::min: result = std::isnan(value) || value < result ? value : result; break;
    }
  });
  const double share = static_cast<double>(count) / static_cast<double>(element_count(shape));
  for_each_element(out[0], [&](int64_t i) {
    const double result = results[static_cast<size_t>(i)];
    store(out[0], i, is_mean(function) ? result * share : result);
  });
}

OpType reduce() {
  return {
      .name = "Reduce",
      .infer = infer_reduce,
      .gradient = gradient_of_reduce,
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work =
          [](const Graph& graph, const Op& op) {
            Work work = elementwise_work(graph, op, 0);
            work.flops = static_cast<double>(element_count(graph.tensor(op.inputs[0]).shape));
            return work;
          },
      .reference = reduce_plainly,
  };
}

OpType expand() {
  return {
      .name = "Expand",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            expect_numbers(*in[0]);
            const Shape shape = attributes.integers("shape");
            if (joint_shape(in[0]->shape, shape) != shape) {
              throw Error(ErrorCode::invalid_input,
                          fmt::format("'{}' is {}, which cannot be stretched to {}", in[0]->name,
                                      to_string(in[0]->shape), to_string(shape)));
            }
            return std::vector<TensorSpec>{{shape, in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            const Tensor x = graph.tensor(graph.op(id).inputs[0]);
            if (!wanted[0] || !dy[0].valid() || !is_floating(x.dtype)) return std::vector<TensorId>{TensorId{}};
            return std::vector<TensorId>{sum_to_shape(graph, id, dy[0], x.shape, "backward")};
          },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 0); },
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            const int64_t size = storage_bytes({1}, in[0].dtype, {}).count;
            const auto* from = static_cast<const std::byte*>(in[0].data);
            auto* to = static_cast<std::byte*>(out[0].data);
            for_each_stretched(out[0].shape, {strides_over(in[0].shape, out[0].shape)},
                               [&](int64_t i, const std::vector<int64_t>& offsets) {
                                 std::copy_n(from + offsets[0] * size, size, to + i * size);
                               });
          },
  };
}

DType dtype_to(const Attributes& attributes) {
  const std::string& name = attributes.text("dtype");
  for (DType dtype : {DType::f32, DType::f64, DType::i32, DType::i64, DType::u8}) {
    if (to_string(dtype) == name) return dtype;
  }
  throw Error(ErrorCode::invalid_input, fmt::format("dtype is '{}'; f32, f64, i32, i64 or u8 is expected", name));
}

// Fractions are cut off; what is out of range becomes the nearest number that is in it, what is no number 0.
template <class T>
double in_range(double value) {
  if (std::isnan(value)) return 0;
  constexpr double least = static_cast<double>(std::numeric_limits<T>::min());
  constexpr double most = static_cast<double>(std::numeric_limits<T>::max());
  return value <= least ? least : value >= most ? most : std::trunc(value);
}

void cast_plainly(const TensorView& in, const TensorView& out) {
  for_each_element(out, [&](int64_t i) {
    if (in.dtype == DType::i64 && out.dtype == DType::i64) {  // more digits than a double has
      static_cast<int64_t*>(out.data)[i] = static_cast<const int64_t*>(in.data)[i];
      return;
    }
    const double value = load(in, i);
    switch (out.dtype) {
      case DType::i32: store(out, i, in_range<int32_t>(value)); break;
      case DType::u8: store(out, i, in_range<uint8_t>(value)); break;
      case DType::i64: {
        constexpr double edge = 9223372036854775808.0;  // 2^63
        static_cast<int64_t*>(out.data)[i] = std::isnan(value) ? 0
                                             : value >= edge   ? std::numeric_limits<int64_t>::max()
                                             : value <= -edge  ? std::numeric_limits<int64_t>::min()
                                                               : static_cast<int64_t>(value);
        break;
      }
      default: store(out, i, value); break;
    }
  });
}

OpType cast() {
  return {
      .name = "Cast",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            expect_numbers(*in[0]);
            return std::vector<TensorSpec>{{in[0]->shape, dtype_to(attributes)}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            const Op op = graph.op(id);
            const DType from = graph.tensor(op.inputs[0]).dtype;
            if (!wanted[0] || !dy[0].valid() || !is_floating(from) || !is_floating(dtype_to(op.attributes)))
              return std::vector<TensorId>{TensorId{}};
            if (from == dtype_to(op.attributes)) return std::vector<TensorId>{dy[0]};
            return std::vector<TensorId>{graph.output(
                add_backward(graph, "Cast", id, "backward", {dy[0]}, {{"dtype", std::string(to_string(from))}}))};
          },
      .in_place =
          [](const Graph& graph, const Op& op) {
            std::vector<InPlace> pairs;
            const auto bytes = [&](TensorId id) { return storage_bytes({1}, graph.tensor(id).dtype, {}).count; };
            if (bytes(op.inputs[0]) == bytes(op.outputs[0])) pairs.push_back({0, 0});
            return pairs;
          },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 1); },
      .reference = [](const Op&, std::span<const TensorView> in,
                      std::span<const TensorView> out) { cast_plainly(in[0], out[0]); },
  };
}

}  // namespace

std::vector<OpType> reduce_ops() {
  std::vector<OpType> types = of_kind(LayerKind::pool, {reduce()});
  for (OpType& type : of_kind(LayerKind::activation, {expand(), cast()})) types.push_back(std::move(type));
  return types;
}

}  // namespace plimsoll
