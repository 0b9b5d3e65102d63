// Network -> graph of layers, as the papers count them.
#include <fmt/format.h>

#include <algorithm>

#include "base/by_id.h"
#include "papers/layer_model.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

// What a layer leaves; the data and noise come from outside.
struct Value {
  int layer = -1;  // that makes it; -1: from outside
  Shape shape;
  std::vector<std::pair<int, int>> uses;  // (layer, which of its inputs)
};

// A tensor of the network seen as a value, perhaps through views and through a shortcut's subsampling and zero padding.
struct Seen {
  int value = -1;  // -1: no value: a parameter, a constant, a label
  Shape shape;     // as it is read
};

struct Layer {
  LayerKind kind = LayerKind::other;
  std::string name;
  std::vector<int> inputs;  // values
  int output = -1;          // value
  double flops = 0;
  int64_t parameters = 0;
  OpId forward;
  std::vector<TensorId> y;     // FORK: by consumer
  std::vector<TensorId> dx;    // by input
  std::vector<size_t> states;  // of the graph: weights, gradient, momentum
};

constexpr size_t kStates = 3;

bool from_nothing(const Graph& graph, const Op& op) {
  return std::all_of(op.inputs.begin(), op.inputs.end(),
                     [&](TensorId t) { return graph.tensor(t).role == Role::hyperparameter; });
}

int64_t out_size(int64_t in, int64_t kernel, int64_t stride, int64_t dilation, int64_t padding, bool ceil_mode) {
  const int64_t room = in + padding - dilation * (kernel - 1) - 1;
  int64_t out = room / stride + 1;
  if (ceil_mode && room % stride != 0 && out * stride < in + padding / 2) ++out;
  return room < 0 ? 0 : out;
}

class Lowering {
 public:
  Lowering(const Network& network, const LayerModelOptions& options) : from_(network.graph), options_(options) {
    if (network.objectives.size() != 1) {
      throw Error(ErrorCode::unsupported, fmt::format("'{}' has {} losses; the papers' layer model has one", from_.name,
                                                      network.objectives.size()));
    }
    seen_.resize(from_.tensor_count());
    see_input(network.data);
    for (const Op& op : from_.ops()) {
      if (op.phase == Phase::forward) read(op);
    }
    add_forks();
  }

  Graph lower() {
    graph_.name = from_.name;
    add_sources();
    for (size_t i : order()) forward(layers_[i]);
    const std::vector<size_t> forward_order = order();
    for (auto it = forward_order.rbegin(); it != forward_order.rend(); ++it) backward(layers_[*it]);
    check(graph_);
    return std::move(graph_);
  }

 private:
  Seen& seen(TensorId t) { return seen_[t]; }

  void see_input(TensorId t) {
    seen(t) = {static_cast<int>(values_.size()), from_.tensor(t).shape};
    values_.push_back({-1, from_.tensor(t).shape, {}});
  }

  // ---- the network's ops as layers

  void read(const Op& op) {
    const TensorId out = op.outputs[0];
    if (from_nothing(from_, op)) {
      if (!op.inputs.empty()) see_input(out);  // noise is data; a constant is nothing
      return;
    }
    std::vector<Seen> in;
    for (TensorId t : op.inputs) {
      if (seen(t).value >= 0) in.push_back(seen(t));
    }
    if (in.empty()) return;  // something about constants
    const LayerKind kind = layer_kind(op);
    Shape shape = output_shape(op, kind, in[0].shape);
    if (op.type->is_view || is_part_of_shortcut(op, kind, in.size())) {
      if (op.type->is_view) shape = in[0].shape;
      seen(out) = {in[0].value, shape};
      return;
    }
    if (kind == LayerKind::other) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("op '{}' ({}): the papers' layer model has no such layer", op.name, op.type->name));
    }
    Layer layer{.kind = kind, .name = op.layer, .inputs = {}, .output = static_cast<int>(values_.size())};
    const int index = static_cast<int>(layers_.size());
    const bool several = kind == LayerKind::join || kind == LayerKind::concat;
    for (const Seen& x : in) {
      if (!layer.inputs.empty() && !several) break;  // what follows is a target
      values_[x.value].uses.emplace_back(index, static_cast<int>(layer.inputs.size()));
      layer.inputs.push_back(x.value);
    }
    layer.parameters = parameter_count(op, kind, in[0].shape);
    const double native = static_cast<double>(element_count(from_.tensor(shape_giver(op, kind)).shape));
    layer.flops =
        op.type->work ? op.type->work(from_, op).flops * static_cast<double>(element_count(shape)) / native : 0;
    seen(out) = {layer.output, shape};
    values_.push_back({index, shape, {}});
    layers_.push_back(std::move(layer));
  }

  // A loss leaves probabilities in the shape of what it reads.
  TensorId shape_giver(const Op& op, LayerKind kind) const {
    return kind == LayerKind::softmax ? op.inputs[0] : op.outputs[0];
  }

  // A 1x1 pool picks pixels, a concat with constants adds zeros: a shortcut's ways to fit without parameters.
  bool is_part_of_shortcut(const Op& op, LayerKind kind, size_t values) const {
    if (kind == LayerKind::concat) return values == 1 && op.inputs.size() > 1;
    return kind == LayerKind::pool && op.attributes.integers("kernel") == std::vector<int64_t>{1, 1};
  }

  Shape output_shape(const Op& op, LayerKind kind, const Shape& x) {
    const Shape native = from_.tensor(shape_giver(op, kind)).shape;
    if (kind == LayerKind::fully_connected) return native;
    if (kind == LayerKind::concat) return concatenated(op);
    if ((kind != LayerKind::convolution && kind != LayerKind::pool) || x.size() != 4) return x;
    const Shape& native_x = from_.tensor(op.inputs[0]).shape;
    const bool pool = kind == LayerKind::pool, max = pool && op.outputs.size() == 2;
    if (!pool && native_x == x) return native;
    const auto stride = op.attributes.integers("stride", {1, 1}), dilation = op.attributes.integers("dilation", {1, 1});
    const auto padding = op.attributes.integers("padding", {0, 0, 0, 0});
    const Shape weight = pool ? Shape{} : from_.tensor(op.inputs[1]).shape;
    Shape y{x[0], native[1], 0, 0};
    for (size_t d = 0; d < 2; ++d) {
      int64_t kernel = pool ? op.attributes.integers("kernel")[d] : weight[weight.size() - 2 + d];
      if (pool && kernel == native_x[2 + d]) kernel = x[2 + d];  // over the whole image
      const int64_t around = max ? 0 : padding[d] + padding[d + 2];
      y[2 + d] = out_size(x[2 + d], kernel, stride[d], dilation[d], around, op.attributes.integer("ceil_mode", 0) != 0);
      if (y[2 + d] > 0) continue;
      throw Error(ErrorCode::invalid_input,
                  fmt::format("layer '{}': an image of {}x{} is too small for it in the papers' layer model, where max "
                              "pools have no padding",
                              op.layer, x[2], x[3]));
    }
    return y;
  }

  Shape concatenated(const Op& op) {
    const size_t axis = op.attributes.integer("axis", 1);
    Shape shape;
    for (TensorId t : op.inputs) {
      const Shape& part = seen(t).value >= 0 ? seen(t).shape : from_.tensor(t).shape;
      if (shape.empty()) {
        shape = part;
      } else {
        shape[axis] += part[axis];
      }
    }
    return shape;
  }

  int64_t parameter_count(const Op& op, LayerKind kind, const Shape& x) const {
    int64_t count = 0;
    for (TensorId t : op.inputs) {
      if (from_.tensor(t).role == Role::parameter) count += element_count(from_.tensor(t).shape);
    }
    if (kind != LayerKind::fully_connected) return count;
    // The image before it may have another size than in the network.
    const Shape& weight = from_.tensor(op.inputs[1]).shape;
    return count + weight[0] * (element_count(x) / x[0] - weight[1]);
  }

  void add_forks() {
    const size_t count = values_.size();
    for (size_t v = 0; v < count; ++v) {
      if (values_[v].layer < 0 || values_[v].uses.size() < 2) continue;
      const int fork = static_cast<int>(layers_.size());
      layers_.push_back({.kind = LayerKind::fork,
                         .name = layers_[values_[v].layer].name + "/fork",
                         .inputs = {static_cast<int>(v)},
                         .output = static_cast<int>(values_.size())});
      for (auto [layer, input] : values_[v].uses) layers_[layer].inputs[input] = layers_.back().output;
      values_.push_back({fork, values_[v].shape, std::move(values_[v].uses)});
      values_[v].uses = {{fork, 0}};
    }
  }

  // Every layer after those that it reads: a FORK stands right behind its layer.
  std::vector<size_t> order() const {
    std::vector<size_t> result;
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (layers_[i].kind == LayerKind::fork) continue;
      result.push_back(i);
      const Value& y = values_[layers_[i].output];
      if (y.uses.size() == 1 && layers_[y.uses[0].first].kind == LayerKind::fork) result.push_back(y.uses[0].first);
    }
    return result;
  }

  // ---- the graph

  void add_sources() {
    sources_.resize(values_.size());
    if (!options_.input) return;
    for (size_t v = 0; v < values_.size(); ++v) {
      if (values_[v].layer >= 0) continue;
      sources_[v] = graph_.add_source(graph_.inputs.empty() ? "data" : fmt::format("data_{}", graph_.inputs.size()),
                                      values_[v].shape, DType::f32, Role::input);
    }
  }

  bool has_weights(const Layer& layer) const { return options_.weights && layer.parameters > 0; }

  // The tensor that a layer reads as its i-th input; invalid for a batch that is not counted.
  TensorId x_of(size_t layer, size_t i) const {
    const int v = layers_[layer].inputs[i];
    const Value& value = values_[v];
    if (value.layer < 0) return sources_[v];
    const Layer& maker = layers_[value.layer];
    if (maker.kind != LayerKind::fork) return maker.y[0];
    const std::pair<int, int> use{static_cast<int>(layer), static_cast<int>(i)};
    const size_t consumer = std::find(value.uses.begin(), value.uses.end(), use) - value.uses.begin();
    return maker.y[consumer];
  }

  std::vector<TensorId> inputs_of(const Layer& layer) const {
    std::vector<TensorId> result;
    for (size_t i = 0; i < layer.inputs.size(); ++i) {
      const TensorId x = x_of(&layer - layers_.data(), i);
      if (x.valid()) result.push_back(x);
    }
    return result;
  }

  Attributes attributes_of(const Layer& layer, double flops, const std::vector<Shape>& outputs) const {
    Attributes attributes{{"kind", std::string(to_string(layer.kind))}};
    if (flops > 0) attributes.set("flops", flops);
    if (layer.parameters > 0 && !options_.weights) attributes.set("parameters", layer.parameters);
    for (size_t i = 0; i < outputs.size(); ++i) attributes.set(fmt::format("shape_{}", i), outputs[i]);
    return attributes;
  }

  void forward(Layer& layer) {
    const Value& value = values_[layer.output];
    const size_t copies = layer.kind == LayerKind::fork ? value.uses.size() : 1;
    Attributes attributes = attributes_of(layer, layer.flops, std::vector<Shape>(copies, value.shape));
    std::vector<TensorId> inputs = inputs_of(layer);
    if (layer.kind == LayerKind::activation && options_.relu_in_place && !inputs.empty()) {
      attributes.set("may_overwrite", int64_t{0});
    }
    if (has_weights(layer)) inputs.push_back(add_state(layer, layer.name + ".weights", Role::parameter));
    // Algorithm 1 visits successors 2..k first, then 1; a route takes readers in the order of the outputs.
    std::vector<std::string> names;
    for (size_t i = 0; i < copies; ++i) {
      names.push_back(layer.name + (copies == 1 ? "/y" : fmt::format("/y{}", i + 1 < copies ? i + 2 : 1)));
    }
    layer.forward = graph_.add_op("LayerForward", layer.name + "/forward", layer.name, std::move(inputs),
                                  std::move(attributes), Phase::forward, std::move(names));
    layer.y = graph_.op(layer.forward).outputs;
    std::rotate(layer.y.begin(), layer.y.end() - 1, layer.y.end());
  }

  std::vector<TensorId> gradients_of(const Layer& layer) const {
    std::vector<TensorId> result;
    for (auto [reader, input] : values_[layer.output].uses) result.push_back(layers_[reader].dx[input]);
    if (!result.empty() || layer.kind == LayerKind::softmax) return result;
    throw Error(ErrorCode::unsupported,
                fmt::format("layer '{}' leads to no loss; the papers' layer model has no such layer", layer.name));
  }

  // What backward reads of the forward pass besides dY.
  std::vector<TensorId> kept_for_backward(const Layer& layer) const {
    std::vector<TensorId> reads;
    const bool in_place = layer.kind == LayerKind::activation && options_.relu_in_place;
    switch (layer.kind) {
      case LayerKind::convolution:
      case LayerKind::fully_connected:
      case LayerKind::batch_norm: return inputs_of(layer);
      case LayerKind::pool:
      case LayerKind::activation:
      case LayerKind::lrn:
        if (!in_place) reads = inputs_of(layer);
        reads.push_back(layer.y[0]);
        return reads;
      case LayerKind::softmax: return {layer.y[0]};
      default: return {};
    }
  }

  void backward(Layer& layer) {
    std::vector<TensorId> inputs = kept_for_backward(layer);
    std::vector<Shape> shapes;
    for (int v : layer.inputs) shapes.push_back(values_[v].shape);
    const std::vector<TensorId> dy = gradients_of(layer);
    const size_t first_dy = layer.kind == LayerKind::softmax ? 0 : inputs.size();
    inputs.insert(inputs.end(), dy.begin(), dy.end());

    // The gradient that takes dY's place comes first; -1: all are new.
    int in_dy = -1;
    switch (layer.kind) {
      case LayerKind::activation:
      case LayerKind::lrn:
      case LayerKind::softmax:
      case LayerKind::fork: in_dy = 0; break;
      case LayerKind::join:
        for (size_t i = shapes.size(); i-- > 0;) {
          if (shapes[i] == values_[layer.output].shape) in_dy = static_cast<int>(i);
        }
        break;
      default: break;
    }
    if (in_dy > 0) std::rotate(shapes.begin(), shapes.begin() + in_dy, shapes.begin() + in_dy + 1);
    const bool heavy = layer.kind == LayerKind::convolution || layer.kind == LayerKind::fully_connected;
    Attributes attributes = attributes_of(layer, heavy ? 2 * layer.flops : layer.flops, shapes);
    if (in_dy >= 0) attributes.set("overwrites", static_cast<int64_t>(first_dy));

    std::vector<std::string> names;
    for (size_t i = 0; i < shapes.size(); ++i) {
      names.push_back(layer.name + (shapes.size() == 1 ? "/dx" : fmt::format("/dx{}", input_of(i, in_dy) + 1)));
    }
    const bool updates = has_weights(layer);
    if (updates) add_states(layer, inputs, attributes, names);
    const OpId id =
        graph_.add_op(updates ? "LayerBackwardUpdate" : "LayerBackward", layer.name + "/backward", layer.name,
                      std::move(inputs), std::move(attributes), Phase::backward, std::move(names));
    graph_.op(id).forward = layer.forward;
    layer.dx.resize(shapes.size());
    for (size_t i = 0; i < shapes.size(); ++i) layer.dx[input_of(i, in_dy)] = graph_.output(id, i);
    if (!updates) return;
    const std::vector<TensorId>& outputs = graph_.op(id).outputs;
    for (size_t i = 0; i < kStates; ++i) graph_.states[layer.states[i]].after = outputs[outputs.size() - kStates + i];
  }

  // Which input's gradient output i is, when the one of input `first` stands before the others.
  static size_t input_of(size_t output, int first) {
    if (first <= 0) return output;
    const size_t f = first;
    return output == 0 ? f : output <= f ? output - 1 : output;
  }

  // A state of the weights' shape.
  TensorId add_state(Layer& layer, std::string name, Role role) {
    layer.states.push_back(graph_.states.size());
    return graph_.add_source(std::move(name), {layer.parameters}, DType::f32, role);
  }

  void add_states(Layer& layer, std::vector<TensorId>& inputs, Attributes& attributes,
                  std::vector<std::string>& names) {
    attributes.set("states", static_cast<int64_t>(kStates));
    add_state(layer, layer.name + ".weights.gradient", Role::optimizer_state);
    add_state(layer, layer.name + ".weights.momentum", Role::optimizer_state);
    for (size_t index : layer.states) {
      inputs.push_back(graph_.states[index].before);
      names.push_back(graph_.tensor(inputs.back()).name + ".next");
    }
  }

  const Graph& from_;
  const LayerModelOptions& options_;
  ById<TensorId, Seen> seen_;  // by tensor of the network
  std::vector<Value> values_;
  std::vector<Layer> layers_;
  std::vector<TensorId> sources_;  // by value
  Graph graph_;
};

}  // namespace

Graph lower_to_layers(const Network& network, const LayerModelOptions& options) {
  return Lowering(network, options).lower();
}

std::vector<KernelChoice> layer_kernels(const Graph& graph) {
  return std::vector<KernelChoice>(graph.op_count(), KernelChoice{"layer", {}});
}

std::variant<Program, Infeasible> compile_layers(const Network& network, const LayerModelOptions& layer_model,
                                                 const Device& device, const CostTable& costs,
                                                 const CompileOptions& options) {
  Graph graph = lower_to_layers(network, layer_model);
  std::vector<KernelChoice> kernels = layer_kernels(graph);
  return compile_graph(std::move(graph), std::move(kernels), device, costs, options);
}

}  // namespace plimsoll
