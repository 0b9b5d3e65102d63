// Batch normalisation with what is fused into it (ops/batch_norm.cpp).
#pragma once

#include "device/cuda/bodies/sums.h"

namespace plimsoll::cuda {

struct Statistics {  // a block a channel
  using Kind = EachBlock;
  using Value = SumPair;
  float* mean;
  float* inv_std;
  float* next_mean;  // null in a recomputation
  float* next_variance;
  const float* running_mean;
  const float* running_variance;
  const SumPair* sums;
  int64_t pieces, elements;
  double epsilon, momentum;
  PLIMSOLL_BODY SumPair partial(int64_t c, int thread) const { return sum_of_pieces(sums, pieces, c, thread); }
  PLIMSOLL_BODY void finish(int64_t c, const SumPair& sum) const {
    const double n = static_cast<double>(elements), m = sum.a / n;
    double squares = sum.b - sum.a * m;
    if (squares < 0) squares = 0;
    mean[c] = static_cast<float>(m);
    inv_std[c] = static_cast<float>(1 / sqrt(squares / n + epsilon));
    if (next_mean == nullptr) return;
    next_mean[c] = static_cast<float>((1 - momentum) * running_mean[c] + momentum * m);
    next_variance[c] = static_cast<float>((1 - momentum) * running_variance[c] + momentum * squares / (n - 1));
  }
};

inline constexpr int kMaskGroup = 8;  // elements a thread: a byte of the mask

struct Normalize {
  using Kind = EachElement;
  float* y;
  uint8_t* mask;  // or null
  const float* x;
  const float* residual;  // or null
  const float* gamma;
  const float* beta;
  const float* mean;
  const float* inv_std;  // null: from the variance
  const float* variance;
  float epsilon;
  Image image;
  int64_t elements;
  bool relu;
  PLIMSOLL_BODY float normal(int64_t at, float value, float beside) const {
    const int64_t c = channel(image, at);
    const float inv = inv_std != nullptr ? inv_std[c] : 1 / sqrtf(variance[c] + epsilon);
    return (value - mean[c]) * (gamma[c] * inv) + beta[c] + beside;
  }
  PLIMSOLL_BODY void run(int64_t i) const {
    const int64_t first = kMaskGroup * i;
    uint32_t bits = 0;
    if (first + kMaskGroup <= elements) {
      for (int half = 0; half < kMaskGroup; half += 4) {
        const int64_t at = first + half;
        Four four = load_four(x + at), beside{};
        if (residual != nullptr) beside = load_four(residual + at);
        for (int k = 0; k < 4; ++k) {
          const float z = normal(at + k, four.v[k], beside.v[k]);
          bits |= static_cast<uint32_t>(z > 0) << (half + k);
          four.v[k] = relu && !(z > 0) ? 0 : z;
        }
        store_four(y + at, four);
      }
    } else {
      for (int k = 0; k < kMaskGroup && first + k < elements; ++k) {
        const int64_t at = first + (k & (kMaskGroup - 1));
        const float z = normal(at, x[at], residual != nullptr ? residual[at] : 0);
        bits |= static_cast<uint32_t>(z > 0) << k;
        y[at] = relu && !(z > 0) ? 0 : z;
      }
    }
    if (mask != nullptr) mask[i] = static_cast<uint8_t>(bits);
  }
};

struct NormalizeBackward {
  using Kind = EachFour;
  float* dx;
  float* dresidual;  // or null
  const float* x;
  const float* dy;
  const float* gamma;
  const float* mean;
  const float* inv_std;
  const float* dgamma;
  const float* dbeta;
  const uint8_t* mask;  // or null
  Image image;
  float one_by_n;
  PLIMSOLL_BODY float of(int64_t at, float value, float g) const {
    const int64_t c = channel(image, at);
    const float x_hat = (value - mean[c]) * inv_std[c];
    return gamma[c] * inv_std[c] * (g - dbeta[c] * one_by_n - x_hat * (dgamma[c] * one_by_n));
  }
  PLIMSOLL_BODY void run(int64_t at) const {
    const float g = counts(mask, at) ? dy[at] : 0;
    const float d = of(at, x[at], g);
    if (dresidual != nullptr) dresidual[at] = g;
    dx[at] = d;
  }
  PLIMSOLL_BODY void four(int64_t at) const {
    Four values = load_four(x + at), g = load_four(dy + at);
    const uint32_t bits = mask != nullptr ? mask[at >> 3] >> (at & 7) : 15;
    for (int k = 0; k < 4; ++k) {
      g.v[k] = ((bits >> k) & 1) != 0 ? g.v[k] : 0;
      values.v[k] = of(at + k, values.v[k], g.v[k]);
    }
    if (dresidual != nullptr) store_four(dresidual + at, g);
    store_four(dx + at, values);
  }
  bool by_four() const { return lie_by_four(dx, dresidual, x, dy); }
};

// Of batch normalisation over several ranks (ops/sync_batch_norm.cpp): a rank's own mean and squares around it, a block a
// channel.
struct ChannelMoments {
  using Kind = EachBlock;
  using Value = SumPair;
  float* mean;
  float* squares;
  const SumPair* sums;
  int64_t pieces, elements;
  PLIMSOLL_BODY SumPair partial(int64_t c, int thread) const { return sum_of_pieces(sums, pieces, c, thread); }
  PLIMSOLL_BODY void finish(int64_t c, const SumPair& sum) const {
    const double m = sum.a / static_cast<double>(elements), around = sum.b - sum.a * m;
    mean[c] = static_cast<float>(m);
    squares[c] = static_cast<float>(around < 0 ? 0 : around);
  }
};

// What follows from the mean and squares of all ranks, an element a channel.
struct WholeStatistics {
  using Kind = EachElement;
  float* inv_std;
  float* next_mean;  // null but in a forward pass that is no recomputation
  float* next_variance;
  const float* running_mean;
  const float* running_variance;
  const float* mean;
  const float* squares;
  double elements;  // of a channel, of all ranks
  double epsilon, momentum;
  PLIMSOLL_BODY void run(int64_t c) const {
    inv_std[c] = static_cast<float>(1 / sqrt(squares[c] / elements + epsilon));
    if (next_mean == nullptr) return;
    next_mean[c] = static_cast<float>((1 - momentum) * running_mean[c] + momentum * mean[c]);
    next_variance[c] =
        static_cast<float>((1 - momentum) * running_variance[c] + momentum * squares[c] / (elements - 1));
  }
};

}  // namespace plimsoll::cuda
