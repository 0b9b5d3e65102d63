// One way down the flow for one network: layouts and kernels, then a plan.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>

#include "kernels/selection.h"
#include "plan/policy.h"

namespace plimsoll {

struct Attempt {
  Graph graph;
  LayoutResult layouts;
  PlanOrInfeasible result;
  double alone_more_ms = 0;  // what all steps once take more by the times of kernels alone than by those of the plan
  std::optional<double> bound_ms = {};  // no plan of these steps in this order takes less, where that was asked for
  bool feasible() const { return std::holds_alternative<Plan>(result); }
  bool has_kernels() const {
    return feasible() || std::get<Infeasible>(result).flag.empty();
  }  // within the limits on workspace
  const Plan& plan() const { return std::get<Plan>(result); }
  // By which it is compared with others. Only kernels that were chosen before have times inside a step: by these, what is
  // found would depend on what was chosen first (docs/decisions/0002).
  double ms() const { return plan().predicted.step_time_ms + alone_more_ms; }
};

// The same for layouts and kernels that are the same: those of several families may be.
std::string identity(const LaidOut& laid);

// By whom a plan is wanted, and of what use it is.
struct Wanted {
  std::string policy;
  bool explain = false;
  double faster_than_ms = kAnyTime;  // by Attempt::ms()
  double enough_ms = 0;              // as in PolicyInput
  bool least_memory = false;
  Bytes less_than{INT64_MAX};  // with least_memory
  bool only_to_fit = false;    // as in PolicyInput
  bool unplaced = false;
  std::shared_ptr<const ValueTimeline> timeline = {};  // of the layouts, where it is known
  std::function<std::shared_ptr<const Descents>()> descents = {};
  const Plan* start = nullptr;  // as in PolicyInput
};

Attempt make_attempt(LaidOut laid, const Device& device, const CostTable& costs, const CompileOptions& options,
                     const Wanted& wanted);

// By the same kernels, the steps in an order with a lower peak, where the usual one's is above `budget`: nothing where none is
// found, or where the policy takes steps as they come.
std::optional<Attempt> reordered(const Attempt& attempt, Bytes budget, const Device& device, const CostTable& costs,
                                 const CompileOptions& options, Wanted wanted);

// Of few steps, and without tiers: in the order in which the least runs again, if the step may be faster than wanted by it. `bound_ms`:
// where it is known, what no plan takes less than, in any order. With so much of the usual effort.
std::optional<Attempt> in_fastest_order(const Attempt& attempt, Bytes budget, const Device& device,
                                        const CostTable& costs, const CompileOptions& options, Wanted wanted,
                                        double effort = 1, double* bound_ms = nullptr);

// The same steps in the same order, planned anew: of use where it becomes faster.
Attempt again(const Attempt& attempt, const Device& device, const CostTable& costs, const CompileOptions& options);

// The same with updates of large states spread over so much of the rest of the step; nothing where that is the usual order.
std::optional<Attempt> postponed(const Attempt& attempt, const Device& device, const CostTable& costs,
                                 const CompileOptions& options, Wanted wanted, double share);

// The offsets of the plan that is taken of many that were made `only_to_fit`.
void place_again(Attempt& attempt, const Device& device, const CostTable& costs, const CompileOptions& options);

// No plan by these kernels needs less, in any order of the steps that the policy may take.
Bytes least_live_of(const LaidOut& laid, const Device& device, const CostTable& costs, const CompileOptions& options);

// The same, exactly but for what lies between offsets. Nothing where there are many steps, or tiers.
std::optional<Bytes> least_live_exactly(const LaidOut& laid, const Device& device, const CostTable& costs,
                                        const CompileOptions& options);

// Of live bytes, in the usual order, where nothing goes before its last use.
Bytes peak_of_all(const LaidOut& laid, const Device& device, const CostTable& costs, const CompileOptions& options);

// No plan of the attempt's steps within the budget takes less. `effort`: things looked at.
double bound_of(const Attempt& attempt, const Device& device, const CostTable& costs, const CompileOptions& options,
                int64_t effort);

// What was planned by other costs, in the time that it takes by these.
void predict_by(Attempt& attempt, const CostTable& costs);

bool is_better(const Attempt& a, const Attempt& than);

// What all collectives of a step give.
Bytes bytes_sent(const Graph& graph);

// Ways down the flow for one network: layouts and kernels, then a plan. Several threads may go them at once.
class Flow {
 public:
  Flow(const Network& network, const Device& device, const CostTable& costs, const CompileOptions& options)
      : device_(device), costs_(costs), options_(options), selection_(network, device, costs, options) {}

  // What auto will be asked for, all of them divided or none. Of those with the same graph the first and the last are gone
  // down from, when that is wanted first, and what is found serves all: they differ in kernels only, mostly in a few
  // workspaces.
  void announce(const std::vector<Choice>& choices);

  // Of use only where its ms() is less than `faster_than_ms`.
  Attempt attempt(const Choice& choice, bool explain = false, double faster_than_ms = kAnyTime);
  Attempt over_limit(bool divide);

  // The layouts of a choice; null where none are within the limits on workspace.
  const LaidOut* lay_out(const Choice& choice);

  bool copies_beside_compute() const;

  // As KernelSelection has them, in the layouts of a choice that has some.
  std::vector<double> prices(const Choice& choice);
  std::vector<Bytes> workspaces(const Choice& choice);

  // Whether any choice that was laid out divides a batch.
  bool has_divided();

  // No step by the kernels of a choice takes less, whatever room there is for faster ones in the same layouts.
  double least_ms(const Choice& choice);
  // That, and as much waiting for other ranks a byte that is sent as in the step of `known`, which takes `known_ms`.
  double likely_ms(const Choice& choice, const Choice& known, double known_ms);
  // What the fastest kernels take less than those of the choice.
  double gain(const Choice& choice) { return gain_of_fastest(choice, *lay_out(choice)); }

  // The same layouts with the fastest kernels for which there is room in the plan that was found, if that makes it
  // faster; nothing where they are those.
  std::optional<Attempt> upgraded(const Attempt& attempt, bool divide, const std::string& policy);

  // What another policy makes of the choice, if faster kernels in its plan's free bytes could bring it below `ms`: at
  // best each step runs by the fastest kernel, those that run again too.
  Attempt attempt_by(const std::string& policy, const Choice& choice, double ms);

 private:
  Attempt make(LaidOut laid, Wanted wanted);
  double least_ms_when_upgraded(const Attempt& attempt, bool divide);
  double gain_of_fastest(const Choice& choice, const LaidOut& laid);
  std::shared_ptr<const ValueTimeline> timeline_of(const Choice& choice, const LaidOut& laid);
  std::optional<LaidOut> upgrade(const LaidOut& laid, bool divide, const std::function<Bytes(OpId)>& room);
  struct SharedDescents {
    std::vector<Choice> of;
    std::mutex mutex;
    std::shared_ptr<const Descents> found;
  };
  // Gives those of the announced choices with this graph; empty where there are none.
  std::function<std::shared_ptr<const Descents>()> descents_for(const Graph& graph, bool divide);
  std::shared_ptr<const Descents> find(SharedDescents& shared);

  const Device& device_;
  const CostTable& costs_;
  const CompileOptions& options_;
  std::mutex mutex_;  // of what follows
  KernelSelection selection_;
  using Key = std::tuple<std::optional<LayoutFamily>, Bytes, bool, double>;
  static Key key_of(const Choice& choice) { return {choice.family, choice.limit, choice.divide, choice.ms_of_byte}; }
  std::map<Key, std::optional<LaidOut>> laid_out_;  // by choice
  std::map<Key, std::shared_ptr<const ValueTimeline>> timelines_;
  std::map<Key, double> gains_;  // by choice: ms that the fastest kernels take less
  // By the fingerprint of the graph, and whether its batch may be divided.
  std::map<std::pair<uint64_t, bool>, SharedDescents> descents_;
};

inline constexpr double kRounding = 1 + 1e-9;  // of times that are equal
inline constexpr int32_t kManyOps = 5000;  // for such a graph, the first plan that fits is taken: each takes seconds

}  // namespace plimsoll
