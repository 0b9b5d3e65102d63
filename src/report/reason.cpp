#include "report/reason.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "base/texts.h"

namespace plimsoll {
namespace {

constexpr double kNoDifference = 0.0005;  // of a step time: what would print as 0.0 %
constexpr double kLittle = 0.005;         // what would print as two equal times

std::string number_of(size_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

// "a", "a and b", "a, b and c"
std::string listed(const std::vector<std::string>& parts) {
  if (parts.size() < 2) return parts.empty() ? "" : parts[0];
  return fmt::format("{} and {}", fmt::join(parts.begin(), parts.end() - 1, ", "), parts.back());
}

std::string tier_text(const TierInfo& tier) {
  return tier.name == "host"     ? "host memory"
         : tier.name == "disk"   ? "a file on disk"
         : tier.name == "remote" ? "other processes' memory"
                                 : "the memory of a peer GPU";
}

// Tensors that leave the arena, the blocks of a split one counted once, and the tiers that they go to.
struct Leaving {
  std::set<std::string> states, others;
  std::set<int> state_tiers, other_tiers;
};
Leaving leaving(const Graph& graph, const Plan& plan) {
  std::set<TensorId> states;
  for (const State& state : graph.states) states.insert({state.before, state.after});
  const auto name_of = [&](TensorId id) {
    const Tensor& tensor = graph.tensor(id);
    return whole_name(tensor);
  };
  Leaving result;
  for (const Home& home : plan.homes) {
    const bool state = states.contains(home.tensor);
    (state ? result.states : result.others).insert(name_of(home.tensor));
    (state ? result.state_tiers : result.other_tiers).insert(home.tier);
  }
  for (const Move& move : plan.moves) {
    if (move.direction != Move::Direction::out || states.contains(move.tensor)) continue;
    result.others.insert(name_of(move.tensor));
    result.other_tiers.insert(move.tier);
  }
  return result;
}

std::string tiers_text(const Plan& plan, const std::set<int>& tiers) {
  std::vector<std::string> names;
  for (int tier : tiers) names.push_back(tier_text(plan.tiers.at(static_cast<size_t>(tier)).tier));
  return listed(names);
}

// Ops that run by a slower kernel than in the other plan, for less workspace. Of them, those in parts of the batch.
struct SmallerKernels {
  size_t ops = 0, in_parts = 0;
};
SmallerKernels smaller_kernels(const Program& program, const Program& keeping) {
  std::map<std::string_view, const Step*> fast;
  for (const Step& step : keeping.plan->steps) fast.emplace(keeping.network.graph.op(step.op).name, &step);
  SmallerKernels result;
  for (const Step& step : program.plan->steps) {
    const auto other = fast.find(program.network.graph.op(step.op).name);
    if (step.recompute || other == fast.end() || step.workspace >= other->second->workspace) continue;
    ++result.ops;
    result.in_parts += parts_of(step.kernel).empty() ? 0 : 1;
  }
  return result;
}

// Names of the ops that another program has too, as they run for the first time.
std::vector<std::string_view> names_in_order(const Program& program, const Program& other) {
  const Graph& graph = program.network.graph;
  std::set<std::string_view> theirs;
  for (const Op& op : other.network.graph.ops()) theirs.insert(op.name);
  std::vector<std::string_view> names;
  for (const Step& step : program.plan->steps) {
    const std::string& name = graph.op(step.op).name;
    if (!step.recompute && theirs.contains(name)) names.push_back(name);
  }
  return names;
}

// What the plan does that keeping everything does without: "recomputes 14 ops", "offloads 3 tensors to host memory".
std::vector<std::string> measures(const Program& program, const Program* keeping) {
  const Graph& graph = program.network.graph;
  const Plan& plan = program.plan;
  std::vector<std::string> result;
  std::set<OpId> recomputed;
  for (const Step& step : plan.steps) {
    if (step.recompute && !step.kernel.empty()) recomputed.insert(step.op);
  }
  if (!recomputed.empty())
    result.push_back(fmt::format("recomputes the results of {}", number_of(recomputed.size(), "op")));
  const Leaving out = leaving(graph, plan);
  if (!out.others.empty())
    result.push_back(
        fmt::format("offloads {} to {}", number_of(out.others.size(), "tensor"), tiers_text(plan, out.other_tiers)));
  if (!out.states.empty())
    result.push_back(fmt::format("keeps {} (weights and the like) in {}", number_of(out.states.size(), "state"),
                                 tiers_text(plan, out.state_tiers)));
  if (keeping == nullptr) return result;
  if (const SmallerKernels kernels = smaller_kernels(program, *keeping); kernels.ops > 0) {
    const std::string parts = kernels.in_parts > 0 ? fmt::format(" ({} in parts of the batch)", kernels.in_parts) : "";
    result.push_back(fmt::format("runs {} by kernels with less workspace{}", number_of(kernels.ops, "op"), parts));
  }
  if (names_in_order(program, *keeping) != names_in_order(*keeping, program))
    result.push_back("runs its ops in another order");
  return result;
}

// ", which costs 4.1 % of step time (4.32 s instead of 4.15 s)"
std::string price_text(double ms, double keeping_ms) {
  if (keeping_ms <= 0) return "";
  const double more = ms / keeping_ms - 1;
  if (more < kNoDifference) return ", at no predicted cost in time";
  return fmt::format(", which costs {:.1f} % of step time ({} instead of {})", 100 * more, time_text(ms),
                     time_text(keeping_ms));
}

std::string why_without_others(const Program& program) {
  const Plan& plan = program.plan;
  const bool bounded = plan.budget.count != INT64_MAX;
  const std::vector<std::string> list = measures(program, nullptr);
  if (!list.empty()) return fmt::format("The plan {}.", listed(list));
  if (!bounded) return "No limit on memory was given, so nothing is recomputed or moved.";
  return fmt::format("The plan recomputes and moves nothing within the budget of {}.", to_string(plan.budget));
}

std::string why_beside(const Program& program, const Program& keeping) {
  const Plan& plan = program.plan;
  const Bytes needs = keeping.plan->arena;
  const bool bounded = plan.budget.count != INT64_MAX;
  const std::string price = price_text(plan.predicted.step_time_ms, keeping.plan->predicted.step_time_ms);
  const std::vector<std::string> list = measures(program, &keeping);
  const std::string text = fmt::format("Keeping every tensor needs {}", to_string(needs));
  if (needs > plan.budget) {
    const std::string instead =
        list.empty() ? fmt::format("needs {} by other kernels and layouts", to_string(plan.arena)) : listed(list);
    return fmt::format("{}, {} above the budget; the plan {}{}.", text, to_string(needs - plan.budget), instead, price);
  }
  if (list.empty()) {
    return fmt::format(
        "{}{}: nothing is recomputed or moved.", text,
        bounded ? fmt::format(" of the budget of {}", to_string(plan.budget)) : ", and no limit is given");
  }
  return fmt::format("{}, within the budget; policy {} all the same {}{}.", text, program.policy, listed(list), price);
}

std::string what_more_buys(const Plan& plan, const Plan& more) {
  const double ms = plan.predicted.step_time_ms, then = more.predicted.step_time_ms;
  const std::string head = fmt::format("With 10 % more ({})", to_string(more.budget));
  const double less = 1 - then / std::max(ms, 1e-9);
  if (less < kNoDifference) return head + " a step would not be faster.";
  if (less < kLittle) return fmt::format("{} a step would hardly be faster: {:.1f} %.", head, 100 * less);
  return fmt::format("{} a step would take {} instead of {}, {:.1f} % less.", head, time_text(then), time_text(ms),
                     100 * less);
}

}  // namespace

bool keeps_everything(const Plan& plan) {
  return plan.moves.empty() && plan.homes.empty() &&
         std::none_of(plan.steps.begin(), plan.steps.end(), [](const Step& step) { return step.recompute; });
}

Bytes a_tenth_more(Bytes budget) {
  const int64_t tenth = budget.count / 10;
  return {budget.count > INT64_MAX - tenth ? INT64_MAX : budget.count + tenth};
}

PlanReason reason_of(const Program& program, const OtherPlans& others) {
  PlanReason reason;
  reason.why = others.keeping == nullptr ? why_without_others(program) : why_beside(program, *others.keeping);
  if (others.keeping != nullptr) {
    reason.keeping_bytes = others.keeping->plan->arena;
    reason.keeping_ms = others.keeping->plan->predicted.step_time_ms;
  }
  if (others.more != nullptr) {
    reason.more = what_more_buys(program.plan, others.more->plan);
    reason.more_bytes = others.more->plan->budget;
    reason.more_ms = others.more->plan->predicted.step_time_ms;
  }
  return reason;
}

}  // namespace plimsoll
