#include "plan/liveness.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/by_id.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr StepIndex kForever = std::numeric_limits<StepIndex>::max();

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
      buffer.range = buffer.is_state ? LiveRange{0, end()} : result_.tensors[buffer.tensors[0]];
      for (TensorId t : buffer.tensors) {
        buffer.bytes = std::max(buffer.bytes, align_up(graph_.tensor(t).bytes(), kStayAlignment));
        buffer.range.first = std::min(buffer.range.first, result_.tensors[t].first);
        buffer.range.last = std::max(buffer.range.last, result_.tensors[t].last);
      }
    }
    return std::move(result_);
  }

 private:
  StepIndex end() const { return std::max<StepIndex>(result_.steps - 1, 0); }

  void find_ranges() {
    const int32_t count = graph_.tensor_count();
    result_.steps = static_cast<StepIndex>(route_.order.size());
    result_.tensors.resize(count);
    result_.buffer_of.assign(count, -1);
    result_.overwritten_at.assign(count, -1);
    needed_until_.assign(count, 0);
    for (StepIndex s = 0; s < result_.steps; ++s) {
      const Op& op = graph_.op(route_.order[s]);
      for (TensorId t : op.outputs) result_.tensors[t] = {s, s};
      for (TensorId t : op.inputs) result_.tensors[t].last = s;
    }
    for (TensorId t : needed_until_.ids()) needed_until_[t] = result_.tensors[t].last;
    auto keep = [&](TensorId t) {
      result_.tensors[t].last = end();
      needed_until_[t] = kForever;
    };
    for (TensorId t : graph_.outputs) keep(t);
    for (const State& state : graph_.states) keep(state.after);
  }

  int32_t add_buffer(TensorId first, bool is_state) {
    const int32_t index = static_cast<int32_t>(result_.buffers.size());
    result_.buffers.push_back({.tensors = {first}, .bytes = {}, .range = {}, .is_state = is_state});
    buffer_needed_until_.push_back(needed_until_[first]);
    present_from_.push_back(0);
    result_.buffer_of[first] = index;
    return index;
  }

  void make_state_buffers() {
    for (const State& state : graph_.states) {
      if (result_.buffer_of[state.before] < 0) add_buffer(state.before, true);
    }
  }

  void make_other_source_buffers() {
    for (TensorId id : result_.tensors.ids()) {
      if (!graph_.tensor(id).producer.valid() && result_.buffer_of[id] < 0) add_buffer(id, false);
    }
  }

  void place_outputs(StepIndex step) {
    const Op& op = graph_.op(route_.order[step]);
    const std::vector<InPlace> pairs = op.type->in_place ? op.type->in_place(graph_, op) : std::vector<InPlace>{};
    // What must share comes first, so that a choice never takes what is demanded.
    for (const InPlace& pair : pairs) {
      if (pair.required) place_required(op, pair, step);
    }
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      if (result_.buffer_of[op.outputs[o]] >= 0) continue;
      const int32_t taken = options_.in_place ? find_dying_input(op, pairs, o, step) : -1;
      if (taken >= 0) {
        overwrite(taken, op.outputs[o], step);
      } else {
        add_buffer(op.outputs[o], false);
      }
    }
  }

  void place_required(const Op& op, const InPlace& pair, StepIndex step) {
    const TensorId in = op.inputs.at(pair.input);
    const TensorId out = op.outputs.at(pair.output);
    const int32_t buffer = result_.buffer_of[in];
    if (op.type->is_view) {
      join(buffer, out);
      return;
    }
    for (TensorId member : present(buffer)) {
      if (needed_until_[member] <= step) continue;
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
      if (pair.required || !std::cmp_equal(pair.output, o)) continue;
      const TensorId id = op.inputs.at(pair.input);
      const Tensor& in = graph_.tensor(id);
      const int32_t buffer = result_.buffer_of[id];
      if (result_.buffers[buffer].is_state) continue;
      if (buffer_needed_until_[buffer] > step) continue;
      if (in.bytes() != out.bytes() || in.dtype != out.dtype || in.layout != out.layout) continue;
      if (may_overwrite_all(op, pairs, o, buffer)) return buffer;
    }
    return -1;
  }

  // Every input that lies in `buffer` is one that output `o` may overwrite, and no other output has taken it.
  bool may_overwrite_all(const Op& op, const std::vector<InPlace>& pairs, size_t o, int32_t buffer) const {
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (result_.buffer_of[op.inputs[i]] != buffer) continue;
      const bool allowed = std::any_of(pairs.begin(), pairs.end(), [&](const InPlace& p) {
        return std::cmp_equal(p.output, o) && std::cmp_equal(p.input, i);
      });
      if (!allowed) return false;
    }
    return std::none_of(op.outputs.begin(), op.outputs.end(),
                        [&](TensorId t) { return result_.buffer_of[t] == buffer; });
  }

  // What lies in the buffer now: one tensor and its views.
  std::span<const TensorId> present(int32_t buffer) const {
    return std::span(result_.buffers[buffer].tensors).subspan(present_from_[buffer]);
  }

  void overwrite(int32_t buffer, TensorId by, StepIndex step) {
    for (TensorId member : present(buffer)) result_.overwritten_at[member] = step;
    present_from_[buffer] = result_.buffers[buffer].tensors.size();
    buffer_needed_until_[buffer] = 0;
    join(buffer, by);
  }

  void join(int32_t buffer, TensorId tensor) {
    result_.buffers[buffer].tensors.push_back(tensor);
    result_.buffer_of[tensor] = buffer;
    StepIndex& needed = buffer_needed_until_[buffer];
    needed = std::max(needed, needed_until_[tensor]);
  }

  void check_states() const {
    for (const State& state : graph_.states) {
      if (result_.buffer_of[state.before] == result_.buffer_of[state.after]) continue;
      throw Error(ErrorCode::invalid_input,
                  fmt::format("graph '{}': state '{}' leaves the step as '{}', which no op writes in its place",
                              graph_.name, graph_.tensor(state.before).name, graph_.tensor(state.after).name));
    }
  }

  const Graph& graph_;
  const Route& route_;
  const LivenessOptions& options_;
  Liveness result_;
  ById<TensorId, StepIndex> needed_until_;  // by tensor: its last reader, kForever for what must be there at the end
  std::vector<StepIndex> buffer_needed_until_;  // the largest of the tensors that lie there now
  std::vector<size_t> present_from_;            // by buffer: the first of its tensors that nothing has overwritten
};

}  // namespace

Liveness find_liveness(const Graph& graph, const Route& route, const LivenessOptions& options) {
  return Analysis(graph, route, options).run();
}

std::vector<TensorId> live_before(const Graph& graph, const Liveness& liveness, StepIndex step) {
  std::vector<TensorId> result;
  for (TensorId id : liveness.tensors.ids()) {
    const LiveRange& range = liveness.tensors[id];
    const bool from_outside = !graph.tensor(id).producer.valid();
    if ((range.first < step || from_outside) && range.last >= step) result.push_back(id);
  }
  return result;
}

std::vector<TensorId> live_after(const Liveness& liveness, StepIndex step) {
  std::vector<TensorId> result;
  for (TensorId id : liveness.tensors.ids()) {
    const LiveRange& range = liveness.tensors[id];
    if (range.first <= step && range.last > step) result.push_back(id);
  }
  return result;
}

}  // namespace plimsoll
