// Runs a graph by its reference kernels, one op after another, on tensors in plain row-major order. It plans nothing
// and shares no bytes between tensors, so it is what planned runs, kernels and passes are compared with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/by_id.h"
#include "graph/topological_order.h"
#include "plimsoll/ops.h"

namespace plimsoll {

// A tensor's elements in memory of their own.
struct Value {
  Shape shape;
  DType dtype = DType::f32;
  std::vector<std::byte> data;

  TensorView view();
  double at(int64_t i) const;  // element i in row-major order, whatever the dtype
  void set(int64_t i, double value);
  int64_t size() const { return element_count(shape); }
};

// One value for every tensor of a graph, by its index. What comes from outside starts as zeros.
class Values {
 public:
  explicit Values(const Graph& graph);

  Value& operator[](TensorId id) { return values_[id]; }
  const Value& operator[](TensorId id) const { return values_[id]; }

 private:
  ById<TensorId, Value> values_;
};

// Fills every floating tensor that comes from outside with numbers drawn evenly from [-1, 1), keyed by (seed, its
// name).
void fill_sources(const Graph& graph, Values& values, uint64_t seed);

// Runs the ops; without a list, all of them in topological order.
void interpret(const Graph& graph, Values& values);
void interpret(const Graph& graph, Values& values, std::span<const OpId> ops);

// What a step leaves becomes what the next one finds: copies the value of every state's `after` to its `before`.
void advance_states(const Graph& graph, Values& values);

}  // namespace plimsoll
