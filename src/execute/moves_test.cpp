// Plans whose tensors leave the arena and come back, whose states live outside, and that compute things again: they
// give the same weights, bit by bit, as plans without.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <optional>

#include "base/by_id.h"
#include "device/tier/fault.h"
#include "plimsoll/compile.h"
#include "plimsoll/execute.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"
#include "plimsoll/verify.h"
#include "tests/support/sanitizer.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/write_inputs.h"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

Program moving_program(const Device& device, const std::string& model, const std::string& optimizer,
                       std::optional<LayoutFamily> family = LayoutFamily::plain) {
  const ModelInput input{.batch = 2, .channels = 3, .height = 32, .width = 32, .classes = 10, .training = true};
  CompileOptions options{.policy = "liveness", .exact = true, .family = family};
  options.optimizer.name = optimizer;
  return std::get<Program>(compile_training(build_model(model, input), device, CostTable(), options));
}

struct Edit {
  int tiers = 1;        // 1: host; 2: host and disk in turn
  bool homes = false;   // states and the image batch live outside
  StepIndex slack = 1;  // how long before a use a copy must be complete, and how long after one it may start
};

// Takes activations out of a liveness plan's arena wherever they have a long wait between two uses, and states whenever
// nothing uses them. All stays keep their offsets.
class Mover {
 public:
  Mover(const Graph& graph, Plan plan, const Edit& edit) : graph_(graph), plan_(std::move(plan)), edit_(edit) {
    plan_.tiers.push_back({.tier = {.name = "host", .capacity = 256_MiB}, .used = {}});
    if (edit.tiers > 1) plan_.tiers.push_back({.tier = {.name = "disk", .capacity = 256_MiB}, .used = {}});
    bottoms_.resize(plan_.tiers.size());
    steps_ = static_cast<StepIndex>(plan_.steps.size());
    uses_.resize(graph.tensor_count());
    views_.resize(uses_.size());
    for (StepIndex s = 0; s < steps_; ++s) {
      const Op& op = graph.op(plan_.steps[s].op);
      for (const auto* list : {&op.inputs, &op.outputs}) {
        for (TensorId id : *list) {
          uses_[id].push_back(s);
          if (op.type->is_view) views_[id] = true;
        }
      }
    }
  }

  Plan run() {
    const std::vector<Stay> stays = std::move(plan_.stays);
    plan_.stays.clear();
    for (const Stay& stay : stays) {
      if (stay.is_workspace() || views_[stay.tensor] || stay.bytes < 256_B) {
        plan_.stays.push_back(stay);
        continue;
      }
      const Tensor& tensor = graph_.tensor(stay.tensor);
      if (edit_.homes && (is_state(stay.tensor) || tensor.role == Role::input)) {
        arrive(stay);
      } else if (edit_.homes && state_of(stay.tensor).valid()) {
        leave(stay);
      } else if (tensor.producer.valid()) {
        split(stay);
      } else {
        plan_.stays.push_back(stay);
      }
    }
    std::stable_sort(plan_.stays.begin(), plan_.stays.end(), [](const Stay& a, const Stay& b) {
      return a.first != b.first ? a.first < b.first : a.offset < b.offset;
    });
    for (size_t t = 0; t < bottoms_.size(); ++t) plan_.tiers[t].used = bottoms_[t];
    return std::move(plan_);
  }

 private:
  bool is_state(TensorId id) const {
    return std::any_of(graph_.states.begin(), graph_.states.end(),
                       [&](const State& s) { return s.before == id && s.after != id; });
  }
  TensorId state_of(TensorId after) const {
    for (const State& s : graph_.states) {
      if (s.after == after && s.before != after) return s.before;
    }
    return {};
  }

  // Between two uses.
  void split(Stay stay) {
    const std::vector<StepIndex>& uses = uses_[stay.tensor];
    for (size_t i = 0; i + 1 < uses.size(); ++i) {
      const StepIndex from = uses[i], to = uses[i + 1];
      const StepIndex gone = from + 1 + edit_.slack,
                      back = to - edit_.slack;  // gone before `gone`, there again from `back` on
      if (uses[i + 1] > stay.last || gone >= back) continue;
      const auto [tier, slot] = take_slot(stay.tensor);
      plan_.moves.push_back({Move::Direction::out, stay.tensor, tier, slot, from, gone});
      plan_.moves.push_back({Move::Direction::in, stay.tensor, tier, slot, back - 1, to});
      Stay head = stay;
      head.last = gone - 1;
      plan_.stays.push_back(head);
      stay.first = back;
    }
    plan_.stays.push_back(stay);
  }

  // From its home to its first use.
  void arrive(Stay stay) {
    const auto [tier, slot] = take_slot(stay.tensor);
    plan_.homes.push_back({stay.tensor, tier, slot});
    const StepIndex use = uses_[stay.tensor].front();
    stay.first = std::max<StepIndex>(0, use - edit_.slack);
    plan_.moves.push_back({Move::Direction::in, stay.tensor, tier, slot, stay.first - 1, use});
    if (is_state(stay.tensor)) {
      plan_.stays.push_back(stay);
    } else {
      split(stay);
    }
  }

  // Home with its new value.
  void leave(Stay stay) {
    const TensorId state = state_of(stay.tensor);
    for (const Home& home : plan_.homes) {
      if (home.tensor != state) continue;
      stay.last = std::min(stay.first + edit_.slack, steps_ - 1);
      plan_.moves.push_back({Move::Direction::out, stay.tensor, home.tier, home.slot, stay.first, stay.last + 1});
    }
    plan_.stays.push_back(stay);
  }

  std::pair<int, Bytes> take_slot(TensorId tensor) {
    const int tier = static_cast<int>(taken_++ % bottoms_.size());
    Bytes& bottom = bottoms_[tier];
    const Bytes slot = bottom;
    bottom = align_up(bottom + graph_.tensor(tensor).bytes(), kSlotAlignment);
    return {tier, slot};
  }

  const Graph& graph_;
  Plan plan_;
  Edit edit_;
  StepIndex steps_ = 0;
  size_t taken_ = 0;
  std::vector<Bytes> bottoms_;
  ById<TensorId, std::vector<StepIndex>> uses_;
  ById<TensorId, bool> views_;
};

std::vector<std::byte> states_of(const Executor& executor, const Graph& graph) {
  std::vector<std::byte> all;
  for (const State& state : graph.states) {
    std::vector<std::byte> values(element_count(graph.tensor(state.before).shape) * 4);
    executor.read(state.before, values);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

std::vector<std::byte> train_moving(const Device& device, const Graph& graph, const Plan& plan,
                                    const ExecuteOptions& options, int steps = 2) {
  Executor executor(graph, plan, device, options);
  executor.initialize(7);
  for (int step = 0; step < steps; ++step) {
    write_inputs(executor, graph, step);
    executor.run_step();
  }
  EXPECT_EQ(executor.measured_peak(), live_peak(plan).bytes);
  return states_of(executor, graph);
}

std::string violations(const Graph& graph, const Plan& plan) {
  std::string text;
  for (const Violation& v : verify_safety(graph, plan, 5)) text += v.message + "\n";
  return text;
}

struct Setting {
  std::string name;
  bool cpu = false;
  std::string model = "resnet20";
  std::string optimizer = "sgd";
  LayoutFamily family = LayoutFamily::plain;
};

class Moves : public ::testing::TestWithParam<Setting> {};

TEST_P(Moves, GiveTheSameWeightsAsAPlanThatKeepsEverything) {
  const Setting& setting = GetParam();
  const std::unique_ptr<Device> device = setting.cpu ? open_device("cpu", kKernelThreads) : open_reference_device();
  const Program program = moving_program(*device, setting.model, setting.optimizer, setting.family);
  const Graph& graph = program.network.graph;
  const std::vector<std::byte> expected = train_moving(*device, graph, program.plan, {});
  TemporaryFolder folder;
  for (const int tiers : {1, 2}) {
    for (const bool homes : {false, true}) {
      for (const StepIndex slack : {0, 3}) {
        SCOPED_TRACE(fmt::format("{} tiers, homes {}, slack {}", tiers, homes, slack));
        const Plan plan = Mover(graph, program.plan, {.tiers = tiers, .homes = homes, .slack = slack}).run();
        ASSERT_GT(plan.moves.size(), 6u);
        ASSERT_EQ(violations(graph, plan), "");
        const bool check_memory = (slack == 0) == homes;  // each way beside each of the rest
        EXPECT_EQ(train_moving(*device, graph, plan, {.check_memory = check_memory, .spill = folder.path()}), expected);
      }
    }
  }
  EXPECT_TRUE(folder.empty());
}

INSTANTIATE_TEST_SUITE_P(
    Devices, Moves,
    ::testing::Values(Setting{"reference_sgd", false, "lenet"}, Setting{"reference_adam", false, "lenet", "adam"},
                      Setting{"cpu_plain", true},
                      Setting{"cpu_blocked", true, "resnet20", "adam", LayoutFamily::blocked},
                      Setting{"cpu_channels_last", true, "resnet20", "sgd", LayoutFamily::channels_last}),
    [](const auto& info) { return info.param.name; });

TEST(Copies, RecordWhenEachCopyRan) {
  const auto device = open_reference_device();
  const Program program = moving_program(*device, "lenet", "sgd");
  const Plan plan = Mover(program.network.graph, program.plan, {.slack = 1}).run();
  Executor executor(program.network.graph, plan, *device, {.record_times = true});
  executor.initialize(1);
  write_inputs(executor, program.network.graph, 0);
  executor.run_step();
  ASSERT_EQ(executor.copies().size(), plan.moves.size());
  for (size_t i = 0; i < plan.moves.size(); ++i) {
    const Move& move = plan.moves[i];
    const StepRecord& copy = executor.copies()[i];
    EXPECT_LE(copy.start_ms, copy.end_ms);
    if (move.after >= 0 && !plan.steps[move.after].kernel.empty()) {
      EXPECT_GE(copy.start_ms, executor.records()[move.after].end_ms);
    }
    if (move.before < std::ssize(plan.steps) && !plan.steps[move.before].kernel.empty()) {
      EXPECT_LE(copy.end_ms, executor.records()[move.before].start_ms);
    }
  }
}

TEST(Copies, EveryCallThatFailsStopsTheStepByNameAndEveryStepAfterIt) {
  const auto device = open_reference_device();
  const Program program = moving_program(*device, "lenet", "sgd");
  const Graph& graph = program.network.graph;
  TemporaryFolder folder;
  const Plan plan = Mover(graph, program.plan, {.tiers = 2, .slack = 2}).run();
  for (const TierOperation operation :
       {TierOperation::map, TierOperation::open, TierOperation::allocate, TierOperation::write, TierOperation::read,
        TierOperation::short_read, TierOperation::corrupt}) {
    bool survived = false;
    for (int nth = 1; !survived; ++nth) {
      SCOPED_TRACE(fmt::format("operation {}, call {}", static_cast<int>(operation), nth));
      ASSERT_LT(nth, 1000);
      std::optional<Executor> executor;
      std::string first, second;
      const TierFault fault(operation, nth, EIO);
      try {
        executor.emplace(graph, plan, *device, ExecuteOptions{.spill = folder.path()});
        executor->initialize(7);
        write_inputs(*executor, graph, 0);
        executor->run_step();
        survived = true;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::device_failure);
        first = error.what();
      }
      EXPECT_EQ(fault.struck(), !survived);
      if (executor && !survived) {
        EXPECT_THAT(first, AllOf(HasSubstr("copying '"), HasSubstr("the "), HasSubstr("tier"), HasSubstr("byte")));
        try {
          executor->run_step();
        } catch (const Error& error) {
          second = error.what();
        }
        EXPECT_EQ(first, second);
      }
      executor.reset();
      EXPECT_TRUE(folder.empty());
    }
  }
}

TEST(Copies, APlanForTheDiskAsksForItsFolder) {
  const auto device = open_reference_device();
  const Program program = moving_program(*device, "lenet", "sgd");
  const Plan plan = Mover(program.network.graph, program.plan, {.tiers = 2}).run();
  try {
    Executor(program.network.graph, plan, *device);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("--spill"));
  }
}

// Every op that may run again does so right after its first run, and once more just before its outputs are read: what
// it writes is the same, and no state moves on.
TEST(Recomputation, GivesTheSameWeightsAndLeavesStatesAlone) {
  for (const bool cpu : {false, true}) {
    const std::unique_ptr<Device> device = cpu ? open_device("cpu", kKernelThreads) : open_reference_device();
    for (const char* model : {"lenet", "resnet20"}) {
      if (!cpu && std::string_view(model) == "resnet20") continue;
      const Program program = moving_program(*device, model, "sgd", cpu ? LayoutFamily::blocked : LayoutFamily::plain);
      const Graph& graph = program.network.graph;
      const std::vector<std::byte> expected = train_moving(*device, graph, program.plan, {});
      Plan plan = program.plan;
      plan.steps.clear();
      std::vector<StepIndex> starts, ends;
      for (const Step& step : program.plan->steps) {
        starts.push_back(static_cast<StepIndex>(plan.steps.size()));
        plan.steps.push_back(step);
        const OpType& type = *graph.op(step.op).type;
        const auto pairs = type.in_place ? type.in_place(graph, graph.op(step.op)) : std::vector<InPlace>{};
        const Op& op = graph.op(step.op);
        auto offset_of = [&](TensorId id) {
          for (const Stay& stay : program.plan->stays) {
            if (stay.tensor == id) return stay.offset;
          }
          return Bytes{-1};
        };
        const bool keeps_inputs = std::none_of(pairs.begin(), pairs.end(), [&](const InPlace& p) {
          const auto& states = type.state_outputs;
          return std::find(states.begin(), states.end(), p.output) == states.end() &&
                 offset_of(op.inputs[p.input]) == offset_of(op.outputs[p.output]);
        });
        if (!type.is_view && !type.changes_state && keeps_inputs) {
          plan.steps.push_back(step);
          plan.steps.back().recompute = true;
        }
        ends.push_back(static_cast<StepIndex>(plan.steps.size()) - 1);
      }
      std::vector<Stay> stays;
      for (Stay stay : plan.stays) {
        const StepIndex first = stay.first, last = stay.last;
        stay.first = starts[first];
        stay.last = ends[last];
        stays.push_back(stay);
      }
      // Workspaces are stays of one step; a state's place passes to its new value in the op's first run.
      std::vector<Stay> fixed;
      for (size_t i = 0; i < stays.size(); ++i) {
        const Stay& old = plan.stays[i];
        Stay stay = stays[i];
        if (stay.is_workspace()) {
          for (StepIndex s = starts[old.first]; s <= ends[old.first]; ++s) {
            stay.first = stay.last = s;
            fixed.push_back(stay);
          }
          continue;
        }
        for (const State& state : graph.states) {
          if (state.before == stay.tensor && state.after != stay.tensor) stay.last = starts[old.last];
        }
        fixed.push_back(stay);
      }
      plan.stays = std::move(fixed);
      std::stable_sort(plan.stays.begin(), plan.stays.end(), [](const Stay& a, const Stay& b) {
        return a.first != b.first ? a.first < b.first : a.offset < b.offset;
      });
      ASSERT_GT(plan.steps.size(), program.plan->steps.size() + 5);
      const std::string wrong = violations(graph, plan);
      ASSERT_EQ(wrong, "") << model;
      EXPECT_EQ(train_moving(*device, graph, plan, {}), expected)
          << model << (cpu ? " on the cpu" : " on the reference device");
    }
  }
}

}  // namespace
}  // namespace plimsoll
