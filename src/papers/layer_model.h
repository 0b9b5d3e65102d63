// The papers' layer model: a network as SuperNeurons and Dymem count its memory, for their tables and for plans beside
// theirs.
//
//   one op a layer forward, one backward        native graph                     layer model
//   CONV  reads x, dY, makes dX                 ConvBackwardData, ...Weights     one LayerBackward "conv"
//   ACT, LRN  write dX into dY                  ReluBackward (may overwrite)     must overwrite
//   FORK  k full copies of its input            a tensor with k readers          one LayerForward "fork", k outputs
//
// | layer           | forward tensor | new backward tensor         | backward reads |
// | CONV, FC, BN    | y              | dX                          | x, dY          |
// | POOL            | y              | dX                          | x, y, dY       |
// | DROPOUT         | y              | dX                          | dY             |
// | ACT, LRN        | y              | none (dX written into dY)   | x, y, dY       |
// | SOFTMAX         | y              | none (dX written into y)    | y              |
// | FORK            | k copies       | none (sums into one dY)     | all dY         |
// | JOIN            | y              | k-1 copies of dY            | dY             |
// | CONCAT          | y              | one dX an input             | dY             |
//
// Max pools have no padding, as in the programs behind the tables. Subsampling and zero padding of a shortcut without
// parameters are no layers: the JOIN reads through them. Such a graph is planned, never run.
#pragma once

#include <variant>
#include <vector>

#include "plimsoll/autodiff.h"
#include "plimsoll/compile.h"
#include "plimsoll/plan.h"

namespace plimsoll {

struct LayerModelOptions {
  bool relu_in_place = false;  // ACT may write y into x, and its backward reads y and dY alone
  bool weights = false;        // parameters, their gradients and momentum are states, advanced by the backward layers
  bool input = false;          // the batch is an input, read by the first layers forward and backward
};

// `network` is a forward network with one loss. Tensors are called "<layer>/y", "<layer>/dx", with a number where there
// are several. Throws Error(unsupported) that names the op for which there is no layer in the model.
Graph lower_to_layers(const Network& network, const LayerModelOptions& options = {});

// The kernel "layer", without workspace, for every op of such a graph.
std::vector<KernelChoice> layer_kernels(const Graph& graph);

// The program of that graph, which no device runs. `options` as for compile_training; nothing is fused, and no
// optimizer is added.
std::variant<Program, Infeasible> compile_layers(const Network& network, const LayerModelOptions& layer_model,
                                                 const Device& device, const CostTable& costs,
                                                 const CompileOptions& options);

}  // namespace plimsoll
