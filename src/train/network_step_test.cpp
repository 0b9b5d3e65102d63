// A step for batches of several shapes in one memory, and settings of groups that change.
#include "train/network_step.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "plimsoll/models.h"

namespace plimsoll {
namespace {

Network network_of(int64_t batch, bool training = true) {
  return build_model("resnet20",
                     {.batch = batch, .channels = 3, .height = 16, .width = 16, .classes = 10, .training = training});
}

std::vector<std::string> parameters_of(const Network& network) {
  std::vector<std::string> names;
  for (TensorId id : network.objectives.at(0).parameters) names.push_back(network.graph.tensor(id).name);
  return names;
}

TrainOptions options_of(const std::string& optimizer) {
  TrainOptions options;
  options.model.clear();
  options.threads = 1;
  options.exact = true;
  options.costs = "estimated";
  options.optimizer.name = optimizer;
  options.optimizer.clip_grad_norm = 1;
  options.optimizer.groups = {{.parameters = parameters_of(network_of(1)), .momentum = 0.9, .weight_decay = 1e-3}};
  return options;
}

std::unique_ptr<NetworkStep> open(const Network& network, const TrainOptions& options, Bytes at_least = {}) {
  auto result = NetworkStep::open(network, options, {}, {}, at_least);
  if (const auto* infeasible = std::get_if<Infeasible>(&result))
    throw Error(ErrorCode::infeasible, to_text(*infeasible));
  return std::get<std::unique_ptr<NetworkStep>>(std::move(result));
}

void feed(TrainingStep& step, int64_t batch, uint32_t noise) {
  std::vector<float> data(batch * 3 * 16 * 16);
  for (float& x : data) {
    noise = noise * 1664525 + 1013904223;
    x = static_cast<float>(noise >> 16) / 32768 - 1;
  }
  std::vector<int32_t> labels(batch);
  for (int64_t i = 0; i < batch; ++i) labels[i] = static_cast<int32_t>((noise + 3 * i) % 10);
  step.feed(data, labels);
}

const std::vector<int64_t> kBatches = {6, 6, 2, 9, 6, 2, 9};

// The losses of training with a step of its own for each batch, to which states are carried over.
std::vector<double> losses_of_own_steps(const TrainOptions& options) {
  std::vector<double> losses;
  std::unique_ptr<NetworkStep> before;
  for (size_t i = 0; i < kBatches.size(); ++i) {
    auto now = open(network_of(kBatches[i]), options);
    TrainingStep& step = now->step();
    step.start_at(static_cast<int64_t>(i), options.seed);
    if (before) {
      for (const CheckpointTensor& state : step.states()) step.set_state(before->step().state(state.name));
    }
    feed(step, kBatches[i], static_cast<uint32_t>(i));
    step.run(0.05);
    losses.push_back(step.loss());
    before = std::move(now);
  }
  return losses;
}

// The least in which each of these batches can be trained: the kernels of a small one may need more than those of a large one.
Bytes minimum_of(const std::vector<int64_t>& batches, const TrainOptions& options) {
  Bytes most;
  for (const int64_t batch : batches)
    most = std::max(most, std::get<Program>(plan_network(network_of(batch), options)).minimum.value());
  return most;
}

struct Case {
  std::string optimizer;
  // Of what the batches need at least, each by itself; 0: all there is. In layouts of weights that another batch has chosen they
  // need more, by up to a quarter.
  double memory;
  bool host = false;
};

class Shapes : public ::testing::TestWithParam<Case> {};

TEST_P(Shapes, ShareOneMemoryAndTrainAsStepsOfTheirOwn) {
  TrainOptions options = options_of(GetParam().optimizer);
  if (GetParam().host) options.host_memory = 64_MiB;
  const std::vector<double> expected = losses_of_own_steps(options);
  if (GetParam().memory > 0) {
    options.memory =
        Bytes{static_cast<int64_t>(GetParam().memory * static_cast<double>(minimum_of({9, 6, 2}, options).count))};
  }
  if (GetParam().memory > 0) {
    TrainOptions ample = options;
    ample.memory = std::nullopt;
    EXPECT_LT(*options.memory, open(network_of(9), ample)->step().executor().arena_bytes());
  }
  // The fastest plan of the largest batch may need less than what the others need at least.
  const auto network = open(network_of(9), options, options.memory.value_or(Bytes{}));
  ASSERT_EQ(std::get<size_t>(network->add_shape(network_of(6))), 1u);
  ASSERT_EQ(std::get<size_t>(network->add_shape(network_of(2))), 2u);
  const std::map<int64_t, size_t> shape_of = {{9, 0}, {6, 1}, {2, 2}};
  for (size_t i = 0; i < kBatches.size(); ++i) {
    network->use(shape_of.at(kBatches[i]));
    feed(network->step(), kBatches[i], static_cast<uint32_t>(i));
    network->step().run(0.05);
    EXPECT_NEAR(network->step().loss(), expected[i], 1e-4 * expected[i]) << "batch " << i;
    EXPECT_EQ(network->step().number(), static_cast<int64_t>(i) + 1);
  }
  EXPECT_LE(network->step().executor().arena_bytes(), options.memory.value_or(Bytes{INT64_MAX}));
}

INSTANTIATE_TEST_SUITE_P(All, Shapes,
                         ::testing::Values(Case{"sgd", 0}, Case{"adamw", 0}, Case{"sgd", 1.4}, Case{"adamw", 1.4},
                                           Case{"sgd", 1.4, true}, Case{"adamw", 1.4, true}),
                         [](const auto& info) {
                           return info.param.optimizer + (info.param.memory > 0 ? "_tight" : "") +
                                  (info.param.host ? "_host" : "");
                         });

TEST(NetworkStep, AForgottenShapeGivesItsNumberToAnother) {
  const TrainOptions options = options_of("adamw");
  const std::vector<double> expected = losses_of_own_steps(options);
  const auto network = open(network_of(9), options);
  size_t number = 0;
  for (size_t i = 0; i < kBatches.size(); ++i) {
    const size_t before = number;
    number = kBatches[i] == 9 ? 0 : std::get<size_t>(network->add_shape(network_of(kBatches[i])));
    network->use(number);
    if (before != 0 && before != number) network->forget_shape(before);
    EXPECT_LE(number, 2u);
    feed(network->step(), kBatches[i], static_cast<uint32_t>(i));
    network->step().run(0.05);
    EXPECT_NEAR(network->step().loss(), expected[i], 1e-4 * expected[i]) << "batch " << i;
  }
  EXPECT_THROW(network->forget_shape(0), Error);
  network->use(0);
  const size_t added = std::get<size_t>(network->add_shape(network_of(6)));
  network->use(added);
  EXPECT_THROW(network->forget_shape(added), Error);
  EXPECT_GT(network->measured_peak(), 0_B);
  const size_t evaluation = std::get<size_t>(network->add_evaluation(network_of(6, false)));
  network->forget_evaluation(evaluation);
  EXPECT_EQ(std::get<size_t>(network->add_evaluation(network_of(2, false))), evaluation);
}

TEST(NetworkStep, SaysThatAShapeDoesNotFitAndGoesOn) {
  TrainOptions options = options_of("sgd");
  const auto network = open(network_of(2), options);
  const auto added = network->add_shape(network_of(64));
  ASSERT_TRUE(std::holds_alternative<Infeasible>(added));
  EXPECT_GT(std::get<Infeasible>(added).minimum, network->step().executor().arena_bytes());
  feed(network->step(), 2, 1);
  network->step().run(0.05);
  EXPECT_GT(network->step().loss(), 0);
}

// As the last batch of an epoch, in the least memory of the others.
TEST(NetworkStep, SmallerBatchesOfATransformerFitWhereALargeOneDoes) {
  TrainOptions options;
  options.model.clear();
  options.threads = 1;
  options.costs = "estimated";
  options.optimizer.name = "adamw";
  for (const auto& [model, host] : {std::pair{"gpt2:layers=3,width=32,heads=2,context=32", 0_B},
                                    std::pair{"gpt2:layers=3,width=32,heads=2,context=32", 4_MiB},
                                    std::pair{"bert:layers=4,width=48,heads=2,context=24", 0_B}}) {
    const auto text_network = [name = model](int64_t batch) {
      ModelInput input = usual_input(name);
      input.batch = batch;
      input.classes = 64;
      return build_model(name, input);
    };
    options.optimizer.groups = {{.parameters = parameters_of(text_network(1))}};
    options.host_memory = host > 0_B ? std::optional(host) : std::nullopt;
    options.memory.reset();
    options.memory = std::get<Program>(plan_network(text_network(16), options, {})).minimum;
    const auto network = open(text_network(16), options);
    for (const int64_t batch : {15, 12, 9, 5}) {
      SCOPED_TRACE(fmt::format("{} with {} of host memory, batch {}", model, to_string(host), batch));
      EXPECT_TRUE(std::holds_alternative<size_t>(network->add_shape(text_network(batch))));
    }
  }
}

TEST(NetworkStep, TakesMoreMemoryThanItsStepNeedsForAnotherShape) {
  const TrainOptions options = options_of("sgd");
  const auto small = open(network_of(2), options);
  const auto refused = small->add_shape(network_of(16));
  ASSERT_TRUE(std::holds_alternative<Infeasible>(refused));
  // Twice the minimum, since a machine that is busy has other rates, and so other plans, each time.
  const Bytes needed{2 * std::get<Infeasible>(refused).minimum.count};
  ASSERT_LE(needed, small->budget());
  auto opened = NetworkStep::open(network_of(2), options, {}, {}, needed);
  auto& large = std::get<std::unique_ptr<NetworkStep>>(opened);
  EXPECT_EQ(large->step().executor().arena_bytes(), needed);
  EXPECT_EQ(std::get<size_t>(large->add_shape(network_of(16))), 1u);
  const auto evaluated = large->add_evaluation(network_of(16, false));
  EXPECT_TRUE(std::holds_alternative<size_t>(evaluated));
  for (NetworkStep* each : {small.get(), large.get()}) {
    feed(each->step(), 2, 1);
    each->step().run(0.05);
  }
  EXPECT_EQ(small->step().loss(), large->step().loss());
}

// By the settings that it was compiled with or that it was given: the same bits.
TEST(NetworkStep, TakesSettingsOfAGroupAsIfItWereCompiledWithThem) {
  for (const std::string optimizer : {"sgd", "adam", "adamw"}) {
    const auto trained = [&](const ParameterGroup& compiled, const ParameterGroup& given) {
      TrainOptions options = options_of(optimizer);
      const std::vector<std::string> parameters = options.optimizer.groups[0].parameters;
      options.optimizer.groups = {compiled};
      options.optimizer.groups[0].parameters = parameters;
      const auto network = open(network_of(2), options);
      network->step().set_group(0, given);
      for (int i = 0; i < 3; ++i) {
        feed(network->step(), 2, static_cast<uint32_t>(i));
        network->step().run(0.05);
      }
      return network->step().weights_sha256();
    };
    const ParameterGroup one,
        other{.momentum = 0.7, .weight_decay = 0.02, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-6};
    EXPECT_EQ(trained(one, other), trained(other, other)) << optimizer;
    EXPECT_NE(trained(one, other), trained(one, one)) << optimizer;
  }
}

// A network that trains nothing of the group is in use when its settings are told; with nadam its updates are one behind then.
TEST(NetworkStep, KeepsSettingsOfAGroupThatTheNetworkInUseDoesNotTrain) {
  for (const std::string optimizer : {"sgd", "adamw", "nadam"}) {
    const auto trained = [&](bool is_told_there) {
      TrainOptions options = options_of(optimizer);
      options.optimizer.groups.push_back(options.optimizer.groups[0]);
      ParameterGroup &body = options.optimizer.groups[0], &head = options.optimizer.groups[1];
      const auto of_head = [](const std::string& name) { return name.starts_with("fc."); };
      std::erase_if(body.parameters, of_head);
      std::erase_if(head.parameters, std::not_fn(of_head));
      EXPECT_EQ(head.parameters.size(), 2u);
      Network without_head = network_of(2);
      std::erase_if(without_head.objectives[0].parameters,
                    [&](TensorId id) { return of_head(without_head.graph.tensor(id).name); });
      const auto network = open(network_of(2), options);
      EXPECT_EQ(std::get<size_t>(network->add_shape(without_head)), 1u);
      const auto train = [&](size_t shape) {
        network->use(shape);
        feed(network->step(), 2, 7);
        network->step().run(std::vector<double>{0.05, 0.05});
      };
      const ParameterGroup told{.momentum = 0.7, .weight_decay = 0.02, .behind = optimizer == "nadam" ? 1 : 0};
      if (!is_told_there) network->step().set_group(1, told);
      train(1);
      if (is_told_there) network->step().set_group(1, told);
      train(0);
      train(1);
      train(0);
      return network->step().weights_sha256();
    };
    EXPECT_EQ(trained(true), trained(false)) << optimizer;
  }
}

TEST(NetworkStep, HasSettingsOfItsGroupsOnly) {
  const auto network = open(network_of(2), options_of("sgd"));
  EXPECT_THROW(network->step().set_group(1, {}), Error);
}

}  // namespace
}  // namespace plimsoll
