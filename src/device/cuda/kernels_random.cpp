// Dropout and noise: the same draws as on every device (base/random.h).
#include "base/random.h"
#include "device/cuda/kernels.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

class DropoutKernel final : public CudaKernel {
 public:
  DropoutKernel(const Context& context, const Graph& graph, const Op& op) : CudaKernel(context, graph, op) {
    const Tensor& x = graph.tensor(op.inputs[0]);
    require_one_layout(graph, op, x);
    const double p = op.attributes.real("p");
    body_ = {.y = nullptr,
             .x = nullptr,
             .stream = stream_of_op(graph, op, 1, x.shape),
             .place = place_in(op, x),
             .row_major = x.layout.is_plain(),
             .threshold = dropout_threshold(p),
             .scale = static_cast<float>(1 / (1 - p)),
             .elements = element_count(x.shape)};
    image_of(op, x);  // no padding
  }

 private:
  void work() override {
    Dropout body = body_;
    body.y = output(0), body.x = input(0);
    body.stream.step_number = input<int64_t>(1), body.stream.seed = input<int64_t>(2);
    launch(body, (body.elements + 3) / 4);
  }

  Dropout body_{};
};

class BernoulliKernel final : public CudaKernel {
 public:
  BernoulliKernel(const Context& context, const Graph& graph, const Op& op) : CudaKernel(context, graph, op) {
    require_row_major(graph, op);
    const double p = op.attributes.real("p");
    body_ = {.y = nullptr,
             .stream = stream_of_op(graph, op, 0, graph.tensor(op.outputs[0]).shape),
             .threshold = p == 0 ? 0 : dropout_threshold(1 - p),
             .never = p == 0,
             .elements = element_count(graph.tensor(op.outputs[0]).shape)};
  }

 private:
  void work() override {
    Bernoulli body = body_;
    body.y = output(0);
    body.stream.step_number = input<int64_t>(0), body.stream.seed = input<int64_t>(1);
    launch(body, (body.elements + 3) / 4);
  }

  Bernoulli body_{};
};

class NormalKernel final : public CudaKernel {
 public:
  NormalKernel(const Context& context, const Graph& graph, const Op& op) : CudaKernel(context, graph, op) {
    const Tensor& z = graph.tensor(op.outputs[0]);
    image_of(op, z);  // no padding
    body_ = {.z = nullptr,
             .stream = stream_of_op(graph, op, 0, z.shape),
             .place = place_in(op, z),
             .mean = op.attributes.real("mean", 0),
             .deviation = op.attributes.real("stddev", 1)};
    elements_ = element_count(z.shape);
  }

 private:
  void work() override {
    RandomNormal body = body_;
    body.z = output(0);
    body.stream.step_number = input<int64_t>(0), body.stream.seed = input<int64_t>(1);
    launch(body, elements_);
  }

  RandomNormal body_{};
  int64_t elements_ = 0;
};

}  // namespace

Stream stream_of_op(const Graph& graph, const Op& op, size_t step_at, const Shape& drawn) {
  return {.salt = static_cast<uint32_t>(op.attributes.integer("salt", 0)),
          .part = element_count(graph.tensor(op.inputs.at(step_at + 1)).shape) > 1 ? element_count(drawn) : 0};
}

std::vector<NamedFactory> random_kernels() {
  return {{"Bernoulli", {own_specs_row_major, make_own<BernoulliKernel>}},
          {"DropoutForward", {own_specs, make_own<DropoutKernel>}},
          {"DropoutBackward", {own_specs, make_own<DropoutKernel>}},
          {"RandomNormal", {own_specs, make_own<NormalKernel>}}};
}

}  // namespace plimsoll::cuda
