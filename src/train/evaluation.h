// The evaluation of a training: its own program in the training's arena, at the largest batch that fits beside the
// states.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cores/core_options.h"
#include "plimsoll/communicator.h"
#include "plimsoll/data.h"
#include "plimsoll/models.h"
#include "plimsoll/training_step.h"

namespace plimsoll {

// Makes the loader's batches such that the device copies from them at its full speed, for as long as the result lives.
// Where the system refuses, copies are slower, and `notice` is told why.
std::shared_ptr<void> pin_batches(Loader& loader, const Device& device,
                                  const std::function<void(const std::string&)>& notice = {});

class Evaluation {
 public:
  // Throws Error(infeasible) when not even one image fits. The device must outlive it.
  Evaluation(std::string_view model, ModelInput input, const Program& training, const Device& device,
             const CostTable& costs, const CompileOptions& compile, const ExecuteOptions& options, const Memory& memory,
             const CoreOptions& cores = {});

  struct Result {
    double loss = 0;
    std::optional<double> accuracy;
  };
  // Over the test set. Of several ranks each takes its part, and all get the result of the whole.
  Result run(const std::shared_ptr<const DataSet>& data, uint64_t seed, Communicator* ranks = nullptr);

 private:
  const Device& device_;
  std::unique_ptr<TrainingStep> step_;
  int64_t batch_ = 0;
  bool has_collectives_ = false;  // it gathers parameters: all ranks run it as often
};

}  // namespace plimsoll
