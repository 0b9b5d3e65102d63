// The least memory with which there is a plan.
#pragma once

#include <optional>

#include "compile/attempt.h"

namespace plimsoll {

// The least memory: found by costs that no clock has told, so that it is the same on every run.
struct Least {
  std::optional<Attempt> attempt;  // its plan needs no more; nothing: there is none, whatever the memory
  Infeasible why;                  // for who has less
};

// Over all choices of kernels with the least workspace; no further than to what is enough.
Least find_least(const Network& network, const Device& device, const CostTable& costs, const CompileOptions& options,
                 Bytes enough);
// With these layouts and kernels.
Least find_least(const LaidOut& laid, const Device& device, const CostTable& costs, const CompileOptions& options,
                 Bytes enough);
// Less than is known, by searches for budgets below it and above the bound, which take longer: where somebody is to be told how
// much would do. With many ops, what is known.
Least find_less(Least known, const LaidOut& laid, const Device& device, const CostTable& costs,
                const CompileOptions& options, Bytes lower_bound, Bytes enough);

}  // namespace plimsoll
