// Updates of an optimizer that stand next to each other are one launch, which gives the bits that one launch for each gives.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "device/cuda/device.h"
#include "device/joinable.h"
#include "plan/route.h"
#include "plan/together.h"
#include "plimsoll/compile.h"
#include "plimsoll/execute.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"
#include "tests/cuda/fake_door.h"
#include "tests/support/write_inputs.h"

namespace plimsoll {
namespace {

using testing::FakeDoor;

constexpr int64_t kSizes[] = {4096, 1, 7, 64, 3, 1000, 5000, 4, 2, 33};

// An update of each parameter in memory of its own, of which every fourth byte address is no multiple of 16.
struct Updates {
  Updates(const std::string& type, const std::shared_ptr<FakeDoor>& fake, bool two_rates)
      : door(fake), device(cuda::open_behind(fake, "cuda:0", false)) {
    std::vector<TensorId> rates;
    for (int i = 0; i < 2; ++i)
      rates.push_back(graph.add_source(fmt::format("lr{}", i), {}, DType::f32, Role::hyperparameter));
    const TensorId number = graph.add_source("step", {}, DType::i64, Role::hyperparameter);
    for (const int64_t size : kSizes) {
      const auto state = [&](const char* name, Role role) {
        return graph.add_source(fmt::format("{}{}", name, ops.size()), {size}, DType::f32, role);
      };
      const TensorId w = state("w", Role::parameter), g = state("g", Role::input);
      const TensorId rate = rates[two_rates && ops.size() >= 6 ? 1 : 0];
      std::vector<TensorId> inputs{w, g, rate};
      Attributes attributes{{"weight_decay", 0.01}};
      if (type == "SgdUpdate") {
        inputs.push_back(state("m", Role::optimizer_state));
        attributes.set("momentum", 0.9);
      } else {
        inputs.push_back(number);
        inputs.push_back(state("m", Role::optimizer_state));
        inputs.push_back(state("v", Role::optimizer_state));
      }
      ops.push_back(graph.add_op(type, fmt::format("update{}", ops.size()), "", inputs, attributes, Phase::update));
    }
  }

  // The bytes of all states after it.
  std::vector<std::byte> run(bool joined, size_t& launches) {
    std::mt19937_64 random(5);
    std::uniform_real_distribution<float> draw(0.1F, 1);
    std::map<int32_t, std::byte*> places;
    int64_t end = 0;
    const auto place = [&](TensorId id) {
      if (places.contains(id.index)) return;
      places[id.index] = reinterpret_cast<std::byte*>(end);
      end += align_up(graph.tensor(id).bytes(), kStayAlignment).count;
    };
    for (const OpId id : ops) {
      for (const TensorId input : graph.op(id).inputs) place(input);
    }
    const int64_t scratch = end;
    const auto arena = device->take_arena({end + 64 * std::ssize(ops)});
    for (auto& [index, at] : places) {
      at = arena->base() + reinterpret_cast<intptr_t>(at);
      const Tensor& tensor = graph.tensor({index});
      std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes().count));
      for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
        const float value = draw(random);
        const int32_t count = i == 0 ? 3 : 0;
        std::memcpy(&bytes[i], tensor.dtype == DType::i64 ? static_cast<const void*>(&count) : &value, 4);
      }
      device->write(at, bytes);
    }
    std::vector<std::unique_ptr<Kernel>> kernels;
    for (size_t i = 0; i < ops.size(); ++i) {
      const Op& op = graph.op(ops[i]);
      kernels.push_back(device->make_kernel(graph, op, "own"));
      std::vector<void*> inputs, outputs;
      for (const TensorId input : op.inputs) inputs.push_back(places.at(input.index));
      outputs.push_back(inputs[0]);
      for (size_t k = op.type->name == "SgdUpdate" ? 3 : 4; k < inputs.size(); ++k) outputs.push_back(inputs[k]);
      kernels.back()->bind(inputs, outputs, arena->base() + scratch + 64 * static_cast<int64_t>(i));
    }
    std::vector<Kernel*> left;
    for (const auto& kernel : kernels) left.push_back(kernel.get());
    std::vector<std::unique_ptr<Kernel>> together;
    const int before = door->calls().contains("cudaLaunchKernel") ? door->calls().at("cudaLaunchKernel") : 0;
    for (std::span<Kernel* const> rest = left; !rest.empty();) {
      JoinedKernel join;
      if (joined) join = dynamic_cast<Joinable&>(*rest.front()).join(rest);
      if (join.kernel) together.push_back(std::move(join.kernel));
      (join.count > 0 ? *together.back() : *rest.front()).run();
      rest = rest.subspan(std::max<size_t>(join.count, 1));
    }
    launches = static_cast<size_t>(door->calls().at("cudaLaunchKernel") - before);
    std::vector<std::byte> states(static_cast<size_t>(scratch));
    device->open_queues()->synchronize();
    device->read(states, arena->base());
    EXPECT_EQ(door->conflicts(), std::vector<std::string>{});
    return states;
  }

  std::shared_ptr<FakeDoor> door;
  std::unique_ptr<Device> device;
  Graph graph;
  std::vector<OpId> ops;
};

TEST(CudaUpdates, TogetherAreOneLaunchWithTheSameBits) {
  for (const char* type : {"SgdUpdate", "AdamUpdate"}) {
    for (const bool two_rates : {false, true}) {
      SCOPED_TRACE(fmt::format("{}, {} learning rates", type, two_rates ? 2 : 1));
      Updates updates(type, std::make_shared<FakeDoor>(2), two_rates);
      size_t launches = 0;
      const std::vector<std::byte> each = updates.run(false, launches);
      const size_t by_one = type == std::string("SgdUpdate") ? 1 : 2;  // of an update: the factors are a launch
      EXPECT_EQ(launches, by_one * std::size(kSizes));
      EXPECT_EQ(updates.run(true, launches), each);
      EXPECT_EQ(launches, type == std::string("AdamUpdate") && two_rates ? 2 * by_one : by_one);
    }
  }
}

TEST(CudaUpdates, OfSmallParametersAreAFewLaunchesOfAStep) {
  const ModelInput input{.batch = 2, .channels = 3, .height = 16, .width = 16, .classes = 10};
  for (const auto& [name, launches_each] : {std::pair("sgd", 1), std::pair("adam", 2)}) {
    SCOPED_TRACE(name);
    const auto door = std::make_shared<FakeDoor>(3);
    const auto cuda = cuda::open_behind(door, "cuda:0", false);
    const CompileOptions options{.policy = "liveness", .optimizer = {.name = name}, .exact = true};
    const Program program =
        std::get<Program>(compile_training(build_model("resnet20", input), *cuda, CostTable(), options));
    const Graph& graph = program.network.graph;
    int updates = 0;
    for (const Op& op : graph.ops()) updates += op.phase == Phase::update;
    ASSERT_GT(updates, 50);
    Executor executor(graph, program.plan, *cuda, {.record_times = true, .time_captured = true});
    executor.initialize(7);
    const auto records_together = [&] {  // none but those that a planner takes for such
      const std::vector<bool> known = steps_together(graph, program.plan);
      int count = 0;
      for (size_t s = 0; s < known.size(); ++s) {
        count += executor.records()[s].together;
        EXPECT_TRUE(known[s] || !executor.records()[s].together) << s;
      }
      return count;
    };
    const auto launches = [&](const auto& run) {
      const int before = door->calls().contains("cudaLaunchKernel") ? door->calls().at("cudaLaunchKernel") : 0;
      write_inputs(executor, graph, 1, 0.01F);
      run();
      return door->calls().at("cudaLaunchKernel") - before;
    };
    const int each = launches([&] { executor.rehearse(); });  // asks for each kernel by itself
    EXPECT_EQ(records_together(), 0);
    int together = 0;
    for (int i = 0; i < kRunsBeforeCapture + 1; ++i) together = launches([&] { executor.run_step(); });
    EXPECT_TRUE(executor.is_captured());
    EXPECT_GE(records_together(), updates - 4);
    EXPECT_GE(each - together, launches_each * (updates - 4));
    EXPECT_EQ(executor.measured_peak(), program.plan->predicted.peak);
    EXPECT_EQ(door->conflicts(), std::vector<std::string>{});
  }
}

}  // namespace
}  // namespace plimsoll
