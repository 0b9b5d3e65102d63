#include "train/given_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "compile/verify_file.h"
#include "passes/embedding_gradient.h"
#include "passes/passes.h"
#include "plimsoll/verify.h"

namespace plimsoll {

std::string plan_name(const TrainOptions& options) {
  return options.plan ? options.plan->string() : fmt::format("the plan of {}", options.communicator->name(0));
}

void pin(CompileOptions& compile, const SavedPlan& saved, const TrainOptions& options, const DeviceInfo& device) {
  const std::string file = plan_name(options);
  const bool same_threads = saved.plan.device_threads == 0 || saved.plan.device_threads == device.threads;
  if (saved.plan.device_key != device.key || !same_threads) {
    const std::string instead = options.plan
                                    ? fmt::format("make one here with `plimsoll plan {} --save`", options.model)
                                    : "all ranks need processors of one kind and as many threads, as --threads says";
    throw Error(ErrorCode::invalid_input,
                fmt::format("{} is a plan for device '{}' ({}), but this is '{}' ({}); {}", file,
                            saved.plan.device_name, saved.plan.device_key, device.name, device.key, instead));
  }
  if (options.memory && compile.memory < saved.plan.arena) {
    const std::string left = options.memory_is == MemoryIs::process
                                 ? fmt::format(", which leaves the arena {}", to_string(compile.memory))
                                 : "";
    throw Error(ErrorCode::infeasible, fmt::format("{} needs {} but --memory is {}{}", file,
                                                   to_string(saved.plan.arena), to_string(*options.memory), left));
  }
  compile.memory = {INT64_MAX};
  compile.policy = "liveness";
  compile.family = saved.family;
  compile.zero = saved.request.optimizer.sharding.stage;
  compile.optimizer.sharding = saved.request.optimizer.sharding;
  if (std::ranges::none_of(saved.graph.ops(), reads_lookups)) compile.fusion.off.emplace_back(kSparseEmbeddingPass);
  for (const Step& step : saved.plan.steps) compile.kernels[saved.graph.op(step.op).name] = step.kernel;
  for (const State& state : saved.graph.states) {
    const Tensor& t = saved.graph.tensor(state.before);
    compile.state_layouts[t.name] = t.layout;
  }
}

void use_plan(Program& program, const SavedPlan& saved, const TrainOptions& options, Bytes budget,
              const Device& device) {
  const std::string file = plan_name(options);
  if (saved.plan.graph_fingerprint != program.plan->graph_fingerprint) {
    throw Error(
        ErrorCode::invalid_input,
        fmt::format("{} was made for another graph: '{}' {:016x}, but '{}' here is {:016x}; {}", file,
                    saved.plan.graph_name, saved.plan.graph_fingerprint, program.network.graph.name,
                    program.plan->graph_fingerprint,
                    options.plan
                        ? "images, classes, optimizer and its settings must be those that `plan` was told, with --data "
                          "and the others"
                        : "all ranks must train the same network with the same options"));
  }
  const auto is_edited = [](const Violation& v) { return v.rule == Violation::Rule::edited; };
  std::vector<Violation> violations;
  if (options.plan) violations = verify_file(saved);  // else the first rank sent it, and check_plan verifies it below
  if (std::ranges::all_of(violations, is_edited)) {   // kernels are made only of what makes sense otherwise
    for (Violation& violation : verify_workspaces(saved.graph, saved.plan, device, 1))
      violations.push_back(std::move(violation));
  }
  if (!violations.empty()) {
    // That the file was edited says less than what is wrong with it.
    const auto telling = std::ranges::find_if_not(violations, is_edited);
    const Violation& first = telling == violations.end() ? violations.front() : *telling;
    throw Error(ErrorCode::invalid_input, fmt::format("{} is not valid: {}", file, first.message));
  }
  Plan plan = saved.plan;
  if (options.memory) plan.budget = budget;
  program.plan = check_plan(program.network.graph, std::move(plan));
  program.policy = program.plan->policy;
  if (options.plan) program.bound_ms = 0;  // the file's times are not those of now, by which a bound would be
}

}  // namespace plimsoll
