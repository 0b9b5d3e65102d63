// What is done with a network that is trained: eval, predict, and to begin another training with its weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/cli/images.h"
#include "tests/cli/small_trainings.h"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using plimsoll::testing::bytes_needed;
using plimsoll::testing::Outcome;
using plimsoll::testing::write_png;
using ::testing::HasSubstr;
using ::testing::Not;

class Trained : public plimsoll::testing::SmallTrainings {
 protected:
  // Three classes that are colours, which a network learns at once.
  void write_colours() const {
    for (int i = 0; i < 24; ++i) {
      const auto shade = static_cast<uint8_t>(160 + 4 * i);
      const std::string name = std::to_string(i) + ".png";
      const fs::path split = folder_ / "images" / (i < 16 ? "train" : "val");
      write_png(split / "blue, dark" / name, 0, 0, shade);
      write_png(split / "green" / name, 0, shade, 0);
      write_png(split / "red" / name, shade, 0, 0);
    }
  }
};

TEST_F(Trained, EvalGivesWhatTrainingSaidAtItsEnd) {
  const Outcome trained = train("resnet20 --data digits --batch 32 --epochs 2 --memory 16MiB");
  ASSERT_EQ(trained.code, 0) << trained.err;
  const json epoch = last(trained, "epoch");
  const Outcome outcome = run("eval --checkpoint " + path("c.safetensors") + " --per-class --json -");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json result = outcome.lines().at(0);
  EXPECT_EQ(result["model"], "resnet20");
  EXPECT_EQ(result["images"], 360);  // 11 batches of 32, and one of 8
  EXPECT_NEAR(result["loss"].get<double>(), epoch["test_loss"].get<double>(), 1e-4);
  EXPECT_NEAR(result["accuracy"].get<double>(), epoch["test_accuracy"].get<double>(), 1e-9);
  EXPECT_GE(result["top5_accuracy"].get<double>(), result["accuracy"].get<double>());
  EXPECT_LE(result["peak_bytes"].get<int64_t>(), result["budget_bytes"].get<int64_t>());
  EXPECT_EQ(result["budget_bytes"], 16 << 20);  // the training's
  int64_t images = 0, right = 0, answered = 0;
  ASSERT_EQ(result["classes"].size(), 10u);
  for (const json& one : result["classes"]) {
    images += one["images"].get<int64_t>();
    right += one["right"].get<int64_t>();
    answered += one["answered"].get<int64_t>();
  }
  EXPECT_EQ(images, 360);
  EXPECT_EQ(answered, 360);
  EXPECT_NEAR(static_cast<double>(right) / 360, result["accuracy"].get<double>(), 1e-9);
}

TEST_F(Trained, EvalCountsTheSameWhateverTheBatchAndTheMemory) {
  ASSERT_EQ(train("lenet --data digits --batch 64 --steps 20 --evaluate-every 0").code, 0);
  double loss = 0, accuracy = 0;
  for (const char* flags : {"--batch 64", "--batch 7", "--batch 360", "--memory 700KiB", "--batch 1"}) {
    const Outcome outcome = run("eval --checkpoint " + path("c.safetensors") + " --json - " + flags);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json result = outcome.lines().at(0);
    EXPECT_EQ(result["images"], 360);
    if (loss == 0) {
      loss = result["loss"];
      accuracy = result["accuracy"];
    }
    EXPECT_NEAR(result["loss"].get<double>(), loss, 1e-4) << flags;
    EXPECT_EQ(result["accuracy"].get<double>(), accuracy) << flags;
    EXPECT_LE(result["peak_bytes"].get<int64_t>(), result["budget_bytes"].get<int64_t>());
  }
  const Outcome table = run("eval --per-class --checkpoint " + path("c.safetensors"));
  EXPECT_THAT(table.out, HasSubstr("class                      images    right  accuracy  answered\n0 "));
  EXPECT_THAT(table.out, HasSubstr("360 images: loss "));
  EXPECT_THAT(table.out, HasSubstr(", among the first five "));
  const Outcome tight = run("eval --checkpoint " + path("c.safetensors") + " --memory 10KiB");
  EXPECT_EQ(tight.code, 3);
  EXPECT_THAT(tight.err, HasSubstr("--memory"));
}

TEST_F(Trained, TheLeastMemoryThatIsNamedIsEnoughToAnswerWhateverWasMeasured) {
  ASSERT_EQ(train("resnet20 --data digits --batch 16 --steps 1 --evaluate-every 0").code, 0);
  write_png(folder_ / "sea.png", 0, 0, 230, 8);
  fs::create_directories(path("spill"));
  const std::string eval = "eval --checkpoint " + path("c.safetensors"),
                    predict = "predict " + path("sea.png") + " --checkpoint " + path("c.safetensors");
  const std::string spill = " --spill " + path("spill") + ":1GiB";
  const std::string commands[] = {eval,
                                  eval + " --batch 16",
                                  eval + " --batch 8 --exact",
                                  eval + " --batch 8" + spill,
                                  predict,
                                  predict + " --batch 4 --host-memory 64MiB"};
  std::vector<int64_t> least;
  for (const std::string& command : commands) {
    SCOPED_TRACE(command);
    const Outcome refused = run(command + " --memory 1KiB");
    least.push_back(bytes_needed(refused));
    EXPECT_EQ(refused.err.find("lower --batch") != std::string::npos,
              command.find("--batch 16") != std::string::npos || command.find("--batch 8") != std::string::npos);
    const std::string bytes = std::to_string(least.back());
    EXPECT_EQ(run(command + " --memory " + bytes).code, 0) << slurp(path("err"));
    EXPECT_EQ(bytes_needed(run(command + " --memory " + std::to_string(least.back() - 1))), least.back());
  }
  // Times that are measured choose other kernels, and fit as before.
  ASSERT_EQ(run("profile resnet20 --data digits --batch 16").code, 0) << slurp(path("err"));
  for (size_t i = 0; i < std::size(commands); ++i) {
    SCOPED_TRACE(commands[i]);
    EXPECT_EQ(bytes_needed(run(commands[i] + " --memory 1KiB")), least[i]);
    for (int again = 0; again < 2; ++again)
      EXPECT_EQ(run(commands[i] + " --memory " + std::to_string(least[i])).code, 0) << slurp(path("err"));
  }
}

TEST_F(Trained, EvalSaysWhatItLacks) {
  const std::string c = path("c.safetensors");
  EXPECT_EQ(run("eval").code, 2);
  EXPECT_THAT(run("eval --checkpoint nowhere.safetensors").err, HasSubstr("nowhere.safetensors"));
  ASSERT_EQ(train("lenet --data digits --batch 64 --steps 2 --evaluate-every 0").code, 0);
  const Outcome other = run("eval --model resnet20 --checkpoint " + c);
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("lacks 'fc.weight', the last layer of resnet20: it is of another network"));
  const Outcome data = run("eval --data mnist:/nowhere --checkpoint " + c);
  EXPECT_EQ(data.code, 2);
  EXPECT_THAT(data.err, HasSubstr("/nowhere"));
  fs::copy_file(c, path("w.safetensors"));
  {  // one byte of its weights
    std::fstream file(c, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-5, std::ios::end);
    file.put('x');
  }
  const Outcome damaged = run("eval --checkpoint " + c);
  EXPECT_EQ(damaged.code, 2);
  EXPECT_THAT(damaged.err, HasSubstr("the file was damaged"));
  const Outcome none = run("eval --model dcgan --checkpoint " + path("w.safetensors"));
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("'dcgan' does not classify"));
}

TEST_F(Trained, PredictNamesClassesAndGoesOnAfterWhatItCannotRead) {
  write_colours();
  const std::string data = "images:" + (folder_ / "images").string();
  const Outcome trained =
      train("resnet20 --data " + data + " --image-size 16 --batch 16 --epochs 20 --lr 0.1 --no-augment");
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(last(trained, "done")["accuracy"], 1.0);
  fs::rename(folder_ / "images", folder_ / "elsewhere");  // the checkpoint knows all that is needed

  write_png(folder_ / "new" / "sea.png", 0, 0, 230, 77);
  write_png(folder_ / "new" / "deep" / "grass.PNG", 0, 220, 0, 16);
  write_png(folder_ / "rose.png", 250, 0, 0, 300);
  std::ofstream(folder_ / "broken.jpg") << "\xFF\xD8 this is no image";
  std::ofstream(folder_ / "new" / "notes.txt") << "not asked for";
  const Outcome outcome =
      run("predict --checkpoint " + path("c.safetensors") + " " + path("new") + " " + path("broken.jpg") + " " +
          path("rose.png") + " " + path("absent.png") + " --csv " + path("answers.csv") + " --json -");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("broken.jpg: damaged JPEG"));
  EXPECT_THAT(outcome.err, HasSubstr("absent.png"));
  EXPECT_THAT(outcome.err, HasSubstr("2 of 5 images could not be read; the others are answered"));
  const std::vector<json> lines = outcome.lines();
  ASSERT_EQ(lines.size(), 5u);
  const char* const names[] = {"green", "blue, dark", nullptr, "red", nullptr};
  EXPECT_THAT(lines[2]["error"].get<std::string>(), HasSubstr("broken.jpg: damaged JPEG"));
  EXPECT_THAT(lines[4]["error"].get<std::string>(), HasSubstr("absent.png: cannot open"));
  for (size_t i = 0; i < lines.size(); ++i) {
    if (names[i] == nullptr) continue;
    const json& guesses = lines[i]["predictions"];
    ASSERT_EQ(guesses.size(), 3u);  // there are no five classes
    EXPECT_EQ(guesses[0]["name"], names[i]) << lines[i];
    double sum = 0, before = 1;
    for (const json& guess : guesses) {
      sum += guess["probability"].get<double>();
      EXPECT_LE(guess["probability"].get<double>(), before);
      before = guess["probability"];
    }
    EXPECT_NEAR(sum, 1, 1e-6);
  }
  const std::string table = slurp(folder_ / "answers.csv");
  EXPECT_THAT(table, ::testing::StartsWith("file,rank,class,name,probability\n"));
  EXPECT_THAT(table, HasSubstr("sea.png,1,0,\"blue, dark\","));
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 10);

  std::string many;  // more answers than a pipe holds: the program writes still when head has ended
  for (int i = 0; i < 16; ++i) many += " " + path("elsewhere");
  const Outcome cut =
      run("predict --checkpoint " + path("c.safetensors") + many + " 2> " + path("told") + " | head -1");
  EXPECT_THAT(cut.out, ::testing::EndsWith("%\n"));
  EXPECT_THAT(slurp(path("told")),
              ::testing::EndsWith("plimsoll: standard output was closed before all was written\n"));

  const Outcome text = run("predict --top 1 --checkpoint " + path("c.safetensors") + " " + path("rose.png"));
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, ::testing::MatchesRegex(".*rose.png: red [0-9.]+ %\n"));

  // The same images to the evaluation: all right, and a folder that has other classes is refused.
  const Outcome same =
      run("eval --json - --checkpoint " + path("c.safetensors") + " --data images:" + path("elsewhere"));
  ASSERT_EQ(same.code, 0) << same.err;
  EXPECT_EQ(same.lines().at(0)["accuracy"], 1.0);
  EXPECT_TRUE(same.lines().at(0)["top5_accuracy"].is_null());
  for (const char* split : {"train", "val"})
    fs::rename(folder_ / "elsewhere" / split / "red", folder_ / "elsewhere" / split / "crimson");
  const Outcome other = run("eval --checkpoint " + path("c.safetensors") + " --data images:" + path("elsewhere"));
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("its class 1 is 'crimson', but the network was trained with 'green' in its place"));
}

TEST_F(Trained, ATrainingBeginsWithTheWeightsOfAnother) {
  ASSERT_EQ(train("resnet20 --data digits --batch 64 --epochs 4 --evaluate-every 0").code, 0);
  fs::rename(path("c.safetensors"), path("w.safetensors"));
  const std::string begin = "resnet20 --data digits --batch 64 --steps 1 --lr 1e-6 --weights " + path("w.safetensors");
  const Outcome again = train(begin);
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr("w.safetensors: taken 97 of the network's 97 tensors\n"));
  EXPECT_GT(last(again, "done")["accuracy"].get<double>(), 0.6);

  const Outcome head = train(begin + " --num-classes 12");
  ASSERT_EQ(head.code, 0) << head.err;
  EXPECT_THAT(
      head.err,
      HasSubstr("taken 95 of the network's 97 tensors; new, for another number of classes: fc.bias, fc.weight"));

  const Outcome resumed = run("train --resume " + path("c.safetensors") + " --weights " + path("w.safetensors"));
  EXPECT_EQ(resumed.code, 2);
  EXPECT_THAT(resumed.err, HasSubstr("--weights"));
  std::ofstream(path("w.safetensors")) << "rubbish, and not even much of it";
  const Outcome rubbish = train(begin);
  EXPECT_EQ(rubbish.code, 2);
  EXPECT_THAT(rubbish.err, HasSubstr("w.safetensors: "));
}

TEST_F(Trained, FrozenParametersStayAsTheyAreAndTakeNoRoom) {
  const std::string base = "resnet20 --data digits --batch 64 --policy liveness --exact --evaluate-every 0 --steps ";
  const Outcome all = train(base + "3");
  ASSERT_EQ(all.code, 0) << all.err;
  const Outcome frozen = train(base + "3 --freeze 'conv1.*' --freeze 'layer[12].*'");
  ASSERT_EQ(frozen.code, 0) << frozen.err;
  EXPECT_LT(last(frozen, "plan")["peak_bytes"].get<int64_t>(), last(all, "plan")["peak_bytes"].get<int64_t>());
  const std::string header = slurp(path("c.safetensors")).substr(8, 200000);
  EXPECT_THAT(header, HasSubstr("\"layer1.0.conv1.weight\""));
  EXPECT_THAT(header, Not(HasSubstr("\"layer1.0.conv1.weight.momentum\"")));
  EXPECT_THAT(header, HasSubstr("\"layer3.0.conv1.weight.momentum\""));

  // It goes on as it was, to the bit; and not otherwise.
  const std::string whole = last(train(base + "6 --freeze 'conv1.*' --freeze 'layer[12].*'"), "done")["weights_sha256"];
  ASSERT_EQ(train(base + "3 --freeze 'conv1.*' --freeze 'layer[12].*'").code, 0);
  const Outcome resumed = run("train --steps 6 --json - --resume " + path("c.safetensors"));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(last(resumed, "done")["weights_sha256"], whole);
  const Outcome other = run("train --steps 9 --freeze 'conv1.*' --resume " + path("c.safetensors"));
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("was saved with --freeze 'conv1.*' 'layer[12].*', but 'conv1.*' is asked for now"));

  const Outcome none = train(base + "3 --freeze 'conv9.*'");
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("--freeze 'conv9.*': no parameter of resnet20 has such a name"));
  EXPECT_THAT(train(base + "3 --freeze '*'").err, HasSubstr("nothing to train"));
}

TEST_F(Trained, FlagsThatAnAdafactorWouldIgnoreAreRefused) {
  const std::string base = "mlp --data digits --batch 64 --steps 3 --optimizer fairseq_adafactor ";
  EXPECT_THAT(train(base + "--relative-step --lr 0.1").err, HasSubstr("--lr has no effect with --relative-step"));
  EXPECT_THAT(train(base + "--relative-step --sched cosine").err, HasSubstr("--sched has no effect"));
  EXPECT_THAT(train(base + "--warmup-init").err, HasSubstr("--warmup-init needs --relative-step"));
  EXPECT_THAT(train("mlp --data digits --batch 64 --steps 3 --optimizer adam --beta1 1").err, HasSubstr("below 1"));
}

TEST_F(Trained, EveryOptimizerGoesOnWhereItStopped) {
  const std::string flags[] = {"rmsprop --alpha 0.9 --centered --momentum 0.5 --lr 0.001",
                               "adagrad --lr-decay 0.1 --initial-accumulator-value 0.1",
                               "adadelta --rho 0.8 --eps 1e-4",
                               "adamax --beta2 0.99 --weight-decay 0.01",
                               "nadam --momentum-decay 0.1 --decoupled-weight-decay",
                               "radam --beta1 0.8",
                               "lion --beta1 0.8 --weight-decay 0.1 --lr 0.0003",
                               "adafactor --beta2-decay -0.5 --clip-threshold 1.5",
                               "fairseq_adafactor --momentum 0.5 --scale-parameter --relative-step --warmup-init",
                               "adam --amsgrad --beta2 0.9 --eps 1e-6",
                               "sgd --dampening 0.5 --lr 0.01"};
  for (const std::string& optimizer : flags) {
    SCOPED_TRACE(optimizer);
    const std::string training = "mlp --data digits --batch 64 --exact --evaluate-every 0 --optimizer " + optimizer;
    const Outcome whole = train(training + " --steps 6");
    ASSERT_EQ(whole.code, 0) << whole.err;
    ASSERT_EQ(train(training + " --steps 3").code, 0);
    const Outcome resumed = run("train --steps 6 --json - --resume " + path("c.safetensors"));
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(last(resumed, "done")["weights_sha256"], last(whole, "done")["weights_sha256"]);
    EXPECT_TRUE(std::isfinite(last(whole, "step")["loss"].get<double>()));
  }
}

TEST_F(Trained, AnOptimizersSettingsComeWithThePlan) {
  ASSERT_EQ(
      run("plan mlp --data digits --batch 64 --memory 8MiB --optimizer rmsprop --alpha 0.9 --save " + path("p.json"))
          .code,
      0);
  EXPECT_EQ(run("verify " + path("p.json")).code, 0);
  const std::string with_plan = "train --costs estimated --steps 2 --evaluate-every 0 --plan " + path("p.json");
  const Outcome ran = run(with_plan);
  EXPECT_EQ(ran.code, 0) << ran.err;
  for (const auto& [flag, expected] :
       {std::pair{"--alpha 0.8", "was made with --alpha 0.9, which --alpha 0.8 cannot"},
        std::pair{"--centered", "was made with --centered false"},
        std::pair{"--rho 0.8", "was made with --optimizer rmsprop, which has no --rho"}}) {
    const Outcome refused = run(with_plan + " " + flag);
    EXPECT_EQ(refused.code, 2) << flag;
    EXPECT_THAT(refused.err, HasSubstr(expected));
  }
}

TEST_F(Trained, APlanWithFrozenParametersIsSavedVerifiedAndRun) {
  const std::string plan = path("plan.json");
  const Outcome saved =
      run("plan resnet20 --data digits --batch 32 --freeze 'layer1.*' --clip-grad-norm 2 --save " + plan);
  ASSERT_EQ(saved.code, 0) << saved.err;
  const Outcome verified = run("verify " + plan);
  EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
  const Outcome trained = run("train --costs estimated --steps 2 --evaluate-every 0 --plan " + plan);
  EXPECT_EQ(trained.code, 0) << trained.err;
}

TEST_F(Trained, ClippingKeepsTheNormAndSaysIt) {
  const std::string base = "lenet --data digits --batch 64 --exact --evaluate-every 0 --steps 4";
  const Outcome free = train(base);
  const Outcome loose = train(base + " --clip-grad-norm 1e6");
  const Outcome tight = train(base + " --clip-grad-norm 0.01");
  ASSERT_EQ(tight.code, 0) << tight.err;
  // Times 1; another graph, so some processors run other kernels.
  const double loss = last(free, "step")["loss"];
  EXPECT_NEAR(last(loose, "step")["loss"].get<double>(), loss, 1e-5 * loss);
  EXPECT_NE(last(free, "done")["weights_sha256"], last(tight, "done")["weights_sha256"]);
  EXPECT_EQ(last(tight, "done")["weights_sha256"],
            last(train(base + " --clip-grad-norm 0.01"), "done")["weights_sha256"]);
  EXPECT_TRUE(last(free, "step")["gradient_norm"].is_null());
  EXPECT_GT(last(tight, "step")["gradient_norm"].get<double>(), 0.01);
  EXPECT_GT(last(tight, "epoch")["gradient_norm"].get<double>(), 0.01);
  const Outcome resumed = run("train --steps 6 --json - --resume " + path("c.safetensors"));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_FALSE(last(resumed, "step")["gradient_norm"].is_null());  // the checkpoint knows
}

// An epoch's line does not depend on where a training stopped.
TEST_F(Trained, AnEpochThatWasInterruptedIsToldWhole) {
  for (const std::string flags : {"", "--accumulate 3 --clip-grad-norm 1 "}) {
    const std::string base = "lenet --data digits --batch 64 --exact --evaluate-every 0 " + flags;
    const json whole = last(train(base + "--epochs 1"), "epoch");
    ASSERT_EQ(train(base + "--epochs 1 --steps 5").code, 0);
    const Outcome resumed = run("train --steps 1000 --epochs 1 --json - --resume " + path("c.safetensors"));
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    const json rest = last(resumed, "epoch");
    for (const char* field : {"epoch", "step", "train_loss", "train_accuracy", "gradient_norm", "test_loss"})
      EXPECT_EQ(rest[field], whole[field]) << field << ' ' << flags;
    EXPECT_TRUE(rest["test_loss"].is_null()) << "--evaluate-every 0 is the checkpoint's";
  }
}

TEST_F(Trained, WeightsThatAreNoNumbersGiveNoAnswer) {
  ASSERT_EQ(train("lenet --data digits --batch 64 --steps 8 --lr 1e9 --evaluate-every 0").code, 0);
  write_png(folder_ / "a.png", 1, 2, 3);
  const Outcome outcome = run("predict --checkpoint " + path("c.safetensors") + " " + path("a.png"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("a.png: the network's scores are not finite numbers"));
  EXPECT_THAT(outcome.err, HasSubstr("1 of 1 images have no answer"));
}

TEST_F(Trained, AccumulatesGradientsOverBatches) {
  const std::string base = "lenet --data digits --exact --evaluate-every 1 --epochs 1 --batch ";
  const Outcome outcome = train(base + "16 --accumulate 4");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json done = last(outcome, "done");
  EXPECT_EQ(done["steps"], 23) << "89 batches, in fours";
  EXPECT_EQ(last(outcome, "plan")["accumulate"], 4);
  EXPECT_EQ(done["accumulate"], 4);
  EXPECT_GT(done["images_per_second"].get<double>(), 0);
  EXPECT_THAT(slurp(path("c.safetensors")).substr(8, 200000), HasSubstr("\"fc1.weight.gradient_sum\""));
  const Outcome resumed = run("train --epochs 2 --json - --resume " + path("c.safetensors"));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(last(resumed, "done")["step"], 46);  // the checkpoint knows
  const Outcome other = run("train --epochs 3 --accumulate 2 --resume " + path("c.safetensors"));
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("was saved with --accumulate 4, but 2 is asked for now"));
  EXPECT_EQ(run("eval --checkpoint " + path("c.safetensors")).code, 0);

  const Outcome none = train(base + "16 --accumulate 0");
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("--accumulate"));
  const Outcome not_there = run("eval --accumulate 2 --checkpoint " + path("c.safetensors"));
  EXPECT_EQ(not_there.code, 2);
  EXPECT_THAT(not_there.err, HasSubstr("--accumulate"));
  const Outcome paper = run("plan alexnet --layer-model paper --device k40c --accumulate 2");
  EXPECT_EQ(paper.code, 2);
  EXPECT_THAT(paper.err, HasSubstr("--accumulate: the papers' layer model knows no accumulation"));
}

TEST_F(Trained, PlansCountTheSumsOfGradients) {
  const std::string plan = "plan vgg11 --batch 4 --image-size 64 --device k40c --policy liveness --json - ";
  const json plain = run(plan).lines().at(0), sums = run(plan + "--accumulate 4").lines().at(0);
  const int64_t parameters = plain["peak_by_role"]["parameter"].get<int64_t>();
  EXPECT_EQ(sums["peak_by_role"]["optimizer_state"].get<int64_t>(),
            plain["peak_by_role"]["optimizer_state"].get<int64_t>() + parameters)
      << "one sum a parameter, beside its momentum";
  EXPECT_EQ(run(plan + "--accumulate 64").lines().at(0)["peak_bytes"], sums["peak_bytes"]);
  const std::string most = "max lenet --image-size 32 --device k40c --policy liveness --memory 24MiB --json - ";
  EXPECT_LT(run(most + "--accumulate 2").lines().at(0)["batch"].get<int64_t>(),
            run(most).lines().at(0)["batch"].get<int64_t>());

  const std::string file = path("plan.json");
  ASSERT_EQ(run("plan lenet --data digits --batch 32 --accumulate 3 --save " + file).code, 0);
  const Outcome verified = run("verify " + file);
  EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
  const Outcome trained = run("train --costs estimated --steps 2 --evaluate-every 0 --json - --plan " + file);
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(last(trained, "plan")["accumulate"], 3);
  const Outcome refused = run("train --steps 2 --accumulate 2 --plan " + file);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("was made with --accumulate 3, which --accumulate 2 cannot change"));
}

TEST_F(Trained, LogsALineAnEpochAndEventsForTensorBoard) {
  const std::string log = path("log.csv"), board = path("board");
  const Outcome first = train("lenet --data digits --batch 64 --epochs 2 --log-csv " + log + " --tensorboard " + board);
  ASSERT_EQ(first.code, 0) << first.err;
  const Outcome more =
      run("train --epochs 3 --resume " + path("c.safetensors") + " --log-csv " + log + " --tensorboard " + board);
  ASSERT_EQ(more.code, 0) << more.err;
  std::istringstream lines(slurp(log));
  std::vector<std::string> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(line);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0],
            "epoch,step,train_loss,train_accuracy,eval_loss,eval_accuracy,lr,seconds,images_per_second,gradient_norm");
  EXPECT_THAT(rows[1], ::testing::StartsWith("1,22,"));
  EXPECT_THAT(rows[3], ::testing::StartsWith("3,66,"));
  EXPECT_EQ(std::count(rows[3].begin(), rows[3].end(), ','), 9);
  size_t files = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(board)) {
    ++files;
    const std::string bytes = slurp(entry.path());
    EXPECT_THAT(bytes, HasSubstr("brain.Event:2"));
    EXPECT_THAT(bytes, HasSubstr("loss/eval"));
  }
  EXPECT_EQ(files, 2u);
  const Outcome nowhere = train("lenet --data digits --steps 1 --log-csv /nowhere/log.csv");
  EXPECT_EQ(nowhere.code, 2);
  EXPECT_THAT(nowhere.err, HasSubstr("--log-csv /nowhere/log.csv: cannot be written"));
}

TEST_F(Trained, ALogThatCannotBeWrittenEndsNoTraining) {
  const Outcome outcome = train("lenet --data digits --batch 64 --epochs 2 --evaluate-every 0 --log-csv /dev/full");
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err, HasSubstr("--log-csv /dev/full: writing failed: No space left on device; the training goes "
                                     "on without it\n"));
  EXPECT_EQ(last(outcome, "done")["epochs"], 2);
  EXPECT_TRUE(fs::exists(path("c.safetensors")));
}

TEST_F(Trained, EventsThatCannotBeWrittenEndNoTraining) {
  const std::string train = "train mlp --data digits --batch 16 --epochs 4 --exact --costs estimated --json ";
  const Outcome whole = run(train + path("whole.json"));
  ASSERT_EQ(whole.code, 0) << whole.err;
  const Outcome outcome = run_with_short_files(train + path("some.json"), slurp(path("whole.json")).size() / 2);
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err, HasSubstr("--json: writing failed: File too large; the training goes on without it\n"));
  EXPECT_THAT(outcome.out, HasSubstr("epoch 4/4"));
  EXPECT_THAT(outcome.out, HasSubstr("test accuracy"));
  const Outcome full = run(train + "/dev/full");
  EXPECT_EQ(full.code, 4);
  EXPECT_THAT(full.err, HasSubstr("--json: writing failed: No space left on device\n"));
  EXPECT_THAT(full.out, ::testing::Not(HasSubstr("epoch"))) << "this much is known before the first step";
}

TEST_F(Trained, ATraceOrReportThatCannotBeWrittenLosesNothingElse) {
  const Outcome outcome =
      run_with_short_files("train lenet --data digits --batch 64 --steps 2 --costs estimated --threads 1 --trace " +
                               path("trace.json") + " --report " + path("report.html"),
                           8192);
  EXPECT_EQ(outcome.code, 4);
  for (const char* file : {"trace.json", "report.html"}) {
    EXPECT_THAT(outcome.err,
                HasSubstr(path(file) + ": cannot write: File too large; the training is complete without it\n"));
    EXPECT_FALSE(fs::exists(path(file)));
  }
  EXPECT_THAT(outcome.out, HasSubstr("done: 2 steps"));
  EXPECT_THAT(outcome.out, HasSubstr("test accuracy"));
}

TEST_F(Trained, WhatIsWrittenNeverTakesThePlaceOfWhatIsRead) {
  ASSERT_EQ(train("lenet --data digits --batch 64 --steps 2 --evaluate-every 0").code, 0);
  write_png(folder_ / "image.png", 0, 0, 200, 8);
  const std::string c = path("c.safetensors"), image = path("image.png"), before = slurp(c), pixels = slurp(image);
  fs::create_symlink(c, path("link"));
  const auto refusal = [&](const std::string& arguments) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_EQ(slurp(c), before);
    EXPECT_EQ(slurp(image), pixels);
    return outcome.err;
  };
  EXPECT_THAT(refusal("eval --checkpoint " + c + " --json " + c),
              HasSubstr("would be written over what --checkpoint reads"));
  EXPECT_THAT(refusal("eval --checkpoint " + c + " --json " + path("link")), HasSubstr("--json"));
  const std::string predict = "predict " + image + " --checkpoint " + c;
  EXPECT_THAT(refusal(predict + " --csv " + c), HasSubstr("--csv"));
  EXPECT_THAT(refusal(predict + " --json " + image), HasSubstr("would be written over what IMAGE reads"));
  EXPECT_THAT(refusal(predict + " --json " + path("new") + " --csv " + path("new")), HasSubstr("name the same file"));
  EXPECT_THAT(refusal(predict + " --csv -"), HasSubstr("--csv -: standard output takes --json only"));
  EXPECT_THAT(refusal(predict + " --json /nowhere/x"),
              ::testing::StartsWith("plimsoll: --json: cannot write '/nowhere/x'"));
  const std::string resume = "train --steps 4 --resume " + c;
  for (const char* flag : {" --log-csv ", " --json ", " --trace ", " --report "}) refusal(resume + flag + c);
  EXPECT_THAT(refusal("train lenet --steps 1 --json " + path("new") + " --log-csv " + path("new")),
              HasSubstr("name the same file"));
  EXPECT_THAT(refusal("plan lenet --save new --trace ./new"), HasSubstr("name the same file"));
  EXPECT_THAT(refusal("train lenet --steps 1 --checkpoint " + path("run") + " --tensorboard " + path("run")),
              HasSubstr("would be written over what --checkpoint reads"));
  const std::string text = path("text"), graph = path("graph.json"), plan = path("plan.json");
  std::ofstream(text) << std::string(500, 'x');
  ASSERT_EQ(run("plan lenet --save " + plan + " --save-graph " + graph).code, 0);
  const std::map<std::string, std::string> files{{text, slurp(text)}, {graph, slurp(graph)}, {plan, slurp(plan)}};
  const std::string bytes = " gpt2:layers=1,width=8,heads=1,context=8,vocab=256 --batch 2 --data bytes:" + text;
  for (const char* flag : {" --json ", " --log-csv ", " --trace ", " --report ", " --checkpoint "})
    EXPECT_THAT(refusal("train --steps 1" + bytes + flag + text), HasSubstr("would be written over what --data reads"));
  for (const char* flag : {" --json ", " --save ", " --trace ", " --report "}) {
    refusal("plan" + bytes + flag + text);
    refusal("plan --graph " + graph + flag + graph);
  }
  refusal("compare --memory 80% --graph " + graph + " --json " + graph);
  refusal("verify " + plan + " --json " + plan);
  refusal("train lenet --data digits --steps 1 --weights " + c + " --checkpoint " + c);
  for (const auto& [file, content] : files) EXPECT_EQ(slurp(file), content) << file;
}

TEST_F(Trained, ALossThatIsNotFiniteIsToldOnce) {
  const Outcome outcome = train("mlp --data digits --batch 64 --epochs 1 --lr 1e9 --evaluate-every 0");
  const std::string told = "is not finite, and weights that follow";
  EXPECT_THAT(outcome.err, HasSubstr(told));
  EXPECT_EQ(outcome.err.find(told), outcome.err.rfind(told));
  EXPECT_THAT(train("mlp --data digits --batch 64 --epochs 1 --evaluate-every 0").err, ::testing::Not(HasSubstr(told)));
}

TEST_F(Trained, WhatIsRefusedLeavesAnEarlierResult) {
  std::ofstream(path("old.json")) << "old";
  EXPECT_EQ(run("eval --checkpoint /nowhere --json " + path("old.json")).code, 2);
  EXPECT_EQ(run("plan nonet --json " + path("old.json")).code, 2);
  EXPECT_EQ(slurp(path("old.json")), "old");
  EXPECT_EQ(run("plan lenet --json " + path("old.json")).code, 0);
  EXPECT_THAT(slurp(path("old.json")), ::testing::StartsWith("{"));
}

TEST_F(Trained, WeightsOfADamagedCheckpointAreRefused) {
  ASSERT_EQ(train("lenet --data digits --batch 64 --steps 2 --evaluate-every 0").code, 0);
  std::string content = slurp(path("c.safetensors"));
  content[content.size() - 100] ^= 0x40;
  std::ofstream(path("damaged.safetensors"), std::ios::binary) << content;
  const Outcome outcome = run("train lenet --data digits --steps 1 --weights " + path("damaged.safetensors"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("the file was damaged"));
}

TEST_F(Trained, CompareKnowsTheData) {
  // --exact: kernels chosen by times that were measured on a busy machine are measured anew, and may then be others.
  const Outcome outcome = run("compare resnet20 --batch 16 --data digits --policies liveness --exact --json -");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Outcome planned = run("plan resnet20 --batch 16 --data digits --policy liveness --exact --json -");
  EXPECT_EQ(outcome.lines().at(0)["peak_bytes"], planned.lines().at(0)["peak_bytes"]);
  EXPECT_NE(outcome.lines().at(0)["peak_bytes"],
            run("compare resnet20 --batch 16 --policies liveness --exact --json -").lines().at(0)["peak_bytes"]);
  EXPECT_EQ(run("compare resnet20 --data nothing").code, 2);
}

}  // namespace
