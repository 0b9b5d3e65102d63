// Forward graph -> graph of one training step: gradients by reverse accumulation, updates as ops.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "plimsoll/graph.h"

namespace plimsoll {

struct OptimizerOptions {
  std::string name = "sgd";    // sgd, adam, adamw
  double momentum = 0.9;       // sgd
  bool nesterov = false;       // sgd
  double weight_decay = 0;     // as in PyTorch: added to the gradient (sgd, adam), decoupled (adamw)
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  // adam, adamw
};

// A loss and the parameters that it trains. A network has one; a GAN has two.
struct Objective {
  TensorId loss;                     // a scalar
  std::vector<TensorId> parameters;
};

// A network as the zoo, an importer or a user builds it: the forward pass, and what to train by which loss.
struct Network {
  Graph graph;
  std::vector<Objective> objectives;
  TensorId data, labels;             // inputs that the trainer fills; labels may be invalid
  TensorId correct;                  // the number of right answers in the batch, where there is such a thing
};

// Appends the backward ops of `loss` and returns the gradient of each of `wanted` (invalid where none flows). Gradients of a
// tensor with several readers are summed as they come. Throws Error(unsupported) that names an op without gradient.
std::vector<TensorId> append_backward(Graph& graph, TensorId loss, std::span<const TensorId> wanted);

// The same from gradients that are tensors of the graph already: of a hidden layer, of several outputs at once.
struct Seed {
  TensorId tensor;
  TensorId gradient;  // of the shape of `tensor`
};
std::vector<TensorId> append_backward(Graph& graph, std::span<const Seed> seeds, std::span<const TensorId> wanted);

// Appends an update of `parameter` by `gradient` with its optimizer states and records the state pairs. `learning_rate` and
// `step_number` are the graph's inputs.
void append_update(Graph& graph, TensorId parameter, TensorId gradient, const OptimizerOptions& options,
                   TensorId learning_rate, TensorId step_number);

// The whole step: forward, backward of every objective, update of every parameter. Inputs "learning_rate" (f32 scalar) and
// "step_number" (i64 scalar) are added where they are not there yet.
Network make_training_network(const Network& forward, const OptimizerOptions& options);

}  // namespace plimsoll
