// What people and programs are told about a plan: a few lines of text, a JSON object, a timeline that Perfetto opens.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plimsoll/compile.h"
#include "plimsoll/execute.h"
#include "plimsoll/plan.h"
#include "report/reason.h"

namespace plimsoll {

// Bytes by what they are for, in one step: parameters, gradients, activations, ..., workspace. Largest first.
struct MemoryShare {
  std::string what;
  Bytes bytes;
};
std::vector<MemoryShare> memory_by_role(const Graph& graph, const Plan& plan, StepIndex step);

// How the cores are shared: "2 steps at once on 2 cores, ops with 1 to 2 threads, 3 pairs never meet"; empty: one step
// after another, each with all threads.
std::string cores_text(const Plan& plan);

// How many token ids a sample is; 0: it is an image, or something else.
int64_t tokens_of_sample(const Network& network);

// "budget 24 MiB, peak 18.2 MiB at ...", what holds the peak, what baseline would need, the predicted time. `batch` is
// for images or tokens per second; 0 leaves them out.
std::string plan_text(const Program& program, int64_t batch);

// What lies in the arena at a step, as people count it: the slices of a split tensor are one row, updated or not, and a
// workspace says whose it is and for which kernel. Largest first.
struct LiveRow {
  std::string name;                // "fc6.weight", of a workspace "of conv1/forward, kernel jit:avx512_core"
  std::string shape;               // "64x3x7x7"; of one slice where there are several; "" for a workspace
  Bytes bytes;                     // of all slices
  std::vector<const Stay*> stays;  // one, or the slices in order of their offsets
};
std::vector<LiveRow> live_rows(const Graph& graph, const Plan& plan, StepIndex step);

// Every tensor alive at the peak, largest first, at most `most` rows of live_rows.
std::string peak_tensors_text(const Graph& graph, const Plan& plan, size_t most);

// The sentences of a PlanReason, as lines below those of plan_text.
std::string reason_text(const PlanReason& reason);

// What recomputations, and waiting for copies, add to the time of all ops once.
double extra_time_percent(const Plan& plan);
// No plan adds less: of Program::bound_ms.
double bound_percent(const Program& program);

// The fields that `plan --json` promises. `minimum` is the least budget of this policy; the reason is told from the
// plan alone where none is given.
nlohmann::json plan_json(const Program& program, std::optional<Bytes> minimum,
                         const std::optional<PlanReason>& reason = {});
nlohmann::json infeasible_json(const Infeasible& infeasible);

// A timeline in Chrome's trace format, one thread an engine, plus a counter of live bytes: predicted where `records` is
// empty, else measured beside it.
std::string trace_json(const Graph& graph, const Plan& plan, std::span<const StepRecord> records,
                       std::span<const StepRecord> copies = {}, std::span<const StepRecord> messages = {});

}  // namespace plimsoll
