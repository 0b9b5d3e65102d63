// A saved plan: what was asked for, the graph of the step with its layouts, and the plan, in one JSON file, so that it
// can be verified and run without what made it. A fingerprint covers all of it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "plimsoll/compile.h"
#include "plimsoll/models.h"

namespace plimsoll {

// What `plan` was asked for, as far as it shapes the graph and the plan.
struct PlanRequest {
  std::string model;
  ModelInput input;
  OptimizerOptions optimizer;
  bool exact = false;
  bool paper_layers = false;  // the papers' layer graph, which never runs
  Bytes memory{INT64_MAX};    // the arena's budget
  // Of the tiers, where they were given.
  std::optional<Bytes> host_memory, spill_size, peer_size, remote_memory;
  int threads = 0;                 // 0: all
  int inter_op = 1, intra_op = 0;  // as in TrainOptions
};

struct SavedPlan {
  PlanRequest request;
  LayoutFamily family = LayoutFamily::plain;
  Graph graph;
  Plan plan;
  bool edited = false;  // the file's fingerprint is not that of its text
};

std::string to_json(const PlanRequest& request, const Program& program);
// Throws Error(corrupt_file) with the place and what was expected.
SavedPlan saved_plan_from_json(std::string_view text);

void save_plan(const std::filesystem::path& path, const PlanRequest& request, const Program& program);
// Throws Error(invalid_input) when it cannot be read, Error(corrupt_file) with the place when it is not a plan.
SavedPlan load_plan(const std::filesystem::path& path);

}  // namespace plimsoll
