// Trains a network on data inside a budget: compiles the step, runs it epoch after epoch, evaluates, saves, resumes. It
// is what `plimsoll train` calls. For a loop of one's own see training_step.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "plimsoll/communicator.h"
#include "plimsoll/compile.h"
#include "plimsoll/execute.h"
#include "plimsoll/models.h"
#include "plimsoll/process_memory.h"

namespace plimsoll {

// The learning rate of every step: constant, steps or cosine, each after an optional warm-up. Names are as in timm.
struct ScheduleOptions {
  std::string name = "constant";  // constant, step, cosine
  double lr = 0.1;                // after the warm-up
  double min_lr = 0;              // cosine ends here
  double decay_rate = 0.1;        // step: factor at each decay
  int64_t decay_epochs = 30;      // step: epochs between decays
  int64_t warmup_epochs = 0;      // linear from warmup_lr to lr
  double warmup_lr = 0;
};
std::vector<std::string> schedule_names();
// Throws Error(invalid_input) on a name that is not known, with the nearest.
void check(const ScheduleOptions& options);

// The rate at training step `step` (from 0) of a run of `total_steps`.
double learning_rate(const ScheduleOptions& options, int64_t step, int64_t steps_per_epoch, int64_t total_steps);

struct TrainOptions {
  std::string model = "resnet20";
  std::string data = "digits";
  int64_t batch = 64;
  std::optional<Bytes> memory;                 // the arena; absent: what the machine has free, less a reserve
  MemoryIs memory_is = MemoryIs::arena;        // process: `memory` is of the whole process; the arena gets what is left
  std::optional<Bytes> host_memory;            // beside the arena, for what leaves it; absent: none
  std::optional<std::filesystem::path> spill;  // a folder for what leaves the arena; absent: none
  std::optional<Bytes> spill_size;             // absent: what is free there, less a tenth
  std::optional<std::string> peer;            // another GPU, whose memory what leaves the arena may go to; absent: none
  std::optional<Bytes> peer_size;             // absent: what is free there
  std::optional<Bytes> remote_memory;         // of other processes, for what leaves the arena; absent: none
  std::shared_ptr<RemoteMemory> remote = {};  // that memory (Communicator::take_remote_memory)
  std::string policy = "auto";
  std::string placement = "offline";
  std::string device = "cpu";
  int threads = 0;   // cores in all; 0: all that the process may use
  int inter_op = 1;  // steps that run at once; 0: chosen by measured times, with the threads of every op
  int intra_op = 0;  // threads of every op; 0: all, divided among the steps that run at once
  std::optional<Strategies> strategies;  // what inter_op 0 may use; absent: all that the machine can
  int climb_interval = 0;  // between the thread counts that inter_op 0 measures; 0: a sixteenth of the cores
  int64_t epochs = 0;      // 0: by steps; both 0: 1 epoch
  int64_t steps = 0;       // stop after this many steps in all
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  uint64_t seed = 0;
  bool feeds_ahead = false;  // of a network of one's own: the next batch is there while a step runs (NetworkStep)
  bool exact = false;
  std::optional<Bytes> workspace, workspace_total;  // as in CompileOptions
  std::optional<BatchSizes> batch_sizes;            // as in CompileOptions; what of them is not known is measured
  int64_t image_size = 0;                           // 0: the data's own, or the model's default
  int64_t classes = 0;                              // 0: the data's own; more than the data has are never right
  bool augment = true;
  int workers = 1;             // loader threads
  int64_t evaluate_every = 1;  // epochs; 0: never
  // Saved at the end of every epoch, at the end, and on interruption. A save that fails is said, and tried again at the
  // next; only where the last one fails has the training failed.
  std::optional<std::filesystem::path> checkpoint;
  int64_t checkpoint_every = 0;  // steps between saves, besides; 0: none
  std::optional<std::filesystem::path> resume;
  // Begin with the weights of this safetensors file, of ours, torchvision's or timm's networks, instead of drawn ones.
  // Where `classes` is given, a last layer for another number of them is drawn.
  std::optional<std::filesystem::path> weights;
  std::optional<std::filesystem::path> plan;  // run this saved plan; policy and placement are the plan's
  std::string costs = "measured";             // measured: measure what the database lacks; estimated: do not
  bool check_memory = false;
  std::optional<int> zero;  // as in CompileOptions
  // The other processes that train this network, each with its part of every batch: `batch` is the sum of all parts, and
  // `memory` what each may take. All give the same options. The first saves, and has what the listener is told. Null: none.
  std::shared_ptr<Communicator> communicator = {};
};

// A step is an update. Where it takes several batches (OptimizerOptions::accumulate), loss and times are of all of those
// that ran in this process.
struct StepEvent {
  int64_t step = 0, total_steps = 0, epoch = 0;
  double loss = 0, lr = 0;
  double step_time_ms = 0;              // of this step's compute, by the device's clock where it has one
  double wall_time_ms = 0;              // of the same with its data, by the host's clock
  double images_per_second = 0;         // over the last steps
  std::optional<double> gradient_norm;  // before it was clipped, where it is
};
struct EpochEvent {
  int64_t epoch = 0, epochs = 0, step = 0;
  double train_loss = 0;
  std::optional<double> train_accuracy;  // of networks that classify
  std::optional<double> test_loss, test_accuracy;
  double seconds = 0;
  double lr = 0;                        // of the last step
  double images_per_second = 0;         // of the epoch's steps: evaluation and saving not counted
  double data_wait_percent = 0;         // of these steps' time
  std::optional<double> gradient_norm;  // mean over the epoch's steps
};
struct DoneEvent {
  bool interrupted = false;
  int64_t steps = 0, epochs = 0;  // done now
  int64_t step = 0;               // steps done in all, those before a checkpoint included
  double images_per_second = 0;   // of the steps alone: evaluation and saving not counted
  // Median of the compute of a step, by the device's clock where it has one; of one batch, where it takes several.
  double step_time_ms = 0;
  double predicted_step_time_ms = 0;             // of the same, as predicted before the first step
  double median_wall_time_ms = 0;                // of the same with its data, by the host's clock
  double wall_time_ms = 0;                       // mean of a batch, with its data: images_per_second are by this
  std::optional<double> predicted_wall_time_ms;  // where batches come over a link (Plan::feeding)
  double data_wait_percent = 0;                  // of the wall time: while nothing ran, until the loader had the batch
  Bytes peak, budget, process_peak;
  Bytes process;  // at most, as predicted before the first step; what was stated where memory_is says so
  std::optional<Bytes>
      device;  // what the device's memory had free less at the end than before the arena was taken, where it tells
  double loss = 0;
  std::optional<double> test_loss, accuracy;  // on the test set
  std::string weights_sha256;
  double training_seconds = 0;
  bool captured = false;  // steps were asked of the device as a whole (Executor::is_captured)
};

// Everything that happens, as it happens. All optional. What one of them throws ends the training, after it was saved.
struct TrainListener {
  std::function<void(const std::string&)> notice;                                       // a line for the user
  std::function<void(const std::string& what, int64_t done, int64_t total)> preparing;  // measuring kernels
  // `process`: what the process takes beside the plan's arena.
  std::function<void(const Program&, const std::string& data_name, const ProcessMemory& process)> planned;
  std::function<void(const StepEvent&)> step;
  std::function<void(const EpochEvent&)> epoch;
  // At the end: when each step, each copy, and each collective, of the last training step ran.
  std::function<void(const Program&, std::span<const StepRecord> steps, std::span<const StepRecord> copies,
                     std::span<const StepRecord> messages)>
      recorded;
  std::function<bool()> stop;  // asked after every batch; true ends the training, which saves where it has a checkpoint
  std::function<bool()> save;  // asked after every batch; true saves the checkpoint now, and goes on
};

// The network's input for this data, as train() builds it: a plan for it is the plan that train() would make.
ModelInput training_input(const TrainOptions& options);

// Trains. Infeasible where no plan fits the budget, before the first step. Throws Error for everything else that ends a
// training.
std::variant<DoneEvent, Infeasible> train(const TrainOptions& options, const TrainListener& listener = {});

}  // namespace plimsoll
