// dx, dgamma, dbeta and dresidual: the sums of g and of g (x - mean) over a group of channels, then its elements while
// they are in the cache. Sums are complete before a group's first element is written, and every element is read before
// it is written, so dx may lie in dy or x, and dresidual in dy. With several ranks that share their statistics
// (ops/sync_batch_norm.cpp) the sums are one kernel and the elements another.
#include <cmath>

#include "device/cpu/own_batch_norm.h"

namespace plimsoll::cpu {
namespace {

enum class Mask : uint8_t { none, aligned, any };  // aligned: a vector's bits begin and end with a byte

template <Mask kMask>
struct GradientSums {
  const float* x;
  const float* dy;
  const uint8_t* mask;
  const float* inv_std;
  float* dgamma;
  float* dbeta;
  float* mean;  // one value a channel, and zeros for those that only fill a block

  template <class Count>
  PLIMSOLL_INLINE f32x16 gradient(int64_t i, Count n) const {
    const f32x16 g = load(dy + i, n);
    if constexpr (kMask == Mask::none)
      return g;
    else if constexpr (kMask == Mask::aligned)
      return keep_lanes(aligned_bits(mask, i, n), g);
    else
      return keep_lanes(any_bits(mask, i, n), g);
  }

  struct SumValues {
    f32x16 mean;
  };
  template <class Lanes>
  PLIMSOLL_INLINE SumValues sum_values(const Lanes& lanes) const {
    return {lanes(mean)};
  }
  template <class Count>
  PLIMSOLL_INLINE void sum(int64_t i, Count n, const SumValues& k, f32x16& first, f32x16& second) const {
    const f32x16 g = gradient(i, n);
    first += g;
    second += g * (load(x + i, n) - k.mean);
  }

  void finish(int64_t c, double sum, double product) const {
    dgamma[c] = static_cast<float>(product * inv_std[c]);
    dbeta[c] = static_cast<float>(sum);
  }
};

template <Mask kMask, bool kResidual>
struct Backward : GradientSums<kMask> {
  using GradientSums<kMask>::x;
  using GradientSums<kMask>::mean;
  float* dx;
  float* dresidual;
  const float* gamma;
  double count;
  // One value a channel, and zeros for those that only fill a block.
  float* scale;
  float* mean_gradient;
  float* slope;  // of the part of dx that goes with x - mean

  void finish(int64_t c, double sum, double product) const {
    GradientSums<kMask>::finish(c, sum, product);
    const double inverse = this->inv_std[c];
    use_sums(c, inverse, sum, inverse * inverse * product);
  }
  // `along`: the sum of g x_hat, divided by the standard deviation.
  void use_sums(int64_t c, double inverse, double sum, double along) const {
    scale[c] = static_cast<float>(gamma[c] * inverse);
    mean_gradient[c] = static_cast<float>(sum / count);
    slope[c] = static_cast<float>(along / count);
  }

  struct ApplyValues {
    f32x16 mean, scale, mean_gradient, slope;
  };
  template <class Lanes>
  PLIMSOLL_INLINE ApplyValues apply_values(const Lanes& lanes) const {
    return {lanes(mean), lanes(scale), lanes(mean_gradient), lanes(slope)};
  }
  template <class Count>
  PLIMSOLL_INLINE void apply(int64_t i, Count n, const ApplyValues& k) const {
    const f32x16 g = this->gradient(i, n);
    const f32x16 centred = load(x + i, n) - k.mean;
    store(dx + i, ((g - k.mean_gradient) - centred * k.slope) * k.scale, n);
    if constexpr (kResidual) store(dresidual + i, g, n);
  }
};

class BatchNormBackward : public OwnKernel {
 public:
  BatchNormBackward(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads), image_(image_of(graph.tensor(op.inputs[0]))) {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]).shape);
    relu_ = op.attributes.text("activation", "none") == "relu";
    residual_ = op.outputs.size() == 4;
    scratch_ = channel_scratch(image_, parts_);
    workspace_bytes_ = {scratch_ * 8 + 4 * image_.padded_channels() * 4};
    const int64_t run = image_.order == Image::Order::plain ? image_.pixels : image_.channels;
    aligned_ = image_.order == Image::Order::blocked || run % 8 == 0;
  }

  void run() override {
    if (residual_) {
      with_residual<true>();
    } else {
      with_residual<false>();
    }
  }

 private:
  float* values(int row) const {
    return reinterpret_cast<float*>(static_cast<double*>(workspace_) + scratch_) + row * image_.padded_channels();
  }
  template <bool kResidual>
  void with_residual() {
    if (!relu_) return with<Mask::none, kResidual>();
    if (aligned_) return with<Mask::aligned, kResidual>();
    with<Mask::any, kResidual>();
  }
  template <Mask kMask, bool kResidual>
  void with() {
    Backward<kMask, kResidual> pass{};
    pass.x = input(0), pass.dy = input(1), pass.gamma = input(2), pass.inv_std = input(4);
    pass.mask = relu_ ? input<uint8_t>(5) : nullptr;
    pass.dx = output(0), pass.dgamma = output(1), pass.dbeta = output(2);
    pass.dresidual = kResidual ? output(3) : nullptr;
    pass.count = static_cast<double>(image_.images * image_.pixels);
    pass.mean = values(0), pass.scale = values(1), pass.mean_gradient = values(2), pass.slope = values(3);
    std::fill(values(0), values(4), 0.0f);
    std::copy(input(3), input(3) + image_.channels, pass.mean);
    sum_over_channels(image_, parts_, pass, static_cast<double*>(workspace_));
  }

  Image image_;
  int64_t scratch_ = 0;  // doubles
  bool relu_ = false, residual_ = false, aligned_ = true;
};

// What the two kernels of ranks that share their statistics have in common.
class SyncBackward : public OwnKernel {
 public:
  // `rows`: vectors of channels that it works with.
  SyncBackward(const Graph& graph, const Op& op, int threads, int rows, int64_t scratch)
      : OwnKernel(graph, op, threads),
        image_(image_of(graph.tensor(op.inputs[0]))),
        scratch_(scratch),
        whole_count_(static_cast<double>(image_.images * image_.pixels * op.attributes.integer("ranks"))),
        epsilon_(op.attributes.real("epsilon", 1e-5)),
        rows_(rows) {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]).shape);
    workspace_bytes_ = {scratch_ * 8 + rows * image_.padded_channels() * 4};
    const int64_t run = image_.order == Image::Order::plain ? image_.pixels : image_.channels;
    const bool aligned = image_.order == Image::Order::blocked || run % 8 == 0;
    if (op.attributes.text("activation", "none") == "relu") mask_ = aligned ? Mask::aligned : Mask::any;
  }

 protected:
  float* values(int row) const {
    return reinterpret_cast<float*>(static_cast<double*>(workspace_) + scratch_) + row * image_.padded_channels();
  }
  void prepare(const float* mean) {
    std::fill(values(0), values(rows_), 0.0f);
    std::copy(mean, mean + image_.channels, values(0));
  }
  double inverse_deviation(float squares) const { return 1 / std::sqrt(squares / whole_count_ + epsilon_); }

  Image image_;
  const int64_t scratch_;  // doubles
  const double whole_count_, epsilon_;
  const int rows_;
  Mask mask_ = Mask::none;
};

class BatchNormGradientSums : public SyncBackward {
 public:
  BatchNormGradientSums(const Graph& graph, const Op& op, int threads)
      : SyncBackward(graph, op, threads, 2,
                     channel_scratch(image_of(graph.tensor(op.inputs[0])), parts_for(graph, op, threads))) {}

  void run() override {
    switch (mask_) {
      case Mask::none: return with<Mask::none>();
      case Mask::aligned: return with<Mask::aligned>();
      case Mask::any: return with<Mask::any>();
    }
  }

 private:
  template <Mask kMask>
  void with() {
    prepare(input(2));
    for (int64_t c = 0; c < image_.channels; ++c) values(1)[c] = static_cast<float>(inverse_deviation(input(3)[c]));
    sum_over_channels(image_, parts_,
                      GradientSums<kMask>{.x = input(0),
                                          .dy = input(1),
                                          .mask = mask_ == Mask::none ? nullptr : input<uint8_t>(4),
                                          .inv_std = values(1),
                                          .dgamma = output(0),
                                          .dbeta = output(1),
                                          .mean = values(0)},
                      static_cast<double*>(workspace_));
  }
};

class SyncBatchNormBackward : public SyncBackward {
 public:
  SyncBatchNormBackward(const Graph& graph, const Op& op, int threads)
      : SyncBackward(graph, op, threads, 4, 0), residual_(op.outputs.size() == 2) {}

  void run() override { residual_ ? with_residual<true>() : with_residual<false>(); }

 private:
  template <bool kResidual>
  void with_residual() {
    switch (mask_) {
      case Mask::none: return with<Mask::none, kResidual>();
      case Mask::aligned: return with<Mask::aligned, kResidual>();
      case Mask::any: return with<Mask::any, kResidual>();
    }
  }
  template <Mask kMask, bool kResidual>
  void with() {
    prepare(input(3));
    Backward<kMask, kResidual> pass{};
    pass.x = input(0), pass.dy = input(1), pass.gamma = input(2);
    pass.mask = kMask == Mask::none ? nullptr : input<uint8_t>(7);
    pass.dx = output(0), pass.dresidual = kResidual ? output(1) : nullptr;
    pass.count = whole_count_;
    pass.mean = values(0), pass.scale = values(1), pass.mean_gradient = values(2), pass.slope = values(3);
    for (int64_t c = 0; c < image_.channels; ++c) {
      const double inverse = inverse_deviation(input(4)[c]);
      pass.use_sums(c, inverse, input(6)[c], inverse * input(5)[c]);
    }
    apply_over_channels(image_, parts_, pass);
  }

  const bool residual_;
};

}  // namespace

std::vector<NamedFactory> batch_norm_forward_kernels();

std::vector<NamedFactory> batch_norm_kernels() {
  std::vector<NamedFactory> kernels = batch_norm_forward_kernels();
  kernels.push_back({"BatchNormBackward", {own_specs, make_own<BatchNormBackward>}});
  kernels.push_back({"BatchNormGradientSums", {own_specs, make_own<BatchNormGradientSums>}});
  kernels.push_back({"SyncBatchNormBackward", {own_specs, make_own<SyncBatchNormBackward>}});
  return kernels;
}

}  // namespace plimsoll::cpu
