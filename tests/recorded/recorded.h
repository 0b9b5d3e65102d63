// What scripts/record_torch.py recorded, and the same networks by our builder.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plimsoll/models.h"
#include "plimsoll/ops.h"

namespace plimsoll::recorded {

using Tensors = std::map<std::string, std::vector<float>>;

inline Tensors read_tensors(const std::string& name) {
  const std::string path = std::string(PLIMSOLL_SOURCE_DIR "/tests/recorded/") + name + ".safetensors";
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  uint64_t header = 0;
  if (bytes.size() < sizeof(header)) throw Error(ErrorCode::corrupt_file, path);
  std::memcpy(&header, bytes.data(), sizeof(header));
  Tensors result;
  const nlohmann::json entries = nlohmann::json::parse(bytes.substr(8, header));
  for (const auto& [key, entry] : entries.items()) {
    const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    std::vector<float>& values = result[key];
    values.resize((end - begin) / sizeof(float));
    std::memcpy(values.data(), bytes.data() + 8 + header + begin, end - begin);
  }
  return result;
}

// `numbers` of the script: even in [-1, 1).
inline std::vector<double> numbers(const std::string& name, int64_t count) {
  uint64_t seed = 0xCBF29CE484222325u;
  for (unsigned char byte : name) seed = (seed ^ byte) * 0x100000001B3u;
  std::vector<double> result;
  for (int64_t i = 1; i <= count; ++i) {
    uint64_t x = seed + static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x ^= x >> 31;
    result.push_back(static_cast<double>(x >> 40) / 8388608.0 - 1.0);
  }
  return result;
}

inline bool ends_with(const std::string& text, std::string_view end) { return text.ends_with(end); }

// `start_value` of the script. Grouped weights have a dimension more here than there, in the same order.
inline std::vector<float> start_value(const std::string& name, const Shape& shape, bool grouped) {
  const std::vector<double> u = numbers(name, element_count(shape));
  double offset = 0, scale = 1;
  if (ends_with(name, "running_mean")) {
    scale = 0.125;
  } else if (ends_with(name, "running_var")) {
    offset = 1, scale = 0.5;
  } else if (ends_with(name, "bias")) {
    scale = 0.25;
  } else if (ends_with(name, "weight") && shape.size() == 1) {
    offset = 1, scale = 0.25;
  } else if (ends_with(name, "weight")) {
    const int64_t outer = grouped ? shape[0] * shape[1] : shape[0];
    scale = 1.5 / std::sqrt(static_cast<double>(element_count(shape) / outer));
  }
  std::vector<float> result;
  for (double x : u) result.push_back(static_cast<float>(offset + scale * x));
  return result;
}

inline Network lenet() {
  Builder net("lenet", {.batch = 4, .channels = 1, .height = 8, .width = 8, .classes = 5});
  TensorId x = net.relu("relu1", net.conv("conv1", net.data(), {.channels = 4, .kernel = 5, .padding = 2}));
  x = net.max_pool("pool1", x, {});
  x = net.relu("relu2", net.conv("conv2", x, {.channels = 8, .kernel = 5, .padding = 2}));
  x = net.flatten("flatten", net.max_pool("pool2", x, {}));
  x = net.relu("relu3", net.fully_connected("fc1", x, {.channels = 24}));
  return std::move(net).finish_classifier(net.fully_connected("fc2", x, {.channels = 5}));
}

inline TensorId bottleneck(Builder& net, const std::string& at, TensorId x, int64_t width, int64_t stride) {
  TensorId y = net.conv(at + "conv1", x, {.channels = width, .bias = false});
  y = net.relu(at + "relu1", net.batch_norm(at + "bn1", y));
  y = net.conv(at + "conv2", y, {.channels = width, .kernel = 3, .stride = stride, .padding = 1, .bias = false});
  y = net.relu(at + "relu2", net.batch_norm(at + "bn2", y));
  y = net.batch_norm(at + "bn3", net.conv(at + "conv3", y, {.channels = 4 * width, .bias = false}));
  if (stride != 1 || net.shape(x)[1] != 4 * width) {
    x = net.conv(at + "downsample.0", x, {.channels = 4 * width, .stride = stride, .bias = false});
    x = net.batch_norm(at + "downsample.1", x);
  }
  return net.relu(at + "relu3", net.add(at + "add", {y, x}));
}

inline Network resnet() {
  Builder net("resnet", {.batch = 3, .channels = 3, .height = 13, .width = 11, .classes = 6});
  TensorId x = net.conv("conv1", net.data(), {.channels = 8, .kernel = 7, .stride = 2, .padding = 3, .bias = false});
  x = net.max_pool("pool", net.relu("relu", net.batch_norm("bn1", x)), {.kernel = 3, .stride = 2, .padding = 1});
  x = bottleneck(net, "layer1.0.", x, 4, 1);
  x = bottleneck(net, "layer1.1.", x, 4, 1);
  x = bottleneck(net, "layer2.0.", x, 6, 2);
  x = net.flatten("flatten", net.global_avg_pool("avgpool", x));
  return std::move(net).finish_classifier(net.fully_connected("fc", x, {.channels = 6}));
}

inline Network inception() {
  Builder net("inception", {.batch = 3, .channels = 4, .height = 9, .width = 10, .classes = 5});
  net.batch_norm_options.epsilon = 0.001;
  auto unit = [&net](const std::string& at, TensorId x, int64_t channels, Extent kernel, Extent padding = 0,
                     Extent stride = 1) {
    x = net.conv(at + ".conv", x,
                 {.channels = channels, .kernel = kernel, .stride = stride, .padding = padding, .bias = false});
    return net.relu(at + ".relu", net.batch_norm(at + ".bn", x));
  };
  const PoolOptions smooth{.kernel = 3, .stride = 1, .padding = 1};
  TensorId x = net.data();
  const TensorId b = unit("b2", unit("b1", x, 3, 1), 4, 5, 2);
  const TensorId c = unit("c3", unit("c2", unit("c1", x, 3, 1), 4, {1, 7}, {0, 3}), 4, {7, 1}, {3, 0});
  const TensorId d = unit("d", net.avg_pool("pool1", x, smooth), 3, 1);
  x = net.concat("concat1", {unit("a", x, 5, 1), b, c, d});
  const TensorId f = unit("f2", unit("f1", x, 4, 1), 5, 3, 0, 2);
  x = net.concat("concat2", {unit("e", x, 6, 3, 0, 2), f, net.max_pool("pool2", x, {.kernel = 3, .stride = 2})});
  PoolOptions edges = smooth;
  edges.count_include_pad = false;
  x = unit("g", net.avg_pool("pool3", x, edges), 6, 1);
  x = net.concat("concat3", {unit("ga", x, 4, {1, 3}, {0, 1}), unit("gb", x, 4, {3, 1}, {1, 0})});
  x = net.flatten("flatten", net.global_avg_pool("avgpool", x));
  return std::move(net).finish_classifier(net.fully_connected("fc", x, {.channels = 5}));
}

inline Network densenet() {
  Builder net("densenet", {.batch = 3, .channels = 2, .height = 8, .width = 8, .classes = 5});
  auto dense = [&net](const std::string& at, TensorId x) {
    TensorId y = net.relu(at + "relu1", net.batch_norm(at + "norm1", x));
    y = net.batch_norm(at + "norm2", net.conv(at + "conv1", y, {.channels = 12, .bias = false}));
    y = net.conv(at + "conv2", net.relu(at + "relu2", y), {.channels = 3, .kernel = 3, .padding = 1, .bias = false});
    return net.concat(at + "concat", {x, y});
  };
  TensorId x = net.conv("conv0", net.data(), {.channels = 6, .kernel = 3, .padding = 1, .bias = false});
  x = dense("layer3.", dense("layer2.", dense("layer1.", x)));
  x = net.conv("conv", net.relu("relu", net.batch_norm("norm", x)), {.channels = 7, .bias = false});
  x = dense("layer4.", net.avg_pool("pool", x, {}));
  x = net.flatten("flatten", net.global_avg_pool("avgpool", net.relu("relu5", net.batch_norm("norm5", x))));
  return std::move(net).finish_classifier(net.fully_connected("classifier", x, {.channels = 5}));
}

inline Network alexnet() {
  Builder net("alexnet", {.batch = 3, .channels = 3, .height = 35, .width = 31, .classes = 6});
  const PoolOptions pool{.kernel = 3, .stride = 2};
  TensorId x = net.relu("relu1", net.conv("conv1", net.data(), {.channels = 8, .kernel = 7, .stride = 2}));
  x = net.max_pool("pool1", net.lrn("lrn1", x, {.size = 5, .alpha = 0.02, .beta = 0.75, .k = 1}), pool);
  x = net.relu("relu2", net.conv("conv2", x, {.channels = 12, .kernel = 5, .padding = 2, .groups = 2}));
  x = net.max_pool("pool2", net.lrn("lrn2", x, {.size = 4, .alpha = 0.5, .beta = 0.6, .k = 2}), pool);
  x = net.relu("relu3", net.conv("conv3", x, {.channels = 8, .kernel = 3, .padding = 1}));
  x = net.relu("relu6", net.fully_connected("fc6", net.flatten("flatten", x), {.channels = 20}));
  return std::move(net).finish_classifier(net.fully_connected("fc7", x, {.channels = 6}));
}

inline Network autoencoder() {
  Builder net("autoencoder", {.batch = 3, .channels = 2, .height = 9, .width = 11, .classes = 1}, false);
  Graph& graph = net.graph();
  TensorId x = net.conv("conv1", net.data(), {.channels = 6, .kernel = 3, .stride = 2, .padding = 1});
  x = net.op("SigmoidForward", "sigmoid", {x});
  x = net.leaky_relu("leaky", net.conv("conv2", x, {.channels = 8, .kernel = 3, .padding = 2, .dilation = 2}), 0.2);
  x = net.conv_transpose("up1", x, {.channels = 6, .kernel = 3, .padding = 1, .groups = 2, .bias = false});
  x = net.relu("relu", net.batch_norm("bn1", x));
  x = net.conv_transpose("up2", x, {.channels = 4, .kernel = 4, .stride = 2, .padding = 2, .output_padding = 1});
  x = net.tanh("tanh", net.conv("out", x, {.channels = 2}));
  const OpId loss =
      graph.add_op("MeanSquaredErrorForward", "error", "error", {x, net.data()}, {}, Phase::forward, {"loss"});
  net.add_output(graph.output(loss));
  net.add_objective(graph.output(loss), net.parameters());
  return std::move(net).finish();
}

// Two objectives; the discriminator's parameters are used twice and its running statistics advance twice.
inline Network gan() {
  Builder net("gan", {.batch = 4, .channels = 1, .height = 8, .width = 8, .classes = 1}, false);
  TensorId x = net.graph().add_source("z", {4, 5, 1, 1}, DType::f32, Role::input);
  x = net.conv_transpose("generator.0", x, {.channels = 8, .kernel = 4, .bias = false});
  x = net.relu("generator.2", net.batch_norm("generator.1", x));
  x = net.conv_transpose("generator.3", x, {.channels = 1, .kernel = 4, .stride = 2, .padding = 1, .bias = false});
  x = net.tanh("generator.4", x);
  auto judge = [&net](TensorId y) {
    y = net.conv("discriminator.0", y, {.channels = 6, .kernel = 3, .stride = 2, .padding = 1, .bias = false});
    y = net.leaky_relu("discriminator.1", y, 0.2);
    y = net.conv("discriminator.2", y, {.channels = 8, .kernel = 3, .padding = 1, .bias = false});
    y = net.leaky_relu("discriminator.4", net.batch_norm("discriminator.3", y), 0.2);
    return net.conv("discriminator.5", y, {.channels = 1, .kernel = 4, .bias = false});
  };
  net.apply_as("real", false);
  const TensorId real = judge(net.data());
  net.apply_as("fake", true);
  const TensorId fake = judge(x);
  net.apply_as("", true);
  const TensorId discriminator_loss = net.sum_losses(
      "discriminator_loss",
      {net.sigmoid_cross_entropy("real_is_real", real, 1), net.sigmoid_cross_entropy("fake_is_fake", fake, 0)});
  const TensorId generator_loss = net.sigmoid_cross_entropy("generator_loss", fake, 1);
  net.add_output(discriminator_loss);
  net.add_output(generator_loss);
  net.add_objective(discriminator_loss, net.parameters("discriminator."));
  net.add_objective(generator_loss, net.parameters("generator."));
  return std::move(net).finish();
}

}  // namespace plimsoll::recorded
