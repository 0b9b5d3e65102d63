#include "cores/relax_reuse.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/by_id.h"
#include "plan/assemble.h"

namespace plimsoll {
namespace {

// The end of the states that lie in the arena all the time, which is where they begin.
Bytes end_of_states(const Graph& graph, const Plan& plan) {
  ById<TensorId, char> is_state(graph.tensor_count(), 0);
  for (const State& state : graph.states) is_state[state.before] = 1;
  for (const Home& home : plan.homes) is_state[home.tensor] = 0;
  Bytes end;
  for (const Stay& stay : plan.stays) {
    if (!stay.is_workspace() && is_state[stay.tensor] != 0) end = std::max(end, stay.offset + stay.bytes);
  }
  for (bool grown = true; grown;) {  // what lies across the end stays, too
    grown = false;
    for (const Stay& stay : plan.stays) {
      if (stay.offset >= end || stay.offset + stay.bytes <= end) continue;
      end = stay.offset + stay.bytes;
      grown = true;
    }
  }
  return end;
}

// Stays that lie upon each other at one time are one.
class Together {
 public:
  explicit Together(const std::vector<Stay>& stays) : parent_(stays.size()) {
    std::iota(parent_.begin(), parent_.end(), size_t{0});
    std::vector<size_t> order = parent_;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return stays[a].first < stays[b].first; });
    using There = std::multimap<int64_t, size_t>;  // by offset
    There there;
    std::multimap<StepIndex, There::iterator> leaving;  // by last step
    std::multiset<int64_t> sizes;                       // of those that are there
    for (size_t i : order) {
      const Stay& stay = stays[i];
      while (!leaving.empty() && leaving.begin()->first < stay.first) {
        sizes.erase(sizes.find(stays[leaving.begin()->second->second].bytes.count));
        there.erase(leaving.begin()->second);
        leaving.erase(leaving.begin());
      }
      const int64_t begin = stay.offset.count, end = begin + stay.bytes.count;
      const int64_t largest = sizes.empty() ? 0 : *sizes.rbegin();
      for (auto it = there.lower_bound(begin - largest); it != there.end() && it->first < end; ++it) {
        if (it->first + stays[it->second].bytes.count > begin) parent_[of(i)] = of(it->second);
      }
      sizes.insert(stay.bytes.count);
      leaving.emplace(stay.last, there.emplace(begin, i));
    }
  }

  size_t of(size_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }

 private:
  std::vector<size_t> parent_;
};

}  // namespace

ReuseRelaxation::ReuseRelaxation(const Graph& graph, const Plan& plan)
    : plan_(plan), fixed_(end_of_states(graph, plan)) {
  const ById<TensorId, Mobility> mobility = mobility_for(find_placement(plan.placement), graph, plan.steps);
  Together together(plan.stays);
  std::map<size_t, size_t> number;  // of the group
  for (size_t i = 0; i < plan.stays.size(); ++i) {
    const Stay& stay = plan.stays[i];
    if (stay.offset < fixed_) continue;
    const auto [place, fresh] = number.try_emplace(together.of(i), groups_.size());
    if (fresh) {
      groups_.push_back({{.lower = stay.first, .upper = stay.last + 1}, stay.offset, stay.offset + stay.bytes, {}});
      if (!stay.is_workspace()) groups_.back().buffer.mobility = mobility[stay.tensor];
    }
    Group& group = groups_[place->second];
    group.buffer.lower = std::min<int64_t>(group.buffer.lower, stay.first);
    group.buffer.upper = std::max<int64_t>(group.buffer.upper, stay.last + 1);
    group.begin = std::min(group.begin, stay.offset);
    group.end = std::max(group.end, stay.offset + stay.bytes);
    group.stays.push_back(i);
  }
  for (Group& group : groups_) group.buffer.bytes = group.end - group.begin;
}

RelaxedStays ReuseRelaxation::with_reuse_distance(StepIndex steps) const {
  const auto last = static_cast<int64_t>(plan_.steps.size());
  std::vector<Buffer> buffers;
  for (const Group& group : groups_) {
    buffers.push_back(group.buffer);
    buffers.back().upper = std::max(group.buffer.upper, std::min(last, group.buffer.upper + steps));
  }
  const Placement placement =
      find_placement(plan_.placement).place(buffers, {.alignment = kStayAlignment, .effort = 0});
  return placed(placement.offsets, placement.height);
}

RelaxedStays ReuseRelaxation::without_reuse() const {
  std::vector<Bytes> offsets;
  Bytes height;
  for (const Group& group : groups_) {
    offsets.push_back(height);
    height += align_up(group.buffer.bytes, kStayAlignment);
  }
  return placed(offsets, height);
}

RelaxedStays ReuseRelaxation::placed(const std::vector<Bytes>& offsets, Bytes height) const {
  RelaxedStays result{plan_.stays, fixed_ + height};
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (size_t i : groups_[g].stays)
      result.stays[i].offset = fixed_ + offsets[g] + (plan_.stays[i].offset - groups_[g].begin);
  }
  sort_stays(result.stays);
  return result;
}

}  // namespace plimsoll
