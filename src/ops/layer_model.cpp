// The layer as the papers count memory by: one op forward and one op backward, whatever kernels a library would run for
// it. Such ops are planned and never run; papers/layer_model.cpp makes graphs of them.
//
// Attributes: "kind" as in layer_kind_named; "shape_0", "shape_1", ...: the shapes of the outputs; "overwrites": the
// input that output 0 must lie in (absent: none); "may_overwrite": the input that it may lie in; "flops"; "parameters":
// how many weights it reads that are not among its inputs. LayerBackwardUpdate advances its last "states" inputs as
// well, in their places.
#include <fmt/format.h>

#include "base/names.h"
#include "ops/families.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

constexpr std::string_view kKindNames[] = {"other", "conv",    "fc",      "pool", "bn",   "act",
                                           "lrn",   "dropout", "softmax", "fork", "join", "concat"};

std::vector<TensorSpec> outputs_of(const Attributes& attributes) {
  std::vector<TensorSpec> specs;
  for (;;) {
    const std::string name = fmt::format("shape_{}", specs.size());
    if (!attributes.has(name)) return specs;
    specs.push_back({attributes.integers(name), DType::f32});
  }
}

void check_attributes(const Attributes& attributes, std::span<const Tensor* const> inputs) {
  layer_kind_named(attributes.text("kind"));
  for (std::string_view name : {"overwrites", "may_overwrite"}) {
    if (!attributes.has(name)) continue;
    const int64_t input = attributes.integer(name);
    if (input < 0 || input >= static_cast<int64_t>(inputs.size()) || !attributes.has("shape_0")) {
      throw Error(ErrorCode::invalid_input, fmt::format("{} is {}, of {} inputs", name, input, inputs.size()));
    }
    if (element_count(inputs[input]->shape) == element_count(attributes.integers("shape_0"))) continue;
    throw Error(ErrorCode::invalid_input,
                fmt::format("the output is not as large as input {}, which it would overwrite", input));
  }
}

std::vector<InPlace> gradient_in_place(const Graph&, const Op& op) {
  std::vector<InPlace> pairs;
  if (op.attributes.has("overwrites"))
    pairs.push_back({0, static_cast<int>(op.attributes.integer("overwrites")), true});
  if (op.attributes.has("may_overwrite"))
    pairs.push_back({0, static_cast<int>(op.attributes.integer("may_overwrite"))});
  return pairs;
}

int64_t state_count(const Attributes& attributes, size_t inputs) {
  const int64_t count = attributes.integer("states");
  if (count >= 0 && count <= static_cast<int64_t>(inputs)) return count;
  throw Error(ErrorCode::invalid_input, fmt::format("{} states, of {} inputs", count, inputs));
}

Work layer_work(const Graph& graph, const Op& op) {
  const Bytes bytes = bytes_of(graph, op.inputs) + bytes_of(graph, op.outputs);
  return {op.attributes.real("flops", 0),
          static_cast<double>(bytes.count + 4 * op.attributes.integer("parameters", 0))};
}

OpType layer(std::string name) {
  return {.name = std::move(name),
          .infer =
              [](const Attributes& attributes, std::span<const Tensor* const> in) {
                check_attributes(attributes, in);
                return outputs_of(attributes);
              },
          .gradient = {},
          .in_place = gradient_in_place,
          .work = layer_work,
          .reference = {},
          .kind = LayerKind::other};
}

OpType update() {
  OpType type = layer("LayerBackwardUpdate");
  type.infer = [](const Attributes& attributes, std::span<const Tensor* const> in) {
    check_attributes(attributes, in);
    std::vector<TensorSpec> specs = outputs_of(attributes);
    for (const Tensor* state : in.last(state_count(attributes, in.size()))) {
      specs.push_back({state->shape, state->dtype, state->role});
    }
    return specs;
  };
  type.in_place = [](const Graph& graph, const Op& op) {
    std::vector<InPlace> pairs = gradient_in_place(graph, op);
    const size_t states = state_count(op.attributes, op.inputs.size());
    for (size_t i = 0; i < states; ++i) {
      pairs.push_back(
          {static_cast<int>(op.outputs.size() - states + i), static_cast<int>(op.inputs.size() - states + i), true});
    }
    return pairs;
  };
  type.changes_state = true;
  return type;
}

}  // namespace

std::string_view to_string(LayerKind kind) {
  return kind == LayerKind::unset ? "unset" : kKindNames[static_cast<size_t>(kind)];
}

LayerKind layer_kind_named(std::string_view name) {
  for (size_t i = 0; i < std::size(kKindNames); ++i) {
    if (kKindNames[i] == name) return static_cast<LayerKind>(i);
  }
  throw Error(ErrorCode::invalid_input,
              unknown_name("kind of layer", name, {std::begin(kKindNames), std::end(kKindNames)}));
}

LayerKind layer_kind(const Op& op) {
  if (op.type->kind != LayerKind::other || !op.attributes.has("kind")) return op.type->kind;
  return layer_kind_named(op.attributes.text("kind"));
}

std::vector<OpType> layer_model_ops() { return {layer("LayerForward"), layer("LayerBackward"), update()}; }

}  // namespace plimsoll
