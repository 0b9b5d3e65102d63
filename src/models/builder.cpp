#include "plimsoll/models.h"

#include <fmt/format.h>

#include <cmath>

namespace plimsoll {
namespace {

std::vector<int64_t> pair_of(Extent e) { return {e.h, e.w}; }
std::vector<int64_t> all_sides(Extent e) { return {e.h, e.w, e.h, e.w}; }  // top, left, bottom, right

Attributes conv_attributes(const ConvOptions& o) {
  Attributes attributes{{"stride", pair_of(o.stride)}, {"padding", all_sides(o.padding)}};
  if (o.dilation != Extent(1)) attributes.set("dilation", pair_of(o.dilation));
  if (o.groups != 1) attributes.set("groups", o.groups);
  return attributes;
}

Attributes pool_attributes(const PoolOptions& o) {
  Attributes attributes{
      {"kernel", pair_of(o.kernel)}, {"stride", pair_of(o.stride)}, {"padding", all_sides(o.padding)}};
  if (o.ceil_mode) attributes.set("ceil_mode", int64_t{1});
  return attributes;
}

// Grouped weights carry the groups as a dimension of their own.
Shape weight_shape(int64_t outer, int64_t inner, const ConvOptions& o) {
  if (o.groups == 1) return {outer, inner, o.kernel.h, o.kernel.w};
  return {o.groups, outer / o.groups, inner, o.kernel.h, o.kernel.w};
}

void expect_image(const Graph& graph, TensorId x, const std::string& layer, int64_t groups, int64_t channels) {
  const Tensor& t = graph.tensor(x);
  if (t.shape.size() != 4) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("layer '{}' wants images, but '{}' is {}", layer, t.name, to_string(t.shape)));
  }
  if (groups < 1 || channels < 1 || t.shape[1] % groups != 0 || channels % groups != 0) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("layer '{}': {} input and {} output channels do not divide into {} groups", layer,
                            t.shape[1], channels, groups));
  }
}

}  // namespace

Builder::Builder(std::string name, const ModelInput& input, bool has_labels) : input_(input) {
  network_.graph.name = std::move(name);
  network_.data = network_.graph.add_source("data", {input.batch, input.channels, input.height, input.width},
                                            DType::f32, Role::input);
  if (has_labels) network_.labels = network_.graph.add_source("labels", {input.batch}, DType::i32, Role::input);
}

Builder Builder::of_tokens(std::string name, const ModelInput& input) {
  Builder net;
  net.input_ = input;
  net.graph().name = std::move(name);
  net.network_.data = net.graph().add_source("data", {input.batch, input.width}, DType::i32, Role::input);
  net.network_.labels = net.graph().add_source("labels", {input.batch * input.width}, DType::i32, Role::input);
  return net;
}

TensorId Builder::source(const std::string& name, const Shape& shape, Role role, const Initializer& init) {
  if (const TensorId known = graph().find_tensor(name); known.valid()) {
    if (graph().tensor(known).shape == shape) return known;
    throw Error(ErrorCode::invalid_input, fmt::format("parameter '{}' is {} in one use and {} in another", name,
                                                      to_string(graph().tensor(known).shape), to_string(shape)));
  }
  const TensorId id = graph().add_source(name, shape, DType::f32, role, init);
  state_index_[name] = graph().states.size() - 1;
  return id;
}

TensorId Builder::weight(const std::string& layer, const Shape& shape, const WeightInit& init, Fan fan) {
  Initializer start{Initializer::Kind::normal, 0, init.deviation};
  switch (init.kind) {
    case WeightInit::Kind::uniform_fan_in: start = {Initializer::Kind::uniform, 0, 1 / std::sqrt(fan.in)}; break;
    case WeightInit::Kind::kaiming_fan_in: start.scale = std::sqrt(2.0 / static_cast<double>(fan.in)); break;
    case WeightInit::Kind::kaiming_fan_out: start.scale = std::sqrt(2.0 / static_cast<double>(fan.out)); break;
    case WeightInit::Kind::normal: break;
  }
  return source(layer + ".weight", shape, Role::parameter, start);
}

TensorId Builder::bias(const std::string& layer, int64_t channels, const WeightInit& init, Fan fan) {
  Initializer start;
  if (init.kind == WeightInit::Kind::uniform_fan_in) start = {Initializer::Kind::uniform, 0, 1 / std::sqrt(fan.in)};
  return source(layer + ".bias", {channels}, Role::parameter, start);
}

TensorId Builder::hyperparameter(const std::string& name) {
  if (const TensorId known = graph().find_tensor(name); known.valid()) return known;
  return graph().add_source(name, {}, DType::i64, Role::hyperparameter);
}

OpId Builder::append(std::string_view type, const std::string& layer, std::vector<TensorId> inputs,
                     Attributes attributes, std::vector<std::string> output_names) {
  const std::string name = tag_.empty() ? layer : layer + "/" + tag_;
  if (output_names.empty()) output_names.push_back(name + "/y");
  return graph().add_op(type, name, name, std::move(inputs), std::move(attributes), Phase::forward,
                        std::move(output_names));
}

TensorId Builder::op(std::string_view type, const std::string& layer, std::vector<TensorId> inputs,
                     Attributes attributes) {
  return graph().output(append(type, layer, std::move(inputs), std::move(attributes)));
}

TensorId Builder::conv(const std::string& layer, TensorId x, const ConvOptions& o) {
  expect_image(graph(), x, layer, o.groups, o.channels);
  const int64_t inner = shape(x)[1] / o.groups, window = o.kernel.h * o.kernel.w;
  const Fan fan{inner * window, o.channels * window};
  std::vector<TensorId> inputs{x, weight(layer, weight_shape(o.channels, inner, o), conv_init, fan)};
  if (o.bias) inputs.push_back(bias(layer, o.channels, conv_init, fan));
  return graph().output(append("ConvForward", layer, std::move(inputs), conv_attributes(o)));
}

TensorId Builder::conv_transpose(const std::string& layer, TensorId x, const ConvOptions& o) {
  expect_image(graph(), x, layer, o.groups, o.channels);
  const int64_t outer = shape(x)[1], inner = o.channels / o.groups, window = o.kernel.h * o.kernel.w;
  const Fan fan{inner * window, outer * window};  // as PyTorch reads the weight's shape
  std::vector<TensorId> inputs{x, weight(layer, weight_shape(outer, inner, o), conv_init, fan)};
  if (o.bias) inputs.push_back(bias(layer, o.channels, conv_init, fan));
  Attributes attributes = conv_attributes(o);
  if (o.output_padding != Extent(0)) attributes.set("output_padding", pair_of(o.output_padding));
  return graph().output(append("ConvTransposeForward", layer, std::move(inputs), std::move(attributes)));
}

TensorId Builder::fully_connected(const std::string& layer, TensorId x, const FullyConnectedOptions& o) {
  const Fan fan{shape(x).back(), o.channels};
  std::vector<TensorId> inputs{x, weight(layer, {o.channels, fan.in}, fully_connected_init, fan)};
  if (o.bias) inputs.push_back(bias(layer, o.channels, fully_connected_init, fan));
  return graph().output(append("FullyConnectedForward", layer, std::move(inputs)));
}

TensorId Builder::batch_norm(const std::string& layer, TensorId x) {
  const BatchNormOptions& o = batch_norm_options;
  const Shape channels{shape(x).at(1)};
  const TensorId gamma = source(layer + ".weight", channels, Role::parameter, o.gamma);
  const TensorId beta = source(layer + ".bias", channels, Role::parameter, {});
  const std::string statistics[] = {layer + ".running_mean", layer + ".running_var"};
  source(statistics[0], channels, Role::statistic, {});
  source(statistics[1], channels, Role::statistic, {Initializer::Kind::constant, 1, 0});
  std::vector<TensorId> inputs{x, gamma, beta};
  for (const std::string& name : statistics) inputs.push_back(graph().states[state_index_.at(name)].after);
  Attributes attributes{{"epsilon", o.epsilon}, {"momentum", o.momentum}, {"training", int64_t{input_.training}}};
  const std::string name = tag_.empty() ? layer : layer + "/" + tag_;
  if (!input_.training)
    return graph().output(append("BatchNormForward", layer, std::move(inputs), std::move(attributes)));
  const std::string next = last_use_ ? "next" : tag_;
  const OpId id =
      append("BatchNormForward", layer, std::move(inputs), std::move(attributes),
             {name + "/y", name + "/mean", name + "/inv_std", statistics[0] + "." + next, statistics[1] + "." + next});
  for (size_t i = 0; i < 2; ++i) graph().states[state_index_.at(statistics[i])].after = graph().output(id, 3 + i);
  return graph().output(id);
}

TensorId Builder::relu(const std::string& layer, TensorId x) { return op("ReluForward", layer, {x}); }
TensorId Builder::leaky_relu(const std::string& layer, TensorId x, double slope) {
  return op("LeakyReluForward", layer, {x}, {{"slope", slope}});
}
TensorId Builder::tanh(const std::string& layer, TensorId x) { return op("TanhForward", layer, {x}); }

TensorId Builder::max_pool(const std::string& layer, TensorId x, const PoolOptions& o) {
  const std::string name = tag_.empty() ? layer : layer + "/" + tag_;
  return graph().output(append("MaxPoolForward", layer, {x}, pool_attributes(o), {name + "/y", name + "/index"}));
}

TensorId Builder::avg_pool(const std::string& layer, TensorId x, const PoolOptions& o) {
  Attributes attributes = pool_attributes(o);
  attributes.set("count_include_pad", int64_t{o.count_include_pad});
  return op("AvgPoolForward", layer, {x}, std::move(attributes));
}

TensorId Builder::global_avg_pool(const std::string& layer, TensorId x) {
  const Extent all{shape(x).at(2), shape(x).at(3)};
  return avg_pool(layer, x, {.kernel = all, .stride = 1});
}

TensorId Builder::lrn(const std::string& layer, TensorId x, const LrnOptions& o) {
  return op("LrnForward", layer, {x}, {{"size", o.size}, {"alpha", o.alpha}, {"beta", o.beta}, {"k", o.k}});
}

TensorId Builder::dropout(const std::string& layer, TensorId x, double p) {
  const int64_t salt = next_salt_++;
  if (!input_.training || p == 0) return x;
  return graph().output(append("DropoutForward", layer, {x, hyperparameter("step_number"), hyperparameter("seed")},
                               {{"p", p}, {"salt", salt}}));
}

TensorId Builder::add(const std::string& layer, std::vector<TensorId> terms) {
  return graph().output(append("Add", layer, std::move(terms)));
}

TensorId Builder::concat(const std::string& layer, std::vector<TensorId> parts) {
  return graph().output(append("Concat", layer, std::move(parts), {{"axis", int64_t{1}}}));
}

TensorId Builder::constant(const std::string& layer, Shape shape, double value) {
  return graph().output(append("Constant", layer, {}, {{"shape", std::move(shape)}, {"value", value}}));
}

TensorId Builder::random_normal(const std::string& layer, Shape shape) {
  return graph().output(append("RandomNormal", layer, {hyperparameter("step_number"), hyperparameter("seed")},
                               {{"shape", std::move(shape)}, {"salt", next_salt_++}}));
}

TensorId Builder::parameter(const std::string& name, Shape shape, const Initializer& init) {
  return source(name, shape, Role::parameter, init);
}

TensorId Builder::embedding(const std::string& layer, TensorId ids, TensorId weight) {
  return op("Embedding", layer, {weight, ids});
}

TensorId Builder::layer_norm(const std::string& layer, TensorId x, double epsilon) {
  const Shape row{shape(x).back()};
  const TensorId gamma = parameter(layer + ".weight", row, {Initializer::Kind::constant, 1, 0});
  const TensorId beta = parameter(layer + ".bias", row);
  const std::string name = tag_.empty() ? layer : layer + "/" + tag_;
  return graph().output(append("LayerNormForward", layer, {x, gamma, beta},
                               {{"axes", int64_t{1}}, {"epsilon", epsilon}, {"affine", std::string("gamma_beta")}},
                               {name + "/y", name + "/mean", name + "/rstd"}));
}

TensorId Builder::rms_norm(const std::string& layer, TensorId x, double epsilon) {
  const TensorId gamma = parameter(layer + ".weight", {shape(x).back()}, {Initializer::Kind::constant, 1, 0});
  const std::string name = tag_.empty() ? layer : layer + "/" + tag_;
  return graph().output(append("RmsNormForward", layer, {x, gamma},
                               {{"axes", int64_t{1}}, {"epsilon", epsilon}, {"affine", std::string("gamma")}},
                               {name + "/y", name + "/rstd"}));
}

TensorId Builder::pointwise(const std::string& layer, std::string expression, std::vector<TensorId> inputs) {
  return op("Pointwise", layer, std::move(inputs), {{"expression", std::move(expression)}});
}

TensorId Builder::reshape(const std::string& layer, TensorId x, Shape wanted) {
  if (shape(x) == wanted) return x;
  return op("Reshape", layer, {x}, {{"shape", std::move(wanted)}});
}

TensorId Builder::permute(const std::string& layer, TensorId x, std::vector<int64_t> dims) {
  return op("Permute", layer, {x}, {{"dims", std::move(dims)}});
}

TensorId Builder::slice(const std::string& layer, TensorId x, int64_t axis, int64_t begin, int64_t size) {
  if (shape(x).at(static_cast<size_t>(axis)) == size) return x;
  return op("Slice", layer, {x}, {{"axis", axis}, {"begin", begin}, {"size", size}});
}

TensorId Builder::attention(const std::string& layer, TensorId q, TensorId k, TensorId v, const AttentionOptions& o) {
  Attributes attributes{{"scale", 1 / std::sqrt(static_cast<double>(shape(q).back()))},
                        {"causal", int64_t{o.causal}},
                        {"enable_gqa", int64_t{shape(q) != shape(k)}}};
  std::vector<TensorId> inputs{q, k, v};
  const int64_t salt = next_salt_++;
  if (input_.training && o.dropout > 0) {
    attributes.set("dropout", o.dropout);
    attributes.set("salt", salt);
    inputs.push_back(hyperparameter("step_number"));
    inputs.push_back(hyperparameter("seed"));
  }
  const std::string name = tag_.empty() ? layer : layer + "/" + tag_;
  return graph().output(
      append("AttentionForward", layer, std::move(inputs), std::move(attributes), {name + "/y", name + "/log_sum"}));
}

TensorId Builder::flatten(const std::string& layer, TensorId x) {
  const Shape& s = shape(x);
  if (s.size() == 2) return x;
  return op("Reshape", layer, {x}, {{"shape", std::vector<int64_t>{s[0], element_count(s) / s[0]}}});
}

TensorId Builder::sigmoid_cross_entropy(const std::string& layer, TensorId logits, double target) {
  return graph().output(append("SigmoidCrossEntropyForward", layer, {logits}, {{"target", target}}, {layer}));
}

TensorId Builder::sum_losses(const std::string& layer, std::vector<TensorId> losses) {
  return graph().output(append("Add", layer, std::move(losses), {}, {layer}));
}

void Builder::apply_as(std::string tag, bool last) {
  tag_ = std::move(tag);
  last_use_ = last;
}

void Builder::add_output(TensorId tensor) {
  graph().tensor(tensor).role = Role::output;
  graph().outputs.push_back(tensor);
}

std::vector<TensorId> Builder::parameters(std::string_view prefix) const {
  std::vector<TensorId> result;
  for (const State& state : network_.graph.states) {
    const Tensor& t = network_.graph.tensor(state.before);
    if (t.role == Role::parameter && t.name.starts_with(prefix)) result.push_back(state.before);
  }
  return result;
}

void Builder::add_objective(TensorId loss, std::vector<TensorId> parameters) {
  network_.objectives.push_back({loss, std::move(parameters)});
}

Network Builder::finish() && {
  check(network_.graph);
  return std::move(network_);
}

Network Builder::finish_classifier(TensorId logits) && {
  const OpId loss = append("SoftmaxCrossEntropyForward", "softmax", {logits, network_.labels}, {},
                           {"loss", "probabilities", "correct"});
  add_output(graph().output(loss, 0));
  add_output(graph().output(loss, 2));
  network_.correct = graph().output(loss, 2);
  add_objective(graph().output(loss, 0), parameters());
  return std::move(*this).finish();
}

Network Builder::finish_language_model(TensorId logits) && {
  const OpId loss =
      append("SoftmaxCrossEntropyForward", "softmax", {logits, network_.labels},
             {{"reduction", std::string("mean")}, {"ignore_index", int64_t{-1}}}, {"loss", "probabilities", "correct"});
  add_output(graph().output(loss, 0));
  add_objective(graph().output(loss, 0), parameters());
  return std::move(*this).finish();
}

}  // namespace plimsoll
