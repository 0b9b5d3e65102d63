#include "bench/concurrency/regression.h"

#include <gtest/gtest.h>

#include <random>

namespace plimsoll::bench {
namespace {

TEST(LeastSquares, FindsThePlaneThatTheValuesLieOn) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> uniform(-3, 5);
  std::vector<Row> rows;
  std::vector<double> values;
  for (int i = 0; i < 40; ++i) {
    rows.push_back({uniform(random), 1000 * uniform(random), 7});  // the last says nothing
    values.push_back(2 + 3 * rows.back()[0] - 0.01 * rows.back()[1]);
  }
  const LeastSquares model(rows, values);
  EXPECT_NEAR(model({1, 200, 7}), 3, 1e-5);
  EXPECT_NEAR(model({-2, 0, 7}), -4, 1e-5);
}

TEST(LeastSquares, SharesTheWeightOfEqualFeatures) {
  const LeastSquares model({{1, 1}, {2, 2}, {3, 3}}, {2, 4, 6});
  EXPECT_NEAR(model({4, 4}), 8, 1e-5);
}

TEST(CrossValidation, PredictsEachRowFromTheOthers) {
  std::vector<Row> rows;
  std::vector<double> values;
  for (int i = 1; i <= 20; ++i) {
    rows.push_back({static_cast<double>(i)});
    values.push_back(10.0 + i);
  }
  const Quality line = cross_validate(rows, values, 5);
  EXPECT_NEAR(line.accuracy, 1, 1e-6);
  EXPECT_NEAR(line.r2, 1, 1e-6);
  for (size_t i = 0; i < values.size(); ++i) values[i] = i % 2 == 0 ? 1 : 3;  // nothing to be learnt
  EXPECT_LT(cross_validate(rows, values, 5).r2, 0.2);
}

}  // namespace
}  // namespace plimsoll::bench
