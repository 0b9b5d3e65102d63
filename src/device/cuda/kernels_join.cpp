// Concatenations, slices, and reorders between layouts.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "device/cuda/kernels.h"
#include "ops/move.h"
#include "plimsoll/error.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

// A tensor as rows along an axis: what lies before the axis in storage, and how many elements one step along it is.
struct Rows {
  int64_t outer = 1, inner = 1;
};
Rows rows_of(const Op& op, const Tensor& tensor, int64_t axis) {
  image_of(op, tensor);  // throws on other layouts
  const size_t rank = tensor.shape.size();
  constexpr std::array<int64_t, 4> kLast = {0, 2, 3, 1};
  Rows rows;
  bool passed = false;
  for (size_t i = 0; i < rank; ++i) {
    const int64_t dimension = tensor.layout.is_plain() ? static_cast<int64_t>(i) : kLast[i];
    if (dimension == axis) {
      passed = true;
    } else {
      (passed ? rows.inner : rows.outer) *= tensor.shape[dimension];
    }
  }
  return rows;
}

class ConcatKernel final : public CudaKernel {
 public:
  ConcatKernel(const Context& context, const Graph& graph, const Op& op) : CudaKernel(context, graph, op) {
    const int64_t axis = op.attributes.integer("axis");
    const Tensor& y = graph.tensor(op.outputs[0]);
    rows_ = rows_of(op, y, axis);
    whole_ = y.shape[axis] * rows_.inner;
    width_ = element_width(y);
    for (TensorId id : op.inputs) {
      const Tensor& x = graph.tensor(id);
      if (x.layout.is_plain() != y.layout.is_plain()) {
        throw Error(ErrorCode::unsupported,
                    fmt::format("op '{}' (Concat): '{}' and '{}' lie differently", op.name, x.name, y.name));
      }
      rows_of(op, x, axis);
      parts_.push_back(x.shape[axis] * rows_.inner);
    }
  }

 private:
  void work() override {
    with_width(width_, [&](auto zero) {
      using T = decltype(zero);
      int64_t begin = 0;
      for (size_t i = 0; i < parts_.size(); ++i) {
        launch(CopyRows<T>{.to = output<T>(0) + begin,
                           .from = input<T>(i),
                           .length = parts_[i],
                           .to_row = whole_,
                           .from_row = parts_[i]},
               rows_.outer * parts_[i]);
        begin += parts_[i];
      }
    });
  }

  Rows rows_;
  int64_t whole_ = 0, width_ = 4;
  std::vector<int64_t> parts_;
};

// Slice, and its way back.
class SliceKernel final : public CudaKernel {
 public:
  SliceKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op), backward_(op.type->name == "SliceBackward") {
    const int64_t axis = op.attributes.integer("axis");
    const Tensor &x = graph.tensor(op.inputs[0]), &y = graph.tensor(op.outputs[0]);
    if (x.layout.is_plain() != y.layout.is_plain()) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("op '{}' ({}): '{}' and '{}' lie differently", op.name, op.type->name, x.name, y.name));
    }
    rows_ = rows_of(op, x, axis);
    length_ = (backward_ ? y : x).shape[axis];
    count_ = (backward_ ? x : y).shape[axis];
    begin_ = op.attributes.integer("begin");
    step_ = op.attributes.integer("step", 1);
    width_ = element_width(x);
  }

 private:
  void work() override {
    with_width(width_, [&](auto zero) {
      using T = decltype(zero);
      backward_ ? ask<SpreadSteps<T>, T>(length_) : ask<TakeSteps<T>, T>(count_);
    });
  }
  template <class Body, class T>
  void ask(int64_t positions) const {
    launch(Body{.to = output<T>(0),
                .from = input<T>(0),
                .length = length_,
                .count = count_,
                .inner = rows_.inner,
                .begin = begin_,
                .step = step_},
           rows_.outer * positions * rows_.inner);
  }

  bool backward_;
  Rows rows_;
  int64_t length_ = 1, count_ = 1, begin_ = 0, step_ = 1, width_ = 4;
};

class ReorderKernel final : public CudaKernel {
 public:
  ReorderKernel(const Context& context, const Graph& graph, const Op& op) : CudaKernel(context, graph, op) {
    const Tensor &x = graph.tensor(op.inputs[0]), &y = graph.tensor(op.outputs[0]);
    count_ = element_count(x.shape);
    bytes_ = y.bytes();
    padded_ = storage_elements(y.shape, y.layout) != count_;
    from_ = place_in(op, x);
    to_ = place_in(op, y);
    switch (x.dtype) {
      case DType::f32:
      case DType::i32: break;
      case DType::u8: words_ = false; break;
      default:
        throw Error(ErrorCode::unsupported, fmt::format("op '{}' (Reorder): '{}' is {}; CUDA reorders f32, i32 and u8",
                                                        op.name, x.name, to_string(x.dtype)));
    }
  }

 private:
  void work() override {
    if (padded_) door().fill(Queue::compute, output<void>(0), 0, bytes_.count);
    if (words_) {
      launch(ReorderWords{.to = output<uint32_t>(0), .from = input<uint32_t>(0), .to_place = to_, .from_place = from_},
             count_);
    } else {
      launch(ReorderBytes{.to = output<uint8_t>(0), .from = input<uint8_t>(0), .to_place = to_, .from_place = from_},
             count_);
    }
  }

  int64_t count_ = 0;
  Bytes bytes_;
  bool padded_ = false, words_ = true;
  Place from_, to_;
};

std::vector<KernelSpec> reorder_specs(const Context&, const Graph& graph, const Op& op, LayoutFamily) {
  KernelSpec spec{.name = "own",
                  .inputs = {graph.tensor(op.inputs[0]).layout},
                  .outputs = {graph.tensor(op.outputs[0]).layout},
                  .workspace = {}};
  return {spec};
}

}  // namespace

std::vector<NamedFactory> join_kernels() {
  return {{"Concat", {own_specs, make_own_any_dtype<ConcatKernel>}},
          {"Slice", {own_specs, make_own_any_dtype<SliceKernel>}},
          {"SliceBackward", {own_specs, make_own_any_dtype<SliceKernel>}},
          {"Reorder", {reorder_specs, make_own<ReorderKernel>}}};
}

}  // namespace plimsoll::cuda
