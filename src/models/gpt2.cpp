// GPT-2 (Radford et al., "Language models are unsupervised multitask learners", 2019): pre-norm blocks, learned positions,
// and an output layer that is the token embedding. Parameters are called and lie as in transformers' GPT2LMHeadModel, whose
// "Conv1D" layers have inputs x outputs.
#include <fmt/format.h>

#include <cmath>

#include "models/transformer.h"

namespace plimsoll {
namespace {

constexpr double kGpt2Deviation = 0.02, kGpt2Epsilon = 1e-5;
constexpr int64_t kGpt2Positions = 1024;  // that the published weights have

TensorId conv1d(Builder& net, const std::string& layer, TensorId x, int64_t outputs, double deviation) {
  const TensorId weight = net.parameter(layer + ".weight", {net.shape(x).back(), outputs}, normal_init(deviation));
  const TensorId product = net.op("MatMul", layer, {x, weight});
  return net.pointwise(layer + ".add_bias", "add(x0,x1)", {product, net.parameter(layer + ".bias", {outputs})});
}

TensorId gpt2_block(Builder& net, const std::string& at, TensorId x, const TransformerSize& size, double dropout) {
  // The sum of a residual path grows with its blocks; the paper starts what is added to it smaller.
  const double residual = kGpt2Deviation / std::sqrt(2.0 * static_cast<double>(size.layers));
  TensorId y =
      conv1d(net, at + "attn.c_attn", net.layer_norm(at + "ln_1", x, kGpt2Epsilon), 3 * size.width, kGpt2Deviation);
  y = attend(net, at + "attn.", y, size, {.causal = true, .dropout = dropout});
  y = conv1d(net, at + "attn.c_proj", y, size.width, residual);
  x = net.add(at + "attn.add", {x, net.dropout(at + "attn.resid_dropout", y, dropout)});
  y = conv1d(net, at + "mlp.c_fc", net.layer_norm(at + "ln_2", x, kGpt2Epsilon), 4 * size.width, kGpt2Deviation);
  y = net.pointwise(at + "mlp.act", "gelu_tanh(x0)", {y});
  y = conv1d(net, at + "mlp.c_proj", y, size.width, residual);
  return net.add(at + "mlp.add", {x, net.dropout(at + "mlp.dropout", y, dropout)});
}

}  // namespace

Network build_gpt2(const ModelRequest& request) {
  const ModelInput& input = request.input;
  const bool small = request.kind == "gpt-bytes";
  TransformerSize usual{.tokens = input.width};
  if (small) usual = {.tokens = input.width, .layers = 4, .width = 128, .heads = 4};
  const TransformerSize size = transformer_size(request, usual);
  const double dropout = request.options.fraction("dropout", 0);
  const int64_t context = usual_input(request.name).width;
  const int64_t positions =
      request.options.integer("positions", std::max(small ? 1 : kGpt2Positions, context), context, int64_t{1} << 24);
  Builder net = Builder::of_tokens(request.name, input);
  const std::string at = "transformer.";
  const TensorId words = net.parameter(at + "wte.weight", {input.classes, size.width}, normal_init(kGpt2Deviation));
  const TensorId places = net.parameter(at + "wpe.weight", {positions, size.width}, normal_init(kGpt2Deviation));
  TensorId x = net.embedding(at + "wte", net.data(), words);
  x = net.pointwise(at + "wpe.add", "add(x0,x1)", {x, net.slice(at + "wpe", places, 0, 0, size.tokens)});
  x = net.dropout(at + "drop", net.reshape(at + "rows", x, {size.rows(), size.width}), dropout);
  for (int64_t i = 0; i < size.layers; ++i) x = gpt2_block(net, fmt::format("{}h.{}.", at, i), x, size, dropout);
  x = net.layer_norm(at + "ln_f", x, kGpt2Epsilon);
  return std::move(net).finish_language_model(net.op("FullyConnectedForward", "lm_head", {x, words}));
}

}  // namespace plimsoll
