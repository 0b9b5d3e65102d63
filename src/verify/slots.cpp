// The tiers over time: which value lies in which slot, and which copies are reading or writing there. A sweep over the
// starts and ends of all copies in the order of findings.h.
#include <map>

#include "verify/findings.h"

namespace plimsoll {
namespace {

using Rule = Violation::Rule;

class SlotChecker {
 public:
  SlotChecker(const Graph& graph, const Plan& plan, const ById<TensorId, int32_t>& same_bytes, Findings& findings)
      : graph_(graph), plan_(plan), same_bytes_(same_bytes), findings_(findings), tiers_(plan.tiers.size()) {}

  void run() {
    fill_homes();
    for (const Event& event : make_events()) {
      if (findings_.full()) return;
      const Move& m = plan_.moves[event.move];
      if (event.ends) {
        complete(m, event.move);
      } else if (m.direction == Move::Direction::out) {
        start_out(m, event.move);
      } else {
        start_in(m);
      }
    }
    check_homes_at_end();
  }

 private:
  struct Event {
    int64_t time;
    bool ends;
    int32_t move;
  };
  // What lies from the key on, up to `end`. Part of a value that another was written over is a content that no tensor
  // is as long as, or begins where none does; `slot` tells it from a whole one.
  struct Content {
    int64_t end = 0;
    int64_t slot = 0;     // where the value began
    int32_t value = -1;   // by same_bytes
    int64_t bytes = 0;    // of the whole value
    int32_t writer = -1;  // the copy that is still writing it
    int32_t readers = 0;  // copies that are still reading it
  };
  using Tier = std::map<int64_t, Content>;

  int32_t value_of(TensorId id) const { return same_bytes_[id]; }
  int64_t bytes_of(TensorId id) const { return graph_.tensor(id).bytes().count; }
  Tier& tier(int index) { return tiers_[index]; }

  std::vector<Event> make_events() const {
    std::vector<Event> events;
    events.reserve(2 * plan_.moves.size());
    for (size_t i = 0; i < plan_.moves.size(); ++i) {
      const Move& m = plan_.moves[i];
      if (bytes_of(m.tensor) == 0) continue;
      events.push_back({start_of(m), false, static_cast<int32_t>(i)});
      events.push_back({end_of(m), true, static_cast<int32_t>(i)});
    }
    std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.time < b.time; });
    return events;
  }

  static Tier::iterator first_in(Tier& tier, int64_t begin) {
    auto it = tier.upper_bound(begin);
    if (it != tier.begin() && std::prev(it)->second.end > begin) --it;
    return it;
  }

  // Takes [begin, end) away from what lies there.
  static void clear(Tier& tier, int64_t begin, int64_t end) {
    auto it = first_in(tier, begin);
    while (it != tier.end() && it->first < end) {
      const int64_t from = it->first;
      const Content old = it->second;
      it = tier.erase(it);
      if (from < begin) {
        Content head = old;
        head.end = begin;
        tier.emplace(from, head);
      }
      if (old.end > end) it = tier.emplace(end, old).first;
    }
  }

  // The content that is exactly this tensor's value in this slot.
  Content* find_value(int t, TensorId id, Bytes slot) {
    const auto it = tier(t).find(slot.count);
    if (it == tier(t).end()) return nullptr;
    Content& c = it->second;
    const bool whole = c.slot == slot.count && c.end == slot.count + c.bytes;
    return whole && c.value == value_of(id) && c.bytes == bytes_of(id) ? &c : nullptr;
  }

  void fill_homes() {
    for (const Home& h : plan_.homes) {
      const int64_t begin = h.slot.count, bytes = bytes_of(h.tensor);
      if (bytes == 0) continue;
      const auto it = first_in(tier(h.tier), begin);
      if (it != tier(h.tier).end() && it->first < begin + bytes) {
        findings_.report(Rule::bad_home, -1,
                         fmt::format("the home of '{}' at [{}, {}) of tier {} shares bytes with another's",
                                     graph_.tensor(h.tensor).name, begin, begin + bytes, h.tier));
      }
      clear(tier(h.tier), begin, begin + bytes);
      tier(h.tier).emplace(begin, Content{begin + bytes, begin, value_of(h.tensor), bytes, -1, 0});
    }
  }

  void start_out(const Move& m, int32_t index) {
    const int64_t begin = m.slot.count, end = begin + bytes_of(m.tensor);
    for (auto it = first_in(tier(m.tier), begin); it != tier(m.tier).end() && it->first < end; ++it) {
      if (it->second.writer >= 0) {
        findings_.report(Rule::bad_move, m.after,
                         fmt::format("{}: {} may still write slot {}", findings_.what(m),
                                     findings_.what(plan_.moves[it->second.writer]), it->first));
      } else if (it->second.readers > 0) {
        findings_.report(Rule::bad_move, m.after,
                         fmt::format("{}: slot {} may still be read, by a copy of '{}'", findings_.what(m), it->first,
                                     graph_.tensor({it->second.value}).name));
      }
    }
    clear(tier(m.tier), begin, end);
    tier(m.tier).emplace(begin, Content{end, begin, value_of(m.tensor), end - begin, index, 0});
  }

  void start_in(const Move& m) {
    Content* content = find_value(m.tier, m.tensor, m.slot);
    if (content == nullptr) {
      findings_.report(Rule::bad_move, m.after,
                       fmt::format("{}: slot {} does not hold it", findings_.what(m), m.slot.count));
    } else if (content->writer >= 0) {
      findings_.report(Rule::bad_move, m.after,
                       fmt::format("{}: {} may still write its slot", findings_.what(m),
                                   findings_.what(plan_.moves[content->writer])));
    } else {
      ++content->readers;
    }
  }

  void complete(const Move& m, int32_t index) {
    Content* content = find_value(m.tier, m.tensor, m.slot);
    if (content == nullptr) return;
    if (m.direction == Move::Direction::out) {
      if (content->writer == index) content->writer = -1;
    } else if (content->readers > 0) {
      --content->readers;
    }
  }

  void check_homes_at_end() {
    std::map<int32_t, TensorId> left_as;
    for (const State& state : graph_.states) left_as[state.before.index] = state.after;
    for (const Home& h : plan_.homes) {
      const auto it = left_as.find(h.tensor.index);
      if (it == left_as.end() || bytes_of(h.tensor) == 0 || find_value(h.tier, it->second, h.slot) != nullptr) continue;
      findings_.report(Rule::state_misplaced, static_cast<StepIndex>(plan_.steps.size()) - 1,
                       fmt::format("state '{}' is not in its home, slot {} of tier {}, at the end as '{}'",
                                   graph_.tensor(h.tensor).name, h.slot.count, h.tier, graph_.tensor(it->second).name));
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  const ById<TensorId, int32_t>& same_bytes_;
  Findings& findings_;
  std::vector<Tier> tiers_;
};

}  // namespace

void check_slots(const Graph& graph, const Plan& plan, const ById<TensorId, int32_t>& same_bytes, Findings& findings) {
  SlotChecker(graph, plan, same_bytes, findings).run();
}

}  // namespace plimsoll
