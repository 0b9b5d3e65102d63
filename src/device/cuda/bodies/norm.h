// Layer norm, RMS norm and group norm (ops/norm.cpp) on row-major tensors: a block a row, then a thread an element.
#pragma once

#include "device/cuda/bodies/common.h"

namespace plimsoll::cuda {

struct NormRows {
  int64_t rows = 1;
  Divisor length = 1, groups = 0, pixels = 1;  // groups 0: element i of a row has gamma[i]
  Divisor group_channels = 1;
};
PLIMSOLL_BODY int64_t scale_at(const NormRows& rows, int64_t row, int64_t i) {
  if (rows.groups == 0) return i;
  return divide(row, rows.groups).remainder * rows.group_channels + divide(i, rows.pixels).quotient;
}

struct RowMoments {
  using Kind = EachBlock;
  using Value = SumPair;
  float* mean;  // null: RMS norm
  float* rstd;
  const float* x;
  int64_t length;
  double epsilon;
  PLIMSOLL_BODY double shift(int64_t row) const { return mean != nullptr ? static_cast<double>(x[row * length]) : 0.0; }
  PLIMSOLL_BODY SumPair partial(int64_t row, int thread) const {
    const double from = shift(row);
    SumPair sum;
    PLIMSOLL_UNROLL(4)
    for (int64_t i = thread; i < length; i += kBlock) {
      const double d = x[row * length + i] - from;
      sum.add({d, d * d});
    }
    return sum;
  }
  PLIMSOLL_BODY void finish(int64_t row, const SumPair& sum) const {
    const double n = static_cast<double>(length);
    double squares = sum.b;
    if (mean != nullptr) {
      squares -= sum.a * sum.a / n;
      if (squares < 0) squares = 0;
      mean[row] = static_cast<float>(shift(row) + sum.a / n);
    }
    rstd[row] = static_cast<float>(1 / sqrt(squares / n + epsilon));
  }
};

struct NormalizeRows {
  using Kind = EachFour;
  float* y;
  const float* x;
  const float* mean;  // null: RMS norm
  const float* rstd;
  const float* gamma;  // or null
  const float* beta;   // or null
  NormRows rows;
  PLIMSOLL_BODY void run(int64_t at) const { y[at] = of(at, x[at]); }
  PLIMSOLL_BODY void four(int64_t at) const {
    Four values = load_four(x + at);
    for (int k = 0; k < 4; ++k) values.v[k] = of(at + k, values.v[k]);
    store_four(y + at, values);
  }
  bool by_four() const { return lie_by_four(y, x); }
  PLIMSOLL_BODY float of(int64_t at, float v) const {
    const Division d = divide(at, rows.length);
    if (mean != nullptr) v -= mean[d.quotient];
    v *= rstd[d.quotient];
    if (gamma != nullptr) {
      const int64_t s = scale_at(rows, d.quotient, d.remainder);
      v *= gamma[s];
      if (beta != nullptr) v += beta[s];
    }
    return v;
  }
};

// What the backward pass reads of an element.
struct NormInputs {
  const float* x;
  const float* dy;
  const float* mean;  // null: RMS norm
  const float* rstd;
  const float* gamma;  // or null
  NormRows rows;
  PLIMSOLL_BODY float normal(int64_t row, int64_t i) const { return normal_of(row, x[row * rows.length + i]); }
  PLIMSOLL_BODY float normal_of(int64_t row, float v) const {
    return (mean != nullptr ? v - mean[row] : v) * rstd[row];
  }
  PLIMSOLL_BODY float gradient(int64_t row, int64_t i) const { return gradient_of(row, i, dy[row * rows.length + i]); }
  PLIMSOLL_BODY float gradient_of(int64_t row, int64_t i, float d) const {
    return gamma != nullptr ? d * gamma[scale_at(rows, row, i)] : d;
  }
};
struct RowGradients {  // a block a row: the means of g and of g * h
  using Kind = EachBlock;
  using Value = SumPair;
  NormInputs of;
  SumPair* means;
  PLIMSOLL_BODY SumPair partial(int64_t row, int thread) const {
    SumPair sum;
    PLIMSOLL_UNROLL(4)
    for (int64_t i = thread; i < of.rows.length; i += kBlock) {
      const double g = of.gradient(row, i);
      sum.add({g, g * of.normal(row, i)});
    }
    return sum;
  }
  PLIMSOLL_BODY void finish(int64_t row, const SumPair& sum) const {
    const double n = static_cast<double>(of.rows.length);
    means[row] = {of.mean != nullptr ? sum.a / n : 0.0, sum.b / n};
  }
};
struct NormalizeRowsBackward {
  using Kind = EachFour;
  float* dx;
  NormInputs of;
  const SumPair* means;
  PLIMSOLL_BODY float at_place(int64_t at, float value, float d) const {
    const Division place = divide(at, of.rows.length);
    const int64_t row = place.quotient;
    const SumPair& mean = means[row];
    return of.rstd[row] * (of.gradient_of(row, place.remainder, d) - static_cast<float>(mean.a) -
                           of.normal_of(row, value) * static_cast<float>(mean.b));
  }
  PLIMSOLL_BODY void run(int64_t at) const { dx[at] = at_place(at, of.x[at], of.dy[at]); }
  PLIMSOLL_BODY void four(int64_t at) const {
    Four values = load_four(of.x + at);
    const Four d = load_four(of.dy + at);
    for (int k = 0; k < 4; ++k) values.v[k] = at_place(at + k, values.v[k], d.v[k]);
    store_four(dx + at, values);
  }
  bool by_four() const { return lie_by_four(dx, of.x, of.dy); }
};

// Gamma's and beta's gradients: a thread a column of some rows, then a thread a column.
struct NormColumns {
  using Kind = EachElement;
  NormInputs of;
  SumPair* sums;  // [piece][column]
  int64_t rows_a_piece;
  PLIMSOLL_BODY void run(int64_t at) const {
    const Division d = divide(at, of.rows.length);
    SumPair sum;
    const int64_t end = smaller((d.quotient + 1) * rows_a_piece, of.rows.rows);
    PLIMSOLL_UNROLL(4)
    for (int64_t row = d.quotient * rows_a_piece; row < end; ++row) {
      const double g = of.dy[row * of.rows.length + d.remainder];
      sum.add({g * of.normal(row, d.remainder), g});
    }
    sums[at] = sum;
  }
};
struct NormColumnTotals {
  using Kind = EachElement;
  float* dgamma;
  float* dbeta;  // or null
  const SumPair* sums;
  int64_t columns, pieces;
  PLIMSOLL_BODY void run(int64_t column) const {
    SumPair sum;
    PLIMSOLL_UNROLL(8)
    for (int64_t p = 0; p < pieces; ++p) sum.add(sums[p * columns + column]);
    dgamma[column] = static_cast<float>(sum.a);
    if (dbeta != nullptr) dbeta[column] = static_cast<float>(sum.b);
  }
};
// The same of group norm: a block a channel.
struct NormChannels {
  using Kind = EachBlock;
  using Value = SumPair;
  float* dgamma;
  float* dbeta;  // or null
  NormInputs of;
  int64_t images;
  PLIMSOLL_BODY SumPair partial(int64_t c, int thread) const {
    const Division d = divide(c, of.rows.group_channels);
    SumPair sum;
    for (int64_t e = thread; e < images * of.rows.pixels; e += kBlock) {
      const Division at = divide(e, of.rows.pixels);
      const int64_t row = at.quotient * of.rows.groups + d.quotient;
      const int64_t i = d.remainder * of.rows.pixels + at.remainder;
      const double g = of.dy[row * of.rows.length + i];
      sum.add({g * of.normal(row, i), g});
    }
    return sum;
  }
  PLIMSOLL_BODY void finish(int64_t c, const SumPair& sum) const {
    dgamma[c] = static_cast<float>(sum.a);
    if (dbeta != nullptr) dbeta[c] = static_cast<float>(sum.b);
  }
};

}  // namespace plimsoll::cuda
