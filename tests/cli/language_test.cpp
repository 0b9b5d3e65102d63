// Language models: trained on texts, judged by perplexity, and asked to go on.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/cli/small_trainings.h"

namespace {

using nlohmann::json;
using plimsoll::testing::Outcome;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kSmall = "gpt2:layers=1,width=32,heads=2,context=32,positions=32";

class Language : public plimsoll::testing::SmallTrainings {
 protected:
  // Words that repeat, which a network learns at once.
  std::string write_text() const {
    std::ofstream out(path("text.txt"));
    for (int i = 0; i < 600; ++i) out << "so rolled the waves " << i % 7 << "\n";
    return "bytes:" + path("text.txt");
  }
  std::string write_ids(const char* name, int count, int vocabulary) const {
    std::ofstream out(path(name), std::ios::binary);
    for (int i = 0; i < count; ++i) out << static_cast<char>(i % vocabulary) << '\0';
    return "tokens:" + path(name);
  }
};

TEST_F(Language, DataThatCannotBeReadLosesNothingOfWhatWasTrained) {
  const auto write = [&](size_t bad) {  // 4,000 ids of 2 bytes
    std::string ids;
    for (size_t i = 0; i < 4000; ++i) ids += {static_cast<char>(i * i % 251), static_cast<char>(i == bad ? 1 : 0)};
    std::ofstream(path("ids"), std::ios::binary) << ids;
  };
  const std::string network = "train gpt2:layers=1,width=8,heads=2,context=16,vocab=256 --data tokens:" + path("ids") +
                              " --batch 2 --threads 1 --costs estimated --exact ";
  const std::string saving = network + "--checkpoint " + path("c.safetensors");
  write(4000);
  const json whole = run(network + "--json -").lines().back();
  ASSERT_EQ(whole.at("event"), "done");
  for (const size_t bad : {1900, 3900}) {  // the latter is read by the evaluation alone
    std::filesystem::remove(path("c.safetensors"));
    write(bad);
    const Outcome failed = run(saving);
    EXPECT_EQ(failed.code, 2);
    EXPECT_THAT(failed.err, HasSubstr(fmt::format("token {} is ", bad)));
    write(4000);
    const Outcome rest = run("train --resume " + path("c.safetensors") + " --epochs 1 --json -");
    ASSERT_EQ(rest.code, 0) << rest.err;
    EXPECT_EQ(rest.lines().back().at("weights_sha256"), whole.at("weights_sha256")) << bad;
    EXPECT_LT(rest.lines().back().at("steps"), whole.at("steps")) << bad;
  }
}

TEST_F(Language, IdsThatAreNoBytesArePrintedAsNone) {
  ASSERT_EQ(train("gpt2:layers=1,width=8,heads=2,context=16,vocab=2000 --batch 2 --data " + write_text() +
                  " --steps 1 --evaluate-every 0")
                .code,
            0);
  const Outcome drawn = run("predict --checkpoint " + path("c.safetensors") +
                            " --prompt so --tokens 20 --temperature 1000000 --seed 1 --json -");
  ASSERT_EQ(drawn.code, 0) << drawn.err;
  const json answer = drawn.lines().at(0);
  int others = 0;
  for (const json& id : answer.at("tokens")) others += id.get<int>() > 255 ? 1 : 0;
  const std::string text = answer.at("text");
  int marks = 0;
  for (size_t at = text.find("\uFFFD"); at != std::string::npos; at = text.find("\uFFFD", at + 1)) ++marks;
  EXPECT_GT(others, 5);
  EXPECT_GE(marks, others);  // bytes that are no UTF-8 are shown so in JSON, too
}

TEST_F(Language, LearnsATextAndTellsItsPerplexity) {
  const Outcome trained = train(std::string(kSmall) + " --data " + write_text() +
                                " --batch 8 --epochs 3 --lr 0.01 --memory 16MiB --log-csv " + path("log.csv"));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(slurp(path("log.csv")), ::testing::ContainsRegex("\n1,[0-9]+,[0-9.]+,,[0-9.]+,,")) << "no accuracy";
  std::vector<double> losses;
  for (const json& line : trained.lines()) {
    if (line["event"] != "step") continue;
    losses.push_back(line["loss"]);
    EXPECT_NEAR(line["perplexity"], std::exp(losses.back()), 1e-6 * std::exp(losses.back()));
  }
  EXPECT_NEAR(losses.front(), std::log(256.0), 0.2);
  EXPECT_LT(losses.back(), 1.5);
  const json epoch = last(trained, "epoch"), done = last(trained, "done");
  EXPECT_TRUE(epoch["train_accuracy"].is_null());
  EXPECT_TRUE(done["accuracy"].is_null());
  EXPECT_DOUBLE_EQ(done["test_loss"], epoch["test_loss"]);
  EXPECT_NEAR(epoch["test_perplexity"], std::exp(epoch["test_loss"].get<double>()), 1e-9);
  EXPECT_NEAR(done["tokens_per_second"], 32 * done["images_per_second"].get<double>(),
              1e-6 * done["tokens_per_second"].get<double>());

  const Outcome judged = run("eval --checkpoint " + path("c.safetensors") + " --json -");
  ASSERT_EQ(judged.code, 0) << judged.err;
  const json result = judged.lines().at(0);
  EXPECT_NEAR(result["loss"], epoch["test_loss"].get<double>(), 1e-4);
  EXPECT_NEAR(result["perplexity"], std::exp(result["loss"].get<double>()), 1e-9);
  EXPECT_TRUE(result["accuracy"].is_null());

  const std::string ask = "predict --checkpoint " + path("c.safetensors") + " --memory 8MiB --tokens 40 ";
  const Outcome likeliest = run(ask + "--prompt 'so rolled' --temperature 0");
  ASSERT_EQ(likeliest.code, 0) << likeliest.err;
  EXPECT_THAT(likeliest.out, StartsWith("so rolled the waves "));
  EXPECT_EQ(likeliest.out.size(), 9U + 40 + 1);
  const Outcome drawn = run(ask + "--prompt so --top-k 5 --seed 3 --json -");
  ASSERT_EQ(drawn.code, 0) << drawn.err;
  EXPECT_EQ(drawn.lines().at(0)["tokens"].size(), 40U);
  EXPECT_EQ(drawn.lines().at(0)["tokens"],
            run(ask + "--prompt so --top-k 5 --seed 3 --json -").lines().at(0)["tokens"]);
  EXPECT_LE(drawn.lines().at(0)["peak_bytes"], 8 << 20);
}

TEST_F(Language, SaysWhereNothingIsLeftToTestOn) {
  std::ofstream(path("short.txt")) << std::string(200, 'a');
  const Outcome outcome = train(
      "gpt2:layers=1,width=32,heads=2,context=64,positions=64 --batch 1 --steps 2 --data bytes:" + path("short.txt"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("has no window of 64 tokens to test on, so nothing is evaluated"));
}

TEST_F(Language, GoesOnBitForBitAfterAStopInTheMiddleOfAnEpoch) {
  const std::string text = write_text();
  for (const std::string& model :
       {std::string(kSmall), std::string("bert:layers=1,width=32,heads=2,context=32,positions=32")}) {
    const std::string flags = model + " --data " + text + " --batch 8 --exact --clip-grad-norm 1 --seed 3 ";
    const Outcome whole = train(flags + "--steps 9");
    ASSERT_EQ(whole.code, 0) << whole.err;
    ASSERT_EQ(train(flags + "--steps 4").code, 0);
    const Outcome resumed = run("train --resume " + path("c.safetensors") + " --steps 9 --costs estimated --json -");
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(last(resumed, "done")["weights_sha256"], last(whole, "done")["weights_sha256"]) << model;
  }
}

// The wide layers run by blocks of rows, with dropout before and behind them.
TEST_F(Language, GivesTheSameBitsByRowsUnderEveryBudget) {
  const std::string model =
      "gpt2:layers=2,width=48,heads=2,context=256,positions=256,vocab=64,dropout=0.1 --batch 32 --exact --memory ";
  std::string bits;
  for (const char* memory : {"1GiB", "34MiB", "29MiB"}) {
    const Outcome planned = run("plan " + model + memory + " --json - --save " + path("plan.json"));
    ASSERT_EQ(planned.code, 0) << planned.err;
    std::ifstream saved(path("plan.json"));
    const json plan = json::parse(saved)["plan"];
    std::set<std::string> kernels;
    for (const json& step : plan["steps"]) {
      if (step["kernel"].get<std::string>().starts_with("rows=")) kernels.insert(step["kernel"]);
    }
    EXPECT_THAT(kernels, ::testing::ElementsAre("rows=2048"));
    const Outcome trained = train(model + memory + " --steps 2");
    ASSERT_EQ(trained.code, 0) << trained.err;
    const std::string found = last(trained, "done")["weights_sha256"];
    EXPECT_EQ(bits.empty() ? found : bits, found) << memory;
    bits = found;
  }
}

TEST_F(Language, TrainsOnTokenIdsAndAnswersWithThem) {
  const std::string model = "llama:layers=1,width=32,heads=4,kv_heads=2,ffn=48,context=16,vocab=11";
  const Outcome trained =
      train(model + " --data " + write_ids("ids.bin", 3000, 11) + " --batch 8 --steps 60 --lr 0.01");
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_LT(last(trained, "done")["loss"], 0.3);
  const std::string ask = "predict --checkpoint " + path("c.safetensors");
  const Outcome answer = run(ask + " --prompt '3 4 5' --tokens 8 --temperature 0");
  ASSERT_EQ(answer.code, 0) << answer.err;
  EXPECT_EQ(answer.out, "3 4 5 6 7 8 9 10 0 1 2\n");
  const Outcome none = run(ask + " --prompt 'three four'");
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("no list of token ids from 0 to 10"));
  EXPECT_THAT(run(ask + " --prompt '3 11'").err, HasSubstr("no list of token ids from 0 to 10"));
}

TEST_F(Language, NamesWhatIsWrongWithItsData) {
  const auto refused = [&](const std::string& arguments) {
    const Outcome outcome = run("train " + arguments);
    EXPECT_EQ(outcome.code, 2) << arguments << outcome.err;
    return outcome.err;
  };
  const std::string model = kSmall;
  EXPECT_THAT(refused(model + " --data bytes:" + path("none")), HasSubstr("there is no '"));
  std::ofstream(path("odd.bin"), std::ios::binary) << "abc";
  std::ofstream(path("empty.bin"), std::ios::binary) << "";
  EXPECT_THAT(refused(model + " --data tokens:" + path("odd.bin")), HasSubstr("has 3 bytes; expected a multiple of 2"));
  EXPECT_THAT(refused(model + " --data tokens:" + path("empty.bin")), HasSubstr("is empty"));
  EXPECT_THAT(refused(model + " --data bytes:" + path("odd.bin")), HasSubstr("lower its context"));
  EXPECT_THAT(refused(model + ",vocab=7 --costs estimated --steps 50 --data " + write_ids("ids.bin", 3000, 11)),
              HasSubstr("is 7, but the vocabulary has 7"));
  EXPECT_THAT(refused("gpt2:layers=1,width=32,heads=2,context=32,vocab=100 --costs estimated --data " + write_text()),
              HasSubstr("its vocabulary has 100, but data 'bytes' needs 256"));
  EXPECT_THAT(refused("bert:layers=1,width=32,heads=2,context=32,vocab=256,mask=9 --data " + write_text()),
              HasSubstr("needs 257, with the token that hides others: leave the option vocab out, or raise it"));
  EXPECT_THAT(refused("bert:layers=1,width=8,heads=2,context=8,vocab=100,mask=100 --data synthetic"),
              HasSubstr("token 100 hides others, but the vocabulary has 100"));
  EXPECT_THAT(refused(model + " --data digits"), HasSubstr("gives images, but gpt2:layers=1"));
  EXPECT_THAT(refused("resnet20 --data " + write_text()), HasSubstr("language model"));
  EXPECT_THAT(refused(model + " --image-size 32"), HasSubstr("--image-size"));
}

TEST_F(Language, NamesWhatCannotBeAskedOfIt) {
  ASSERT_EQ(train(std::string(kSmall) + " --data " + write_text() + " --batch 8 --steps 1").code, 0);
  const std::string ask = "predict --checkpoint " + path("c.safetensors");
  EXPECT_THAT(run(ask).err, HasSubstr("or with --prompt which text to go on with"));
  EXPECT_THAT(run(ask + " --top-k 4 x.png").err, HasSubstr("--top-k: is of a text; give --prompt as well"));
  EXPECT_THAT(run(ask + " --prompt a --top 3").err, HasSubstr("--top: is of images"));
  EXPECT_THAT(run(ask + " --prompt a --data digits").err, HasSubstr("--data: 'digits' is no text"));
  EXPECT_THAT(run(ask + " " + write_text().substr(6)).err, HasSubstr("say with --prompt TEXT which to go on with"));
  ASSERT_EQ(train("lenet --data digits --batch 8 --steps 1").code, 0);
  EXPECT_THAT(run(ask + " --prompt a").err, HasSubstr("--prompt: lenet takes images"));
}

TEST_F(Language, PlansGpt2InsideABudget) {
  const Outcome outcome = run("plan gpt2:context=512 --batch 4 --memory 3GiB --json -");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.lines().at(0)["feasible"], true);
  EXPECT_LE(outcome.lines().at(0)["arena_bytes"], int64_t{3} << 30);
}

}  // namespace
