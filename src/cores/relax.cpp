#include <fmt/format.h>

#include <algorithm>

#include "cores/relax_reuse.h"
#include "cores/schedule.h"

namespace plimsoll {
namespace {

constexpr double kWorthTelling = 0.95;                                        // of the time within the budget
constexpr StepIndex kReuseDistances[] = {2, 8, 32, 128, 512, INT32_MAX / 2};  // what is tried

bool may_run_at_once(const CoreOptions& options) {
  if (!options.choose) return options.inter_op > 1;
  const bool beside = options.strategies.co_run || (options.strategies.smt && options.hardware_threads > 1);
  return beside && options.cores * options.hardware_threads > 1;
}

struct Relaxation {
  RelaxedStays stays;
  double ms = 0;  // of a step with them
};

// Reuse distances up to the first that is about as good as nothing taken over at all: that one, and the best for which
// there is room.
struct Found {
  Relaxation last, best;
};
template <class TimeOf>
Found search(const ReuseRelaxation& relaxation, const Plan& plan, const Relaxation& tight, double least_ms,
             const TimeOf& time_ms) {
  Found found{tight, tight};
  for (StepIndex distance : kReuseDistances) {
    found.last.stays = relaxation.with_reuse_distance(distance);
    found.last.ms = time_ms(found.last.stays);
    if (found.last.stays.arena <= plan.budget && found.last.ms < found.best.ms) found.best = found.last;
    if (found.last.ms * kWorthIt <= least_ms || distance >= static_cast<StepIndex>(plan.steps.size())) break;
  }
  return found;
}

}  // namespace

RelaxedPlan relax(const CoreInput& input, const Plan& plan) {
  RelaxedPlan result{plan, {}};
  if (!may_run_at_once(input.options)) return result;
  const Uniform uniform = uniform_of(input);
  Plan tried = serial(input, plan);
  auto time_ms = [&](const RelaxedStays& stays) {
    tried.stays = stays.stays;
    Tasks tasks = tasks_of(input.graph, tried);
    return schedule_of(tried, tasks, uniform).total_ms;
  };
  const ReuseRelaxation relaxation(input.graph, plan);
  Relaxation tight{{plan.stays, plan.arena}};
  tight.ms = time_ms(tight.stays);
  const double least_ms = time_ms(relaxation.without_reuse());
  if (least_ms > tight.ms * kWorthIt) return result;
  const Found found = search(relaxation, plan, tight, least_ms, time_ms);
  if (found.best.ms <= tight.ms * kWorthIt) {
    result.plan.stays = found.best.stays.stays;
    result.plan.arena = found.best.stays.arena;
  }
  if (found.last.stays.arena > plan.budget && found.last.ms <= found.best.ms * kWorthTelling) {
    result.notice = fmt::format(
        "ops that run at once wait for each other's bytes in so little memory: {}, and steps would be up to {:.0f} % "
        "shorter",
        raise_memory_to(found.last.stays.arena), 100 * (1 - found.last.ms / found.best.ms));
  }
  return result;
}

}  // namespace plimsoll
