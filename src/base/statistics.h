// Of repeated measurements: the middle and the spread.
#pragma once

#include <vector>

namespace plimsoll {

// 0 for no values.
double median(std::vector<double> values);  // the mean of the middle two, where there are two
double half_interquartile_distance(std::vector<double> values);
double mean(const std::vector<double>& values);

}  // namespace plimsoll
