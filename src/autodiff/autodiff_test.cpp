#include "plimsoll/autodiff.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "plimsoll/models.h"
#include "tests/support/interpreter.h"

namespace plimsoll {
namespace {

using Ints = std::vector<int64_t>;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TensorId conv(Graph& g, const std::string& name, TensorId x, TensorId w) {
  return g.output(g.add_op("ConvForward", name + "/forward", name, {x, w}, {{"padding", Ints{1, 1, 1, 1}}}));
}
TensorId relu(Graph& g, const std::string& name, TensorId x) {
  return g.output(g.add_op("ReluForward", name + "/forward", name, {x}));
}
TensorId conv_weights(Graph& g, const std::string& name) {
  return g.add_source(name, {2, 2, 3, 3}, DType::f32, Role::parameter);
}
TensorId mean_square(Graph& g, const std::string& name, TensorId x, TensorId target) {
  return g.output(g.add_op("MeanSquaredErrorForward", name + "/forward", name, {x, target}));
}

std::vector<std::string> op_names(const Graph& g, Phase from) {
  std::vector<std::string> names;
  for (const Op& op : g.ops()) {
    if (op.phase >= from) names.push_back(op.name);
  }
  return names;
}

// data -> conv1 -> relu1 -> conv2 -> loss
struct Chain {
  Network network;
  TensorId data, w1, w2, target;

  Chain() {
    Graph& g = network.graph;
    network.data = data = g.add_source("data", {2, 2, 5, 5}, DType::f32, Role::input);
    target = g.add_source("target", {2, 2, 5, 5}, DType::f32, Role::input);
    w1 = conv_weights(g, "conv1.weight");
    w2 = conv_weights(g, "conv2.weight");
    const TensorId y = conv(g, "conv2", relu(g, "relu1", conv(g, "conv1", data, w1)), w2);
    network.objectives = {{mean_square(g, "loss", y, target), {w1, w2}}};
  }
};

TEST(AppendBackward, ComputesOnlyWhatLeadsToAWantedTensor) {
  Chain chain;
  Graph& g = chain.network.graph;
  const auto gradients = append_backward(g, chain.network.objectives[0].loss, {{chain.w2}});
  EXPECT_THAT(op_names(g, Phase::backward),
              ElementsAre("loss/forward:0/seed", "loss/backward", "conv2/backward_weights"));
  EXPECT_EQ(g.tensor(gradients[0]).shape, g.tensor(chain.w2).shape);
  EXPECT_EQ(g.tensor(gradients[0]).role, Role::gradient);
}

TEST(AppendBackward, LeavesOutTheGradientOfTheData) {
  Chain chain;
  Graph& g = chain.network.graph;
  append_backward(g, chain.network.objectives[0].loss, chain.network.objectives[0].parameters);
  EXPECT_THAT(op_names(g, Phase::backward),
              ElementsAre("loss/forward:0/seed", "loss/backward", "conv2/backward_weights", "conv2/backward_data",
                          "relu1/backward", "conv1/backward_weights"));
  const Op& back = g.op(g.find_op("conv2/backward_data"));
  EXPECT_EQ(back.layer, "conv2");
  EXPECT_EQ(back.forward, g.find_op("conv2/forward"));
}

TEST(AppendBackward, SumsTheGradientsOfSeveralReadersTwoAtATime) {
  Graph g;
  const TensorId x = g.add_source("x", {3}, DType::f32, Role::parameter);
  const TensorId target = g.add_source("target", {3}, DType::f32, Role::input);
  const TensorId h = relu(g, "h", x);
  const TensorId sum = g.output(g.add_op("Add", "join", "join", {relu(g, "a", h), relu(g, "b", h), relu(g, "c", h)}));
  const auto gradients = append_backward(g, mean_square(g, "loss", sum, target), {{x}});
  EXPECT_THAT(op_names(g, Phase::backward),
              ElementsAre("loss/forward:0/seed", "loss/backward", "c/backward", "b/backward",
                          "h/forward:0/gradient_sum", "a/backward", "h/forward:0/gradient_sum.2", "h/backward"));
  const Op& add = g.op(g.find_op("h/forward:0/gradient_sum"));
  EXPECT_EQ(add.type->name, "Add");
  EXPECT_EQ(add.layer, "h");
  EXPECT_EQ(g.output(g.find_op("h/backward")), gradients[0]);
}

TEST(AppendBackward, GivesNoGradientWhereNoneFlows) {
  Chain chain;
  Graph& g = chain.network.graph;
  const TensorId other = conv_weights(g, "other");
  const auto gradients = append_backward(g, chain.network.objectives[0].loss, {{other, chain.w2}});
  EXPECT_FALSE(gradients[0].valid());
  EXPECT_TRUE(gradients[1].valid());
}

TEST(AppendBackward, NamesTheOpThatHasNoGradient) {
  Graph g;
  const TensorId x = g.add_source("x", {2, 3}, DType::f32, Role::parameter);
  const TensorId target = g.add_source("target", {3}, DType::f32, Role::input);
  const TensorId y = g.output(g.add_op("BiasBackward", "sum", "sum", {x}));
  try {
    append_backward(g, mean_square(g, "loss", y, target), {{x}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_STREQ(error.what(), "op 'sum' (BiasBackward) has no gradient, and training needs one");
  }
}

TEST(AppendBackward, RefusesALossThatIsNoScalar) {
  Graph g;
  const TensorId x = g.add_source("x", {2, 3}, DType::f32, Role::parameter);
  try {
    append_backward(g, relu(g, "r", x), {{x}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "a loss is a floating scalar, but 'r/forward:0' is 2x3 of f32");
  }
}

TEST(TrainingNetwork, UpdatesEachParameterAsSoonAsItsGradientIsThere) {
  const Chain chain;
  const Network step = make_training_network(chain.network, {});
  EXPECT_THAT(op_names(step.graph, Phase::backward),
              ElementsAre("loss/forward:0/seed", "loss/backward", "conv2/backward_weights", "conv2/backward_data",
                          "conv2.weight/update", "relu1/backward", "conv1/backward_weights", "conv1.weight/update"));
  check(step.graph);
}

TEST(TrainingNetwork, RecordsStatesInputsAndOutputs) {
  const Chain chain;
  const Network step = make_training_network(chain.network, {.name = "adam"});
  const Graph& g = step.graph;
  std::vector<std::string> states, inputs;
  for (const State& s : g.states) states.push_back(g.tensor(s.before).name + " -> " + g.tensor(s.after).name);
  for (TensorId id : g.inputs) inputs.push_back(g.tensor(id).name);
  EXPECT_THAT(states, ElementsAre("conv1.weight -> conv1.weight.next", "conv2.weight -> conv2.weight.next",
                                  "conv2.weight.exp_avg -> conv2.weight.exp_avg.next",
                                  "conv2.weight.exp_avg_sq -> conv2.weight.exp_avg_sq.next",
                                  "conv1.weight.exp_avg -> conv1.weight.exp_avg.next",
                                  "conv1.weight.exp_avg_sq -> conv1.weight.exp_avg_sq.next"));
  EXPECT_THAT(inputs, ElementsAre("data", "target", "learning_rate", "step_number"));
  EXPECT_THAT(g.outputs, ElementsAre(chain.network.objectives[0].loss));
  EXPECT_EQ(g.op(g.find_op("conv1.weight/update")).layer, "conv1");
  EXPECT_EQ(g.tensor(g.find_tensor("conv1.weight.exp_avg")).role, Role::optimizer_state);
}

TEST(TrainingNetwork, SgdAddsNoStateWithoutMomentumAndNoStepNumber) {
  const Chain chain;
  const Network step = make_training_network(chain.network, {.momentum = 0});
  EXPECT_EQ(step.graph.states.size(), 2u);
  EXPECT_FALSE(step.graph.find_tensor("step_number").valid());
}

TEST(TrainingNetwork, PairsRunningStatistics) {
  Network network;
  Graph& g = network.graph;
  const TensorId x = g.add_source("data", {4, 2, 3, 3}, DType::f32, Role::input);
  const TensorId target = g.add_source("target", {4, 2, 3, 3}, DType::f32, Role::input);
  std::vector<TensorId> in = {x};
  for (const char* name : {"bn.weight", "bn.bias"}) in.push_back(g.add_source(name, {2}, DType::f32, Role::parameter));
  for (const char* name : {"bn.running_mean", "bn.running_var"}) {
    in.push_back(g.add_source(name, {2}, DType::f32, Role::statistic));
  }
  const OpId first = g.add_op("BatchNormForward", "bn/forward", "bn", in, {{"training", int64_t{1}}});
  in[0] = g.output(first), in[3] = g.output(first, 3), in[4] = g.output(first, 4);
  const OpId second = g.add_op("BatchNormForward", "again/forward", "again", in, {{"training", int64_t{1}}});
  network.objectives = {{mean_square(g, "loss", g.output(second), target), {in[1], in[2]}}};
  const Network step = make_training_network(network, {});
  EXPECT_EQ(step.graph.states[2].after, g.output(second, 3));
  EXPECT_EQ(step.graph.states[3].after, g.output(second, 4));
}

// A generator (one convolution) and a discriminator (another) that sees real and generated images.
struct Gan {
  Network network;
  TensorId generator, discriminator;

  Gan() {
    Graph& g = network.graph;
    const TensorId noise = g.add_source("noise", {2, 2, 4, 4}, DType::f32, Role::input);
    const TensorId real = g.add_source("data", {2, 2, 4, 4}, DType::f32, Role::input);
    generator = conv_weights(g, "g.weight");
    discriminator = conv_weights(g, "d.weight");
    const TensorId on_real = conv(g, "d_real", real, discriminator);
    const TensorId on_fake = conv(g, "d_fake", conv(g, "g", noise, generator), discriminator);
    const auto loss = [&](const char* name, TensorId logits, double target) {
      return g.output(
          g.add_op("SigmoidCrossEntropyForward", std::string(name) + "/forward", name, {logits}, {{"target", target}}));
    };
    const TensorId d_loss = g.output(
        g.add_op("Add", "d_loss", "d_loss", {loss("d_loss_real", on_real, 1), loss("d_loss_fake", on_fake, 0)}));
    const TensorId g_loss = loss("g_loss", on_fake, 1);
    network.objectives = {{d_loss, {discriminator}}, {g_loss, {generator}}};
  }
};

TEST(TrainingNetwork, EachObjectiveOfAGanComputesOnlyWhatItsParametersNeed) {
  const Gan gan;
  const Graph g = make_training_network(gan.network, {}).graph;
  const std::vector<std::string> names = op_names(g, Phase::backward);
  const auto at = [&](std::string_view name) {
    const auto it = std::find(names.begin(), names.end(), name);
    EXPECT_NE(it, names.end()) << name;
    return it - names.begin();
  };
  const auto count = [&](std::string_view prefix) {
    return std::count_if(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(prefix); });
  };
  EXPECT_EQ(count("d_real/backward_data"), 0);
  EXPECT_EQ(count("d_fake/backward_data"), 1);     // the generator's way
  EXPECT_EQ(count("d_fake/backward_weights"), 1);  // the discriminator's
  EXPECT_EQ(count("g/backward_weights"), 1);
  EXPECT_EQ(count("d.weight/update"), 1);
  EXPECT_EQ(count("g.weight/update"), 1);
  // The discriminator's weights are read once more, by the generator's objective, before they are overwritten.
  EXPECT_LT(at("d_fake/backward_data"), at("d.weight/update"));
  EXPECT_EQ(g.outputs.size(), 2u);
  for (TensorId id : g.outputs) EXPECT_EQ(g.tensor(id).role, Role::output);
  check(g);
}

TEST(TrainingNetwork, NoUpdateComesBeforeAnotherReaderOfTheOldValue) {
  for (const Network& network : {Chain().network, Gan().network}) {
    const Graph g = make_training_network(network, {}).graph;
    const auto readers = g.readers();
    for (int32_t i = 0; i < g.op_count(); ++i) {
      if (!g.op({i}).type->changes_state) continue;
      for (OpId reader : readers[g.op({i}).inputs[0].index]) {
        EXPECT_LE(reader.index, i) << g.op(reader).name << " reads what " << g.op({i}).name << " overwrote";
      }
    }
  }
}

TEST(TrainingNetwork, LearnsWhenItIsRun) {
  const Chain chain;
  const Network step = make_training_network(chain.network, {.momentum = 0.5});
  const Graph& g = step.graph;
  Values values(g);
  fill_sources(g, values, 11);
  for (const State& s : g.states) {
    if (g.tensor(s.before).role == Role::optimizer_state)
      std::fill(values[s.before].data.begin(), values[s.before].data.end(), std::byte{0});
  }
  values[g.find_tensor("learning_rate")].set(0, 0.05);
  double first = 0, last = 0;
  for (int i = 0; i < 30; ++i) {
    interpret(g, values);
    advance_states(g, values);
    last = values[step.objectives[0].loss].at(0);
    if (i == 0) first = last;
  }
  EXPECT_LT(last, first * 0.5) << "from " << first;
}

TEST(TrainingNetwork, TrainsEveryNetworkOfTheZoo) {
  for (const ModelListing& listing : list_models()) {
    SCOPED_TRACE(listing.name);
    const Network forward = build_model(listing.name, {.batch = 2});
    const Network step = make_training_network(forward, {});
    const Graph& g = step.graph;
    check(g);
    size_t parameters = 0, updates = 0;
    for (const Objective& objective : forward.objectives) parameters += objective.parameters.size();
    for (const Op& op : g.ops()) updates += op.phase == Phase::update ? 1u : 0u;
    EXPECT_EQ(updates, parameters);
    for (const State& state : g.states) {
      EXPECT_NE(state.before, state.after) << g.tensor(state.before).name << " does not change";
    }
    const auto readers = g.readers();
    for (int32_t i = 0; i < g.op_count(); ++i) {
      const Op& op = g.op({i});
      if (op.phase == Phase::forward || op.type->changes_state) continue;
      const auto is_read = [&](TensorId out) { return !readers[out.index].empty(); };
      EXPECT_TRUE(std::any_of(op.outputs.begin(), op.outputs.end(), is_read)) << op.name << " runs for nothing";
    }
  }
}

std::string message_of(const Network& network, const OptimizerOptions& options = {}) {
  try {
    make_training_network(network, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(TrainingNetwork, LeavesParametersThatNoGradientReachesWhereThatIsAsked) {
  Chain chain;
  const TensorId other = conv_weights(chain.network.graph, "other");
  chain.network.objectives[0].parameters = {chain.w1, other, chain.w2};
  const Network training = make_training_network(chain.network, {.leave_unreached = true});
  EXPECT_THAT(training.objectives[0].parameters, ElementsAre(chain.w1, chain.w2));
  EXPECT_EQ(op_names(training.graph, Phase::update),
            op_names(make_training_network(Chain().network, {}).graph, Phase::update));
  chain.network.objectives[0].parameters = {other};
  EXPECT_THAT(message_of(chain.network, {.leave_unreached = true}), HasSubstr("reaches the parameter 'other'"));
}

TEST(TrainingNetwork, TellsWhatIsWrong) {
  Chain chain;
  EXPECT_THAT(message_of(chain.network, {.name = "adm"}), HasSubstr("unknown optimizer 'adm'; did you mean 'adam'?"));
  EXPECT_THAT(message_of(chain.network, {.momentum = 0, .nesterov = true}),
              HasSubstr("--nesterov needs a --momentum above 0"));
  chain.network.objectives[0].parameters.push_back(chain.w1);
  EXPECT_EQ(message_of(chain.network), "parameter 'conv1.weight' is listed twice to be trained");
  chain.network.objectives[0].parameters.back() = conv_weights(chain.network.graph, "other");
  EXPECT_EQ(message_of(chain.network), "no gradient of the loss 'loss/forward:0' reaches the parameter 'other'");
  Chain other;
  other.network.graph.add_source("learning_rate", {1}, DType::f32, Role::input);
  EXPECT_EQ(message_of(other.network), "'learning_rate' must be a f32 scalar from outside");
}

}  // namespace
}  // namespace plimsoll
