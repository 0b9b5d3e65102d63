#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "papers/layer_model.h"
#include "plan/liveness.h"
#include "plan/policy.h"
#include "plan/route.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"
#include "plimsoll/verify.h"

namespace plimsoll {
namespace {

constexpr double kMiB = 1 << 20;

Graph lowered(std::string_view model, int64_t batch, int64_t size = 0, const LayerModelOptions& options = {}) {
  return lower_to_layers(build_model(model, {.batch = batch, .height = size, .width = size}), options);
}

Plan plan_with(std::string_view policy, const Graph& graph) {
  const Route route = make_route(graph);
  const auto kernels = layer_kernels(graph);
  const CostTable costs;
  PlanOrInfeasible answer = find_policy(policy).plan({.graph = graph,
                                                      .route = route,
                                                      .kernels = kernels,
                                                      .costs = costs,
                                                      .device = {.name = "cpu"},
                                                      .effort = 100'000});
  EXPECT_TRUE(std::holds_alternative<Plan>(answer));
  Plan plan = std::get<Plan>(std::move(answer));
  EXPECT_TRUE(verify(graph, plan).empty());
  return plan;
}

std::vector<double> curve_mib(const Plan& plan) {
  std::vector<double> result;
  for (StepIndex s = 0; s < static_cast<StepIndex>(plan.steps.size()); ++s) {
    std::vector<std::pair<Bytes, Bytes>> places;  // a gradient in the place of another counts once
    for (const Stay* stay : live_at(plan, s)) places.emplace_back(stay->offset, stay->bytes);
    std::sort(places.begin(), places.end());
    places.erase(std::unique(places.begin(), places.end()), places.end());
    int64_t sum = 0;
    for (const auto& [offset, bytes] : places) sum += bytes.count;
    result.push_back(static_cast<double>(sum) / kMiB);
  }
  return result;
}

// SuperNeurons, section 4.1.1 and figure 10a.
// Gradients that are written into another tensor's bytes are no tensors of their own.
std::vector<TensorId> tensors_with_bytes(const Graph& graph) {
  std::vector<TensorId> result;
  for (const Op& op : graph.ops()) {
    for (size_t i = op.attributes.has("overwrites") ? 1 : 0; i < op.outputs.size(); ++i)
      result.push_back(op.outputs[i]);
  }
  return result;
}

int64_t steps(std::string_view model) { return lowered(model, 2).op_count(); }

// SuperNeurons, section 4.1.1 and figure 10a.
TEST(LayerModel, AlexNetHasThePapersTensorsAndBaseline) {
  const Graph graph = lowered("alexnet", 200);
  EXPECT_EQ(graph.op_count(), 46);
  int64_t sum = 0;
  for (TensorId t : tensors_with_bytes(graph)) sum += graph.tensor(t).bytes().count;
  EXPECT_EQ(tensors_with_bytes(graph).size(), 36u);
  EXPECT_EQ(sum, 2295791200);  // 2189.437 MiB
  EXPECT_NEAR(static_cast<double>(live_peak(plan_with("baseline", graph)).bytes.count) / kMiB, 2189.437, 0.0005);
}

TEST(LayerModel, AlexNetsLivenessPeakIsAtTheBackwardStepOfPool5) {
  const Graph graph = lowered("alexnet", 200);
  const Plan plan = plan_with("liveness", graph);
  const Peak peak = live_peak(plan);
  EXPECT_EQ(peak.bytes, Bytes{1561702400});  // 1489.355 MiB
  EXPECT_EQ(peak.step, 31);                  // the 32nd
  EXPECT_EQ(graph.op(plan.steps[31].op).name, "pool5/backward");
  EXPECT_EQ(plan.arena, peak.bytes);
}

// From a model of the tables that shares nothing with this code.
TEST(LayerModel, AlexNetsStepwiseLivenessCurveIsThePapers) {
  const double expected[] = {
      221.558,  443.115,  664.673,  718.066,  860.449,  1002.832, 1145.215, 1178.223, 1227.734, 1277.246,
      1326.758, 1376.270, 1409.277, 1442.285, 1449.316, 1452.441, 1455.566, 1458.691, 1461.816, 1464.941,
      1468.066, 1468.829, 1469.592, 1468.829, 1471.954, 1471.191, 1468.066, 1464.941, 1461.816, 1458.691,
      1459.473, 1489.355, 1475.293, 1458.789, 1425.781, 1376.270, 1326.758, 1260.742, 1353.613, 1287.598,
      1145.215, 913.843,  993.018,  886.230,  664.673,  339.498,
  };
  const std::vector<double> curve = curve_mib(plan_with("liveness", lowered("alexnet", 200)));
  ASSERT_EQ(curve.size(), std::size(expected));
  for (size_t s = 0; s < curve.size(); ++s) EXPECT_NEAR(curve[s], expected[s], 0.0005) << "step " << s + 1;
}

TEST(LayerModel, SeventeenTensorsAreAliveAtAlexNetsPeak) {
  const Graph graph = lowered("alexnet", 200);
  const Plan plan = plan_with("liveness", graph);
  std::set<Bytes> places;
  for (const Stay* stay : live_at(plan, 31)) places.insert(stay->offset);
  EXPECT_EQ(places.size(), 17u);
}

struct Known {
  const char* model;
  int64_t batch, size;
  int32_t steps, peak_step;  // counted from 1
  double peak_mib;
  size_t tensors;
};

// Peaks from the independent model.
TEST(LayerModel, LivenessPeaksOfTheOtherNetworks) {
  const Known known[] = {{"vgg16", 32, 227, 78, 48, 3567.7265625, 62},
                         {"inception4", 32, 299, 1026, 517, 9339.64453125, 961},
                         {"resnet50", 32, 227, 382, 194, 4632.40625, 332},
                         {"resnet101", 32, 227, 756, 381, 6923.15625, 655},
                         {"resnet152", 32, 227, 1130, 568, 9752.90625, 978}};
  for (const Known& k : known) {
    SCOPED_TRACE(k.model);
    const Graph graph = lowered(k.model, k.batch, k.size);
    EXPECT_EQ(graph.op_count(), k.steps);
    EXPECT_EQ(tensors_with_bytes(graph).size(), k.tensors);
    const Liveness liveness = find_liveness(graph, make_route(graph));
    std::vector<int64_t> live(liveness.steps + 1, 0);
    for (const SharedBuffer& b : liveness.buffers) {
      live[b.range.first] += b.bytes.count;
      live[b.range.last + 1] -= b.bytes.count;
    }
    std::partial_sum(live.begin(), live.end(), live.begin());
    const auto peak = std::max_element(live.begin(), live.end());
    EXPECT_NEAR(static_cast<double>(*peak) / kMiB, k.peak_mib, 0.01);
    EXPECT_EQ(peak - live.begin() + 1, k.peak_step);
  }
}

TEST(LayerModel, CountsLayersAndStepsAsThePapersDo) {
  EXPECT_EQ(steps("alexnet"), 2 * 23);
  EXPECT_EQ(steps("inception4"), 2 * (515 - 2));  // the paper counts two DATA layers
  EXPECT_EQ(steps("resnet152"), 2 * (567 - 2));
  EXPECT_EQ(steps("resnet32:bn=0"), 190);  // Dymem
  EXPECT_EQ(steps("resnet:6-32-788-6"), 2 * 9167);
  for (const char* model : {"alexnet", "vgg16", "inception3", "inception4", "resnet50", "densenet121", "lenet"}) {
    const Network network = build_model(model, {.batch = 2});
    EXPECT_EQ(lower_to_layers(network).op_count(), 2 * layer_count(network)) << model;
  }
}

TEST(LayerModel, BackwardStepsRunInTheReverseOrderOfForwardOnes) {
  for (const char* model : {"inception4", "resnet50", "densenet121"}) {
    const Graph graph = lowered(model, 1);
    const Route route = make_route(graph);
    for (size_t i = 0; i < route.order.size() / 2; ++i) {
      const Op& back = graph.op(route.order[route.order.size() - 1 - i]);
      ASSERT_EQ(back.forward, route.order[i]) << model << " " << back.name;
    }
  }
}

TEST(LayerModel, AForksFirstSuccessorRunsLast) {
  const Graph graph = lowered("resnet50", 1);
  const Route route = make_route(graph);
  auto step = [&](const char* op) {
    return std::find(route.order.begin(), route.order.end(), graph.find_op(op)) - route.order.begin();
  };
  EXPECT_LT(step("layer1.0.downsample.1/forward"), step("layer1.0.conv1/forward"));
}

TEST(LayerModel, WeightsAreStatesThatTheBackwardLayersAdvance) {
  const Graph graph = lowered("resnet50", 2, 227, {.weights = true, .input = true});
  int64_t parameters = 0, others = 0;
  for (const State& state : graph.states) {
    const Tensor& t = graph.tensor(state.before);
    (t.role == Role::parameter ? parameters : others) += element_count(t.shape);
    EXPECT_NE(state.before, state.after) << t.name;
  }
  EXPECT_EQ(parameters, 25557032);
  EXPECT_EQ(others, 2 * 25557032);
  EXPECT_EQ(graph.inputs.size(), 1u);
  EXPECT_EQ(graph.op_count(), 382);
  plan_with("liveness", graph);
}

TEST(LayerModel, AReluInPlaceTakesItsInputsBytes) {
  const Graph graph = lowered("alexnet", 200, 0, {.relu_in_place = true});
  const Op& backward = graph.op(graph.find_op("relu1/backward"));
  EXPECT_EQ(backward.inputs, (std::vector<TensorId>{graph.find_tensor("relu1/y"), graph.find_tensor("lrn1/dx")}));
  const Plan plan = plan_with("liveness", graph);
  EXPECT_LT(live_peak(plan).bytes, plan_with("liveness", lowered("alexnet", 200)).predicted.peak);
}

TEST(LayerModel, EveryOpTellsTheKindOfItsLayer) {
  const Graph graph = lowered("resnet50", 1);
  EXPECT_EQ(layer_kind(graph.op(graph.find_op("conv1/backward"))), LayerKind::convolution);
  EXPECT_EQ(layer_kind(graph.op(graph.find_op("maxpool/fork/forward"))), LayerKind::fork);
  EXPECT_EQ(layer_kind(graph.op(graph.find_op("layer1.0.add/forward"))), LayerKind::join);
  const Network native = build_model("resnet50", {.batch = 1});
  EXPECT_EQ(layer_kind(native.graph.op(native.graph.find_op("layer1.0.add"))), LayerKind::join);
  EXPECT_EQ(layer_kind(native.graph.op(native.graph.find_op("bn1"))), LayerKind::batch_norm);
  EXPECT_EQ(layer_kind(native.graph.op(native.graph.find_op("flatten"))), LayerKind::other);
  EXPECT_EQ(to_string(LayerKind::fully_connected), "fc");
}

TEST(LayerModel, FlopsAreTheNetworksOwn) {
  const Graph graph = lowered("alexnet", 10);
  const Op& conv = graph.op(graph.find_op("conv2/forward"));
  EXPECT_EQ(conv.type->work(graph, conv).flops, 2.0 * 10 * 256 * 27 * 27 * 96 * 25);
  const Op& back = graph.op(graph.find_op("conv2/backward"));
  EXPECT_EQ(back.type->work(graph, back).flops, 4.0 * 10 * 256 * 27 * 27 * 96 * 25);
}

TEST(LayerModel, RefusesANetworkOfTwoLossesAndReadsBackFromJson) {
  try {
    lower_to_layers(build_model("dcgan", {.batch = 2}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_STREQ(error.what(), "'dcgan' has 2 losses; the papers' layer model has one");
  }
  const Graph graph = lowered("inception3", 2, 0, {.weights = true});
  EXPECT_EQ(fingerprint(graph_from_json(to_json(graph))), fingerprint(graph));
}

}  // namespace
}  // namespace plimsoll
