#include "cores/share_cores.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "device/divided.h"
#include "plan/simulate.h"
#include "plimsoll/error.h"

namespace plimsoll {

Plan serial(const CoreInput& input, const Plan& plan) {
  Plan result = plan;
  for (Step& step : result.steps) {
    step.threads = 0;
    step.affinity = Affinity::close;
  }
  result.cores = {};
  take_times(input.graph, result, input.costs);
  result.predicted = simulate(input.graph, result);
  return result;
}

Plan serial_with(const CoreInput& input, const Plan& plan, int threads) {
  Plan result = serial(input, plan);
  std::map<OpId, bool> fits_op;  // what is computed again must be the same bits
  bool all_fit = true;
  for (Step& step : result.steps) {
    if (step.kernel.empty()) continue;
    const auto [it, fresh] = fits_op.try_emplace(step.op, false);
    if (fresh) it->second = fits(input.graph, input.device, step, threads);
    if (it->second) step.threads = threads;
    all_fit = all_fit && it->second;
  }
  if (!all_fit) result.cores = {.cores = std::max(input.device.info().threads, 1)};
  take_times(input.graph, result, input.costs);
  result.predicted = simulate(input.graph, result);
  return result;
}

SharedCores share_cores(const CoreInput& input, const Plan& plan) {
  SharedCores result;
  RelaxedPlan relaxed = relax(input, plan);
  if (!relaxed.notice.empty()) result.notices.push_back(relaxed.notice);
  if (!input.options.choose) {
    result.plan = uniform(input, relaxed.plan);
    return result;
  }
  ChosenThreads chosen = choose_threads(input, plan, relaxed.plan);
  result.notices.push_back(to_text(chosen));
  result.plan = std::move(chosen.plan);
  return result;
}

bool shares_cores(const Plan& plan) {
  return plan.cores.inter_op > 1 ||
         std::any_of(plan.steps.begin(), plan.steps.end(), [](const Step& step) { return step.threads != 0; });
}

bool fits(const Graph& graph, const Device& device, const Step& step, int threads) {
  try {
    return make_kernel(device, graph, graph.op(step.op), step.kernel, threads)->workspace() <= step.workspace;
  } catch (const Error&) {
    return false;  // there is no such kernel for so many threads
  }
}

}  // namespace plimsoll
