// Inception v3 without its auxiliary classifier, named as in torchvision.
#include "models/catalog.h"

namespace plimsoll {
namespace {

constexpr PoolOptions kHalve{.kernel = 3, .stride = 2};
constexpr PoolOptions kSmooth{.kernel = 3, .stride = 1, .padding = 1};

// Convolution, batch norm and ReLU; `at` is the module's name.
TensorId unit(Builder& net, const std::string& at, TensorId x, int64_t channels, Extent kernel, Extent padding = 0,
              Extent stride = 1) {
  x = net.conv(at + ".conv", x,
               {.channels = channels, .kernel = kernel, .stride = stride, .padding = padding, .bias = false});
  return net.relu(at + ".relu", net.batch_norm(at + ".bn", x));
}

constexpr Extent kRow{1, 7}, kRowPadding{0, 3}, kColumn{7, 1}, kColumnPadding{3, 0};

TensorId block_a(Builder& net, const std::string& at, TensorId x, int64_t pool_channels) {
  const TensorId a = unit(net, at + ".branch1x1", x, 64, 1);
  const TensorId b = unit(net, at + ".branch5x5_2", unit(net, at + ".branch5x5_1", x, 48, 1), 64, 5, 2);
  TensorId c = unit(net, at + ".branch3x3dbl_2", unit(net, at + ".branch3x3dbl_1", x, 64, 1), 96, 3, 1);
  c = unit(net, at + ".branch3x3dbl_3", c, 96, 3, 1);
  const TensorId d = unit(net, at + ".branch_pool", net.avg_pool(at + ".pool", x, kSmooth), pool_channels, 1);
  return net.concat(at + ".concat", {a, b, c, d});
}

TensorId block_b(Builder& net, const std::string& at, TensorId x) {
  const TensorId a = unit(net, at + ".branch3x3", x, 384, 3, 0, 2);
  TensorId b = unit(net, at + ".branch3x3dbl_2", unit(net, at + ".branch3x3dbl_1", x, 64, 1), 96, 3, 1);
  b = unit(net, at + ".branch3x3dbl_3", b, 96, 3, 0, 2);
  return net.concat(at + ".concat", {a, b, net.max_pool(at + ".pool", x, kHalve)});
}

TensorId block_c(Builder& net, const std::string& at, TensorId x, int64_t width) {
  const TensorId a = unit(net, at + ".branch1x1", x, 192, 1);
  TensorId b = unit(net, at + ".branch7x7_2", unit(net, at + ".branch7x7_1", x, width, 1), width, kRow, kRowPadding);
  b = unit(net, at + ".branch7x7_3", b, 192, kColumn, kColumnPadding);
  TensorId c = unit(net, at + ".branch7x7dbl_1", x, width, 1);
  c = unit(net, at + ".branch7x7dbl_2", c, width, kColumn, kColumnPadding);
  c = unit(net, at + ".branch7x7dbl_3", c, width, kRow, kRowPadding);
  c = unit(net, at + ".branch7x7dbl_4", c, width, kColumn, kColumnPadding);
  c = unit(net, at + ".branch7x7dbl_5", c, 192, kRow, kRowPadding);
  const TensorId d = unit(net, at + ".branch_pool", net.avg_pool(at + ".pool", x, kSmooth), 192, 1);
  return net.concat(at + ".concat", {a, b, c, d});
}

TensorId block_d(Builder& net, const std::string& at, TensorId x) {
  const TensorId a = unit(net, at + ".branch3x3_2", unit(net, at + ".branch3x3_1", x, 192, 1), 320, 3, 0, 2);
  TensorId b = unit(net, at + ".branch7x7x3_2", unit(net, at + ".branch7x7x3_1", x, 192, 1), 192, kRow, kRowPadding);
  b = unit(net, at + ".branch7x7x3_3", b, 192, kColumn, kColumnPadding);
  b = unit(net, at + ".branch7x7x3_4", b, 192, 3, 0, 2);
  return net.concat(at + ".concat", {a, b, net.max_pool(at + ".pool", x, kHalve)});
}

TensorId block_e(Builder& net, const std::string& at, TensorId x) {
  const TensorId a = unit(net, at + ".branch1x1", x, 320, 1);
  const TensorId b = unit(net, at + ".branch3x3_1", x, 384, 1);
  const TensorId b1 = unit(net, at + ".branch3x3_2a", b, 384, {1, 3}, {0, 1});
  const TensorId b2 = unit(net, at + ".branch3x3_2b", b, 384, {3, 1}, {1, 0});
  const TensorId c = unit(net, at + ".branch3x3dbl_2", unit(net, at + ".branch3x3dbl_1", x, 448, 1), 384, 3, 1);
  const TensorId c1 = unit(net, at + ".branch3x3dbl_3a", c, 384, {1, 3}, {0, 1});
  const TensorId c2 = unit(net, at + ".branch3x3dbl_3b", c, 384, {3, 1}, {1, 0});
  const TensorId d = unit(net, at + ".branch_pool", net.avg_pool(at + ".pool", x, kSmooth), 192, 1);
  return net.concat(at + ".concat", {a, b1, b2, c1, c2, d});
}

}  // namespace

Network build_inception3(const ModelRequest& request) {
  const double p = request.options.fraction("dropout", 0.5);
  Builder net(request.name, request.input);
  net.conv_init = net.fully_connected_init = {WeightInit::Kind::normal, 0.1};
  net.batch_norm_options.epsilon = 1e-3;
  TensorId x = unit(net, "Conv2d_1a_3x3", net.data(), 32, 3, 0, 2);
  x = unit(net, "Conv2d_2b_3x3", unit(net, "Conv2d_2a_3x3", x, 32, 3), 64, 3, 1);
  x = net.max_pool("maxpool1", x, kHalve);
  x = unit(net, "Conv2d_4a_3x3", unit(net, "Conv2d_3b_1x1", x, 80, 1), 192, 3);
  x = net.max_pool("maxpool2", x, kHalve);
  x = block_a(net, "Mixed_5b", x, 32);
  x = block_a(net, "Mixed_5c", x, 64);
  x = block_a(net, "Mixed_5d", x, 64);
  x = block_b(net, "Mixed_6a", x);
  x = block_c(net, "Mixed_6b", x, 128);
  x = block_c(net, "Mixed_6c", x, 160);
  x = block_c(net, "Mixed_6d", x, 160);
  x = block_c(net, "Mixed_6e", x, 192);
  x = block_d(net, "Mixed_7a", x);
  x = block_e(net, "Mixed_7b", x);
  x = block_e(net, "Mixed_7c", x);
  x = net.dropout("dropout", net.flatten("flatten", net.global_avg_pool("avgpool", x)), p);
  x = net.fully_connected("fc", x, {.channels = request.input.classes});
  return std::move(net).finish_classifier(x);
}

}  // namespace plimsoll
