// BERT (Devlin et al., "BERT: pre-training of deep bidirectional transformers", 2019) with its masked language model, and
// without the next sentence: every token is of the first segment, and windows have no padding. Parameters are called as in
// transformers' BertForMaskedLM.
#include <fmt/format.h>

#include "models/transformer.h"

namespace plimsoll {
namespace {

constexpr double kBertDeviation = 0.02, kBertEpsilon = 1e-12;
constexpr int64_t kBertPositions = 512;  // that the published weights have

TensorId bert_block(Builder& net, const std::string& at, TensorId x, const TransformerSize& size, double dropout) {
  const Initializer init = normal_init(kBertDeviation);
  const std::string self = at + "attention.self.";
  TensorId parts[3];
  const char* const names[] = {"query", "key", "value"};
  for (int i = 0; i < 3; ++i) {
    const std::string layer = self + names[i];
    parts[i] = divide_heads(net, layer, linear(net, layer, x, size.width, init), size, size.heads);
  }
  TensorId y = net.attention(self + "attention", parts[0], parts[1], parts[2], {.dropout = dropout});
  y = linear(net, at + "attention.output.dense", join_heads(net, self + "joined", y), size.width, init);
  y = net.add(at + "attention.output.add", {x, net.dropout(at + "attention.output.dropout", y, dropout)});
  x = net.layer_norm(at + "attention.output.LayerNorm", y, kBertEpsilon);
  y = linear(net, at + "intermediate.dense", x, 4 * size.width, init);
  y = net.pointwise(at + "intermediate.act", "gelu(x0)", {y});
  y = linear(net, at + "output.dense", y, size.width, init);
  y = net.add(at + "output.add", {x, net.dropout(at + "output.dropout", y, dropout)});
  return net.layer_norm(at + "output.LayerNorm", y, kBertEpsilon);
}

}  // namespace

Network build_bert(const ModelRequest& request) {
  const ModelInput& input = request.input;
  const TransformerSize size = transformer_size(request, {.tokens = input.width});
  const double dropout = request.options.fraction("dropout", 0);
  const int64_t context = usual_input(request.name).width;
  const int64_t positions =
      request.options.integer("positions", std::max(kBertPositions, context), context, int64_t{1} << 24);
  const Initializer init = normal_init(kBertDeviation);
  Builder net = Builder::of_tokens(request.name, input);
  const std::string at = "bert.embeddings.";
  const TensorId words = net.parameter(at + "word_embeddings.weight", {input.classes, size.width}, init);
  const TensorId places = net.parameter(at + "position_embeddings.weight", {positions, size.width}, init);
  const TensorId segments = net.parameter(at + "token_type_embeddings.weight", {2, size.width}, init);
  TensorId x = net.embedding(at + "word_embeddings", net.data(), words);
  x = net.pointwise(at + "add", "add(add(x0,x1),x2)",
                    {x, net.slice(at + "position_embeddings", places, 0, 0, size.tokens),
                     net.slice(at + "token_type_embeddings", segments, 0, 0, 1)});
  x = net.layer_norm(at + "LayerNorm", net.reshape(at + "rows", x, {size.rows(), size.width}), kBertEpsilon);
  x = net.dropout(at + "dropout", x, dropout);
  for (int64_t i = 0; i < size.layers; ++i)
    x = bert_block(net, fmt::format("bert.encoder.layer.{}.", i), x, size, dropout);
  const std::string head = "cls.predictions.";
  x = linear(net, head + "transform.dense", x, size.width, init);
  x = net.pointwise(head + "transform.act", "gelu(x0)", {x});
  x = net.layer_norm(head + "transform.LayerNorm", x, kBertEpsilon);
  const TensorId bias = net.parameter(head + "bias", {input.classes});
  return std::move(net).finish_language_model(net.op("FullyConnectedForward", head + "decoder", {x, words, bias}));
}

}  // namespace plimsoll
