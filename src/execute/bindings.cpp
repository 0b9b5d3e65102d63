#include "execute/bindings.h"

#include <fmt/format.h>

#include <algorithm>

#include "plan/recompute_operands.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

StepIndex last_step(const Plan& plan) { return std::max<StepIndex>(static_cast<StepIndex>(plan.steps.size()) - 1, 0); }

class Binder {
 public:
  Binder(const Graph& graph, const Plan& plan, Arena& arena) : graph_(graph), plan_(plan), stays_(graph, plan) {
    result_.arena = arena.base();
    result_.arena_bytes = arena.bytes();
  }

  Bindings run(std::span<const std::unique_ptr<Kernel>> kernels) {
    result_.steps = ById<StepIndex, KernelBinding>(plan_.steps.size());
    for (StepIndex s = 0; s < static_cast<StepIndex>(plan_.steps.size()); ++s) {
      const bool in_collective = !kernels[s] && graph_.op(plan_.steps[s].op).type->is_collective;
      if (kernels[s] || in_collective) bind_step(s, kernels[s].get());
    }
    for (const Stay& stay : plan_.stays) {
      if (stay.is_workspace() && kernels[stay.first]) result_.steps[stay.first].workspace.at = address(stay);
    }
    for (const Move& move : plan_.moves) {
      const StepIndex step =
          is_out(move) ? std::max<StepIndex>(move.after, 0) : std::min(move.before, last_step(plan_));
      result_.copies.push_back(region(move.tensor, stays_.at(move.tensor, step)));
    }
    if (plan_.feeding.second_buffer) {
      for (const FedInput& input : plan_.feeding.inputs) {
        const Region place = region(input.tensor, stays_.at_rest(input.tensor));
        result_.next.push_back(
            {.buffer = {result_.arena + input.offset.count, place.bytes, input.tensor}, .place = place});
      }
    }
    bind_rest();
    return std::move(result_);
  }

 private:
  std::byte* address(const Stay& stay) const { return result_.arena + stay.offset.count; }
  Region region(TensorId id, const Stay& stay) const { return {address(stay), graph_.tensor(id).bytes(), id}; }

  void bind_step(StepIndex s, const Kernel* kernel) {
    const Step& step = plan_.steps[s];
    const Op& op = graph_.op(step.op);
    KernelBinding& binding = result_.steps[s];
    binding.workspace.bytes = kernel != nullptr ? kernel->workspace() : Bytes{};
    if (binding.workspace.bytes > step.workspace) {
      throw Error(ErrorCode::internal,
                  fmt::format("step {} ({}): kernel '{}' needs {} of workspace but the plan has {}", s, op.name,
                              step.kernel, to_string(binding.workspace.bytes), to_string(step.workspace)));
    }
    const RecomputeOperands unused(graph_, op, step.recompute);
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      binding.inputs.push_back(unused.input(i) ? Region{} : region(op.inputs[i], stays_.at(op.inputs[i], s)));
    }
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      binding.outputs.push_back(unused.output(i) ? Region{} : region(op.outputs[i], stays_.at(op.outputs[i], s)));
    }
  }

  void bind_rest() {
    ById<TensorId, bool> away(graph_.tensor_count(), false);
    for (const Home& home : plan_.homes) away[home.tensor] = true;
    for (const State& state : graph_.states) away[state.after] = away[state.before];
    ById<TensorId, bool> present(graph_.tensor_count(), false);
    for (const Stay& stay : plan_.stays) {
      if (!stay.is_workspace()) present[stay.tensor] = true;
    }
    auto rest = [&](std::vector<Region>& list, TensorId id) {
      if (!away[id] && present[id]) list.push_back(region(id, stays_.at_rest(id)));
    };
    for (TensorId id{0}; id.index < graph_.tensor_count(); ++id.index) {
      if (!graph_.tensor(id).producer.valid()) rest(result_.found, id);
    }
    for (const State& state : graph_.states) rest(result_.left, state.after);
    for (TensorId id : graph_.outputs) rest(result_.left, id);
  }

  const Graph& graph_;
  const Plan& plan_;
  const StaysOfTensors stays_;
  Bindings result_;
};

}  // namespace

StaysOfTensors::StaysOfTensors(const Graph& graph, const Plan& plan)
    : graph_(graph), plan_(plan), stays_(graph.tensor_count()) {
  for (size_t i = 0; i < plan.stays.size(); ++i) {
    if (!plan.stays[i].is_workspace()) stays_[plan.stays[i].tensor].push_back(static_cast<int32_t>(i));
  }
}

const Stay& StaysOfTensors::at(TensorId tensor, StepIndex step) const {
  for (int32_t i : stays_[tensor]) {
    const Stay& stay = plan_.stays[i];
    if (stay.first <= step && step <= stay.last) return stay;
  }
  throw Error(ErrorCode::internal,
              fmt::format("tensor '{}' is not in the arena at step {}", graph_.tensor(tensor).name, step));
}

const Stay& StaysOfTensors::at_rest(TensorId tensor) const {
  return at(tensor, graph_.tensor(tensor).producer.valid() ? last_step(plan_) : 0);
}

Bindings make_bindings(const Graph& graph, const Plan& plan, Arena& arena,
                       std::span<const std::unique_ptr<Kernel>> kernels) {
  return Binder(graph, plan, arena).run(kernels);
}

void bind(Kernel& kernel, const KernelBinding& binding) {
  std::vector<void*> inputs, outputs;
  for (const Region& input : binding.inputs) inputs.push_back(input.at);
  for (const Region& output : binding.outputs) outputs.push_back(output.at);
  kernel.bind(inputs, outputs, binding.workspace.at);
}

}  // namespace plimsoll
