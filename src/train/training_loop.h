// The steps of a training, epoch after epoch: feeds the step, evaluates, saves, and tells what happens.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "plimsoll/checkpoint.h"
#include "plimsoll/data.h"
#include "plimsoll/train.h"
#include "plimsoll/training_step.h"
#include "train/evaluation.h"

namespace plimsoll {

// A step takes so many batches, but for the last of an epoch, which takes those that are left.
inline int64_t steps_for(int64_t batches, int64_t batches_a_step) {
  return (batches + batches_a_step - 1) / batches_a_step;
}

// Where a training is: everything that a step depends on besides the states.
struct TrainingPlace {
  int64_t step = 0;                  // steps done: the next one's number. A step is an update
  int64_t epoch = 0;                 // of the next batch
  int64_t batch_in_epoch = 0;        // of the next batch
  std::optional<EpochSoFar> so_far;  // of the batches before it in its epoch, where they are known
};

// What the loop runs, made ready by train(); all of it must outlive the loop.
struct TrainingParts {
  const TrainOptions& options;
  const TrainListener& listener;
  std::shared_ptr<const DataSet> data;
  int64_t classes;  // that the network tells apart
  const Program& program;
  std::string device_key;
  TrainingStep& training_step;
  Evaluation* evaluation = nullptr;  // none: never evaluate
  std::function<void()> after_step;  // may swap its program
  std::function<bool()> has_chosen;  // whether the program's thread counts are chosen, and not tried out
};

class TrainingLoop {
 public:
  TrainingLoop(const TrainingParts& parts, Loader& loader, const TrainingPlace& place);
  // Runs to the end of what was asked for, or until the listener stops it.
  DoneEvent run();

 private:
  struct EpochSums {
    double loss = 0, correct = 0;
    int64_t seen = 0, seen_here = 0, steps = 0;  // here: in this process, which may have begun within the epoch
    bool has_correct = true;
    double lr = 0, seconds = 0, waiting = 0, norm = 0;
    bool has_norm = false;
  };
  // What the batches of a step had; the times of those that ran in this process.
  struct StepSums {
    double loss = 0, seconds = 0, compute_ms = 0;
    int64_t batches = 0;
  };
  void begin_epoch();
  void run_epoch();
  bool run_batch();            // returns whether a step ended with it
  double feed();               // the next batch, for the next step; returns the seconds until the loader had it
  bool may_feed_next() const;  // while a step runs
  double run_and_feed(double lr, double& waited);
  void end_step(double lr, std::optional<double> norm);
  int64_t batches_of_step() const;
  void keep_time(double ms, double wall_ms, bool had_chosen);
  void finish_epoch(const Stopwatch& watch);
  std::optional<EpochSoFar> epoch_so_far() const;
  void save();
  void save_before_failing();
  void save_at_end();
  void write_checkpoint();
  void write_checkpoint(const TensorSource& source);
  std::string saved_text() const;
  void tell(const std::string& text) const;
  bool has_chosen() const { return !parts_.has_chosen || parts_.has_chosen(); }
  void tell_step(const StepEvent& event);
  bool asked_to_stop() const { return thrown_ || (parts_.listener.stop && parts_.listener.stop()); }
  bool asked_to_save() const { return parts_.listener.save && parts_.listener.save(); }
  Evaluation::Result evaluate();

  const TrainingParts& parts_;
  Loader& loader_;
  TrainingPlace place_;
  int64_t per_epoch_ = 0;        // batches
  int64_t steps_per_epoch_ = 0;  // fewer, where a step takes several batches: the last of an epoch takes what is left
  int64_t total_steps_ = 0, last_epoch_ = 0, batches_done_ = 0;
  EpochSums epoch_;
  StepSums step_;
  DoneEvent done_;
  std::vector<double> times_, wall_times_;  // of the last batches, for their medians
  size_t times_at_ = 0;
  double step_seconds_ = 0;  // of all steps, waiting for data included
  double waiting_seconds_ = 0;
  int64_t saved_at_step_ = -1;
  bool saves_ = false;  // this rank, or the first with pieces of this one
  bool chosen_ = false, stopped_ = false, save_failed_ = false;
  bool is_fed_ = false;                           // the next step was, while the one before it ran
  std::exception_ptr data_error_;                 // why it was not
  bool stop_asked_ = false, save_asked_ = false;  // after this batch, or an earlier one of this step, by a rank
  bool states_lost_ = false;   // while they are read for a checkpoint, and for good where that failed
  std::exception_ptr thrown_;  // by the listener
};

}  // namespace plimsoll
