// A state takes a computed value.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/run_op.h"

namespace plimsoll {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Assign, GivesTheStateTheValue) {
  EXPECT_THAT(run_op("Assign", {{{3}, {1, 2, 3}}, {{3}, {4, 5, 6}}})[0], ElementsAre(4, 5, 6));
  EXPECT_THAT(run_op("Assign", {{{}, {1}, DType::i64}, {{}, {7}, DType::i64}})[0], ElementsAre(7));
}

TEST(Assign, RefusesAValueOfAnotherShapeOrKind) {
  EXPECT_THAT(refusal("Assign", {{{2}, {}}, {{3}, {}}}), HasSubstr("'in0' is 2 but 'in1' is 3"));
  EXPECT_NE(refusal("Assign", {{{2}, {}, DType::i64}, {{2}, {}}}), "");
  EXPECT_NE(refusal("Assign", {{{2}, {}}}), "");
}

}  // namespace
}  // namespace plimsoll
