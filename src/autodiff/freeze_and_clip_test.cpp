// Parameters that are left alone, and gradients that are clipped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "plimsoll/autodiff.h"
#include "plimsoll/models.h"
#include "tests/support/error_text.h"
#include "tests/support/interpreter.h"

namespace plimsoll {
namespace {

using testing::error_text;
using ::testing::HasSubstr;

Network small_network() { return build_model("resnet20", {.batch = 2, .channels = 1, .height = 8, .width = 8}); }

bool has_op(const Graph& g, std::string_view part) {
  return std::any_of(g.ops().begin(), g.ops().end(),
                     [&](const Op& op) { return op.name.find(part) != std::string::npos; });
}

TEST(Freeze, LeavesOutGradientUpdateAndOptimizerState) {
  const Network network = small_network();
  const Graph all = make_training_network(network, {}).graph;
  const Graph some = make_training_network(network, {.freeze = {"conv1.*", "bn1.*", "layer1.*", "layer2.*"}}).graph;
  EXPECT_TRUE(has_op(all, "layer1.0.conv1.weight/update"));
  EXPECT_FALSE(has_op(some, "layer1.0.conv1.weight/update"));
  EXPECT_TRUE(has_op(some, "layer3.0.conv1.weight/update"));
  EXPECT_TRUE(all.find_tensor("layer1.0.conv1.weight.momentum").valid());
  EXPECT_FALSE(some.find_tensor("layer1.0.conv1.weight.momentum").valid());
  // What leads to frozen layers only is not computed at all.
  for (const Op& op : some.ops()) {
    EXPECT_FALSE(op.phase == Phase::backward && op.layer.starts_with("layer1")) << op.name;
  }
  check(some);
}

// As in PyTorch, where requires_grad says nothing to running statistics.
TEST(Freeze, RunningStatisticsAdvance) {
  const Graph g = make_training_network(small_network(), {.freeze = {"bn1.*", "conv1.*"}}).graph;
  for (const State& state : g.states) {
    const std::string& name = g.tensor(state.before).name;
    if (name == "bn1.running_mean" || name == "bn1.running_var") {
      EXPECT_NE(state.before, state.after) << name;
    }
    if (name == "bn1.weight" || name == "conv1.weight") {
      EXPECT_EQ(state.before, state.after) << name;
    }
  }
}

TEST(Freeze, AFrozenLayerInTheMiddlePassesGradientsOn) {
  const Network network = small_network();
  const Network step = make_training_network(network, {.freeze = {"layer2.*", "fc.weight"}});
  const Graph& g = step.graph;
  Values values(g);
  fill_sources(g, values, 3);
  values[step.labels].set(0, 1);
  values[step.labels].set(1, 2);
  values[g.find_tensor("learning_rate")].set(0, 0.1);
  for (const State& s : g.states) {
    const std::string& name = g.tensor(s.before).name;
    for (int64_t i = 0; i < values[s.before].size(); ++i) {
      if (name.ends_with("running_var")) values[s.before].set(i, 1);
      if (name.ends_with(".momentum")) values[s.before].set(i, 0);
    }
  }
  interpret(g, values);
  const auto changes = [&](std::string_view name) {
    for (const State& s : g.states) {
      if (g.tensor(s.before).name == name) return values[s.before].data != values[s.after].data;
    }
    ADD_FAILURE() << name;
    return false;
  };
  EXPECT_TRUE(changes("conv1.weight"));
  EXPECT_TRUE(changes("fc.bias"));
  EXPECT_FALSE(changes("layer2.0.conv1.weight"));
  EXPECT_FALSE(changes("fc.weight"));
}

TEST(Freeze, RefusesPatternsThatMeanNothingAndThoseThatMeanAll) {
  const Network network = small_network();
  EXPECT_THAT(
      error_text(ErrorCode::invalid_input, [&] { make_training_network(network, {.freeze = {"conv1.wieght"}}); }),
      HasSubstr("--freeze 'conv1.wieght': no parameter of resnet20 has such a name; its parameters are called as "
                "'conv1.weight'"));
  EXPECT_THAT(error_text(ErrorCode::invalid_input, [&] { make_training_network(network, {.freeze = {"*"}}); }),
              HasSubstr("are frozen, so there is nothing to train"));
}

// The reference of torch.nn.utils.clip_grad_norm_, written out.
TEST(ClipGradNorm, ScalesAllGradientsByOneFactor) {
  const Network network = build_model("mlp:8", {.batch = 4, .channels = 1, .height = 3, .width = 3, .classes = 3});
  const Network plain = make_training_network(network, {.momentum = 0});
  const auto run = [&](const Network& step, Values& values) {
    fill_sources(step.graph, values, 5);
    for (int64_t i = 0; i < 4; ++i) values[step.labels].set(i, static_cast<double>(i % 3));
    values[step.graph.find_tensor("learning_rate")].set(0, 1);
    interpret(step.graph, values);
  };
  Values free(plain.graph);
  run(plain, free);
  double squares = 0;
  for (const State& s : plain.graph.states) {
    for (int64_t i = 0; i < free[s.before].size(); ++i)
      squares += std::pow(free[s.before].at(i) - free[s.after].at(i), 2);  // the rate is 1
  }
  const double norm = std::sqrt(squares);
  for (const double limit : {norm / 4, norm * 4}) {
    const Network step = make_training_network(network, {.momentum = 0, .clip_grad_norm = limit});
    check(step.graph);
    Values clipped(step.graph);
    run(step, clipped);
    EXPECT_NEAR(clipped[step.gradient_norm].at(0), norm, 1e-5 * norm);
    const double factor = std::min(1.0, limit / (norm + 1e-6));
    for (size_t s = 0; s < step.graph.states.size(); ++s) {
      const State &a = plain.graph.states[s], &b = step.graph.states[s];
      for (int64_t i = 0; i < free[a.before].size(); ++i) {
        EXPECT_NEAR(clipped[b.before].at(i) - clipped[b.after].at(i),
                    factor * (free[a.before].at(i) - free[a.after].at(i)), 1e-6);
      }
    }
  }
}

TEST(ClipGradNorm, EveryNetworkOfTheZooHasIt) {
  for (const ModelListing& listing : list_models()) {
    SCOPED_TRACE(listing.name);
    const Network step = make_training_network(build_model(listing.name, {.batch = 2}), {.clip_grad_norm = 1});
    check(step.graph);
    size_t scaled = 0, updates = 0;
    for (const Op& op : step.graph.ops()) {
      scaled += op.type->name == "ScaleGradient" ? 1u : 0u;
      updates += op.phase == Phase::update ? 1u : 0u;
    }
    EXPECT_EQ(scaled, updates);
  }
}

}  // namespace
}  // namespace plimsoll
