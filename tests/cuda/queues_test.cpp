// The order of kernels and copies on a device that computes beside the host, for random plans: no kernel reads a tensor
// before its copy is complete, nothing is overwritten while it is copied out, whatever order queues and events allow;
// and a wait that is forgotten is found.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>

#include "device/cuda/device.h"
#include "device/tier/tier.h"
#include "plimsoll/compile.h"
#include "plimsoll/cost.h"
#include "plimsoll/execute.h"
#include "plimsoll/models.h"
#include "plimsoll/verify.h"
#include "tests/cuda/fake_door.h"
#include "tests/support/mixing_device.h"
#include "tests/support/random_plan.h"
#include "tests/support/temporary_folder.h"

namespace plimsoll {
namespace {

using testing::FakeDoor;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MixingDevice;
using Content = std::vector<std::vector<std::byte>>;

constexpr uint64_t kSteps =
    4;  // two that are asked for one by one, then two as a whole, where nothing goes by way of a disk

// The CUDA device with noise for kernels, asked of its compute queue.
class QueuedMixing final : public Device {
 public:
  QueuedMixing(std::shared_ptr<FakeDoor> door, const Graph& graph, const std::vector<KernelChoice>& kernels)
      : door_(std::move(door)),
        cuda_(cuda::open_behind(door_, "cuda:0", false,
                                [this](int device) {
                                  peer_ = std::make_shared<FakeDoor>(static_cast<uint64_t>(device));
                                  peer_->as_device(device);
                                  return peer_;
                                })),
        mixing_(graph, kernels) {}

  const DeviceInfo& info() const override { return cuda_->info(); }
  std::vector<KernelSpec> kernels(const Graph&, const Op&, LayoutFamily) const override { return {}; }
  std::unique_ptr<Kernel> make_kernel(const Graph& graph, const Op& op, std::string_view name,
                                      int threads) const override {
    return std::make_unique<Asked>(*door_, graph, op, mixing_.make_kernel(graph, op, name, threads));
  }
  std::unique_ptr<Arena> take_arena(Bytes bytes) const override { return cuda_->take_arena(bytes); }
  bool host_addressable() const override { return false; }
  void write(std::byte* to, std::span<const std::byte> from) const override { cuda_->write(to, from); }
  void read(std::span<std::byte> to, const std::byte* from) const override { cuda_->read(to, from); }
  std::unique_ptr<Queues> open_queues() const override { return cuda_->open_queues(); }
  std::shared_ptr<void> pin(std::span<std::byte> memory) const override { return cuda_->pin(memory); }
  std::shared_ptr<Tier> open_peer(std::string_view name, std::optional<Bytes> size) const override {
    return cuda_->open_peer(name, size);
  }
  const FakeDoor& peer() const { return *peer_; }

 private:
  class Asked final : public Kernel {
   public:
    Asked(FakeDoor& door, const Graph& graph, const Op& op, std::unique_ptr<Kernel> inner)
        : door_(door), graph_(graph), op_(op), inner_(std::move(inner)) {}
    Bytes workspace() const override { return inner_->workspace(); }
    void bind(std::span<void* const> inputs, std::span<void* const> outputs, void* workspace) override {
      inner_->bind(inputs, outputs, workspace);
      for (size_t i = 0; i < inputs.size(); ++i) reads_.push_back({inputs[i], bytes(op_.inputs[i])});
      for (size_t i = 0; i < outputs.size(); ++i) writes_.push_back({outputs[i], bytes(op_.outputs[i])});
      writes_.push_back({workspace, static_cast<size_t>(inner_->workspace().count)});
    }
    void run() override {
      door_.touches(reads_, writes_);
      door_.enqueue([this] { inner_->run(); });
    }

   private:
    size_t bytes(TensorId id) const { return graph_.tensor(id).bytes().count; }
    FakeDoor& door_;
    const Graph& graph_;
    const Op op_;
    std::unique_ptr<Kernel> inner_;
    std::vector<cuda::Touch> reads_, writes_;
  };

  std::shared_ptr<FakeDoor> door_, peer_;
  std::unique_ptr<Device> cuda_;
  MixingDevice mixing_;
};

std::vector<std::byte> source(const Graph& graph, TensorId id, uint64_t step) {
  std::vector<std::byte> bytes(graph.tensor(id).bytes().count);
  testing::Digest::fill(bytes.data(), bytes.size(), static_cast<uint64_t>(id.index) * 1000 + step);
  return bytes;
}

struct Problem {
  Problem(Graph g, Plan p, std::vector<KernelChoice> k)
      : graph(std::move(g)), plan(std::move(p)), kernels(std::move(k)) {}
  static Problem fed(uint64_t seed) {
    Problem problem(seed, false);
    problem.plan = testing::RandomPlan(problem.graph, seed).without_disk().fed().make();
    return problem;
  }
  explicit Problem(uint64_t seed, bool disk = true)
      : graph(testing::random_graph(seed, {.forward_ops = static_cast<int>(3 + seed % 9)})),
        plan(disk ? testing::RandomPlan(graph, seed).make() : testing::RandomPlan(graph, seed).without_disk().make()) {
    kernels.resize(graph.op_count());
    for (const Step& step : plan.steps) kernels[step.op.index] = {step.kernel, step.workspace};
  }
  Graph graph;
  Plan plan;
  std::vector<KernelChoice> kernels;
};

Content contents(Problem& problem, const Device& device, const ExecuteOptions& options) {
  const Graph& graph = problem.graph;
  Executor executor(graph, problem.plan, device, options);
  for (const State& state : graph.states) executor.write(state.before, source(graph, state.before, 0));
  for (uint64_t step = 0; step < kSteps; ++step) {
    for (TensorId input : graph.inputs) executor.write(input, source(graph, input, step));
    executor.run_step();
  }
  Content content;
  for (const State& state : graph.states) {
    content.emplace_back(graph.tensor(state.before).bytes().count);
    executor.read(state.before, content.back());
  }
  return content;
}

TEST(Queues, OrderEveryKernelAndCopyOfARandomPlan) {
  TemporaryFolder folder;
  int transfers = 0, captured = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Problem problem(seed, seed % 3 == 0);
    ASSERT_THAT(verify(problem.graph, problem.plan, 1), IsEmpty());
    const Content expected = contents(problem, MixingDevice(problem.graph, problem.kernels), {.spill = folder.path()});
    for (const bool check_memory : {false, true}) {
      const auto door = std::make_shared<FakeDoor>(seed);
      const QueuedMixing device(door, problem.graph, problem.kernels);
      ASSERT_EQ(contents(problem, device,
                         {.check_memory = check_memory,
                          .record_times = seed % 2 == 0,
                          .time_captured = seed % 4 == 0,
                          .spill = folder.path()}),
                expected);
      ASSERT_THAT(door->conflicts(), IsEmpty());
      EXPECT_EQ(door->allocations(), 0u);
      EXPECT_TRUE(door->pinned().empty());
      const bool disk = std::any_of(problem.plan.moves.begin(), problem.plan.moves.end(), [&](const Move& move) {
        return problem.plan.tiers[move.tier].tier.name == "disk";
      });
      ASSERT_EQ(door->captures(), disk ? 0 : 1);
      captured += door->captures();
    }
    transfers += static_cast<int>(problem.plan.moves.size());
  }
  EXPECT_GT(transfers, 300);
  EXPECT_GT(captured, 30);
}

// What policies plan for real GPUs, not what nobody would want.
TEST(Queues, OrderPlansThatPoliciesMakeForGpus) {
  TemporaryFolder folder;
  const ModelInput input{.batch = 4, .channels = 3, .height = 16, .width = 16, .classes = 10, .training = true};
  const Network network = build_model("resnet20", input);
  int moving = 0;
  for (const char* gpu : {"k40c", "h100"}) {
    const auto simulated = open_device(gpu);
    const CostTable costs(probe_rates(*simulated));
    CompileOptions options{.policy = "liveness", .tiers = simulated->info().tiers};
    const auto easy = compile_training(network, *simulated, costs, options);
    options.memory = {std::get<Program>(easy).plan->arena.count * 6 / 10};
    for (const char* policy : {"superneurons", "vdnn", "auto"}) {
      SCOPED_TRACE(fmt::format("{} {}", gpu, policy));
      options.policy = policy;
      auto result = compile_training(network, *simulated, costs, options);
      if (std::holds_alternative<Infeasible>(result)) {  // with the least that the policy can do
        options.memory = std::get<Infeasible>(result).minimum;
        result = compile_training(network, *simulated, costs, options);
      }
      const Program& program = std::get<Program>(result);
      Problem problem(program.network.graph, program.plan, program.kernels);
      moving += !program.plan->moves.empty();
      const Content expected =
          contents(problem, MixingDevice(problem.graph, problem.kernels), {.spill = folder.path()});
      for (const bool check_memory : {false, true}) {
        const auto door = std::make_shared<FakeDoor>(7);
        const QueuedMixing device(door, problem.graph, problem.kernels);
        ASSERT_EQ(contents(problem, device, {.check_memory = check_memory, .spill = folder.path()}), expected);
        ASSERT_THAT(door->conflicts(), IsEmpty());
        EXPECT_EQ(door->captures(), 1);
      }
    }
  }
  EXPECT_GT(moving, 2);
}

// Each batch comes to its second buffer while the step before it runs.
Content contents_fed(Problem& problem, const Device& device, const ExecuteOptions& options) {
  const Graph& graph = problem.graph;
  Executor executor(graph, problem.plan, device, options);
  for (const State& state : graph.states) executor.write(state.before, source(graph, state.before, 0));
  const auto is_fed = [&](TensorId id) {
    return std::any_of(problem.plan.feeding.inputs.begin(), problem.plan.feeding.inputs.end(),
                       [&](const FedInput& input) { return input.tensor == id; });
  };
  const auto write_next = [&](uint64_t step) {
    for (const FedInput& input : problem.plan.feeding.inputs)
      executor.write_next(input.tensor, graph.tensor(input.tensor).layout, source(graph, input.tensor, step));
  };
  write_next(0);
  for (uint64_t step = 0; step < kSteps; ++step) {
    for (TensorId input : graph.inputs) {
      if (!is_fed(input)) executor.write(input, source(graph, input, step));
    }
    executor.start_step();
    if (step + 1 < kSteps) write_next(step + 1);
    executor.finish_step();
  }
  Content content;
  for (const State& state : graph.states) {
    content.emplace_back(graph.tensor(state.before).bytes().count);
    executor.read(state.before, content.back());
  }
  return content;
}

TEST(Queues, TheNextBatchComesBesideTheStepAndChangesNothing) {
  TemporaryFolder folder;
  int fed = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Problem one(seed, false), two = Problem::fed(seed);
    if (!two.plan.feeding.second_buffer) continue;
    ++fed;
    ASSERT_THAT(verify(two.graph, two.plan, 1), IsEmpty());
    const MixingDevice host(one.graph, one.kernels);
    const Content expected = contents(one, host, {.spill = folder.path()});
    ASSERT_EQ(contents_fed(two, host, {.check_memory = true, .spill = folder.path()}), expected) << "on the host";
    const auto door = std::make_shared<FakeDoor>(seed);
    const QueuedMixing device(door, two.graph, two.kernels);
    ASSERT_EQ(contents_fed(two, device, {.check_memory = seed % 2 == 0, .spill = folder.path()}), expected);
    ASSERT_THAT(door->conflicts(), IsEmpty());
    ASSERT_EQ(door->captures(), 1);
  }
  EXPECT_GT(fed, 15);
}

TEST(Queues, AStepWaitsForTheDeviceAsOftenAsTheOneBefore) {
  TemporaryFolder folder;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Problem problem(seed, seed % 2 == 0);
    const auto door = std::make_shared<FakeDoor>(seed);
    const QueuedMixing device(door, problem.graph, problem.kernels);
    Executor executor(problem.graph, problem.plan, device, {.spill = folder.path()});
    const auto calls = [&](const char* name) { return door->calls().contains(name) ? door->calls().at(name) : 0; };
    std::vector<std::tuple<int, int, int>> all;  // allocations, and waits of the host for queues and events
    for (int step = 0; step < 8; ++step) {
      const int taken = calls("cudaMalloc"), queues = calls("cudaStreamSynchronize"),
                events = calls("cudaEventSynchronize");
      executor.run_step();
      all.emplace_back(calls("cudaMalloc") - taken, calls("cudaStreamSynchronize") - queues,
                       calls("cudaEventSynchronize") - events);
    }
    for (size_t step = 1; step < all.size(); ++step) EXPECT_EQ(all[step], all[0]) << step;
    EXPECT_EQ(std::get<0>(all[0]), 0);
    if (executor.is_captured()) {
      EXPECT_EQ(all[0], std::tuple(0, 3, 0));
    }
  }
}

TEST(Queues, ADeviceThatCannotCaptureRunsAllTheSame) {
  TemporaryFolder folder;
  Problem problem(3, false);
  const Content expected = contents(problem, MixingDevice(problem.graph, problem.kernels), {.spill = folder.path()});
  const auto door = std::make_shared<FakeDoor>(3);
  door->fail("cudaStreamBeginCapture", 1);
  EXPECT_EQ(contents(problem, QueuedMixing(door, problem.graph, problem.kernels), {.spill = folder.path()}), expected);
  EXPECT_EQ(door->captures(), 0);
  EXPECT_EQ(door->calls().at("cudaStreamBeginCapture"), 1);
}

TEST(Queues, AWaitThatIsForgottenIsFoundUnlessOthersWaitForItToo) {
  TemporaryFolder folder;
  int found = 0, wrong = 0, needless = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Problem problem(seed, seed % 2 == 0);
    const Content expected = contents(problem, MixingDevice(problem.graph, problem.kernels), {.spill = folder.path()});
    int waits = 1;
    for (int nth = 1; nth <= waits && nth <= 40; ++nth) {
      SCOPED_TRACE(fmt::format("seed {}, wait {}", seed, nth));
      const auto door = std::make_shared<FakeDoor>(seed * 100 + static_cast<uint64_t>(nth));
      door->forget_wait(nth);
      const Content got =
          contents(problem, QueuedMixing(door, problem.graph, problem.kernels), {.spill = folder.path()});
      waits = door->waits();
      const bool named = !door->conflicts().empty();
      found += named;
      needless += !named;
      if (got != expected) {
        ++wrong;
        EXPECT_TRUE(named) << "the result is wrong, but nothing was said";
      }
    }
  }
  EXPECT_GT(found, 50);
  EXPECT_GT(wrong, 5);
  RecordProperty("needless", needless);
}

// A call that fails while a step is captured leaves the training as it was: it goes on step by step, or, where it fails
// there too, ends as without capturing.
TEST(Queues, CopyToAnotherGpuAsToTheHost) {
  TemporaryFolder folder;
  int seen = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Problem problem(seed, false);
    const Content expected = contents(problem, MixingDevice(problem.graph, problem.kernels), {.spill = folder.path()});
    for (TierUse& use : problem.plan.tiers) {
      if (use.tier.name == "host") use.tier.name = "peer";
    }
    const auto door = std::make_shared<FakeDoor>(seed);
    const QueuedMixing device(door, problem.graph, problem.kernels);
    ASSERT_EQ(contents(problem, device, {.spill = folder.path(), .peer = "cuda:1"}), expected);
    ASSERT_THAT(door->conflicts(), IsEmpty());
    ASSERT_EQ(door->captures(), 1);
    EXPECT_TRUE(door->pinned().empty());
    EXPECT_EQ(device.peer().allocations(), 0u);  // given back
    seen += device.peer().calls().contains("cudaMalloc");
  }
  EXPECT_GT(seen, 10);
}

TEST(Queues, AStepThatCannotBeCapturedRunsAllTheSame) {
  TemporaryFolder folder;
  int struck = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Problem problem(seed, false);
    const Content expected = contents(problem, MixingDevice(problem.graph, problem.kernels), {.spill = folder.path()});
    const auto counted = std::make_shared<FakeDoor>(seed);
    contents(problem, QueuedMixing(counted, problem.graph, problem.kernels), {.spill = folder.path()});
    if (counted->captures() == 0) continue;
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const auto door = std::make_shared<FakeDoor>(seed);
    // Nothing but a captured step waits for an event after the last of the steps before it.
    const auto waits = [&](uint64_t steps) {
      const auto probe = std::make_shared<FakeDoor>(seed);
      const QueuedMixing device(probe, problem.graph, problem.kernels);
      Executor executor(problem.graph, problem.plan, device, {.spill = folder.path()});
      for (uint64_t step = 0; step < steps; ++step) executor.run_step();
      return probe->calls().count("cudaStreamWaitEvent") > 0 ? probe->calls().at("cudaStreamWaitEvent") : 0;
    };
    door->fail("cudaStreamWaitEvent", waits(2) + 1);
    EXPECT_EQ(contents(problem, QueuedMixing(door, problem.graph, problem.kernels), {.spill = folder.path()}),
              expected);
    EXPECT_EQ(door->captures(), 0);
    EXPECT_THAT(door->conflicts(), IsEmpty());
    ++struck;
  }
  EXPECT_GT(struck, 5);
}

TEST(Queues, PinTheHostTierInOneRegionOfWhatThePlanUses) {
  TemporaryFolder folder;
  int seen = 0, both = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Problem problem(seed);
    const auto door = std::make_shared<FakeDoor>(seed);
    const QueuedMixing device(door, problem.graph, problem.kernels);
    const Executor executor(problem.graph, problem.plan, device, {.spill = folder.path()});
    const size_t buffer = 4 * kTierPiece;  // of a channel to the disk
    std::vector<size_t> regions;
    size_t buffers = 0;
    for (const auto& [at, bytes] : door->pinned()) {
      if (bytes != buffer) regions.push_back(bytes);
      buffers += bytes == buffer;
    }
    std::set<Move::Direction> to_disk;  // a buffer for the thread of each, and one for whoever waits for it and helps
    for (const Move& move : problem.plan.moves) {
      if (problem.plan.tiers[move.tier].tier.name == "disk") to_disk.insert(move.direction);
    }
    EXPECT_EQ(buffers, 2 * to_disk.size());
    both += to_disk.size() == 2;
    for (const TierUse& use : problem.plan.tiers) {
      if (use.tier.name != "host" || use.used.count == 0) continue;
      ASSERT_EQ(regions.size(), 1u);
      EXPECT_EQ(regions[0], static_cast<size_t>(align_up(use.used, kSlotAlignment).count));
      ++seen;
    }
  }
  EXPECT_GT(seen, 5);
  EXPECT_GT(both, 3);
}

TEST(Queues, ACallThatFailsIsNamedAndNoStepFollowsIt) {
  TemporaryFolder folder;
  for (const char* call : {"cudaMalloc", "cudaHostRegister", "cudaEventCreateWithFlags", "cudaMemcpyAsync",
                           "cudaEventRecord", "cudaStreamWaitEvent", "cudaStreamSynchronize"}) {
    bool struck = false;
    for (uint64_t seed = 1; seed <= 10 && !struck; ++seed) {
      SCOPED_TRACE(fmt::format("{} seed {}", call, seed));
      Problem problem(seed);
      const auto door = std::make_shared<FakeDoor>(seed);
      const QueuedMixing device(door, problem.graph, problem.kernels);
      std::optional<Executor> executor;
      std::string first, second;
      try {
        door->fail(call, 1);
        executor.emplace(problem.graph, problem.plan, device, ExecuteOptions{.spill = folder.path()});
        executor->run_step();
      } catch (const Error& error) {
        struck = true;
        EXPECT_EQ(error.code(), ErrorCode::device_failure);
        first = error.what();
        EXPECT_THAT(first, HasSubstr(call));
      }
      if (!executor || !struck) continue;
      try {
        executor->run_step();
      } catch (const Error& error) {
        second = error.what();
      }
      EXPECT_EQ(first, second);
    }
    EXPECT_TRUE(struck) << call;
  }
}

}  // namespace
}  // namespace plimsoll
