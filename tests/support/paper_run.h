// Runs a plan on paper, granule by granule: every place of the arena and of the tiers knows which value lies there. It
// shares no thought with the verifier: it has no rules, it only looks whether a step, the next training step, or who
// reads the outputs finds another value than it should. Copies do their work at once when they may start, or at the
// last moment, or half and half, as the mode says; what goes wrong at any of these extremes can go wrong on a machine.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/by_id.h"
#include "plan/dependencies.h"
#include "plimsoll/ops.h"
#include "plimsoll/plan.h"

namespace plimsoll::testing {

class PaperRun {
 public:
  struct Mode {
    int out = 0, in = 0;  // 0: at once; 1: at the last moment; 2: half and half; 3: drawn for each copy
    uint64_t seed = 0;
    bool reversed = false;  // copies of one moment in the reverse order
  };

  PaperRun(const Graph& graph, const Plan& plan)
      : graph_(graph), plan_(plan), count_(static_cast<int>(plan.steps.size())) {
    for (int32_t t = 0; t < graph.tensor_count(); ++t) {
      const OpId producer = graph.tensor({t}).producer;
      const bool view = producer.valid() && graph.op(producer).type->is_view;
      values_.push_back(view ? values_[graph.op(producer).inputs[0]] : t);
    }
  }

  // What goes wrong first; empty: nothing.
  std::string run(const Mode& mode) {
    wrong_.clear();
    arena_.assign(granules(plan_.arena.count), Granule{});
    tiers_.clear();
    for (const TierUse& use : plan_.tiers) tiers_.emplace_back(granules(use.used.count), Granule{});
    start();
    choose(mode);
    std::vector<size_t> order(plan_.moves.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = mode.reversed ? order.size() - 1 - i : i;
    for (int g = 0; g <= count_ && wrong_.empty(); ++g) {
      for (const auto direction : {Move::Direction::out, Move::Direction::in}) {
        for (const bool late : {false, true}) {
          for (size_t i : order) {
            const Move& m = plan_.moves[i];
            if (m.direction == direction && (late ? m.before : m.after + 1) == g) copy(m, late ? 1 : 0, works_[i]);
          }
        }
      }
      if (g < count_) step(g);
    }
    if (wrong_.empty()) end();
    return wrong_;
  }

  // The nodes of dependencies.h in this order, each whole at its turn: steps, moves, then erasures.
  std::string run_order(std::span<const int32_t> nodes, std::span<const Erasure> erasures = {}) {
    wrong_.clear();
    arena_.assign(granules(plan_.arena.count), Granule{});
    tiers_.clear();
    for (const TierUse& use : plan_.tiers) tiers_.emplace_back(granules(use.used.count), Granule{});
    start();
    for (int32_t node : nodes) {
      const int32_t move = node - count_, erasure = move - static_cast<int32_t>(plan_.moves.size());
      if (move < 0) {
        step(node);
      } else if (erasure < 0) {
        copy(plan_.moves[move], 0, 0);
      } else {
        const Erasure& e = erasures[erasure];
        fill(arena_, e.offset.count, granules(e.bytes.count), -1);
      }
      if (!wrong_.empty()) return wrong_;
    }
    end();
    return wrong_;
  }

  std::string run_all(uint64_t seed) {
    for (const Mode& mode : {Mode{0, 0}, Mode{1, 1}, Mode{1, 0}, Mode{0, 1}, Mode{2, 2}, Mode{3, 3, seed, false},
                             Mode{3, 3, seed + 1, true}, Mode{1, 0, 0, true}}) {
      const std::string wrong = run(mode);
      if (!wrong.empty()) return fmt::format("{} (copies out {}, in {})", wrong, mode.out, mode.in);
      if (plan_.moves.empty()) break;
    }
    return "";
  }

 private:
  static constexpr int64_t kGranule = 64;
  struct Granule {
    int32_t value = -1;
    int32_t index = 0;
    bool operator==(const Granule&) const = default;
  };
  using Memory = std::vector<Granule>;

  static size_t granules(int64_t bytes) { return (std::max<int64_t>(bytes, 0) + kGranule - 1) / kGranule; }
  int32_t value(TensorId id) const { return values_[id]; }
  size_t size_of(TensorId id) const { return granules(graph_.tensor(id).bytes().count); }
  const std::string& name(TensorId id) const { return graph_.tensor(id).name; }
  void fail(std::string what) {
    if (wrong_.empty()) wrong_ = std::move(what);
  }

  const Stay* find(TensorId id, int at) const {
    for (const Stay& s : plan_.stays) {
      if (s.tensor == id && s.first <= at && at <= s.last) return &s;
    }
    return nullptr;
  }

  bool fits(const Memory& memory, int64_t offset, size_t count) {
    if (offset >= 0 && offset % kGranule == 0 && offset / kGranule + count <= memory.size()) return true;
    fail("beyond the memory, or between granules");
    return false;
  }
  void fill(Memory& memory, int64_t offset, size_t count, int32_t value) {
    if (!fits(memory, offset, count)) return;
    for (size_t i = 0; i < count; ++i) memory[offset / kGranule + i] = {value, value < 0 ? 0 : static_cast<int32_t>(i)};
  }
  bool is_there(const Memory& memory, int64_t offset, TensorId id) {
    const size_t count = size_of(id);
    if (!fits(memory, offset, count)) return false;
    for (size_t i = 0; i < count; ++i) {
      if (memory[offset / kGranule + i] != Granule{value(id), static_cast<int32_t>(i)}) return false;
    }
    return true;
  }

  const Home* home_of(TensorId id) const {
    for (const Home& h : plan_.homes) {
      if (h.tensor == id) return &h;
    }
    return nullptr;
  }

  void start() {
    for (int32_t t = 0; t < graph_.tensor_count(); ++t) {
      if (graph_.tensor({t}).producer.valid()) continue;
      if (const Home* h = home_of({t})) {
        fill(tiers_[h->tier], h->slot.count, size_of({t}), t);
      } else if (const Stay* s = find({t}, 0)) {
        fill(arena_, s->offset.count, size_of({t}), t);
      }
    }
  }

  void choose(const Mode& mode) {
    std::mt19937_64 random(mode.seed);
    works_.clear();
    for (const Move& m : plan_.moves) {
      const int way = m.direction == Move::Direction::out ? mode.out : mode.in;
      works_.push_back(way < 3 ? way : static_cast<int>(random() % 4));
    }
  }

  // The part of a copy that it does now, at its first (0) or its last (1) moment. Work 2 is the even granules first, 3
  // the odd.
  void copy(const Move& m, int moment, int work) {
    if (work < 2 && work != moment) return;
    const bool out = m.direction == Move::Direction::out;
    const Stay* stay = find(m.tensor, out ? std::max(m.after, 0) : std::min(m.before, count_ - 1));
    if (stay == nullptr) return fail(fmt::format("a copy of '{}' has no place", name(m.tensor)));
    Memory& tier = tiers_[m.tier];
    const size_t count = size_of(m.tensor);
    if (!fits(tier, m.slot.count, count) || !fits(arena_, stay->offset.count, count)) return;
    Granule* there = &tier[m.slot.count / kGranule];
    Granule* here = &arena_[stay->offset.count / kGranule];
    for (size_t i = 0; i < count; ++i) {
      if (work >= 2 && (static_cast<int>(i % 2) ^ (work - 2)) != moment) continue;
      (out ? there : here)[i] = (out ? here : there)[i];
    }
  }

  // A kernel writes rubbish into its workspace, and into outputs that have no leave to lie in an input, before it
  // reads.
  void step(int s) {
    const Step& step = plan_.steps[s];
    const Op& op = graph_.op(step.op);
    if (op.type->is_view) return;
    const auto pairs = op.type->in_place ? op.type->in_place(graph_, op) : std::vector<InPlace>{};
    auto is_unused = [&](int o) {
      const auto& list = op.type->state_outputs;
      return step.recompute && std::find(list.begin(), list.end(), o) != list.end();
    };
    std::vector<const Stay*> inputs, outputs;
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      bool unused = false;
      for (const InPlace& p : pairs) unused |= p.required && p.input == static_cast<int>(i) && is_unused(p.output);
      inputs.push_back(unused ? nullptr : find(op.inputs[i], s));
      if (!unused && inputs.back() == nullptr)
        return fail(fmt::format("step {} does not find '{}'", s, name(op.inputs[i])));
    }
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      outputs.push_back(is_unused(static_cast<int>(o)) ? nullptr : find(op.outputs[o], s));
      if (outputs.back() == nullptr && !is_unused(static_cast<int>(o))) {
        return fail(fmt::format("step {} has no place for '{}'", s, name(op.outputs[o])));
      }
    }
    int64_t workspace = -1;
    for (const Stay& stay : plan_.stays) {
      if (stay.is_workspace() && stay.first == s) workspace = stay.offset.count;
    }
    if (step.workspace.count > 0 && workspace < 0) return fail(fmt::format("step {} has no workspace", s));
    if (step.workspace.count > 0) fill(arena_, workspace, granules(step.workspace.count), -1);
    for (size_t o = 0; o < outputs.size(); ++o) {
      if (outputs[o] == nullptr) continue;
      const int64_t begin = outputs[o]->offset.count,
                    end = begin + static_cast<int64_t>(size_of(op.outputs[o])) * kGranule;
      bool in_place = false, allowed = true;
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (inputs[i] == nullptr) continue;
        const int64_t from = inputs[i]->offset.count,
                      to = from + static_cast<int64_t>(size_of(op.inputs[i])) * kGranule;
        if (from >= end || begin >= to) continue;
        in_place = true;
        allowed &= from == begin && std::any_of(pairs.begin(), pairs.end(), [&](const InPlace& p) {
                     return p.output == static_cast<int>(o) && p.input == static_cast<int>(i);
                   });
      }
      if (!in_place || !allowed) fill(arena_, begin, size_of(op.outputs[o]), -1);
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i] != nullptr && !is_there(arena_, inputs[i]->offset.count, op.inputs[i])) {
        fail(fmt::format("step {} ('{}') reads a wrong '{}'", s, op.name, name(op.inputs[i])));
      }
    }
    for (const InPlace& p : pairs) {
      if (!p.required || is_unused(p.output)) continue;
      if (inputs[p.input]->offset != outputs[p.output]->offset) {
        fail(fmt::format("step {} ('{}') cannot write in place", s, op.name));
      }
    }
    for (size_t o = 0; o < outputs.size(); ++o) {
      if (outputs[o] != nullptr) fill(arena_, outputs[o]->offset.count, size_of(op.outputs[o]), value(op.outputs[o]));
    }
    if (step.workspace.count > 0) fill(arena_, workspace, granules(step.workspace.count), -1);
  }

  void end() {
    for (TensorId id : graph_.outputs) {
      const Stay* s = find(id, count_ - 1);
      if (s == nullptr || !is_there(arena_, s->offset.count, id)) fail(fmt::format("output '{}' is wrong", name(id)));
    }
    for (const State& state : graph_.states) {
      if (const Home* h = home_of(state.before)) {
        if (!is_there(tiers_[h->tier], h->slot.count, state.after)) {
          fail(fmt::format("state '{}' is not at home", name(state.before)));
        }
        continue;
      }
      const Stay *first = find(state.before, 0), *last = find(state.after, count_ - 1);
      if (first == nullptr || last == nullptr || first->offset != last->offset ||
          !is_there(arena_, last->offset.count, state.after)) {
        fail(fmt::format("state '{}' is wrong at the end", name(state.before)));
      }
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  int count_;
  ById<TensorId, int32_t> values_;  // what it is a view of, itself when it is none
  std::vector<int> works_;          // by move
  Memory arena_;
  std::vector<Memory> tiers_;
  std::string wrong_;
};

}  // namespace plimsoll::testing
