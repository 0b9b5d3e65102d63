// dx, dgamma, dbeta and dresidual: the sums of g and of g (x - mean) over a group of channels, then its elements while
// they are in the cache. Sums are complete before a group's first element is written, and every element is read before
// it is written, so dx may lie in dy or x, and dresidual in dy.
#include "device/cpu/own_batch_norm.h"

namespace plimsoll::cpu {
namespace {

enum class Mask : uint8_t { none, aligned, any };  // aligned: a vector's bits begin and end with a byte

template <Mask kMask, bool kResidual>
struct Backward {
  const float* x;
  const float* dy;
  const uint8_t* mask;
  float* dx;
  float* dresidual;
  const float* gamma;
  const float* inv_std;
  float* dgamma;
  float* dbeta;
  double count;
  // One value a channel, and zeros for those that only fill a block.
  float* mean;
  float* scale;
  float* mean_gradient;
  float* slope;  // of the part of dx that goes with x - mean

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
    const double inverse = inv_std[c];
    scale[c] = static_cast<float>(gamma[c] * inverse);
    mean_gradient[c] = static_cast<float>(sum / count);
    slope[c] = static_cast<float>(inverse * inverse * product / count);
    dgamma[c] = static_cast<float>(product * inverse);
    dbeta[c] = static_cast<float>(sum);
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
    const f32x16 g = gradient(i, n);
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

}  // namespace

NamedFactory batch_norm_forward_kernel();

std::vector<NamedFactory> batch_norm_kernels() {
  return {batch_norm_forward_kernel(), {"BatchNormBackward", {own_specs, make_own<BatchNormBackward>}}};
}

}  // namespace plimsoll::cpu
