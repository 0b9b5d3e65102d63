// A linear layer and the cross entropy of its softmax as one op, so that a device may make the logits of some rows at a
// time, which are the largest tensor of a language model, and never have all of them.
//
//   LinearCrossEntropyForward    x[N,C], w[V,C], labels[N][, bias[V]]           ->  loss, correct
//   LinearCrossEntropyBackward   x, w, labels, dloss[, bias]                    ->  [dx][, dw][, dbias]
//   LinearCrossEntropyTraining   x, w, labels, dloss[, bias]                    ->  loss, correct[, dx][, dw][, dbias]
//
// logits = x w' + bias. The backward op makes the logits again; the training op is both in one, with the logits made
// once (passes/linear_cross_entropy.h). "gradients" names those that are wanted: "x", "w" and "b". With "transposed",
// w is [C,V]. The loss's attributes are those of SoftmaxCrossEntropyForward.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/families.h"
#include "ops/loss.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

constexpr size_t kX = 0, kWeights = 1, kLabels = 2;

bool is_transposed(const Attributes& attributes) { return attributes.integer("transposed", 0) != 0; }

// Where the bias stands if there is one, behind the others.
size_t bias_at(bool backward) { return backward ? 4 : 3; }

void expect_linear(const Attributes& attributes, std::span<const Tensor* const> in, bool backward) {
  expect_inputs(in, bias_at(backward), bias_at(backward) + 1);
  const Tensor &x = *in[kX], &w = *in[kWeights];
  expect_labels(x, *in[kLabels]);
  expect_rank(w, 2);
  expect_same_dtype(x, w);
  const size_t features = is_transposed(attributes) ? 0 : 1;
  if (w.shape[features] != x.shape[1]) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("'{}' has {} features; the weights take {}", x.name, x.shape[1], w.shape[features]));
  }
  if (backward) expect_scalar(*in[3]);
  if (in.size() > bias_at(backward)) {
    const Tensor& bias = *in.back();
    expect_same_dtype(x, bias);
    if (bias.shape != Shape{w.shape[1 - features]}) {
      throw Error(ErrorCode::invalid_input, fmt::format("'{}' is {}; one number for each of the {} classes is expected",
                                                        bias.name, to_string(bias.shape), w.shape[1 - features]));
    }
  }
  label_smoothing(attributes);
  reduction(attributes);
}

std::vector<TensorSpec> loss_specs(const Tensor& x) {
  return {{{}, x.dtype, Role::output}, {{}, x.dtype, Role::output}};
}

std::vector<TensorSpec> gradient_specs(const Attributes& attributes, std::span<const Tensor* const> in) {
  std::vector<TensorSpec> out;
  for (const char c : attributes.text("gradients", "")) {
    const size_t i = c == 'x' ? kX : c == 'w' ? kWeights : 4;
    if ((c != 'x' && c != 'w' && c != 'b') || i >= in.size()) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("gradients is '{}'; 'x', 'w' and, with a bias, 'b' are possible, in this order",
                              attributes.text("gradients", "")));
    }
    out.push_back({in[i]->shape, in[i]->dtype});
  }
  return out;
}

std::vector<TensorId> linear_cross_entropy_gradient(Graph& graph, OpId id, std::span<const TensorId> dy,
                                                    const std::vector<bool>& wanted) {
  const Op op = graph.op(id);
  std::vector<TensorId> result(op.inputs.size());
  std::string gradients;
  std::vector<size_t> of;
  for (const auto& [name, i] : {std::pair{'x', kX}, {'w', kWeights}, {'b', bias_at(false)}}) {
    if (i >= op.inputs.size() || !wanted[i]) continue;
    gradients += name;
    of.push_back(i);
  }
  if (of.empty() || !dy[0].valid()) return result;
  std::vector<TensorId> inputs = op.inputs;
  inputs.insert(inputs.begin() + 3, dy[0]);
  Attributes attributes = op.attributes;
  attributes.set("gradients", gradients);
  const OpId back =
      add_backward(graph, "LinearCrossEntropyBackward", id, "backward", std::move(inputs), std::move(attributes));
  for (size_t i = 0; i < of.size(); ++i) result[of[i]] = graph.output(back, i);
  return result;
}

// What an op computes of its rows: loss and correct where `outputs` begin with them, then the gradients.
void run_rows(const Op& op, std::span<const TensorView> in, std::span<const TensorView> out, bool forward,
              bool backward) {
  const Attributes& attributes = op.attributes;
  const bool transposed = is_transposed(attributes);
  const int64_t rows = in[kX].shape[0], width = in[kX].shape[1];
  const int64_t classes = in[kWeights].shape[transposed ? 1 : 0];
  const auto weight = [&](int64_t c, int64_t k) { return transposed ? k * classes + c : c * width + k; };
  const TensorView* bias = in.size() > bias_at(backward) ? &in.back() : nullptr;
  const double smoothing = label_smoothing(attributes);
  int64_t counted = 0;
  for (int64_t r = 0; r < rows; ++r) counted += label_at(attributes, in[kLabels], r, classes) >= 0 ? 1 : 0;
  const double divisor = row_divisor(reduction(attributes), rows, counted);
  std::vector<double> z(static_cast<size_t>(classes)), dx(static_cast<size_t>(rows * width)),
      dw(static_cast<size_t>(classes * width)), db(static_cast<size_t>(classes));
  double loss = 0, correct = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t label = label_at(attributes, in[kLabels], r, classes);
    if (label < 0) continue;
    double sum_logits = 0, sum_exp = 0;
    for (int64_t c = 0; c < classes; ++c) {
      double sum = bias != nullptr ? load(*bias, c) : 0;
      for (int64_t k = 0; k < width; ++k) sum += load(in[kX], r * width + k) * load(in[kWeights], weight(c, k));
      z[static_cast<size_t>(c)] = sum;
      sum_logits += sum;
    }
    const auto best = std::max_element(z.begin(), z.end());
    for (const double v : z) sum_exp += std::exp(v - *best);
    const double log_sum = *best + std::log(sum_exp);
    loss += log_sum - (1 - smoothing) * z[static_cast<size_t>(label)] -
            smoothing * sum_logits / static_cast<double>(classes);
    correct += best - z.begin() == label ? 1 : 0;
    if (!backward) continue;
    for (int64_t c = 0; c < classes; ++c) {
      const double target = (c == label ? 1 - smoothing : 0) + smoothing / static_cast<double>(classes);
      const double d = load(in[3], 0) / divisor * (std::exp(z[static_cast<size_t>(c)] - log_sum) - target);
      db[static_cast<size_t>(c)] += d;
      for (int64_t k = 0; k < width; ++k) {
        dx[static_cast<size_t>(r * width + k)] += d * load(in[kWeights], weight(c, k));
        dw[static_cast<size_t>(weight(c, k))] += d * load(in[kX], r * width + k);
      }
    }
  }
  size_t next = 0;
  if (forward) {
    store(out[next++], 0, loss / divisor);
    store(out[next++], 0, correct);
  }
  if (!backward) return;
  for (const char c : attributes.text("gradients", "")) {
    const std::vector<double>& values = c == 'x' ? dx : c == 'w' ? dw : db;
    const TensorView& to = out[next++];
    for_each_element(to, [&](int64_t i) { store(to, i, values[static_cast<size_t>(i)]); });
  }
}

// dx may take the place of x: a row's is written when nothing more is read of it.
std::vector<InPlace> data_in_place(const Op& op, int first) {
  if (!op.attributes.text("gradients", "").starts_with("x")) return {};
  return {{0, first}};
}

OpType make_type(const char* name, bool forward, bool backward) {
  return {
      .name = name,
      .infer =
          [=](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_linear(attributes, in, backward);
            std::vector<TensorSpec> out = forward ? loss_specs(*in[kX]) : std::vector<TensorSpec>{};
            if (!backward) return out;
            for (TensorSpec& spec : gradient_specs(attributes, in)) out.push_back(std::move(spec));
            return out;
          },
      .gradient = backward ? decltype(OpType::gradient){} : linear_cross_entropy_gradient,
      .in_place = [=](const Graph&,
                      const Op& op) { return backward ? data_in_place(op, forward ? 2 : 0) : std::vector<InPlace>{}; },
      .work =
          [](const Graph& graph, const Op& op) {
            const Shape& x = graph.tensor(op.inputs[kX]).shape;
            const double weights = static_cast<double>(element_count(graph.tensor(op.inputs[kWeights]).shape));
            const std::string gradients = op.attributes.text("gradients", "");
            const auto products = 1 + std::count(gradients.begin(), gradients.end(), 'x') +
                                  std::count(gradients.begin(), gradients.end(), 'w');
            const double logits = static_cast<double>(x[0]) * weights / static_cast<double>(x[1]);
            return Work{2 * static_cast<double>(products * x[0]) * weights + 20 * logits,
                        static_cast<double>((bytes_of(graph, op.inputs) + bytes_of(graph, op.outputs)).count)};
          },
      .reference = [=](const Op& op, std::span<const TensorView> in,
                       std::span<const TensorView> out) { run_rows(op, in, out, forward, backward); },
  };
}

}  // namespace

std::vector<OpType> linear_cross_entropy_ops() {
  return of_kind(LayerKind::fully_connected, {make_type("LinearCrossEntropyForward", true, false),
                                              make_type("LinearCrossEntropyBackward", false, true),
                                              make_type("LinearCrossEntropyTraining", true, true)});
}

}  // namespace plimsoll
