// Which parameters are divided among the ranks, as gradients and updates see it; passes/divide.cpp divides them.
#include "plimsoll/autodiff.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr double kWorthDividing = 0.75;  // what a piece may be of the whole

}  // namespace

bool is_divided(const Shape& parameter, const Sharding& sharding, int ranks) {
  if (sharding.stage == 0 || ranks < 2) return false;
  if (storage_bytes(parameter, DType::f32, {}) < sharding.least) return false;
  const double whole = static_cast<double>(element_count(parameter));
  return static_cast<double>(shard_elements(parameter, ranks)) <= kWorthDividing * whole;
}

bool is_gathered(const Graph& graph, TensorId id) {
  const OpId producer = graph.tensor(id).producer;
  return producer.valid() && graph.op(producer).type->name == "AllGather";
}

TensorId piece_of(const Graph& graph, TensorId gathered) { return graph.op(graph.tensor(gathered).producer).inputs[0]; }

}  // namespace plimsoll
