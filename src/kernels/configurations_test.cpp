#include <gtest/gtest.h>

#include <functional>

#include "plimsoll/error.h"
#include "tests/support/random_candidates.h"

namespace plimsoll {
namespace {

Configuration added_up(std::vector<MicroKernel> parts, const DivisionCost& division) {
  Configuration made{std::move(parts), 0, {}};
  for (const MicroKernel& part : made.parts) {
    made.time_ms += part.time_ms;
    made.workspace = std::max(made.workspace, part.workspace);
  }
  if (made.parts.size() > 1) {
    made.time_ms += division.ms_a_part * static_cast<double>(made.parts.size() - 1);
    made.workspace += division.workspace;
  }
  return made;
}

// Every multiset of candidates entries that covers the batch.
void for_every_configuration(const MicroBatchKernels& candidates, int64_t batch, const DivisionCost& division,
                             const std::function<void(const Configuration&)>& see) {
  std::vector<MicroKernel> entries, parts;
  for (const auto& [size, kernels] : candidates) entries.insert(entries.end(), kernels.begin(), kernels.end());
  std::function<void(size_t, int64_t)> go = [&](size_t from, int64_t left) {
    if (left == 0) return see(added_up(parts, division));
    for (size_t i = from; i < entries.size(); ++i) {
      if (entries[i].batch > left) continue;
      parts.push_back(entries[i]);
      go(i, left - entries[i].batch);
      parts.pop_back();
    }
  };
  go(0, batch);
}

// Whether a configuration is what it says: entries of the candidates that cover the batch, added up.
void expect_honest(const Configuration& made, const MicroBatchKernels& candidates, int64_t batch,
                   const DivisionCost& division) {
  int64_t covered = 0;
  for (const MicroKernel& part : made.parts) {
    covered += part.batch;
    ASSERT_TRUE(candidates.contains(part.batch));
    EXPECT_NE(std::find(candidates.at(part.batch).begin(), candidates.at(part.batch).end(), part),
              candidates.at(part.batch).end());
  }
  EXPECT_EQ(covered, batch);
  EXPECT_EQ(made, added_up(made.parts, division));
  EXPECT_TRUE(std::is_sorted(made.parts.begin(), made.parts.end(),
                             [](const auto& a, const auto& b) { return a.batch > b.batch; }));
}

DivisionCost random_division(std::mt19937& random) {
  if (random() % 2 == 0) return {};
  return {Bytes{static_cast<int64_t>(random() % 4)}, static_cast<double>(random() % 800) / 1024};
}

TEST(FastestWithin, IsTheFastestOfAllConfigurations) {
  for (unsigned seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int64_t batch = 1 + static_cast<int64_t>(random() % 9);
    const MicroBatchKernels candidates = wild_candidates(random, batch, 2);
    const DivisionCost division = random_division(random);
    for (int64_t limit : {0, 2, 5, 8, 12}) {
      double best = INFINITY;
      size_t fewest = 0;
      for_every_configuration(candidates, batch, division, [&](const Configuration& c) {
        if (c.workspace > Bytes{limit} || c.time_ms > best) return;
        fewest = c.time_ms < best ? c.parts.size() : std::min(fewest, c.parts.size());
        best = c.time_ms;
      });
      const auto found = fastest_within(candidates, batch, Bytes{limit}, division);
      ASSERT_EQ(found.has_value(), std::isfinite(best)) << limit;
      if (!found) continue;
      expect_honest(*found, candidates, batch, division);
      EXPECT_LE(found->workspace, Bytes{limit});
      EXPECT_EQ(found->time_ms, best) << limit;
      EXPECT_EQ(found->parts.size(), fewest) << limit;
    }
  }
}

TEST(ParetoFront, KeepsWhatNoConfigurationBeats) {
  for (unsigned seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int64_t batch = 1 + static_cast<int64_t>(random() % 9);
    const MicroBatchKernels candidates = wild_candidates(random, batch, 2);
    const DivisionCost division = random_division(random);
    const std::vector<Configuration> front = pareto_front(candidates, batch, division);
    for (size_t i = 0; i < front.size(); ++i) {
      expect_honest(front[i], candidates, batch, division);
      if (i == 0) continue;
      EXPECT_LT(front[i - 1].workspace, front[i].workspace);
      EXPECT_GT(front[i - 1].time_ms, front[i].time_ms);
    }
    for_every_configuration(candidates, batch, division, [&](const Configuration& c) {
      EXPECT_TRUE(std::any_of(front.begin(), front.end(), [&](const Configuration& f) {
        return f.time_ms <= c.time_ms && f.workspace <= c.workspace;
      }));
    });
  }
}

// The paper's DP over sets of configurations, as it is written: P(n) prunes the union over n' of D(n') + D(n - n').
std::vector<std::pair<int64_t, double>> desirable_sets(const MicroBatchKernels& candidates, int64_t batch) {
  using Point = std::pair<int64_t, double>;
  std::vector<std::vector<Point>> desirable(batch + 1);
  for (int64_t n = 1; n <= batch; ++n) {
    std::vector<Point> all;
    if (candidates.contains(n)) {
      for (const MicroKernel& k : candidates.at(n)) all.emplace_back(k.workspace.count, k.time_ms);
    }
    for (int64_t part = 1; part <= n / 2; ++part) {
      for (const Point& a : desirable[part]) {
        for (const Point& b : desirable[n - part]) all.emplace_back(std::max(a.first, b.first), a.second + b.second);
      }
    }
    std::sort(all.begin(), all.end());
    for (const Point& p : all) {
      auto& kept = desirable[n];
      if (kept.empty() || p.second < kept.back().second) kept.push_back(p);
    }
  }
  return desirable.back();
}

TEST(ParetoFront, IsThePapersDesirableSet) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int64_t batch = 16 + static_cast<int64_t>(random() % 33);
    const MicroBatchKernels candidates =
        seed % 2 == 0 ? wild_candidates(random, batch, 3) : likely_candidates(random, batch, 4, BatchSizes::all);
    std::vector<std::pair<int64_t, double>> ours;
    for (const Configuration& c : pareto_front(candidates, batch)) ours.emplace_back(c.workspace.count, c.time_ms);
    EXPECT_EQ(ours, desirable_sets(candidates, batch));
  }
}

TEST(ParetoFront, HoldsWhatIsFastestWithinEveryLimit) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const MicroBatchKernels candidates =
        likely_candidates(random, 256, 6, seed % 2 == 0 ? BatchSizes::all : BatchSizes::power_of_two);
    const DivisionCost division{Bytes{4096}, in_grains(0.125)};
    const std::vector<Configuration> front = pareto_front(candidates, 256, division);
    ASSERT_FALSE(front.empty());
    for (size_t i = 0; i < front.size(); ++i) {
      EXPECT_EQ(fastest_within(candidates, 256, front[i].workspace, division)->time_ms, front[i].time_ms);
      const Bytes less = front[i].workspace - Bytes{1};
      if (i > 0) {
        EXPECT_EQ(fastest_within(candidates, 256, less, division)->time_ms, front[i - 1].time_ms);
      }
    }
    EXPECT_FALSE(fastest_within(candidates, 256, front[0].workspace - Bytes{1}, division));
  }
}

TEST(FastestWithin, IsNeverSlowerWithMoreBatchSizes) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int64_t batch = 1 + static_cast<int64_t>(random() % 100);
    const MicroBatchKernels whole = likely_candidates(random, batch, 4, BatchSizes::all);
    for (int64_t limit = 1 << 12; limit < int64_t{1} << 30; limit *= 8) {
      double before = INFINITY;
      for (BatchSizes sizes : {BatchSizes::undivided, BatchSizes::power_of_two, BatchSizes::all}) {
        MicroBatchKernels candidates;
        for (int64_t size : micro_batch_sizes(sizes, batch)) candidates[size] = whole.at(size);
        const auto found = fastest_within(candidates, batch, Bytes{limit});
        ASSERT_TRUE(found);
        EXPECT_LE(found->time_ms, before) << to_string(sizes);
        before = found->time_ms;
      }
    }
  }
}

TEST(FastestWithin, DividesWhenTheFastKernelFitsOnAPartOnly) {
  const MicroBatchKernels candidates{{64, {{"direct", 64, 100, 0_B}, {"winograd", 64, 60, 87_MiB}}},
                                     {16, {{"winograd", 16, 16, 33_MiB}}}};
  const auto small = fastest_within(candidates, 64, 64_MiB);
  ASSERT_TRUE(small);
  EXPECT_EQ(small->parts, std::vector<MicroKernel>(4, {"winograd", 16, 16, 33_MiB}));
  EXPECT_EQ(small->time_ms, 64);
  EXPECT_EQ(small->workspace, 33_MiB);
  EXPECT_EQ(fastest_within(candidates, 64, 87_MiB)->parts.size(), 1u);
  EXPECT_EQ(fastest_within(candidates, 64, 32_MiB)->parts[0].kernel, "direct");
  // What a division costs: 3 sums of 13 ms make it slower than the direct kernel; 32 MiB of scratch do not fit.
  EXPECT_EQ(fastest_within(candidates, 64, 64_MiB, {0_B, 13})->parts[0].kernel, "direct");
  EXPECT_EQ(fastest_within(candidates, 64, 64_MiB, {32_MiB, 0})->parts[0].kernel, "direct");
  EXPECT_EQ(fastest_within(candidates, 64, 66_MiB, {32_MiB, 1})->time_ms, 67);
}

TEST(BatchSizes, AreThoseOfThePolicies) {
  EXPECT_EQ(micro_batch_sizes(BatchSizes::undivided, 48), (std::vector<int64_t>{48}));
  EXPECT_EQ(micro_batch_sizes(BatchSizes::power_of_two, 48), (std::vector<int64_t>{1, 2, 4, 8, 16, 32, 48}));
  EXPECT_EQ(micro_batch_sizes(BatchSizes::power_of_two, 8), (std::vector<int64_t>{1, 2, 4, 8}));
  EXPECT_EQ(micro_batch_sizes(BatchSizes::all, 5), (std::vector<int64_t>{1, 2, 3, 4, 5}));
  for (BatchSizes sizes : {BatchSizes::undivided, BatchSizes::power_of_two, BatchSizes::all})
    EXPECT_EQ(batch_sizes_named(to_string(sizes)), sizes);
}

std::string message_of(const std::function<void()>& what) {
  try {
    what();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(BatchSizes, RefuseAnUnknownName) {
  EXPECT_EQ(message_of([] { batch_sizes_named("powerOfTwos"); }).substr(0, 74),
            "unknown batch-size policy 'powerOfTwos'; did you mean 'powerOfTwo'? known:");
}

TEST(FastestWithin, RefusesMenusThatMakeNoSense) {
  EXPECT_EQ(message_of([] { fastest_within({}, 0, 1_MiB); }), "a batch of 0 cannot be divided");
  EXPECT_EQ(message_of([] {
              fastest_within({{4, {{"direct", 2, 1, 0_B}}}}, 8, 1_MiB);
            }),
            "candidates entry 'direct' at micro-batch 4: batch 2, 1 ms and 0 bytes make no sense");
  EXPECT_EQ(message_of([] {
              pareto_front({{4, {{"direct", 4, NAN, 0_B}}}}, 8);
            }),
            "candidates entry 'direct' at micro-batch 4: batch 4, nan ms and 0 bytes make no sense");
  EXPECT_EQ(message_of([] { pareto_front({}, 8, {0_B, -1}); }), "dividing a batch cannot cost less than nothing");
}

}  // namespace
}  // namespace plimsoll
