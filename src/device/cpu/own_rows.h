// What kernels on rows share: a row is a run of neighbours in memory that is summed, then written, while it is in the
// cache.
#pragma once

#include <limits>

#include "device/cpu/own.h"
#include "device/cpu/own_vector.h"

namespace plimsoll::cpu {

// Throws Error(unsupported) unless every tensor of the op is row-major.
void require_row_major(const Graph& graph, const Op& op);

// Calls body(i, n) for vectors of n elements from i on.
template <class Body>
PLIMSOLL_INLINE void over_row(int64_t length, const Body& body) {
  int64_t i = 0;
  for (; i + 2 * kLanes <= length; i += 2 * kLanes) {
    body(i, kAll);
    body(i + kLanes, kAll);
  }
  for (; i + kLanes <= length; i += kLanes) body(i, kAll);
  if (i < length) body(i, static_cast<int>(length - i));
}

// term(i, n, a) adds to a[k] the terms of elements [i, i + n) of the k-th sum, zero in other lanes. Sums run in lanes
// for some thousand elements, then in doubles, in an order that only the length fixes.
template <int kSums, class Term>
PLIMSOLL_INLINE void row_sums(int64_t length, const Term& term, double (&sums)[kSums]) {
  constexpr int64_t kRun = 4096;
  for (double& sum : sums) sum = 0;
  for (int64_t begin = 0; begin < length; begin += kRun) {
    const int64_t end = std::min(length, begin + kRun);
    f32x16 a[kSums] = {}, b[kSums] = {}, c[kSums] = {}, d[kSums] = {};
    int64_t i = begin;
    for (; i + 4 * kLanes <= end; i += 4 * kLanes) {
      term(i, kAll, a);
      term(i + kLanes, kAll, b);
      term(i + 2 * kLanes, kAll, c);
      term(i + 3 * kLanes, kAll, d);
    }
    for (; i + kLanes <= end; i += kLanes) term(i, kAll, a);
    if (i < end) term(i, static_cast<int>(end - i), b);
    for (int k = 0; k < kSums; ++k) sums[k] += static_cast<double>(sum_of_lanes((a[k] + b[k]) + (c[k] + d[k])));
  }
}

// The largest of values(i, n); minus infinity where there are none. What is not a number does not count.
template <class Values>
PLIMSOLL_INLINE float row_top(int64_t length, const Values& values) {
  const float least = -std::numeric_limits<float>::infinity();
  f32x16 a = splat(least), b = a;
  int64_t i = 0;
  for (; i + 2 * kLanes <= length; i += 2 * kLanes) {
    a = maximum(values(i, kAll), a);
    b = maximum(values(i + kLanes, kAll), b);
  }
  for (; i + kLanes <= length; i += kLanes) a = maximum(values(i, kAll), a);
  if (i < length) {
    const int count = static_cast<int>(length - i);
    b = maximum(lanes_or(values(i, count), count, least), b);
  }
  return largest_lane(maximum(a, b));
}

}  // namespace plimsoll::cpu
