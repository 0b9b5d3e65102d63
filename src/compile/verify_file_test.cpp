// Every number, switch and text of saved plans is edited, each alone. An edit that the fingerprint is not made anew for
// is seen by the fingerprint; one by an editor who does that must break a rule, or be harmless by name. Of a field that
// stands in many items of a list, some items are tried in each plan; PLIMSOLL_EDITS=all tries every one, which takes
// minutes.
#include "compile/verify_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/sha256.h"
#include "device/divided.h"
#include "plan/simulate.h"
#include "plimsoll/kernels.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

using nlohmann::json;
using Pointer = json::json_pointer;

// What may be edited alone, with "*" for a number, and why nobody is harmed.
const std::map<std::string, std::string_view> kHarmless{
    {"/plan/plan_time_ms", "how long planning took: nothing follows from it"},
    {"/plan/device/name", "a device of another name or key is refused when the plan is to run"},
    {"/plan/device/key", "a device of another name or key is refused when the plan is to run"},
    {"/plan/device/threads", "a device with other threads is refused when the plan is to run"},
    {"/plan/policy", "told to people"},
    {"/plan/placement", "told to people"},
    {"/plan/steps/*/kernel", "another kernel of the device that needs no more workspace computes the same"},
    {"/plan/steps/*/workspace", "more than the kernel needs, within the bytes that are booked for it"},
    {"/plan/steps/*/threads", "any number of threads computes the same; what the step takes is said by its time"},
    {"/plan/stays/*/tensor", "two tensors of one size and one life change places"},
    {"/plan/stays/*/offset", "other bytes of the arena that are free meanwhile"},
    {"/plan/stays/*/bytes", "books free bytes behind it, and not at the peak"},
    {"/plan/stays/*/first", "books free bytes longer, and not at the peak"},
    {"/plan/stays/*/last", "books free bytes longer, and not at the peak"},
    {"/plan/moves/*/after", "the copy starts when it did, since its engine was not free before"},
    {"/plan/moves/*/before", "nobody waits for the copy then"},
    {"/plan/moves/*/slot", "other bytes of the tier that are free meanwhile"},
    {"/plan/tiers/*/used", "up to the end of the page"},
    {"/plan/tiers/*/capacity", "no tier of this size was asked for: what could be used is more than what is"},
    {"/plan/tiers/*/name", "the executor opens a tier by its name, and refuses others"},
    {"/plan/tiers/*/compute_share", "no step runs beside the tier's copies"},
    {"/plan/tiers/*/latency_us", "no copy uses the tier"},
    {"/plan/tiers/*/out_gb_per_s", "no copy uses the tier"},
    {"/plan/tiers/*/in_gb_per_s", "no copy uses the tier"},
    {"/plan/cores/cores_a_cache", "where threads sit: what the steps take is said by their times"},
    {"/plan/cores/cores", "no more steps run at once by it, and none later"},
    {"/plan/cores/hardware_threads", "no step may use the second ones"},
    {"/plan/cores/memory_gb_per_s", "more than the steps ask for"},
    {"/plan/cores/smt_speed", "no two steps that memory lets run on meet on one core"},
    {"/plan/cores/conflicts/*/*", "ops that never meet in any case"},
    {"/plan/cores/order/*", "steps that are never ready at the same time"},
    {"/request/channels", "0 stands for what the model has"},
    {"/request/height", "0 stands for what the model has"},
    {"/request/width", "0 stands for what the model has"},
    {"/request/classes", "0 stands for what the model has"},
    {"/request/host_memory", "the plan uses no tier of this name"},
    {"/request/exact", "the plan's kernels are what runs"},
    {"/request/threads", "a device with other threads has another key, and is refused"},
    {"/request/intra_op", "a device with other threads has another key, and is refused"},
    {"/request/inter_op", "0 leaves the number to the plan, which says it"},
    {"/request/optimizer/beta1", "of another optimizer than the one asked for"},
    {"/request/optimizer/beta2", "of another optimizer than the one asked for"},
    {"/request/optimizer/epsilon", "of another optimizer than the one asked for"},
};

struct Saved {
  std::string name;
  PlanRequest request;
  Program program;
};

Saved compiled(const std::string& name, const Device& device, PlanRequest request, CompileOptions options) {
  options.memory = request.memory;
  options.optimizer = request.optimizer;
  auto answer = compile_training(build_model(request.model, request.input), device, CostTable{}, options);
  if (!std::holds_alternative<Program>(answer)) throw std::runtime_error(name + ": no plan fits");
  return {name, std::move(request), std::get<Program>(std::move(answer))};
}

PlanRequest small_request() {
  return {.model = "mlp:hidden=16",
          .input = {.batch = 4, .channels = 1, .height = 8, .width = 8, .classes = 10},
          .optimizer = {}};
}

std::vector<TierInfo> some_tiers() {
  return {
      {.name = "host", .capacity = 1_MiB, .out_gb_per_s = 1, .in_gb_per_s = 2, .latency_us = 3, .compute_share = 0.25}};
}

// Two steps at once on two cores of two hardware threads, some pairs in conflict, the last ready first.
void run_at_once(Saved& saved) {
  Plan plan = saved.program.plan;
  saved.request.inter_op = plan.cores.inter_op = 2;
  saved.request.intra_op = 1;
  plan.cores.cores = 2;
  plan.cores.cores_a_cache = 2;
  plan.cores.hardware_threads = 2;
  plan.cores.smt_speed = 1.25;
  plan.cores.memory_gb_per_s = 0.5;
  for (StepIndex s = static_cast<StepIndex>(plan.steps.size()); s-- > 0;) {
    plan.cores.order.push_back(s);
    Step& step = plan.steps[s];
    if (step.kernel.empty()) continue;
    step.threads = 1;
    if (s % 3 == 0) step.affinity = Affinity::smt;
  }
  const std::set<std::pair<OpId, OpId>> pairs{std::minmax(plan.steps[2].op, plan.steps[3].op),
                                              std::minmax(plan.steps[4].op, plan.steps[6].op)};
  plan.cores.conflicts.assign(pairs.begin(), pairs.end());
  saved.program.plan = check_plan(saved.program.network.graph, std::move(plan));
}

// Every op that can runs in two parts of the batch.
std::map<std::string, std::string, std::less<>> halves(const Program& whole, int64_t batch) {
  std::map<std::string, std::string, std::less<>> kernels;
  const Graph& graph = whole.network.graph;
  for (size_t i = 0; i < whole.kernels.size(); ++i) {
    const Op& op = graph.ops()[i];
    const std::string& kernel = whole.kernels[i].kernel;
    const bool divides = divisible_batch(graph, op) == batch && op.type->name != "Reorder" && !kernel.empty() &&
                         why_not_divisible(graph, op).empty();
    const std::vector<MicroBatch> parts{{kernel, batch / 2}, {kernel, batch / 2}};
    kernels[op.name] = divides ? configuration_name(parts) : kernel;
  }
  return kernels;
}

std::vector<Saved> saved_plans(const Device& device) {
  std::vector<Saved> plans;
  for (const char* policy : {"baseline", "liveness", "superneurons", "vdnn:layers=all", "dymem", "auto"}) {
    PlanRequest request = small_request();
    if (policy != std::string("baseline") && policy != std::string("liveness")) request.host_memory = 1_MiB;
    CompileOptions options{.policy = policy};
    if (request.host_memory) options.tiers = some_tiers();
    plans.push_back(compiled(policy, device, request, options));
  }
  PlanRequest tight = small_request();
  tight.model = "lenet";
  tight.input = {.batch = 8};
  CompileOptions with_tiers{.policy = "auto", .tiers = some_tiers()};
  const int64_t whole = std::get<Program>(compile_training(build_model("lenet", tight.input), device, CostTable{},
                                                           {.policy = "liveness"}))
                            .plan->arena.count;
  tight.memory = {whole * 7 / 10};
  plans.push_back(compiled("tight", device, tight, with_tiers));
  PlanRequest again = tight;
  for (int64_t percent = 95; percent > 50 && plans.back().name != "recomputing"; percent -= 3) {
    again.memory = {whole * percent / 100};
    Saved by_dtr = compiled("recomputing", device, again, {.policy = "dtr"});
    if (by_dtr.program.plan->predicted.recompute_steps > 0) plans.push_back(std::move(by_dtr));
  }
  again.memory = {INT64_MAX};
  plans.push_back(compiled("whole", device, again, {.policy = "liveness"}));
  const CompileOptions in_parts{.policy = "liveness",
                                .family = plans.back().program.family,
                                .kernels = halves(plans.back().program, again.input.batch)};
  plans.back() = compiled("in parts", device, again, in_parts);
  plans.push_back(compiled("at once", device, small_request(), {.policy = "liveness"}));
  run_at_once(plans.back());
  plans.push_back(compiled("at once, with copies", device, tight, with_tiers));
  run_at_once(plans.back());
  return plans;
}

void fingerprint_anew(json& file) {
  file.erase("fingerprint");
  file["fingerprint"] = sha256_hex(file.dump());
}

// Empty: accepted.
std::string judge(const json& file, const Device& device) {
  try {
    const SavedPlan saved = saved_plan_from_json(file.dump());
    for (const Violation& v : verify_file(saved, 1)) return fmt::format("{}: {}", to_string(v.rule), v.message);
    for (const Violation& v : verify_workspaces(saved.graph, saved.plan, device, 1))
      return fmt::format("{}: {}", to_string(v.rule), v.message);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

std::vector<Pointer> leaves_of(const json& value, const Pointer& here = Pointer()) {
  std::vector<Pointer> leaves;
  if (!value.is_structured()) return {here};
  for (const auto& [key, item] : value.items()) {
    const Pointer below = value.is_array() ? here / std::stoul(key) : here / key;
    for (Pointer& leaf : leaves_of(item, below)) leaves.push_back(std::move(leaf));
  }
  return leaves;
}

// The field's name: "/plan/steps/*/threads".
std::string pattern_of(const Pointer& leaf) {
  std::string text;
  for (Pointer rest = leaf; !rest.empty(); rest = rest.parent_pointer()) {
    const bool number = rest.back().find_first_not_of("0123456789") == std::string::npos;
    text = "/" + (number ? "*" : rest.back()) + text;
  }
  return text;
}

// The same field of the next item of its list, or the next item; the field itself where there is none.
Pointer neighbour_of(const json& file, const Pointer& leaf) {
  std::vector<std::string> below;
  for (Pointer list = leaf; !list.empty();) {
    const std::string key = list.back();
    list.pop_back();
    if (file.at(list).is_array()) {
      Pointer next = list / (std::stoul(key) + 1);
      for (const std::string& name : below) next /= name;
      return file.contains(next) ? next : leaf;
    }
    below.insert(below.begin(), key);
  }
  return leaf;
}

std::vector<json> edits_of(const json& file, const Pointer& leaf) {
  const json& old = file.at(leaf);
  std::vector<json> edits;
  if (old.is_boolean()) edits = {!old.get<bool>()};
  if (old.is_number_integer()) {
    const int64_t v = old.get<int64_t>();
    edits = {0, v == INT64_MAX ? v : v + 1, v - 1, v > INT64_MAX / 2 ? v / 2 : v * 2};
  }
  if (old.is_number_float()) {
    const double v = old.get<double>();
    edits = {0.0, v + 1, v - 1, v * 2, v * 1.001};
  }
  if (old.is_string()) edits = {old.get<std::string>() + "x"};
  std::erase(edits, old);
  return edits;
}

// The places to edit: of each field `most` items, as far from each other as can be, beginning at another one for each
// `turn`.
std::vector<Pointer> places_of(const json& file, size_t most, size_t turn) {
  std::map<std::string, std::vector<Pointer>> by_field;
  for (const Pointer& leaf : leaves_of(file)) {
    if (leaf.back() == "fingerprint" || leaf.back() == "format" || leaf.back() == "version") continue;
    by_field[pattern_of(leaf)].push_back(leaf);
  }
  std::vector<Pointer> places;
  for (const auto& [field, leaves] : by_field) {
    const size_t count = std::min(most, leaves.size());
    for (size_t i = 0; i < count; ++i) places.push_back(leaves[(i * leaves.size() / count + turn) % leaves.size()]);
  }
  return places;
}

class Edits {
 public:
  explicit Edits(const Device& device) : device_(device) {}

  void try_all(const Saved& saved) {
    SCOPED_TRACE(saved.name);
    json file = json::parse(to_json(saved.request, saved.program));
    const std::string whole = judge(file, device_);
    ASSERT_EQ(whole, "");
    for (const Pointer& leaf : places_of(file, most_, turn_++)) {
      for (const json& edit : edits_of(file, leaf)) {
        json edited = file;
        edited[leaf] = edit;
        judge_edit(saved.name, leaf, file.at(leaf), std::move(edited));
      }
      const Pointer other = neighbour_of(file, leaf);
      if (file.at(other) == file.at(leaf) || file.at(other).type() != file.at(leaf).type()) continue;
      json edited = file;
      std::swap(edited[leaf], edited[other]);
      judge_edit(saved.name, leaf, file.at(leaf), std::move(edited));
    }
  }

  int tried = 0, accepted = 0;
  std::map<std::string, std::vector<std::string>> examples;  // accepted, by field

 private:
  void judge_edit(const std::string& plan, const Pointer& leaf, const json& old, json edited) {
    ++tried;
    if (tried % 16 == 0) {  // the fingerprint sees them all alike
      EXPECT_NE(judge(edited, device_), "") << leaf.to_string();
    }
    fingerprint_anew(edited);
    if (!judge(edited, device_).empty()) return;
    ++accepted;
    examples[pattern_of(leaf)].push_back(
        fmt::format("{}: {} from {} to {}", plan, leaf.to_string(), old.dump(), edited.at(leaf).dump()));
  }

  static bool all_wanted() {
    const char* wanted = std::getenv("PLIMSOLL_EDITS");
    return wanted && wanted == std::string_view("all");
  }

  const Device& device_;
  size_t most_ = all_wanted() ? SIZE_MAX : 4;
  size_t turn_ = 0;
};

TEST(VerifyFile, EveryEditBreaksARuleOrIsHarmlessByName) {
  const auto device = open_device("cpu", 1);
  Edits edits(*device);
  bool moves = false, recomputes = false, divides = false, homes = false;
  for (const Saved& saved : saved_plans(*device)) {
    edits.try_all(saved);
    const Plan& plan = saved.program.plan;
    moves |= !plan.moves.empty();
    homes |= !plan.homes.empty();
    recomputes |= plan.predicted.recompute_steps > 0;
    for (const Step& step : plan.steps) divides |= !parts_of(step.kernel).empty();
  }
  for (const auto& [field, examples] : edits.examples) {
    EXPECT_TRUE(kHarmless.contains(field))
        << field << ": " << examples.size() << " edits are accepted, as " << examples[0] << " and " << examples.back();
  }
  EXPECT_TRUE(moves);
  EXPECT_TRUE(homes);
  EXPECT_TRUE(recomputes);
  EXPECT_TRUE(divides);
  EXPECT_GT(edits.tried, 3000);
  for (const auto& [field, why] : kHarmless) {
    if (!edits.examples.contains(field)) std::printf("never accepted: %s\n", field.c_str());
  }
  std::printf("%d edits, %d accepted\n", edits.tried, edits.accepted);
}

TEST(VerifyFile, TheFingerprintSeesEveryEditAndHidesNoOtherViolation) {
  const auto device = open_device("cpu", 1);
  const Saved saved = compiled("mlp", *device, small_request(), {.policy = "liveness"});
  const json file = json::parse(to_json(saved.request, saved.program));
  auto rules_after = [&](const char* place, const json& value) {
    json edited = file;
    edited[Pointer(place)] = value;
    std::vector<std::string> rules;
    for (const Violation& v : verify_file(saved_plan_from_json(edited.dump()))) rules.emplace_back(to_string(v.rule));
    return rules;
  };
  using Rules = std::vector<std::string>;
  EXPECT_EQ(rules_after("/plan/policy", "liveness"), Rules{});
  EXPECT_EQ(rules_after("/plan/plan_time_ms", 1.5), Rules{"edited"});
  EXPECT_EQ(rules_after("/plan/lower_bound", 1), (Rules{"wrong_bound", "edited"}));
  EXPECT_EQ(rules_after("/plan/predicted/step_time_ms", 1e-3), (Rules{"wrong_prediction", "edited"}));
  EXPECT_EQ(rules_after("/plan/predicted/peak", 64), (Rules{"wrong_prediction", "edited"}));
  EXPECT_EQ(rules_after("/request/memory", 1 << 20), (Rules{"wrong_request", "edited"}));
}

}  // namespace
}  // namespace plimsoll
