// Activations, sums, biases, constants, reorders, parts of tensors, optimizers.
#pragma once

#include "device/cuda/bodies/common.h"

namespace plimsoll::cuda {

struct Constant {
  using Kind = EachFour;
  float* y;
  float value;
  PLIMSOLL_BODY void run(int64_t i) const { y[i] = value; }
  PLIMSOLL_BODY void four(int64_t i) const { store_four(y + i, {{value, value, value, value}}); }
  bool by_four() const { return lie_by_four(y); }
};

enum class Activation : int32_t { none, relu, leaky_relu, sigmoid, tanh };

struct Activate {
  using Kind = EachFour;
  float* y;
  const float* x;
  Activation kind;
  float slope;
  PLIMSOLL_BODY float of(float v) const {
    switch (kind) {
      case Activation::relu: return v > 0 ? v : 0;
      case Activation::leaky_relu: return v > 0 ? v : slope * v;
      case Activation::sigmoid: return 1 / (1 + expf(-v));
      case Activation::tanh: return tanhf(v);
      case Activation::none: break;
    }
    return v;
  }
  PLIMSOLL_BODY void run(int64_t i) const { y[i] = of(x[i]); }
  PLIMSOLL_BODY void four(int64_t i) const {
    Four values = load_four(x + i);
    for (float& v : values.v) v = of(v);
    store_four(y + i, values);
  }
  bool by_four() const { return lie_by_four(y, x); }
};

struct ActivateBackward {
  using Kind = EachFour;
  float* dx;
  const float* dy;
  const float* y;
  Activation kind;
  float slope;
  PLIMSOLL_BODY float of(float g, float v) const {
    switch (kind) {
      case Activation::relu: return v > 0 ? g : 0;
      case Activation::leaky_relu: return v > 0 ? g : slope * g;
      case Activation::sigmoid: return g * v * (1 - v);
      case Activation::tanh: return g * (1 - v * v);
      case Activation::none: break;
    }
    return g;
  }
  PLIMSOLL_BODY void run(int64_t i) const { dx[i] = of(dy[i], y[i]); }
  PLIMSOLL_BODY void four(int64_t i) const {
    Four values = load_four(dy + i);
    const Four after = load_four(y + i);
    for (int k = 0; k < 4; ++k) values.v[k] = of(values.v[k], after.v[k]);
    store_four(dx + i, values);
  }
  bool by_four() const { return lie_by_four(dx, dy, y); }
};

inline constexpr int kMostTerms = 64;

struct AddTerms {
  using Kind = EachFour;
  float* y;
  const float* terms[kMostTerms];
  int32_t count;
  bool relu;
  PLIMSOLL_BODY void run(int64_t i) const {
    float sum = terms[0][i];
    for (int t = 1; t < count; ++t) sum += terms[t][i];
    y[i] = relu && !(sum > 0) ? 0 : sum;
  }
  PLIMSOLL_BODY void four(int64_t i) const {
    Four sums = load_four(terms[0] + i);
    for (int t = 1; t < count; ++t) {
      const Four term = load_four(terms[t] + i);
      for (int k = 0; k < 4; ++k) sums.v[k] += term.v[k];
    }
    for (float& sum : sums.v) sum = relu && !(sum > 0) ? 0 : sum;
    store_four(y + i, sums);
  }
  bool by_four() const {
    for (int t = 0; t < count; ++t) {
      if (!lie_by_four(terms[t])) return false;
    }
    return lie_by_four(y);
  }
};

struct AddBias {
  using Kind = EachFour;
  float* y;
  const float* x;
  const float* bias;
  Image image;
  bool relu;
  PLIMSOLL_BODY float of(int64_t i, float value) const {
    const float v = value + bias[channel(image, i)];
    return relu && !(v > 0) ? 0 : v;
  }
  PLIMSOLL_BODY void run(int64_t i) const { y[i] = of(i, x[i]); }
  PLIMSOLL_BODY void four(int64_t i) const {
    Four values = load_four(x + i);
    for (int k = 0; k < 4; ++k) values.v[k] = of(i + k, values.v[k]);
    store_four(y + i, values);
  }
  bool by_four() const { return lie_by_four(y, x); }
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

// Updates say where a product is rounded before it is added (fmaf does not): left to itself a compiler chooses for each kernel,
// and the same update, alone, by fours, joined with others or by an embedding's lookups, would give other bits.
struct Sgd {
  using Kind = EachFour;
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
  struct Settings {
    float rate, weight_decay, momentum, scale;
  };
  PLIMSOLL_BODY Settings settings() const {
    return {*learning_rate, has_settings ? learning_rate[1] : weight_decay, has_settings ? learning_rate[2] : momentum,
            scale != nullptr ? *scale : 1};
  }
  // From the gradient; weight and velocity become the next ones.
  PLIMSOLL_BODY void step(const Settings& s, float d, float& weight, float& velocity) const {
    if (scale != nullptr) d *= s.scale;
    d = fmaf(s.weight_decay, weight, d);
    if (m_next != nullptr) {
      velocity = fmaf(s.momentum, velocity, d);
      d = nesterov ? fmaf(s.momentum, velocity, d) : velocity;
    }
    weight = fmaf(-s.rate, d, weight);
  }
  PLIMSOLL_BODY bool is_due() const { return scale == nullptr || !(*scale < 0); }
  PLIMSOLL_BODY void run_with(int64_t i, float d) const {
    float weight = w[i], velocity = m_next != nullptr ? m[i] : 0;
    step(settings(), d, weight, velocity);
    if (m_next != nullptr) m_next[i] = velocity;
    w_next[i] = weight;
  }
  PLIMSOLL_BODY void run(int64_t i) const {
    if (is_due()) run_with(i, g[i]);
  }
  PLIMSOLL_BODY void four(int64_t i) const {
    const Settings s = settings();
    if (s.scale < 0) return;
    const Four d = load_four(g + i);
    Four weights = load_four(w + i), velocities{};
    if (m_next != nullptr) velocities = load_four(m + i);
    for (int k = 0; k < 4; ++k) step(s, d.v[k], weights.v[k], velocities.v[k]);
    if (m_next != nullptr) store_four(m_next + i, velocities);
    store_four(w_next + i, weights);
  }
  bool by_four() const { return lie_by_four(w_next, m_next, w, g, m); }
};

// The sum of gradients over batches (ops/accumulate.cpp); with none before, it begins anew.
struct Accumulate {
  using Kind = EachFour;
  float* sum_next;
  const float* sum;
  const float* g;
  const int64_t* count;
  PLIMSOLL_BODY void run(int64_t i) const { sum_next[i] = *count == 0 ? g[i] : sum[i] + g[i]; }
  PLIMSOLL_BODY void four(int64_t i) const {
    Four values = load_four(g + i);
    if (*count != 0) {
      const Four before = load_four(sum + i);
      for (int k = 0; k < 4; ++k) values.v[k] = before.v[k] + values.v[k];
    }
    store_four(sum_next + i, values);
  }
  bool by_four() const { return lie_by_four(sum_next, sum, g); }
};

template <class T>
struct CopyElements {
  using Kind = EachElement;
  T* to;
  const T* from;
  PLIMSOLL_BODY void run(int64_t i) const { to[i] = from[i]; }
};

// What one step's update shares, made once before it: powers are dear, so there is a thread for each.
struct AdamFactors {
  using Kind = EachElement;
  static constexpr int kCount = 8, kThreads = 2;
  float* factors;
  const float* learning_rate;
  const int64_t* step_number;
  double weight_decay, rest1, rest2, epsilon;
  bool has_settings;  // behind the learning rate, instead of these (plimsoll/ops.h)
  bool decoupled;
  PLIMSOLL_BODY void run(int64_t thread) const {
    const double lr = learning_rate[0], step = static_cast<double>(*step_number) + 1;
    const double decay = has_settings ? learning_rate[1] : weight_decay;
    const double c1 = has_settings ? learning_rate[2] : rest1;
    const double c2 = has_settings ? learning_rate[3] : rest2;
    const double left = 1 - pow(1 - (thread == 0 ? c1 : c2), step);
    if (thread == 0) {
      factors[0] = static_cast<float>(decoupled ? 1 - lr * decay : 1);  // what is kept
      factors[1] = static_cast<float>(lr / left);
      factors[3] = static_cast<float>(decoupled ? 0 : decay);  // what is added
      factors[4] = static_cast<float>(c1);
    } else {
      factors[2] = static_cast<float>(sqrt(left));
      factors[5] = static_cast<float>(1 - c2);
      factors[6] = static_cast<float>(c2);
      factors[7] = has_settings ? learning_rate[4] : static_cast<float>(epsilon);
    }
  }
};
struct Adam {
  using Kind = EachFour;
  float* w_next;
  float* m_next;
  float* v_next;
  const float* w;
  const float* g;
  const float* m;
  const float* v;
  const float* factors;
  const float* scale;  // as Sgd's
  // From the gradient; the others become the next ones.
  PLIMSOLL_BODY void step(float d, float& weight, float& mean, float& square) const {
    if (scale != nullptr) d *= *scale;
    d = fmaf(factors[3], weight, d);
    mean = fmaf(factors[4], d - mean, mean);
    square = fmaf(factors[5], square, factors[6] * d * d);
    weight = fmaf(-factors[1], mean / (sqrtf(square) / factors[2] + factors[7]), factors[0] * weight);
  }
  PLIMSOLL_BODY bool is_due() const { return scale == nullptr || !(*scale < 0); }
  PLIMSOLL_BODY void run_with(int64_t i, float d) const {
    float weight = w[i], mean = m[i], square = v[i];
    step(d, weight, mean, square);
    w_next[i] = weight;
    m_next[i] = mean;
    v_next[i] = square;
  }
  PLIMSOLL_BODY void run(int64_t i) const {
    if (is_due()) run_with(i, g[i]);
  }
  PLIMSOLL_BODY void four(int64_t i) const {
    if (!is_due()) return;
    const Four d = load_four(g + i);
    Four weights = load_four(w + i), means = load_four(m + i), squares = load_four(v + i);
    for (int k = 0; k < 4; ++k) step(d.v[k], weights.v[k], means.v[k], squares.v[k]);
    store_four(w_next + i, weights);
    store_four(m_next + i, means);
    store_four(v_next + i, squares);
  }
  bool by_four() const { return lie_by_four(w_next, m_next, v_next, w, g, m, v); }
};

// Bodies of one kind as one launch. Each part begins at a multiple of four, so that fours are of one part; what a part has
// fewer than its place is nobody's.
template <class Body>
struct Joined {
  using Kind = EachFour;
  static constexpr int kMost = (4000 - 8) / static_cast<int>(sizeof(Body) + 2 * sizeof(int32_t));
  Body parts[kMost];
  int32_t begins[kMost], sizes[kMost];
  int32_t count;
  PLIMSOLL_BODY int part_at(int64_t i) const {
    int low = 0, high = count - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      begins[middle] <= i ? void(low = middle) : void(high = middle - 1);
    }
    return low;
  }
  PLIMSOLL_BODY void run(int64_t i) const {
    const int part = part_at(i);
    const int64_t at = i - begins[part];
    if (at < sizes[part]) parts[part].run(at);
  }
  PLIMSOLL_BODY void four(int64_t i) const {
    const int part = part_at(i);
    const int64_t at = i - begins[part];
    if (at + 4 <= sizes[part]) {
      parts[part].four(at);
    } else {
      for (int64_t k = at; k < sizes[part]; ++k) parts[part].run(k);
    }
  }
  bool by_four() const {
    for (int part = 0; part < count; ++part) {
      if (!parts[part].by_four()) return false;
    }
    return true;
  }
};

}  // namespace plimsoll::cuda
