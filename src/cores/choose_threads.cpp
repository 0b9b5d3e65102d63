#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/texts.h"
#include "cores/schedule.h"
#include "plan/simulate.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr double kImpossible = 1e3;  // times as slow

int cores_of(const Device& device) { return std::max(device.info().threads, 1); }

// Makes the curves of a plan's steps from what is known of them.
class StepCurves {
 public:
  explicit StepCurves(const CoreInput& input) : input_(input), cores_(cores_of(input.device)) {}

  ThreadCurve of(const Step& step) {
    const Graph& graph = input_.graph;
    const CostTable& costs = input_.costs;
    const Op& op = graph.op(step.op);
    const std::string signature = op_signature(graph, op);
    const double all_ms = costs.predict(graph, op, step.kernel, 0).time_ms;
    const std::optional<Cost> alone = costs.find({signature, step.kernel, 0});
    ThreadCurve curve;
    bool one_known = false, spread_known = false;
    auto put = [&](ThreadCase at, double ms) {
      ms = can_run(step, at.threads) ? ms : all_ms * kImpossible;
      curve.put(at, ms);
      if (!spread_known) curve.put({at.threads, Affinity::spread}, ms);
      one_known |= at.threads == 1;
      measured_ |= at.threads != cores_;
    };
    for (int k = 1; k < cores_; ++k) {
      const auto cost = costs.find_in_step({signature, step.kernel, k, true});
      if (!cost) continue;
      spread_known = true;
      put({k, Affinity::spread}, cost->time_ms);
    }
    curve.put({cores_, Affinity::spread}, all_ms);
    curve.put({cores_, Affinity::close}, all_ms);
    for (int k = 1; k < cores_; ++k) {
      if (const auto cost = costs.find_in_step({signature, step.kernel, k})) {
        put({k, Affinity::close}, cost->time_ms);
      } else if (const auto cold = costs.find({signature, step.kernel, k}); cold && alone && alone->time_ms > 0) {
        put({k, Affinity::close}, all_ms * cold->time_ms / alone->time_ms);
      }
    }
    if (!one_known)
      curve.put({1, Affinity::spread}, all_ms * kImpossible);  // not measured: with all threads, or not at all
    return curve;
  }

  bool can_run(const Step& step, int threads) {
    const auto [it, fresh] = fits_.try_emplace({step.op, threads}, true);
    if (fresh) it->second = fits(input_.graph, input_.device, step, threads);
    return it->second;
  }
  bool measured() const { return measured_; }

 private:
  const CoreInput& input_;
  int cores_;
  std::map<std::pair<OpId, int>, bool> fits_;
  bool measured_ = false;
};

// The pairs of tasks that are not to meet.
Interference avoided(const Plan& plan, const Tasks& tasks, const std::vector<OpPair>& conflicts) {
  Interference avoid;
  std::map<OpId, std::vector<int32_t>> tasks_of_op;
  for (size_t i = 0; i < tasks.steps.size(); ++i) {
    tasks_of_op[plan.steps[tasks.steps[i]].op].push_back(static_cast<int32_t>(i));
  }
  for (const auto& [first, second] : conflicts) {
    for (int32_t a : tasks_of_op[first]) {
      for (int32_t b : tasks_of_op[second]) avoid.record(a, b, 1, kImpossible);
    }
  }
  return avoid;
}

CoMachine machine_of(const CoreInput& input) {
  CoMachine machine{.cores = {.cores = cores_of(input.device), .hardware_threads = input.options.hardware_threads},
                    .memory_gb_per_s = input.costs.rates().memory_gb_per_s};
  if (input.options.hardware_threads > 1) machine.throughput = {1, kSmtSpeed};
  return machine;
}

// How an op runs.
struct OpThreads {
  int threads = 0;
  Affinity affinity = Affinity::close;
  double ms = 0;
};

// Equal threads whenever an op runs: what is computed again must be the same bits.
std::map<OpId, OpThreads> threads_of_ops(const Plan& plan, const Tasks& tasks, const CoSchedule& schedule,
                                         StepCurves& curves, int cores) {
  std::map<OpId, OpThreads> result;
  for (const CoSpan& span : schedule.spans) {
    const Step& step = plan.steps[tasks.steps[span.task]];
    const ThreadCurve& curve = tasks.tasks[span.task].curve;
    OpThreads op{.ms = curve.time_ms(span.threads)};
    if (span.threads < cores && curves.can_run(step, span.threads)) op.threads = span.threads;
    if (span.second) {
      op.affinity = Affinity::smt;
    } else if (op.threads > 1 &&
               curve.time_ms({span.threads, Affinity::spread}) < curve.time_ms({span.threads, Affinity::close})) {
      op.affinity = Affinity::spread;
    }
    result.try_emplace(step.op, op);
  }
  return result;
}

// Gives the plan's steps the threads of the schedule, and counts what is not as in serial.
void take_threads(ChosenThreads& chosen, const std::map<OpId, OpThreads>& ops) {
  for (Step& step : chosen.plan.steps) {
    const auto op = ops.find(step.op);
    if (op == ops.end()) continue;
    step.threads = op->second.threads;
    step.affinity = op->second.affinity;
    step.time_ms = op->second.ms;
    chosen.narrowed += step.threads != 0;
    chosen.smt += step.affinity == Affinity::smt;
  }
}

}  // namespace

ChosenThreads choose_threads(const CoreInput& input, const Plan& plan, const Plan& relaxed, const OpPairs& conflicts) {
  const int cores = cores_of(input.device);
  ChosenThreads chosen{.plan = serial(input, plan)};
  chosen.serial_ms = chosen.plan.predicted.step_time_ms;
  if (cores < 2 && input.options.hardware_threads < 2) {
    chosen.measured = true;  // there are no fewer threads
    return chosen;
  }

  Plan candidate = serial(input, relaxed);
  Tasks tasks = tasks_of(input.graph, candidate);
  StepCurves curves(input);
  for (size_t i = 0; i < tasks.tasks.size(); ++i) tasks.tasks[i].curve = curves.of(candidate.steps[tasks.steps[i]]);
  chosen.measured = curves.measured() || cores < 2;
  if (!chosen.measured) return chosen;
  const std::vector<OpPair> conflicted = conflicts_of(input.graph, candidate, input.costs, conflicts);
  const Interference avoid = avoided(candidate, tasks, conflicted);
  const CoMachine machine = machine_of(input);
  const Strategies& use = input.options.strategies;
  const ChosenSchedule best =
      best_schedule(tasks.tasks, machine,
                    {.by_type = use.each_type, .each_op = use.each_op, .co_run = use.co_run, .smt = use.smt}, &avoid);
  if (best.schedule.total_ms > chosen.serial_ms * kWorthIt) return chosen;

  ChosenThreads shared = chosen;
  const bool at_once = best.schedule.most_at_once > 1;
  if (at_once) shared.plan = std::move(candidate);
  shared.plan.cores.inter_op = std::max(best.schedule.most_at_once, 1);
  shared.plan.cores.cores = usable_cores(input, cores);
  if (at_once) shared.plan.cores.conflicts = conflicted;
  take_threads(shared, threads_of_ops(shared.plan, tasks, best.schedule, curves, shared.plan.cores.cores));
  take_schedule(input, shared.plan, tasks, machine, best.schedule);
  return shared.plan.predicted.step_time_ms > chosen.serial_ms * kWorthIt ? chosen : shared;
}

std::string to_text(const ChosenThreads& chosen) {
  if (!chosen.measured) {
    return "--inter-op auto: what ops take with fewer threads is not measured (training does it), so they run one "
           "after another with all";
  }
  const int inter_op = chosen.plan.cores.inter_op;
  if (inter_op == 1 && chosen.narrowed == 0) {
    return fmt::format(
        "--inter-op auto: one op after another with all threads, {} a step; nothing is predicted to be faster",
        time_text(chosen.serial_ms, 4));
  }
  return fmt::format("--inter-op auto: {}, {} with fewer threads{}: {} a step predicted instead of {}",
                     inter_op == 1 ? "one op after another" : fmt::format("up to {} ops at once", inter_op),
                     chosen.narrowed, chosen.smt > 0 ? fmt::format(", {} on second hardware threads", chosen.smt) : "",
                     time_text(chosen.plan.predicted.step_time_ms, 4), time_text(chosen.serial_ms, 4));
}

}  // namespace plimsoll
