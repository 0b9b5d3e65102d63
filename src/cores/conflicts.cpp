#include "cores/conflicts.h"

#include <algorithm>
#include <map>
#include <string>

#include "plimsoll/ops.h"

namespace plimsoll {

std::vector<OpPair> conflicts_of(const Graph& graph, const Plan& plan, const CostTable& costs, const OpPairs& found) {
  std::vector<OpPair> pairs;
  if (found.empty() && costs.conflicts().empty()) return pairs;
  std::map<OpId, std::string> signature_of;  // of the ops that run something
  std::map<std::string, std::vector<OpId>> ops_with;
  for (const Step& step : plan.steps) {
    if (step.kernel.empty()) continue;
    const auto [place, fresh] = signature_of.try_emplace(step.op);
    if (!fresh) continue;
    place->second = op_signature(graph, graph.op(step.op));
    ops_with[place->second].push_back(step.op);
  }
  for (const OpPair& pair : found) {
    if (signature_of.contains(pair.first) && signature_of.contains(pair.second)) pairs.push_back(pair);
  }
  for (const auto& [first, second] : costs.conflicts()) {
    const auto a = ops_with.find(first), b = ops_with.find(second);
    if (a == ops_with.end() || b == ops_with.end()) continue;
    for (OpId x : a->second) {
      for (OpId y : b->second) {
        if (x != y) pairs.push_back(std::minmax(x, y));
      }
    }
  }
  std::erase_if(pairs, [](const OpPair& pair) { return pair.first == pair.second; });
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  return pairs;
}

}  // namespace plimsoll
