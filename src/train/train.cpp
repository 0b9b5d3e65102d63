#include "plimsoll/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include "plimsoll/checkpoint.h"
#include "plimsoll/data.h"
#include "plimsoll/execute.h"
#include "plimsoll/verify.h"
#include "kernels/workspace_limits.h"
#include "compile/plan_file.h"
#include "train/resume.h"
#include "train/evaluation.h"
#include "train/session.h"
#include "train/core_tuner.h"
#include "cores/side_by_side.h"
#include "train/sharing_in_plan.h"
#include "train/training_loop.h"

namespace plimsoll {
namespace {

constexpr int64_t kStepsToCorrect = 5;        // fewer tell too little about the usual step
constexpr double kPredictionTolerance = 0.1;
constexpr double kHostShare = 0.85;           // of the free memory, when no budget is given
constexpr Bytes kMeasuringRoom = 64_MiB;      // beyond the budget, for buffers while kernels are measured
constexpr Bytes kHostReserve = 512_MiB;

// The largest resident size that the process has had, by the kernel's account.
Bytes process_peak() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("VmHWM:")) return {std::stoll(line.substr(6)) * 1024};
  }
  return {};
}

ModelInput default_input_of(std::string_view model) {
  const std::string_view stem = model.substr(0, model.find(':'));
  for (const ModelListing& listing : list_models()) {
    if (listing.name == stem || listing.name == model) return listing.default_input;
  }
  return {};
}

// Images that have no size of their own come in the network's size.
std::shared_ptr<const DataSet> open_for(const TrainOptions& options) {
  DataOptions wanted{.channels = 0, .height = options.image_size, .width = options.image_size, .classes = 0, .seed = options.seed};
  const std::string_view kind = std::string_view(options.data).substr(0, options.data.find(':'));
  if (kind == "synthetic" || kind == "images") {
    const ModelInput usual = default_input_of(options.model);
    wanted.channels = usual.channels;
    if (options.image_size == 0) {
      wanted.height = usual.height;
      wanted.width = usual.width;
    }
    wanted.classes = options.classes > 0 ? options.classes : usual.classes;
  }
  return open_data(options.data, wanted);
}

ModelInput input_for(const TrainOptions& options, const DataInfo& data) {
  if (options.classes > 0 && options.classes < data.classes) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("{} has {} classes; {} are too few: raise --num-classes", data.name, data.classes, options.classes));
  }
  return {.batch = options.batch,
          .channels = data.channels,
          .height = data.height,
          .width = data.width,
          .classes = std::max(options.classes, data.classes),
          .training = true};
}

bool needs_calibration(const Program& program, const CostTable& costs) {
  const Graph& graph = program.network.graph;
  for (const Step& step : program.plan.steps) {
    if (step.kernel.empty()) continue;
    const auto cost = costs.find_in_step({op_signature(graph, graph.op(step.op)), step.kernel, step.threads, step.affinity == Affinity::spread});
    if (!cost) return true;
  }
  return false;
}

// The prediction was off: what the last step took, if it was a usual one, predicts better next time.
void correct_costs(Session& session, const Program& program, const Executor& executor, double usual_ms) {
  double last_ms = 0;
  for (const auto& records : {executor.records(), executor.copies()}) {
    for (const StepRecord& record : records) last_ms = std::max(last_ms, record.end_ms);
  }
  std::vector<std::vector<double>> times;
  const std::vector<bool> alone = ran_alone(program.plan, executor);
  for (const double ms : compute_times(program.plan, executor)) {
    times.push_back(alone[times.size()] ? std::vector<double>{ms} : std::vector<double>{});
  }
  if (std::abs(last_ms / usual_ms - 1) < kPredictionTolerance) keep_step_times(session, program, std::move(times));
}

Bytes default_budget(const Device& device, Bytes host_memory) {
  if (!device.host_addressable()) return device.info().memory_available;  // memory of its own, less what it needs itself
  const int64_t free = std::max<int64_t>(0, device.info().memory_available.count - host_memory.count);
  return {std::max<int64_t>(free / 2, static_cast<int64_t>(static_cast<double>(free) * kHostShare) - kHostReserve.count)};
}

// What a training begins from, besides its options: nothing, a checkpoint, or a saved plan.
struct Beginning {
  std::optional<Checkpoint> checkpoint;
  std::optional<SavedPlan> plan;
};

void check_names(const TrainOptions& options) {
  check(options.schedule);
  check_choices(options.policy, options.placement);
  if (options.resume && options.plan) {
    throw Error(ErrorCode::invalid_input, "--resume and --plan: a resumed training repeats its own kernels; give one of them");
  }
}

// Also takes the seed of a checkpoint: of weights, data, order and dropout, so that the same run goes on.
Beginning begin(TrainOptions& options) {
  Beginning beginning;
  if (options.resume) {
    beginning.checkpoint.emplace(*options.resume);
    check_resumable(options, beginning.checkpoint->state(), *options.resume);
    beginning.checkpoint->check_contents();
    options.seed = beginning.checkpoint->state().seed;
  }
  if (options.plan) {
    beginning.plan = load_plan(*options.plan);
    const PlanRequest& request = beginning.plan->request;
    if (request.model != options.model || request.input.batch != options.batch) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{} is a plan for {} with batch {}, not for {} with batch {}", options.plan->string(),
                              request.model, request.input.batch, options.model, options.batch));
    }
  }
  return beginning;
}

// A saved plan is run as it is: what is compiled for it is the graph alone, in which its kernels and layouts are pinned.
void pin(CompileOptions& compile, const SavedPlan& saved, const TrainOptions& options, const DeviceInfo& device) {
  const std::string file = options.plan->string();
  if (saved.plan.device_key != device.key) {
    throw Error(ErrorCode::invalid_input, fmt::format("{} is a plan for device '{}' ({}), but this is '{}' ({})", file,
                                                      saved.plan.device_name, saved.plan.device_key, device.name, device.key));
  }
  if (options.memory && *options.memory < saved.plan.arena) {
    throw Error(ErrorCode::infeasible, fmt::format("{} needs {} but --memory is {}", file, to_string(saved.plan.arena),
                                                   to_string(*options.memory)));
  }
  compile.memory = {INT64_MAX};
  compile.policy = "liveness";
  compile.family = saved.family;
  for (const Step& step : saved.plan.steps) compile.kernels[saved.graph.op(step.op).name] = step.kernel;
  for (const State& state : saved.graph.states) {
    const Tensor& t = saved.graph.tensor(state.before);
    compile.state_layouts[t.name] = t.layout;
  }
}

CompileOptions compile_options(const TrainOptions& options, const Beginning& beginning, const Session& session,
                               const std::function<void(const std::string&)>& notice) {
  const DeviceInfo& device = session.device->info();
  CompileOptions compile{.memory = options.memory ? *options.memory : default_budget(*session.device, options.host_memory.value_or(0_B)),
                         .policy = options.policy,
                         .placement = options.placement,
                         .tiers = session.tiers,
                         .optimizer = options.optimizer,
                         .exact = options.exact,
                         .workspace = options.workspace.value_or(Bytes{INT64_MAX}),
                         .workspace_total = options.workspace_total,
                         .batch_sizes = options.batch_sizes};
  if (beginning.plan) pin(compile, *beginning.plan, options, device);
  if (!beginning.checkpoint) return compile;
  const TrainingState& saved = beginning.checkpoint->state();
  if (saved.device_key == device.key) {
    pin(compile, saved);
  } else {
    notice(other_device_text(saved.device_key, device));
  }
  return compile;
}

// Kernels that are repeated are not chosen within --workspace and its like; what differs from them is told, never silent.
std::string unkept_limits(const TrainOptions& options, const Program& program, std::string_view origin) {
  std::string text;
  auto tell = [&](const std::string& what) { text += fmt::format("{}{}", text.empty() ? "" : "; ", what); };
  Bytes most, sum;
  std::string op_of_most;
  bool divided = false;
  const Graph& graph = program.network.graph;
  for (OpId id{0}; id.index < graph.op_count(); ++id.index) {
    const KernelChoice& kernel = program.kernels[static_cast<size_t>(id.index)];
    divided = divided || !parts_of(kernel.kernel).empty();
    if (counts_in_total(graph.op(id))) sum += kernel.workspace;
    if (kernel.workspace <= most) continue;
    most = kernel.workspace;
    op_of_most = graph.op(id).name;
  }
  if (options.workspace && most > *options.workspace) {
    tell(fmt::format("--workspace {} is not kept: '{}' takes {}", to_string(*options.workspace), op_of_most, to_string(most)));
  }
  if (options.workspace_total && sum > *options.workspace_total) {
    tell(fmt::format("--workspace-total {} is not kept: {} are taken", to_string(*options.workspace_total), to_string(sum)));
  }
  if (options.batch_sizes && (*options.batch_sizes != BatchSizes::undivided || divided)) {
    tell(fmt::format("--batch-sizes {} changes nothing", to_string(*options.batch_sizes)));
  }
  return text.empty() ? text : fmt::format("{}'s kernels are kept, so that results stay exactly the same: {}", origin, text);
}

// Measures the kernels that the database lacks. Returns an answer when no plan fits: then it is not worth measuring.
std::optional<Infeasible> measure_kernels(Session& session, const Network& network, const CompileOptions& compile,
                                          const TrainOptions& options, const TrainListener& listener,
                                          const std::function<void(const std::string&)>& notice) {
  const BusyMeter busy;
  auto first = compile_training(network, *session.device, session.costs, compile);
  if (auto* infeasible = std::get_if<Infeasible>(&first)) {
    name_least_memory(*infeasible, network, *session.device, session.costs, compile);
    return std::move(*infeasible);
  }
  MeasureOptions measuring;
  measuring.memory = {std::min(compile.memory.count, INT64_MAX - kMeasuringRoom.count) + kMeasuringRoom.count};
  measuring.batches = options.batch_sizes.value_or(BatchSizes::undivided);
  measuring.stop = listener.stop;
  measuring.progress = [&](int done, int total, const std::string& what) {
    if (listener.preparing) listener.preparing(what, done, total);
  };
  const int measured = measure_missing(session, network, compile, measuring);
  if (measured > 0) {
    notice(session.database->is_kept() ? fmt::format("measured {} kernels; kept in {}", measured, CostDatabase::default_path().string())
                                       : fmt::format("measured {} kernels, for this run only: {}", measured, session.database->notice()));
    if (busy.others() > kTooBusy) {
      notice(fmt::format("other processes kept the machine {:.0f} % busy meanwhile, so these times mislead; when it is quiet, measure anew "
                         "with `plimsoll profile {} --batch {} --again`", 100 * busy.others(), options.model, options.batch));
    }
  }
  if (listener.stop && listener.stop()) throw Error(ErrorCode::interrupted, "interrupted before the first step");
  return std::nullopt;
}

using Refusals = std::set<std::pair<std::string, std::string>>;  // ops and kernels

// Runs the step once on meaningless values: what the library of a device with memory of its own refuses to run is known only when
// it is asked. Returns the memory, for the training to go on in; nothing where the plan must be made again, without what was refused.
std::optional<Memory> rehearse(const Session& session, const Program& program, Refusals& known, const std::function<void(const std::string&)>& notice) {
  Executor executor(program.network.graph, program.plan, *session.device,
                    {.capture = false, .spill = session.spill, .peer = session.peer});
  const std::vector<KernelRefused> refused = executor.rehearse();
  if (refused.empty()) return executor.memory();
  for (const KernelRefused& refusal : refused) {
    if (!known.emplace(refusal.op(), refusal.kernel()).second) throw KernelRefused(refusal);  // it is offered all the same
  }
  const std::string others = refused.size() > 1 ? fmt::format(" ({} more are refused)", refused.size() - 1) : "";
  notice(fmt::format("{}{}; planned again without it", refused[0].what(), others));
  return std::nullopt;
}

// Puts a saved plan in the place of the one just made, if it is for the same graph and safe.
void use_plan(Program& program, const SavedPlan& saved, const TrainOptions& options) {
  const std::string file = options.plan->string();
  if (saved.plan.graph_fingerprint != program.plan.graph_fingerprint) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("{} was made for another graph: '{}' {:016x}, but '{}' here is {:016x}; images, classes, optimizer and "
                            "its settings must be those that `plan` was told, with --data and the others", file,
                            saved.plan.graph_name, saved.plan.graph_fingerprint, program.network.graph.name,
                            program.plan.graph_fingerprint));
  }
  if (const auto violations = verify(program.network.graph, saved.plan, 1); !violations.empty()) {
    throw Error(ErrorCode::invalid_input, fmt::format("{} is not safe: {}", file, violations[0].message));
  }
  program.plan = saved.plan;
  program.policy = saved.plan.policy;
  if (options.memory) program.plan.budget = *options.memory;
}

// Lets steps run side by side, where that was asked for. A resumed training repeats what it chose. What is returned looks after
// a choice from step to step.
std::unique_ptr<CoreTuner> share(Program& program, const Sharing& sharing, Session& session, const Beginning& beginning, bool measure,
                                    const std::function<void(const std::string&)>& notice) {
  if (beginning.plan) return nullptr;
  if (const std::string text = relax_program(program, sharing, session.costs); !text.empty()) notice(text);
  if (!sharing.choose) {
    set_sharing(program, sharing, session.costs);
    return nullptr;
  }
  const bool same = beginning.checkpoint && beginning.checkpoint->state().device_key == session.device->info().key;
  if (same && pin_threads(program, beginning.checkpoint->state())) {
    use_stays(program, program.plan.cores.inter_op > 1);
    shrink_arena(program);
    return nullptr;
  }
  return std::make_unique<CoreTuner>(session, program, sharing, measure, notice);
}

// What cannot be done with a saved plan is told as the plan's fault.
template <class Action>
auto naming_plan(const TrainOptions& options, const Action& action) {
  try {
    return action();
  } catch (const Error& error) {
    if (options.plan) throw Error(ErrorCode::invalid_input, fmt::format("{}: {}", options.plan->string(), error.what()));
    throw;
  }
}

}  // namespace

ModelInput training_input(const TrainOptions& options) { return input_for(options, open_for(options)->info()); }

std::variant<DoneEvent, Infeasible> train(const TrainOptions& asked, const TrainListener& listener) {
  TrainOptions options = asked;
  const std::function<void(const std::string&)> notice = [&](const std::string& text) {
    if (listener.notice) listener.notice(text);
  };
  check_names(options);
  const Beginning beginning = begin(options);
  const std::shared_ptr<const DataSet> data = open_for(options);
  const ModelInput input = input_for(options, data->info());
  const Network network = build_model(options.model, input);

  const TierOptions tiers{.host_memory = options.host_memory, .spill = options.spill, .spill_size = options.spill_size,
                          .peer = options.peer, .peer_size = options.peer_size};
  const Sharing sharing = share_cores(
      options.device, {.threads = options.threads, .inter_op = options.inter_op, .intra_op = options.intra_op,
                       .strategies = options.strategies, .climb_interval = options.climb_interval}, options.exact);
  if (!sharing.notice.empty()) notice(sharing.notice);
  Session session = open_session(options.device, sharing.op_threads, tiers);
  for (const std::string& text : session.notices) notice(text);
  CompileOptions compile = compile_options(options, beginning, session, notice);
  const bool measure = options.costs == "measured";
  if (measure && !options.exact && compile.kernels.empty()) {
    if (auto infeasible = measure_kernels(session, network, compile, options, listener, notice)) return *infeasible;
  }
  const auto before = session.device->memory_now();  // less than when it was opened: kernels were loaded since
  if (before && !options.memory && !beginning.plan) compile.memory = std::min(compile.memory, before->available);
  Program program;
  Memory memory;
  for (Refusals refused;;) {
    auto compiled = naming_plan(options, [&] { return compile_training(network, *session.device, session.costs, compile); });
    if (auto* infeasible = std::get_if<Infeasible>(&compiled)) {
      name_least_memory(*infeasible, network, *session.device, session.costs, compile);
      return *infeasible;
    }
    program = std::get<Program>(std::move(compiled));
    if (beginning.plan) use_plan(program, *beginning.plan, options);
    if (!before || !compile.kernels.empty()) break;
    if (auto rehearsed = rehearse(session, program, refused, notice)) {
      memory = std::move(*rehearsed);
      break;
    }
  }
  if (!compile.kernels.empty()) {
    if (const std::string text = unkept_limits(options, program, beginning.plan ? "the plan" : "the checkpoint"); !text.empty()) notice(text);
  }
  if (measure && !beginning.plan && needs_calibration(program, session.costs)) {
    memory = {};
    calibrate(session, program);
  }
  const std::unique_ptr<CoreTuner> core_tuner = share(program, sharing, session, beginning, measure, notice);
  const double predicted_ms = program.plan.predicted.step_time_ms;
  if (listener.planned) listener.planned(program, data->info().name);

  if (!beginning.plan) put_sharing(program.plan.cores, sharing, session.device->info());
  if (sharing.choose) program.plan.cores.conflicts = conflicting_ops(program, session.costs);
  const auto training_step = naming_plan(options, [&] {
    return std::make_unique<TrainingStep>(
        program, *session.device,
        ExecuteOptions{.check_memory = options.check_memory, .record_times = true, .spill = session.spill, .peer = session.peer},
        std::move(memory));
  });
  for (const auto& tier : training_step->executor().memory().tiers) {
    if (tier->name() == "disk") notice(fmt::format("spilling to {}: {}", tier->where(), tier->how()));
  }
  TrainingPlace place;
  if (beginning.checkpoint) {
    training_step->load(*beginning.checkpoint);
    const TrainingState& saved = beginning.checkpoint->state();
    place = {.step = saved.step, .epoch = saved.epoch, .batch_in_epoch = saved.batch_in_epoch};
    training_step->start_at(saved.step, options.seed);
  } else {
    training_step->initialize(options.seed);
  }
  LoaderOptions loading{.split = Split::train, .batch = options.batch, .seed = options.seed, .epoch = place.epoch,
                        .first_batch = place.batch_in_epoch, .threads = options.workers};
  if (options.augment) loading.augmentation = data->info().augmentation;
  if (beginning.checkpoint) check_place(beginning.checkpoint->state(), data->info().train_count / options.batch, *options.resume);
  Loader loader(data, loading);
  const auto pinned = pin_batches(loader, *session.device, notice);
  std::optional<Evaluation> evaluation;
  if (options.evaluate_every > 0 && data->info().test_count > 0 && program.network.labels.valid()) {
    evaluation.emplace(options.model, input, program, *session.device, session.costs, compile,
                       ExecuteOptions{.check_memory = options.check_memory, .spill = session.spill, .peer = session.peer},
                       training_step->executor().memory(),
                       CoreSharing{.inter_op = sharing.inter_op, .cores = program.plan.cores.cores});
  }

  std::function<void()> after_step;
  if (core_tuner) after_step = [&] { core_tuner->after_step(*training_step); };
  const TrainingParts parts{.options = options, .listener = listener, .data = data, .program = program,
                            .device_key = session.device->info().key, .training_step = *training_step,
                            .evaluation = evaluation ? &*evaluation : nullptr, .after_step = after_step,
                            .settled = [&] { return !core_tuner || core_tuner->settled(); }};
  DoneEvent done = TrainingLoop(parts, loader, place).run();
  if (core_tuner) core_tuner->finish();
  const Executor& executor = training_step->executor();
  done.budget = program.plan.budget;
  done.predicted_step_time_ms = predicted_ms;
  if (measure && done.steps >= kStepsToCorrect && std::abs(predicted_ms / done.step_time_ms - 1) > kPredictionTolerance) {
    correct_costs(session, program, executor, done.step_time_ms);
  }
  done.peak = executor.measured_peak();
  done.captured = executor.is_captured();
  done.weights_sha256 = training_step->weights_sha256();
  done.process_peak = process_peak();
  if (const auto now = session.device->memory_now()) done.device = std::max(before->free - now->free, 0_B);
  const bool ran = done.steps > 0;
  if (listener.recorded) {
    const std::span<const StepRecord> none;
    listener.recorded(program, ran ? executor.records() : none, ran ? executor.copies() : none);
  }
  return done;
}

}  // namespace plimsoll
