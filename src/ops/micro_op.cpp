#include "ops/micro_op.h"

#include <fmt/format.h>

#include <algorithm>

#include "plimsoll/ops.h"

namespace plimsoll {

MicroOp micro_op(const Graph& graph, const Op& op, int64_t batch) {
  const int64_t rows = divisible_batch(graph, op);
  if (batch < 1 || batch > rows) {
    throw Error(ErrorCode::invalid_input,
                rows == 0 ? fmt::format("op '{}' ({}) does not run in parts", op.name, op.type->name)
                          : fmt::format("op '{}' ({}) has {} rows, not {}", op.name, op.type->name, rows, batch));
  }
  MicroOp micro;
  std::vector<TensorId> inputs;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const Tensor& tensor = graph.tensor(op.inputs[i]);
    Shape shape = tensor.shape;
    const std::vector<int>& divided = op.type->division.inputs;
    if (std::find(divided.begin(), divided.end(), static_cast<int>(i)) != divided.end()) shape[0] = batch;
    inputs.push_back(micro.graph.add_source(fmt::format("input {}", i), std::move(shape), tensor.dtype, tensor.role));
    micro.graph.tensor(inputs.back()).layout = tensor.layout;
  }
  micro.op = micro.graph.add_op(op.type->name, op.name, op.layer, inputs, op.attributes, op.phase);
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    micro.graph.tensor(micro.graph.output(micro.op, i)).layout = graph.tensor(op.outputs[i]).layout;
  }
  return micro;
}

}  // namespace plimsoll
