// Clipping by the norm of all gradients (ops/clip.cpp).
#pragma once

#include "device/cuda/bodies/common.h"
#include "device/cuda/bodies/loss.h"

namespace plimsoll::cuda {

struct Squared {
  const float* x;
  PLIMSOLL_BODY double term(int64_t i) const { return static_cast<double>(x[i]) * x[i]; }
};
struct NormTotal {  // one block
  using Kind = EachBlock;
  using Value = Sum;
  float* norm;
  const double* sums;
  int64_t count;
  PLIMSOLL_BODY Sum partial(int64_t, int thread) const { return part_of_sum(sums, count, thread); }
  PLIMSOLL_BODY void finish(int64_t, const Sum& sum) const { *norm = static_cast<float>(sqrt(sum.a)); }
};
struct SquareNorm {  // one element
  using Kind = EachElement;
  double* square;
  const float* norm;
  PLIMSOLL_BODY void run(int64_t) const { *square = static_cast<double>(*norm) * *norm; }
};
struct ClipTotal {  // one block
  using Kind = EachBlock;
  using Value = Sum;
  float* scale;
  float* total;
  const double* squares;
  const float* factor;  // of the gradients; below 0: no update yet; null: 1
  int64_t count;
  double max_norm;
  PLIMSOLL_BODY Sum partial(int64_t, int thread) const { return part_of_sum(squares, count, thread); }
  PLIMSOLL_BODY void finish(int64_t, const Sum& sum) const {
    const double times = factor == nullptr ? 1 : *factor;
    const double norm = times * sqrt(sum.a), clip = max_norm / (norm + 1e-6);
    *scale = static_cast<float>(times < 0 ? times : times * (clip >= 1 ? 1 : clip));  // what is no number stays none
    *total = static_cast<float>(times < 0 ? 0 : norm);
  }
};
struct ScaleBy {
  using Kind = EachFour;
  float* y;
  const float* x;
  const float* scale;
  PLIMSOLL_BODY void run(int64_t i) const { y[i] = *scale * x[i]; }
  PLIMSOLL_BODY void four(int64_t i) const {
    Four values = load_four(x + i);
    for (float& v : values.v) v = *scale * v;
    store_four(y + i, values);
  }
  bool by_four() const { return lie_by_four(y, x); }
};

}  // namespace plimsoll::cuda
