// VGG without batch norm (configurations A, B, D, E), named as in torchvision.
#include <fmt/format.h>

#include "models/catalog.h"

namespace plimsoll {
namespace {

// Convolutions in each of the five blocks.
std::vector<int> block_depths(std::string_view kind) {
  if (kind == "vgg11") return {1, 1, 2, 2, 2};
  if (kind == "vgg13") return {2, 2, 2, 2, 2};
  if (kind == "vgg16") return {2, 2, 3, 3, 3};
  return {2, 2, 4, 4, 4};
}

// Down to at most 7 x 7 by averages of equal windows: nothing to do at 224, and small images stay as small as they are.
TensorId pool_to_seven(Builder& net, TensorId x) {
  auto window = [](int64_t size) {
    const int64_t stride = std::max<int64_t>(size / 7, 1);
    return std::pair(size <= 7 ? int64_t{1} : size - 6 * stride, stride);
  };
  const auto [kernel_h, stride_h] = window(net.shape(x)[2]);
  const auto [kernel_w, stride_w] = window(net.shape(x)[3]);
  if (kernel_h == 1 && kernel_w == 1) return x;
  return net.avg_pool("avgpool", x, {.kernel = {kernel_h, kernel_w}, .stride = {stride_h, stride_w}});
}

}  // namespace

Network build_vgg(const ModelRequest& request) {
  const double p = request.options.fraction("dropout", 0.5);
  Builder net(request.name, request.input);
  net.conv_init.kind = WeightInit::Kind::kaiming_fan_out;
  net.fully_connected_init = {WeightInit::Kind::normal, 0.01};
  int index = 0;
  auto next = [&index] { return fmt::format("features.{}", index++); };
  TensorId x = net.data();
  int64_t channels = 64;
  for (int depth : block_depths(request.kind)) {
    for (int i = 0; i < depth; ++i) {
      x = net.conv(next(), x, {.channels = channels, .kernel = 3, .padding = 1});
      x = net.relu(next(), x);
    }
    x = net.max_pool(next(), x, {});
    channels = std::min<int64_t>(channels * 2, 512);
  }
  x = net.flatten("flatten", pool_to_seven(net, x));
  x = net.relu("classifier.1", net.fully_connected("classifier.0", x, {.channels = 4096}));
  x = net.dropout("classifier.2", x, p);
  x = net.relu("classifier.4", net.fully_connected("classifier.3", x, {.channels = 4096}));
  x = net.dropout("classifier.5", x, p);
  x = net.fully_connected("classifier.6", x, {.channels = request.input.classes});
  return std::move(net).finish_classifier(x);
}

}  // namespace plimsoll
