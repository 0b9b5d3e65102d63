// Padding, interpolation, adaptive pooling.
#include <cstring>

#include "device/cuda/kernels.h"
#include "device/cuda/walk.h"
#include "ops/pad.h"
#include "ops/resize.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

// Neighbouring dimensions that are not padded are joined.
PadShape pad_shape(const Op& op, const Padding& padding) {
  std::vector<PadAxis> axes;
  for (const PadAxis& axis : padding.axes) {
    if (!axis.moves() && !axes.empty() && !axes.back().moves()) {
      axes.back().in *= axis.in;
    } else {
      axes.push_back(axis);
    }
  }
  require_dimensions(op, axes.size());
  PadShape shape{.mode = static_cast<PadWith>(padding.mode), .rank = static_cast<int32_t>(axes.size())};
  for (size_t d = 0; d < axes.size(); ++d) {
    shape.in[d] = axes[d].in;
    shape.begin[d] = axes[d].begin;
    shape.out[d] = axes[d].out();
  }
  return shape;
}

class PadKernel final : public CudaKernel {
 public:
  PadKernel(const Context& context, const Graph& graph, const Op& op) : CudaKernel(context, graph, op) {
    const Tensor& x = graph.tensor(op.inputs[0]);
    const Padding padding = read_padding(op.attributes, x);
    width_ = element_width(x);
    count_ = element_count(graph.tensor(op.outputs[0]).shape);
    shape_ = pad_shape(op, padding);
    switch (x.dtype) {
      case DType::f32: keep(static_cast<float>(padding.value)); break;
      case DType::f64: keep(padding.value); break;
      case DType::i32: keep(static_cast<int32_t>(padding.value)); break;
      case DType::i64: keep(static_cast<int64_t>(padding.value)); break;
      case DType::u8: keep(static_cast<uint8_t>(padding.value)); break;
      case DType::bit: break;  // element_width refused it
    }
  }

 private:
  template <class V>
  void keep(V value) {
    std::memcpy(&value_, &value, sizeof value);
  }
  void work() override {
    with_width(width_, [&](auto zero) {
      using T = decltype(zero);
      T value;
      std::memcpy(&value, &value_, sizeof value);
      launch(PadElements<T>{.y = output<T>(0), .x = input<T>(0), .value = value, .shape = shape_}, count_);
    });
  }

  int64_t width_ = 4, count_ = 0;
  uint64_t value_ = 0;  // its first bytes
  PadShape shape_{};
};

class PadBackwardKernel final : public CudaKernel {
 public:
  PadBackwardKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op),
        count_(element_count(graph.tensor(op.outputs[0]).shape)),
        shape_(pad_shape(op, read_padding_backward(op.attributes, graph.tensor(op.inputs[0])))) {}

 private:
  void work() override { launch(PadBackward{.dx = output(0), .dy = input(0), .shape = shape_}, count_); }

  int64_t count_;
  PadShape shape_;
};

// Of a forward op the result is small and the source large, whatever their sizes; of a backward op the other way round.
class ImageKernel : public CudaKernel {
 protected:
  ImageKernel(const Context& context, const Graph& graph, const Op& op, bool backward)
      : CudaKernel(context, graph, op) {
    const Tensor &in = graph.tensor(op.inputs[0]), &out = graph.tensor(op.outputs[0]);
    small_ = image_of(op, backward ? in : out);
    large_ = image_of(op, backward ? out : in);
    count_ = element_count(out.shape);
  }
  Image small_, large_;
  int64_t count_ = 0;
};

template <bool kBackward>
class ResizeKernel final : public ImageKernel {
 public:
  ResizeKernel(const Context& context, const Graph& graph, const Op& op) : ImageKernel(context, graph, op, kBackward) {
    const Resize resize = read_resize(op.attributes, {large_.h, large_.w});
    const auto line = [&](const ResizeAxis& axis) {
      return ResizeLine{.mode = static_cast<ResizeBy>(resize.mode),
                        .align_corners = resize.align_corners,
                        .in = axis.in,
                        .out = axis.out,
                        .scale = resize_scale<float>(resize, axis)};
    };
    h_ = line(resize.h);
    w_ = line(resize.w);
  }

 private:
  void work() override {
    if constexpr (kBackward) {
      launch(ResizeImageBackward{.dx = output(0), .dy = input(0), .small = small_, .large = large_, .h = h_, .w = w_},
             count_);
    } else {
      launch(ResizeImage{.y = output(0), .x = input(0), .small = small_, .large = large_, .h = h_, .w = w_}, count_);
    }
  }
  ResizeLine h_{}, w_{};
};

template <bool kBackward>
class AdaptiveAverageKernel final : public ImageKernel {
 public:
  AdaptiveAverageKernel(const Context& context, const Graph& graph, const Op& op)
      : ImageKernel(context, graph, op, kBackward) {}

 private:
  void work() override {
    if constexpr (kBackward) {
      launch(AdaptiveAverageBackward{.dx = output(0), .dy = input(0), .small = small_, .large = large_}, count_);
    } else {
      launch(AdaptiveAverage{.y = output(0), .x = input(0), .small = small_, .large = large_}, count_);
    }
  }
};

template <bool kBackward>
class AdaptiveMaximumKernel final : public ImageKernel {
 public:
  AdaptiveMaximumKernel(const Context& context, const Graph& graph, const Op& op)
      : ImageKernel(context, graph, op, kBackward) {
    require_one_layout(graph, op, graph.tensor(kBackward ? op.inputs[0] : op.outputs[0]));
  }

 private:
  void work() override {
    if constexpr (kBackward) {
      launch(
          AdaptiveMaximumBackward{
              .dx = output(0), .dy = input(0), .index = input<int32_t>(1), .small = small_, .large = large_},
          count_);
    } else {
      launch(
          AdaptiveMaximum{.y = output(0), .index = output<int32_t>(1), .x = input(0), .small = small_, .large = large_},
          count_);
    }
  }
};

}  // namespace

std::vector<NamedFactory> pad_kernels() {
  return {{"Pad", {own_specs_row_major, make_own_any_dtype<PadKernel>}},
          {"PadBackward", {own_specs_row_major, make_own<PadBackwardKernel>}}};
}

std::vector<NamedFactory> resize_kernels() {
  return {{"AdaptiveAvgPoolForward", {own_specs, make_own<AdaptiveAverageKernel<false>>}},
          {"AdaptiveAvgPoolBackward", {own_specs, make_own<AdaptiveAverageKernel<true>>}},
          {"AdaptiveMaxPoolForward", {own_specs, make_own<AdaptiveMaximumKernel<false>>}},
          {"AdaptiveMaxPoolBackward", {own_specs, make_own<AdaptiveMaximumKernel<true>>}},
          {"ResizeForward", {own_specs, make_own<ResizeKernel<false>>}},
          {"ResizeBackward", {own_specs, make_own<ResizeKernel<true>>}}};
}

}  // namespace plimsoll::cuda
