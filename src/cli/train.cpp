// train: the whole way from a network's name to trained weights.
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "autodiff/optimizers.h"
#include "base/files.h"
#include "base/texts.h"
#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/interrupts.h"
#include "cli/progress.h"
#include "cli/ranks.h"
#include "compile/plan_file.h"
#include "plimsoll/checkpoint.h"
#include "plimsoll/data.h"
#include "plimsoll/train.h"
#include "report/epoch_log.h"
#include "report/event_file.h"
#include "report/html.h"
#include "report/report.h"
#include "train/resume.h"

namespace plimsoll::cli {
namespace {

using nlohmann::json;

// The settings of `plimsoll train` without a model: a small residual network on the bundled digits, in a budget that is
// a fraction of what every tensor in memory of its own would need.
constexpr std::string_view kDefaultModel = "resnet20";
constexpr std::string_view kDefaultMemory = "12MiB";
constexpr int64_t kDefaultEpochs = 12;
constexpr int64_t kTextEpochs = 3, kByteVocabulary = 256;

double default_lr(std::string_view optimizer) { return optimizer == "sgd" ? 0.05 : 0.001; }

struct TrainFlags : CommonFlags {
  std::string data;
  int64_t epochs = 0, steps = 0;
  double lr = 0;
  ScheduleOptions schedule;
  uint64_t seed = 0;
  bool no_augment = false;
  int workers = 1;
  int64_t evaluate_every = 1, checkpoint_every = 0;
  std::string checkpoint, resume, weights, plan, log_csv, tensorboard, trace, report, costs = "measured";
  bool check_memory = false;
  double timeout = static_cast<double>(kDefaultTimeout.count());
};

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
  plan.check("--momentum", asked.momentum, planned.momentum);
  plan.check("--weight-decay", asked.weight_decay, planned.weight_decay);
  plan.check("--nesterov", asked.nesterov, planned.nesterov);
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
  const bool digits = input.channels == 1 && input.height == 8 && input.width == 8 && input.classes == 10;
  options.data = digits ? kDefaultData : "synthetic";
  if (!digits && !given("--image-size")) options.image_size = input.height;
  if (!digits && !given("--num-classes")) options.classes = input.classes;
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
  check_momentum(flags, options.optimizer.name);
  check(options.optimizer);
  if (options.data.empty()) options.data = bare ? std::string(kDefaultData) : data_for(options.model, options.batch);
  if (bare) {
    if (!flags.memory) options.memory = parse_bytes(kDefaultMemory);
    if (command.count("--sched") == 0) options.schedule.name = "cosine";
    if (command.count("--weight-decay") == 0) options.optimizer.weight_decay = 1e-4;
  }
  if (options.epochs == 0 && options.steps == 0)
    options.epochs = options.data == kDefaultData ? kDefaultEpochs : options.data == kDefaultText ? kTextEpochs : 1;
  return options;
}

json done_json(const DoneEvent& d, const TrainOptions& options) {
  return {{"event", "done"},
          {"interrupted", d.interrupted},
          {"steps", d.steps},
          {"step", d.step},
          {"epochs", d.epochs},
          {"images_per_second", d.images_per_second},
          {"accumulate", options.optimizer.accumulate},
          {"step_time_ms", d.step_time_ms},  // these two: of one batch
          {"predicted_step_time_ms", d.predicted_step_time_ms},
          {"wall_time_ms", d.wall_time_ms},
          {"predicted_wall_time_ms", d.predicted_wall_time_ms ? json(*d.predicted_wall_time_ms) : json(nullptr)},
          {"data_wait_percent", d.data_wait_percent},
          {"captured", d.captured},
          {"peak_bytes", d.peak.count},
          {"budget_bytes", d.budget.count},
          {"process_peak_bytes", d.process_peak.count},
          {"process_bytes", d.process.count},
          {"device_bytes", d.device ? json(d.device->count) : json(nullptr)},
          {"loss", d.loss},
          {"accuracy", d.accuracy ? json(*d.accuracy) : json(nullptr)},
          {"weights_sha256", d.weights_sha256},
          {"training_seconds", d.training_seconds}};
}

// Of a language model: a sample is a window of so many tokens.
struct Language {
  int64_t context = 0;  // 0: none
  explicit operator bool() const { return context > 0; }
};

// With them the model is as unsure as if it chose among so many tokens.
double perplexity(double loss) { return std::exp(loss); }

std::string speed_text(double samples_per_second, Language language) {
  if (!language) return rate_text(samples_per_second);
  return number_text(samples_per_second * static_cast<double>(language.context)) + " tokens/s";
}

std::string done_text(const DoneEvent& d, const TrainOptions& options, Language language) {
  if (d.steps == 0 && !d.interrupted) {
    return fmt::format("nothing to do: {} has done {} steps already; raise {} to go on",
                       options.resume ? options.resume->string() : "the training", d.step,
                       options.steps > 0 && d.step >= options.steps ? "--steps" : "--epochs");
  }
  const int64_t batches = options.optimizer.accumulate;
  const std::string step = batches > 1 ? fmt::format("a batch, of which a step takes up to {},", batches) : "a step";
  return fmt::format(
      "{}: {} step{} in {:.1f} s, {}; {} {} (predicted {}), {} with its data, of which {:.0f} % waiting for it; peak {} of {}, of the process {}",
      d.interrupted ? "interrupted" : "done", d.steps, d.steps == 1 ? "" : "s", d.training_seconds,
      speed_text(d.images_per_second, language), step, time_text(d.step_time_ms), time_text(d.predicted_step_time_ms),
      time_text(d.wall_time_ms), d.data_wait_percent, to_string(d.peak),
      d.budget.count == INT64_MAX ? "no budget" : to_string(d.budget), to_string(d.process_peak));
}

ReportFacts::Measured measured_facts(const DoneEvent& d) {
  return {.steps = d.steps,
          .interrupted = d.interrupted,
          .step_time_ms = d.step_time_ms,
          .images_per_second = d.images_per_second,
          .seconds = d.training_seconds,
          .loss = d.loss,
          .accuracy = d.accuracy,
          .peak = d.peak,
          .process_peak = d.process_peak};
}

json step_json(const StepEvent& e) {
  return {{"event", "step"},
          {"step", e.step},
          {"epoch", e.epoch},
          {"loss", e.loss},
          {"lr", e.lr},
          {"step_time_ms", e.step_time_ms},
          {"wall_time_ms", e.wall_time_ms},
          {"images_per_second", e.images_per_second},
          {"gradient_norm", e.gradient_norm ? json(*e.gradient_norm) : json(nullptr)}};
}

json epoch_json(const EpochEvent& e) {
  return {{"event", "epoch"},
          {"epoch", e.epoch},
          {"step", e.step},
          {"train_loss", e.train_loss},
          {"train_accuracy", e.train_accuracy},
          {"test_loss", e.test_loss ? json(*e.test_loss) : json(nullptr)},
          {"test_accuracy", e.test_accuracy ? json(*e.test_accuracy) : json(nullptr)},
          {"seconds", e.seconds},
          {"lr", e.lr},
          {"images_per_second", e.images_per_second},
          {"data_wait_percent", e.data_wait_percent},
          {"gradient_norm", e.gradient_norm ? json(*e.gradient_norm) : json(nullptr)}};
}

std::string epoch_text(const EpochEvent& e, Language language) {
  std::string text = fmt::format("epoch {}/{}: train loss {:.4f}, ", e.epoch, e.epochs, e.train_loss);
  text += language ? fmt::format("perplexity {:.4g}", perplexity(e.train_loss))
                   : fmt::format("accuracy {:.2f} %", 100 * e.train_accuracy);
  if (e.test_loss) text += fmt::format("; test loss {:.4f}", *e.test_loss);
  if (e.test_loss && language) text += fmt::format(", perplexity {:.4g}", perplexity(*e.test_loss));
  if (e.test_accuracy) text += fmt::format(", accuracy {:.2f} %", 100 * *e.test_accuracy);
  return fmt::format("{} ({:.1f} s)", text, e.seconds);
}

// Tells of a training while it goes on: to a person, as JSON lines, and in the files of --trace and --report.
class Narrator {
 public:
  Narrator(const TrainFlags& flags, const TrainOptions& options) : flags_(flags), options_(options), out_(flags.json) {
    if (!flags.log_csv.empty()) epoch_log_.emplace(flags.log_csv, options.resume.has_value());
    if (!flags.tensorboard.empty()) event_file_.emplace(flags.tensorboard);
  }

  TrainListener listener() {
    TrainListener listener;
    listener.notice = [this](const std::string& text) {
      progress_.finish();
      complain(text);
    };
    listener.preparing = [this](const std::string& what, int64_t done, int64_t total) {
      progress_.update("measuring kernels", done, total, what);
    };
    listener.planned = [this](const Program& program, const std::string& data, const ProcessMemory& process) {
      tell_plan(program, data, process);
    };
    listener.step = [this](const StepEvent& e) { tell_step(e); };
    listener.epoch = [this](const EpochEvent& e) { tell_epoch(e); };
    listener.stop = [] { return interrupted() || output_closed(); };
    listener.save = [notice = listener.notice] {
      const bool asked = save_requested();
      if (asked) notice("SIGHUP: the terminal is gone; what was reached is saved, and training goes on");
      return asked;
    };
    if (!flags_.trace.empty() || !flags_.report.empty()) {
      listener.recorded = [this](const Program& program, std::span<const StepRecord> steps,
                                 std::span<const StepRecord> copies, std::span<const StepRecord> messages) {
        keep_record(program, steps, copies, messages);
      };
    }
    return listener;
  }

  void tell_infeasible(const Infeasible& infeasible) {
    progress_.finish();
    complain(to_text(infeasible));
    json event = infeasible_json(infeasible);
    event["event"] = "plan";
    out_.write(event);
  }

  bool lost_a_log() const { return lost_a_log_; }

  void tell_done(const DoneEvent& done) {
    progress_.finish();
    std::string text = done_text(done, options_, language_);
    if (done.test_loss && language_) text += fmt::format("\ntest perplexity {:.4g}", perplexity(*done.test_loss));
    if (done.accuracy) text += fmt::format("\ntest accuracy {:.2f} %", 100 * *done.accuracy);
    if (options_.checkpoint && done.steps > 0) {
      const std::string file = options_.checkpoint->string();
      text += fmt::format("\nsaved {}; go on with --resume {}", file, file);
    }
    if (recorded_) {
      write_report(done);
      text += fmt::format("\nreport: {} (open it in a browser)", flags_.report);
    }
    say(out_, text);
    json event = done_json(done, options_);
    if (language_) {
      event["test_loss"] = done.test_loss ? json(*done.test_loss) : json(nullptr);
      add_perplexity(event, "test_perplexity", done.test_loss);
      add_tokens_per_second(event, done.images_per_second);
    }
    out_.write(event);
    if (done.interrupted && output_closed()) complain(text);  // to whom it may still reach
  }

 private:
  struct Recorded {
    Program program;
    std::vector<StepRecord> steps;
  };

  static void add_perplexity(json& event, const char* name, const std::optional<double>& loss) {
    event[name] = loss ? json(perplexity(*loss)) : json(nullptr);
  }
  void add_tokens_per_second(json& event, double samples_per_second) const {
    event["tokens_per_second"] = samples_per_second * static_cast<double>(language_.context);
  }

  void tell_plan(const Program& program, const std::string& data, const ProcessMemory& process) {
    progress_.finish();
    const Network& network = program.network;
    if (is_language_model(network)) language_.context = network.graph.tensor(network.data).shape[1];
    say(out_, fmt::format("{} on {}, batch {}, device {}", options_.model, data, options_.batch, options_.device));
    say(out_, plan_text(program, options_.batch) +
                  (shares_cores(options_.device)
                       ? process_text(process, program.plan, options_.memory_is == MemoryIs::process)
                       : ""));
    memory_text_ = to_string(program.plan->arena);
    json event = plan_json(program, {});
    if (shares_cores(options_.device))
      add_process(event, process, program.plan, options_.memory_is == MemoryIs::process);
    event["event"] = "plan";
    out_.write(event);
  }

  void tell_step(const StepEvent& e) {
    progress_.update(fmt::format("epoch {}", e.epoch + 1), e.step, e.total_steps,
                     language_ ? fmt::format("{}, loss {:.4f}, perplexity {:.4g}, lr {:.3g}, {}",
                                             speed_text(e.images_per_second, language_), e.loss, perplexity(e.loss),
                                             e.lr, memory_text_)
                               : fmt::format("{} img/s, loss {:.4f}, lr {:.3g}, {}",
                                             number_text(e.images_per_second, 4), e.loss, e.lr, memory_text_));
    if (out_.active()) {
      json event = step_json(e);
      if (language_) {
        add_perplexity(event, "perplexity", e.loss);
        add_tokens_per_second(event, e.images_per_second);
      }
      out_.write(event);
    }
    if (!event_file_) return;
    std::vector<Scalar> scalars{{"step/loss", e.loss},
                                {"step/lr", e.lr},
                                {"step/time_ms", e.step_time_ms},
                                {"step/wall_time_ms", e.wall_time_ms}};
    if (e.gradient_norm) scalars.push_back({"step/gradient_norm", *e.gradient_norm});
    go_on_without(event_file_, [&] { event_file_->write(e.step, scalars); });
  }

  void tell_epoch(const EpochEvent& e) {
    progress_.finish();
    say(out_, epoch_text(e, language_));
    json event = epoch_json(e);
    if (language_) {
      event["train_accuracy"] = nullptr;
      add_perplexity(event, "train_perplexity", e.train_loss);
      add_perplexity(event, "test_perplexity", e.test_loss);
      add_tokens_per_second(event, e.images_per_second);
    }
    out_.write(event);
    if (epoch_log_) go_on_without(epoch_log_, [&] { epoch_log_->write(e); });
    if (!event_file_) return;
    std::vector<Scalar> scalars{{"loss/train", e.train_loss}, {"lr", e.lr}, {"images_per_second", e.images_per_second}};
    if (!language_) scalars.push_back({"accuracy/train", e.train_accuracy});
    if (language_) scalars.push_back({"perplexity/train", perplexity(e.train_loss)});
    if (language_ && e.test_loss) scalars.push_back({"perplexity/eval", perplexity(*e.test_loss)});
    if (e.test_loss) scalars.push_back({"loss/eval", *e.test_loss});
    if (e.test_accuracy) scalars.push_back({"accuracy/eval", *e.test_accuracy});
    go_on_without(event_file_, [&] { event_file_->write(e.step, scalars); });
  }

  // A disk that is full ends a log, but not what may have been trained for days.
  template <class Log, class Write>
  void go_on_without(std::optional<Log>& log, const Write& write) {
    try {
      write();
    } catch (const Error& error) {
      progress_.finish();
      complain(fmt::format("{}; the training goes on without it", error.what()));
      log.reset();
      lost_a_log_ = true;
    }
  }

  void keep_record(const Program& program, std::span<const StepRecord> steps, std::span<const StepRecord> copies,
                   std::span<const StepRecord> messages) {
    if (!flags_.report.empty()) recorded_ = Recorded{program, {steps.begin(), steps.end()}};
    if (flags_.trace.empty()) return;
    write_file_atomically(flags_.trace, trace_json(program.network.graph, program.plan, steps, copies, messages));
    say(out_,
        fmt::format("trace of the plan and of the last step: {} (open it at https://ui.perfetto.dev)", flags_.trace));
  }

  void write_report(const DoneEvent& done) {
    const Plan& plan = recorded_->program.plan;
    const ReportFacts facts{.model = options_.model,
                            .data = options_.data,
                            .batch = options_.batch,
                            .device = fmt::format("{}: {}", plan.device_name, plan.device_key),
                            .measured = measured_facts(done)};
    write_file_atomically(flags_.report, html_report(recorded_->program, facts, recorded_->steps));
  }

  const TrainFlags& flags_;
  const TrainOptions& options_;
  JsonLines out_;
  std::optional<EpochLog> epoch_log_;
  std::optional<EventFile> event_file_;
  bool lost_a_log_ = false;
  Language language_;
  Progress progress_;
  std::string memory_text_;
  std::optional<Recorded> recorded_;  // the report also tells what is known only when all is done
};

// One of several ranks that is not the first: what it is asked for is written by that one.
TrainListener quiet_listener() {
  TrainListener listener;
  listener.stop = [] { return interrupted(); };
  return listener;
}

int run_train(TrainFlags& flags, const CLI::App& command, const std::shared_ptr<Communicator>& ranks) {
  const bool tells = ranks == nullptr || ranks->is_first();
  if (!tells) {
    for (std::string* file : {&flags.json, &flags.log_csv, &flags.tensorboard, &flags.trace, &flags.report})
      file->clear();
  }
  // A checkpoint may take the place of what the training began with.
  check_apart(
      {{"--json", flags.json}, {"--log-csv", flags.log_csv}, {"--trace", flags.trace}, {"--report", flags.report}},
      {{"--checkpoint", flags.checkpoint},
       {"--resume", flags.resume},
       {"--weights", flags.weights},
       {"--plan", flags.plan}});
  check_apart({{"--checkpoint", flags.checkpoint}}, {{"--plan", flags.plan}});
  check_is_no_stream("--log-csv", flags.log_csv);
  check_is_no_stream("--tensorboard", flags.tensorboard);
  if (tells) check_writable("--checkpoint", flags.checkpoint);
  check_writable("--trace", flags.trace);
  check_writable("--report", flags.report);
  TrainOptions options = options_from(flags, command);
  options.communicator = ranks;
  take_remote_memory(options, ranks, command.count("--remote-memory") == 0 && options.resume.has_value());
  if (tells && flags.checkpoint.empty() && options.checkpoint)
    check_writable("--resume (without --checkpoint it is saved to again)", options.checkpoint->string());
  Narrator narrator(flags, options);
  const TrainListener listener = tells ? narrator.listener() : quiet_listener();
  catch_interrupts(options.checkpoint ? Hangup::saves : Hangup::stops);
  if (ranks != nullptr) ranks->set_ending([] { return interrupted(); });
  const auto result = train(options, listener);
  if (const auto* infeasible = std::get_if<Infeasible>(&result)) {
    if (tells) narrator.tell_infeasible(*infeasible);
    return kInfeasible;
  }
  const DoneEvent& done = std::get<DoneEvent>(result);
  if (tells) narrator.tell_done(done);
  if (done.interrupted) return kInterrupted;
  return narrator.lost_a_log() ? kFailure : kDone;
}

// What is trained on, and how long.
void add_data_to(CLI::App& command, TrainFlags& flags) {
  command
      .add_option(
          "--data", flags.data,
          "digits, mnist:DIR, cifar10:DIR, cifar100:DIR, images:DIR (a folder a class), synthetic; for language "
          "models text, bytes:FILE, tokens:FILE (ids of 2 bytes; of 4 where it ends in .u32), synthetic")
      ->check(not_empty());
  command.add_option("--epochs", flags.epochs, "Passes over the training data")
      ->check(whole_number(1, int64_t{1} << 30));
  command.add_option("--steps", flags.steps, "Stop after this many steps in all")
      ->check(whole_number(1, int64_t{1} << 40));
}

void add_learning_rate_to(CLI::App& command, TrainFlags& flags) {
  command.add_option("--lr", flags.lr, "Learning rate (default: 0.05 for sgd, 0.001 for adam)")
      ->check(positive_number());
  command.add_option("--sched", flags.schedule.name, "Learning-rate schedule: constant, step, cosine")
      ->capture_default_str();
  command.add_option("--warmup-epochs", flags.schedule.warmup_epochs, "Epochs of linear warm-up")
      ->check(whole_number(0, int64_t{1} << 30));
  command.add_option("--warmup-lr", flags.schedule.warmup_lr, "Learning rate that the warm-up begins with")
      ->check(cli::number());
  command.add_option("--min-lr", flags.schedule.min_lr, "Where the cosine schedule ends")->check(cli::number());
  command.add_option("--decay-epochs", flags.schedule.decay_epochs, "Epochs between the decays of the step schedule")
      ->check(whole_number(1, int64_t{1} << 30));
  command.add_option("--decay-rate", flags.schedule.decay_rate, "Factor of a decay of the step schedule")
      ->check(cli::number(0, 1));
}

// How batches are drawn and made, and how often what was learnt is judged.
void add_batches_to(CLI::App& command, TrainFlags& flags) {
  command.add_option("--seed", flags.seed, "Of weights, order, augmentation and dropout")
      ->capture_default_str()
      ->check(seed_number());
  command.add_flag("--no-augment", flags.no_augment, "No random flips and crops");
  command.add_option("-j,--workers", flags.workers, "Threads that prepare batches")
      ->capture_default_str()
      ->check(whole_number(1, 256));
  command.add_option("--evaluate-every", flags.evaluate_every, "Epochs between evaluations on the test set; 0: never")
      ->capture_default_str()
      ->check(whole_number(0, int64_t{1} << 30));
}

// What a training begins with, and what it leaves.
void add_files_to(CLI::App& command, TrainFlags& flags) {
  command
      .add_option(
          "--checkpoint", flags.checkpoint,
          "Save here (safetensors) after every epoch, at the end, when interrupted and when the terminal hangs up")
      ->type_name("FILE")
      ->check(not_empty());
  command.add_option("--checkpoint-every", flags.checkpoint_every, "Save every so many steps, besides")
      ->check(whole_number(0, int64_t{1} << 40));
  command
      .add_option("--resume", flags.resume,
                  "Go on exactly where this checkpoint stopped; flags not given are taken from it")
      ->type_name("FILE")
      ->check(not_empty());
  command.get_option("--resume")
      ->excludes(
          command
              .add_option("--plan", flags.plan,
                          "Run this plan, saved by `plimsoll plan --save`; it says model, batch, optimizer and policy")
              ->type_name("FILE")
              ->check(not_empty()));
  command
      .add_option(
          "--weights", flags.weights,
          "Begin with the weights of this safetensors file: ours, torchvision's or timm's; with --num-classes the "
          "last layer may be a new one")
      ->type_name("FILE")
      ->check(not_empty())
      ->excludes(command.get_option("--resume"));
  command
      .add_option("--log-csv", flags.log_csv,
                  "Write a table with a line an epoch: losses, accuracies, learning rate, time; --resume adds to it")
      ->type_name("FILE.csv")
      ->check(not_empty());
  command
      .add_option("--tensorboard", flags.tensorboard,
                  "Write losses, accuracies and learning rate for `tensorboard --logdir DIR`")
      ->type_name("DIR")
      ->check(not_empty());
  command.add_option("--trace", flags.trace, "Write a Chrome trace (Perfetto) of the plan and of the last step")
      ->type_name("FILE")
      ->check(not_empty());
  command
      .add_option("--report", flags.report,
                  "Write a report of the plan and the run, with charts: one HTML file that needs no network")
      ->type_name("FILE.html")
      ->check(not_empty());
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

Run add_train(CLI::App& app) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App* command = app.add_subcommand("train", "Train a network inside a memory budget");
  command->footer(
      "Examples:\n"
      "  plimsoll train                                                      the default network on the bundled digits\n"
      "  plimsoll train resnet50 --batch 16 --memory 1GiB --steps 100        on synthetic images, inside 1 GiB\n"
      "  plimsoll train resnet20 --data cifar10:DIR --epochs 30 --sched cosine --checkpoint c.safetensors\n"
      "  plimsoll train --resume c.safetensors                               goes on where that stopped");
  flags->add_to(*command, false);
  command->get_option("--threads")
      ->description(
          "Threads to compute with (default: all cores, and fewer while other processes keep them busy, where that is "
          "faster and --exact is not given)");
  flags->add_optimizer_to(*command);
  flags->add_sharing_to(*command);
  flags->add_zero_to(*command);
  flags->add_workspace_to(*command);
  add_data_to(*command, *flags);
  add_learning_rate_to(*command, *flags);
  add_batches_to(*command, *flags);
  add_files_to(*command, *flags);
  command->add_option("--costs", flags->costs, "measured: time kernels that the database lacks; estimated: do not")
      ->capture_default_str()
      ->check(CLI::IsMember({"measured", "estimated"}));
  command
      ->add_option("--timeout", flags->timeout,
                   "Seconds after which a rank that does not answer ends the training of all, where mpirun or srun "
                   "started several")
      ->capture_default_str()
      ->check(positive_number());
  command->add_flag("--check-memory", flags->check_memory,
                    "Overwrite memory as soon as the plan says that it is free (slow; finds planning bugs)");
  return [flags, command] {
    return as_rank(flags->timeout,
                   [&](const std::shared_ptr<Communicator>& ranks) { return run_train(*flags, *command, ranks); });
  };
}

}  // namespace plimsoll::cli
