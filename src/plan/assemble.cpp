#include "plan/assemble.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/by_id.h"
#include "base/clock.h"
#include "base/names.h"
#include "plan/placement/mobility.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

std::vector<Step> make_steps(const PolicyInput& input) {
  std::vector<Step> steps;
  steps.reserve(input.route.order.size());
  for (OpId id : input.route.order) {
    const KernelChoice choice = at(id) < input.kernels.size() ? input.kernels[at(id)] : KernelChoice{};
    steps.push_back(
        {.op = id, .kernel = choice.kernel, .threads = 0, .recompute = false, .workspace = choice.workspace});
  }
  return steps;
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
    range.last = reads(input.graph.op(input.route.order[at(lost)]), tensor) ? lost : lost - 1;
  }
  return range;
}

}  // namespace

std::vector<Mobility> mobility_for(const PlacementMethod& method, const Graph& graph, std::span<const Step> steps) {
  if (method.by_mobility) return group_by_mobility(graph, steps);
  return std::vector<Mobility>(static_cast<size_t>(graph.tensor_count()), Mobility::movable);
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
    const Op& op = input.graph.op(plan.steps[at(result.step)].op);
    result.op = op.name;
    result.layer = op.layer;
  }
  std::vector<Bytes> counted;  // places, so that what shares bytes is named once
  for (const Stay* stay : live_at(plan, result.step)) {
    if (stay->is_workspace()) {
      const Op& op = input.graph.op(plan.steps[at(stay->first)].op);
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

PlanOrInfeasible assemble(const PolicyInput& input, std::string_view policy, const Liveness& liveness,
                          const AssembleOptions& options) {
  const Stopwatch watch;
  const PlacementMethod method = find_placement(input.placement);

  Plan plan;
  plan.graph_name = input.graph.name;
  plan.graph_fingerprint = fingerprint(input.graph);
  plan.device_name = input.device.name;
  plan.device_key = input.device.key;
  plan.policy = policy;
  plan.placement = method.name;
  plan.budget = input.budget;
  plan.steps = make_steps(input);
  const StepIndex end = std::max<StepIndex>(liveness.steps - 1, 0);

  const std::vector<Mobility> mobility = mobility_for(method, input.graph, plan.steps);
  std::vector<Bytes> offset_of(liveness.buffers.size());
  Bytes states_end;
  std::vector<Buffer> problem;
  std::vector<size_t> asked;  // the buffer of each item of the problem; workspaces follow
  for (size_t b = 0; b < liveness.buffers.size(); ++b) {
    const SharedBuffer& buffer = liveness.buffers[b];
    if (buffer.is_state) {
      offset_of[b] = states_end;
      states_end += buffer.bytes;
      continue;
    }
    const LiveRange range = options.keep_everything ? LiveRange{0, end} : buffer.range;
    problem.push_back({range.first, range.last + 1, buffer.bytes, mobility[at(buffer.tensors.front())]});
    asked.push_back(b);
  }
  std::vector<StepIndex> workspace_steps;
  for (StepIndex s = 0; s < liveness.steps; ++s) {
    const Bytes bytes = align_up(plan.steps[at(s)].workspace, kStayAlignment);
    if (bytes.count <= 0) continue;
    workspace_steps.push_back(s);
    problem.push_back({options.keep_everything ? 0 : s, options.keep_everything ? end + 1 : s + 1, bytes});
  }
  PlacementOptions placing{.alignment = kStayAlignment, .capacity = {}, .effort = 0};
  Placement placement = method.place(problem, placing);
  if (!placement.proven_optimal && (input.explain || states_end + placement.lower_bound <= input.budget)) {
    placing.effort = input.effort;
    placement = method.place(problem, placing);
  }

  for (size_t i = 0; i < asked.size(); ++i) offset_of[asked[i]] = states_end + placement.offsets[i];
  for (size_t b = 0; b < liveness.buffers.size(); ++b) {
    const SharedBuffer& buffer = liveness.buffers[b];
    for (TensorId t : buffer.tensors) {
      const LiveRange range = options.keep_everything ? widen(input, liveness, buffer, t) : liveness.tensors[t];
      plan.stays.push_back({.tensor = t,
                            .offset = offset_of[b],
                            .bytes = align_up(input.graph.tensor(t).bytes(), kStayAlignment),
                            .first = range.first,
                            .last = range.last});
    }
  }
  for (size_t i = 0; i < workspace_steps.size(); ++i) {
    const StepIndex s = workspace_steps[i];
    plan.stays.push_back({.tensor = {},
                          .offset = states_end + placement.offsets[asked.size() + i],
                          .bytes = problem[asked.size() + i].bytes,
                          .first = s,
                          .last = options.keep_everything ? end : s});
  }
  std::sort(plan.stays.begin(), plan.stays.end(), [](const Stay& a, const Stay& b) {
    return std::tie(a.first, a.offset, a.tensor, a.last) < std::tie(b.first, b.offset, b.tensor, b.last);
  });
  plan.arena = states_end + placement.height;
  plan.lower_bound = least_bytes(input.graph, false);
  const Peak peak = live_peak(plan);
  plan.predicted.peak = peak.bytes;
  plan.predicted.peak_step = peak.step;
  plan.plan_time_ms = watch.ms();
  if (plan.arena > input.budget) return explain_infeasible(input, plan, placement.proven_optimal);
  return plan;
}

}  // namespace plimsoll
