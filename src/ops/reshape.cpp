// Views, which run nothing: their output must lie where their input lies. Reshape gives the same bytes another shape;
// StopGradient lets no gradient pass.
#include <fmt/format.h>

#include <cstring>

#include "ops/families.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

std::vector<InPlace> in_the_inputs_place(const Graph&, const Op&) { return {{0, 0, true}}; }

void copy_whole(const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
  if (in[0].data == out[0].data) return;
  std::memcpy(out[0].data, in[0].data, storage_bytes(in[0].shape, in[0].dtype, {}).count);
}

OpType reshape() {
  return {
      .name = "Reshape",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            const Shape shape = attributes.integers("shape");
            if (element_count(shape) != element_count(in[0]->shape)) {
              throw Error(ErrorCode::invalid_input,
                          fmt::format("'{}' is {} and has {} elements, but the shape {} has {}", in[0]->name,
                                      to_string(in[0]->shape), element_count(in[0]->shape), to_string(shape),
                                      element_count(shape)));
            }
            return std::vector<TensorSpec>{{shape, in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            if (!wanted[0] || !dy[0].valid()) return std::vector<TensorId>{TensorId{}};
            const Shape shape = graph.tensor(graph.op(id).inputs[0]).shape;
            return std::vector<TensorId>{
                graph.output(add_backward(graph, "Reshape", id, "backward", {dy[0]}, {{"shape", shape}}))};
          },
      .in_place = in_the_inputs_place,
      .work = [](const Graph&, const Op&) { return Work{}; },
      .reference = copy_whole,
      .is_view = true,
  };
}

OpType stop_gradient() {
  return {
      .name = "StopGradient",
      .infer =
          [](const Attributes&, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
          },
      .gradient = [](Graph&, OpId, std::span<const TensorId>,
                     const std::vector<bool>&) { return std::vector<TensorId>{TensorId{}}; },
      .in_place = in_the_inputs_place,
      .work = [](const Graph&, const Op&) { return Work{}; },
      .reference = copy_whole,
      .is_view = true,
  };
}

}  // namespace

std::vector<OpType> reshape_ops() { return of_kind(LayerKind::other, {reshape(), stop_gradient()}); }

}  // namespace plimsoll
