#include "execute/boundaries.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace plimsoll {
namespace {

std::vector<CopyRoute> routes_of(const Plan& plan) {
  std::map<std::pair<int, Move::Direction>, std::vector<int32_t>> lists;
  for (size_t i = 0; i < plan.moves.size(); ++i) {
    lists[{plan.moves[i].tier, plan.moves[i].direction}].push_back(static_cast<int32_t>(i));
  }
  std::vector<CopyRoute> routes;
  for (auto& [key, moves] : lists) {
    std::stable_sort(moves.begin(), moves.end(),
                     [&](int32_t a, int32_t b) { return plan.moves[a].after < plan.moves[b].after; });
    routes.push_back({key.first, key.second, std::move(moves)});
  }
  return routes;
}

}  // namespace

BoundaryTable make_boundaries(const Plan& plan) {
  BoundaryTable table{.routes = routes_of(plan), .before = std::vector<Boundary>(plan.steps.size() + 1)};
  for (size_t r = 0; r < table.routes.size(); ++r) {
    const CopyRoute& route = table.routes[r];
    const int32_t number = static_cast<int32_t>(r);
    auto pass = [&](StepIndex step) -> Pass& {
      Boundary& boundary = table.before[step];
      return route.direction == Move::Direction::out ? boundary.out : boundary.in;
    };
    std::map<StepIndex, int32_t> needed;  // by step, how many of the route must be done before it
    for (int32_t k = 0; k < static_cast<int32_t>(route.moves.size()); ++k) {
      const Move& move = plan.moves[route.moves[k]];
      std::vector<CopyRange>& starts = pass(move.after + 1).starts;
      if (starts.empty() || starts.back().route != number) starts.push_back({number, k, k});
      starts.back().end = k + 1;
      needed[move.before] = std::max(needed[move.before], k + 1);
    }
    int32_t done = 0;
    for (const auto& [step, count] : needed) {
      if (count <= done) continue;
      pass(step).waits.push_back({number, done, count});
      done = count;
    }
  }
  return table;
}

std::string describe_copy(const Graph& graph, const Plan& plan, int32_t index) {
  const Move& move = plan.moves[index];
  const Tensor& tensor = graph.tensor(move.tensor);
  return fmt::format("copying '{}' ({}) {} the {} tier", tensor.name, to_string(tensor.bytes()),
                     is_out(move) ? "to" : "from", plan.tiers[move.tier].tier.name);
}

}  // namespace plimsoll
