#include "passes/slice_gradients.h"

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

struct Cut {
  int64_t begin, size;
};

// w[3, 10] is cut along its second axis; the loss is of the products of each part with itself and a number of its own, and so
// often of the whole, before the parts or behind them.
Network cut_network(const std::vector<Cut>& cuts, int64_t step = 1, size_t wholes = 0, bool wholes_first = false) {
  Network network;
  Graph& g = network.graph;
  const TensorId x = network.data = g.add_source("data", {3, 10}, DType::f32, Role::input);
  const TensorId w = g.add_source("w", {3, 10}, DType::f32, Role::parameter);
  const auto one = [&](const std::string& type, const std::string& name, std::vector<TensorId> inputs,
                       Attributes attributes = {}) {
    return g.output(g.add_op(type, name, name, std::move(inputs), std::move(attributes)));
  };
  const TensorId made = one("Pointwise", "made", {w, x}, {{"expression", std::string("mul(x0,x1)")}});
  TensorId loss;
  const size_t parts = cuts.size();
  for (size_t n = 0; n < parts + wholes; ++n) {
    const size_t i = wholes_first ? (n + parts) % (parts + wholes) : n;
    const std::string name = "part" + std::to_string(i);
    TensorId part = made;
    if (i < parts) {
      Attributes attributes{{"axis", int64_t{1}}, {"begin", cuts[i].begin}, {"size", cuts[i].size}};
      if (step != 1) attributes.set("step", step);
      part = one("Slice", name, {made}, attributes);
    }
    const TensorId bent =
        one("Pointwise", name + ".bent", {part}, {{"expression", "mul(" + std::to_string(i + 2) + ",square(x0))"}});
    const TensorId sum = one("Reduce", name + ".sum", {bent},
                             {{"function", std::string("sum")}, {"dims", Shape{0, 1}}, {"keep_dims", int64_t{0}}});
    loss = loss.valid() ? one("Add", name + ".add", {loss, sum}) : sum;
  }
  network.objectives = {{loss, {w}}};
  g.states = {{w, w}};
  return network;
}

TEST(SliceGradients, ThatFillTheWholeAreJoined) {
  for (const std::vector<Cut>& cuts : {std::vector<Cut>{{0, 4}, {4, 6}}, std::vector<Cut>{{4, 3}, {0, 4}, {7, 3}},
                                       std::vector<Cut>{{9, 1}, {0, 2}, {2, 2}, {4, 5}}}) {
    const Network network = cut_network(cuts);
    const Network joined = make_training_step(network, {}),
                  apart = make_training_step(network, {}, {.off = {std::string(kSliceGradientsPass)}});
    EXPECT_EQ(count_ops(joined, "Concat"), 1);
    EXPECT_EQ(count_ops(joined, "SliceBackward"), 0);
    EXPECT_EQ(count_ops(apart, "SliceBackward"), std::ssize(cuts));
    EXPECT_THAT(trained_values(joined), Pointwise(DoubleNear(1e-6), trained_values(apart)));
  }
}

TEST(SliceGradients, AreJoinedBesideOneOtherGradient) {
  for (const bool wholes_first : {false, true}) {
    const Network network = cut_network({{4, 6}, {0, 4}}, 1, 1, wholes_first);
    const Network joined = make_training_step(network, {}),
                  apart = make_training_step(network, {}, {.off = {std::string(kSliceGradientsPass)}});
    EXPECT_EQ(count_ops(joined, "Concat"), 1);
    EXPECT_THAT(trained_values(joined), Pointwise(DoubleNear(1e-6), trained_values(apart)));
  }
  EXPECT_EQ(count_ops(make_training_step(cut_network({{4, 6}, {0, 4}}, 1, 2), {}), "Concat"), 0);
}

TEST(SliceGradients, WithGapsOverlapsOrStepsStaySums) {
  for (const std::vector<Cut>& cuts : {std::vector<Cut>{{0, 4}, {5, 5}}, std::vector<Cut>{{0, 5}, {4, 6}},
                                       std::vector<Cut>{{1, 4}, {5, 5}}, std::vector<Cut>{{0, 4}, {4, 5}}}) {
    EXPECT_EQ(count_ops(make_training_step(cut_network(cuts), {}), "Concat"), 0);
  }
  EXPECT_EQ(count_ops(make_training_step(cut_network({{0, 5}, {1, 5}}, 2), {}), "Concat"), 0);
}

}  // namespace
}  // namespace plimsoll
