// y = act(bn(x) + residual) in one go: statistics of a group of channels, then its elements while they are in the
// cache. With several ranks that share their statistics (ops/sync_batch_norm.cpp) these are two kernels.
#include <cmath>

#include "device/cpu/own_batch_norm.h"
#include "plimsoll/ops.h"

namespace plimsoll::cpu {
namespace {

enum class Activation : uint8_t { none, relu, relu_and_mask };

// Of a channel: its mean, and the sum of squares around it. Both are summed around the channel's first element, so that a
// large mean does not eat their digits.
struct MomentSums {
  const float* x;
  double count;
  float* shift;  // one value a channel, and zeros for those that only fill a block

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

  struct Found {
    double mean, squares;
  };
  Found moments(int64_t c, double sum, double squares) const {
    const double from_shift = sum / count;
    return {shift[c] + from_shift, std::max(0.0, squares - sum * from_shift)};
  }
};

struct LeaveMoments : MomentSums {
  float* mean;
  float* squares;

  void finish(int64_t c, double sum, double squared) const {
    const MomentSums::Found found = moments(c, sum, squared);
    mean[c] = static_cast<float>(found.mean);
    squares[c] = static_cast<float>(found.squares);
  }
};

template <Activation kActivation, bool kResidual>
struct Training : MomentSums {
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
  double epsilon, momentum;
  // One value a channel, and zeros for those that only fill a block.
  float* channel_mean;
  float* scale;
  float* offset;

  void finish(int64_t c, double sum, double squares) const {
    const MomentSums::Found found = moments(c, sum, squares);
    const double inverse = normalise_by(c, found.mean, found.squares);
    mean[c] = static_cast<float>(found.mean);
    inv_std[c] = static_cast<float>(inverse);
  }

  // Returns one over the standard deviation.
  double normalise_by(int64_t c, double m, double squared) const {
    const double inverse = 1 / std::sqrt(squared / count + epsilon);
    channel_mean[c] = static_cast<float>(m);
    scale[c] = static_cast<float>(gamma[c] * inverse);
    offset[c] = beta[c];
    if (running_mean != nullptr) {
      running_mean[c] = static_cast<float>((1 - momentum) * running_mean_before[c] + momentum * m);
    }
    if (running_variance != nullptr) {
      running_variance[c] = static_cast<float>((1 - momentum) * running_variance_before[c] +
                                               momentum * squared / std::max(1.0, count - 1));
    }
    return inverse;
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
  bool training, given_moments, relu, residual;
  size_t residual_at, mask_at;  // among the inputs, the outputs
  double epsilon, momentum;
};

Settings settings_of(const Op& op) {
  const bool given = op.type->name == "SyncBatchNormForward";
  const size_t residual_at = given ? 7 : 5;
  return {.training = given || op.attributes.integer("training", 1) != 0,
          .given_moments = given,
          .relu = op.attributes.text("activation", "none") == "relu",
          .residual = op.inputs.size() > residual_at,
          .residual_at = residual_at,
          .mask_at = given ? 3U : 5U,
          .epsilon = op.attributes.real("epsilon", 1e-5),
          .momentum = op.attributes.real("momentum", 0.1)};
}

class BatchNormForward : public OwnKernel {
 public:
  BatchNormForward(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads), settings_(settings_of(op)), image_(image_of(graph.tensor(op.inputs[0]))) {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]).shape);
    scratch_ = settings_.training && !settings_.given_moments ? channel_scratch(image_, parts_) : 0;
    whole_count_ = static_cast<double>(image_.images * image_.pixels * op.attributes.integer("ranks", 1));
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
    pass.residual = kResidual ? input(settings_.residual_at) : nullptr;
    pass.y = output(0);
    pass.gamma = input(1), pass.beta = input(2);
    pass.past_caches = should_stream();
    pass.shift = values(0), pass.channel_mean = values(1), pass.scale = values(2), pass.offset = values(3);
    std::fill(values(0), values(4), 0.0f);
    if (!settings_.training) return evaluate(pass);
    pass.mask = settings_.relu ? output<uint8_t>(settings_.mask_at) : nullptr;
    pass.running_mean_before = input(3), pass.running_variance_before = input(4);
    pass.count = whole_count_;
    pass.epsilon = settings_.epsilon, pass.momentum = settings_.momentum;
    const size_t running = settings_.given_moments ? 1 : 3;
    pass.running_mean = output(running), pass.running_variance = output(running + 1);
    if (settings_.given_moments) return normalise(pass);
    pass.mean = output(1), pass.inv_std = output(2);
    for (int64_t c = 0; c < image_.channels; ++c) pass.shift[c] = pass.x[image_.at(0, c, 0)];
    sum_over_channels(image_, parts_, pass, static_cast<double*>(workspace_));
  }

  // By mean and squares that are of all ranks.
  template <class Pass>
  void normalise(const Pass& pass) {
    for (int64_t c = 0; c < image_.channels; ++c) pass.normalise_by(c, input(5)[c], input(6)[c]);
    apply_over_channels(image_, parts_, pass);
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
    uint8_t* mask = output<uint8_t>(settings_.mask_at);
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
           !(settings_.residual && inputs_[settings_.residual_at] == outputs_[0]) &&
           reinterpret_cast<uintptr_t>(outputs_[0]) % 64 == 0 && image_.channels % 16 == 0 &&
           image_.order != Image::Order::plain;
  }
  static constexpr int64_t kStreamFrom = int64_t{1} << 62;

  Settings settings_;
  Image image_;
  int64_t scratch_ = 0;  // doubles
  double whole_count_ = 0;
  bool mask_apart_ = false;
};

class BatchMoments : public OwnKernel {
 public:
  BatchMoments(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads), image_(image_of(graph.tensor(op.inputs[0]))) {
    scratch_ = channel_scratch(image_, parts_);
    workspace_bytes_ = {scratch_ * 8 + image_.padded_channels() * 4};
  }

  void run() override {
    LeaveMoments pass{};
    pass.x = input(0);
    pass.count = static_cast<double>(image_.images * image_.pixels);
    pass.mean = output(0), pass.squares = output(1);
    pass.shift = reinterpret_cast<float*>(static_cast<double*>(workspace_) + scratch_);
    std::fill_n(pass.shift, image_.padded_channels(), 0.0f);
    for (int64_t c = 0; c < image_.channels; ++c) pass.shift[c] = pass.x[image_.at(0, c, 0)];
    sum_over_channels(image_, parts_, pass, static_cast<double*>(workspace_));
  }

 private:
  Image image_;
  int64_t scratch_ = 0;  // doubles
};

}  // namespace

std::vector<NamedFactory> batch_norm_forward_kernels() {
  return {{"BatchNormForward", {own_specs, make_own<BatchNormForward>}},
          {"SyncBatchNormForward", {own_specs, make_own<BatchNormForward>}},
          {"BatchMoments", {own_specs, make_own<BatchMoments>}}};
}

}  // namespace plimsoll::cpu
