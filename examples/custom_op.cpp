// An op of one's own: Swish, y = x * sigmoid(x), with its gradient. Its reference functions are all that a device
// without a kernel for it needs; it is planned, verified and run like any built-in op. (A kernel of its own would go
// into a device: docs/adding.md.)
#include <cmath>
#include <cstdio>
#include <span>

#include "plimsoll/compile.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"
#include "plimsoll/training_step.h"

using namespace plimsoll;

namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

template <class Function>  // Function(x) or Function(x, dy), element by element
void map(std::span<const TensorView> in, const TensorView& out, Function function) {
  for (int64_t i = 0, n = element_count(out.shape); i < n; ++i) {
    const float* second = in.size() > 1 ? static_cast<const float*>(in[1].data) : nullptr;
    const float x = static_cast<const float*>(in[0].data)[i];
    static_cast<float*>(out.data)[i] = static_cast<float>(function(x, second ? second[i] : 0.0f));
  }
}

std::vector<TensorSpec> like_first(const Attributes&, std::span<const Tensor* const> in) {
  return {{in[0]->shape, in[0]->dtype}};
}

Work few_flops(const Graph& graph, const Op& op) {
  const Tensor& y = graph.tensor(op.outputs[0]);
  return {10.0 * static_cast<double>(element_count(y.shape)), 2.0 * static_cast<double>(y.bytes().count)};
}

void register_swish() {
  register_op({.name = "SwishForward",
               .infer = like_first,
               .gradient =
                   [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
                     if (!wanted[0] || !dy[0].valid()) return std::vector<TensorId>{TensorId{}};
                     const Op forward = graph.op(id);  // a copy: adding an op moves the list
                     const OpId back = graph.add_op("SwishBackward", forward.name + "/backward", forward.layer,
                                                    {forward.inputs[0], dy[0]}, {}, Phase::backward);
                     graph.op(back).forward = id;
                     return std::vector<TensorId>{graph.output(back)};
                   },
               .in_place =
                   [](const Graph&, const Op&) {
                     return std::vector<InPlace>{{0, 0}};
                   },
               .work = few_flops,
               .reference =
                   [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
                     map(in, out[0], [](double x, double) { return x * sigmoid(x); });
                   },
               .kind = LayerKind::activation});
  register_op({.name = "SwishBackward",
               .infer = like_first,
               .gradient = {},
               .in_place =
                   [](const Graph&, const Op&) {
                     return std::vector<InPlace>{{0, 0}, {0, 1}};
                   },
               .work = few_flops,
               .reference =
                   [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
                     map(in, out[0], [](double x, double dy) {
                       const double s = sigmoid(x);
                       return dy * (s + x * s * (1 - s));
                     });
                   },
               .kind = LayerKind::activation});
}

}  // namespace

int main() {
  register_swish();
  Builder net("swish", {.batch = 4, .channels = 1, .height = 2, .width = 1, .classes = 2});
  TensorId x = net.fully_connected("fc1", net.flatten("flatten", net.data()), {.channels = 8});
  x = net.op("SwishForward", "swish", {x});
  const Network network = std::move(net).finish_classifier(net.fully_connected("fc2", x, {.channels = 2}));

  const std::unique_ptr<Device> device = open_device("cpu");
  TrainingStep step(std::get<Program>(compile_training(network, *device, CostTable(), {})), *device);
  step.initialize(/*seed=*/3);
  const float points[] = {0, 0, 0, 1, 1, 0, 1, 1};  // exclusive or
  const int32_t labels[] = {0, 1, 1, 0};
  for (int i = 0; i < 500; ++i) {
    step.feed(points, labels);
    step.run(/*learning_rate=*/0.1);
  }
  const Plan& plan = step.program().plan;
  std::printf("%s, %g of 4 right, first weight %g\n", to_string(plan.arena).c_str(), step.correct().value(),
              static_cast<double>(step.state("fc1.weight").as<float>()[0]));
  return step.correct() == 4.0 ? 0 : 1;
}
