// Concatenations, slices, and reorders between layouts.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "device/cuda/kernels.h"
#include "device/cuda/movement.h"
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
    int64_t begin = 0;
    for (size_t i = 0; i < parts_.size(); ++i) {
      const int64_t part = parts_[i];
      const int64_t word = word_bytes(width_, {part, whole_, begin}, {input<void>(i), output<void>(0)}),
                    n = word / width_;
      with_word(word, [&](auto zero) {
        using T = decltype(zero);
        launch(CopyRows<T>{.to = output<T>(0) + begin / n,
                           .from = input<T>(i),
                           .length = part / n,
                           .to_row = whole_ / n,
                           .from_row = part / n},
               rows_.outer * part / n);
      });
      begin += part;
    }
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
    if (step_ != 1) return;  // else positions follow each other with all that lies in them
    for (int64_t* const along : {&length_, &count_, &begin_}) *along *= rows_.inner;
    rows_.inner = 1;
  }

 private:
  void work() override {
    const auto word = [&](std::initializer_list<int64_t> elements) {
      return word_bytes(width_, elements, {input<void>(0), output<void>(0)});
    };
    const bool follow = step_ == 1;
    const int64_t bytes = follow ? word({length_, count_, begin_}) : word({rows_.inner}), n = bytes / width_;
    const int64_t along = follow ? n : 1, inner = follow ? 1 : rows_.inner / n;
    with_word(bytes, [&](auto zero) {
      using T = decltype(zero);
      backward_ ? ask<SpreadSteps<T>, T>(length_ / along, along, inner)
                : ask<TakeSteps<T>, T>(count_ / along, along, inner);
    });
  }
  template <class Body, class T>
  void ask(int64_t positions, int64_t along, int64_t inner) const {
    launch(Body{.to = output<T>(0),
                .from = input<T>(0),
                .length = length_ / along,
                .count = count_ / along,
                .inner = inner,
                .begin = begin_ / along,
                .step = step_},
           rows_.outer * positions * inner);
  }

  bool backward_;
  Rows rows_;
  int64_t length_ = 1, count_ = 1, begin_ = 0, step_ = 1, width_ = 4;
};

bool has_blocks(const Layout& layout) {
  return !std::ranges::all_of(layout.tag, [](char letter) { return letter >= 'a' && letter <= 'z'; });
}

class ReorderKernel final : public CudaKernel {
 public:
  ReorderKernel(const Context& context, const Graph& graph, const Op& op) : CudaKernel(context, graph, op) {
    const Tensor &x = graph.tensor(op.inputs[0]), &y = graph.tensor(op.outputs[0]);
    count_ = element_count(x.shape);
    bytes_ = y.bytes();
    padded_ = storage_elements(y.shape, y.layout) != count_;
    if (!has_blocks(x.layout) && !has_blocks(y.layout)) {
      std::vector<int64_t> dims(x.shape.size());
      std::iota(dims.begin(), dims.end(), 0);
      movement_.emplace(op, permute_loops(x, y, dims), element_width(x));
    } else {
      from_ = place_in(op, x);
      to_ = place_in(op, y);
    }
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
    if (movement_) return movement_->ask(door(), output<void>(0), input<void>(0));
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
  std::optional<Movement> movement_;
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
