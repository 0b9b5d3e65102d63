// Ways to break a plan, each as a bug in a planner could: what is done to it, and which rules the verifier may name for
// it.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/ops.h"
#include "plimsoll/plan.h"
#include "plimsoll/verify.h"

namespace plimsoll::testing {

struct Mutation {
  std::string_view name;
  std::set<Violation::Rule> rules;
  // False: this plan has nothing to break so.
  std::function<bool(const Graph&, Plan&, std::mt19937_64&)> apply;
  bool always_wrong = false;  // whatever else: the plan breaks a promise that no run on paper sees
};

inline size_t pick(std::mt19937_64& random, size_t count) { return random() % count; }

// Takes step `s` out; what was in it alone goes with it.
inline void erase_step(Plan& plan, StepIndex s) {
  plan.steps.erase(plan.steps.begin() + s);
  std::erase_if(plan.stays, [s](const Stay& stay) { return stay.first == s && stay.last == s; });
  for (Stay& stay : plan.stays) {
    if (stay.first > s) --stay.first;
    if (stay.last >= s) --stay.last;
  }
  for (Move& m : plan.moves) {
    if (m.after >= s) --m.after;
    if (m.before > s) --m.before;
  }
  std::erase_if(plan.moves, [](const Move& m) { return m.before <= m.after; });
}

inline const std::vector<Mutation>& mutations() {
  using Rule = Violation::Rule;
  using Random = std::mt19937_64;
  static const std::set<Rule> lost{Rule::not_resident, Rule::wrong_value,    Rule::state_changed, Rule::state_misplaced,
                                   Rule::bad_move,     Rule::output_missing, Rule::overlap};
  static const std::set<Rule> moved = [] {
    std::set<Rule> rules = lost;
    rules.insert({Rule::out_of_arena, Rule::out_of_tier});
    return rules;
  }();
  static const std::set<Rule> steps = [] {
    std::set<Rule> rules = lost;
    rules.insert({Rule::op_missing, Rule::op_repeated, Rule::wrong_size});
    return rules;
  }();
  auto stay = [](auto change) {
    return [change](const Graph& graph, Plan& plan, Random& random) {
      return !plan.stays.empty() && change(graph, plan, plan.stays[pick(random, plan.stays.size())], random);
    };
  };
  auto move = [](auto change) {
    return [change](const Graph&, Plan& plan, Random& random) {
      return !plan.moves.empty() && change(plan, plan.moves[pick(random, plan.moves.size())], random);
    };
  };
  auto home = [](auto change) {
    return [change](const Graph&, Plan& plan, Random& random) {
      return !plan.homes.empty() && change(plan, plan.homes[pick(random, plan.homes.size())], random);
    };
  };
  auto division = [](auto parts_of_batch) {
    return [parts_of_batch](const Graph& graph, Plan& plan, Random& random) {
      Step& step = plan.steps[pick(random, plan.steps.size())];
      if (step.kernel.empty()) return false;
      step.kernel = parts_of_batch(divisible_batch(graph, graph.op(step.op)), random);
      return true;
    };
  };
  static const std::vector<Mutation> list{
      {"parts that are not the batch",
       {Rule::bad_division},
       division([](int64_t batch, Random& random) {
         const int64_t other = batch + 1 + static_cast<int64_t>(pick(random, 3));
         return random() % 2 ? fmt::format("k@{}+k@1", other) : fmt::format("k@1*{}", other);
       }),
       true},
      {"a division that is nonsense",
       {Rule::bad_division},
       division([](int64_t, Random& random) {
         static const std::vector<std::string> names = {"k@",  "k@2+", "k@0*2",    "+",
                                                        "k@2", "@1*2", "k@-1+k@2", "k@1*99999999999999999999"};
         return names[1 + pick(random, names.size() - 1)];
       }),
       true},
      {"a stay begins later", lost, stay([](const Graph&, Plan&, Stay& s, Random& random) {
         if (s.first == s.last) return false;
         s.first += 1 + static_cast<StepIndex>(pick(random, 2) * pick(random, s.last - s.first));
         return true;
       })},
      {"a stay ends earlier", lost, stay([](const Graph&, Plan&, Stay& s, Random& random) {
         if (s.first == s.last) return false;
         s.last -= 1 + static_cast<StepIndex>(pick(random, 2) * pick(random, s.last - s.first));
         return true;
       })},
      {"a stay ends later", lost, stay([](const Graph&, Plan& plan, Stay& s, Random& random) {
         const StepIndex room = static_cast<StepIndex>(plan.steps.size()) - 1 - s.last;
         if (room <= 0) return false;
         s.last += 1 + static_cast<StepIndex>(pick(random, room));
         return true;
       })},
      {"a stay is dropped", lost,
       [](const Graph&, Plan& plan, Random& random) {
         plan.stays.erase(plan.stays.begin() + static_cast<ptrdiff_t>(pick(random, plan.stays.size())));
         return true;
       }},
      {"a workspace is dropped",
       {Rule::not_resident},
       [](const Graph&, Plan& plan, Random&) {
         const auto it =
             std::find_if(plan.stays.begin(), plan.stays.end(), [](const Stay& s) { return s.is_workspace(); });
         if (it == plan.stays.end()) return false;
         plan.stays.erase(it);
         return true;
       }},
      {"two offsets are swapped", moved, stay([](const Graph&, Plan& plan, Stay& s, Random& random) {
         std::swap(s.offset, plan.stays[pick(random, plan.stays.size())].offset);
         return true;
       })},
      {"an offset is another stay's", moved, stay([](const Graph&, Plan& plan, Stay& s, Random& random) {
         s.offset = plan.stays[pick(random, plan.stays.size())].offset;
         return true;
       })},
      {"a copy may start earlier", lost, move([](Plan&, Move& m, Random& random) {
         if (m.after < 0) return false;
         m.after -= 1 + static_cast<StepIndex>(pick(random, m.after + 1));
         return true;
       })},
      {"a copy may end later", lost, move([](Plan& plan, Move& m, Random& random) {
         const size_t room = plan.steps.size() - m.before;
         if (room == 0) return false;
         m.before += 1 + static_cast<StepIndex>(pick(random, room));
         return true;
       })},
      {"a copy goes the other way", lost, move([](Plan&, Move& m, Random&) {
         m.direction = m.direction == Move::Direction::out ? Move::Direction::in : Move::Direction::out;
         return true;
       })},
      {"a copy is dropped", lost,
       [](const Graph&, Plan& plan, Random& random) {
         if (plan.moves.empty()) return false;
         plan.moves.erase(plan.moves.begin() + static_cast<ptrdiff_t>(pick(random, plan.moves.size())));
         return true;
       }},
      {"a slot is another copy's", moved, move([](Plan& plan, Move& m, Random& random) {
         const Move& other = plan.moves[pick(random, plan.moves.size())];
         m.slot = other.slot;
         m.tier = other.tier;
         return true;
       })},
      {"a slot is a home", moved, move([](Plan& plan, Move& m, Random& random) {
         if (plan.homes.empty()) return false;
         const Home& other = plan.homes[pick(random, plan.homes.size())];
         m.slot = other.slot;
         m.tier = other.tier;
         return true;
       })},
      {"a copy is of another tensor", moved, move([](Plan& plan, Move& m, Random& random) {
         m.tensor = plan.moves[pick(random, plan.moves.size())].tensor;
         return true;
       })},
      {"a slot is used beyond",
       {Rule::out_of_tier},
       move([](Plan& plan, Move& m, Random&) {
         plan.tiers[m.tier].used = m.slot;
         return true;
       }),
       true},
      {"a tier is too small",
       {Rule::out_of_tier},
       [](const Graph&, Plan& plan, Random&) {
         if (plan.tiers.empty() || plan.tiers[0].used.count == 0) return false;
         plan.tiers[0].tier.capacity = plan.tiers[0].used - 1_B;
         return true;
       },
       true},
      {"a slot is not aligned",
       {Rule::misaligned},
       move([](Plan&, Move& m, Random&) {
         m.slot += 512_B;
         return true;
       }),
       true},
      {"a home is removed", lost, home([](Plan& plan, Home& h, Random&) {
         plan.homes.erase(plan.homes.begin() + (&h - plan.homes.data()));
         return true;
       })},
      {"a home lies elsewhere",
       [] {
         std::set<Rule> rules = moved;
         rules.insert(Rule::bad_home);
         return rules;
       }(),
       home([](Plan& plan, Home& h, Random& random) {
         h.slot = plan.homes[pick(random, plan.homes.size())].slot;
         return true;
       })},
      {"there is a second home",
       {Rule::bad_home},
       home([](Plan& plan, Home& h, Random&) {
         Home second = h;
         second.slot = plan.tiers[h.tier].used;
         plan.tiers[h.tier].used += 64_MiB;
         plan.homes.push_back(second);
         return true;
       }),
       true},
      {"a recomputation is dropped", lost,
       [](const Graph&, Plan& plan, Random& random) {
         std::vector<StepIndex> again;
         for (size_t s = 0; s < plan.steps.size(); ++s) {
           if (plan.steps[s].recompute) again.push_back(static_cast<StepIndex>(s));
         }
         if (again.empty()) return false;
         erase_step(plan, again[pick(random, again.size())]);
         return true;
       }},
      {"a step is dropped", steps,
       [](const Graph&, Plan& plan, Random& random) {
         erase_step(plan, static_cast<StepIndex>(pick(random, plan.steps.size())));
         return true;
       }},
      {"two steps change places", steps,
       [](const Graph&, Plan& plan, Random& random) {
         const size_t a = pick(random, plan.steps.size() - 1);
         std::swap(plan.steps[a], plan.steps[a + 1]);
         return true;
       }},
      {"a step runs in another's place", steps,
       [](const Graph&, Plan& plan, Random& random) {
         plan.steps[pick(random, plan.steps.size())] = plan.steps[pick(random, plan.steps.size())];
         return true;
       }},
      {"a first run calls itself a recomputation", steps,
       [](const Graph&, Plan& plan, Random& random) {
         Step& step = plan.steps[pick(random, plan.steps.size())];
         if (step.recompute) return false;
         return step.recompute = true;
       }},
      {"a recomputation changes a state", steps,
       [](const Graph& graph, Plan& plan, Random&) {
         for (Step& step : plan.steps) {
           if (!step.recompute || graph.op(step.op).type->state_outputs.empty()) continue;
           step.recompute = false;
           return true;
         }
         return false;
       }},
  };
  return list;
}

}  // namespace plimsoll::testing
