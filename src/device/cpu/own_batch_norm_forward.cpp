// y = act(bn(x) + residual) in one go: statistics of a group of channels, then its elements while they are in the
// cache.
#include <cmath>

#include "device/cpu/own_batch_norm.h"

namespace plimsoll::cpu {
namespace {

enum class Activation : uint8_t { none, relu, relu_and_mask };

// The variance is summed around the channel's first element, so that a large mean does not eat its digits.
template <Activation kActivation, bool kResidual>
struct Training {
  const float* x;
  const float* residual;
  float* y;
  uint8_t* mask;
  bool past_caches;
  const float* gamma;
  const float* beta;
  const float* running_mean_before;
  const float* running_variance_before;
  float* mean;
  float* inv_std;
  float* running_mean;  // null: a recomputation, which leaves them alone
  float* running_variance;
  double count, epsilon, momentum;
  // One value a channel, and zeros for those that only fill a block.
  float* shift;
  float* channel_mean;
  float* scale;
  float* offset;

  struct SumValues {
    f32x16 shift;
  };
  template <class Lanes>
  PLIMSOLL_INLINE SumValues sum_values(const Lanes& lanes) const {
    return {lanes(shift)};
  }
  template <class Count>
  PLIMSOLL_INLINE void sum(int64_t i, Count n, const SumValues& k, f32x16& first, f32x16& second) const {
    const f32x16 d = first_lanes(load(x + i, n) - k.shift, n);
    first += d;
    second += d * d;
  }

  void finish(int64_t c, double sum, double squares) const {
    const double from_shift = sum / count;
    const double squared = std::max(0.0, squares - sum * from_shift);
    const double m = shift[c] + from_shift, inverse = 1 / std::sqrt(squared / count + epsilon);
    channel_mean[c] = static_cast<float>(m);
    scale[c] = static_cast<float>(gamma[c] * inverse);
    offset[c] = beta[c];
    mean[c] = static_cast<float>(m);
    inv_std[c] = static_cast<float>(inverse);
    if (running_mean != nullptr) {
      running_mean[c] = static_cast<float>((1 - momentum) * running_mean_before[c] + momentum * m);
    }
    if (running_variance != nullptr) {
      running_variance[c] = static_cast<float>((1 - momentum) * running_variance_before[c] +
                                               momentum * squared / std::max(1.0, count - 1));
    }
  }

  struct ApplyValues {
    f32x16 mean, scale, offset;
  };
  template <class Lanes>
  PLIMSOLL_INLINE ApplyValues apply_values(const Lanes& lanes) const {
    return {lanes(channel_mean), lanes(scale), lanes(offset)};
  }
  template <class Count>
  PLIMSOLL_INLINE void apply(int64_t i, Count n, const ApplyValues& k) const {
    f32x16 z = (load(x + i, n) - k.mean) * k.scale + k.offset;
    if constexpr (kResidual) z += load(residual + i, n);
    if constexpr (kActivation != Activation::none) z = relu(z);
    if constexpr (kActivation == Activation::relu_and_mask) put_aligned_bits(mask, i, n, positive_bits(z));
    if constexpr (std::is_same_v<Count, All>) {
      if (past_caches) return stream(y + i, z);
    }
    store(y + i, z, n);
  }
};

struct Settings {
  bool training, relu, residual;
  double epsilon, momentum;
};

Settings settings_of(const Op& op) {
  return {.training = op.attributes.integer("training", 1) != 0,
          .relu = op.attributes.text("activation", "none") == "relu",
          .residual = op.inputs.size() == 6,
          .epsilon = op.attributes.real("epsilon", 1e-5),
          .momentum = op.attributes.real("momentum", 0.1)};
}

class BatchNormForward : public OwnKernel {
 public:
  BatchNormForward(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads), settings_(settings_of(op)), image_(image_of(graph.tensor(op.inputs[0]))) {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]).shape);
    scratch_ = settings_.training ? channel_scratch(image_, parts_) : 0;
    workspace_bytes_ = {scratch_ * 8 + 4 * image_.padded_channels() * 4};
    // A run's last vector may begin inside a byte of the mask unless runs are multiples of eight.
    const int64_t run = image_.order == Image::Order::plain ? image_.pixels : image_.channels;
    mask_apart_ = image_.order != Image::Order::blocked && run % 8 != 0;
  }

  void run() override {
    if (settings_.residual) {
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
    if (!settings_.relu) return with<Activation::none, kResidual>();
    if (!settings_.training || mask_apart_) {
      with<Activation::relu, kResidual>();
      if (settings_.training) make_mask();
      return;
    }
    with<Activation::relu_and_mask, kResidual>();
  }

  template <Activation kActivation, bool kResidual>
  void with() {
    Training<kActivation, kResidual> pass{};
    pass.x = input(0);
    pass.residual = kResidual ? input(5) : nullptr;
    pass.y = output(0);
    pass.gamma = input(1), pass.beta = input(2);
    pass.past_caches = should_stream();
    pass.shift = values(0), pass.channel_mean = values(1), pass.scale = values(2), pass.offset = values(3);
    std::fill(values(0), values(4), 0.0f);
    if (!settings_.training) return evaluate(pass);
    pass.mask = settings_.relu ? output<uint8_t>(5) : nullptr;
    pass.running_mean_before = input(3), pass.running_variance_before = input(4);
    pass.mean = output(1), pass.inv_std = output(2), pass.running_mean = output(3), pass.running_variance = output(4);
    pass.count = static_cast<double>(image_.images * image_.pixels);
    pass.epsilon = settings_.epsilon, pass.momentum = settings_.momentum;
    for (int64_t c = 0; c < image_.channels; ++c) pass.shift[c] = pass.x[image_.at(0, c, 0)];
    sum_over_channels(image_, parts_, pass, static_cast<double*>(workspace_));
  }

  // With the running statistics there is nothing to sum.
  template <class Pass>
  void evaluate(const Pass& pass) {
    for (int64_t c = 0; c < image_.channels; ++c) {
      pass.channel_mean[c] = input(3)[c];
      pass.scale[c] = static_cast<float>(input(1)[c] / std::sqrt(input(4)[c] + settings_.epsilon));
      pass.offset[c] = input(2)[c];
    }
    apply_over_channels(image_, parts_, pass);
  }

  void make_mask() {
    const float* y = output(0);
    uint8_t* mask = output<uint8_t>(5);
    for_each_part(parts_, [&](int part) {
      const Range range = share(image_.elements(), part, parts_, kLanes);
      int64_t i = range.begin;
      for (; i + kLanes <= range.end; i += kLanes) put_aligned_bits(mask, i, 16, positive_bits(load(y + i)));
      if (i == range.end) return;
      const int count = static_cast<int>(range.end - i);
      put_aligned_bits(mask, i, count, positive_bits(load(y + i, count)));
    });
  }

  // What does not fit in the caches anyway is better written past them, where y does not take an input's place.
  bool should_stream() const {
    return image_.elements() * 4 >= kStreamFrom && inputs_[0] != outputs_[0] &&
           !(settings_.residual && inputs_[5] == outputs_[0]) && reinterpret_cast<uintptr_t>(outputs_[0]) % 64 == 0 &&
           image_.channels % 16 == 0 && image_.order != Image::Order::plain;
  }
  static constexpr int64_t kStreamFrom = int64_t{1} << 62;

  Settings settings_;
  Image image_;
  int64_t scratch_ = 0;  // doubles
  bool mask_apart_ = false;
};

}  // namespace

NamedFactory batch_norm_forward_kernel() { return {"BatchNormForward", {own_specs, make_own<BatchNormForward>}}; }

}  // namespace plimsoll::cpu
