// What is started and what is waited for between two steps of a plan, as a table. Drivers that keep the plan's order run
// by it; the concurrent one takes its routes only.
//
//   boundary 3      out   start: copies out with after = 2           wait: copies out with before = 3
//   (before step 3) in    start: copies in with after = 2            wait: copies in with before = 3
//
// So first what must leave leaves, then what comes in may take its place (plan.h).
#pragma once

#include <vector>

#include "execute/bindings.h"

namespace plimsoll {

// The copies of one tier in one direction. They are made one after another, in the order in which they may start.
struct CopyRoute {
  int tier = 0;
  Move::Direction direction = Move::Direction::out;
  std::vector<int32_t> moves;
};

// Copies [first, end) of a route.
struct CopyRange {
  int32_t route = 0, first = 0, end = 0;
};

struct Pass {
  std::vector<CopyRange> starts;  // these may start
  std::vector<CopyRange> waits;   // then these must be done, and so are all before them
  bool empty() const { return starts.empty() && waits.empty(); }
};

struct Boundary {
  Pass out, in;
};

struct BoundaryTable {
  std::vector<CopyRoute> routes;
  std::vector<Boundary> before;  // by step, and one for the end
};

BoundaryTable make_boundaries(const Plan& plan);
// For who is told that a copy failed: "copying 'conv1/y' (2 MiB) to the host tier".
std::string describe_copy(const Graph& graph, const Plan& plan, int32_t move);

}  // namespace plimsoll
