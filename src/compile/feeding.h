// Whether a batch has a second buffer in the plan, where a device is fed over a link (Plan::feeding).
#pragma once

#include <functional>
#include <variant>

#include "plimsoll/compile.h"

namespace plimsoll {

// What `compile` makes with these options, or with less memory and a second buffer beside it, whichever is predicted to take
// the least from step to step. Where there is room for the buffer in what the plan leaves, that plan stays as it is.
std::variant<Program, Infeasible> compile_fed(
    const CompileOptions& options,
    const std::function<std::variant<Program, Infeasible>(const CompileOptions&)>& compile);

}  // namespace plimsoll
