// Losses: a scalar from the network's answers. A backward op takes dloss, the gradient of the scalar, so that a loss
// may be one term of several.
#include "ops/loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/families.h"
#include "ops/reference.h"

namespace plimsoll {

void expect_scalar(const Tensor& tensor) {
  if (element_count(tensor.shape) == 1) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' is {}; a scalar is expected", tensor.name, to_string(tensor.shape)));
}

void expect_labels(const Tensor& logits, const Tensor& labels) {
  expect_rank(logits, 2);
  if (labels.shape != Shape{logits.shape[0]}) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("'{}' is {}; one label for each of the {} rows of '{}' is expected", labels.name,
                            to_string(labels.shape), logits.shape[0], logits.name));
  }
  if (labels.dtype != DType::i32 && labels.dtype != DType::i64) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("'{}' is {}; labels are i32 or i64", labels.name, to_string(labels.dtype)));
  }
}

Reduction reduction(const Attributes& attributes) {
  const std::string name = attributes.text("reduction", "");
  if (name.empty()) return Reduction::mean_of_all;
  if (name == "mean") return Reduction::mean;
  if (name == "sum") return Reduction::sum;
  throw Error(ErrorCode::invalid_input, fmt::format("reduction is '{}'; 'mean' or 'sum' is expected", name));
}
double row_divisor(Reduction reduction, int64_t rows, int64_t counted) {
  if (reduction == Reduction::sum) return 1;
  return static_cast<double>(reduction == Reduction::mean ? counted : rows);
}

double label_smoothing(const Attributes& attributes) {
  const double smoothing = attributes.real("label_smoothing", 0);
  if (smoothing >= 0 && smoothing < 1) return smoothing;
  throw Error(ErrorCode::invalid_input, fmt::format("label_smoothing is {}; it lies in [0, 1)", smoothing));
}

int64_t label_at(const Attributes& attributes, const TensorView& labels, int64_t row, int64_t classes) {
  const int64_t label = labels.dtype == DType::i64 ? static_cast<const int64_t*>(labels.data)[row]
                                                   : static_cast<const int32_t*>(labels.data)[row];
  const bool stated = attributes.has("ignore_index");
  if (stated ? label == attributes.integer("ignore_index") : label < 0) return -1;
  if (label >= 0 && label < classes) return label;
  throw Error(ErrorCode::invalid_input,
              fmt::format("row {} has the label {}, but there are {} classes", row, label, classes));
}

namespace {

// loss = sum over rows of cross entropy(softmax(logits), (1 - s) * onehot(label) + s / classes), over the number of
// rows, of those that count, or 1.
OpType softmax_cross_entropy_forward() {
  return {
      .name = "SoftmaxCrossEntropyForward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            expect_labels(*in[0], *in[1]);
            label_smoothing(attributes);
            reduction(attributes);
            const DType dtype = in[0]->dtype;
            return std::vector<TensorSpec>{{{}, dtype, Role::output}, {in[0]->shape, dtype}, {{}, dtype, Role::output}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            std::vector<TensorId> result(2);
            if (!wanted[0] || !dy[0].valid()) return result;
            const Op op = graph.op(id);
            result[0] = graph.output(add_backward(graph, "SoftmaxCrossEntropyBackward", id, "backward",
                                                  {op.outputs[1], op.inputs[1], dy[0]}, op.attributes));
            return result;
          },
      .in_place =
          [](const Graph&, const Op&) {
            return std::vector<InPlace>{{1, 0}};
          },
      .work =
          [](const Graph& graph, const Op& op) {
            return Work{20 * static_cast<double>(element_count(graph.tensor(op.inputs[0]).shape)),
                        static_cast<double>((bytes_of(graph, op.inputs) + bytes_of(graph, op.outputs)).count)};
          },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const int64_t rows = in[0].shape[0], classes = in[0].shape[1];
            const double smoothing = label_smoothing(op.attributes);
            double loss = 0, correct = 0;
            int64_t counted = 0;
            for (int64_t r = 0; r < rows; ++r) {
              const int64_t label = label_at(op.attributes, in[1], r, classes);
              int64_t best = 0;
              double sum_logits = 0, sum_exp = 0;
              for (int64_t c = 0; c < classes; ++c) {
                if (load(in[0], r * classes + c) > load(in[0], r * classes + best)) best = c;
                sum_logits += load(in[0], r * classes + c);
              }
              const double top = load(in[0], r * classes + best);
              for (int64_t c = 0; c < classes; ++c) sum_exp += std::exp(load(in[0], r * classes + c) - top);
              const double log_sum = top + std::log(sum_exp);
              if (label >= 0) {
                const double mean_logit = sum_logits / static_cast<double>(classes);
                loss += log_sum - (1 - smoothing) * load(in[0], r * classes + label) - smoothing * mean_logit;
                correct += best == label ? 1 : 0;
                ++counted;
              }
              for (int64_t c = 0; c < classes; ++c) {
                store(out[1], r * classes + c, std::exp(load(in[0], r * classes + c) - log_sum));
              }
            }
            store(out[0], 0, loss / row_divisor(reduction(op.attributes), rows, counted));
            store(out[2], 0, correct);
          },
  };
}

OpType softmax_cross_entropy_backward() {
  return {
      .name = "SoftmaxCrossEntropyBackward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 3);
            expect_labels(*in[0], *in[1]);
            expect_scalar(*in[2]);
            label_smoothing(attributes);
            reduction(attributes);
            return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
          },
      .gradient = {},
      .in_place =
          [](const Graph&, const Op&) {
            return std::vector<InPlace>{{0, 0}};
          },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 2); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const int64_t rows = in[0].shape[0], classes = in[0].shape[1];
            const double smoothing = label_smoothing(op.attributes);
            int64_t counted = 0;
            for (int64_t r = 0; r < rows; ++r) counted += label_at(op.attributes, in[1], r, classes) >= 0 ? 1 : 0;
            const double scale = load(in[2], 0) / row_divisor(reduction(op.attributes), rows, counted);
            for (int64_t r = 0; r < rows; ++r) {
              const int64_t label = label_at(op.attributes, in[1], r, classes);
              for (int64_t c = 0; c < classes; ++c) {
                const double target = (c == label ? 1 - smoothing : 0) + smoothing / static_cast<double>(classes);
                store(out[0], r * classes + c, label < 0 ? 0 : scale * (load(in[0], r * classes + c) - target));
              }
            }
          },
  };
}

OpType mean_squared_error_forward() {
  return {
      .name = "MeanSquaredErrorForward",
      .infer =
          [](const Attributes&, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            expect_same_shape(*in[0], *in[1]);
            expect_same_dtype(*in[0], *in[1]);
            return std::vector<TensorSpec>{{{}, in[0]->dtype, Role::output}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            std::vector<TensorId> result(2);
            if (!dy[0].valid()) return result;
            const Op op = graph.op(id);
            for (size_t i = 0; i < 2; ++i) {  // the loss is symmetric in its inputs
              if (!wanted[i]) continue;
              result[i] = graph.output(add_backward(graph, "MeanSquaredErrorBackward", id,
                                                    i == 0 ? "backward" : "backward_target",
                                                    {op.inputs[i], op.inputs[1 - i], dy[0]}));
            }
            return result;
          },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work =
          [](const Graph& graph, const Op& op) {
            return Work{3 * static_cast<double>(element_count(graph.tensor(op.inputs[0]).shape)),
                        static_cast<double>(bytes_of(graph, op.inputs).count)};
          },
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            double sum = 0;
            for_each_element(in[0], [&](int64_t i) {
              sum += (load(in[0], i) - load(in[1], i)) * (load(in[0], i) - load(in[1], i));
            });
            store(out[0], 0, sum / static_cast<double>(element_count(in[0].shape)));
          },
  };
}

OpType mean_squared_error_backward() {
  return {
      .name = "MeanSquaredErrorBackward",
      .infer =
          [](const Attributes&, std::span<const Tensor* const> in) {
            expect_inputs(in, 3);
            expect_same_shape(*in[0], *in[1]);
            expect_same_dtype(*in[0], *in[1]);
            expect_scalar(*in[2]);
            return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
          },
      .gradient = {},
      .in_place =
          [](const Graph&, const Op&) {
            return std::vector<InPlace>{{0, 0}, {0, 1}};
          },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 2); },
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            const double scale = 2 * load(in[2], 0) / static_cast<double>(element_count(in[0].shape));
            for_each_element(out[0], [&](int64_t i) { store(out[0], i, scale * (load(in[0], i) - load(in[1], i))); });
          },
  };
}

double constant_target(const Attributes& attributes) {
  const double target = attributes.real("target");
  if (target >= 0 && target <= 1) return target;
  throw Error(ErrorCode::invalid_input, fmt::format("target is {}; it lies in [0, 1]", target));
}

OpType sigmoid_cross_entropy_forward() {
  return {
      .name = "SigmoidCrossEntropyForward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            constant_target(attributes);
            return std::vector<TensorSpec>{{{}, in[0]->dtype, Role::output}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            if (!wanted[0] || !dy[0].valid()) return std::vector<TensorId>{TensorId{}};
            const Op op = graph.op(id);
            return std::vector<TensorId>{graph.output(add_backward(graph, "SigmoidCrossEntropyBackward", id, "backward",
                                                                   {op.inputs[0], dy[0]}, op.attributes))};
          },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work =
          [](const Graph& graph, const Op& op) {
            return Work{20 * static_cast<double>(element_count(graph.tensor(op.inputs[0]).shape)),
                        static_cast<double>(bytes_of(graph, op.inputs).count)};
          },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const double target = constant_target(op.attributes);
            double sum = 0;
            for_each_element(in[0], [&](int64_t i) {  // log(1 + exp(z)) - z * target, without overflow
              const double z = load(in[0], i);
              sum += std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z))) - z * target;
            });
            store(out[0], 0, sum / static_cast<double>(element_count(in[0].shape)));
          },
  };
}

OpType sigmoid_cross_entropy_backward() {
  return {
      .name = "SigmoidCrossEntropyBackward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            expect_scalar(*in[1]);
            constant_target(attributes);
            return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
          },
      .gradient = {},
      .in_place =
          [](const Graph&, const Op&) {
            return std::vector<InPlace>{{0, 0}};
          },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 10); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const double target = constant_target(op.attributes);
            const double scale = load(in[1], 0) / static_cast<double>(element_count(in[0].shape));
            for_each_element(
                out[0], [&](int64_t i) { store(out[0], i, scale * (1 / (1 + std::exp(-load(in[0], i))) - target)); });
          },
  };
}

}  // namespace

std::vector<OpType> loss_ops() {
  return of_kind(LayerKind::softmax,
                 {softmax_cross_entropy_forward(), softmax_cross_entropy_backward(), mean_squared_error_forward(),
                  mean_squared_error_backward(), sigmoid_cross_entropy_forward(), sigmoid_cross_entropy_backward()});
}

}  // namespace plimsoll
