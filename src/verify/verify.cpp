// The checker walks the plan step by step and keeps what it believes of the arena: which stays are there, which of them
// hold their tensor's value, and which copies are under way. It knows the rules of plan.h and nothing of how plans are
// made. Between two steps it goes in the order of findings.h: copies out start, copies out end, copies in start, copies
// in end.
#include "plimsoll/verify.h"

#include <map>
#include <numeric>

#include "plimsoll/ops.h"
#include "verify/findings.h"

namespace plimsoll {
namespace {

using Rule = Violation::Rule;

class Checker {
 public:
  Checker(const Graph& graph, const Plan& plan, const ById<TensorId, int32_t>& same_bytes, Findings& findings)
      : graph_(graph),
        plan_(plan),
        same_bytes_(same_bytes),
        findings_(findings),
        step_count_(static_cast<StepIndex>(plan.steps.size())),
        last_step_(std::max<StepIndex>(step_count_ - 1, 0)) {}

  void run() {
    prepare();
    for (StepIndex s = 0; s <= step_count_ && !findings_.full(); ++s) {
      for (int32_t c : collectives_ending_[s]) end_collective(c);
      if (s <= last_step_) begin_stays(s);
      for (int32_t i : outs_starting_[s]) start_out(i);
      for (int32_t i : outs_ending_[s]) --residence(place_of(i)).reading;
      for (int32_t i : ins_starting_[s]) start_in(i);
      for (int32_t i : ins_ending_[s]) end_in(i);
      if (s == step_count_) break;
      run_step(s);
      end_stays(s);
    }
    if (!findings_.full()) check_end();
  }

 private:
  struct Residence {      // what is known of one stay while it lasts
    bool holds = false;   // the tensor's value is there
    int32_t reading = 0;  // copies out of it under way
    int32_t writing = 0;  // copies into it under way
  };

  void report(Rule rule, StepIndex step, std::string message) { findings_.report(rule, step, std::move(message)); }
  const Tensor& tensor(TensorId id) const { return graph_.tensor(id); }
  const Op& op_at(StepIndex step) const { return graph_.op(plan_.steps[step].op); }
  const Stay& stay(int32_t i) const { return plan_.stays[i]; }
  Residence& residence(int32_t i) { return residences_[i]; }
  static int64_t end_of_bytes(const Stay& s) { return s.offset.count + s.bytes.count; }
  std::string what(const Stay& s) const { return findings_.what(s); }
  std::string where(StepIndex step) const { return findings_.where(step); }

  void prepare() {
    const size_t tensors = graph_.tensor_count(), gaps = step_count_ + 1;
    residences_.resize(plan_.stays.size());
    begins_.resize(gaps);
    ends_.resize(gaps);
    stays_of_.resize(tensors);
    present_.resize(tensors);
    for (size_t i = 0; i < plan_.stays.size(); ++i) {
      const Stay& s = plan_.stays[i];
      begins_[s.first].push_back(static_cast<int32_t>(i));
      ends_[s.last].push_back(static_cast<int32_t>(i));
      if (!s.is_workspace()) stays_of_[s.tensor].push_back(static_cast<int32_t>(i));
    }
    for (std::vector<int32_t>& list : stays_of_) {
      std::stable_sort(list.begin(), list.end(), [&](int32_t a, int32_t b) { return stay(a).first < stay(b).first; });
    }
    ran_.assign(graph_.op_count(), false);
    is_state_.assign(tensors, false);
    for (const State& state : graph_.states) is_state_[state.before] = true;
    has_home_.assign(tensors, false);
    for (const Home& home : plan_.homes) has_home_[home.tensor] = true;
    prepare_moves(gaps);
    collectives_ending_.resize(gaps);
    on_wire_.resize(step_count_);
    read_by_wire_.resize(step_count_);
    collective_of_.assign(step_count_, -1);
    for (size_t c = 0; c < plan_.collectives.size(); ++c) {
      collectives_ending_[plan_.collectives[c].before].push_back(static_cast<int32_t>(c));
      for (const StepIndex s : plan_.collectives[c].steps) collective_of_[s] = static_cast<int32_t>(c);
    }
  }

  // --- the arena over time ---

  bool same_value(const Stay& a, const Stay& b) const { return same_bytes_[a.tensor] == same_bytes_[b.tensor]; }

  // May two stays that are both there in `step` lie in the same bytes?
  bool may_share(const Stay& a, const Stay& b, StepIndex step) const {
    if (a.is_workspace() || b.is_workspace() || a.offset != b.offset || a.tensor == b.tensor) return false;
    return same_value(a, b) || takes_place(a, b, step) || takes_place(b, a, step);
  }

  // The step's op reads `old` for the last time and may write `fresh` over it.
  bool takes_place(const Stay& fresh, const Stay& old, StepIndex step) const {
    if (step_count_ == 0 || old.last != step || fresh.first != step) return false;
    const Op& op = op_at(step);
    if (!op.type->in_place) return false;
    const Tensor &from = tensor(old.tensor), &to = tensor(fresh.tensor);
    if (from.bytes() != to.bytes() || from.dtype != to.dtype || from.layout != to.layout) return false;
    const std::vector<InPlace> pairs = op.type->in_place(graph_, op);
    bool reads = false;
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (op.inputs[i] != old.tensor) continue;
      reads = true;
      const bool allowed = std::any_of(pairs.begin(), pairs.end(), [&](const InPlace& p) {
        return p.input == static_cast<int>(i) && p.output < std::ssize(op.outputs) &&
               op.outputs[p.output] == fresh.tensor;
      });
      if (!allowed) return false;
    }
    return reads;
  }

  void begin_stays(StepIndex step) {
    for (int32_t i : begins_[step]) {
      if (findings_.full()) return;
      const Stay& fresh = stay(i);
      if (fresh.bytes.count > 0) {
        check_overlap(fresh, step);
        inherit_value(i);
        present_by_offset_[fresh.offset.count].push_back(i);
      }
      if (fresh.is_workspace()) continue;
      std::vector<int32_t>& others = present_[fresh.tensor];
      if (!others.empty()) {
        report(Rule::overlap, step,
               fmt::format("'{}' lies twice in the arena in step {}: {} and {}", tensor(fresh.tensor).name, step,
                           what(fresh), what(stay(others[0]))));
      }
      others.push_back(i);
      // What comes from outside is written before the step, into its home where it has one.
      if (step == 0 && !tensor(fresh.tensor).producer.valid() && !has_home_[fresh.tensor]) {
        residence(i).holds = true;
      }
    }
  }

  // Those present lie apart from each other, but for those that share one offset by right.
  void check_overlap(const Stay& fresh, StepIndex step) {
    auto it = present_by_offset_.upper_bound(fresh.offset.count);
    if (it != present_by_offset_.begin()) it = std::prev(it);
    for (; it != present_by_offset_.end() && it->first < end_of_bytes(fresh); ++it) {
      for (int32_t other : it->second) {
        const Stay& old = stay(other);
        if (end_of_bytes(old) <= fresh.offset.count || may_share(fresh, old, step)) continue;
        report(Rule::overlap, step, fmt::format("{} and {} share bytes in step {}", what(fresh), what(old), step));
      }
    }
  }

  // A view begins on bytes that have its value already.
  void inherit_value(int32_t fresh) {
    for (int32_t other : sharing(fresh)) {
      if (!stay(fresh).is_workspace() && !stay(other).is_workspace() && same_value(stay(fresh), stay(other)) &&
          holds(other)) {
        residence(fresh).holds = true;
      }
    }
  }

  void end_stays(StepIndex step) {
    if (step == last_step_) return;  // what is there at the end is judged by check_end
    for (int32_t i : ends_[step]) {
      if (stay(i).bytes.count > 0) {
        auto it = present_by_offset_.find(stay(i).offset.count);
        if (it == present_by_offset_.end()) continue;  // enough was found before it began
        std::erase(it->second, i);
        if (it->second.empty()) present_by_offset_.erase(it);
      }
      if (!stay(i).is_workspace()) std::erase(present_[stay(i).tensor], i);
    }
  }

  // The stays that lie in the bytes of this one now; itself among them once it has begun.
  const std::vector<int32_t>& sharing(int32_t place) const {
    static const std::vector<int32_t> none;
    const auto it = present_by_offset_.find(stay(place).offset.count);
    return stay(place).bytes.count == 0 || it == present_by_offset_.end() ? none : it->second;
  }

  // The stay that a step uses for a tensor; -1: none is there.
  int32_t stay_of(TensorId id) const {
    const std::vector<int32_t>& here = present_[id];
    return here.empty() ? -1 : here[0];
  }
  bool holds(int32_t i) const { return residences_[i].holds; }

  // The value is there now, for its views too, and what else lay in these bytes is lost.
  void gain_value(int32_t place) {
    residence(place).holds = true;
    for (int32_t other : sharing(place)) {
      residence(other).holds = !stay(other).is_workspace() && same_value(stay(other), stay(place));
    }
  }
  void lose_value(int32_t place) {
    residence(place).holds = false;
    for (int32_t other : sharing(place)) residence(other).holds = false;
  }

  // Whether a copy reads or writes these bytes now.
  bool is_being_copied(int32_t place) const {
    auto busy = [&](int32_t i) {
      const Residence& r = residences_[i];
      return r.reading + r.writing > 0;
    };
    const std::vector<int32_t>& list = sharing(place);
    return busy(place) || std::any_of(list.begin(), list.end(), busy);
  }

  // --- steps ---
  static bool contains(const std::vector<int>& list, int value) {
    return std::find(list.begin(), list.end(), value) != list.end();
  }

  void run_step(StepIndex step) {
    const Step& s = plan_.steps[step];
    const Op& op = graph_.op(s.op);
    check_repetition(step, s, op);
    const std::vector<InPlace> pairs = op.type->in_place ? op.type->in_place(graph_, op) : std::vector<InPlace>{};
    // A recomputation leaves running statistics alone: it neither writes them nor needs the old ones.
    const std::vector<int> statistics = state_outputs(op);
    auto is_unused = [&](int output) { return s.recompute && contains(statistics, output); };
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const bool unused = std::any_of(pairs.begin(), pairs.end(), [&](const InPlace& p) {
        return p.required && p.input == static_cast<int>(i) && is_unused(p.output);
      });
      if (!unused) check_input(step, op.inputs[i]);
    }
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      if (!is_unused(static_cast<int>(o)) && stay_of(op.outputs[o]) < 0) {
        report(Rule::not_resident, step,
               fmt::format("{} writes '{}', which has no place in the arena then", where(step),
                           tensor(op.outputs[o]).name));
      }
    }
    for (const InPlace& pair : pairs) {
      if (!pair.required || is_unused(pair.output)) continue;
      check_required(step, op.inputs.at(pair.input), op.outputs.at(pair.output));
    }
    check_workspace(step, s);
    if (const int32_t c = collective_of_[step]; c >= 0) {
      begin_on_wire(step, op, plan_.collectives[c]);
      ran_[s.op] = true;
      return;
    }
    for (size_t o = 0; o < op.outputs.size() && !op.type->is_view; ++o) {
      const int32_t place = stay_of(op.outputs[o]);
      if (place < 0 || is_unused(static_cast<int>(o))) continue;
      if (is_being_copied(place)) {
        report(Rule::bad_move, step,
               fmt::format("{} writes {} while a copy of these bytes is under way", where(step), what(stay(place))));
      }
      gain_value(place);
    }
    ran_[s.op] = true;
  }

  // From this step on its bytes are the wire's, until the collective is complete.
  void begin_on_wire(StepIndex step, const Op& op, const Collective& collective) {
    const auto must_last = [&](int32_t place) {
      if (stay(place).last >= collective.before - 1) return;
      report(Rule::bad_collective, step,
             fmt::format("{}: {} ends before the messages have arrived, before step {}", where(step), what(stay(place)),
                         collective.before));
    };
    for (TensorId id : op.outputs) {
      const int32_t place = stay_of(id);
      if (place < 0) continue;
      if (is_being_copied(place)) {
        report(Rule::bad_move, step,
               fmt::format("{} writes {} while a copy of these bytes is under way", where(step), what(stay(place))));
      }
      must_last(place);
      lose_value(place);
      ++residence(place).writing;
      on_wire_[step].push_back(place);
    }
    for (TensorId id : op.inputs) {
      const int32_t place = stay_of(id);
      if (place < 0) continue;
      const bool taken_over = std::ranges::any_of(op.outputs, [&](TensorId out) {
        const int32_t other = stay_of(out);
        return other >= 0 && stay(other).offset == stay(place).offset;
      });
      if (taken_over || !is_read_late(op, id)) continue;
      must_last(place);
      ++residence(place).reading;
      read_by_wire_[step].push_back(place);
    }
  }
  // The first input of an AllReduce says only how the others are laid out.
  static bool is_read_late(const Op& op, TensorId id) { return op.type->name != "AllReduce" || op.inputs[0] != id; }

  void end_collective(int32_t c) {
    for (const StepIndex step : plan_.collectives[c].steps) {
      for (const int32_t place : on_wire_[step]) {
        --residence(place).writing;
        gain_value(place);
      }
      for (const int32_t place : read_by_wire_[step]) --residence(place).reading;
    }
  }

  void check_repetition(StepIndex step, const Step& s, const Op& op) {
    const bool ran = ran_[s.op];
    if (!s.recompute && ran)
      report(Rule::op_repeated, step, fmt::format("{} runs again and is not a recomputation", where(step)));
    if (!s.recompute) return;
    if (!ran) report(Rule::op_missing, step, fmt::format("{} is recomputed before it has run", where(step)));
    if (op.type->changes_state)
      report(Rule::state_changed, step, fmt::format("{} would change a state a second time", where(step)));
  }

  void check_input(StepIndex step, TensorId id) {
    const int32_t place = stay_of(id);
    if (place >= 0 && holds(place)) return;
    if (place < 0 && is_state_[id] && was_overwritten(id, step)) {
      report(Rule::state_changed, step,
             fmt::format("{} reads '{}' after it was overwritten", where(step), tensor(id).name));
    } else if (place < 0) {
      report(Rule::not_resident, step,
             fmt::format("{} reads '{}', which is not in the arena then", where(step), tensor(id).name));
    } else {
      report(Rule::wrong_value, step,
             fmt::format("{} reads '{}', whose place does not hold its value: {}", where(step), tensor(id).name,
                         what(stay(place))));
    }
  }

  bool was_overwritten(TensorId id, StepIndex) const {
    for (const State& state : graph_.states) {
      if (state.before != id || state.after == id) continue;
      const OpId producer = graph_.tensor(state.after).producer;
      if (producer.valid() && ran_[producer]) return true;
    }
    return false;
  }

  void check_required(StepIndex step, TensorId in, TensorId out) {
    const int32_t from = stay_of(in), to = stay_of(out);
    if (from < 0 || to < 0 || stay(from).offset == stay(to).offset) return;
    report(is_state_[in] ? Rule::state_misplaced : Rule::wrong_value, step,
           fmt::format("{} must write '{}' in the place of '{}', but {} and {} lie apart", where(step),
                       tensor(out).name, tensor(in).name, what(stay(to)), what(stay(from))));
  }

  void check_workspace(StepIndex step, const Step& s) {
    if (s.workspace.count == 0) return;
    for (int32_t i : begins_[step]) {
      if (stay(i).is_workspace()) return;
    }
    report(Rule::not_resident, step,
           fmt::format("{} needs a workspace of {} bytes and has none", where(step), s.workspace.count));
  }

  // --- copies ---

  void prepare_moves(size_t gaps) {
    for (auto* lists : {&outs_starting_, &outs_ending_, &ins_starting_, &ins_ending_}) lists->resize(gaps);
    places_.assign(plan_.moves.size(), -1);
    for (size_t i = 0; i < plan_.moves.size(); ++i) {
      const Move& m = plan_.moves[i];
      places_[i] = find_place(m);
      if (places_[i] < 0) continue;
      const bool out = m.direction == Move::Direction::out;
      (out ? outs_starting_ : ins_starting_)[m.after + 1].push_back(static_cast<int32_t>(i));
      (out ? outs_ending_ : ins_ending_)[m.before].push_back(static_cast<int32_t>(i));
    }
  }

  // The stay that a copy uses, there from before it may start until it is complete; -1, and reported: there is none. A
  // copy out has it in step `after`, a copy in still has it in step `before`.
  int32_t find_place(const Move& m) {
    const bool out = m.direction == Move::Direction::out;
    const StepIndex at = out ? std::max<StepIndex>(m.after, 0) : std::min(m.before, last_step_);
    const std::vector<int32_t>& list = stays_of_[m.tensor];
    auto it = std::upper_bound(list.begin(), list.end(), at, [&](StepIndex s, int32_t i) { return s < stay(i).first; });
    if (it == list.begin() || stay(*std::prev(it)).last < at) {
      report(Rule::bad_move, m.after, fmt::format("{}: it is not in the arena then", findings_.what(m)));
      return -1;
    }
    const Stay& place = stay(*std::prev(it));
    if (out && place.last < m.before - 1) {
      report(Rule::bad_move, place.last,
             fmt::format("{}: {} ends before the copy is complete", findings_.what(m), what(place)));
      return -1;
    }
    if (!out && place.first > std::min(m.after + 1, last_step_)) {
      report(Rule::bad_move, m.after,
             fmt::format("{}: {} begins after the copy may start", findings_.what(m), what(place)));
      return -1;
    }
    return *std::prev(it);
  }
  int32_t place_of(int32_t move) const { return places_[move]; }

  void start_out(int32_t i) {
    const Move& m = plan_.moves[i];
    if (!holds(place_of(i))) {
      report(Rule::bad_move, m.after, fmt::format("{}: its place does not hold its value then", findings_.what(m)));
    }
    ++residence(place_of(i)).reading;
  }

  void start_in(int32_t i) {
    const Move& m = plan_.moves[i];
    const int32_t place = place_of(i);
    if (is_being_copied(place)) {
      report(Rule::bad_move, m.after,
             fmt::format("{}: another copy of the bytes of {} is under way", findings_.what(m), what(stay(place))));
    }
    lose_value(place);
    ++residence(place).writing;
  }
  void end_in(int32_t i) {
    --residence(place_of(i)).writing;
    gain_value(place_of(i));
  }

  // --- the end ---
  void check_end() {
    const StepIndex last = step_count_ - 1;
    for (OpId id : ran_.ids()) {
      if (!ran_[id]) report(Rule::op_missing, last, fmt::format("op '{}' never runs", graph_.op(id).name));
    }
    auto at_end = [&](TensorId id) {
      const int32_t place = stay_of(id);
      return place >= 0 && stay(place).last == last_step_ && holds(place) ? place : -1;
    };
    for (TensorId id : graph_.outputs) {
      if (at_end(id) < 0)
        report(Rule::output_missing, last, fmt::format("output '{}' is not in the arena at the end", tensor(id).name));
    }
    // What nobody reads is written all the same.
    for (TensorId id : graph_.inputs) {
      const std::vector<int32_t>& stays = stays_of_[id];
      if (has_home_[id] || (!stays.empty() && stay(stays[0]).first == 0)) continue;
      report(Rule::not_resident, 0,
             fmt::format("input '{}' is not in the arena when the step starts", tensor(id).name));
    }
    for (const State& state : graph_.states) {
      if (has_home_[state.before]) continue;  // judged with the slots
      const std::vector<int32_t>& stays = stays_of_[state.before];
      const int32_t begin = stays.empty() || stay(stays[0]).first != 0 ? -1 : stays[0];
      const int32_t end = at_end(state.after);
      const std::string& name = tensor(state.before).name;
      if (begin < 0) {
        report(Rule::state_misplaced, 0, fmt::format("state '{}' is not in the arena when the step starts", name));
      } else if (end < 0) {
        report(Rule::state_misplaced, last,
               fmt::format("state '{}' is not in the arena at the end as '{}'", name, tensor(state.after).name));
      } else if (stay(begin).offset != stay(end).offset) {
        report(Rule::state_misplaced, last,
               fmt::format("state '{}' starts the step at {} but ends it as '{}' at {}", name, stay(begin).offset.count,
                           tensor(state.after).name, stay(end).offset.count));
      }
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  const ById<TensorId, int32_t>& same_bytes_;
  Findings& findings_;
  StepIndex step_count_, last_step_;
  std::vector<Residence> residences_;                    // by stay
  ById<StepIndex, std::vector<int32_t>> begins_, ends_;  // stays
  ById<TensorId, std::vector<int32_t>> stays_of_;        // in order of time
  ById<TensorId, std::vector<int32_t>> present_;         // those of them that are there now
  std::map<int64_t, std::vector<int32_t>> present_by_offset_;
  ById<TensorId, bool> is_state_, has_home_;
  ById<OpId, bool> ran_;
  std::vector<std::vector<int32_t>> collectives_ending_;  // by the step that is next
  std::vector<std::vector<int32_t>> on_wire_,
      read_by_wire_;                    // by step: stays that messages write, and read, from it on
  std::vector<int32_t> collective_of_;  // by step; -1: none
  std::vector<int32_t> places_;         // by move: the stay
  std::vector<std::vector<int32_t>> outs_starting_, outs_ending_, ins_starting_,
      ins_ending_;  // by the step that is next
};

}  // namespace

ById<TensorId, int32_t> find_same_bytes(const Graph& graph) {
  ById<TensorId, int32_t> same(graph.tensor_count(), 0);
  std::iota(same.begin(), same.end(), 0);
  ById<TensorId, bool> known(graph.tensor_count(), false);
  std::vector<TensorId> path;
  for (TensorId start : same.ids()) {
    TensorId t = start;
    path.clear();
    while (!known[t]) {
      known[t] = true;
      path.push_back(t);
      const OpId producer = graph.tensor(t).producer;
      if (!producer.valid() || !graph.op(producer).type->is_view || graph.op(producer).inputs.empty()) break;
      t = graph.op(producer).inputs[0];
    }
    const int32_t root = same[t];
    for (TensorId member : path) same[member] = root;
  }
  return same;
}

std::string_view to_string(Violation::Rule rule) {
  switch (rule) {
    case Rule::wrong_graph: return "wrong_graph";
    case Rule::op_missing: return "op_missing";
    case Rule::op_repeated: return "op_repeated";
    case Rule::not_resident: return "not_resident";
    case Rule::wrong_value: return "wrong_value";
    case Rule::overlap: return "overlap";
    case Rule::out_of_arena: return "out_of_arena";
    case Rule::misaligned: return "misaligned";
    case Rule::wrong_size: return "wrong_size";
    case Rule::state_changed: return "state_changed";
    case Rule::state_misplaced: return "state_misplaced";
    case Rule::output_missing: return "output_missing";
    case Rule::bad_move: return "bad_move";
    case Rule::bad_index: return "bad_index";
    case Rule::bad_threads: return "bad_threads";
    case Rule::bad_cores: return "bad_cores";
    case Rule::bad_division: return "bad_division";
    case Rule::bad_time: return "bad_time";
    case Rule::wrong_prediction: return "wrong_prediction";
    case Rule::wrong_bound: return "wrong_bound";
    case Rule::wrong_workspace: return "wrong_workspace";
    case Rule::wrong_request: return "wrong_request";
    case Rule::edited: return "edited";
    case Rule::bad_collective: return "bad_collective";
    case Rule::bad_feeding: return "bad_feeding";
    case Rule::bad_home: return "bad_home";
    case Rule::out_of_tier: return "out_of_tier";
  }
  return "?";
}

namespace {

void check_safety(const Graph& graph, const Plan& plan, Findings& findings) {
  if (plan.graph_fingerprint != fingerprint(graph)) {
    findings.report(Rule::wrong_graph, -1,
                    fmt::format("the plan was made for graph '{}' ({:016x}), this is '{}' ({:016x})", plan.graph_name,
                                plan.graph_fingerprint, graph.name, fingerprint(graph)));
  } else if (check_fields(graph, plan, findings)) {
    const ById<TensorId, int32_t> same_bytes = find_same_bytes(graph);
    Checker(graph, plan, same_bytes, findings).run();
    check_slots(graph, plan, same_bytes, findings);
  }
}

}  // namespace

std::vector<Violation> verify_safety(const Graph& graph, const Plan& plan, size_t limit) {
  Findings findings(graph, plan, limit);
  check_safety(graph, plan, findings);
  return findings.in_order();
}

std::vector<Violation> verify(const Graph& graph, const Plan& plan, size_t limit) {
  Findings findings(graph, plan, limit);
  check_safety(graph, plan, findings);
  if (findings.none()) check_claims(graph, plan, findings);
  return findings.in_order();
}

void require_valid(const Graph& graph, const Plan& plan) {
  const std::vector<Violation> violations = verify_safety(graph, plan, 5);
  if (violations.empty()) return;
  std::string text = fmt::format("the plan for graph '{}' by policy '{}' is not safe:", graph.name, plan.policy);
  for (const Violation& v : violations) text += fmt::format("\n  {}: {}", to_string(v.rule), v.message);
  throw Error(ErrorCode::internal, text);
}

}  // namespace plimsoll
