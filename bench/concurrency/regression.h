// Ordinary least squares on standardised features, for a handful of them: what the concurrency paper tries before hill
// climbing.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace plimsoll::bench {

using Row = std::vector<double>;

class LeastSquares {
 public:
  // One row of features for every value. Features that do not vary are left out.
  LeastSquares(const std::vector<Row>& rows, const std::vector<double>& values) {
    const size_t n = rows.size(), features = n > 0 ? rows[0].size() : 0;
    mean_.assign(features, 0);
    scale_.assign(features, 0);
    for (const Row& row : rows) {
      for (size_t f = 0; f < features; ++f) mean_[f] += row[f] / static_cast<double>(n);
    }
    for (const Row& row : rows) {
      for (size_t f = 0; f < features; ++f)
        scale_[f] += (row[f] - mean_[f]) * (row[f] - mean_[f]) / static_cast<double>(n);
    }
    for (double& s : scale_) s = s > 1e-24 ? 1 / std::sqrt(s) : 0;
    const size_t size = features + 1;
    std::vector<Row> a(size, Row(size + 1, 0));
    for (size_t i = 0; i < n; ++i) {
      const Row x = standardised(rows[i]);
      for (size_t r = 0; r < size; ++r) {
        for (size_t c = 0; c < size; ++c) a[r][c] += x[r] * x[c];
        a[r][size] += x[r] * values[i];
      }
    }
    for (size_t r = 0; r < size; ++r)
      a[r][r] += 1e-9 * static_cast<double>(std::max<size_t>(n, 1));  // equal columns share their weight
    weights_ = solve(std::move(a));
  }

  double operator()(const Row& row) const {
    const Row x = standardised(row);
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += weights_[i] * x[i];
    return sum;
  }

 private:
  Row standardised(const Row& row) const {
    Row x{1};
    for (size_t f = 0; f < mean_.size(); ++f) x.push_back((row[f] - mean_[f]) * scale_[f]);
    return x;
  }

  // Gaussian elimination with row pivots.
  static std::vector<double> solve(std::vector<Row> a) {
    const size_t size = a.size();
    for (size_t k = 0; k < size; ++k) {
      size_t pivot = k;
      for (size_t r = k + 1; r < size; ++r) {
        if (std::abs(a[r][k]) > std::abs(a[pivot][k])) pivot = r;
      }
      std::swap(a[k], a[pivot]);
      for (size_t r = k + 1; r < size; ++r) {
        const double factor = a[k][k] != 0 ? a[r][k] / a[k][k] : 0;
        for (size_t c = k; c <= size; ++c) a[r][c] -= factor * a[k][c];
      }
    }
    std::vector<double> x(size, 0);
    for (size_t k = size; k-- > 0;) {
      double sum = a[k][size];
      for (size_t c = k + 1; c < size; ++c) sum -= a[k][c] * x[c];
      x[k] = a[k][k] != 0 ? sum / a[k][k] : 0;
    }
    return x;
  }

  std::vector<double> mean_, scale_, weights_;
};

struct Quality {
  double accuracy = 0;  // mean of 1 - |predicted - actual| / actual
  double r2 = 0;        // coefficient of determination
};

// Every fold-th row is predicted by the model of the others, in `folds` turns.
inline Quality cross_validate(const std::vector<Row>& rows, const std::vector<double>& values, size_t folds) {
  std::vector<double> predicted(values.size(), 0);
  for (size_t fold = 0; fold < folds; ++fold) {
    std::vector<Row> known;
    std::vector<double> of_known;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (i % folds == fold) continue;
      known.push_back(rows[i]);
      of_known.push_back(values[i]);
    }
    const LeastSquares model(known, of_known);
    for (size_t i = fold; i < rows.size(); i += folds) predicted[i] = model(rows[i]);
  }
  Quality quality;
  double mean = 0, total = 0, left = 0;
  for (double v : values) mean += v / static_cast<double>(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    quality.accuracy += (1 - std::abs(predicted[i] - values[i]) / values[i]) / static_cast<double>(values.size());
    total += (values[i] - mean) * (values[i] - mean);
    left += (values[i] - predicted[i]) * (values[i] - predicted[i]);
  }
  quality.r2 = total > 0 ? 1 - left / total : 1;
  return quality;
}

}  // namespace plimsoll::bench
