// Activations, sums of tensors, biases, constants. What treats every element alike walks the storage whatever its
// layout.
#include "device/cpu/own.h"
#include "device/cpu/own_vector.h"
#include "plimsoll/ops.h"

namespace plimsoll::cpu {
namespace {

// Calls body(i, count) for vectors that cover [0, elements), on all parts.
template <class Body>
void for_each_vector(int64_t elements, int parts, const Body& body) {
  for_each_part(parts, [&](int part) {
    const Range range = share(elements, part, parts, 4 * kLanes);
    int64_t i = range.begin;
    for (; i + 2 * kLanes <= range.end; i += 2 * kLanes) {
      body(i, kAll);
      body(i + kLanes, kAll);
    }
    for (; i + kLanes <= range.end; i += kLanes) body(i, kAll);
    if (i < range.end) body(i, static_cast<int>(range.end - i));
  });
}

struct Relu {
  PLIMSOLL_INLINE static f32x16 forward(f32x16 x, f32x16) { return relu(x); }
  PLIMSOLL_INLINE static f32x16 backward(f32x16 dy, f32x16 y, f32x16) {
    return choose(y > splat(0.0f), dy, splat(0.0f));
  }
};
struct LeakyRelu {
  PLIMSOLL_INLINE static f32x16 forward(f32x16 x, f32x16 slope) { return choose(x > splat(0.0f), x, slope * x); }
  PLIMSOLL_INLINE static f32x16 backward(f32x16 dy, f32x16 y, f32x16 slope) {
    return choose(y > splat(0.0f), dy, slope * dy);
  }
};
struct Sigmoid {
  PLIMSOLL_INLINE static f32x16 forward(f32x16 x, f32x16) { return sigmoid(x); }
  PLIMSOLL_INLINE static f32x16 backward(f32x16 dy, f32x16 y, f32x16) { return dy * (y * (splat(1.0f) - y)); }
};
struct Tanh {
  PLIMSOLL_INLINE static f32x16 forward(f32x16 x, f32x16) { return hyperbolic_tangent(x); }
  PLIMSOLL_INLINE static f32x16 backward(f32x16 dy, f32x16 y, f32x16) { return dy * (splat(1.0f) - y * y); }
};

// Where padding may not stay zero by itself, the tensor must be an image of a layout that we know.
Image image_or_flat(const Tensor& tensor) {
  if (tensor.layout.is_plain()) return {.order = Image::Order::plain, .pixels = element_count(tensor.shape)};
  return image_of(tensor);
}

template <class F>
class ActivationForward : public OwnKernel {
 public:
  ActivationForward(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads),
        elements_(storage_elements(graph.tensor(op.inputs[0]).shape, graph.tensor(op.inputs[0]).layout)),
        slope_(static_cast<float>(op.attributes.real("slope", 0.01))) {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]).shape);
    if constexpr (std::is_same_v<F, Sigmoid>) image_ = image_or_flat(graph.tensor(op.inputs[0]));
  }
  void run() override {
    const float* x = input(0);
    float* y = output(0);
    const f32x16 slope = splat(slope_);
    for_each_vector(elements_, parts_, [&](int64_t i, auto n) { store(y + i, F::forward(load(x + i, n), slope), n); });
    if constexpr (std::is_same_v<F, Sigmoid>) clear_padding(y, image_);
  }

 private:
  int64_t elements_;
  float slope_;
  Image image_;
};

template <class F>
class ActivationBackward : public OwnKernel {
 public:
  ActivationBackward(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads),
        elements_(storage_elements(graph.tensor(op.inputs[0]).shape, graph.tensor(op.inputs[0]).layout)),
        slope_(static_cast<float>(op.attributes.real("slope", 0.01))) {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]).shape);
  }
  void run() override {
    const float* dy = input(0);
    const float* y = input(1);
    float* dx = output(0);
    const f32x16 slope = splat(slope_);
    for_each_vector(elements_, parts_,
                    [&](int64_t i, auto n) { store(dx + i, F::backward(load(dy + i, n), load(y + i, n), slope), n); });
  }

 private:
  int64_t elements_;
  float slope_;
};

class Add : public OwnKernel {
 public:
  Add(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads),
        elements_(storage_elements(graph.tensor(op.inputs[0]).shape, graph.tensor(op.inputs[0]).layout)),
        relu_(op.attributes.text("activation", "none") == "relu") {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]).shape);
  }
  void run() override {
    if (inputs_.size() == 2) {
      const float* a = input(0);
      const float* b = input(1);
      return add([=](int64_t i, auto n) { return load(a + i, n) + load(b + i, n); });
    }
    // The output may lie in any of them: an element of each is read before the sum is written.
    add([this](int64_t i, auto n) {
      f32x16 sum = load(input(0) + i, n);
      for (size_t k = 1; k < inputs_.size(); ++k) sum += load(input(k) + i, n);
      return sum;
    });
  }

 private:
  template <class Sum>
  void add(const Sum& sum) {
    float* y = output(0);
    if (relu_) {
      for_each_vector(elements_, parts_, [&](int64_t i, auto n) { store(y + i, relu(sum(i, n)), n); });
    } else {
      for_each_vector(elements_, parts_, [&](int64_t i, auto n) { store(y + i, sum(i, n), n); });
    }
  }
  int64_t elements_;
  bool relu_;
};

class Constant : public OwnKernel {
 public:
  Constant(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads),
        image_(image_or_flat(graph.tensor(op.outputs[0]))),
        value_(static_cast<float>(op.attributes.real("value"))) {}
  void run() override {
    float* y = output(0);
    const f32x16 value = splat(value_);
    for_each_vector(image_.elements(), parts_, [&](int64_t i, auto n) { store(y + i, value, n); });
    clear_padding(y, image_);
  }

 private:
  Image image_;
  float value_;
};

}  // namespace

std::vector<NamedFactory> bias_kernels();

std::vector<NamedFactory> elementwise_kernels() {
  std::vector<NamedFactory> kernels{
      {"ReluForward", {own_specs_any_layout, make_own<ActivationForward<Relu>>}},
      {"ReluBackward", {own_specs_any_layout, make_own<ActivationBackward<Relu>>}},
      {"LeakyReluForward", {own_specs_any_layout, make_own<ActivationForward<LeakyRelu>>}},
      {"LeakyReluBackward", {own_specs_any_layout, make_own<ActivationBackward<LeakyRelu>>}},
      {"SigmoidForward", {own_specs, make_own<ActivationForward<Sigmoid>>}},
      {"SigmoidBackward", {own_specs_any_layout, make_own<ActivationBackward<Sigmoid>>}},
      {"TanhForward", {own_specs_any_layout, make_own<ActivationForward<Tanh>>}},
      {"TanhBackward", {own_specs_any_layout, make_own<ActivationBackward<Tanh>>}},
      {"Add", {own_specs_any_layout, make_own<Add>}},
      {"Constant", {own_specs, make_own<Constant>}},
  };
  for (const NamedFactory& kernel : bias_kernels()) kernels.push_back(kernel);
  return kernels;
}

}  // namespace plimsoll::cpu
