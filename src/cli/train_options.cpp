#include "cli/train_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "autodiff/optimizers.h"
#include "autodiff/update_rules.h"
#include "cli/checks.h"
#include "compile/plan_file.h"
#include "plimsoll/checkpoint.h"
#include "plimsoll/data.h"
#include "train/resume.h"

namespace plimsoll::cli {
namespace {

// The settings of `plimsoll train` without a model: a small residual network on the bundled digits, in a budget that is
// a fraction of what every tensor in memory of its own would need.
constexpr std::string_view kDefaultModel = "resnet20";
constexpr std::string_view kDefaultMemory = "12MiB";
constexpr int64_t kDefaultEpochs = 12;
constexpr int64_t kTextEpochs = 3, kByteVocabulary = 256;

double default_lr(std::string_view optimizer) {
  return optimizer == "sgd" ? 0.05 : update_rule(optimizer).learning_rate;
}

// Flags that were not given come from the checkpoint, so that `--resume FILE` alone goes on with what was begun.
void take_from_checkpoint(const TrainFlags& flags, TrainOptions& options, const CLI::App& command) {
  TrainOptions saved;
  try {
    saved = saved_options(Checkpoint(flags.resume).state());
  } catch (const Error& error) {
    const std::string text = error.what();
    throw Error(error.code(), text.starts_with(flags.resume) ? text : fmt::format("{}: {}", flags.resume, text));
  }
  auto given = [&](const char* name) { return command.count(name) > 0; };
  auto take = [&](const char* flag, auto& now, const auto& then) {
    if (!given(flag)) now = then;
  };
  if (given("--seed") && flags.seed != saved.seed) {
    throw Error(ErrorCode::invalid_input, fmt::format("{} was trained with --seed {}, but --seed {} is asked for now",
                                                      flags.resume, saved.seed, flags.seed));
  }
  if (flags.model.empty()) options.model = saved.model;
  take("--data", options.data, saved.data);
  take("--batch", options.batch, saved.batch);
  take("--optimizer", options.optimizer.name, saved.optimizer.name);
  take("--momentum", options.optimizer.momentum, saved.optimizer.momentum);
  take("--weight-decay", options.optimizer.weight_decay, saved.optimizer.weight_decay);
  take("--nesterov", options.optimizer.nesterov, saved.optimizer.nesterov);
  options.optimizer.beta1 = saved.optimizer.beta1;
  options.optimizer.beta2 = saved.optimizer.beta2;
  options.optimizer.epsilon = saved.optimizer.epsilon;
  options.optimizer.settings = saved.optimizer.settings;
  flags.set_optimizer(options.optimizer);
  take("--freeze", options.optimizer.freeze, saved.optimizer.freeze);
  take("--clip-grad-norm", options.optimizer.clip_grad_norm, saved.optimizer.clip_grad_norm);
  take("--accumulate", options.optimizer.accumulate, saved.optimizer.accumulate);
  take("--sync-batch-norm", options.optimizer.sync_batch_norm, saved.optimizer.sync_batch_norm);
  take("--lr", options.schedule.lr, saved.schedule.lr);
  take("--sched", options.schedule.name, saved.schedule.name);
  take("--warmup-epochs", options.schedule.warmup_epochs, saved.schedule.warmup_epochs);
  take("--warmup-lr", options.schedule.warmup_lr, saved.schedule.warmup_lr);
  take("--min-lr", options.schedule.min_lr, saved.schedule.min_lr);
  take("--decay-rate", options.schedule.decay_rate, saved.schedule.decay_rate);
  take("--decay-epochs", options.schedule.decay_epochs, saved.schedule.decay_epochs);
  if (!given("--epochs") && !given("--steps")) {
    options.epochs = saved.epochs;
    options.steps = saved.steps;
  }
  take("--policy", options.policy, saved.policy);
  take("--placement", options.placement, saved.placement);
  // What --memory was of comes with it.
  if (saved.memory && !given("--memory")) {
    if (given("--memory-is") && options.memory_is != saved.memory_is) {
      throw Error(
          ErrorCode::invalid_input,
          fmt::format("--memory-is {}: {} was trained with --memory of the {}; say with --memory how much it is "
                      "now",
                      flags.memory_is, flags.resume, saved.memory_is == MemoryIs::process ? "process" : "arena"));
    }
    options.memory = saved.memory;
    options.memory_is = saved.memory_is;
  }
  take("--host-memory", options.host_memory, saved.host_memory);
  take("--spill", options.spill, saved.spill);
  take("--spill", options.spill_size, saved.spill_size);
  take("--peer", options.peer, saved.peer);
  take("--peer", options.peer_size, saved.peer_size);
  take("--remote-memory", options.remote_memory, saved.remote_memory);
  take("--exact", options.exact, saved.exact);
  take("--threads", options.threads, saved.threads);
  take("--inter-op", options.inter_op, saved.inter_op);
  take("--intra-op", options.intra_op, saved.intra_op);
  if (!given("--inter-op")) {
    take("--strategies", options.strategies, saved.strategies);
    take("--climb-interval", options.climb_interval, saved.climb_interval);
  }
  take("--device", options.device, saved.device);
  take("--image-size", options.image_size, saved.image_size);
  take("--num-classes", options.classes, saved.classes);
  take("--no-augment", options.augment, saved.augment);
  take("--evaluate-every", options.evaluate_every, saved.evaluate_every);
  if (flags.checkpoint.empty()) options.checkpoint = flags.resume;
}

// Refuses flags that a saved plan cannot obey, each by its name.
class PlanContradictions {
 public:
  PlanContradictions(const std::string& file, const CLI::App& command) : file_(file), command_(command) {}

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorCode::invalid_input, fmt::format("{} {}; make another plan, or leave the flag out", file_, what));
  }
  bool given(const char* flag) const { return command_.count(flag) > 0; }
  template <class Value>
  void check(const char* flag, const Value& asked, const Value& planned) const {
    if (given(flag) && asked != planned)
      refuse(fmt::format("was made with {0} {1}, which {0} {2} cannot change", flag, planned, asked));
  }
  // What the plan keeps in a tier needs this flag, unless its size says all, with a size that is large enough.
  void check_tier(const char* flag, const char* tier, const Plan& plan, const std::optional<Bytes>& asked) const {
    for (const TierUse& use : plan.tiers) {
      if (use.tier.name != tier || use.used.count == 0) continue;
      if (!given(flag) && tier != std::string_view("host") && tier != std::string_view("remote")) {
        throw Error(ErrorCode::invalid_input,
                    fmt::format("{} keeps {} outside the arena; say where with {}", file_, to_string(use.used), flag));
      }
      if (given(flag) && asked && *asked < use.used)
        refuse(fmt::format("keeps {} there, more than {} {}", to_string(use.used), flag, to_string(*asked)));
    }
  }

 private:
  const std::string& file_;
  const CLI::App& command_;
};

// Cores that the plan was made for, whatever this process may use.
int cores_of(const SavedPlan& saved) {
  if (saved.request.threads > 0) return saved.request.threads;
  const bool one_at_a_time = saved.request.inter_op == 1 && saved.request.intra_op == 0;
  return one_at_a_time ? saved.plan.device_threads : saved.plan.cores.cores;
}

void check_flags(const TrainFlags& flags, const SavedPlan& saved, const CLI::App& command) {
  const PlanContradictions plan(flags.plan, command);
  const PlanRequest& request = saved.request;
  if (request.paper_layers) plan.refuse("is of the papers' layer model (plan --layer-model paper), which is never run");
  if (plan.given("--policy") && flags.policy != saved.plan.policy) {
    plan.refuse(
        fmt::format("is a plan by policy '{}', which --policy {} cannot change", saved.plan.policy, flags.policy));
  }
  if (plan.given("--placement") && flags.placement != saved.plan.placement) {
    plan.refuse(fmt::format("has its offsets from placement '{}', which --placement {} cannot change",
                            saved.plan.placement, flags.placement));
  }
  if (flags.exact && !request.exact) plan.refuse("was made without --exact, so its kernels may be others");
  for (const char* flag : {"--inter-op", "--intra-op", "--strategies", "--climb-interval"}) {
    if (plan.given(flag))
      plan.refuse(fmt::format("says itself how many ops run at once, and with how many threads, without {}", flag));
  }
  const OptimizerOptions &asked = flags.optimizer_options(), &planned = request.optimizer;
  plan.check("--device", flags.device, saved.plan.device_name);
  plan.check("--optimizer", asked.name, planned.name);
  const OptimizerSettings asked_settings = all_settings(asked), planned_settings = all_settings(planned);
  for (const auto& [name, value] : asked_settings) {
    std::string flag = fmt::format("--{}", name);
    std::ranges::replace(flag, '_', '-');
    const auto there = planned_settings.find(name);
    if (there != planned_settings.end() && setting_of_optimizers(name).is_form) {
      plan.check(flag.c_str(), value != 0, there->second != 0);
    } else if (there != planned_settings.end()) {
      plan.check(flag.c_str(), value, there->second);
    } else if (name != "momentum" && plan.given(flag.c_str())) {
      plan.refuse(fmt::format("was made with --optimizer {}, which has no {}", planned.name, flag));
    }
  }
  const auto listed = [](const std::vector<std::string>& patterns) {
    return fmt::format("{}", fmt::join(patterns, " "));
  };
  plan.check("--freeze", listed(asked.freeze), listed(planned.freeze));
  plan.check("--clip-grad-norm", asked.clip_grad_norm, planned.clip_grad_norm);
  plan.check("--accumulate", asked.accumulate, planned.accumulate);
  plan.check("--sync-batch-norm", asked.sync_batch_norm, planned.sync_batch_norm);
  if (const auto stage = flags.zero()) plan.check("--zero", *stage, planned.sharding.stage);
  if (const int threads = cores_of(saved); threads > 0) plan.check("--threads", flags.threads, threads);
  if (request.input.height > 0) plan.check("--image-size", flags.image_size, request.input.height);
  if (request.input.classes > 0) plan.check("--num-classes", flags.classes, request.input.classes);
  const TierOptions tiers = flags.tiers();
  plan.check_tier("--host-memory", "host", saved.plan, tiers.host_memory);
  plan.check_tier("--spill", "disk", saved.plan, tiers.spill_size);
  plan.check_tier("--peer", "peer", saved.plan, tiers.peer_size);
  plan.check_tier("--remote-memory", "remote", saved.plan, tiers.remote_memory);
}

// A plan says what the network is, and how it is run: flags that were not given come from it, and those that were may
// not say otherwise. (train() compares model, batch, memory and device, and the graph.)
void take_from_plan(const TrainFlags& flags, TrainOptions& options, const CLI::App& command) {
  const SavedPlan saved = load_plan(flags.plan);
  check_flags(flags, saved, command);
  auto given = [&](const char* name) { return command.count(name) > 0; };
  options.threads = cores_of(saved);
  options.inter_op = saved.request.inter_op;
  options.intra_op = saved.request.intra_op;
  if (options.inter_op > 1) options.intra_op = saved.plan.device_threads;
  options.policy = saved.plan.policy;
  options.placement = saved.plan.placement;
  options.exact = saved.request.exact;
  options.optimizer = saved.request.optimizer;
  options.device = saved.plan.device_name;
  if (!given("--lr")) options.schedule.lr = default_lr(options.optimizer.name);
  if (!given("--host-memory")) options.host_memory = saved.request.host_memory;
  if (!given("--spill")) options.spill_size = saved.request.spill_size;
  if (!given("--peer")) options.peer_size = saved.request.peer_size;
  if (!given("--remote-memory")) options.remote_memory = saved.request.remote_memory;
  if (flags.model.empty()) options.model = saved.request.model;
  if (!given("--batch")) options.batch = saved.request.input.batch * saved.request.optimizer.ranks;
  const ModelInput& input = saved.request.input;
  if (given("--data")) return;
  if (token_task(options.model).tokens) {
    options.data = data_for(options.model, options.batch);
    options.classes = input.classes;
    return;
  }
  const bool digits = input.channels == 1 && input.height == 8 && input.width == 8 && input.classes == 10;
  options.data = digits ? kDefaultData : "synthetic";
  if (!digits && !given("--image-size")) options.image_size = input.height;
  if (!digits && !given("--num-classes")) options.classes = input.classes;
}

// Settings that the schedule does not heed.
void check_schedule(const ScheduleOptions& schedule, const CLI::App& command) {
  check(schedule);
  const auto refuse = [&](const char* flag, bool heeded, std::string_view needs) {
    if (command.count(flag) > 0 && !heeded)
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{}: has no effect without {}; add that, or leave it out", flag, needs));
  };
  refuse("--min-lr", schedule.name == "cosine", "--sched cosine");
  refuse("--decay-rate", schedule.name == "step", "--sched step");
  refuse("--decay-epochs", schedule.name == "step", "--sched step");
  refuse("--warmup-lr", schedule.warmup_epochs > 0, "--warmup-epochs");
}

}  // namespace

std::string data_for(const std::string& model, int64_t batch) {
  if (token_task(model).tokens)
    return std::string(usual_input(model).classes == kByteVocabulary ? kDefaultText : "synthetic");
  try {
    build_model(model, {.batch = batch, .channels = 1, .height = 8, .width = 8, .classes = 10});
    return std::string(kDefaultData);
  } catch (const Error&) {
    return "synthetic";
  }
}

TrainOptions options_from(TrainFlags& flags, const CLI::App& command) {
  flags.check(!flags.resume.empty() || !flags.plan.empty());
  TrainOptions options;
  const bool bare = flags.model.empty() && flags.resume.empty() && flags.plan.empty();
  options.model = flags.model.empty() ? std::string(kDefaultModel) : flags.model;
  options.batch = flags.batch > 0 ? flags.batch : bare ? 64 : usual_input(options.model).batch;
  options.memory = flags.memory_bytes();
  options.memory_is = flags.means_process() ? MemoryIs::process : MemoryIs::arena;
  const TierOptions tiers = flags.tiers();
  options.host_memory = tiers.host_memory;
  options.spill = tiers.spill;
  options.spill_size = tiers.spill_size;
  options.peer = tiers.peer;
  options.peer_size = tiers.peer_size;
  options.remote_memory = tiers.remote_memory;
  options.policy = flags.policy;
  options.placement = flags.placement;
  options.device = flags.device;
  options.threads = flags.threads;
  options.inter_op = flags.core_request().inter_op;
  options.intra_op = flags.core_request().intra_op;
  options.strategies = flags.core_request().strategies;
  options.climb_interval = flags.climb_interval;
  options.epochs = flags.epochs;
  options.steps = flags.steps;
  options.optimizer = flags.optimizer_options();
  options.schedule = flags.schedule;
  options.schedule.lr = flags.lr > 0 ? flags.lr : default_lr(options.optimizer.name);
  const auto relative = options.optimizer.settings.find("relative_step");
  if (relative != options.optimizer.settings.end() && relative->second != 0) {
    for (const char* flag : {"--lr", "--sched", "--warmup-epochs"}) {
      if (command.count(flag) == 0) continue;
      throw Error(
          ErrorCode::invalid_input,
          fmt::format("{} has no effect with --relative-step, by which the learning rate follows from the number of "
                      "the step; leave one of them out",
                      flag));
    }
  }
  options.seed = flags.seed;
  options.exact = flags.exact;
  options.workspace = flags.workspace_bytes();
  options.workspace_total = flags.workspace_total_bytes();
  options.batch_sizes = flags.batch_sizes();
  options.zero = flags.zero();
  options.image_size = flags.image_size;
  options.classes = flags.classes;
  options.augment = !flags.no_augment;
  options.workers = flags.workers;
  options.evaluate_every = flags.evaluate_every;
  options.checkpoint_every = flags.checkpoint_every;
  options.costs = flags.costs;
  options.check_memory = flags.check_memory;
  if (!flags.checkpoint.empty()) options.checkpoint = flags.checkpoint;
  if (!flags.resume.empty()) options.resume = flags.resume;
  if (!flags.weights.empty()) options.weights = flags.weights;
  if (!flags.plan.empty()) options.plan = flags.plan;
  options.data = flags.data;
  if (!flags.resume.empty()) take_from_checkpoint(flags, options, command);
  if (!flags.plan.empty() && flags.resume.empty()) take_from_plan(flags, options, command);
  check(options.optimizer);
  if (options.checkpoint_every > 0 && !options.checkpoint)
    throw Error(ErrorCode::invalid_input,
                "--checkpoint-every: there is no file to save to; name it by --checkpoint FILE");
  if (options.data.empty()) options.data = bare ? std::string(kDefaultData) : data_for(options.model, options.batch);
  if (bare) {
    if (!flags.memory) options.memory = parse_bytes(kDefaultMemory);
    if (command.count("--sched") == 0) options.schedule.name = "cosine";
    if (command.count("--weight-decay") == 0) options.optimizer.weight_decay = 1e-4;
  }
  check_schedule(options.schedule, command);
  if (options.epochs == 0 && options.steps == 0)
    options.epochs = options.data == kDefaultData ? kDefaultEpochs : options.data == kDefaultText ? kTextEpochs : 1;
  return options;
}

}  // namespace plimsoll::cli
