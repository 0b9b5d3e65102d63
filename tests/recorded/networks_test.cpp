// Networks as files that the converter of python/plimsoll wrote (python/tests/record.py), for a step on the CPU device:
// loss, gradients and running statistics against eager PyTorch's in double precision. With all the memory there is, and
// with the least with which there is a plan, so that values are computed again, noise among them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "plimsoll/compile.h"
#include "plimsoll/execute.h"
#include "plimsoll/network_file.h"
#include "tests/recorded/recorded.h"

namespace plimsoll::recorded {
namespace {

using nlohmann::json;

const std::string kFolder = PLIMSOLL_SOURCE_DIR "/tests/recorded/networks/";
constexpr double kRelative = 1e-4;  // of a sum of absolute values; single precision against double

std::vector<std::string> names_of_networks() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    const std::string file = entry.path().filename().string(), end = ".expected.json";
    if (file.ends_with(end)) names.push_back(file.substr(0, file.size() - end.size()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What an input of the file holds, as the record says.
std::vector<double> made(const std::string& name, const json& how, int64_t count) {
  if (how.contains("values")) return how["values"].get<std::vector<double>>();
  std::vector<double> values = numbers(name, count);
  if (how["kind"] == "floats") return values;
  for (double& value : values) value = std::floor((value + 1) / 2 * how["high"].get<double>());
  return values;
}

class RecordedStep {
 public:
  RecordedStep(const Program& program, const Device& device)
      : graph_(program.network.graph), executor_(graph_, program.plan, device, {.check_memory = true}) {}

  void write(const std::string& name, const std::vector<double>& values) {
    const TensorId id = graph_.find_tensor(name);
    ASSERT_TRUE(id.valid()) << name;
    ASSERT_EQ(static_cast<int64_t>(values.size()), element_count(graph_.tensor(id).shape)) << name;
    switch (graph_.tensor(id).dtype) {
      case DType::i32: return write_as<int32_t>(id, values);
      case DType::i64: return write_as<int64_t>(id, values);
      case DType::u8: return write_as<uint8_t>(id, values);
      default: return write_as<float>(id, values);
    }
  }
  void write_if_there(const std::string& name, double value) {
    if (graph_.find_tensor(name).valid()) write(name, {value});
  }
  void run() { executor_.run_step(); }
  std::vector<double> read(const std::string& name) const {
    const TensorId id = graph_.find_tensor(name);
    if (!id.valid()) throw Error(ErrorCode::internal, "no tensor '" + name + "'");
    std::vector<float> values(element_count(graph_.tensor(id).shape));
    executor_.read(id, std::as_writable_bytes(std::span(values)));
    return {values.begin(), values.end()};
  }

 private:
  template <class T>
  void write_as(TensorId id, const std::vector<double>& values) {
    const std::vector<T> elements(values.begin(), values.end());
    executor_.write(id, std::as_bytes(std::span(elements)));
  }

  const Graph& graph_;
  Executor executor_;
};

// Whether a tensor is the weights of a convolution in groups.
bool is_grouped(const Graph& graph, const std::string& name) {
  for (const Op& op : graph.ops()) {
    if (op.attributes.integer("groups", 1) == 1 || op.inputs.size() < 2) continue;
    if (graph.tensor(op.inputs[1]).name == name) return op.type->name.starts_with("Conv");
  }
  return false;
}

void feed(RecordedStep& step, const Graph& graph, const json& record) {
  for (const auto& [name, how] : record["inputs"].items()) {
    step.write(name, made(name, how, element_count(graph.tensor(graph.find_tensor(name)).shape)));
  }
  for (const WholeState& state : whole_states(graph)) {
    if (record["constants"].contains(state.name)) continue;
    std::vector<double> start(element_count(state.shape));
    if (state.role != Role::optimizer_state) {
      const std::vector<float> values = start_value(state.name, state.shape, is_grouped(graph, state.name));
      start.assign(values.begin(), values.end());
    }
    step.write(state.name, start);
  }
  for (const auto& [name, values] : record["constants"].items()) step.write(name, values.get<std::vector<double>>());
  step.write_if_there("seed", record["seed"]);
  step.write_if_there("step_number", record["step_number"]);
  step.write_if_there("learning_rate", 0.1);
}

double sum_of_magnitudes(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += std::abs(value);
  return sum;
}

// The first momentum of SGD is the gradient.
void compare(const RecordedStep& step, const Network& network, const json& record) {
  const std::string& loss = network.graph.tensor(network.objectives.at(0).loss).name;
  EXPECT_NEAR(step.read(loss)[0], record["loss"].get<double>(), 1e-5 * std::abs(record["loss"].get<double>()));
  double largest = 0;
  for (const auto& [name, sums] : record["gradients"].items()) largest = std::max(largest, sums[0].get<double>());
  for (const auto& [name, sums] : record["gradients"].items()) {
    const std::vector<double> gradient = step.read(name + ".momentum");
    const std::vector<double> weights = numbers("gradient/" + name, static_cast<int64_t>(gradient.size()));
    double weighed = 0;
    for (size_t i = 0; i < gradient.size(); ++i) weighed += gradient[i] * weights[i];
    const double tolerance = kRelative * sums[0].get<double>() + 1e-6 * largest;
    EXPECT_NEAR(sum_of_magnitudes(gradient), sums[0].get<double>(), tolerance) << "gradient of " << name;
    EXPECT_NEAR(weighed, sums[1].get<double>(), tolerance) << "gradient of " << name;
  }
  for (const auto& [name, sum] : record["statistics"].items()) {
    EXPECT_NEAR(sum_of_magnitudes(step.read(name)), sum.get<double>(), kRelative * sum.get<double>()) << name;
  }
}

class RecordedNetwork : public ::testing::TestWithParam<std::tuple<std::string, bool>> {};

TEST_P(RecordedNetwork, StepEqualsPyTorchOnTheCpuDevice) {
  const auto& [name, least] = GetParam();
  const json record = json::parse(contents(kFolder + name + ".expected.json"));
  const Network network = network_from_json(contents(kFolder + name + ".json"), record["batch"].get<int64_t>());
  const std::unique_ptr<Device> device = open_device("cpu", 1);
  CompileOptions options{.policy = least ? "auto" : "liveness", .optimizer = {.momentum = 0.9}, .exact = true};
  if (least) {
    options.memory = Bytes{1};
    const auto refused = compile_training(network, *device, CostTable(), options);
    ASSERT_TRUE(std::holds_alternative<Infeasible>(refused));
    options.memory = std::get<Infeasible>(refused).minimum;
  }
  const auto compiled = compile_training(network, *device, CostTable(), options);
  ASSERT_TRUE(std::holds_alternative<Program>(compiled));
  const Program& program = std::get<Program>(compiled);
  EXPECT_LE(program.plan->arena, options.memory);
  RecordedStep step(program, *device);
  feed(step, program.network.graph, record);
  step.run();
  compare(step, program.network, record);
}

INSTANTIATE_TEST_SUITE_P(Networks, RecordedNetwork,
                         ::testing::Combine(::testing::ValuesIn(names_of_networks()), ::testing::Bool()),
                         [](const auto& info) {
                           return std::get<0>(info.param) + (std::get<1>(info.param) ? "_in_the_least_memory" : "");
                         });

}  // namespace
}  // namespace plimsoll::recorded
