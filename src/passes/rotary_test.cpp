#include "passes/rotary.h"

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

struct WrittenRotary {
  int64_t width = 6, length = 6;  // what is turned of a row
  bool pointwise_sum = false, sine_first = false, swapped = false;
  bool trained_angles = false, read_halves = false, other_sign = false, uneven = false;
};

// x[2, 3, 4, length] by angles of [1, 3, 1, width], as transformers writes it.
Network written_rotary(const WrittenRotary& as) {
  Network network;
  Graph& g = network.graph;
  const auto one = [&](const std::string& type, const std::string& name, std::vector<TensorId> inputs,
                       Attributes attributes = {}) {
    return g.output(g.add_op(type, name, name, std::move(inputs), std::move(attributes)));
  };
  const auto pointwise = [&](const std::string& name, const std::string& text, std::vector<TensorId> inputs) {
    return one("Pointwise", name, std::move(inputs), {{"expression", text}});
  };
  const auto slice = [&](const std::string& name, TensorId x, int64_t begin, int64_t size) {
    return one("Slice", name, {x}, {{"axis", int64_t{3}}, {"begin", begin}, {"size", size}});
  };
  const TensorId data = network.data = g.add_source("data", {2, 3, 4, as.length}, DType::f32, Role::input);
  const TensorId w = g.add_source("w", {as.length}, DType::f32, Role::parameter);
  std::vector<TensorId> parameters{w};
  TensorId cosine = g.add_source("cosine", {1, 3, 1, as.width}, DType::f32, Role::input);
  const TensorId sine = g.add_source("sine", {1, 3, 1, as.width}, DType::f32, Role::input);
  if (as.trained_angles) {
    parameters.push_back(g.add_source("angles", {as.width}, DType::f32, Role::parameter));
    cosine = pointwise("angles.mul", "mul(x0,x1)", {cosine, parameters.back()});
  }
  const TensorId whole = pointwise("whole", "mul(x0,x1)", {data, w});
  const TensorId x = as.width < as.length ? slice("part", whole, 0, as.width) : whole;
  const int64_t half = as.width / 2 + (as.uneven ? 1 : 0);
  const TensorId first = slice("first", x, 0, half), second = slice("second", x, half, as.width - half);
  const TensorId negated = pointwise("negated", as.other_sign ? "mul(x0,2)" : "neg(x0)", {second});
  const TensorId halves = one("Concat", "halves", {negated, first}, {{"axis", int64_t{3}}});
  const TensorId by_cosine = pointwise("by_cosine", "mul(x0,x1)", {x, cosine});
  const TensorId by_sine =
      pointwise("by_sine", "mul(x0,x1)", as.sine_first ? std::vector{sine, halves} : std::vector{halves, sine});
  const std::vector<TensorId> terms = as.swapped ? std::vector{by_sine, by_cosine} : std::vector{by_cosine, by_sine};
  TensorId y = as.pointwise_sum ? pointwise("sum", "add(x0,x1)", terms) : one("Add", "sum", terms);
  if (as.width < as.length)
    y = one("Concat", "joined", {y, slice("rest", whole, as.width, as.length - as.width)}, {{"axis", int64_t{3}}});
  const TensorId target = g.add_source("target", g.tensor(y).shape, DType::f32, Role::input);
  TensorId loss = one("MeanSquaredErrorForward", "loss", {y, target});
  if (as.read_halves) {
    const TensorId sum =
        one("Reduce", "halves.sum", {halves},
            {{"function", std::string("sum")}, {"dims", Shape{0, 1, 2, 3}}, {"keep_dims", int64_t{0}}});
    loss = one("Add", "both", {loss, sum});
  }
  network.objectives = {{loss, parameters}};
  return network;
}

TEST(FuseRotary, TakesWhatTransformersWrites) {
  for (const WrittenRotary& as :
       {WrittenRotary{}, {.pointwise_sum = true}, {.sine_first = true}, {.swapped = true}, {.width = 4, .length = 7}}) {
    const Network network = written_rotary(as);
    const Network fused = make_training_step(network, {}),
                  apart = make_training_step(network, {}, {.off = {std::string(kRotaryPass)}});
    EXPECT_EQ(count_ops(fused, "Rotary"), 2) << as.width;  // and its gradient
    for (const char* gone : {"Slice", "SliceBackward", "Concat"}) EXPECT_EQ(count_ops(fused, gone), 0) << gone;
    EXPECT_EQ(count_ops(apart, "Rotary"), 0);
    EXPECT_THAT(trained_values(fused), Pointwise(DoubleNear(1e-6), trained_values(apart)));
  }
}

TEST(FuseRotary, LeavesWhatIsReadElsewhereOrIsAnother) {
  for (const WrittenRotary& as :
       {WrittenRotary{.trained_angles = true}, {.read_halves = true}, {.other_sign = true}, {.uneven = true}}) {
    Network network = written_rotary(as);
    EXPECT_EQ(fuse_rotary(network), 0);
  }
}

}  // namespace
}  // namespace plimsoll
