// What to train, and the graph of one training step. A network comes in with its forward pass; out comes the same
// network with the backward pass and the optimizer's updates as further ops, by reverse accumulation.
//
//   forward    data ──> conv ──> relu ──> loss
//   backward            conv' <── relu' <── loss'         gradients, in the opposite order
//   update              w, w' ──> SgdUpdate ──> w.next    one op a parameter
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "plimsoll/graph.h"

namespace plimsoll {

inline constexpr int kMostRanks = 1 << 20;
inline constexpr int64_t kMostAccumulated = int64_t{1} << 20;  // batches of one update

// Settings of an optimizer by PyTorch's names, of `betas` "beta1" and "beta2"; yes and no are 1 and 0.
using OptimizerSettings = std::map<std::string, double, std::less<>>;

// Parameters that are updated by settings of their own: one of PyTorch's parameter groups.
struct ParameterGroup {
  std::vector<std::string> parameters;  // by name
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 0;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  OptimizerSettings settings;  // as OptimizerOptions::settings, before which they go
  // Of an optimizer that has `settings`, for TrainingStep::set_group: by how many its updates are behind the step's, and what
  // nadam's product of mu is so far; below 0: what these settings would have made it.
  int64_t behind = 0;
  double mu_product = -1;
};

// What belongs to a parameter may be divided among the ranks (ZeRO: Rajbhandari et al., "ZeRO: memory optimizations toward
// training trillion parameter models", SC 2020, section 5). Its stages, each with what the one before divides:
//   1  optimizer states: every rank updates its piece of the parameter, and gathers the others'
//   2  sums of gradients over several batches. (Without these a gradient lives but a moment in any stage.)
//   3  the parameter: gathered for the forward pass, and again for the backward pass
struct Sharding {
  int stage = 0;  // 0: nothing is divided
  Bytes least;    // parameters of fewer bytes stay whole
  // Sums over batches are not divided in any stage: then they are added in the same order, and the bits are the same.
  bool whole_sums = false;
  friend bool operator==(const Sharding&, const Sharding&) = default;
};
inline constexpr int kMostShardingStage = 3;

struct OptimizerOptions {
  std::string name = "sgd";  // sgd, adam, adamw, rmsprop, adagrad, adadelta, adamax, nadam, radam, lion, adafactor, ...
  double momentum = 0.9;     // sgd
  bool nesterov = false;     // sgd
  double weight_decay = 0;   // of all; as in PyTorch: added to the gradient, but of adamw decoupled
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  // adam, adamw
  // The others' settings, and those of sgd, adam and adamw that are not above: dampening, amsgrad, maximize. What is absent is
  // PyTorch's default.
  OptimizerSettings settings;
  // Parameters that are not trained, by patterns of their names ("layer1.*"; * stands for anything, dots too): they get
  // no gradient, no update and no optimizer state. Running statistics advance as ever, as in PyTorch.
  std::vector<std::string> freeze;
  // Above 0: where the norm of all gradients together is above this, they are scaled down to it, as by PyTorch's
  // clip_grad_norm_. All gradients of an objective then live until the last is there.
  double clip_grad_norm = 0;
  // Above 1: an update comes after so many batches, by the mean of their gradients, as of a batch so many times as large.
  // (BatchNorm takes its statistics of each batch alone.) Every parameter gets a sum of gradients beside its optimizer's
  // states. The graph is the same for any number above 1.
  int64_t accumulate = 1;
  // Where there are some: every parameter that is trained belongs to one of them, whose settings stand for those above. Group
  // number i > 0 has its learning rate from the input "learning_rate.i". These inputs are vectors then: the other settings follow
  // the rate, and may change from step to step (TrainingStep::set_group). Whether there is momentum, and its form, may not.
  std::vector<ParameterGroup> groups;
  // Above 1: so many processes train together, each with its part of the batch. Every gradient is averaged over them before
  // anything else reads it (AllReduce); a sum of gradients before its update.
  int ranks = 1;
  Sharding sharding;  // among them
  // With several ranks: BatchNorm takes mean and variance of the whole batch, as torch.nn.SyncBatchNorm, rather than of each
  // rank's part. All ranks wait for each other twice a layer: for the statistics, and for their gradients.
  bool sync_batch_norm = false;
  // Parameters that no gradient reaches are left as they are, as PyTorch's optimizers leave them; else they are an error.
  bool leave_unreached = false;
};

// Whether the elements of a parameter depend on each other in its update, as in Adafactor's: then neither a block of its rows
// nor a rank's piece of it can be updated alone. Throws Error(invalid_input) on an optimizer that is not known.
bool updates_whole_parameters(const OptimizerOptions& options);

// A loss and the parameters that it trains. A classifier has one objective; a GAN has two.
struct Objective {
  TensorId loss;  // a scalar
  std::vector<TensorId> parameters;
};

// A network as the zoo, an importer or a user builds it: the forward pass, and what to train by which loss.
struct Network {
  Graph graph;
  std::vector<Objective> objectives;
  TensorId data, labels;  // inputs that the trainer fills before each step; labels are invalid where there are none
  TensorId correct;  // an output: how many of the batch were answered rightly; invalid where nothing is right or wrong
  TensorId gradient_norm;  // an output: of all gradients, before they were clipped; invalid where they are not
  int64_t accumulate = 1;  // batches an update, as OptimizerOptions::accumulate
};

// Appends the backward ops of `loss`. Returns the gradient of each tensor of `wanted`; an invalid id where the loss
// does not depend on it. Where a tensor has several readers, their gradients are added. Throws Error(unsupported) that
// names the op where an op has no gradient.
std::vector<TensorId> append_backward(Graph& graph, TensorId loss, std::span<const TensorId> wanted);

// The same, started from gradients that are tensors of the graph already: of a hidden layer, or of several outputs at
// once.
struct Seed {
  TensorId tensor;
  TensorId gradient;  // of the shape of `tensor`
};
std::vector<TensorId> append_backward(Graph& graph, std::span<const Seed> seeds, std::span<const TensorId> wanted);

// Appends an update of `parameter` by `gradient` with its optimizer states and records the state pairs. `learning_rate`
// and `step_number` are the graph's inputs. `scale`: a scalar by which the gradient is multiplied, and which says by a
// value below 0 that there is nothing to update yet; invalid where the gradient is taken as it is.
void append_update(Graph& graph, TensorId parameter, TensorId gradient, const OptimizerOptions& options,
                   TensorId learning_rate, TensorId step_number, TensorId scale = {});

// Whether what belongs to a parameter of this shape is divided among so many ranks: not where a piece is hardly smaller
// than the whole.
bool is_divided(const Shape& parameter, const Sharding& sharding, int ranks);
// Of a parameter that an AllGather makes of the ranks' pieces, and this rank's piece of it.
bool is_gathered(const Graph& graph, TensorId id);
TensorId piece_of(const Graph& graph, TensorId gathered);

// The name of the input that a group's learning rate comes from: "learning_rate", "learning_rate.1", ...
std::string learning_rate_name(size_t group);

// The whole training step: the forward pass, the backward pass of every objective, an update of every parameter. Adds
// the inputs "learning_rate" (f32 scalar; one a group, see OptimizerOptions::groups) and "step_number" (i64 scalar, from 0) where they are not there yet. Throws
// Error(invalid_input) where a pattern of `freeze` has no parameter, or nothing is left to train.
//
// Where gradients are accumulated, a step is one batch, and these inputs say what it is to the update:
//   "accumulated"     i64, how many batches the sums have already; with 0 they begin anew
//   "gradient_scale"  f32, by what the update multiplies the sums: one over the number of batches; below 0: none yet
//   "update_number"   i64, from 0, for optimizers that count their updates; "step_number" counts batches then
Network make_training_network(const Network& forward, const OptimizerOptions& options);

}  // namespace plimsoll
