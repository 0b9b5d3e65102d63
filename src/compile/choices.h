// The ways to choose kernels for one network, and what comes of going through them: smaller workspaces leave room for tensors.
//
//   limits     no op has more than so much workspace                 (WR)
//   prices     a byte of workspace costs so many ms, for every op    (WD by its Lagrangian: one total for all of them)
#pragma once

#include <string>
#include <vector>

#include "compile/attempt.h"
#include "plimsoll/compile.h"

namespace plimsoll {

inline constexpr int32_t kFewOps = 500;  // in whose plans the kernels are worth another look

inline bool is_free_of_charge(const Attempt& a) {
  return a.feasible() && a.plan().moves.empty() && a.plan().predicted.recompute_steps == 0;
}

// Whether the kernels are much of what makes a plan slow: smaller ones leave room, and where there is room the faster ones come back.
bool waits_long(const Attempt& a);

// The ways to choose kernels, each once, that by which they take the least time together first: mostly the one without a
// limit, but what is chosen op by op is not always the best of all.
std::vector<Choice> choices_of(Flow& flow, const Choice& first, const CompileOptions& options, bool many);

// Goes through the choices behind the first, which gave `best`, some at a time, as long as they make it better. Returns which
// gave it in the end.
size_t try_choices(Attempt& best, const std::vector<Choice>& choices, Flow& flow, const CompileOptions& options,
                   bool divide);

// Where `best` takes much longer than the fastest kernels would: kernels with less workspace, by rows of limits and of prices. Both
// are those of kernels for the layouts of `first`.
void try_smaller(Attempt& best, const Choice& first, Flow& flow, const std::string& policy);

// Steps get faster kernels where the plan has left them room.
void upgrade(Attempt& best, Flow& flow, bool divide, const std::string& policy);

// With the same kernels auto is as fast as any other policy. But another's plan leaves room at other steps, for other
// kernels: what comes of each is judged beside `best`.
void upgrade_others(Attempt& best, Flow& flow, const std::vector<Choice>& choices);

}  // namespace plimsoll
