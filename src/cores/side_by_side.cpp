#include "cores/side_by_side.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "device/cpu/machine.h"
#include "cores/relax_reuse.h"
#include "plan/dependencies.h"
#include "device/divided.h"
#include "plimsoll/error.h"
#include "plimsoll/ops.h"
#include "plan/simulate.h"

namespace plimsoll {
namespace {

constexpr double kWorthIt = 0.98;     // of the serial time: less is within the noise of what was measured
constexpr double kImpossible = 1e3;   // times as slow
constexpr double kSlower = 1.03;      // than what was predicted for one after another
constexpr int kStepsWatched = 6;      // before a correction
constexpr int kMostCorrections = 3;
constexpr int kMostAtOnce = 8;        // whose waiting for each other's bytes is looked at, where the number is not given
constexpr double kWorthTelling = 0.95;  // of the time within the budget
constexpr StepIndex kReuseDistances[] = {2, 8, 32, 128, 512, INT32_MAX / 2};  // between two uses of the same bytes: what is tried
constexpr double kSecondThread = 1.25;  // times what a core computes with one hardware thread: assumed, and corrected while it runs

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

// A schedule on paper becomes the plan's: what its steps take and share, and which of them go first. The prediction follows.
void take_schedule(const Graph& graph, Plan& plan, const Tasks& tasks, const CoMachine& machine, const CoSchedule& schedule) {
  plan.cores.cores = machine.cores.cores;
  plan.cores.hardware_threads = machine.cores.hardware_threads;
  plan.cores.memory_gb_per_s = machine.memory_gb_per_s;
  plan.cores.smt_speed = machine.throughput.back();
  plan.cores.order.clear();
  std::vector<bool> seen(plan.steps.size(), false);
  for (const CoSpan& span : schedule.spans) {
    const StepIndex s = tasks.steps[static_cast<size_t>(span.task)];
    Step& step = plan.steps[static_cast<size_t>(s)];
    if (step.threads == 0 && span.threads < machine.cores.cores) step.threads = span.threads;
    step.time_ms = tasks.tasks[static_cast<size_t>(span.task)].curve.time_ms(span.threads);
    plan.cores.order.push_back(s);
    seen[static_cast<size_t>(s)] = true;
  }
  for (StepIndex s = 0; s < static_cast<StepIndex>(plan.steps.size()); ++s) {
    if (!seen[static_cast<size_t>(s)]) plan.cores.order.push_back(s);
  }
  plan.predicted = simulate(graph, plan);
}

int cores_of(const Device& device) { return std::max(device.info().threads, 1); }

// Cores are whole ones: their second hardware threads are Strategy 4's.
Sharing choice_for(const SharingOptions& options, const CoreShape& machine) {
  const int cores = options.threads > 0 ? options.threads : std::max(machine.cores, 1);
  const Strategies strategies = options.strategies.value_or(Strategies{});
  const bool has_second = cores == machine.cores && machine.hardware_threads > 1;
  Sharing sharing{.cores = cores, .op_threads = cores, .choose = true, .strategies = strategies,
                  .climb_interval = options.climb_interval > 0 ? options.climb_interval : std::max(1, cores / 16)};
  if (strategies.second_threads && has_second) sharing.hardware_threads = 2;
  if (options.strategies && strategies.second_threads && !has_second) {
    sharing.notice = machine.hardware_threads > 1
                         ? fmt::format("--strategies 4: only with all of the machine's {} cores, not with {} threads, are there second "
                                       "hardware threads to use; it goes on without",
                                       machine.cores, cores)
                         : "--strategies 4: the cores here have one hardware thread each; it goes on without";
  }
  return sharing;
}

}  // namespace

Sharing share_cores(std::string_view device, const SharingOptions& options, bool exact) {
  const bool plain = options.inter_op == 1 && options.intra_op == 0;
  return share_cores(device, options, exact, plain || device != "cpu" ? CoreShape{} : cpu::machine_topology().shape);
}

Sharing share_cores(std::string_view device, const SharingOptions& options, bool exact, const CoreShape& machine) {
  if (options.inter_op != 0 && (options.strategies || options.climb_interval != 0)) {
    throw Error(ErrorCode::invalid_input, fmt::format("--{}: for --inter-op auto, which chooses and measures thread counts",
                                                      options.strategies ? "strategies" : "climb-interval"));
  }
  if (options.inter_op == 1 && options.intra_op == 0) return {.cores = options.threads, .op_threads = options.threads};
  if (device != "cpu") {
    throw Error(ErrorCode::unsupported, fmt::format("--inter-op and --intra-op: device '{}' runs one op at a time", device));
  }
  if (options.inter_op == 0) {
    if (options.intra_op != 0) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("--intra-op {}: --inter-op auto chooses the threads of every op; leave one of them out", options.intra_op));
    }
    if (exact) {
      throw Error(ErrorCode::invalid_input,
                  "--inter-op auto chooses thread counts by measured times, which change the last bits; with --exact give numbers");
    }
    return choice_for(options, machine);
  }
  const int cores = options.threads > 0 ? options.threads : cpu::usable_processors();
  Sharing sharing{.cores = cores,
                  .op_threads = options.intra_op > 0 ? options.intra_op : std::max(1, cores / options.inter_op),
                  .inter_op = options.inter_op};
  if (sharing.inter_op * sharing.op_threads > cores) {
    sharing.notice = fmt::format("{} steps at once with {} threads each on {} cores: they take turns, which is slow", sharing.inter_op,
                                 sharing.op_threads, cores);
    sharing.processors = cores;
    sharing.cores = sharing.inter_op * sharing.op_threads;
  }
  if (exact && options.intra_op == 0 && sharing.op_threads != cores) {
    sharing.notice += fmt::format("{}--exact --inter-op {}: threads of an op: {} here, {} without --inter-op; so weights differ in the last bits "
                                  "from those of such a run; with --intra-op {} they are the same",
                                  sharing.notice.empty() ? "" : "; ", sharing.inter_op, sharing.op_threads, cores, cores);
  }
  return sharing;
}

void use_stays(Program& program, bool side_by_side) {
  const std::vector<Stay>& stays = side_by_side ? program.loose : program.packed;
  if (!stays.empty()) program.plan.stays = stays;
}

void shrink_arena(Program& program) {
  if (program.packed.empty()) return;
  program.packed.clear();
  program.loose.clear();
  program.plan.arena = {};
  for (const Stay& stay : program.plan.stays) program.plan.arena = std::max(program.plan.arena, stay.offset + stay.bytes);
}

namespace {

// So many steps at once, each as fast as alone with so many threads.
struct Uniform {
  int inter_op = 2, threads = 1;
  CoMachine machine;
};

Uniform uniform_of(const Sharing& sharing, const CostTable& costs) {
  const double memory = costs.rates().memory_gb_per_s;
  if (sharing.choose) {
    const int workers = std::clamp(sharing.cores, 2, kMostAtOnce);
    return {workers, 1, {.cores = {.cores = workers}, .memory_gb_per_s = memory}};
  }
  const int cores = sharing.processors > 0 ? sharing.processors : sharing.cores;
  return {sharing.inter_op, sharing.op_threads, {.cores = {.cores = cores}, .memory_gb_per_s = memory}};
}

CoSchedule schedule_of(const Graph& graph, const Plan& plan, Tasks& tasks, const Uniform& uniform, const CostTable& costs) {
  for (size_t i = 0; i < tasks.tasks.size(); ++i) {
    const Step& step = plan.steps[static_cast<size_t>(tasks.steps[i])];
    tasks.tasks[i].curve.put({uniform.threads, Affinity::spread}, costs.predict(graph, graph.op(step.op), step.kernel, step.threads).time_ms);
  }
  return co_run(tasks.tasks, uniform.machine, {.inter_op = uniform.inter_op, .intra_op = uniform.threads});
}

}  // namespace

std::string relax_program(Program& program, const Sharing& sharing, const CostTable& costs) {
  const bool beside = sharing.strategies.co_run || (sharing.strategies.second_threads && sharing.hardware_threads > 1);
  if (sharing.choose ? !beside || sharing.cores * sharing.hardware_threads < 2 : sharing.inter_op < 2) return {};
  const Graph& graph = program.network.graph;
  const Uniform uniform = uniform_of(sharing, costs);
  Plan plan = program.plan;
  auto time_ms = [&](const RelaxedStays& loose) {
    plan.stays = loose.stays;
    Tasks tasks = tasks_of(graph, plan);
    return schedule_of(graph, plan, tasks, uniform, costs).total_ms;
  };
  const ReuseRelaxation relaxation(graph, program.plan);
  const double packed_ms = time_ms({program.plan.stays, program.plan.arena}), least_ms = time_ms(relaxation.without_reuse());
  if (least_ms > packed_ms * kWorthIt) return {};
  // Up to the first that is about as good as nothing taken over at all; the best for which there is room.
  RelaxedStays good, best;
  double good_ms = packed_ms, best_ms = packed_ms;
  for (StepIndex steps : kReuseDistances) {
    good = relaxation.with_reuse_distance(steps);
    good_ms = time_ms(good);
    if (good.arena <= plan.budget && good_ms < best_ms) {
      best = good;
      best_ms = good_ms;
    }
    if (good_ms * kWorthIt <= least_ms || steps >= static_cast<StepIndex>(plan.steps.size())) break;
  }
  if (best_ms <= packed_ms * kWorthIt) {
    program.packed = program.plan.stays;
    program.loose = std::move(best.stays);
    program.plan.arena = std::max(program.plan.arena, best.arena);
  }
  if (good.arena <= plan.budget || good_ms > best_ms * kWorthTelling) return {};
  return fmt::format("ops that run at once wait for each other's bytes in so little memory: {}, and steps would be up to {:.0f} % shorter",
                     raise_memory_to(good.arena), 100 * (1 - good_ms / best_ms));
}

void set_sharing(Program& program, const Sharing& sharing, const CostTable& costs) {
  if (sharing.inter_op < 2) return;
  use_stays(program, true);
  program.plan.cores.inter_op = sharing.inter_op;
  const Uniform uniform = uniform_of(sharing, costs);
  Tasks tasks = tasks_of(program.network.graph, program.plan);
  const CoSchedule schedule = schedule_of(program.network.graph, program.plan, tasks, uniform, costs);
  take_times(program.network.graph, program.plan, costs);
  take_schedule(program.network.graph, program.plan, tasks, uniform.machine, schedule);
}

bool fits(const Program& program, const Device& device, const Step& step, int threads) {
  const Graph& graph = program.network.graph;
  try {
    return make_kernel(device, graph, graph.op(step.op), step.kernel, threads)->workspace() <= step.workspace;
  } catch (const Error&) {
    return false;  // there is no such kernel for so many threads
  }
}

std::vector<std::pair<StepIndex, StepIndex>> conflicting_steps(const Program& program, const CostTable& costs, const OpPairs& conflicts) {
  std::vector<std::pair<StepIndex, StepIndex>> pairs;
  if (conflicts.empty() && costs.conflicts().empty()) return pairs;
  const Graph& graph = program.network.graph;
  std::map<std::string, int> numbers;  // of signatures
  std::vector<StepIndex> steps;
  std::vector<int> ops, signatures;
  for (StepIndex s = 0; s < static_cast<StepIndex>(program.plan.steps.size()); ++s) {
    const Step& step = program.plan.steps[static_cast<size_t>(s)];
    if (step.kernel.empty()) continue;
    steps.push_back(s);
    ops.push_back(step.op.index);
    signatures.push_back(numbers.try_emplace(op_signature(graph, graph.op(step.op)), static_cast<int>(numbers.size())).first->second);
  }
  std::set<std::pair<int, int>> kept;
  for (const auto& [a, b] : costs.conflicts()) {
    const auto first = numbers.find(a), second = numbers.find(b);
    if (first != numbers.end() && second != numbers.end()) kept.insert(std::minmax(first->second, second->second));
  }
  if (conflicts.empty() && kept.empty()) return pairs;
  for (size_t a = 0; a < ops.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      if (conflicts.contains(std::minmax(ops[a], ops[b])) || kept.contains(std::minmax(signatures[a], signatures[b]))) pairs.emplace_back(steps[b], steps[a]);
    }
  }
  return pairs;
}

void run_serially(Program& program, const CostTable& costs) {
  for (Step& step : program.plan.steps) {
    step.threads = 0;
    step.affinity = Affinity::close;
  }
  use_stays(program, false);
  program.plan.cores = {};
  predict(program.network.graph, program.plan, costs);
}

namespace {

// Makes the curves of a plan's steps from what is known of them.
class Curves {
 public:
  Curves(const Program& program, const Device& device, const CostTable& costs)
      : program_(program), device_(device), costs_(costs), cores_(cores_of(device)) {}

  ThreadCurve of(const Step& step) {
    const Graph& graph = program_.network.graph;
    const Op& op = graph.op(step.op);
    const std::string signature = op_signature(graph, op);
    const double all_ms = costs_.predict(graph, op, step.kernel, 0).time_ms;
    const std::optional<Cost> alone = costs_.find({signature, step.kernel, 0});
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
      const auto cost = costs_.find_in_step({signature, step.kernel, k, true});
      if (!cost) continue;
      spread_known = true;
      put({k, Affinity::spread}, cost->time_ms);
    }
    curve.put({cores_, Affinity::spread}, all_ms);
    curve.put({cores_, Affinity::close}, all_ms);
    for (int k = 1; k < cores_; ++k) {
      if (const auto cost = costs_.find_in_step({signature, step.kernel, k})) {
        put({k, Affinity::close}, cost->time_ms);
      } else if (const auto cold = costs_.find({signature, step.kernel, k}); cold && alone && alone->time_ms > 0) {
        put({k, Affinity::close}, all_ms * cold->time_ms / alone->time_ms);
      }
    }
    if (!one_known) curve.put({1, Affinity::spread}, all_ms * kImpossible);  // not measured: with all threads, or not at all
    return curve;
  }

  bool can_run(const Step& step, int threads) {
    const auto [it, fresh] = fits_.try_emplace({step.op.index, threads}, true);
    if (fresh) it->second = fits(program_, device_, step, threads);
    return it->second;
  }
  bool measured() const { return measured_; }

 private:
  const Program& program_;
  const Device& device_;
  const CostTable& costs_;
  int cores_;
  std::map<std::pair<int32_t, int>, bool> fits_;  // by op and threads
  bool measured_ = false;
};

// The pairs of tasks that are not to meet.
Interference avoided(const Program& program, const Tasks& tasks, const CostTable& costs, const OpPairs& conflicts) {
  Interference avoid;
  std::map<StepIndex, int32_t> task_of;
  for (size_t i = 0; i < tasks.steps.size(); ++i) task_of.emplace(tasks.steps[i], static_cast<int32_t>(i));
  for (const auto& [a, b] : conflicting_steps(program, costs, conflicts)) avoid.record(task_of.at(a), task_of.at(b), 1, kImpossible);
  return avoid;
}

}  // namespace

ChosenSharing choose_sharing(Program& program, const Device& device, const CostTable& costs, const Sharing& sharing,
                             const OpPairs& conflicts) {
  const Graph& graph = program.network.graph;
  Plan& plan = program.plan;
  const int cores = cores_of(device);
  run_serially(program, costs);
  ChosenSharing chosen{.serial_ms = plan.predicted.step_time_ms, .together_ms = plan.predicted.step_time_ms};
  if (cores < 2 && sharing.hardware_threads < 2) return chosen;

  use_stays(program, true);
  Tasks tasks = tasks_of(graph, plan);
  Curves curves(program, device, costs);
  for (size_t i = 0; i < tasks.tasks.size(); ++i) tasks.tasks[i].curve = curves.of(plan.steps[static_cast<size_t>(tasks.steps[i])]);
  chosen.measured = curves.measured() || cores < 2;
  if (!chosen.measured) {
    use_stays(program, false);
    return chosen;
  }
  const Interference avoid = avoided(program, tasks, costs, conflicts);
  CoMachine machine{.cores = {.cores = cores, .hardware_threads = sharing.hardware_threads},
                    .memory_gb_per_s = costs.rates().memory_gb_per_s};
  if (sharing.hardware_threads > 1) machine.throughput = {1, kSecondThread};
  const Strategies& use = sharing.strategies;
  const ChosenSchedule best = best_schedule(
      tasks.tasks, machine,
      {.by_type = use.each_type, .each_op = use.each_op, .co_run = use.co_run, .second_threads = use.second_threads}, &avoid);
  if (best.schedule.most_at_once < 2) use_stays(program, false);
  if (best.schedule.total_ms > chosen.serial_ms * kWorthIt) {
    use_stays(program, false);
    return chosen;
  }

  // Equal threads whenever an op runs: what is computed again must be the same bits.
  struct Place {
    int threads = 0;
    Affinity affinity = Affinity::close;
  };
  std::map<int32_t, Place> place_of_op;
  for (const CoSpan& span : best.schedule.spans) {
    const Step& step = plan.steps[static_cast<size_t>(tasks.steps[static_cast<size_t>(span.task)])];
    Place place;
    if (span.threads < cores && curves.can_run(step, span.threads)) place.threads = span.threads;
    const ThreadCurve& curve = tasks.tasks[static_cast<size_t>(span.task)].curve;
    if (span.second) {
      place.affinity = Affinity::smt;
    } else if (place.threads > 1 && curve.time_ms({span.threads, Affinity::spread}) < curve.time_ms({span.threads, Affinity::close})) {
      place.affinity = Affinity::spread;
    }
    place_of_op.try_emplace(step.op.index, place);
  }
  for (Step& step : plan.steps) {
    const auto it = place_of_op.find(step.op.index);
    if (it == place_of_op.end()) continue;
    step.threads = it->second.threads;
    step.affinity = it->second.affinity;
    chosen.narrowed += step.threads != 0;
    chosen.second += step.affinity == Affinity::smt;
  }
  plan.cores.inter_op = std::max(best.schedule.most_at_once, 1);
  take_schedule(graph, plan, tasks, machine, best.schedule);
  chosen.inter_op = plan.cores.inter_op;
  chosen.together_ms = plan.predicted.step_time_ms;
  return chosen;
}

std::string share_program(Program& program, const Sharing& sharing, const Device& device, const CostTable& costs) {
  if (!sharing.choose) {
    set_sharing(program, sharing, costs);
    return {};
  }
  const ChosenSharing chosen = choose_sharing(program, device, costs, sharing);
  if (!chosen.measured) {
    return "--inter-op auto: what ops take with fewer threads is not measured (training does it), so they run one after another with all";
  }
  if (chosen.inter_op == 1 && chosen.narrowed == 0) {
    return fmt::format("--inter-op auto: one op after another with all threads, {:.4g} ms a step; nothing is predicted to be faster",
                       chosen.serial_ms);
  }
  return fmt::format("--inter-op auto: up to {} ops at once, {} with fewer threads{}: {:.4g} ms a step predicted instead of {:.4g}",
                     chosen.inter_op, chosen.narrowed,
                     chosen.second > 0 ? fmt::format(", {} on second hardware threads", chosen.second) : "", chosen.together_ms,
                     chosen.serial_ms);
}

double InterferenceMonitor::serial_ms(size_t step) const {
  const Step& s = program_.plan.steps[step];
  const Graph& graph = program_.network.graph;
  return s.kernel.empty() ? 0 : costs_.predict(graph, graph.op(s.op), s.kernel, 0).time_ms;
}

// Steps that met, directly or through others, and took longer from the first to the last than one after another.
OpPairs InterferenceMonitor::slow_pairs(std::span<const StepRecord> records) const {
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

std::set<CostTable::OpPair> InterferenceMonitor::found() const {
  const Graph& graph = program_.network.graph;
  std::set<CostTable::OpPair> pairs;
  for (const auto& [a, b] : conflicts_) {
    std::string first = op_signature(graph, graph.op({a})), second = op_signature(graph, graph.op({b}));
    if (second < first) std::swap(first, second);
    pairs.emplace(std::move(first), std::move(second));
  }
  return pairs;
}

bool InterferenceMonitor::sees(std::span<const StepRecord> records) {
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
    if (2 * times > static_cast<int>(times_.size())) fresh_ += conflicts_.insert(pair).second;
  }
  steps_ = 0;
  times_.clear();
  slow_.clear();
  over_ = fresh_ == 0 && usual_ms_ <= all_serial_ms_ * kSlower;
  return !over_;
}

std::string InterferenceMonitor::correct() {
  if (fresh_ > 0 && corrections_++ < kMostCorrections) {
    const ChosenSharing chosen = choose_sharing(program_, device_, costs_, sharing_, conflicts_);
    if (chosen.inter_op > 1) {
      return fmt::format("{} pairs of ops were slower side by side than one after another, and are kept conflicts: {:.4g} ms a step predicted",
                         fresh_, chosen.together_ms);
    }
  }
  over_ = true;
  run_serially(program_, costs_);
  return fmt::format("side by side a step took {:.4g} ms; one op after another {:.4g} are predicted: back to that", usual_ms_, all_serial_ms_);
}

}  // namespace plimsoll
