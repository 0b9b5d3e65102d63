// Softmax along an axis: rows of neighbours by vectors along the row, others by sixteen rows side by side.
#include <cmath>
#include <limits>

#include "device/cpu/own_rows.h"
#include "plimsoll/ops.h"

namespace plimsoll::cpu {
namespace {

class SoftmaxRows : public OwnKernel {
 public:
  SoftmaxRows(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads), log_(op.attributes.integer("log", 0) != 0) {
    require_row_major(graph, op);
    const Shape& shape = graph.tensor(op.inputs[0]).shape;
    const int64_t axis = op.attributes.integer("axis");
    for (int64_t d = 0; d < static_cast<int64_t>(shape.size()); ++d) {
      (d < axis ? outer_ : d == axis ? length_ : inner_) *= shape[static_cast<size_t>(d)];
    }
  }

 protected:
  // row(first) for rows of neighbours; columns(first, n) for n rows side by side.
  template <class Row, class Columns>
  void for_each_row(const Row& row, const Columns& columns) const {
    const int64_t blocks = (inner_ + kLanes - 1) / kLanes;
    for_each_part(parts_, [&](int part) {
      const Range range = share(outer_ * blocks, part, parts_);
      for (int64_t i = range.begin; i < range.end; ++i) {
        const int64_t lane = i % blocks * kLanes, first = i / blocks * length_ * inner_ + lane;
        if (inner_ == 1) {
          row(first);
        } else if (lane + kLanes <= inner_) {
          columns(first, kAll);
        } else {
          columns(first, static_cast<int>(inner_ - lane));
        }
      }
    });
  }

  bool log_;
  int64_t outer_ = 1, length_ = 1, inner_ = 1;
};

template <class T>
class SoftmaxForward : public SoftmaxRows {
 public:
  using SoftmaxRows::SoftmaxRows;
  void run() override {
    for_each_row([&](int64_t first) { row(first); }, [&](int64_t first, auto n) { columns(first, n); });
  }

 private:
  void row(int64_t first) const {
    const T* x = input<T>(0) + first;
    T* y = output<T>(0) + first;
    const float top = row_top(length_, [&](int64_t i, auto n) { return load(x + i, n); });
    const f32x16 tops = splat(top);
    double sums[1];
    if (log_) {
      row_sums<1>(
          length_,
          [&](int64_t i, auto n, auto& a) { a[0] += first_lanes(exponential_or_zero(load(x + i, n) - tops), n); },
          sums);
      const f32x16 from = splat(static_cast<float>(std::log(sums[0])));
      over_row(length_, [&](int64_t i, auto n) { store(y + i, load(x + i, n) - tops - from, n); });
      return;
    }
    row_sums<1>(
        length_,
        [&](int64_t i, auto n, auto& a) {
          const f32x16 e = first_lanes(exponential_or_zero(load(x + i, n) - tops), n);
          store(y + i, e, n);
          a[0] += e;
        },
        sums);
    const f32x16 scale = splat(static_cast<float>(1 / sums[0]));
    over_row(length_, [&](int64_t i, auto n) { store(y + i, load(y + i, n) * scale, n); });
  }

  template <class Count>
  void columns(int64_t first, Count n) const {
    const T* x = input<T>(0) + first;
    T* y = output<T>(0) + first;
    const int64_t end = length_ * inner_;
    f32x16 top = splat(-std::numeric_limits<float>::infinity()), sum{};
    for (int64_t i = 0; i < end; i += inner_) top = maximum(load(x + i, n), top);
    if (log_) {
      for (int64_t i = 0; i < end; i += inner_) sum += exponential_or_zero(load(x + i, n) - top);
      for (int k = 0; k < kLanes; ++k) sum[k] = std::log(sum[k]);
      for (int64_t i = 0; i < end; i += inner_) store(y + i, load(x + i, n) - top - sum, n);
      return;
    }
    for (int64_t i = 0; i < end; i += inner_) {
      const f32x16 e = exponential_or_zero(load(x + i, n) - top);
      store(y + i, e, n);
      sum += e;
    }
    const f32x16 scale = splat(1.0f) / sum;
    for (int64_t i = 0; i < end; i += inner_) store(y + i, load(y + i, n) * scale, n);
  }
};

template <class T>
class SoftmaxBackward : public SoftmaxRows {
 public:
  using SoftmaxRows::SoftmaxRows;
  void run() override {
    for_each_row([&](int64_t first) { row(first); }, [&](int64_t first, auto n) { columns(first, n); });
  }

 private:
  PLIMSOLL_INLINE f32x16 gradient(f32x16 y, f32x16 dy, f32x16 sum) const {
    return log_ ? dy - exponential_or_zero(y) * sum : y * (dy - sum);
  }

  void row(int64_t first) const {
    const T* y = input<T>(0) + first;
    const T* dy = input<T>(1) + first;
    T* dx = output<T>(0) + first;
    double sums[1];
    row_sums<1>(
        length_, [&](int64_t i, auto n, auto& a) { a[0] += log_ ? load(dy + i, n) : load(dy + i, n) * load(y + i, n); },
        sums);
    const f32x16 sum = splat(static_cast<float>(sums[0]));
    over_row(length_, [&](int64_t i, auto n) { store(dx + i, gradient(load(y + i, n), load(dy + i, n), sum), n); });
  }

  template <class Count>
  void columns(int64_t first, Count n) const {
    const T* y = input<T>(0) + first;
    const T* dy = input<T>(1) + first;
    T* dx = output<T>(0) + first;
    f32x16 sum{};
    for (int64_t i = 0; i < length_ * inner_; i += inner_) {
      sum += log_ ? load(dy + i, n) : load(dy + i, n) * load(y + i, n);
    }
    for (int64_t i = 0; i < length_ * inner_; i += inner_) {
      store(dx + i, gradient(load(y + i, n), load(dy + i, n), sum), n);
    }
  }
};

}  // namespace

std::vector<NamedFactory> softmax_kernels() {
  return {{"SoftmaxForward", {own_specs_row_major, make_own<SoftmaxForward<float>>}},
          {"SoftmaxBackward", {own_specs_row_major, make_own<SoftmaxBackward<float>>}}};
}

}  // namespace plimsoll::cpu
