#include "report/report.h"


#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "plimsoll/ops.h"
#include "plimsoll/verify.h"

namespace plimsoll {
namespace {

using nlohmann::json;

std::string what_for(const Graph& graph, const Stay& stay) {
  return stay.is_workspace() ? "workspace" : std::string(to_string(graph.tensor(stay.tensor).role));
}

std::string plural(std::string_view role) {
  if (role == "activation" || role == "gradient" || role == "parameter" || role == "statistic" || role == "input" ||
      role == "output" || role == "hyperparameter") {
    return std::string(role) + "s";
  }
  return role == "optimizer_state" ? "optimizer state" : std::string(role);
}

// Made for a machine that is not there.
bool is_simulated(const Plan& plan) { return plan.device_key.starts_with("simulated "); }

std::string step_label(const Graph& graph, const Plan& plan, StepIndex step) {
  const Op& op = graph.op(plan.steps.at(static_cast<size_t>(step)).op);
  return fmt::format("step {} of {} ({}, {})", step, plan.steps.size(), op.name, op.type->name);
}

}  // namespace

std::vector<MemoryShare> memory_by_role(const Graph& graph, const Plan& plan, StepIndex step) {
  std::map<std::string, Bytes> sums;
  for (const Stay* stay : live_at(plan, step)) sums[what_for(graph, *stay)] += stay->bytes;
  std::vector<MemoryShare> shares;
  for (auto& [what, bytes] : sums) shares.push_back({what, bytes});
  std::stable_sort(shares.begin(), shares.end(), [](const MemoryShare& a, const MemoryShare& b) { return a.bytes > b.bytes; });
  return shares;
}

namespace {

// By the verifier, of the very plan that is printed.
bool is_safe(const Program& program) { return verify(program.network.graph, program.plan, 1).empty(); }

}  // namespace

std::string plan_text(const Program& program, int64_t batch) {
  const Plan& plan = program.plan;
  const Graph& graph = program.network.graph;
  std::string text;
  auto line = [&](std::string_view name, std::string value) { text += fmt::format("  {:<10} {}\n", name, value); };
  line("budget", plan.budget.count == INT64_MAX ? "none" : to_string(plan.budget));
  line("arena", fmt::format("{} by policy {} ({} placement), {}", to_string(plan.arena),
                            program.policy.starts_with(plan.policy) ? program.policy : fmt::format("{}, which took {}", program.policy, plan.policy),
                            plan.placement, is_safe(program) ? "verified" : "not safe"));
  line("peak", fmt::format("{} at {}", to_string(plan.predicted.peak), step_label(graph, plan, plan.predicted.peak_step)));
  std::vector<std::string> shares;
  for (const MemoryShare& share : memory_by_role(graph, plan, plan.predicted.peak_step)) {
    if (share.bytes.count >= 1024) shares.push_back(fmt::format("{} {}", plural(share.what), to_string(share.bytes)));
  }
  line("of which", fmt::format("{}", fmt::join(shares, ", ")));
  line("baseline", fmt::format("would need {} (every tensor its own memory): {:.1f}x", to_string(program.baseline_peak),
                               static_cast<double>(program.baseline_peak.count) / static_cast<double>(plan.arena.count)));
  const double ms = plan.predicted.step_time_ms;
  std::string time = fmt::format("{:.3g} ms a step", ms);
  if (batch > 0 && ms > 0) time += fmt::format(", {:.4g} images/s", 1000.0 * static_cast<double>(batch) / ms);
  const double estimated = plan.predicted.estimated_share;
  time += is_simulated(plan)  ? " (simulated: by formulas, for a machine that is not there)"
          : estimated < 0.005 ? " (from measured kernels)"
                              : fmt::format(" ({:.0f} % of it estimated; `plimsoll profile` measures)", 100 * estimated);
  line("predicted", time);
  if (ms > plan.predicted.lower_bound_ms * 1.005) line("", fmt::format("no order of these kernels takes less than {:.3g} ms", plan.predicted.lower_bound_ms));
  return text;
}

std::string peak_tensors_text(const Graph& graph, const Plan& plan, size_t most) {
  std::string text;
  const auto live = live_at(plan, plan.predicted.peak_step);
  for (size_t i = 0; i < live.size() && i < most; ++i) {
    const Stay& stay = *live[i];
    const std::string name = stay.is_workspace() ? "(workspace)" : graph.tensor(stay.tensor).name;
    const std::string shape = stay.is_workspace() ? "" : to_string(graph.tensor(stay.tensor).shape);
    text += fmt::format("  {:>10}  {:<15} {} {}\n", to_string(stay.bytes), what_for(graph, stay), name, shape);
  }
  if (live.size() > most) text += fmt::format("  and {} more\n", live.size() - most);
  return text;
}

namespace {

// Of the convolutions and fully connected layers of a step.
struct WorkspaceUse {
  int ops = 0, divided = 0;  // divided: steps that run in parts of the batch
  double convolution_ms = 0;
  Bytes largest, sum;
};
WorkspaceUse workspace_use(const Graph& graph, const Plan& plan) {
  WorkspaceUse use;
  std::vector<double> ms(plan.steps.size());
  for (const EngineSpan& span : plan.predicted.timeline) {
    if (span.engine == 0) ms[static_cast<size_t>(span.index)] = span.end_ms - span.start_ms;
  }
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    const Step& step = plan.steps[s];
    const LayerKind kind = layer_kind(graph.op(step.op));
    use.divided += parts_of(step.kernel).empty() ? 0 : 1;
    if (kind == LayerKind::convolution) use.convolution_ms += ms[s];
    if (kind != LayerKind::convolution && kind != LayerKind::fully_connected) continue;
    ++use.ops;
    use.largest = std::max(use.largest, step.workspace);
    use.sum += step.workspace;
  }
  return use;
}

}  // namespace

json plan_json(const Program& program, std::optional<Bytes> minimum) {
  const Plan& plan = program.plan;
  const Graph& graph = program.network.graph;
  const Op& peak_op = graph.op(plan.steps.at(static_cast<size_t>(plan.predicted.peak_step)).op);
  json alive = json::array();
  for (const Stay* stay : live_at(plan, plan.predicted.peak_step)) {
    if (alive.size() == 50) break;
    alive.push_back({{"tensor", stay->is_workspace() ? "(workspace)" : graph.tensor(stay->tensor).name},
                     {"role", what_for(graph, *stay)},
                     {"bytes", stay->bytes.count}});
  }
  json shares = json::object();
  for (const MemoryShare& share : memory_by_role(graph, plan, plan.predicted.peak_step)) shares[share.what] = share.bytes.count;
  json tiers = json::array();
  for (const TierUse& use : plan.tiers) {
    tiers.push_back({{"name", use.tier.name}, {"used_bytes", use.used.count}, {"capacity_bytes", use.tier.capacity.count}});
  }
  const WorkspaceUse use = workspace_use(graph, plan);
  return {{"feasible", true},
          {"convolution_ms", use.convolution_ms},
          {"weighty_ops", use.ops},
          {"divided_steps", use.divided},
          {"largest_workspace_bytes", use.largest.count},
          {"workspaces_bytes", use.sum.count},
          {"model", graph.name},
          {"device", plan.device_name},
          {"simulated", is_simulated(plan)},
          {"policy", program.policy},
          {"planned_by", plan.policy},
          {"inter_op", plan.cores.inter_op},
          {"placement", plan.placement},
          {"layout", std::string(to_string(program.family))},
          {"budget_bytes", plan.budget.count == INT64_MAX ? json(nullptr) : json(plan.budget.count)},
          {"peak_bytes", plan.predicted.peak.count},
          {"arena_bytes", plan.arena.count},
          {"lower_bound_bytes", program.lower_bound.count},
          {"minimum_bytes", minimum ? json(std::min(*minimum, plan.arena).count) : json(nullptr)},
          {"baseline_bytes", program.baseline_peak.count},
          {"step_time_ms", plan.predicted.step_time_ms},
          {"estimated_share", plan.predicted.estimated_share},
          {"offload_bytes", plan.predicted.offload.count},
          {"prefetch_bytes", plan.predicted.prefetch.count},
          {"recompute_steps", plan.predicted.recompute_steps},
          {"recompute_ms", plan.predicted.recompute_ms},
          {"copy_ms", plan.predicted.copy_ms},
          {"stall_ms", plan.predicted.stall_ms},
          {"lower_bound_ms", plan.predicted.lower_bound_ms},
          {"tiers", tiers},
          {"steps", plan.steps.size()},
          {"peak_step", plan.predicted.peak_step},
          {"peak_op", peak_op.name},
          {"peak_layer", peak_op.layer},
          {"peak_tensors", alive},
          {"peak_by_role", shares},
          {"plan_time_ms", plan.plan_time_ms},
          {"verified", is_safe(program)}};
}

json infeasible_json(const Infeasible& infeasible) {
  json needs = json::array();
  for (const Infeasible::Need& need : infeasible.needs) {
    needs.push_back({{"tensor", need.workspace && infeasible.flag.empty() ? "(workspace)" : need.tensor},
                     {"role", need.workspace ? "workspace" : std::string(to_string(need.role))},
                     {"bytes", need.bytes.count}});
  }
  return {{"feasible", false},
          {"policy", infeasible.policy},
          {"flag", !infeasible.flag.empty()         ? infeasible.flag
                   : infeasible.tier.empty()        ? "--memory"
                   : infeasible.tier == "disk"      ? "--spill"
                                                    : "--host-memory"},
          {"budget_bytes", infeasible.budget.count},
          {"minimum_bytes", infeasible.minimum.count},
          {"lower_bound_bytes", infeasible.lower_bound.count},
          {"peak_bytes", nullptr},
          {"arena_bytes", nullptr},
          {"step_time_ms", nullptr},
          {"offload_bytes", nullptr},
          {"prefetch_bytes", nullptr},
          {"recompute_steps", nullptr},
          {"steps", nullptr},
          {"plan_time_ms", nullptr},
          {"proven", infeasible.proven},
          {"peak_step", infeasible.step},
          {"peak_op", infeasible.op},
          {"peak_layer", infeasible.layer},
          {"peak_tensors", needs},
          {"suggestion", infeasible.suggestion},
          {"verified", false}};
}

namespace {
constexpr int kFirstCoreTrack = 1000;  // behind the engines
}

std::string trace_json(const Graph& graph, const Plan& plan, std::span<const StepRecord> records, std::span<const StepRecord> copies) {
  json events = json::array();
  auto process = [&](int pid, std::string_view name) {
    events.push_back({{"ph", "M"}, {"pid", pid}, {"tid", 0}, {"name", "process_name"}, {"args", {{"name", name}}}});
  };
  auto thread = [&](int pid, int tid, std::string_view name) {
    events.push_back({{"ph", "M"}, {"pid", pid}, {"tid", tid}, {"name", "thread_name"}, {"args", {{"name", name}}}});
  };
  auto bar = [&](int pid, int tid, StepIndex s, double start_ms, double end_ms) {
    const Step& step = plan.steps[static_cast<size_t>(s)];
    const Op& op = graph.op(step.op);
    events.push_back({{"ph", "X"},
                      {"pid", pid},
                      {"tid", tid},
                      {"name", op.name},
                      {"cat", std::string(to_string(op.phase))},
                      {"ts", start_ms * 1000},
                      {"dur", std::max(0.0, end_ms - start_ms) * 1000},
                      {"args",
                       {{"step", s}, {"op", op.type->name}, {"layer", op.layer}, {"kernel", step.kernel},
                        {"workspace_bytes", step.workspace.count}, {"recompute", step.recompute}, {"threads", step.threads},
                        {"gflop", op.type->work ? op.type->work(graph, op).flops / 1e9 : 0.0}}}});
  };
  auto copy = [&](int pid, int engine, int32_t index, double start_ms, double end_ms) {
    const Move& move = plan.moves[static_cast<size_t>(index)];
    const Bytes bytes = graph.tensor(move.tensor).bytes();
    events.push_back({{"ph", "X"}, {"pid", pid}, {"tid", engine}, {"name", graph.tensor(move.tensor).name},
                      {"ts", start_ms * 1000}, {"dur", (end_ms - start_ms) * 1000},
                      {"args", {{"tier", move.tier}, {"bytes", bytes.count}}}});
  };
  // Steps side by side have a track for each core that one begins on.
  const bool side_by_side = plan.cores.inter_op > 1;
  auto track = [&](const StepRecord& r) { return side_by_side ? kFirstCoreTrack + r.core : 0; };
  auto name_cores = [&](int pid, std::span<const StepRecord> times) {
    int last = -1;
    for (const StepRecord& r : times) last = std::max(last, r.core);
    for (int core = 0; core <= last && side_by_side; ++core) thread(pid, kFirstCoreTrack + core, fmt::format("core {}", core));
  };
  auto engines = [&](int pid) {
    if (!side_by_side) thread(pid, 0, "compute");
    for (size_t t = 0; t < plan.tiers.size(); ++t) {
      thread(pid, static_cast<int>(2 * t + 1), "to " + plan.tiers[t].tier.name);
      thread(pid, static_cast<int>(2 * t + 2), "from " + plan.tiers[t].tier.name);
    }
  };
  // Views take no time, so they have no bar, and begin when what is before them ends.
  auto runs = [&](StepIndex s) { return !graph.op(plan.steps[static_cast<size_t>(s)].op).type->is_view; };
  const std::vector<Bytes> live = live_bytes(plan);
  auto counter = [&](int pid, const std::vector<StepRecord>& times) {
    double now_ms = 0;
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      const bool timed = runs(static_cast<StepIndex>(s));
      if (timed) now_ms = times[s].start_ms;
      events.push_back({{"ph", "C"}, {"pid", pid}, {"name", "live MiB"}, {"ts", now_ms * 1000},
                        {"args", {{"MiB", static_cast<double>(live[s].count) / 1048576.0}}}});
      if (timed) now_ms = times[s].end_ms;
    }
  };

  process(1, "predicted");
  engines(1);
  std::vector<StepRecord> predicted(plan.steps.size());
  std::vector<EngineSpan> spans = plan.predicted.timeline;
  std::stable_sort(spans.begin(), spans.end(), [](const EngineSpan& a, const EngineSpan& b) { return a.start_ms < b.start_ms; });
  // By core: on paper a step is on the first that is free, of as many as steps run at once.
  std::vector<double> free_from(static_cast<size_t>(std::max(plan.cores.inter_op, 1)), 0);
  for (const EngineSpan& span : spans) {
    if (span.engine == 0) {
      StepRecord& record = predicted[static_cast<size_t>(span.index)];
      record = {span.start_ms, span.end_ms};
      if (!runs(span.index)) continue;
      constexpr double kRounding = 1e-9;
      auto core = std::find_if(free_from.begin(), free_from.end(), [&](double ms) { return ms <= span.start_ms + kRounding; });
      if (core == free_from.end()) core = std::min_element(free_from.begin(), free_from.end());
      record.core = static_cast<int32_t>(core - free_from.begin());
      free_from[static_cast<size_t>(record.core)] = span.end_ms;
      bar(1, track(record), span.index, span.start_ms, span.end_ms);
    } else {
      copy(1, span.engine, span.index, span.start_ms, span.end_ms);
    }
  }
  name_cores(1, predicted);
  counter(1, predicted);
  if (!records.empty()) {
    process(2, "measured");
    engines(2);
    name_cores(2, records);
    for (size_t s = 0; s < records.size(); ++s) {
      if (runs(static_cast<StepIndex>(s))) bar(2, track(records[s]), static_cast<StepIndex>(s), records[s].start_ms, records[s].end_ms);
    }
    for (size_t i = 0; i < copies.size(); ++i) {
      const Move& move = plan.moves[i];
      const int engine = 2 * move.tier + (move.direction == Move::Direction::out ? 1 : 2);
      copy(2, engine, static_cast<int32_t>(i), copies[i].start_ms, copies[i].end_ms);
    }
    counter(2, {records.begin(), records.end()});
  }
  return json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump();
}

}  // namespace plimsoll
