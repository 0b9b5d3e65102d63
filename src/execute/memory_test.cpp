// What a training step does in the arena, judged while it runs: the bytes in use are those that kernels and copies were
// given, and a kernel that touches what is not its own is found by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "execute/peak_meter.h"
#include "plimsoll/compile.h"
#include "plimsoll/execute.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"
#include "tests/support/wrapped_device.h"
#include "tests/support/write_inputs.h"

namespace plimsoll {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Program small_program() {
  const ModelInput input{.batch = 2, .channels = 3, .height = 32, .width = 32, .classes = 10, .training = true};
  CompileOptions options{.policy = "liveness", .exact = true, .family = LayoutFamily::plain};
  const auto device = open_reference_device();
  return std::get<Program>(compile_training(build_model("lenet", input), *device, CostTable(), options));
}

Bytes measured(const Graph& graph, const Plan& plan, const Device& device) {
  Executor executor(graph, plan, device);
  executor.initialize(1);
  write_inputs(executor, graph, 0);
  executor.run_step();
  return executor.measured_peak();
}

// Sixteen bytes of arena for each tensor of a chain of accesses written by hand.
struct Chain {
  alignas(64) std::byte arena[1024];
  Plan plan;
  Bindings bindings{.arena = arena, .arena_bytes = {1024}};

  explicit Chain(size_t steps) {
    plan.steps.resize(steps);
    bindings.steps = ById<StepIndex, KernelBinding>(steps);
  }
  Region at(int64_t offset, int64_t bytes) { return {arena + offset, {bytes}, TensorId{0}}; }
  Bytes peak() {
    std::vector<int32_t> order(plan.steps.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    PeakMeter meter(bindings, plan, order);
    meter.begin();
    for (const int32_t node : order) {
      meter.start(node);
      meter.end(node);
    }
    return meter.peak();
  }
};

TEST(MeasuredPeak, CountsAValueFromItsWriterToItsLastReader) {
  Chain chain(4);
  chain.bindings.steps[0].outputs = {chain.at(0, 64)};
  chain.bindings.steps[1].outputs = {chain.at(64, 128)};
  chain.bindings.steps[2].inputs = {chain.at(0, 64)};
  chain.bindings.steps[2].outputs = {chain.at(192, 64)};
  chain.bindings.steps[3].inputs = {chain.at(192, 64)};
  EXPECT_EQ(chain.peak(), 192_B);  // in step 1: nobody reads its output, so that it is gone in step 2
  chain.bindings.steps[3].inputs.push_back(chain.at(64, 128));
  EXPECT_EQ(chain.peak(), 256_B);
}

TEST(MeasuredPeak, CountsBytesThatAreReplacedInTheirPlaceOnce) {
  Chain chain(3);
  chain.bindings.steps[0].outputs = {chain.at(0, 256)};
  chain.bindings.steps[1].inputs = {chain.at(0, 256)};
  chain.bindings.steps[1].outputs = {chain.at(0, 64)};  // and the rest of the input is gone
  chain.bindings.steps[2].inputs = {chain.at(0, 64)};
  chain.bindings.steps[2].workspace = chain.at(64, 512);
  EXPECT_EQ(chain.peak(), 576_B);
}

TEST(MeasuredPeak, RoundsWhatIsBoundUpAndKeepsWhatOutlastsTheStep) {
  Chain chain(2);
  chain.bindings.steps[0].outputs = {chain.at(0, 1)};
  chain.bindings.steps[1].outputs = {chain.at(64, 65)};
  EXPECT_EQ(chain.peak(), 128_B);
  chain.bindings.left = {chain.at(0, 1)};
  EXPECT_EQ(chain.peak(), 192_B);
  chain.bindings.found = {chain.at(512, 64)};  // nobody reads it
  EXPECT_EQ(chain.peak(), 192_B);
  chain.bindings.steps[1].inputs = {chain.at(512, 64)};
  EXPECT_EQ(chain.peak(), 256_B);
  chain.bindings.steps[1].inputs.push_back(chain.at(576, 64));  // what the last training step has left there
  EXPECT_EQ(chain.peak(), 320_B);
}

TEST(MeasuredPeak, IsWhatAPlanPredictsWhoseStaysAreAsLongAsTheirUse) {
  const Program program = small_program();
  const auto device = open_reference_device();
  EXPECT_EQ(measured(program.network.graph, program.plan, *device), live_peak(program.plan).bytes);
}

// A stay that begins before anybody writes it, or ends after the last who reads it, is predicted and not measured.
TEST(MeasuredPeak, IsLessThanAPlanPredictsThatHoldsATensorTooLong) {
  const Program program = small_program();
  const auto device = open_reference_device();
  const Plan& plan = program.plan;
  const Peak right = live_peak(plan);
  int longer = 0;
  for (size_t i = 0; i < plan.stays.size(); ++i) {
    if (plan.stays[i].is_workspace() || plan.stays[i].last >= right.step) continue;
    Plan wrong = plan;
    Stay& stay = wrong.stays[i];
    stay.offset = plan.arena;  // bytes of its own, so that nobody is in the way
    stay.last = right.step;
    const Tensor& tensor = program.network.graph.tensor(stay.tensor);
    if (!tensor.producer.valid() || program.network.graph.op(tensor.producer).type->is_view) continue;
    wrong.arena = plan.arena + stay.bytes;
    std::stable_sort(wrong.stays.begin(), wrong.stays.end(), [](const Stay& a, const Stay& b) {
      return a.first != b.first ? a.first < b.first : a.offset < b.offset;
    });
    try {
      const Bytes peak = measured(program.network.graph, wrong, *device);
      EXPECT_LT(peak, live_peak(wrong).bytes) << tensor.name;
      ++longer;
    } catch (const Error&) {  // it is not such a plan: a view shows the tensor, or an op must write over it
    }
  }
  EXPECT_GT(longer, 3);
}

// An executor that gave one op other bytes than the plan says would measure something else.
TEST(MeasuredPeak, DiffersWhereAnOpIsBoundElsewhere) {
  const Program program = small_program();
  const Graph& graph = program.network.graph;
  const Plan& plan = program.plan;
  const auto device = open_reference_device();
  const auto arena = device->take_arena({2 * plan.arena.count});
  std::vector<std::unique_ptr<Kernel>> kernels;
  for (const Step& step : plan.steps) {
    const Op& op = graph.op(step.op);
    kernels.push_back(op.type->is_view ? nullptr : device->make_kernel(graph, op, step.kernel, 0));
  }
  const Bindings right = make_bindings(graph, plan, *arena, kernels);
  auto peak = [&](const Bindings& bindings) {
    PeakMeter meter(bindings, plan, nodes_in_order(plan));
    meter.begin();
    for (const int32_t node : nodes_in_order(plan)) {
      meter.start(node);
      meter.end(node);
    }
    return meter.peak();
  };
  ASSERT_EQ(peak(right), live_peak(plan).bytes);
  int more = 0;
  for (StepIndex s = 0; s < static_cast<StepIndex>(plan.steps.size()); ++s) {
    if (right.steps[s].outputs.empty() || right.steps[s].outputs[0].at == nullptr) continue;
    Bindings wrong = right;
    wrong.steps[s].outputs[0].at = arena->base() + plan.arena.count;
    more += peak(wrong) != live_peak(plan).bytes;
  }
  EXPECT_GT(more, 3);
}

// --- memory checks ---

class MemoryChecks : public ::testing::Test {
 protected:
  // An op in the middle of the forward pass, and where its output lies.
  const Op& op() const { return graph().op(plan().steps[step()].op); }
  StepIndex step() const {
    for (StepIndex s = 2; s < static_cast<StepIndex>(plan().steps.size()); ++s) {
      if (!graph().op(plan().steps[s].op).type->is_view && stay_of_output(s).bytes > 256_B) return s;
    }
    return 0;
  }
  const Stay& stay_of_output(StepIndex s) const {
    const TensorId output = graph().op(plan().steps[s].op).outputs[0];
    return *std::find_if(plan().stays.begin(), plan().stays.end(),
                         [&](const Stay& stay) { return stay.tensor == output; });
  }
  const Graph& graph() const { return program_.network.graph; }
  const Plan& plan() const { return program_.plan; }

  std::string error_of(const WrongDevice& device, int inter_op = 1) const {
    Plan shared = plan();
    if (inter_op > 1) shared.cores.inter_op = shared.cores.cores = inter_op;
    Executor executor(graph(), shared, device, {.check_memory = true});
    executor.initialize(1);
    write_inputs(executor, graph(), 0);
    try {
      executor.run_step();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::internal);
      return error.what();
    }
    return "no error";
  }

  const Program program_ = small_program();
};

TEST_F(MemoryChecks, SayNothingOfRightKernels) {
  for (const int inter_op : {1, 2}) EXPECT_EQ(error_of(WrongDevice("", nullptr, nullptr), inter_op), "no error");
}

TEST_F(MemoryChecks, FindAKernelThatWritesBeyondItsOutput) {
  const Stay& stay = stay_of_output(step());
  const int64_t end = stay.offset.count + graph().tensor(stay.tensor).bytes().count;
  const WrongDevice device(op().name, nullptr, [&](const WrongDevice::Given& given) {
    auto* past = static_cast<std::byte*>(given.outputs[0]) + graph().tensor(stay.tensor).bytes().count;
    *past = std::byte{static_cast<unsigned char>(~static_cast<unsigned>(*past))};
  });
  for (const int inter_op : {1, 2}) {
    EXPECT_THAT(
        error_of(device, inter_op),
        AllOf(HasSubstr("step " + std::to_string(step()) + " ('" + op().name + "', kernel 'reference') wrote"),
              HasSubstr("[" + std::to_string(end) + ", " + std::to_string(end + 1) + ")"), HasSubstr("they are ")));
  }
}

TEST_F(MemoryChecks, TellWhoseBytesAKernelOverwrites) {
  const WrongDevice device(op().name, nullptr,
                           [](const WrongDevice::Given& given) { *static_cast<float*>(given.inputs[0]) += 1; });
  for (const int inter_op : {1, 2}) {
    EXPECT_THAT(error_of(device, inter_op), AllOf(HasSubstr("'" + op().name + "'"),
                                                  HasSubstr("those of '" + graph().tensor(op().inputs[0]).name + "'")));
  }
}

TEST_F(MemoryChecks, FindAKernelThatReadsFreeBytes) {
  // Some bytes that no stay has while the op runs.
  std::vector<bool> taken(plan().arena.count);
  for (const Stay& stay : plan().stays) {
    if (stay.first <= step() && step() <= stay.last)
      std::fill_n(taken.begin() + stay.offset.count, stay.bytes.count, true);
  }
  const auto free = std::find(taken.begin(), taken.end(), false);
  ASSERT_NE(free, taken.end());
  const int64_t output = stay_of_output(step()).offset.count, from = (free - taken.begin()) - output;
  const WrongDevice device(op().name, nullptr, [&](const WrongDevice::Given& given) {
    float read = 0;
    std::memcpy(&read, static_cast<std::byte*>(given.outputs[0]) + from, sizeof read);
    static_cast<float*>(given.outputs[0])[3] += read;
  });
  for (const int inter_op : {1, 2}) {
    EXPECT_THAT(error_of(device, inter_op),
                AllOf(HasSubstr("'" + op().name + "'"), HasSubstr("reads bytes that it was not given"),
                      HasSubstr("[" + std::to_string(output + 12) + ", " + std::to_string(output + 16) + ")"),
                      HasSubstr(graph().tensor(op().outputs[0]).name)));
  }
}

TEST_F(MemoryChecks, FindAKernelThatLeavesSomeOfItsOutputOut) {
  for (const int inter_op : {1, 2}) {
    float before = 0;
    const WrongDevice device(
        op().name, [&](const WrongDevice::Given& given) { before = static_cast<float*>(given.outputs[0])[5]; },
        [&](const WrongDevice::Given& given) { static_cast<float*>(given.outputs[0])[5] = before; });
    EXPECT_THAT(error_of(device, inter_op),
                AllOf(HasSubstr("'" + op().name + "'"), HasSubstr("does not write all of its output")));
  }
}

TEST_F(MemoryChecks, FindAnInputThatNobodyWrote) {
  for (const int inter_op : {1, 2}) {
    Plan shared = plan();
    if (inter_op > 1) shared.cores.inter_op = shared.cores.cores = inter_op;
    const WrongDevice device("", nullptr, nullptr);
    Executor executor(graph(), shared, device, {.check_memory = true});
    executor.initialize(1);
    write_inputs(executor, graph(), 0);
    executor.run_step();
    try {
      executor.run_step();  // its batch is gone
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("reads '"), HasSubstr("hold no value")));
    }
  }
}

// --- the machine ---

TEST(Cores, APlanForMoreThanTheMachineHasIsRefusedByName) {
  const Program program = small_program();
  Plan plan = program.plan;
  plan.cores = {.inter_op = 2, .cores = 16, .hardware_threads = 2};
  auto text = [&](CoreShape cores) -> std::string {
    try {
      const WrappedDevice device(open_reference_device(), cores);
      const Executor executor(program.network.graph, plan, device);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_input);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(text({.cores = 16, .cores_a_cache = 16, .hardware_threads = 2}), "");
  EXPECT_THAT(
      text({.cores = 2, .cores_a_cache = 2, .hardware_threads = 1}),
      HasSubstr(
          "the plan was made for 16 cores with 2 hardware threads each; this machine lets the process use 2 with 1"));
  EXPECT_THAT(text({.cores = 16, .cores_a_cache = 16, .hardware_threads = 1}), HasSubstr("16 with 1"));
}

}  // namespace
}  // namespace plimsoll
