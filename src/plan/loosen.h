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

#include <optional>
#include <vector>

#include "plimsoll/graph.h"
#include "plimsoll/plan.h"

namespace plimsoll {

// The plan's stays at other offsets, such that bytes are taken over only by steps that are more than `steps` after the last
// that used them; what the placement packed together because it is the same bytes (views, outputs in the place of inputs) stays
// so, and so do the states, which all plans of a network agree on. And the end of the highest; nothing when that is beyond `limit`.
struct LooseStays {
  std::vector<Stay> stays;
  Bytes arena;
};
std::optional<LooseStays> loosen(const Graph& graph, const Plan& plan, StepIndex steps, Bytes limit);

}  // namespace plimsoll
