// verify: judges a saved plan.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/checks.h"
#include "cli/commands.h"
#include "compile/plan_file.h"
#include "compile/verify_file.h"
#include "plimsoll/cost_graph.h"
#include "plimsoll/verify.h"

namespace plimsoll::cli {
namespace {

using nlohmann::json;

// What its kernels need is asked where the plan's device is here. Returns why it was not asked; empty: it was.
std::string ask_device(const SavedPlan& saved, std::vector<Violation>& violations) {
  try {
    const PlanRequest& request = saved.request;
    if (holds_only_costs(saved.graph)) return "a graph of costs runs nothing";
    const CoreRequest cores{.threads = request.threads, .inter_op = request.inter_op, .intra_op = request.intra_op};
    const std::unique_ptr<Device> device =
        open_device(saved.plan.device_name, core_options(saved.plan.device_name, cores, request.exact).intra_op);
    if (device->info().key != saved.plan.device_key)
      return fmt::format("'{}' here is another one ({})", saved.plan.device_name, device->info().key);
    if (device->info().simulated || request.paper_layers)
      return fmt::format("'{}' runs nothing", saved.plan.device_name);
    for (Violation& v : verify_workspaces(saved.graph, saved.plan, *device)) violations.push_back(std::move(v));
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

int run_verify(const std::string& file, const std::string& json_target) {
  check_apart({{"--json", json_target}}, {{"FILE", file}});
  JsonLines out(json_target);
  const SavedPlan saved = load_plan(file);
  std::vector<Violation> violations = verify_file(saved);
  const std::string not_asked = ask_device(saved, violations);
  json list = json::array();
  for (const Violation& v : violations) {
    list.push_back({{"rule", std::string(to_string(v.rule))}, {"step", v.step}, {"message", v.message}});
    say(out, fmt::format("{}: {}", to_string(v.rule), v.message));
  }
  out.write({{"valid", violations.empty()},
             {"graph", saved.graph.name},
             {"policy", saved.plan.policy},
             {"steps", saved.plan.steps.size()},
             {"arena_bytes", saved.plan.arena.count},
             {"violations", list},
             {"kernels_asked", not_asked.empty()},
             {"kernels_not_asked", not_asked}});
  if (!not_asked.empty()) say(out, fmt::format("the workspaces of its kernels were not judged: {}", not_asked));
  if (!violations.empty()) {
    say(out, fmt::format("{} is not valid", file));
    return kBadInput;
  }
  say(out, fmt::format("{} is valid: {} steps of '{}' by policy {} in {}", file, saved.plan.steps.size(),
                       saved.graph.name, saved.plan.policy, to_string(saved.plan.arena)));
  return kDone;
}

}  // namespace

Run add_verify(CLI::App& app) {
  auto file = std::make_shared<std::string>(), json_target = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("verify", "Judge a saved plan: is every byte safe?");
  command->footer(
      "Example:\n"
      "  plimsoll plan resnet50 --batch 16 --memory 1GiB --save plan.json && plimsoll verify plan.json");
  command->add_option("PLAN", *file, "A file written by `plimsoll plan --save`")->required()->check(not_empty());
  command->add_option("--json", *json_target, "Write JSON to FILE, or to standard output for '-'")
      ->type_name("FILE")
      ->check(not_empty());
  return [file, json_target] { return run_verify(*file, *json_target); };
}

}  // namespace plimsoll::cli
