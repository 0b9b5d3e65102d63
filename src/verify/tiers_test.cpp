// Homes, slots and copies: what a plan promises about tiers, broken one promise at a time.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/verify_case.h"

namespace plimsoll {
namespace {

using namespace testing;
constexpr auto kOut = Move::Direction::out;
constexpr auto kIn = Move::Direction::in;

// w lies in tier 0 between steps: it comes in before the first step that reads it, and its new value goes home at the
// end.
Case make_case_with_home() {
  Case c = make_case("baseline");
  add_tiers(c.plan);
  const StepIndex steps = static_cast<StepIndex>(c.plan.steps.size());
  const TensorId w = c.stay("w").tensor, next = c.stay("w.next").tensor;
  c.plan.homes = {{w, 0, 8_KiB}};
  c.plan.moves = {{kIn, w, 0, 8_KiB, -1, 0}, {kOut, next, 0, 8_KiB, c.step_of("w/update"), steps}};
  return c;
}

TEST(VerifyHomes, AcceptAStateThatComesFromItsHomeAndGoesBack) { EXPECT_VALID(make_case_with_home()); }

TEST(VerifyHomes, AStateThatStaysInTheArenaIsReadWrongAndNotAtHomeAtTheEnd) {
  Case c = make_case_with_home();
  c.plan.moves.erase(c.plan.moves.begin());
  EXPECT_BROKEN(c, Rule::wrong_value);
  c = make_case_with_home();
  c.plan.moves.pop_back();
  EXPECT_EQ(text_of(c), "state_misplaced: state 'w' is not in its home, slot 8192 of tier 0, at the end as 'w.next'\n");
  c = make_case_with_home();
  c.plan.moves.back().slot = 12_KiB;
  EXPECT_BROKEN(c, Rule::state_misplaced);
  c = make_case_with_home();
  c.plan.moves.back().tensor = c.stay("w").tensor;  // the old value
  EXPECT_BROKEN(c, Rule::bad_move);
  c = make_case_with_home();
  c.plan.homes.clear();
  EXPECT_BROKEN(c, Rule::bad_move);  // what comes in was never taken out
}

TEST(VerifyHomes, NothingElseMayLieInAStatesHomeAtTheEnd) {
  Case c = make_case_with_home();
  const StepIndex update = c.step_of("w/update"), steps = static_cast<StepIndex>(c.plan.steps.size());
  const TensorId dz = c.stay("dz").tensor;
  // Before the new value goes home, its slot may be used.
  ASSERT_LT(c.step_of("c/backward") + 1, update + 1);
  c.plan.moves.push_back({kOut, dz, 0, 8_KiB, c.step_of("c/backward"), update});
  EXPECT_VALID(c);
  c.plan.moves.back().before = steps;
  EXPECT_BROKEN(c, Rule::bad_move);
  c.plan.moves.back() = {kOut, c.stay("loss").tensor, 0, 8_KiB, steps - 1, steps};
  EXPECT_BROKEN(c, Rule::bad_move);
}

TEST(VerifyHomes, AnInputsHomeMayHoldAnythingAtTheEnd) {
  Case c = make_case("baseline");
  add_tiers(c.plan);
  const TensorId data = c.stay("data").tensor, loss = c.stay("loss").tensor;
  c.plan.homes = {{data, 1, 0_B}};
  EXPECT_BROKEN(c, Rule::wrong_value);
  c.plan.moves = {{kIn, data, 1, 0_B, -1, 0}};
  EXPECT_VALID(c);
  c.plan.moves.push_back({kOut, loss, 1, 0_B, c.step_of("loss"), c.step_of("loss") + 2});
  EXPECT_VALID(c);
}

TEST(VerifyHomes, AreOnePerTensorOfWhatComesFromOutsideApartFromEachOther) {
  Case c = make_case_with_home();
  c.plan.homes.push_back({c.stay("w").tensor, 0, 16_KiB});
  EXPECT_EQ(text_of(c), "bad_home: 'w' has two homes\n");
  c = make_case_with_home();
  c.plan.homes.push_back({c.stay("y").tensor, 0, 16_KiB});
  EXPECT_EQ(text_of(c), "bad_home: 'y' has a home, but is neither an input nor a state\n");
  c = make_case_with_home();
  c.plan.homes.push_back({c.stay("data").tensor, 0, 8_KiB});
  EXPECT_BROKEN(c, Rule::bad_home);
  c = make_case_with_home();
  c.plan.homes[0].tensor = {77};
  EXPECT_BROKEN(c, Rule::bad_index);
  c = make_case_with_home();
  c.plan.homes[0].tier = 2;
  EXPECT_BROKEN(c, Rule::bad_index);
}

TEST(VerifyTiers, SlotsLieAlignedWithinWhatTheTierUsesAndHas) {
  Case c = make_case_with_home();
  c.plan.tiers[0].used = 8_KiB + 127_B;
  EXPECT_BROKEN(c, Rule::out_of_tier);
  c.plan.tiers[0].used = 8_KiB + 128_B;
  EXPECT_VALID(c);
  c.plan.tiers[0].tier.capacity = 8_KiB;
  EXPECT_EQ(text_of(c), "out_of_tier: tier 'host': 8320 bytes are used of a capacity of 8192\n");
  c = make_case_with_home();
  for (Move& m : c.plan.moves) m.slot += 512_B;
  c.plan.homes[0].slot += 512_B;
  EXPECT_EQ(rules_of(c), std::set<Rule>{Rule::misaligned});
}

TEST(VerifyTiers, NumbersOfATierAreFinite) {
  auto broken = [](auto change) {
    Case c = make_case_with_home();
    change(c.plan.tiers[0].tier);
    EXPECT_BROKEN(c, Rule::out_of_tier);
  };
  broken([](TierInfo& t) { t.out_gb_per_s = -1; });
  broken([](TierInfo& t) { t.in_gb_per_s = INFINITY; });
  broken([](TierInfo& t) { t.latency_us = NAN; });
  broken([](TierInfo& t) { t.compute_share = 1.01; });
  broken([](TierInfo& t) { t.compute_share = NAN; });
  broken([](TierInfo& t) { t.capacity = Bytes{-1}; });
  Case c = make_case_with_home();
  c.plan.tiers[0].tier.out_gb_per_s = 0;  // at once
  EXPECT_VALID(c);
}

// u and its view v leave between two steps and come back at once, elsewhere; the copy in is of the view.
TEST(VerifyMoves, WhatComesInMayReadTheSlotOfWhatLeavesBetweenTheSameTwoStepsAndTakeItsPlace) {
  for (const bool same_place : {false, true}) {
    Case c = make_case("baseline");
    add_tiers(c.plan);
    const TensorId u = c.stay("u").tensor, v = c.stay("v").tensor;
    const StepIndex loss = c.step_of("loss"), end = c.stay("u").last;
    c.stay("u").last = c.stay("v").last = loss;
    const Stay there = c.stay("u");
    const Bytes place = same_place ? there.offset : c.top();
    c.grow(there.bytes);
    c.plan.stays.push_back({u, place, there.bytes, loss + 1, end});
    c.plan.stays.push_back({v, place, there.bytes, loss + 1, end});
    EXPECT_BROKEN(c, Rule::wrong_value);
    c.plan.moves = {{kOut, u, 0, 4_KiB, loss, loss + 1}, {kIn, v, 0, 4_KiB, loss, loss + 1}};
    EXPECT_VALID(c);
    c.plan.moves[1].after = loss - 1;  // before it has left
    EXPECT_BROKEN(c, Rule::bad_move);
  }
}

TEST(VerifyMoves, ASlotIsWrittenAgainAfterItsReaderIsDone) {
  Case c = make_case_with_moves();
  const Move in = c.plan.moves[1];
  const TensorId loss = c.stay("loss").tensor;
  c.plan.moves.push_back({kOut, loss, in.tier, in.slot, in.before, in.before + 1});
  EXPECT_VALID(c);
  c.plan.moves.back().after = in.before - 1;
  EXPECT_EQ(text_of(c),
            fmt::format("bad_move: the copy of 'loss' to tier 0 after step {} and before step {}: slot 4096 may "
                        "still be read, by a copy of 'data'\n",
                        in.before - 1, in.before + 1));
}

TEST(VerifyMoves, PartOfASlotWrittenOverIsLost) {
  Case c = make_case_with_moves();
  const StepIndex between = c.step_of("loss");
  // Slots are aligned, so a part is lost only to one that begins at the same place.
  c.plan.moves.push_back({kOut, c.stay("loss").tensor, 0, 4_KiB, between, between + 1});
  EXPECT_BROKEN(c, Rule::bad_move);
  c.plan.moves.back().tier = 1;
  EXPECT_VALID(c);
}

TEST(VerifyMoves, ACopyIntoAPlaceThatAStepTakesOverComesTooEarlyForItsReader) {
  Case c = make_case();
  add_tiers(c.plan);
  ASSERT_EQ(c.stay("z").offset, c.stay("y").offset);  // b writes z over y
  const StepIndex b = c.step_of("b");
  const TensorId z = c.stay("z").tensor;
  c.plan.moves = {{kIn, z, 0, 0_B, b - 1, b}};
  EXPECT_BROKEN(c, Rule::wrong_value);
}

TEST(VerifyMoves, AStepMayNotReadOrWriteWhatIsComingIn) {
  Case c = make_case_with_moves();
  Move& in = c.plan.moves[1];
  const StepIndex reader = in.before;
  c.stay("data").last = 1;
  c.plan.moves[0].before = 2;
  for (Stay& s : c.plan.stays) {
    if (s.tensor == in.tensor && s.first > 1) s.first = 2, s.last = static_cast<StepIndex>(c.plan.steps.size()) - 1;
  }
  in.after = 1;
  EXPECT_VALID(c);
  in.before = reader + 1;
  EXPECT_BROKEN(c, Rule::wrong_value);
}

TEST(VerifyMoves, FiftyThousandAreJudgedInNoTime) {
  Graph g;
  register_test_ops();
  g.name = "long";
  const TensorId x = g.add_source("x", {100}, DType::f32, Role::input);
  const TensorId y = g.output(g.add_op("TestMix", "a", "a", {x}, shaped(10)));
  g.outputs = {y};
  Plan plan;
  plan.graph_fingerprint = fingerprint(g);
  plan.budget = plan.arena = 4_KiB;
  constexpr StepIndex kSteps = 25'000;
  plan.tiers = {{{"host", 1_MiB, 0, 0, 0, 0}, 8_KiB}};
  plan.stays.push_back({y, 0_B, 64_B, 0, kSteps - 1});
  for (StepIndex s = 0; s < kSteps; ++s) {
    plan.steps.push_back({.op = {0}, .recompute = s > 0});
    plan.stays.push_back({x, s % 2 == 0 ? 1_KiB : 2_KiB, 448_B, s, s});
    plan.moves.push_back({kOut, x, 0, s % 2 == 0 ? 0_B : 4_KiB, s, s + 1});
    if (s + 1 < kSteps) plan.moves.push_back({kIn, x, 0, s % 2 == 0 ? 0_B : 4_KiB, s, s + 1});
  }
  EXPECT_TRUE(verify(g, plan).empty()) << verify(g, plan)[0].message;
  --plan.moves[30'001].after;  // its place is not there yet
  EXPECT_BROKEN((Case{g, plan}), Rule::bad_move);
}

}  // namespace
}  // namespace plimsoll
