// Random graphs of costs that are no clean halves of a training step: ops of several outputs that are read near and far,
// sources that are wanted late, cheap ops beside dear ones, results that are kept.
#pragma once

#include <fmt/format.h>

#include <random>
#include <string>

#include "plan/policy.h"
#include "plimsoll/cost_graph.h"

namespace plimsoll::testing {

inline CostGraph random_cost_graph(uint64_t seed, int nodes) {
  std::mt19937_64 random(seed);
  const auto draw = [&](int below) { return static_cast<int>(random() % static_cast<uint64_t>(below)); };
  const int sources = draw(3);
  std::string text = R"({"sources": [)";
  for (int i = 0; i < sources; ++i) text += fmt::format("{}{}", i > 0 ? ", " : "", 64 * (1 + draw(8)));
  text += R"(], "nodes": [)";
  std::vector<int> outputs;
  for (int n = 0; n < nodes; ++n) {
    outputs.push_back(draw(5) == 0 ? 2 : 1);
    text += fmt::format(R"({}{{"ms": {}, "out": [)", n > 0 ? ", " : "", 1 + draw(draw(3) == 0 ? 50 : 5));
    for (int o = 0; o < outputs.back(); ++o)
      text += fmt::format("{}{}", o > 0 ? ", " : "", 64 * (1 + draw(draw(4) == 0 ? 40 : 10)));
    text += R"(], "in": [)";
    const int inputs = n == 0 ? 0 : 1 + draw(3);
    for (int i = 0; i < inputs; ++i) {
      // The one before, one like a backward step's partner, or any.
      const int kind = draw(4);
      const int from = kind < 2 ? n - 1 : kind == 2 && n > nodes / 2 ? nodes - 1 - n : draw(n);
      text += fmt::format("{}[{}, {}]", i > 0 ? ", " : "", from, draw(outputs[static_cast<size_t>(from)]));
    }
    if (sources > 0 && draw(4) == 0) text += fmt::format(R"({}["source", {}])", inputs > 0 ? ", " : "", draw(sources));
    text += "]}";
  }
  text +=
      fmt::format(R"(], "keep": [[{}, 0]{}]}})", nodes - 1, nodes > 3 ? fmt::format(", [{}, 0]", draw(nodes - 1)) : "");
  return cost_graph_from_json(text);
}

// What a policy is asked with for such a graph, its ops in the order of the list.
struct CostInput {
  explicit CostInput(CostGraph costs)
      : graph(std::move(costs)), route(listed_route(graph.graph)), table(costs_of(graph)) {}
  PolicyInput input(Bytes budget = {INT64_MAX}) const {
    return {
        .graph = graph.graph, .route = route, .kernels = graph.kernels, .costs = table, .device = {}, .budget = budget};
  }
  CostGraph graph;
  Route route;
  CostTable table;
};

}  // namespace plimsoll::testing
