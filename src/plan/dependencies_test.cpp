// Whoever keeps the dependencies may run a plan in any order: judged on paper (tests/support/paper_run.h), where every
// byte knows which value lies there.
#include "plan/dependencies.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "plan/policy.h"
#include "tests/support/paper_run.h"
#include "tests/support/random_plan.h"

namespace plimsoll {
namespace {

using testing::PaperRun;
using testing::random_graph;

// An order of all nodes that keeps the dependencies, drawn; `late` of 10 times the latest of the ready ones is taken.
std::vector<int32_t> draw_order(const Dependencies& dependencies, std::mt19937_64& random, uint64_t late) {
  std::vector<int32_t> unmet, ready, order;
  for (int32_t n = 0; n < dependencies.count(); ++n) {
    unmet.push_back(static_cast<int32_t>(dependencies.before(n).size()));
    if (unmet.back() == 0) ready.push_back(n);
  }
  while (!ready.empty()) {
    const bool last = random() % 10 < late;
    const auto chosen = last ? std::max_element(ready.begin(), ready.end())
                             : ready.begin() + static_cast<std::ptrdiff_t>(random() % ready.size());
    const int32_t node = *chosen;
    ready.erase(chosen);
    order.push_back(node);
    for (int32_t next : dependencies.after(node)) {
      if (--unmet[next] == 0) ready.push_back(next);
    }
  }
  return order;
}

std::vector<Erasure> erasures_of(const Plan& plan) {
  std::vector<Erasure> result;
  for (const Stay& stay : plan.stays) {
    if (stay.last + 1 >= static_cast<StepIndex>(plan.steps.size())) continue;
    const bool taken = std::any_of(plan.stays.begin(), plan.stays.end(), [&](const Stay& other) {
      return &other != &stay && other.first <= stay.last && other.last > stay.last &&
             other.offset < stay.offset + stay.bytes && stay.offset < other.offset + other.bytes;
    });
    if (!taken) result.push_back({stay.last, stay.offset, stay.bytes});
  }
  return result;
}

// Everybody that a node waits for, directly or not.
std::vector<std::set<int32_t>> all_before(const Dependencies& dependencies) {
  std::vector<std::set<int32_t>> all(dependencies.count());
  for (int32_t node : dependencies.order()) {
    std::set<int32_t>& mine = all[node];
    for (int32_t other : dependencies.before(node)) {
      mine.insert(other);
      mine.insert(all[other].begin(), all[other].end());
    }
  }
  return all;
}

TEST(Dependencies, EveryOrderThatKeepsThemGoesRightOnPaper) {
  size_t different = 0, erased = 0;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    const Graph graph = random_graph(seed, {.forward_ops = 12});
    const Plan plan = testing::random_plan(graph, seed);
    for (const bool erase : {false, true}) {
      const std::vector<Erasure> erasures = erase ? erasures_of(plan) : std::vector<Erasure>{};
      erased += erasures.size();
      const Dependencies dependencies = find_dependencies(graph, plan, erasures);
      std::mt19937_64 random(seed);
      PaperRun paper(graph, plan);
      ASSERT_EQ(paper.run_order(dependencies.order(), erasures), "") << "seed " << seed;
      for (uint64_t n = 0; n < 20; ++n) {
        const std::vector<int32_t> order = draw_order(dependencies, random, n % 10);
        ASSERT_EQ(std::ssize(order), dependencies.count()) << "seed " << seed;
        ASSERT_EQ(paper.run_order(order, erasures), "") << "seed " << seed << ", order " << n;
        different += !std::equal(order.begin(), order.end(), dependencies.order().begin());
      }
    }
  }
  EXPECT_GT(different, 5000u);
  EXPECT_GT(erased, 1000u);
}

TEST(Dependencies, EveryOneIsNeeded) {
  // Without it the two may change places, and some order then goes wrong on paper: most of them show it when they are
  // run in the other order at once.
  size_t edges = 0, wrong = 0;
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    const Graph graph = random_graph(seed, {.forward_ops = 8});
    const Plan plan = testing::random_plan(graph, seed);
    const Dependencies dependencies = find_dependencies(graph, plan);
    const auto all = all_before(dependencies);
    PaperRun paper(graph, plan);
    for (int32_t node = 0; node < dependencies.count(); ++node) {
      const auto before = dependencies.before(node);
      for (int32_t other : before) {
        for (int32_t third : before) {
          ASSERT_FALSE(all[third].contains(other)) << "seed " << seed << ": " << node << " waits twice for " << other;
        }
        // The node right before the other, and all that it needs before that.
        std::vector<int32_t> order;
        for (int32_t n : dependencies.order()) {
          if (n == other || n == node) {
            if (n == node) order.push_back(other);
            continue;
          }
          if (!all[n].contains(other)) order.push_back(n);
        }
        const auto at = std::find(order.begin(), order.end(), other);
        order.insert(at, node);
        for (int32_t n : dependencies.order()) {
          if (n != node && all[n].contains(other)) order.push_back(n);
        }
        ++edges;
        wrong += !paper.run_order(order).empty();
      }
    }
  }
  EXPECT_GT(edges, 500u);
  EXPECT_GT(wrong * 100, edges * 90) << wrong << " of " << edges;
}

TEST(Dependencies, KeepTheOrderOfWorkspacesOnTheSameBytes) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const Graph graph = random_graph(seed, {.forward_ops = 10});
    const Plan plan = testing::random_plan(graph, seed);
    const auto all = all_before(find_dependencies(graph, plan));
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      if (graph.op(plan.steps[s].op).type->is_view) continue;
      for (const Stay& a : plan.stays) {
        if (!a.is_workspace() || a.first != static_cast<StepIndex>(s)) continue;
        for (const Stay& b : plan.stays) {
          if (!b.is_workspace() || b.first >= a.first || b.offset >= a.offset + a.bytes ||
              a.offset >= b.offset + b.bytes)
            continue;
          EXPECT_TRUE(all[s].contains(b.first)) << "seed " << seed << ": steps " << b.first << " and " << s;
        }
      }
    }
  }
}

TEST(Dependencies, AreFewAndAllOnEarlierNodes) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const Graph graph = random_graph(seed, {.forward_ops = 30});
    const Plan plan = testing::random_plan(graph, seed);
    const Dependencies dependencies = find_dependencies(graph, plan);
    EXPECT_TRUE(std::cmp_less_equal(dependencies.edges(), 4 * dependencies.count())) << "seed " << seed;
    std::set<int32_t> seen;
    for (int32_t node : dependencies.order()) {
      for (int32_t other : dependencies.before(node)) EXPECT_TRUE(seen.contains(other));
      seen.insert(node);
    }
    EXPECT_EQ(std::ssize(seen), dependencies.count());
  }
}

}  // namespace
}  // namespace plimsoll
