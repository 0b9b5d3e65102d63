#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/gradient_check.h"
#include "tests/support/run_op.h"

namespace plimsoll {
namespace {

using ::testing::HasSubstr;

// softmax(x, 1), log_softmax(x, 1) and their gradients in PyTorch 2.15, double precision.
TEST(Softmax, AgreesWithPyTorch) {
  const Literal x{{2, 3, 2}, {-1, -0.2, 0.6, 1.4, -0.7, 0.1, 0.9, -1.2, -0.4, 0.4, 1.2, -0.9}},
      dy{{2, 3, 2}, {1, -2, 0.5, 0.3, 0.2, 0.7, -0.4, 1.1, -0.6, 0.9, 1.3, -0.8}};
  Attributes attributes{{"axis", int64_t{1}}};
  auto y = run_op("SoftmaxForward", {x}, attributes)[0];
  EXPECT_THAT(y, agrees_with({0.1369320682, 0.1369320682, 0.6782289736, 0.6782289736, 0.1848389583, 0.1848389583,
                              0.3813314461, 0.1369320682, 0.1039249427, 0.6782289736, 0.5147436111, 0.1848389583}));
  EXPECT_THAT(run_op("SoftmaxBackward", {{{2, 3, 2}, y}, dy}, attributes)[0],
              agrees_with({0.06668395269, -0.2819420091, -0.008826706941, 0.1634587261, -0.05785724575, 0.118483283,
                           -0.3257635038, 0.06666398279, -0.1095659003, 0.1945430736, 0.4353294041, -0.2612070564}));
  attributes.set("log", int64_t{1});
  y = run_op("SoftmaxForward", {x}, attributes)[0];
  EXPECT_THAT(y, agrees_with({-1.988270329, -1.988270329, -0.3882703289, -0.3882703289, -1.688270329, -1.688270329,
                              -0.9640863447, -1.988270329, -2.264086345, -0.3882703289, -0.6640863447, -1.688270329}));
  EXPECT_THAT(run_op("SoftmaxBackward", {{{2, 3, 2}, y}, dy}, attributes)[0],
              agrees_with({0.7672154841, -1.863067932, -0.6529892551, 0.9782289736, -0.114226229, 0.8848389583,
                           -0.5143994338, 0.9356815182, -0.6311774828, 0.08612523171, 1.145576917, -1.02180675}));
}

TEST(Softmax, GradientsAgreeWithFiniteDifferences) {
  for (const int64_t axis : {0, 1, 2}) {
    for (const int64_t log : {0, 1}) {
      Graph graph;
      const TensorId x = graph.add_source("x", {3, 4, 2}, DType::f64, Role::input);
      const OpId op = graph.add_op("SoftmaxForward", "s", "s", {x}, {{"axis", axis}, {"log", log}});
      EXPECT_EQ(check_gradients(graph, {graph.output(op)}, {x}), "");
    }
  }
}

TEST(Softmax, DoesNotOverflow) {
  EXPECT_EQ(run_op("SoftmaxForward", {{{3}, {1e4, -1e4, 1e4}}}, {{"axis", int64_t{0}}})[0],
            (std::vector<double>{0.5, 0, 0.5}));
}

TEST(Softmax, NamesAnAxisThatIsNotThere) {
  EXPECT_THAT(refusal("SoftmaxForward", {{{2, 3}, {}}}, {{"axis", int64_t{2}}}),
              HasSubstr("axis is 2, but 'in0' is 2x3; its dimensions are 0 to 1"));
}

}  // namespace
}  // namespace plimsoll
