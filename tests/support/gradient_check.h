// Compares the gradients that the backward ops give with central finite differences of the forward ops, in f64 and by
// the reference kernels. For tests of op families, and for users' own.
//
//   Graph g;
//   const TensorId x = g.add_source("x", {2, 3, 5, 5}, DType::f64, Role::input);
//   const TensorId y = g.output(g.add_op("SigmoidForward", "s", "s", {x}));
//   EXPECT_EQ(check_gradients(g, {y}, {x}), "");
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plimsoll/graph.h"

namespace plimsoll {

struct GradientCheckOptions {
  uint64_t seed = 1;                                  // sources that are floating are drawn evenly from [-1, 1)
  double step = 1e-5;                                 // of the finite differences
  double tolerance = 2e-7;                            // largest |backward - differences| / max(1, |differences|)
  std::map<std::string, std::vector<double>> values;  // sources by name: labels, variances, what must not be random
};

// Takes sum(r_i * outputs_i) for random r_i of the outputs' shapes as the function, and its gradient for every element
// of `wanted` (f64 sources). Returns "" when all agree, or else one line for each of the first few elements that do
// not: "x[7]: backward gives 0.25, differences give 0.5 (seed 1)". The outputs must be f64.
std::string check_gradients(Graph graph, std::vector<TensorId> outputs, std::vector<TensorId> wanted,
                            const GradientCheckOptions& options = {});

}  // namespace plimsoll
