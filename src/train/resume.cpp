#include "train/resume.h"

#include <fmt/format.h>
#include <charconv>

#include <algorithm>
#include <cmath>

#include "plan/simulate.h"
#include "plimsoll/verify.h"
#include "train/training_loop.h"

namespace plimsoll {
namespace {

using Settings = std::map<std::string, std::string, std::less<>>;

// Leaves `value` alone when the checkpoint says nothing of it.
template <class Number>
void take(const Settings& settings, std::string_view name, Number least, Number most, Number& value) {
  const auto it = settings.find(name);
  if (it == settings.end()) return;
  const std::string& text = it->second;
  Number found{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), found);
  if (error != std::errc() || end != text.data() + text.size() || !(found >= least && found <= most)) {
    throw Error(ErrorCode::corrupt_file,
                fmt::format("training state: setting '{}': expected a number from {} to {}, not '{}'", name, least,
                            most, text.substr(0, 60)));
  }
  value = found;
}

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

// What checkpoints had before they had a place for it: numbers as texts, among the settings.
std::optional<SavedCores> cores_of_settings(const Graph& graph, const Settings& settings) {
  if (!settings.contains("inter_op_chosen")) return std::nullopt;
  SavedCores cores;
  take(settings, "inter_op_chosen", 1, kMostThreads, cores.sharing.inter_op);
  for (OpId id{0}; id.index < graph.op_count(); ++id.index) {
    const std::string& name = graph.op(id).name;
    SavedCores::OpThreads op;
    int affinity = 0;
    take(settings, "threads of " + name, 0, kMostThreads, op.threads);
    take(settings, "affinity of " + name, 0, static_cast<int>(Affinity::smt), affinity);
    op.affinity = static_cast<Affinity>(affinity);
    if (op != SavedCores::OpThreads{}) cores.ops[name] = op;
  }
  return cores;
}

// Settings that `saved_options` and `saved_cores` take.
void check_setting_names(const Settings& settings) {
  for (const auto& [name, value] : settings) {
    constexpr std::string_view kKnown[] = {
        "image_size",  "classes",      "augment",    "warmup_epochs", "warmup_lr",      "min_lr",
        "decay_rate",  "decay_epochs", "inter_op",   "intra_op",      "climb_interval", "strategies",
        "host_memory", "spill",        "spill_size", "peer",          "peer_size",      "inter_op_chosen"};
    if (std::find(std::begin(kKnown), std::end(kKnown), name) != std::end(kKnown)) continue;
    if (name.starts_with("threads of ") || name.starts_with("affinity of ")) continue;
    throw Error(ErrorCode::corrupt_file, fmt::format("training state: setting '{}' is not known", name));
  }
}

}  // namespace

TrainingState state_to_save(const TrainOptions& options, const Program& program, std::string_view device_key,
                            bool settled) {
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
  state.settings = {{"image_size", fmt::to_string(options.image_size)},
                    {"classes", fmt::to_string(options.classes)},
                    {"augment", options.augment ? "1" : "0"},
                    {"warmup_epochs", fmt::to_string(options.schedule.warmup_epochs)},
                    {"warmup_lr", fmt::format("{}", options.schedule.warmup_lr)},
                    {"min_lr", fmt::format("{}", options.schedule.min_lr)},
                    {"decay_rate", fmt::format("{}", options.schedule.decay_rate)},
                    {"decay_epochs", fmt::to_string(options.schedule.decay_epochs)}};
  if (options.host_memory) state.settings["host_memory"] = fmt::to_string(options.host_memory->count);
  if (options.spill) state.settings["spill"] = options.spill->string();
  if (options.inter_op != 1) state.settings["inter_op"] = fmt::to_string(options.inter_op);
  if (options.intra_op != 0) state.settings["intra_op"] = fmt::to_string(options.intra_op);
  if (options.strategies) state.settings["strategies"] = to_string(*options.strategies);
  if (options.climb_interval != 0) state.settings["climb_interval"] = fmt::to_string(options.climb_interval);
  if (options.inter_op == 0 && settled) state.cores = cores_to_save(graph, program.plan);
  if (options.peer) state.settings["peer"] = *options.peer;
  if (options.peer_size) state.settings["peer_size"] = fmt::to_string(options.peer_size->count);
  if (options.spill_size) state.settings["spill_size"] = fmt::to_string(options.spill_size->count);
  return state;
}

TrainOptions saved_options(const TrainingState& state) {
  check_setting_names(state.settings);
  TrainOptions options{.model = state.model,
                       .data = state.data,
                       .batch = state.batch,
                       .policy = state.policy,
                       .placement = state.placement,
                       .device = state.device,
                       .threads = state.threads,
                       .epochs = state.total_epochs,
                       .steps = state.total_steps,
                       .optimizer = state.optimizer,
                       .seed = state.seed,
                       .exact = state.exact};
  if (state.budget.count != INT64_MAX) options.memory = state.budget;
  options.schedule.name = state.schedule;
  options.schedule.lr = state.learning_rate;
  constexpr int64_t kMostEpochs = int64_t{1} << 30;
  int64_t augment = 1;
  take(state.settings, "image_size", int64_t{0}, int64_t{1} << 16, options.image_size);
  take(state.settings, "classes", int64_t{0}, int64_t{1} << 24, options.classes);
  take(state.settings, "augment", int64_t{0}, int64_t{1}, augment);
  take(state.settings, "warmup_epochs", int64_t{0}, kMostEpochs, options.schedule.warmup_epochs);
  take(state.settings, "warmup_lr", 0.0, 1e9, options.schedule.warmup_lr);
  take(state.settings, "min_lr", 0.0, 1e9, options.schedule.min_lr);
  take(state.settings, "decay_rate", 0.0, 1.0, options.schedule.decay_rate);
  take(state.settings, "decay_epochs", int64_t{1}, kMostEpochs, options.schedule.decay_epochs);
  take(state.settings, "inter_op", 0, kMostThreads, options.inter_op);
  take(state.settings, "intra_op", 0, kMostThreads, options.intra_op);
  take(state.settings, "climb_interval", 0, kMostThreads, options.climb_interval);
  if (const auto it = state.settings.find("strategies"); it != state.settings.end()) {
    try {
      options.strategies = strategies_named(it->second);
    } catch (const Error& error) {
      throw Error(ErrorCode::corrupt_file, fmt::format("training state: setting 'strategies': {}", error.what()));
    }
  }
  options.augment = augment == 1;
  auto take_bytes = [&](std::string_view name, std::optional<Bytes>& value) {
    Bytes bytes;
    if (!state.settings.contains(name)) return;
    take(state.settings, name, int64_t{1}, INT64_MAX, bytes.count);
    value = bytes;
  };
  take_bytes("host_memory", options.host_memory);
  take_bytes("spill_size", options.spill_size);
  take_bytes("peer_size", options.peer_size);
  if (const auto it = state.settings.find("peer"); it != state.settings.end()) options.peer = it->second;
  if (const auto it = state.settings.find("spill"); it != state.settings.end()) options.spill = it->second;
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
}

std::optional<Plan> saved_cores(const CoreInput& input, const Plan& plan, const Plan& relaxed,
                                const TrainingState& saved) {
  const Graph& graph = input.graph;
  std::optional<SavedCores> cores = saved.cores;
  const bool old = !cores;
  if (old) cores = cores_of_settings(graph, saved.settings);
  if (!cores) return std::nullopt;
  Plan result = serial(input, cores->sharing.inter_op > 1 ? relaxed : plan);
  for (Step& step : result.steps) {
    const auto op = cores->ops.find(graph.op(step.op).name);
    if (op == cores->ops.end()) continue;
    step.threads = op->second.threads;
    step.affinity = op->second.affinity;
  }
  result.cores = cores->sharing;
  if (old) {
    result.cores.cores = input.options.cores;
    result.cores.cores_a_cache = input.device.info().cores.cores_a_cache;
    result.cores.hardware_threads = input.options.hardware_threads;
    result.cores.conflicts = conflicts_of(graph, result, input.costs);
  }
  for (const auto& [first, second] : cores->conflicts) {
    const OpId a = graph.find_op(first), b = graph.find_op(second);
    if (a.valid() && b.valid() && a != b) result.cores.conflicts.push_back(std::minmax(a, b));
  }
  std::sort(result.cores.conflicts.begin(), result.cores.conflicts.end());
  if (!is_order(result.cores.order, result.steps.size())) result.cores.order.clear();  // of another budget's steps
  take_times(graph, result, input.costs);
  result.predicted = simulate(graph, result);
  return result;
}

}  // namespace plimsoll
