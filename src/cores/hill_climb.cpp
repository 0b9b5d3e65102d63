#include <algorithm>
#include <cmath>

#include "cores/strategies.h"

namespace plimsoll {
namespace {

using Points = std::vector<std::pair<int, double>>;

double interpolate(const Points& points, int threads) {
  const auto right = std::lower_bound(points.begin(), points.end(), threads,
                                      [](const auto& point, int count) { return point.first < count; });
  if (right != points.end() && (right->first == threads || right == points.begin())) return right->second;
  if (points.size() == 1) return points[0].second;
  const bool beyond = right == points.end();
  const auto& [p0, t0] = beyond ? points[points.size() - 2] : *(right - 1);
  const auto& [p1, t1] = beyond ? points.back() : *right;
  const double at = static_cast<double>(threads - p0) / static_cast<double>(p1 - p0);
  const double ms = t0 + at * (t1 - t0);
  if (!beyond) return ms;
  double best = t1;
  for (const auto& [p, t] : points) best = std::min(best, t);
  return std::max(ms, best);
}

// Of equal times the one with the fewest threads, since points are in order of threads.
std::pair<int, double> fastest(const Points& points) {
  return *std::min_element(points.begin(), points.end(),
                           [](const auto& a, const auto& b) { return a.second < b.second; });
}

}  // namespace

ThreadCurve ThreadCurve::of(std::span<const double> ms) {
  ThreadCurve curve;
  for (size_t i = 0; i < ms.size(); ++i) curve.put({static_cast<int>(i) + 1, Affinity::close}, ms[i]);
  return curve;
}

void ThreadCurve::put(ThreadCase at, double ms) {
  auto put_in = [&](Points& points) {
    const auto place = std::lower_bound(points.begin(), points.end(), at.threads,
                                        [](const auto& point, int count) { return point.first < count; });
    if (place != points.end() && place->first == at.threads) {
      place->second = ms;
    } else {
      points.insert(place, {at.threads, ms});
    }
  };
  // One thread has no neighbour: it is the start of both lines.
  if (at.affinity == Affinity::spread || at.threads == 1) put_in(spread_);
  if (at.affinity == Affinity::close || at.threads == 1) put_in(close_);
}

double ThreadCurve::time_ms(ThreadCase at) const {
  const Points& own = at.affinity == Affinity::spread ? spread_ : close_;
  return interpolate(own.empty() ? (at.affinity == Affinity::spread ? close_ : spread_) : own, at.threads);
}

double ThreadCurve::time_ms(int threads) const {
  const bool has_spread = !spread_.empty() && threads <= spread_.back().first;
  const bool has_close = !close_.empty() && threads <= close_.back().first;
  if (has_spread && has_close) return std::min(interpolate(spread_, threads), interpolate(close_, threads));
  if (has_spread) return interpolate(spread_, threads);
  if (has_close) return interpolate(close_, threads);
  const bool longer = !close_.empty() && (spread_.empty() || close_.back().first >= spread_.back().first);
  return std::max(interpolate(longer ? close_ : spread_, threads), best_ms());
}

ThreadCase ThreadCurve::best() const {
  if (close_.empty()) return {fastest(spread_).first, Affinity::spread};
  if (spread_.empty()) return {fastest(close_).first, Affinity::close};
  const auto a = fastest(spread_), t = fastest(close_);
  const bool spread = a.second < t.second || (a.second == t.second && a.first <= t.first);
  return spread ? ThreadCase{a.first, Affinity::spread} : ThreadCase{t.first, Affinity::close};
}

double ThreadCurve::best_ms() const { return time_ms(best()); }

bool ThreadCurve::has(int threads) const {
  auto in = [&](const Points& points) {
    return std::any_of(points.begin(), points.end(), [&](const auto& point) { return point.first == threads; });
  };
  return in(spread_) || in(close_);
}

int ThreadCurve::most_threads() const {
  return std::max(spread_.empty() ? 0 : spread_.back().first, close_.empty() ? 0 : close_.back().first);
}

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
    const auto i = static_cast<size_t>(affinity);
    over_[i] = last_ms_[i] >= 0 && ms > last_ms_[i] * (1 + options_.rise);
    last_ms_[i] = ms;
  };
  if (now.affinity == Affinity::spread || now.threads == 1) step(Affinity::spread);
  if (now.affinity == Affinity::close || now.threads == 1) step(Affinity::close);
  advance();
}

void HillClimb::advance() {
  do {
    ++at_;
  } while (at_ < cases_.size() && over_[static_cast<size_t>(cases_[at_].affinity)]);
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
