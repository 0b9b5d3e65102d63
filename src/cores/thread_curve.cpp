#include "cores/thread_curve.h"

#include <algorithm>

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

}  // namespace plimsoll
