// A training step as a user holds it: fed, run, its states by name, and swapped for another plan of the same graph.
#include "plimsoll/training_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plimsoll/data.h"
#include "plimsoll/models.h"

namespace plimsoll {
namespace {

using ::testing::HasSubstr;

constexpr ModelInput kInput{.batch = 4, .channels = 3, .height = 32, .width = 32, .classes = 10, .training = true};

Program program_of(const Device& device, CompileOptions options) {
  options.exact = true;
  return std::get<Program>(compile_training(build_model("lenet", kInput), device, CostTable(), options));
}

void feed(TrainingStep& step, int number) {
  std::vector<float> data(4 * 3 * 32 * 32);
  uint32_t noise = 7 + static_cast<uint32_t>(number);
  for (float& x : data) {
    noise = noise * 1664525 + 1013904223;
    x = static_cast<float>(noise >> 16) / 32768 - 1;
  }
  step.feed(data, std::vector<int32_t>{1, 3, 5, number % 10});
}

std::string run(TrainingStep& step, int first, int end) {
  for (int i = first; i < end; ++i) {
    feed(step, i);
    step.run(0.01);
  }
  return step.weights_sha256();
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    return error.what();
  }
  return "no error";
}

TEST(TrainingStep, HasItsStatesByNameAsTensors) {
  const auto device = open_device("cpu", 1);
  TrainingStep step(program_of(*device, {.policy = "liveness"}), *device);
  step.initialize(3);
  ASSERT_FALSE(step.states().empty());
  const CheckpointTensor& first = step.states()[0];
  StateTensor state = step.state(first.name);
  EXPECT_EQ(state.shape, first.shape);
  ASSERT_EQ(static_cast<int64_t>(state.as<float>().size()), element_count(first.shape));
  const std::string before = step.weights_sha256();
  for (float& x : state.as<float>()) x += 1;
  step.set_state(state);
  EXPECT_NE(step.weights_sha256(), before);
  EXPECT_EQ(step.state(first.name).as<float>()[0], state.as<float>()[0]);
  EXPECT_THAT(message_of([&] { step.state(first.name + "x"); }), HasSubstr("did you mean '" + first.name + "'"));
  EXPECT_THAT(message_of([&] { state.as<int32_t>(); }), HasSubstr("f32"));
  state.shape[0] += 1;
  EXPECT_THAT(message_of([&] { step.set_state(state); }), HasSubstr("'" + first.name + "' is "));
  EXPECT_THAT(message_of([&] { step.feed(std::vector<float>(3)); }), HasSubstr("elements, not 3"));
}

// A step of three batches: the first two leave the weights alone, and no two draw the same dropout.
TEST(TrainingStep, UpdatesWithTheLastBatchWhereGradientsAreAccumulated) {
  const auto device = open_device("cpu", 1);
  Builder net("drop", kInput);
  const TensorId flat = net.dropout("drop", net.flatten("flatten", net.data()), 0.5);
  const Network network = std::move(net).finish_classifier(net.fully_connected("fc", flat, {.channels = 10}));
  CompileOptions options{.policy = "liveness", .exact = true};
  options.optimizer.accumulate = 3;
  TrainingStep step(std::get<Program>(compile_training(network, *device, CostTable(), options)), *device);
  step.initialize(3);
  const std::string drawn = step.weights_sha256();
  std::vector<double> losses;
  const auto batch = [&](int64_t batches = 0) {
    feed(step, 0);
    step.run(0.05, batches);
    losses.push_back(step.loss());
  };
  batch();
  batch();
  EXPECT_EQ(step.accumulated(), 2);
  EXPECT_EQ(step.number(), 0);
  EXPECT_EQ(step.weights_sha256(), drawn);
  EXPECT_NE(losses[0], losses[1]) << "the same weights and images";
  batch();
  EXPECT_EQ(step.accumulated(), 0);
  EXPECT_EQ(step.number(), 1);
  const std::string first = step.weights_sha256();
  EXPECT_NE(first, drawn);
  batch(2);
  EXPECT_EQ(step.weights_sha256(), first);
  batch(2);
  EXPECT_EQ(step.number(), 2) << "a step of two";
  EXPECT_NE(step.weights_sha256(), first);
}

TEST(TrainingStep, LearnsWhatItIsFed) {
  const auto device = open_device("cpu", 1);
  TrainingStep step(program_of(*device, {.policy = "liveness"}), *device);
  step.initialize(3);
  feed(step, 0);
  step.run(0.05);
  const double first = step.loss();
  for (int i = 1; i < 100; ++i) {
    feed(step, 0);
    step.run(0.05);
  }
  EXPECT_LT(step.loss(), first / 2);
  EXPECT_EQ(step.correct(), 4.0);
  EXPECT_EQ(step.number(), 100);
}

// A plan that has everything elsewhere, states too, and then the first one again.
TEST(TrainingStep, TakesBatchesInEitherLayoutWhateverItsOwn) {
  const auto device = open_device("cpu", 1);
  const auto data = open_data("synthetic:16", {.channels = 3, .height = 32, .width = 32});
  for (const LayoutFamily family : {LayoutFamily::plain, LayoutFamily::channels_last, LayoutFamily::blocked}) {
    std::vector<std::string> weights;
    for (const bool channels_last : {false, true}) {
      TrainingStep step(program_of(*device, {.policy = "liveness", .family = family}), *device);
      step.initialize(3);
      Loader loader(data, {.batch = 4, .channels_last = channels_last});
      for (int i = 0; i < 3; ++i) {
        step.feed(loader.next());
        step.run(0.01);
      }
      weights.push_back(step.weights_sha256());
    }
    EXPECT_EQ(weights[0], weights[1]) << to_string(family);
  }
}

TEST(TrainingStep, GoesOnWithAnotherPlanAsIfNothingHadHappened) {
  const auto device = open_device("cpu", 1);
  const CompileOptions adam{.policy = "liveness", .optimizer = {.name = "adam"}};
  TrainingStep straight(program_of(*device, adam), *device);
  straight.initialize(3);
  const std::string expected = run(straight, 0, 6);

  const Program program = program_of(*device, adam);
  Plan plan = program.plan;
  for (Stay& stay : plan.stays) stay.offset += 4096_B;
  plan.arena += 4096_B;
  TrainingStep step(program, *device, {.check_memory = true}, {}, plan.arena);
  step.initialize(3);
  run(step, 0, 2);
  const Bytes peak = step.measured_peak();
  EXPECT_GT(peak, 0_B);
  step.swap(check_plan(program.network.graph, plan));
  EXPECT_EQ(step.executor().arena_bytes(), plan.arena);
  EXPECT_EQ(step.measured_peak(), peak) << "of the steps before";
  run(step, 2, 4);
  step.swap(program.plan);
  EXPECT_EQ(run(step, 4, 6), expected);
}

TEST(TrainingStep, RefusesAPlanForAnotherGraphAndGoesOn) {
  const auto device = open_device("cpu", 1);
  TrainingStep step(program_of(*device, {.policy = "liveness"}), *device);
  step.initialize(3);
  EXPECT_THAT(
      message_of([&] { step.swap(program_of(*device, {.policy = "liveness", .optimizer = {.name = "adam"}}).plan); }),
      HasSubstr("the plan is for another graph"));
  run(step, 0, 1);
}

}  // namespace
}  // namespace plimsoll
