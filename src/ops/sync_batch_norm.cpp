// Batch normalisation by the statistics of all ranks' parts of the batch, as torch.nn.SyncBatchNorm: what BatchNormForward
// and BatchNormBackward do in one op stands apart here, so that ranks can add up what each found.
//
//   forward    x ──> BatchMoments ──> CombineMoments ──> SyncBatchNormForward ──> y
//   backward   dy ──> BatchNormGradientSums ──> SumOverRanks ──> SyncBatchNormBackward ──> dx
//
//   BatchMoments            x                                                          ->  mean, squares
//   CombineMoments          mean, squares                                              ->  mean, squares       collective
//   SyncBatchNormForward    x, gamma, beta, running_mean, running_var, mean, squares[, residual]
//                                                                    ->  y, running_mean', running_var'[, mask]
//   BatchNormGradientSums   x, dy, mean, squares[, mask]                               ->  dgamma, dbeta
//   SumOverRanks            dgamma, dbeta                                              ->  dgamma, dbeta       collective
//   SyncBatchNormBackward   x, dy, gamma, mean, squares, dgamma, dbeta[, mask]         ->  dx[, dresidual]
//
// "squares" are the summed squares of what is left of x without its mean: parts of them can be put together without
// losing digits (T. Chan, G. Golub, R. LeVeque, "Updating formulae and a pairwise algorithm for computing sample
// variances", 1979).
//
// The loss of a rank is the mean over its part, so its dy is "ranks" times that of the whole batch's loss, and so is the
// dx made here of sums over all. Gradients of parameters are averaged over the ranks, which takes the factor out; so the
// gradients of gamma and beta are the sums of each rank alone.
//
// "count" says how many elements a channel has in the batch of one rank; all have as many.
//
// Collectives run once a step (changes_state): a repetition would send again what all have. Nothing else is said of
// layouts by that, since the vectors of channels have one layout only.
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "ops/batch_norm.h"
#include "ops/families.h"
#include "ops/layer_inputs.h"

namespace plimsoll {
namespace {

int64_t ranks_of(const Attributes& attributes) {
  const int64_t ranks = attributes.integer("ranks");
  if (ranks < 1) throw Error(ErrorCode::invalid_input, fmt::format("{} ranks; at least 1 is needed", ranks));
  return ranks;
}

// Elements of a channel in the batches of all ranks.
double whole_count(const Op& op, const Channels& channels) {
  return static_cast<double>(ranks_of(op.attributes) * channels.elements_each());
}

Work work_per_input(const Graph& graph, const Op& op, double flops_per_element) {
  return {flops_per_element * static_cast<double>(element_count(graph.tensor(op.inputs[0]).shape)),
          static_cast<double>((bytes_of(graph, op.inputs) + bytes_of(graph, op.outputs)).count)};
}

OpType batch_moments() {
  return {
      .name = "BatchMoments",
      .infer =
          [](const Attributes&, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            expect_images(*in[0]);
            const TensorSpec channels{{in[0]->shape[1]}, in[0]->dtype};
            return std::vector<TensorSpec>{channels, channels};
          },
      .gradient = {},  // SyncBatchNormForward's is that of the statistics too
      .in_place = {},
      .work = [](const Graph& graph, const Op& op) { return work_per_input(graph, op, 4); },
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            const Channels channels(in[0].shape);
            for (int64_t c = 0; c < channels.count; ++c) {
              double sum = 0, squares = 0;
              channels.for_each(c, [&](int64_t i) { sum += load(in[0], i); });
              const double mean = sum / static_cast<double>(channels.elements_each());
              channels.for_each(c, [&](int64_t i) { squares += (load(in[0], i) - mean) * (load(in[0], i) - mean); });
              store(out[0], c, mean);
              store(out[1], c, squares);
            }
          },
      .kind = LayerKind::batch_norm,
  };
}

// What both collectives are: two vectors of channels in, the same two of all ranks out, in their bytes if those are free.
OpType collective_of_channels(std::string name, decltype(OpType::reference) reference) {
  return {
      .name = std::move(name),
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            expect_rank(*in[0], 1);
            expect_same_shape(*in[0], *in[1]);
            expect_same_dtype(*in[0], *in[1]);
            ranks_of(attributes);
            if (attributes.integer("count", 1) < 1) throw Error(ErrorCode::invalid_input, "a batch without elements");
            const TensorSpec channels{in[0]->shape, in[0]->dtype};
            return std::vector<TensorSpec>{channels, channels};
          },
      .gradient = {},
      .in_place =
          [](const Graph&, const Op&) {
            return std::vector<InPlace>{{0, 0}, {1, 1}};
          },
      .work = [](const Graph& graph,
                 const Op& op) { return work_per_input(graph, op, 2 * static_cast<double>(ranks_of(op.attributes))); },
      .reference = std::move(reference),
      .changes_state = true,
      .is_collective = true,
      .kind = LayerKind::other,
  };
}

// Of a process that is alone: what ranks with equal batches would find.
void combine_equal_moments(const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
  const double ranks = static_cast<double>(ranks_of(op.attributes));
  for_each_element(out[0], [&](int64_t c) { store(out[0], c, load(in[0], c)); });
  for_each_element(out[1], [&](int64_t c) { store(out[1], c, load(in[1], c) * ranks); });
}
void add_equal_sums(const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
  const double ranks = static_cast<double>(ranks_of(op.attributes));
  for (size_t k = 0; k < 2; ++k) for_each_element(out[k], [&](int64_t c) { store(out[k], c, load(in[k], c) * ranks); });
}

std::vector<TensorSpec> infer_sync_forward(const Attributes& attributes, std::span<const Tensor* const> in) {
  expect_inputs(in, 7, 8);
  const Tensor& x = *in[0];
  expect_images(x);
  for (const Tensor* values : in.subspan(1, 6)) expect_one_a_channel(x, *values);
  if (in.size() == 8) {
    expect_same_shape(x, *in[7]);
    expect_same_dtype(x, *in[7]);
  }
  if (element_count(x.shape) * ranks_of(attributes) == x.shape[1]) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("'{}' is {}: one value a channel has no variance; a larger batch is needed", x.name,
                            to_string(x.shape)));
  }
  const Shape channels{x.shape[1]};
  std::vector<TensorSpec> out{
      {x.shape, x.dtype}, {channels, x.dtype, Role::statistic}, {channels, x.dtype, Role::statistic}};
  if (has_relu(attributes)) out.push_back({x.shape, DType::bit});
  return out;
}

std::vector<TensorId> sync_gradient(Graph& graph, OpId id, std::span<const TensorId> dy,
                                    const std::vector<bool>& wanted) {
  const Op op = graph.op(id);
  std::vector<TensorId> result(op.inputs.size());
  const bool residual = op.inputs.size() == 8, relu = has_relu(op.attributes);
  const bool passes_on = wanted[0] || (residual && wanted[7]);
  if (!dy[0].valid() || (!passes_on && !wanted[1] && !wanted[2])) return result;
  const Attribute ranks = op.attributes.integer("ranks"), activation = std::string(relu ? "relu" : "none");
  const Attribute epsilon = op.attributes.real("epsilon", 1e-5);
  const TensorId x = op.inputs[0], mean = op.inputs[5], squares = op.inputs[6];
  std::vector<TensorId> inputs{x, dy[0], mean, squares};
  if (relu) inputs.push_back(op.outputs[3]);
  const OpId sums = add_backward(graph, "BatchNormGradientSums", id, "gradient_sums", inputs,
                                 {{"ranks", ranks}, {"epsilon", epsilon}, {"activation", activation}});
  result[1] = graph.output(sums, 0);
  result[2] = graph.output(sums, 1);
  if (!passes_on) return result;
  const OpId all =
      add_backward(graph, "SumOverRanks", id, "sum_over_ranks", {result[1], result[2]}, {{"ranks", ranks}});
  inputs = {x, dy[0], op.inputs[1], mean, squares, graph.output(all, 0), graph.output(all, 1)};
  if (relu) inputs.push_back(op.outputs[3]);
  const OpId back = add_backward(
      graph, "SyncBatchNormBackward", id, "backward", inputs,
      {{"ranks", ranks}, {"epsilon", epsilon}, {"activation", activation}, {"residual", int64_t{residual}}});
  result[0] = graph.output(back, 0);
  if (residual) result[7] = graph.output(back, 1);
  return result;
}

void run_forward(const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
  const Channels channels(in[0].shape);
  const bool relu = has_relu(op.attributes), residual = in.size() == 8;
  const double epsilon = op.attributes.real("epsilon", 1e-5), momentum = op.attributes.real("momentum", 0.1);
  const double n = whole_count(op, channels);
  if (relu) std::memset(out[3].data, 0, storage_bytes(out[3].shape, DType::bit, {}).count);
  for (int64_t c = 0; c < channels.count; ++c) {
    const double mean = load(in[5], c), squares = load(in[6], c);
    store(out[1], c, (1 - momentum) * load(in[3], c) + momentum * mean);
    store(out[2], c, (1 - momentum) * load(in[4], c) + momentum * squares / (n - 1));
    const double scale = load(in[1], c) / std::sqrt(squares / n + epsilon), shift = load(in[2], c);
    channels.for_each(c, [&](int64_t i) {
      const double z = (load(in[0], i) - mean) * scale + shift + (residual ? load(in[7], i) : 0);
      store(out[0], i, relu && !(z > 0) ? 0 : z);
      if (relu) store(out[3], i, z > 0);
    });
  }
}

OpType forward() {
  return {
      .name = "SyncBatchNormForward",
      .infer = infer_sync_forward,
      .gradient = sync_gradient,
      .in_place =
          [](const Graph&, const Op& op) {
            std::vector<InPlace> pairs{{0, 0}};
            if (op.inputs.size() == 8) pairs.push_back({0, 7});
            pairs.push_back({1, 3, true});
            pairs.push_back({2, 4, true});
            return pairs;
          },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 3); },
      .reference = run_forward,
      .state_outputs = {1, 2},
      .kind = LayerKind::batch_norm,
  };
}

// The inputs that both backward ops end with, from `first` on: x and dy stand before them.
void expect_backward_inputs(const Attributes& attributes, std::span<const Tensor* const> in, size_t channels) {
  const bool relu = has_relu(attributes);
  expect_inputs(in, 2 + channels + (relu ? 1 : 0));
  const Tensor& x = *in[0];
  expect_images(x);
  expect_same_shape(x, *in[1]);
  expect_same_dtype(x, *in[1]);
  for (const Tensor* values : in.subspan(2, channels)) expect_one_a_channel(x, *values);
  if (relu) expect_mask_of(x, *in.back());
  ranks_of(attributes);
}

double inverse_deviation(const Op& op, double squares, double count) {
  return 1 / std::sqrt(squares / count + op.attributes.real("epsilon", 1e-5));
}

void run_gradient_sums(const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
  const Channels channels(in[0].shape);
  const bool relu = has_relu(op.attributes);
  for (int64_t c = 0; c < channels.count; ++c) {
    const double mean = load(in[2], c), inverse = inverse_deviation(op, load(in[3], c), whole_count(op, channels));
    double dgamma = 0, dbeta = 0;
    channels.for_each(c, [&](int64_t i) {
      const double g = relu && load(in[4], i) == 0 ? 0 : load(in[1], i);
      dbeta += g;
      dgamma += g * (load(in[0], i) - mean) * inverse;
    });
    store(out[0], c, dgamma);
    store(out[1], c, dbeta);
  }
}

OpType gradient_sums() {
  return {
      .name = "BatchNormGradientSums",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_backward_inputs(attributes, in, 2);
            const TensorSpec channels{{in[0]->shape[1]}, in[0]->dtype};
            return std::vector<TensorSpec>{channels, channels};
          },
      .gradient = {},
      .in_place = {},
      .work = [](const Graph& graph, const Op& op) { return work_per_input(graph, op, 4); },
      .reference = run_gradient_sums,
      .kind = LayerKind::batch_norm,
  };
}

void run_backward(const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
  const Channels channels(in[0].shape);
  const bool relu = has_relu(op.attributes), residual = out.size() == 2;
  const double n = whole_count(op, channels);
  for (int64_t c = 0; c < channels.count; ++c) {
    const double mean = load(in[3], c), inverse = inverse_deviation(op, load(in[4], c), n);
    const double gamma = load(in[2], c), dgamma = load(in[5], c), dbeta = load(in[6], c);
    channels.for_each(c, [&](int64_t i) {
      const double g = relu && load(in[7], i) == 0 ? 0 : load(in[1], i), x_hat = (load(in[0], i) - mean) * inverse;
      store(out[0], i, gamma * inverse * (g - dbeta / n - x_hat * dgamma / n));
      if (residual) store(out[1], i, g);
    });
  }
}

OpType backward() {
  return {
      .name = "SyncBatchNormBackward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_backward_inputs(attributes, in, 5);
            std::vector<TensorSpec> out{{in[0]->shape, in[0]->dtype}};
            if (attributes.integer("residual", 0) != 0) out.push_back(out[0]);
            return out;
          },
      .gradient = {},
      .in_place =
          [](const Graph&, const Op& op) {
            std::vector<InPlace> pairs{{0, 1}, {0, 0}};
            if (op.outputs.size() == 2) pairs.push_back({1, 1});
            return pairs;
          },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 5); },
      .reference = run_backward,
      .kind = LayerKind::batch_norm,
  };
}

}  // namespace

std::vector<OpType> sync_batch_norm_ops() {
  return {batch_moments(), collective_of_channels("CombineMoments", combine_equal_moments), forward(),
          gradient_sums(), collective_of_channels("SumOverRanks", add_equal_sums),          backward()};
}

}  // namespace plimsoll
