// Steps side by side: the same weights as one after another, bit by bit; never more at once than was asked for, nor on
// more cores than there are; and an end as orderly when something fails.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "plimsoll/compile.h"
#include "plimsoll/execute.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"
#include "plimsoll/verify.h"
#include "tests/support/idle_device.h"
#include "tests/support/sanitizer.h"
#include "tests/support/wrapped_device.h"
#include "tests/support/write_inputs.h"

namespace plimsoll {
namespace {

using ::testing::HasSubstr;

Program program_of(const Device& device, const std::string& model, const std::string& optimizer) {
  const ModelInput input{.batch = 2, .channels = 3, .height = 32, .width = 32, .classes = 10, .training = true};
  CompileOptions options{.policy = "liveness", .exact = true, .family = LayoutFamily::plain};
  options.optimizer.name = optimizer;
  return std::get<Program>(compile_training(build_model(model, input), device, CostTable(), options));
}

struct Trained {
  std::vector<std::byte> states;
  Bytes peak;
  size_t met = 0;  // pairs of steps that ran at the same time, in the last step
};

Trained train(const Device& device, const Graph& graph, const Plan& plan, ExecuteOptions options, int steps = 2) {
  options.record_times = true;
  Executor executor(graph, plan, device, options);
  executor.initialize(7);
  for (int step = 0; step < steps; ++step) {
    write_inputs(executor, graph, step);
    executor.run_step();
  }
  Trained result{.states = {}, .peak = executor.measured_peak()};
  for (const State& state : graph.states) {
    std::vector<std::byte> values(element_count(graph.tensor(state.before).shape) * 4);
    executor.read(state.before, values);
    result.states.insert(result.states.end(), values.begin(), values.end());
  }
  const auto records = executor.records();
  for (size_t a = 0; a < records.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      result.met += records[a].start_ms < records[b].end_ms && records[b].start_ms < records[a].end_ms;
    }
  }
  return result;
}

TEST(SideBySide, TheReferenceDeviceTrainsToTheSameWeightsBitForBit) {
  const auto device = with_many_cores(open_reference_device());
  for (const char* optimizer : {"sgd", "adam"}) {
    const Program program = program_of(*device, "lenet", optimizer);
    const Graph& graph = program.network.graph;
    const Trained expected = train(*device, graph, program.plan, {});
    for (const int at_once : {2, 3, 4}) {
      for (const bool check_memory : {false, true}) {
        Plan plan = program.plan;
        plan.cores.inter_op = at_once;
        plan.cores.cores = at_once;
        const Trained got = train(*device, graph, plan, {.check_memory = check_memory});
        EXPECT_EQ(got.states, expected.states) << at_once << " at once";
        EXPECT_LE(got.peak, plan.arena);
      }
    }
  }
}

// Many orders in which the steps of a network may run, one after another, and two at a time.
TEST(SideBySide, TheReferenceDeviceTrainsToTheSameWeightsInAnyOrder) {
  const auto device = with_many_cores(open_reference_device());
  const Program program = program_of(*device, "lenet", "sgd");
  const Graph& graph = program.network.graph;
  const Trained expected = train(*device, graph, program.plan, {}, 1);
  std::mt19937 random(5);
  Plan plan = program.plan;
  plan.cores.inter_op = 2;
  for (int order = 0; order < 120; ++order) {
    plan.cores.cores = 1 + order % 2;
    plan.cores.order.resize(plan.steps.size());
    std::iota(plan.cores.order.begin(), plan.cores.order.end(), 0);
    std::shuffle(plan.cores.order.begin(), plan.cores.order.end(), random);
    const Trained got = train(*device, graph, plan, {.check_memory = order % 2 == 0}, 1);
    ASSERT_EQ(got.states, expected.states) << "order " << order;
    if (plan.cores.cores == 1) {
      ASSERT_EQ(got.met, 0u);
    }
  }
}

TEST(SideBySide, TheCpuTrainsToTheSameWeightsForTheSameThreads) {
  const auto device = with_many_cores(open_device("cpu", kKernelThreads));
  for (const char* model : {"resnet20", "densenet:depth=10,growth=4"}) {
    const Program program = program_of(*device, model, "adam");
    const Graph& graph = program.network.graph;
    for (const int mix : {0, 1, 2}) {  // all with one thread; all with two; every third with two
      Plan serial = program.plan;
      for (size_t s = 0; s < serial.steps.size(); ++s)
        serial.steps[s].threads = mix == 1 || (mix == 2 && s % 3 == 0) ? kKernelThreads : 1;
      const Trained expected = train(*device, graph, serial, {});
      for (const int at_once : {2, 3}) {
        Plan plan = serial;
        plan.cores.inter_op = at_once;
        plan.cores.cores = 2;
        EXPECT_EQ(train(*device, graph, plan, {}).states, expected.states) << model << ", " << mix << ", " << at_once;
        plan.cores.cores = 3;
        EXPECT_EQ(train(*device, graph, plan, {.pin = false}).states, expected.states) << model << ", " << mix;
      }
    }
  }
}

// Ops that take their time, and count who runs beside them.
struct Watch {
  std::atomic<int> running{0}, most{0}, runs{0}, begun_after_failure{0};
  std::atomic<int> threads{0}, most_threads{0};
  std::atomic<bool> failed{false};
  std::string failing;  // an op
};

class WatchedDevice final : public PretendDevice {
 public:
  explicit WatchedDevice(Watch& watch) : watch_(watch) {}
  std::unique_ptr<Kernel> make_kernel(const Graph& graph, const Op& op, std::string_view, int threads) const override {
    return std::make_unique<Watched>(graph, op, watch_, std::max(threads, 1));
  }

 private:
  class Watched final : public Kernel {
   public:
    Watched(const Graph&, const Op& op, Watch& watch, int threads) : name_(op.name), watch_(watch), threads_(threads) {}
    Bytes workspace() const override { return {}; }
    void bind(std::span<void* const>, std::span<void* const>, void*) override {}
    void run() override {
      if (watch_.failed) {
        ++watch_.begun_after_failure;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));  // meanwhile whose step failed tells the others
      }
      raise(watch_.most, ++watch_.running);
      raise(watch_.most_threads, watch_.threads += threads_);
      std::this_thread::sleep_for(std::chrono::microseconds(300));
      ++watch_.runs;
      watch_.threads -= threads_;
      --watch_.running;
      if (name_ == watch_.failing) {
        watch_.failed = true;
        throw Error(ErrorCode::device_failure, fmt::format("'{}' is broken", name_));
      }
    }

   private:
    static void raise(std::atomic<int>& most, int now) {
      for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
      }
    }
    const std::string name_;
    Watch& watch_;
    const int threads_;
  };
  Watch& watch_;
};

Program watched_program() { return program_of(*open_reference_device(), "resnet20", "sgd"); }

TEST(SideBySide, NeverMoreStepsAtOnceThanAskedForNorThreadsThanCores) {
  Program program = watched_program();
  for (const int at_once : {2, 3, 8}) {
    for (const int cores : {1, 2, 4}) {
      Watch watch;
      const WatchedDevice device(watch);
      Plan plan = program.plan;
      plan.cores.inter_op = at_once;
      plan.cores.cores = cores;
      std::mt19937 random(3);
      for (Step& step : plan.steps)
        step.threads = kThreadSanitizer ? 1 : 1 + static_cast<int>(random() % static_cast<unsigned>(cores));
      Executor executor(program.network.graph, plan, device);
      const auto kernels =
          std::count_if(plan.steps.begin(), plan.steps.end(), [](const Step& s) { return !s.kernel.empty(); });
      for (int step = 1; step <= 3; ++step) {
        executor.run_step();
        EXPECT_EQ(watch.runs, step * kernels);
      }
      EXPECT_LE(watch.most, std::min(at_once, cores));
      EXPECT_LE(watch.most_threads, cores);
      if (cores > 1) {
        EXPECT_GE(watch.most, 2);
      }
    }
  }
}

// Of the steps that met, every second pair becomes a conflict: these never meet again, others do.
TEST(SideBySide, StepsThatAreKeptApartNeverMeet) {
  Watch watch;
  const WatchedDevice device(watch);
  const Program program = watched_program();
  Plan plan = program.plan;
  plan.cores.inter_op = 4;
  for (Step& step : plan.steps) step.threads = 1;
  auto pairs_that_met = [&](Executor& executor) {
    std::set<std::pair<StepIndex, StepIndex>> pairs;
    for (int step = 0; step < 5; ++step) {
      executor.run_step();
      const auto records = executor.records();
      for (StepIndex a = 0; a < static_cast<StepIndex>(records.size()); ++a) {
        for (StepIndex b = 0; b < a; ++b) {
          const StepRecord &x = records[a], &y = records[b];
          if (x.start_ms < y.end_ms && y.start_ms < x.end_ms) pairs.emplace(b, a);
        }
      }
    }
    return pairs;
  };
  plan.cores.cores = 4;
  const ExecuteOptions options{.record_times = true};
  Executor freely(program.network.graph, plan, device, options);
  const auto met = pairs_that_met(freely);
  ASSERT_GT(met.size(), 10u);
  std::vector<std::pair<StepIndex, StepIndex>> conflicts;
  for (const auto& pair : met) {
    if ((pair.first + pair.second) % 2 == 0) conflicts.push_back(pair);
  }
  ASSERT_FALSE(conflicts.empty());
  for (const auto& [a, b] : conflicts) {
    const OpId one = plan.steps[a].op, other = plan.steps[b].op;
    plan.cores.conflicts.push_back(std::minmax(one, other, [](OpId x, OpId y) { return x.index < y.index; }));
  }
  Executor conflicting(program.network.graph, plan, device, options);
  const auto now = pairs_that_met(conflicting);
  EXPECT_FALSE(now.empty());
  for (const auto& pair : conflicts) EXPECT_FALSE(now.contains(pair)) << pair.first << " and " << pair.second;
}

TEST(SideBySide, AFailureEndsTheStepWhenAllThatHadBegunIsOver) {
  const Program program = watched_program();
  const Graph& graph = program.network.graph;
  Plan plan = program.plan;
  plan.cores.inter_op = plan.cores.cores = 3;
  for (const size_t at : {size_t{0}, plan.steps.size() / 2, plan.steps.size() - 1}) {
    Watch watch;
    for (size_t s = at;; --s) {
      watch.failing = graph.op(plan.steps[s].op).name;
      if (!plan.steps[s].kernel.empty()) break;
    }
    const WatchedDevice device(watch);
    Executor executor(graph, plan, device);
    for (int again = 0; again < 2; ++again) {
      try {
        executor.run_step();
        FAIL() << "no error";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("is broken"));
        EXPECT_EQ(error.code(), ErrorCode::device_failure);
      }
      EXPECT_EQ(watch.running, 0);
    }
    EXPECT_LE(watch.begun_after_failure, 2);  // those that others were starting at that moment
    EXPECT_GT(watch.runs, 0);
  }
}

TEST(SideBySide, RecordsSayWhenAndOnWhichCoreEachStepRan) {
  const Program program = watched_program();
  Watch watch;
  const WatchedDevice device(watch);
  Plan plan = program.plan;
  plan.cores.inter_op = plan.cores.cores = 3;
  Executor executor(program.network.graph, plan, device, {.record_times = true});
  size_t met = 0;
  for (int steps = 0; met <= 10 && steps < 50; ++steps) {  // on a busy machine few meet
    executor.run_step();
    const auto records = executor.records();
    for (size_t a = 0; a < records.size(); ++a) {
      if (plan.steps[a].kernel.empty()) continue;
      EXPECT_GE(records[a].end_ms - records[a].start_ms, 0.3);
      EXPECT_GE(records[a].core, 0);
      EXPECT_LT(records[a].core, 3);
      for (size_t b = 0; b < a; ++b) {
        if (plan.steps[b].kernel.empty()) continue;
        if (records[a].start_ms >= records[b].end_ms || records[b].start_ms >= records[a].end_ms) continue;
        ++met;
        EXPECT_NE(records[a].core, records[b].core) << a << " and " << b;
      }
    }
  }
  EXPECT_GT(met, 10u);
}

// With one core, only steps whose affinity are second hardware threads run beside another.
TEST(SideBySide, StepsOnSecondHardwareThreadsRunBesideThoseThatHoldTheCores) {
  const Program program = watched_program();
  for (const int cores : {1, 2, 3}) {
    for (const int hardware_threads : {1, 2}) {
      Watch watch;
      const WatchedDevice device(watch);
      Plan plan = program.plan;
      plan.cores.inter_op = 4;
      plan.cores.cores = cores;
      plan.cores.hardware_threads = hardware_threads;
      for (size_t s = 0; s < plan.steps.size(); ++s) {
        plan.steps[s].threads = s % 2 == 0 ? cores : 1;
        plan.steps[s].affinity = s % 2 == 0 ? Affinity::close : Affinity::smt;
      }
      for (Step& step : plan.steps) step.time_ms = 0;  // nothing is expected of the times: whatever is beside may be
      Executor executor(program.network.graph, plan, device, {.record_times = true});
      executor.run_step();
      executor.run_step();
      const int kernels = static_cast<int>(
          std::count_if(plan.steps.begin(), plan.steps.end(), [](const Step& s) { return !s.kernel.empty(); }));
      EXPECT_EQ(watch.runs, 2 * kernels);
      EXPECT_LE(watch.most_threads, cores * hardware_threads);
      const auto records = executor.records();
      int second = 0;
      for (size_t s = 0; s < records.size(); ++s) {
        second += records[s].core >= cores;
        if (records[s].core >= cores) {
          EXPECT_EQ(plan.steps[s].affinity, Affinity::smt);
        }
      }
      EXPECT_EQ(second > 0, hardware_threads > 1) << cores;
    }
  }
}

TEST(SideBySide, StepsOneAfterAnotherWithTheirOwnThreadCountsGiveTheSameWeights) {
  const auto device = with_many_cores(open_device("cpu", kKernelThreads));
  const Program program = program_of(*device, "resnet20", "sgd");
  Plan plan = program.plan;
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    plan.steps[s].threads = s % 2 == 0 ? 1 : 0;
    plan.steps[s].affinity = s % 3 == 0 ? Affinity::spread : Affinity::close;
  }
  const Trained got = train(*device, program.network.graph, plan, {});
  EXPECT_EQ(got.met, 0u);
  plan.cores.inter_op = plan.cores.cores = 2;
  const Trained expected = train(*device, program.network.graph, plan, {});
  EXPECT_EQ(got.states, expected.states);
}

}  // namespace
}  // namespace plimsoll
