// Assign: a state takes a value that the step computes, as a buffer does that a network changes in its forward pass.
//
//   state, value ──> Assign ──> state.next
//
// The new value lies where the old one lay, so every reader of that comes before.
#include <cstring>

#include "ops/families.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

OpType assign() {
  return {
      .name = "Assign",
      .infer =
          [](const Attributes&, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            expect_same_shape(*in[0], *in[1]);
            expect_same_dtype(*in[0], *in[1]);
            return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype, in[0]->role}};
          },
      .gradient = {},
      .in_place =
          [](const Graph&, const Op&) {
            return std::vector<InPlace>{{0, 0, true}};
          },
      .work =
          [](const Graph& graph, const Op& op) {
            return Work{0, 2 * static_cast<double>(graph.tensor(op.inputs[1]).bytes().count)};
          },
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            std::memmove(out[0].data, in[1].data, storage_bytes(in[1].shape, in[1].dtype, {}).count);
          },
      .changes_state = true,
      .state_outputs = {0},
  };
}

}  // namespace

std::vector<OpType> assign_ops() { return of_kind(LayerKind::other, {assign()}); }

}  // namespace plimsoll
