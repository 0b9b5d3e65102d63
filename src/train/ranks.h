// A training by several processes (plimsoll/communicator.h): what each is told, and what they must agree on.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>

#include "compile/plan_file.h"
#include "plimsoll/cost.h"
#include "plimsoll/train.h"
#include "plimsoll/training_step.h"
#include "train/session.h"

namespace plimsoll {

// Above 1 where several train together.
inline int ranks_of(const TrainOptions& options) { return options.communicator ? options.communicator->size() : 1; }
inline bool is_first_rank(const TrainOptions& options) {
  return !options.communicator || options.communicator->is_first();
}
// Rows of a batch that are this process's.
inline int64_t own_batch(const TrainOptions& options) { return options.batch / ranks_of(options); }

// The threads of one of several ranks where nothing is said: its share of the processors that it has with others.
int threads_of(const TrainOptions& options);

// Other ranks that compute on this machine's processors.
int neighbours_of(const TrainOptions& options);

// What the options mean for one of several ranks: no checkpoint and no saved plan but the first one's. Throws Error(invalid_input) that names what cannot be divided, Error(unsupported) what several
// ranks cannot do.
TrainOptions options_of_rank(TrainOptions options);

// Runs `action` on every rank, where several train. True: it was so on all of them. Where it throws on some, all throw: its own
// error there, elsewhere one of the same code that names the first of them. So they go on together, or not at all.
bool together(Communicator* communicator, const std::function<bool()>& action);

// While the first rank measures kernels, the others on its machine run the same ones beside it, as they will in training: memory
// and caches are shared. It tells them which; all ranks listen until it has ended.
class MeasuringTogether {
 public:
  explicit MeasuringTogether(const TrainOptions& options);  // on the first rank; alone there is nobody to tell
  ~MeasuringTogether() { end(); }
  MeasuringTogether(const MeasuringTogether&) = delete;
  MeasuringTogether& operator=(const MeasuringTogether&) = delete;
  void tell(const std::string& what);  // as MeasureOptions::progress names a kernel
  void end() noexcept;

 private:
  Communicator* ranks_;  // null: nobody listens any more
  const bool has_neighbours_;
};
// On the others: until the first has ended.
void measure_beside(Communicator& ranks, const Session& session, const Network& network, const CompileOptions& options,
                    const MeasureOptions& measure);

// The first rank's plan for all of them, as a file of it has it; nothing where there is none, since none fits.
void send_plan(Communicator& communicator, const PlanRequest& request, const Program* program);
std::optional<SavedPlan> receive_plan(Communicator& communicator);

// Throws Error(internal) that names a rank whose plan differs from this one's: it would wait for other collectives.
void check_same_plan(Communicator& communicator, const Program& program);

// The first rank's costs, for a program that each rank plans by itself: by these, and within one budget, all plan the same. Those
// that ranks have themselves differ: the first has measured what the others may not know.
CostTable common_costs(Communicator& communicator, const CostTable& mine, const DeviceInfo& device);

// The same of a program that each rank has planned by itself: its collectives, which of them are one message, and the rows of its
// batch.
void check_same_collectives(Communicator& communicator, const Program& program);

// A checkpoint of states that are divided: the first rank asks for what it writes next, and the others give their pieces,
// until it ends. `serve_reads` returns what the end says: whether all went well.
TensorSource shared_source(Communicator& communicator, const TrainingStep& step);
void end_reads(Communicator& communicator, bool well);
bool serve_reads(Communicator& communicator, const TrainingStep& step);
// Whether the first rank saves.
bool first_saves(Communicator& communicator, bool mine);

// The hash of the weights. Throws Error(internal) that names a rank whose weights are others.
std::string common_weights_sha256(Communicator& communicator, TrainingStep& step);

// What the ranks tell each other after every batch.
struct BatchReport {
  double loss = 0;     // mean over the batch
  double correct = 0;  // of the batch; with has_correct
  uint8_t has_correct = 0, stop = 0, save = 0;
};
// Of the whole batch: the mean of losses and the sum of right answers, in the order of the ranks; stop and save where
// any wants it.
BatchReport sum_of(Communicator& communicator, const BatchReport& mine);

}  // namespace plimsoll
