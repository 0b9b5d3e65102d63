// Judges a plan, sharing no code with what made it: it sees the plan and the graph, nothing else. (The lower bound,
// which follows from the graph alone, is that of least_bytes.)
//
//   safe   every byte is where it is needed, and nobody else's. Judged of every plan before it is executed, in release
//          builds too.
//   true   the plan's prediction follows from its steps' times, its stays, copies and tiers. A plan that predicts
//          nothing, as policies make them, claims nothing. What a saved plan claims besides is judged in
//          compile/verify_file.h.
#pragma once

#include <string>
#include <vector>

#include "plimsoll/graph.h"
#include "plimsoll/plan.h"

namespace plimsoll {

// Of a step: more is a slip, and what runs them would end the process. 0 stands for all.
inline constexpr int kMostThreads = 4096;

struct Violation {
  enum class Rule : uint8_t {
    wrong_graph,      // made for another graph
    op_missing,       // an op never runs
    op_repeated,      // an op runs twice and the second is not a recomputation
    not_resident,     // a step reads or writes a tensor that is not in the arena then
    wrong_value,      // it is in the arena, but does not hold its value (never written, or lost when it left)
    overlap,          // two stays share a byte at one time, or a second buffer one with anything
    out_of_arena,     // a stay or a second buffer ends beyond the arena, or the arena beyond the budget
    misaligned,       // an offset is not a multiple of kStayAlignment, or a slot of kSlotAlignment
    wrong_size,       // a stay is smaller than its tensor, or a workspace than its step's
    state_changed,    // a recomputation changes a state, or an update reads after it was overwritten
    state_misplaced,  // at the end a state does not lie where the next step expects it
    output_missing,   // an output of the graph is gone at the end
    bad_move,         // a copy overlaps the use of its bytes, or brings what was never taken out
    bad_index,        // a step, tensor or op that does not exist
    bad_collective,  // messages: of steps that are none, out of order, or bytes that are used while they are on the wire
    bad_feeding,     // of what is no input of a batch, twice, or of only some of them; a link's numbers make no sense
    bad_home,        // of what does not come from outside, a second one, or on another's bytes
    out_of_tier,     // a slot ends beyond its tier's use, or this beyond its capacity; a tier's numbers make no sense
    bad_threads,  // a step is to run by fewer than no threads, or by more than kMostThreads, or than the plan has cores
    bad_cores,  // how steps share the cores makes no sense: their numbers, conflicts of no ops, an order of other steps
    bad_division,      // a kernel's name is no name and no configuration, or its parts do not make up the op's batch
    bad_time,          // a step's time is negative or no number
    wrong_prediction,  // what the plan predicts does not follow from its steps, stays, moves, tiers and times
    wrong_bound,       // its lower bound is not what the graph needs at least
    wrong_workspace,   // a step's workspace is not what its kernel asks for on the device, or there is no such kernel
    wrong_request,     // the graph or the plan is not what the file says was asked for
    edited,            // the file is not as it was saved
  } rule;
  StepIndex step = -1;
  std::string message;  // names the step, the op, the tensors, the offsets
};
std::string_view to_string(Violation::Rule rule);

// Every violation found, the earliest first; empty: the plan is safe, and what it claims is true. Claims are judged
// when it is safe. Stops after `limit`.
std::vector<Violation> verify(const Graph& graph, const Plan& plan, size_t limit = 20);
// Whether it is safe, whatever it claims.
std::vector<Violation> verify_safety(const Graph& graph, const Plan& plan, size_t limit = 20);
// Throws Error(internal) with the first violations when the plan is not safe.
void require_valid(const Graph& graph, const Plan& plan);

}  // namespace plimsoll
