// A tensor as rows along one of its axes.
#pragma once

#include "plimsoll/graph.h"

namespace plimsoll {

// `length` elements `inner` apart; rows that lie side by side have neighbouring numbers.
struct AxisRows {
  int64_t outer = 1, length = 1, inner = 1;
  int64_t rows() const { return outer * inner; }
  int64_t first(int64_t row) const { return row / inner * length * inner + row % inner; }
};

inline AxisRows axis_rows(const Shape& shape, size_t axis) {
  AxisRows rows;
  for (size_t d = 0; d < shape.size(); ++d) (d < axis ? rows.outer : d == axis ? rows.length : rows.inner) *= shape[d];
  return rows;
}

}  // namespace plimsoll
