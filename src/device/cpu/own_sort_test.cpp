#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "tests/support/own_test.h"
#include "tests/support/run_op.h"

namespace plimsoll {
namespace {

// The places that the CPU's kernel finds for one row.
std::vector<double> places_of(std::string_view type, std::vector<float> x, const Attributes& attributes) {
  Graph graph;
  const TensorId source = graph.add_source("x", {static_cast<int64_t>(x.size())}, DType::f32, Role::input);
  const Op op = graph.op(graph.add_op(type, "op", "", {source}, attributes));
  std::vector<float> y(element_count(graph.tensor(op.outputs[0]).shape));
  std::vector<int64_t> places(y.size());
  const auto kernel = open_device("cpu", 1)->make_kernel(graph, op, "own");
  const own_test::Buffer workspace(kernel->workspace().count);
  void* const in[] = {x.data()};
  void* const out[] = {y.data(), places.data()};
  kernel->bind(in, out, workspace.data());
  kernel->run();
  EXPECT_TRUE(workspace.guards_hold());
  return {places.begin(), places.end()};
}

TEST(OwnSort, OrdersWhatIsNoCommonNumberAsTheReferenceDoes) {
  constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float least = std::numeric_limits<float>::denorm_min(), most = std::numeric_limits<float>::max();
  const std::vector<float> odd = {1, nan, -0.0f, infinity, least, 0.0f, -infinity, -least, -nan, most, -most, -1};
  std::mt19937 random(7);
  for (const size_t count : {size_t{1}, odd.size(), size_t{127}, size_t{128}, size_t{3000}}) {
    std::vector<float> x(count);
    for (size_t i = 0; i < count; ++i) x[i] = count == odd.size() ? odd[i] : odd[random() % odd.size()];
    const Literal literal{{static_cast<int64_t>(count)}, {x.begin(), x.end()}, DType::f32};
    for (const int64_t largest : {0, 1}) {
      const Attributes sort = {{"axis", int64_t{0}}, {"descending", largest}};
      EXPECT_EQ(places_of("Sort", x, sort), run_op("Sort", {literal}, sort)[1]) << count;
      for (const size_t k : {size_t{1}, (count + 1) / 2, count}) {
        const Attributes top = {{"axis", int64_t{0}}, {"k", static_cast<int64_t>(k)}, {"largest", largest}};
        EXPECT_EQ(places_of("TopK", x, top), run_op("TopK", {literal}, top)[1]) << k << " of " << count;
      }
    }
  }
}

}  // namespace
}  // namespace plimsoll
