// How the tensors of a Rotary op lie beside each other.
#pragma once

#include <vector>

#include "plimsoll/ops.h"

namespace plimsoll {

struct RotaryRows {
  Shape leading;       // of x, without the dimension that is turned
  int64_t length = 0;  // of a row of x
  int64_t half = 0;    // pairs of a row: elements i and i + half
  int64_t table = 0;   // elements of a row of cosine and sine: half, or one for each element that is turned
  std::vector<int64_t> table_strides;  // of their rows, by the dimensions of `leading`: 0 where they are stretched

  int64_t count() const { return element_count(leading); }
  int64_t rest() const { return length - 2 * half; }  // elements of a row that stay as they are
  int64_t second() const {
    return table == half ? 0 : half;
  }  // from a pair's first element to its second, in the tables
};

// Throws Error(invalid_input) where the shapes do not fit.
RotaryRows rotary_rows(const Attributes& attributes, const Shape& x, const Shape& table);

}  // namespace plimsoll
