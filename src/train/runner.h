// A program on its device, fed with batches: the training's steps, and the evaluation in the training's arena.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cores/core_options.h"
#include "plimsoll/checkpoint.h"
#include "plimsoll/compile.h"
#include "plimsoll/data.h"
#include "plimsoll/execute.h"
#include "plimsoll/models.h"

namespace plimsoll {

// Makes the loader's batches such that the device copies from them at its full speed, for as long as the result lives. Where the
// system refuses, copies are slower, and `notice` is told why.
std::shared_ptr<void> pin_batches(Loader& loader, const Device& device, const std::function<void(const std::string&)>& notice = {});

// A program with its executor. The program's graph and the device must outlive it.
class Runner {
 public:
  Runner(const Program& program, const Device& device, const ExecuteOptions& options, Memory memory = {});
  Executor& executor() { return *executor_; }  // the same object for as long as the runner lives
  // Goes on by the plan of this program, which is for the same graph and has the states where they are, in the same memory.
  void swap(const Program& program);

  // Copies the batch into the arena, for the next step; the batch may be given back then.
  void feed(const Batch& batch);
  // Runs the step, and returns its seconds.
  double run(double lr, int64_t step, uint64_t seed);
  double loss() const;                    // of the last step: the mean over its batch, all objectives together
  std::optional<double> correct() const;  // samples; nothing where the network does not classify

 private:
  const Network& network_;
  const Device& device_;
  const ExecuteOptions options_;
  CheckedPlan plan_;
  std::optional<Executor> executor_;
  TensorId learning_rate_, step_number_, seed_;
};

// The evaluation of a training: its own program in the training's arena, at the largest batch that fits beside the
// states.
class Evaluation {
 public:
  // Throws Error(infeasible) when not even one image fits.
  Evaluation(std::string_view model, ModelInput input, const Program& training, const Device& device,
             const CostTable& costs, const CompileOptions& compile, const ExecuteOptions& options,
             const Memory& memory, const CoreOptions& cores = {});

  struct Result {
    double loss = 0;
    std::optional<double> accuracy;
  };
  Result run(const std::shared_ptr<const DataSet>& data, uint64_t seed);  // over the test set

 private:
  const Device& device_;
  std::unique_ptr<Program> program_;
  std::unique_ptr<Runner> runner_;
  int64_t batch_ = 0;
};

// The states of a graph as a checkpoint's tensors: split ones are whole there. The graph and the executor must outlive it.
class States {
 public:
  States(const Graph& graph, Executor& executor);
  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }
  TensorSource source() const;
  std::string sha256() const;
  // Checks the checkpoint's bytes against their hash, then takes every state from it; throws Error(corrupt_file).
  void load(const Checkpoint& checkpoint);

 private:
  template <class Byte, class Action>
  void for_each_part(size_t i, Bytes offset, std::span<Byte> bytes, const Action& action) const;

  const Graph& graph_;
  Executor& executor_;
  std::vector<WholeState> wholes_;
  std::vector<CheckpointTensor> tensors_;  // of wholes_
};

}  // namespace plimsoll
