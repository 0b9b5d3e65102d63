#include "plan/value_timeline.h"

#include <algorithm>

#include "plan/together.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

class TimelineMaker {
 public:
  explicit TimelineMaker(const PolicyInput& input) : input_(input), graph_(input.graph) {}

  ValueTimeline make() {
    find_values();
    uses_.resize(timeline_.values.size());
    timeline_.step_of.assign(graph_.op_count(), -1);
    for (size_t s = 0; s < input_.route.order.size(); ++s) add_step(static_cast<int32_t>(s));
    note_ends();
    pack_lists();
    note_recomputable();
    for (size_t v = 0; v < timeline_.values.size(); ++v) {
      timeline_.values[v].first_gap = timeline_.gap_total;
      timeline_.gap_total += timeline_.values[v].gap_count();
      timeline_.value_of_gap.resize(timeline_.gap_total, static_cast<int32_t>(v));
    }
    return std::move(timeline_);
  }

 private:
  struct StepLists {
    std::vector<int32_t> inputs, latest_first, outputs, recompute_inputs, recompute_outputs, over_views;
    std::vector<TimelineInPlace> in_place;
  };

  TimelineValue& value_of(TensorId id) { return timeline_.values[timeline_.value_of[id]]; }

  void find_values() {
    timeline_.value_of.assign(graph_.tensor_count(), -1);
    for (int32_t i = 0; i < graph_.tensor_count(); ++i) {
      std::vector<TensorId> chain;
      TensorId t{i};
      while (timeline_.value_of[t] < 0) {
        chain.push_back(t);
        const OpId producer = graph_.tensor(t).producer;
        if (!producer.valid() || !graph_.op(producer).type->is_view) break;
        t = graph_.op(producer).inputs[0];
      }
      int32_t value = timeline_.value_of[t];
      if (value < 0) {
        value = static_cast<int32_t>(timeline_.values.size());
        TimelineValue& fresh = timeline_.values.emplace_back();
        fresh.tensor = t;
        fresh.copied_bytes = graph_.tensor(t).bytes().count;
        fresh.bytes = align_up(Bytes{fresh.copied_bytes}, kStayAlignment).count;
      }
      for (TensorId member : chain) timeline_.value_of[member] = value;
    }
  }

  void add_step(int32_t index) {
    const OpId id = input_.route.order[index];
    const Op& op = graph_.op(id);
    TimelineStep step;
    StepLists lists;
    step.op = id;
    timeline_.step_of[id] = index;
    step.view = op.type->is_view;
    step.collective = op.type->is_collective;
    for (TensorId t : op.inputs) add_once(lists.inputs, timeline_.value_of[t]);
    if (!step.view) {
      for (TensorId t : op.outputs) {
        lists.outputs.push_back(timeline_.value_of[t]);
        value_of(t).producer = index;
      }
      const KernelChoice choice = input_.kernel_of(id);
      step.workspace = align_up(choice.workspace, kStayAlignment).count;
      if (!choice.kernel.empty()) {
        const Cost cost = input_.costs.predict(graph_, op, choice.kernel);
        step.ms = cost.time_ms;
        step.estimated = cost.source == Cost::Source::estimated;
        if (op.phase == Phase::update && !input_.costs.in_step_entries().empty()) {
          const auto share = input_.costs.find_in_step({op_signature(graph_, op), kernel_together(choice.kernel)});
          if (share) step.together_ms = share->time_ms;
        }
        timeline_.alone_ms +=
            cost.source == Cost::Source::in_step ? input_.costs.compared(graph_, op, choice.kernel).time_ms : step.ms;
      }
      note_in_place(op, lists);
    }
    lists.latest_first = lists.inputs;
    std::stable_sort(lists.latest_first.begin(), lists.latest_first.end(),
                     [&](int32_t a, int32_t b) { return timeline_.values[a].producer > timeline_.values[b].producer; });
    for (int32_t v : lists.inputs) uses_[v].push_back(index);
    timeline_.compute_ms += step.ms;
    timeline_.steps.push_back(step);
    step_lists_.push_back(std::move(lists));
  }

  static void add_once(std::vector<int32_t>& list, int32_t value) {
    if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
  }

  void note_in_place(const Op& op, StepLists& lists) {
    const std::vector<InPlace> pairs = op.type->in_place ? op.type->in_place(graph_, op) : std::vector<InPlace>{};
    const std::vector<int> states = state_outputs(op);
    auto unused = [&](int output) { return std::find(states.begin(), states.end(), output) != states.end(); };
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      if (!unused(static_cast<int>(o))) lists.recompute_outputs.push_back(timeline_.value_of[op.outputs[o]]);
    }
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const bool only_for_state = std::any_of(pairs.begin(), pairs.end(), [&](const InPlace& p) {
        return p.required && p.input == static_cast<int>(i) && unused(p.output);
      });
      if (!only_for_state) add_once(lists.recompute_inputs, timeline_.value_of[op.inputs[i]]);
    }
    for (const InPlace& pair : pairs) {
      const TensorId in = op.inputs.at(pair.input), out = op.outputs.at(pair.output);
      const int32_t from = timeline_.value_of[in], to = timeline_.value_of[out];
      const Tensor &a = graph_.tensor(in), &b = graph_.tensor(out);
      if (!pair.required) {
        if (a.bytes() != b.bytes() || a.dtype != b.dtype || a.layout != b.layout) continue;
        if (!mentions_allow(op, pairs, from, pair.output)) continue;
        if (is_viewed(op, from) || graph_.tensor(timeline_.values[from].tensor).bytes() != b.bytes()) {
          add_once(lists.over_views, to);
          continue;
        }
      }
      lists.in_place.push_back({from, to, pair.required});
    }
    std::stable_sort(lists.in_place.begin(), lists.in_place.end(),
                     [](const TimelineInPlace& x, const TimelineInPlace& y) { return x.required > y.required; });
  }

  // Whether this output may overwrite every mention of the value among the inputs.
  bool mentions_allow(const Op& op, const std::vector<InPlace>& pairs, int32_t value, int output) const {
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (timeline_.value_of[op.inputs[i]] != value) continue;
      const bool allowed = std::any_of(pairs.begin(), pairs.end(), [&](const InPlace& p) {
        return p.output == output && p.input == static_cast<int>(i);
      });
      if (!allowed) return false;
    }
    return true;
  }
  // The verifier asks for the very tensor that the op mentions: a view of it does not count.
  bool is_viewed(const Op& op, int32_t value) const {
    return std::ranges::any_of(
        op.inputs, [&](TensorId t) { return timeline_.value_of[t] == value && t != timeline_.values[value].tensor; });
  }

  void pack_lists() {
    auto packed = std::make_shared<TimelineLists>();
    size_t numbers = 0, pairs = 0;
    for (const StepLists& lists : step_lists_) {
      numbers += lists.inputs.size() + lists.latest_first.size() + lists.outputs.size() +
                 lists.recompute_inputs.size() + lists.recompute_outputs.size() + lists.over_views.size();
      pairs += lists.in_place.size();
    }
    for (const std::vector<int32_t>& uses : uses_) numbers += uses.size();
    packed->numbers.reserve(numbers);  // what spans point into does not move
    packed->in_place.reserve(pairs);
    const auto pack = []<class T>(std::vector<T>& all, const std::vector<T>& list) {
      const size_t begin = all.size();
      all.insert(all.end(), list.begin(), list.end());
      return std::span<const T>(all.data() + begin, list.size());
    };
    for (size_t s = 0; s < step_lists_.size(); ++s) {
      TimelineStep& step = timeline_.steps[s];
      const StepLists& lists = step_lists_[s];
      step.inputs = pack(packed->numbers, lists.inputs);
      step.latest_first = pack(packed->numbers, lists.latest_first);
      step.outputs = pack(packed->numbers, lists.outputs);
      step.recompute_inputs = pack(packed->numbers, lists.recompute_inputs);
      step.recompute_outputs = pack(packed->numbers, lists.recompute_outputs);
      step.over_views = pack(packed->numbers, lists.over_views);
      step.in_place = pack(packed->in_place, lists.in_place);
    }
    for (size_t v = 0; v < uses_.size(); ++v) timeline_.values[v].uses = pack(packed->numbers, uses_[v]);
    timeline_.lists = std::move(packed);
  }

  void note_ends() {
    for (TensorId t : graph_.outputs) value_of(t).at_end = value_of(t).is_output = true;
    for (size_t s = 0; s < graph_.states.size(); ++s) {
      const State& state = graph_.states[s];
      value_of(state.before).state = static_cast<int32_t>(s);
      value_of(state.after).state = static_cast<int32_t>(s);
      if (state.after != state.before) value_of(state.after).before = timeline_.value_of[state.before];
      value_of(state.after).at_end = true;
    }
  }

  void note_recomputable() {
    for (size_t v = 0; v < timeline_.values.size(); ++v) {
      TimelineValue& value = timeline_.values[v];
      if (value.producer < 0 || value.state >= 0) continue;
      const TimelineStep& step = timeline_.steps[value.producer];
      const OpType& type = *graph_.op(step.op).type;
      if (type.changes_state) continue;
      const bool made_again =
          std::ranges::find(step.recompute_outputs, static_cast<int32_t>(v)) != step.recompute_outputs.end();
      if (!made_again) continue;  // a state on its way
      const bool destroys = std::any_of(step.in_place.begin(), step.in_place.end(), [&](const TimelineInPlace& pair) {
        const auto& again = step.recompute_outputs;
        return pair.required && std::find(again.begin(), again.end(), pair.output) != again.end();
      });
      value.recomputable = !destroys;
    }
  }

  const PolicyInput& input_;
  const Graph& graph_;
  ValueTimeline timeline_;
  std::vector<StepLists> step_lists_;       // by step
  std::vector<std::vector<int32_t>> uses_;  // by value
};

}  // namespace

bool may_take_a_place(const TimelineStep& step, int32_t output) {
  return std::ranges::find(step.in_place, output, &TimelineInPlace::output) != step.in_place.end() ||
         std::ranges::find(step.over_views, output) != step.over_views.end();
}

ValueTimeline make_timeline(const PolicyInput& input) {
  return input.timeline ? *input.timeline : TimelineMaker(input).make();
}

}  // namespace plimsoll
