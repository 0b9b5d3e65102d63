// A small training step and its plan, for tests that break it.
#pragma once

#include <set>
#include <string>

#include "plimsoll/verify.h"
#include "tests/support/random_graph.h"

namespace plimsoll::testing {

using Rule = Violation::Rule;

// A small training step (make_graph) and its plan.
struct Case {
  Graph graph;
  Plan plan;

  Stay& stay(std::string_view tensor) {
    const TensorId id = graph.find_tensor(tensor);
    for (Stay& s : plan.stays) {
      if (s.tensor == id) return s;
    }
    throw std::runtime_error("no stay of " + std::string(tensor));
  }
  StepIndex step_of(std::string_view op) const {
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      if (graph.op(plan.steps[s].op).name == op) return static_cast<StepIndex>(s);
    }
    throw std::runtime_error("no step of " + std::string(op));
  }
  // Shifts every time at or after `at` by one step, to make room for a step there.
  void insert_step(StepIndex at, Step step) {
    for (Stay& s : plan.stays) {
      if (s.first >= at) ++s.first;
      if (s.last >= at) ++s.last;
    }
    plan.steps.insert(plan.steps.begin() + at, std::move(step));
  }
  Bytes top() const { return plan.arena; }
  void grow(Bytes bytes) { plan.arena += bytes; }
};

inline Shape of(int64_t n) { return {n}; }
inline Attributes shaped(int64_t n) { return {{"shape", of(n)}}; }

// data > a (weights w) > y > b (in place, as a rule) > z > c > u > loss; backward of a; update of w. v is a view of u.
inline Graph make_graph() {
  testing::register_test_ops();
  Graph g;
  g.name = "case";
  const TensorId data = g.add_source("data", of(100), DType::f32, Role::input);
  const TensorId w = g.add_source("w", of(32), DType::f32, Role::parameter);
  const TensorId run = g.add_source("run", of(16), DType::f32, Role::statistic);
  const TensorId y = g.output(g.add_op("TestMix", "a", "a", {data, w}, shaped(64), Phase::forward, {"y"}));
  const TensorId z = g.output(g.add_op("TestMap", "b", "b", {y}, {}, Phase::forward, {"z"}));
  const OpId norm = g.add_op("TestNorm", "c", "c", {z, run}, {}, Phase::forward, {"u", "run.next"});
  const TensorId u = g.output(norm);
  const TensorId v = g.output(g.add_op("TestView", "view", "view", {u}, shaped(64), Phase::forward, {"v"}));
  const TensorId loss = g.output(g.add_op("TestMix", "loss", "loss", {v}, shaped(1), Phase::forward, {"loss"}));
  const TensorId du =
      g.output(g.add_op("TestMix", "loss/backward", "loss", {v, loss}, shaped(64), Phase::backward, {"du"}));
  const TensorId dz = g.output(g.add_op("TestMapBackward", "c/backward", "c", {du, u}, {}, Phase::backward, {"dz"}));
  const TensorId dw =
      g.output(g.add_op("TestMix", "a/backward", "a", {dz, data, w}, shaped(32), Phase::backward, {"dw"}));
  const TensorId next = g.output(g.add_op("TestUpdate", "w/update", "w", {w, dw}, {}, Phase::update, {"w.next"}));
  g.states[0].after = next;
  g.states[1].after = g.output(norm, 1);
  g.outputs = {loss};
  return g;
}

inline Case make_case(std::string_view policy = "liveness") {
  Case c{make_graph(), {}};
  const Route route = make_route(c.graph);
  std::vector<KernelChoice> kernels(c.graph.op_count(), {"k", {}});
  kernels[0].workspace = 500_B;
  const CostTable costs;
  c.plan = std::get<Plan>(find_policy(policy).plan(
      {.graph = c.graph, .route = route, .kernels = kernels, .costs = costs, .device = {.name = "cpu"}}));
  c.plan.budget = 1_MiB;
  return c;
}

inline std::set<Rule> rules_of(const Case& c) {
  std::set<Rule> rules;
  for (const Violation& v : verify(c.graph, c.plan)) rules.insert(v.rule);
  return rules;
}
inline std::string text_of(const Case& c) {
  std::string text;
  for (const Violation& v : verify(c.graph, c.plan)) text += fmt::format("{}: {}\n", to_string(v.rule), v.message);
  return text;
}
#define EXPECT_BROKEN(c, rule) EXPECT_TRUE(rules_of(c).contains(rule)) << text_of(c)
#define EXPECT_VALID(c) EXPECT_EQ(text_of(c), "")

inline void add_tiers(Plan& plan) {
  plan.lower_bound = {};  // of a plan without tiers
  plan.tiers = {{{"host", 1_MiB, 10, 10, 5, 0}, 64_KiB}, {{"disk", 8_MiB, 1, 1, 100, 0.1}, 64_KiB}};
}

// data leaves after its forward reader and comes back, to another place, for the backward step that reads it.
inline Case make_case_with_moves() {
  Case c = make_case("baseline");
  Stay& data = c.stay("data");
  data.last = 2;
  Stay back = data;
  back.first = c.step_of("a/backward") - 1;
  back.last = c.step_of("a/backward");
  back.offset = c.top();
  c.grow(data.bytes);
  c.plan.stays.push_back(back);
  const TensorId id = data.tensor;
  c.plan.moves.push_back({Move::Direction::out, id, 0, 4_KiB, 0, 3});
  c.plan.moves.push_back({Move::Direction::in, id, 0, 4_KiB, back.first - 1, back.last});
  add_tiers(c.plan);
  return c;
}

}  // namespace plimsoll::testing
