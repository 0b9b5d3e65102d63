#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "plimsoll/concurrency.h"
#include "plimsoll/dependencies.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr double kLeastGain = 0.02;   // for less the settings stay as they are
constexpr double kNotPossible = 1e7;  // ms: no schedule takes such a step

// The steps that a step waits for: views, which take no time, and copies are looked through.
std::vector<int32_t> steps_before(const Dependencies& dependencies, int32_t step, const std::vector<int32_t>& task_of) {
  std::set<int32_t> seen, result;
  std::vector<int32_t> open(dependencies.before(step).begin(), dependencies.before(step).end());
  while (!open.empty()) {
    const int32_t node = open.back();
    open.pop_back();
    if (!seen.insert(node).second) continue;
    if (static_cast<size_t>(node) < task_of.size() && task_of[static_cast<size_t>(node)] >= 0) {
      result.insert(task_of[static_cast<size_t>(node)]);
    } else {
      for (int32_t before : dependencies.before(node)) open.push_back(before);
    }
  }
  return {result.begin(), result.end()};
}

// The times that the table knows, moved to where those with all threads are inside a step.
ThreadCurve curve_of(const Graph& graph, const Step& step, const CostTable& table, int all,
                     const std::function<bool(const Step&, int)>& allowed) {
  const Op& op = graph.op(step.op);
  const double in_step_ms = table.predict(graph, op, step.kernel).time_ms;
  const auto known = known_curve(graph, op, step.kernel, table, all);
  ThreadCurve curve;
  curve.put({all, Affinity::together}, in_step_ms);
  const double alone_ms = table.cost(graph, op, step.kernel).time_ms;
  const double factor = alone_ms > 0 ? in_step_ms / alone_ms : 1;
  for (int threads = 1; threads < all; ++threads) {
    const bool possible = known && (!allowed || allowed(step, threads));
    curve.put({threads, Affinity::together}, possible ? known->time_ms(threads) * factor : kNotPossible);
  }
  return curve;
}

struct Steps {
  std::vector<CoTask> tasks;
  std::vector<size_t> step_of;  // by task

  // Steps that run with all threads only, whatever else is chosen.
  bool is_fixed(size_t task) const {
    return tasks[task].curve.best().threads == all && tasks[task].curve.time_ms(1) >= kNotPossible;
  }
  int all = 1;
};

Steps tasks_of(const Graph& graph, const Plan& plan, const CostTable& table, int all,
               const std::function<bool(const Step&, int)>& allowed) {
  const Dependencies dependencies = find_dependencies(graph, plan);
  Steps result{.tasks = {}, .step_of = {}, .all = all};
  std::vector<int32_t> task_of(plan.steps.size(), -1);
  std::map<std::string, int32_t> types;
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    const Step& step = plan.steps[s];
    const Op& op = graph.op(step.op);
    if (op.type->is_view || step.kernel.empty()) continue;
    CoTask task{.type = types.try_emplace(op.type->name, static_cast<int32_t>(types.size())).first->second,
                .curve = curve_of(graph, step, table, all, allowed),
                .bytes = op.type->work ? op.type->work(graph, op).bytes : 0,
                .after = steps_before(dependencies, static_cast<int32_t>(s), task_of)};
    task_of[s] = static_cast<int32_t>(result.tasks.size());
    result.tasks.push_back(std::move(task));
    if (result.is_fixed(result.tasks.size() - 1)) result.tasks.back().threads = all;
    result.step_of.push_back(s);
  }
  return result;
}

CoMachine machine_of(const CostTable& table, int cores) {
  return {.cores = {.cores = cores}, .memory_gb_per_s = table.rates().memory_gb_per_s, .waiting = 1};
}

double executed_ms(std::vector<CoTask> tasks, const std::vector<int>& threads, int inter_op, const CoMachine& machine) {
  for (size_t i = 0; i < tasks.size(); ++i) tasks[i].threads = threads[i];
  return co_run(tasks, machine, {.inter_op = inter_op, .intra_op = machine.cores.cores, .own_cores = true}).total_ms;
}

// Whether the kernel for so many threads needs no more workspace than the plan has for the step.
class FitsWorkspace {
 public:
  FitsWorkspace(const Graph& graph, const Device& device) : graph_(graph), device_(device) {}
  bool operator()(const Step& step, int threads) {
    const Op& op = graph_.op(step.op);
    const auto [it, first] = known_.try_emplace({op_signature(graph_, op) + step.kernel, threads}, Bytes{INT64_MAX});
    if (first && !device_.info().simulated) {
      try {
        it->second = device_.make_kernel(graph_, op, step.kernel, threads)->workspace();
      } catch (const Error& error) {
        if (error.code() != ErrorCode::unsupported) throw;
      }
    }
    return it->second <= step.workspace || device_.info().simulated;
  }

 private:
  const Graph& graph_;
  const Device& device_;
  std::map<std::pair<std::string, int>, Bytes> known_;
};

}  // namespace

std::vector<CoTask> step_tasks(const Graph& graph, const Plan& plan, const CostTable& table, int all,
                               const std::function<bool(const Step&, int threads)>& allowed) {
  return tasks_of(graph, plan, table, all, allowed).tasks;
}

double side_by_side_ms(const Graph& graph, const Plan& plan, const CostTable& table, int cores) {
  const Steps steps = tasks_of(graph, plan, table, cores, {});
  std::vector<int> threads;
  for (size_t s : steps.step_of)
    threads.push_back(plan.steps[s].threads > 0 ? std::min(plan.steps[s].threads, cores) : cores);
  return executed_ms(steps.tasks, threads, std::max(plan.inter_op, 1), machine_of(table, cores));
}

ConcurrencyChoice choose_concurrency(const Graph& graph, const Plan& plan, const Device& device,
                                     const CostTable& table) {
  const int cores = std::max(device.info().threads, 1);
  ConcurrencyChoice choice;
  FitsWorkspace fits(graph, device);
  const Steps steps =
      tasks_of(graph, plan, table, cores, [&](const Step& step, int threads) { return fits(step, threads); });
  for (const CoTask& task : steps.tasks) choice.serial_ms += task.curve.time_ms(cores);
  choice.predicted_ms = choice.serial_ms;
  choice.why = "one step after the other on all cores: no other way is predicted to save 2 %";
  if (cores < 2 || steps.tasks.empty()) return choice;
  const CoMachine machine = machine_of(table, cores);
  std::vector<int> best_threads;
  auto consider = [&](std::vector<int> threads, int inter_op, const std::string& name) {
    for (size_t i = 0; i < threads.size(); ++i) {
      if (steps.tasks[i].threads > 0) threads[i] = steps.tasks[i].threads;
    }
    const double ms = executed_ms(steps.tasks, threads, inter_op, machine);
    if (ms >= std::min(choice.predicted_ms, (1 - kLeastGain) * choice.serial_ms)) return;
    choice.predicted_ms = ms;
    choice.inter_op = inter_op;
    choice.why = fmt::format("{}: {:.1f} ms predicted, {:.1f} ms one step after the other on all cores", name, ms,
                             choice.serial_ms);
    best_threads = threads;
  };
  consider(fastest_threads(steps.tasks), 1, "each step with its fastest number of threads");
  consider(threads_by_type(steps.tasks), 1, "each kind of step with one number of threads");
  const ChosenSchedule schedule = best_schedule(steps.tasks, machine, {.co_run = true});
  std::vector<int> threads(steps.tasks.size(), cores);
  for (const CoSpan& span : schedule.schedule.spans) threads[static_cast<size_t>(span.task)] = span.threads;
  consider(threads, std::max(schedule.schedule.most_at_once, 1), "steps side by side by the strategies");
  for (int inter = 2; inter <= std::min(cores, 8); ++inter) {
    consider(std::vector<int>(steps.tasks.size(), cores / inter), inter,
             fmt::format("{} steps at once, {} threads each", inter, cores / inter));
  }
  if (best_threads.empty()) return choice;
  choice.threads.assign(plan.steps.size(), 0);
  for (size_t i = 0; i < best_threads.size(); ++i) choice.threads[steps.step_of[i]] = best_threads[i];
  return choice;
}

void apply(const ConcurrencyChoice& choice, Plan& plan) {
  plan.inter_op = choice.inter_op;
  for (size_t s = 0; s < plan.steps.size(); ++s) plan.steps[s].threads = choice.threads.empty() ? 0 : choice.threads[s];
}

}  // namespace plimsoll
