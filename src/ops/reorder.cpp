// Reorder: the same elements in another layout. The layout pass inserts it; in row-major order, as the reference kernel
// sees tensors, it is a copy.
#include <cstring>

#include "ops/families.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

OpType reorder() {
  return {
      .name = "Reorder",
      .infer =
          [](const Attributes&, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
          },
      .gradient = [](Graph&, OpId, std::span<const TensorId> dy,
                     const std::vector<bool>& wanted) { return std::vector<TensorId>{wanted[0] ? dy[0] : TensorId{}}; },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 0); },
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            std::memmove(out[0].data, in[0].data, storage_bytes(in[0].shape, in[0].dtype, {}).count);
          },
  };
}

}  // namespace

std::vector<OpType> reorder_ops() { return of_kind(LayerKind::other, {reorder()}); }

}  // namespace plimsoll
