// What users, files and machines get wrong: exit codes and messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/program.h"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using plimsoll::testing::Cli;
using plimsoll::testing::Outcome;
using ::testing::HasSubstr;

TEST_F(Cli, AsksForTheCheckpointThatIsToBeSavedEverySoManySteps) {
  const Outcome outcome = run("train mlp --data digits --steps 1 --checkpoint-every 1");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--checkpoint-every: there is no file to save to; name it by --checkpoint FILE"));
}

TEST_F(Cli, RefusesNumbersThatAreNone) {
  for (const char* flag : {"--lr", "--momentum", "--weight-decay", "--min-lr", "--warmup-lr", "--decay-rate"}) {
    for (const char* value : {"nan", "inf", "-1", "1e400", "''", "1x", "-nan"}) {
      const Outcome outcome = run(std::string("train lenet ") + flag + " " + value);
      EXPECT_EQ(outcome.code, 2) << flag << " " << value;
      EXPECT_THAT(outcome.err, ::testing::StartsWith(std::string("plimsoll: ") + flag + ": a number ")) << value;
      EXPECT_LT(outcome.err.size(), 120u);
    }
  }
  for (const char* flag : {"--seed", "--batch", "--threads", "--epochs", "--steps", "--workers", "--evaluate-every"}) {
    for (const char* value : {"-1", "18446744073709551616", "1.5", "''", "nan"}) {
      const Outcome outcome = run(std::string("train lenet ") + flag + " " + value);
      EXPECT_EQ(outcome.code, 2) << flag << " " << value;
      EXPECT_THAT(outcome.err, ::testing::StartsWith(std::string("plimsoll: ") + flag + ": a whole number from "))
          << value;
      EXPECT_LT(outcome.err.size(), 140u);
    }
  }
}

TEST_F(Cli, RefusesEmptyNames) {
  for (const char* flag : {"--resume", "--checkpoint", "--json", "--trace", "--report", "--plan", "--data"}) {
    const Outcome outcome = run(std::string("train lenet --steps 1 ") + flag + " ''");
    EXPECT_EQ(outcome.code, 2) << flag;
    EXPECT_THAT(outcome.err, HasSubstr(std::string(flag) + ": it is empty"));
  }
  for (const char* flag : {"--save", "--json", "--trace", "--report", "--explain"}) {
    const Outcome outcome = run(std::string("plan lenet ") + flag + " ''");
    EXPECT_EQ(outcome.code, 2) << flag;
    EXPECT_THAT(outcome.err, HasSubstr(std::string(flag) + ": it is empty"));
  }
}

TEST_F(Cli, OutputThatCannotBeWrittenIsAFailure) {
  for (const char* arguments :
       {"models", "--help", "--version", "plan lenet --batch 4", "plan lenet --batch 4 --json -"}) {
    const int status = std::system(
        (std::string(PLIMSOLL_BINARY_DIR "/plimsoll ") + arguments + " > /dev/full 2> " + path("err")).c_str());
    EXPECT_EQ(WEXITSTATUS(status), 4) << arguments;
    EXPECT_THAT(slurp(path("err")), HasSubstr("No space left on device")) << arguments;
  }
}

TEST_F(Cli, MessagesThatCannotBeWrittenDoNotChangeTheExitCode) {
  const std::pair<const char*, int> cases[] = {
      {"trian", 2}, {"plan lenet --memory 1KiB", 3}, {"verify nowhere.json", 2}, {"profile mlp --batch 2", 0}};
  for (const auto& [arguments, code] : cases) {
    for (const char* closed : {"2> /dev/full", "2>&-"}) {
      const int status =
          std::system((std::string(PLIMSOLL_BINARY_DIR "/plimsoll ") + arguments + " > /dev/null " + closed).c_str());
      EXPECT_TRUE(WIFEXITED(status)) << arguments << closed;
      EXPECT_EQ(WEXITSTATUS(status), code) << arguments << closed;
    }
  }
}

TEST_F(Cli, MessagesDoNotEndUpInFilesWhenStandardErrorIsClosed) {
  const std::string arguments =
      "train mlp --data digits --batch 16 --steps 40 --evaluate-every 0 --costs estimated --json " + path("json") +
      " --checkpoint " + path("c.safetensors");
  const int status = std::system(
      (std::string("exec " PLIMSOLL_BINARY_DIR "/plimsoll ") + arguments + " > /dev/null <&- 2>&-").c_str());
  EXPECT_EQ(WEXITSTATUS(status), 0);
  std::istringstream lines(slurp(path("json")));
  for (std::string line; std::getline(lines, line);) EXPECT_TRUE(json::accept(line)) << line;
  EXPECT_EQ(run("train --steps 41 --evaluate-every 0 --resume " + path("c.safetensors")).code, 0);
}

TEST_F(Cli, NamesTheNearestOfUnknownNames) {
  const std::pair<const char*, const char*> cases[] = {
      {"trian", "did you mean 'train'?"},
      {"train --memroy 1GiB", "did you mean '--memory'?"},
      {"plan resnet51 --batch 2", "did you mean 'resnet50'?"},
      {"plan lenet --policy livenes", "did you mean 'liveness'?"},
      {"plan lenet --placement offlin", "did you mean 'offline'?"},
      {"plan lenet --device cpuu", "did you mean 'cpu'?"},
      {"train lenet --data digit", "did you mean 'digits'?"},
      {"train lenet --optimizer sgdd", "did you mean 'sgd'?"},
      {"train lenet --sched cosin", "did you mean 'cosine'?"},
  };
  for (const auto& [arguments, expected] : cases) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_THAT(outcome.err, HasSubstr(expected)) << arguments;
  }
}

TEST_F(Cli, MessagesSayWhatHappenedAndWhatToDo) {
  const std::string long_text(5000, 'x');
  const std::pair<std::string, const char*> cases[] = {
      {"train mlp:hidden=-1", "option 'hidden': '-1' is no list of whole numbers from 1 on, with a '-' between two"},
      {"plan mlp --batch 4 --batch 5", "--batch was given 2 times; give it once"},
      {"plan mlp --exact=0", "--exact takes no value; leave out what stands behind the ="},
      {"train mlp --nesterov=1e30", "--nesterov takes no value; leave out what stands behind the ="},
      {"--help=nan", "--help takes no value; leave out what stands behind the ="},
      {"plan mlp --batch", "--batch needs a value after it; `plimsoll plan --help` has examples"},
      {"plan", "MODEL is missing; `plimsoll plan --help` has examples"},
      {"plan vgg", "unknown model 'vgg'; did you mean vgg11"},
      {"plan mlp --seed 3", "unknown argument '--seed'; it is a flag of train"},
      {"--seed 3", "unknown argument '--seed'; it is a flag of train, predict: plimsoll train --seed ..."},
      {"plan " + long_text, "unknown model 'xxx"},
      {"plan mlp --" + long_text, "unknown argument '--xxx"},
      {"plan mlp --memory " + long_text, "--memory: 'xxx"},
      {"train mlp --data " + long_text, "unknown data 'xxx"},
      {"train --resume " + long_text, "xxx"},
      {"plan mlp --policy " + long_text, "unknown policy 'xxx"},
      {"plan mlp --policy dtr:x=1", "unknown option of policy dtr 'x'; there is none"},
      {"train mlp --min-lr 0.1", "--min-lr: has no effect without --sched cosine"},
      {"train mlp --sched cosine --decay-rate 0.1", "--decay-rate: has no effect without --sched step"},
      {"train mlp --warmup-lr 0.1", "--warmup-lr: has no effect without --warmup-epochs"},
      {"train gpt2:layers=1 --num-classes 4", "--num-classes: gpt2:layers=1 names tokens; its option vocab"},
      {"plan mlp --costs measured --device k40c", "--costs measured: device 'k40c' is simulated"},
      {"plan mlp --costs measured --layer-model paper", "--costs measured: the papers' layer model"},
  };
  for (const auto& [arguments, expected] : cases) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_THAT(outcome.err, HasSubstr(expected)) << arguments;
    EXPECT_LT(outcome.err.size(), 800U) << outcome.err;
  }
}

TEST_F(Cli, RefusesImpossibleSizes) {
  for (const char* size : {"12GiBB", "-1", "0", "", "GiB", "1e400", "nan", "99999999999999999999GiB"}) {
    const Outcome outcome = run(std::string("plan lenet --batch 4 --memory '") + size + "'");
    EXPECT_EQ(outcome.code, 2) << size;
    EXPECT_THAT(outcome.err, HasSubstr("--memory")) << size;
  }
  EXPECT_EQ(run("plan lenet --batch 0").code, 2);
  EXPECT_EQ(run("plan lenet --batch -3").code, 2);
  EXPECT_EQ(run("plan lenet --batch many").code, 2);
}

TEST_F(Cli, RefusesHugeImagesAndBatchesWithTheirShapes) {
  for (const char* network : {"mlp", "lenet", "resnet20", "vgg11"}) {
    for (const char* command : {"plan ", "train --data synthetic:64 "}) {
      const Outcome outcome = run(std::string(command) + network + " --image-size 65536");
      EXPECT_EQ(outcome.code, 2) << command << network << outcome.err;
      EXPECT_THAT(outcome.err, ::testing::AllOf(::testing::ContainsRegex("op '.*x(65536x65536|4294967296)[: ]"),
                                                HasSubstr("--image-size")));
    }
  }
  EXPECT_EQ(run("plan resnet18 --batch 1048576").code, 2);
  EXPECT_EQ(run("plan mlp --batch 1048576 --num-classes 16777216").code, 2);
}

TEST_F(Cli, FindsBadOutputPathsBeforeTheWork) {
  for (const char* flag : {"--checkpoint", "--trace"}) {
    const Outcome outcome = run(std::string("train lenet --data digits ") + flag + " " + path("nowhere/file"));
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(flag));
  }
}

TEST_F(Cli, UsageErrorsComeBeforeAnyProbing) {
  const std::pair<std::string, const char*> cases[] = {
      {"plan mlp --host-memory 3",
       "--host-memory: '3' without a unit is 3 bytes, too little for any tensor; say 3GiB or"},
      {"plan mlp --memory 12", "--memory: '12' without a unit is 12 bytes"},
      {"train mlp --spill " + folder_.string() + ":3",
       "'3' is less than the 4.00 KiB that a tensor takes there; give a number and a unit"},
      {"plan mlp --layer-model papr", "unknown --layer-model 'papr'; did you mean 'paper'?"},
      {"plan mlp --memory 1GiBB", "--memory"},
      {"plan mlp --optimizer sdg", "did you mean 'sgd'?"},
      {"plan mlp --workspace x", "--workspace"},
      {"plan mlp --optimizer adam --momentum 0.5", "--momentum is no setting of adam; it has --beta1"},
      {"train mlp --optimizer adam --momentum 0.5", "--momentum is no setting of adam; it has --beta1"},
      {"train mlp --optimizer adadelta --momentum 0.5", "--momentum is no setting of adadelta; it has --rho"},
      {"train mlp --optimizer adadelta --alpha 0.5", "--alpha is no setting of adadelta; it has --rho, --eps"},
      {"plan mlp --rho 0.5", "--rho is no setting of sgd"},
      {"plan mlp --optimizer rmsprop --alpha 2", "--alpha"},
      {"plan mlp --optimizer rmsprob", "did you mean 'rmsprop'?"},
      {"train mlp --nesterov --dampening 0.5", "--nesterov has no --dampening; leave one of them out"},
      {"train mlp --optimizer adam --nesterov", "--nesterov is a form of sgd's momentum, which adam does not have"},
      {"train mlp --nesterov --momentum 0", "--nesterov needs a --momentum above 0"},
      {"profile mlp --batch-sizes som", "--batch-sizes"},
      {"profile mlp --import " + path("absent"), "absent: cannot open for reading"},
      {"compare mlp --run --device k40c", "--run: device 'k40c' is simulated"},
      {"compare mlp --run --layer-model paper", "--run: the papers' layer model is planned"},
      {"compare mlp --host-memory x", "--host-memory"},
      {"heaps mlp --device k40c", "device 'k40c' is simulated"},
      {"heaps mlp --memory x", "--memory"},
      {"max mlp --what depth", "--what depth: write N in the network's name"},
      {"max mlpp", "did you mean 'mlp'?"},
      {"max mlp --batch 7", "--batch: the largest batch is what is looked for"},
      {"plan mlp --link-bandwidth 5", "--link-bandwidth: has no effect without --ranks"},
      {"plan mlp --link-latency 5", "--link-latency: has no effect without --ranks"},
      {"convolutions " + path("absent"), "absent"},
      {"train mlp --data digits --batch 5000", "too few for a batch of 5000: lower --batch"},
      {"train mlp --data digits --batch 64 --epochs 3 --warmup-epochs 4",
       "--warmup-epochs 4: an epoch has 22 steps and the training 66 in all"},
      {"train mlp --data digits --batch 64 --steps 21 --warmup-epochs 1", "lower it, or raise --steps"},
  };
  for (const auto& [arguments, expected] : cases) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(expected)) << arguments;
    EXPECT_FALSE(fs::exists(path("cache"))) << arguments << ": something was measured";
    fs::remove_all(path("cache"));
  }
}

TEST_F(Cli, ThreadsThatCannotBeStartedAreAClearFailure) {
  for (const char* arguments : {"train mlp --steps 1 --threads 4096", "plan mlp --threads 4096",
                                "profile mlp --threads-list 1,4096", "train mlp --threads 4096 --inter-op 2"}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 4) << arguments;
    EXPECT_THAT(outcome.err, ::testing::AllOf(HasSubstr("threads were asked for, but the process may use"),
                                              HasSubstr("lower --threads")));
  }
  // A copy, since nobody may not enter every folder that a build can be in.
  fs::copy_file(PLIMSOLL_BINARY_DIR "/plimsoll", path("program"));
  std::string limited = "prlimit --nproc=4 " + path("program") + " ";
  if (::geteuid() == 0) {  // whom no limit on processes holds
    limited = "setpriv --reuid 65534 --regid 65534 --clear-groups " + limited;
    if (std::system((limited + "--version > /dev/null 2>&1").c_str()) != 0)
      GTEST_SKIP() << "there is no setpriv, or programs do not run from the folder for temporary files";
  }
  const int status = std::system((limited + "train mlp --data synthetic:64 --image-size 8 --steps 1 --threads 40 > " +
                                  path("out") + " 2> " + path("err"))
                                     .c_str());
  EXPECT_EQ(WEXITSTATUS(status), 4);
  EXPECT_THAT(
      slurp(path("err")),
      ::testing::AllOf(::testing::StartsWith("plimsoll: 40 threads are needed, but the system lets this process "
                                             "start only "),
                       HasSubstr("ulimit -u")));
}

TEST_F(Cli, RefusesByNameWhatIsNoRegularFile) {
  const std::string pipe = path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  fs::create_directories(path("images/cat"));
  fs::create_directories(path("images/dog"));
  std::ofstream(path("images/cat/1.jpg")) << "never read";
  ASSERT_EQ(::mkfifo(path("images/dog/1.jpg").c_str(), 0600), 0);
  for (const std::string& arguments :
       {"train --resume " + pipe, "train --plan " + pipe, "verify " + pipe, "profile --import " + pipe, "place " + pipe,
        "convolutions " + pipe, "train alexnet --data images:" + path("images")}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_THAT(outcome.err, ::testing::AnyOf(HasSubstr(pipe + ": cannot read: it is a pipe, not a regular file"),
                                              HasSubstr("dog/1.jpg: is no regular file but a pipe")))
        << arguments;
  }
}

}  // namespace
