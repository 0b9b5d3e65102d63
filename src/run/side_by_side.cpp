#include "run/side_by_side.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "device/cpu/machine.h"
#include "plimsoll/dependencies.h"
#include "plimsoll/error.h"
#include "plimsoll/ops.h"
#include "plimsoll/simulate.h"

namespace plimsoll {
namespace {

constexpr double kWorthIt = 0.98;     // of the serial time: less is within the noise of what was measured
constexpr double kImpossible = 1e3;   // times as slow
constexpr double kSlower = 1.03;      // than what was predicted for one after another
constexpr int kStepsWatched = 6;      // before a correction
constexpr int kMostCorrections = 3;

// The steps that run something, as tasks; copies stand between them as edges alone.
struct Tasks {
  std::vector<CoTask> tasks;
  std::vector<StepIndex> steps;  // by task
};

Tasks tasks_of(const Graph& graph, const Plan& plan) {
  const Dependencies dependencies = find_dependencies(graph, plan);
  const int32_t steps = static_cast<int32_t>(plan.steps.size());
  Tasks result;
  std::map<std::string_view, int32_t> types;
  std::vector<std::vector<int32_t>> waits_for(static_cast<size_t>(dependencies.count()));  // tasks, by node
  std::vector<int32_t> task_of(plan.steps.size(), -1);
  for (int32_t node : dependencies.order()) {
    std::vector<int32_t>& mine = waits_for[static_cast<size_t>(node)];
    for (int32_t other : dependencies.before(node)) {
      const int32_t task = other < steps ? task_of[static_cast<size_t>(other)] : -1;
      if (task >= 0) {
        mine.push_back(task);
      } else {
        const std::vector<int32_t>& beyond = waits_for[static_cast<size_t>(other)];
        mine.insert(mine.end(), beyond.begin(), beyond.end());
      }
    }
    std::sort(mine.begin(), mine.end());
    mine.erase(std::unique(mine.begin(), mine.end()), mine.end());
    if (node >= steps || plan.steps[static_cast<size_t>(node)].kernel.empty()) continue;
    const Op& op = graph.op(plan.steps[static_cast<size_t>(node)].op);
    task_of[static_cast<size_t>(node)] = static_cast<int32_t>(result.tasks.size());
    const auto type = types.try_emplace(op.type->name, static_cast<int32_t>(types.size())).first;
    CoTask task{.type = type->second, .curve = {}, .after = mine};
    for (TensorId id : op.inputs) task.bytes += static_cast<double>(graph.tensor(id).bytes().count);
    for (TensorId id : op.outputs) task.bytes += static_cast<double>(graph.tensor(id).bytes().count);
    result.tasks.push_back(std::move(task));
    result.steps.push_back(node);
  }
  return result;
}

// A schedule on paper becomes the plan's prediction. Copies run beside it: their engines may take longer than it does.
void predict(Plan& plan, const Tasks& tasks, const CoSchedule& schedule) {
  Prediction& p = plan.predicted;
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
  for (const auto& [engine, ms] : busy) p.step_time_ms = std::max(p.step_time_ms, ms);
}

int cores_of(const Device& device) { return std::max(device.info().threads, 1); }

}  // namespace

Sharing share_cores(std::string_view device, const SharingOptions& options, bool exact) {
  const bool asked = options.inter_op != 1 || options.intra_op != 0;
  if (!asked) return {.cores = options.threads, .op_threads = options.threads};
  if (device != "cpu") {
    throw Error(ErrorCode::unsupported, fmt::format("--inter-op and --intra-op: device '{}' runs one op at a time", device));
  }
  const int cores = options.threads > 0 ? options.threads : cpu::usable_processors();
  if (options.inter_op == 0) {
    if (options.intra_op != 0) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("--intra-op {}: --inter-op auto chooses the threads of every op; leave one of them out", options.intra_op));
    }
    if (exact) {
      throw Error(ErrorCode::invalid_input,
                  "--inter-op auto chooses thread counts by measured times, which change the last bits; with --exact give numbers");
    }
    return {.cores = cores, .op_threads = cores, .choose = true};
  }
  Sharing sharing{.cores = cores,
                  .op_threads = options.intra_op > 0 ? options.intra_op : std::max(1, cores / options.inter_op),
                  .inter_op = options.inter_op};
  if (sharing.inter_op * sharing.op_threads > cores) {
    sharing.notice = fmt::format("{} steps at once with {} threads each on {} cores: they take turns, which is slow", sharing.inter_op,
                                 sharing.op_threads, cores);
    sharing.cores = sharing.inter_op * sharing.op_threads;
  }
  return sharing;
}

void set_sharing(Program& program, const Sharing& sharing, const CostTable& costs) {
  if (sharing.inter_op < 2) return;
  const Graph& graph = program.network.graph;
  program.plan.inter_op = sharing.inter_op;
  Tasks tasks = tasks_of(graph, program.plan);
  for (size_t i = 0; i < tasks.tasks.size(); ++i) {
    const Step& step = program.plan.steps[static_cast<size_t>(tasks.steps[i])];
    const double ms = costs.predict(graph, graph.op(step.op), step.kernel, step.threads).time_ms;
    tasks.tasks[i].curve.put({sharing.op_threads, Affinity::apart}, ms);
  }
  const CoMachine machine{.cores = {.cores = sharing.cores}, .memory_gb_per_s = costs.rates().memory_gb_per_s};
  predict(program.plan, tasks, co_run(tasks.tasks, machine, {.inter_op = sharing.inter_op, .intra_op = sharing.op_threads}));
}

std::vector<int> thread_counts(int cores) {
  std::vector<int> counts{0};
  const int interval = std::max(1, cores / 8);
  for (int k = 1; k < cores; k += interval) counts.push_back(k);
  return counts;
}

ChosenSharing choose_sharing(Program& program, const Device& device, const CostTable& costs, const OpPairs& apart) {
  const Graph& graph = program.network.graph;
  Plan& plan = program.plan;
  const int cores = cores_of(device);
  for (Step& step : plan.steps) step.threads = 0;
  plan.inter_op = 1;
  plan.predicted = simulate(graph, plan, costs);
  ChosenSharing chosen{.serial_ms = plan.predicted.step_time_ms, .together_ms = plan.predicted.step_time_ms};
  if (cores < 2) return chosen;

  Tasks tasks = tasks_of(graph, plan);
  std::map<std::pair<int32_t, int>, bool> fits;  // by op and threads: its workspace has room in the plan
  for (size_t i = 0; i < tasks.tasks.size(); ++i) {
    const Step& step = plan.steps[static_cast<size_t>(tasks.steps[i])];
    const Op& op = graph.op(step.op);
    const std::string signature = op_signature(graph, op);
    ThreadCurve& curve = tasks.tasks[i].curve;
    const double all_ms = costs.predict(graph, op, step.kernel, 0).time_ms;
    curve.put({cores, Affinity::apart}, all_ms);
    const std::optional<Cost> alone = costs.find({signature, step.kernel, 0});
    bool one_known = false;
    for (int k = 1; k < cores; ++k) {
      const std::optional<Cost> cost = costs.find({signature, step.kernel, k});
      if (!cost || !alone || alone->time_ms <= 0) continue;
      const auto [fit, fresh] = fits.try_emplace({step.op.index, k}, true);
      if (fresh) {
        try {
          fit->second = device.make_kernel(graph, op, step.kernel, k)->workspace() <= step.workspace;
        } catch (const Error&) {
          fit->second = false;  // there is no such kernel for so many threads
        }
      }
      curve.put({k, Affinity::apart}, fit->second ? all_ms * cost->time_ms / alone->time_ms : all_ms * kImpossible);
      one_known |= k == 1;
      chosen.measured = true;
    }
    if (!one_known) curve.put({1, Affinity::apart}, all_ms * kImpossible);  // not measured: with all threads, or not at all
  }
  if (!chosen.measured) return chosen;
  Interference avoid;
  for (size_t a = 0; a < tasks.tasks.size() && !apart.empty(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      auto op_of = [&](size_t task) { return plan.steps[static_cast<size_t>(tasks.steps[task])].op.index; };
      if (apart.contains(std::minmax(op_of(a), op_of(b)))) {
        avoid.record(static_cast<int32_t>(a), static_cast<int32_t>(b), 1, kImpossible);
      }
    }
  }
  const CoMachine machine{.cores = {.cores = cores}, .memory_gb_per_s = costs.rates().memory_gb_per_s};
  const ChosenSchedule best = best_schedule(tasks.tasks, machine, {.co_run = true}, &avoid);
  if (best.schedule.total_ms > chosen.serial_ms * kWorthIt) return chosen;

  // Equal threads whenever an op runs: what is computed again must be the same bits.
  std::map<int32_t, int> threads_of_op;
  for (const CoSpan& span : best.schedule.spans) {
    const Step& step = plan.steps[static_cast<size_t>(tasks.steps[static_cast<size_t>(span.task)])];
    threads_of_op.try_emplace(step.op.index, span.threads >= cores ? 0 : span.threads);
  }
  for (Step& step : plan.steps) {
    const auto it = threads_of_op.find(step.op.index);
    if (it == threads_of_op.end()) continue;
    step.threads = it->second;
    chosen.narrowed += step.threads != 0;
  }
  plan.inter_op = std::max(best.schedule.most_at_once, 1);
  predict(plan, tasks, best.schedule);
  chosen.inter_op = plan.inter_op;
  chosen.together_ms = plan.predicted.step_time_ms;
  return chosen;
}

std::string share_program(Program& program, const Sharing& sharing, const Device& device, const CostTable& costs) {
  if (!sharing.choose) {
    set_sharing(program, sharing, costs);
    return {};
  }
  const ChosenSharing chosen = choose_sharing(program, device, costs);
  if (!chosen.measured) {
    return "--inter-op auto: what ops take with fewer threads is not measured, so they run one after another with all";
  }
  if (chosen.inter_op == 1 && chosen.narrowed == 0) {
    return fmt::format("--inter-op auto: one op after another with all threads, {:.4g} ms a step; nothing is predicted to be faster",
                       chosen.serial_ms);
  }
  return fmt::format("--inter-op auto: up to {} ops at once, {} with fewer threads: {:.4g} ms a step predicted instead of {:.4g}",
                     chosen.inter_op, chosen.narrowed, chosen.together_ms, chosen.serial_ms);
}

double SharingWatch::serial_ms(size_t step) const {
  const Step& s = program_.plan.steps[step];
  const Graph& graph = program_.network.graph;
  return s.kernel.empty() ? 0 : costs_.predict(graph, graph.op(s.op), s.kernel, 0).time_ms;
}

// Steps that met, directly or through others, and took longer from the first to the last than one after another.
OpPairs SharingWatch::slow_pairs(std::span<const StepRecord> records) const {
  std::vector<size_t> order;
  for (size_t s = 0; s < records.size(); ++s) {
    if (!program_.plan.steps[s].kernel.empty()) order.push_back(s);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return records[a].start_ms < records[b].start_ms; });
  OpPairs slow;
  for (size_t begin = 0; begin < order.size();) {
    double end_ms = records[order[begin]].end_ms, serial = serial_ms(order[begin]);
    size_t end = begin + 1;
    for (; end < order.size() && records[order[end]].start_ms < end_ms; ++end) {
      end_ms = std::max(end_ms, records[order[end]].end_ms);
      serial += serial_ms(order[end]);
    }
    if (end - begin > 1 && end_ms - records[order[begin]].start_ms > serial * kSlower) {
      for (size_t a = begin; a < end; ++a) {
        for (size_t b = a + 1; b < end && records[order[b]].start_ms < records[order[a]].end_ms; ++b) {
          slow.insert(std::minmax(program_.plan.steps[order[a]].op.index, program_.plan.steps[order[b]].op.index));
        }
      }
    }
    begin = end;
  }
  return slow;
}

bool SharingWatch::sees(std::span<const StepRecord> records) {
  if (over_ || records.empty() || ++steps_ == 1) return false;  // the first warms up
  double last_ms = 0;
  for (const StepRecord& record : records) last_ms = std::max(last_ms, record.end_ms);
  times_.push_back(last_ms);
  for (const auto& pair : slow_pairs(records)) ++slow_[pair];
  if (steps_ <= kStepsWatched) return false;
  std::nth_element(times_.begin(), times_.begin() + static_cast<std::ptrdiff_t>(times_.size() / 2), times_.end());
  usual_ms_ = times_[times_.size() / 2];
  all_serial_ms_ = 0;
  for (size_t s = 0; s < program_.plan.steps.size(); ++s) all_serial_ms_ += serial_ms(s);
  fresh_ = 0;
  for (const auto& [pair, times] : slow_) {
    if (2 * times > static_cast<int>(times_.size())) fresh_ += apart_.insert(pair).second;
  }
  steps_ = 0;
  times_.clear();
  slow_.clear();
  over_ = fresh_ == 0 && usual_ms_ <= all_serial_ms_ * kSlower;
  return !over_;
}

std::string SharingWatch::correct() {
  if (fresh_ > 0 && corrections_++ < kMostCorrections) {
    const ChosenSharing chosen = choose_sharing(program_, device_, costs_, apart_);
    if (chosen.inter_op > 1) {
      return fmt::format("{} pairs of ops were slower side by side than one after another, and are kept apart: {:.4g} ms a step predicted",
                         fresh_, chosen.together_ms);
    }
  }
  over_ = true;
  for (Step& step : program_.plan.steps) step.threads = 0;
  program_.plan.inter_op = 1;
  program_.plan.predicted = simulate(program_.network.graph, program_.plan, costs_);
  return fmt::format("side by side a step took {:.4g} ms; one op after another {:.4g} are predicted: back to that", usual_ms_, all_serial_ms_);
}

}  // namespace plimsoll
