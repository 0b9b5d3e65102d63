#include "train/thread_climb.h"

#include <algorithm>

#include "base/statistics.h"
#include "cores/share_cores.h"
#include "plan/simulate.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr double kRise = 0.05;        // less is within the noise of a step
constexpr double kImpossible = 1e12;  // ms
constexpr int kMostTries = 3;         // of a case

// Threads that are not pinned are nobody's neighbours: their cores all share one cache, as far as anybody can tell.
CoreShape shape_of(const DeviceInfo& device, bool pinned) {
  CoreShape shape = device.cores;
  shape.cores = std::max(device.threads, 1);
  shape.cores_a_cache = pinned ? std::min(std::max(shape.cores_a_cache, 1), shape.cores) : shape.cores;
  return shape;
}

}  // namespace

ThreadClimb::ThreadClimb(const Graph& graph, const Plan& plan, const Device& device, CostTable& costs, int interval,
                         bool pinned)
    : graph_(graph),
      plan_(plan),
      device_(device),
      costs_(costs),
      cores_(shape_of(device.info(), pinned)),
      profiling_(0, {}) {
  std::map<std::pair<std::string, std::string>, size_t> numbers;
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    const Step& step = plan.steps[s];
    if (step.kernel.empty()) continue;
    std::string signature = op_signature(graph, graph.op(step.op));
    const auto [it, fresh] = numbers.try_emplace({signature, step.kernel}, kinds_.size());
    if (fresh) kinds_.push_back({std::move(signature), step.kernel, {}});
    kinds_[it->second].steps.push_back(s);
  }
  const ClimbOptions options{.interval = interval, .cores = cores_, .rise = kRise};
  profiling_ = ProfilingSteps(kinds_.size(), options);
  most_steps_ = std::max(1, 2 * cores_.cores / std::max(interval, 1));
  tries_ = std::clamp(most_steps_ / std::max(HillClimb(options).most_tries(), 1), 1, kMostTries);
  skip_known();
}

// All threads are those of any step; one thread has no neighbour.
CostKey ThreadClimb::key(const Kind& kind, ThreadCase at) const {
  const bool all = at.threads >= cores_.cores;
  const bool spread = !all && at.threads > 1 && at.affinity == Affinity::spread && cores_.cores_a_cache > 1;
  return {kind.signature, kind.kernel, all ? 0 : at.threads, spread};
}

std::optional<double> ThreadClimb::known(const Kind& kind, ThreadCase at) const {
  if (const auto cost = costs_.find_in_step(key(kind, at))) return cost->time_ms;
  if (at.threads >= cores_.cores) return std::nullopt;
  const bool can_run = std::all_of(kind.steps.begin(), kind.steps.end(),
                                   [&](size_t s) { return fits(graph_, device_, plan_.steps[s], at.threads); });
  return can_run ? std::nullopt : std::optional(kImpossible);
}

void ThreadClimb::skip_known() {
  open_kinds_ = 0;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    profiling_.skip(k, [&](ThreadCase at) {
      const std::optional<double> ms = known(kinds_[k], at);
      open_kinds_ += !ms;
      return ms;
    });
  }
}

Plan ThreadClimb::next_plan() {
  now_ = profiling_.next();
  Plan plan = plan_;
  plan.cores = {.cores = cores_.cores, .cores_a_cache = device_.info().cores.cores_a_cache};
  for (size_t k = 0; k < kinds_.size(); ++k) {
    const CostKey what = key(kinds_[k], now_[k]);
    for (size_t s : kinds_[k].steps) {
      plan.steps[s].threads = what.threads;
      plan.steps[s].affinity = what.spread ? Affinity::spread : Affinity::close;
    }
  }
  take_times(graph_, plan, costs_);
  return plan;
}

bool ThreadClimb::record(std::span<const double> step_ms, bool busy) {
  ++steps_;
  std::vector<double> times(kinds_.size());
  for (size_t k = 0; k < kinds_.size(); ++k) {
    std::vector<double> all;
    for (size_t s : kinds_[k].steps) all.push_back(step_ms[s]);
    const double usual = median(std::move(all));
    double& best = kinds_[k].best_ms;
    best = tried_ == 0 ? usual : std::min(best, usual);
    times[k] = best;
  }
  if (++tried_ < tries_) return false;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    const CostKey what = key(kinds_[k], now_[k]);
    if (costs_.find_in_step(what)) continue;  // its climb is over
    costs_.put(what, {.source = Cost::Source::in_step, .time_ms = times[k], .runs = tried_, .busy = busy});
  }
  tried_ = 0;
  skip_known();
  return true;
}

}  // namespace plimsoll
