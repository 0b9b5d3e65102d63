// The verifier against a run on paper (tests/support/paper_run.h): what it accepts goes right at every timing of the
// copies, and what goes wrong it names.
#include <gtest/gtest.h>

#include "plimsoll/verify.h"
#include "tests/support/mutations.h"
#include "tests/support/paper_run.h"
#include "tests/support/random_plan.h"

namespace plimsoll {
namespace {

using testing::Mutation;
using testing::PaperRun;

std::string text_of(const std::vector<Violation>& violations) {
  std::string text;
  for (const Violation& v : violations) text += fmt::format("{}: {}\n", to_string(v.rule), v.message);
  return text;
}

TEST(Verify, AcceptsRandomPlansWithMovesHomesAndRecomputationsWhichGoRightOnPaper) {
  size_t moves = 0, homes = 0, recomputations = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const Graph graph = testing::random_graph(seed, {.forward_ops = 12});
    const Plan plan = testing::random_plan(graph, seed, true);
    ASSERT_EQ(text_of(verify(graph, plan, 3)), "") << "seed " << seed;
    ASSERT_EQ(PaperRun(graph, plan).run_all(seed), "") << "seed " << seed;
    moves += plan.moves.size();
    homes += plan.homes.size();
    for (const Step& step : plan.steps) recomputations += step.recompute;
  }
  EXPECT_GT(moves, 3000u);
  EXPECT_GT(homes, 500u);
  EXPECT_GT(recomputations, 500u);
}

TEST(Verify, SeesEveryMutationThatGoesWrongOnPaper) {
  std::map<std::string, std::pair<int, int>> seen;  // by mutation: gone wrong, tried
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const Graph graph = testing::random_graph(seed, {.forward_ops = 8});
    const Plan whole = testing::random_plan(graph, seed, true);
    std::mt19937_64 random(seed);
    for (const Mutation& mutation : testing::mutations()) {
      Plan plan = whole;
      if (!mutation.apply(graph, plan, random)) continue;
      const std::vector<Violation> violations = verify(graph, plan, 1000);
      const std::string wrong = mutation.always_wrong ? "by definition" : PaperRun(graph, plan).run_all(seed);
      auto& [bad, tried] = seen[std::string(mutation.name)];
      ++tried;
      if (wrong.empty()) continue;
      ++bad;
      const bool named = std::any_of(violations.begin(), violations.end(),
                                     [&](const Violation& v) { return mutation.rules.contains(v.rule); });
      EXPECT_TRUE(named) << "seed " << seed << ", " << mutation.name << ": " << wrong << "\n" << text_of(violations);
    }
  }
  for (const Mutation& mutation : testing::mutations()) {
    const auto [bad, tried] = seen[std::string(mutation.name)];
    EXPECT_GT(bad, 4) << mutation.name << ", tried " << tried;
  }
}

TEST(Verify, AcceptsNoMutatedPlanThatGoesWrongOnPaper) {
  int accepted = 0;
  for (uint64_t seed = 1; seed <= 1300; ++seed) {
    const Graph graph = testing::random_graph(seed, {.forward_ops = 5});
    Plan plan = testing::random_plan(graph, seed, true);
    std::mt19937_64 random(seed);
    for (int n = 1; n <= 4; ++n) {
      const auto& list = testing::mutations();
      const Mutation& mutation = list[random() % list.size()];
      if (mutation.always_wrong || !mutation.apply(graph, plan, random)) continue;
      if (!verify(graph, plan, 1).empty()) continue;
      ++accepted;
      EXPECT_EQ(PaperRun(graph, plan).run_all(seed), "") << "seed " << seed << " after " << mutation.name;
    }
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace plimsoll
