// Bytes that are taken over later. Which bytes a tensor gets makes no difference to steps that run one after another, so a
// placement packs them as tightly as it can; but of steps that run side by side, whoever takes bytes waits for all who used them
// before, though it reads nothing of theirs.
//
//   packed     | a |  c |        c = h(x) waits for b = g(a)
//                | b  |
//   loosened   | a |
//                | b  |          at the cost of c's bytes both run at once
//              | c |
#pragma once

#include <vector>

#include "plimsoll/graph.h"
#include "plimsoll/placement.h"
#include "plimsoll/plan.h"

namespace plimsoll {

struct LooseStays {
  std::vector<Stay> stays;  // in the order of Plan::stays
  Bytes arena;              // the end of the highest
};

// The stays of a plan at other offsets. What lies upon each other at one time because it is the same bytes (views, outputs in the
// place of inputs) stays together, and so do the states, which all plans of a network agree on.
class Loosening {
 public:
  Loosening(const Graph& graph, const Plan& plan);
  // By the plan's placement, such that bytes are taken over only by steps that are more than `steps` after the last that used them.
  LooseStays after(StepIndex steps) const;
  // Nothing is taken over.
  LooseStays apart() const;

 private:
  struct Group {
    Buffer buffer;
    Bytes begin, end;           // as the plan has it
    std::vector<size_t> stays;  // by number
  };
  LooseStays placed(const std::vector<Bytes>& offsets, Bytes height) const;

  const Plan& plan_;
  Bytes fixed_;  // the end of what stays where it is
  std::vector<Group> groups_;
};

}  // namespace plimsoll
