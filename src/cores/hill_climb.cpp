#include <algorithm>
#include <cmath>

#include "cores/strategies.h"

namespace plimsoll {

HillClimb::HillClimb(const ClimbOptions& options) : options_(options) {
  const int most = std::max(options_.cores.cores, 1), interval = std::max(options_.interval, 1);
  const bool grouped = options_.cores.cores_a_cache > 1;
  std::vector<int> counts;
  for (int count = 1; count <= most; count += interval) counts.push_back(count);
  if (counts.back() != most) counts.push_back(most);
  for (int count : counts) {
    if (count == 1 || count <= options_.cores.caches()) cases_.push_back({count, Affinity::spread});
    if (count > 1 && grouped) cases_.push_back({count, Affinity::close});
  }
}

std::optional<ThreadCase> HillClimb::next() const {
  return at_ < cases_.size() ? std::optional(cases_[at_]) : std::nullopt;
}

void HillClimb::record(double ms) {
  const ThreadCase now = cases_[at_];
  curve_.put(now, ms);
  ++tries_;
  auto step = [&](Affinity affinity) {
    over_[affinity] = last_ms_[affinity] >= 0 && ms > last_ms_[affinity] * (1 + options_.rise);
    last_ms_[affinity] = ms;
  };
  if (now.affinity == Affinity::spread || now.threads == 1) step(Affinity::spread);
  if (now.affinity == Affinity::close || now.threads == 1) step(Affinity::close);
  advance();
}

void HillClimb::advance() {
  do {
    ++at_;
  } while (at_ < cases_.size() && over_[cases_[at_].affinity]);
}

void ProfilingSteps::skip(size_t op, const std::function<std::optional<double>(ThreadCase)>& known) {
  HillClimb& climb = climbs_[op];
  while (const auto next = climb.next()) {
    const std::optional<double> ms = known(*next);
    if (!ms) return;
    climb.record(*ms);
  }
}

bool ProfilingSteps::done() const {
  return std::all_of(climbs_.begin(), climbs_.end(), [](const HillClimb& climb) { return !climb.next(); });
}

std::vector<ThreadCase> ProfilingSteps::next() const {
  std::vector<ThreadCase> cases;
  cases.reserve(climbs_.size());
  for (const HillClimb& climb : climbs_) {
    const auto next = climb.next();
    cases.push_back(next ? *next : climb.curve().best());
  }
  return cases;
}

void ProfilingSteps::record(std::span<const double> ms) {
  for (size_t i = 0; i < climbs_.size(); ++i) {
    if (climbs_[i].next()) climbs_[i].record(ms[i]);
  }
  ++steps_;
}

double interpolation_accuracy(const ThreadCurve& curve, const std::function<double(int threads)>& actual, int most) {
  double sum = 0;
  int count = 0;
  for (int threads = 1; threads <= most; ++threads) {
    if (curve.has(threads)) continue;
    const double truth = actual(threads);
    sum += 1 - std::abs(curve.time_ms(threads) - truth) / truth;
    ++count;
  }
  return count > 0 ? sum / count : 1;
}

}  // namespace plimsoll
