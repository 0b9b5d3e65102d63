#include "cli/narrator.h"

#include <fmt/format.h>
#include <signal.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/files.h"
#include "base/texts.h"
#include "cli/interrupts.h"
#include "report/html.h"
#include "report/report.h"

namespace plimsoll::cli {
namespace {

using nlohmann::json;

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

// With them the model is as unsure as if it chose among so many tokens.
double perplexity(double loss) { return std::exp(loss); }

std::string speed_text(double samples_per_second, Language language) {
  return rate_text(samples_per_second, language.context);
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
      "{}: {} step{} in {:.1f} s, {}; {} {} (predicted {}), {} with its data; waiting for data took {:.0f} % of the time; peak {} of {}, of the process {}",
      d.interrupted ? "interrupted" : "done", d.steps, d.steps == 1 ? "" : "s", d.training_seconds,
      speed_text(d.images_per_second, language), step, time_text(d.step_time_ms), time_text(d.predicted_step_time_ms),
      time_text(d.median_wall_time_ms), d.data_wait_percent, to_string(d.peak),
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

constexpr std::string_view kCompleteWithoutIt = "the training is complete without it";

json step_json(const StepEvent& e) {
  return {{"event", "step"},
          {"step", e.step},
          {"epoch", e.epoch + 1},  // from 1 on, as in the event of its end
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
          {"train_accuracy", e.train_accuracy ? json(*e.train_accuracy) : json(nullptr)},
          {"test_loss", e.test_loss ? json(*e.test_loss) : json(nullptr)},
          {"test_accuracy", e.test_accuracy ? json(*e.test_accuracy) : json(nullptr)},
          {"seconds", e.seconds},
          {"lr", e.lr},
          {"images_per_second", e.images_per_second},
          {"data_wait_percent", e.data_wait_percent},
          {"gradient_norm", e.gradient_norm ? json(*e.gradient_norm) : json(nullptr)}};
}

std::string epoch_text(const EpochEvent& e, Language language) {
  std::string text = fmt::format("epoch {}/{}: train loss {:.4f}", e.epoch, e.epochs, e.train_loss);
  if (language) text += fmt::format(", perplexity {:.4g}", perplexity(e.train_loss));
  if (e.train_accuracy && !language) text += fmt::format(", accuracy {:.2f} %", 100 * *e.train_accuracy);
  if (e.test_loss) text += fmt::format("; test loss {:.4f}", *e.test_loss);
  if (e.test_loss && language) text += fmt::format(", perplexity {:.4g}", perplexity(*e.test_loss));
  if (e.test_accuracy) text += fmt::format(", accuracy {:.2f} %", 100 * *e.test_accuracy);
  return fmt::format("{} ({:.1f} s)", text, e.seconds);
}

void add_perplexity(json& event, const char* name, const std::optional<double>& loss) {
  event[name] = loss ? json(perplexity(*loss)) : json(nullptr);
}

void add_tokens_per_second(json& event, double samples_per_second, Language language) {
  event["tokens_per_second"] = samples_per_second * static_cast<double>(language.context);
}

}  // namespace

Narrator::Narrator(const TrainFlags& flags, const TrainOptions& options)
    : flags_(flags), options_(options), out_(flags.json) {
  if (!flags.log_csv.empty()) epoch_log_.emplace(flags.log_csv, options.resume.has_value());
  if (!flags.tensorboard.empty()) event_file_.emplace(flags.tensorboard);
}

TrainListener Narrator::listener() {
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
    const int signal = save_requested();
    if (signal == SIGHUP) notice("SIGHUP: the terminal is gone; what was reached is saved, and training goes on");
    if (signal == SIGUSR1) notice("SIGUSR1: what was reached is saved, and training goes on");
    return signal != 0;
  };
  if (!flags_.trace.empty() || !flags_.report.empty()) {
    listener.recorded = [this](const Program& program, std::span<const StepRecord> steps,
                               std::span<const StepRecord> copies,
                               std::span<const StepRecord> messages) { keep_record(program, steps, copies, messages); };
  }
  return listener;
}

void Narrator::tell_infeasible(const Infeasible& infeasible) {
  progress_.finish();
  complain(to_text(infeasible));
  json event = infeasible_json(infeasible);
  event["event"] = "plan";
  out_.write(event);
}

void Narrator::tell_done(const DoneEvent& done) {
  progress_.finish();
  std::string text = done_text(done, options_, language_);
  if (done.test_loss && language_) text += fmt::format("\ntest perplexity {:.4g}", perplexity(*done.test_loss));
  if (done.accuracy) text += fmt::format("\ntest accuracy {:.2f} %", 100 * *done.accuracy);
  if (options_.checkpoint && done.steps > 0) {
    const std::string file = options_.checkpoint->string();
    text += fmt::format("\nsaved {}; go on with --resume {}", file, file);
  }
  say(out_, text);
  json event = done_json(done, options_);
  if (language_) {
    event["test_loss"] = done.test_loss ? json(*done.test_loss) : json(nullptr);
    add_perplexity(event, "test_perplexity", done.test_loss);
    add_tokens_per_second(event, done.images_per_second, language_);
  }
  write(event);
  if (done.interrupted && output_closed()) complain(text);  // to whom it may still reach
  if (recorded_) or_go_on_without([&] { write_report(done); }, [] {}, kCompleteWithoutIt);
}

void Narrator::tell_plan(const Program& program, const std::string& data, const ProcessMemory& process) {
  progress_.finish();
  const Network& network = program.network;
  if (is_language_model(network)) language_.context = network.graph.tensor(network.data).shape[1];
  say(out_, fmt::format("{} on {}, batch {}, device {}", options_.model, data, options_.batch, options_.device));
  say(out_,
      plan_text(program, options_.batch) +
          (shares_cores(options_.device) ? process_text(process, program.plan, options_.memory_is == MemoryIs::process)
                                         : ""));
  memory_text_ = to_string(program.plan->arena);
  json event = plan_json(program, {});
  if (shares_cores(options_.device)) add_process(event, process, program.plan, options_.memory_is == MemoryIs::process);
  event["event"] = "plan";
  out_.write(event);
}

// A disk that is full ends a log, but not what may have been trained for days.
template <class Write, class Drop>
void Narrator::or_go_on_without(const Write& write, const Drop& drop, std::string_view what_then) {
  try {
    write();
  } catch (const Error& error) {
    progress_.finish();
    complain(fmt::format("{}; {}", error.what(), what_then));
    drop();
    lost_a_log_ = true;
  }
}

void Narrator::write(const json& event) {
  or_go_on_without([&] { out_.write(event); }, [&] { out_.stop(); });
}

void Narrator::tell_step(const StepEvent& e) {
  if (!std::isfinite(e.loss) && !std::exchange(told_no_number_, true)) {
    progress_.finish();
    complain(
        fmt::format("the loss of step {} is not finite, and weights that follow from it are not either; a lower --lr, "
                    "--warmup-epochs or --clip-grad-norm may help",
                    e.step));
  }
  progress_.update(fmt::format("epoch {}", e.epoch + 1), e.step, e.total_steps,
                   language_ ? fmt::format("{}, loss {:.4f}, perplexity {:.4g}, lr {:.3g}, {}",
                                           speed_text(e.images_per_second, language_), e.loss, perplexity(e.loss), e.lr,
                                           memory_text_)
                             : fmt::format("{} img/s, loss {:.4f}, lr {:.3g}, {}", number_text(e.images_per_second, 4),
                                           e.loss, e.lr, memory_text_));
  if (out_.active()) {
    json event = step_json(e);
    if (language_) {
      add_perplexity(event, "perplexity", e.loss);
      add_tokens_per_second(event, e.images_per_second, language_);
    }
    write(event);
  }
  if (!event_file_) return;
  std::vector<Scalar> scalars{{"step/loss", e.loss},
                              {"step/lr", e.lr},
                              {"step/time_ms", e.step_time_ms},
                              {"step/wall_time_ms", e.wall_time_ms}};
  if (e.gradient_norm) scalars.push_back({"step/gradient_norm", *e.gradient_norm});
  or_go_on_without([&] { event_file_->write(e.step, scalars); }, [&] { event_file_.reset(); });
}

void Narrator::tell_epoch(const EpochEvent& e) {
  progress_.finish();
  say(out_, epoch_text(e, language_));
  json event = epoch_json(e);
  if (language_) {
    event["train_accuracy"] = nullptr;
    add_perplexity(event, "train_perplexity", e.train_loss);
    add_perplexity(event, "test_perplexity", e.test_loss);
    add_tokens_per_second(event, e.images_per_second, language_);
  }
  write(event);
  if (epoch_log_) or_go_on_without([&] { epoch_log_->write(e); }, [&] { epoch_log_.reset(); });
  if (!event_file_) return;
  std::vector<Scalar> scalars{{"loss/train", e.train_loss}, {"lr", e.lr}, {"images_per_second", e.images_per_second}};
  if (e.train_accuracy && !language_) scalars.push_back({"accuracy/train", *e.train_accuracy});
  if (language_) scalars.push_back({"perplexity/train", perplexity(e.train_loss)});
  if (language_ && e.test_loss) scalars.push_back({"perplexity/eval", perplexity(*e.test_loss)});
  if (e.test_loss) scalars.push_back({"loss/eval", *e.test_loss});
  if (e.test_accuracy) scalars.push_back({"accuracy/eval", *e.test_accuracy});
  or_go_on_without([&] { event_file_->write(e.step, scalars); }, [&] { event_file_.reset(); });
}

void Narrator::keep_record(const Program& program, std::span<const StepRecord> steps,
                           std::span<const StepRecord> copies, std::span<const StepRecord> messages) {
  if (!flags_.report.empty()) recorded_ = Recorded{program, {steps.begin(), steps.end()}};
  if (flags_.trace.empty()) return;
  const auto write_trace = [&] {
    write_file_atomically(flags_.trace, trace_json(program.network.graph, program.plan, steps, copies, messages));
    say(out_,
        fmt::format("trace of the plan and of the last step: {} (open it at https://ui.perfetto.dev)", flags_.trace));
  };
  or_go_on_without(
      write_trace, [] {}, kCompleteWithoutIt);
}

void Narrator::write_report(const DoneEvent& done) {
  const Plan& plan = recorded_->program.plan;
  const ReportFacts facts{.model = options_.model,
                          .data = options_.data,
                          .batch = options_.batch,
                          .device = fmt::format("{}: {}", plan.device_name, plan.device_key),
                          .measured = measured_facts(done)};
  write_file_atomically(flags_.report, html_report(recorded_->program, facts, recorded_->steps));
  say(out_, fmt::format("report: {} (open it in a browser)", flags_.report));
}

}  // namespace plimsoll::cli
