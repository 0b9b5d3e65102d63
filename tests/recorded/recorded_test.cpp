// Whole training steps against PyTorch: losses, every gradient, and every parameter and state after two steps.
#include "tests/recorded/compare.h"
#include "tests/support/interpreter.h"

namespace plimsoll::recorded {
namespace {

class Recorded : public ::testing::TestWithParam<std::tuple<Case, std::string>> {};

TEST_P(Recorded, StepEqualsPyTorchOnTheReferenceKernels) {
  const auto& [network_case, optimizer] = GetParam();
  const Network network = make_training_network(network_case.build(), optimizer_of(optimizer));
  const Graph& graph = network.graph;
  Values values(graph);
  const Runner run{
      .write =
          [&](const std::string& name, const std::vector<double>& data) {
            Value& value = values[graph.find_tensor(name)];
            for (size_t i = 0; i < data.size(); ++i) value.set(static_cast<int64_t>(i), data[i]);
          },
      .read =
          [&](const std::string& name) {
            const Value& value = values[graph.find_tensor(name)];
            std::vector<double> data;
            for (int64_t i = 0; i < value.size(); ++i) data.push_back(value.at(i));
            return data;
          },
      .step = [&] { interpret(graph, values); },
      .next = [&] { advance_states(graph, values); },
  };
  train_and_compare(network, read_tensors(network_case.name), optimizer, run, 5e-5, true);
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<Case, std::string>>& info) {
  return std::get<0>(info.param).name + "_" + std::get<1>(info.param);
}
INSTANTIATE_TEST_SUITE_P(Networks, Recorded,
                         ::testing::Combine(::testing::ValuesIn(kCases), ::testing::Values("sgd", "adam")), name_of);
INSTANTIATE_TEST_SUITE_P(MoreOptimizers, Recorded,
                         ::testing::Combine(::testing::Values(kCases[0]), ::testing::Values("nesterov", "adamw")),
                         name_of);

}  // namespace
}  // namespace plimsoll::recorded
