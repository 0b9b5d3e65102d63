// Inception v4 (Szegedy et al. 2017), named as in timm. The branches of a C block join in one concat, as in
// SuperNeurons.
#include <fmt/format.h>

#include "models/catalog.h"

namespace plimsoll {
namespace {

constexpr PoolOptions kReduce{.kernel = 3, .stride = 2};
constexpr PoolOptions kSmoothInside{.kernel = 3, .stride = 1, .padding = 1, .count_include_pad = false};

struct Unit {
  int64_t channels;
  Extent kernel = 1, stride = 1;
  bool same = true;  // padded so that the size stays
};

TensorId conv_unit(Builder& net, const std::string& at, TensorId x, const Unit& u) {
  const Extent padding = u.same ? Extent(u.kernel.h / 2, u.kernel.w / 2) : Extent(0);
  x = net.conv(at + ".conv", x,
               {.channels = u.channels, .kernel = u.kernel, .stride = u.stride, .padding = padding, .bias = false});
  return net.relu(at + ".relu", net.batch_norm(at + ".bn", x));
}

// Several units in a row, called "<at>.0", "<at>.1", ...
TensorId chain(Builder& net, const std::string& at, TensorId x, const std::vector<Unit>& units, int first = 0) {
  for (const Unit& u : units) x = conv_unit(net, fmt::format("{}.{}", at, first++), x, u);
  return x;
}

TensorId pooled(Builder& net, const std::string& at, TensorId x, int64_t channels) {
  return chain(net, at, net.avg_pool(at + ".0", x, kSmoothInside), {{channels}}, 1);
}

TensorId inception_a(Builder& net, const std::string& at, TensorId x) {
  const TensorId a = conv_unit(net, at + "branch0", x, {96});
  const TensorId b = chain(net, at + "branch1", x, {{64}, {96, 3}});
  const TensorId c = chain(net, at + "branch2", x, {{64}, {96, 3}, {96, 3}});
  return net.concat(at + "concat", {a, b, c, pooled(net, at + "branch3", x, 96)});
}

TensorId reduction_a(Builder& net, const std::string& at, TensorId x) {
  const TensorId a = conv_unit(net, at + "branch0", x, {384, 3, 2, false});
  const TensorId b = chain(net, at + "branch1", x, {{192}, {224, 3}, {256, 3, 2, false}});
  return net.concat(at + "concat", {a, b, net.max_pool(at + "branch2", x, kReduce)});
}

TensorId inception_b(Builder& net, const std::string& at, TensorId x) {
  const Extent row(1, 7), column(7, 1);
  const TensorId a = conv_unit(net, at + "branch0", x, {384});
  const TensorId b = chain(net, at + "branch1", x, {{192}, {224, row}, {256, column}});
  const TensorId c = chain(net, at + "branch2", x, {{192}, {192, column}, {224, row}, {224, column}, {256, row}});
  return net.concat(at + "concat", {a, b, c, pooled(net, at + "branch3", x, 128)});
}

TensorId reduction_b(Builder& net, const std::string& at, TensorId x) {
  const TensorId a = chain(net, at + "branch0", x, {{192}, {192, 3, 2, false}});
  const TensorId b = chain(net, at + "branch1", x, {{256}, {256, {1, 7}}, {320, {7, 1}}, {320, 3, 2, false}});
  return net.concat(at + "concat", {a, b, net.max_pool(at + "branch2", x, kReduce)});
}

TensorId inception_c(Builder& net, const std::string& at, TensorId x) {
  const Extent row(1, 3), column(3, 1);
  const TensorId a = conv_unit(net, at + "branch0", x, {256});
  const TensorId b = conv_unit(net, at + "branch1_0", x, {384});
  const TensorId b1 = conv_unit(net, at + "branch1_1a", b, {256, row}),
                 b2 = conv_unit(net, at + "branch1_1b", b, {256, column});
  TensorId c = conv_unit(net, at + "branch2_1", conv_unit(net, at + "branch2_0", x, {384}), {448, column});
  c = conv_unit(net, at + "branch2_2", c, {512, row});
  const TensorId c1 = conv_unit(net, at + "branch2_3a", c, {256, row}),
                 c2 = conv_unit(net, at + "branch2_3b", c, {256, column});
  return net.concat(at + "concat", {a, b1, b2, c1, c2, pooled(net, at + "branch3", x, 256)});
}

TensorId stem(Builder& net, TensorId x) {
  x = conv_unit(net, "features.0", x, {32, 3, 2, false});
  x = conv_unit(net, "features.1", x, {32, 3, 1, false});
  x = conv_unit(net, "features.2", x, {64, 3});
  TensorId a = net.max_pool("features.3.maxpool", x, kReduce);
  x = net.concat("features.3.concat", {a, conv_unit(net, "features.3.conv", x, {96, 3, 2, false})});
  a = chain(net, "features.4.branch0", x, {{64}, {96, 3, 1, false}});
  const TensorId b = chain(net, "features.4.branch1", x, {{64}, {64, {1, 7}}, {64, {7, 1}}, {96, 3, 1, false}});
  x = net.concat("features.4.concat", {a, b});
  a = conv_unit(net, "features.5.conv", x, {192, 3, 2, false});
  return net.concat("features.5.concat", {a, net.max_pool("features.5.maxpool", x, kReduce)});
}

}  // namespace

Network build_inception4(const ModelRequest& request) {
  const double p = request.options.fraction("dropout", 0.2);
  Builder net(request.name, request.input);
  net.batch_norm_options.epsilon = 1e-3;
  TensorId x = stem(net, net.data());
  int index = 6;
  auto next = [&index] { return fmt::format("features.{}.", index++); };
  for (int i = 0; i < 4; ++i) x = inception_a(net, next(), x);
  x = reduction_a(net, next(), x);
  for (int i = 0; i < 7; ++i) x = inception_b(net, next(), x);
  x = reduction_b(net, next(), x);
  for (int i = 0; i < 3; ++i) x = inception_c(net, next(), x);
  x = net.dropout("dropout", net.flatten("flatten", net.global_avg_pool("global_pool", x)), p);
  x = net.fully_connected("last_linear", x, {.channels = request.input.classes});
  return std::move(net).finish_classifier(x);
}

}  // namespace plimsoll
