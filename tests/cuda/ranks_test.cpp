// Ranks that are threads, each with a GPU that is the host: collectives by NCCL's operations, which really move the bytes,
// against those of the CPU; whole training steps with states divided in every way; and what happens when a rank fails.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>

#include "device/collectives.h"
#include "device/cuda/device.h"
#include "plimsoll/compile.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"
#include "plimsoll/training_step.h"
#include "tests/cuda/fake_door.h"
#include "tests/support/error_text.h"
#include "tests/support/local_transport.h"
#include "tests/support/write_inputs.h"

namespace plimsoll {
namespace {

using testing::as_ranks;
using testing::error_text;
using testing::FakeDoor;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Ranks = std::shared_ptr<Communicator>;

// A machine with a GPU for each rank.
class Machine {
 public:
  explicit Machine(int ranks, uint64_t seed = 1) {
    const auto board = std::make_shared<testing::SharedBoard>();
    for (int r = 0; r < ranks; ++r) {
      doors_.push_back(std::make_shared<FakeDoor>(seed * 100 + static_cast<uint64_t>(r)));
      doors_.back()->as_device(r).meet_at(board);
    }
  }
  FakeDoor& door(int rank) const { return *doors_[static_cast<size_t>(rank)]; }
  std::unique_ptr<Device> open(const Ranks& ranks) const {
    auto gpu =
        cuda::open_behind(doors_[static_cast<size_t>(ranks->rank())], fmt::format("cuda:{}", ranks->rank()), false);
    return with_ranks(std::move(gpu), {.ranks = ranks->size(), .latency_us = 20, .gb_per_s = 0.2}, ranks);
  }

 private:
  std::vector<std::shared_ptr<FakeDoor>> doors_;
};

// One collective after another of some tensors, of all sizes that matter.
struct Tensors {
  Graph graph;
  std::map<std::string, std::vector<OpId>> ops;  // by type
};

Tensors tensors_of(const std::vector<int64_t>& sizes, int ranks) {
  Tensors t;
  const Attributes ours{{"ranks", int64_t{ranks}}};
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::string name = "w" + std::to_string(i);
    const auto source = [&](const std::string& what, int64_t size) {
      return t.graph.add_source(name + what, {size}, DType::f32, Role::activation);
    };
    const TensorId whole = source("", sizes[i]), gradient = source("/gradient", sizes[i]);
    const TensorId piece = source("/piece", shard_elements({sizes[i]}, ranks));
    Attributes shaped = ours;
    shaped.set("shape", Shape{sizes[i]});
    const auto add = [&](const char* type, std::vector<TensorId> inputs, const Attributes& attributes) {
      t.ops[type].push_back(t.graph.add_op(type, name + type, name, std::move(inputs), attributes));
    };
    add("AllReduce", {whole, gradient}, ours);
    add("ReduceScatter", {gradient}, ours);
    add("AllGather", {piece}, shaped);
    add("TakeShard", {gradient}, ours);
    add("Broadcast", {gradient}, ours);
    t.ops["CombineMoments"].push_back(t.graph.add_op("CombineMoments", name + "moments", name, {whole, gradient},
                                                     {{"ranks", int64_t{ranks}}, {"count", int64_t{11}}}));
    add("SumOverRanks", {whole, gradient}, ours);
  }
  return t;
}

// Of many sizes, so that another order of additions gives other bits.
std::vector<float> draw(int64_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> result(static_cast<size_t>(size));
  for (float& x : result) x = normal(random) * std::exp(4 * normal(random));
  return result;
}

// What the ops' outputs are after one kernel for all of them, or one each.
std::vector<std::vector<float>> outputs_of(const Device& device, const Graph& graph, const std::vector<OpId>& ops,
                                           std::string_view kernel, bool together, int rank) {
  const auto elements = [&](TensorId id) { return graph.tensor(id).bytes().count / 4; };
  std::vector<std::vector<float>> in, out;
  for (const OpId op : ops) {
    for (const TensorId id : graph.op(op).inputs)
      in.push_back(draw(elements(id), static_cast<uint32_t>(1000 * rank + id.index)));
    for (const TensorId id : graph.op(op).outputs) out.emplace_back(elements(id), 7.0F);
  }
  const std::unique_ptr<Queues> queues = device.open_queues();
  std::vector<std::unique_ptr<Kernel>> kernels;
  for (size_t first = 0, i = 0, o = 0; first < ops.size();) {
    const size_t count = together ? ops.size() : 1;
    std::vector<void*> inputs, outputs;
    for (size_t k = first; k < first + count; ++k) {
      for (size_t n = 0; n < graph.op(ops[k]).inputs.size(); ++n) inputs.push_back(in[i++].data());
      for (size_t n = 0; n < graph.op(ops[k]).outputs.size(); ++n) outputs.push_back(out[o++].data());
    }
    kernels.push_back(together ? device.make_collective(graph, ops, kernel)
                               : device.make_kernel(graph, graph.op(ops[first]), kernel, 1));
    kernels.back()->bind(inputs, outputs, nullptr);
    kernels.back()->run();
    first += count;
  }
  if (queues) {
    const Queues::Mark end = queues->make_mark(false);
    queues->mark(Queues::Queue::messages, end);
    queues->synchronize(end);
    queues->synchronize();
  }
  return out;
}

TEST(CudaRanks, CollectivesGiveTheBitsOfTheCpus) {
  const int64_t message = kMessageBytes.count / 4;
  const std::vector<int64_t> sizes = {1, 5, 4096, 3 * 8192, 1000, message + 17};
  for (const int ranks : {2, 3}) {
    const Tensors t = tensors_of(sizes, ranks);
    const Machine machine(ranks);
    as_ranks(ranks, [&](const Ranks& communicator) {
      const auto gpu = machine.open(communicator);
      const auto cpu = with_ranks(open_device("cpu", 1), {.ranks = ranks}, communicator);
      for (const auto& [type, ops] : t.ops) {
        for (const bool together : {true, false}) {
          if (together && type == "TakeShard") continue;
          SCOPED_TRACE(fmt::format("{}, {} ranks, together {}", type, ranks, together));
          const std::string kernel = gpu->kernels(t.graph, t.graph.op(ops[0]), LayoutFamily::plain).back().name;
          const auto wanted = outputs_of(*cpu, t.graph, ops, kernel, together, communicator->rank());
          EXPECT_TRUE(outputs_of(*gpu, t.graph, ops, kernel, together, communicator->rank()) == wanted);
        }
      }
    });
    for (int r = 0; r < ranks; ++r) {
      EXPECT_EQ(machine.door(r).calls().count("ncclAllReduce"), 0u) << "its sums have another order";
      EXPECT_GT(machine.door(r).calls().at("ncclSend"), 0);
      EXPECT_GT(machine.door(r).calls().at("ncclAllGather"), 0);
      EXPECT_EQ(machine.door(r).calls().at("ncclCommAbort"), 1) << "at its end";
    }
  }
}

TEST(CudaRanks, NcclsOwnCollectivesAreOfferedFirstAndGiveTheSameUpToRounding) {
  const std::vector<int64_t> sizes = {1, 5, 4096, 3 * 8192, 1000, 100000};
  for (const int ranks : {2, 3}) {
    const Tensors t = tensors_of(sizes, ranks);
    const Machine machine(ranks);
    as_ranks(ranks, [&](const Ranks& communicator) {
      const auto gpu = machine.open(communicator);
      const auto cpu = with_ranks(open_device("cpu", 1), {.ranks = ranks}, communicator);
      for (const std::string type : {"AllReduce", "ReduceScatter", "AllGather", "Broadcast"}) {
        const std::vector<OpId>& ops = t.ops.at(type);
        const auto specs = gpu->kernels(t.graph, t.graph.op(ops[0]), LayoutFamily::plain);
        ASSERT_EQ(specs.size(), 2u);
        EXPECT_EQ(specs[0].name, "nccl");
        const bool adds = type == "AllReduce" || type == "ReduceScatter";
        EXPECT_EQ(specs[0].exact, !adds) << "what adds nothing has one result";
        EXPECT_TRUE(specs[1].exact);
        const auto wanted = outputs_of(*cpu, t.graph, ops, "ordered", true, communicator->rank());
        const auto found = outputs_of(*gpu, t.graph, ops, "nccl", true, communicator->rank());
        bool same_bits = true;
        for (size_t i = 0; i < wanted.size(); ++i) {
          for (size_t k = 0; k < wanted[i].size(); ++k) {
            same_bits = same_bits && found[i][k] == wanted[i][k];
            ASSERT_NEAR(found[i][k], wanted[i][k], 1e-4 * (1 + std::abs(wanted[i][k]))) << type << " " << i << " " << k;
          }
        }
        EXPECT_EQ(same_bits, !adds || ranks == 2) << "the order of sums is seen with three";
      }
    });
    for (int r = 0; r < ranks; ++r) EXPECT_EQ(machine.door(r).calls().count("ncclSend"), 0u);
  }
}

// A small network with a batch norm, trained by all ranks together.
Network network() {
  Builder b("small", {.batch = 2, .channels = 3, .height = 8, .width = 8, .classes = 10});
  TensorId x =
      b.relu("relu1", b.batch_norm("norm1", b.conv("conv1", b.data(), {.channels = 40, .kernel = 3, .padding = 1})));
  x = b.relu("relu2", b.conv("conv2", x, {.channels = 70, .kernel = 3, .padding = 1}));
  x = b.relu("fc1/relu", b.fully_connected("fc1", b.flatten("flat", x), {.channels = 20}));
  return std::move(b).finish_classifier(b.fully_connected("fc2", x, {.channels = 10}));
}

Program program_on(const Device& device, const CompileOptions& options) {
  auto compiled = compile_training(network(), device, CostTable(), options);
  if (const auto* no = std::get_if<Infeasible>(&compiled)) throw Error(ErrorCode::infeasible, to_text(*no));
  return std::get<Program>(std::move(compiled));
}

CompileOptions options_for(int ranks) {
  CompileOptions options{.exact = true};
  options.optimizer.ranks = ranks;
  return options;
}

using States = std::map<std::string, std::vector<std::byte>>;

// As every rank; the states that all have in the end, as the first rank reads them.
States train(const Machine& machine, int ranks, const CompileOptions& options, int batches = 4,
             const ExecuteOptions& running = {.check_memory = true}) {
  States states;
  as_ranks(ranks, [&](const Ranks& communicator) {
    const auto device = machine.open(communicator);
    TrainingStep step(program_on(*device, options), *device, running);
    step.initialize(5);
    step.start_at(0, 5);
    for (int batch = 0; batch < batches; ++batch) {
      write_inputs(step.executor(), step.program().network.graph, 10 * batch + communicator->rank(), 0.05F);
      step.run(0.05);
    }
    for (const CheckpointTensor& state : step.states()) {
      const StateTensor now = step.state(state.name);
      if (communicator->is_first()) states[state.name] = now.elements;
    }
    communicator->barrier();
  });
  return states;
}

void expect_in_order(const Machine& machine, int ranks) {
  for (int r = 0; r < ranks; ++r) {
    EXPECT_THAT(machine.door(r).conflicts(), IsEmpty()) << "rank " << r;
    EXPECT_EQ(machine.door(r).transmissions().size(), machine.door(0).transmissions().size()) << "rank " << r;
  }
}

TEST(CudaRanks, EndWithTheSameBitsHoweverStatesAreDivided) {
  for (const int variant : {0, 1, 2, 3}) {
    const int ranks = variant == 1 ? 3 : 2;
    CompileOptions options = options_for(ranks);
    if (variant == 1) options.optimizer.clip_grad_norm = 0.3;
    if (variant == 2) options.optimizer.accumulate = 2;
    if (variant == 2) options.optimizer.name = "adam";
    options.optimizer.sync_batch_norm = variant == 3;
    std::optional<States> wanted;
    for (int stage = 0; stage <= kMostShardingStage; ++stage) {
      SCOPED_TRACE(fmt::format("variant {}, stage {}", variant, stage));
      const Machine machine(ranks, static_cast<uint64_t>(10 * variant + stage + 1));
      options.zero = stage;
      const States states = train(machine, ranks, options);
      if (!wanted) wanted = states;
      EXPECT_TRUE(states == *wanted);
      expect_in_order(machine, ranks);
      EXPECT_EQ(machine.door(0).calls().count("ncclAllReduce"), 0u);
      EXPECT_EQ(machine.door(0).captures(), 0) << "all ranks would have to capture the step, or none";
      EXPECT_EQ(machine.door(0).allocations(), 0u) << "buffers are given back";
    }
  }
}

TEST(CudaRanks, EndWithTheSameBitsInATightBudget) {
  const CompileOptions plain = options_for(2);
  const Machine easy(2);
  Bytes arena;
  as_ranks(2, [&](const Ranks& communicator) {
    const auto device = easy.open(communicator);
    if (communicator->is_first()) arena = program_on(*device, plain).plan->arena;
    communicator->barrier();
  });
  const States wanted = train(Machine(2), 2, plain);
  for (const int stage : {0, 2, 3}) {
    CompileOptions tight = plain;
    tight.zero = stage;
    tight.memory = {arena.count * 8 / 10};
    tight.tiers = {{.name = "host", .capacity = 64_MiB, .out_gb_per_s = 10, .in_gb_per_s = 10, .latency_us = 10}};
    const Machine machine(2, 7);
    EXPECT_TRUE(train(machine, 2, tight) == wanted) << stage;
    expect_in_order(machine, 2);
  }
}

// What lies on the wire is ordered by events alone: without one of them operations meet, and are found.
TEST(CudaRanks, AWaitBetweenMessagesAndComputeThatIsForgottenIsFound) {
  int found = 0;
  for (int nth = 1; nth <= 12; ++nth) {
    const Machine machine(2, static_cast<uint64_t>(nth));
    machine.door(0).forget_wait(nth);
    CompileOptions options = options_for(2);
    options.zero = nth % 4;
    try {
      train(machine, 2, options, 1, {});
    } catch (const Error&) {
    }
    found += !machine.door(0).conflicts().empty();
  }
  EXPECT_GE(found, 5) << "others may be needless";
}

TEST(CudaRanks, WithoutExactNcclsOwnCollectivesAreTaken) {
  const Machine machine(3);
  CompileOptions options = options_for(3);
  const States exact = train(machine, 3, options, 1);
  options.exact = false;
  for (const int stage : {0, 3}) {
    options.zero = stage;
    const Machine fast(3);
    const States states = train(fast, 3, options, 1);
    expect_in_order(fast, 3);
    EXPECT_EQ(fast.door(0).calls().count("ncclSend"), 0u);
    EXPECT_GT(fast.door(0).calls().at(stage == 0 ? "ncclAllReduce" : "ncclReduce"), 0);
    for (int r = 1; r < 3; ++r) EXPECT_EQ(fast.door(r).transmissions(), fast.door(0).transmissions());
    for (const auto& [name, bytes] : exact) {
      const auto* a = reinterpret_cast<const float*>(bytes.data());
      const auto* b = reinterpret_cast<const float*>(states.at(name).data());
      for (size_t i = 0; i < bytes.size() / 4; ++i) ASSERT_NEAR(a[i], b[i], 1e-3 * (1 + std::abs(a[i]))) << name;
    }
  }
}

TEST(CudaRanks, SendNothingBeforeTheLastBatchOfAStep) {
  const Machine machine(2);
  CompileOptions options = options_for(2);
  options.optimizer.accumulate = 3;
  options.zero = 0;
  as_ranks(2, [&](const Ranks& communicator) {
    const auto device = machine.open(communicator);
    const FakeDoor& door = machine.door(communicator->rank());
    TrainingStep step(program_on(*device, options), *device);
    step.initialize(5);
    step.start_at(0, 5);
    for (int batch = 0; batch < 6; ++batch) {
      const size_t before = door.transmissions().size();
      write_inputs(step.executor(), step.program().network.graph, batch, 0.05F);
      step.run(0.05);
      EXPECT_EQ(door.transmissions().size() > before, batch % 3 == 2) << batch;
    }
    communicator->barrier();
  });
}

TEST(CudaRanks, ARankThatTriesAStepAloneSendsNothing) {
  const Machine machine(2);
  as_ranks(2, [&](const Ranks& communicator) {
    const auto device = machine.open(communicator);
    if (communicator->is_first()) {
      for (const bool rehearses : {true, false}) {
        const Program program = program_on(*device, options_for(2));
        Executor executor(program.network.graph, program.plan, *device, {.messages = rehearses});
        rehearses ? static_cast<void>(executor.rehearse()) : executor.run_step();
        EXPECT_THAT(machine.door(0).transmissions(), IsEmpty());
      }
    }
    communicator->barrier();
  });
}

// What went wrong, as each rank says it, after steps in which `strike` makes something fail.
std::vector<std::string> failures(const Machine& machine, std::chrono::milliseconds timeout,
                                  const std::function<void(Communicator&, int batch)>& strike) {
  std::vector<std::string> texts(2);
  as_ranks(
      2,
      [&](const Ranks& communicator) {
        std::string& text = texts[static_cast<size_t>(communicator->rank())];
        try {
          const auto device = machine.open(communicator);
          TrainingStep step(program_on(*device, options_for(2)), *device);
          step.initialize(5);
          for (int batch = 0; batch < 5; ++batch) {
            write_inputs(step.executor(), step.program().network.graph, batch, 0.05F);
            strike(*communicator, batch);
            step.run(0.05);
          }
        } catch (const RankFailed& error) {
          text = error.what();
        } catch (const Error& error) {
          text = fmt::format("itself: {}", error.what());
          communicator->fail(error.code(), error.what());
        }
      },
      timeout);
  return texts;
}

TEST(CudaRanks, WaitNoLongerThanTheTimeoutForARankThatHangs) {
  const Machine machine(2);
  machine.door(1).hang_at(3);
  const auto texts = failures(machine, std::chrono::milliseconds(700), [](Communicator&, int) {});
  for (int r = 0; r < 2; ++r) {
    EXPECT_THAT(texts[static_cast<size_t>(r)], HasSubstr("a collective has not ended for")) << r;
    EXPECT_EQ(machine.door(r).calls().at("ncclCommAbort"), 1) << r;
  }
}

TEST(CudaRanks, EndWhenAnotherRankFails) {
  const Machine machine(2);
  const auto begin = std::chrono::steady_clock::now();
  const auto texts = failures(machine, std::chrono::seconds(60), [](Communicator& communicator, int batch) {
    if (communicator.rank() == 1 && batch == 2) throw Error(ErrorCode::corrupt_file, "an image is broken");
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  EXPECT_THAT(texts[0], HasSubstr("failed: an image is broken"));
  EXPECT_EQ(texts[1], "itself: an image is broken");
  EXPECT_EQ(machine.door(0).calls().at("ncclCommAbort"), 1);
}

TEST(CudaRanks, TellWhatNcclFindsWrong) {
  const Machine machine(2);
  const auto texts = failures(machine, std::chrono::seconds(60), [&](Communicator& communicator, int batch) {
    if (communicator.rank() == 0 && batch == 2) machine.door(0).set_nccl_failure("NCCL: a cable is broken (fake)");
  });
  EXPECT_THAT(texts[0], HasSubstr("a cable is broken"));
  EXPECT_THAT(texts[1], HasSubstr("failed: NCCL: a cable is broken"));
  for (int r = 0; r < 2; ++r) EXPECT_EQ(machine.door(r).calls().at("ncclCommAbort"), 1) << r;
}

TEST(CudaRanks, ACallOfNcclThatFailsIsNamed) {
  for (const char* call : {"ncclCommInitRankConfig", "ncclGroupEnd", "ncclSend"}) {
    const Machine machine(2);
    machine.door(1).fail(call, 1);
    const auto texts = failures(machine, std::chrono::seconds(60), [](Communicator&, int) {});
    for (const std::string& text : texts) EXPECT_THAT(text, HasSubstr(call));
  }
}

TEST(CudaRanks, EachHasAGpuOfItsOwnOfTheSameKind) {
  const auto refusal = [](ErrorCode code, const Machine& machine) {
    return error_text(code, [&] { as_ranks(2, [&](const Ranks& communicator) { machine.open(communicator); }); });
  };
  const Machine one(2);
  one.door(1).as_device(0);
  EXPECT_THAT(refusal(ErrorCode::invalid_input, one),
              HasSubstr("have the same GPU (Fake GPU), but each needs its own"));
  const Machine mixed(2);
  mixed.door(1).set_nccl_version("2.20.5");
  EXPECT_THAT(refusal(ErrorCode::invalid_input, mixed), HasSubstr("has NCCL 2.20.5, but rank 0"));
  const Machine without(2);
  for (int r = 0; r < 2; ++r) without.door(r).meet_at(nullptr);
  EXPECT_THAT(refusal(ErrorCode::unsupported, without), HasSubstr("need NCCL"));
}

TEST(CudaRanks, MeasureTheLink) {
  const Machine machine(2);
  as_ranks(2, [&](const Ranks& communicator) {
    const auto gpu = cuda::open_behind(std::shared_ptr<FakeDoor>(&machine.door(communicator->rank()), [](FakeDoor*) {}),
                                       "cuda:0", false);
    const auto wire = open_wire(*gpu, communicator);
    EXPECT_EQ(wire->key(), "NCCL 2.28.9: Fake GPU (0) Fake GPU (0)");
    const LinkInfo link = probe_link(*gpu, *wire, 64_MiB);
    EXPECT_EQ(link.ranks, 2);
    EXPECT_GT(link.latency_us, 0);
    EXPECT_GT(link.gb_per_s, 0);
    EXPECT_EQ(machine.door(communicator->rank()).allocations(), 0u);
  });
}

}  // namespace
}  // namespace plimsoll
