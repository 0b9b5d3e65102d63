// A network of one's own as a training step that is ready to run: the device is opened, what the cost database lacks is
// measured, the step is planned, and its memory taken. What the Python package holds.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "plimsoll/process_memory.h"
#include "plimsoll/train.h"
#include "plimsoll/training_step.h"
#include "train/session.h"

namespace plimsoll {

struct NetworkStepListener {
  std::function<void(const std::string&)> notice;                                       // a line for the user
  std::function<void(const std::string& what, int64_t done, int64_t total)> preparing;  // measuring kernels
  std::function<bool()> stop;                                                           // asked between kernels
};

// What several ranks have agreed on for a step: the link between them, and the first one's plan of each shape.
struct Agreement {
  LinkInfo link;
  std::vector<std::string> plans;  // by the shape's number, as to_json has them; of a forgotten one it is empty
};

// With TrainOptions::communicator the step is one of several ranks'. All of them open it together, and add shapes together:
// the first measures and plans, the others take its plan. Where no plan fits on one of them, all answer Infeasible; that of
// another rank has no budget.
class NetworkStep {
 public:
  // Of `options` those count that say of device, memory, policy, optimizer, exactness, workspaces and costs. `held`: what
  // the process has taken already, where the memory is the process's. At least `arena` is taken, for other networks in the same
  // memory. With `feeds_ahead` the plan may have a second buffer for a batch (TrainingStep::has_second_buffer). `agreed`: what the ranks have agreed on when this step was open before; then this rank opens it alone, for
  // all of these shapes. Throws Error where an option cannot be.
  static std::variant<std::unique_ptr<NetworkStep>, Infeasible> open(const Network& network,
                                                                     const TrainOptions& options,
                                                                     const NetworkStepListener& listener = {},
                                                                     Bytes held = {}, Bytes arena = {},
                                                                     const Agreement* agreed = nullptr);

  // Makes the step of the same network for batches of another shape ready, in the memory that was taken: so the largest
  // is the one to begin with. Returns its number: the first is 0, and a forgotten one's is taken again. `agreed`: which
  // shape it was of the step whose agreement this one was opened with; it has that plan.
  std::variant<size_t, Infeasible> add_shape(const Network& network, const NetworkStepListener& listener = {},
                                             std::optional<size_t> agreed = std::nullopt);
  // The next steps are of this shape. Parameters, counters and settings go on.
  void use(size_t shape);
  // Lets go of a shape's plan and kernels. Throws Error for the first, whose memory all have, and for that in use.
  void forget_shape(size_t shape);

  // Makes an evaluation of the same network ready, in the same memory: its states are the training's. Returns its
  // number, from 0. Where parameters are divided among the ranks, all add it together, and run it together.
  std::variant<size_t, Infeasible> add_evaluation(const Network& network);
  TrainingStep& evaluation(size_t number) { return *evaluations_.at(number); }
  void forget_evaluation(size_t number) { evaluations_.at(number).reset(); }

  TrainingStep& step() { return *steps_[current_]; }  // of the shape in use
  const TrainingStep& step() const { return *steps_[current_]; }
  const TrainingStep& first() const { return *steps_[0]; }
  Bytes measured_peak() const;                      // of all shapes, as Executor::measured_peak
  Bytes budget() const { return compile_.memory; }  // what may be taken at most
  const Session& session() const { return session_; }
  const Agreement& agreement() const { return agreement_; }

 private:
  using Compile = std::function<std::variant<Program, Infeasible>()>;
  using Added = std::variant<std::unique_ptr<TrainingStep>, Infeasible>;
  void open_device(const NetworkStepListener& listener);
  Bytes probing_room() const;
  void join_ranks(const Agreement* agreed, const NetworkStepListener& listener);
  std::optional<Infeasible> plan(const Network& network, const NetworkStepListener& listener, Bytes arena,
                                 bool has_others);
  std::optional<Infeasible> repeat(const Network& network, Bytes arena);
  std::optional<Infeasible> take_memory(Program program, Bytes arena);
  std::string text_of(const Program& program) const;  // of its plan
  Added in_this_memory(const Compile& compile);

  TrainOptions options_;
  Agreement agreement_;
  std::vector<std::string> agreed_before_;  // plans of the step whose agreement this one was opened with
  std::optional<ProcessMemory> process_;
  Session session_;
  CompileOptions compile_;
  bool measures_ = false;
  Bytes measuring_room_;
  std::vector<std::unique_ptr<TrainingStep>> steps_, evaluations_;  // by number; null: forgotten
  size_t current_ = 0;
};

// The plan that `open` would make with estimated costs, and the least memory that would do, without measuring or taking
// memory. Where the memory is the process's, so is Program::minimum. With OptimizerOptions::ranks it is that of one of so many,
// over a link of 10 Gbit/s.
std::variant<Program, Infeasible> plan_network(const Network& network, const TrainOptions& options, Bytes held = {});

}  // namespace plimsoll
