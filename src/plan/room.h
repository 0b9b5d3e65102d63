// How much workspace there is room for in a plan whose other bytes stay where they are.
#pragma once

#include <vector>

#include "plimsoll/plan.h"

namespace plimsoll {

// By op: what the budget leaves free at the fullest of the op's steps, and the workspace that the op has there now.
std::vector<Bytes> room_of_ops(const Graph& graph, const Plan& plan, Bytes budget);

}  // namespace plimsoll
