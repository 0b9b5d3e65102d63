#include "train/network_step.h"

#include <algorithm>
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

void check_options(const TrainOptions& options) {
  check_choices(options.policy, options.placement);
  if (options.memory_is == MemoryIs::process) check_memory_is_process(options.device, options.memory.has_value());
}

// What the process takes beside the arena: what it holds already, and what comes with a step.
ProcessMemory process_of(const Network& network, const TrainOptions& options, Bytes held) {
  const CoreOptions cores = cores_of(options);
  ProcessMemory process = process_memory(network, {.memory_is = options.memory_is,
                                                   .training = true,
                                                   .evaluates = false,
                                                   .threads = std::max(cores.cores, cores.intra_op),
                                                   .workers = 0,
                                                   .data = {},
                                                   .tiers = tiers_of(options)});
  process.program += held;
  process.batches = {};
  for (TensorId input : network.graph.inputs) process.batches += network.graph.tensor(input).bytes() * 2;
  return process;
}

Bytes arena_budget(const TrainOptions& options, const Session& session, const std::optional<ProcessMemory>& process) {
  if (process) return arena_within(*process, *options.memory);
  return options.memory ? *options.memory : default_budget(*session.device, options.host_memory.value_or(0_B));
}

// An answer about the arena as one about what was stated.
Infeasible of_stated(Infeasible infeasible, const std::optional<ProcessMemory>& process, const TrainOptions& options) {
  return process ? of_process(std::move(infeasible), *process, *options.memory) : infeasible;
}

void measure(Session& session, const Network& network, const CompileOptions& compile, Bytes room,
             const NetworkStepListener& listener) {
  MeasureOptions measuring{.tolerance = kMeasuringTolerance, .memory = room, .stop = listener.stop};
  measuring.progress = [&](int done, int total, const std::string& what) {
    if (listener.preparing) listener.preparing(what, done, total);
  };
  measure_missing(session, network, compile, measuring);
  if (listener.stop && listener.stop()) throw Error(ErrorCode::interrupted, "interrupted before the first step");
}

std::variant<size_t, Infeasible> keep(std::variant<std::unique_ptr<TrainingStep>, Infeasible> added,
                                      std::vector<std::unique_ptr<TrainingStep>>& among) {
  if (auto* infeasible = std::get_if<Infeasible>(&added)) return std::move(*infeasible);
  among.push_back(std::get<std::unique_ptr<TrainingStep>>(std::move(added)));
  return among.size() - 1;
}

}  // namespace

std::variant<std::unique_ptr<NetworkStep>, Infeasible> NetworkStep::open(const Network& network,
                                                                         const TrainOptions& options,
                                                                         const NetworkStepListener& listener,
                                                                         Bytes held, Bytes arena) {
  check_options(options);
  auto result = std::make_unique<NetworkStep>();
  std::optional<ProcessMemory> process;
  if (options.memory_is == MemoryIs::process) process = process_of(network, options, held);
  result->session_ = open_session(options.device, cores_of(options).intra_op, tiers_of(options),
                                  process ? std::max(*options.memory - process->program, 0_B) : Bytes{INT64_MAX});
  Session& session = result->session_;
  if (session.device->info().simulated) {
    throw Error(ErrorCode::invalid_input,
                "device '" + options.device + "' plans only, it runs nothing; ask it by fits, or take another device");
  }
  for (const std::string& text : session.notices) {
    if (listener.notice) listener.notice(text);
  }
  const CompileOptions& compile = result->compile_ =
      compile_options_of(options, session, arena_budget(options, session, process));
  result->measuring_room_ = process ? compile.memory : std::max(compile.memory, kMeasuringRoom);
  if (options.costs == "measured") forget_busy_times(session);
  result->measures_ = options.costs == "measured" && !options.exact;

  if (result->measures_) {  // what is lacking is measured only where there is a plan at all
    auto first = compile_training(network, *session.device, session.costs, compile);
    if (auto* infeasible = std::get_if<Infeasible>(&first)) return of_stated(std::move(*infeasible), process, options);
    measure(session, network, compile, result->measuring_room_, listener);
  }
  for (Refusals refused;;) {
    auto compiled = compile_training(network, *session.device, session.costs, compile);
    if (auto* infeasible = std::get_if<Infeasible>(&compiled))
      return of_stated(std::move(*infeasible), process, options);
    if (process) {
      if (auto infeasible = refused_by_planning(std::get<Program>(compiled), *process, *options.memory))
        return *infeasible;
    }
    give_memory_back();  // that planning took
    result->steps_.clear();
    result->steps_.push_back(std::make_unique<TrainingStep>(
        std::get<Program>(std::move(compiled)), *session.device,
        ExecuteOptions{.spill = session.spill, .peer = session.peer, .remote = session.remote}, Memory{}, arena));
    if (!session.device->info().asynchronous || rehearse(result->step().executor(), refused).empty()) break;
  }
  result->step().initialize(options.seed);
  return result;
}

// A step of what is compiled, in the memory that was taken. Compiles again where a device refuses a kernel.
NetworkStep::Added NetworkStep::in_this_memory(const Compile& compile) {
  for (Refusals refused;;) {
    auto compiled = compile();
    if (auto* infeasible = std::get_if<Infeasible>(&compiled)) return std::move(*infeasible);
    auto step = std::make_unique<TrainingStep>(
        std::get<Program>(std::move(compiled)), *session_.device,
        ExecuteOptions{.spill = session_.spill, .peer = session_.peer, .remote = session_.remote},
        steps_[0]->executor().memory());
    if (session_.device->info().asynchronous && !rehearse(step->executor(), refused).empty()) continue;
    step->start_at(0, 0);
    return step;
  }
}

std::variant<size_t, Infeasible> NetworkStep::add_shape(const Network& network, const NetworkStepListener& listener) {
  if (measures_) measure(session_, network, compile_, measuring_room_, listener);
  CompileOptions options = compile_;
  options.memory = steps_[0]->executor().arena_bytes();
  return keep(in_this_memory([&] {
                return compile_shape(network, steps_[0]->program(), *session_.device, session_.costs, options);
              }),
              steps_);
}

void NetworkStep::use(size_t shape) {
  if (shape == current_) return;
  steps_.at(shape)->go_on_from(step());
  current_ = shape;
}

Bytes NetworkStep::measured_peak() const {
  Bytes peak;
  for (const auto& step : steps_) peak = std::max(peak, step->measured_peak());
  return peak;
}

std::variant<size_t, Infeasible> NetworkStep::add_evaluation(const Network& network) {
  return keep(in_this_memory([&] {
                return compile_evaluation(network, steps_[0]->program(), *session_.device, session_.costs, compile_,
                                          steps_[0]->executor().arena_bytes());
              }),
              evaluations_);
}

std::variant<Program, Infeasible> plan_network(const Network& network, const TrainOptions& options, Bytes held) {
  check_options(options);
  std::optional<ProcessMemory> process;
  if (options.memory_is == MemoryIs::process) process = process_of(network, options, held);
  Session session = open_session(options.device, cores_of(options).intra_op, tiers_of(options));
  CompileOptions compile = compile_options_of(options, session, arena_budget(options, session, process));
  compile.name_minimum = true;
  auto result = compile_training(network, *session.device, session.costs, compile);
  if (!process) return result;
  if (auto* infeasible = std::get_if<Infeasible>(&result))
    return of_process(std::move(*infeasible), *process, *options.memory);
  Program& program = std::get<Program>(result);
  if (auto infeasible = refused_by_planning(program, *process, *options.memory)) return *infeasible;
  program.minimum = process->with(*program.minimum);
  return result;
}

}  // namespace plimsoll
