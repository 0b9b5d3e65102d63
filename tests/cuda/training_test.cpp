// Whole networks by CUDA's kernels, run on the host: what the CPU device trains, CUDA trains too, and the same weights
// come out under any policy and budget.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "bench/heaps.h"
#include "device/cuda/device.h"
#include "plimsoll/compile.h"
#include "plimsoll/data.h"
#include "plimsoll/execute.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"
#include "plimsoll/training_step.h"
#include "tests/cuda/fake_door.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/write_inputs.h"

namespace plimsoll {
namespace {

using testing::FakeDoor;

Program program_of(const Device& device, const std::string& model, CompileOptions options) {
  const int64_t side = model == "lenet" ? 32 : 16;
  const ModelInput input{.batch = 2, .channels = 3, .height = side, .width = side, .classes = 10, .training = true};
  options.exact = true;
  auto result = compile_training(build_model(model, input), device, CostTable(), options);
  if (const auto* no = std::get_if<Infeasible>(&result)) throw Error(ErrorCode::infeasible, to_text(*no));
  return std::get<Program>(std::move(result));
}

std::vector<float> train(const Device& device, const Program& program, const ExecuteOptions& options) {
  const Graph& graph = program.network.graph;
  Executor executor(graph, program.plan, device, options);
  executor.initialize(7);
  for (int step = 0; step < 3; ++step) {
    write_inputs(executor, graph, step, 0.01F);
    executor.run_step();
  }
  EXPECT_EQ(executor.measured_peak(), program.plan->predicted.peak);
  std::vector<float> all;
  for (const State& state : graph.states) {
    std::vector<float> values(element_count(graph.tensor(state.before).shape));
    executor.read(state.before, std::as_writable_bytes(std::span(values)));
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double squares = 0, all = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    squares += std::pow(static_cast<double>(a[i]) - b[i], 2);
    all += std::pow(static_cast<double>(a[i]), 2);
  }
  return std::sqrt(squares / all);
}

// What SuperNeurons' table 2 compares, with all that is asked of CUDA.
TEST(CudaHeaps, AllGiveTheSameResult) {
  const auto door = std::make_shared<FakeDoor>(5);
  const auto cuda = cuda::open_behind(door, "cuda:0", false);
  const Program program = program_of(*cuda, "lenet", {.policy = "liveness"});
  const std::vector<HeapRun> runs = compare_heaps(program, *cuda, 2);
  std::vector<std::string> names;
  for (const HeapRun& run : runs) {
    names.push_back(run.heap);
    EXPECT_EQ(run.digest, runs.front().digest) << run.heap;
    EXPECT_EQ(run.allocations > 10, !run.heap.starts_with("plan")) << run.heap;
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"cudaMalloc", "cudaMallocAsync", "papers' heap", "plan", "plan, captured"}));
  EXPECT_EQ(door->allocations(), 0u);
  EXPECT_EQ(door->calls().at("cudaMallocAsync"), door->calls().at("cudaFreeAsync"));
  EXPECT_LE(runs[3].held, runs[2].held);
  const auto cpu = open_device("cpu", 1);
  const std::vector<HeapRun> host = compare_heaps(program_of(*cpu, "lenet", {.policy = "liveness"}), *cpu, 2);
  ASSERT_EQ(host.size(), 3u);
  EXPECT_EQ(host[0].heap, "malloc");
  for (const HeapRun& run : host) EXPECT_EQ(run.digest, host.front().digest) << run.heap;
}

// Whether beginning a capture fails or something within it: that row is left out.
TEST(CudaHeaps, AreComparedWhereADeviceCannotCapture) {
  const auto door = std::make_shared<FakeDoor>(5);
  const auto cuda = cuda::open_behind(door, "cuda:0", false);
  const Program program = program_of(*cuda, "lenet", {.policy = "liveness"});
  for (const char* call : {"cudaStreamBeginCapture", "cudaLaunchKernel"}) {
    door->fail(call, 1);
    if (std::string(call) == "cudaLaunchKernel") {  // within the capture
      const auto counted = std::make_shared<FakeDoor>(5);
      const auto other = cuda::open_behind(counted, "cuda:0", false);
      counted->fail("cudaStreamBeginCapture", 1);
      compare_heaps(program, *other, 2);
      door->fail(call, counted->calls().at(call) + 1);
    }
    const std::vector<HeapRun> runs = compare_heaps(program, *cuda, 2);
    ASSERT_EQ(runs.size(), 4u) << call;
    EXPECT_EQ(runs.back().heap, "plan");
    EXPECT_EQ(door->captures(), 0);
  }
}

// What the host takes to ask for a step's ops is no part of them.
TEST(CudaTimes, AreThoseOfEachCapturedStepWhereThatIsAskedFor) {
  for (const bool captured : {false, true}) {
    const auto door = std::make_shared<FakeDoor>(3);
    const auto cuda = cuda::open_behind(door, "cuda:0", false);
    const Program program = program_of(*cuda, "lenet", {.policy = "liveness"});
    Executor executor(program.network.graph, program.plan, *cuda, {.record_times = true, .time_captured = captured});
    const auto longest = [&] {
      double ms = 0;
      for (const StepRecord& record : executor.records()) ms = std::max(ms, record.end_ms - record.start_ms);
      return ms;
    };
    for (int step = 0; step < kRunsBeforeCapture; ++step) executor.run_step();
    EXPECT_LT(longest(), 1);
    for (const double ms : {50.0, 20.0}) {
      door->takes("implicit_precomp_gemm", ms);
      executor.run_step();
      EXPECT_TRUE(executor.is_captured());
      if (captured) {
        EXPECT_NEAR(longest(), ms, 1);
      } else {
        EXPECT_LT(longest(), 1);
      }
    }
  }
}

// What the host takes to ask for a step, and to feed it, is no part of it.
TEST(CudaTimes, AStepTakesWhatTheGpusClockSays) {
  const auto door = std::make_shared<FakeDoor>(3);
  const auto cuda = cuda::open_behind(door, "cuda:0", false);
  TrainingStep step(program_of(*cuda, "lenet", {.policy = "liveness"}), *cuda);
  step.initialize(7);
  for (int i = 0; i < kRunsBeforeCapture + 2; ++i) {
    const double seconds = i % 2 == 0 ? 5000 : 70;  // nobody waits for them
    door->takes("implicit_precomp_gemm", 1000 * seconds);
    write_inputs(step.executor(), step.program().network.graph, i, 0.01F);
    const double told = step.run(0.1);
    EXPECT_GT(told, seconds);
    EXPECT_LT(told, 12 * seconds);
  }
  EXPECT_TRUE(step.executor().is_captured());
}

// Nothing of a batch is converted, nor copied from memory that the GPU cannot read by itself.
TEST(CudaFeeding, CopiesBatchesFromWhereTheLoaderWroteThem) {
  for (const LayoutFamily family : {LayoutFamily::plain, LayoutFamily::channels_last}) {
    const auto door = std::make_shared<FakeDoor>(3);
    const auto cuda = cuda::open_behind(door, "cuda:0", false);
    TrainingStep step(program_of(*cuda, "lenet", {.policy = "liveness", .family = family}), *cuda);
    for (const Op& op : step.program().network.graph.ops()) {
      EXPECT_FALSE(op.type->name == "Reorder" && op.inputs[0] == step.program().network.data) << op.name;
    }
    EXPECT_EQ(step.takes_channels_last(), family == LayoutFamily::channels_last);
    Loader loader(open_data("synthetic:8", {.channels = 3, .height = 32, .width = 32}),
                  {.batch = 2, .channels_last = step.takes_channels_last()});
    const auto pinned = cuda->pin(loader.buffer());
    const Batch& batch = loader.next();
    const Bytes before = door->copied(),
                whole{static_cast<int64_t>(batch.data.size_bytes() + batch.labels.size_bytes())};
    step.feed(batch);
    EXPECT_EQ(door->copied() - before, whole);
    EXPECT_EQ(door->copied_unpinned(), 0_B);
  }
}

constexpr int kFed = 7;  // batches

// Losses and weights, with each batch fed before its step or, to a second buffer, beside the step before it.
std::pair<std::vector<double>, std::string> feed_and_train(const Device& device, CompileOptions options, bool second) {
  options.feeding = Feeding{.second_buffer = second, .latency_us = 10, .gb_per_s = 10, .arena_gb_per_s = 1000};
  TrainingStep step(program_of(device, "lenet", options), device);
  EXPECT_EQ(step.has_second_buffer(), second);
  step.initialize(7);
  Loader loader(open_data("synthetic:40", {.channels = 3, .height = 32, .width = 32}),
                {.batch = 2, .channels_last = step.takes_channels_last()});
  const auto pinned = device.pin(loader.buffer());
  const auto feed = [&] {
    second ? step.feed_next(loader.next()) : step.feed(loader.next());
    loader.release();
  };
  std::vector<double> losses;
  for (int batch = 0; batch < kFed; ++batch) {
    if (!second || batch == 0) feed();
    step.start(0.01);
    if (second && batch + 1 < kFed) feed();
    step.finish();
    losses.push_back(step.loss());
  }
  EXPECT_EQ(step.measured_peak(), step.program().plan->predicted.peak);
  return {losses, step.weights_sha256()};
}

TEST(CudaFeeding, ASecondBufferChangesNoBit) {
  for (const LayoutFamily family : {LayoutFamily::plain, LayoutFamily::channels_last}) {
    for (const int accumulate : {1, 3}) {
      SCOPED_TRACE(fmt::format("{}, {} batches a step", to_string(family), accumulate));
      const CompileOptions options{.policy = "liveness", .optimizer = {.accumulate = accumulate}, .family = family};
      const auto cpu = open_device("cpu", 1);
      EXPECT_EQ(feed_and_train(*cpu, options, true), feed_and_train(*cpu, options, false));
      const auto door = std::make_shared<FakeDoor>(3);
      const auto cuda = cuda::open_behind(door, "cuda:0", false);
      EXPECT_EQ(feed_and_train(*cuda, options, true), feed_and_train(*cuda, options, false));
      EXPECT_EQ(door->conflicts(), std::vector<std::string>{});
      EXPECT_EQ(door->captures(), 2) << "one for either plan";
    }
  }
}

// By its name, as row-major elements, as it lies, and written by somebody else to where it lies.
TEST(CudaFeeding, EveryWayToBringABatchGivesTheSameBits) {
  enum class Way : uint8_t { row_major, as_it_lies, in_place };
  const auto door = std::make_shared<FakeDoor>(3);
  const auto cuda = cuda::open_behind(door, "cuda:0", false);
  const auto trained = [&](const Program& program, Way way) {
    TrainingStep step(program, *cuda);
    step.initialize(7);
    const Network& network = program.network;
    Loader loader(open_data("synthetic:40", {.channels = 3, .height = 32, .width = 32}), {.batch = 2});
    std::vector<std::byte> memory(step.input(network.graph.tensor(network.data).name).bytes().count);
    const auto pinned = cuda->pin(memory);
    const auto feed = [&](TensorId id, std::span<const std::byte> elements) {
      const Tensor& input = network.graph.tensor(id);
      const bool next = step.has_second_buffer();
      if (way == Way::row_major) return next ? step.feed_next(input.name, elements) : step.feed(input.name, elements);
      const std::span<std::byte> lying = std::span(memory).first(input.bytes().count);
      scatter_elements(input.shape, input.layout, 4, 0, element_count(input.shape), elements.data(), lying.data());
      if (way == Way::as_it_lies)
        return next ? step.feed_next_as_it_lies(input.name, lying) : step.feed_as_it_lies(input.name, lying);
      std::byte* const place = next ? step.next_place_of(input.name) : step.place_of(input.name);
      std::memcpy(place, lying.data(), lying.size());
    };
    std::vector<double> losses;
    for (int i = 0; i < 5; ++i) {
      const Batch& batch = loader.next();
      const Bytes before = door->copied_unpinned();
      feed(network.data, std::as_bytes(batch.data));
      feed(network.labels, std::as_bytes(batch.labels));
      if (way == Way::row_major) {
        EXPECT_GT(door->copied_unpinned(), before);
      } else {
        EXPECT_EQ(door->copied_unpinned(), before);
      }
      loader.release();
      step.run(0.01);
      losses.push_back(step.loss());
    }
    return std::pair(losses, step.weights_sha256());
  };
  for (const LayoutFamily family : {LayoutFamily::plain, LayoutFamily::channels_last}) {
    for (const bool second : {false, true}) {
      SCOPED_TRACE(fmt::format("{}, second buffer {}", to_string(family), second));
      CompileOptions options{.policy = "liveness", .family = family};
      if (second) options.feeding = Feeding{.second_buffer = true, .gb_per_s = 10};
      const Program program = program_of(*cuda, "lenet", options);
      const auto expected = trained(program, Way::row_major);
      EXPECT_EQ(trained(program, Way::as_it_lies), expected);
      EXPECT_EQ(trained(program, Way::in_place), expected);
    }
  }
}

// Whatever plan comes next, and whether or not that has a second buffer.
TEST(CudaFeeding, ABatchThatWasFedAheadIsThereForTheNextPlan) {
  const auto door = std::make_shared<FakeDoor>(3);
  const auto cuda = cuda::open_behind(door, "cuda:0", false);
  CompileOptions options{.policy = "liveness", .feeding = Feeding{.second_buffer = true, .gb_per_s = 10}};
  const Program first = program_of(*cuda, "lenet", options);
  options.policy = "baseline";
  const Program larger = program_of(*cuda, "lenet", options);
  options.feeding.reset();
  const Program without = program_of(*cuda, "lenet", options);
  ASSERT_NE(first.plan->feeding, larger.plan->feeding);
  Loader loader(open_data("synthetic:8", {.channels = 3, .height = 32, .width = 32}), {.batch = 2});
  const Batch& batch = loader.next();
  std::optional<double> expected;
  for (const CheckedPlan& next : {first.plan, larger.plan, without.plan}) {
    TrainingStep step(first, *cuda, {}, {}, larger.plan->arena);
    step.initialize(7);
    step.feed_next(batch);
    step.swap(next);
    step.run(0.01);
    if (!expected) expected = step.loss();
    EXPECT_EQ(step.loss(), *expected);
  }
}

// The same convolutions in parts: pointers that move from part to part, and sums of weight gradients.
TEST(CudaTrainingInParts, GivesTheWeightsOfTheWhole) {
  const auto door = std::make_shared<FakeDoor>(3);
  const auto cuda = cuda::open_behind(door, "cuda:0", false);
  const Program whole = program_of(*cuda, "lenet", {.policy = "liveness"});
  const std::vector<float> expected = train(*cuda, whole, {});
  CompileOptions options{.policy = "liveness", .family = LayoutFamily::plain};
  int divided = 0;
  for (OpId id{0}; id.index < whole.network.graph.op_count(); ++id.index) {
    const Op& op = whole.network.graph.op(id);
    const std::string& kernel = whole.kernels[id.index].kernel;
    if (op.type->name == "Reorder") continue;
    const bool divides = op.type->name.starts_with("Conv") || op.type->name.starts_with("FullyConnected");
    options.kernels[op.name] = divides ? kernel + "@1*2" : kernel;
    divided += divides;
  }
  EXPECT_GT(divided, 10);
  const Program parts = program_of(*cuda, "lenet", options);
  door->forget_account();
  const std::vector<float> weights = train(*cuda, parts, {.check_memory = true});
  EXPECT_EQ(door->conflicts(), std::vector<std::string>{});
  EXPECT_EQ(door->captures(), 2);
  ASSERT_EQ(weights.size(), expected.size());
  EXPECT_LT(distance(expected, weights), 1e-5);
}

// Layouts that are not row-major are converted on the host, some rows at a time.
TEST(CudaStates, AreDrawnAndReadWithoutCopyingThemOftenerThanOnce) {
  std::map<std::string, std::vector<float>> drawn[2];
  for (const LayoutFamily family : {LayoutFamily::plain, LayoutFamily::channels_last}) {
    const auto door = std::make_shared<FakeDoor>(3);
    const auto cuda = cuda::open_behind(door, "cuda:0", false);
    const Program program = program_of(*cuda, "resnet18", {.policy = "liveness", .family = family});
    const Graph& graph = program.network.graph;
    Executor executor(graph, program.plan, *cuda);
    Bytes states;
    for (const State& state : graph.states) states += graph.tensor(state.before).bytes();
    executor.initialize(7);
    EXPECT_EQ(door->copied(), states);
    constexpr size_t kPiece = 1'000'001;
    for (const State& state : graph.states) {
      const Tensor& tensor = graph.tensor(state.before);
      std::vector<float>& values = drawn[family == LayoutFamily::plain ? 0 : 1][tensor.name];
      values.resize(element_count(tensor.shape));
      for (size_t first = 0; first < values.size(); first += kPiece) {
        const auto piece = std::span(values).subspan(first, std::min(kPiece, values.size() - first));
        executor.read(state.before, static_cast<int64_t>(first), std::as_writable_bytes(piece));
      }
    }
    EXPECT_LT(door->copied(), Bytes{states.count * 21 / 10}) << "some rows were read twice";
  }
  EXPECT_EQ(drawn[0], drawn[1]);
}

class CudaTraining : public ::testing::TestWithParam<std::tuple<std::string, LayoutFamily>> {};

TEST_P(CudaTraining, GivesTheWeightsOfTheCpuUnderEveryPolicy) {
  const auto& [model, family] = GetParam();
  TemporaryFolder folder;
  CompileOptions options{.policy = "liveness", .family = family};
  const auto cpu = open_device("cpu", 2);
  const std::vector<float> expected = train(*cpu, program_of(*cpu, model, options), {});
  const auto door = std::make_shared<FakeDoor>(3);
  const auto cuda = cuda::open_behind(door, "cuda:0", false);
  const Program easy = program_of(*cuda, model, options);
  const std::vector<float> weights = train(*cuda, easy, {});
  ASSERT_EQ(weights.size(), expected.size());
  EXPECT_LT(distance(expected, weights), 1e-3);  // batch norm over two images carries what rounds differently

  for (const std::string policy : {"superneurons", "auto"}) {
    for (const char* tier : {"host", "disk"}) {
      SCOPED_TRACE(policy + " " + tier);
      options.policy = policy;
      options.tiers = {{.name = tier, .capacity = 1_GiB, .out_gb_per_s = 10, .in_gb_per_s = 10, .latency_us = 10}};
      options.memory = {easy.plan->arena.count * 8 / 10};
      std::optional<Program> tight;
      try {
        tight = program_of(*cuda, model, options);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::infeasible || policy == "auto") throw;
        continue;
      }
      door->forget_account();
      EXPECT_EQ(train(*cuda, *tight, {.check_memory = true, .spill = folder.path()}), weights);
      EXPECT_EQ(door->conflicts(), std::vector<std::string>{});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaTraining,
                         ::testing::Values(std::tuple("lenet", LayoutFamily::plain),
                                           std::tuple("resnet20", LayoutFamily::channels_last)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::string(to_string(std::get<1>(info.param)));
                         });

}  // namespace
}  // namespace plimsoll
