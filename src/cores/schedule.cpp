#include "cores/schedule.h"

#include <algorithm>
#include <map>

#include "plan/simulate.h"

namespace plimsoll {
namespace {

constexpr int kMostAtOnce = 8;  // whose waiting for each other's bytes is looked at, where the number is not given

// No way to run these tasks side by side takes less: neither the longest chain of them, nor all their work on the cores. What runs
// again does not count.
double least_ms(const Plan& plan, const Tasks& tasks, const CoreShape& shape) {
  std::vector<double> end(tasks.tasks.size(), 0);
  double chain = 0, work = 0;
  for (size_t i = 0; i < tasks.tasks.size(); ++i) {
    for (int32_t before : tasks.tasks[i].after) end[i] = std::max(end[i], end[static_cast<size_t>(before)]);
    if (plan.steps[static_cast<size_t>(tasks.steps[i])].recompute) continue;
    const ThreadCurve& curve = tasks.tasks[i].curve;
    double least = curve.best_ms(), least_work = least * shape.cores;
    for (int k = 1; k <= shape.cores; ++k) {
      if (!curve.has(k)) continue;
      least = std::min(least, curve.time_ms(k));
      least_work = std::min(least_work, k * curve.time_ms(k));
    }
    end[i] += least;
    chain = std::max(chain, end[i]);
    work += least_work;
  }
  return std::max(chain, work / (shape.cores * (shape.hardware_threads > 1 ? kSmtSpeed : 1)));
}

// The prediction for steps side by side, until simulate() has them: the schedule, with the copies beside it, whose engines may take
// longer than it does.
Prediction prediction_of(const Graph& graph, const Plan& plan, const Tasks& tasks, const CoMachine& machine, const CoSchedule& schedule) {
  Prediction p = simulate(graph, plan);
  std::map<int, double> busy;
  std::vector<EngineSpan> copies;
  for (const EngineSpan& span : p.timeline) {
    if (span.engine == 0) continue;
    busy[span.engine] += span.end_ms - span.start_ms;
    copies.push_back(span);
  }
  p.timeline.clear();
  std::vector<bool> seen(plan.steps.size(), false);
  for (const CoSpan& span : schedule.spans) {
    const StepIndex step = tasks.steps[static_cast<size_t>(span.task)];
    p.timeline.push_back({0, step, span.start_ms, span.end_ms});
    seen[static_cast<size_t>(step)] = true;
  }
  for (StepIndex s = 0; s < static_cast<StepIndex>(plan.steps.size()); ++s) {
    if (!seen[static_cast<size_t>(s)]) p.timeline.push_back({0, s, 0, 0});
  }
  p.timeline.insert(p.timeline.end(), copies.begin(), copies.end());
  p.step_time_ms = schedule.total_ms;
  p.lower_bound_ms = least_ms(plan, tasks, machine.cores);
  for (const auto& [engine, ms] : busy) p.step_time_ms = std::max(p.step_time_ms, ms);
  return p;
}

// The steps by when they start on paper; those that run nothing stand last.
std::vector<StepIndex> order_of(const Plan& plan, const Tasks& tasks, const CoSchedule& schedule) {
  std::vector<StepIndex> order;
  std::vector<bool> seen(plan.steps.size(), false);
  for (const CoSpan& span : schedule.spans) {
    order.push_back(tasks.steps[static_cast<size_t>(span.task)]);
    seen[static_cast<size_t>(order.back())] = true;
  }
  for (StepIndex s = 0; s < static_cast<StepIndex>(plan.steps.size()); ++s) {
    if (!seen[static_cast<size_t>(s)]) order.push_back(s);
  }
  return order;
}

}  // namespace

void take_schedule(const CoreInput& input, Plan& plan, const Tasks& tasks, const CoMachine& machine, const CoSchedule& schedule) {
  plan.cores.cores_a_cache = input.device.info().cores.cores_a_cache;
  plan.cores.hardware_threads = machine.cores.hardware_threads;
  plan.cores.memory_gb_per_s = machine.memory_gb_per_s;
  plan.cores.smt_speed = machine.throughput.back();
  if (plan.cores.inter_op > 1) plan.cores.order = order_of(plan, tasks, schedule);
  plan.predicted = plan.cores.inter_op > 1 ? prediction_of(input.graph, plan, tasks, machine, schedule) : simulate(input.graph, plan);
}

Uniform uniform_of(const CoreInput& input) {
  const CoreOptions& options = input.options;
  const double memory = input.costs.rates().memory_gb_per_s;
  if (options.choose) {
    const int workers = std::clamp(options.cores, 2, kMostAtOnce);
    return {workers, 1, {.cores = {.cores = workers}, .memory_gb_per_s = memory}};
  }
  const int cores = options.processors > 0 ? options.processors : options.cores;
  return {options.inter_op, options.intra_op, {.cores = {.cores = cores}, .memory_gb_per_s = memory}};
}

CoSchedule schedule_of(const Plan& plan, Tasks& tasks, const Uniform& uniform) {
  for (size_t i = 0; i < tasks.tasks.size(); ++i) {
    tasks.tasks[i].curve.put({uniform.threads, Affinity::spread}, plan.steps[static_cast<size_t>(tasks.steps[i])].time_ms);
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
  result.cores.cores = input.options.cores;
  for (StepIndex s : tasks.steps) result.steps[static_cast<size_t>(s)].threads = how.threads;
  take_schedule(input, result, tasks, how.machine, schedule);
  return result;
}

}  // namespace plimsoll
