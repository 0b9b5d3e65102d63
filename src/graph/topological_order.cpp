#include "graph/topological_order.h"

#include <fmt/format.h>

#include <functional>
#include <queue>

#include "base/by_id.h"

namespace plimsoll {

std::vector<OpId> topological_order(const Graph& graph) {
  ById<OpId, std::vector<int32_t>> users(graph.op_count());
  ById<OpId, int> waiting(graph.op_count(), 0);
  for (int32_t i = 0; i < graph.op_count(); ++i) {
    for (TensorId input : graph.op({i}).inputs) {
      const OpId producer = graph.tensor(input).producer;
      if (!producer.valid()) continue;
      users[producer].push_back(i);
      ++waiting[OpId{i}];
    }
  }
  std::priority_queue<int32_t, std::vector<int32_t>, std::greater<>> ready;
  for (int32_t i = 0; i < graph.op_count(); ++i) {
    if (waiting[OpId{i}] == 0) ready.push(i);
  }
  std::vector<OpId> order;
  while (!ready.empty()) {
    const int32_t i = ready.top();
    ready.pop();
    order.push_back({i});
    for (int32_t user : users[OpId{i}]) {
      if (--waiting[OpId{user}] == 0) ready.push(user);
    }
  }
  if (static_cast<int32_t>(order.size()) != graph.op_count()) {
    throw Error(ErrorCode::invalid_input, fmt::format("graph '{}' has a cycle", graph.name));
  }
  return order;
}

}  // namespace plimsoll
