// The vision transformer ViT-B/16 (Dosovitskiy et al., "An image is worth 16x16 words", 2021), with names and first values as
// torchvision's vit_b_16 has them.
#include <fmt/format.h>

#include <cmath>

#include "models/transformer.h"
#include "plimsoll/error.h"

namespace plimsoll {
namespace {

constexpr int64_t kPatch = 16;
constexpr double kVitEpsilon = 1e-6;

Initializer uniform_init(double bound) { return {Initializer::Kind::uniform, 0, bound}; }
double xavier_bound(int64_t inputs, int64_t outputs) { return std::sqrt(6.0 / static_cast<double>(inputs + outputs)); }

TensorId mlp_layer(Builder& net, const std::string& layer, TensorId x, int64_t outputs) {
  const int64_t inputs = net.shape(x).back();
  const TensorId weight =
      net.parameter(layer + ".weight", {outputs, inputs}, uniform_init(xavier_bound(inputs, outputs)));
  return net.op("FullyConnectedForward", layer,
                {x, weight, net.parameter(layer + ".bias", {outputs}, normal_init(1e-6))});
}

TensorId vit_block(Builder& net, const std::string& at, TensorId x, const TransformerSize& size) {
  const int64_t width = size.width;
  const std::string self = at + "self_attention.";
  TensorId y = net.layer_norm(at + "ln_1", x, kVitEpsilon);
  const TensorId weight =
      net.parameter(self + "in_proj_weight", {3 * width, width}, uniform_init(xavier_bound(width, 3 * width)));
  y = net.op("FullyConnectedForward", self + "in_proj", {y, weight, net.parameter(self + "in_proj_bias", {3 * width})});
  y = attend(net, self, y, size, {});
  y = linear(net, self + "out_proj", y, width, uniform_init(1 / std::sqrt(static_cast<double>(width))));
  x = net.add(at + "self_attention.add", {x, y});
  y = mlp_layer(net, at + "mlp.0", net.layer_norm(at + "ln_2", x, kVitEpsilon), 4 * width);
  y = mlp_layer(net, at + "mlp.3", net.pointwise(at + "mlp.1", "gelu(x0)", {y}), width);
  return net.add(at + "mlp.add", {x, y});
}

}  // namespace

Network build_vit(const ModelRequest& request) {
  const ModelInput& input = request.input;
  if (input.height % kPatch != 0 || input.width % kPatch != 0) {
    throw Error(ErrorCode::invalid_input, fmt::format("{} needs images of whole patches of {}x{}, not {}x{}",
                                                      request.name, kPatch, kPatch, input.height, input.width));
  }
  const int64_t patches = input.height / kPatch * (input.width / kPatch);
  const TransformerSize size = transformer_size(request, {.tokens = patches + 1});
  Builder net(request.name, input);
  net.conv_init = {WeightInit::Kind::normal, std::sqrt(1.0 / static_cast<double>(input.channels * kPatch * kPatch))};
  TensorId x = net.conv("conv_proj", net.data(), {.channels = size.width, .kernel = kPatch, .stride = kPatch});
  x = net.permute("patches", net.reshape("pixels", x, {size.batch, size.width, patches}), {0, 2, 1});
  const TensorId token = net.parameter("class_token", {1, 1, size.width});
  const Shape first{size.batch, 1, size.width};
  x = net.concat("with_class_token", {net.op("Expand", "class_tokens", {token}, {{"shape", first}}), x});
  x = net.pointwise("encoder.add", "add(x0,x1)",
                    {x, net.parameter("encoder.pos_embedding", {1, size.tokens, size.width}, normal_init(0.02))});
  x = net.reshape("encoder.rows", x, {size.rows(), size.width});
  for (int64_t i = 0; i < size.layers; ++i)
    x = vit_block(net, fmt::format("encoder.layers.encoder_layer_{}.", i), x, size);
  x = net.reshape("encoder.tokens", net.layer_norm("encoder.ln", x, kVitEpsilon),
                  {size.batch, size.tokens, size.width});
  x = net.reshape("class_row", net.slice("class", x, 1, 0, 1), {size.batch, size.width});
  return std::move(net).finish_classifier(linear(net, "heads.head", x, input.classes, {}));
}

}  // namespace plimsoll
