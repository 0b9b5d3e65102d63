#include "tests/support/gradient_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "plimsoll/autodiff.h"
#include "tests/support/interpreter.h"

namespace plimsoll {
namespace {

constexpr int kMostLines = 8;

void expect_f64(const Graph& graph, TensorId id) {
  if (graph.tensor(id).dtype == DType::f64) return;
  throw Error(ErrorCode::invalid_input, fmt::format("gradients are checked in f64, but '{}' is {}",
                                                    graph.tensor(id).name, to_string(graph.tensor(id).dtype)));
}

double dot(const Value& a, const Value& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.size(); ++i) sum += a.at(i) * b.at(i);
  return sum;
}

void set_values(const Graph& graph, Values& values, const GradientCheckOptions& options) {
  fill_sources(graph, values, options.seed);
  for (const auto& [name, list] : options.values) {
    const TensorId id = graph.find_tensor(name);
    if (!id.valid() || graph.tensor(id).producer.valid() || values[id].size() != static_cast<int64_t>(list.size())) {
      throw Error(ErrorCode::invalid_input, fmt::format("'{}' is not a source of {} elements", name, list.size()));
    }
    for (size_t i = 0; i < list.size(); ++i) values[id].set(static_cast<int64_t>(i), list[i]);
  }
}

}  // namespace

std::string check_gradients(Graph graph, std::vector<TensorId> outputs, std::vector<TensorId> wanted,
                            const GradientCheckOptions& options) {
  const std::vector<OpId> forward = topological_order(graph);
  std::vector<Seed> seeds;
  for (TensorId y : outputs) {
    expect_f64(graph, y);
    const std::string name = fmt::format("{}/seed", graph.tensor(y).name);
    seeds.push_back({y, graph.add_source(name, graph.tensor(y).shape, DType::f64, Role::input)});
  }
  for (TensorId x : wanted) expect_f64(graph, x);
  const std::vector<TensorId> gradients = append_backward(graph, seeds, wanted);
  check(graph);

  Values values(graph);
  set_values(graph, values, options);
  interpret(graph, values);

  std::string report;
  int lines = 0;
  for (size_t w = 0; w < wanted.size(); ++w) {
    const Tensor& x = graph.tensor(wanted[w]);
    if (gradients[w].valid() && graph.tensor(gradients[w]).shape != x.shape) {
      report += fmt::format("the gradient of '{}' is {}, not {}\n", x.name, to_string(graph.tensor(gradients[w]).shape),
                            to_string(x.shape));
      continue;
    }
    for (int64_t i = 0; i < values[wanted[w]].size() && lines < kMostLines; ++i) {
      const double at = values[wanted[w]].at(i);
      const auto function = [&](double shifted) {
        values[wanted[w]].set(i, shifted);
        interpret(graph, values, forward);
        double sum = 0;
        for (const Seed& seed : seeds) sum += dot(values[seed.tensor], values[seed.gradient]);
        return sum;
      };
      const double differences = (function(at + options.step) - function(at - options.step)) / (2 * options.step);
      values[wanted[w]].set(i, at);
      const double backward = gradients[w].valid() ? values[gradients[w]].at(i) : 0;
      if (std::abs(backward - differences) <= options.tolerance * std::max(1.0, std::abs(differences))) continue;
      report += fmt::format("{}[{}]: backward gives {}, differences give {} (seed {})\n", x.name, i, backward,
                            differences, options.seed);
      ++lines;
    }
  }
  return report;
}

}  // namespace plimsoll
