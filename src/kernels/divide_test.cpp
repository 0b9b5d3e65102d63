#include <gtest/gtest.h>

#include "tests/support/random_candidates.h"

#ifdef PLIMSOLL_CBC
#include <coin/Cbc_C_Interface.h>
#endif

namespace plimsoll {
namespace {

using Fronts = std::vector<std::vector<Configuration>>;

std::vector<std::vector<Configuration>> wild_fronts(std::mt19937& random, int ops, int points, int64_t most_bytes,
                                                    int most_grains) {
  Fronts fronts(ops);
  for (auto& front : fronts) {
    const int count = 1 + static_cast<int>(random() % static_cast<unsigned>(points));
    for (int i = 0; i < count; ++i) {
      front.push_back({{},
                       static_cast<double>(1 + random() % static_cast<unsigned>(most_grains)) / 1024,
                       Bytes{static_cast<int64_t>(random() % static_cast<uint64_t>(most_bytes + 1))}});
    }
  }
  return fronts;
}

Bytes smallest(const Fronts& fronts) {
  Bytes sum;
  for (const auto& front : fronts) {
    sum += std::min_element(front.begin(), front.end(), [](auto& a, auto& b) {
             return a.workspace < b.workspace;
           })->workspace;
  }
  return sum;
}
Bytes of_the_fastest(const Fronts& fronts) {
  Bytes sum;
  for (const auto& front : fronts) {
    sum +=
        std::min_element(front.begin(), front.end(), [](auto& a, auto& b) { return a.time_ms < b.time_ms; })->workspace;
  }
  return sum;
}

void expect_honest(const WorkspaceDivision& division, const Fronts& fronts, Bytes total) {
  ASSERT_EQ(division.chosen.size(), fronts.size());
  double ms = 0;
  Bytes bytes;
  for (size_t k = 0; k < fronts.size(); ++k) {
    ASSERT_LT(division.chosen[k], fronts[k].size());
    ms += fronts[k][division.chosen[k]].time_ms;
    bytes += fronts[k][division.chosen[k]].workspace;
  }
  EXPECT_EQ(ms, division.time_ms);
  EXPECT_EQ(bytes, division.workspace);
  EXPECT_LE(bytes, total);
  EXPECT_LE(division.lower_bound_ms, division.time_ms * (1 + 1e-12));
}

double by_trying_all(const Fronts& fronts, Bytes total, size_t k = 0) {
  if (k == fronts.size()) return 0;
  double best = INFINITY;
  for (const Configuration& c : fronts[k]) {
    if (c.workspace <= total) best = std::min(best, c.time_ms + by_trying_all(fronts, total - c.workspace, k + 1));
  }
  return best;
}

TEST(DivideWorkspace, IsTheFastestOfAllDivisions) {
  for (unsigned seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    // Few different values make ties; many, near misses.
    const Fronts fronts = wild_fronts(random, 1 + static_cast<int>(random() % 6), 5, seed % 3 == 0 ? 6 : 100000,
                                      seed % 2 == 0 ? 8 : 100000);
    const Bytes total{static_cast<int64_t>(random() % static_cast<uint64_t>(of_the_fastest(fronts).count + 2))};
    const auto division = divide_workspace(fronts, total);
    const double best = by_trying_all(fronts, total);
    ASSERT_EQ(division.has_value(), std::isfinite(best));
    if (!division) continue;
    expect_honest(*division, fronts, total);
    EXPECT_TRUE(division->exact);
    EXPECT_EQ(division->time_ms, best);
  }
}

// Time and workspace tied to each other: no price tells configurations apart, the hard case of knapsacks.
TEST(DivideWorkspace, IsExactWhereTimeAndWorkspaceGoTogether) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Fronts fronts(7);
    for (auto& front : fronts) {
      for (int i = 0; i < 5; ++i) {
        const int64_t bytes = static_cast<int64_t>(random() % 10000);
        front.push_back(
            {{}, static_cast<double>(20000 - bytes + static_cast<int64_t>(random() % 3)) / 1024, Bytes{bytes}});
      }
    }
    const Bytes total{(smallest(fronts).count + of_the_fastest(fronts).count) / 2};
    const auto division = divide_workspace(fronts, total);
    ASSERT_TRUE(division);
    EXPECT_TRUE(division->exact);
    EXPECT_EQ(division->time_ms, by_trying_all(fronts, total));
  }
}

// Exact for whole bytes of any size: time by used bytes, all of them.
double by_quanta(const Fronts& fronts, int64_t total) {
  std::vector<double> best(total + 1, 0);
  for (const auto& front : fronts) {
    std::vector<double> next(best.size(), INFINITY);
    for (const Configuration& c : front) {
      for (int64_t b = c.workspace.count; b <= total; ++b) {
        next[b] = std::min(next[b], best[b - c.workspace.count] + c.time_ms);
      }
    }
    best = std::move(next);
  }
  return best.back();
}

TEST(DivideWorkspace, IsExactForHundredsOfOps) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Fronts fronts = wild_fronts(random, 160, 8, 40, 100000);
    const int64_t least = smallest(fronts).count, most = of_the_fastest(fronts).count;
    for (int64_t share : {1, 3, 6, 9}) {
      const int64_t total = least + (most - least) * share / 10;
      const auto division = divide_workspace(fronts, Bytes{total});
      ASSERT_TRUE(division);
      expect_honest(*division, fronts, Bytes{total});
      EXPECT_TRUE(division->exact);
      EXPECT_NEAR(division->time_ms, by_quanta(fronts, total), 1e-9);
    }
  }
}

#ifdef PLIMSOLL_CBC
double by_cbc(const Fronts& fronts, Bytes total) {
  Cbc_Model* model = Cbc_newModel();
  Cbc_setLogLevel(model, 0);
  std::vector<int> columns;
  std::vector<double> bytes;
  int next = 0;
  for (const auto& front : fronts) {
    std::vector<int> ones;
    for (const Configuration& c : front) {
      Cbc_addCol(model, "", 0, 1, c.time_ms, 1, 0, nullptr, nullptr);
      columns.push_back(next);
      bytes.push_back(static_cast<double>(c.workspace.count));
      ones.push_back(next++);
    }
    const std::vector<double> weights(ones.size(), 1.0);
    Cbc_addRow(model, "", static_cast<int>(ones.size()), ones.data(), weights.data(), 'E', 1);
  }
  Cbc_addRow(model, "", static_cast<int>(columns.size()), columns.data(), bytes.data(), 'L',
             static_cast<double>(total.count));
  Cbc_setAllowableGap(model, 0);
  Cbc_setAllowableFractionGap(model, 0);
  Cbc_solve(model);
  const double value = Cbc_isProvenOptimal(model) ? Cbc_getObjValue(model) : NAN;
  Cbc_deleteModel(model);
  return value;
}
#endif

TEST(DivideWorkspace, AgreesWithCbc) {
#ifdef PLIMSOLL_CBC
  for (unsigned seed = 0; seed < 240; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int ops = 4 + static_cast<int>(random() % 16);
    Fronts fronts = seed % 3 == 0   ? wild_fronts(random, ops, 6, 5000, 100000)
                    : seed % 3 == 1 ? likely_fronts(random, ops, 32, 4, BatchSizes::power_of_two)
                                    : curved_fronts(random, ops, 6);
    const Bytes least = smallest(fronts), most = of_the_fastest(fronts);
    const Bytes total = least + Bytes{static_cast<int64_t>(static_cast<double>((most - least).count) *
                                                           static_cast<double>(random() % 1000) / 1000)};
    const auto division = divide_workspace(fronts, total);
    ASSERT_TRUE(division);
    expect_honest(*division, fronts, total);
    EXPECT_TRUE(division->exact);
    EXPECT_NEAR(division->time_ms, by_cbc(fronts, total), 1e-6 * division->time_ms);
  }
#else
  GTEST_SKIP() << "CBC was not found when this was built (Debian: coinor-libcbc-dev)";
#endif
}

TEST(DivideWorkspace, LosesNothingWhenOnlyFrontsAreLookedAt) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Fronts all(4), fronts(4);
    for (size_t k = 0; k < all.size(); ++k) {
      // Every way to divide a batch of 4 into at most two kinds of parts.
      const MicroBatchKernels candidates = likely_candidates(random, 4, 3, BatchSizes::all);
      fronts[k] = pareto_front(candidates, 4);
      for (const MicroKernel& whole : candidates.at(4)) all[k].push_back({{whole}, whole.time_ms, whole.workspace});
      for (const auto& [sizes, counts] : std::vector<std::pair<std::pair<int, int>, std::pair<int, int>>>{
               {{1, 3}, {1, 1}}, {{2, 2}, {1, 1}}, {{1, 1}, {1, 3}}, {{1, 1}, {2, 2}}, {{2, 1}, {1, 2}}}) {
        for (const MicroKernel& a : candidates.at(sizes.first)) {
          for (const MicroKernel& b : candidates.at(sizes.second)) {
            all[k].push_back(
                {{}, a.time_ms * counts.first + b.time_ms * counts.second, std::max(a.workspace, b.workspace)});
          }
        }
      }
    }
    const Bytes total{static_cast<int64_t>(random() % static_cast<uint64_t>(of_the_fastest(all).count + 1))};
    const auto pruned = divide_workspace(fronts, total);
    ASSERT_EQ(pruned.has_value(), total >= smallest(fronts));
    if (pruned) {
      EXPECT_EQ(pruned->time_ms, by_trying_all(all, total));
    }
  }
}

TEST(DivideWorkspace, IsNeverSlowerThanEqualShares) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int ops = 5 + static_cast<int>(random() % 30);
    std::vector<MicroBatchKernels> candidates;
    Fronts fronts;
    for (int i = 0; i < ops; ++i) {
      candidates.push_back(likely_candidates(random, 64, 4, BatchSizes::power_of_two));
      fronts.push_back(pareto_front(candidates.back(), 64));
    }
    for (int64_t share = 1 << 14; share < int64_t{1} << 28; share *= 4) {
      double shares_ms = 0;
      for (const MicroBatchKernels& candidates : candidates)
        shares_ms += fastest_within(candidates, 64, Bytes{share})->time_ms;
      const auto division = divide_workspace(fronts, Bytes{share * ops});
      ASSERT_TRUE(division);
      EXPECT_LE(division->time_ms, shares_ms);
    }
  }
}

TEST(DivideWorkspace, SaysWhenNothingFits) {
  const Fronts fronts{{{{}, 1, 10_B}, {{}, 2, 4_B}}, {{{}, 3, 5_B}}};
  EXPECT_FALSE(divide_workspace(fronts, 8_B));
  EXPECT_EQ(divide_workspace(fronts, 9_B)->chosen, (std::vector<size_t>{1, 0}));
  EXPECT_EQ(divide_workspace(fronts, 15_B)->chosen, (std::vector<size_t>{0, 0}));
  EXPECT_FALSE(divide_workspace(Fronts{{}, fronts[0]}, 100_B));
  const auto nothing = divide_workspace(Fronts{}, 0_B);
  ASSERT_TRUE(nothing);
  EXPECT_TRUE(nothing->exact);
  EXPECT_EQ(nothing->time_ms, 0);
}

}  // namespace
}  // namespace plimsoll
