#include "models/transformer.h"

#include <fmt/format.h>

#include "plimsoll/error.h"

namespace plimsoll {

namespace {

constexpr int64_t kMostLayers = 1000, kMostWidth = 1 << 17;

}  // namespace

TransformerSize transformer_size(const ModelRequest& request, const TransformerSize& usual) {
  const ModelOptions& options = request.options;
  const TransformerSize size{.batch = request.input.batch,
                             .tokens = usual.tokens,
                             .layers = options.integer("layers", usual.layers, 1, kMostLayers),
                             .width = options.integer("width", usual.width, 1, kMostWidth),
                             .heads = options.integer("heads", usual.heads, 1, kMostWidth)};
  if (size.width % size.heads == 0) return size;
  throw Error(ErrorCode::invalid_input,
              fmt::format("model '{}': width {} is no multiple of its {} heads", request.name, size.width, size.heads));
}

TensorId linear(Builder& net, const std::string& layer, TensorId x, int64_t outputs, const Initializer& init,
                bool bias) {
  std::vector<TensorId> inputs{x, net.parameter(layer + ".weight", {outputs, net.shape(x).back()}, init)};
  if (bias) inputs.push_back(net.parameter(layer + ".bias", {outputs}));
  return net.op("FullyConnectedForward", layer, std::move(inputs));
}

TensorId divide_heads(Builder& net, const std::string& layer, TensorId rows, const TransformerSize& size,
                      int64_t heads) {
  const TensorId x = net.reshape(layer + ".view", rows, {size.batch, size.tokens, heads, size.head_width()});
  return net.permute(layer + ".heads", x, {0, 2, 1, 3});
}

TensorId join_heads(Builder& net, const std::string& layer, TensorId x) {
  const Shape s = net.shape(x);
  return net.reshape(layer + ".view", net.permute(layer + ".heads", x, {0, 2, 1, 3}), {s[0] * s[2], s[1] * s[3]});
}

TensorId attend(Builder& net, const std::string& at, TensorId qkv, const TransformerSize& size,
                const AttentionOptions& options) {
  TensorId parts[3];
  const char* const names[] = {"query", "key", "value"};
  for (int i = 0; i < 3; ++i) {
    const std::string layer = at + names[i];
    parts[i] = divide_heads(net, layer, net.slice(layer, qkv, 1, i * size.width, size.width), size, size.heads);
  }
  return join_heads(net, at + "joined", net.attention(at + "attention", parts[0], parts[1], parts[2], options));
}

}  // namespace plimsoll
