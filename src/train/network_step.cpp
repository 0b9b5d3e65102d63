#include "train/network_step.h"

#include <algorithm>
#include <utility>

#include "cores/core_options.h"
#include "device/collectives.h"
#include "device/cpu/machine.h"
#include "train/given_plan.h"
#include "train/process_memory.h"
#include "train/ranks.h"
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
                                                   .ranks = ranks_of(options),
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

MeasureOptions measure_in(Bytes room) { return {.tolerance = kMeasuringTolerance, .memory = room}; }

void measure(Session& session, const Network& network, const CompileOptions& compile, Bytes room,
             const NetworkStepListener& listener, MeasuringTogether* beside = nullptr) {
  MeasureOptions measuring = measure_in(room);
  measuring.stop = listener.stop;
  measuring.progress = [&](int done, int total, const std::string& what) {
    if (beside != nullptr) beside->tell(what);
    if (listener.preparing) listener.preparing(what, done, total);
  };
  measure_missing(session, network, compile, measuring);
  if (listener.stop && listener.stop()) throw Error(ErrorCode::interrupted, "interrupted before the first step");
}

std::variant<size_t, Infeasible> keep(std::variant<std::unique_ptr<TrainingStep>, Infeasible> added,
                                      std::vector<std::unique_ptr<TrainingStep>>& among) {
  if (auto* infeasible = std::get_if<Infeasible>(&added)) return std::move(*infeasible);
  auto place = std::ranges::find_if(among, [](const auto& step) { return step == nullptr; });
  if (place == among.end()) place = among.emplace(place);
  *place = std::get<std::unique_ptr<TrainingStep>>(std::move(added));
  return static_cast<size_t>(place - among.begin());
}

int64_t rows_of(const Network& network) {
  if (!network.data.valid()) return 1;
  const Shape& shape = network.graph.tensor(network.data).shape;
  return shape.empty() ? 1 : shape[0];
}

// Of ranks that are planned for without being there: a network of 10 Gbit/s, as `plimsoll plan --ranks` assumes.
constexpr LinkInfo kAssumedLink{.latency_us = 50, .gb_per_s = 1.25};

// The options of one of several ranks: its batches are its part of all.
TrainOptions options_of(TrainOptions options, const Network& network) {
  options.batch = rows_of(network) * ranks_of(options);
  options.model = network.graph.name;
  options = options_of_rank(std::move(options));
  options.threads = threads_of(options);
  return options;
}

// Without a budget: of another rank.
Infeasible answer_of(std::optional<Infeasible> mine) { return mine ? *std::move(mine) : Infeasible{}; }

}  // namespace

std::variant<std::unique_ptr<NetworkStep>, Infeasible> NetworkStep::open(const Network& network,
                                                                         const TrainOptions& options,
                                                                         const NetworkStepListener& listener,
                                                                         Bytes held, Bytes arena,
                                                                         const Agreement* agreed) {
  auto step = std::make_unique<NetworkStep>();
  // Those with whom it is opened.
  Communicator* const others = agreed == nullptr && ranks_of(options) > 1 ? options.communicator.get() : nullptr;
  const Heartbeat heartbeat(others);
  together(others, [&] {
    check_options(options);
    step->options_ = options_of(options, network);
    if (options.memory_is == MemoryIs::process) step->process_ = process_of(network, step->options_, held);
    step->open_device(listener);
    return true;
  });
  step->join_ranks(agreed, listener);
  std::optional<Infeasible> mine;
  const bool plans = agreed == nullptr && (others == nullptr || others->is_first());
  const bool is_planned = together(others, [&] {
    if (plans) {
      mine = step->plan(network, listener, arena, others != nullptr);
    } else if (others != nullptr) {
      measure_beside(*others, step->session_, network, step->compile_, measure_in(step->measuring_room_));
    }
    return !mine;
  });
  if (!is_planned) return answer_of(std::move(mine));
  if (others != nullptr)
    step->agreement_.plans.push_back(others->broadcast(plans ? step->text_of(step->first().program()) : std::string()));
  const bool is_ready = together(others, [&] {
    if (!plans) mine = step->repeat(network, arena);
    return !mine;
  });
  if (!is_ready) return answer_of(std::move(mine));
  if (others != nullptr) check_same_plan(*others, step->first().program());
  step->step().initialize(options.seed);
  return step;
}

// Of the first shape, as all of them are asked for.
void NetworkStep::open_device(const NetworkStepListener& listener) {
  if (options_.communicator) cpu::count_as_own(options_.communicator->sharers());
  session_ = open_session(options_.device, cores_of(options_).intra_op, tiers_of(options_), probing_room(),
                          neighbours_of(options_));
  if (session_.device->info().simulated) {
    throw Error(ErrorCode::invalid_input,
                "device '" + options_.device + "' plans only, it runs nothing; ask it by fits, or take another device");
  }
  for (const std::string& text : session_.notices) {
    if (listener.notice) listener.notice(text);
  }
  Bytes budget = arena_budget(options_, session_, process_);
  if (options_.communicator && !options_.memory)  // all on this machine see the same that is free
    budget = {budget.count / static_cast<int64_t>(options_.communicator->ranks_here().size())};
  if (options_.feeds_ahead) find_feeding(session_, probing_room());
  compile_ = compile_options_of(options_, session_, budget);
  measuring_room_ = process_ ? compile_.memory : std::max(compile_.memory, kMeasuringRoom);
  measures_ = options_.costs == "measured" && !options_.exact;
}

Bytes NetworkStep::probing_room() const {
  return process_ ? std::max(*options_.memory - process_->program, 0_B) : Bytes{INT64_MAX};
}

// As one of several ranks: messages to the others are kernels of the device.
void NetworkStep::join_ranks(const Agreement* agreed, const NetworkStepListener& listener) {
  if (!options_.communicator) return;
  const std::shared_ptr<Wire> wire = open_wire(*session_.device, options_.communicator);
  agreement_.link = agreed != nullptr ? agreed->link : open_link(session_, *wire, probing_room(), listener.notice);
  if (agreed != nullptr) agreed_before_ = agreed->plans;
  session_.device = with_wire(std::move(session_.device), agreement_.link, wire);
}

std::string NetworkStep::text_of(const Program& program) const {
  return to_json({.model = options_.model,
                  .input = {.batch = rows_of(program.network)},
                  .optimizer = options_.optimizer,
                  .exact = options_.exact,
                  .memory = program.plan->budget,
                  .host_memory = options_.host_memory,
                  .spill_size = options_.spill_size,
                  .threads = options_.threads},
                 program);
}

std::optional<Infeasible> NetworkStep::plan(const Network& network, const NetworkStepListener& listener, Bytes arena,
                                            bool has_others) {
  std::optional<MeasuringTogether> beside;
  if (has_others) beside.emplace(options_);
  if (options_.costs == "measured") forget_busy_times(session_);
  if (measures_) {  // what is lacking is measured only where there is a plan at all
    auto first = compile_training(network, *session_.device, session_.costs, compile_);
    if (auto* infeasible = std::get_if<Infeasible>(&first))
      return of_stated(std::move(*infeasible), process_, options_);
    measure(session_, network, compile_, measuring_room_, listener, beside ? &*beside : nullptr);
  }
  beside.reset();
  for (Refusals refused;;) {
    auto compiled = compile_training(network, *session_.device, session_.costs, compile_);
    if (auto* infeasible = std::get_if<Infeasible>(&compiled))
      return of_stated(std::move(*infeasible), process_, options_);
    if (auto infeasible = take_memory(std::get<Program>(std::move(compiled)), arena)) return infeasible;
    if (session_.device->info().asynchronous && !rehearse(step().executor(), refused).empty()) continue;
    const std::string text = last_resort_text(step().program(), *session_.device);
    if (!text.empty() && listener.notice) listener.notice(text);
    return std::nullopt;
  }
}

// By the plan that the ranks have agreed on.
std::optional<Infeasible> NetworkStep::repeat(const Network& network, Bytes arena) {
  if (agreement_.plans.empty()) agreement_.plans.push_back(agreed_before_.at(0));
  const SavedPlan saved = saved_plan_from_json(agreement_.plans[0]);
  CompileOptions pinned = compile_;
  pin(pinned, saved, options_, session_.device->info());
  auto compiled = compile_training(network, *session_.device, session_.costs, pinned);
  if (auto* infeasible = std::get_if<Infeasible>(&compiled))
    return of_stated(std::move(*infeasible), process_, options_);
  use_plan(std::get<Program>(compiled), saved, options_, compile_.memory, *session_.device);
  return take_memory(std::get<Program>(std::move(compiled)), arena);
}

std::optional<Infeasible> NetworkStep::take_memory(Program program, Bytes arena) {
  if (process_) {
    if (auto infeasible = refused_by_planning(program, *process_, *options_.memory)) return infeasible;
  }
  give_memory_back();  // that planning took
  Memory kept = steps_.empty() ? Memory() : kept_memory(step().executor());
  steps_.clear();
  steps_.push_back(std::make_unique<TrainingStep>(
      std::move(program), *session_.device,
      ExecuteOptions{.spill = session_.spill, .peer = session_.peer, .remote = session_.remote}, std::move(kept),
      arena));
  return std::nullopt;
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
    if (session_.device->info().asynchronous) {
      const TrainingStep::OwnStates states =
          this->step().own_states();  // in the same memory, where the rehearsal trains on anything
      bool runs = false;
      try {
        runs = rehearse(step->executor(), refused).empty();
      } catch (...) {
        this->step().set_own_states(states);
        throw;
      }
      this->step().set_own_states(states);
      if (!runs) continue;
    }
    step->start_at(0, 0);
    return step;
  }
}

std::variant<size_t, Infeasible> NetworkStep::add_shape(const Network& network, const NetworkStepListener& listener,
                                                        std::optional<size_t> agreed) {
  CompileOptions options = compile_;
  options.memory = steps_[0]->executor().arena_bytes();
  const auto add = [&](const Compile& compile) { return keep(in_this_memory(compile), steps_); };
  const auto by_plan = [&](const SavedPlan& saved) {
    if (saved.plan.arena > options.memory) {
      return std::variant<Program, Infeasible>(
          Infeasible{.policy = options.policy, .budget = options.memory, .minimum = saved.plan.arena});
    }
    CompileOptions pinned = options;
    pin(pinned, saved, options_, session_.device->info());
    auto compiled = compile_shape(network, steps_[0]->program(), *session_.device, session_.costs, pinned);
    if (auto* program = std::get_if<Program>(&compiled))
      use_plan(*program, saved, options_, options.memory, *session_.device);
    return compiled;
  };
  const auto agree = [&](size_t number, const std::string& text) {
    agreement_.plans.resize(std::max(agreement_.plans.size(), number + 1));
    agreement_.plans[number] = text;
  };
  if (agreed) {
    const std::string& text = agreed_before_.at(*agreed);
    const auto added = add([&] { return by_plan(saved_plan_from_json(text)); });
    if (const auto* number = std::get_if<size_t>(&added)) agree(*number, text);
    return added;
  }
  Communicator* const ranks = options_.communicator.get();
  const Heartbeat heartbeat(ranks);
  const bool plans = ranks == nullptr || ranks->is_first();
  std::variant<size_t, Infeasible> added = size_t{0};
  const auto is_added = [&] { return std::holds_alternative<size_t>(added); };
  const bool is_planned = together(ranks, [&] {
    if (!plans) return true;
    if (measures_) measure(session_, network, compile_, measuring_room_, listener);
    added =
        add([&] { return compile_shape(network, steps_[0]->program(), *session_.device, session_.costs, options); });
    return is_added();
  });
  if (ranks == nullptr) return added;
  if (!is_planned) return is_added() ? Infeasible{} : std::move(added);
  const auto added_step = [&]() -> std::unique_ptr<TrainingStep>& { return steps_[std::get<size_t>(added)]; };
  const std::string text = ranks->broadcast(plans ? text_of(added_step()->program()) : std::string());
  const bool is_ready = together(ranks, [&] {
    if (!plans) added = add([&] { return by_plan(saved_plan_from_json(text)); });
    return is_added();
  });
  if (!is_ready) {
    if (!is_added()) return added;
    added_step().reset();
    return Infeasible{};
  }
  check_same_plan(*ranks, added_step()->program());
  agree(std::get<size_t>(added), text);
  return added;
}

void NetworkStep::use(size_t shape) {
  if (shape == current_) return;
  steps_.at(shape)->go_on_from(step());
  current_ = shape;
}

void NetworkStep::forget_shape(size_t shape) {
  if (shape == 0 || shape == current_)
    throw Error(ErrorCode::internal, "shape " + std::to_string(shape) + " of a step is the first or in use");
  steps_.at(shape).reset();
  if (shape < agreement_.plans.size()) agreement_.plans[shape].clear();
}

Bytes NetworkStep::measured_peak() const {
  Bytes peak;
  for (const auto& step : steps_) {
    if (step) peak = std::max(peak, step->measured_peak());
  }
  return peak;
}

std::variant<size_t, Infeasible> NetworkStep::add_evaluation(const Network& network) {
  const Program& training = steps_[0]->program();
  Communicator* const others = training.sharding.stage == kMostShardingStage ? options_.communicator.get() : nullptr;
  std::optional<CostTable> common;
  if (others != nullptr) common = common_costs(*others, session_.costs, session_.device->info());
  const CostTable& costs = common ? *common : session_.costs;
  std::variant<size_t, Infeasible> added;
  const bool is_added = together(others, [&] {
    added = keep(in_this_memory([&] {
                   return compile_evaluation(network, training, *session_.device, costs, compile_,
                                             steps_[0]->executor().arena_bytes());
                 }),
                 evaluations_);
    return std::holds_alternative<size_t>(added);
  });
  if (others == nullptr || is_added) {
    if (others != nullptr) check_same_collectives(*others, evaluations_[std::get<size_t>(added)]->program());
    return added;
  }
  if (std::holds_alternative<Infeasible>(added)) return added;
  evaluations_[std::get<size_t>(added)].reset();
  return Infeasible{};
}

std::variant<Program, Infeasible> plan_network(const Network& network, const TrainOptions& options, Bytes held) {
  check_options(options);
  std::optional<ProcessMemory> process;
  if (options.memory_is == MemoryIs::process) process = process_of(network, options, held);
  Session session = open_session(options.device, cores_of(options).intra_op, tiers_of(options));
  if (options.optimizer.ranks > 1) {
    LinkInfo link = kAssumedLink;
    link.ranks = options.optimizer.ranks;
    session.device = with_wire(std::move(session.device), link, nullptr);
  }
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
