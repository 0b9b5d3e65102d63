// Trains a recorded network for two steps, somewhere, and compares with what PyTorch did.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "tests/recorded/recorded.h"

namespace plimsoll::recorded {

inline constexpr int kSteps = 2;

struct Case {
  std::string name;
  Network (*build)();
};
inline void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// Runs training steps somewhere; tensors by name, states as wholes, as row-major elements.
struct Runner {
  std::function<void(const std::string& name, const std::vector<double>& values)> write;
  std::function<std::vector<double>(const std::string& name)> read;
  std::function<void()> step;  // what the step left is read before
  std::function<void()> next;  // goes on to the next one
};

inline OptimizerOptions optimizer_of(const std::string& name) {
  OptimizerOptions options{.name = name == "nesterov" ? "sgd" : name, .momentum = 0.9, .weight_decay = 0.01};
  options.nesterov = name == "nesterov";
  return options;
}

// Every element within `relative` of the largest magnitude in the tensor.
inline void expect_close(const std::vector<double>& ours, const std::vector<float>& theirs, double relative,
                         const std::string& what) {
  ASSERT_EQ(ours.size(), theirs.size()) << what;
  double largest = 1e-6, worst = 0;
  size_t at = 0;
  for (float v : theirs) largest = std::max(largest, std::abs(static_cast<double>(v)));
  for (size_t i = 0; i < ours.size(); ++i) {
    const double difference = std::abs(ours[i] - static_cast<double>(theirs[i]));
    if (!(difference <= worst)) worst = difference, at = i;
  }
  EXPECT_LE(worst, relative * largest) << what << "[" << at << "]: " << ours[at] << " instead of " << theirs[at];
}

// The tensor that holds a parameter's gradient: what its update reads.
inline std::string gradient_name(const Graph& graph, const std::string& parameter) {
  return graph.tensor(graph.op(graph.find_op(parameter + "/update")).inputs.at(1)).name;
}

inline void train_and_compare(const Network& network, const Tensors& recorded, const std::string& optimizer,
                              const Runner& run, double relative, bool gradients) {
  const Graph& graph = network.graph;
  for (const WholeState& t : whole_states(graph)) {
    const bool moment = t.role == Role::optimizer_state;
    const std::vector<float> start =
        moment ? std::vector<float>(element_count(t.shape)) : start_value(t.name, t.shape, t.shape.size() == 5);
    run.write(t.name, {start.begin(), start.end()});
  }
  run.write("learning_rate", {optimizer.starts_with("adam") ? 0.01 : 0.1});
  for (int step = 0; step < kSteps; ++step) {
    const Shape& shape = graph.tensor(network.data).shape;
    run.write("data", numbers("data/" + std::to_string(step), element_count(shape)));
    if (const TensorId z = graph.find_tensor("z"); z.valid()) {
      run.write("z", numbers("z/" + std::to_string(step), element_count(graph.tensor(z).shape)));
    }
    if (network.labels.valid()) {
      std::vector<double> labels = numbers("labels/" + std::to_string(step), shape[0]);
      const double classes = static_cast<double>(graph.tensor(graph.find_tensor("probabilities")).shape[1]);
      for (double& label : labels) label = std::floor((label + 1) / 2 * classes);
      run.write("labels", labels);
    }
    if (graph.find_tensor("step_number").valid()) run.write("step_number", {static_cast<double>(step)});
    run.step();
    for (const Objective& objective : network.objectives) {
      const std::string& name = graph.tensor(objective.loss).name;
      expect_close(run.read(name), recorded.at(optimizer + "/" + name + "/" + std::to_string(step)), relative, name);
    }
    for (const WholeState& t : whole_states(graph)) {
      if (step > 0 || t.role != Role::parameter || !gradients) continue;
      expect_close(run.read(gradient_name(graph, t.name)), recorded.at("grad/" + t.name), relative,
                   "gradient of " + t.name);
    }
    run.next();
  }
  size_t compared = 0;
  for (const WholeState& state : whole_states(graph)) {
    const std::string& name = state.name;
    expect_close(run.read(name), recorded.at(optimizer + "/" + name), relative, optimizer + "/" + name);
    ++compared;
  }
  const std::string prefix = optimizer + "/";
  const auto ours =
      std::count_if(recorded.begin(), recorded.end(), [&](const auto& item) { return item.first.starts_with(prefix); });
  EXPECT_EQ(static_cast<long>(compared), ours - kSteps * static_cast<long>(network.objectives.size()))
      << "something recorded was not compared";
}

inline const Case kCases[] = {{"lenet", lenet},
                              {"resnet", resnet},
                              {"inception", inception},
                              {"densenet", densenet},
                              {"alexnet", alexnet},
                              {"autoencoder", autoencoder},
                              {"gan", gan}};

}  // namespace plimsoll::recorded
