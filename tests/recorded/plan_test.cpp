// The same on the CPU device, by a plan: losses, and every parameter and state after two steps.
#include "plimsoll/compile.h"
#include "plimsoll/execute.h"
#include "tests/recorded/compare.h"

namespace plimsoll::recorded {
namespace {

void write_elements(Executor& executor, const Graph& graph, TensorId id, const std::vector<double>& data) {
  const auto write = [&]<class T>(T) {
    const std::vector<T> elements(data.begin(), data.end());
    executor.write(id, std::as_bytes(std::span(elements)));
  };
  switch (graph.tensor(id).dtype) {
    case DType::i32: return write(int32_t{});
    case DType::i64: return write(int64_t{});
    default: return write(float{});
  }
}

std::vector<double> read_elements(const Executor& executor, const Graph& graph, TensorId id) {
  std::vector<float> elements(element_count(graph.tensor(id).shape));
  executor.read(id, std::as_writable_bytes(std::span(elements)));
  return {elements.begin(), elements.end()};
}

// The tensors that this name stands for: the blocks of a split state, or one.
std::vector<TensorId> parts_of(const Graph& graph, const std::string& name) {
  for (const WholeState& state : whole_states(graph)) {
    if (state.name == name) return state.parts;
  }
  return {graph.find_tensor(name)};
}

// The whole flow: fused, laid out, planned, executed.
void train_by_a_plan(const Case& network_case, const std::string& optimizer, LayoutFamily family,
                     const FusionOptions& fusion = {}) {
  const std::unique_ptr<Device> device = open_device("cpu", 1);
  const CompileOptions options{
      .policy = "liveness", .optimizer = optimizer_of(optimizer), .exact = true, .family = family, .fusion = fusion};
  auto result = compile_training(network_case.build(), *device, CostTable(), options);
  ASSERT_TRUE(std::holds_alternative<Program>(result));
  const Program& program = std::get<Program>(result);
  const Graph& graph = program.network.graph;
  Executor executor(graph, program.plan, *device, {.check_memory = true});
  const Runner run{
      .write =
          [&](const std::string& name, const std::vector<double>& data) {
            auto from = data.begin();
            for (TensorId id : parts_of(graph, name)) {
              const auto end = from + element_count(graph.tensor(id).shape);
              write_elements(executor, graph, id, {from, end});
              from = end;
            }
          },
      .read =
          [&](const std::string& name) {
            std::vector<double> all;
            for (TensorId id : parts_of(graph, name)) {
              const std::vector<double> part = read_elements(executor, graph, id);
              all.insert(all.end(), part.begin(), part.end());
            }
            return all;
          },
      .step = [&] { executor.run_step(); },
      .next = [] {},
  };
  train_and_compare(program.network, read_tensors(network_case.name), optimizer, run, 2e-4, false);
}

class RecordedPlan : public ::testing::TestWithParam<std::tuple<Case, std::string, LayoutFamily>> {};

TEST_P(RecordedPlan, StepEqualsPyTorchOnTheCpuDevice) {
  const auto& [network_case, optimizer, family] = GetParam();
  train_by_a_plan(network_case, optimizer, family);
}

TEST(RecordedSplit, StepWithSplitLayersEqualsPyTorch) {
  for (const Case& network_case : {Case{"lenet", lenet}, Case{"alexnet", alexnet}}) {
    for (const char* optimizer : {"sgd", "adam"}) {
      SCOPED_TRACE(network_case.name + " " + optimizer);
      train_by_a_plan(network_case, optimizer, LayoutFamily::blocked, {.split_above = 1_KiB, .block_bytes = 1_KiB});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, RecordedPlan,
                         ::testing::Combine(::testing::ValuesIn(kCases), ::testing::Values("sgd", "adam"),
                                            ::testing::Values(LayoutFamily::plain, LayoutFamily::channels_last,
                                                              LayoutFamily::blocked)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" + std::get<1>(info.param) + "_" +
                                  std::string(to_string(std::get<2>(info.param)));
                         });

}  // namespace
}  // namespace plimsoll::recorded
