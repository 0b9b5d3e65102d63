#include "passes/pooled_relu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "passes/passes.h"
#include "plimsoll/ops.h"
#include "tests/support/trained_values.h"

namespace plimsoll {
namespace {

using ::testing::ElementsAreArray;
using testing::trained_values;

struct Form {
  int64_t kernel = 2, stride = 2, padding = 0;
  bool fused = true;          // the ReLU is the convolution's activation
  bool read_twice = false;    // not by the pool alone
  bool through_more = false;  // another op lies between ReLU and pool
};

// A convolution, a ReLU and a pool, of whose squares the loss is the sum.
Network pooled_network(const Form& form) {
  Network network;
  Graph& g = network.graph;
  const TensorId x = network.data = g.add_source("data", {2, 2, 9, 9}, DType::f32, Role::input);
  const TensorId w = g.add_source("w", {3, 2, 3, 3}, DType::f32, Role::parameter);
  const auto one = [&](const std::string& type, const std::string& name, std::vector<TensorId> inputs,
                       Attributes attributes = {}) {
    return g.output(g.add_op(type, name, name, std::move(inputs), std::move(attributes)));
  };
  Attributes convolution{{"stride", Shape{1, 1}}, {"padding", Shape{1, 1, 1, 1}}};
  if (form.fused) convolution.set("activation", std::string("relu"));
  TensorId y = one("ConvForward", "conv", {x, w}, convolution);
  if (!form.fused) y = one("ReluForward", "relu", {y});
  TensorId read = y;
  if (form.through_more) read = one("Pointwise", "more", {y}, {{"expression", std::string("mul(x0,2)")}});
  const int64_t p = form.padding;
  const TensorId pooled = one("MaxPoolForward", "pool", {read},
                              {{"kernel", Shape{form.kernel, form.kernel}},
                               {"stride", Shape{form.stride, form.stride}},
                               {"padding", Shape{p, p, p, p}}});
  const auto squares = [&](const std::string& name, TensorId of) {
    const TensorId square = one("Pointwise", name, {of}, {{"expression", std::string("mul(x0,add(x0,x0))")}});
    return one("Reduce", name + ".sum", {square}, {{"function", std::string("sum")}});
  };
  TensorId loss = squares("squares", pooled);
  if (form.read_twice) loss = one("Add", "loss", {loss, squares("others", y)});
  network.objectives = {{loss, {w}}};
  g.states = {{w, w}};
  return network;
}

Network step_of(const Form& form, bool pass) {
  FusionOptions options{.off = {"fuse_pointwise"}};
  if (!pass) options.off.emplace_back(kPooledReluPass);
  return make_training_step(pooled_network(form), {}, options);
}

const Op& only(const Network& network, std::string_view type) {
  const auto ops = network.graph.ops();
  return *std::ranges::find_if(ops, [&](const Op& op) { return op.type->name == type; });
}

TEST(PooledRelu, GradientsGoThroughTheReluFirst) {
  for (const Form& form :
       {Form{}, Form{.fused = false}, Form{.kernel = 3}, Form{.kernel = 3, .stride = 1, .padding = 1}}) {
    const Network first = step_of(form, true), behind = step_of(form, false);
    const Graph &g = first.graph, &h = behind.graph;
    const TensorId pooled = g.output(g.find_op("pool"));
    EXPECT_EQ(only(first, "ReluBackward").inputs[1], pooled);
    EXPECT_EQ(only(first, "MaxPoolBackward").inputs[0], only(first, "ReluBackward").outputs[0]);
    EXPECT_NE(only(behind, "ReluBackward").inputs[1], h.output(h.find_op("pool")));
    EXPECT_THAT(trained_values(first), ElementsAreArray(trained_values(behind)));
    // What the ReLU gives is read by the pool alone.
    const TensorId y = g.op(g.find_op("pool")).inputs[0];
    EXPECT_EQ(std::ranges::count_if(g.ops(), [&](const Op& op) { return std::ranges::count(op.inputs, y) > 0; }), 1);
  }
}

TEST(PooledRelu, OtherGradientsStayBehind) {
  for (const Form& form : {Form{.read_twice = true}, Form{.through_more = true}}) {
    const Network step = step_of(form, true);
    EXPECT_NE(only(step, "ReluBackward").inputs[1], step.graph.output(step.graph.find_op("pool")));
    EXPECT_THAT(trained_values(step), ElementsAreArray(trained_values(step_of(form, false))));
  }
}

}  // namespace
}  // namespace plimsoll
