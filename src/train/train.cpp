#include "plimsoll/train.h"
#include "device/tier/tier.h"

#include <fmt/format.h>

#include <algorithm>

#include "compile/plan_file.h"
#include "compile/verify_file.h"
#include "cores/share_cores.h"
#include "device/collectives.h"
#include "device/cpu/machine.h"
#include "plan/together.h"
#include "plimsoll/checkpoint.h"
#include "plimsoll/data.h"
#include "plimsoll/execute.h"
#include "plimsoll/network_file.h"
#include "plimsoll/ops.h"
#include "plimsoll/verify.h"
#include "train/beginning.h"
#include "train/core_tuner.h"
#include "train/crowd_monitor.h"
#include "train/evaluation.h"
#include "train/given_plan.h"
#include "train/process_memory.h"
#include "train/ranks.h"
#include "train/rehearse.h"
#include "train/resume.h"
#include "train/session.h"
#include "train/training_data.h"
#include "train/training_loop.h"
#include "train/weights_file.h"

namespace plimsoll {
namespace {

constexpr int64_t kStepsToCorrect = 5;  // fewer tell too little about the usual step

bool needs_calibration(const Program& program, const CostTable& costs) {
  const Graph& graph = program.network.graph;
  for (const Step& step : program.plan->steps) {
    if (step.kernel.empty() || graph.op(step.op).type->is_collective) continue;
    const std::string signature = op_signature(graph, graph.op(step.op));
    const bool spread = step.affinity == Affinity::spread;
    if (!costs.find_in_step({signature, step.kernel, step.threads, spread}) &&
        !costs.find_in_step({signature, kernel_together(step.kernel), step.threads, spread}))
      return true;
  }
  return false;
}

std::string measured_text(const Measured& measured, const CostDatabase& database) {
  const std::string again =
      measured.again > 0 ? fmt::format(", {} of them anew: they had been measured on a busy machine", measured.again)
                         : "";
  const std::string busy =
      measured.busy > 0 ? fmt::format(", {} of them while other processes kept the machine busy", measured.busy) : "";
  return fmt::format("measured {} kernel{}{}{}{}", measured.kernels, measured.kernels == 1 ? "" : "s", again, busy,
                     database.is_kept() ? fmt::format("; kept in {}", CostDatabase::default_path().string())
                                        : fmt::format(", for this run only: {}", database.notice()));
}

// What kernels may be measured in: the arena's budget, and what else of the process is not in use yet.
Bytes measuring_room(const TrainOptions& options, Bytes budget, const ProcessMemory& process) {
  const Bytes in_use = process.program + process.kernels, unused = process.beside() - in_use;
  const Bytes room = std::max(Bytes{std::min(budget.count, INT64_MAX - unused.count)} + unused, kMeasuringRoom);
  if (options.memory_is == MemoryIs::arena) return room;
  return std::max(std::min(room, *options.memory - in_use), 0_B);
}

// Measures the kernels that the database lacks. Returns an answer when no plan fits: then it is not
// worth measuring.
std::optional<Infeasible> measure_kernels(Session& session, const Network& network, const CompileOptions& compile,
                                          const MeasureOptions& measuring, const TrainListener& listener,
                                          const std::function<void(const std::string&)>& notice) {
  auto first = compile_training(network, *session.device, session.costs, compile);
  if (auto* infeasible = std::get_if<Infeasible>(&first)) return std::move(*infeasible);
  const Measured measured = measure_missing(session, network, compile, measuring);
  if (measured.kernels > 0) notice(measured_text(measured, *session.database));
  if (listener.stop && listener.stop()) throw Error(ErrorCode::interrupted, "interrupted before the first step");
  return std::nullopt;
}

// Runs the step once on meaningless values: what the library of a device with memory of its own refuses to run is known
// only when it is asked. `memory` is then what the training goes on in; or, where the plan must be made again without what
// was refused, what of it the next one keeps, and this is false.
bool rehearse_step(const Session& session, const Program& program, Refusals& known, Memory& memory,
                   const std::function<void(const std::string&)>& notice) {
  Executor executor(program.network.graph, program.plan, *session.device,
                    {.capture = false, .spill = session.spill, .peer = session.peer, .remote = session.remote},
                    std::move(memory));
  const std::vector<KernelRefused> refused = rehearse(executor, known);
  memory = refused.empty() ? executor.memory() : kept_memory(executor);
  if (refused.empty()) return true;
  const std::string others = refused.size() > 1 ? fmt::format(" ({} more are refused)", refused.size() - 1) : "";
  notice(fmt::format("{}{}; planned again without it", refused[0].what(), others));
  return false;
}

// What cannot be done with a saved plan is told as the plan's fault.
template <class Action>
auto naming_plan(const TrainOptions& options, const Action& action) {
  try {
    return action();
  } catch (const Error& error) {
    if (!options.plan || error.code() == ErrorCode::device_failure) throw;
    throw Error(ErrorCode::invalid_input, fmt::format("{}: {}", plan_name(options), error.what()));
  }
}

// A training as it is made ready: each part by what stands above it.
class Training {
 public:
  Training(const TrainOptions& asked, const TrainListener& listener);
  std::variant<DoneEvent, Infeasible> run();

 private:
  using Notice = std::function<void(const std::string&)>;
  void join_ranks();
  Bytes probing_room() const;
  MeasureOptions measure_options() const;
  Bytes budget_of_ranks() const;
  std::optional<Infeasible> plan_together();
  PlanRequest request() const;
  bool measures() const { return options_.costs == "measured"; }
  bool process_is_stated() const { return options_.memory_is == MemoryIs::process; }
  std::optional<Infeasible> plan();
  std::optional<Infeasible> compile();
  bool choose_division_anew();
  void share_cores();
  void tell_of_busy_times() const;
  void watch_crowd(const TrainingStep& step);
  void swap_plans(TrainingStep& step);
  void keep_first_times();
  TrainingStep make_step();
  TrainingPlace begin_states(TrainingStep& step) const;
  Loader make_loader(const TrainingPlace& place, const TrainingStep& step) const;
  std::optional<Evaluation> make_evaluation(const Executor& executor) const;
  DoneEvent train(TrainingStep& step);
  void complete(DoneEvent& done, const TrainingStep& step);

  TrainOptions options_;
  const TrainListener& listener_;
  const Notice notice_;
  Beginning beginning_;
  const std::shared_ptr<const DataSet> data_;
  const ModelInput input_;
  const Network network_;
  const std::optional<WeightsFile> weights_;
  WeightsMatch match_;  // of weights_
  const CoreOptions cores_;
  const ProcessMemory process_;
  Session session_;
  Bytes budget_;  // of the arena
  CompileOptions compile_;
  Bytes free_before_;  // of the device's memory, before the arena was taken
  Program program_;
  Memory memory_;                        // that was taken already
  std::unique_ptr<CoreTuner> tuner_;     // none: the plan is not chosen while it trains
  std::optional<CrowdMonitor> crowd_;    // none: others are nothing to it
  std::optional<StepTimes> step_times_;  // of the first steps, while they are not known
  LoadMeter load_ = LoadMeter();         // of the training
  double predicted_ms_ = 0;
};

TrainOptions checked(const TrainOptions& options) {
  check_names(options);
  if (options.memory_is == MemoryIs::process) check_memory_is_process(options.device, options.memory.has_value());
  return options_of_rank(options);
}

ProcessUse process_use(const TrainOptions& options, const DataSet& data, const CoreOptions& cores) {
  return {.memory_is = options.memory_is,
          .training = true,
          .evaluates = options.evaluate_every > 0,
          .threads = std::max(cores.cores, cores.intra_op),
          .workers = options.workers,
          .data = data_bytes(data),
          .decoders = options.data.starts_with("images") ? options.workers : 0,
          .ranks = ranks_of(options),
          .tiers = tiers_of(options)};
}

Training::Training(const TrainOptions& asked, const TrainListener& listener)
    : options_(checked(asked)),
      listener_(listener),
      notice_([&listener](const std::string& text) {
        if (listener.notice && !text.empty()) listener.notice(text);
      }),
      beginning_(begin(options_)),
      data_(open_training_data(options_)),
      input_(training_input(options_, data_->info())),
      network_(build_model(options_.model, input_)),
      weights_(options_.weights ? std::optional<WeightsFile>(*options_.weights) : std::nullopt),
      cores_(core_options(options_.device,
                          {.threads = threads_of(options_),
                           .inter_op = options_.inter_op,
                           .intra_op = options_.intra_op,
                           .strategies = options_.strategies,
                           .climb_interval = options_.climb_interval},
                          options_.exact)),
      process_(process_memory(network_, process_use(options_, *data_, cores_))) {
  if (weights_ && weights_->is_checkpoint()) Checkpoint(*options_.weights).check_contents();
  check_length(options_, data_->info());
  check_fed_by_data(network_);
  check_values_are_given(options_);
  if (beginning_.checkpoint)
    check_place(beginning_.checkpoint->state(), data_->info().train_count / options_.batch, *options_.resume);
  if (weights_) {
    match_ = match_weights(*weights_, network_, options_.classes > 0);
    notice_(fmt::format("{}: {}", weights_->name(), to_text(match_)));
  }
  notice_(cores_.notice);
  if (options_.communicator) cpu::count_as_own(options_.communicator->sharers());
  session_ =
      open_session(options_.device, cores_.intra_op, tiers_of(options_), probing_room(), neighbours_of(options_));
  find_feeding(session_, probing_room());
  for (const std::string& text : session_.notices) notice_(text);
  if (options_.communicator) join_ranks();
  budget_ = process_is_stated() ? arena_within(process_, *options_.memory)
            : options_.memory   ? *options_.memory
                                : default_budget(*session_.device, options_.host_memory.value_or(0_B));
  if (options_.communicator && !options_.memory) budget_ = budget_of_ranks();
  compile_ = compile_options(options_, budget_, beginning_, session_, notice_);
}

Bytes Training::probing_room() const {
  return process_is_stated() ? std::max(*options_.memory - process_.program, 0_B) : Bytes{INT64_MAX};
}

// As one of several ranks: messages to the others are kernels of the device.
void Training::join_ranks() {
  const std::shared_ptr<Wire> wire = open_wire(*session_.device, options_.communicator);
  const LinkInfo link = open_link(session_, *wire, probing_room(), notice_);
  session_.device = with_wire(std::move(session_.device), link, wire);
}

// What each may take where nothing is said: all processes of a machine see the same memory that is free. GPUs have their
// own, and one plan is for all of them.
Bytes Training::budget_of_ranks() const {
  Communicator& ranks = *options_.communicator;
  if (!session_.device->info().own_memory) return {budget_.count / std::ssize(ranks.ranks_here())};
  const std::vector<Bytes> all = ranks.all_gather(budget_);
  return *std::ranges::min_element(all);
}

PlanRequest Training::request() const {
  return {.model = options_.model,
          .input = input_,
          .optimizer = options_.optimizer,
          .exact = options_.exact,
          .memory = program_.plan->budget,
          .host_memory = options_.host_memory,
          .spill_size = options_.spill_size,
          .remote_memory = options_.remote_memory,
          .threads = options_.threads,
          .inter_op = options_.inter_op,
          .intra_op = options_.intra_op};
}

// The first rank's plan, by all of them.
std::optional<Infeasible> Training::plan_together() {
  Communicator* const ranks = options_.communicator.get();
  const Heartbeat heartbeat(ranks);  // measuring and planning may take longer than the others would wait
  if (ranks == nullptr || ranks->is_first()) {
    std::optional<Infeasible> infeasible = plan();
    if (!infeasible) {
      share_cores();
      if (shares_cores(*program_.plan)) program_.bound_ms = program_.plan->predicted.lower_bound_ms;
    }
    if (ranks != nullptr) send_plan(*ranks, request(), infeasible ? nullptr : &program_);
    if (infeasible) return infeasible;
  } else {
    measure_beside(*ranks, session_, network_, compile_, measure_options());
    std::optional<SavedPlan> saved = receive_plan(*ranks);
    if (!saved) return Infeasible{.policy = options_.policy};
    beginning_.plan = std::move(saved);
    pin(compile_, *beginning_.plan, options_, session_.device->info());
    if (auto infeasible = compile()) return infeasible;
  }
  if (ranks != nullptr) check_same_plan(*ranks, program_);
  return std::nullopt;
}

MeasureOptions Training::measure_options() const {
  MeasureOptions measuring;
  measuring.memory = measuring_room(options_, budget_, process_);
  measuring.tolerance = kMeasuringTolerance;
  measuring.batches = options_.batch_sizes.value_or(BatchSizes::undivided);
  return measuring;
}

// To a plan of one step after another, with measured costs; or of the saved plan.
std::optional<Infeasible> Training::plan() {
  MeasuringTogether beside(options_);
  if (measures()) forget_busy_times(session_);
  if (measures() && !options_.exact && compile_.kernels.empty()) {
    MeasureOptions measuring = measure_options();
    measuring.stop = listener_.stop;
    measuring.progress = [&](int done, int total, const std::string& what) {
      beside.tell(what);
      if (listener_.preparing) listener_.preparing(what, done, total);
    };
    if (auto infeasible = measure_kernels(session_, network_, compile_, measuring, listener_, notice_))
      return infeasible;
  }
  beside.end();
  const auto now = session_.device->memory_now();  // less than when it was opened: kernels were loaded since
  if (now) free_before_ = now->free;
  if (now && !options_.memory && !beginning_.plan) compile_.memory = std::min(compile_.memory, now->available);
  if (auto infeasible = compile()) return infeasible;
  if (!compile_.kernels.empty())
    notice_(unkept_limits(options_, program_, beginning_.plan ? "the plan" : "the checkpoint"));
  if (measures() && !beginning_.plan && needs_calibration(program_, session_.costs)) {
    if (cores_.choose || cores_.inter_op > 1 || session_.device->info().asynchronous) {
      program_.plan = calibrate(session_, program_, memory_);
    } else {
      step_times_.emplace();  // nothing is chosen by them in this run
    }
  }
  tell_of_busy_times();
  return std::nullopt;
}

void Training::tell_of_busy_times() const {
  const int busy = busy_steps(program_, session_.costs);
  if (busy == 0) return;
  notice_(fmt::format(
      "{} of the plan's {} steps have their times from a busy machine, so kernels and prediction may be off; these times "
      "{}",
      busy, program_.plan->steps.size(), fate_of_busy_times(*session_.database)));
}

// Until the device refuses no kernel of the plan.
std::optional<Infeasible> Training::compile() {
  for (Refusals refused;;) {
    auto compiled =
        naming_plan(options_, [&] { return compile_training(network_, *session_.device, session_.costs, compile_); });
    if (auto* infeasible = std::get_if<Infeasible>(&compiled)) {
      if (!choose_division_anew()) return *infeasible;
      continue;
    }
    program_ = std::get<Program>(std::move(compiled));
    if (beginning_.plan) use_plan(program_, *beginning_.plan, options_, budget_, *session_.device);
    if (!session_.device->memory_now() || !compile_.kernels.empty()) return std::nullopt;
    if (rehearse_step(session_, program_, refused, memory_, notice_)) return std::nullopt;
  }
}

// Where a resumed training does not fit as it was divided among the ranks. Returns whether there is another way.
bool Training::choose_division_anew() {
  if (ranks_of(options_) < 2 || options_.zero || !compile_.zero || beginning_.plan) return false;
  notice_(
      fmt::format("{} had ZeRO stage {}, for which --memory is too little now: kernels are chosen anew, so results may "
                  "differ in the last bits",
                  options_.resume->string(), *compile_.zero));
  compile_ = compile_options_of(options_, session_, budget_);
  return true;
}

// Lets steps run side by side, where that was asked for. A saved plan says itself how; a resumed training repeats what
// it chose. A choice is looked after from step to step: then the arena is large enough for every plan that may come.
void Training::share_cores() {
  if (beginning_.plan) return;
  const Graph& graph = program_.network.graph;
  const CoreInput input{graph, *session_.device, session_.costs, cores_};
  if (!cores_.choose) {
    const SharedCores shared = plimsoll::share_cores(input, program_.plan);
    for (const std::string& text : shared.notices) notice_(text);
    program_.plan = check_plan(graph, shared.plan);
    return;
  }
  if (beginning_.checkpoint && beginning_.checkpoint->state().device_key == session_.device->info().key) {
    const RelaxedPlan relaxed = relax(input, program_.plan);
    if (auto plan = saved_cores(input, program_.plan, relaxed.plan, beginning_.checkpoint->state())) {
      notice_(relaxed.notice);
      if (const auto violations = verify_safety(graph, *plan, 1); !violations.empty()) {
        throw Error(ErrorCode::corrupt_file,
                    fmt::format("{}: its cores make no plan: {}", options_.resume->string(), violations[0].message));
      }
      program_.plan = check_plan(graph, std::move(*plan));
      return;
    }
  }
  tuner_ = std::make_unique<CoreTuner>(session_, graph, program_.plan, cores_, measures(), notice_);
  program_.plan = tuner_->plan();
}

TrainingStep Training::make_step() {
  give_memory_back();  // that planning and measuring took
  return naming_plan(options_, [&] {
    return TrainingStep(program_, *session_.device,
                        {.check_memory = options_.check_memory,
                         .record_times = true,
                         .spill = session_.spill,
                         .peer = session_.peer,
                         .remote = session_.remote},
                        std::move(memory_), tuner_ ? tuner_->arena() : Bytes{});
  });
}

// From the checkpoint, or drawn.
TrainingPlace Training::begin_states(TrainingStep& step) const {
  if (!beginning_.checkpoint) {
    step.initialize(options_.seed);
    step.start_at(0, options_.seed);
    if (weights_) take_weights(*weights_, match_, step);
    return {};
  }
  step.load(*beginning_.checkpoint);
  const TrainingState& saved = beginning_.checkpoint->state();
  step.start_at(saved.step, options_.seed, saved.batch_in_epoch % options_.optimizer.accumulate);
  return {
      .step = saved.step, .epoch = saved.epoch, .batch_in_epoch = saved.batch_in_epoch, .so_far = saved.epoch_so_far};
}

Loader Training::make_loader(const TrainingPlace& place, const TrainingStep& step) const {
  LoaderOptions loading{.split = Split::train,
                        .batch = own_batch(options_),
                        .part = options_.communicator ? options_.communicator->rank() : 0,
                        .parts = ranks_of(options_),
                        .seed = options_.seed,
                        .epoch = place.epoch,
                        .first_batch = place.batch_in_epoch,
                        .threads = options_.workers,
                        .channels_last = step.takes_channels_last()};
  if (options_.augment) loading.augmentation = data_->info().augmentation;
  return Loader(data_, loading);
}

std::optional<Evaluation> Training::make_evaluation(const Executor& executor) const {
  std::optional<Evaluation> evaluation;
  const bool wanted = options_.evaluate_every > 0 && program_.network.labels.valid();
  const bool asked = wanted && data_->info().test_count > 0;
  if (wanted && !asked) {
    notice_(fmt::format("{} has no {} to test on, so nothing is evaluated", data_->info().name,
                        data_->info().windows.context > 0
                            ? fmt::format("window of {} tokens", data_->info().windows.context)
                            : "image"));
  }
  const bool can = asked && has_evaluation(options_.model);
  if (asked && !can)
    notice_(fmt::format("{} was exported without its evaluation, so nothing is evaluated", options_.model));
  if (can) {
    Communicator* const ranks = options_.communicator.get();
    const bool sends = ranks != nullptr && program_.sharding.stage == kMostShardingStage;
    std::optional<CostTable> common;
    if (sends) common = common_costs(*ranks, session_.costs, session_.device->info());
    evaluation.emplace(options_.model, input_, program_, *session_.device, common ? *common : session_.costs, compile_,
                       ExecuteOptions{.check_memory = options_.check_memory,
                                      .spill = session_.spill,
                                      .peer = session_.peer,
                                      .remote = session_.remote},
                       executor.memory(), cores_);
  }
  return evaluation;
}

// Threads that are more than there are processors for are what a CPU's ops suffer from. Their number changes the last
// bits of a result: it stays where somebody relies on it.
void Training::watch_crowd(const TrainingStep& step) {
  const int threads = session_.device->info().threads;
  if (!plimsoll::shares_cores(options_.device) || threads < 2 || options_.inter_op == 0 || options_.communicator)
    return;
  CrowdOptions crowd{.threads = threads};
  if (options_.exact) {
    crowd.stays = "--exact";
  } else if (beginning_.plan) {
    crowd.stays = "--plan";
  } else if (options_.inter_op != 1 || options_.intra_op != 0) {
    crowd.stays = options_.inter_op != 1 ? "--inter-op" : "--intra-op";
  } else if (options_.threads != 0) {
    crowd.stays = "--threads";
  } else {
    crowd.fewer = [this, &step](int fewer) {
      const Graph& graph = step.program().network.graph;
      const CoreInput input{graph, *session_.device, session_.costs, cores_};
      return check_plan(graph, serial_with(input, step.program().plan, fewer));
    };
  }
  crowd_.emplace(program_.plan, std::move(crowd));
}

void Training::keep_first_times() {
  if (!step_times_) return;
  step_times_->keep(session_, program_);
  step_times_.reset();
}

// After every step but the last.
void Training::swap_plans(TrainingStep& step) {
  if (step_times_ && step_times_->add(program_.plan, step.executor())) keep_first_times();
  if (tuner_) {
    if (!tuner_->after_step(step.executor())) return;
    program_.plan = tuner_->plan();
    step.swap(program_.plan);
  } else if (crowd_) {
    double ms = 0;
    for (const StepRecord& record : step.executor().records()) ms = std::max(ms, record.end_ms);
    const std::optional<PlanChange> change = crowd_->after_step(ms);
    if (!change) return;
    notice_(change->notice);
    if (&*change->plan == &*program_.plan) return;
    keep_first_times();  // they are of the plan until now
    program_.plan = change->plan;
    step.swap(program_.plan);
  }
}

DoneEvent Training::train(TrainingStep& step) {
  const TrainingPlace place = begin_states(step);
  Loader loader = make_loader(place, step);
  const auto pinned = pin_batches(loader, *session_.device, notice_);
  std::optional<Evaluation> evaluation = make_evaluation(step.executor());
  watch_crowd(step);
  load_.restart();
  give_memory_back();
  const TrainingParts parts{.options = options_,
                            .listener = listener_,
                            .data = data_,
                            .classes = input_.classes,
                            .program = program_,
                            .device_key = session_.device->info().key,
                            .training_step = step,
                            .evaluation = evaluation ? &*evaluation : nullptr,
                            .after_step = [&] { swap_plans(step); },
                            .has_chosen = [&] { return !tuner_ || tuner_->has_chosen(); }};
  DoneEvent done = TrainingLoop(parts, loader, place).run();
  done.weights_sha256 =
      options_.communicator ? common_weights_sha256(*options_.communicator, step) : step.weights_sha256();
  return done;
}

void Training::complete(DoneEvent& done, const TrainingStep& step) {
  const Executor& executor = step.executor();
  if (tuner_) tuner_->finish();
  keep_first_times();
  done.budget = program_.plan->budget;
  done.predicted_step_time_ms = predicted_ms_;
  if (!program_.plan->feeding.inputs.empty()) done.predicted_wall_time_ms = program_.plan->predicted.wall_time_ms;
  if (measures() && done.steps >= kStepsToCorrect)
    correct_step_times(session_, program_, executor, done.step_time_ms,
                       !session_.device->info().asynchronous && is_busy(load_.load()));
  done.peak = step.measured_peak();
  done.captured = executor.is_captured();
  done.process_peak = process_peak();
  done.process =
      process_is_stated() ? *options_.memory : with_plan(process_, program_.plan).with(executor.arena_bytes());
  if (process_is_stated() && done.process_peak > done.process) {
    notice_(fmt::format(
        "the process took {} at its peak, more than the {} of --memory; of these, {} were counted on "
        "beside the arena: {}. Please report this",
        to_string(done.process_peak), to_string(done.process), to_string(process_.beside()), to_text(process_)));
  }
  if (const auto now = session_.device->memory_now()) done.device = std::max(free_before_ - now->free, 0_B);
  if (!listener_.recorded) return;
  const std::span<const StepRecord> none;
  const bool ran = done.steps > 0;
  listener_.recorded(program_, ran ? executor.records() : none, ran ? executor.copies() : none,
                     ran ? executor.messages() : none);
}

std::variant<DoneEvent, Infeasible> Training::run() {
  if (auto infeasible = plan_together())
    return process_is_stated() ? of_process(*infeasible, process_, *options_.memory) : *infeasible;
  if (process_is_stated()) {
    if (auto refused = refused_by_planning(program_, process_, *options_.memory)) return *refused;
  }
  predicted_ms_ = program_.plan->predicted.step_time_ms;
  if (const std::string text = last_resort_text(program_, *session_.device); !text.empty()) notice_(text);
  if (listener_.planned) listener_.planned(program_, data_->info().name, with_plan(process_, program_.plan));
  TrainingStep step = make_step();
  for (const auto& tier : step.executor().memory().tiers) {
    if (tier->name() == "disk" || tier->name() == "remote")
      notice_(fmt::format("spilling to {}: {}", tier->where(), tier->how()));
  }
  DoneEvent done = train(step);
  complete(done, step);
  return done;
}

}  // namespace

std::variant<DoneEvent, Infeasible> train(const TrainOptions& options, const TrainListener& listener) {
  return Training(options, listener).run();
}

}  // namespace plimsoll
