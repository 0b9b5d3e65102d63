#include "train/network_step.h"

#include <utility>

#include "cores/core_options.h"
#include "train/process_memory.h"
#include "train/rehearse.h"
#include "train/training_data.h"

namespace plimsoll {
namespace {

CoreOptions cores_of(const TrainOptions& options) {
  return core_options(options.device, {.threads = options.threads, .intra_op = options.intra_op}, options.exact);
}

CompileOptions compile_options_of(const TrainOptions& options, const Session& session) {
  return {
      .memory = options.memory ? *options.memory : default_budget(*session.device, options.host_memory.value_or(0_B)),
      .policy = options.policy,
      .placement = options.placement,
      .tiers = session.tiers,
      .optimizer = options.optimizer,
      .exact = options.exact,
      .workspace = options.workspace.value_or(Bytes{INT64_MAX}),
      .workspace_total = options.workspace_total,
      .batch_sizes = options.batch_sizes};
}

void check_options(const TrainOptions& options) {
  check_choices(options.policy, options.placement);
  if (options.memory_is == MemoryIs::process) {
    throw Error(
        ErrorCode::unsupported,
        "memory_is='process': what other libraries take in this process is not known here; state the arena's bytes");
  }
}

// What is lacking is measured only where there is a plan at all.
std::optional<Infeasible> measure_what_lacks(Session& session, const Network& network, const CompileOptions& compile,
                                             const NetworkStepListener& listener) {
  auto first = compile_training(network, *session.device, session.costs, compile);
  if (auto* infeasible = std::get_if<Infeasible>(&first)) return std::move(*infeasible);
  MeasureOptions measuring{.tolerance = kMeasuringTolerance, .stop = listener.stop};
  measuring.progress = [&](int done, int total, const std::string& what) {
    if (listener.preparing) listener.preparing(what, done, total);
  };
  measure_missing(session, network, compile, measuring);
  if (listener.stop && listener.stop()) throw Error(ErrorCode::interrupted, "interrupted before the first step");
  return std::nullopt;
}

}  // namespace

std::variant<std::unique_ptr<NetworkStep>, Infeasible> NetworkStep::open(const Network& network,
                                                                         const TrainOptions& options,
                                                                         const NetworkStepListener& listener) {
  check_options(options);
  auto result = std::make_unique<NetworkStep>();
  result->session_ = open_session(options.device, cores_of(options).intra_op, tiers_of(options));
  Session& session = result->session_;
  if (session.device->info().simulated) {
    throw Error(ErrorCode::invalid_input,
                "device '" + options.device + "' plans only, it runs nothing; ask it by fits, or take another device");
  }
  for (const std::string& text : session.notices) {
    if (listener.notice) listener.notice(text);
  }
  const CompileOptions& compile = result->compile_ = compile_options_of(options, session);
  if (options.costs == "measured") {
    forget_busy_times(session);
    if (!options.exact) {
      if (auto infeasible = measure_what_lacks(session, network, compile, listener)) return std::move(*infeasible);
    }
  }
  for (Refusals refused;;) {
    auto compiled = compile_training(network, *session.device, session.costs, compile);
    if (auto* infeasible = std::get_if<Infeasible>(&compiled)) return std::move(*infeasible);
    give_memory_back();  // that planning took
    result->step_ = std::make_unique<TrainingStep>(std::get<Program>(std::move(compiled)), *session.device,
                                                   ExecuteOptions{.spill = session.spill, .peer = session.peer});
    if (!session.device->info().asynchronous) break;
    if (rehearse(result->step_->executor(), refused).empty()) break;
  }
  result->step_->initialize(options.seed);
  return result;
}

void NetworkStep::prepare_evaluation(const Network& network) {
  for (Refusals refused;;) {
    auto compiled = compile_evaluation(network, step_->program(), *session_.device, session_.costs, compile_);
    if (const auto* infeasible = std::get_if<Infeasible>(&compiled)) {
      throw Error(ErrorCode::infeasible,
                  "the evaluation of a batch of this size does not fit the training's memory: " + to_text(*infeasible));
    }
    evaluation_ = std::make_unique<TrainingStep>(std::get<Program>(std::move(compiled)), *session_.device,
                                                 ExecuteOptions{.spill = session_.spill, .peer = session_.peer},
                                                 step_->executor().memory());
    evaluation_->start_at(0, 0);
    if (!session_.device->info().asynchronous || rehearse(evaluation_->executor(), refused).empty()) return;
  }
}

std::variant<Program, Infeasible> plan_network(const Network& network, const TrainOptions& options) {
  check_options(options);
  Session session = open_session(options.device, cores_of(options).intra_op, tiers_of(options));
  CompileOptions compile = compile_options_of(options, session);
  compile.name_minimum = true;
  return compile_training(network, *session.device, session.costs, compile);
}

}  // namespace plimsoll
