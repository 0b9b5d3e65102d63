// From a network to a verified plan in one call. `train`, `plan` and callers of the C++ API go through here.
//
//   Network ──fusion, autodiff──> training step ──kernels, layouts──> route ──policy──> Plan ──checks──> Program
//
// "No plan fits" is an answer, not an error: Infeasible says what is missing (plan.h).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "plimsoll/autodiff.h"
#include "plimsoll/plan.h"

namespace plimsoll {

// Options of the passes that rewrite the forward network before autodiff.
struct FusionOptions {
  std::vector<std::string> off;  // names of passes to leave out
  // Fully connected layers whose weights have more bytes than this are split into blocks of rows of at most
  // `block_bytes` (but at least 16 rows), so that no step needs the whole of weights, gradient and optimizer state. Both
  // count as a quarter of the largest parameter that stays whole, where that is more: it needs as much by itself. Do
  // not choose these by the budget: blocks round sums differently, and the budget must not change the result.
  Bytes split_above = 48_MiB;
  Bytes block_bytes = 32_MiB;
};
// Without what the device has no kernels for: compiling applies it.
FusionOptions fusion_on(const Device& device, FusionOptions options);
// What a pass did.
struct PassReport {
  std::string name;
  int rewrites = 0;
  double time_ms = 0;
};

struct CompileOptions {
  Bytes memory{INT64_MAX};  // the arena's budget
  std::string policy = "auto";
  std::string placement = "offline";
  std::vector<TierInfo> tiers;      // what the plan may use behind the arena; empty: the device's own
  std::vector<int8_t> state_homes;  // as in PolicyInput
  OptimizerOptions optimizer;
  bool exact = false;                    // kernels by rule, the same whatever the budget and the measured times
  Bytes workspace{INT64_MAX};            // the most that one op may use beside its tensors
  std::optional<Bytes> workspace_total;  // the most that those of all convolutions and fully connected layers add up to
  // Sizes of the parts that a batch may be divided into, where dividing is predicted to be faster or saves workspace.
  // Absent: powers of two whose costs are measured. When given, costs that are not measured are estimated.
  std::optional<BatchSizes> batch_sizes;
  // Of a device that is fed over a link: its rates, and whether batches may have a second buffer, which whoever feeds the
  // step must fill (TrainingStep::feed_next). `memory` is of both. Absent: batches are where the step finds them.
  std::optional<Feeding> feeding;
  bool feeds_every_input = false;  // whoever feeds the step, not only data and labels
  std::optional<LayoutFamily> family;
  std::map<std::string, std::string, std::less<>> kernels;   // by op name: repeat these choices
  std::map<std::string, Layout, std::less<>> state_layouts;  // pinned layouts of states, by name
  FusionOptions fusion;
  // Of several ranks: so many bytes of gradients may be on their way while compute goes on, before the first of them is
  // waited for. Absent: what makes the step shortest.
  std::optional<Bytes> in_flight;
  // Of several ranks: the stage of ZeRO (Sharding), with all parameters divided. Absent: what costs least of those that
  // fit. optimizer.sharding is what comes of it.
  std::optional<int> zero;
  int64_t run_effort = 4'000'000;  // of auto's search over what runs again, in things looked at
  double search_effort = 1;        // times as much for that search and for Program::bound_ms; more is never worse
  bool gather_updates = false;     // small updates wait for each other; compile_training does so where it costs nothing
  bool as_listed = false;          // ops run in the order in which the graph lists them
  bool first_that_fits = false;    // whether there is a plan is the question, not how fast it is
  bool name_least = true;  // in Infeasible::minimum; false: it may be a bound that nothing below can do, and no search
  bool name_minimum = false;  // in Program::minimum; takes a search of its own where everything would fit
};

// A plan that was verified and simulated for its graph, and that nobody can change any more. Who wants another plan
// changes a copy (`Plan plan = *checked`) and has it checked. Copies share the plan: it lies at one address for as long
// as one of them lives.
class CheckedPlan {
 public:
  CheckedPlan() = default;  // of no steps, for the graph without ops
  const Plan& operator*() const { return plan_ ? *plan_ : none(); }
  const Plan* operator->() const { return &**this; }
  operator const Plan&() const { return **this; }

 private:
  friend CheckedPlan check_plan(const Graph& graph, Plan plan);
  explicit CheckedPlan(Plan plan) : plan_(std::make_shared<const Plan>(std::move(plan))) {}
  static const Plan& none();
  std::shared_ptr<const Plan> plan_;
};

// The one way to such a plan. Predicts peak, time and traffic from the plan alone, then verifies all of it. Throws
// Error(internal) with the first violations when the plan is not safe.
CheckedPlan check_plan(const Graph& graph, Plan plan);

// What a network was compiled to: the graph of one step, the kernel of each op, and the plan by which an executor runs
// them.
struct Program {
  Network network;                    // of the training step: fused, with its gradients and updates, laid out
  std::vector<KernelChoice> kernels;  // by op index
  LayoutFamily family = LayoutFamily::plain;
  std::string policy;  // that was asked for; plan->policy made the plan: auto takes whatever is best
  CheckedPlan plan;
  Sharding sharding;             // how states are divided among the ranks
  Bytes lower_bound;             // no plan needs less (least_bytes)
  std::optional<Bytes> minimum;  // the least memory with which there is a plan, as options.name_minimum asks
  // No plan of these steps in this order, by these kernels and within this budget (less a second buffer for the batch) and
  // these tiers, takes less: what runs again, and what is copied, is counted (plan/remat/time_bound.h).
  double bound_ms = 0;
  // By which it is compared with programs of other kernels: its step with every kernel in the time that it takes alone,
  // since only kernels that were chosen before have times inside a step (CostTable).
  double compared_ms = 0;
  Bytes baseline_peak;  // what the baseline policy needs for the same graph
  std::vector<PassReport> passes;
};

// Whether there is a plan, and the least memory with which there is one, follows from network, device and options alone:
// not from `costs`, which a clock has told. Both come from one search, with the kernels that need the least workspace
// (with options.exact or options.kernels, with those) and costs that are the same on every run. Within that, `costs`
// choose the fastest.
//
// The program of a training step of `network`, which is a forward network. Where the workspaces of the fastest kernels
// do not fit the budget, kernels with less workspace are tried, down to none. Steps that then have bytes left get
// faster kernels again.
std::variant<Program, Infeasible> compile_training(const Network& network, const Device& device, const CostTable& costs,
                                                   const CompileOptions& options);
// A training step whose layouts and kernels stand: `kernels` by op index, empty names for views. Nothing is rewritten.
std::variant<Program, Infeasible> compile_graph(Graph graph, std::vector<KernelChoice> kernels, const Device& device,
                                                const CostTable& costs, const CompileOptions& options);
// The program of an evaluation: the forward pass alone. The states of `training` keep their offsets, so both share an
// arena.
std::variant<Program, Infeasible> compile_evaluation(const Network& network, const Program& training,
                                                     const Device& device, const CostTable& costs,
                                                     const CompileOptions& options, Bytes arena = {});

// The program of a training step of the same network for batches of another shape; `network` is its forward pass there.
// The states of `training` keep their places, so both run in one memory, by turns. options.memory is the arena's;
// options.kernels are those of this shape.
std::variant<Program, Infeasible> compile_shape(const Network& network, const Program& training, const Device& device,
                                                const CostTable& costs, const CompileOptions& options);

// The program of a forward pass alone, for a classifier that was trained: `network` is built with
// ModelInput::training false. Outputs are the loss, the number of right answers, and the scores (logits_of). What fits,
// and the least memory, follow from network, device and options as for a training step.
std::variant<Program, Infeasible> compile_inference(const Network& network, const Device& device,
                                                    const CostTable& costs, const CompileOptions& options);

}  // namespace plimsoll
