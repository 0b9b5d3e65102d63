// Softmax along an axis of row-major tensors.
#include "device/cuda/kernels.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

class AxisKernel : public CudaKernel {
 public:
  AxisKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op),
        log_(op.attributes.integer("log", 0) != 0),
        elements_(element_count(graph.tensor(op.inputs[0]).shape)) {
    require_row_major(graph, op);
    const Shape& shape = graph.tensor(op.inputs[0]).shape;
    const size_t axis = static_cast<size_t>(op.attributes.integer("axis"));
    place_.length = shape[axis];
    for (size_t d = axis + 1; d < shape.size(); ++d) place_.inner *= shape[d];
    rows_ = elements_ / place_.length;
    workspace_bytes_ = workspace_for(graph, op);
  }
  static Bytes workspace_for(const Graph& graph, const Op& op) {
    const Shape& shape = graph.tensor(op.inputs[0]).shape;
    const int64_t rows = element_count(shape) / shape[static_cast<size_t>(op.attributes.integer("axis"))];
    return {rows * static_cast<int64_t>(sizeof(AxisRow))};
  }

 protected:
  AxisPlace place_;
  bool log_;
  int64_t elements_, rows_ = 0;
};

class AxisForwardKernel final : public AxisKernel {
 public:
  using AxisKernel::AxisKernel;

 private:
  void work() override {
    AxisRow* const rows = scratch<AxisRow>();
    launch(AxisTops{.rows = rows, .x = input(0), .place = place_}, rows_);
    launch(AxisSums{.rows = rows, .log_sums = nullptr, .x = input(0), .place = place_, .masked = false}, rows_);
    launch(AxisSoftmax{.y = output(0), .x = input(0), .rows = rows, .place = place_, .log = log_}, elements_);
  }
};

class AxisBackwardKernel final : public AxisKernel {
 public:
  using AxisKernel::AxisKernel;

 private:
  void work() override {
    double* const sums = scratch<double>();
    launch(AxisDots{.sums = sums, .y = input(0), .dy = input(1), .place = place_, .log = log_}, rows_);
    launch(
        AxisSoftmaxBackward{.dx = output(0), .y = input(0), .dy = input(1), .sums = sums, .place = place_, .log = log_},
        elements_);
  }
};

}  // namespace

std::vector<NamedFactory> softmax_kernels() {
  return {{"SoftmaxForward", {row_major_specs_with_workspace<AxisForwardKernel>, make_own<AxisForwardKernel>}},
          {"SoftmaxBackward", {row_major_specs_with_workspace<AxisBackwardKernel>, make_own<AxisBackwardKernel>}}};
}

}  // namespace plimsoll::cuda
