// What a plan claims is held against the plan: every field of a prediction, edited alone, is seen by name.
#include <gtest/gtest.h>

#include "plan/simulate.h"
#include "tests/support/random_plan.h"
#include "tests/support/verify_case.h"

namespace plimsoll {
namespace {

using testing::Case;
using testing::Rule;
using testing::rules_of;
using testing::text_of;

// With copies, a recomputation, a slow tier and a step that is an estimate.
Case predicted_case() {
  Case c = testing::make_case_with_moves();
  double ms = 0.25;
  for (Step& step : c.plan.steps) {
    if (!c.graph.op(step.op).type->is_view) step.time_ms = ms += 0.25;
  }
  c.plan.steps[1].estimated = true;
  c.plan.tiers[0].tier.out_gb_per_s = 0.0002;
  c.plan.tiers[0].tier.in_gb_per_s = 0.0004;
  c.plan.tiers[0].tier.compute_share = 0.25;
  c.plan.predicted = simulate(c.graph, c.plan);
  return c;
}

Case at_once_case() {
  Case c = predicted_case();
  for (Step& step : c.plan.steps) step.threads = step.kernel.empty() ? 0 : 1;
  c.plan.cores = {.inter_op = 2, .cores = 2};
  c.plan.predicted = simulate(c.graph, c.plan);
  return c;
}

struct Edit {
  const char* name;
  Rule rule;
  std::function<void(Plan&)> apply;
};

void expect_seen(const Case& whole, const std::vector<Edit>& edits) {
  ASSERT_EQ(text_of(whole), "");
  for (const Edit& edit : edits) {
    Case c = whole;
    edit.apply(c.plan);
    EXPECT_EQ(rules_of(c), std::set<Rule>{edit.rule}) << edit.name << "\n" << text_of(c);
    EXPECT_TRUE(verify_safety(c.graph, c.plan).empty()) << edit.name;
  }
}

TEST(Claims, EveryFieldOfAPredictionIsJudged) {
  const Rule wrong = Rule::wrong_prediction;
  const std::vector<Edit> edits{
      {"peak", wrong, [](Plan& p) { p.predicted.peak += 1_B; }},
      {"peak_step", wrong, [](Plan& p) { ++p.predicted.peak_step; }},
      {"step_time_ms", wrong, [](Plan& p) { p.predicted.step_time_ms *= 1.0001; }},
      {"estimated_share", wrong, [](Plan& p) { p.predicted.estimated_share = 0; }},
      {"lower_bound_ms", wrong, [](Plan& p) { p.predicted.lower_bound_ms *= 0.999; }},
      {"offload", wrong, [](Plan& p) { p.predicted.offload += 1_B; }},
      {"prefetch", wrong, [](Plan& p) { p.predicted.prefetch = 0_B; }},
      {"copy_ms", wrong, [](Plan& p) { p.predicted.copy_ms += 0.001; }},
      {"stall_ms", wrong, [](Plan& p) { p.predicted.stall_ms += 0.001; }},
      {"recompute_steps", wrong, [](Plan& p) { ++p.predicted.recompute_steps; }},
      {"recompute_ms", wrong, [](Plan& p) { p.predicted.recompute_ms += 0.001; }},
      {"a bar's start", wrong, [](Plan& p) { p.predicted.timeline[2].start_ms -= 0.001; }},
      {"a bar's end", wrong, [](Plan& p) { p.predicted.timeline[2].end_ms += 0.001; }},
      {"a bar's item", wrong, [](Plan& p) { p.predicted.timeline[2].index = p.predicted.timeline[1].index; }},
      {"a copy's engine", wrong,
       [](Plan& p) {
         std::find_if(p.predicted.timeline.begin(), p.predicted.timeline.end(), [](const EngineSpan& s) {
           return s.engine > 0;
         })->engine ^= 3;
       }},
      {"a bar is missing", wrong, [](Plan& p) { p.predicted.timeline.pop_back(); }},
      {"all bars are missing", wrong, [](Plan& p) { p.predicted.timeline.clear(); }},
      {"a step's time", wrong, [](Plan& p) { p.steps[0].time_ms *= 1.01; }},
      {"a step's estimate", wrong, [](Plan& p) { p.steps[0].estimated = true; }},
      {"a rate", wrong, [](Plan& p) { p.tiers[0].tier.out_gb_per_s *= 2; }},
      {"a latency", wrong, [](Plan& p) { p.tiers[0].tier.latency_us += 1; }},
      {"a share of compute", wrong, [](Plan& p) { p.tiers[0].tier.compute_share = 0; }},
      {"the bound", Rule::wrong_bound, [](Plan& p) { p.lower_bound += 64_B; }},
      {"a negative time", Rule::bad_time, [](Plan& p) { p.steps[0].time_ms = -1; }},
      {"a time that is no number", Rule::bad_time, [](Plan& p) { p.steps[0].time_ms = std::nan(""); }},
      {"planning took", Rule::bad_time, [](Plan& p) { p.plan_time_ms = -1; }},
  };
  expect_seen(predicted_case(), edits);
}

TEST(Claims, HowCoresAreSharedIsJudged) {
  const std::vector<Edit> edits{
      {"threads above the cores", Rule::bad_threads, [](Plan& p) { p.steps[0].threads = 3; }},
      {"second hardware threads of cores that have one", Rule::bad_cores,
       [](Plan& p) { p.steps[0].affinity = Affinity::smt; }},
      {"a speed of second hardware threads that there are not", Rule::bad_cores,
       [](Plan& p) { p.cores.smt_speed = 1.25; }},
      {"memory that is no number", Rule::bad_cores, [](Plan& p) { p.cores.memory_gb_per_s = std::nan(""); }},
      {"a step begins before what it reads is made", Rule::wrong_prediction,
       [](Plan& p) {
         for (EngineSpan& span : p.predicted.timeline) {
           if (span.engine == 0 && span.index == std::ssize(p.steps) - 1) span.start_ms = 0;
         }
       }},
      {"stall_ms", Rule::wrong_prediction, [](Plan& p) { p.predicted.stall_ms = -1; }},
      {"lower_bound_ms", Rule::wrong_prediction, [](Plan& p) { p.predicted.lower_bound_ms *= 1.01; }},
  };
  expect_seen(at_once_case(), edits);
}

TEST(Claims, NumbersOfCoresThatCannotBeUsedAreNotSafe) {
  const std::pair<const char*, std::function<void(Plan&)>> edits[] = {
      {"cores", [](Plan& p) { p.cores.cores = -1; }},
      {"cores_a_cache", [](Plan& p) { p.cores.cores_a_cache = -1; }},
      {"hardware_threads", [](Plan& p) { p.cores.hardware_threads = 0; }},
      {"an op that there is not",
       [](Plan& p) {
         p.cores.conflicts = {{OpId{0}, OpId{1000}}};
       }},
      {"a pair twice",
       [](Plan& p) {
         p.cores.conflicts = {{OpId{0}, OpId{1}}, {OpId{0}, OpId{1}}};
       }},
      {"a pair the wrong way round",
       [](Plan& p) {
         p.cores.conflicts = {{OpId{1}, OpId{0}}};
       }},
      {"an op and itself",
       [](Plan& p) {
         p.cores.conflicts = {{OpId{1}, OpId{1}}};
       }},
      {"an order that leaves steps out",
       [](Plan& p) {
         p.cores.order = {0, 1};
       }},
      {"an order with a step twice", [](Plan& p) {
         for (StepIndex s = 0; s < static_cast<StepIndex>(p.steps.size()); ++s) p.cores.order.push_back(s);
         p.cores.order[0] = 1;
       }}};
  for (const auto& [name, apply] : edits) {
    Case c = at_once_case();
    apply(c.plan);
    EXPECT_EQ(rules_of(c), std::set<Rule>{Rule::bad_cores}) << name << "\n" << text_of(c);
    const std::vector<Violation> violations = verify_safety(c.graph, c.plan);
    ASSERT_EQ(violations.size(), 1u) << name;
    EXPECT_EQ(violations[0].rule, Rule::bad_cores) << name;
  }
}

TEST(Claims, WhatIsSimulatedIsTrueOfRandomPlans) {
  size_t moves = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const Graph graph = testing::random_graph(seed, {.forward_ops = 12});
    Plan plan = testing::random_plan(graph, seed);
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      if (!graph.op(plan.steps[s].op).type->is_view)
        plan.steps[s].time_ms = 0.001 * static_cast<double>(1 + s * seed % 17);
    }
    for (TierUse& use : plan.tiers) {
      use.tier.out_gb_per_s = 0.0001 * static_cast<double>(seed % 7);
      use.tier.compute_share = static_cast<double>(seed % 5) / 4;
    }
    plan.predicted = simulate(graph, plan);
    const auto violations = verify(graph, plan, 3);
    ASSERT_TRUE(violations.empty()) << "seed " << seed << ": " << violations[0].message;
    moves += plan.moves.size();
  }
  EXPECT_GT(moves, 2000u);
}

}  // namespace
}  // namespace plimsoll
