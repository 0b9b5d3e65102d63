#include "plan/policies/extremes.h"

#include <algorithm>

#include "plan/simulate.h"
#include "plan/tier_room.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr int kLongestChain = 6;  // steps that run again for one value

// What ranks gathered of a divided state may be larger than what is rebuilt from it, so it does not wait for that.
void let_gathered_go(const PolicyInput& input, const ValueTimeline& timeline, Decisions& decisions) {
  for (const TimelineStep& step : timeline.steps) {
    if (!input.graph.op(step.op).type->is_collective) continue;
    for (const int32_t v : step.outputs) {
      const TimelineValue& value = timeline.values[v];
      if (value.recomputable && !value.at_end) decisions.gaps[value.first_gap + value.uses.size()] = kDrop;
    }
  }
}

}  // namespace

Decisions where_states_are(const PolicyInput& input, const ValueTimeline& timeline) {
  Decisions decisions = keep_everything(timeline);
  let_gathered_go(input, timeline, decisions);
  for (size_t s = 0; s < input.state_homes.size(); ++s) {
    if (input.state_homes[s] < 0) continue;
    const int32_t v = timeline.value_of[input.graph.states[s].before];
    const TimelineValue& value = timeline.values[v];
    decisions.home[v] = input.state_homes[s];
    std::fill_n(decisions.gaps.begin() + value.first_gap, value.gap_count(), kDrop);
  }
  return decisions;
}

std::vector<Extreme> extremes(const PolicyInput& input) {
  if (input.device.tiers.empty()) return {};
  if (!input.state_homes.empty()) return {{false, false}, {false, true}};
  return {{false, false}, {false, true}, {true, false}, {true, true}};
}

Decisions everything_out(const PolicyInput& input, const ValueTimeline& timeline, Extreme extreme) {
  const std::vector<TierInfo>& tiers = input.device.tiers;
  Decisions decisions = where_states_are(input, timeline);
  std::vector<int> chain(timeline.values.size(), 0);  // steps to run again for it
  // Whether it is. What is dropped stays during the forward pass: fetched to rebuild another, it would wait for its
  // own backward use.
  auto let_go = [&](int32_t v, Choice choice) {
    bool any = false;
    const TimelineValue& value = timeline.values[v];
    for (int32_t g = 0; g < static_cast<int32_t>(value.uses.size()); ++g) {
      const int32_t from = g == 0 ? value.producer : value.uses[g - 1];
      if (value.uses[g] - from < 2) continue;  // it would have to be back at once
      const OpId reader = timeline.steps[value.uses[g]].op;
      if (choice == kDrop && value.producer >= 0 && input.graph.op(reader).phase == Phase::forward) continue;
      decisions.gaps[value.first_gap + g] = choice;
      any = true;
    }
    return any;
  };
  TierRoom room(timeline, tiers, decisions);
  // Optimizer states are wanted once a step, so they take what the others leave.
  auto move_states = [&](bool optimizer) {
    for (int32_t v = 0; v < static_cast<int32_t>(timeline.values.size()); ++v) {
      const size_t i = v;
      const TimelineValue& value = timeline.values[i];
      if (value.producer >= 0 || value.bytes == 0 || !extreme.states || decisions.home[i] >= 0) continue;
      if ((input.graph.tensor(value.tensor).role == Role::optimizer_state) != optimizer) continue;
      decisions.home[i] = room.first(value.bytes);
      room.take(decisions.home[i], value.bytes);
      let_go(v, kDrop);
    }
  };
  move_states(false);
  for (const TimelineStep& step : timeline.steps) {
    int rebuilt = 1;
    for (int32_t w : step.recompute_inputs) rebuilt += chain[w];
    for (int32_t v : step.outputs) {
      const TimelineValue& value = timeline.values[v];
      if (value.bytes == 0) continue;
      const int8_t tier = room.first(value.bytes);
      const TierInfo& to = tiers[tier];
      const double copies =
          copy_ms(to, Move::Direction::out, {value.bytes}) + copy_ms(to, Move::Direction::in, {value.bytes});
      const bool drop = extreme.recompute && value.recomputable && rebuilt <= kLongestChain && step.ms < copies;
      const Choice out = static_cast<Choice>(kOffload + tier);
      const bool gone = let_go(v, drop ? kDrop : out);
      if (gone && !drop) room.take(tier, value.bytes);
      if (!extreme.recompute || value.at_end || !value.recomputable) continue;
      const bool copied = gone ? !drop : rebuilt > kLongestChain;
      if (copied && !gone) room.take(tier, value.bytes);
      decisions.gaps[value.first_gap + value.uses.size()] = copied ? out : kDrop;  // for who rebuilds another
      chain[v] = copied ? 0 : rebuilt;
    }
  }
  move_states(true);
  return decisions;
}

}  // namespace plimsoll
