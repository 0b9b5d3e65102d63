// Optimizer updates: each parameter in one pass over it, its gradient and its states, whatever their common layout.
// Padding stays zero: its gradient is. Sums of gradients over batches (ops/accumulate.cpp) are made here, too, and all of
// this by the gradient of an embedding's table that does not lie whole (ops/embedding_gradient.cpp).
#include <cmath>
#include <cstring>

#include "device/cpu/own.h"
#include "device/cpu/own_lookups.h"
#include "device/cpu/own_rows.h"
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
  static void for_each_vector(Range range, const Body& body) {
    int64_t i = range.begin;
    for (; i + kLanes <= range.end; i += kLanes) body(i, kAll);
    if (i < range.end) body(i, static_cast<int>(range.end - i));
  }
  template <class Body>
  void for_each_vector(const Body& body) const {
    for_each_part(parts_, [&](int part) { for_each_vector(share(elements_, part, parts_, 4 * kLanes), body); });
  }
  int64_t elements_;
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

// The gradient of the elements from `first` on, as it is, or multiplied by a scalar.
struct PlainGradient {
  const float* g;
  int64_t first = 0;
  template <class Count>
  f32x16 at(int64_t i, Count n) const {
    return load(g + (i - first), n);
  }
};
struct ScaledGradient {
  const float* g;
  f32x16 scale;
  template <class Count>
  f32x16 at(int64_t i, Count n) const {
    return rounded(scale * load(g + i, n));  // times one it is the plain gradient, to the bit
  }
};

// What fades away, as the momentum of a word that no text has, would stay at numbers that are too small to be normal, which take
// a processor many times as long.
PLIMSOLL_INLINE f32x16 faded(f32x16 v) {
  const auto exponent = bits_as<i32x16>(v) & splat(int32_t{0x7f800000});
  return choose(exponent == splat(int32_t{0}), splat(0.0f), v);
}

int64_t settings_count(const Graph& graph, const Op& op) { return element_count(graph.tensor(op.inputs[2]).shape); }

// What follows has, beside `update`, which works on some of the elements:
//   read_settings()          before it, once a run
//   scale()                  the scalar by which the gradient is multiplied, below 0 where there is no update yet; or null
//   keeps_untouched()        whether elements whose gradient is 0 stay as they are
class SumOverBatches : public Update {
 public:
  using Update::Update;

 protected:
  void read_settings() { begins_ = *input<int64_t>(3) == 0; }
  const float* scale() const { return nullptr; }
  bool keeps_untouched() const { return !begins_ && output(0) == input(2); }
  template <class Gradient>
  void update(Range range, const Gradient& g) const {
    const float* sum = input(2);
    float* next = output(0);
    if (begins_) {
      for_each_vector(range, [&](int64_t i, auto n) { store(next + i, g.at(i, n), n); });
    } else {
      for_each_vector(range, [&](int64_t i, auto n) { store(next + i, load(sum + i, n) + g.at(i, n), n); });
    }
  }

 private:
  bool begins_ = false;
};

class AddedGradient : public Update {
 public:
  using Update::Update;

 protected:
  void read_settings() {}
  const float* scale() const { return nullptr; }
  bool keeps_untouched() const { return output(0) == input(0); }
  void update(Range range, const PlainGradient& g) const {
    const float* x = input(0);
    float* sum = output(0);
    for_each_vector(range, [&](int64_t i, auto n) { store(sum + i, load(x + i, n) + g.at(i, n), n); });
  }
};

class SgdUpdate : public Update {
 public:
  SgdUpdate(const Graph& graph, const Op& op, int threads)
      : Update(graph, op, threads),
        settings_(op.attributes),
        settings_count_(settings_count(graph, op)),
        has_momentum_(op.outputs.size() > 1),
        scaled_(op.attributes.integer("scaled", 0) != 0) {}

 protected:
  void read_settings() { settings_.read(input(2), settings_count_); }
  const float* scale() const { return scaled_ ? input(has_momentum_ ? 4 : 3) : nullptr; }
  bool keeps_untouched() const {
    return !has_momentum_ && settings_.weight_decay == 0 && std::isfinite(settings_.learning_rate) &&
           output(0) == input(0);
  }
  template <class Gradient>
  void update(Range range, const Gradient& gradient) const {
    if (!has_momentum_) return plain(range, gradient);
    if (settings_.nesterov) return with_momentum<true>(range, gradient);
    with_momentum<false>(range, gradient);
  }

 private:
  f32x16 rate() const { return splat(static_cast<float>(settings_.learning_rate)); }
  f32x16 decay() const { return splat(static_cast<float>(settings_.weight_decay)); }
  template <class Gradient>
  void plain(Range range, const Gradient& g) const {
    const float* w = input(0);
    float* next = output(0);
    const f32x16 rate = this->rate(), decay = this->decay();
    for_each_vector(range, [&](int64_t i, auto n) {
      const f32x16 old = load(w + i, n);
      store(next + i, old - rate * (g.at(i, n) + decay * old), n);
    });
  }
  template <bool kNesterov, class Gradient>
  void with_momentum(Range range, const Gradient& g) const {
    const float* w = input(0);
    const float* m = input(3);
    float* next = output(0);
    float* next_m = output(1);
    const f32x16 rate = this->rate(), decay = this->decay();
    const f32x16 momentum = splat(static_cast<float>(settings_.momentum));
    for_each_vector(range, [&](int64_t i, auto n) {
      const f32x16 old = load(w + i, n), gradient = g.at(i, n) + decay * old;
      const f32x16 velocity = faded(momentum * load(m + i, n) + gradient);
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

 protected:
  void read_settings() {
    settings_.read(input(2), settings_count_);
    const AdamSettings& s = settings_;
    const double step = static_cast<double>(*input<int64_t>(3)) + 1;
    rate_ = static_cast<float>(s.learning_rate / (1 - std::pow(s.beta1(), step)));
    root_scale_ = static_cast<float>(1 / std::sqrt(1 - std::pow(s.beta2(), step)));
  }
  const float* scale() const { return scaled_ ? input(6) : nullptr; }
  bool keeps_untouched() const { return false; }
  template <class Gradient>
  void update(Range range, const Gradient& g) const {
    const AdamSettings& s = settings_;
    const float* w = input(0);
    const float* m = input(4);
    const float* v = input(5);
    float* next = output(0);
    float* next_m = output(1);
    float* next_v = output(2);
    const f32x16 beta1 = splat(static_cast<float>(s.beta1())), rest1 = splat(static_cast<float>(s.rest1));
    const f32x16 beta2 = splat(static_cast<float>(s.beta2())), rest2 = splat(static_cast<float>(s.rest2));
    const f32x16 rate = splat(rate_), root_scale = splat(root_scale_);
    const f32x16 epsilon = splat(static_cast<float>(s.epsilon));
    const f32x16 added = splat(static_cast<float>(s.decoupled ? 0 : s.weight_decay));
    const f32x16 kept = splat(static_cast<float>(s.decoupled ? 1 - s.learning_rate * s.weight_decay : 1));
    const bool divides_by_more = s.epsilon > 1e-12;  // than the root of what fades
    for_each_vector(range, [&](int64_t i, auto n) {
      const f32x16 old = load(w + i, n), gradient = g.at(i, n) + added * old;
      const f32x16 first = faded(beta1 * load(m + i, n) + rest1 * gradient);
      f32x16 second = beta2 * load(v + i, n) + rest2 * gradient * gradient;
      if (divides_by_more) second = faded(second);
      store(next_m + i, first, n);
      store(next_v + i, second, n);
      store(next + i, kept * old - rate * first / (square_root(second) * root_scale + epsilon), n);
    });
  }

 private:
  AdamSettings settings_;
  int64_t settings_count_;
  float rate_ = 0, root_scale_ = 0;
  bool scaled_;
};

// By a gradient that is there whole.
template <class Of>
class ByGradient final : public Of {
 public:
  using Of::Of;
  void run() override {
    this->read_settings();
    const float *g = this->input(1), *scale = this->scale();
    if (scale == nullptr) return update_all(PlainGradient{g});
    if (!(*scale < 0)) update_all(ScaledGradient{g, splat(*scale)});
  }

 private:
  template <class Gradient>
  void update_all(const Gradient& gradient) const {
    for_each_part(this->parts_,
                  [&](int part) { this->update(share(this->elements_, part, this->parts_, 4 * kLanes), gradient); });
  }
};

// By the gradient of the rows that were looked up in an embedding's table, which is made a block of elements at a time.
template <class Of>
class ByLookups final : public Of {
 public:
  ByLookups(const Graph& graph, const Op& op, int threads)
      : Of(graph, op, threads),
        indices_at_(op.inputs.size() - 1),
        lookups_(op, graph.tensor(op.inputs[0]).shape, graph.tensor(op.inputs[indices_at_])) {
    require_row_major(graph, op);
    this->workspace_bytes_ = lookups_.workspace();
  }

  void run() override {
    this->read_settings();
    const float* scale = this->scale();
    if (scale != nullptr && *scale < 0) return;
    lookups_.sort(this->input(1), this->template input<void>(indices_at_), this->workspace_);
    const bool some = this->keeps_untouched() && (scale == nullptr || std::isfinite(*scale));
    for_each_part(this->parts_, [&](int part) { some ? update_some(part, scale) : update_all(part, scale); });
  }

 private:
  static constexpr int64_t kBlock = 1024;  // elements: their gradient is in the first cache

  void update_all(int part, const float* scale) const {
    const Range range = share(this->elements_, part, this->parts_, kBlock);
    Lookups::Place place = lookups_.begin();
    for (int64_t i = range.begin; i < range.end; i += kBlock)
      update_block({i, std::min(i + kBlock, range.end)}, place, scale);
  }
  void update_some(int part, const float* scale) const {
    lookups_.for_each_row(part, this->parts_, [&](Range row, Lookups::Place place) {
      for (int64_t i = row.begin; i < row.end; i += kBlock)
        update_block({i, std::min(i + kBlock, row.end)}, place, scale);
    });
  }
  void update_block(Range block, Lookups::Place& place, const float* scale) const {
    alignas(64) static constexpr float kZeros[kBlock] = {};
    alignas(64) float made[kBlock];
    const bool touched = lookups_.make(block, place, made);
    const bool multiplies = scale != nullptr && (touched || !std::isfinite(*scale));  // by infinity, zeros are none
    if (!touched && !multiplies) return this->update(block, PlainGradient{kZeros, block.begin});
    if (!touched) std::memset(made, 0, sizeof made);
    if (multiplies) {
      const f32x16 by = splat(*scale);
      Of::for_each_vector({0, block.end - block.begin},
                          [&](int64_t i, auto n) { store(made + i, by * load(made + i, n), n); });
    }
    this->update(block, PlainGradient{made, block.begin});
  }

  size_t indices_at_;
  Lookups lookups_;
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
  return {{"AccumulateGradient", {own_specs_any_layout, make_own<ByGradient<SumOverBatches>>}},
          {"Assign", {own_specs_any_layout, make_own<Assign>}},
          {"ClipScale", {own_specs_any_layout, make_own<ClipScale>}},
          {"ScaleGradient", {own_specs_any_layout, make_own<ScaleGradient>}},
          {"SgdUpdate", {own_specs_any_layout, make_own<ByGradient<SgdUpdate>>}},
          {"AdamUpdate", {own_specs_any_layout, make_own<ByGradient<AdamUpdate>>}},
          {"EmbeddingAccumulateGradient", {own_specs_row_major, make_own<ByLookups<SumOverBatches>>}},
          {"EmbeddingAddGradient", {own_specs_row_major, make_own<ByLookups<AddedGradient>>}},
          {"EmbeddingSgdUpdate", {own_specs_row_major, make_own<ByLookups<SgdUpdate>>}},
          {"EmbeddingAdamUpdate", {own_specs_row_major, make_own<ByLookups<AdamUpdate>>}}};
}

}  // namespace plimsoll::cpu
