// Rows along an axis of a row-major tensor.
#pragma once

#include "device/cuda/bodies/common.h"

namespace plimsoll::cuda {

// `length` elements `inner` apart.
struct AxisPlace {
  Divisor length = 1, inner = 1;
};
PLIMSOLL_BODY int64_t first_of(const AxisPlace& place, int64_t row) {
  if (place.inner == 1) return row * place.length;
  const Division d = divide(row, place.inner);
  return d.quotient * place.length * place.inner + d.remainder;
}
// Of a place as this one, but of this length.
PLIMSOLL_BODY int64_t first_of(const AxisPlace& place, int64_t length, int64_t row) {
  if (place.inner == 1) return row * length;
  const Division d = divide(row, place.inner);
  return d.quotient * length * place.inner + d.remainder;
}
PLIMSOLL_BODY int64_t row_of(const AxisPlace& place, int64_t at) {
  if (place.inner == 1) return divide(at, place.length).quotient;
  const Division d = divide(at, place.inner);
  return divide(d.quotient, place.length).quotient * place.inner + d.remainder;
}

}  // namespace plimsoll::cuda
