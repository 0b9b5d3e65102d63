// Residual networks: the ImageNet ones named as in torchvision (stride on the 3x3 convolution of a bottleneck), and the
// CIFAR ones of He et al., section 4.2, whose shortcuts have no parameters (option A).
#include <fmt/format.h>

#include "models/catalog.h"

namespace plimsoll {
namespace {

struct Depths {
  std::vector<int64_t> blocks;
  bool bottleneck;
};

Depths imagenet_depths(const ModelRequest& request) {
  const std::string_view kind = request.kind;
  if (kind == "resnet18") return {{2, 2, 2, 2}, false};
  if (kind == "resnet34") return {{3, 4, 6, 3}, false};
  if (kind == "resnet50") return {{3, 4, 6, 3}, true};
  if (kind == "resnet101") return {{3, 4, 23, 3}, true};
  if (kind == "resnet152") return {{3, 8, 36, 3}, true};
  return {request.options.list("blocks", {3, 4, 6, 3}, 4), true};
}

TensorId conv(Builder& net, const std::string& layer, TensorId x, int64_t channels, int64_t kernel,
              int64_t stride = 1) {
  return net.conv(layer, x,
                  {.channels = channels, .kernel = kernel, .stride = stride, .padding = kernel / 2, .bias = false});
}

TensorId imagenet_block(Builder& net, const std::string& at, TensorId x, int64_t width, int64_t stride,
                        bool bottleneck) {
  const int64_t channels = bottleneck ? 4 * width : width;
  TensorId y = conv(net, at + "conv1", x, width, bottleneck ? 1 : 3, bottleneck ? 1 : stride);
  y = net.relu(at + "relu1", net.batch_norm(at + "bn1", y));
  y = net.batch_norm(at + "bn2", conv(net, at + "conv2", y, width, 3, bottleneck ? stride : 1));
  if (bottleneck) y = net.batch_norm(at + "bn3", conv(net, at + "conv3", net.relu(at + "relu2", y), channels, 1));
  if (stride != 1 || net.shape(x)[1] != channels) {
    x = net.batch_norm(at + "downsample.1", conv(net, at + "downsample.0", x, channels, 1, stride));
  }
  return net.relu(at + "relu", net.add(at + "add", {y, x}));
}

// Every second pixel, and zeros for the channels that are not there yet.
TensorId shortcut(Builder& net, const std::string& at, TensorId x, int64_t channels, int64_t stride) {
  if (stride == 1) return x;
  x = net.avg_pool(at + "shortcut.pool", x, {.kernel = 1, .stride = stride});
  Shape missing = net.shape(x);
  missing[1] = channels - missing[1];
  return net.concat(at + "shortcut.concat", {x, net.constant(at + "shortcut.zeros", missing, 0)});
}

}  // namespace

Network build_resnet(const ModelRequest& request) {
  const Depths depths = imagenet_depths(request);
  Builder net(request.name, request.input);
  net.conv_init.kind = WeightInit::Kind::kaiming_fan_out;
  TensorId x = net.relu("relu", net.batch_norm("bn1", conv(net, "conv1", net.data(), 64, 7, 2)));
  x = net.max_pool("maxpool", x, {.kernel = 3, .stride = 2, .padding = 1});
  for (size_t stage = 0; stage < 4; ++stage) {
    for (int64_t i = 0; i < depths.blocks[stage]; ++i) {
      const int64_t stride = stage > 0 && i == 0 ? 2 : 1;
      x = imagenet_block(net, fmt::format("layer{}.{}.", stage + 1, i), x, int64_t{64} << stage, stride,
                         depths.bottleneck);
    }
  }
  x = net.flatten("flatten", net.global_avg_pool("avgpool", x));
  x = net.fully_connected("fc", x, {.channels = request.input.classes});
  return std::move(net).finish_classifier(x);
}

Network build_cifar_resnet(const ModelRequest& request) {
  const int64_t depth = std::stoll(std::string(request.kind.substr(6)));  // 6 n + 2
  const bool normalized = request.options.integer("bn", 1, 0, 1) != 0;
  Builder net(request.name, request.input);
  net.conv_init.kind = WeightInit::Kind::kaiming_fan_out;
  auto norm = [&](const std::string& layer, TensorId x) { return normalized ? net.batch_norm(layer, x) : x; };
  TensorId x = net.relu("relu", norm("bn1", conv(net, "conv1", net.data(), 16, 3)));
  for (int64_t stage = 0; stage < 3; ++stage) {
    const int64_t channels = int64_t{16} << stage;
    for (int64_t i = 0; i < (depth - 2) / 6; ++i) {
      const std::string at = fmt::format("layer{}.{}.", stage + 1, i);
      const int64_t stride = stage > 0 && i == 0 ? 2 : 1;
      TensorId y = norm(at + "bn1", conv(net, at + "conv1", x, channels, 3, stride));
      y = norm(at + "bn2", conv(net, at + "conv2", net.relu(at + "relu1", y), channels, 3));
      x = net.relu(at + "relu", net.add(at + "add", {y, shortcut(net, at, x, channels, stride)}));
    }
  }
  x = net.flatten("flatten", net.global_avg_pool("avgpool", x));
  x = net.fully_connected("fc", x, {.channels = request.input.classes});
  return std::move(net).finish_classifier(x);
}

}  // namespace plimsoll
