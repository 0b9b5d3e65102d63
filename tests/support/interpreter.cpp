#include "tests/support/interpreter.h"

#include <fmt/format.h>

#include <queue>

#include "ops/reference.h"

namespace plimsoll {
namespace {

// A hash of (key, counter) as 64 random bits (the finaliser of SplitMix64).
uint64_t mix(uint64_t key, uint64_t counter) {
  uint64_t z = key + 0x9e3779b97f4a7c15ull * (counter + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

uint64_t key_of(uint64_t seed, std::string_view name) {
  uint64_t key = mix(seed, 0);
  for (char c : name) key = mix(key, static_cast<unsigned char>(c));
  return key;
}

void run(const Op& op, Values& values) {
  if (!op.type->reference) {
    throw Error(ErrorCode::unsupported, fmt::format("op '{}' ({}) has no reference kernel", op.name, op.type->name));
  }
  std::vector<TensorView> in, out;
  for (TensorId id : op.inputs) in.push_back(values[id].view());
  for (TensorId id : op.outputs) out.push_back(values[id].view());
  op.type->reference(op, in, out);
}

}  // namespace

TensorView Value::view() { return {.shape = shape, .dtype = dtype, .data = data.data()}; }

double Value::at(int64_t i) const {
  return load({.shape = {}, .dtype = dtype, .data = const_cast<std::byte*>(data.data())}, i);
}

void Value::set(int64_t i, double value) { store({.shape = {}, .dtype = dtype, .data = data.data()}, i, value); }

Values::Values(const Graph& graph) {
  for (const Tensor& t : graph.tensors()) {
    const Bytes bytes = storage_bytes(t.shape, t.dtype, {});
    values_.push_back({t.shape, t.dtype, std::vector<std::byte>(bytes.count)});
  }
}

void fill_sources(const Graph& graph, Values& values, uint64_t seed) {
  for (int32_t i = 0; i < graph.tensor_count(); ++i) {
    const Tensor& t = graph.tensor({i});
    if (t.producer.valid() || (t.dtype != DType::f32 && t.dtype != DType::f64)) continue;
    const uint64_t key = key_of(seed, t.name);
    for (int64_t e = 0; e < element_count(t.shape); ++e) {
      const double unit = static_cast<double>(mix(key, static_cast<uint64_t>(e)) >> 11) * 0x1p-53;
      values[{i}].set(e, 2 * unit - 1);
    }
  }
}

void interpret(const Graph& graph, Values& values) { interpret(graph, values, topological_order(graph)); }

void interpret(const Graph& graph, Values& values, std::span<const OpId> ops) {
  for (OpId id : ops) run(graph.op(id), values);
}

void advance_states(const Graph& graph, Values& values) {
  for (const State& state : graph.states) {
    if (state.after != state.before) values[state.before].data = values[state.after].data;
  }
}

}  // namespace plimsoll
