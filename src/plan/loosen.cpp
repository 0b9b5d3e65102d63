#include "plan/loosen.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "plimsoll/placement.h"

namespace plimsoll {
namespace {

size_t at(TensorId id) { return static_cast<size_t>(id.index); }

// The end of the states that lie in the arena all the time, which is where they begin.
Bytes end_of_states(const Graph& graph, const Plan& plan) {
  std::vector<char> is_state(static_cast<size_t>(graph.tensor_count()), 0);
  for (const State& state : graph.states) is_state[at(state.before)] = 1;
  for (const Home& home : plan.homes) is_state[at(home.tensor)] = 0;
  Bytes end;
  for (const Stay& stay : plan.stays) {
    if (!stay.is_workspace() && is_state[at(stay.tensor)] != 0) end = std::max(end, stay.offset + stay.bytes);
  }
  return end;
}

// Stays that lie upon each other at one time are one: a view and what it views, an output and the input whose place it takes.
class Groups {
 public:
  explicit Groups(const std::vector<Stay>& stays) : parent_(stays.size()) {
    std::iota(parent_.begin(), parent_.end(), size_t{0});
    // By first step; of those that may still be there, the bytes.
    std::vector<size_t> order(stays.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return stays[a].first < stays[b].first; });
    std::multimap<int64_t, size_t> there;  // by offset
    std::multimap<StepIndex, std::multimap<int64_t, size_t>::iterator> leaving;  // by last step
    int64_t largest = 0;
    for (size_t i : order) {
      const Stay& stay = stays[i];
      while (!leaving.empty() && leaving.begin()->first < stay.first) {
        there.erase(leaving.begin()->second);
        leaving.erase(leaving.begin());
      }
      const int64_t begin = stay.offset.count, end = begin + stay.bytes.count;
      for (auto it = there.lower_bound(begin - largest); it != there.end() && it->first < end; ++it) {
        if (it->first + stays[it->second].bytes.count > begin) join(i, it->second);
      }
      largest = std::max(largest, stay.bytes.count);
      leaving.emplace(stay.last, there.emplace(begin, i));
    }
  }

  size_t of(size_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }

 private:
  void join(size_t a, size_t b) { parent_[of(a)] = of(b); }
  std::vector<size_t> parent_;
};

}  // namespace

std::optional<LooseStays> loosen(const Graph& graph, const Plan& plan, StepIndex steps, Bytes limit) {
  const Bytes fixed = end_of_states(graph, plan);
  struct Group {
    Buffer buffer;
    Bytes begin, end;
    std::vector<size_t> stays;
  };
  std::vector<Stay> movable;
  std::vector<size_t> number;  // in plan.stays
  for (size_t i = 0; i < plan.stays.size(); ++i) {
    if (plan.stays[i].offset < fixed) continue;
    movable.push_back(plan.stays[i]);
    number.push_back(i);
  }
  Groups same(movable);
  std::map<size_t, Group> groups;
  for (size_t i = 0; i < movable.size(); ++i) {
    const Stay& stay = movable[i];
    auto [place, fresh] = groups.try_emplace(same.of(i));
    Group& group = place->second;
    if (fresh) group = {{stay.first, stay.last, {}}, stay.offset, stay.offset + stay.bytes, {}};
    group.buffer.lower = std::min<int64_t>(group.buffer.lower, stay.first);
    group.buffer.upper = std::max<int64_t>(group.buffer.upper, stay.last);
    group.begin = std::min(group.begin, stay.offset);
    group.end = std::max(group.end, stay.offset + stay.bytes);
    group.stays.push_back(i);
  }
  const auto last = static_cast<int64_t>(plan.steps.size());
  std::vector<Buffer> buffers;
  for (auto& [root, group] : groups) {
    group.buffer.upper = std::max(group.buffer.upper + 1, std::min(last, group.buffer.upper + 1 + steps));
    group.buffer.bytes = group.end - group.begin;
    buffers.push_back(group.buffer);
  }
  const Placement placement = place_offline(buffers, {.alignment = kStayAlignment, .effort = 0});
  LooseStays result{plan.stays, fixed + placement.height};
  if (result.arena > limit) return std::nullopt;
  size_t g = 0;
  for (const auto& [root, group] : groups) {
    const Bytes offset = fixed + placement.offsets[g++];
    for (size_t i : group.stays) result.stays[number[i]].offset = offset + (movable[i].offset - group.begin);
  }
  std::sort(result.stays.begin(), result.stays.end(), [](const Stay& a, const Stay& b) {
    return std::tie(a.first, a.offset, a.tensor, a.last) < std::tie(b.first, b.offset, b.tensor, b.last);
  });
  return result;
}

}  // namespace plimsoll
