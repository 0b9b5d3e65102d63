// Activations, sums, biases, constants, reorders, parts of tensors, optimizers.
#pragma once

#include "device/cuda/bodies/common.h"

namespace plimsoll::cuda {

struct Constant {
  using Kind = EachElement;
  float* y;
  float value;
  PLIMSOLL_BODY void run(int64_t i) const { y[i] = value; }
};

enum class Activation : int32_t { none, relu, leaky_relu, sigmoid, tanh };

struct Activate {
  using Kind = EachElement;
  float* y;
  const float* x;
  Activation kind;
  float slope;
  PLIMSOLL_BODY void run(int64_t i) const {
    const float v = x[i];
    switch (kind) {
      case Activation::relu: y[i] = v > 0 ? v : 0; break;
      case Activation::leaky_relu: y[i] = v > 0 ? v : slope * v; break;
      case Activation::sigmoid: y[i] = 1 / (1 + expf(-v)); break;
      case Activation::tanh: y[i] = tanhf(v); break;
      case Activation::none: y[i] = v; break;
    }
  }
};

struct ActivateBackward {
  using Kind = EachElement;
  float* dx;
  const float* dy;
  const float* y;
  Activation kind;
  float slope;
  PLIMSOLL_BODY void run(int64_t i) const {
    const float g = dy[i], v = y[i];
    switch (kind) {
      case Activation::relu: dx[i] = v > 0 ? g : 0; break;
      case Activation::leaky_relu: dx[i] = v > 0 ? g : slope * g; break;
      case Activation::sigmoid: dx[i] = g * v * (1 - v); break;
      case Activation::tanh: dx[i] = g * (1 - v * v); break;
      case Activation::none: dx[i] = g; break;
    }
  }
};

inline constexpr int kMostTerms = 64;

struct AddTerms {
  using Kind = EachElement;
  float* y;
  const float* terms[kMostTerms];
  int32_t count;
  bool relu;
  PLIMSOLL_BODY void run(int64_t i) const {
    float sum = terms[0][i];
    for (int t = 1; t < count; ++t) sum += terms[t][i];
    y[i] = relu && !(sum > 0) ? 0 : sum;
  }
};

struct AddBias {
  using Kind = EachElement;
  float* y;
  const float* x;
  const float* bias;
  Image image;
  bool relu;
  PLIMSOLL_BODY void run(int64_t i) const {
    const float v = x[i] + bias[channel(image, i)];
    y[i] = relu && !(v > 0) ? 0 : v;
  }
};

struct ReorderWords {  // of four bytes
  using Kind = EachElement;
  uint32_t* to;
  const uint32_t* from;
  Place to_place, from_place;
  PLIMSOLL_BODY void run(int64_t i) const { to[position(to_place, i)] = from[position(from_place, i)]; }
};
struct ReorderBytes {
  using Kind = EachElement;
  uint8_t* to;
  const uint8_t* from;
  Place to_place, from_place;
  PLIMSOLL_BODY void run(int64_t i) const { to[position(to_place, i)] = from[position(from_place, i)]; }
};

struct Sgd {
  using Kind = EachElement;
  float* w_next;
  float* m_next;  // null without momentum
  const float* w;
  const float* g;
  const float* m;
  const float* learning_rate;
  const float* scale;  // of the gradient; below 0: no update yet; null: 1
  float momentum, weight_decay;
  bool nesterov;
  PLIMSOLL_BODY void run(int64_t i) const {
    float d = g[i];
    if (scale != nullptr) {
      if (*scale < 0) return;
      d *= *scale;
    }
    d += weight_decay * w[i];
    if (m_next != nullptr) {
      const float velocity = momentum * m[i] + d;
      d = nesterov ? d + momentum * velocity : velocity;
      m_next[i] = velocity;
    }
    w_next[i] = w[i] - *learning_rate * d;
  }
};

// The sum of gradients over batches (ops/accumulate.cpp); with none before, it begins anew.
struct Accumulate {
  using Kind = EachElement;
  float* sum_next;
  const float* sum;
  const float* g;
  const int64_t* count;
  PLIMSOLL_BODY void run(int64_t i) const { sum_next[i] = *count == 0 ? g[i] : sum[i] + g[i]; }
};

// What one step's update shares, made once before it: powers are dear.
struct AdamFactors {
  using Kind = EachElement;
  float* factors;  // keep, step size, correction
  const float* learning_rate;
  const int64_t* step_number;
  double beta1, beta2, weight_decay;
  bool decoupled;
  PLIMSOLL_BODY void run(int64_t) const {
    const double lr = *learning_rate, step = static_cast<double>(*step_number) + 1;
    factors[0] = static_cast<float>(decoupled ? 1 - lr * weight_decay : 1);
    factors[1] = static_cast<float>(lr / (1 - pow(beta1, step)));
    factors[2] = static_cast<float>(sqrt(1 - pow(beta2, step)));
  }
};
struct Adam {
  using Kind = EachElement;
  float* w_next;
  float* m_next;
  float* v_next;
  const float* w;
  const float* g;
  const float* m;
  const float* v;
  const float* factors;
  const float* scale;  // as Sgd's
  float decay, epsilon, b2, c1, c2;
  PLIMSOLL_BODY void run(int64_t i) const {
    float d = g[i];
    if (scale != nullptr) {
      if (*scale < 0) return;
      d *= *scale;
    }
    d += decay * w[i];
    const float mean = m[i] + c1 * (d - m[i]);
    const float square = b2 * v[i] + c2 * d * d;
    w_next[i] = factors[0] * w[i] - factors[1] * (mean / (sqrtf(square) / factors[2] + epsilon));
    m_next[i] = mean;
    v_next[i] = square;
  }
};

}  // namespace plimsoll::cuda
