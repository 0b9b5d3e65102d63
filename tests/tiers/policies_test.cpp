// Every policy on random training steps with random budgets and tiers: the verifier accepts the plan, the executor
// leaves the same bytes in every state as a run that plans nothing, in the memory that was predicted, whatever time
// copies take; and a plan that was broken is either named or does no harm.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <numeric>
#include <utility>

#include "cores/relax_reuse.h"
#include "device/tier/tier.h"
#include "plan/reorder.h"
#include "plan/simulate.h"
#include "plimsoll/execute.h"
#include "plimsoll/verify.h"
#include "tests/support/local_transport.h"
#include "tests/support/mixing_device.h"
#include "tests/support/mutations.h"
#include "tests/support/paper_run.h"
#include "tests/support/random_plan.h"
#include "tests/support/repetitions.h"
#include "tests/support/sanitizer.h"
#include "tests/support/temporary_folder.h"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;
using testing::MixingDevice;
using testing::Mutation;
using testing::number_of;
using testing::PaperRun;

// PLIMSOLL_RANDOM_GRAPHS=5000 is a long run, which begins where PLIMSOLL_RANDOM_SEED says.
constexpr int kMostFailures = 20;
int failed_parts() { return ::testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count(); }

using Content = std::vector<std::vector<std::byte>>;  // by state

// What comes from outside, for a step.
std::vector<std::byte> source(const Graph& graph, TensorId id, uint64_t step) {
  std::vector<std::byte> bytes(graph.tensor(id).bytes().count);
  testing::Digest::fill(bytes.data(), bytes.size(), static_cast<uint64_t>(id.index) * 1000 + step);
  return bytes;
}

constexpr uint64_t kSteps = 2;

// Every tensor in memory of its own, every op once, in the order of the graph.
Content run_on_paper(const Graph& graph) {
  std::vector<std::vector<std::byte>> values;
  for (int32_t t = 0; t < graph.tensor_count(); ++t) values.push_back(source(graph, {t}, 0));
  auto value = [&](TensorId id) -> std::vector<std::byte>& { return values[id.index]; };
  for (uint64_t step = 0; step < kSteps; ++step) {
    for (TensorId input : graph.inputs) value(input) = source(graph, input, step);
    for (const Op& op : graph.ops()) {
      if (op.type->is_view) {
        value(op.outputs[0]) = value(op.inputs[0]);
        continue;
      }
      std::vector<const void*> inputs;
      for (TensorId id : op.inputs) inputs.push_back(value(id).data());
      const std::vector<uint64_t> seeds = testing::mixed(graph, op, inputs);
      for (size_t o = 0; o < seeds.size(); ++o)
        testing::Digest::fill(value(op.outputs[o]).data(), value(op.outputs[o]).size(), seeds[o]);
    }
    for (const State& state : graph.states) value(state.before) = value(state.after);
  }
  Content content;
  for (const State& state : graph.states) content.push_back(value(state.before));
  for (TensorId output : graph.outputs) content.push_back(value(output));
  return content;
}

Content run_for_real(const Graph& graph, const Plan& plan, const MixingDevice& device, const ExecuteOptions& options,
                     Memory memory, Bytes* peak = nullptr) {
  Executor executor(graph, plan, device, options, std::move(memory));
  for (const State& state : graph.states) executor.write(state.before, source(graph, state.before, 0));
  for (uint64_t step = 0; step < kSteps; ++step) {
    for (TensorId input : graph.inputs) executor.write(input, source(graph, input, step));
    executor.run_step();
  }
  if (peak != nullptr) *peak = executor.measured_peak();
  if (plan.cores.inter_op == 1) {
    EXPECT_LE(executor.measured_peak(), plan.predicted.peak);
  }
  EXPECT_GT(executor.measured_peak(), 0_B);
  EXPECT_LE(executor.measured_peak(), plan.arena);
  EXPECT_EQ(executor.arena_bytes(), plan.arena);
  Content content;
  auto keep = [&](TensorId id) {
    content.emplace_back(graph.tensor(id).bytes().count);
    executor.read(id, content.back());
  };
  for (const State& state : graph.states) keep(state.before);
  for (TensorId output : graph.outputs) keep(output);
  return content;
}

std::string text_of(const std::vector<Violation>& violations) {
  std::string text;
  for (const Violation& v : violations) text += fmt::format("{}: {}\n", to_string(v.rule), v.message);
  return text;
}

// Bytes of the arena that some stay has, at the step with the most.
Bytes counted_peak(const Plan& plan) {
  Bytes most;
  std::vector<bool> taken(plan.arena.count / kStayAlignment);
  for (StepIndex s = 0; s < static_cast<StepIndex>(plan.steps.size()); ++s) {
    std::fill(taken.begin(), taken.end(), false);
    for (const Stay& stay : plan.stays) {
      if (stay.first > s || stay.last < s) continue;
      for (int64_t at = stay.offset.count; at < (stay.offset + stay.bytes).count; at += kStayAlignment)
        taken[at / kStayAlignment] = true;
    }
    most = std::max(most, Bytes{std::count(taken.begin(), taken.end(), true) * kStayAlignment});
  }
  return most;
}

// A training step, what its ops cost, and a machine.
class Problem {
 public:
  explicit Problem(uint64_t seed)
      : random_(seed),
        graph_(testing::random_graph(
            seed, {.forward_ops = static_cast<int>(2 + draw(draw(6) == 0 ? 40 : 15)), .updates = draw(8) != 0})),
        kernels_(testing::random_kernels(graph_, seed)),
        route_(make_route(graph_)) {
    for (int32_t i = 0; i < graph_.op_count(); ++i) {
      const std::string& kernel = kernels_[i].kernel;
      if (!kernel.empty())
        costs_.put({op_signature(graph_, graph_.op({i})), kernel, 0}, {Cost::Source::measured, between(0.01, 5), 0, 3});
    }
    machine_.name = "mixing";
    const char* const kinds[] = {"", "h", "d", "hd", "hd", "r", "rd", "hr"};  // by the first letters
    const std::string_view kind = kinds[draw(std::size(kinds))];
    for (const char* name : {"host", "remote", "disk"}) {
      if (kind.find(name[0]) == std::string_view::npos) continue;
      const Bytes capacity{draw(4) == 0 ? static_cast<int64_t>(4096 * (1 + draw(60))) : int64_t{1} << 30};
      machine_.tiers.push_back({.name = name,
                                .capacity = capacity,
                                .out_gb_per_s = between(1e-5, 1e-1),
                                .in_gb_per_s = between(1e-5, 1e-1),
                                .latency_us = between(0.1, 1000),
                                .compute_share = draw(3) == 0   ? 1.0
                                                 : draw(2) == 0 ? 0.0
                                                                : between(0.01, 0.9)});
    }
    if (seed % 2 == 0) return;
    if (auto other = reorder_for(graph_, make_timeline(input({INT64_MAX})), 0, 1'000'000)) {
      route_ = *std::move(other);
      reordered_ = true;
    }
  }
  bool reordered() const { return reordered_; }  // in which the steps run

  uint64_t draw(uint64_t below) { return random_() % below; }
  // By orders of magnitude.
  double between(double low, double high) { return low * std::pow(high / low, static_cast<double>(draw(1001)) / 1000); }
  std::mt19937_64& random() { return random_; }

  const Graph& graph() const { return graph_; }
  const std::vector<KernelChoice>& kernels() const { return kernels_; }
  const CostTable& costs() const { return costs_; }

  PolicyInput input(Bytes budget) const {
    return {.graph = graph_,
            .route = route_,
            .kernels = kernels_,
            .costs = costs_,
            .device = machine_,
            .budget = budget,
            .effort = 100'000};
  }

  // Some of a policy's options, by its own words for them.
  std::map<std::string, std::string> some_options(const Policy& policy) {
    std::map<std::string, std::string> chosen;
    std::string_view text = policy.options;
    while (!text.empty()) {
      const std::string_view word = text.substr(0, text.find(' '));
      text.remove_prefix(std::min(text.size(), word.size() + 1));
      const size_t equals = word.find('=');
      std::vector<std::string> values;
      std::string value;
      for (const char c : std::string(word.substr(equals + 1)) + "|") {
        if (c != '|')
          value += c;
        else
          values.push_back(std::exchange(value, {}));
      }
      if (draw(2) == 0) chosen[std::string(word.substr(0, equals))] = values[draw(values.size())];
    }
    return chosen;
  }

  // Memory for a plan: the real tiers, or such as take their time.
  Memory memory(const Plan& plan) {
    static testing::LocalServers servers({40_MiB, 30_MiB}, 64_MiB);
    Memory memory;
    if (draw(3) == 0) {
      for (const TierUse& use : plan.tiers)
        if (use.tier.name == "remote") memory.tiers.push_back(open_remote_tier(servers.memory()));
      return memory;
    }
    for (const TierUse& use : plan.tiers)
      memory.tiers.push_back(std::make_shared<testing::SlowTier>(use.tier.name, use.tier.capacity, random_(),
                                                                 static_cast<int>(draw(3) * 10)));
    return memory;
  }

 private:
  std::mt19937_64 random_;
  Graph graph_;
  std::vector<KernelChoice> kernels_;
  Route route_;
  bool reordered_ = false;
  CostTable costs_;
  DeviceInfo machine_;
};

// Other offsets for the same stays.
void relax_some(Problem& problem, Plan& plan) {
  const ReuseRelaxation relaxation(problem.graph(), plan);
  RelaxedStays relaxed = problem.draw(3) == 0
                             ? relaxation.without_reuse()
                             : relaxation.with_reuse_distance(static_cast<StepIndex>(problem.draw(20)));
  plan.stays = std::move(relaxed.stays);
  plan.arena = plan.budget = relaxed.arena;
  ASSERT_EQ(text_of(verify_safety(problem.graph(), plan, 3)), "");
}

// The same plan with steps side by side: 2 to 4 at once, on as many cores, which some steps want all of, in the plan's
// order or in any other.
void run_side_by_side(Problem& problem, Plan plan, const Content& expected, const MixingDevice& device,
                      const fs::path& spill) {
  if (problem.draw(2) == 0) relax_some(problem, plan);
  plan.cores.inter_op = static_cast<int>(2 + problem.draw(3));
  ExecuteOptions options{.check_memory = problem.draw(2) == 0, .spill = spill};
  plan.cores.cores = static_cast<int>(2 + problem.draw(3));
  options.pin = problem.draw(2) == 0;
  if (problem.draw(3) == 0) {
    for (Step& step : plan.steps) step.threads = problem.draw(3) == 0 ? plan.cores.cores : 1;
  }
  if (problem.draw(2) == 0) {
    plan.cores.order.resize(plan.steps.size());
    std::iota(plan.cores.order.begin(), plan.cores.order.end(), 0);
    for (size_t s = plan.steps.size(); s > 1; --s)
      std::swap(plan.cores.order[s - 1], plan.cores.order[problem.draw(s)]);
  }
  SCOPED_TRACE(fmt::format("{} at once on {} cores", plan.cores.inter_op, plan.cores.cores));
  ASSERT_EQ(run_for_real(problem.graph(), plan, device, options, problem.memory(plan)), expected);
  ASSERT_FALSE(device.overrun());
}

// What plans had, so that a test knows that it saw enough.
struct Seen {
  std::map<std::string, int, std::less<>> by_policy;
  int tight = 0, moving = 0, recomputing = 0, homes = 0, two_tiers = 0, reordered = 0, named = 0, harmless = 0;
  int exact = 0, looser = 0;  // measured to need what was predicted, or less, by rules that let go of what nobody uses
};

// What a policy is asked for: nothing beyond what liveness takes, `most`, or anything down to a quarter of it; the
// least that the policy knows of when that is too little.
PlanOrInfeasible plan_of(const Policy& policy, Problem& problem, Bytes most, PolicyInput& input) {
  const uint64_t kind = problem.draw(6);
  input.options = problem.some_options(policy);
  if (problem.draw(3) != 0) {
    const std::vector<PlacementMethod>& methods = placement_methods();
    input.placement = methods[problem.draw(methods.size())].name;
  }
  input.budget = kind == 0   ? Bytes{INT64_MAX}
                 : kind == 1 ? most
                             : Bytes{most.count * static_cast<int64_t>(25 + problem.draw(75)) / 100};
  PlanOrInfeasible answer = policy.plan(input);
  const Infeasible* no = std::get_if<Infeasible>(&answer);
  if (no == nullptr || no->minimum == Bytes{INT64_MAX} || !no->tier.empty()) return answer;
  input.budget = no->minimum;
  return policy.plan(input);
}

std::string text_of(const PolicyInput& input) {
  std::string text = fmt::format("budget {}, placement {}", input.budget.count, input.placement);
  for (const auto& [name, value] : input.options) text += fmt::format(" {}={}", name, value);
  return text;
}

// The rules of frameworks, which keep tensors after their last use.
bool holds_longer_than_used(const Policy& policy) {
  return policy.name == "baseline" || policy.name == "caffe" || policy.name == "torch" || policy.name == "tensorflow";
}

void check_run(const Policy& policy, Problem& problem, Bytes most, const Content& expected, const MixingDevice& device,
               const fs::path& spill, Seen& seen) {
  const Graph& graph = problem.graph();
  PolicyInput input = problem.input(most);
  const PlanOrInfeasible answer = plan_of(policy, problem, most, input);
  SCOPED_TRACE(text_of(input));
  const Plan* plan = std::get_if<Plan>(&answer);
  if (plan == nullptr) return;
  ASSERT_EQ(text_of(verify(graph, *plan, 3)), "");
  ASSERT_LE(plan->arena, input.budget);
  ASSERT_EQ(counted_peak(*plan), plan->predicted.peak);
  const bool check_memory = problem.draw(3) == 0;
  Bytes peak;
  ASSERT_EQ(
      run_for_real(graph, *plan, device, {.check_memory = check_memory, .spill = spill}, problem.memory(*plan), &peak),
      expected);
  if (!holds_longer_than_used(policy)) ++(peak == plan->predicted.peak ? seen.exact : seen.looser);
  ASSERT_FALSE(device.overrun());
  run_side_by_side(problem, *plan, expected, device, spill);
  ++seen.by_policy[std::string(policy.name)];
  seen.tight += plan->arena < most;
  seen.reordered += problem.reordered();
  seen.moving += !plan->moves.empty();
  seen.homes += !plan->homes.empty();
  seen.recomputing += plan->predicted.recompute_steps > 0;
  seen.two_tiers += plan->tiers.size() == 2 && plan->tiers[0].used.count > 0 && plan->tiers[1].used.count > 0;
}

void check_broken(const Policy& policy, Problem& problem, Bytes most, const Content& expected,
                  const MixingDevice& device, const fs::path& spill, Seen& seen) {
  const Graph& graph = problem.graph();
  PolicyInput input = problem.input(most);
  const PlanOrInfeasible answer = plan_of(policy, problem, most, input);
  SCOPED_TRACE(text_of(input));
  const Plan* whole = std::get_if<Plan>(&answer);
  if (whole == nullptr || !verify(graph, *whole, 1).empty()) return;
  for (int n = 0; n < 20; ++n) {
    const Mutation& mutation = testing::mutations()[problem.draw(testing::mutations().size())];
    Plan plan = *whole;
    if (!mutation.apply(graph, plan, problem.random())) continue;
    SCOPED_TRACE(mutation.name);
    const std::vector<Violation> violations = verify(graph, plan, 1000);
    std::string wrong = mutation.always_wrong ? "by definition" : "";
    if (wrong.empty() && !violations.empty()) wrong = PaperRun(graph, plan).run_all(1);
    if (!wrong.empty()) {
      ++seen.named;
      ASSERT_TRUE(std::any_of(violations.begin(), violations.end(),
                              [&](const Violation& v) { return mutation.rules.contains(v.rule); }))
          << wrong << "\n"
          << text_of(violations);
    }
    if (!violations.empty()) continue;
    ++seen.harmless;
    plan.predicted.peak = counted_peak(plan);
    ASSERT_EQ(run_for_real(graph, plan, device, {.spill = spill}, problem.memory(plan)), expected);
    ASSERT_FALSE(device.overrun());
    run_side_by_side(problem, plan, expected, device, spill);
  }
}

// Calls `check` for every policy on `graphs` training steps.
template <class Check>
Seen for_every_policy(uint64_t graphs, const Check& check) {
  const uint64_t first = number_of("PLIMSOLL_RANDOM_SEED", 1);
  const TemporaryFolder folder;
  Seen seen;
  for (uint64_t seed = first; seed < first + graphs && failed_parts() < kMostFailures; ++seed) {
    Problem problem(seed);
    const Graph& graph = problem.graph();
    const Content expected = run_on_paper(graph);
    const MixingDevice device(graph, problem.kernels());
    const Bytes most = std::get<Plan>(find_policy("liveness").plan(problem.input({INT64_MAX}))).arena;
    for (const Policy& policy : policies()) {
      SCOPED_TRACE(fmt::format("PLIMSOLL_RANDOM_SEED={} policy {}", seed, policy.name));
      try {
        check(policy, problem, most, expected, device, folder.path(), seen);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
  return seen;
}

TEST(EveryPolicy, GivesTheBytesOfARunThatPlansNothingInTheMemoryPredicted) {
  const uint64_t graphs = number_of("PLIMSOLL_RANDOM_GRAPHS", 80);
  const Seen seen = for_every_policy(graphs, check_run);
  if (graphs < 200) return;
  for (const Policy& policy : policies())
    EXPECT_GT(seen.by_policy.find(policy.name)->second, static_cast<int>(graphs) * 2 / 3) << policy.name;
  for (const int count : {seen.tight, seen.moving, seen.recomputing, seen.homes})
    EXPECT_GT(count, static_cast<int>(graphs) * 3 / 10);
  EXPECT_GT(seen.two_tiers, static_cast<int>(graphs) / 20);
  EXPECT_GT(seen.reordered, static_cast<int>(graphs) / 2);  // plans, of all policies
  EXPECT_GT(seen.exact, 9 * seen.looser);
}

// Any plan of any policy with one thing changed: if it goes wrong on paper, the verifier names it; if the verifier
// accepts it, it runs as the whole plan does.
TEST(EveryPolicy, ABrokenPlanIsNamedOrDoesNoHarm) {
  const uint64_t graphs = number_of("PLIMSOLL_RANDOM_GRAPHS", kSanitizer ? 40 : 80);
  const Seen seen = for_every_policy(graphs, check_broken);
  if (graphs < 80) return;
  EXPECT_GT(seen.named, 1000);
  EXPECT_GT(seen.harmless, 100);
}

TEST(RandomPlans, GiveTheBytesOfARunThatPlansNothing) {
  const uint64_t first = number_of("PLIMSOLL_RANDOM_SEED", 1),
                 graphs = number_of("PLIMSOLL_RANDOM_GRAPHS", kSanitizer ? 100 : 200);
  const TemporaryFolder folder;
  for (uint64_t seed = first; seed < first + graphs; ++seed) {
    Problem problem(seed);
    const Graph& graph = problem.graph();
    Plan plan = testing::random_plan(graph, seed);
    plan.predicted.peak = counted_peak(plan);
    std::vector<KernelChoice> kernels(graph.op_count());
    for (const Step& step : plan.steps) kernels[step.op.index] = {step.kernel, step.workspace};
    const MixingDevice device(graph, kernels);
    SCOPED_TRACE(fmt::format("PLIMSOLL_RANDOM_SEED={}", seed));
    ASSERT_EQ(run_for_real(graph, plan, device, {.check_memory = problem.draw(2) == 0, .spill = folder.path()},
                           problem.memory(plan)),
              run_on_paper(graph));
    ASSERT_FALSE(device.overrun());
    for (int n = 0; n < 2; ++n) run_side_by_side(problem, plan, run_on_paper(graph), device, folder.path());
  }
}

}  // namespace
}  // namespace plimsoll
