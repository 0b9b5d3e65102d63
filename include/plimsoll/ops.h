// Everything known about a kind of op, in one value: shape rule, gradient, what may be overwritten, work, reference
// function.
//
// A family of ops (convolution: forward, backward-data, backward-weights) is one file in src/ops/. Code elsewhere asks
// the OpType and never switches on a name. Users register types of their own in the same way (examples/custom_op.cpp,
// docs/adding.md).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/graph.h"

namespace plimsoll {

// What an op makes, before it has a name.
struct TensorSpec {
  Shape shape;
  DType dtype = DType::f32;
  Role role = Role::activation;
};

// The output may take the input's bytes. The kernel then reads and writes the same place, and the input is gone
// afterwards.
struct InPlace {
  int output = 0;
  int input = 0;
  bool required = false;  // state updates and views: the output must lie where the input lies
};

// The work of an op, for estimates and for GFLOP/s in reports. A multiply-add counts two.
struct Work {
  double flops = 0;
  double bytes = 0;  // what must at least be read and written
};

// A tensor's elements in row-major order and plain layout, as the reference kernels see them.
struct TensorView {
  Shape shape;
  DType dtype = DType::f32;
  void* data = nullptr;
};

// What a layer is, as the papers count layers. Policies choose by it what leaves the arena and what is computed again.
enum class LayerKind : uint8_t {
  other,  // views, reorders, constants, noise, updates
  convolution,
  fully_connected,
  pool,
  batch_norm,
  activation,
  lrn,
  dropout,
  softmax,  // any loss
  fork,     // copies of one tensor for several readers; in layer models only
  join,     // a sum
  concat,
  unset,  // nobody has said; register_op refuses it
};
std::string_view to_string(
    LayerKind kind);  // "conv", "fc", "pool", "bn", "act", "lrn", "dropout", "softmax", "fork", ...
LayerKind layer_kind_named(std::string_view name);  // throws Error(invalid_input) with the nearest name

// How an op runs in parts along the batch, which is the first dimension of its tensors. Each part works on some of the
// rows. An input that is not listed is read whole by every part (weights). An output that is not listed is a sum over
// the batch, to which every part adds.
struct BatchDivision {
  std::vector<int> inputs, outputs;  // whose rows belong to the rows of the batch
  bool possible() const { return !inputs.empty(); }
};

struct OpType {
  std::string name;

  // The outputs' shapes, dtypes and roles; throws Error(invalid_input) that says which input is wrong and why.
  std::function<std::vector<TensorSpec>(const Attributes&, std::span<const Tensor* const> inputs)> infer;

  // Appends the ops that compute the gradient of each input from the gradient of each output, and returns the former.
  // An invalid id stands for a gradient that is not there. `wanted` tells which inputs' gradients anybody needs. Empty
  // for ops without gradient.
  std::function<std::vector<TensorId>(Graph&, OpId forward, std::span<const TensorId> output_gradients,
                                      const std::vector<bool>& wanted)>
      gradient;

  // Which outputs may, or must, lie in an input's bytes. The op is given, since that may depend on attributes and
  // shapes.
  std::function<std::vector<InPlace>(const Graph&, const Op&)> in_place;

  std::function<Work(const Graph&, const Op&)> work;

  // Computes the result plainly and slowly, in f32 or f64; all floating inputs have one dtype. The caller allocates the
  // outputs. The two views of an in-place pair may be the same memory.
  std::function<void(const Op&, std::span<const TensorView> inputs, std::span<const TensorView> outputs)> reference;

  bool is_view = false;        // moves no data: the output is the input under another shape (reshape)
  bool changes_state = false;  // must run exactly once a step: optimizer updates
  bool is_collective = false;  // all ranks run it together (device/collectives.h), each with its part of the batch
  bool is_of_rank = false;     // what comes out depends on which rank runs it, though it sends nothing
  // Outputs that are the new values of running statistics. A recomputation leaves them alone, so that they advance once
  // a step.
  std::vector<int> state_outputs;

  BatchDivision
      division;  // impossible where rows depend on each other (batch normalization) or on their number (losses)

  // Of the layer that such ops, forward or backward, come from. It must be given: some policies go by it, and never
  // offload what ops of kind `other` read.
  LayerKind kind = LayerKind::unset;
};

// The kind of the layer that an op comes from: its type's, or for the ops of a layer model their attribute "kind".
LayerKind layer_kind(const Op& op);
// Its outputs that are the new values of running statistics: its type's, or for ops of costs only their attribute
// "state_outputs".
std::vector<int> state_outputs(const Op& op);
// The rows of the batch that the op runs on, if it can run in parts; else 0.
int64_t divisible_batch(const Graph& graph, const Op& op);

// Registers a type. Throws Error(invalid_input) when the name is taken or the kind is not set. Built-in families are
// there already.
const OpType& register_op(OpType type);
// Throws Error(invalid_input) with the nearest known name.
const OpType& op_type(std::string_view name);
std::vector<const OpType*> all_op_types();

// The settings of an update. The learning rate is an input; the others are attributes. Where the learning rate's input is
// a vector, the others follow it there, and stand for the attributes: so they may change from step to step.
//
//   SgdUpdate   {learning rate, weight decay, momentum}
//   AdamUpdate  {learning rate, weight decay, 1 - beta1, 1 - beta2, epsilon}
//
// Of betas there is what is missing to 1, since f32 keeps that exactly enough.
struct SgdSettings {
  static constexpr int64_t kCount = 3;
  explicit SgdSettings(const Attributes& a)
      : weight_decay(a.real("weight_decay", 0)),
        momentum(a.real("momentum", 0)),
        nesterov(a.integer("nesterov", 0) != 0) {}

  template <class T>
  void read(const T* given, int64_t count) {
    learning_rate = given[0];
    if (count != kCount) return;
    weight_decay = given[1];
    momentum = given[2];
  }

  std::vector<float> values() const {
    return {static_cast<float>(learning_rate), static_cast<float>(weight_decay), static_cast<float>(momentum)};
  }

  double learning_rate = 0, weight_decay, momentum;
  bool nesterov;
};

struct AdamSettings {
  static constexpr int64_t kCount = 5;
  explicit AdamSettings(const Attributes& a)
      : weight_decay(a.real("weight_decay", 0)),
        rest1(1 - a.real("beta1", 0.9)),
        rest2(1 - a.real("beta2", 0.999)),
        epsilon(a.real("epsilon", 1e-8)),
        decoupled(a.integer("decoupled", 0) != 0) {}

  template <class T>
  void read(const T* given, int64_t count) {
    learning_rate = given[0];
    if (count != kCount) return;
    weight_decay = given[1];
    rest1 = given[2];
    rest2 = given[3];
    epsilon = given[4];
  }
  std::vector<float> values() const {
    return {static_cast<float>(learning_rate), static_cast<float>(weight_decay), static_cast<float>(rest1),
            static_cast<float>(rest2), static_cast<float>(epsilon)};
  }
  double beta1() const { return 1 - rest1; }
  double beta2() const { return 1 - rest2; }

  double learning_rate = 0, weight_decay, rest1, rest2, epsilon;
  bool decoupled;
};

}  // namespace plimsoll
