// The small networks that a first try uses.
#include <fmt/format.h>

#include "models/catalog.h"

namespace plimsoll {

Network build_mlp(const ModelRequest& request) {
  Builder net(request.name, request.input);
  TensorId x = net.flatten("flatten", net.data());
  int i = 1;
  for (int64_t width : request.options.list("hidden", {256, 128})) {
    x = net.relu(fmt::format("relu{}", i), net.fully_connected(fmt::format("fc{}", i), x, {.channels = width}));
    ++i;
  }
  x = net.fully_connected(fmt::format("fc{}", i), x, {.channels = request.input.classes});
  return std::move(net).finish_classifier(x);
}

// LeNet-5 with ReLU and max pooling. Images below 16 pixels would leave nothing after the second convolution, so for
// them it is padded.
Network build_lenet(const ModelRequest& request) {
  const ModelInput& input = request.input;
  const int64_t padding = std::min(input.height, input.width) < 16 ? 2 : 0;
  Builder net(request.name, input);
  TensorId x = net.relu("relu1", net.conv("conv1", net.data(), {.channels = 6, .kernel = 5, .padding = 2}));
  x = net.max_pool("pool1", x, {});
  x = net.relu("relu2", net.conv("conv2", x, {.channels = 16, .kernel = 5, .padding = padding}));
  x = net.flatten("flatten", net.max_pool("pool2", x, {}));
  x = net.relu("relu3", net.fully_connected("fc1", x, {.channels = 120}));
  x = net.relu("relu4", net.fully_connected("fc2", x, {.channels = 84}));
  x = net.fully_connected("fc3", x, {.channels = input.classes});
  return std::move(net).finish_classifier(x);
}

}  // namespace plimsoll
