// Softmax along an axis (ops/softmax.cpp): a block a row for its largest element and its sum, then a thread an element.
#pragma once

#include "device/cuda/bodies/axis.h"

namespace plimsoll::cuda {

struct Top {
  double value = -INFINITY;
  PLIMSOLL_BODY void add(const Top& other) {
    if (other.value > value) value = other.value;
  }
};
struct AxisRow {  // what a row keeps between the kernels
  double top, log_sum;
};

struct AxisTops {
  using Kind = EachBlock;
  using Value = Top;
  AxisRow* rows;
  const float* x;
  AxisPlace place;
  PLIMSOLL_BODY Top partial(int64_t row, int thread) const {
    const int64_t first = first_of(place, row);
    Top top;
    for (int64_t i = thread; i < place.length; i += kBlock) top.add({x[first + i * place.inner]});
    return top;
  }
  PLIMSOLL_BODY void finish(int64_t row, const Top& top) const { rows[row].top = top.value; }
};
struct AxisSums {
  using Kind = EachBlock;
  using Value = Sum;
  AxisRow* rows;
  float* log_sums;  // or null
  const float* x;
  AxisPlace place;
  bool masked;  // a row of minus infinities has the sum 0 and the logarithm infinity: it draws no attention at all
  PLIMSOLL_BODY Sum partial(int64_t row, int thread) const {
    const int64_t first = first_of(place, row);
    const double top = rows[row].top;
    Sum sum;
    if (masked && top == -INFINITY) return sum;
    for (int64_t i = thread; i < place.length; i += kBlock) sum.a += exp(x[first + i * place.inner] - top);
    return sum;
  }
  PLIMSOLL_BODY void finish(int64_t row, const Sum& sum) const {
    rows[row].log_sum = masked && rows[row].top == -INFINITY ? INFINITY : rows[row].top + log(sum.a);
    if (log_sums != nullptr) log_sums[row] = static_cast<float>(rows[row].log_sum);
  }
};
struct AxisSoftmax {
  using Kind = EachFour;
  float* y;
  const float* x;
  const AxisRow* rows;
  AxisPlace place;
  bool log;
  PLIMSOLL_BODY float of(int64_t i, float value) const {
    const double from = value - rows[row_of(place, i)].log_sum;
    return static_cast<float>(log ? from : exp(from));
  }
  PLIMSOLL_BODY void run(int64_t i) const { y[i] = of(i, x[i]); }
  PLIMSOLL_BODY void four(int64_t i) const {
    Four values = load_four(x + i);
    for (int k = 0; k < 4; ++k) values.v[k] = of(i + k, values.v[k]);
    store_four(y + i, values);
  }
  bool by_four() const { return lie_by_four(y, x); }
};

struct AxisDots {  // the sum of y * dy, or of dy
  using Kind = EachBlock;
  using Value = Sum;
  double* sums;
  const float* y;
  const float* dy;
  AxisPlace place;
  bool log;
  PLIMSOLL_BODY Sum partial(int64_t row, int thread) const {
    const int64_t first = first_of(place, row);
    Sum sum;
    for (int64_t i = thread; i < place.length; i += kBlock) {
      const int64_t at = first + i * place.inner;
      sum.a += log ? static_cast<double>(dy[at]) : static_cast<double>(dy[at]) * y[at];
    }
    return sum;
  }
  PLIMSOLL_BODY void finish(int64_t row, const Sum& sum) const { sums[row] = sum.a; }
};
struct AxisSoftmaxBackward {
  using Kind = EachFour;
  float* dx;
  const float* y;
  const float* dy;
  const double* sums;
  AxisPlace place;
  bool log;
  PLIMSOLL_BODY float of(int64_t i, float value, float d) const {
    const float sum = static_cast<float>(sums[row_of(place, i)]);
    return log ? d - expf(value) * sum : value * (d - sum);
  }
  PLIMSOLL_BODY void run(int64_t i) const { dx[i] = of(i, y[i], dy[i]); }
  PLIMSOLL_BODY void four(int64_t i) const {
    Four values = load_four(y + i);
    const Four d = load_four(dy + i);
    for (int k = 0; k < 4; ++k) values.v[k] = of(i + k, values.v[k], d.v[k]);
    store_four(dx + i, values);
  }
  bool by_four() const { return lie_by_four(dx, y, dy); }
};

}  // namespace plimsoll::cuda
