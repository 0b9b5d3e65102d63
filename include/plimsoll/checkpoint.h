// Checkpoints: everything that a training needs to go on exactly, in one safetensors file.
//
// Tensors (parameters, statistics, optimizer states) lie row-major under their names, so PyTorch's safetensors reads
// them. The training's state is JSON text in the file's metadata: one file, so one rename replaces both.
// docs/formats.md has the format.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plimsoll/autodiff.h"
#include "plimsoll/graph.h"
#include "plimsoll/plan.h"

namespace plimsoll {

// How the ops of a training shared the cores, where that was chosen by measured times; ops by name.
struct SavedCores {
  struct OpThreads {
    int threads = 0;
    Affinity affinity = Affinity::close;
    friend bool operator==(const OpThreads&, const OpThreads&) = default;
  };
  CoreSharing sharing;  // but for its conflicts; where its `cores` are 0, only inter_op is known
  std::vector<std::pair<std::string, std::string>> conflicts;  // of it
  std::map<std::string, OpThreads, std::less<>> ops;           // those that do not run with all threads, close
  friend bool operator==(const SavedCores&, const SavedCores&) = default;
};

// What else was asked for and changes the result; members and defaults are those of TrainOptions.
struct SavedSettings {
  int64_t image_size = 0, classes = 0;
  bool augment = true;
  int64_t warmup_epochs = 0, decay_epochs = 30, evaluate_every = 1;
  double warmup_lr = 0, min_lr = 0, decay_rate = 0.1;
  int inter_op = 1, intra_op = 0, climb_interval = 0;
  std::optional<Strategies> strategies;
  std::optional<Bytes> process_memory;  // of the whole process; the state's budget is what it left for the arena
  std::optional<Bytes> host_memory, spill_size, peer_size, remote_memory;
  std::optional<std::string> spill, peer;
  int ranks = 1;       // that trained together; not asked for again
  int zero_stage = 0;  // how they had divided the states (Sharding); the file has them whole
  Bytes zero_least;
  friend bool operator==(const SavedSettings&, const SavedSettings&) = default;
};

// What the network is fed with, for those who use it without the training's data.
struct SavedInput {
  int64_t channels = 0, height = 0, width = 0, classes = 0;
  std::vector<double> mean, stddev;      // per channel; black is 0 and white is 1
  bool centre_crop = false;              // of an image, 7/8 of the largest middle part of the input's aspect is seen
  std::vector<std::string> class_names;  // where the data has them
  friend bool operator==(const SavedInput&, const SavedInput&) = default;
};

// What the batches of an epoch had until now, so that an epoch that was interrupted is told of like any other: sums over
// its batches, and over the steps' norms.
struct EpochSoFar {
  double loss = 0;
  std::optional<double> correct;  // where the network classifies
  double gradient_norm = 0;
  double step_loss = 0;  // over the batches of the step that is not complete
  friend bool operator==(const EpochSoFar&, const EpochSoFar&) = default;
};

// Where a training is, and what it needs to be repeated bit for bit.
struct TrainingState {
  int64_t step = 0;            // steps (updates) done
  int64_t epoch = 0;           // of the next batch
  int64_t batch_in_epoch = 0;  // of the next batch
  uint64_t seed = 0;

  std::string model, data;  // as on the command line
  int64_t batch = 0;
  OptimizerOptions optimizer;
  double learning_rate = 0;
  std::string schedule;                       // as on the command line
  int64_t total_steps = 0, total_epochs = 0;  // what was asked for; schedules depend on it

  std::string policy, placement;
  Bytes budget;
  bool exact = false;
  std::string device, device_key;
  int threads = 0;
  std::string layout_family;
  std::map<std::string, std::string, std::less<>> kernels;        // op -> kernel
  std::map<std::string, std::string, std::less<>> state_layouts;  // state -> layout tag

  SavedSettings settings;
  std::optional<SavedCores> cores;
  std::optional<SavedInput> input;
  std::optional<EpochSoFar> epoch_so_far;  // where the epoch has begun, and all of these are finite

  std::string weights_sha256;  // set by save_checkpoint: of the bytes of parameters and statistics, in their order
};

std::string to_json(const TrainingState& state);
// Throws Error(corrupt_file) that names the field and what was expected, or that is not known; Error(unsupported) for a
// newer format version. `version`: where to put the format version.
TrainingState training_state_from_json(std::string_view json, int64_t* version = nullptr);

struct CheckpointTensor {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;  // any but bit
  Role role = Role::parameter;
  Bytes bytes() const { return storage_bytes(shape, dtype, {}); }
};

// Fills `into` with the row-major bytes of tensor number `tensor` from byte `offset` on. Called in order, a few MiB at
// a time, for whole elements, so that no tensor is ever in memory twice.
using TensorSource = std::function<void(size_t tensor, Bytes offset, std::span<std::byte> into)>;

// Writes atomically and durably: until it returns, `file` is what it was before; afterwards it survives a power cut. On
// any failure the old file is whole and the Error names the file, the operation and the cause. Returns weights_sha256.
std::string save_checkpoint(const std::filesystem::path& file, const TrainingState& state,
                            std::span<const CheckpointTensor> tensors, const TensorSource& source);

// The hash that a checkpoint of these tensors would have.
std::string weights_sha256(std::span<const CheckpointTensor> tensors, const TensorSource& source);

// A checkpoint open for reading; its header is checked whole, against its hash, before anything is read.
class Checkpoint {
 public:
  // Throws Error(invalid_input) when the file is not there, Error(corrupt_file) with file, place and what was expected.
  explicit Checkpoint(const std::filesystem::path& file);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;

  // Throws Error(invalid_input) when the file is a safetensors file of another program, which has no training state.
  const TrainingState& state() const;
  const std::vector<CheckpointTensor>& tensors() const;
  // The index of the tensor of this name; throws Error(corrupt_file) that names file and tensor when it is not there or
  // has another shape or dtype.
  size_t find(std::string_view name, const Shape& shape, DType dtype) const;
  // Row-major bytes from `offset` on.
  void read(size_t tensor, Bytes offset, std::span<std::byte> into) const;
  // Reads everything once and compares it with the hash in the file; throws Error(corrupt_file).
  void check_contents() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace plimsoll
