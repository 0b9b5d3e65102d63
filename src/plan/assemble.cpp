#include "plan/assemble.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "base/clock.h"
#include "base/names.h"
#include "plan/placement/mobility.h"
#include "plan/placement/problem.h"
#include "plan/simulate.h"
#include "plan/together.h"
#include "plan/value_timeline.h"
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

// Where what is not a state's begins in the arena.
Bytes end_of_states(const Graph& graph, const Plan& plan) {
  Bytes bottom;
  for (const State& state : graph.states) {
    const bool elsewhere = std::any_of(plan.homes.begin(), plan.homes.end(),
                                       [&](const Home& home) { return home.tensor == state.before; });
    if (!elsewhere) bottom += align_up(graph.tensor(state.before).bytes(), kStayAlignment);
  }
  return bottom;
}

// The buffers above `bottom` with the stays that share them: those that meet in time and in bytes.
std::vector<ArenaRegion> regions_above(Bytes bottom, const std::vector<Stay>& stays, std::vector<int32_t>& region_of) {
  std::vector<int32_t> order, alive;
  std::vector<int32_t> parent(stays.size());
  std::iota(parent.begin(), parent.end(), 0);
  const auto root = [&](int32_t i) {
    while (parent[i] != i) i = parent[i] = parent[parent[i]];
    return i;
  };
  for (size_t i = 0; i < stays.size(); ++i) {
    if (stays[i].offset >= bottom) order.push_back(static_cast<int32_t>(i));
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return stays[a].first < stays[b].first; });
  for (int32_t i : order) {
    std::erase_if(alive, [&](int32_t other) { return stays[other].last < stays[i].first; });
    for (int32_t other : alive) {
      const bool apart = stays[i].offset + stays[i].bytes <= stays[other].offset ||
                         stays[other].offset + stays[other].bytes <= stays[i].offset;
      if (!apart) parent[root(i)] = root(other);
    }
    alive.push_back(i);
  }
  std::vector<ArenaRegion> regions;
  std::vector<int32_t> region_of_root(stays.size(), -1);
  region_of.assign(stays.size(), -1);
  for (int32_t i : order) {  // by their first steps
    const Stay& stay = stays[i];
    int32_t& index = region_of_root[root(i)];
    if (index < 0) {
      index = static_cast<int32_t>(regions.size());
      regions.push_back({.steps = {stay.first, stay.last}, .bytes = stay.bytes, .tensor = stay.tensor});
    }
    ArenaRegion& region = regions[index];
    region.steps.last = std::max(region.steps.last, stay.last);
    region.bytes = std::max(region.bytes, stay.bytes);
    region_of[i] = index;
  }
  return regions;
}

// Each above all others, with the height of the live bytes.
Placement stacked(const std::vector<Buffer>& problem) {
  Placement placement;
  Bytes end;
  for (const Buffer& buffer : problem) {
    placement.offsets.push_back(end);
    end += align_up(buffer.bytes, kStayAlignment);
  }
  placement.height = {make_problem(problem, kStayAlignment).lower_bound};
  return placement;
}

// By the method; with little effort where that is enough. Where no placement fits, and nobody asks why, none is made:
// the height is then that of the live bytes.
Placement place_for(const PolicyInput& input, Bytes bottom, const PlacementMethod& method,
                    const std::vector<Buffer>& problem) {
  const Bytes live{make_problem(problem, kStayAlignment).lower_bound};
  const bool fits = bottom + live <= input.budget;
  if (!fits && !input.explain) return {.offsets = std::vector<Bytes>(problem.size()), .height = live};
  const Bytes enough = enough_height(input, bottom, live);
  PlacementOptions placing{.alignment = kStayAlignment,
                           .capacity = enough,
                           .effort = 0,
                           .only_to_fit = enough.count > 0,
                           .one_of_many = input.only_to_fit && !input.least_memory};
  Placement placement = method.place(problem, placing);
  placing.effort = input.effort;
  if (placing.capacity.count > 0) {
    if (placement.height > placing.capacity) placement = method.place(problem, placing);
    if (input.only_to_fit) return placement;
    placing.capacity = {};
    placing.only_to_fit = false;
  }
  if (!placement.proven_optimal) {
    Placement better = method.place(problem, placing);
    if (better.height < placement.height) placement = std::move(better);
  }
  return placement;
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
  plan.link = input.device.link;
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
  const Placement placement = input.unplaced ? stacked(problem) : place(method, problem);
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

Bytes enough_height(const PolicyInput& input, Bytes bottom, Bytes live) {
  const bool any = input.budget.count == INT64_MAX || (input.least_memory && !input.first_that_fits);
  return any || bottom + live > input.budget ? Bytes{} : input.budget - bottom;
}

void predict(const PolicyInput& input, Plan& plan) {
  if (!input.timeline) {
    predict(input.graph, plan, input.costs);
    return;
  }
  const auto known_of = [&](const Step& step) -> const TimelineStep& {
    return input.timeline->steps[input.timeline->step_of[step.op]];
  };
  bool any_together = false;
  for (Step& step : plan.steps) {
    const TimelineStep& known = known_of(step);
    step.time_ms = known.ms;
    step.estimated = known.estimated;
    any_together = any_together || known.together_ms;
  }
  if (any_together) {
    const std::vector<bool> together = steps_together(input.graph, plan);
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      Step& step = plan.steps[s];
      if (const TimelineStep& known = known_of(step); together[s] && known.together_ms)
        step.time_ms = *known.together_ms, step.estimated = false;
    }
  }
  take_times_of_collectives(input.graph, plan);
  plan.predicted = simulate(input.graph, plan);
}

void place_again(const PolicyInput& input, Plan& plan) {
  if (plan.arena == live_peak(plan).bytes) return;  // nothing is lower
  if (input.placement != "offline") return;         // the others take buffers as they come, with no effort to choose
  const bool whole_step = std::any_of(plan.stays.begin(), plan.stays.end(),
                                      [](const Stay& stay) { return stay.is_workspace() && stay.first != stay.last; });
  if (whole_step) return;  // nothing shares bytes
  Plan again = plan;
  std::erase_if(again.stays, [](const Stay& stay) { return stay.is_workspace(); });
  const Bytes bottom = end_of_states(input.graph, plan);
  std::vector<int32_t> region_of;
  std::vector<ArenaRegion> regions = regions_above(bottom, again.stays, region_of);
  const bool as_it_comes = plan.moves.empty() && plan.predicted.recompute_steps == 0;
  PlacementOptions placing{.alignment = kStayAlignment,
                           .effort = as_it_comes ? input.effort : std::min(input.effort, kEffortOfMany)};
  const size_t stays = again.stays.size();
  const auto place = [&](const PlacementMethod& method, const std::vector<Buffer>& problem) {
    return method.place(problem, placing);
  };
  place_regions(input, bottom, place, false, regions, again);
  if (again.arena >= plan.arena) return;
  for (size_t i = 0; i < stays; ++i) {
    if (region_of[i] >= 0) again.stays[i].offset = *regions[region_of[i]].offset;
  }
  sort_stays(again.stays);
  plan = std::move(again);
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
    return place_for(input, states_end, method, problem);
  };
  const Placement placement = place_regions(input, states_end, place, options.keep_everything, regions, plan);
  if (plan.arena > input.budget && !input.explain)
    return Infeasible{.policy = plan.policy, .budget = input.budget, .minimum = plan.arena};

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
