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
  float weight_decay, momentum;
  bool has_settings;  // behind the learning rate, instead of these (plimsoll/ops.h)
  bool nesterov;
  PLIMSOLL_BODY void run(int64_t i) const {
    const float weight_decay = has_settings ? learning_rate[1] : this->weight_decay;
    const float momentum = has_settings ? learning_rate[2] : this->momentum;
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

template <class T>
struct CopyElements {
  using Kind = EachElement;
  T* to;
  const T* from;
  PLIMSOLL_BODY void run(int64_t i) const { to[i] = from[i]; }
};

// What one step's update shares, made once before it: powers are dear.
struct AdamFactors {
  using Kind = EachElement;
  static constexpr int kCount = 8;
  float* factors;
  const float* learning_rate;
  const int64_t* step_number;
  double weight_decay, rest1, rest2, epsilon;
  bool has_settings;  // behind the learning rate, instead of these (plimsoll/ops.h)
  bool decoupled;
  PLIMSOLL_BODY void run(int64_t) const {
    const double lr = learning_rate[0], step = static_cast<double>(*step_number) + 1;
    const double decay = has_settings ? learning_rate[1] : weight_decay;
    const double c1 = has_settings ? learning_rate[2] : rest1;
    const double c2 = has_settings ? learning_rate[3] : rest2;
    factors[0] = static_cast<float>(decoupled ? 1 - lr * decay : 1);  // what is kept
    factors[1] = static_cast<float>(lr / (1 - pow(1 - c1, step)));
    factors[2] = static_cast<float>(sqrt(1 - pow(1 - c2, step)));
    factors[3] = static_cast<float>(decoupled ? 0 : decay);  // what is added
    factors[4] = static_cast<float>(c1);
    factors[5] = static_cast<float>(1 - c2);
    factors[6] = static_cast<float>(c2);
    factors[7] = has_settings ? learning_rate[4] : static_cast<float>(epsilon);
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
  PLIMSOLL_BODY void run(int64_t i) const {
    float d = g[i];
    if (scale != nullptr) {
      if (*scale < 0) return;
      d *= *scale;
    }
    d += factors[3] * w[i];
    const float mean = m[i] + factors[4] * (d - m[i]);
    const float square = factors[5] * v[i] + factors[6] * d * d;
    w_next[i] = factors[0] * w[i] - factors[1] * (mean / (sqrtf(square) / factors[2] + factors[7]));
    m_next[i] = mean;
    v_next[i] = square;
  }
};

}  // namespace plimsoll::cuda
