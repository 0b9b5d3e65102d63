// Layouts and kernels for a network, within the limits on workspace that the user has set: none is ever exceeded.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "kernels/layout_search.h"
#include "plimsoll/compile.h"

namespace plimsoll {

struct LaidOut {
  Graph graph;
  LayoutResult layouts;
};

// A way to choose kernels.
struct Choice {
  std::optional<LayoutFamily> family;
  Bytes limit{INT64_MAX};  // on the workspace of an op: kernels above it are taken only where no other can run it
  bool divide = true;      // the batch, where that is faster
  // What a byte of workspace costs: each op has the kernel whose time and workspace cost least together. Not with a total.
  double ms_of_byte = 0;
  friend bool operator==(const Choice&, const Choice&) = default;
};

// What the device offers is asked once for all choices.
class KernelSelection {
 public:
  // Kernels that the options pin are repeated, whatever their workspaces.
  KernelSelection(const Network& network, const Device& device, const CostTable& costs, const CompileOptions& options);

  // Every op within --workspace, all convolutions and fully connected layers together within --workspace-total. Nothing
  // where no family of layouts keeps them.
  std::optional<LaidOut> choose(const Choice& choice);
  // The prices of a byte, in ms, from which on another kernel is worth it for some op, ascending.
  std::vector<double> prices(const LaidOut& laid, const Choice& choice);
  // The workspaces below the largest that kernels may have of which nothing is both faster and smaller, descending.
  std::vector<Bytes> workspaces(const LaidOut& laid, const Choice& choice);
  // The same layouts with the fastest kernels within room(op), and within --workspace; nothing where it has those
  // already.
  std::optional<LaidOut> upgrade(const LaidOut& laid, bool divide, const std::function<Bytes(OpId)>& room);
  // Which limit is too low, the least that would do, and the ops that need it; for who got nothing.
  Infeasible over_limit(bool divide);

 private:
  LaidOut lay_out(const Choice& choice, Bytes asked);
  bool keep_limits(LaidOut& laid, const Choice& choice);
  std::vector<LaidOut> smallest(bool divide);

  const Network& network_;
  const Device& device_;
  const CostTable fixed_costs_;  // --exact: nothing measured
  const CostTable& costs_;
  const CompileOptions& options_;
  Bytes each_;
  std::optional<Bytes> total_;
  KernelCandidates candidates_;
};

}  // namespace plimsoll
