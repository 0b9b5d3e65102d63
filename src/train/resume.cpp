#include "train/resume.h"

#include <fmt/format.h>

#include <algorithm>

#include "plan/simulate.h"
#include "plimsoll/verify.h"
#include "train/training_loop.h"

namespace plimsoll {
namespace {

// Every step once.
bool is_order(std::vector<StepIndex> order, size_t steps) {
  std::sort(order.begin(), order.end());
  for (size_t s = 0; s < order.size(); ++s) {
    if (order[s] != static_cast<StepIndex>(s)) return false;
  }
  return order.size() == steps;
}

SavedCores cores_to_save(const Graph& graph, const Plan& plan) {
  SavedCores cores{.sharing = plan.cores};
  cores.sharing.conflicts.clear();
  for (const auto& [a, b] : plan.cores.conflicts) cores.conflicts.emplace_back(graph.op(a).name, graph.op(b).name);
  for (const Step& step : plan.steps) {
    if (step.threads == 0 && step.affinity == Affinity::close) continue;
    cores.ops[graph.op(step.op).name] = {step.threads, step.affinity};
  }
  return cores;
}

// The graph may be another, where the checkpoint goes on in another budget or with other kernels.
bool has_ops(const Graph& graph, const SavedCores& cores) {
  const auto has = [&](const std::string& op) { return graph.find_op(op).valid(); };
  return std::all_of(cores.ops.begin(), cores.ops.end(), [&](const auto& op) { return has(op.first); }) &&
         std::all_of(cores.conflicts.begin(), cores.conflicts.end(), [&](const auto& pair) {
           return has(pair.first) && has(pair.second) && pair.first != pair.second;
         });
}

}  // namespace

TrainingState state_to_save(const TrainOptions& options, const Program& program, std::string_view device_key,
                            bool has_chosen) {
  TrainingState state{.seed = options.seed,
                      .model = options.model,
                      .data = options.data,
                      .batch = options.batch,
                      .optimizer = options.optimizer,
                      .learning_rate = options.schedule.lr,
                      .schedule = options.schedule.name,
                      .total_steps = options.steps,
                      .total_epochs = options.epochs,
                      .policy = options.policy,
                      .placement = options.placement,
                      .budget = program.plan->budget,
                      .exact = options.exact,
                      .device = options.device,
                      .device_key = std::string(device_key),
                      .threads = options.threads,
                      .layout_family = std::string(to_string(program.family))};
  const Graph& graph = program.network.graph;
  for (int32_t i = 0; i < graph.op_count(); ++i) {
    state.kernels[graph.op({i}).name] = program.kernels[i].kernel;
  }
  for (const State& s : graph.states) {
    state.state_layouts[graph.tensor(s.before).name] = graph.tensor(s.before).layout.tag;
  }
  state.settings = {.image_size = options.image_size,
                    .classes = options.classes,
                    .augment = options.augment,
                    .warmup_epochs = options.schedule.warmup_epochs,
                    .decay_epochs = options.schedule.decay_epochs,
                    .evaluate_every = options.evaluate_every,
                    .warmup_lr = options.schedule.warmup_lr,
                    .min_lr = options.schedule.min_lr,
                    .decay_rate = options.schedule.decay_rate,
                    .inter_op = options.inter_op,
                    .intra_op = options.intra_op,
                    .climb_interval = options.climb_interval,
                    .strategies = options.strategies,
                    .host_memory = options.host_memory,
                    .spill_size = options.spill_size,
                    .peer_size = options.peer_size,
                    .remote_memory = options.remote_memory,
                    .peer = options.peer};
  state.settings.ranks = options.optimizer.ranks;
  state.settings.zero_stage = program.sharding.stage;
  state.settings.zero_least = program.sharding.least;
  if (options.memory_is == MemoryIs::process) state.settings.process_memory = options.memory;
  if (options.spill) state.settings.spill = options.spill->string();
  if (options.inter_op == 0 && has_chosen) state.cores = cores_to_save(graph, program.plan);
  return state;
}

TrainOptions saved_options(const TrainingState& state) {
  const SavedSettings& settings = state.settings;
  TrainOptions options{.model = state.model,
                       .data = state.data,
                       .batch = state.batch,
                       .host_memory = settings.host_memory,
                       .spill_size = settings.spill_size,
                       .peer = settings.peer,
                       .peer_size = settings.peer_size,
                       .remote_memory = settings.remote_memory,
                       .policy = state.policy,
                       .placement = state.placement,
                       .device = state.device,
                       .threads = state.threads,
                       .inter_op = settings.inter_op,
                       .intra_op = settings.intra_op,
                       .strategies = settings.strategies,
                       .climb_interval = settings.climb_interval,
                       .epochs = state.total_epochs,
                       .steps = state.total_steps,
                       .optimizer = state.optimizer,
                       .schedule = {.name = state.schedule,
                                    .lr = state.learning_rate,
                                    .min_lr = settings.min_lr,
                                    .decay_rate = settings.decay_rate,
                                    .decay_epochs = settings.decay_epochs,
                                    .warmup_epochs = settings.warmup_epochs,
                                    .warmup_lr = settings.warmup_lr},
                       .seed = state.seed,
                       .exact = state.exact,
                       .image_size = settings.image_size,
                       .classes = settings.classes,
                       .augment = settings.augment,
                       .evaluate_every = settings.evaluate_every};
  if (state.budget.count != INT64_MAX) options.memory = state.budget;
  if (settings.process_memory) {
    options.memory = settings.process_memory;
    options.memory_is = MemoryIs::process;
  }
  if (settings.spill) options.spill = *settings.spill;
  return options;
}

void check_resumable(const TrainOptions& options, const TrainingState& saved, const std::filesystem::path& file) {
  auto differ = [&](std::string_view what, const std::string& now, const std::string& then) {
    if (now != then) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{} was saved with {} {}, but {} is asked for now", file.string(), what, then, now));
    }
  };
  differ("model", options.model, saved.model);
  differ("batch", fmt::to_string(options.batch), fmt::to_string(saved.batch));
  differ("optimizer", options.optimizer.name, saved.optimizer.name);
  const auto frozen = [](const std::vector<std::string>& patterns) {
    return patterns.empty() ? std::string("nothing") : fmt::format("'{}'", fmt::join(patterns, "' '"));
  };
  differ("--freeze", frozen(options.optimizer.freeze), frozen(saved.optimizer.freeze));
  differ("--accumulate", fmt::to_string(options.optimizer.accumulate), fmt::to_string(saved.optimizer.accumulate));
  auto kind = [](const std::string& data) { return data.substr(0, data.find(':')); };
  differ("data", kind(options.data), kind(saved.data));
}

std::string other_device_text(std::string_view saved_key, const DeviceInfo& device) {
  // "oneDNN 3.1 avx512 2 threads, Intel ...": where the numbers alone differ, that is what to tell.
  auto parts = [](std::string_view key) {
    const size_t end = key.find(" threads, ");
    const size_t begin = end == std::string_view::npos ? 0 : key.rfind(' ', end - 1) + 1;
    const std::string count(end == std::string_view::npos ? std::string_view{} : key.substr(begin, end - begin));
    return std::pair(count, std::string(key.substr(0, begin)) + std::string(key.substr(begin + count.size())));
  };
  const auto [then, rest_then] = parts(saved_key);
  const auto [now, rest_now] = parts(device.key);
  if (rest_then == rest_now && !then.empty() && !now.empty()) {
    return fmt::format(
        "threads of an op: {} before this checkpoint, {} now: kernels are chosen anew for that, so results may differ "
        "in the last bits; --intra-op {} repeats them",
        then, now, then);
  }
  return fmt::format(
      "the checkpoint is from another device ({}); it goes on with this one's kernels, so results may differ in the "
      "last bits",
      saved_key);
}

void check_place(const TrainingState& saved, int64_t batches_per_epoch, const std::filesystem::path& file) {
  if (batches_per_epoch < 1) return;  // the loader tells that the data has too few samples
  const int64_t accumulate = saved.optimizer.accumulate, per_epoch = steps_for(batches_per_epoch, accumulate);
  if (saved.batch_in_epoch < batches_per_epoch && saved.step / per_epoch == saved.epoch &&
      saved.step % per_epoch == saved.batch_in_epoch / accumulate) {
    return;
  }
  throw Error(
      ErrorCode::invalid_input,
      fmt::format("{} stopped after step {}, before batch {} of epoch {}; with {} batches an epoch, as the data has "
                  "now, there is no such place: the data is another, or the file is damaged",
                  file.string(), saved.step, saved.batch_in_epoch + 1, saved.epoch + 1, batches_per_epoch));
}

void pin(CompileOptions& compile, const TrainingState& saved) {
  compile.kernels = saved.kernels;
  for (const auto& [name, tag] : saved.state_layouts) compile.state_layouts[name] = {tag};
  compile.family = family_named(saved.layout_family);
  compile.zero = saved.settings.zero_stage;
  compile.optimizer.sharding = {.stage = saved.settings.zero_stage, .least = saved.settings.zero_least};
}

std::optional<Plan> saved_cores(const CoreInput& input, const Plan& plan, const Plan& relaxed,
                                const TrainingState& saved) {
  if (!saved.cores || !has_ops(input.graph, *saved.cores)) return std::nullopt;
  const Graph& graph = input.graph;
  const SavedCores& cores = *saved.cores;
  Plan result = serial(input, cores.sharing.inter_op > 1 ? relaxed : plan);
  for (Step& step : result.steps) {
    const auto op = cores.ops.find(graph.op(step.op).name);
    if (op == cores.ops.end()) continue;
    step.threads = op->second.threads;
    step.affinity = op->second.affinity;
  }
  result.cores = cores.sharing;
  if (cores.sharing.cores == 0) {
    result.cores.cores = input.options.cores;
    result.cores.cores_a_cache = input.device.info().cores.cores_a_cache;
    result.cores.hardware_threads = input.options.hardware_threads;
    result.cores.conflicts = conflicts_of(graph, result, input.costs);
  }
  for (const auto& [first, second] : cores.conflicts) {
    result.cores.conflicts.push_back(std::minmax(graph.find_op(first), graph.find_op(second)));
  }
  std::sort(result.cores.conflicts.begin(), result.cores.conflicts.end());
  if (!is_order(result.cores.order, result.steps.size())) result.cores.order.clear();  // of another budget's steps
  take_times(graph, result, input.costs);
  result.predicted = simulate(graph, result);
  return result;
}

}  // namespace plimsoll
