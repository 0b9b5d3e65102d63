// Padding of any dimensions: where an element of the result comes from.
#pragma once

#include <cstdint>
#include <vector>

#include "plimsoll/ops.h"

namespace plimsoll {

enum class PadMode : int32_t { constant, reflect, replicate };

// One dimension. Sizes below 0 crop.
struct PadAxis {
  int64_t in = 1, begin = 0, end = 0;
  int64_t out() const { return begin + in + end; }
  bool moves() const { return begin != 0 || end != 0; }
};
struct Padding {
  PadMode mode = PadMode::constant;
  double value = 0;
  std::vector<PadAxis> axes;
};

// The element of x that lies at o of the result, or -1 where the constant does.
inline int64_t pad_source(PadMode mode, const PadAxis& axis, int64_t o) {
  const int64_t i = o - axis.begin;
  if (i >= 0 && i < axis.in) return i;
  if (mode == PadMode::constant) return -1;
  if (mode == PadMode::replicate) return i < 0 ? 0 : axis.in - 1;
  return i < 0 ? -i : 2 * (axis.in - 1) - i;
}

// Of the op Pad on x, and of PadBackward from dy. Throw Error(invalid_input).
Padding read_padding(const Attributes& attributes, const Tensor& x);
Padding read_padding_backward(const Attributes& attributes, const Tensor& dy);

}  // namespace plimsoll
