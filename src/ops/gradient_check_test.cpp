#include "tests/support/gradient_check.h"

#include <gtest/gtest.h>

#include <atomic>

#include "ops/reference.h"
#include "tests/support/interpreter.h"

namespace plimsoll {
namespace {

TEST(GradientCheck, PassesRightGradients) {
  for (const char* type : {"SigmoidForward", "TanhForward", "LeakyReluForward"}) {
    Graph g;
    const TensorId x = g.add_source("x", {2, 3, 2}, DType::f64, Role::input);
    const TensorId y = g.output(g.add_op(type, "f", "f", {x}));
    EXPECT_EQ(check_gradients(g, {y}, {x}), "") << type;
  }
}

// y = x * x whose gradient forgets the factor 2.
const char* wrong_square() {
  static std::atomic<bool> there = false;
  if (there.exchange(true)) return "WrongSquare";
  register_op({
      .name = "WrongSquare",
      .infer =
          [](const Attributes&, std::span<const Tensor* const> in) {
            return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>&) {
            (void)dy;
            return std::vector<TensorId>{graph.op(id).inputs[0]};
          },
      .in_place = {},
      .work = {},
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            for_each_element(out[0], [&](int64_t i) { store(out[0], i, load(in[0], i) * load(in[0], i)); });
          },
      .kind = LayerKind::other,
  });
  return "WrongSquare";
}

TEST(GradientCheck, NamesTheElementOfAWrongGradient) {
  Graph g;
  const TensorId x = g.add_source("x", {2}, DType::f64, Role::input);
  const TensorId y = g.output(g.add_op(wrong_square(), "f", "f", {x}));
  const std::string report = check_gradients(g, {y}, {x}, {.values = {{"x", {0.5, 3}}, {"f:0/seed", {1, 1}}}});
  EXPECT_NE(report.find("x[1]: backward gives 3, differences give 6.0000"), std::string::npos) << report;
}

TEST(Interpreter, RunsOpsInAnOrderThatTheListNeedNotHave) {
  Graph g;
  const TensorId x = g.add_source("x", {3}, DType::f32, Role::input);
  const OpId first = g.add_op("ReluForward", "first", "", {x});
  const OpId second = g.add_op("ReluForward", "second", "", {x});
  g.op(first).inputs = {g.output(second)};  // as a pass may leave it
  EXPECT_EQ(topological_order(g), (std::vector<OpId>{second, first}));
  Values values(g);
  fill_sources(g, values, 7);
  interpret(g, values);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(values[g.output(first)].at(i), std::max(0.0, values[x].at(i)));
}

TEST(Interpreter, DrawsTheSameNumbersForTheSameSeedAndName) {
  Graph g;
  const TensorId x = g.add_source("x", {64}, DType::f64, Role::input);
  const TensorId y = g.add_source("y", {64}, DType::f64, Role::input);
  Values a(g), b(g), c(g);
  fill_sources(g, a, 1);
  fill_sources(g, b, 1);
  fill_sources(g, c, 2);
  EXPECT_EQ(a[x].data, b[x].data);
  EXPECT_NE(a[x].data, a[y].data);
  EXPECT_NE(a[x].data, c[x].data);
}

}  // namespace
}  // namespace plimsoll
