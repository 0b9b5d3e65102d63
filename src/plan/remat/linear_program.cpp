#include "plan/remat/linear_program.h"

#include <algorithm>
#include <cmath>

namespace plimsoll {
namespace {

constexpr int kLook = 40;  // steps between looks at the bound
constexpr double kNothing = 1e-100;
constexpr int kRestart = 200;  // steps between restarts from the average

}  // namespace

int32_t LinearProgram::add_column(double cost, double limit) {
  cost_.push_back(cost);
  low_.push_back(0);
  high_.push_back(limit);
  prepared_ = false;
  return static_cast<int32_t>(cost_.size()) - 1;
}

void LinearProgram::add_row(std::span<const Entry> entries, double least) {
  double most = 0;
  for (const Entry& entry : entries) most = std::max(most, std::abs(entry.by));
  if (most == 0) return;
  for (const Entry& entry : entries) {
    column_.push_back(entry.column);
    by_.push_back(entry.by / most);
  }
  least_.push_back(least / most);
  row_begin_.push_back(static_cast<int32_t>(column_.size()));
  prepared_ = false;
}

void LinearProgram::prepare() {
  const size_t rows = least_.size(), columns = cost_.size();
  column_begin_.assign(columns + 1, 0);
  for (int32_t c : column_) ++column_begin_[c + 1];
  for (size_t c = 0; c < columns; ++c) column_begin_[c + 1] += column_begin_[c];
  row_of_.resize(by_.size());
  column_by_.resize(by_.size());
  std::vector<int32_t> next(column_begin_.begin(), column_begin_.end() - 1);
  step_y_.assign(rows, 1);
  step_z_.assign(columns, 0);
  for (size_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int32_t e = row_begin_[r]; e < row_begin_[r + 1]; ++e) {
      const int32_t at = next[column_[e]]++;
      row_of_[at] = static_cast<int32_t>(r);
      column_by_[at] = by_[e];
      sum += std::abs(by_[e]);
      step_z_[column_[e]] += std::abs(by_[e]);
    }
    step_y_[r] = 1 / sum;
  }
  double cost = 0, least = 0;
  for (double c : cost_) cost += c * c;
  for (double l : least_) least += l * l;
  for (double& step : step_z_) step = step > 0 ? 1 / step : 1;
  if (y_.empty()) weight_ = cost > 0 && least > 0 ? std::sqrt(cost / least) : 1;
  z_.resize(columns, 0);
  y_.resize(rows, 0);
  extra_.resize(columns, 0);
  sum_z_.assign(columns, 0);
  sum_y_.assign(rows, 0);
  best_ = -1e300;
  prepared_ = true;
}

double LinearProgram::bound_of(const std::vector<double>& y) {
  double bound = 0;
  for (size_t r = 0; r < y.size(); ++r) bound += y[r] * least_[r];
  for (size_t c = 0; c < cost_.size(); ++c) {
    double reduced = cost_[c];
    for (int32_t e = column_begin_[c]; e < column_begin_[c + 1]; ++e) reduced -= y[row_of_[e]] * column_by_[e];
    bound += reduced * (reduced > 0 ? low_[c] : high_[c]);
  }
  return bound;
}

double LinearProgram::value(int32_t column) const { return summed_ > 0 ? sum_z_[column] / summed_ : z_[column]; }

void LinearProgram::set_limits(int32_t column, double low, double high) {
  low_[column] = low;
  high_[column] = high;
}

LinearProgram::State LinearProgram::state() const { return {{y_.begin(), y_.end()}, {z_.begin(), z_.end()}}; }
void LinearProgram::go_on_from(const State& state) {
  y_.assign(state.prices.begin(), state.prices.end());
  y_.resize(least_.size(), 0);
  z_.assign(state.values.begin(), state.values.end());
  z_.resize(cost_.size(), 0);
  best_ = -1e300;
}

double LinearProgram::improve(int steps, double enough) {
  if (!prepared_) prepare();
  const size_t rows = least_.size(), columns = cost_.size();
  from_z_ = z_;
  from_y_ = y_;
  std::fill(sum_z_.begin(), sum_z_.end(), 0);
  std::fill(sum_y_.begin(), sum_y_.end(), 0);
  summed_ = 0;
  std::vector<double> mean;
  const auto look = [&](const std::vector<double>& y) { best_ = std::max(best_, bound_of(y)); };
  look(y_);
  for (int i = 1; i <= steps && best_ < enough; ++i) {
    for (size_t c = 0; c < columns; ++c) {
      double reduced = cost_[c];
      for (int32_t e = column_begin_[c]; e < column_begin_[c + 1]; ++e) reduced -= y_[row_of_[e]] * column_by_[e];
      const double z = std::clamp(z_[c] - step_z_[c] / weight_ * reduced, low_[c], high_[c]);
      extra_[c] = 2 * z - z_[c];
      z_[c] = z;
      sum_z_[c] += z;
    }
    for (size_t r = 0; r < rows; ++r) {
      double lacks = least_[r];
      for (int32_t e = row_begin_[r]; e < row_begin_[r + 1]; ++e) lacks -= by_[e] * extra_[column_[e]];
      const double y = y_[r] + step_y_[r] * weight_ * lacks;
      y_[r] = y > kNothing ? y : 0;  // what is next to nothing takes processors long
      sum_y_[r] += y_[r];
    }
    ++summed_;
    if (i % kLook == 0 || i == steps) {
      look(y_);
      mean.resize(rows);
      for (size_t r = 0; r < rows; ++r) mean[r] = sum_y_[r] / summed_;
      look(mean);
    }
    if (summed_ == kRestart) {  // from the average; the weight follows how far both went
      double far_z = 0, far_y = 0;
      for (size_t c = 0; c < columns; ++c) {
        z_[c] = sum_z_[c] / summed_;
        far_z += (z_[c] - from_z_[c]) * (z_[c] - from_z_[c]);
        sum_z_[c] = 0;
      }
      for (size_t r = 0; r < rows; ++r) {
        y_[r] = sum_y_[r] / summed_;
        far_y += (y_[r] - from_y_[r]) * (y_[r] - from_y_[r]);
        sum_y_[r] = 0;
      }
      if (far_z > 1e-12 && far_y > 1e-12)
        weight_ = std::exp(0.5 * std::log(std::sqrt(far_y / far_z)) + 0.5 * std::log(weight_));
      from_z_ = z_;
      from_y_ = y_;
      summed_ = 0;
    }
  }
  return best_;
}

}  // namespace plimsoll
