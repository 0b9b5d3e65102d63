#include "report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/texts.h"
#include "plan/tier_flag.h"
#include "plimsoll/cost_graph.h"
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

std::string counted(int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string step_label(const Graph& graph, const Plan& plan, StepIndex step) {
  const Op& op = graph.op(plan.steps.at(step).op);
  return fmt::format("step {} of {} ({}, {})", step, plan.steps.size(), op.name, op.type->name);
}

}  // namespace

std::vector<MemoryShare> memory_by_role(const Graph& graph, const Plan& plan, StepIndex step) {
  std::map<std::string, Bytes> sums;
  for (const auto& [stay, bytes] : held_at(plan, step)) sums[what_for(graph, *stay)] += bytes;
  sums["next batch"] += second_buffer_bytes(plan);
  std::erase_if(sums, [](const auto& share) { return share.second.count == 0; });  // in the bytes of others
  std::vector<MemoryShare> shares;
  for (auto& [what, bytes] : sums) shares.push_back({what, bytes});
  std::stable_sort(shares.begin(), shares.end(),
                   [](const MemoryShare& a, const MemoryShare& b) { return a.bytes > b.bytes; });
  return shares;
}

namespace {

// By the verifier, of the very plan that is printed.
bool is_safe(const Program& program) { return verify(program.network.graph, program.plan, 1).empty(); }

}  // namespace

std::string cores_text(const Plan& plan) {
  const CoreSharing& cores = plan.cores;
  int fewest = INT32_MAX, most = 0, smt = 0;
  for (const Step& step : plan.steps) {
    if (step.threads == 0) continue;
    fewest = std::min(fewest, step.threads);
    most = std::max(most, step.threads);
    smt += step.affinity == Affinity::smt ? 1 : 0;
  }
  if (cores.inter_op <= 1 && most == 0) return {};
  std::string text = counted(cores.inter_op, "step") + " at once";
  if (cores.cores > 0) text += " on " + counted(cores.cores, "core");
  if (most > 0) {
    text += ", ops with " +
            (fewest == most ? counted(most, "thread") : fmt::format("{} to {}", fewest, counted(most, "thread")));
  }
  if (smt > 0) text += fmt::format(", {} of them on second hardware threads", smt);
  if (!cores.conflicts.empty()) {
    text += fmt::format(", {} never run at once", counted(std::ssize(cores.conflicts), "pair"));
  }
  if (!cores.order.empty()) text += ", in an order of their own";
  return text;
}

namespace {

// That a rank sends in a step.
Bytes message_bytes(const Graph& graph, const Plan& plan) {
  Bytes sent;
  for (const Step& step : plan.steps) {
    if (graph.op(step.op).type->is_collective) sent += collective_traffic(plan.link, graph, std::span(&step.op, 1));
  }
  return sent;
}

Bytes state_bytes(const Graph& graph) {
  Bytes sum;
  for (const State& state : graph.states) sum += graph.tensor(state.before).bytes();
  return sum;
}

// What is divided among the ranks, and what is not.
std::string sharding_text(const Program& program) {
  const Graph& graph = program.network.graph;
  Bytes divided, whole;
  for (const State& state : graph.states) {
    const Tensor& t = graph.tensor(state.before);
    if (t.shard.is_shard()) {
      divided += t.bytes();
    } else {
      whole += t.bytes();
    }
  }
  constexpr std::string_view kStages[] = {"nothing", "optimizer states", "optimizer states and sums of gradients",
                                          "parameters and their optimizer states"};
  const int64_t ranks = program.plan->link.ranks;
  return fmt::format("{} among {} ranks (ZeRO stage {}): pieces of {} here, of {}; {} whole",
                     kStages[program.sharding.stage], ranks, program.sharding.stage, to_string(divided),
                     to_string(divided * ranks), to_string(whole));
}

std::string messages_text(const Graph& graph, const Plan& plan) {
  const double all = plan.predicted.communication_ms, waits = plan.predicted.communication_stall_ms;
  const size_t buckets = plan.collectives.size();
  return fmt::format("{} ranks; each sends {} a step{}, {}{}; the link has {:.0f} us and {:.2f} GB/s", plan.link.ranks,
                     to_string(message_bytes(graph, plan)),
                     buckets > 0 ? fmt::format(" in {} bucket{}", buckets, buckets == 1 ? "" : "s") : "",
                     time_text(all),
                     all > 0 ? fmt::format(", {:.0f} % of it beside compute", 100 * (1 - waits / all)) : "",
                     plan.link.latency_us, plan.link.gb_per_s);
}

// How batches come to the device.
std::string feeding_text(const Graph& graph, const Plan& plan) {
  Bytes bytes;
  for (const FedInput& input : plan.feeding.inputs) bytes += graph.tensor(input.tensor).bytes();
  const Prediction& p = plan.predicted;
  const std::string batch = fmt::format("{} over the link, {}", to_string(bytes), time_text(p.feed_ms));
  return plan.feeding.second_buffer
             ? fmt::format("two buffers: a batch ({}) comes while the step before it runs; {} with its data", batch,
                           time_text(p.wall_time_ms))
             : fmt::format("one buffer: a batch ({}) comes before its step; {} with its data", batch,
                           time_text(p.wall_time_ms));
}

}  // namespace

int64_t tokens_of_sample(const Network& network) {
  if (!network.data.valid()) return 0;
  const Tensor& data = network.graph.tensor(network.data);
  return data.dtype == DType::i32 && data.shape.size() == 2 ? data.shape[1] : 0;
}

std::string plan_text(const Program& program, int64_t batch) {
  const Plan& plan = program.plan;
  const Graph& graph = program.network.graph;
  std::string text;
  auto line = [&](std::string_view name, std::string value) { text += fmt::format("  {:<10} {}\n", name, value); };
  line("budget", plan.budget.count == INT64_MAX ? "none" : to_string(plan.budget));
  line("arena", fmt::format("{} by policy {} ({} placement), {}", to_string(plan.arena),
                            program.policy.starts_with(plan.policy)
                                ? program.policy
                                : fmt::format("{}, which took {}", program.policy, plan.policy),
                            plan.placement, is_safe(program) ? "verified" : "not safe"));
  line("peak",
       fmt::format("{} at {}{}", to_string(plan.predicted.peak), step_label(graph, plan, plan.predicted.peak_step),
                   plan.cores.inter_op > 1 ? ", one op after another; those at once may reach the whole arena" : ""));
  std::vector<std::string> shares;
  const int64_t few = std::min<int64_t>(1024, plan.predicted.peak.count / 100);  // bytes that are not worth a word
  for (const MemoryShare& share : memory_by_role(graph, plan, plan.predicted.peak_step)) {
    if (share.bytes.count >= std::max<int64_t>(few, 1))
      shares.push_back(fmt::format("{} {}", plural(share.what), to_string(share.bytes)));
  }
  if (!shares.empty()) line("of which", fmt::format("{}", fmt::join(shares, ", ")));
  line("baseline",
       fmt::format("would need {} (every tensor its own memory): {:.1f}x", to_string(program.baseline_peak),
                   static_cast<double>(program.baseline_peak.count) / static_cast<double>(plan.arena.count)));
  if (const std::string cores = cores_text(plan); !cores.empty()) line("cores", cores);
  const double ms = plan.predicted.step_time_ms;
  const int64_t batches = program.network.accumulate;
  std::string time = time_text(ms) + (batches > 1 ? " a batch" : " a step");
  if (batch > 0 && ms > 0)
    time += ", " + rate_text(1000.0 * static_cast<double>(batch) / ms, tokens_of_sample(program.network));
  const double estimated = plan.predicted.estimated_share;
  time += holds_only_costs(graph)
              ? fmt::format(" (as the file's costs say: {:.3f} % more than all ops once)", extra_time_percent(plan))
          : is_simulated(plan.device_name) ? " (simulated: by formulas, for a machine that is not there)"
          : estimated < 0.005
              ? " (from measured kernels)"
              : fmt::format(" ({:.0f} % of it estimated; `plimsoll profile` measures)", 100 * estimated);
  line("predicted", time);
  if (batches > 1)
    line("", fmt::format("a step of {} batches, which update once: {}", batches, time_text(batches * ms)));
  if (!plan.feeding.inputs.empty()) line("batches", feeding_text(graph, plan));
  if (program.bound_ms > 0 && ms > plan.predicted.lower_bound_ms * (1 + 1e-9)) {
    line("bound", fmt::format("no plan in this order of ops takes less than {}, {:.3f} % more than all ops once: {}",
                              time_text(program.bound_ms), bound_percent(program),
                              plan.link.ranks > 1
                                  ? "waiting for other ranks is not counted"
                                  : fmt::format("{:.3f} points are open",
                                                std::max(0.0, extra_time_percent(plan) - bound_percent(program)))));
  }
  if (program.sharding.stage > 0) line("divided", sharding_text(program));
  if (plan.link.ranks > 1) line("messages", messages_text(program.network.graph, plan));
  return text;
}

std::string reason_text(const PlanReason& reason) {
  std::string text = fmt::format("  {:<10} {}\n", "why", reason.why);
  if (!reason.more.empty()) text += fmt::format("  {:<10} {}\n", "", reason.more);
  return text;
}

namespace {

// "fc6.weight[0:512].next" without what says which slice it is. A name without slices stays as it is.
std::string without_slice(const std::string& name) {
  std::string result;
  for (size_t i = 0; i < name.size();) {
    size_t end = i;
    if (name[i] == '[') {
      end = name.find_first_not_of("0123456789:", i + 1);
      const bool slice = end != std::string::npos && name[end] == ']' && name.find(':', i) < end;
      end = slice ? end + 1 : i;
    }
    if (end == i) result += name[end++];
    i = end;
  }
  return result;
}

std::string workspace_name(const Graph& graph, const Plan& plan, const Stay& stay) {
  const Step& step = plan.steps.at(stay.first);
  return fmt::format("of {}, kernel {}", graph.op(step.op).name, step.kernel);
}

}  // namespace

std::vector<LiveRow> live_rows(const Graph& graph, const Plan& plan, StepIndex step) {
  std::map<TensorId, TensorId> updated;  // the new value of a state is the state
  for (const State& state : graph.states) updated[state.after] = state.before;
  std::vector<LiveRow> rows;
  std::map<std::pair<std::string, Role>, size_t> row_of;  // by the name without a slice
  for (const Stay* stay : live_at(plan, step)) {
    if (stay->is_workspace()) {
      rows.push_back({workspace_name(graph, plan, *stay), "", stay->bytes, {stay}});
      continue;
    }
    const auto before = updated.find(stay->tensor);
    const Tensor& tensor = graph.tensor(before == updated.end() ? stay->tensor : before->second);
    const auto [place, fresh] = row_of.try_emplace({without_slice(tensor.name), tensor.role}, rows.size());
    if (fresh) {
      rows.push_back({tensor.name, to_string(tensor.shape), stay->bytes, {stay}});
      continue;
    }
    LiveRow& row = rows[place->second];
    const bool in_place = std::any_of(row.stays.begin(), row.stays.end(),
                                      [&](const Stay* other) { return other->offset == stay->offset; });
    if (in_place) continue;  // the old value and the new one, in the same bytes
    row.name = place->first.first;
    row.bytes += stay->bytes;
    row.stays.push_back(stay);
  }
  for (LiveRow& row : rows) {
    std::stable_sort(row.stays.begin(), row.stays.end(),
                     [](const Stay* a, const Stay* b) { return a->offset < b->offset; });
  }
  std::stable_sort(rows.begin(), rows.end(), [](const LiveRow& a, const LiveRow& b) { return a.bytes > b.bytes; });
  return rows;
}

std::string peak_tensors_text(const Graph& graph, const Plan& plan, size_t most) {
  std::string text;
  const std::vector<LiveRow> rows = live_rows(graph, plan, plan.predicted.peak_step);
  for (size_t i = 0; i < rows.size() && i < most; ++i) {
    const LiveRow& row = rows[i];
    const std::string slices = row.stays.size() > 1 ? fmt::format(" in {} slices of", row.stays.size()) : "";
    text += fmt::format("  {:>10}  {:<15} {}{} {}\n", to_string(row.bytes), what_for(graph, *row.stays[0]), row.name,
                        slices, row.shape);
  }
  if (rows.size() > most) text += fmt::format("  and {} more\n", rows.size() - most);
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
    if (span.engine == 0) ms[span.index] = span.end_ms - span.start_ms;
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

namespace {
// In percent of what all ops take that run once each, without those.
double percent_more(const Plan& plan, double ms) {
  double once = 0;
  for (const Step& step : plan.steps) once += step.recompute ? 0 : step.time_ms;
  return once > 0 ? 100 * (ms / once - 1) : 0;
}
}  // namespace

double extra_time_percent(const Plan& plan) { return percent_more(plan, plan.predicted.step_time_ms); }
// No plan takes less than all ops once, whatever the last bits of two sums say.
double bound_percent(const Program& program) { return std::max(0.0, percent_more(program.plan, program.bound_ms)); }

json plan_json(const Program& program, std::optional<Bytes> minimum, const std::optional<PlanReason>& told) {
  const Plan& plan = program.plan;
  const PlanReason reason = told.value_or(reason_of(program));
  const Graph& graph = program.network.graph;
  const Op& peak_op = graph.op(plan.steps.at(plan.predicted.peak_step).op);
  json alive = json::array();
  for (const Stay* stay : live_at(plan, plan.predicted.peak_step)) {
    if (alive.size() == 50) break;
    alive.push_back({{"tensor", stay->is_workspace() ? "(workspace)" : graph.tensor(stay->tensor).name},
                     {"role", what_for(graph, *stay)},
                     {"bytes", stay->bytes.count}});
    if (!stay->is_workspace()) continue;
    alive.back()["op"] = graph.op(plan.steps.at(stay->first).op).name;
    alive.back()["kernel"] = plan.steps.at(stay->first).kernel;
  }
  json shares = json::object();
  for (const MemoryShare& share : memory_by_role(graph, plan, plan.predicted.peak_step))
    shares[share.what] = share.bytes.count;
  json tiers = json::array();
  for (const TierUse& use : plan.tiers) {
    tiers.push_back(
        {{"name", use.tier.name}, {"used_bytes", use.used.count}, {"capacity_bytes", use.tier.capacity.count}});
  }
  const WorkspaceUse use = workspace_use(graph, plan);
  const bool is_fed = !plan.feeding.inputs.empty();
  return {{"feasible", true},
          {"convolution_ms", use.convolution_ms},
          {"weighty_ops", use.ops},
          {"divided_steps", use.divided},
          {"largest_workspace_bytes", use.largest.count},
          {"workspaces_bytes", use.sum.count},
          {"model", graph.name},
          {"device", plan.device_name},
          {"simulated", is_simulated(plan.device_name)},
          {"policy", program.policy},
          {"planned_by", plan.policy},
          {"accumulate", program.network.accumulate},
          {"inter_op", plan.cores.inter_op},
          {"cores", cores_text(plan)},
          {"placement", plan.placement},
          {"layout", std::string(to_string(program.family))},
          {"budget_bytes", plan.budget.count == INT64_MAX ? json(nullptr) : json(plan.budget.count)},
          {"peak_bytes", plan.predicted.peak.count},
          {"arena_bytes", plan.arena.count},
          {"lower_bound_bytes", program.lower_bound.count},
          {"minimum_bytes", minimum ? json(minimum->count) : json(nullptr)},
          {"baseline_bytes", program.baseline_peak.count},
          {"step_time_ms", plan.predicted.step_time_ms},
          {"input_buffers", plan.feeding.second_buffer ? 2 : 1},
          {"second_buffer_bytes", second_buffer_bytes(plan).count},
          {"feed_ms", is_fed ? json(plan.predicted.feed_ms) : json(nullptr)},
          {"wall_time_ms", is_fed ? json(plan.predicted.wall_time_ms) : json(nullptr)},
          {"extra_time_percent", extra_time_percent(plan)},
          {"bound_ms", program.bound_ms > 0 ? json(program.bound_ms) : json(nullptr)},
          {"bound_percent", program.bound_ms > 0 ? json(bound_percent(program)) : json(nullptr)},
          {"gap_percent", program.bound_ms > 0 ? json(std::max(0.0, extra_time_percent(plan) - bound_percent(program)))
                                               : json(nullptr)},
          {"estimated_share", plan.predicted.estimated_share},
          {"offload_bytes", plan.predicted.offload.count},
          {"prefetch_bytes", plan.predicted.prefetch.count},
          {"recompute_steps", plan.predicted.recompute_steps},
          {"recompute_ms", plan.predicted.recompute_ms},
          {"copy_ms", plan.predicted.copy_ms},
          {"stall_ms", plan.predicted.stall_ms},
          {"ranks", plan.link.ranks},
          {"message_bytes", message_bytes(graph, plan).count},
          {"zero_stage", program.sharding.stage},
          {"state_bytes", state_bytes(graph).count},
          {"communication_ms", plan.predicted.communication_ms},
          {"communication_stall_ms", plan.predicted.communication_stall_ms},
          {"lower_bound_ms", plan.predicted.lower_bound_ms},
          {"tiers", tiers},
          {"steps", plan.steps.size()},
          {"peak_step", plan.predicted.peak_step},
          {"peak_op", peak_op.name},
          {"peak_layer", peak_op.layer},
          {"peak_tensors", alive},
          {"peak_by_role", shares},
          {"why", reason.why},
          {"more_memory", reason.more.empty() ? json(nullptr) : json(reason.more)},
          {"keeping_everything_bytes", reason.keeping_bytes ? json(reason.keeping_bytes->count) : json(nullptr)},
          {"keeping_everything_ms", reason.keeping_ms ? json(*reason.keeping_ms) : json(nullptr)},
          {"more_memory_bytes", reason.more_bytes ? json(reason.more_bytes->count) : json(nullptr)},
          {"more_memory_ms", reason.more_ms ? json(*reason.more_ms) : json(nullptr)},
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
          {"flag", !infeasible.flag.empty()  ? infeasible.flag
                   : infeasible.tier.empty() ? "--memory"
                                             : std::string(tier_flag(infeasible.tier))},
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

}  // namespace plimsoll
