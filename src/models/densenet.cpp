// DenseNet: the ImageNet ones named as in torchvision, and the CIFAR ones of Huang et al., section 3 (three blocks, no
// bottleneck, no compression). Each layer's maps are appended to the concat before them, so that only the concats need
// to be kept; torchvision concatenates the same maps in the same order from the single pieces.
#include <fmt/format.h>

#include "models/catalog.h"

namespace plimsoll {
namespace {

TensorId same_conv(Builder& net, const std::string& layer, TensorId x, int64_t channels, int64_t kernel) {
  return net.conv(layer, x, {.channels = channels, .kernel = kernel, .padding = kernel / 2, .bias = false});
}

TensorId dense_block(Builder& net, const std::string& at, TensorId x, int64_t layers, int64_t growth, bool bottleneck) {
  for (int64_t i = 1; i <= layers; ++i) {
    const std::string layer = fmt::format("{}.denselayer{}.", at, i);
    TensorId y = net.relu(layer + "relu1", net.batch_norm(layer + "norm1", x));
    if (bottleneck) {
      y = net.batch_norm(layer + "norm2", same_conv(net, layer + "conv1", y, 4 * growth, 1));
      y = same_conv(net, layer + "conv2", net.relu(layer + "relu2", y), growth, 3);
    } else {
      y = same_conv(net, layer + "conv1", y, growth, 3);
    }
    x = net.concat(layer + "concat", {x, y});
  }
  return x;
}

TensorId transition(Builder& net, const std::string& at, TensorId x, int64_t channels) {
  x = same_conv(net, at + ".conv", net.relu(at + ".relu", net.batch_norm(at + ".norm", x)), channels, 1);
  return net.avg_pool(at + ".pool", x, {});
}

// Blocks with transitions between them, and the classifier.
Network finish(Builder net, TensorId x, const std::vector<int64_t>& blocks, int64_t growth, bool imagenet) {
  for (size_t b = 0; b < blocks.size(); ++b) {
    x = dense_block(net, fmt::format("features.denseblock{}", b + 1), x, blocks[b], growth, imagenet);
    if (b + 1 == blocks.size()) break;
    const int64_t channels = net.shape(x)[1];
    x = transition(net, fmt::format("features.transition{}", b + 1), x, imagenet ? channels / 2 : channels);
  }
  const std::string norm = fmt::format("features.norm{}", blocks.size() + 1);
  x = net.relu("relu", net.batch_norm(norm, x));
  x = net.flatten("flatten", net.global_avg_pool("avgpool", x));
  x = net.fully_connected("classifier", x, {.channels = net.input().classes});
  return std::move(net).finish_classifier(x);
}

}  // namespace

Network build_densenet(const ModelRequest& request) {
  const std::string_view kind = request.kind;
  std::vector<int64_t> blocks{6, 12, 24, 16};
  if (kind == "densenet161") blocks = {6, 12, 36, 24};
  if (kind == "densenet169") blocks = {6, 12, 32, 32};
  if (kind == "densenet201") blocks = {6, 12, 48, 32};
  const int64_t growth = kind == "densenet161" ? 48 : 32;
  Builder net(request.name, request.input);
  net.conv_init.kind = WeightInit::Kind::kaiming_fan_in;
  TensorId x = net.conv("features.conv0", net.data(),
                        {.channels = 2 * growth, .kernel = 7, .stride = 2, .padding = 3, .bias = false});
  x = net.relu("features.relu0", net.batch_norm("features.norm0", x));
  x = net.max_pool("features.pool0", x, {.kernel = 3, .stride = 2, .padding = 1});
  return finish(std::move(net), x, blocks, growth, true);
}

Network build_cifar_densenet(const ModelRequest& request) {
  const int64_t depth = request.options.integer("depth", 40, 7, 1000);
  const int64_t growth = request.options.integer("growth", 12, 1, 1000);
  if ((depth - 4) % 3 != 0) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("option 'depth': {} is not 3n + 4 (7, 10, ..., 40, ..., 100, ...); the nearest is {}",
                            depth, 4 + (depth - 3) / 3 * 3));
  }
  Builder net(request.name, request.input);
  net.conv_init.kind = WeightInit::Kind::kaiming_fan_in;
  const TensorId x = same_conv(net, "features.conv0", net.data(), 16, 3);
  return finish(std::move(net), x, std::vector<int64_t>(3, (depth - 4) / 3), growth, false);
}

}  // namespace plimsoll
