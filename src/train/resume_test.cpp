#include "train/resume.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "plimsoll/error.h"
#include "plimsoll/models.h"
#include "tests/support/core_case.h"

namespace plimsoll {
namespace {

using testing::CoreCase;
using ::testing::HasSubstr;

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TrainOptions unusual_options() {
  TrainOptions options{.model = "lenet",
                       .data = "synthetic:50",
                       .batch = 3,
                       .memory = 5_MiB,
                       .policy = "liveness",
                       .placement = "best_fit",
                       .threads = 2,
                       .epochs = 7,
                       .steps = 11,
                       .optimizer = {.name = "adam", .weight_decay = 0.25},
                       .seed = UINT64_MAX,
                       .exact = true,
                       .image_size = 30,
                       .classes = 12,
                       .augment = false,
                       .evaluate_every = 3};
  options.schedule = {.name = "step",
                      .lr = 0.3,
                      .min_lr = 1e-300,
                      .decay_rate = 0.7,
                      .decay_epochs = 3,
                      .warmup_epochs = 2,
                      .warmup_lr = 0.1};
  return options;
}

TEST(Resume, TheOptionsThatChangeTheResultComeBack) {
  const TrainOptions options = unusual_options();
  Program program;
  program.plan = check_plan({}, {.graph_fingerprint = fingerprint({}), .budget = *options.memory});
  const TrainingState state = training_state_from_json(to_json(state_to_save(options, program, "key")));
  const TrainOptions back = saved_options(state);
  EXPECT_EQ(back.model, options.model);
  EXPECT_EQ(back.data, options.data);
  EXPECT_EQ(back.batch, options.batch);
  EXPECT_EQ(back.memory, options.memory);
  EXPECT_EQ(back.policy, options.policy);
  EXPECT_EQ(back.placement, options.placement);
  EXPECT_EQ(back.threads, options.threads);
  EXPECT_EQ(back.epochs, options.epochs);
  EXPECT_EQ(back.steps, options.steps);
  EXPECT_EQ(back.optimizer.name, options.optimizer.name);
  EXPECT_EQ(back.optimizer.weight_decay, options.optimizer.weight_decay);
  EXPECT_EQ(back.seed, options.seed);
  EXPECT_EQ(back.exact, options.exact);
  EXPECT_EQ(back.image_size, options.image_size);
  EXPECT_EQ(back.classes, options.classes);
  EXPECT_EQ(back.augment, options.augment);
  EXPECT_EQ(back.evaluate_every, options.evaluate_every);
  EXPECT_EQ(back.schedule.name, options.schedule.name);
  EXPECT_EQ(back.schedule.lr, options.schedule.lr);
  EXPECT_EQ(back.schedule.min_lr, options.schedule.min_lr);
  EXPECT_EQ(back.schedule.decay_rate, options.schedule.decay_rate);
  EXPECT_EQ(back.schedule.decay_epochs, options.schedule.decay_epochs);
  EXPECT_EQ(back.schedule.warmup_epochs, options.schedule.warmup_epochs);
  EXPECT_EQ(back.schedule.warmup_lr, options.schedule.warmup_lr);
}

TEST(Resume, TheSumsOfAnEpochComeBackToTheBit) {
  TrainingState state;
  EXPECT_FALSE(training_state_from_json(to_json(state)).epoch_so_far);
  state.epoch_so_far = {.loss = 0.1 + 0.2, .correct = 17, .gradient_norm = 1e-310, .step_loss = -3};
  EXPECT_EQ(training_state_from_json(to_json(state)).epoch_so_far, state.epoch_so_far);
  state.epoch_so_far->correct.reset();
  const std::string text = to_json(state);
  EXPECT_EQ(training_state_from_json(text).epoch_so_far, state.epoch_so_far);
  const size_t at = text.find("\"step_loss\"");
  EXPECT_THAT(refusal([&] { training_state_from_json(std::string(text).insert(at, "\"loss_sum\":1,")); }),
              HasSubstr("epoch_so_far: \"loss_sum\" is not known here"));
}

// A tensor in another layout is summed in another order.
TEST(Resume, KernelsAndLayoutsAreRepeatedWhateverTheSpeedsAndTheBudgetNow) {
  const auto device = open_device("cpu", 1);
  for (const std::string model : {"lenet", "dcgan:width=8", "resnet:1-1-1-1", "densenet:depth=7,growth=8"}) {
    const Network network = build_model(
        model, {.batch = 4, .channels = model == "lenet" ? 1 : 3, .height = 64, .width = 64, .classes = 10});
    for (const double slower : {0.2, 1.0, 5.0}) {
      SCOPED_TRACE(fmt::format("{} {}", model, slower));
      const CostTable then({.gflops = 100 * slower, .memory_gb_per_s = 10 / slower, .launch_us = 5});
      const Program saved = std::get<Program>(compile_training(network, *device, then, {}));
      for (const double now : {0.2, 1.0, 5.0}) {
        CompileOptions options{.memory = saved.plan->arena * 3};
        pin(options, state_to_save({}, saved, device->info().key));
        const CostTable costs({.gflops = 100 / now, .memory_gb_per_s = 10 * now, .launch_us = 5 * now});
        const auto again = compile_training(network, *device, costs, options);
        ASSERT_TRUE(std::holds_alternative<Program>(again));
        EXPECT_EQ(fingerprint(std::get<Program>(again).network.graph), fingerprint(saved.network.graph)) << now;
      }
    }
  }
}

TEST(Resume, RefusesSettingsThatNoTrainingHas) {
  const nlohmann::json whole = nlohmann::json::parse(to_json(TrainingState{}));
  const std::tuple<const char*, nlohmann::json, const char*> cases[] = {
      {"min_lr", -1, "field 'settings.min_lr': expected a number from 0 to 1000000000, not -1"},
      {"warmup_lr", "0.1", "field 'settings.warmup_lr': expected a number"},
      {"decay_rate", 2, "expected a number from 0 to 1, not 2"},
      {"decay_epochs", 0, "expected 1 or more"},
      {"augment", 1, "expected true or false"},
      {"image_size", 1 << 20, "expected a whole number up to 65536"},
      {"classes", -1, "expected a whole number, not negative"},
      {"inter_op", 4097, "up to 4096"},
      {"host_memory", 0, "expected a size of at least one byte"},
      {"strategies", "1,9", "field 'settings.strategies'"},
      {"more", 1, "field 'settings.more' is not known"},
  };
  for (const auto& [name, value, expected] : cases) {
    nlohmann::json broken = whole;
    broken["settings"][name] = value;
    EXPECT_THAT(refusal([&] { training_state_from_json(broken.dump()); }), HasSubstr(expected)) << name;
  }
}

// The state as versions 1 and 2 had it: settings as texts.
nlohmann::json old_state(const TrainingState& state, const nlohmann::json& settings) {
  nlohmann::json old = nlohmann::json::parse(to_json(state));
  old["format_version"] = 2;
  old["settings"] = settings;
  return old;
}

TEST(Resume, SettingsOfOldCheckpointsAreReadFromTheirTexts) {
  const nlohmann::json texts = {{"image_size", "40"},   {"augment", "0"},       {"min_lr", "0.25"},
                                {"decay_epochs", "7"},  {"strategies", "1,3"},  {"spill", "/a"},
                                {"host_memory", "123"}, {"climb_interval", "5"}};
  SavedSettings expected{.image_size = 40,
                         .augment = false,
                         .decay_epochs = 7,
                         .min_lr = 0.25,
                         .climb_interval = 5,
                         .strategies = strategies_named("1,3"),
                         .host_memory = Bytes{123},
                         .spill = "/a"};
  EXPECT_EQ(training_state_from_json(old_state({}, texts).dump()).settings, expected);
  EXPECT_EQ(training_state_from_json(old_state({}, nlohmann::json::object()).dump()).settings, SavedSettings{});
  const std::tuple<const char*, const char*, const char*> wrong[] = {
      {"min_lr", "nan", "setting 'min_lr': expected a number from 0 to 1000000000, not 'nan'"},
      {"min_lr", "inf", "not 'inf'"},
      {"warmup_lr", "-1", "not '-1'"},
      {"decay_rate", "2", "expected a number from 0 to 1, not '2'"},
      {"decay_epochs", "0", "expected a number from 1 to"},
      {"augment", "yes", "expected a number from 0 to 1, not 'yes'"},
      {"image_size", "1e3", "not '1e3'"},
      {"classes", "", "not ''"},
      {"warmup_epochs", "99999999999999999999", "not '99999999999999999999'"},
      {"more", "1", "setting 'more' is not known"},
  };
  for (const auto& [name, value, message] : wrong) {
    EXPECT_THAT(refusal([&] { training_state_from_json(old_state({}, {{name, value}}).dump()); }), HasSubstr(message));
  }
}

TEST(Resume, RefusesAPlaceThatTheDataDoesNotHave) {
  const auto at = [](int64_t step, int64_t epoch, int64_t batch) {
    return refusal([&] { check_place({.step = step, .epoch = epoch, .batch_in_epoch = batch}, 10, "c.safetensors"); });
  };
  EXPECT_EQ(at(0, 0, 0), "");
  EXPECT_EQ(at(37, 3, 7), "");
  EXPECT_EQ(at(40, 4, 0), "");
  EXPECT_THAT(at(37, 3, 8),
              HasSubstr("c.safetensors stopped after step 37, before batch 9 of epoch 4; with 10 batches an epoch"));
  EXPECT_NE(at(int64_t{1} << 40, 0, 0), "");
  EXPECT_NE(at(10, 0, 10), "");
}

// Steps of 4 batches: 4, 4, and the last 2 of 10.
TEST(Resume, KnowsThePlacesBetweenTheBatchesOfAStep) {
  const auto at = [](int64_t step, int64_t epoch, int64_t batch) {
    TrainingState saved{.step = step, .epoch = epoch, .batch_in_epoch = batch};
    saved.optimizer.accumulate = 4;
    return refusal([&] { check_place(saved, 10, "c.safetensors"); });
  };
  EXPECT_EQ(at(0, 0, 3), "");
  EXPECT_EQ(at(1, 0, 4), "");
  EXPECT_EQ(at(2, 0, 9), "");
  EXPECT_EQ(at(3, 1, 0), "");
  EXPECT_NE(at(1, 0, 3), "");
  EXPECT_NE(at(10, 1, 0), "");
  EXPECT_NE(at(2, 0, 10), "");
}

TEST(Resume, SaysWhenOpsHaveOtherThreadsThanBefore) {
  DeviceInfo device;
  device.key = "oneDNN 3.1 avx512 1 threads, Intel(R) Xeon(R)";
  EXPECT_EQ(
      other_device_text("oneDNN 3.1 avx512 2 threads, Intel(R) Xeon(R)", device),
      "threads of an op: 2 before this checkpoint, 1 now: kernels are chosen anew for that, so results may differ in "
      "the last bits; --intra-op 2 repeats them");
  EXPECT_THAT(other_device_text("oneDNN 2.9 avx512 2 threads, Intel(R) Xeon(R)", device),
              HasSubstr("is from another device (oneDNN 2.9"));
  EXPECT_THAT(other_device_text("cudnn", device), HasSubstr("is from another device (cudnn)"));
}

TEST(Resume, ThreadCountsThatAreOnlyTriedOutAreNotKept) {
  TrainOptions options{.inter_op = 0};
  options.strategies = strategies_named("1,3");
  options.climb_interval = 5;
  EXPECT_TRUE(state_to_save(options, Program(), "key").cores);
  const TrainingState trying = state_to_save(options, Program(), "key", false);
  EXPECT_FALSE(trying.cores);
  EXPECT_EQ(saved_options(trying).strategies, options.strategies);
  EXPECT_EQ(saved_options(trying).climb_interval, 5);
  EXPECT_FALSE(state_to_save({.inter_op = 2}, Program(), "key").cores) << "what the user says is not chosen";
}

// The state of a training that chose so, from a checkpoint's text.
TrainingState state_with(const CoreCase& c, const CheckedPlan& plan) {
  Program program = c.program;
  program.plan = plan;
  return training_state_from_json(to_json(state_to_save({.inter_op = 0}, program, "key")));
}

TEST(Resume, ARunThatChoseHowToShareTheCoresIsRepeated) {
  CoreCase c(1.1);
  const Graph& graph = c.input.graph;
  const auto runs = [](const Step& step) { return !step.kernel.empty(); };
  const Step& first = *std::find_if(c.serial->steps.begin(), c.serial->steps.end(), runs);
  const Step& last = *std::find_if(c.serial->steps.rbegin(), c.serial->steps.rend(), runs);
  c.costs.add_conflict(op_signature(graph, graph.op(first.op)), op_signature(graph, graph.op(last.op)));
  const CheckedPlan chosen = c.chosen_plan();
  ASSERT_EQ(chosen->cores.inter_op, 2);
  ASSERT_FALSE(chosen->cores.conflicts.empty());
  const TrainingState state = state_with(c, chosen);
  const CostTable nothing;  // is measured: what is repeated comes from the checkpoint
  const CoreInput input{graph, *c.device, nothing, {}};
  const std::optional<Plan> again = saved_cores(input, c.serial, c.serial, state);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->cores, chosen->cores);
  for (size_t s = 0; s < again->steps.size(); ++s) {
    EXPECT_EQ(again->steps[s].threads, chosen->steps[s].threads);
    EXPECT_EQ(again->steps[s].affinity, chosen->steps[s].affinity);
  }
  EXPECT_EQ(check_plan(graph, *again)->stays, chosen->stays);
}

TEST(Resume, AnOrderOfOtherStepsIsLeftOut) {
  const CoreCase c(1.1, {.cores = 2});
  TrainingState state = state_with(c, c.chosen_plan());
  state.cores->sharing.order.pop_back();
  EXPECT_TRUE(saved_cores(c.input, c.serial, c.serial, state)->cores.order.empty());
  state.cores->sharing.order.push_back(state.cores->sharing.order[0]);
  EXPECT_TRUE(saved_cores(c.input, c.serial, c.serial, state)->cores.order.empty());
}

TEST(Resume, ThreadCountsOfOldCheckpointsAreReadFromTheSettings) {
  const CoreCase c(1.1, {.cores = 2});
  const TrainingState now = state_to_save({}, c.program, "key");
  EXPECT_FALSE(saved_cores(c.input, c.serial, c.serial, now));
  const std::string op = c.input.graph.op(c.serial->steps.back().op).name;
  nlohmann::json texts = {{"inter_op_chosen", "2"}, {"threads of " + op, "1"}, {"affinity of " + op, "1"}};
  const TrainingState state = training_state_from_json(old_state(now, texts).dump());
  const Plan plan = saved_cores(c.input, c.serial, c.serial, state).value();
  EXPECT_EQ(plan.cores.inter_op, 2);
  EXPECT_EQ(plan.cores.cores, 2);
  EXPECT_EQ(plan.steps.back().threads, 1);
  EXPECT_EQ(plan.steps.back().affinity, Affinity::spread);
  EXPECT_EQ(plan.steps.front().threads, 0);
  for (const auto& [name, value] : {std::pair("inter_op_chosen", "0"), {"inter_op_chosen", "many"}}) {
    texts[name] = value;
    EXPECT_THAT(refusal([&] { training_state_from_json(old_state(now, texts).dump()); }),
                HasSubstr("expected a number from 1 to 4096"));
  }
}

TEST(Resume, CoresThatWereChosenForOtherOpsAreChosenAnew) {
  CoreCase c(1.1);
  const TrainingState state = state_with(c, c.chosen_plan());
  ASSERT_TRUE(saved_cores(c.input, c.serial, c.serial, state));
  TrainingState other = state;
  other.cores->ops["no such op"] = {.threads = 1};
  EXPECT_FALSE(saved_cores(c.input, c.serial, c.serial, other));
  other = state;
  other.cores->conflicts = {{c.input.graph.op(c.serial->steps.front().op).name, "no such op"}};
  EXPECT_FALSE(saved_cores(c.input, c.serial, c.serial, other));
}

TEST(Resume, CoresThatNoTrainingHasAreRefusedByTheirPlace) {
  const CoreCase c(1.1, {.cores = 2});
  const nlohmann::json whole = nlohmann::json::parse(to_json(state_with(c, c.chosen_plan())));
  const std::string op = whole["cores"]["ops"].begin().key();
  const auto refused = [&](const char* at, const nlohmann::json& value) {
    nlohmann::json broken = whole;
    broken["cores"][nlohmann::json::json_pointer(at)] = value;
    return refusal([&] { training_state_from_json(broken.dump()); });
  };
  EXPECT_EQ(refused("/inter_op", 3), "");
  EXPECT_THAT(refused("/inter_op", 0),
              HasSubstr("training state: cores.inter_op: an integer from 1 to 4096 was expected, not 0"));
  EXPECT_THAT(refused("/hardware_threads", 65), HasSubstr("cores.hardware_threads"));
  EXPECT_THAT(refused("/smt_speed", 0.5), HasSubstr("cores.smt_speed: a number of at least 1"));
  EXPECT_THAT(refused("/memory_gb_per_s", -1), HasSubstr("cores.memory_gb_per_s"));
  EXPECT_THAT(refused("/conflicts", {{"a"}}), HasSubstr("two ops were expected"));
  EXPECT_THAT(refused("/order/0", -1), HasSubstr("cores.order[0]"));
  EXPECT_THAT(refused("/ops", 1), HasSubstr("cores.ops: an object"));
  EXPECT_THAT(refused(("/ops/" + op).c_str(), {{"threads", 4097}, {"affinity", "close"}}),
              HasSubstr("threads: an integer from 0 to 4096"));
  EXPECT_THAT(refused(("/ops/" + op).c_str(), {{"threads", 1}, {"affinity", "near"}}),
              HasSubstr("\"close\", \"spread\" or \"smt\""));
  EXPECT_THAT(refused("/more", 1), HasSubstr("\"more\" is not known here"));
}

}  // namespace
}  // namespace plimsoll
