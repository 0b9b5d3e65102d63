#include "plan/together.h"

#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

bool are_alike(const Graph& graph, const Step& a, const Step& b) {
  const Op &first = graph.op(a.op), &second = graph.op(b.op);
  return first.phase == Phase::update && first.type == second.type && first.type->changes_state && !a.kernel.empty() &&
         a.kernel == b.kernel && a.threads == b.threads;
}

}  // namespace

std::vector<bool> steps_together(const Graph& graph, const Plan& plan) {
  std::vector<bool> together(plan.steps.size(), false), parted(plan.steps.size() + 1, false);
  for (const Move& move : plan.moves) parted[move.after + 1] = parted[move.before] = true;
  for (const Collective& collective : plan.collectives) parted[collective.before] = true;
  for (StepIndex s = 1; s < std::ssize(plan.steps); ++s) {
    if (!parted[s] && are_alike(graph, plan.steps[s - 1], plan.steps[s])) together[s - 1] = together[s] = true;
  }
  return together;
}

std::string kernel_together(std::string_view kernel) { return std::string(kernel) + ":together"; }

}  // namespace plimsoll
