// Valid plans are damaged in every way that a planner's bug could; each time the rule that is broken must be named.
#include "plimsoll/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/policy.h"
#include "plan/simulate.h"
#include "tests/support/verify_case.h"

namespace plimsoll {
namespace {

using namespace testing;

TEST(Verify, AcceptsThePlansOfEveryPolicy) {
  EXPECT_VALID(make_case("liveness"));
  EXPECT_VALID(make_case("baseline"));
}

TEST(Verify, NamesTheStepTheOpTheTensorAndTheOffsets) {
  Case c = make_case();
  Stay& y = c.stay("y");
  y.offset = c.stay("data").offset;
  const auto violations = verify(c.graph, c.plan);
  ASSERT_FALSE(violations.empty());
  EXPECT_EQ(violations[0].rule, Rule::overlap);
  EXPECT_THAT(violations[0].message, ::testing::HasSubstr("'y' at ["));
  EXPECT_THAT(violations[0].message, ::testing::HasSubstr("'data' at ["));
  EXPECT_THAT(violations[0].message, ::testing::HasSubstr("share bytes in step 0"));
  EXPECT_THROW(require_valid(c.graph, c.plan), Error);
}

TEST(Verify, SeesStepsWithThreadsThatNoMachineHas) {
  for (const int threads : {-1, 4097, 2000000000}) {
    Case c = make_case();
    c.plan.steps[3].threads = threads;
    EXPECT_EQ(text_of(c),
              fmt::format("bad_threads: step 3 is to run by {} threads; 0 (all) to 4096 are possible\n", threads));
  }
  for (const int threads : {0, 1, 4096}) {
    Case c = make_case();
    c.plan.steps[3].threads = threads;
    EXPECT_VALID(c);
  }
}

TEST(Verify, SeesDivisionsThatDoNotMakeUpTheBatch) {
  Graph graph;
  const TensorId x = graph.add_source("x", {6, 2}, DType::f32, Role::input);
  graph.outputs = {graph.output(graph.add_op("ReluForward", "relu", "", {x}))};
  graph.inputs = {x};
  Plan plan{.graph_name = graph.name, .graph_fingerprint = fingerprint(graph), .budget = 128_B, .arena = 128_B};
  plan.steps = {{.op = {0}, .kernel = "a@4+b@2"}};
  plan.stays = {{x, {}, 64_B, 0, 0}, {graph.outputs[0], 64_B, 64_B, 0, 0}};
  auto error_of = [&](std::string kernel) {
    plan.steps[0].kernel = std::move(kernel);
    const std::vector<Violation> violations = verify(graph, plan);
    return violations.empty() ? "" : fmt::format("{}: {}", to_string(violations[0].rule), violations[0].message);
  };
  EXPECT_EQ(error_of("a@4+b@2"), "");
  EXPECT_EQ(error_of("a@1*6"), "");
  EXPECT_EQ(error_of("a@4+b@3"),
            "bad_division: step 0 ('relu'): the parts of 'a@4+b@3' do not make up the 6 rows of the batch");
  EXPECT_EQ(
      error_of("a@9000000000000000000*2"),
      "bad_division: step 0 ('relu'): the parts of 'a@9000000000000000000*2' do not make up the 6 rows of the batch");
  EXPECT_EQ(error_of("a@6"),
            "bad_division: step 0 ('relu'): 'a@6' names no kernel and no configuration of kernels: a configuration has "
            "at least two parts");
}

TEST(Verify, SeesMoreStepsAtOnceThanAnyMachineRuns) {
  for (const int inter_op : {-1, 0, 4097, 2000000000}) {
    Case c = make_case();
    c.plan.cores.inter_op = inter_op;
    EXPECT_EQ(text_of(c), fmt::format("bad_threads: {} steps are to run at once; 1 to 4096 are possible\n", inter_op));
  }
  for (const int inter_op : {1, 2, 4096}) {
    Case c = make_case();
    c.plan.cores.inter_op = inter_op;
    EXPECT_VALID(c);
  }
}

TEST(Verify, SeesAPlanForAnotherGraph) {
  Case c = make_case();
  c.graph.op({0}).attributes.set("shape", of(63));
  EXPECT_BROKEN(c, Rule::wrong_graph);
}

TEST(Verify, SeesAnOpThatNeverRuns) {
  Case c = make_case();
  const StepIndex at = c.step_of("a/backward");
  c.plan.steps.erase(c.plan.steps.begin() + at);
  for (Stay& s : c.plan.stays) {
    if (s.first > at) --s.first;
    if (s.last >= at) s.last = std::max(s.first, s.last - 1);
  }
  EXPECT_BROKEN(c, Rule::op_missing);
}

TEST(Verify, SeesAnOpThatRunsTwice) {
  Case c = make_case();
  const StepIndex at = c.step_of("loss");
  c.insert_step(at + 1, c.plan.steps[at]);
  EXPECT_BROKEN(c, Rule::op_repeated);
}

TEST(Verify, AcceptsARecomputationButNotBeforeTheOpHasRunNorOfAnUpdate) {
  Case c = make_case("baseline");
  Step again = c.plan.steps[c.step_of("loss")];
  again.recompute = true;
  c.insert_step(c.step_of("loss") + 1, again);
  EXPECT_VALID(c);
  Case early = make_case("baseline");
  early.plan.steps[early.step_of("loss")].recompute = true;
  EXPECT_BROKEN(early, Rule::op_missing);
  Case update = make_case("baseline");
  Step twice = update.plan.steps[update.step_of("w/update")];
  twice.recompute = true;
  update.plan.steps.push_back(twice);
  for (Stay& s : update.plan.stays) {
    if (s.last == static_cast<StepIndex>(update.plan.steps.size()) - 2) ++s.last;
  }
  EXPECT_BROKEN(update, Rule::state_changed);
}

TEST(Verify, ARecomputedNormLeavesItsStatisticAlone) {
  Case c = make_case("baseline");
  // z is overwritten by nothing under baseline, so that the norm can run again right before its backward step.
  Step again = c.plan.steps[c.step_of("c")];
  again.recompute = true;
  c.insert_step(c.step_of("c/backward"), again);
  EXPECT_VALID(c);
}

TEST(Verify, SeesTwoDependentStepsExchanged) {
  for (std::string_view policy : {"liveness", "baseline"}) {
    Case c = make_case(policy);
    std::swap(c.plan.steps[c.step_of("a")], c.plan.steps[c.step_of("b")]);
    const std::set<Rule> rules = rules_of(c);
    EXPECT_TRUE(rules.contains(Rule::wrong_value) || rules.contains(Rule::not_resident)) << text_of(c);
  }
}

// What is broken when a tensor that was there at the end is gone then.
Rule rule_at_end(const Graph& graph, TensorId tensor) {
  for (const State& state : graph.states) {
    if (state.after == tensor) return Rule::state_misplaced;
  }
  const bool is_output = std::find(graph.outputs.begin(), graph.outputs.end(), tensor) != graph.outputs.end();
  return is_output ? Rule::output_missing : Rule::not_resident;  // the last step reads it
}

TEST(Verify, SeesEveryStayThatEndsTooEarly) {
  const Case whole = make_case();
  for (size_t i = 0; i < whole.plan.stays.size(); ++i) {
    Case c = whole;
    Stay& s = c.plan.stays[i];
    if (s.is_workspace()) continue;
    const TensorId tensor = s.tensor;
    const bool at_end = s.last == std::ssize(c.plan.steps) - 1;
    if (s.last == s.first) {
      c.plan.stays.erase(c.plan.stays.begin() + static_cast<ptrdiff_t>(i));
    } else {
      --s.last;
    }
    EXPECT_BROKEN(c, at_end ? rule_at_end(c.graph, tensor) : Rule::not_resident);
  }
}

TEST(Verify, SeesEveryStayThatBeginsTooLate) {
  const Case whole = make_case();
  for (size_t i = 0; i < whole.plan.stays.size(); ++i) {
    Case c = whole;
    Stay& s = c.plan.stays[i];
    if (s.first == s.last) continue;
    ++s.first;
    // `run` is read by a later step than its first: what was there at the beginning is lost by then.
    EXPECT_BROKEN(c, c.graph.tensor(s.tensor).name == "run" ? Rule::wrong_value : Rule::not_resident);
  }
}

TEST(Verify, SeesTwoOffsetsExchanged) {
  const Case whole = make_case("baseline");
  int seen = 0;
  for (std::string_view name : {"y", "z", "du", "dz", "dw", "data"}) {
    Case c = whole;
    std::swap(c.stay(name).offset, c.stay("w").offset);  // w has its place to end in
    seen += rules_of(c).contains(Rule::state_misplaced);
  }
  EXPECT_EQ(seen, 6);
  Case c = make_case();
  std::swap(c.stay("data").offset, c.stay("y").offset);
  EXPECT_BROKEN(c, Rule::overlap);
}

TEST(Verify, SeesAStayThatIsTooSmall) {
  const Case whole = make_case();
  for (size_t i = 0; i < whole.plan.stays.size(); ++i) {
    Case c = whole;
    Stay& s = c.plan.stays[i];
    s.bytes = s.is_workspace() ? 448_B : c.graph.tensor(s.tensor).bytes() - 1_B;
    EXPECT_BROKEN(c, Rule::wrong_size);
  }
}

TEST(Verify, SeesAWorkspaceThatIsNotThere) {
  Case c = make_case();
  std::erase_if(c.plan.stays, [](const Stay& s) { return s.is_workspace(); });
  EXPECT_BROKEN(c, Rule::not_resident);
}

TEST(Verify, SeesWhatLiesOutsideTheArenaOrTheArenaOutsideTheBudget) {
  Case c = make_case();
  c.plan.arena = c.plan.arena - 64_B;
  EXPECT_BROKEN(c, Rule::out_of_arena);
  Case d = make_case();
  d.plan.budget = d.plan.arena - 1_B;
  EXPECT_BROKEN(d, Rule::out_of_arena);
}

TEST(Verify, SeesAnOffsetThatIsNotAligned) {
  Case c = make_case();
  c.stay("y").offset = c.top() + 4_B;
  c.grow(1_KiB);
  EXPECT_BROKEN(c, Rule::misaligned);
}

TEST(Verify, SeesAStateThatEndsElsewhere) {
  Case c = make_case();
  c.stay("w.next").offset = c.top();
  c.grow(128_B);
  EXPECT_BROKEN(c, Rule::state_misplaced);
  Case gone = make_case();
  gone.stay("run.next").last -= 1;
  EXPECT_BROKEN(gone, Rule::state_misplaced);
}

TEST(Verify, SeesAStateReadAfterItsUpdate) {
  Case c = make_case("baseline");
  // The update moves before the backward op that still reads w.
  const StepIndex update = c.step_of("w/update"), reader = c.step_of("a/backward");
  std::swap(c.plan.steps[update], c.plan.steps[reader]);
  c.stay("w").last = reader;
  c.stay("w.next").first = reader;
  EXPECT_BROKEN(c, Rule::state_changed);
}

TEST(Verify, SeesAnInputThatIsNotThereFromTheStartEvenIfNobodyReadsIt) {
  Case c = make_case();
  const TensorId unread = c.graph.add_source("unread", of(8), DType::f32, Role::input);
  c.plan.graph_fingerprint = fingerprint(c.graph);
  EXPECT_BROKEN(c, Rule::not_resident);
  c.plan.stays.push_back({unread, c.top(), 64_B, 1, 2});
  c.grow(64_B);
  EXPECT_BROKEN(c, Rule::not_resident);
  c.plan.stays.back().first = 0;
  c.plan.predicted = {};  // it claims nothing: its peak is another one now
  EXPECT_VALID(c);
}

TEST(Verify, SeesAnOutputThatIsGoneAtTheEnd) {
  Case c = make_case();
  c.stay("loss").last -= 1;
  EXPECT_BROKEN(c, Rule::output_missing);
}

TEST(Verify, SeesAnInPlaceWriteThatTheOpDoesNotAllow) {
  Case c = make_case("baseline");
  // a is no in-place op: y may not take data's bytes even where data ends there. (It is read again here, so it is kept
  // apart.)
  Stay& u = c.stay("u");
  Stay& du = c.stay("du");
  du.offset = u.offset;
  EXPECT_BROKEN(c, Rule::overlap);
  // b may overwrite y, but only at y's own offset.
  Case d = make_case();
  ASSERT_EQ(d.stay("z").offset, d.stay("y").offset);
  d.stay("z").offset += 64_B;
  d.grow(1_KiB);
  EXPECT_BROKEN(d, Rule::overlap);
  // and only where y is not needed any more.
  Case e = make_case();
  e.stay("y").last += 1;
  EXPECT_BROKEN(e, Rule::overlap);
}

TEST(Verify, SeesAViewThatLiesApartFromWhatItViews) {
  Case c = make_case();
  c.stay("v").offset = c.top();
  c.grow(1_KiB);
  EXPECT_BROKEN(c, Rule::wrong_value);
}

TEST(Verify, SeesATensorThatLiesTwice) {
  Case c = make_case();
  Stay copy = c.stay("loss");
  copy.offset = c.top();
  c.grow(64_B);
  c.plan.stays.push_back(copy);
  EXPECT_BROKEN(c, Rule::overlap);
}

TEST(Verify, SeesIndicesThatDoNotExist) {
  auto broken = [](auto change) {
    Case c = make_case();
    change(c.plan);
    EXPECT_BROKEN(c, Rule::bad_index);
  };
  broken([](Plan& p) { p.steps[0].op = {99}; });
  broken([](Plan& p) { p.steps[0].op = {-1}; });
  broken([](Plan& p) { p.steps[0].workspace = {-5}; });
  broken([](Plan& p) { p.stays[0].tensor = {1000}; });
  broken([](Plan& p) { p.stays[0].tensor = {-7}; });
  broken([](Plan& p) { p.stays[0].first = -1; });
  broken([](Plan& p) { p.stays[0].last = 1000; });
  broken([](Plan& p) { p.stays[0].first = p.stays[0].last + 1; });
  broken([](Plan& p) { p.stays[0].offset = {INT64_MAX}; });
  broken([](Plan& p) { p.moves.push_back({Move::Direction::out, {-1}, 0, {}, 0, 1}); });
  broken([](Plan& p) { p.moves.push_back({Move::Direction::out, {0}, 0, {}, 3, 3}); });
  broken([](Plan& p) { p.moves.push_back({Move::Direction::out, {0}, 0, {}, 0, 1000}); });
}

TEST(Verify, AcceptsATensorThatLeavesAndComesBack) { EXPECT_VALID(make_case_with_moves()); }

TEST(Verify, SeesEveryMoveThatIsTooLateOrTooEarly) {
  auto broken = [](Rule rule, auto change) {
    Case c = make_case_with_moves();
    change(c, c.plan.moves[0], c.plan.moves[1]);
    EXPECT_BROKEN(c, rule);
  };
  broken(Rule::wrong_value, [](Case&, Move&, Move& in) { in.before += 1; });  // read before it is back
  broken(Rule::bad_move, [](Case&, Move&, Move& in) { in.after -= 1; });      // its place is not there yet
  broken(Rule::bad_move, [](Case&, Move& out, Move&) { out.before += 1; });   // its place is gone
  broken(Rule::bad_move, [](Case& c, Move& out, Move& in) {                   // not complete when fetched
    out.before = in.after + 2;
    c.stay("data").last = in.after + 1;
  });
  broken(Rule::bad_move, [](Case&, Move&, Move& in) { in.slot = 8_KiB; });                          // another slot
  broken(Rule::bad_move, [](Case&, Move&, Move& in) { in.tier = 1; });                              // another tier
  broken(Rule::bad_move, [](Case& c, Move&, Move&) { c.plan.moves.erase(c.plan.moves.begin()); });  // never taken out
  broken(Rule::wrong_value, [](Case& c, Move&, Move&) { c.plan.moves.pop_back(); });  // never brought back
  broken(Rule::bad_move, [](Case& c, Move&, Move&) {                                  // the slot is overwritten
    c.plan.moves.push_back({Move::Direction::out, c.stay("u").tensor, 0, 4_KiB, 4, 6});
  });
}

TEST(Verify, SeesACopyOfWhatIsNotWrittenYetOrBeingOverwritten) {
  Case c = make_case("baseline");
  add_tiers(c.plan);
  c.plan.moves = {{Move::Direction::out, c.stay("du").tensor, 0, 0_B, 0, 1}};
  EXPECT_BROKEN(c, Rule::bad_move);
  Case d = make_case();
  ASSERT_EQ(d.stay("z").offset, d.stay("y").offset);
  const StepIndex a = d.step_of("a"), b = d.step_of("b");
  add_tiers(d.plan);
  d.plan.moves = {{Move::Direction::out, d.stay("y").tensor, 0, 0_B, a, b}};
  EXPECT_VALID(d);
  d.plan.moves[0].before = b + 1;  // b writes z into y's bytes
  EXPECT_BROKEN(d, Rule::bad_move);
}

TEST(Verify, StopsAtTheLimit) {
  Case c = make_case();
  c.plan.stays.clear();
  EXPECT_EQ(verify(c.graph, c.plan, 3).size(), 3u);
  EXPECT_GT(verify(c.graph, c.plan).size(), 3u);
}

bool uses(const Op& op, TensorId tensor) {
  return std::find(op.inputs.begin(), op.inputs.end(), tensor) != op.inputs.end() ||
         std::find(op.outputs.begin(), op.outputs.end(), tensor) != op.outputs.end();
}

TEST(Verify, AnyShortenedOrShiftedStayOfARandomPlanIsSeen) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Graph graph = random_graph(seed, {.forward_ops = 20});
    const Route route = make_route(graph);
    const auto kernels = random_kernels(graph, seed);
    const CostTable costs;
    const Plan whole = std::get<Plan>(
        find_policy("liveness")
            .plan(
                {.graph = graph, .route = route, .kernels = kernels, .costs = costs, .device = {}, .effort = 100'000}));
    std::mt19937_64 random(seed);
    for (int n = 0; n < 20; ++n) {
      Case c{graph, whole};
      const size_t i = random() % whole.stays.size();
      Stay& s = c.plan.stays[i];
      if (s.is_workspace()) continue;
      const TensorId tensor = s.tensor;
      Rule expected = Rule::not_resident;
      if (s.first == s.last) {
        if (!graph.tensor(tensor).producer.valid()) continue;
        c.plan.stays.erase(c.plan.stays.begin() + static_cast<ptrdiff_t>(i));
      } else if (n % 2 == 0) {
        if (s.last == std::ssize(whole.steps) - 1) expected = rule_at_end(graph, tensor);
        --s.last;
      } else {
        if (!uses(graph.op(whole.steps[s.first].op), tensor)) expected = Rule::wrong_value;  // a later step reads it
        ++s.first;
      }
      EXPECT_BROKEN(c, expected) << "seed " << seed << " tensor " << graph.tensor(tensor).name;
    }
  }
}

// make_case, whose batch comes over a link to a second buffer.
Case make_fed_case() {
  Case c = make_case();
  const Tensor& data = c.graph.tensor(c.graph.find_tensor("data"));
  c.plan.feeding = {.inputs = {{c.graph.find_tensor("data"), c.top(), align_up(data.bytes(), kStayAlignment)}},
                    .second_buffer = true,
                    .latency_us = 10,
                    .gb_per_s = 20,
                    .arena_gb_per_s = 1000};
  c.grow(c.plan.feeding.inputs[0].bytes);
  c.plan.predicted = simulate(c.graph, c.plan);
  return c;
}

TEST(Verify, AcceptsASecondBufferForTheBatch) {
  Case c = make_fed_case();
  EXPECT_VALID(c);
  EXPECT_EQ(c.plan.predicted.peak, make_case().plan.predicted.peak + 448_B);
  c.plan.feeding.second_buffer = false;
  c.plan.predicted = simulate(c.graph, c.plan);
  EXPECT_VALID(c);
}

TEST(Verify, SeesASecondBufferThatIsNotTheBatchsAlone) {
  for (const char* other : {"w", "y", "du"}) {  // at whatever step it is there
    Case c = make_fed_case();
    c.plan.feeding.inputs[0].offset = c.stay(other).offset;
    EXPECT_BROKEN(c, Rule::overlap);
  }
  Case c = make_fed_case();
  c.plan.feeding.inputs[0].offset += 64_B;
  EXPECT_BROKEN(c, Rule::out_of_arena);
  c = make_fed_case();
  c.plan.feeding.inputs[0].offset += 4_B;
  c.grow(4_B);
  EXPECT_BROKEN(c, Rule::misaligned);
  c = make_fed_case();
  c.plan.feeding.inputs[0].bytes -= 64_B;
  EXPECT_BROKEN(c, Rule::wrong_size);
  c = make_fed_case();
  c.plan.feeding.inputs[0].offset = {-64};
  EXPECT_BROKEN(c, Rule::bad_index);
}

TEST(Verify, SeesABatchThatIsNotWhole) {
  Case c = make_fed_case();
  c.plan.feeding.inputs[0].tensor = c.graph.find_tensor("w");
  EXPECT_BROKEN(c, Rule::bad_feeding);
  c = make_fed_case();
  c.plan.feeding.inputs.push_back(c.plan.feeding.inputs[0]);
  EXPECT_BROKEN(c, Rule::bad_feeding);
  c = make_fed_case();
  c.plan.feeding.inputs.clear();
  EXPECT_BROKEN(c, Rule::bad_feeding);
  c = make_fed_case();
  c.plan.feeding.inputs[0].tensor = {-1};
  EXPECT_BROKEN(c, Rule::bad_index);
  c = make_fed_case();
  c.plan.feeding.gb_per_s = -1;
  EXPECT_BROKEN(c, Rule::bad_feeding);
  for (const bool second_buffer : {true, false}) {  // it lies in a tier
    c = make_fed_case();
    c.plan.feeding.second_buffer = second_buffer;
    add_tiers(c.plan);
    c.plan.homes = {{c.graph.find_tensor("data"), 0, {}}};
    EXPECT_BROKEN(c, Rule::bad_feeding);
  }
}

TEST(Verify, SeesAWrongTimeFromStepToStep) {
  Case c = make_fed_case();
  c.plan.predicted.wall_time_ms *= 1.01;
  EXPECT_BROKEN(c, Rule::wrong_prediction);
  c = make_fed_case();
  c.plan.predicted.feed_ms = 0;
  EXPECT_BROKEN(c, Rule::wrong_prediction);
  c = make_fed_case();
  c.plan.feeding.second_buffer = false;  // then a batch comes before its step, and the peak is less
  EXPECT_BROKEN(c, Rule::wrong_prediction);
}

}  // namespace
}  // namespace plimsoll
