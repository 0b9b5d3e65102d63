// Losses (ops/loss.cpp). A label beyond the classes makes the loss NaN: a kernel cannot refuse it.
#pragma once

#include "device/cuda/bodies/sums.h"

namespace plimsoll::cuda {

struct SoftmaxRow {  // what a row keeps between the kernels
  double log_sum, loss, correct, counted;
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

// Sums of a row's exponentials by its largest logit so far (Milakov and Gimelshein, "Online normalizer calculation for
// softmax", 2018). Four and more of them are added in single precision, and those sums in double.
struct SoftmaxSum {
  double sum = 0;     // of exp(logit - top)
  double logits = 0;  // their sum, where it is asked for
  float top = -INFINITY;
  int32_t beaten = 0;  // whether another logit comes before the label's
  PLIMSOLL_BODY double from(float largest) const {
    return largest == top ? 1 : exp(static_cast<double>(top) - static_cast<double>(largest));
  }
  PLIMSOLL_BODY void raise(float largest) {
    sum *= from(largest);
    top = largest;
  }
  PLIMSOLL_BODY void add(const SoftmaxSum& other) {
    if (other.top > top) raise(other.top);
    sum += other.sum * other.from(top);
    logits += other.logits;
    beaten |= other.beaten;
  }
};
struct SoftmaxSums {  // a block a row
  using Kind = EachBlock;
  using Value = SoftmaxSum;
  SoftmaxRow* rows;
  const float* logits;
  Labels labels;
  int64_t classes, stride;  // stride: from a row to the next
  double smoothing;
  bool fours;  // rows begin at fours

  struct Label {
    int64_t index;
    float logit;
  };
  PLIMSOLL_BODY Label label_of(int64_t row) const {
    const int64_t label = labels.at(row);
    return {label, label >= 0 && label < classes ? logits[row * stride + label] : 0};
  }
  // How many classes there are from c to another, or -1 where it lies before c; near enough for those that are taken together.
  PLIMSOLL_BODY static int distance(int64_t c, int64_t to) {
    return to < c ? -1 : static_cast<int>(smaller(to - c, int64_t{1} << 20));
  }
  // Logit k is of class c + k % 4 + k / 4 * kApart; it is -INFINITY from `end` on.
  template <int kApart, int kCount>
  PLIMSOLL_BODY void take(SoftmaxSum& all, const float (&v)[kCount], int64_t c, int64_t end, const Label& label) const {
    float top = v[0];
    PLIMSOLL_UNROLL_ALL
    for (int k = 1; k < kCount; ++k) top = fmaxf(top, v[k]);
    if (top > all.top) all.raise(top);
    const float from = all.top == -INFINITY ? 0 : all.top;
    const int to_label = distance(c, label.index);
    float sum = 0;
    PLIMSOLL_UNROLL_ALL
    for (int k = 0; k < kCount; ++k) {
      sum += expf(v[k] - from);
      if (k % 4 + k / 4 * kApart < to_label ? !(v[k] < label.logit) : !(v[k] <= label.logit)) all.beaten = 1;
    }
    all.sum += sum;
    if (smoothing == 0) return;
    const int to_end = distance(c, end);
    float here = 0;
    PLIMSOLL_UNROLL_ALL
    for (int k = 0; k < kCount; ++k) here += k % 4 + k / 4 * kApart < to_end ? v[k] : 0;
    all.logits += here;
  }
  PLIMSOLL_BODY SoftmaxSum partial(int64_t row, int thread) const {
    constexpr int kFours = 4;
    constexpr int kApart = 4 * kBlock;
    SoftmaxSum all;
    const Label label = label_of(row);
    const float* const from = logits + row * stride;
    const int64_t by_four = fours ? classes / 4 * 4 : 0;
    PLIMSOLL_UNROLL(1)
    for (int64_t c = 4 * thread; c < by_four; c += kFours * kApart) {
      float v[4 * kFours];
      PLIMSOLL_UNROLL_ALL
      for (int f = 0; f < kFours; ++f) {
        const bool is_there = c + f * kApart < by_four;
        const Four four =
            is_there ? load_four(from + c + f * kApart) : Four{{-INFINITY, -INFINITY, -INFINITY, -INFINITY}};
        PLIMSOLL_UNROLL_ALL
        for (int k = 0; k < 4; ++k) v[4 * f + k] = four.v[k];
      }
      take<kApart>(all, v, c, by_four, label);
    }
    PLIMSOLL_UNROLL(1)
    for (int64_t c = by_four + thread; c < classes; c += kBlock) take<0>(all, {from[c]}, c, classes, label);
    return all;
  }
  PLIMSOLL_BODY void finish(int64_t row, const SoftmaxSum& all) const {
    SoftmaxRow& r = rows[row];
    r.log_sum = all.top + log(all.sum);
    r.loss = r.correct = r.counted = 0;
    const Label label = label_of(row);
    if (label.index == kIgnoredLabel) return;
    r.counted = 1;
    if (label.index < 0 || label.index >= classes) {
      r.loss = NAN;
      return;
    }
    r.loss = r.log_sum - (1 - smoothing) * label.logit - smoothing * all.logits / static_cast<double>(classes);
    r.correct = all.beaten != 0 ? 0 : 1;
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
    float log_sum, rest;  // log_sum in two parts
    float scale;
  };
  PLIMSOLL_BODY Row of_row(int64_t row) const {
    const double log_sum = rows[row].log_sum;
    const float first = static_cast<float>(log_sum);
    return {labels.at(row), first, static_cast<float>(log_sum - first), *scale};
  }
  PLIMSOLL_BODY float of(const Row& row, int64_t c, float logit) const {
    const float probability = expf((logit - row.log_sum) - row.rest);
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
