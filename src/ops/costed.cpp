// Ops that are nothing but their costs: they are planned and never run. A graph of costs only is made of them
// (plimsoll/cost_graph.h).
//
//   Costed       may run again
//   CostedOnce   runs exactly once a step
//   CostedView   its one output is its one input under another name: the same bytes
//
// Attributes: "ms"; "bytes": of each output; "workspace"; "in_place": triples of output, input, and 1 where it must be so;
// "state_outputs" as OpType has them; "kind" as in layer_kind_named.
#include <fmt/format.h>

#include "ops/families.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

std::vector<InPlace> pairs_of(const Attributes& attributes) {
  const std::vector<int64_t> flat = attributes.integers("in_place", {});
  std::vector<InPlace> pairs;
  for (size_t i = 0; i + 2 < flat.size(); i += 3)
    pairs.push_back({static_cast<int>(flat[i]), static_cast<int>(flat[i + 1]), flat[i + 2] != 0});
  return pairs;
}

void check_attributes(const Attributes& attributes, std::span<const Tensor* const> in,
                      const std::vector<TensorSpec>& out) {
  const auto expect = [](bool right, const std::string& otherwise) {
    if (!right) throw Error(ErrorCode::invalid_input, otherwise);
  };
  expect(attributes.real("ms") >= 0, "\"ms\" is negative");
  expect(attributes.integer("workspace", 0) >= 0, "\"workspace\" is negative");
  if (attributes.has("kind")) layer_kind_named(attributes.text("kind"));
  const std::vector<int64_t> pairs = attributes.integers("in_place", {});
  expect(pairs.size() % 3 == 0, "\"in_place\" is no list of triples");
  for (size_t i = 0; i < pairs.size(); i += 3) {
    const int64_t output = pairs[i], input = pairs[i + 1];
    expect(0 <= output && output < std::ssize(out) && 0 <= input && input < std::ssize(in),
           fmt::format("\"in_place\" has output {} and input {}, of {} and {}", output, input, out.size(), in.size()));
    expect(out[static_cast<size_t>(output)].shape == in[static_cast<size_t>(input)]->shape,
           fmt::format("output {} is not as large as input {}, whose bytes it would take", output, input));
  }
  for (int64_t output : attributes.integers("state_outputs", {}))
    expect(0 <= output && output < std::ssize(out), fmt::format("\"state_outputs\" has {}, of {}", output, out.size()));
}

std::vector<TensorSpec> outputs_of(const Attributes& attributes, std::span<const Tensor* const> in) {
  std::vector<TensorSpec> specs;
  for (int64_t bytes : attributes.integers("bytes", {})) {
    if (bytes < 1 || bytes > kMostElements)
      throw Error(ErrorCode::invalid_input,
                  fmt::format("an output has {} bytes; from 1 to {} are possible", bytes, kMostElements));
    specs.push_back({{bytes}, DType::u8});
  }
  check_attributes(attributes, in, specs);
  return specs;
}

OpType costed(std::string name) {
  return {.name = std::move(name),
          .infer = outputs_of,
          .gradient = {},
          .in_place = [](const Graph&, const Op& op) { return pairs_of(op.attributes); },
          .work = {},
          .reference = {},
          .kind = LayerKind::other};
}

OpType costed_once() {
  OpType type = costed("CostedOnce");
  type.changes_state = true;
  return type;
}

OpType costed_view() {
  OpType type = costed("CostedView");
  type.infer = [](const Attributes&, std::span<const Tensor* const> in) {
    expect_inputs(in, 1);
    return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
  };
  type.in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{{0, 0, true}}; };
  type.is_view = true;
  return type;
}

}  // namespace

std::vector<int> state_outputs(const Op& op) {
  if (!op.attributes.has("state_outputs")) return op.type->state_outputs;
  const std::vector<int64_t>& stated = op.attributes.integers("state_outputs");
  return {stated.begin(), stated.end()};
}

std::vector<OpType> costed_ops() { return {costed("Costed"), costed_once(), costed_view()}; }

}  // namespace plimsoll
