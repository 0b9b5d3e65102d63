// Losses (ops/loss.cpp). A label beyond the classes makes the loss NaN: a kernel cannot refuse it.
#pragma once

#include "device/cuda/bodies/sums.h"

namespace plimsoll::cuda {

struct Largest {
  double value = -INFINITY, sum = 0;
  int64_t index = INT64_MAX;
  PLIMSOLL_BODY void add(const Largest& other) {
    sum += other.sum;
    if (other.value > value || (other.value == value && other.index < index)) value = other.value, index = other.index;
  }
};

struct SoftmaxRow {  // what a row keeps between the kernels
  double top, sum, log_sum, loss, correct, counted;
  int64_t best;
};

enum class LossReduction : int32_t { mean_of_all, mean, sum };

inline constexpr int64_t kIgnoredLabel = INT64_MIN;
struct Labels {
  const int32_t* narrow;  // or null
  const int64_t* wide;
  int64_t ignored;
  bool ignores;  // only the label `ignored` counts nothing; else any below 0
  PLIMSOLL_BODY Labels from(int64_t row) const {
    return {narrow != nullptr ? narrow + row : nullptr, wide != nullptr ? wide + row : nullptr, ignored, ignores};
  }
  PLIMSOLL_BODY int64_t at(int64_t row) const {
    const int64_t label = narrow != nullptr ? narrow[row] : wide[row];
    return (ignores ? label == ignored : label < 0) ? kIgnoredLabel : label;
  }
};

struct SoftmaxTops {  // a block a row
  using Kind = EachBlock;
  using Value = Largest;
  SoftmaxRow* rows;
  const float* logits;
  int64_t classes, stride;  // stride: from a row to the next
  PLIMSOLL_BODY Largest partial(int64_t row, int thread) const {
    Largest largest;
    for (int64_t c = thread; c < classes; c += kBlock) {
      const double v = logits[row * stride + c];
      largest.add({v, v, c});
    }
    return largest;
  }
  PLIMSOLL_BODY void finish(int64_t row, const Largest& largest) const {
    rows[row].top = largest.value;
    rows[row].sum = largest.sum;
    rows[row].best = largest.index;
  }
};
struct SoftmaxSums {  // a block a row
  using Kind = EachBlock;
  using Value = Sum;
  SoftmaxRow* rows;
  const float* logits;
  Labels labels;
  int64_t classes, stride;  // stride: from a row to the next
  double smoothing;
  PLIMSOLL_BODY Sum partial(int64_t row, int thread) const {
    Sum sum;
    for (int64_t c = thread; c < classes; c += kBlock) sum.a += exp(logits[row * stride + c] - rows[row].top);
    return sum;
  }
  PLIMSOLL_BODY void finish(int64_t row, const Sum& sum) const {
    SoftmaxRow& r = rows[row];
    r.log_sum = r.top + log(sum.a);
    r.loss = r.correct = r.counted = 0;
    const int64_t label = labels.at(row);
    if (label == kIgnoredLabel) return;
    r.counted = 1;
    if (label < 0 || label >= classes) {
      r.loss = NAN;
      return;
    }
    r.loss =
        r.log_sum - (1 - smoothing) * logits[row * stride + label] - smoothing * r.sum / static_cast<double>(classes);
    r.correct = r.best == label ? 1 : 0;
  }
};
struct SoftmaxProbabilities {
  using Kind = EachFour;
  float* probabilities;
  const float* logits;
  const SoftmaxRow* rows;
  Divisor classes;
  PLIMSOLL_BODY float of(int64_t i, float logit) const {
    return static_cast<float>(exp(logit - rows[divide(i, classes).quotient].log_sum));
  }
  PLIMSOLL_BODY void run(int64_t i) const { probabilities[i] = of(i, logits[i]); }
  PLIMSOLL_BODY void four(int64_t i) const {
    Four values = load_four(logits + i);
    for (int k = 0; k < 4; ++k) values.v[k] = of(i + k, values.v[k]);
    store_four(probabilities + i, values);
  }
  bool by_four() const { return lie_by_four(probabilities, logits); }
};
PLIMSOLL_BODY double row_divisor(LossReduction reduction, int64_t rows, double counted) {
  if (reduction == LossReduction::sum) return 1;
  return reduction == LossReduction::mean ? counted : static_cast<double>(rows);
}
struct LossTotals {
  double loss = 0, correct = 0, counted = 0;
  PLIMSOLL_BODY void add(const LossTotals& other) {
    loss += other.loss, correct += other.correct, counted += other.counted;
  }
};
struct SoftmaxTotal {  // one block
  using Kind = EachBlock;
  using Value = LossTotals;
  float* loss;
  float* correct;
  const SoftmaxRow* rows;
  int64_t count;
  LossReduction reduction;
  PLIMSOLL_BODY LossTotals partial(int64_t, int thread) const {
    LossTotals sum;
    for (int64_t r = thread; r < count; r += kBlock) sum.add({rows[r].loss, rows[r].correct, rows[r].counted});
    return sum;
  }
  PLIMSOLL_BODY void finish(int64_t, const LossTotals& sum) const {
    *loss = static_cast<float>(sum.loss / row_divisor(reduction, count, sum.counted));
    *correct = static_cast<float>(sum.correct);
  }
};
struct LossScale {  // one block: dloss over the divisor
  using Kind = EachBlock;
  using Value = Sum;
  float* scale;
  const float* dloss;
  Labels labels;
  int64_t count;
  LossReduction reduction;
  PLIMSOLL_BODY Sum partial(int64_t, int thread) const {
    Sum sum;
    for (int64_t r = thread; r < count; r += kBlock) sum.a += labels.at(r) == kIgnoredLabel ? 0 : 1;
    return sum;
  }
  PLIMSOLL_BODY void finish(int64_t, const Sum& sum) const {
    *scale = static_cast<float>(*dloss / row_divisor(reduction, count, sum.a));
  }
};
struct SoftmaxBackward {
  using Kind = EachFour;
  float* dlogits;
  const float* probabilities;
  Labels labels;
  const float* scale;
  Divisor classes;
  float smoothing;
  PLIMSOLL_BODY float of(int64_t i, float probability) const {
    const Division d = divide(i, classes);
    const int64_t label = labels.at(d.quotient);
    const float target = (d.remainder == label ? 1 - smoothing : 0) + smoothing / static_cast<float>(classes.value);
    return label == kIgnoredLabel ? 0 : *scale * (probability - target);
  }
  PLIMSOLL_BODY void run(int64_t i) const { dlogits[i] = of(i, probabilities[i]); }
  PLIMSOLL_BODY void four(int64_t i) const {
    Four values = load_four(probabilities + i);
    for (int k = 0; k < 4; ++k) values.v[k] = of(i + k, values.v[k]);
    store_four(dlogits + i, values);
  }
  bool by_four() const { return lie_by_four(dlogits, probabilities); }
};

// Of a layer and its loss by blocks of rows (ops/linear_cross_entropy.cpp): the logits become their gradients.
struct LogitGradients {
  using Kind = EachFour;
  float* logits;
  const SoftmaxRow* rows;
  Labels labels;
  const float* scale;
  Divisor stride;  // from a row to the next; what lies between them becomes 0
  int64_t classes;
  float smoothing;
  struct Row {
    int64_t label;
    double log_sum;
    float scale;
  };
  PLIMSOLL_BODY Row of_row(int64_t row) const { return {labels.at(row), rows[row].log_sum, *scale}; }
  PLIMSOLL_BODY float of(const Row& row, int64_t c, float logit) const {
    const float probability = expf(static_cast<float>(logit - row.log_sum));
    const float target = (c == row.label ? 1 - smoothing : 0) + smoothing / static_cast<float>(classes);
    return c >= classes || row.label == kIgnoredLabel ? 0 : row.scale * (probability - target);
  }
  PLIMSOLL_BODY void run(int64_t i) const {
    const Division d = divide(i, stride);
    logits[i] = of(of_row(d.quotient), d.remainder, logits[i]);
  }
  PLIMSOLL_BODY void four(int64_t i) const {
    const Division d = divide(i, stride);
    const Row row = of_row(d.quotient);
    Four values = load_four(logits + i);
    for (int k = 0; k < 4; ++k) values.v[k] = of(row, d.remainder + k, values.v[k]);
    store_four(logits + i, values);
  }
  bool by_four() const { return lie_by_four(logits) && stride % 4 == 0; }
};
// Sums by column that several blocks of rows make together.
struct AddTotals {
  using Kind = EachElement;
  float* totals;
  const SumPair* sums;  // [column][piece]
  int64_t pieces;
  bool adds;
  PLIMSOLL_BODY void run(int64_t c) const {
    double sum = adds ? totals[c] : 0;
    for (int64_t p = 0; p < pieces; ++p) sum += sums[c * pieces + p].a;
    totals[c] = static_cast<float>(sum);
  }
};

// A mean over all elements: partial sums by block, then theirs.
struct SquaredError {
  const float* x;
  const float* target;
  PLIMSOLL_BODY double term(int64_t i) const {
    const double d = static_cast<double>(x[i]) - target[i];
    return d * d;
  }
};
struct SigmoidError {  // log(1 + exp(z)) - z * target, without overflow
  const float* logits;
  double target;
  PLIMSOLL_BODY double term(int64_t i) const {
    const double z = logits[i];
    return (z > 0 ? z : 0) + log1p(exp(-fabs(z))) - z * target;
  }
};
template <class Term>
struct SumAll {
  using Kind = EachBlock;
  using Value = Sum;
  Term of;
  double* sums;
  int64_t elements, length;
  PLIMSOLL_BODY Sum partial(int64_t block, int thread) const {
    Sum sum;
    for (int64_t i = block * length + thread; i < smaller((block + 1) * length, elements); i += kBlock)
      sum.a += of.term(i);
    return sum;
  }
  PLIMSOLL_BODY void finish(int64_t block, const Sum& sum) const { sums[block] = sum.a; }
};
struct MeanTotal {  // one block
  using Kind = EachBlock;
  using Value = Sum;
  float* loss;
  const double* sums;
  int64_t count, elements;
  PLIMSOLL_BODY Sum partial(int64_t, int thread) const { return part_of_sum(sums, count, thread); }
  PLIMSOLL_BODY void finish(int64_t, const Sum& sum) const {
    *loss = static_cast<float>(sum.a / static_cast<double>(elements));
  }
};
struct SquaredErrorBackward {
  using Kind = EachElement;
  float* dx;
  const float* x;
  const float* target;
  const float* dloss;
  float two_by_n;
  PLIMSOLL_BODY void run(int64_t i) const { dx[i] = *dloss * two_by_n * (x[i] - target[i]); }
};
struct SigmoidErrorBackward {
  using Kind = EachElement;
  float* dlogits;
  const float* logits;
  const float* dloss;
  float target, one_by_n;
  PLIMSOLL_BODY void run(int64_t i) const { dlogits[i] = *dloss * one_by_n * (1 / (1 + expf(-logits[i])) - target); }
};

}  // namespace plimsoll::cuda
