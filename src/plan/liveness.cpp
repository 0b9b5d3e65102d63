#include "plan/liveness.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr StepIndex kForever = std::numeric_limits<StepIndex>::max();

size_t at(TensorId id) { return static_cast<size_t>(id.index); }

class Analysis {
 public:
  Analysis(const Graph& graph, const Route& route, const LivenessOptions& options)
      : graph_(graph), route_(route), options_(options) {}

  Liveness run() {
    find_ranges();
    make_state_buffers();
    make_other_source_buffers();
    for (StepIndex s = 0; s < result_.steps; ++s) place_outputs(s);
    check_states();
    for (SharedBuffer& buffer : result_.buffers) {
      buffer.range = buffer.is_state ? LiveRange{0, end()} : result_.tensors[at(buffer.tensors[0])];
      for (TensorId t : buffer.tensors) {
        buffer.bytes = std::max(buffer.bytes, align_up(graph_.tensor(t).bytes(), kStayAlignment));
        buffer.range.first = std::min(buffer.range.first, result_.tensors[at(t)].first);
        buffer.range.last = std::max(buffer.range.last, result_.tensors[at(t)].last);
      }
    }
    return std::move(result_);
  }

 private:
  StepIndex end() const { return std::max<StepIndex>(result_.steps - 1, 0); }

  void find_ranges() {
    const size_t count = static_cast<size_t>(graph_.tensor_count());
    result_.steps = static_cast<StepIndex>(route_.order.size());
    result_.tensors.resize(count);
    result_.buffer_of.assign(count, -1);
    result_.overwritten_at.assign(count, -1);
    needed_until_.assign(count, 0);
    for (StepIndex s = 0; s < result_.steps; ++s) {
      const Op& op = graph_.op(route_.order[static_cast<size_t>(s)]);
      for (TensorId t : op.outputs) result_.tensors[at(t)] = {s, s};
      for (TensorId t : op.inputs) result_.tensors[at(t)].last = s;
    }
    for (size_t i = 0; i < count; ++i) needed_until_[i] = result_.tensors[i].last;
    auto keep = [&](TensorId t) {
      result_.tensors[at(t)].last = end();
      needed_until_[at(t)] = kForever;
    };
    for (TensorId t : graph_.outputs) keep(t);
    for (const State& state : graph_.states) keep(state.after);
  }

  int32_t add_buffer(TensorId first, bool is_state) {
    const int32_t index = static_cast<int32_t>(result_.buffers.size());
    result_.buffers.push_back({.tensors = {first}, .bytes = {}, .range = {}, .is_state = is_state});
    buffer_needed_until_.push_back(needed_until_[at(first)]);
    present_from_.push_back(0);
    result_.buffer_of[at(first)] = index;
    return index;
  }

  void make_state_buffers() {
    for (const State& state : graph_.states) {
      if (result_.buffer_of[at(state.before)] < 0) add_buffer(state.before, true);
    }
  }

  void make_other_source_buffers() {
    for (int32_t i = 0; i < graph_.tensor_count(); ++i) {
      if (!graph_.tensor({i}).producer.valid() && result_.buffer_of[static_cast<size_t>(i)] < 0) add_buffer({i}, false);
    }
  }

  void place_outputs(StepIndex step) {
    const Op& op = graph_.op(route_.order[static_cast<size_t>(step)]);
    const std::vector<InPlace> pairs = op.type->in_place ? op.type->in_place(graph_, op) : std::vector<InPlace>{};
    // What must share comes first, so that a choice never takes what is demanded.
    for (const InPlace& pair : pairs) {
      if (pair.required) place_required(op, pair, step);
    }
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      if (result_.buffer_of[at(op.outputs[o])] >= 0) continue;
      const int32_t taken = options_.in_place ? find_dying_input(op, pairs, o, step) : -1;
      if (taken >= 0) {
        overwrite(taken, op.outputs[o], step);
      } else {
        add_buffer(op.outputs[o], false);
      }
    }
  }

  void place_required(const Op& op, const InPlace& pair, StepIndex step) {
    const TensorId in = op.inputs.at(static_cast<size_t>(pair.input));
    const TensorId out = op.outputs.at(static_cast<size_t>(pair.output));
    const int32_t buffer = result_.buffer_of[at(in)];
    if (op.type->is_view) {
      join(buffer, out);
      return;
    }
    for (TensorId member : present(buffer)) {
      if (needed_until_[at(member)] <= step) continue;
      throw Error(ErrorCode::invalid_input,
                  fmt::format("graph '{}': op '{}' overwrites '{}', which is still needed after it", graph_.name,
                              op.name, graph_.tensor(member).name));
    }
    overwrite(buffer, out, step);
  }

  // The buffer of an input that output `o` may overwrite at this step; -1: none.
  int32_t find_dying_input(const Op& op, const std::vector<InPlace>& pairs, size_t o, StepIndex step) const {
    const Tensor& out = graph_.tensor(op.outputs[o]);
    for (const InPlace& pair : pairs) {
      if (pair.required || static_cast<size_t>(pair.output) != o) continue;
      const TensorId id = op.inputs.at(static_cast<size_t>(pair.input));
      const Tensor& in = graph_.tensor(id);
      const int32_t buffer = result_.buffer_of[at(id)];
      if (result_.buffers[static_cast<size_t>(buffer)].is_state) continue;
      if (buffer_needed_until_[static_cast<size_t>(buffer)] > step) continue;
      if (in.bytes() != out.bytes() || in.dtype != out.dtype || in.layout != out.layout) continue;
      if (may_overwrite_all(op, pairs, o, buffer)) return buffer;
    }
    return -1;
  }

  // Every input that lies in `buffer` is one that output `o` may overwrite, and no other output has taken it.
  bool may_overwrite_all(const Op& op, const std::vector<InPlace>& pairs, size_t o, int32_t buffer) const {
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (result_.buffer_of[at(op.inputs[i])] != buffer) continue;
      const bool allowed = std::any_of(pairs.begin(), pairs.end(), [&](const InPlace& p) {
        return static_cast<size_t>(p.output) == o && static_cast<size_t>(p.input) == i;
      });
      if (!allowed) return false;
    }
    return std::none_of(op.outputs.begin(), op.outputs.end(),
                        [&](TensorId t) { return result_.buffer_of[at(t)] == buffer; });
  }

  // What lies in the buffer now: one tensor and its views.
  std::span<const TensorId> present(int32_t buffer) const {
    return std::span(result_.buffers[static_cast<size_t>(buffer)].tensors)
        .subspan(present_from_[static_cast<size_t>(buffer)]);
  }

  void overwrite(int32_t buffer, TensorId by, StepIndex step) {
    for (TensorId member : present(buffer)) result_.overwritten_at[at(member)] = step;
    present_from_[static_cast<size_t>(buffer)] = result_.buffers[static_cast<size_t>(buffer)].tensors.size();
    buffer_needed_until_[static_cast<size_t>(buffer)] = 0;
    join(buffer, by);
  }

  void join(int32_t buffer, TensorId tensor) {
    result_.buffers[static_cast<size_t>(buffer)].tensors.push_back(tensor);
    result_.buffer_of[at(tensor)] = buffer;
    StepIndex& needed = buffer_needed_until_[static_cast<size_t>(buffer)];
    needed = std::max(needed, needed_until_[at(tensor)]);
  }

  void check_states() const {
    for (const State& state : graph_.states) {
      if (result_.buffer_of[at(state.before)] == result_.buffer_of[at(state.after)]) continue;
      throw Error(ErrorCode::invalid_input,
                  fmt::format("graph '{}': state '{}' leaves the step as '{}', which no op writes in its place",
                              graph_.name, graph_.tensor(state.before).name, graph_.tensor(state.after).name));
    }
  }

  const Graph& graph_;
  const Route& route_;
  const LivenessOptions& options_;
  Liveness result_;
  std::vector<StepIndex> needed_until_;  // by tensor: its last reader, kForever for what must be there at the end
  std::vector<StepIndex> buffer_needed_until_;  // the largest of the tensors that lie there now
  std::vector<size_t> present_from_;            // by buffer: the first of its tensors that nothing has overwritten
};

}  // namespace

Liveness find_liveness(const Graph& graph, const Route& route, const LivenessOptions& options) {
  return Analysis(graph, route, options).run();
}

std::vector<TensorId> live_before(const Graph& graph, const Liveness& liveness, StepIndex step) {
  std::vector<TensorId> result;
  for (size_t i = 0; i < liveness.tensors.size(); ++i) {
    const LiveRange& range = liveness.tensors[i];
    const bool from_outside = !graph.tensors()[i].producer.valid();
    if ((range.first < step || from_outside) && range.last >= step) result.push_back({static_cast<int32_t>(i)});
  }
  return result;
}

std::vector<TensorId> live_after(const Liveness& liveness, StepIndex step) {
  std::vector<TensorId> result;
  for (size_t i = 0; i < liveness.tensors.size(); ++i) {
    const LiveRange& range = liveness.tensors[i];
    if (range.first <= step && range.last > step) result.push_back({static_cast<int32_t>(i)});
  }
  return result;
}

}  // namespace plimsoll
