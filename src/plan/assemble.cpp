#include "plan/assemble.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/clock.h"
#include "base/names.h"
#include "plan/placement/mobility.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

StepIndex last_step_of(const Plan& plan) {
  return std::max<StepIndex>(static_cast<StepIndex>(plan.steps.size()) - 1, 0);
}

bool reads(const Op& op, TensorId tensor) {
  return std::find(op.inputs.begin(), op.inputs.end(), tensor) != op.inputs.end();
}

// With keep_everything: a buffer's first tensor is there from the start, each stays until another takes its bytes.
LiveRange widen(const PolicyInput& input, const Liveness& liveness, const SharedBuffer& buffer, TensorId tensor) {
  LiveRange range = liveness.tensors[tensor];
  if (buffer.tensors[0] == tensor) range.first = 0;
  const StepIndex lost = liveness.overwritten_at[tensor];
  if (lost < 0) {
    range.last = std::max<StepIndex>(liveness.steps - 1, 0);
  } else {
    range.last = reads(input.graph.op(input.route.order[lost]), tensor) ? lost : lost - 1;
  }
  return range;
}

}  // namespace

ById<TensorId, Mobility> mobility_for(const PlacementMethod& method, const Graph& graph, std::span<const Step> steps) {
  if (method.by_mobility) return group_by_mobility(graph, steps);
  return ById<TensorId, Mobility>(graph.tensor_count(), Mobility::movable);
}

PlacementMethod find_placement(std::string_view name) {
  std::vector<std::string> known;
  for (const PlacementMethod& method : placement_methods()) {
    if (method.name == name) return method;
    known.emplace_back(method.name);
  }
  throw Error(ErrorCode::invalid_input, unknown_name("placement", name, known));
}

Infeasible explain_infeasible(const PolicyInput& input, const Plan& plan, bool proven) {
  Infeasible result;
  result.policy = plan.policy;
  result.budget = plan.budget;
  result.minimum = plan.arena;
  result.proven = proven;
  result.step = plan.predicted.peak_step;
  if (!plan.steps.empty()) {
    const Op& op = input.graph.op(plan.steps[result.step].op);
    result.op = op.name;
    result.layer = op.layer;
  }
  std::vector<Bytes> counted;  // places, so that what shares bytes is named once
  for (const Stay* stay : live_at(plan, result.step)) {
    if (stay->is_workspace()) {
      const Op& op = input.graph.op(plan.steps[stay->first].op);
      result.needs.push_back({op.name, Role::activation, stay->bytes, true});
      continue;
    }
    if (std::find(counted.begin(), counted.end(), stay->offset) != counted.end()) continue;
    counted.push_back(stay->offset);
    const Tensor& tensor = input.graph.tensor(stay->tensor);
    result.needs.push_back({tensor.name, tensor.role, stay->bytes, false});
  }
  result.suggestion = raise_memory_to(plan.arena) + ", or lower --batch";
  return result;
}

Plan begin_plan(const PolicyInput& input, std::string_view policy) {
  Plan plan;
  plan.graph_name = input.graph.name;
  plan.graph_fingerprint = fingerprint(input.graph);
  plan.device_name = input.device.name;
  plan.device_key = input.device.key;
  plan.device_threads = input.device.threads;
  plan.policy = policy;
  plan.budget = input.budget;
  return plan;
}

Step make_step(const PolicyInput& input, OpId op, bool recompute) {
  const KernelChoice choice = input.kernel_of(op);
  return {.op = op, .kernel = choice.kernel, .threads = 0, .recompute = recompute, .workspace = choice.workspace};
}

Placement place_regions(const PolicyInput& input, Bytes bottom, const Placer& place, bool whole_step,
                        std::vector<ArenaRegion>& regions, Plan& plan) {
  const PlacementMethod method = find_placement(input.placement);
  const ById<TensorId, Mobility> mobility = mobility_for(method, input.graph, plan.steps);
  const StepIndex end = last_step_of(plan);
  std::vector<Buffer> problem;
  std::vector<ArenaRegion*> asked;  // workspaces follow
  for (ArenaRegion& region : regions) {
    if (region.offset) continue;
    problem.push_back({region.steps.first, region.steps.last + 1, region.bytes, mobility[region.tensor]});
    asked.push_back(&region);
  }
  std::vector<Stay> workspaces;
  for (StepIndex s = 0; s < std::ssize(plan.steps); ++s) {
    const Bytes bytes = align_up(plan.steps[s].workspace, kStayAlignment);
    if (bytes.count <= 0) continue;
    problem.push_back({whole_step ? 0 : s, (whole_step ? end : s) + 1, bytes});
    workspaces.push_back({.tensor = {}, .offset = {}, .bytes = bytes, .first = s, .last = whole_step ? end : s});
  }
  const Placement placement = place(method, problem);
  for (size_t i = 0; i < asked.size(); ++i) asked[i]->offset = bottom + placement.offsets[i];
  for (size_t i = 0; i < workspaces.size(); ++i) {
    workspaces[i].offset = bottom + placement.offsets[asked.size() + i];
    plan.stays.push_back(workspaces[i]);
  }
  plan.placement = method.name;
  plan.arena = bottom + placement.height;
  return placement;
}

void sort_stays(std::vector<Stay>& stays) {
  std::sort(stays.begin(), stays.end(), [](const Stay& a, const Stay& b) {
    return std::tie(a.first, a.offset, a.tensor, a.last) < std::tie(b.first, b.offset, b.tensor, b.last);
  });
}

void finish_stays(const Graph& graph, Plan& plan) {
  sort_stays(plan.stays);
  plan.lower_bound = least_bytes(graph, !plan.tiers.empty());
  const Peak peak = live_peak(plan);
  plan.predicted.peak = peak.bytes;
  plan.predicted.peak_step = peak.step;
}

PlanOrInfeasible assemble(const PolicyInput& input, std::string_view policy, const Liveness& liveness,
                          const AssembleOptions& options) {
  const Stopwatch watch;
  Plan plan = begin_plan(input, policy);
  for (OpId op : input.route.order) plan.steps.push_back(make_step(input, op));
  const LiveRange whole{0, last_step_of(plan)};

  std::vector<ArenaRegion> regions;
  Bytes states_end;
  for (const SharedBuffer& buffer : liveness.buffers) {
    regions.push_back({.steps = options.keep_everything ? whole : buffer.range,
                       .bytes = buffer.bytes,
                       .tensor = buffer.tensors.front()});
    if (!buffer.is_state) continue;
    regions.back().offset = states_end;
    states_end += buffer.bytes;
  }
  const auto place = [&](const PlacementMethod& method, const std::vector<Buffer>& problem) {
    PlacementOptions placing{.alignment = kStayAlignment, .capacity = {}, .effort = 0};
    Placement placement = method.place(problem, placing);
    if (!placement.proven_optimal && (input.explain || states_end + placement.lower_bound <= input.budget)) {
      placing.effort = input.effort;
      placement = method.place(problem, placing);
    }
    return placement;
  };
  const Placement placement = place_regions(input, states_end, place, options.keep_everything, regions, plan);

  for (size_t b = 0; b < liveness.buffers.size(); ++b) {
    const SharedBuffer& buffer = liveness.buffers[b];
    for (TensorId t : buffer.tensors) {
      const LiveRange range = options.keep_everything ? widen(input, liveness, buffer, t) : liveness.tensors[t];
      plan.stays.push_back({.tensor = t,
                            .offset = *regions[b].offset,
                            .bytes = align_up(input.graph.tensor(t).bytes(), kStayAlignment),
                            .first = range.first,
                            .last = range.last});
    }
  }
  finish_stays(input.graph, plan);
  plan.plan_time_ms = watch.ms();
  if (plan.arena > input.budget) return explain_infeasible(input, plan, placement.proven_optimal);
  return plan;
}

}  // namespace plimsoll
