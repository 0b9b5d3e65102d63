#include "report/html.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "plimsoll/models.h"
#include "report/charts.h"
#include "tests/support/random_graph.h"

namespace plimsoll {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Program program_of(std::string_view model, std::string policy = "auto") {
  const auto device = open_device("cpu", 1);
  auto result = compile_training(build_model(model, {.batch = 4}), *device, CostTable{}, {.policy = std::move(policy)});
  return std::get<Program>(std::move(result));
}

// Every tag that opens closes, in order; what HTML leaves open (meta) and what closes itself apart.
void expect_balanced(const std::string& html) {
  const std::regex tag("<(/?)([a-zA-Z0-9]+)([^<>]*)>");
  std::vector<std::string> open;
  for (std::sregex_iterator it(html.begin(), html.end(), tag), end; it != end; ++it) {
    const std::string name = (*it)[2], rest = (*it)[3];
    if (name == "meta" || rest.ends_with("/")) continue;
    if ((*it)[1] == "/") {
      ASSERT_FALSE(open.empty()) << "</" << name << ">";
      ASSERT_EQ(open.back(), name);
      open.pop_back();
    } else {
      open.push_back(name);
    }
  }
  EXPECT_TRUE(open.empty()) << open.back();
}

TEST(HtmlReport, TellsTheFactsInOneFileThatNeedsNoOther) {
  const Program program = program_of("lenet");
  const std::string html =
      html_report(program, {.model = "lenet", .batch = 4, .device = "cpu, 1 thread", .minimum = 3_MiB});
  for (const std::string& text : {std::string("lenet, batch 4"), to_string(program.plan->arena),
                                  to_string(program.baseline_peak), std::string("3.00 MiB would do"),
                                  std::string("cpu, 1 thread"), std::string("liveness"), std::string("conv1.weight")}) {
    EXPECT_THAT(html, HasSubstr(text));
  }
  for (const char* outside : {"http", "src=", "href", "url(", "@import", "nan", "inf "})
    EXPECT_THAT(html, Not(HasSubstr(outside)));
  expect_balanced(html);
}

TEST(HtmlReport, ShowsWhatWasMeasuredBesideWhatWasPredicted) {
  const Program program = program_of("lenet");
  std::vector<StepRecord> records;
  for (size_t s = 0; s < program.plan->steps.size(); ++s)
    records.push_back({static_cast<double>(s), static_cast<double>(s) + 0.75});
  const std::string html = html_report(
      program,
      {.model = "lenet",
       .data = "digits",
       .batch = 4,
       .device = "cpu",
       .measured =
           ReportFacts::Measured{.steps = 7, .step_time_ms = 12.5, .images_per_second = 321, .accuracy = 0.875}},
      records);
  for (const char* text : {"12.5 ms", "321 images/s", "87.50 %", "7 steps", "data digits", ">measured<"})
    EXPECT_THAT(html, HasSubstr(text));
  expect_balanced(html);
}

TEST(HtmlReport, AStepThatRunsNothingDoesNotDisturbTheTimeline) {
  const Program program = program_of("lenet");
  const Plan& plan = program.plan;
  std::vector<StepRecord> records;
  for (size_t s = 0; s < plan.steps.size(); ++s)
    records.push_back({1.0 + static_cast<double>(s), 2.0 + static_cast<double>(s)});
  const auto view =
      std::find_if(plan.steps.begin(), plan.steps.end(), [](const Step& step) { return step.kernel.empty(); });
  ASSERT_NE(view, plan.steps.end());
  records[view - plan.steps.begin()] = {};
  const std::string svg = timeline_chart(program.network.graph, plan, records);
  EXPECT_THAT(svg.substr(svg.find(">measured<")), Not(HasSubstr("<rect class=\"tf\" x=\"74.00\"")));
}

TEST(HtmlReport, NoNameCanBreakIt) {
  Program program = program_of("lenet");
  Graph& graph = program.network.graph;
  const std::string hostile = "</title><script>alert(1)</script>'\"&";
  for (int32_t t = 0; t < graph.tensor_count(); ++t) graph.tensor(TensorId{t}).name = hostile;
  for (int32_t o = 0; o < graph.op_count(); ++o) graph.op(OpId{o}).name = graph.op(OpId{o}).layer = hostile;
  Plan plan = program.plan;
  plan.steps[0].kernel = plan.policy = plan.placement = hostile;
  plan.graph_fingerprint = fingerprint(graph);
  program.plan = check_plan(graph, std::move(plan));
  const std::string html = html_report(program, {.model = hostile, .data = hostile, .batch = 4, .device = hostile});
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  expect_balanced(html);
}

// As a new user reads it: a weight is one thing, however many slices it is cut into.
TEST(HtmlReport, SlicesOfOneWeightAreOneRowWithACount) {
  const auto device = open_device("cpu", 1);
  CompileOptions options{.policy = "liveness"};
  options.fusion = {.off = {}, .split_above = 20_KiB, .block_bytes = 16_KiB};
  const auto result = compile_training(build_model("lenet", {.batch = 4}), *device, CostTable{}, options);
  const Program& program = std::get<Program>(result);
  size_t slices = 0;
  for (const Tensor& t : program.network.graph.tensors())
    slices += t.block.whole == "fc1.weight" && !t.producer.valid() ? 1 : 0;
  ASSERT_GT(slices, 1u);
  const std::string html = html_report(program, {.model = "lenet", .batch = 4});
  const std::string peak = html.substr(html.find("Alive at the peak"));
  EXPECT_THAT(peak, HasSubstr(fmt::format(">fc1.weight <span class=\"slices\">in {} slices</span>", slices)));
  EXPECT_THAT(peak, Not(::testing::ContainsRegex(">fc1\\.weight\\[[0-9:]+\\]<"))) << "but for what is made of one";
  EXPECT_THAT(peak, HasSubstr("fc1.weight[0:")) << "where the pointer rests";
  expect_balanced(html);
}

TEST(HtmlReport, SizesAndOffsetsHaveUnitsAndTheirBytesWhereThePointerRests) {
  const Program program = program_of("lenet");
  const std::string html = html_report(program, {.model = "lenet", .batch = 4});
  const std::string peak = html.substr(html.find("Alive at the peak"));
  const Stay* large = live_at(program.plan, program.plan->predicted.peak_step).at(0);
  EXPECT_THAT(peak, HasSubstr(fmt::format("<td class=\"n\" title=\"{} bytes\">{}</td>", large->bytes.count,
                                          to_string(large->bytes))));
  EXPECT_THAT(peak, HasSubstr(fmt::format("<td class=\"n\" title=\"{} bytes\">{}</td>", large->offset.count,
                                          to_string(large->offset))));
  EXPECT_FALSE(std::regex_search(html, std::regex(">[0-9]{4,}</td>"))) << "bytes without a unit";
  EXPECT_FALSE(std::regex_search(html, std::regex("at offset [0-9]+")));
}

// What is wider than a phone scrolls in a box of its own.
TEST(HtmlReport, FitsTheWidthOfAPhone) {
  const Program program = program_of("lenet");
  const std::vector<StepRecord> records(program.plan->steps.size(), {.start_ms = 1, .end_ms = 2});
  const std::string html = html_report(program, {.model = "lenet", .batch = 4}, records);
  EXPECT_THAT(html, HasSubstr("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"));
  EXPECT_THAT(html, HasSubstr(".scroll { overflow-x: auto; }"));
  for (const std::string wide : {"<table", "<svg viewBox=\"0 0 1120"}) {
    size_t count = 0;
    for (size_t at = html.find(wide); at != std::string::npos; at = html.find(wide, at + 1), ++count)
      EXPECT_TRUE(html.substr(0, at).ends_with("<div class=\"scroll\">\n")) << html.substr(at, 80);
    EXPECT_GE(count, 3u) << wide;
  }
}

TEST(HtmlReport, BeginsWithWhyThePlanIsSo) {
  const Program program = program_of("lenet");
  PlanReason reason{.why = "Keeping <all> needs more.", .more = "More is faster."};
  const std::string html = html_report(program, {.model = "lenet", .batch = 4, .reason = reason});
  EXPECT_THAT(html, HasSubstr("<p class=\"why\">Keeping &lt;all&gt; needs more. More is faster.</p>"));
  EXPECT_THAT(html_report(program, {.model = "lenet", .batch = 4}),
              HasSubstr("No limit on memory was given, so nothing is recomputed or moved."));
}

TEST(HtmlReport, MemoryByStepAgreesWithTheStaysOneByOneAndWithThePeak) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const Graph graph = testing::random_graph(seed, {.forward_ops = 15});
    const Route route = make_route(graph);
    const auto kernels = testing::random_kernels(graph, seed);
    const CostTable costs;
    const Plan plan = std::get<Plan>(find_policy(seed % 2 == 0 ? "liveness" : "baseline")
                                         .plan({.graph = graph,
                                                .route = route,
                                                .kernels = kernels,
                                                .costs = costs,
                                                .device = {.name = "cpu", .key = "k"}}));
    const auto memory = memory_by_step(graph, plan);
    const Peak peak = live_peak(plan);
    EXPECT_EQ(memory[peak.step].total, peak.bytes.count) << "seed " << seed;
    for (size_t s = 0; s < memory.size(); ++s) {
      std::map<int64_t, int64_t> places;
      for (const Stay* stay : live_at(plan, static_cast<StepIndex>(s)))
        places[stay->offset.count] = std::max(places[stay->offset.count], stay->bytes.count);
      int64_t sum = 0, kinds = 0;
      for (const auto& [offset, bytes] : places) sum += bytes;
      for (const int64_t bytes : memory[s].by_kind) kinds += bytes;
      EXPECT_EQ(memory[s].total, sum) << "seed " << seed << " step " << s;
      EXPECT_EQ(kinds, sum) << "seed " << seed << " step " << s;
    }
  }
}

TEST(HtmlReport, NamesTheSecondBufferOfTheBatch) {
  Program program = program_of("lenet");
  const Graph& graph = program.network.graph;
  const auto before = memory_by_step(graph, program.plan);
  EXPECT_THAT(html_report(program, {.model = "lenet", .batch = 4}), Not(HasSubstr("next batch")));
  Plan plan = program.plan;
  plan.feeding = {.inputs = {}, .second_buffer = true, .latency_us = 10, .gb_per_s = 20, .arena_gb_per_s = 1000};
  const Bytes first = align_up(plan.arena, kStayAlignment);
  plan.arena = first;
  for (const TensorId id : {program.network.data, program.network.labels}) {
    plan.feeding.inputs.push_back({id, plan.arena, align_up(graph.tensor(id).bytes(), kStayAlignment)});
    plan.arena += plan.feeding.inputs.back().bytes;
  }
  const Bytes bytes = plan.arena - first;
  program.plan = check_plan(graph, std::move(plan));
  const auto after = memory_by_step(graph, program.plan);
  for (size_t s = 0; s < after.size(); ++s) {
    EXPECT_EQ(after[s].total, before[s].total + bytes.count);
    EXPECT_EQ(after[s].by_kind[static_cast<size_t>(MemoryKind::next_batch)], bytes.count);
    EXPECT_EQ(after[s].total, live_bytes(program.plan)[s].count);
  }
  const std::string chart = memory_chart(graph, program.plan), map = memory_map(graph, program.plan),
                    html = html_report(program, {.model = "lenet", .batch = 4}), size = to_string(bytes);
  EXPECT_THAT(chart, HasSubstr("next batch: " + size));
  EXPECT_THAT(map, HasSubstr(fmt::format("{} of the next batch", graph.tensor(program.network.data).name)));
  EXPECT_THAT(html, HasSubstr("</svg>next batch</span>"));  // the colour's name
  EXPECT_THAT(html.substr(html.find("Alive at the peak")), HasSubstr(">next batch</td>"));
  expect_balanced(html);
}

TEST(HtmlReport, StaysSmallForHugeNetworks) {
  Graph graph = testing::random_graph(5, {.forward_ops = 1500});
  const Route route = make_route(graph);
  const auto kernels = testing::random_kernels(graph, 5);
  const CostTable costs;
  Program program;
  program.plan = check_plan(graph, std::get<Plan>(find_policy("liveness")
                                                      .plan({.graph = graph,
                                                             .route = route,
                                                             .kernels = kernels,
                                                             .costs = costs,
                                                             .device = {.name = "cpu", .key = "k"},
                                                             .placement = "best_fit"})));
  program.network.graph = std::move(graph);
  ASSERT_GT(program.plan->steps.size(), 2500u);
  const std::vector<StepRecord> records(program.plan->steps.size(), {.start_ms = 1, .end_ms = 2});
  EXPECT_LT(html_report(program, {.model = "huge", .batch = 1}, records).size(), 2u << 20);
}

TEST(HtmlReport, ShortensLongNamesInTheMiddle) {
  EXPECT_EQ(shortened("abc", 4), "abc");
  EXPECT_EQ(shortened("abcdefgh", 4), "ab…gh");
  EXPECT_EQ(shortened("aäääääb", 4), "a…b");  // no half characters
}

}  // namespace
}  // namespace plimsoll
