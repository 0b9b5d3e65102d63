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

// What an element's channel does to it.
struct ChannelNorm {
  float mean, factor, shift;
  PLIMSOLL_BODY float of(float value, float beside) const { return (value - mean) * factor + shift + beside; }
};
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
  bool fours;  // of channels, which lie by four
  PLIMSOLL_BODY float inverse(float of_variance) const { return 1 / sqrtf(of_variance + epsilon); }
  PLIMSOLL_BODY ChannelNorm norm(int64_t c) const {
    return {mean[c], gamma[c] * (inv_std != nullptr ? inv_std[c] : inverse(variance[c])), beta[c]};
  }
  PLIMSOLL_BODY float cut(float z, int bit, uint32_t& bits) const {
    bits |= static_cast<uint32_t>(z > 0) << bit;
    return relu && !(z > 0) ? 0 : z;
  }
  PLIMSOLL_BODY void four(int64_t at, int bit, uint32_t& bits, ChannelWalk& walk) const {
    Four four = load_four(x + at), beside{};
    if (residual != nullptr) beside = load_four(residual + at);
    if (fours) {
      const Four means = load_four(mean + walk.c), factors = load_four(gamma + walk.c),
                 inverses = load_four((inv_std != nullptr ? inv_std : variance) + walk.c),
                 shifts = load_four(beta + walk.c);
      for (int k = 0; k < 4; ++k) {
        const float inv = inv_std != nullptr ? inverses.v[k] : inverse(inverses.v[k]);
        const ChannelNorm norm{means.v[k], factors.v[k] * inv, shifts.v[k]};
        four.v[k] = cut(norm.of(four.v[k], beside.v[k]), bit + k, bits);
      }
      walk.c = walk.c + 4 == image.c ? 0 : walk.c + 4;
    } else {
      ChannelNorm here = norm(walk.c);
      for (int k = 0; k < 4; ++k) {
        four.v[k] = cut(here.of(four.v[k], beside.v[k]), bit + k, bits);
        if (step_on(walk, image) && k < 3) here = norm(walk.c);
      }
    }
    store_four(y + at, four);
  }
  PLIMSOLL_BODY void run(int64_t i) const {
    const int64_t first = kMaskGroup * i;
    uint32_t bits = 0;
    ChannelWalk walk = channel_walk(image, first);
    if (first + kMaskGroup <= elements) {
      four(first, 0, bits, walk);
      four(first + 4, 4, bits, walk);
    } else {
      for (int k = 0; k < kMaskGroup && first + k < elements; ++k) {
        const int64_t at = first + (k & (kMaskGroup - 1));
        y[at] = cut(norm(walk.c).of(x[at], residual != nullptr ? residual[at] : 0), k, bits);
        step_on(walk, image);
      }
    }
    if (mask != nullptr) mask[i] = static_cast<uint8_t>(bits);
  }
};

struct ChannelGradient {
  float mean, inv_std, factor, beta_part, gamma_part;
  PLIMSOLL_BODY float of(float value, float g) const {
    const float x_hat = (value - mean) * inv_std;
    return factor * (g - beta_part - x_hat * gamma_part);
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
  bool fours;  // of channels, which lie by four
  PLIMSOLL_BODY ChannelGradient gradient(int64_t c) const {
    return {mean[c], inv_std[c], gamma[c] * inv_std[c], dbeta[c] * one_by_n, dgamma[c] * one_by_n};
  }
  PLIMSOLL_BODY void run(int64_t at) const {
    const float g = counts(mask, at) ? dy[at] : 0;
    const float d = gradient(channel(image, at)).of(x[at], g);
    if (dresidual != nullptr) dresidual[at] = g;
    dx[at] = d;
  }
  PLIMSOLL_BODY void four(int64_t at) const {
    Four values = load_four(x + at), g = load_four(dy + at);
    const uint32_t bits = mask != nullptr ? mask[at >> 3] >> (at & 7) : 15;
    ChannelWalk walk = channel_walk(image, at);
    for (int k = 0; k < 4; ++k) g.v[k] = ((bits >> k) & 1) != 0 ? g.v[k] : 0;
    if (fours) {
      const Four means = load_four(mean + walk.c), inverses = load_four(inv_std + walk.c),
                 factors = load_four(gamma + walk.c), to_beta = load_four(dbeta + walk.c),
                 to_gamma = load_four(dgamma + walk.c);
      for (int k = 0; k < 4; ++k) {
        const ChannelGradient here{means.v[k], inverses.v[k], factors.v[k] * inverses.v[k], to_beta.v[k] * one_by_n,
                                   to_gamma.v[k] * one_by_n};
        values.v[k] = here.of(values.v[k], g.v[k]);
      }
    } else {
      ChannelGradient here = gradient(walk.c);
      for (int k = 0; k < 4; ++k) {
        values.v[k] = here.of(values.v[k], g.v[k]);
        if (k < 3 && step_on(walk, image)) here = gradient(walk.c);
      }
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
