// Activations: y = f(x), and the gradient from y alone, so that x need not be kept and y may take x's bytes.
#include <fmt/format.h>

#include <cmath>

#include "ops/families.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

struct Activation {
  std::string name;
  double (*forward)(double x, double slope);
  double (*slope_from_output)(double y, double slope);  // dy/dx, from y
  double flops_per_element;
};

std::vector<OpType> make(const Activation& f) {
  const std::string forward_name = f.name + "Forward", backward_name = f.name + "Backward";
  const double flops = f.flops_per_element;
  OpType forward{
      .name = forward_name,
      .infer =
          [](const Attributes&, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
          },
      .gradient =
          [backward_name](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            if (!wanted[0] || !dy[0].valid()) return std::vector<TensorId>{TensorId{}};
            const Op op = graph.op(id);
            const OpId back = add_backward(graph, backward_name, id, "backward", {dy[0], op.outputs[0]}, op.attributes);
            return std::vector<TensorId>{graph.output(back)};
          },
      .in_place =
          [](const Graph&, const Op&) {
            return std::vector<InPlace>{{0, 0}};
          },
      .work = [flops](const Graph& graph, const Op& op) { return elementwise_work(graph, op, flops); },
      .reference =
          [f](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const double slope = op.attributes.real("slope", 0.01);
            for_each_element(out[0], [&](int64_t i) { store(out[0], i, f.forward(load(in[0], i), slope)); });
          },
  };
  OpType backward{
      .name = backward_name,
      .infer =
          [](const Attributes&, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            expect_same_shape(*in[0], *in[1]);
            return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
          },
      .gradient = {},
      .in_place =
          [](const Graph&, const Op&) {
            return std::vector<InPlace>{{0, 0}, {0, 1}};
          },
      .work = [flops](const Graph& graph, const Op& op) { return elementwise_work(graph, op, flops); },
      .reference =
          [f](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const double slope = op.attributes.real("slope", 0.01);
            for_each_element(out[0], [&](int64_t i) {
              store(out[0], i, load(in[0], i) * f.slope_from_output(load(in[1], i), slope));
            });
          },
  };
  return {in_parts(std::move(forward), {{0}, {0}}), in_parts(std::move(backward), {{0, 1}, {0}})};
}

}  // namespace

std::vector<OpType> activation_ops() {
  const Activation kinds[] = {
      {"Relu", [](double x, double) { return x > 0 ? x : 0; }, [](double y, double) { return y > 0 ? 1.0 : 0.0; }, 1},
      {"LeakyRelu", [](double x, double s) { return x > 0 ? x : s * x; },
       [](double y, double s) { return y > 0 ? 1.0 : s; }, 2},
      {"Sigmoid", [](double x, double) { return 1 / (1 + std::exp(-x)); }, [](double y, double) { return y * (1 - y); },
       10},
      {"Tanh", [](double x, double) { return std::tanh(x); }, [](double y, double) { return 1 - y * y; }, 10},
  };
  std::vector<OpType> types;
  for (const Activation& kind : kinds) {
    for (OpType& type : make(kind)) types.push_back(std::move(type));
  }
  return of_kind(LayerKind::activation, std::move(types));
}

}  // namespace plimsoll
