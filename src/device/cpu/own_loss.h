// What kernels of the cross entropy over classes share: labels, and a row of logits.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "device/cpu/own.h"
#include "device/cpu/own_vector.h"

namespace plimsoll::cpu {

template <class Body>
PLIMSOLL_INLINE void for_each_vector(int64_t begin, int64_t end, const Body& body) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) body(i, kAll);
  if (i < end) body(i, static_cast<int>(end - i));
}

class CrossEntropy : public OwnKernel {
 public:
  CrossEntropy(const Graph& graph, const Op& op, int threads)
      : CrossEntropy(graph, op, threads, 1, graph.tensor(op.inputs[0]).shape[1]) {}

 protected:
  // Of an op whose labels are input `labels_at`.
  CrossEntropy(const Graph& graph, const Op& op, int threads, size_t labels_at, int64_t classes)
      : OwnKernel(graph, op, threads),
        rows_(graph.tensor(op.inputs[0]).shape[0]),
        classes_(classes),
        smoothing_(op.attributes.real("label_smoothing", 0)),
        labels_at_(labels_at),
        wide_(graph.tensor(op.inputs[labels_at]).dtype == DType::i64),
        ignores_(op.attributes.has("ignore_index")),
        ignored_(op.attributes.integer("ignore_index", -1)),
        reduction_(op.attributes.text("reduction", "")) {}

  static constexpr int64_t kIgnored = INT64_MIN;  // the label of a row that counts nothing
  int64_t label_of(int64_t r) const {
    const int64_t label = wide_ ? input<int64_t>(labels_at_)[r] : input<int32_t>(labels_at_)[r];
    return (ignores_ ? label == ignored_ : label < 0) ? kIgnored : label;
  }
  // By which the sum over the rows is divided; refuses labels that are none.
  double divisor() const {
    int64_t counted = 0;
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t label = label_of(r);
      if (label == kIgnored) continue;
      ++counted;
      if (label >= 0 && label < classes_) continue;
      throw Error(ErrorCode::invalid_input,
                  fmt::format("row {} has the label {}, but there are {} classes", r, label, classes_));
    }
    if (reduction_ == "sum") return 1;
    return static_cast<double>(reduction_ == "mean" ? counted : rows_);
  }

  struct RowLoss {
    double loss = 0, hit = 0;
  };
  // The logits of a row become probabilities, which may take their place.
  RowLoss softmax_row(const float* z, float* p, int64_t label) const {
    double loss = 0, hit = 0;
    f32x16 tops = splat(z[0]), total{};
    for_each_vector(0, classes_, [&](int64_t i, auto n) {
      const f32x16 v = load(z + i, n);
      total += v;
      if constexpr (std::is_same_v<decltype(n), All>) {
        tops = maximum(v, tops);
      } else {
        for (int k = 0; k < n; ++k) tops[k] = z[i + k] > tops[k] ? z[i + k] : tops[k];
      }
    });
    const float top = largest_lane(tops);
    const float label_logit = label >= 0 ? z[label] : 0;
    if (label >= 0 && label_logit == top) {  // the first of equal answers counts
      int64_t first = 0;
      while (z[first] != top) ++first;
      hit = first == label ? 1 : 0;
    }
    f32x16 exponentials{};
    for_each_vector(0, classes_, [&](int64_t i, auto n) {
      const f32x16 e = first_lanes(exponential(load(z + i, n) - splat(top)), n);
      exponentials += e;
      store(p + i, e, n);
    });
    const float sum = sum_of_lanes(exponentials);
    const f32x16 scale = splat(1 / sum);
    for_each_vector(0, classes_, [&](int64_t i, auto n) { store(p + i, load(p + i, n) * scale, n); });
    if (label < 0) return {};
    const double mean_logit = static_cast<double>(sum_of_lanes(total)) / static_cast<double>(classes_);
    loss = (top - static_cast<double>(label_logit)) + std::log(static_cast<double>(sum));
    if (smoothing_ != 0) loss += smoothing_ * (label_logit - mean_logit);
    return {loss, hit};
  }

  // From the probabilities of a row that counts, in whose place it may lie.
  void softmax_row_gradient(const float* p, float* dz, int64_t label, double scale) const {
    const f32x16 scales = splat(static_cast<float>(scale));
    const f32x16 spread = splat(static_cast<float>(smoothing_ / static_cast<double>(classes_)));
    const double at_label =
        static_cast<double>(p[label]) - (1 - smoothing_) - smoothing_ / static_cast<double>(classes_);
    for_each_vector(0, classes_, [&](int64_t i, auto n) { store(dz + i, (load(p + i, n) - spread) * scales, n); });
    dz[label] = static_cast<float>(scale * at_label);
  }

  int64_t rows_, classes_;
  double smoothing_;

 private:
  size_t labels_at_;
  bool wide_, ignores_;
  int64_t ignored_;
  std::string reduction_;
};

}  // namespace plimsoll::cpu
