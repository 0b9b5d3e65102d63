// Optimizer updates: each parameter in one pass over it, its gradient and its states, whatever their common layout.
// Padding stays zero: its gradient is. Sums of gradients over batches (ops/accumulate.cpp) are made here, too.
#include <cmath>
#include <cstring>

#include "device/cpu/own.h"
#include "device/cpu/own_vector.h"
#include "plimsoll/ops.h"

namespace plimsoll::cpu {
namespace {

class Update : public OwnKernel {
 public:
  Update(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads),
        elements_(storage_elements(graph.tensor(op.inputs[0]).shape, graph.tensor(op.inputs[0]).layout)) {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]).shape);
  }

 protected:
  template <class Body>
  void for_each_vector(const Body& body) const {
    for_each_part(parts_, [&](int part) {
      const Range range = share(elements_, part, parts_, 4 * kLanes);
      int64_t i = range.begin;
      for (; i + kLanes <= range.end; i += kLanes) body(i, kAll);
      if (i < range.end) body(i, static_cast<int>(range.end - i));
    });
  }
  int64_t elements_;
};

class AccumulateGradient : public Update {
 public:
  using Update::Update;
  void run() override {
    const float* g = input(1);
    const float* sum = input(2);
    float* next = output(0);
    if (*input<int64_t>(3) == 0) {
      for_each_vector([&](int64_t i, auto n) { store(next + i, load(g + i, n), n); });
    } else {
      for_each_vector([&](int64_t i, auto n) { store(next + i, load(sum + i, n) + load(g + i, n), n); });
    }
  }
};

class Assign : public OwnKernel {
 public:
  Assign(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads), bytes_(graph.tensor(op.inputs[0]).bytes().count) {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]).shape);
  }
  void run() override {
    for_each_part(parts_, [&](int part) {
      const Range range = share(bytes_, part, parts_, kCacheLine);
      std::memcpy(output<std::byte>(0) + range.begin, input<std::byte>(1) + range.begin, range.end - range.begin);
    });
  }

 private:
  static constexpr int64_t kCacheLine = 64;
  int64_t bytes_;
};

// The gradient as it is, or multiplied by a scalar.
struct PlainGradient {
  const float* g;
  template <class Count>
  f32x16 at(int64_t i, Count n) const {
    return load(g + i, n);
  }
};
struct ScaledGradient {
  const float* g;
  f32x16 scale;
  template <class Count>
  f32x16 at(int64_t i, Count n) const {
    return scale * load(g + i, n);
  }
};

// Calls body(gradient), unless the scale says that there is no update yet. `scale`: null where there is none.
template <class Body>
void with_gradient(const float* g, const float* scale, const Body& body) {
  if (scale == nullptr) return body(PlainGradient{g});
  if (!(*scale < 0)) body(ScaledGradient{g, splat(*scale)});
}

int64_t settings_count(const Graph& graph, const Op& op) { return element_count(graph.tensor(op.inputs[2]).shape); }

class SgdUpdate : public Update {
 public:
  SgdUpdate(const Graph& graph, const Op& op, int threads)
      : Update(graph, op, threads),
        settings_(op.attributes),
        settings_count_(settings_count(graph, op)),
        has_momentum_(op.outputs.size() > 1),
        scaled_(op.attributes.integer("scaled", 0) != 0) {}

  void run() override {
    settings_.read(input(2), settings_count_);
    const float* scale = scaled_ ? input(has_momentum_ ? 4 : 3) : nullptr;
    with_gradient(input(1), scale, [&](const auto& gradient) {
      if (!has_momentum_) return plain(gradient);
      if (settings_.nesterov) return with_momentum<true>(gradient);
      with_momentum<false>(gradient);
    });
  }

 private:
  f32x16 rate() const { return splat(static_cast<float>(settings_.learning_rate)); }
  f32x16 decay() const { return splat(static_cast<float>(settings_.weight_decay)); }
  template <class Gradient>
  void plain(const Gradient& g) {
    const float* w = input(0);
    float* next = output(0);
    const f32x16 rate = this->rate(), decay = this->decay();
    for_each_vector([&](int64_t i, auto n) {
      const f32x16 old = load(w + i, n);
      store(next + i, old - rate * (g.at(i, n) + decay * old), n);
    });
  }
  template <bool kNesterov, class Gradient>
  void with_momentum(const Gradient& g) {
    const float* w = input(0);
    const float* m = input(3);
    float* next = output(0);
    float* next_m = output(1);
    const f32x16 rate = this->rate(), decay = this->decay();
    const f32x16 momentum = splat(static_cast<float>(settings_.momentum));
    for_each_vector([&](int64_t i, auto n) {
      const f32x16 old = load(w + i, n), gradient = g.at(i, n) + decay * old;
      const f32x16 velocity = momentum * load(m + i, n) + gradient;
      store(next_m + i, velocity, n);
      store(next + i, old - rate * (kNesterov ? gradient + momentum * velocity : velocity), n);
    });
  }

  SgdSettings settings_;
  int64_t settings_count_;
  bool has_momentum_, scaled_;
};

class AdamUpdate : public Update {
 public:
  AdamUpdate(const Graph& graph, const Op& op, int threads)
      : Update(graph, op, threads),
        settings_(op.attributes),
        settings_count_(settings_count(graph, op)),
        scaled_(op.attributes.integer("scaled", 0) != 0) {}

  void run() override {
    settings_.read(input(2), settings_count_);
    with_gradient(input(1), scaled_ ? input(6) : nullptr, [&](const auto& gradient) { update(gradient); });
  }

 private:
  template <class Gradient>
  void update(const Gradient& g) {
    const AdamSettings& s = settings_;
    const float* w = input(0);
    const double step = static_cast<double>(*input<int64_t>(3)) + 1;
    const float* m = input(4);
    const float* v = input(5);
    float* next = output(0);
    float* next_m = output(1);
    float* next_v = output(2);
    const f32x16 beta1 = splat(static_cast<float>(s.beta1())), rest1 = splat(static_cast<float>(s.rest1));
    const f32x16 beta2 = splat(static_cast<float>(s.beta2())), rest2 = splat(static_cast<float>(s.rest2));
    const f32x16 rate = splat(static_cast<float>(s.learning_rate / (1 - std::pow(s.beta1(), step))));
    const f32x16 root_scale = splat(static_cast<float>(1 / std::sqrt(1 - std::pow(s.beta2(), step))));
    const f32x16 epsilon = splat(static_cast<float>(s.epsilon));
    const f32x16 added = splat(static_cast<float>(s.decoupled ? 0 : s.weight_decay));
    const f32x16 kept = splat(static_cast<float>(s.decoupled ? 1 - s.learning_rate * s.weight_decay : 1));
    for_each_vector([&](int64_t i, auto n) {
      const f32x16 old = load(w + i, n), gradient = g.at(i, n) + added * old;
      const f32x16 first = beta1 * load(m + i, n) + rest1 * gradient;
      const f32x16 second = beta2 * load(v + i, n) + rest2 * gradient * gradient;
      store(next_m + i, first, n);
      store(next_v + i, second, n);
      store(next + i, kept * old - rate * first / (square_root(second) * root_scale + epsilon), n);
    });
  }

  AdamSettings settings_;
  int64_t settings_count_;
  bool scaled_;
};

class ClipScale : public OwnKernel {
 public:
  ClipScale(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads),
        scaled_(op.attributes.integer("scaled", 0) != 0),
        norms_(op.inputs.size() - (scaled_ ? 1 : 0)),
        max_norm_(op.attributes.real("max_norm")) {}

  void run() override {
    const double scale = scaled_ ? static_cast<double>(*input(norms_)) : 1;
    if (scale < 0) {
      *output(0) = static_cast<float>(scale);
      *output(1) = 0;
      return;
    }
    double sum = 0;
    for (size_t i = 0; i < norms_; ++i) sum += static_cast<double>(*input(i)) * static_cast<double>(*input(i));
    const double total = scale * std::sqrt(sum), factor = max_norm_ / (total + 1e-6);
    *output(0) = static_cast<float>(scale * (factor >= 1 ? 1 : factor));  // what is no number stays none
    *output(1) = static_cast<float>(total);
  }

 private:
  bool scaled_;
  size_t norms_;
  double max_norm_;
};

class ScaleGradient : public Update {
 public:
  using Update::Update;
  void run() override {
    const float* g = input(0);
    float* scaled = output(0);
    const f32x16 scale = splat(*input(1));
    for_each_vector([&](int64_t i, auto n) { store(scaled + i, scale * load(g + i, n), n); });
  }
};

}  // namespace

std::vector<NamedFactory> update_kernels() {
  return {{"AccumulateGradient", {own_specs_any_layout, make_own<AccumulateGradient>}},
          {"Assign", {own_specs_any_layout, make_own<Assign>}},
          {"ClipScale", {own_specs_any_layout, make_own<ClipScale>}},
          {"ScaleGradient", {own_specs_any_layout, make_own<ScaleGradient>}},
          {"SgdUpdate", {own_specs_any_layout, make_own<SgdUpdate>}},
          {"AdamUpdate", {own_specs_any_layout, make_own<AdamUpdate>}}};
}

}  // namespace plimsoll::cpu
