// What plan, compare, max and reproduce write for programs to read.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "tests/cli/program.h"

namespace plimsoll::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::vector<std::string> keys_of(const json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

double mib(const json& object, const char* field) { return object.at(field).get<double>() / (1 << 20); }

TEST_F(Cli, CompareSaysOfEveryPolicyWhatPlanSays) {
  const std::string what = " lenet --batch 64 --device k40c --memory 64MiB --json -";
  const std::vector<json> rows = run("compare" + what).lines();
  std::vector<std::string> names;
  for (const json& policy : run("policies --json -").lines()) names.push_back(policy.at("name").get<std::string>());
  ASSERT_EQ(rows.size(), names.size()) << "one object a policy";
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].at("policy"), names[i]);
    const json plan = run("plan" + what + " --policy " + names[i]).lines().at(0);
    EXPECT_THAT(keys_of(rows[i]), ::testing::IsSupersetOf(keys_of(plan))) << names[i];
    for (const char* field : {"feasible", "peak_bytes", "arena_bytes", "step_time_ms", "offload_bytes",
                              "prefetch_bytes", "recompute_steps", "steps"}) {
      EXPECT_EQ(rows[i].at(field), plan.at(field)) << names[i] << " " << field;
    }
  }
}

TEST_F(Cli, CompareTellsWhatDoesNotFit) {
  const Outcome outcome = run(
      "compare alexnet --batch 200 --image-size 227 --layer-model paper --device k40c --memory 1300MiB --policies baseline liveness superneurons --json -");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<json> rows = outcome.lines();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].at("feasible"), false);
  EXPECT_NEAR(mib(rows[0], "minimum_bytes"), 2189.437, 0.0005);
  EXPECT_EQ(rows[0].at("peak_bytes"), nullptr);
  EXPECT_NEAR(mib(rows[1], "minimum_bytes"), 1489.355, 0.0005);
  EXPECT_EQ(rows[2].at("feasible"), true);
  EXPECT_LE(mib(rows[2], "peak_bytes"), 1300);
  EXPECT_GT(rows[2].at("offload_bytes").get<int64_t>() + rows[2].at("recompute_steps").get<int64_t>(), 0);
}

TEST_F(Cli, PlanSaysWhyAndWhatMoreMemoryWouldBuy) {
  const std::string plan = "plan vgg11 --batch 16 --image-size 64 --device k40c ";
  const json free = run(plan + "--memory 8GiB --json -").lines().at(0);
  EXPECT_THAT(free.at("why").get<std::string>(), HasSubstr("nothing is recomputed or moved."));
  EXPECT_EQ(free.at("keeping_everything_bytes"), free.at("arena_bytes"));
  EXPECT_EQ(free.at("more_memory"), nullptr) << "there is nothing to gain";

  const int64_t budget = free.at("arena_bytes").get<int64_t>() * 7 / 10;
  const std::string tight = plan + fmt::format("--memory {} ", budget);
  // With a report what more memory would buy is planned for however long planning took.
  const Outcome text = run(tight + "--json " + path("told.json") + " --report " + path("report.html"));
  const json told = json::parse(slurp(path("told.json")));
  EXPECT_THAT(told.at("why").get<std::string>(), HasSubstr(" above the budget; the plan "));
  EXPECT_EQ(told.at("keeping_everything_bytes"), free.at("arena_bytes"));
  EXPECT_EQ(told.at("keeping_everything_ms"), free.at("step_time_ms"));
  EXPECT_EQ(told.at("more_memory_bytes"), budget + budget / 10);
  const json more = run(plan + fmt::format("--memory {} --json -", budget + budget / 10)).lines().at(0);
  EXPECT_EQ(told.at("more_memory_ms"), more.at("step_time_ms")) << "as `plan` with that memory says";

  EXPECT_THAT(text.out, HasSubstr("why        " + told.at("why").get<std::string>()));
  EXPECT_THAT(text.out, HasSubstr(told.at("more_memory").get<std::string>()));
  const std::string report = slurp(path("report.html"));
  EXPECT_THAT(report, HasSubstr(fmt::format("<p class=\"why\">{} {}</p>", told.at("why").get<std::string>(),
                                            told.at("more_memory").get<std::string>())));
}

TEST_F(Cli, PlansThePapersLayers) {
  const std::string alexnet = "plan alexnet --batch 200 --image-size 227 --device k40c --json - --policy ";
  const json paper = run(alexnet + "liveness --layer-model paper").lines().at(0);
  EXPECT_NEAR(mib(paper, "peak_bytes"), 1489.355, 0.0005);
  EXPECT_EQ(paper.at("steps"), 2 * 23);
  EXPECT_EQ(paper.at("simulated"), true);
  const std::string cost_aware = "superneurons:cache=off,release=keep,prefetch=demand,recompute=cost-aware";
  const json recomputed = run(alexnet + cost_aware + " --layer-model paper").lines().at(0);
  EXPECT_NEAR(mib(recomputed, "peak_bytes"), 886.230, 0.0005);
  EXPECT_EQ(recomputed.at("recompute_steps"), 17);
  EXPECT_GT(run(alexnet + "liveness").lines().at(0).at("steps"), 46) << "the network's own ops";
  const Outcome wrong = run("plan alexnet --layer-model papre");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("did you mean 'paper'?"));
}

TEST_F(Cli, MaxFindsTheLargestBatchOfTable5) {
  const Outcome outcome = run(
      "max vgg16 --what batch --layer-model paper --device k40c --policy superneurons:cache=off,release=drop,prefetch=demand,recompute=cost-aware --json -");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  ASSERT_EQ(outcome.lines().size(), 1u);
  const json object = outcome.lines()[0];
  EXPECT_EQ(object.at("batch"), 264);
  EXPECT_EQ(object.at("limited_by"), "memory");
  EXPECT_LE(object.at("peak_bytes"), 12'025'908'428);
  EXPECT_GT(object.at("peak_bytes"), 11'900'000'000) << "one image more does not fit";
  EXPECT_GT(object.at("host_bytes"), 0);
  const json limited =
      run("max alexnet --what batch --layer-model paper --device k40c --host-memory 64MiB --policy superneurons:cache=off,recompute=none --json -")
          .lines()
          .at(0);
  EXPECT_EQ(limited.at("limited_by"), "host memory");
  EXPECT_LE(limited.at("host_bytes"), 64 << 20);
  EXPECT_GT(limited.at("batch"), 1);
}

TEST_F(Cli, MaxFindsTheDepthOfTable4) {
  const Outcome outcome = run(
      "max resnet:6-32-N-6 --what depth --batch 16 --image-size 227 --layer-model paper --device k40c --policy torch --json -");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const json object = outcome.lines().at(0);
  EXPECT_EQ(object.at("depth"), 191);
  EXPECT_EQ(object.at("n"), 19);
  EXPECT_EQ(object.at("limited_by"), "memory");
  EXPECT_LE(object.at("peak_bytes"), 12'025'908'428);
  EXPECT_EQ(object.at("host_bytes"), 0);
  const Outcome none = run(
      "max resnet:6-32-N-6 --what depth --batch 16 --layer-model paper --device k40c --memory 1GiB --policy caffe --json -");
  EXPECT_EQ(none.code, 3);
  EXPECT_EQ(none.lines().at(0).at("depth"), 0);
  EXPECT_EQ(none.lines().at(0).at("limited_by"), "memory");
}

// The papers' values as they print them, ours as the layer model gives them.
void expect_rows(const std::vector<json>& rows, const std::string& table,
                 const std::map<std::pair<std::string, std::string>, std::pair<json, json>>& expected) {
  size_t found = 0;
  for (const json& row : rows) {
    EXPECT_THAT(keys_of(row),
                ::testing::UnorderedElementsAre("table", "row", "quantity", "paper", "ours", "unit", "note"))
        << row;
    EXPECT_EQ(row.at("table"), table);
    const std::string note = row.at("note");
    EXPECT_THAT(note, ::testing::StartsWith("simulated: "));
    if (!row.at("paper").is_null() && row.at("paper") != row.at("ours")) {
      EXPECT_GT(std::count(note.begin(), note.end(), ' '), 8) << "why " << row;
    }
    const auto wanted = expected.find({row.at("row").get<std::string>(), row.at("quantity").get<std::string>()});
    if (wanted == expected.end()) continue;
    ++found;
    EXPECT_EQ(row.at("paper"), wanted->second.first) << row;
    EXPECT_EQ(row.at("ours"), wanted->second.second) << row;
  }
  EXPECT_EQ(found, expected.size());
}

TEST_F(Cli, ReproducesTheBatchesOfTable5) {
  const Outcome outcome = run("reproduce table5 --json -");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  expect_rows(outcome.lines(), "table5",
              {{{"AlexNet", "SuperNeurons"}, {1792, 2418}},
               {{"AlexNet", "bound by the largest layer"}, {nullptr, 3450}},
               {{"AlexNet", "Caffe"}, {768, 932}},
               {{"AlexNet", "MXNet"}, {768, 1936}},
               {{"AlexNet", "liveness alone"}, {nullptr, 1338}},
               {{"AlexNet", "Torch"}, {1024, 1116}},
               {{"ResNet50", "SuperNeurons"}, {384, 841}},
               {{"ResNet50", "bound by the largest layer"}, {nullptr, 1204}},
               {{"ResNet50", "Caffe"}, {24, 37}},
               {{"ResNet50", "MXNet"}, {80, 189}},
               {{"ResNet50", "liveness alone"}, {nullptr, 76}},
               {{"ResNet50", "Torch"}, {32, 56}}});
}

TEST_F(Cli, ReproducesTheDepthsOfTable4) {
  const Outcome outcome = run("reproduce table4 --json -");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  expect_rows(outcome.lines(), "table4",
              {{{"SuperNeurons", "depth"}, {1920, 2666}},
               {{"Caffe", "depth"}, {148, nullptr}},
               {{"MXNet", "depth"}, {480, 539}},
               {{"Torch", "depth"}, {152, 191}},
               {{"TensorFlow", "depth"}, {592, 2666}},
               {{"liveness alone", "depth"}, {nullptr, 296}}});
}

}  // namespace
}  // namespace plimsoll::testing
