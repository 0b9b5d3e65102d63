// Random valid plans with everything that a plan can have: recomputations, recomputations of what recomputations read,
// copies out and in to two tiers with as much or as little time as they may have, homes, places taken over, views.
// Nobody would want these plans; they are for those who judge plans and who run them.
#pragma once

#include <map>
#include <optional>
#include <tuple>

#include "base/by_id.h"
#include "plan/placement/placement.h"
#include "tests/support/random_graph.h"

namespace plimsoll::testing {

class RandomPlan {
 public:
  RandomPlan(const Graph& graph, uint64_t seed, bool in_parts = false)
      : graph_(graph), random_(seed), in_parts_(in_parts) {}

  RandomPlan& without_disk() {
    tiers_used_ = 1;
    return *this;
  }

  // With a second buffer for what of a batch lies in the arena.
  RandomPlan& fed() {
    fed_ = true;
    return *this;
  }

  Plan make() {
    for (int32_t t = 0; t < graph_.tensor_count(); ++t) {
      const OpId producer = graph_.tensor({t}).producer;
      const bool view = producer.valid() && graph_.op(producer).type->is_view;
      value_of_.push_back(view ? value_of_[graph_.op(producer).inputs[0]] : t);
    }
    plan_.graph_name = graph_.name;
    plan_.graph_fingerprint = fingerprint(graph_);
    plan_.policy = "random";
    plan_.placement = "offline";
    const auto kernels = random_kernels(graph_, random_());
    for (OpId op : make_route(graph_).order) {
      plan_.steps.push_back({.op = op, .kernel = kernels[op.index].kernel, .workspace = kernels[op.index].workspace});
    }
    if (in_parts_) {
      for (Step& step : plan_.steps) divide(step);
    }
    for (int n = draw(8); n > 0; --n) insert_recomputation();
    choose_homes();
    find_events();
    for (auto& [v, value] : values_) cut(v, value);
    take_over_places();
    place();
    place_slots();
    if (fed_) add_second_buffers();
    plan_.budget = plan_.arena;
    return std::move(plan_);
  }

 private:
  // Every second op that can runs in two parts.
  void divide(Step& step) const {
    const int64_t batch = divisible_batch(graph_, graph_.op(step.op));
    if (batch < 2 || step.op.index % 2 != 0) return;
    const std::vector<MicroBatch> parts = {{step.kernel, batch - 1}, {step.kernel, 1}};
    step.kernel = configuration_name(parts);
  }

  struct Event {
    int step = 0;  // the number of steps: the end
    bool writes = false;
    std::vector<TensorId> tensors;  // which of the value's names are used
  };
  struct Residence {
    int32_t value = -1;
    int first = 0, last = 0;
    bool written = false;  // by step `first`; else a copy brings it, or it comes from outside
    int copied_until = 0;  // the last step beside which a copy out of it runs
    std::vector<std::tuple<TensorId, int, int>> names;  // stays that share its bytes
    int buffer = -1;
  };
  struct Value {
    std::vector<Event> events;
    bool pinned = false;  // a state without a home: always at its place
    std::optional<Home> home;
    int tier = -1;  // where its slot is
    int64_t slot_from = INT64_MAX, slot_to = -1;
    std::vector<size_t> moves;
  };

  int draw(int below) { return below <= 0 ? 0 : static_cast<int>(random_() % static_cast<uint64_t>(below)); }
  int between(int low, int high) { return low + draw(high - low + 1); }
  bool chance(int percent) { return draw(100) < percent; }
  int count() const { return static_cast<int>(plan_.steps.size()); }
  const Op& op_at(int s) const { return graph_.op(plan_.steps[s].op); }
  int32_t value(TensorId t) const { return value_of_[t]; }

  // What a step touches: running statistics are left alone when it runs again.
  template <class Visit>
  void visit(int s, const Visit& use) const {
    const Op& op = op_at(s);
    const bool again = plan_.steps[s].recompute;
    auto is_unused = [&](int o) {
      return again &&
             std::find(op.type->state_outputs.begin(), op.type->state_outputs.end(), o) != op.type->state_outputs.end();
    };
    const auto pairs = op.type->in_place ? op.type->in_place(graph_, op) : std::vector<InPlace>{};
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      bool unused = false;
      for (const InPlace& p : pairs) unused |= p.required && p.input == static_cast<int>(i) && is_unused(p.output);
      if (!unused) use(op.inputs[i], false);
    }
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      if (!is_unused(static_cast<int>(o))) use(op.outputs[o], !op.type->is_view);
    }
  }

  // Runs a step's producer of one input again, right before it.
  void insert_recomputation() {
    for (int attempt = 0; attempt < 10; ++attempt) {
      const int reader = draw(count());
      const Op& op = op_at(reader);
      if (op.inputs.empty() || op.type->is_view) continue;
      const TensorId wanted{value(op.inputs[draw(static_cast<int>(op.inputs.size()))])};
      const OpId producer = graph_.tensor(wanted).producer;
      if (!producer.valid() || graph_.op(producer).type->changes_state) continue;
      bool legal = true, state_output = false;
      for (size_t o = 0; o < graph_.op(producer).outputs.size(); ++o) {
        state_output |= graph_.op(producer).outputs[o] == wanted && o > 0;
      }
      int first_run = -1;
      for (int s = 0; s < reader; ++s) {
        if (plan_.steps[s].op == producer && first_run < 0) first_run = s;
        for (TensorId in : graph_.op(producer).inputs) legal &= !overwrites(s, in);
      }
      if (!legal || state_output || first_run < 0 || first_run + 1 >= reader) continue;
      Step again = plan_.steps[first_run];
      again.recompute = true;
      plan_.steps.insert(plan_.steps.begin() + reader, again);
      return;
    }
  }
  // The step's op must write over the state that `id` is, and `id` is read by who runs again (a statistic is not).
  bool overwrites(int s, TensorId id) const {
    return op_at(s).type->changes_state && value(op_at(s).inputs[0]) == value(id);
  }

  void choose_homes() {
    plan_.tiers = {{{"host", 1_GiB, 10, 12, 5, 0.1}, {}}, {{"disk", 4_GiB, 1, 2, 100, 0}, {}}};
    auto offer = [&](TensorId id, int percent) {
      if (!chance(percent)) return;
      const int tier = draw(tiers_used_);
      TierUse& use = plan_.tiers[tier];
      plan_.homes.push_back({id, tier, use.used});
      use.used += align_up(graph_.tensor(id).bytes(), kSlotAlignment);
    };
    const int percent = draw(3) * 40;
    for (const State& state : graph_.states) offer(state.before, percent);
    for (TensorId id : graph_.inputs) offer(id, percent);
  }

  void find_events() {
    for (int32_t t = 0; t < graph_.tensor_count(); ++t) values_.try_emplace(value({t}));
    for (const State& state : graph_.states) {
      values_[state.before.index].pinned = values_[state.after.index].pinned = true;
    }
    for (const Home& h : plan_.homes) {
      values_[h.tensor.index].home = h;
      for (const State& state : graph_.states) {
        if (state.before != h.tensor) continue;
        values_[state.before.index].pinned = values_[state.after.index].pinned = false;
        values_[state.after.index].home = h;
      }
    }
    for (int s = 0; s < count(); ++s) {
      visit(s, [&](TensorId id, bool writes) {
        auto& events = values_[value(id)].events;
        if (events.empty() || events.back().step != s) events.push_back({s, false, {}});
        events.back().writes |= writes;
        events.back().tensors.push_back(id);
      });
    }
    for (TensorId id : graph_.outputs) values_[value(id)].events.push_back({count(), false, {id}});
    for (const State& state : graph_.states) {
      Value& after = values_[state.after.index];
      if (!after.home) after.events.push_back({count(), false, {state.after}});
    }
  }

  // Divides a value's time into residences, with copies between them.
  void cut(int32_t v, Value& value) {
    const bool from_outside = !graph_.tensor({v}).producer.valid();
    if (value.events.empty() && !value.pinned && (value.home || !from_outside)) return;
    int open = -1;                              // the residence
    int may_leave = 0;                          // the first step after which a copy out of it may start
    bool outside = from_outside && value.home;  // a slot holds it
    if (outside) {
      value.tier = value.home->tier;
      value.slot_from = 0;
    }
    if (from_outside && !value.home) {
      open = begin(v, 0, false);
      may_leave = -1;
    }
    for (size_t i = 0; i < value.events.size(); ++i) {
      const Event& e = value.events[i];
      const int last_use = i == 0 ? -1 : value.events[i - 1].step;
      if (e.writes) {
        if (open >= 0 && chance(80) && residences_[open].last < e.step) open = -1;
        if (open < 0) open = begin(v, e.step, true);
        may_leave = e.step;
      } else if (open >= 0 && e.step - last_use >= 2 && last_use >= may_leave && last_use >= 0 && !value.pinned &&
                 chance(50)) {
        int back = last_use + 1;  // the first step with which the copy in may begin
        if (!outside) {
          Residence& r = residences_[open];
          const int after = between(may_leave, last_use), before = between(last_use + 1, e.step - 1);
          add_move(v, value, Move::Direction::out, after, before, last_use);
          r.last = before - 1;
          r.copied_until = before - 1;
          back = before;
          outside = true;
        }
        open = fetch(v, value, std::max(back, 0), e.step, may_leave);
      } else if (open < 0) {
        open = fetch(v, value, i == 0 ? 0 : last_use + 1, e.step, may_leave);
      }
      use(residences_[open], e);
    }
    // A state goes home with its new value.
    if (!from_outside && value.home) {
      Residence& r = residences_[open];
      const int last_use = value.events.back().step, before = between(std::max(last_use, may_leave) + 1, count());
      add_move(v, value, Move::Direction::out, between(may_leave, before - 1), before, last_use);
      r.last = std::max(r.last, before - 1);
      r.copied_until = before - 1;
    }
    for (const int32_t r : of_value_[v]) name(residences_[r]);
  }

  int begin(int32_t v, int first, bool written) {
    residences_.push_back({.value = v, .first = first, .last = first, .written = written, .copied_until = -1});
    of_value_[v].push_back(static_cast<int32_t>(residences_.size()) - 1);
    return static_cast<int>(residences_.size()) - 1;
  }

  int fetch(int32_t v, Value& value, int from, int step, int& may_leave) {
    const int first = between(std::min(from, std::min(step, count() - 1)), std::min(step, count() - 1));
    const int before = between(first, step);
    add_move(v, value, Move::Direction::in, first - 1, before, step);
    const int open = begin(v, first, false);
    residences_[open].last = std::min(before, count() - 1);
    may_leave = before;
    return open;
  }

  void use(Residence& r, const Event& e) {
    const int step = std::min(e.step, count() - 1);
    r.last = std::max(r.last, step);
    for (TensorId t : e.tensors) r.names.emplace_back(t, step, step);
  }

  // Joins the mentions of each name, and lets the value's own name last the whole residence.
  void name(Residence& r) {
    std::map<int32_t, std::pair<int, int>> spans;
    spans[r.value] = {r.first, r.last};
    for (const auto& [t, first, last] : r.names) {
      auto [it, fresh] = spans.try_emplace(t.index, first, last);
      it->second = {std::min(it->second.first, first), std::max(it->second.second, last)};
    }
    r.names.clear();
    for (const auto& [t, span] : spans) r.names.emplace_back(TensorId{t}, span.first, span.second);
  }

  void add_move(int32_t v, Value& value, Move::Direction direction, int after, int before, int) {
    if (value.tier < 0) value.tier = value.home ? value.home->tier : draw(tiers_used_);
    value.slot_from = std::min<int64_t>(value.slot_from, 4 * (after + 1));
    value.slot_to = std::max<int64_t>(value.slot_to, 4 * before + 3);
    value.moves.push_back(plan_.moves.size());
    plan_.moves.push_back({direction, {v}, value.tier, {}, after, before});
  }

  // An output that begins where an input ends takes its bytes: where it must, and often where it may.
  void take_over_places() {
    int buffers = 0;
    auto residence_with = [&](int32_t v, auto match) {
      for (const int32_t r : of_value_[v]) {
        if (match(residences_[r])) return static_cast<int>(r);
      }
      return -1;
    };
    for (int s = 0; s < count(); ++s) {
      const Op& op = op_at(s);
      if (op.type->is_view || !op.type->in_place) continue;
      for (const InPlace& p : op.type->in_place(graph_, op)) {
        const TensorId in = op.inputs[p.input], out = op.outputs[p.output];
        if (p.required && plan_.steps[s].recompute) continue;  // left out
        const int from = residence_with(value(in), [&](const Residence& r) { return r.last == s; });
        const int to =
            residence_with(value(out), [&](const Residence& r) { return r.first == s && r.written && r.buffer < 0; });
        if (!p.required && (chance(30) || !may_take(s, op, p, from, to))) continue;
        if (from < 0 || to < 0) continue;
        Residence &a = residences_[from], &b = residences_[to];
        if (a.buffer < 0) a.buffer = buffers++;
        b.buffer = a.buffer;
      }
    }
    for (Residence& r : residences_) {
      if (r.buffer < 0) r.buffer = buffers++;
    }
    buffers_ = buffers;
  }

  bool may_take(int s, const Op& op, const InPlace& p, int from, int to) const {
    if (from < 0 || to < 0) return false;
    const Residence &a = residences_[from], &b = residences_[to];
    const TensorId in = op.inputs[p.input];
    if (values_.at(a.value).pinned || values_.at(b.value).pinned || a.copied_until >= s) return false;
    if (graph_.tensor(in).bytes() != graph_.tensor(op.outputs[p.output]).bytes()) return false;
    if (graph_.tensor(in).dtype != graph_.tensor(op.outputs[p.output]).dtype) return false;
    for (const Residence& r : residences_) {  // nobody else has taken it
      if (a.buffer >= 0 && r.buffer == a.buffer && r.first == s) return false;
    }
    // No other name of it is there then, and every mention of it may be overwritten.
    for (const auto& [t, first, last] : a.names) {
      if (t != in && last >= s) return false;
    }
    const auto pairs = op.type->in_place(graph_, op);
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (value(op.inputs[i]) != a.value) continue;
      const bool listed = std::any_of(pairs.begin(), pairs.end(), [&](const InPlace& q) {
        return q.output == p.output && q.input == static_cast<int>(i);
      });
      if (op.inputs[i] != in || !listed) return false;
    }
    return true;
  }

  void place() {
    std::vector<Buffer> problem(buffers_, Buffer{INT64_MAX, 0, {}});
    for (const Residence& r : residences_) {
      Buffer& b = problem[r.buffer];
      b.lower = std::min<int64_t>(b.lower, r.first);
      b.upper = std::max<int64_t>(b.upper, r.last + 1);
      b.bytes = std::max(b.bytes, align_up(graph_.tensor({r.value}).bytes(), kStayAlignment));
    }
    for (const Residence& r : residences_) {
      if (values_[r.value].pinned) problem[r.buffer].lower = 0, problem[r.buffer].upper = count();
    }
    for (int s = 0; s < count(); ++s) {
      if (plan_.steps[s].workspace.count > 0) {
        problem.push_back({s, s + 1, align_up(plan_.steps[s].workspace, kStayAlignment)});
      }
    }
    const Placement placement = place_offline(problem, {.alignment = kStayAlignment, .capacity = {}, .effort = 0});
    plan_.arena = placement.height;
    for (const Residence& r : residences_) {
      for (const auto& [t, first, last] : r.names) {
        plan_.stays.push_back(
            {t, placement.offsets[r.buffer], align_up(graph_.tensor(t).bytes(), kStayAlignment), first, last});
      }
    }
    for (size_t b = buffers_; b < problem.size(); ++b) {
      const StepIndex s = static_cast<StepIndex>(problem[b].lower);
      plan_.stays.push_back({{}, placement.offsets[b], problem[b].bytes, s, s});
    }
    std::sort(plan_.stays.begin(), plan_.stays.end(), [](const Stay& a, const Stay& b) {
      return std::tie(a.first, a.offset, a.tensor, a.last) < std::tie(b.first, b.offset, b.tensor, b.last);
    });
  }

  void add_second_buffers() {
    Feeding& feeding = plan_.feeding;
    for (const Home& home : plan_.homes) {
      if (graph_.tensor(home.tensor).role == Role::input) return;  // a batch has second buffers whole or not at all
    }
    for (TensorId id : graph_.inputs) {
      if (graph_.tensor(id).role != Role::input) continue;
      feeding.inputs.push_back({id, plan_.arena, align_up(graph_.tensor(id).bytes(), kStayAlignment)});
      plan_.arena += feeding.inputs.back().bytes;
    }
    feeding.second_buffer = !feeding.inputs.empty();
  }

  void place_slots() {
    for (int tier = 0; tier < 2; ++tier) {
      std::vector<Buffer> problem;
      std::vector<Value*> asked;
      for (auto& [v, value] : values_) {
        if (value.tier != tier) continue;
        if (value.home) {
          for (size_t m : value.moves) plan_.moves[m].slot = value.home->slot;
        } else {
          problem.push_back({value.slot_from, value.slot_to + 1, align_up(graph_.tensor({v}).bytes(), kSlotAlignment)});
          asked.push_back(&value);
        }
      }
      const Placement placement = place_offline(problem, {.alignment = kSlotAlignment, .capacity = {}, .effort = 0});
      TierUse& use = plan_.tiers[tier];
      for (size_t i = 0; i < asked.size(); ++i) {
        for (size_t m : asked[i]->moves) plan_.moves[m].slot = use.used + placement.offsets[i];
      }
      if (!problem.empty()) use.used += placement.height;
    }
  }

  const Graph& graph_;
  std::mt19937_64 random_;
  int tiers_used_ = 2;
  bool in_parts_, fed_ = false;
  Plan plan_;
  ById<TensorId, int32_t> value_of_;
  std::map<int32_t, Value> values_;
  std::map<int32_t, std::vector<int32_t>> of_value_;  // its residences
  std::vector<Residence> residences_;
  int buffers_ = 0;
};

// `in_parts`: kernels by configuration as well.
inline Plan random_plan(const Graph& graph, uint64_t seed, bool in_parts = false) {
  return RandomPlan(graph, seed, in_parts).make();
}

}  // namespace plimsoll::testing
