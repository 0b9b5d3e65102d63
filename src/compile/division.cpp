#include "compile/division.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "compile/attempt.h"
#include "compile/search.h"
#include "passes/passes.h"
#include "plimsoll/device.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr double kUpdatesThatCount = 0.002;  // of a step

// A parameter that is gathered lies row-major, as its pieces do.
void pin_gathered(const Graph& graph, CompileOptions& options) {
  for (const Op& op : graph.ops()) {
    if (op.type->name == "AllGatherParameter") options.state_layouts[graph.tensor(op.inputs[0]).name] = {};
  }
}

// With options.exact, by the kernels of the step that divides nothing: a parameter that lies row-major would suit others,
// which round otherwise.
void keep_kernels_of_whole(const Network& network, const Device& device, const CostTable& costs,
                           CompileOptions& options) {
  if (!options.exact || options.optimizer.sharding.stage == 0 || !options.kernels.empty()) return;
  CompileOptions undivided = options;
  undivided.optimizer.sharding = {};
  const Network training = make_training_step(network, undivided.optimizer, fusion_on(device, undivided.fusion));
  Flow flow(training, device, costs, undivided);
  const LaidOut* const laid = flow.lay_out({.family = options.family, .limit = {INT64_MAX}, .divide = true});
  if (laid == nullptr) return;  // nor are there any for the divided one
  options.family = laid->layouts.family;
  for (const Op& op : training.graph.ops())
    options.kernels[op.name] = laid->layouts.kernels[laid->graph.find_op(op.name).index].kernel;
}

// A network whose states are divided as options.optimizer says, and what is known of its plans before one is made.
struct Divided {
  Network training;
  std::vector<PassReport> passes;
  CompileOptions options;
  Bytes lower_bound;
  double link_ms = 0;  // no step takes less: one message after the other
  int stage() const { return options.optimizer.sharding.stage; }
};

// What its collectives take where all of one type go as one.
double link_ms(const Graph& graph, const LinkInfo& link) {
  std::map<const OpType*, std::vector<OpId>> collectives;
  for (OpId op{0}; op.index < graph.op_count(); ++op.index) {
    if (graph.op(op).type->is_collective) collectives[graph.op(op).type].push_back(op);
  }
  double ms = 0;
  for (const auto& [type, ops] : collectives) ms += collective_ms(link, graph, ops);
  return ms;
}

Divided divide_as_asked(const Network& network, const Device& device, const CostTable& costs, CompileOptions options) {
  options.optimizer.sharding.whole_sums = options.exact;
  Divided divided;
  divided.training = make_training_step(network, options.optimizer, fusion_on(device, options.fusion), &divided.passes);
  keep_kernels_of_whole(network, device, costs, options);
  pin_gathered(divided.training.graph, options);
  divided.lower_bound = least_arena(divided.training.graph, device, options);
  divided.link_ms = link_ms(divided.training.graph, device.info().link);
  divided.options = std::move(options);
  return divided;
}

std::variant<Program, Infeasible> compile_divided(Divided divided, const Device& device, const CostTable& costs,
                                                  const Stopwatch& watch) {
  auto result =
      compile_rewritten(std::move(divided.training), divided.lower_bound, device, costs, divided.options, watch);
  if (auto* program = std::get_if<Program>(&result)) {
    program->passes = std::move(divided.passes);
    program->sharding = divided.options.optimizer.sharding;
  }
  return result;
}

// Ways to divide what belongs to parameters, the least divided first: in each stage the largest parameters, of which so
// many have that share of all bytes, and then all of them.
std::vector<Sharding> ways_to_divide(const Network& network, const OptimizerOptions& optimizer) {
  if (updates_whole_parameters(optimizer)) return {};
  std::vector<Bytes> sizes;
  Bytes all;
  for (const State& state : network.graph.states) {
    const Tensor& t = network.graph.tensor(state.before);
    if (t.role != Role::parameter || !is_divided(t.shape, {.stage = 1}, optimizer.ranks)) continue;
    sizes.push_back(t.bytes());
    all += t.bytes();
  }
  std::ranges::sort(sizes, std::greater());
  std::vector<Bytes> least;
  for (const int64_t share : {2, 1}) {
    Bytes sum;
    for (const Bytes size : sizes) {
      sum += size;
      if (sum.count < all.count / share) continue;
      if (least.empty() || size < least.back()) least.push_back(size);
      break;
    }
  }
  std::vector<Sharding> ways;
  for (int stage = 1; stage <= kMostShardingStage; ++stage) {
    if (stage == 2 && optimizer.accumulate < 2) continue;  // nothing that stage 1 does not divide
    for (const Bytes bytes : least) ways.push_back({.stage = stage, .least = bytes});
  }
  return ways;
}

// Ways to divide states, compiled as far as they may be of use: the fastest of those that fit, or, where none does, the
// one that needs least.
class Division {
 public:
  Division(const Device& device, const CostTable& costs, const CompileOptions& options)
      : device_(device), costs_(costs), options_(options) {}

  void add(Divided way) {
    lower_bound_ = ways_ == 0 ? way.lower_bound : std::min(lower_bound_, way.lower_bound);
    (way.lower_bound > options_.memory ? unfit_ : fit_).emplace_back(ways_++, std::move(way));
  }

  // Of what was added, those that may be fastest or need least. `stage`: no higher one is faster than what was found.
  void compile(int stage = kMostShardingStage) {
    // The fewest messages first: those that take longer than a step that was found are not planned.
    std::ranges::stable_sort(fit_, {}, [](const auto& way) { return way.second.link_ms; });
    for (auto& [number, way] : fit_) {
      const auto* const best = best_ ? std::get_if<Program>(&*best_) : nullptr;
      if (best != nullptr && (way.stage() > stage || !may_be_faster(way, best->compared_ms))) {
        unfit_.emplace_back(number, std::move(way));
      } else {
        take(number, compile_divided(std::move(way), device_, costs_, watch_));
      }
    }
    fit_.clear();
    if (best_ && best_->index() == 0 && !options_.name_minimum) return unfit_.clear();
    std::ranges::stable_sort(unfit_, {}, [](const auto& way) { return way.second.lower_bound; });
    for (auto& [number, way] : unfit_) {
      if (minimum_ && way.lower_bound >= *minimum_) break;  // nor do those after it need less
      way.options.memory = {};                              // which is too little: the answer is what would do
      auto found = compile_divided(std::move(way), device_, costs_, watch_);
      std::get<Infeasible>(found).budget = options_.memory;
      take(number, std::move(found));
    }
    unfit_.clear();
  }

  // The program that fits, if nothing in it runs again or leaves the arena.
  const Program* keeping_everything() const {
    const auto* const program = best_ ? std::get_if<Program>(&*best_) : nullptr;
    const bool keeps =
        program != nullptr && program->plan->moves.empty() && program->plan->predicted.recompute_steps == 0;
    return keeps ? program : nullptr;
  }

  std::variant<Program, Infeasible> result() && {
    if (auto* program = std::get_if<Program>(&*best_)) {
      if (options_.name_minimum) program->minimum = minimum_;
      program->lower_bound = lower_bound_;
    } else {
      std::get<Infeasible>(*best_).lower_bound = lower_bound_;
    }
    return *std::move(best_);
  }

 private:
  // Than a plan that was found: by the time of messages, or by a plan with all the memory that there may be, which is found soon.
  bool may_be_faster(const Divided& way, double ms) const {
    if (way.link_ms > ms) return false;
    if (options_.memory.count == INT64_MAX) return true;
    Divided roomy = way;
    roomy.options.memory = {INT64_MAX};
    roomy.options.name_minimum = false;
    const auto free = compile_divided(std::move(roomy), device_, costs_, watch_);
    const auto* const program = std::get_if<Program>(&free);
    return program == nullptr || program->compared_ms < ms;
  }

  void take(int number, std::variant<Program, Infeasible> found) {
    const auto* const program = std::get_if<Program>(&found);
    const std::optional<Bytes> its = program != nullptr ? program->minimum : std::get<Infeasible>(found).minimum;
    if (its && (!minimum_ || *its < *minimum_)) minimum_ = its;
    if (best_ && !is_better(found, number)) return;
    best_ = std::move(found);
    number_ = number;
  }
  // Of equal ones the first.
  bool is_better(const std::variant<Program, Infeasible>& found, int number) const {
    if (found.index() != best_->index()) return found.index() == 0;
    const auto worth = [](const std::variant<Program, Infeasible>& of, int at) {
      const auto* const program = std::get_if<Program>(&of);
      return std::tuple(program != nullptr ? program->compared_ms : 0,
                        program != nullptr ? Bytes{} : std::get<Infeasible>(of).minimum, at);
    };
    return worth(found, number) < worth(*best_, number_);
  }

  const Device& device_;
  const CostTable& costs_;
  const CompileOptions& options_;
  const Stopwatch watch_;
  int ways_ = 0;
  std::vector<std::pair<int, Divided>> fit_, unfit_;  // and which of all they are; unfit_: only their least is asked
  std::optional<std::variant<Program, Infeasible>> best_;
  int number_ = 0;
  std::optional<Bytes> minimum_;
  Bytes lower_bound_;
};

// Whether the plan of all states on every rank is as fast as with all the memory that there may be. Little memory can cost
// it time although it keeps everything: by smaller kernels, or by messages that are waited for one after the other.
bool is_fastest(const Program& whole, const Network& network, const Device& device, const CostTable& costs,
                const CompileOptions& options) {
  if (options.memory.count == INT64_MAX) return true;
  CompileOptions unlimited = options;
  unlimited.memory = {INT64_MAX};
  unlimited.name_minimum = false;
  const Stopwatch watch;
  const auto free = compile_divided(divide_as_asked(network, device, costs, unlimited), device, costs, watch);
  const auto* const program = std::get_if<Program>(&free);
  return program == nullptr || whole.compared_ms <= kRounding * program->compared_ms;
}

// Whether ranks that update but a piece of each parameter (stage 1) could save what is worth another plan.
bool updates_count(const Program& whole) {
  const Graph& graph = whole.network.graph;
  if (graph.op_count() > kManyOps) return false;
  double ms = 0;
  for (const Step& step : whole.plan->steps) {
    const OpType& type = *graph.op(step.op).type;
    if (type.changes_state && !type.is_collective) ms += step.time_ms;
  }
  return ms > kUpdatesThatCount * whole.plan->predicted.step_time_ms;
}

}  // namespace

std::variant<Program, Infeasible> compile_step(const Network& network, const Device& device, const CostTable& costs,
                                               const CompileOptions& options) {
  const int ranks = options.optimizer.ranks;
  CompileOptions divided = options;
  if (options.zero && options.optimizer.sharding.stage == 0 && ranks > 1)
    divided.optimizer.sharding.stage = *options.zero;
  if (ranks < 2 || options.zero || options.optimizer.sharding.stage > 0) {
    const Stopwatch watch;
    return compile_divided(divide_as_asked(network, device, costs, divided), device, costs, watch);
  }
  Division division(device, costs, options);
  Divided whole = divide_as_asked(network, device, costs, options);
  const bool may_fit = whole.lower_bound <= options.memory;
  division.add(std::move(whole));
  if (may_fit) division.compile();
  const Program* const keeping = division.keeping_everything();
  const bool settled = keeping != nullptr && is_fastest(*keeping, network, device, costs, options);
  const int stage = settled ? (updates_count(*keeping) ? 1 : 0) : kMostShardingStage;
  if (stage > 0 || options.name_minimum) {
    for (const Sharding& way : ways_to_divide(network, options.optimizer)) {
      if (way.stage > stage && !options.name_minimum) continue;
      divided.optimizer.sharding = way;
      division.add(divide_as_asked(network, device, costs, divided));
    }
    division.compile(stage);
  }
  return std::move(division).result();
}

}  // namespace plimsoll
