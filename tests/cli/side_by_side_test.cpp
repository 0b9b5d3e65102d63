// --inter-op and --intra-op: how many ops run at once, and with how many threads each.
#include <gmock/gmock.h>

#include <thread>

#include "tests/cli/program.h"

namespace plimsoll::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

TEST_F(Cli, RefusesCountsOfOpsAndThreadsThatMakeNoSense) {
  for (const char* flag : {"--inter-op", "--intra-op"}) {
    for (const char* value : {"0", "-1", "4097", "many", "''", "1.5"}) {
      const Outcome outcome = run(std::string("train lenet ") + flag + " " + value);
      EXPECT_EQ(outcome.code, 2) << flag << " " << value;
      EXPECT_THAT(outcome.err,
                  HasSubstr(std::string("plimsoll: ") + flag + ": a whole number from 1 to 4096, or auto,"))
          << value;
    }
  }
  const std::string steps = "train lenet --data digits --batch 16 --steps 1 --costs estimated ";
  EXPECT_THAT(run(steps + "--inter-op auto --intra-op 2").err, HasSubstr("leave one of them out"));
  EXPECT_THAT(run(steps + "--inter-op auto --exact").err, HasSubstr("with --exact give numbers"));
  EXPECT_THAT(run("plan lenet --batch 4 --device k40c --inter-op 2").err, HasSubstr("'k40c' runs one op at a time"));
  const Outcome crowded = run(steps + "--threads 1 --inter-op 2 --intra-op 2 --evaluate-every 0");
  EXPECT_EQ(crowded.code, 0);
  EXPECT_THAT(crowded.err, HasSubstr("2 steps at once with 2 threads each on 1 core: "));
}

TEST_F(Cli, OpsThatRunSideBySideGiveTheSameWeights) {
  const std::string flags =
      "train resnet20 --data digits --batch 16 --steps 3 --exact --costs estimated --threads 2 --json - --trace " +
      path("trace.json") + " ";
  const Outcome serial = run(flags + "--inter-op 1 --intra-op 1");
  ASSERT_EQ(serial.code, 0) << serial.err;
  for (const char* more :
       {"--inter-op 2 --intra-op 1", "--inter-op 2", "--inter-op 2 --memory 4MiB --host-memory 64MiB"}) {
    const Outcome both = run(flags + more);
    ASSERT_EQ(both.code, 0) << both.err;
    const json plan = both.lines().front();
    ASSERT_EQ(plan.at("event"), "plan");
    EXPECT_LE(plan.at("bound_ms").get<double>(), plan.at("step_time_ms").get<double>() * (1 + 1e-9)) << more;
    EXPECT_EQ(both.lines().back().at("weights_sha256"), serial.lines().back().at("weights_sha256")) << more;
    EXPECT_EQ(both.lines().back().at("accuracy"), serial.lines().back().at("accuracy")) << more;
    EXPECT_GT(both.lines().back().at("peak_bytes"), 0) << more;
    EXPECT_LE(both.lines().back().at("peak_bytes"), both.lines().back().at("budget_bytes")) << more;
    EXPECT_THAT(slurp(path("trace.json")), HasSubstr("core 1"));
  }
}

TEST_F(Cli, ASavedPlanThatRunsSideBySideRuns) {
  const std::string saved = path("plan.json");
  const Outcome planned =
      run("plan resnet20 --data digits --batch 16 --threads 2 --inter-op 2 --json - --save " + saved);
  ASSERT_EQ(planned.code, 0) << planned.err;
  EXPECT_EQ(planned.lines().back().at("inter_op"), 2);
  EXPECT_EQ(run("verify " + saved).code, 0);
  const std::string train =
      "train --data digits --steps 2 --evaluate-every 0 --costs estimated --threads 2 --plan " + saved;
  const Outcome ran = run(train);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(run(train + " --inter-op 1").err, HasSubstr("says itself how many ops run at once"));
}

TEST_F(Cli, GoesOnExactlyAfterCtrlCWithOpsSideBySide) {
  const std::string flags =
      "train lenet --data digits --batch 16 --steps 1500 --memory 64MiB --exact --costs estimated --threads 2 --inter-op 2 "
      "--evaluate-every 0 --json " +
      path("json") + " ";
  ASSERT_EQ(run(flags).code, 0);
  const std::string whole = weights_sha256(path("json"));
  const std::string with_checkpoint = flags + "--checkpoint-every 50 --checkpoint " + path("c.safetensors");
  const pid_t child = start(with_checkpoint);
  while (!fs::exists(path("c.safetensors"))) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ::kill(child, SIGINT);
  const Outcome stopped = wait(child);
  EXPECT_TRUE(stopped.code == 5 || stopped.code == 0) << stopped.code << stopped.err;
  const Outcome resumed = run(with_checkpoint + " --resume " + path("c.safetensors"));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(weights_sha256(path("json")), whole);
}

TEST_F(Cli, NamesStrategiesThatThereAreNot) {
  for (const char* command : {"train lenet", "plan lenet --batch 4", "compare lenet --batch 4"}) {
    const Outcome outcome = run(std::string(command) + " --inter-op auto --strategies 1,5");
    EXPECT_EQ(outcome.code, 2) << command;
    EXPECT_THAT(outcome.err, HasSubstr("--strategies: '5' is no strategy; there are 1 (threads of each op)"))
        << command;
  }
  EXPECT_THAT(run("train lenet --strategies 1,2").err, HasSubstr("--strategies: for --inter-op auto"));
  EXPECT_THAT(run("train --help").out, HasSubstr("--strategies LIST"));
}

TEST_F(Cli, MeasuresThreadCountsInTheFirstStepsOnceForAll) {
  const std::string flags =
      "train lenet --data digits --batch 16 --steps 20 --threads 2 --inter-op auto --evaluate-every 0 --json - ";
  const Outcome first = run(flags);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.err,
              HasSubstr("kinds of ops with fewer threads in the first training steps, 5 at most; then it chooses"));
  EXPECT_EQ(first.lines().back().at("steps"), 20);
  EXPECT_THAT(run("plan lenet --batch 16 --data digits --threads 2 --inter-op auto").err,
              Not(HasSubstr("is not measured")));
  // Times in a step may change which kernels are chosen, and those are measured too: it comes to an end.
  for (int again = 0; again < 6; ++again) {
    const Outcome next = run(flags + "--strategies 1,2");
    ASSERT_EQ(next.code, 0) << next.err;
    EXPECT_THAT(next.err, HasSubstr("--inter-op auto: "));
    if (next.err.find("kinds of ops with fewer threads") == std::string::npos) return;
  }
  FAIL() << "every training measures anew";
}

TEST_F(Cli, AResumedTrainingGoesOnMeasuring) {
  const std::string flags =
      "train lenet --data digits --batch 16 --threads 2 --evaluate-every 0 --checkpoint " + path("c.safetensors");
  ASSERT_EQ(run(flags + " --steps 2 --inter-op auto").code, 0);  // in the midst of it
  fs::remove_all(folder_ / "cache");
  const Outcome on = run(flags + " --steps 20 --resume " + path("c.safetensors"));
  EXPECT_EQ(on.code, 0) << on.err;
  EXPECT_THAT(on.err, HasSubstr("kinds of ops with fewer threads"));
}

TEST_F(Cli, SaysWhenOpsGetOtherThreadsThanAnExactRunHad) {
  const std::string flags =
      "train lenet --data digits --batch 16 --exact --costs estimated --threads 2 --evaluate-every 0 --checkpoint " +
      path("c.safetensors");
  EXPECT_THAT(run(flags + " --steps 2 --inter-op 2").err, HasSubstr("threads of an op: 1 here, 2 without --inter-op"));
  EXPECT_THAT(run(flags + " --steps 3 --inter-op 2 --intra-op 2 --resume " + path("c.safetensors")).err,
              HasSubstr("threads of an op: 1 before this checkpoint, 2 now"));
}

}  // namespace
}  // namespace plimsoll::testing
