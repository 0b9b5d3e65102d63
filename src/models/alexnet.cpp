// AlexNet as SuperNeurons has it: 23 layers, 227 x 227 images, one tower (no groups), local response normalisation.
#include "models/catalog.h"

namespace plimsoll {

Network build_alexnet(const ModelRequest& request) {
  const double p = request.options.fraction("dropout", 0.5);
  const PoolOptions pool{.kernel = 3, .stride = 2};
  Builder net(request.name, request.input);
  TensorId x = net.relu("relu1", net.conv("conv1", net.data(), {.channels = 96, .kernel = 11, .stride = 4}));
  x = net.max_pool("pool1", net.lrn("lrn1", x, {}), pool);
  x = net.relu("relu2", net.conv("conv2", x, {.channels = 256, .kernel = 5, .padding = 2}));
  x = net.max_pool("pool2", net.lrn("lrn2", x, {}), pool);
  x = net.relu("relu3", net.conv("conv3", x, {.channels = 384, .kernel = 3, .padding = 1}));
  x = net.relu("relu4", net.conv("conv4", x, {.channels = 384, .kernel = 3, .padding = 1}));
  x = net.relu("relu5", net.conv("conv5", x, {.channels = 256, .kernel = 3, .padding = 1}));
  x = net.flatten("flatten", net.max_pool("pool5", x, pool));
  x = net.relu("relu6", net.fully_connected("fc6", x, {.channels = 4096}));
  x = net.dropout("dropout6", x, p);
  x = net.relu("relu7", net.fully_connected("fc7", x, {.channels = 4096}));
  x = net.dropout("dropout7", x, p);
  x = net.fully_connected("fc8", x, {.channels = request.input.classes});
  return std::move(net).finish_classifier(x);
}

}  // namespace plimsoll
