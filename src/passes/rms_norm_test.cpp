#include "passes/rms_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "passes/passes.h"
#include "plimsoll/ops.h"
#include "tests/support/trained_values.h"

namespace plimsoll {
namespace {

using testing::count_ops;
using ::testing::DoubleNear;
using ::testing::Pointwise;
using testing::trained_values;

struct Written {
  bool gamma = true, factor_first = false, product = false;
  bool sum = false, all_dims = false, read_root = false, other_rows = false, below_zero = false;
};

// x[2, 3, 8] normalised as transformers writes it.
Network written(const Written& as) {
  Network network;
  Graph& g = network.graph;
  const auto one = [&](const std::string& type, const std::string& name, std::vector<TensorId> inputs,
                       Attributes attributes = {}) {
    return g.output(g.add_op(type, name, name, std::move(inputs), std::move(attributes)));
  };
  const auto pointwise = [&](const std::string& name, const std::string& text, std::vector<TensorId> inputs) {
    return one("Pointwise", name, std::move(inputs), {{"expression", text}});
  };
  const TensorId data = network.data = g.add_source("data", {2, 3, 8}, DType::f32, Role::input);
  std::vector<TensorId> parameters{g.add_source("w", {8}, DType::f32, Role::parameter)};
  const TensorId x = pointwise("x", "mul(x0,x1)", {data, parameters[0]});
  const TensorId squares = pointwise("square", as.product ? "mul(x0,x0)" : "square(x0)", {as.other_rows ? data : x});
  const TensorId mean = one("Reduce", "mean", {squares},
                            {{"function", std::string(as.sum ? "sum" : "mean")},
                             {"dims", as.all_dims ? Shape{1, 2} : Shape{2}},
                             {"keep_dims", int64_t{1}}});
  const TensorId above = pointwise("add", as.below_zero ? "add(x0,-1e-9)" : "add(x0,0.01)", {mean});
  const TensorId root = pointwise("rsqrt", "rsqrt(x0)", {above});
  TensorId y = pointwise("mul", "mul(x0,x1)", as.factor_first ? std::vector{root, x} : std::vector{x, root});
  if (as.gamma) {
    parameters.push_back(g.add_source("gamma", {8}, DType::f32, Role::parameter));
    y = pointwise("scale", "mul(x0,x1)", {parameters[1], y});
  }
  const TensorId target = g.add_source("target", {2, 3, 8}, DType::f32, Role::input);
  TensorId loss = one("MeanSquaredErrorForward", "loss", {y, target});
  if (as.read_root) {
    const TensorId sum = one("Reduce", "root.sum", {root},
                             {{"function", std::string("sum")}, {"dims", Shape{0, 1, 2}}, {"keep_dims", int64_t{0}}});
    loss = one("Add", "both", {loss, sum});
  }
  network.objectives = {{loss, parameters}};
  return network;
}

TEST(FuseRmsNorm, TakesWhatTransformersWrites) {
  for (const Written& as : {Written{}, {.gamma = false}, {.factor_first = true}, {.product = true}}) {
    const Network network = written(as);
    const Network fused = make_training_step(network, {}),
                  apart = make_training_step(network, {}, {.off = {std::string(kRmsNormPass)}});
    EXPECT_EQ(count_ops(fused, "RmsNormForward"), 1);
    EXPECT_EQ(count_ops(fused, "RmsNormBackward"), 1);
    EXPECT_EQ(count_ops(apart, "RmsNormForward"), 0);
    EXPECT_THAT(trained_values(fused), Pointwise(DoubleNear(1e-5), trained_values(apart)));
  }
}

TEST(FuseRmsNorm, LeavesWhatIsReadElsewhereOrIsAnother) {
  for (const Written& as :
       {Written{.sum = true}, {.all_dims = true}, {.read_root = true}, {.other_rows = true}, {.below_zero = true}}) {
    Network network = written(as);
    EXPECT_EQ(fuse_rms_norm(network), 0);
  }
}

}  // namespace
}  // namespace plimsoll
