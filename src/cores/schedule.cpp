#include "cores/schedule.h"

#include <algorithm>

#include "plan/simulate.h"

namespace plimsoll {
namespace {

constexpr int kMostAtOnce = 8;  // whose waiting for each other's bytes is looked at, where the number is not given

// The steps by when they start on paper; those that run nothing stand last.
std::vector<StepIndex> order_of(const Plan& plan, const Tasks& tasks, const CoSchedule& schedule) {
  std::vector<StepIndex> order;
  std::vector<bool> seen(plan.steps.size(), false);
  for (const CoSpan& span : schedule.spans) {
    order.push_back(tasks.steps[span.task]);
    seen[order.back()] = true;
  }
  for (StepIndex s = 0; s < static_cast<StepIndex>(plan.steps.size()); ++s) {
    if (!seen[s]) order.push_back(s);
  }
  return order;
}

}  // namespace

int usable_cores(const CoreInput& input, int cores) {
  const CoreShape& machine = input.device.info().cores;
  return std::max(1, std::min(cores, machine.cores * std::max(machine.hardware_threads, 1)));
}

void take_schedule(const CoreInput& input, Plan& plan, const Tasks& tasks, const CoMachine& machine,
                   const CoSchedule& schedule) {
  plan.cores.cores_a_cache = input.device.info().cores.cores_a_cache;
  plan.cores.hardware_threads = machine.cores.hardware_threads;
  plan.cores.memory_gb_per_s = machine.memory_gb_per_s;
  plan.cores.smt_speed = machine.throughput.back();
  if (plan.cores.inter_op > 1) plan.cores.order = order_of(plan, tasks, schedule);
  plan.predicted = simulate(input.graph, plan);
}

Uniform uniform_of(const CoreInput& input) {
  const CoreOptions& options = input.options;
  const double memory = input.costs.rates().memory_gb_per_s;
  if (options.choose) {
    const int workers = std::clamp(options.cores, 2, kMostAtOnce);
    return {workers, 1, {.cores = {.cores = workers}, .memory_gb_per_s = memory}};
  }
  return {options.inter_op,
          options.intra_op,
          {.cores = {.cores = usable_cores(input, options.cores)}, .memory_gb_per_s = memory}};
}

CoSchedule schedule_of(const Plan& plan, Tasks& tasks, const Uniform& uniform) {
  for (size_t i = 0; i < tasks.tasks.size(); ++i) {
    tasks.tasks[i].curve.put({uniform.threads, Affinity::spread}, plan.steps[tasks.steps[i]].time_ms);
  }
  return co_run(tasks.tasks, uniform.machine, {.inter_op = uniform.inter_op, .intra_op = uniform.threads});
}

Plan uniform(const CoreInput& input, const Plan& plan) {
  if (input.options.inter_op < 2) return plan;
  Plan result = serial(input, plan);
  const Uniform how = uniform_of(input);
  Tasks tasks = tasks_of(input.graph, result);
  const CoSchedule schedule = schedule_of(result, tasks, how);
  result.cores.inter_op = how.inter_op;
  result.cores.cores = how.machine.cores.cores;
  for (StepIndex s : tasks.steps) result.steps[s].threads = how.threads < result.cores.cores ? how.threads : 0;
  take_schedule(input, result, tasks, how.machine, schedule);
  return result;
}

}  // namespace plimsoll
