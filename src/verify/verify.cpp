// The checker walks the plan step by step and keeps what it believes of the arena: which stays are there, which of them
// hold their tensor's value, and what lies in the outside tiers. It knows the rules of plan.h and nothing of how plans
// are made.
#include "plimsoll/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

using Rule = Violation::Rule;

class Checker {
 public:
  Checker(const Graph& graph, const Plan& plan, size_t limit)
      : graph_(graph), plan_(plan), limit_(limit), step_count_(static_cast<StepIndex>(plan.steps.size())) {}

  std::vector<Violation> run() {
    if (plan_.graph_fingerprint != fingerprint(graph_)) {
      report(Rule::wrong_graph, -1,
             fmt::format("the plan was made for graph '{}' ({:016x}), this is '{}' ({:016x})", plan_.graph_name,
                         plan_.graph_fingerprint, graph_.name, fingerprint(graph_)));
      return found_;
    }
    check_indices();
    if (!found_.empty()) return found_;
    prepare();
    check_sizes();
    check_moves();
    for (StepIndex s = 0; s < step_count_ && !full(); ++s) {
      begin_stays(s);
      finish_moves_in(s);
      run_step(s);
      end_stays(s);
    }
    if (step_count_ == 0) begin_stays(0);
    check_end();
    std::stable_sort(found_.begin(), found_.end(),
                     [](const Violation& a, const Violation& b) { return a.step < b.step; });
    return found_;
  }

 private:
  struct Residence {     // what is known of one stay while it lasts
    bool holds = false;  // the tensor's value is there
  };

  // --- words ---
  void report(Rule rule, StepIndex step, std::string message) {
    if (!full()) found_.push_back({rule, step, std::move(message)});
  }
  bool full() const { return found_.size() >= limit_; }
  const Tensor& tensor(TensorId id) const { return graph_.tensor(id); }
  const Op& op_at(StepIndex step) const { return graph_.op(plan_.steps[static_cast<size_t>(step)].op); }
  const Stay& stay(int32_t i) const { return plan_.stays[static_cast<size_t>(i)]; }
  static int64_t end_of(const Stay& s) { return s.offset.count + s.bytes.count; }
  std::string what(const Stay& s) const {
    const std::string name = s.is_workspace() ? fmt::format("the workspace of step {}", s.first)
                                              : fmt::format("'{}'", tensor(s.tensor).name);
    return fmt::format("{} at [{}, {}) in steps {}..{}", name, s.offset.count, end_of(s), s.first, s.last);
  }
  std::string where(StepIndex step) const { return fmt::format("step {} ('{}')", step, op_at(step).name); }

  // --- what can be seen without walking ---
  void check_indices() {
    const StepIndex last = std::max<StepIndex>(step_count_ - 1, 0);
    for (StepIndex s = 0; s < step_count_; ++s) {
      const OpId op = plan_.steps[static_cast<size_t>(s)].op;
      if (op.index < 0 || op.index >= graph_.op_count()) {
        report(Rule::bad_index, s, fmt::format("step {} runs op {}, the graph has {}", s, op.index, graph_.op_count()));
      }
      if (plan_.steps[static_cast<size_t>(s)].workspace.count < 0) {
        report(
            Rule::bad_index, s,
            fmt::format("step {} has a workspace of {} bytes", s, plan_.steps[static_cast<size_t>(s)].workspace.count));
      }
    }
    for (StepIndex s = 0; s < step_count_; ++s) {
      const int threads = plan_.steps[static_cast<size_t>(s)].threads;
      if (threads < 0 || threads > kMostThreads) {
        report(Rule::bad_threads, s,
               fmt::format("step {} is to run by {} threads; 0 (all) to {} are possible", s, threads, kMostThreads));
      }
    }
    for (size_t i = 0; i < plan_.stays.size(); ++i) {
      const Stay& s = plan_.stays[i];
      if (s.tensor.index < -1 || s.tensor.index >= graph_.tensor_count()) {
        report(Rule::bad_index, s.first,
               fmt::format("stay {} is of tensor {}, the graph has {}", i, s.tensor.index, graph_.tensor_count()));
      } else if (s.first < 0 || s.last < s.first || s.last > last) {
        report(Rule::bad_index, s.first,
               fmt::format("stay {} is during steps {}..{}, the plan has steps 0..{}", i, s.first, s.last, last));
      } else if (s.offset.count < 0 || s.bytes.count < 0 || s.offset.count > INT64_MAX - s.bytes.count) {
        report(Rule::bad_index, s.first,
               fmt::format("stay {} has offset {} and {} bytes", i, s.offset.count, s.bytes.count));
      }
    }
    for (size_t i = 0; i < plan_.moves.size(); ++i) {
      const Move& m = plan_.moves[i];
      if (!m.tensor.valid() || m.tensor.index >= graph_.tensor_count()) {
        report(Rule::bad_index, m.after,
               fmt::format("move {} is of tensor {}, the graph has {}", i, m.tensor.index, graph_.tensor_count()));
      } else if (m.after < -1 || m.before <= m.after || m.before > step_count_) {
        report(Rule::bad_index, m.after,
               fmt::format("move {} runs after step {} and before step {}, the plan has {} steps", i, m.after, m.before,
                           step_count_));
      } else if (m.tier < 0 || m.slot.count < 0 || m.slot.count > INT64_MAX - tensor(m.tensor).bytes().count) {
        report(Rule::bad_index, m.after, fmt::format("move {} has tier {} and slot {}", i, m.tier, m.slot.count));
      }
    }
  }

  void prepare() {
    const size_t tensors = static_cast<size_t>(graph_.tensor_count());
    residences_.resize(plan_.stays.size());
    begins_.resize(static_cast<size_t>(step_count_) + 1);
    ends_.resize(static_cast<size_t>(step_count_) + 1);
    for (size_t i = 0; i < plan_.stays.size(); ++i) {
      begins_[static_cast<size_t>(plan_.stays[i].first)].push_back(static_cast<int32_t>(i));
      ends_[static_cast<size_t>(plan_.stays[i].last)].push_back(static_cast<int32_t>(i));
    }
    stays_of_.resize(tensors);
    present_.resize(tensors);
    for (size_t i = 0; i < plan_.stays.size(); ++i) {
      if (!plan_.stays[i].is_workspace())
        stays_of_[static_cast<size_t>(plan_.stays[i].tensor.index)].push_back(static_cast<int32_t>(i));
    }
    ran_.assign(static_cast<size_t>(graph_.op_count()), false);
    // Views are the bytes of what they view: every tensor knows the first of its kind.
    same_bytes_.resize(tensors);
    std::iota(same_bytes_.begin(), same_bytes_.end(), 0);
    std::vector<bool> known(tensors, false);
    std::vector<int32_t> path;
    for (int32_t i = 0; i < graph_.tensor_count(); ++i) {
      int32_t t = i;
      path.clear();
      while (!known[static_cast<size_t>(t)]) {
        known[static_cast<size_t>(t)] = true;
        path.push_back(t);
        const OpId producer = graph_.tensor({t}).producer;
        if (!producer.valid() || !graph_.op(producer).type->is_view || graph_.op(producer).inputs.empty()) break;
        t = graph_.op(producer).inputs[0].index;
      }
      const int32_t root = same_bytes_[static_cast<size_t>(t)];
      for (int32_t member : path) same_bytes_[static_cast<size_t>(member)] = root;
    }
    is_state_.assign(tensors, false);
    for (const State& state : graph_.states) is_state_[static_cast<size_t>(state.before.index)] = true;
  }

  void check_sizes() {
    if (plan_.arena > plan_.budget) {
      report(
          Rule::out_of_arena, -1,
          fmt::format("the arena of {} bytes is larger than the budget of {}", plan_.arena.count, plan_.budget.count));
    }
    for (const Stay& s : plan_.stays) {
      if (end_of(s) > plan_.arena.count) {
        report(Rule::out_of_arena, s.first,
               fmt::format("{} ends beyond the arena of {} bytes", what(s), plan_.arena.count));
      }
      if (s.offset.count % kStayAlignment != 0) {
        report(Rule::misaligned, s.first, fmt::format("{} is not at a multiple of {} bytes", what(s), kStayAlignment));
      }
      const Bytes needed = s.is_workspace()
                               ? plan_.steps.empty() ? Bytes{} : plan_.steps[static_cast<size_t>(s.first)].workspace
                               : tensor(s.tensor).bytes();
      if (s.bytes < needed) report(Rule::wrong_size, s.first, fmt::format("{} needs {} bytes", what(s), needed.count));
    }
  }

  // --- the arena over time ---

  bool is_view_of_same(const Stay& a, const Stay& b) const {
    return same_bytes_[static_cast<size_t>(a.tensor.index)] == same_bytes_[static_cast<size_t>(b.tensor.index)];
  }

  // May two stays that are both there in `step` lie in the same bytes?
  bool may_share(const Stay& a, const Stay& b, StepIndex step) const {
    if (a.is_workspace() || b.is_workspace() || a.offset != b.offset || a.tensor == b.tensor) return false;
    return is_view_of_same(a, b) || takes_place(a, b, step) || takes_place(b, a, step);
  }

  // The step's op reads `old` for the last time and may write `fresh` over it.
  bool takes_place(const Stay& fresh, const Stay& old, StepIndex step) const {
    if (step_count_ == 0 || old.last != step || fresh.first != step) return false;
    const Op& op = op_at(step);
    if (!op.type->in_place) return false;
    const std::vector<InPlace> pairs = op.type->in_place(graph_, op);
    bool reads = false;
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (op.inputs[i] != old.tensor) continue;
      reads = true;
      const bool allowed = std::any_of(pairs.begin(), pairs.end(), [&](const InPlace& p) {
        return p.input == static_cast<int>(i) && static_cast<size_t>(p.output) < op.outputs.size() &&
               op.outputs[static_cast<size_t>(p.output)] == fresh.tensor;
      });
      if (!allowed) return false;
    }
    return reads;
  }

  void begin_stays(StepIndex step) {
    for (int32_t i : begins_[static_cast<size_t>(step)]) {
      const Stay& fresh = stay(i);
      if (fresh.bytes.count > 0) {
        // Those present lie apart from each other, but for those that share one offset by right.
        auto it = present_by_offset_.upper_bound(fresh.offset.count);
        if (it != present_by_offset_.begin()) it = std::prev(it);
        for (; it != present_by_offset_.end() && it->first < end_of(fresh); ++it) {
          for (int32_t other : it->second) {
            const Stay& old = stay(other);
            if (end_of(old) <= fresh.offset.count || may_share(fresh, old, step)) continue;
            report(Rule::overlap, step, fmt::format("{} and {} share bytes in step {}", what(fresh), what(old), step));
          }
        }
        present_by_offset_[fresh.offset.count].push_back(i);
      }
      if (fresh.is_workspace()) continue;
      std::vector<int32_t>& others = present_[static_cast<size_t>(fresh.tensor.index)];
      if (!others.empty()) {
        report(Rule::overlap, step,
               fmt::format("'{}' lies twice in the arena in step {}: {} and {}", tensor(fresh.tensor).name, step,
                           what(fresh), what(stay(others[0]))));
      }
      others.push_back(i);
      // What comes from outside is written before the step.
      if (step == 0 && !tensor(fresh.tensor).producer.valid()) residences_[static_cast<size_t>(i)].holds = true;
    }
  }

  void end_stays(StepIndex step) {
    if (step == step_count_ - 1) return;  // what is there at the end is judged by check_end
    for (int32_t i : ends_[static_cast<size_t>(step)]) {
      if (stay(i).bytes.count > 0) {
        auto it = present_by_offset_.find(stay(i).offset.count);
        std::erase(it->second, i);
        if (it->second.empty()) present_by_offset_.erase(it);
      }
      if (!stay(i).is_workspace()) std::erase(present_[static_cast<size_t>(stay(i).tensor.index)], i);
    }
  }

  // The stay that a step uses for a tensor; -1: none is there.
  int32_t stay_of(TensorId id) const {
    const std::vector<int32_t>& here = present_[static_cast<size_t>(id.index)];
    return here.empty() ? -1 : here[0];
  }
  bool holds(int32_t i) const { return residences_[static_cast<size_t>(i)].holds; }

  // --- steps ---
  static bool contains(const std::vector<int>& list, int value) {
    return std::find(list.begin(), list.end(), value) != list.end();
  }

  void run_step(StepIndex step) {
    const Step& s = plan_.steps[static_cast<size_t>(step)];
    const Op& op = graph_.op(s.op);
    check_repetition(step, s, op);
    const std::vector<InPlace> pairs = op.type->in_place ? op.type->in_place(graph_, op) : std::vector<InPlace>{};
    // A recomputation leaves running statistics alone: it neither writes them nor needs the old ones.
    auto left_out = [&](int output) { return s.recompute && contains(op.type->state_outputs, output); };
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const bool unused = std::any_of(pairs.begin(), pairs.end(), [&](const InPlace& p) {
        return p.required && p.input == static_cast<int>(i) && left_out(p.output);
      });
      if (!unused) check_input(step, op.inputs[i]);
    }
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      if (!left_out(static_cast<int>(o)) && stay_of(op.outputs[o]) < 0) {
        report(Rule::not_resident, step,
               fmt::format("{} writes '{}', which has no place in the arena then", where(step),
                           tensor(op.outputs[o]).name));
      }
    }
    for (const InPlace& pair : pairs) {
      if (!pair.required || left_out(pair.output)) continue;
      check_required(step, op.inputs.at(static_cast<size_t>(pair.input)),
                     op.outputs.at(static_cast<size_t>(pair.output)));
    }
    check_workspace(step, s);
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      const int32_t place = stay_of(op.outputs[o]);
      if (place >= 0 && !left_out(static_cast<int>(o))) write(place);
    }
    ran_[static_cast<size_t>(s.op.index)] = true;
  }

  // The value is there now, and what else lay in these bytes is lost.
  void write(int32_t place) {
    residences_[static_cast<size_t>(place)].holds = true;
    auto it = present_by_offset_.find(stay(place).offset.count);
    if (it == present_by_offset_.end()) return;
    for (int32_t other : it->second) {
      if (stay(other).is_workspace() || !is_view_of_same(stay(other), stay(place)))
        residences_[static_cast<size_t>(other)].holds = false;
    }
  }

  void check_repetition(StepIndex step, const Step& s, const Op& op) {
    const bool ran = ran_[static_cast<size_t>(s.op.index)];
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
    if (place < 0 && is_state_[static_cast<size_t>(id.index)] && was_overwritten(id, step)) {
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
      if (producer.valid() && ran_[static_cast<size_t>(producer.index)]) return true;
    }
    return false;
  }

  void check_required(StepIndex step, TensorId in, TensorId out) {
    const int32_t from = stay_of(in), to = stay_of(out);
    if (from < 0 || to < 0 || stay(from).offset == stay(to).offset) return;
    report(is_state_[static_cast<size_t>(in.index)] ? Rule::state_misplaced : Rule::wrong_value, step,
           fmt::format("{} must write '{}' in the place of '{}', but {} and {} lie apart", where(step),
                       tensor(out).name, tensor(in).name, what(stay(to)), what(stay(from))));
  }

  void check_workspace(StepIndex step, const Step& s) {
    if (s.workspace.count == 0) return;
    for (int32_t i : begins_[static_cast<size_t>(step)]) {
      if (stay(i).is_workspace()) return;
    }
    report(Rule::not_resident, step,
           fmt::format("{} needs a workspace of {} bytes and has none", where(step), s.workspace.count));
  }

  // --- moves ---

  // A copy takes place somewhere between the end of step `after` and the start of step `before`.
  std::string what(const Move& m) const {
    return fmt::format("the copy of '{}' {} tier {} after step {} and before step {}", tensor(m.tensor).name,
                       m.direction == Move::Direction::out ? "to" : "from", m.tier, m.after, m.before);
  }

  // The stay that a copy uses: for `out` it is there before the copy starts, for `in` it is there when the copy is
  // complete.
  int32_t stay_of(const Move& m) const {
    const StepIndex last_step = std::max<StepIndex>(step_count_ - 1, 0);
    const StepIndex at =
        m.direction == Move::Direction::out ? std::max<StepIndex>(m.after, 0) : std::min(m.before, last_step);
    for (int32_t i : stays_of_[static_cast<size_t>(m.tensor.index)]) {
      if (stay(i).first <= at && at <= stay(i).last) return i;
    }
    return -1;
  }

  void check_moves() {
    moves_in_.resize(static_cast<size_t>(step_count_) + 1);
    for (size_t i = 0; i < plan_.moves.size() && !full(); ++i) {
      const Move& m = plan_.moves[i];
      const int32_t place = stay_of(m);
      if (place < 0) {
        report(Rule::bad_move, m.after, fmt::format("{}: it is not in the arena then", what(m)));
        continue;
      }
      if (m.direction == Move::Direction::out) {
        check_move_out(m, stay(place));
      } else {
        check_move_in(m, stay(place));
        moves_in_[static_cast<size_t>(m.before)].push_back(place);
      }
    }
    check_slots();
  }

  void check_move_out(const Move& m, const Stay& from) {
    if (from.last < m.before - 1) {
      report(Rule::bad_move, from.last, fmt::format("{}: {} ends before the copy is complete", what(m), what(from)));
    }
    for (StepIndex s = std::max<StepIndex>(m.after + 1, from.first); s < m.before; ++s) {
      if (is_overwritten_in(from, s)) {
        report(Rule::bad_move, s, fmt::format("{}: {} overwrites it during the copy", what(m), where(s)));
      }
      if (writes(s, m.tensor))
        report(Rule::bad_move, s, fmt::format("{}: {} writes it during the copy", what(m), where(s)));
    }
    moves_out_[m.after].push_back(&m);  // its value is judged when that step is done
  }

  void check_move_in(const Move& m, const Stay& to) {
    const StepIndex last_step = std::max<StepIndex>(step_count_ - 1, 0);
    if (to.first > std::min(m.after + 1, last_step)) {
      report(Rule::bad_move, m.after, fmt::format("{}: {} begins after the copy may start", what(m), what(to)));
    }
    for (StepIndex s = m.after + 1; s < m.before; ++s) {
      if (writes(s, m.tensor))
        report(Rule::bad_move, s, fmt::format("{}: {} writes it during the copy", what(m), where(s)));
    }
    // Where the bytes come free in the very gap in which this copy may start, a copy out of them may still be running.
    if (to.first != m.after + 1) return;
    for (const Move& other : plan_.moves) {
      if (other.direction != Move::Direction::out || other.before != m.after + 1) continue;
      const int32_t place = stay_of(other);
      if (place < 0) continue;
      const Stay& from = stay(place);
      if (from.offset.count < end_of(to) && to.offset.count < end_of(from)) {
        report(Rule::bad_move, m.after, fmt::format("{}: {} may still read its bytes", what(m), what(other)));
      }
    }
  }

  bool writes(StepIndex step, TensorId id) const {
    const Op& op = op_at(step);
    return std::find(op.outputs.begin(), op.outputs.end(), id) != op.outputs.end();
  }

  // An output of the step begins in the bytes of `old`, which ends there.
  bool is_overwritten_in(const Stay& old, StepIndex step) const {
    if (old.last != step) return false;
    for (int32_t i : begins_[static_cast<size_t>(step)]) {
      const Stay& fresh = stay(i);
      if (fresh.is_workspace() || &fresh == &old || is_view_of_same(fresh, old)) continue;
      if (fresh.offset.count < end_of(old) && old.offset.count < end_of(fresh)) return true;
    }
    return false;
  }

  // What lies in the tiers: a copy brings back what the last copy into the slot took out.
  void check_slots() {
    std::map<int, std::vector<const Move*>> tiers;
    for (const Move& m : plan_.moves) tiers[m.tier].push_back(&m);
    auto end_of_slot = [&](const Move& m) { return m.slot.count + tensor(m.tensor).bytes().count; };
    for (auto& [tier, moves] : tiers) {
      for (const Move* in : moves) {
        if (in->direction != Move::Direction::in) continue;
        const Move* source = nullptr;
        for (const Move* out : moves) {
          if (out->direction != Move::Direction::out || out->slot.count >= end_of_slot(*in) ||
              in->slot.count >= end_of_slot(*out))
            continue;
          if (out->after >= in->before) continue;  // starts when this copy is complete
          const bool complete = out->before <= in->after;
          if (!complete) {
            report(Rule::bad_move, in->after, fmt::format("{}: {} may still write its slot", what(*in), what(*out)));
          } else if (source == nullptr || out->after > source->after) {
            source = out;
          }
        }
        if (source == nullptr || source->tensor != in->tensor || source->slot != in->slot) {
          report(Rule::bad_move, in->after, fmt::format("{}: slot {} does not hold it", what(*in), in->slot.count));
        }
      }
    }
  }

  void check_values_taken_out(StepIndex after) {
    auto it = moves_out_.find(after);
    if (it == moves_out_.end()) return;
    for (const Move* m : it->second) {
      const int32_t place = stay_of(*m);
      if (place >= 0 && !holds(place))
        report(Rule::bad_move, after, fmt::format("{}: its place does not hold its value then", what(*m)));
    }
  }

  void finish_moves_in(StepIndex step) {
    if (step == 0) check_values_taken_out(-1);
    if (step > 0) check_values_taken_out(step - 1);
    for (int32_t place : moves_in_[static_cast<size_t>(step)]) residences_[static_cast<size_t>(place)].holds = true;
  }

  // --- the end ---
  void check_end() {
    if (full()) return;
    const StepIndex last = step_count_ - 1;
    if (step_count_ > 0) finish_moves_in(step_count_);
    for (int32_t i = 0; i < graph_.op_count(); ++i) {
      if (!ran_[static_cast<size_t>(i)])
        report(Rule::op_missing, last, fmt::format("op '{}' never runs", graph_.op({i}).name));
    }
    auto at_end = [&](TensorId id) {
      const int32_t place = stay_of(id);
      return place >= 0 && (step_count_ == 0 || stay(place).last == last) && holds(place) ? place : -1;
    };
    for (TensorId id : graph_.outputs) {
      if (at_end(id) < 0)
        report(Rule::output_missing, last, fmt::format("output '{}' is not in the arena at the end", tensor(id).name));
    }
    for (const State& state : graph_.states) {
      int32_t begin = -1;
      for (int32_t i : stays_of_[static_cast<size_t>(state.before.index)]) {
        if (stay(i).first == 0) begin = i;
      }
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
  size_t limit_;
  StepIndex step_count_;
  std::vector<Violation> found_;
  std::vector<Residence> residences_;                // by stay
  std::vector<std::vector<int32_t>> begins_, ends_;  // by step: stays
  std::vector<std::vector<int32_t>> stays_of_;       // by tensor
  std::vector<std::vector<int32_t>> present_;        // by tensor: its stays now
  std::map<int64_t, std::vector<int32_t>> present_by_offset_;
  std::vector<int32_t> same_bytes_;  // by tensor: the tensor that it views, itself when it is no view
  std::vector<bool> is_state_;
  std::vector<bool> ran_;                                    // by op
  std::vector<std::vector<int32_t>> moves_in_;               // by the step before which they are complete: stays
  std::map<StepIndex, std::vector<const Move*>> moves_out_;  // by the step after which they may start
};

}  // namespace

std::string_view to_string(Violation::Rule rule) {
  switch (rule) {
    case Rule::wrong_graph:
      return "wrong_graph";
    case Rule::op_missing:
      return "op_missing";
    case Rule::op_repeated:
      return "op_repeated";
    case Rule::not_resident:
      return "not_resident";
    case Rule::wrong_value:
      return "wrong_value";
    case Rule::overlap:
      return "overlap";
    case Rule::out_of_arena:
      return "out_of_arena";
    case Rule::misaligned:
      return "misaligned";
    case Rule::wrong_size:
      return "wrong_size";
    case Rule::state_changed:
      return "state_changed";
    case Rule::state_misplaced:
      return "state_misplaced";
    case Rule::output_missing:
      return "output_missing";
    case Rule::bad_move:
      return "bad_move";
    case Rule::bad_index:
      return "bad_index";
    case Rule::bad_threads:
      return "bad_threads";
  }
  return "?";
}

std::vector<Violation> verify(const Graph& graph, const Plan& plan, size_t limit) {
  return limit == 0 ? std::vector<Violation>{} : Checker(graph, plan, limit).run();
}

void require_valid(const Graph& graph, const Plan& plan) {
  const std::vector<Violation> violations = verify(graph, plan, 5);
  if (violations.empty()) return;
  std::string text = fmt::format("the plan for graph '{}' by policy '{}' is not safe:", graph.name, plan.policy);
  for (const Violation& v : violations) text += fmt::format("\n  {}: {}", to_string(v.rule), v.message);
  throw Error(ErrorCode::internal, text);
}

}  // namespace plimsoll
