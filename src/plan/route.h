// The order in which the ops of a step run: SuperNeurons' Algorithm 1 (Dymem's Algorithm 1): depth first, a join waits
// for all of its inputs. Backward ops follow in the reverse order of the forward ops that they differentiate; an update
// runs as soon as its gradient is there, so that gradients live shortly.
#pragma once

#include <vector>

#include "plimsoll/graph.h"
#include "plimsoll/plan.h"

namespace plimsoll {

struct Route {
  std::vector<OpId> order;  // every op of the graph once; inputs always before their readers
};
Route make_route(const Graph& graph);
// Moves updates of small parameters back, to where some of them stand together: a device that is asked for one launch after
// another takes longer to begin each than to do it. Some MiB of gradients live longer for it.
Route gather_updates(const Graph& graph, const Route& route);
// The order in which the graph lists them, where that is one in which they can run.
Route listed_route(const Graph& graph);
// That of a plan: what runs again left out.
Route route_of(const Plan& plan);

}  // namespace plimsoll
