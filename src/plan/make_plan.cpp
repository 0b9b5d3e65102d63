#include "plan/make_plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "plan/assemble.h"

namespace plimsoll {
namespace {

class PlanMaker {
 public:
  PlanMaker(const PolicyInput& input, const ValueTimeline& timeline, const Decisions& decisions,
            const Schedule& schedule, std::optional<Bytes> roughly_below, const KnownOffsets* known)
      : input_(input),
        graph_(input.graph),
        timeline_(timeline),
        decisions_(decisions),
        schedule_(schedule),
        roughly_below_(roughly_below),
        known_(known) {}

  Plan make(std::string_view policy) {
    plan_ = begin_plan(input_, policy);
    for (const ScheduledStep& s : schedule_.steps) {
      plan_.steps.push_back(make_step(input_, timeline_.steps[s.step].op, s.recompute));
    }
    place_in_tiers();
    if (!input_.explain && is_overfull()) {
      plan_.arena = {schedule_.peak};
      return std::move(plan_);
    }
    join_places();
    place_in_arena();
    make_stays();
    finish_stays(graph_, plan_);
    return std::move(plan_);
  }

 private:
  int32_t end() const { return std::max<int32_t>(static_cast<int32_t>(schedule_.steps.size()) - 1, 0); }

  bool is_overfull() const {
    return std::any_of(plan_.tiers.begin(), plan_.tiers.end(),
                       [](const TierUse& use) { return use.used > use.tier.capacity; });
  }

  // Residences that take each other's place are one place.
  void join_places() {
    place_of_.resize(schedule_.residences.size());
    for (size_t r = 0; r < schedule_.residences.size(); ++r) {
      // An output's residence comes after that of the input it lies in.
      const Residence& residence = schedule_.residences[r];
      if (residence.in_place_of >= 0) {
        place_of_[r] = place_of_[residence.in_place_of];
      } else {
        place_of_[r] = static_cast<int32_t>(places_.size());
        places_.push_back({.steps = {residence.first, residence.last},
                           .bytes = {},
                           .tensor = timeline_.values[residence.value].tensor});
      }
      ArenaRegion& place = places_[place_of_[r]];
      place.steps.first = std::min(place.steps.first, residence.first);
      place.steps.last = std::max(place.steps.last, residence.last);
      place.bytes = std::max(place.bytes, Bytes{timeline_.values[residence.value].bytes});
    }
  }

  void place_in_arena() {
    int64_t bottom = 0;
    std::vector<int64_t> state_offset(graph_.states.size(), -1);
    for (size_t s = 0; s < graph_.states.size(); ++s) {
      const int32_t value = timeline_.value_of[graph_.states[s].before];
      if (decisions_.home[value] >= 0) continue;
      state_offset[s] = bottom;
      bottom += timeline_.values[value].bytes;
    }
    for (size_t r = 0; r < schedule_.residences.size(); ++r) {
      const TimelineValue& value = timeline_.values[schedule_.residences[r].value];
      if (value.state >= 0 && state_offset[value.state] >= 0) {
        places_[place_of_[r]].offset = Bytes{state_offset[value.state]};
      }
    }
    const auto& live = schedule_.live;
    const Bytes most{live.empty() ? 0 : *std::max_element(live.begin(), live.end())};
    const Bytes enough = roughly_below_ ? Bytes{} : enough_height(input_, {bottom}, most - Bytes{bottom});
    const auto place = [&](const PlacementMethod& method, const std::vector<Buffer>& problem) {
      if (known_ != nullptr) return known_placement(problem);
      PlacementOptions placing{.alignment = kStayAlignment,
                               .capacity = enough,
                               .effort = input_.placed_well ? input_.effort : std::min(input_.effort, kEffortOfMany),
                               .only_to_fit = enough.count > 0,
                               .one_of_many = input_.only_to_fit && !input_.least_memory,
                               .roughly = roughly_below_.has_value()};
      if (roughly_below_) placing.useless = *roughly_below_ - Bytes{bottom};
      Placement placement = method.place(problem, placing);
      if (enough.count == 0 || input_.only_to_fit || placement.proven_optimal) return placement;
      placing.capacity = {};
      placing.only_to_fit = false;
      Placement better = method.place(problem, placing);
      return better.height < placement.height ? better : placement;
    };
    place_regions(input_, {bottom}, place, false, places_, plan_);
  }

  // In the order in which place_regions asks.
  Placement known_placement(const std::vector<Buffer>& problem) const {
    Placement placement;
    for (size_t r = 0; r < schedule_.residences.size(); ++r) {
      if (schedule_.residences[r].in_place_of < 0 && !places_[place_of_[r]].offset)
        placement.offsets.push_back(known_->residences[r]);
    }
    for (size_t d = 0; d < plan_.steps.size(); ++d) {
      if (plan_.steps[d].workspace.count > 0) placement.offsets.push_back(known_->workspaces[d]);
    }
    for (size_t i = 0; i < problem.size(); ++i)
      placement.height = std::max(placement.height, placement.offsets.at(i) + problem[i].bytes);
    return placement;
  }

  void add_stay(TensorId tensor, int32_t residence, int32_t first, int32_t last) {
    plan_.stays.push_back({.tensor = tensor,
                           .offset = *places_[place_of_[residence]].offset,
                           .bytes = align_up(graph_.tensor(tensor).bytes(), kStayAlignment),
                           .first = first,
                           .last = last});
  }

  // The first tensor of a value is there as long as the value is; a view of it from its first mention to its last.
  void make_stays() {
    for (size_t r = 0; r < schedule_.residences.size(); ++r) {
      const Residence& residence = schedule_.residences[r];
      add_stay(timeline_.values[residence.value].tensor, static_cast<int32_t>(r), residence.first, residence.last);
    }
    std::map<std::pair<int32_t, TensorId>, std::pair<int32_t, int32_t>> views;
    auto mention = [&](int32_t residence, TensorId tensor, int32_t d) {
      if (timeline_.values[timeline_.value_of[tensor]].tensor == tensor) return;
      auto [it, fresh] = views.try_emplace({residence, tensor}, d, d);
      if (!fresh) it->second.second = d;
    };
    for (int32_t d = 0; d < static_cast<int32_t>(schedule_.steps.size()); ++d) {
      const ScheduledStep& scheduled = schedule_.steps[d];
      const TimelineStep& step = timeline_.steps[scheduled.step];
      const std::span<const int32_t> inputs = scheduled.recompute ? step.recompute_inputs : step.inputs;
      const Op& op = graph_.op(step.op);
      for (size_t i = 0; i < inputs.size(); ++i) {
        const int32_t residence = schedule_.inputs[scheduled.first_input + i];
        for (TensorId t : op.inputs) {
          if (timeline_.value_of[t] == inputs[i]) mention(residence, t, d);
        }
        if (!step.view) continue;
        for (TensorId t : op.outputs) {
          if (timeline_.value_of[t] == inputs[i]) mention(residence, t, d);
        }
      }
    }
    for (TensorId t : graph_.outputs) mention_at_end(t, mention);
    for (const auto& [key, range] : views) add_stay(key.second, key.first, range.first, range.second);
  }

  template <class Mention>
  void mention_at_end(TensorId tensor, const Mention& mention) {
    const int32_t value = timeline_.value_of[tensor];
    for (size_t r = schedule_.residences.size(); r-- > 0;) {
      if (schedule_.residences[r].value != value) continue;
      mention(static_cast<int32_t>(r), tensor, end());
      return;
    }
  }

  void place_in_tiers() {
    const std::vector<TierInfo>& tiers = input_.device.tiers;
    slot_of_.assign(timeline_.values.size(), -1);
    std::vector<int64_t> bottom(tiers.size(), 0);
    auto give_home = [&](TensorId tensor) {
      const int32_t v = timeline_.value_of[tensor];
      const int8_t tier = decisions_.home[v];
      if (tier < 0 || slot_of_[v] >= 0) return;
      slot_of_[v] = bottom[tier];
      bottom[tier] += align_up(Bytes{timeline_.values[v].bytes}, kSlotAlignment).count;
      plan_.homes.push_back({.tensor = timeline_.values[v].tensor, .tier = tier, .slot = {slot_of_[v]}});
    };
    for (const State& state : graph_.states) give_home(state.before);
    for (TensorId t : graph_.inputs) give_home(t);
    for (size_t v = 0; v < timeline_.values.size(); ++v) {
      const int32_t before = timeline_.values[v].before;
      if (before >= 0) slot_of_[v] = slot_of_[before];
    }
    for (size_t t = 0; t < tiers.size(); ++t) {
      const int64_t used = place_slots(static_cast<int8_t>(t), bottom[t]);
      plan_.tiers.push_back({.tier = tiers[t], .used = {used}});
    }
    for (const ScheduledMove& move : schedule_.moves) {
      const TimelineValue& value = timeline_.values[schedule_.residences[move.residence].value];
      plan_.moves.push_back({.direction = move.out ? Move::Direction::out : Move::Direction::in,
                             .tensor = value.tensor,
                             .tier = move.tier,
                             .slot = {slot_of_[schedule_.residences[move.residence].value]},
                             .after = move.after,
                             .before = move.before});
    }
    std::stable_sort(plan_.moves.begin(), plan_.moves.end(), [](const Move& a, const Move& b) {
      return std::tie(a.after, a.before) < std::tie(b.after, b.before);
    });
  }

  // A slot is a value's own from the copy out to the end of its last copy in, and one step longer: a copy out into it
  // may start as soon as the step before is complete.
  int64_t place_slots(int8_t tier, int64_t bottom) {
    std::map<int32_t, std::pair<int32_t, int32_t>> spans;
    for (const ScheduledMove& move : schedule_.moves) {
      const int32_t v = schedule_.residences[move.residence].value;
      if (move.tier != tier || (slot_of_[v] >= 0 && (decisions_.home[v] >= 0 || timeline_.values[v].before >= 0)))
        continue;
      auto [it, fresh] = spans.try_emplace(v, move.after + 1, move.before + 1);
      it->second.first = std::min(it->second.first, move.after + 1);
      it->second.second = std::max(it->second.second, move.before + 1);
    }
    std::vector<Buffer> problem;
    for (const auto& [v, span] : spans) problem.push_back({span.first, span.second, {timeline_.values[v].bytes}});
    const Placement placement = place_offline(problem, {.alignment = kSlotAlignment, .capacity = {}, .effort = 0});
    size_t i = 0;
    for (const auto& [v, span] : spans) slot_of_[v] = bottom + placement.offsets[i++].count;
    return bottom + (problem.empty() ? 0 : placement.height.count);
  }

  const PolicyInput& input_;
  const Graph& graph_;
  const ValueTimeline& timeline_;
  const Decisions& decisions_;
  const Schedule& schedule_;
  const std::optional<Bytes> roughly_below_;
  const KnownOffsets* const known_;
  Plan plan_;
  std::vector<ArenaRegion> places_;
  std::vector<int32_t> place_of_;  // by residence
  std::vector<int64_t> slot_of_;   // by value
};

}  // namespace

Plan make_plan(const PolicyInput& input, const ValueTimeline& timeline, const Decisions& decisions,
               const Schedule& schedule, std::string_view policy, std::optional<Bytes> roughly_below,
               const KnownOffsets* known) {
  return PlanMaker(input, timeline, decisions, schedule, roughly_below, known).make(policy);
}

}  // namespace plimsoll
