// The gradient of an embedding's table that does not lie whole (ops/embedding_gradient.cpp): each element is summed where it is
// read, along its row's list of lookups (LinkPieces).
#pragma once

#include "device/cuda/bodies/common.h"
#include "device/cuda/bodies/elementwise.h"

namespace plimsoll::cuda {

struct LookupGradient {
  const float* dy;
  const int32_t* head;
  const int32_t* next;
  Divisor width;
  PLIMSOLL_BODY bool has(int64_t i) const { return head[divide(i, width).quotient] >= 0; }
  PLIMSOLL_BODY float at(int64_t i) const {
    const Division element = divide(i, width);
    float sum = 0;
    for (int32_t r = head[element.quotient]; r >= 0; r = next[r]) sum += dy[r * width.value + element.remainder];
    return sum;
  }
};

struct SquaredLookups {
  LookupGradient g;
  PLIMSOLL_BODY double term(int64_t i) const {
    const double value = g.at(i);
    return value * value;
  }
};
// An update of one element by a gradient of its own.
template <class Update>
struct ByLookups {
  using Kind = EachElement;
  Update update;
  LookupGradient g;
  PLIMSOLL_BODY void run(int64_t i) const {
    if (!update.is_due()) return;
    update.run_with(i, g.at(i));
  }
};
struct AddLookups {
  using Kind = EachElement;
  float* y;
  const float* x;
  const int64_t* count;  // of batches in x; with none it does not count; null: it does
  LookupGradient g;
  PLIMSOLL_BODY void run(int64_t i) const {
    if (y == x && count == nullptr && !g.has(i)) return;
    const float added = g.at(i);
    y[i] = count != nullptr && *count == 0 ? added : x[i] + added;
  }
};

}  // namespace plimsoll::cuda
