// Why a plan is as it is, in a sentence or two: what keeping every tensor would need, what the plan does instead and what
// that costs, and what more memory would buy. Told from the plan and from others of the same network.
#pragma once

#include <optional>
#include <string>

#include "plimsoll/compile.h"

namespace plimsoll {

// The same training step, planned with other memory. What is null was not planned.
struct OtherPlans {
  const Program* keeping = nullptr;  // without a limit, by a policy that keeps every tensor: liveness
  const Program* more = nullptr;     // with a tenth more than the budget
};

struct PlanReason {
  std::string why;
  std::string more;  // empty: not planned
  // What those sentences are about: arena and step time of the plan that keeps everything, budget and step time of the
  // one with more memory.
  std::optional<Bytes> keeping_bytes, more_bytes;
  std::optional<double> keeping_ms, more_ms;
};

PlanReason reason_of(const Program& program, const OtherPlans& others = {});

// Whether a plan recomputes nothing, copies nothing, and has no home outside the arena.
bool keeps_everything(const Plan& plan);

// The budget and a tenth of it.
Bytes a_tenth_more(Bytes budget);

}  // namespace plimsoll
