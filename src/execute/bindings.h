// What the kernels and copies of a plan are given: where in the arena they read and write, and how many bytes. Here
// stays become addresses, once; everything that runs afterwards uses these.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/by_id.h"
#include "plimsoll/device.h"
#include "plimsoll/graph.h"
#include "plimsoll/plan.h"

namespace plimsoll {

inline bool is_out(const Move& move) { return move.direction == Move::Direction::out; }

struct Region {
  std::byte* at = nullptr;  // null: nothing is given
  Bytes bytes;              // that may be used there
  TensorId tensor;          // whose they are; invalid: a workspace
  std::byte* end() const { return at + bytes.count; }
};

// Of one step. Empty for a view, which runs nothing.
struct KernelBinding {
  std::vector<Region> inputs, outputs;
  Region workspace;  // as many bytes as the kernel asks for
};

struct Bindings {
  std::byte* arena = nullptr;
  Bytes arena_bytes;
  ById<StepIndex, KernelBinding> steps;
  std::vector<Region> copies;  // by move
  // Where the next batch comes to while a step runs, and where the step after it finds it; nothing without second buffers.
  struct Next {
    Region buffer, place;
  };
  std::vector<Next> next;
  // What the arena holds between two training steps: what comes from outside before a step, and what it leaves.
  std::vector<Region> found, left;
};

// The stays of each tensor, by time.
class StaysOfTensors {
 public:
  StaysOfTensors(const Graph& graph, const Plan& plan);
  // The tensor's stay at this step; throws Error(internal) where it has none.
  const Stay& at(TensorId tensor, StepIndex step) const;
  // Where its elements are between training steps: what comes from outside as the step finds it, other tensors as it
  // leaves them.
  const Stay& at_rest(TensorId tensor) const;

 private:
  const Graph& graph_;
  const Plan& plan_;
  ById<TensorId, std::vector<int32_t>> stays_;
};

// `kernels`: one a step, null for a view.
Bindings make_bindings(const Graph& graph, const Plan& plan, Arena& arena,
                       std::span<const std::unique_ptr<Kernel>> kernels);
// Gives the kernel its pointers.
void bind(Kernel& kernel, const KernelBinding& binding);

}  // namespace plimsoll
