#include "train/training_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "base/statistics.h"
#include "plimsoll/error.h"
#include "train/ranks.h"
#include "train/resume.h"
#include "train/training_data.h"

namespace plimsoll {
namespace {

constexpr size_t kTimesKept = 4096;

double percent_of(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

}  // namespace

TrainingLoop::TrainingLoop(const TrainingParts& parts, Loader& loader, const TrainingPlace& place)
    : parts_(parts),
      loader_(loader),
      place_(place),
      per_epoch_(loader.batches_per_epoch()),
      steps_per_epoch_(steps_for(per_epoch_, parts.options.optimizer.accumulate)) {
  const TrainOptions& options = parts.options;
  const int64_t epochs = options.epochs > 0 ? options.epochs : options.steps > 0 ? INT64_MAX / (per_epoch_ + 1) : 1;
  total_steps_ = options.steps > 0 ? std::min(options.steps, epochs * steps_per_epoch_) : epochs * steps_per_epoch_;
  last_epoch_ = (total_steps_ + steps_per_epoch_ - 1) / steps_per_epoch_;
  times_.reserve(kTimesKept);
  wall_times_.reserve(kTimesKept);
  saves_ = options.checkpoint.has_value();
  if (options.communicator && parts.training_step.is_divided()) saves_ = first_saves(*options.communicator, saves_);
}

DoneEvent TrainingLoop::run() {
  const Stopwatch watch;
  while (place_.step < total_steps_ && !stopped_) run_epoch();
  if (thrown_) std::rethrow_exception(thrown_);
  if (parts_.evaluation != nullptr && !stopped_ && !done_.test_loss) {  // nothing was left to do
    const Evaluation::Result result = evaluate();
    done_.test_loss = result.loss;
    done_.accuracy = result.accuracy;
  }
  done_.interrupted = stopped_;
  done_.step = place_.step;
  done_.training_seconds = watch.seconds();
  const double images = static_cast<double>(batches_done_ * parts_.options.batch);
  done_.images_per_second = step_seconds_ > 0 ? images / step_seconds_ : 0;
  done_.wall_time_ms = batches_done_ > 0 ? 1000 * step_seconds_ / static_cast<double>(batches_done_) : 0;
  done_.data_wait_percent = percent_of(waiting_seconds_, step_seconds_);
  done_.step_time_ms = median(std::move(times_));
  done_.median_wall_time_ms = median(std::move(wall_times_));
  return done_;
}

// Goes on with the sums of the checkpoint, if it was saved within an epoch.
void TrainingLoop::begin_epoch() {
  epoch_ = {};
  const std::optional<EpochSoFar> before = std::exchange(place_.so_far, std::nullopt);
  if (!before || place_.batch_in_epoch == 0) return;
  const int64_t accumulate = parts_.options.optimizer.accumulate;
  epoch_.loss = before->loss;
  epoch_.has_correct = before->correct.has_value();
  epoch_.correct = before->correct.value_or(0);
  epoch_.norm = before->gradient_norm;
  epoch_.seen = place_.batch_in_epoch * parts_.options.batch;
  epoch_.steps = place_.batch_in_epoch / accumulate;
  step_ = {.loss = before->step_loss, .batches = place_.batch_in_epoch % accumulate};
}

std::optional<EpochSoFar> TrainingLoop::epoch_so_far() const {
  EpochSoFar sums{.loss = epoch_.loss, .gradient_norm = epoch_.norm, .step_loss = step_.loss};
  if (epoch_.has_correct) sums.correct = epoch_.correct;
  const bool whole =
      epoch_.seen == place_.batch_in_epoch * parts_.options.batch;  // not after a checkpoint without them
  if (!whole || !std::isfinite(sums.loss + sums.gradient_norm + sums.step_loss)) return std::nullopt;
  return sums;
}

void TrainingLoop::run_epoch() {
  const Stopwatch watch;
  begin_epoch();
  while (place_.batch_in_epoch < per_epoch_ && place_.step < total_steps_ && !stopped_) {
    const bool has_ranks = parts_.options.communicator != nullptr;
    bool stepped = false;
    try {
      stepped = run_batch();
    } catch (const Error&) {
      if (data_error_ && saves_ && !has_ranks && batches_done_ > 0) save_before_failing();
      throw;
    }
    if (!has_ranks) {
      stop_asked_ = asked_to_stop();
      save_asked_ = asked_to_save();
    }
    // What a rank has summed for the next update is its own, and no checkpoint has it.
    const bool may_save = stepped || !has_ranks;
    stopped_ = stop_asked_ && may_save;
    const int64_t every = parts_.options.checkpoint_every;
    const bool due = (save_asked_ && may_save) || (stepped && every > 0 && place_.step % every == 0);
    if (!stopped_ && saves_ && due) save();
    if (may_save) save_asked_ = false;
  }
  const bool is_whole = place_.batch_in_epoch == per_epoch_ || place_.step >= total_steps_;
  if (stopped_ && !is_whole) {
    if (saves_) save_at_end();
    return;
  }
  finish_epoch(watch);
  ++place_.epoch;
  place_.batch_in_epoch = 0;
  ++done_.epochs;
}

// Steps begin anew with every epoch.
int64_t TrainingLoop::batches_of_step() const {
  const int64_t all = parts_.options.optimizer.accumulate;
  return std::min(all, per_epoch_ - place_.batch_in_epoch / all * all);
}

double TrainingLoop::feed() {
  const Stopwatch watch;
  const Batch* next = nullptr;
  try {
    next = &loader_.next();
  } catch (const Error&) {
    data_error_ = std::current_exception();
    throw;
  }
  const Batch& batch = *next;
  const double waited = watch.seconds();
  TrainingStep& step = parts_.training_step;
  step.has_second_buffer() ? step.feed_next(batch) : step.feed(batch);
  loader_.release();
  return waited;
}

// Not over the end of an epoch: an evaluation runs in the same arena.
bool TrainingLoop::may_feed_next() const {
  const bool last_of_step = parts_.training_step.accumulated() + 1 >= batches_of_step();
  const bool last = last_of_step && place_.step + 1 >= total_steps_;
  return parts_.training_step.has_second_buffer() && place_.batch_in_epoch + 1 < per_epoch_ && !last;
}

// Where there is a second buffer, the batch after this one is fed while this one's step runs. `waited`: seconds that
// nothing ran for lack of data. What keeps the loader from the next batch is told when that one is wanted.
double TrainingLoop::run_and_feed(double lr, double& waited) {
  if (data_error_) std::rethrow_exception(data_error_);
  if (!std::exchange(is_fed_, false)) waited = feed();
  TrainingStep& step = parts_.training_step;
  const bool feeds = may_feed_next();
  const Stopwatch watch;
  step.start(lr, batches_of_step());
  double ready = 0;
  if (feeds) {
    try {
      const double began = watch.seconds();
      ready = began + feed();
      is_fed_ = true;
    } catch (const Error&) {
      if (!data_error_) data_error_ = std::current_exception();
    }
  }
  const double seconds = step.finish();
  waited += std::max(ready - seconds, 0.0);
  return seconds;
}

bool TrainingLoop::run_batch() {
  const TrainOptions& options = parts_.options;
  // Not after the last batch: then nobody runs the plan that it may choose.
  if (batches_done_ > 0 && parts_.after_step) parts_.after_step();
  const bool had_chosen = has_chosen();
  const Stopwatch watch;
  const double lr = learning_rate(options.schedule, place_.step, steps_per_epoch_, total_steps_);
  double waited = 0;
  const double ms = 1000 * run_and_feed(lr, waited);
  ++place_.batch_in_epoch;
  ++batches_done_;
  double loss = parts_.training_step.loss();
  auto correct = parts_.training_step.correct();
  if (Communicator* const ranks = options.communicator.get()) {
    const BatchReport whole = sum_of(*ranks, {.loss = loss,
                                              .correct = correct.value_or(0),
                                              .has_correct = correct.has_value(),
                                              .stop = asked_to_stop(),
                                              .save = asked_to_save()});
    loss = whole.loss;
    if (correct) correct = whole.correct;
    stop_asked_ |= whole.stop != 0;
    save_asked_ |= whole.save != 0;
  }
  epoch_.loss += loss;
  epoch_.seen += options.batch;
  epoch_.seen_here += options.batch;
  if (correct) {
    epoch_.correct += *correct;
  } else {
    epoch_.has_correct = false;
  }
  const double seconds = watch.seconds();
  keep_time(ms, 1000 * seconds, had_chosen);
  step_seconds_ += seconds;
  waiting_seconds_ += waited;
  epoch_.seconds += seconds;
  epoch_.waiting += waited;
  step_.loss += loss;
  step_.seconds += seconds;
  step_.compute_ms += ms;
  ++step_.batches;
  const bool stepped = parts_.training_step.accumulated() == 0;
  if (stepped) ++place_.step;
  const std::optional<double> norm = parts_.training_step.gradient_norm();
  if (stepped) end_step(lr, norm);
  return stepped;
}

void TrainingLoop::keep_time(double ms, double wall_ms, bool had_chosen) {
  if (!chosen_ && had_chosen) {  // what was tried out until now says nothing of the steps from here on
    chosen_ = true;
    times_.clear();
    wall_times_.clear();
    times_at_ = 0;
  }
  if (times_.size() < kTimesKept) {
    times_.push_back(ms);
    wall_times_.push_back(wall_ms);
  } else {
    const size_t oldest = times_at_++ % kTimesKept;
    times_[oldest] = ms;
    wall_times_[oldest] = wall_ms;
  }
}

void TrainingLoop::end_step(double lr, std::optional<double> norm) {
  ++done_.steps;
  ++epoch_.steps;
  done_.loss = step_.loss / static_cast<double>(step_.batches);
  epoch_.norm += norm.value_or(0);
  epoch_.has_norm = norm.has_value();
  epoch_.lr = lr;
  tell_step({.step = place_.step,
             .total_steps = total_steps_,
             .epoch = place_.epoch,
             .loss = done_.loss,
             .lr = lr,
             .step_time_ms = step_.compute_ms,
             .wall_time_ms = step_.seconds * 1000,
             .images_per_second = static_cast<double>(parts_.options.batch * batches_done_) / step_seconds_,
             .gradient_norm = norm});
  step_ = {};
}

// Of several ranks each evaluates a part.
Evaluation::Result TrainingLoop::evaluate() {
  return parts_.evaluation->run(parts_.data, parts_.options.seed, parts_.options.communicator.get());
}

void TrainingLoop::tell_step(const StepEvent& event) {
  if (!parts_.listener.step) return;
  try {
    parts_.listener.step(event);
  } catch (...) {  // output that cannot be written, say: the work is saved first
    thrown_ = std::current_exception();
  }
}

void TrainingLoop::finish_epoch(const Stopwatch& watch) {
  const TrainOptions& options = parts_.options;
  const EpochSums& sums = epoch_;
  EpochEvent event{.epoch = place_.epoch + 1, .epochs = last_epoch_, .step = place_.step};
  if (sums.seen > 0) {
    event.train_loss = sums.loss * static_cast<double>(options.batch) / static_cast<double>(sums.seen);
    if (sums.has_correct) event.train_accuracy = sums.correct / static_cast<double>(sums.seen);
    event.lr = sums.lr;
    if (sums.seconds > 0) event.images_per_second = static_cast<double>(sums.seen_here) / sums.seconds;
    event.data_wait_percent = percent_of(sums.waiting, sums.seconds);
    if (sums.has_norm && sums.steps > 0) event.gradient_norm = sums.norm / static_cast<double>(sums.steps);
  }
  const bool last = place_.step >= total_steps_;
  // Before the evaluation, which may fail: its data may not be readable.
  if (saves_ && saved_at_step_ != place_.step) last || stopped_ ? save_at_end() : save();
  if (!stopped_ && parts_.evaluation != nullptr && (last || (place_.epoch + 1) % options.evaluate_every == 0)) {
    const Evaluation::Result result = evaluate();
    event.test_loss = done_.test_loss = result.loss;
    event.test_accuracy = done_.accuracy = result.accuracy;
  }
  event.seconds = watch.seconds();
  if (parts_.listener.epoch) parts_.listener.epoch(event);
}

// A save that fails, on a full disk say, is not the end of the training: the file is as it was, and the next may
// succeed. Of several that fail in a row the first is said.
void TrainingLoop::save() {
  try {
    write_checkpoint();
    if (save_failed_)
      tell(fmt::format("{}: saved again, at step {}", parts_.options.checkpoint->string(), place_.step));
    save_failed_ = false;
  } catch (const Error& error) {
    if (states_lost_) throw;  // a device or a tier failed, not the file
    if (!save_failed_)
      tell(fmt::format("{}; training goes on, and the next save tries again. {}", error.what(), saved_text()));
    save_failed_ = true;
  }
}

// A batch that cannot be read has changed nothing yet.
void TrainingLoop::save_before_failing() {
  save();
  if (!save_failed_)
    tell(fmt::format("what was reached is saved: {}, step {}", parts_.options.checkpoint->string(), place_.step));
}

void TrainingLoop::tell(const std::string& text) const {
  if (parts_.listener.notice) parts_.listener.notice(text);
}

void TrainingLoop::save_at_end() {
  try {
    write_checkpoint();
  } catch (const Error& error) {
    throw Error(ErrorCode::device_failure, fmt::format("{}; so step {}, where training ended, is not saved. {}",
                                                       error.what(), place_.step, saved_text()));
  }
}

std::string TrainingLoop::saved_text() const {
  if (saved_at_step_ >= 0) return fmt::format("The checkpoint there is of step {}", saved_at_step_);
  return "Nothing of this run is saved yet";
}

void TrainingLoop::write_checkpoint() {
  Communicator* const ranks = parts_.options.communicator.get();
  if (ranks == nullptr || !parts_.training_step.is_divided())
    return write_checkpoint(parts_.training_step.state_source());
  if (!ranks->is_first()) {
    if (serve_reads(*ranks, parts_.training_step)) saved_at_step_ = place_.step;
    return;
  }
  try {
    write_checkpoint(shared_source(*ranks, parts_.training_step));
  } catch (const Error&) {
    if (!states_lost_) end_reads(*ranks, false);
    throw;
  }
  end_reads(*ranks, true);
}

void TrainingLoop::write_checkpoint(const TensorSource& source) {
  const bool end = place_.batch_in_epoch == per_epoch_;
  TrainingState state = state_to_save(parts_.options, parts_.program, parts_.device_key, has_chosen());
  state.step = place_.step;
  state.epoch = end ? place_.epoch + 1 : place_.epoch;
  state.batch_in_epoch = end ? 0 : place_.batch_in_epoch;
  if (state.batch_in_epoch > 0) state.epoch_so_far = epoch_so_far();
  state.input = input_to_save(parts_.data->info(), parts_.classes);
  save_checkpoint(*parts_.options.checkpoint, state, parts_.training_step.states(),
                  [&](size_t i, Bytes offset, std::span<std::byte> into) {
                    states_lost_ = true;
                    source(i, offset, into);
                    states_lost_ = false;
                  });
  saved_at_step_ = place_.step;
}

}  // namespace plimsoll
