// What each policy keeps, copies and computes again, in exact numbers; and what makes the papers' transfers differ.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "papers/layer_model.h"
#include "plan/policy.h"
#include "plan/simulate.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"
#include "plimsoll/verify.h"
#include "tests/support/random_graph.h"

namespace plimsoll {
namespace {

constexpr double kKiB = 1024;

struct Planned {
  Graph graph;
  Plan plan;  // verified and simulated
  double peak_kib() const { return static_cast<double>(plan.predicted.peak.count) / kKiB; }
  double offload_kib() const { return static_cast<double>(plan.predicted.offload.count) / kKiB; }
  double prefetch_kib() const { return static_cast<double>(plan.predicted.prefetch.count) / kKiB; }
};

struct Setting {
  Bytes budget{INT64_MAX};
  double out_gb_per_s = 8, in_gb_per_s = 8;
  LayerModelOptions layer_model = {};
};

std::optional<Planned> plan_layers(const std::string& model, const ModelInput& input, const std::string& policy,
                                   const Setting& setting = {}) {
  Planned result{.graph = lower_to_layers(build_model(model, input), setting.layer_model), .plan = {}};
  const std::unique_ptr<Device> device = open_device("k40c");
  const CostTable costs(probe_rates(*device));
  const Route route = make_route(result.graph);
  const std::vector<KernelChoice> kernels = layer_kernels(result.graph);
  PolicyInput asked{.graph = result.graph,
                    .route = route,
                    .kernels = kernels,
                    .costs = costs,
                    .device = device->info(),
                    .budget = setting.budget,
                    .options = policy_options(policy)};
  asked.device.tiers.at(0).out_gb_per_s = setting.out_gb_per_s;
  asked.device.tiers.at(0).in_gb_per_s = setting.in_gb_per_s;
  PlanOrInfeasible answer = find_policy(policy).plan(asked);
  if (!std::holds_alternative<Plan>(answer)) return std::nullopt;
  result.plan = std::get<Plan>(std::move(answer));
  EXPECT_TRUE(verify(result.graph, result.plan).empty()) << policy;
  result.plan.predicted = simulate(result.graph, result.plan, costs);
  return result;
}

// Six layers, 64 images of 8x8. In KiB, the batch not counted:
//
//   FC1 64  ACT1 64  FC2 32  ACT2 32  FC3 2.5  SOFTMAX 2.5      new in the backward pass: dFC3 32  dFC2 64  dFC1 16
Planned plan_mlp(const std::string& policy, double budget_kib = 1 << 20) {
  return *plan_layers("mlp:hidden=256-128", {.batch = 64, .channels = 1, .height = 8, .width = 8, .classes = 10},
                      policy, {.budget = {static_cast<int64_t>(budget_kib * kKiB)}});
}

TEST(KeepingRules, CaffeKeepsEveryBlobAndEveryGradient) {
  EXPECT_EQ(plan_mlp("caffe").peak_kib(), 64 + 64 + 32 + 32 + 2.5 + 2.5 + 32 + 64 + 16);
  EXPECT_EQ(plan_mlp("baseline").peak_kib(), 309);
}

TEST(KeepingRules, LivenessKeepsWhatIsReadAgain) {
  EXPECT_EQ(plan_mlp("liveness").peak_kib(), 64 + 64 + 32 + 32 + 2.5 + 32) << "FC3 backward: FC3's output is gone";
}

TEST(KeepingRules, TorchKeepsOutputsToTheEndAndGradientsWhileTheyAreRead) {
  EXPECT_EQ(plan_mlp("torch").peak_kib(), 64 + 64 + 32 + 32 + 2.5 + 32 + 64)
      << "FC2 backward: SOFTMAX's was overwritten";
}

TEST(KeepingRules, MxnetComputesCheapLayersOrAllBetweenCheckpointsAgain) {
  const Planned enough = plan_mlp("mxnet", 226.5);
  EXPECT_EQ(enough.plan.predicted.recompute_steps, 0);
  const Planned mirror = plan_mlp("mxnet:recompute=mirror", 226);
  EXPECT_EQ(mirror.peak_kib(), 64 + 64 + 32 + 64) << "FC2 backward";
  EXPECT_EQ(mirror.plan.predicted.recompute_steps, 2) << "both ACTs";
  // A root of six values are 80 KiB: one checkpoint, ACT1.
  const Planned sublinear = plan_mlp("mxnet", 192);
  EXPECT_EQ(sublinear.peak_kib(), 64 + 64 + 64) << "ACT1 backward";
  EXPECT_EQ(sublinear.plan.predicted.recompute_steps, 5) << "all but ACT1";
  EXPECT_EQ(sublinear.offload_kib(), 0);
}

TEST(KeepingRules, TensorflowSwapsWhatWaitsLongestAndNoMoreThanItMust) {
  EXPECT_EQ(plan_mlp("tensorflow", 226.5).offload_kib(), 0);
  const Planned swapped = plan_mlp("tensorflow", 226);
  EXPECT_EQ(swapped.offload_kib(), 64) << "FC1's output";
  EXPECT_EQ(swapped.prefetch_kib(), 64);
  EXPECT_EQ(swapped.peak_kib(), 64 + 64 + 64) << "ACT1 backward";
  EXPECT_EQ(swapped.plan.predicted.recompute_steps, 0);
}

TEST(KeepingRules, VdnnCopiesTheInputsOfLayersAndDymemThoseOfSomeKinds) {
  EXPECT_EQ(plan_mlp("vdnn:layers=all").offload_kib(), 64 + 64 + 32 + 32);
  EXPECT_EQ(plan_mlp("vdnn:layers=all").prefetch_kib(), 64 + 64 + 32 + 32);
  EXPECT_EQ(plan_mlp("vdnn:layers=conv", 226.5).offload_kib(), 0) << "there is none";
  EXPECT_EQ(plan_mlp("dymem").offload_kib(), 64 + 32) << "what ACTs read";
  EXPECT_EQ(plan_mlp("dymem").prefetch_kib(), 64 + 32);
}

// Starts of steps and copies in the predicted timeline.
struct Timeline {
  explicit Timeline(const Plan& plan)
      : starts(plan.steps.size() + 1, plan.predicted.step_time_ms), ends(plan.steps.size()), copies(plan.moves.size()) {
    for (const EngineSpan& span : plan.predicted.timeline) {
      const size_t i = span.index;
      if (span.engine == 0) {
        starts[i] = span.start_ms;
        ends[i] = span.end_ms;
      } else {
        copies[i] = span;
      }
    }
  }
  // How many steps run while the copy does.
  int steps_beside(size_t copy) const {
    int count = 0;
    for (size_t s = 0; s < ends.size(); ++s)
      count += starts[s] < copies[copy].end_ms - kNothing && ends[s] > copies[copy].start_ms + kNothing ? 1 : 0;
    return count;
  }
  static constexpr double kNothing = 1e-9;
  std::vector<double> starts, ends;  // of steps; and when the training step ends
  std::vector<EngineSpan> copies;
};

const std::pair<const char*, ModelInput> kConvolutional[] = {
    {"alexnet", {.batch = 32}}, {"resnet32", {.batch = 32}}, {"inception4", {.batch = 4}}};

TEST(Transfers, VdnnsCopiesAreDoneBeforeTheNextLayerBegins) {
  for (const auto& [model, input] : kConvolutional) {
    for (const char* layers : {"all", "conv"}) {
      SCOPED_TRACE(fmt::format("{} {}", model, layers));
      const Planned p =
          *plan_layers(model, input, fmt::format("vdnn:layers={}", layers), {.out_gb_per_s = 0.5, .in_gb_per_s = 0.5});
      const Timeline timeline(p.plan);
      ASSERT_GT(p.plan.moves.size(), 5u);
      EXPECT_GT(p.plan.predicted.stall_ms, 0) << "layers wait for slow copies";
      int hidden = 0;
      for (size_t m = 0; m < p.plan.moves.size(); ++m) {
        const Move& move = p.plan.moves[m];
        EXPECT_LE(move.before - move.after, 2) << "beside one layer";
        EXPECT_LE(timeline.copies[m].end_ms, timeline.starts[move.before] + Timeline::kNothing);
        EXPECT_LE(timeline.steps_beside(m), 1);
        hidden += timeline.steps_beside(m);
      }
      EXPECT_GT(hidden, 5);
    }
  }
}

TEST(Transfers, DymemsCopiesHaveNoBarrier) {
  for (const auto& [model, input] : kConvolutional) {
    SCOPED_TRACE(model);
    const Setting slow{.out_gb_per_s = 4, .in_gb_per_s = 4};
    const Planned p = *plan_layers(model, input, "dymem", slow);
    const Timeline timeline(p.plan);
    int out = 0, in = 0;
    for (size_t m = 0; m < p.plan.moves.size(); ++m) {
      const bool several = timeline.steps_beside(m) > 1;
      EXPECT_TRUE(!several || p.plan.moves[m].before - p.plan.moves[m].after > 2);
      (p.plan.moves[m].direction == Move::Direction::out ? out : in) += several ? 1 : 0;
    }
    EXPECT_GT(out, 0) << "copies out run beside several layers";
    EXPECT_GT(in, 0);
  }
}

// 61 ms of copies beside 106 ms of layers.
TEST(Transfers, BarriersAreWhatAlexNetWaitsFor) {
  const Planned barriers = *plan_layers("alexnet", {.batch = 32}, "vdnn:layers=all"),
                none = *plan_layers("alexnet", {.batch = 32}, "dymem");
  EXPECT_GT(barriers.plan.predicted.stall_ms, 1);
  EXPECT_GT(none.plan.predicted.copy_ms, 50);
  EXPECT_EQ(none.plan.predicted.stall_ms, 0);
}

// The most convolutions whose backward steps a copy in may run beside, by Algorithm 2.
int most_convolutions_ahead(const Planned& p) {
  std::vector<StepIndex> first_of_layer;
  std::set<int32_t> layers;
  for (StepIndex s = 0; s < static_cast<StepIndex>(p.plan.steps.size()); ++s) {
    const Op& op = p.graph.op(p.plan.steps[s].op);
    if (op.phase == Phase::backward && layer_kind(op) == LayerKind::convolution &&
        layers.insert(op.forward.index).second)
      first_of_layer.push_back(s);
  }
  int64_t most = 0;
  for (const Move& move : p.plan.moves) {
    if (move.direction == Move::Direction::out) continue;
    const Op& reader = p.graph.op(p.plan.steps[move.before].op);
    if (layer_kind(reader) != LayerKind::convolution)
      continue;  // other layers' come freely within the last convolution's
    most = std::max(
        most, static_cast<int64_t>(std::count_if(first_of_layer.begin(), first_of_layer.end(),
                                                 [&](StepIndex s) { return s > move.after && s < move.before; })));
  }
  return static_cast<int>(most);
}

TEST(Transfers, DymemFetchesForSoManyConvolutionsAhead) {
  for (const auto& [model, input] : kConvolutional) {
    if (std::string_view(model) == "alexnet") continue;  // too few of them
    for (int ahead = 1; ahead <= 4; ++ahead) {
      const Planned p = *plan_layers(model, input, fmt::format("dymem:ahead={}", ahead), {.in_gb_per_s = 0.05});
      EXPECT_EQ(most_convolutions_ahead(p), ahead) << model;
    }
  }
}

// ---- the tensor cache

Bytes traffic(const Prediction& predicted) { return predicted.offload + predicted.prefetch; }

TEST(TensorCache, MovesNothingWhileEverythingFits) {
  const LayerModelOptions resident{.weights = true, .input = true};
  const Bytes usable = open_device("k40c")->info().memory_available;
  for (int64_t batch = 256; batch <= 1024; batch += 128) {
    SCOPED_TRACE(batch);
    const Planned cached = *plan_layers("alexnet", {.batch = batch, .height = 227, .width = 227}, "superneurons",
                                        {.budget = usable, .layer_model = resident});
    EXPECT_TRUE(cached.plan.moves.empty());
    EXPECT_EQ(traffic(cached.plan.predicted), 0_B);
    EXPECT_EQ(cached.plan.predicted.recompute_steps, 0);
    const Planned without =
        *plan_layers("alexnet", {.batch = batch, .height = 227, .width = 227},
                     "superneurons:cache=off,offload=conv,recompute=none", {.budget = usable, .layer_model = resident});
    EXPECT_EQ(without.plan.predicted.offload.count, 4 * 650'080 * batch) << "CONV's outputs";
  }
  for (int64_t batch : {1536, 1792}) {
    const Planned full = *plan_layers("alexnet", {.batch = batch, .height = 227, .width = 227}, "superneurons",
                                      {.budget = usable, .layer_model = resident});
    EXPECT_GT(traffic(full.plan.predicted), 0_B) << batch;
  }
}

// Here what lies there longest is what is wanted last, for the backward pass goes back the way.
TEST(TensorCache, WhoKnowsTheFutureCopiesNoMoreThanLruOnThePapersNetworks) {
  int judged = 0;
  const std::pair<const char*, ModelInput> networks[] = {
      {"alexnet", {.batch = 32}}, {"vgg16", {.batch = 4}}, {"resnet50", {.batch = 4}}, {"resnet152", {.batch = 2}}};
  for (const auto& [model, input] : networks) {
    const Bytes most = plan_layers(model, input, "liveness")->plan.predicted.peak;
    for (int percent : {95, 85, 75, 65, 55, 45}) {
      SCOPED_TRACE(fmt::format("{} at {} %", model, percent));
      const Setting tight{.budget = {most.count * percent / 100}};
      const auto lru = plan_layers(model, input, "superneurons:cache=lru,recompute=none,prefetch=demand", tight);
      const auto farthest =
          plan_layers(model, input, "superneurons:cache=farthest,recompute=none,prefetch=demand", tight);
      if (!lru || !farthest) {
        EXPECT_EQ(lru.has_value(), farthest.has_value());
        continue;
      }
      ++judged;
      EXPECT_LE(traffic(farthest->plan.predicted), traffic(lru->plan.predicted));
    }
  }
  EXPECT_GT(judged, 12);
}

// Tensors differ in size, so that for one graph the rule may lose; over many it may not.
TEST(TensorCache, WhoKnowsTheFutureCopiesLessThanLruOverRandomGraphs) {
  Bytes lru_sum, farthest_sum;
  int judged = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const Graph graph = testing::random_graph(seed, {.forward_ops = static_cast<int>(10 + seed % 40)});
    const Route route = make_route(graph);
    const auto kernels = testing::random_kernels(graph, seed);
    const CostTable costs;
    PolicyInput input{.graph = graph,
                      .route = route,
                      .kernels = kernels,
                      .costs = costs,
                      .device = {.name = "cpu"},
                      .effort = 100'000};
    input.device.tiers = {{.name = "host", .capacity = 1_GiB, .out_gb_per_s = 1, .in_gb_per_s = 1, .latency_us = 1}};
    const Bytes most = std::get<Plan>(find_policy("liveness").plan(input)).arena;
    for (int percent : {90, 75, 60}) {
      input.budget = {most.count * percent / 100};
      auto plan_with = [&](const std::string& cache) {
        input.options = policy_options("superneurons:recompute=none,prefetch=demand,cache=" + cache);
        return find_policy("superneurons").plan(input);
      };
      const PlanOrInfeasible lru = plan_with("lru"), farthest = plan_with("farthest");
      if (!std::holds_alternative<Plan>(lru) || !std::holds_alternative<Plan>(farthest)) continue;
      ++judged;
      lru_sum += traffic(simulate(graph, std::get<Plan>(lru), costs));
      farthest_sum += traffic(simulate(graph, std::get<Plan>(farthest), costs));
    }
  }
  EXPECT_GT(judged, 60);
  EXPECT_LT(farthest_sum, lru_sum);
}

}  // namespace
}  // namespace plimsoll
