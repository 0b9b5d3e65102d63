// Plans of one of several ranks: messages beside compute, judged by the verifier, which knows nothing of how they are made.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "device/collectives.h"
#include "plan/effort.h"
#include "plan/overlap.h"
#include "plan/simulate.h"
#include "plimsoll/compile.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"
#include "plimsoll/verify.h"

namespace plimsoll {
namespace {

using Rule = Violation::Rule;

LinkInfo link_of(int ranks, double gb_per_s) {
  return {.ranks = ranks, .latency_us = 30, .gb_per_s = gb_per_s, .compute_share = 0.1};
}

Network network_of(const std::string& model, int64_t batch = 8) {
  return build_model(model,
                     {.batch = batch, .channels = 3, .height = 32, .width = 32, .classes = 10, .training = true});
}

CompileOptions options_of(int ranks, Bytes memory = {INT64_MAX}) {
  CompileOptions options{.memory = memory};
  options.optimizer.ranks = ranks;
  return options;
}

Program compiled(const std::string& model, const LinkInfo& link, const CompileOptions& options) {
  const auto device = with_ranks(open_device("cpu", 1), link, nullptr);
  auto result = compile_training(network_of(model), *device, CostTable(), options);
  if (auto* infeasible = std::get_if<Infeasible>(&result)) throw Error(ErrorCode::infeasible, to_text(*infeasible));
  return std::get<Program>(std::move(result));
}

std::string problems(const Graph& graph, const Plan& plan) {
  std::string text;
  for (const Violation& v : verify(graph, plan, 3)) text += fmt::format("{}: {}\n", to_string(v.rule), v.message);
  return text;
}

std::set<Rule> rules(const Graph& graph, const Plan& plan) {
  std::set<Rule> found;
  for (const Violation& v : verify_safety(graph, plan, 50)) found.insert(v.rule);
  return found;
}

// Of one type, or of all.
int collective_ops(const Graph& graph, std::string_view type = {}) {
  int count = 0;
  for (const Op& op : graph.ops()) count += op.type->is_collective && (type.empty() || op.type->name == type) ? 1 : 0;
  return count;
}

TEST(RankPlan, EveryGradientIsReducedOnceBeforeItsUpdate) {
  for (const int ranks : {1, 2, 7}) {
    const Program program = compiled("resnet20", link_of(ranks, 1), options_of(ranks));
    const Graph& graph = program.network.graph;
    int parameters = 0;
    for (const Objective& objective : program.network.objectives)
      parameters += static_cast<int>(objective.parameters.size());
    EXPECT_EQ(collective_ops(graph, "AllReduce"), ranks > 1 ? parameters : 0);
    for (const Op& op : graph.ops()) {
      if (op.type->name != "SgdUpdate" || ranks == 1) continue;
      TensorId gradient = op.inputs[1];  // or its copy in another layout
      while (graph.op(graph.tensor(gradient).producer).type->name == "Reorder")
        gradient = graph.op(graph.tensor(gradient).producer).inputs[0];
      EXPECT_TRUE(graph.op(graph.tensor(gradient).producer).type->is_collective) << op.name;
    }
  }
}

TEST(RankPlan, RunningStatisticsAreTheFirstRanksAndSentBesideTheBackwardPass) {
  for (const bool synchronised : {false, true}) {
    CompileOptions options = options_of(4);
    options.optimizer.sync_batch_norm = synchronised;
    const Program program = compiled("resnet20", link_of(4, 1), options);
    const Graph& graph = program.network.graph;
    int statistics = 0;
    for (const State& state : graph.states) {
      if (graph.tensor(state.before).role != Role::statistic) continue;
      ++statistics;
      EXPECT_EQ(graph.op(graph.tensor(state.after).producer).type->name == "Broadcast", !synchronised)
          << graph.tensor(state.before).name;
    }
    EXPECT_EQ(statistics, 38);
    EXPECT_EQ(collective_ops(graph, "Broadcast"), synchronised ? 0 : 38);
    EXPECT_EQ(problems(graph, program.plan), "");
    int buckets = 0;
    for (const Collective& c : program.plan->collectives) {
      const Step& last = program.plan->steps[c.steps.back()];
      if (graph.op(last.op).type->name != "Broadcast") continue;
      ++buckets;
      EXPECT_GT(c.before, c.steps.back() + 20) << "the backward pass runs meanwhile";
    }
    EXPECT_LE(buckets, 2) << "they are small, and go together";
    EXPECT_EQ(buckets > 0, !synchronised);
  }
}

TEST(RankPlan, MessagesRunBesideComputeAndCostLessThanBetweenSteps) {
  const LinkInfo link = link_of(4, 0.5);
  const Program program = compiled("resnet20", link, options_of(4));
  const Plan& plan = program.plan;
  ASSERT_FALSE(plan.collectives.empty());
  EXPECT_EQ(problems(program.network.graph, plan), "");
  EXPECT_GT(plan.predicted.communication_ms, 0);
  EXPECT_LT(plan.predicted.communication_stall_ms, 0.8 * plan.predicted.communication_ms) << "most of it is hidden";
  size_t steps = 0;
  for (const Collective& c : plan.collectives) steps += c.steps.size();
  EXPECT_EQ(steps, static_cast<size_t>(collective_ops(program.network.graph)));
  EXPECT_LT(plan.collectives.size(), steps) << "small gradients share messages";
}

TEST(RankPlan, BucketsGrowWithTheLatency) {
  LinkInfo fast = link_of(4, 1), slow = fast;
  fast.latency_us = 0;
  slow.latency_us = 20000;
  const size_t many = compiled("resnet20", fast, options_of(4)).plan->collectives.size();
  const size_t few = compiled("resnet20", slow, options_of(4)).plan->collectives.size();
  EXPECT_GT(many, few);
  EXPECT_LE(few, 3u);
}

// The same network, budgets from the least to plenty, with and without what makes gradients wait.
TEST(RankPlan, IsSafeInEveryBudget) {
  for (const std::string model : {"lenet", "resnet:1-1-1-1", "vgg11"}) {
    for (const int variant : {0, 1, 2, 3}) {
      if (model == "vgg11" && variant != 2) continue;
      CompileOptions options = options_of(3);
      options.zero = 0;
      if (variant == 1) options.optimizer.clip_grad_norm = 1;
      if (variant == 2) options.optimizer.accumulate = 4;
      options.optimizer.sync_batch_norm = variant == 3;
      options.name_minimum = true;
      const Program roomy = compiled(model, link_of(3, 0.3), options);
      ASSERT_TRUE(roomy.minimum);
      EXPECT_EQ(problems(roomy.network.graph, roomy.plan), "");
      for (const double share : {0.0, 0.6}) {
        const double least = static_cast<double>(roomy.minimum->count);
        options.memory = {static_cast<int64_t>(least + share * (static_cast<double>(roomy.plan->arena.count) - least))};
        options.name_minimum = false;
        SCOPED_TRACE(fmt::format("{} variant {} in {}", model, variant, to_string(options.memory)));
        const Program program = compiled(model, link_of(3, 0.3), options);
        EXPECT_EQ(problems(program.network.graph, program.plan), "");
        EXPECT_LE(program.plan->arena, options.memory);
        const Plan back = plan_from_json(to_json(program.plan, program.network.graph), program.network.graph);
        EXPECT_EQ(back.collectives, program.plan->collectives);
        EXPECT_EQ(back.link, program.plan->link);
        EXPECT_EQ(problems(program.network.graph, back), "");
      }
    }
  }
}

// With one image a rank the gradient of what is added to each image is another gradient's view, and messages read its bytes.
TEST(RankPlan, BytesOfAViewAreTheWiresUntilAllHasArrived) {
  const Network network =
      build_model("vit-b16:layers=1,width=16,heads=2",
                  {.batch = 1, .channels = 3, .height = 32, .width = 32, .classes = 10, .training = true});
  const auto device = with_ranks(open_device("cpu", 1), link_of(2, 0.3), nullptr);
  for (int stage = 0; stage <= kMostShardingStage; ++stage) {
    CompileOptions options = options_of(2);
    options.zero = stage;
    const auto result = compile_training(network, *device, CostTable(), options);
    const Program& program = std::get<Program>(result);
    EXPECT_FALSE(program.plan->collectives.empty());
    EXPECT_EQ(problems(program.network.graph, program.plan), "") << "stage " << stage;
  }
}

// Every stage, budgets from the least to plenty: safe, and read back from its file.
TEST(RankPlan, IsSafeInEveryBudgetHoweverStatesAreDivided) {
  for (const std::string model : {"lenet", "resnet:1-1-1-1"}) {
    for (int stage = 1; stage <= kMostShardingStage; ++stage) {
      for (const int variant : {0, 1, 2, 3}) {
        CompileOptions options = options_of(3);
        options.zero = stage;
        options.exact = variant == 3;
        options.optimizer.name = variant == 2 ? "adamw" : "sgd";
        const bool is_tried = stage == 1 ? variant == 1 || variant == 2 : stage == 2 ? variant == 3 : variant != 1;
        if (!is_tried) continue;  // every stage, and every variant
        if (variant == 1) options.optimizer.clip_grad_norm = 1;
        if (variant >= 2) options.optimizer.accumulate = 4;
        options.name_minimum = true;
        const Program roomy = compiled(model, link_of(3, 0.3), options);
        ASSERT_TRUE(roomy.minimum);
        EXPECT_EQ(problems(roomy.network.graph, roomy.plan), "");
        for (const double share : {0.0, 0.6}) {
          const double least = static_cast<double>(roomy.minimum->count);
          options.memory = {
              static_cast<int64_t>(least + share * (static_cast<double>(roomy.plan->arena.count) - least))};
          options.name_minimum = false;
          SCOPED_TRACE(fmt::format("{} stage {} variant {} in {}", model, stage, variant, to_string(options.memory)));
          const Program program = compiled(model, link_of(3, 0.3), options);
          const Graph& graph = program.network.graph;
          EXPECT_EQ(problems(graph, program.plan), "");
          EXPECT_LE(program.plan->arena, options.memory);
          EXPECT_EQ(program.sharding.stage, stage);
          const Plan back = plan_from_json(to_json(program.plan, graph), graph);
          EXPECT_EQ(problems(graph, back), "");
          EXPECT_EQ(fingerprint(graph_from_json(to_json(graph))), fingerprint(graph));
        }
      }
    }
  }
}

TEST(RankPlan, DividesWhatDoesNotFitAndNothingElse) {
  const LinkInfo link = link_of(4, 5);
  const Program whole = compiled("vgg11", link, options_of(4));
  EXPECT_EQ(whole.sharding.stage, 0) << "all fits";
  CompileOptions options = options_of(4);
  Bytes least{INT64_MAX};
  for (int stage = 0; stage <= kMostShardingStage; ++stage) {
    options.zero = stage;
    options.name_minimum = true;
    const Program program = compiled("vgg11", link, options);
    if (stage == 1 || stage == 3) {
      EXPECT_LT(program.minimum->count, least.count * 3 / 4) << "stage " << stage;
    }
    least = std::min(least, *program.minimum);
  }
  options.zero.reset();
  options.name_minimum = false;
  options.memory = {least.count * 11 / 10};
  const Program tight = compiled("vgg11", link, options);
  EXPECT_EQ(tight.sharding.stage, 3) << "nothing else fits";
  EXPECT_EQ(problems(tight.network.graph, tight.plan), "");
  options.memory = {least.count / 2};
  const auto device = with_ranks(open_device("cpu", 1), link, nullptr);
  const auto none = compile_training(network_of("vgg11"), *device, CostTable(), options);
  ASSERT_TRUE(std::holds_alternative<Infeasible>(none));
  EXPECT_LE(std::get<Infeasible>(none).minimum, least) << "the least of all ways to divide";
}

// With less than all the memory that it likes, what keeps everything on every rank may send one message after the other,
// and be slower than dividing states would be. And kernels that are faster alone may want parameters in layouts that pad
// them, so that more is sent.
TEST(RankPlan, MoreMemoryIsNeverSlower) {
  std::set<int> stages;
  const auto expect_never_slower = [&](const std::string& model, bool exact, std::initializer_list<int> percents) {
    const Network network = network_of(model, 2);
    const auto device = with_ranks(open_device("cpu", 1), {.ranks = 2, .latency_us = 50, .gb_per_s = 1.25}, nullptr);
    CompileOptions options = options_of(2);
    options.exact = exact;
    const auto planned = [&] { return std::get<Program>(compile_training(network, *device, CostTable(), options)); };
    const Program whole = planned();
    double before_ms = 1e9;
    for (const int percent : percents) {
      options.memory = {whole.plan->arena.count * percent / 100};
      SCOPED_TRACE(fmt::format("{} in {}", model, to_string(options.memory)));
      const Program program = planned();
      const double ms = program.plan->predicted.step_time_ms;
      EXPECT_LE(ms, 1.001 * before_ms);
      before_ms = ms;
      stages.insert(program.sharding.stage);
    }
    EXPECT_LE(whole.plan->predicted.step_time_ms, 1.001 * before_ms);
  };
  expect_never_slower("gpt2:layers=1,width=96,heads=2,context=32,vocab=256", true, {84, 88, 92, 96, 100});
  expect_never_slower("vit-b16:layers=2,width=48,heads=3", false, {92, 100});
  expect_never_slower("lenet", false, {90, 100});
  EXPECT_GE(stages.size(), 2u) << "some budgets divide, and some do not";
}

// A language model whose weights are larger than what comes of them.
Network wide_llama() {
  return build_model("llama:layers=6,width=256,heads=4,ffn=1024,context=32",
                     {.batch = 2, .channels = 1, .height = 1, .width = 32, .classes = 64});
}

// Activations are rebuilt in turn, each from weights that are gathered for it and let go again.
TEST(RankPlan, WhatWasGatheredDoesNotWaitForWhatIsRebuiltFromIt) {
  const auto device = with_ranks(open_device("cpu", 1), link_of(4, 1), nullptr);
  CompileOptions options = options_of(4);
  options.zero = 3;
  options.name_minimum = true;
  const auto result = compile_training(wide_llama(), *device, CostTable(), options);
  const Program& program = std::get<Program>(result);
  EXPECT_LT(program.minimum->count, program.lower_bound.count * 13 / 10);
  EXPECT_LT(program.lower_bound.count * 2, program.plan->arena.count) << "which keeps everything";
}

// States lie somewhere between steps, so where tiers and arena are too small for them, that is known without a search.
TEST(RankPlan, StatesThatTheTiersHaveNoRoomForAreABound) {
  const auto device = with_ranks(open_device("cpu", 1), link_of(4, 1), nullptr);
  CompileOptions options = options_of(4, 2_MiB);
  options.zero = 0;
  options.tiers = {{.name = "host", .capacity = 3_MiB, .out_gb_per_s = 10, .in_gb_per_s = 10}};
  Bytes states;
  const Network network = wide_llama();
  for (const State& state : network.graph.states) states += network.graph.tensor(state.before).bytes();
  const auto named = compile_training(network, *device, CostTable(), options);
  const Infeasible& searched = std::get<Infeasible>(named);
  EXPECT_GE(searched.lower_bound, states - 3_MiB);
  EXPECT_GE(searched.minimum, searched.lower_bound);
  EXPECT_EQ(searched.budget, 2_MiB);
  planning_effort().scheduled_steps = 0;
  options.name_least = false;
  const auto unnamed = compile_training(network, *device, CostTable(), options);
  EXPECT_EQ(std::get<Infeasible>(unnamed).minimum, searched.lower_bound);
  EXPECT_EQ(planning_effort().scheduled_steps, 0);
}

TEST(RankPlan, NamesTheSameLeastMemoryWhicheverWayIsTaken) {
  const auto device = with_ranks(open_device("cpu", 1), link_of(4, 1), nullptr);
  CompileOptions options = options_of(4, 1_MiB);
  Bytes least{INT64_MAX};
  for (int stage = 0; stage <= kMostShardingStage; ++stage) {
    options.zero = stage;
    const auto none = compile_training(wide_llama(), *device, CostTable(), options);
    least = std::min(least, std::get<Infeasible>(none).minimum);
  }
  options.zero.reset();
  const auto none = compile_training(wide_llama(), *device, CostTable(), options);
  EXPECT_EQ(std::get<Infeasible>(none).minimum, least);
  EXPECT_EQ(std::get<Infeasible>(none).budget, 1_MiB);
  options.memory = {INT64_MAX};
  options.name_minimum = true;
  const auto roomy = compile_training(wide_llama(), *device, CostTable(), options);
  EXPECT_EQ(std::get<Program>(roomy).minimum, least);
  EXPECT_EQ(std::get<Program>(roomy).sharding.stage, 0);
}

TEST(RankPlan, GathersAParameterForEachPassAndReducesItOnce) {
  CompileOptions options = options_of(3);
  options.zero = 3;
  const Program program = compiled("resnet20", link_of(3, 1), options);
  const Graph& graph = program.network.graph;
  std::map<std::string, int> count;
  for (const Op& op : graph.ops()) ++count[op.type->name];
  EXPECT_GT(count["ReduceScatter"], 0);
  EXPECT_LE(count["AllGather"], 2 * count["ReduceScatter"]);
  EXPECT_GT(count["AllGather"], count["ReduceScatter"]);
  Bytes divided;
  for (const State& state : graph.states) {
    const Tensor& t = graph.tensor(state.before);
    if (t.shard.is_shard()) divided += t.bytes();
  }
  EXPECT_GT(divided.count, 0);
  for (const WholeState& whole : whole_states(graph)) EXPECT_EQ(whole.name.find("[/"), std::string::npos);
}

// Statistics are read at once, and gradients may be under way meanwhile: no bucket has both, and nothing is sent twice.
TEST(RankPlan, StatisticsOfAllRanksGoBetweenTheGradients) {
  CompileOptions options = options_of(3);
  options.optimizer.sync_batch_norm = true;
  options.name_minimum = true;
  const Program roomy = compiled("resnet20", link_of(3, 0.3), options);
  std::map<std::string, int> ops;
  for (const Op& op : roomy.network.graph.ops()) ++ops[op.type->name];
  EXPECT_EQ(ops["BatchNormForward"] + ops["BatchNormBackward"], 0);
  EXPECT_EQ(ops["CombineMoments"], 19);
  EXPECT_EQ(ops["SumOverRanks"], 19);
  EXPECT_EQ(ops["SyncBatchNormForward"], 19);
  for (const char* policy : {"liveness", "mxnet:recompute=sublinear", "dymem", "superneurons", "auto"}) {
    options.policy = policy;
    options.memory = std::string_view(policy) == "auto" ? *roomy.minimum : Bytes{INT64_MAX};
    options.name_minimum = false;
    SCOPED_TRACE(policy);
    const Program program = compiled("resnet20", link_of(3, 0.3), options);
    const Graph& graph = program.network.graph;
    const Plan& plan = program.plan;
    EXPECT_EQ(problems(graph, plan), "");
    for (const Step& step : plan.steps) EXPECT_FALSE(step.recompute && graph.op(step.op).type->is_collective);
    for (const Collective& c : plan.collectives) {
      for (const StepIndex s : c.steps)
        EXPECT_EQ(graph.op(plan.steps[s].op).type, graph.op(plan.steps[c.steps[0]].op).type);
    }
    if (plan.collectives.empty()) continue;
    Plan mixed = plan;
    std::vector<StepIndex>& steps = mixed.collectives[0].steps;
    steps.push_back(mixed.collectives.back().steps.back());
    mixed.collectives.pop_back();
    mixed.collectives[0].before = static_cast<StepIndex>(plan.steps.size());
    EXPECT_TRUE(rules(graph, mixed).contains(Rule::bad_collective));
  }
}

TEST(RankPlan, TheVerifierSeesWhatIsWrongWithMessages) {
  const Program program = compiled("resnet20", link_of(4, 0.05), options_of(4));
  const Graph& graph = program.network.graph;
  const Plan good = program.plan;
  ASSERT_GE(good.collectives.size(), 2u);
  ASSERT_TRUE(rules(graph, good).empty());
  int changed = 0;
  for (size_t c = 0; c < good.collectives.size(); ++c) {
    Plan late = good;
    if (late.collectives[c].before < static_cast<StepIndex>(good.steps.size())) {
      late.collectives[c].before += 1;
      EXPECT_FALSE(rules(graph, late).empty()) << "collective " << c << " is waited for too late";
      ++changed;
    }
    Plan gone = good;
    gone.collectives.erase(gone.collectives.begin() + static_cast<std::ptrdiff_t>(c));
    EXPECT_TRUE(rules(graph, gone).contains(Rule::bad_collective));
  }
  EXPECT_GT(changed, 0);
  Plan swapped = good;
  std::swap(swapped.collectives[0], swapped.collectives[1]);
  EXPECT_TRUE(rules(graph, swapped).contains(Rule::bad_collective)) << "another order than on the other ranks";
  Plan twice = good;
  twice.collectives[1].steps.push_back(twice.collectives[0].steps[0]);
  EXPECT_FALSE(rules(graph, twice).empty());
  Plan other = good;
  other.collectives[0].steps[0] = 0;
  EXPECT_TRUE(rules(graph, other).contains(Rule::bad_collective)) << "a step that is none";
  Plan early = good;
  early.collectives[0].before = early.collectives[0].steps.back();
  EXPECT_TRUE(rules(graph, early).contains(Rule::bad_index));
  Plan claims = good;
  claims.collectives[0].time_ms *= 0.5;
  EXPECT_NE(problems(graph, claims), "") << "faster than its link";
  Plan hidden = good;
  hidden.predicted.communication_stall_ms += 1;
  EXPECT_NE(problems(graph, hidden), "");
}

// Bytes that are on the wire are nobody else's.
TEST(RankPlan, AStayThatEndsWhileItsBytesAreOnTheWireIsSeen) {
  const Program program = compiled("resnet20", link_of(4, 0.05), options_of(4));
  const Graph& graph = program.network.graph;
  int seen = 0;
  for (const Collective& c : program.plan->collectives) {
    for (const StepIndex s : c.steps) {
      if (c.before - 1 <= s) continue;
      Plan plan = program.plan;
      for (Stay& stay : plan.stays) {
        if (stay.tensor == graph.op(plan.steps[s].op).outputs[0]) stay.last = s;
      }
      EXPECT_TRUE(rules(graph, plan).contains(Rule::bad_collective));
      ++seen;
    }
  }
  EXPECT_GT(seen, 0);
}

TEST(DelayedUpdates, WaitForSoManyBytesAndKeepTheOrder) {
  const Program program = compiled("resnet20", link_of(2, 1), options_of(2));
  const Graph& graph = program.network.graph;
  const Route route = make_route(graph);
  const auto position = [&](const Route& r) {
    std::vector<size_t> at(graph.op_count());
    for (size_t i = 0; i < r.order.size(); ++i) at[r.order[i].index] = i;
    return at;
  };
  EXPECT_EQ(delay_updates(graph, route, 0_B).order, route.order);
  for (const Bytes in_flight : {1_KiB, 64_KiB, Bytes{INT64_MAX}}) {
    const Route later = delay_updates(graph, route, in_flight);
    ASSERT_EQ(later.order.size(), route.order.size());
    const auto at = position(later);
    for (const Op& op : graph.ops()) {
      for (TensorId input : op.inputs) {
        const OpId producer = graph.tensor(input).producer;
        if (!producer.valid()) continue;
        EXPECT_LT(at[producer.index], at[graph.find_op(op.name).index]) << op.name;
      }
    }
  }
  const Route last = delay_updates(graph, route, {INT64_MAX});
  EXPECT_EQ(graph.op(last.order.back()).phase, Phase::update);
}

}  // namespace
}  // namespace plimsoll
