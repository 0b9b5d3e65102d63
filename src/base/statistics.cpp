#include "base/statistics.h"

#include <algorithm>
#include <numeric>

namespace plimsoll {
namespace {

double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const size_t low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - static_cast<double>(low));
}

}  // namespace

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : quantile(values, 0.5);
}

double half_interquartile_distance(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : (quantile(values, 0.75) - quantile(values, 0.25)) / 2;
}

double mean(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace plimsoll
