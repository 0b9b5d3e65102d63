// Batch normalisation over every dimension but the second, with what is fused into it: y = act(bn(x) + residual).
//
// S. Ioffe, C. Szegedy, "Batch normalization" (ICML 2015). In training it normalises by the batch's own mean and
// variance, leaves them for the backward pass, and advances the running statistics (the variance by its unbiased
// estimate, as PyTorch does); in evaluation it normalises by the running statistics. With a ReLU inside, one bit an
// element (y > 0) is all that the backward pass needs of it.
//
//   forward    x, gamma, beta, running_mean, running_var[, residual]   ->  y, mean, inv_std, running_mean',
//   running_var'[, mask] backward   x, dy, gamma, mean, inv_std[, mask]                     ->  dx, dgamma, dbeta[,
//   dresidual]
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "ops/batch_norm.h"
#include "ops/families.h"
#include "ops/layer_inputs.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

bool is_training(const Attributes& attributes) { return attributes.integer("training", 1) != 0; }

std::vector<TensorSpec> infer_forward(const Attributes& attributes, std::span<const Tensor* const> in) {
  expect_inputs(in, 5, 6);
  const Tensor& x = *in[0];
  expect_images(x);
  for (const Tensor* values : in.subspan(1, 4)) expect_one_a_channel(x, *values);
  if (in.size() == 6) {
    expect_same_shape(x, *in[5]);
    expect_same_dtype(x, *in[5]);
  }
  const bool relu = has_relu(attributes);
  std::vector<TensorSpec> out{{x.shape, x.dtype}};
  if (!is_training(attributes)) return out;
  if (element_count(x.shape) == x.shape[1]) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("'{}' is {}: one value a channel has no variance; a larger batch is needed", x.name,
                            to_string(x.shape)));
  }
  const Shape channels{x.shape[1]};
  for (int i = 0; i < 2; ++i) out.push_back({channels, x.dtype});
  for (int i = 0; i < 2; ++i) out.push_back({channels, x.dtype, Role::statistic});
  if (relu) out.push_back({x.shape, DType::bit});
  return out;
}

std::vector<TensorId> gradient(Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
  const Op op = graph.op(id);
  std::vector<TensorId> result(op.inputs.size());
  const bool residual = op.inputs.size() == 6;
  const bool any = wanted[0] || wanted[1] || wanted[2] || (residual && wanted[5]);
  if (!dy[0].valid() || !any) return result;
  if (!is_training(op.attributes)) {
    throw Error(ErrorCode::unsupported,
                fmt::format("op '{}': batch norm has a gradient in training only, not with its running "
                            "statistics; build the network for training",
                            op.name));
  }
  const bool relu = has_relu(op.attributes);
  std::vector<TensorId> inputs{op.inputs[0], dy[0], op.inputs[1], op.outputs[1], op.outputs[2]};
  if (relu) inputs.push_back(op.outputs[5]);
  const OpId back =
      add_backward(graph, "BatchNormBackward", id, "backward", inputs,
                   {{"activation", std::string(relu ? "relu" : "none")}, {"residual", int64_t{residual}}});
  for (size_t i = 0; i < 3; ++i) result[i] = graph.output(back, i);
  if (residual) result[5] = graph.output(back, 3);
  return result;
}

void run_batch_norm_forward(const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
  const Channels channels(in[0].shape);
  const bool relu = has_relu(op.attributes), training = is_training(op.attributes), residual = in.size() == 6;
  const double epsilon = op.attributes.real("epsilon", 1e-5), momentum = op.attributes.real("momentum", 0.1);
  if (training && relu) std::memset(out[5].data, 0, storage_bytes(out[5].shape, DType::bit, {}).count);
  for (int64_t c = 0; c < channels.count; ++c) {
    double mean = load(in[3], c), variance = load(in[4], c);
    if (training) {
      const double n = static_cast<double>(channels.elements_each());
      double sum = 0, squares = 0;
      channels.for_each(c, [&](int64_t i) { sum += load(in[0], i); });
      mean = sum / n;
      channels.for_each(c, [&](int64_t i) { squares += (load(in[0], i) - mean) * (load(in[0], i) - mean); });
      variance = squares / n;
      store(out[1], c, mean);
      store(out[2], c, 1 / std::sqrt(variance + epsilon));
      store(out[3], c, (1 - momentum) * load(in[3], c) + momentum * mean);
      store(out[4], c, (1 - momentum) * load(in[4], c) + momentum * squares / (n - 1));
    }
    const double scale = load(in[1], c) / std::sqrt(variance + epsilon), shift = load(in[2], c);
    channels.for_each(c, [&](int64_t i) {
      const double z = (load(in[0], i) - mean) * scale + shift + (residual ? load(in[5], i) : 0);
      store(out[0], i, relu && !(z > 0) ? 0 : z);
      if (training && relu) store(out[5], i, z > 0);
    });
  }
}

std::vector<TensorSpec> infer_backward(const Attributes& attributes, std::span<const Tensor* const> in) {
  const bool relu = has_relu(attributes);
  expect_inputs(in, relu ? 6 : 5);
  const Tensor& x = *in[0];
  expect_images(x);
  expect_same_shape(x, *in[1]);
  expect_same_dtype(x, *in[1]);
  for (const Tensor* values : in.subspan(2, 3)) expect_one_a_channel(x, *values);
  if (relu) expect_mask_of(x, *in[5]);
  std::vector<TensorSpec> out{{x.shape, x.dtype}, {{x.shape[1]}, x.dtype}, {{x.shape[1]}, x.dtype}};
  if (attributes.integer("residual", 0) != 0) out.push_back({x.shape, x.dtype});
  return out;
}

void run_batch_norm_backward(const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
  const Channels channels(in[0].shape);
  const bool relu = has_relu(op.attributes), residual = out.size() == 4;
  const double n = static_cast<double>(channels.elements_each());
  for (int64_t c = 0; c < channels.count; ++c) {
    const double gamma = load(in[2], c), mean = load(in[3], c), inv_std = load(in[4], c);
    auto gradient_at = [&](int64_t i) { return relu && load(in[5], i) == 0 ? 0 : load(in[1], i); };
    double dbeta = 0, dgamma = 0;
    channels.for_each(c, [&](int64_t i) {
      dbeta += gradient_at(i);
      dgamma += gradient_at(i) * (load(in[0], i) - mean) * inv_std;
    });
    store(out[1], c, dgamma);
    store(out[2], c, dbeta);
    channels.for_each(c, [&](int64_t i) {
      const double g = gradient_at(i), x_hat = (load(in[0], i) - mean) * inv_std;
      store(out[0], i, gamma * inv_std * (g - dbeta / n - x_hat * dgamma / n));
      if (residual) store(out[3], i, g);
    });
  }
}

}  // namespace

std::vector<OpType> batch_norm_ops() {
  OpType forward{
      .name = "BatchNormForward",
      .infer = infer_forward,
      .gradient = gradient,
      .in_place =
          [](const Graph&, const Op& op) {
            std::vector<InPlace> pairs{{0, 0}};
            if (op.inputs.size() == 6) pairs.push_back({0, 5});
            if (is_training(op.attributes)) {
              pairs.push_back({3, 3, true});
              pairs.push_back({4, 4, true});
            }
            return pairs;
          },
      .work = [](const Graph& graph,
                 const Op& op) { return elementwise_work(graph, op, is_training(op.attributes) ? 7 : 2); },
      .reference = run_batch_norm_forward,
      .state_outputs = {3, 4},
  };
  OpType backward{
      .name = "BatchNormBackward",
      .infer = infer_backward,
      .gradient = {},
      .in_place =
          [](const Graph&, const Op& op) {
            std::vector<InPlace> pairs{{0, 1},
                                       {0, 0}};  // both reductions are complete before the first element is written
            if (op.outputs.size() == 4) pairs.push_back({3, 1});
            return pairs;
          },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 11); },
      .reference = run_batch_norm_backward,
  };
  return of_kind(LayerKind::batch_norm, {std::move(forward), std::move(backward)});
}

}  // namespace plimsoll
