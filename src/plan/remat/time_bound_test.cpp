// The bound of time with tiers, judged by a search over all that compute and the engines may do.
#include "plan/remat/time_bound.h"

#include <gtest/gtest.h>

#include <array>
#include <compare>
#include <cstdlib>
#include <map>
#include <queue>

#include "plan/assemble.h"
#include "plan/bounds.h"
#include "plan/engines.h"
#include "plan/policies/policies.h"
#include "plan/remat/run_set.h"
#include "plan/simulate.h"
#include "tests/support/random_cost_graph.h"

namespace plimsoll {
namespace {

using testing::CostInput;
using testing::random_cost_graph;

using ValueSet = uint32_t;

// The least ms of all that may be done: first runs in order, anything again, copies whenever an engine is free, whatever
// lies wherever at the start. Dijkstra's algorithm over what has run, where all values are, and what is under way and for
// how long yet. It knows no steps that copies wait for, so that no plan is faster.
class LeastWithTiers {
 public:
  // `fetches_only`: of what comes from outside everything lies outside at the start, and nothing is copied out, runs again or
  // goes before its last use. Then some plan may be faster, but one is as fast.
  LeastWithTiers(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, int64_t budget,
                 bool fetches_only = false)
      : timeline_(timeline), tiers_(tiers), budget_(budget), fetches_only_(fetches_only) {}

  double find() {
    start(0, {});
    while (!queue_.empty()) {
      const auto [ms, state] = queue_.top();
      queue_.pop();
      if (least_[state] < ms) continue;
      if (is_end(state)) return ms;
      if (least_.size() > kMostStates) return -1;
      look_from(state, ms);
    }
    return kAnyTime;
  }

 private:
  static constexpr size_t kMostStates = 50'000;
  static constexpr size_t kEngines = 4;
  struct State {
    int32_t next = 0, computing = -1;
    int32_t dropped = -1;  // what was let go a moment ago, for what starts now
    int64_t ns = 0;        // that computing yet takes, alone
    ValueSet there = 0;
    std::array<ValueSet, 2> slots{};
    std::array<int32_t, kEngines> copied{-1, -1, -1, -1};  // by engine: the value
    std::array<int64_t, kEngines> copy_ns{};
    std::array<ValueSet, 2> homes{};
    auto operator<=>(const State&) const = default;
  };

  static ValueSet bit(int32_t v) { return ValueSet{1} << v; }
  static ValueSet set_of(std::span<const int32_t> list) {
    ValueSet set = 0;
    for (const int32_t v : list) set |= bit(v);
    return set;
  }
  int32_t values() const { return static_cast<int32_t>(timeline_.values.size()); }
  int32_t steps() const { return static_cast<int32_t>(timeline_.steps.size()); }
  const TimelineValue& value(int32_t v) const { return timeline_.values[static_cast<size_t>(v)]; }
  const TimelineStep& step(int32_t s) const { return timeline_.steps[static_cast<size_t>(s)]; }
  static int64_t ns_of(double ms) { return std::llround(ms * 1e6); }
  int64_t copy_ns(size_t tier, bool out, int32_t v) const {
    const auto direction = out ? Move::Direction::out : Move::Direction::in;
    return ns_of(copy_ms(tiers_[tier], direction, {value(v).copied_bytes}));
  }

  // With each value from outside in the arena, or in one of the tiers.
  void start(int32_t v, State state) {
    while (v < values() && value(v).producer >= 0) ++v;
    if (v == values()) {
      if (bytes_in(state) <= budget_) reach(state, 0);
      return;
    }
    if (!fetches_only_) {
      State arena = state;
      arena.there |= bit(v);
      start(v + 1, arena);
    }
    for (size_t t = 0; t < tiers_.size(); ++t) {
      State outside = state;
      outside.slots[t] |= bit(v);
      outside.homes[t] |= bit(v);
      start(v + 1, outside);
    }
  }

  void reach(const State& state, double ms) {
    const auto [at, fresh] = least_.try_emplace(state, ms);
    if (!fresh && at->second <= ms) return;
    at->second = ms;
    queue_.emplace(ms, state);
  }

  bool is_idle(const State& state) const {
    return state.computing < 0 && std::ranges::all_of(state.copied, [](int32_t v) { return v < 0; });
  }
  bool is_end(const State& state) const {
    if (state.next < steps() || !is_idle(state)) return false;
    for (int32_t v = 0; v < values(); ++v) {
      if (!value(v).at_end) continue;
      const int32_t home = value(v).before >= 0 ? value(v).before : v;
      ValueSet where = state.there;
      for (size_t t = 0; t < tiers_.size(); ++t) {
        if (value(v).state >= 0 && (state.homes[t] & bit(home)) != 0) where = state.slots[t];
      }
      if ((where & bit(v)) == 0) return false;
    }
    return true;
  }

  bool is_again(const State& state) const { return state.computing < state.next; }
  ValueSet written(const State& state) const {
    if (state.computing < 0) return 0;
    return set_of(is_again(state) ? step(state.computing).recompute_outputs : step(state.computing).outputs);
  }
  ValueSet read(const State& state) const {
    if (state.computing < 0) return 0;
    return set_of(is_again(state) ? step(state.computing).recompute_inputs : step(state.computing).inputs);
  }
  // What is lost when the step is done, and must not be on its way meanwhile.
  ValueSet overwritten(const State& state) const {
    ValueSet set = 0;
    if (state.computing < 0 || is_again(state)) return set;
    for (const TimelineInPlace& pair : step(state.computing).in_place) set |= bit(pair.input);
    return set;
  }
  ValueSet arriving(const State& state) const {
    ValueSet set = 0;
    for (size_t e = 1; e < kEngines; e += 2) set |= state.copied[e] >= 0 ? bit(state.copied[e]) : 0;
    return set;
  }
  ValueSet leaving(const State& state) const {
    ValueSet set = 0;
    for (size_t e = 0; e < kEngines; e += 2) set |= state.copied[e] >= 0 ? bit(state.copied[e]) : 0;
    return set;
  }
  int64_t bytes_in(const State& state) const {
    ValueSet set = state.there | written(state) | arriving(state);
    int64_t bytes = 0;
    if (state.computing >= 0) {
      bytes += step(state.computing).workspace;
      for (const TimelineInPlace& pair : step(state.computing).in_place) set &= ~bit(pair.output);
    }
    for (int32_t v = 0; v < values(); ++v) bytes += (set & bit(v)) != 0 ? value(v).bytes : 0;
    return bytes;
  }

  void look_from(const State& state, double ms) {
    const ValueSet locked = leaving(state);
    // A plan says step by step what lies where: the room of what goes meanwhile is free when the step is done.
    for (int32_t v = state.computing < 0 ? state.dropped + 1 : values(); v < values(); ++v) {
      if ((state.there & bit(v)) == 0 || (locked & bit(v)) != 0 || (fetches_only_ && is_wanted(state, v))) continue;
      State dropped = state;
      dropped.there &= ~bit(v);
      dropped.dropped = v;
      reach(dropped, ms);
    }
    if (state.computing < 0) {
      for (int32_t s = fetches_only_ ? state.next : 0; s <= std::min(state.next, steps() - 1); ++s)
        compute(state, ms, s);
    }
    for (size_t t = 0; t < tiers_.size(); ++t) {
      for (int32_t v = 0; v < values(); ++v) {
        if (!fetches_only_) copy(state, ms, t, true, v);
        copy(state, ms, t, false, v);
      }
    }
    if (!is_idle(state) && state.dropped < 0) advance(state, ms);
  }

  bool is_wanted(const State& state, int32_t v) const {
    return value(v).at_end || (!value(v).uses.empty() && value(v).uses.back() >= state.next);
  }

  // Values go only when something needs the room, or may need it while a step runs.
  void begin(State state, double ms, bool step = false) {
    const int64_t bytes = bytes_in(state);
    if (bytes > budget_) return;
    if (!step && state.dropped >= 0 && bytes + value(state.dropped).bytes <= budget_) return;
    state.dropped = -1;
    reach(state, ms);
  }

  void compute(State state, double ms, int32_t s) {
    if (s < state.next && !may_run_again(timeline_, s)) return;
    state.computing = s;
    if (((leaving(state) | arriving(state)) & overwritten(state)) != 0) return;
    state.ns = ns_of(step(s).ms);
    if ((state.there & read(state)) == read(state) && (arriving(state) & written(state)) == 0) begin(state, ms, true);
  }

  void copy(State state, double ms, size_t tier, bool out, int32_t v) {
    const size_t engine = 2 * tier + (out ? 0 : 1);
    const bool is_there = (state.there & bit(v)) != 0, has_slot = (state.slots[tier] & bit(v)) != 0;
    if (state.copied[engine] >= 0 || is_there != out || has_slot == out) return;
    if (((written(state) | arriving(state) | overwritten(state)) & bit(v)) != 0) return;
    state.copied[engine] = v;
    state.copy_ns[engine] = copy_ns(tier, out, v);
    if (tiers_[tier].beside_compute()) return begin(state, ms);
    if (state.computing >= 0) return;
    if (bytes_in(state) > budget_) return;
    ms += static_cast<double>(state.copy_ns[engine]) / 1e6;
    finish_copy(state, engine);
    begin(state, ms);
  }

  void finish_copy(State& state, size_t engine) const {
    ValueSet& to = engine % 2 == 0 ? state.slots[engine / 2] : state.there;
    to |= bit(state.copied[engine]);
    state.copied[engine] = -1;
    state.copy_ns[engine] = 0;
  }

  // To when the first thing under way is done.
  void advance(State state, double ms) {
    double speed = 1, next_ns = 1e300;
    for (size_t e = 0; e < kEngines; ++e) {
      if (state.copied[e] < 0) continue;
      speed -= tiers_[e / 2].compute_share;
      next_ns = std::min(next_ns, static_cast<double>(state.copy_ns[e]));
    }
    speed = std::max(speed, kLeastComputeSpeed);
    if (state.computing >= 0) next_ns = std::min(next_ns, static_cast<double>(state.ns) / speed);
    for (size_t e = 0; e < kEngines; ++e) {
      if (state.copied[e] < 0) continue;
      state.copy_ns[e] -= std::llround(next_ns);
      if (state.copy_ns[e] <= kRoundingNs) finish_copy(state, e);
    }
    if (state.computing >= 0) {
      state.ns -= std::llround(next_ns * speed);
      if (state.ns <= kRoundingNs) finish_step(state);
    }
    reach(state, ms + next_ns / 1e6);
  }
  static constexpr int64_t kRoundingNs = 4;

  void finish_step(State& state) const {
    state.there |= written(state);
    if (state.computing == state.next) {
      for (const TimelineInPlace& pair : step(state.computing).in_place) {
        state.there &= ~bit(pair.input);
        for (ValueSet& slots : state.slots) slots &= ~bit(pair.input);
      }
      ++state.next;
    }
    state.computing = -1;
    state.ns = 0;
  }

  const ValueTimeline& timeline_;
  const std::vector<TierInfo>& tiers_;
  const int64_t budget_;
  const bool fetches_only_;
  std::map<State, double> least_;
  using Entry = std::pair<double, State>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
};

// The last reader of a value from outside writes the new value of a state in its place.
struct WithState {
  explicit WithState(const ValueTimeline& of) : timeline(of) {
    for (size_t v = 0; v < timeline.values.size(); ++v) {
      TimelineValue& before = timeline.values[v];
      if (before.producer >= 0 || before.uses.empty()) continue;
      TimelineStep& step = timeline.steps[static_cast<size_t>(before.uses.back())];
      TimelineValue& after = timeline.values[static_cast<size_t>(step.outputs.front())];
      if (after.is_output || before.is_output) continue;
      in_place = {static_cast<int32_t>(v), step.outputs.front(), true};
      step.in_place = {&in_place, 1};
      before.state = after.state = 0;
      before.at_end = false;
      after.before = static_cast<int32_t>(v);
      after.at_end = true;
      after.bytes = before.bytes;
      after.copied_bytes = before.copied_bytes;
      for (const int32_t output : step.outputs) timeline.values[static_cast<size_t>(output)].recomputable = false;
      return;
    }
  }
  ValueTimeline timeline;
  TimelineInPlace in_place{};
};

std::vector<TierInfo> random_tiers(std::mt19937_64& random) {
  const auto draw = [&](int below) { return static_cast<int>(random() % static_cast<uint64_t>(below)); };
  const double shares[] = {1, 0, 0.25, 0.6};
  const double share = shares[draw(4)];
  std::vector<TierInfo> tiers(draw(6) == 0 ? 2 : 1);
  for (TierInfo& tier : tiers) {
    tier = {.name = "host",
            .capacity = {INT64_MAX / 4},
            .out_gb_per_s = 64e-6 / (1 + draw(16)) * 4,
            .in_gb_per_s = 64e-6 / (1 + draw(16)) * 4,
            .latency_us = 100.0 * draw(4),
            .compute_share = share};
  }
  return tiers;
}

// PLIMSOLL_BOUND_GRAPHS=10000 takes as many instead.
int graphs_with_tiers() {
  const char* const asked = std::getenv("PLIMSOLL_BOUND_GRAPHS");
  return asked != nullptr ? std::atoi(asked) : 300;
}

TEST(TimeBound, WithTiersIsNoMoreThanTheOptimumAndNoPlanIsLess) {
  int solved = 0, infeasible = 0, given_up = 0, closed = 0, planned = 0, optimal = 0;
  double worst = 0, sum = 0;
  for (int seed = 0; seed < graphs_with_tiers(); ++seed) {
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    const std::vector<TierInfo> tiers = random_tiers(random);
    const CostInput costs(random_cost_graph(static_cast<uint64_t>(seed) + 50'000, 3 + seed % 3));
    PolicyInput input = costs.input();
    input.device.tiers = tiers;
    const WithState with_state(make_timeline(input));
    const bool has_state = seed % 2 == 0;
    const ValueTimeline timeline = has_state ? with_state.timeline : make_timeline(input);
    const int64_t peak = RunSet(timeline, 0).peak(), least = least_live(timeline, true);
    const int64_t budget = least + (peak - least) * (seed * 7 % 50) / 50;
    SCOPED_TRACE(fmt::format("seed {}, {} tiers, share {}", seed, tiers.size(), tiers[0].compute_share));
    const double optimum = LeastWithTiers(timeline, tiers, budget).find();
    if (optimum < 0) {
      ++given_up;
      continue;
    }
    const double bound = bound_time(timeline, tiers, budget, 2'000'000, kAnyTime);
    if (bound >= kAnyTime) {
      EXPECT_EQ(optimum, kAnyTime);
    }
    if (optimum >= kAnyTime) {
      ++infeasible;
      continue;
    }
    ++solved;
    EXPECT_LE(bound, optimum * (1 + 1e-6));
    EXPECT_GE(bound, timeline.compute_ms * (1 - 1e-9));
    const double gap = 100 * (optimum - bound) / timeline.compute_ms;
    closed += gap < 1e-2 ? 1 : 0;
    worst = std::max(worst, gap);
    sum += gap;
    if (has_state || seed % 5 != 1) continue;
    input.budget = {budget};
    PlanOrInfeasible answer = plan_auto(input);
    Plan* plan = std::get_if<Plan>(&answer);
    if (plan == nullptr) continue;
    predict(input, *plan);
    ++planned;
    EXPECT_GE(plan->predicted.step_time_ms, optimum * (1 - 1e-6));
    optimal += plan->predicted.step_time_ms <= optimum * (1 + 1e-6) ? 1 : 0;
  }
  std::printf(
      "%d solved, %d infeasible, %d given up; bound exact in %d, gap in points: mean %.2f, worst %.2f; of %d plans %d "
      "optimal\n",
      solved, infeasible, given_up, closed, solved > 0 ? sum / solved : 0.0, worst, planned, optimal);
  EXPECT_GT(solved, graphs_with_tiers() / 2);
  EXPECT_GT(planned, graphs_with_tiers() / 20);
}

// The first step needs all the room while it runs, so that nothing comes in beside it, however long it is.
TEST(TimeBound, NothingComesInBesideAStepThatNeedsAllTheRoom) {
  const CostInput costs(cost_graph_from_json(R"({"sources": [6400], "nodes": [
      {"ms": 5, "out": [64, 19264], "in": []},
      {"ms": 0.5, "out": [64], "in": [[0, 0]]},
      {"ms": 0.01, "out": [64], "in": [[1, 0], ["source", 0]]}], "keep": [[2, 0]]})"));
  PolicyInput input = costs.input();
  const std::vector<TierInfo> tiers{
      {.name = "host", .capacity = {INT64_MAX / 4}, .out_gb_per_s = 3200e-6, .in_gb_per_s = 3200e-6}};
  input.device.tiers = tiers;
  const ValueTimeline timeline = make_timeline(input);
  const int64_t budget = least_live(timeline, true);
  const double least = LeastWithTiers(timeline, tiers, budget).find();
  EXPECT_NEAR(least, 7.01, 1e-5);  // of the copy's 2 ms 0.5 are hidden
  const double bound = bound_time(timeline, tiers, budget, 20'000'000, kAnyTime);
  EXPECT_LE(bound, least);
  EXPECT_GT(bound, 6.99);
}

// The first step needs all the room. Then sources come in beside a chain of steps, and the last step reads all of them.
//
//   compute  [ fills ][ window    ][ window    ][ reads a, b, c ]
//   copy in           [ a     ][ b     ][ c    ]   b is under way at the moment between the windows
TEST(TimeBound, ThreeCopiesInTwoWindowsWaitForNothing) {
  const CostInput costs(cost_graph_from_json(R"({"sources": [6400, 6400, 6400], "nodes": [
      {"ms": 0.1, "out": [64, 19264], "in": []},
      {"ms": 3, "out": [64, 6400], "in": [[0, 0]]},
      {"ms": 0.5, "out": [64], "in": [[1, 0], [1, 1]]},
      {"ms": 2.5, "out": [64], "in": [[2, 0]]},
      {"ms": 0.1, "out": [64], "in": [[3, 0], ["source", 0], ["source", 1], ["source", 2]]}], "keep": [[4, 0]]})"));
  PolicyInput input = costs.input();
  const std::vector<TierInfo> tiers{
      {.name = "host", .capacity = {INT64_MAX / 4}, .out_gb_per_s = 3200e-6, .in_gb_per_s = 3200e-6}};
  input.device.tiers = tiers;
  const ValueTimeline timeline = make_timeline(input);
  const int64_t budget = least_live(timeline, true);
  EXPECT_NEAR(LeastWithTiers(timeline, tiers, budget, true).find(), 6.2, 1e-5);
  EXPECT_NEAR(timeline.compute_ms, 6.2, 1e-9);
  EXPECT_LE(bound_time(timeline, tiers, budget, 20'000'000, kAnyTime), 6.2 * (1 + 1e-6));
}

// Such graphs at random, the windows about as long as the copies.
struct Fetching {
  CostGraph graph;
  double units;  // of all sources
  double windows_ms;
};
constexpr int kUnit = 6400;  // bytes
Fetching random_fetching(std::mt19937_64& random, int sources, int windows) {
  const auto draw = [&](int below) { return static_cast<int>(random() % static_cast<uint64_t>(below)); };
  int units = 0, most = 0, windows_ms = 0;
  std::string text = R"({"sources": [)";
  for (int i = 0; i < sources; ++i) {
    const int size = 1 + draw(3);
    units += size;
    most = std::max(most, size);
    text += fmt::format("{}{}", i > 0 ? ", " : "", size * kUnit);
  }
  text += fmt::format(R"(], "nodes": [{{"ms": 0.01, "out": [64, {}], "in": []}})", units * kUnit + 128);
  for (int i = 0; i < windows; ++i) {  // ends with a short step, for which it holds bytes
    const int ms = 1 + draw(4), held = i + 1 < windows ? 1 + draw(most) : 0;
    windows_ms += ms;
    text += fmt::format(R"(, {{"ms": {}, "out": [64, {}], "in": [[{}, 0]]}})", ms, held * kUnit + 64, 2 * i);
    text += fmt::format(R"(, {{"ms": 0.01, "out": [64], "in": [[{}, 0], [{}, 1]]}})", 2 * i + 1, 2 * i + 1);
  }
  text += fmt::format(R"(, {{"ms": 0.01, "out": [64], "in": [[{}, 0])", 2 * windows);
  for (int i = 0; i < sources; ++i) text += fmt::format(R"(, ["source", {}])", i);
  text += fmt::format(R"(]}}], "keep": [[{}, 0]]}})", 2 * windows + 1);
  return {cost_graph_from_json(text), static_cast<double>(units), static_cast<double>(windows_ms)};
}

TEST(TimeBound, IsNoMoreThanPlansWithCopiesUnderWayAtMoments) {
  int solved = 0, closed = 0, above = 0;
  const int graphs = graphs_with_tiers();
  for (int seed = 0; seed < graphs; ++seed) {
    std::mt19937_64 random(static_cast<uint64_t>(seed) + 90'000);
    const Fetching fetching = random_fetching(random, 2 + seed % 2, 2 + seed / 2 % 2);
    const CostInput costs(fetching.graph);
    PolicyInput input = costs.input();
    const double gb_per_s = fetching.units * kUnit / fetching.windows_ms * 1e-6 / (1 + seed % 4 * 0.1);
    const std::vector<TierInfo> tiers{{.name = "host",
                                       .capacity = {INT64_MAX / 4},
                                       .out_gb_per_s = gb_per_s,
                                       .in_gb_per_s = gb_per_s,
                                       .compute_share = seed % 5 == 0 ? 0.25 : 0}};
    input.device.tiers = tiers;
    const ValueTimeline timeline = make_timeline(input);
    const int64_t budget = least_live(timeline, true);
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const double least = LeastWithTiers(timeline, tiers, budget, true).find();
    if (least < 0 || least >= kAnyTime) continue;
    ++solved;
    const double bound = bound_time(timeline, tiers, budget, 2'000'000, kAnyTime);
    EXPECT_LE(bound, least * (1 + 1e-6));
    above += bound > timeline.compute_ms * (1 + 1e-3) ? 1 : 0;
    closed += least - bound < 1e-4 * timeline.compute_ms ? 1 : 0;
  }
  std::printf("%d solved, bound exact in %d, above all steps once in %d\n", solved, closed, above);
  EXPECT_GT(solved, graphs / 2);
  EXPECT_GT(above, graphs / 20);
}

TEST(TimeBound, WithTiersIsNoMoreThanWhatAnyPolicyPlans) {
  int plans = 0, tight = 0;
  for (int seed = 0; seed < graphs_with_tiers() / 10; ++seed) {
    std::mt19937_64 random(static_cast<uint64_t>(seed) + 70'000);
    std::vector<TierInfo> tiers = random_tiers(random);
    for (TierInfo& tier : tiers) tier.compute_share = tier.compute_share == 1 ? 0 : tier.compute_share;
    const CostInput costs(random_cost_graph(static_cast<uint64_t>(seed) + 50'000, 5 + seed % 8));
    PolicyInput input = costs.input();
    input.device.tiers = tiers;
    input.explain = false;
    const ValueTimeline timeline = make_timeline(input);
    const int64_t peak = RunSet(timeline, 0).peak(), least = least_live(timeline, true);
    for (const int part : {0, 25, 50, 75}) {
      const int64_t budget = least + (peak - least) * part / 100;
      double bound = -1;
      for (const Policy& policy : policies()) {
        SCOPED_TRACE(fmt::format("seed {}, {} in {}", seed, policy.name, budget));
        input.budget = {budget};
        PlanOrInfeasible answer = policy.plan(input);
        Plan* plan = std::get_if<Plan>(&answer);
        if (plan == nullptr) continue;
        predict(input, *plan);
        ++plans;
        if (bound < 0) bound = bound_time(timeline, tiers, budget, 500'000, kAnyTime);
        EXPECT_LE(bound, plan->predicted.step_time_ms * (1 + 1e-6));
        tight += plan->predicted.step_time_ms < bound * (1 + 1e-3) ? 1 : 0;
      }
    }
  }
  std::printf("%d plans, %d of them proven the fastest\n", plans, tight);
  EXPECT_GT(plans, graphs_with_tiers() / 2);
  EXPECT_GT(tight, graphs_with_tiers() / 10);
}

}  // namespace
}  // namespace plimsoll
