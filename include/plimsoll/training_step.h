// A training step that one holds: a program in its memory, which is fed with batches and run.
//
//   TrainingStep step(std::move(program), *device);
//   step.initialize(/*seed=*/1);
//   for (...) {
//     step.feed(loader.next());
//     step.run(/*learning_rate=*/0.05);
//   }
//   step.loss(); step.state("fc.weight").as<float>();
//
// It owns the program and the memory that it runs in. The device is the caller's, and must outlive it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/checkpoint.h"
#include "plimsoll/compile.h"
#include "plimsoll/data.h"
#include "plimsoll/execute.h"

namespace plimsoll {

// A parameter, a statistic or an optimizer's state by its name, with its elements row-major. A state that is split is
// whole here.
struct StateTensor {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
  std::vector<std::byte> elements;

  // Throws Error(invalid_input) where the elements are of another type.
  template <class T>
  std::span<T> as() {
    expect(dtype_of<T>());
    return {reinterpret_cast<T*>(elements.data()), elements.size() / sizeof(T)};
  }
  template <class T>
  std::span<const T> as() const {
    expect(dtype_of<T>());
    return {reinterpret_cast<const T*>(elements.data()), elements.size() / sizeof(T)};
  }

 private:
  template <class T>
  static constexpr DType dtype_of() {
    if constexpr (std::is_same_v<T, float>)
      return DType::f32;
    else if constexpr (std::is_same_v<T, double>)
      return DType::f64;
    else if constexpr (std::is_same_v<T, int32_t>)
      return DType::i32;
    else if constexpr (std::is_same_v<T, int64_t>)
      return DType::i64;
    else
      static_assert(std::is_same_v<T, uint8_t>);
    return DType::u8;
  }
  void expect(DType wanted) const;
};

struct UpdateRule;  // autodiff/update_rules.h

// What the updates of one of the optimizer's groups are told before a step.
struct GroupUpdate {
  std::vector<float> values;  // beginning with the learning rate, as ops.h says
  // Instead of these, where the update is written as formulas:
  const UpdateRule* rule = nullptr;
  OptimizerSettings settings;
  int64_t behind = 0;  // ParameterGroup
  double mu_product = -1;
  bool is_empty = false;  // no update is of this group: its parameters are frozen, or no gradient reaches them
};

class TrainingStep {
 public:
  // Takes the memory that is not given: an arena of the plan's size, and of `arena` at least, for plans that it is to
  // be swapped for.
  TrainingStep(Program program, const Device& device, const ExecuteOptions& options = {}, Memory memory = {},
               Bytes arena = {});
  ~TrainingStep();

  // Draws the states' first values, and begins with step number 0. They depend on the seed and the states' names only.
  void initialize(uint64_t seed);
  // Instead, where states come from elsewhere: the next step's number, which Adam depends on, and the seed of dropout.
  // `accumulated`: batches whose gradients the sums among the states have already, where a step takes several.
  void start_at(int64_t step, uint64_t seed, int64_t accumulated = 0);

  // Instead, where the other has the same states in the same memory: goes on after it, with its number, seed, sums and
  // settings of groups.
  void go_on_from(const TrainingStep& other);

  // Copies a batch into the arena, for the next run; the batch may be given back then. Throws Error(invalid_input) on
  // another size.
  void feed(const Batch& batch);
  // Whether images whose channels come last are copied as they are, and those in planes are not (LoaderOptions).
  bool takes_channels_last() const;
  void feed(std::span<const float> data, std::span<const int32_t> labels = {});
  void feed_tokens(std::span<const int32_t> ids, std::span<const int32_t> labels);
  // The same for one input by its name, as row-major elements of its type. Throws Error(invalid_input) with the nearest name.
  void feed(std::string_view input, std::span<const std::byte> elements);
  // Where the plan has a second buffer for the batch (Plan::feeding), a loop feeds each batch while the step before it runs:
  //
  //   step.feed_next(first); for (...) { step.start(lr); step.feed_next(next); step.finish(); }
  //
  // It is for the step that is started next, and may be given back on return. Nothing else may use the arena until then.
  bool has_second_buffer() const { return program_->plan->feeding.second_buffer; }
  void feed_next(const Batch& batch);
  void feed_next(std::string_view input, std::span<const std::byte> elements);  // every input of them
  // How an input of this name lies in the arena. Elements that lie so already are copied as they are: from pinned memory by the
  // device alone.
  const Tensor& input(std::string_view name) const;
  void feed_as_it_lies(std::string_view input, std::span<const std::byte> elements);
  void feed_next_as_it_lies(std::string_view input, std::span<const std::byte> elements);
  // The places themselves, as Executor::place_of and next_place_of.
  std::byte* place_of(std::string_view input);
  std::byte* next_place_of(std::string_view input);
  // What the last run left in an output, by its name.
  StateTensor output(std::string_view name) const;
  // Runs the step on what it was fed with; returns its seconds, by the device's clock where that has one (Executor::device_ms).
  // Throws as Executor::run_step does. Where gradients are
  // accumulated (OptimizerOptions::accumulate) it runs one batch of the step, and updates with the last: number `batches`
  // since the last update, or as many as the options say.
  double run(double learning_rate, int64_t batches = 0);
  // The same in two: a device that computes beside the host does so when `start` returns (Executor::start_step).
  void start(double learning_rate, int64_t batches = 0);
  void start(std::span<const double> learning_rates, int64_t batches);
  double finish();
  // The same with a rate for each of the optimizer's groups (OptimizerOptions::groups).
  double run(std::span<const double> learning_rates, int64_t batches = 0);
  // From the next step on, other settings of one of these groups than it was compiled with: all but its parameters and
  // nesterov. Throws Error(invalid_input) where there is no such group, or it has no momentum that could change.
  void set_group(size_t group, const ParameterGroup& settings);
  int64_t accumulated() const { return accumulated_; }  // batches since the last update
  double loss() const;                                  // of the last batch: its mean, all objectives together
  std::optional<double> correct() const;        // samples that were right; nothing where the network does not classify
  std::optional<double> gradient_norm() const;  // before it was clipped; nothing where it is not
  int64_t number() const { return number_; }    // of the next step

  // The states, in the order of a checkpoint.
  const std::vector<CheckpointTensor>& states() const { return states_; }
  // Throw Error(invalid_input) with the nearest name where there is none of this name, or it has another shape or type.
  StateTensor state(std::string_view name) const;
  void set_state(const StateTensor& state);
  // The state's own elements, to read and write between steps for as long as its memory lives; nothing where they are not
  // one row-major run that the host can address.
  std::span<std::byte> state_bytes(std::string_view name);
  // The same for some of its elements, row-major from byte `offset` on, so that a large one is never held twice.
  void set_state(std::string_view name, Bytes offset, std::span<const std::byte> elements);
  void read_state(std::string_view name, Bytes offset, std::span<std::byte> into) const;
  // All of them as this rank has them, and back: where a rehearsal in the same memory overwrites them.
  using OwnStates = std::vector<std::vector<std::byte>>;
  OwnStates own_states() const;
  void set_own_states(const OwnStates& states);
  TensorSource state_source() const;  // for save_checkpoint
  // Whether other ranks have a part of some state. Then what reads a state, here and state() above, is done by all ranks
  // together, in one order; each gets the whole.
  bool is_divided() const;
  std::string weights_sha256() const;
  // Checks the checkpoint's bytes against their hash, then takes every state from it; throws Error(corrupt_file).
  void load(const Checkpoint& checkpoint);

  // Goes on with another plan of the same graph, in the same memory. States keep their values, wherever the plan has
  // them. Throws Error(invalid_input) where it is a plan for another graph; the old one stays then.
  void swap(CheckedPlan plan);
  const Program& program() const { return *program_; }
  Executor& executor() { return *executor_; }  // until the next swap
  const Executor& executor() const { return *executor_; }
  // The most that any step had live, under this plan or one before it (Executor::measured_peak).
  Bytes measured_peak() const;
  const ExecuteOptions& options() const { return options_; }

 private:
  size_t find_state(std::string_view name) const;
  void expect_within(size_t i, Bytes offset, size_t bytes) const;
  TensorId find_tensor(std::span<const TensorId> among, std::string_view what, std::string_view name) const;
  TensorId find_input(std::string_view name) const;
  template <class Byte, class Action>
  void for_each_part(size_t i, Bytes offset, std::span<Byte> bytes, const Action& action) const;
  void read_state(size_t i, Bytes offset, std::span<std::byte> into) const;
  void write_state(size_t i, Bytes offset, std::span<const std::byte> from);
  std::vector<StateTensor> states_that_move(const Plan& next) const;
  std::vector<std::pair<TensorId, std::vector<std::byte>>> what_comes_next() const;
  void find_tensors();
  void tell(size_t group, std::shared_ptr<const ParameterGroup> settings);
  static void set_rule(GroupUpdate& update, const ParameterGroup& settings);
  void write_settings(size_t group, double learning_rate);
  void feed_channels_last(const Batch& batch);

  const Device& device_;
  const ExecuteOptions options_;
  std::unique_ptr<Program> program_;  // at one address, wherever the step is moved
  std::unique_ptr<Executor> executor_;
  Bytes peak_before_swap_;
  std::vector<TensorId> learning_rates_;  // by group
  std::vector<GroupUpdate> groups_;       // the same
  // The same, by set_group. An empty group has them for the network that goes on from here.
  std::vector<std::shared_ptr<const ParameterGroup>> told_;
  std::vector<std::vector<TensorId>> factors_;  // the same: of updates by formulas, where UpdateRule::factors go
  std::vector<double> rates_;                   // one for all
  TensorId step_number_, seed_tensor_;
  TensorId count_tensor_, scale_, update_number_;  // where gradients are accumulated
  std::vector<WholeState> wholes_;
  std::vector<CheckpointTensor> states_;  // of wholes_
  int64_t number_ = 0, accumulated_ = 0;
  bool updates_ = false;  // the step that was started
  std::chrono::steady_clock::time_point started_;
  uint64_t seed_ = 0;
};

}  // namespace plimsoll
