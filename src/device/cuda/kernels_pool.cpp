// Pooling, and local response normalisation.
#include "device/cuda/kernels.h"
#include "device/cuda/slide.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

constexpr int64_t kMostByTwo = int64_t{1} << 29;  // elements of a side, so that sums of places are narrow

// Forward: from the large image to the small one; backward the other way.
struct Pooling {
  Image small, large;
  Slide h, w;
  int64_t smalls = 0, larges = 0;
};
Pooling pooling_of(const Graph& graph, const Op& op, bool backward) {
  const Tensor &in = graph.tensor(op.inputs[0]), &out = graph.tensor(op.outputs[0]);
  const Tensor &small = backward ? in : out, &large = backward ? out : in;
  Window window = read_window(op.attributes, read_sizes(op.attributes, "kernel", 2, 1), image_size(large.shape));
  fit(window, op.attributes.integer("ceil_mode", 0) != 0);
  return {.small = image_of(op, small),
          .large = image_of(op, large),
          .h = slide_of(window.h),
          .w = slide_of(window.w),
          .smalls = element_count(small.shape),
          .larges = element_count(large.shape)};
}

class MaxPoolKernel final : public CudaKernel {
 public:
  MaxPoolKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op), backward_(op.inputs.size() == 2), p_(pooling_of(graph, op, backward_)) {
    require_one_layout(graph, op, graph.tensor(backward_ ? op.inputs[0] : op.outputs[0]));
  }

 private:
  void work() override {
    if (is_by_two(2)) {
      pool<MaxPoolByTwo<2>, MaxPoolByTwoBackward<2>, ByTwo<2>>();
    } else if (is_by_two(3)) {
      pool<MaxPoolByTwo<3>, MaxPoolByTwoBackward<3>, ByTwo<3>>();
    } else {
      pool<MaxPool, MaxPoolBackward, Slide>();
    }
  }
  bool is_by_two(int64_t kernel) const {
    const auto fits = [&](const Slide& s) {
      return s.kernel == kernel && s.stride == 2 && s.dilation == 1 && s.in < kMostByTwo && s.out < kMostByTwo;
    };
    return fits(p_.h) && fits(p_.w);
  }
  template <class Forward, class Backward, class Side>
  void pool() const {
    const Side h(p_.h), w(p_.w);
    if (backward_) {
      launch(Backward{.dx = output(0),
                      .dy = input(0),
                      .index = input<uint8_t>(1),
                      .small = p_.small,
                      .large = p_.large,
                      .h = h,
                      .w = w},
             p_.larges);
    } else {
      launch(Forward{.y = output(0),
                     .index = output<uint8_t>(1),
                     .x = input(0),
                     .small = p_.small,
                     .large = p_.large,
                     .h = h,
                     .w = w},
             p_.smalls);
    }
  }

  bool backward_;
  Pooling p_;
};

class AveragePoolKernel final : public CudaKernel {
 public:
  AveragePoolKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op),
        backward_(op.type->name == "AvgPoolBackward"),
        count_padding_(op.attributes.integer("count_include_pad", 1) != 0),
        p_(pooling_of(graph, op, backward_)) {}

 private:
  void work() override {
    if (backward_) {
      launch(AveragePoolBackward{.dx = output(0),
                                 .dy = input(0),
                                 .small = p_.small,
                                 .large = p_.large,
                                 .h = p_.h,
                                 .w = p_.w,
                                 .count_padding = count_padding_},
             p_.larges);
    } else {
      launch(AveragePool{.y = output(0),
                         .x = input(0),
                         .small = p_.small,
                         .large = p_.large,
                         .h = p_.h,
                         .w = p_.w,
                         .count_padding = count_padding_},
             p_.smalls);
    }
  }

  bool backward_, count_padding_;
  Pooling p_;
};

class LrnKernel final : public CudaKernel {
 public:
  LrnKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op),
        backward_(op.inputs.size() == 2),
        image_(image_of(op, graph.tensor(op.inputs[0]))),
        size_(op.attributes.integer("size", 5)),
        alpha_by_size_(static_cast<float>(op.attributes.real("alpha", 1e-4) / static_cast<double>(size_))),
        beta_(static_cast<float>(op.attributes.real("beta", 0.75))),
        k_(static_cast<float>(op.attributes.real("k", 1))),
        count_(element_count(graph.tensor(op.inputs[0]).shape)) {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]));
  }

 private:
  void work() override {
    if (backward_) {
      launch(LrnBackward{.dx = output(0),
                         .x = input(0),
                         .dy = input(1),
                         .image = image_,
                         .size = size_,
                         .alpha_by_size = alpha_by_size_,
                         .beta = beta_,
                         .k = k_},
             count_);
    } else {
      launch(Lrn{.y = output(0),
                 .x = input(0),
                 .image = image_,
                 .size = size_,
                 .alpha_by_size = alpha_by_size_,
                 .beta = beta_,
                 .k = k_},
             count_);
    }
  }

  bool backward_;
  Image image_;
  int64_t size_;
  float alpha_by_size_, beta_, k_;
  int64_t count_;
};

}  // namespace

std::vector<NamedFactory> pool_kernels() {
  return {{"MaxPoolForward", {own_specs, make_own<MaxPoolKernel>}},
          {"MaxPoolBackward", {own_specs, make_own<MaxPoolKernel>}},
          {"AvgPoolForward", {own_specs, make_own<AveragePoolKernel>}},
          {"AvgPoolBackward", {own_specs, make_own<AveragePoolKernel>}},
          {"LrnForward", {own_specs, make_own<LrnKernel>}},
          {"LrnBackward", {own_specs, make_own<LrnKernel>}}};
}

}  // namespace plimsoll::cuda
