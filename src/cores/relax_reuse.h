// Bytes that are taken over later. Which bytes a tensor gets makes no difference to steps that run one after another,
// so a placement reuses them as soon as it can; but of steps that run side by side, whoever takes bytes waits for all
// who used them before, though it reads nothing of theirs.
//
//   tight      | a |  c |        c = h(x) waits for b = g(a)
//                | b  |
//   relaxed   | a |
//                | b  |          at the cost of c's bytes both run at once
//              | c |
#pragma once

#include <vector>

#include "plan/placement/placement.h"
#include "plimsoll/graph.h"
#include "plimsoll/plan.h"

namespace plimsoll {

struct RelaxedStays {
  std::vector<Stay> stays;  // in the order of Plan::stays
  Bytes arena;              // the end of the highest
};

// The stays of a plan at other offsets. What lies upon each other at one time because it is the same bytes (views,
// outputs in the place of inputs) stays together, and so do the states, which all plans of a network agree on.
class ReuseRelaxation {
 public:
  ReuseRelaxation(const Graph& graph, const Plan& plan);
  // By the plan's placement, such that bytes are taken over only by steps that are more than `steps` after the last
  // that used them.
  RelaxedStays with_reuse_distance(StepIndex steps) const;
  // Nothing is taken over.
  RelaxedStays without_reuse() const;

 private:
  struct Group {
    Buffer buffer;
    Bytes begin, end;           // as the plan has it
    std::vector<size_t> stays;  // by number
  };
  RelaxedStays placed(const std::vector<Bytes>& offsets, Bytes height) const;

  const Plan& plan_;
  Bytes fixed_;  // the end of what stays where it is
  std::vector<Group> groups_;
};

}  // namespace plimsoll
