// Sums of gradients over batches, and updates that wait for the last one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/run_op.h"

namespace plimsoll {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Elements = std::vector<double>;

constexpr int64_t kOn = 1;

Elements sum(const Elements& gradient, const Elements& before, double count) {
  return run_op("AccumulateGradient", {{{2}, {9, 9}}, {{2}, gradient}, {{2}, before}, {{}, {count}, DType::i64}})[0];
}

TEST(AccumulateGradient, AddsToTheSumAndBeginsAnewWithNone) {
  EXPECT_THAT(sum({1, -2}, {10, 20}, 1), ElementsAre(11, 18));
  EXPECT_THAT(sum({1, -2}, {10, 20}, 7), ElementsAre(11, 18));
  EXPECT_THAT(sum({1, -2}, {NAN, INFINITY}, 0), ElementsAre(1, -2)) << "whatever the sum holds";
}

TEST(AccumulateGradient, RefusesWhatIsNoSumOfThatParameter) {
  EXPECT_THAT(refusal("AccumulateGradient", {{{2}, {}}, {{2}, {}}, {{3}, {}}, {{}, {}, DType::i64}}),
              Not(HasSubstr("i64")));
  EXPECT_NE(refusal("AccumulateGradient", {{{2}, {}}, {{2}, {}}, {{3}, {}}, {{}, {}, DType::i64}}), "");
  EXPECT_THAT(refusal("AccumulateGradient", {{{2}, {}}, {{2}, {}}, {{2}, {}}, {{}, {}}}), HasSubstr("scalar of i64"));
}

TEST(ScaledUpdate, MultipliesTheGradient) {
  for (const double momentum : {0.0, 0.5}) {
    const Attributes attributes = {{"momentum", momentum}, {"weight_decay", 0.1}};
    Attributes scaled = attributes;
    scaled.set("scaled", kOn);
    std::vector<Literal> plain = {{{2}, {1, 2}}, {{2}, {0.5, -1}}, {{}, {0.1}}}, sums = plain;
    sums[1].elements = {2, -4};
    for (auto* inputs : {&plain, &sums}) {
      if (momentum != 0) inputs->push_back({{2}, {3, 4}});
    }
    sums.push_back({{}, {0.25}});
    EXPECT_EQ(run_op("SgdUpdate", sums, scaled), run_op("SgdUpdate", plain, attributes)) << momentum;
  }
  const Literal w{{2}, {1, 2}}, lr{{}, {0.1}}, step{{}, {3}, DType::i64}, m{{2}, {0.1, 0.2}}, v{{2}, {0.3, 0.4}};
  EXPECT_EQ(run_op("AdamUpdate", {w, {{2}, {2, -4}}, lr, step, m, v, {{}, {0.25}}}, {{"scaled", kOn}}),
            run_op("AdamUpdate", {w, {{2}, {0.5, -1}}, lr, step, m, v}));
}

TEST(ScaledUpdate, LeavesEverythingAsItIsBelowZero) {
  const Literal w{{2}, {1, 2}}, g{{2}, {5, 6}}, lr{{}, {0.1}}, m{{2}, {3, 4}}, v{{2}, {7, 8}}, not_yet{{}, {-1}};
  EXPECT_THAT(run_op("SgdUpdate", {w, g, lr, not_yet}, {{"scaled", kOn}, {"weight_decay", 0.5}}),
              ElementsAre(w.elements));
  EXPECT_THAT(run_op("SgdUpdate", {w, g, lr, m, not_yet}, {{"scaled", kOn}, {"momentum", 0.9}}),
              ElementsAre(w.elements, m.elements));
  EXPECT_THAT(run_op("AdamUpdate", {w, g, lr, {{}, {3}, DType::i64}, m, v, not_yet}, {{"scaled", kOn}}),
              ElementsAre(w.elements, m.elements, v.elements));
}

TEST(ScaledClip, ClipsTheMeanAndScalesTheSums) {
  const auto clip = [](double norm, double scale) {
    const auto out = run_op("ClipScale", {{{}, {norm}}, {{}, {scale}}}, {{"max_norm", 2.0}, {"scaled", kOn}});
    return std::pair(out[0][0], out[1][0]);
  };
  EXPECT_THAT(clip(4, 0.25), ::testing::Pair(0.25, 1)) << "the mean's norm is 1";
  const auto [scale, norm] = clip(40, 0.25);
  EXPECT_EQ(norm, 10);
  EXPECT_NEAR(scale * 40, 2, 1e-6);
  EXPECT_THAT(clip(40, -1), ::testing::Pair(-1, 0)) << "no update yet";
}

}  // namespace
}  // namespace plimsoll
