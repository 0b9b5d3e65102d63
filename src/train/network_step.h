// A network of one's own as a training step that is ready to run: the device is opened, what the cost database lacks is
// measured, the step is planned, and its memory taken. What the Python package holds.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "plimsoll/train.h"
#include "plimsoll/training_step.h"
#include "train/session.h"

namespace plimsoll {

struct NetworkStepListener {
  std::function<void(const std::string&)> notice;                                       // a line for the user
  std::function<void(const std::string& what, int64_t done, int64_t total)> preparing;  // measuring kernels
  std::function<bool()> stop;                                                           // asked between kernels
};

class NetworkStep {
 public:
  // Of `options` those count that say of device, memory, policy, optimizer, exactness, workspaces and costs. Throws Error
  // where an option cannot be.
  static std::variant<std::unique_ptr<NetworkStep>, Infeasible> open(const Network& network,
                                                                     const TrainOptions& options,
                                                                     const NetworkStepListener& listener = {});

  // Makes an evaluation of the same network ready, in the same memory: its states are the training's. Throws
  // Error(infeasible) where it does not fit there.
  void prepare_evaluation(const Network& network);
  bool has_evaluation() const { return evaluation_ != nullptr; }
  TrainingStep& evaluation() { return *evaluation_; }

  TrainingStep& step() { return *step_; }
  const TrainingStep& step() const { return *step_; }
  const Session& session() const { return session_; }

 private:
  Session session_;
  CompileOptions compile_;
  std::unique_ptr<TrainingStep> step_, evaluation_;
};

// The plan that `open` would make with estimated costs, and the least memory that would do, without measuring or taking
// memory.
std::variant<Program, Infeasible> plan_network(const Network& network, const TrainOptions& options);

}  // namespace plimsoll
