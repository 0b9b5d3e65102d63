#include "cores/core_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace plimsoll {
namespace {

using ::testing::HasSubstr;

TEST(CoreOptions, SecondHardwareThreadsAreUsedWhereEveryCoreHasOne) {
  const CoreShape two_each{.cores = 4, .cores_a_cache = 4, .hardware_threads = 2},
      one_each{.cores = 4, .cores_a_cache = 4};
  const CoreRequest any{.inter_op = 0}, asked{.inter_op = 0, .strategies = Strategies{}};
  const CoreOptions found = core_options("cpu", any, false, two_each);
  EXPECT_EQ(found.cores, 4);  // and not 8: second threads are for Strategy 4
  EXPECT_EQ(found.intra_op, 4);
  EXPECT_EQ(found.hardware_threads, 2);
  EXPECT_EQ(found.notice, "");
  EXPECT_EQ(core_options("cpu", any, false, one_each).hardware_threads, 1);
  EXPECT_EQ(core_options("cpu", any, false, one_each).notice, "");
  EXPECT_EQ(core_options("cpu", asked, false, one_each).notice,
            "--strategies 4: the cores here have one hardware thread each; it goes on without");
  EXPECT_THAT(core_options("cpu", {.threads = 2, .inter_op = 0, .strategies = Strategies{}}, false, two_each).notice,
              HasSubstr("only with all of the machine's 4 cores, not with 2 threads"));
  EXPECT_EQ(
      core_options("cpu", {.inter_op = 0, .strategies = strategies_named("1,3")}, false, two_each).hardware_threads, 1);
  const CoreOptions many = core_options("cpu", {.threads = 9, .inter_op = 0}, false, one_each);
  EXPECT_EQ(many.cores, 4);
  EXPECT_EQ(many.intra_op, 4);
  EXPECT_THAT(many.notice, HasSubstr("--threads 9: the process may use 4 processors"));
  EXPECT_EQ(core_options("cpu", any, false, {.cores = 68, .hardware_threads = 4}).climb_interval, 4);
}

TEST(CoreOptions, SaysWhenExactResultsDependOnTheThreadsOfAnOp) {
  EXPECT_THAT(core_options("cpu", {.threads = 4, .inter_op = 2}, true).notice,
              HasSubstr("threads of an op: 2 here, 4 without --inter-op"));
  EXPECT_EQ(core_options("cpu", {.threads = 4, .inter_op = 2, .intra_op = 2}, true).notice, "");
  EXPECT_EQ(core_options("cpu", {.threads = 4, .inter_op = 2}, false).notice, "");
  EXPECT_EQ(core_options("cpu", {.threads = 1}, true).notice, "");
}

TEST(CoreOptions, CoresAreDividedAmongOpsUnlessToldOtherwise) {
  EXPECT_EQ(core_options("cpu", {.threads = 8}, false).intra_op, 8);
  EXPECT_EQ(core_options("cpu", {.threads = 8, .inter_op = 3}, false).intra_op, 2);
  EXPECT_EQ(core_options("cpu", {.threads = 2, .inter_op = 4}, false).intra_op, 1);
  const CoreOptions given = core_options("cpu", {.threads = 8, .inter_op = 2, .intra_op = 3}, false);
  EXPECT_EQ(given.intra_op, 3);
  EXPECT_EQ(given.cores, 8);
  EXPECT_EQ(given.notice, "");
  const CoreOptions crowded = core_options("cpu", {.threads = 4, .inter_op = 2, .intra_op = 4}, false);
  EXPECT_EQ(crowded.cores, 4);
  EXPECT_EQ(crowded.notice, "2 steps at once with 4 threads each on 4 cores: those for which no core is free wait");
}

}  // namespace
}  // namespace plimsoll
