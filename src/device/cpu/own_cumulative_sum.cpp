// CumulativeSum: rows of neighbours by sums within a vector, others by rows side by side. What is carried along a row is
// a double.
#include "device/cpu/own_rows.h"
#include "ops/axis_rows.h"
#include "plimsoll/ops.h"

namespace plimsoll::cpu {
namespace {

// Lane i becomes the sum of the lanes from the first to i, or from i to the last.
PLIMSOLL_INLINE f32x16 sums_to_lane(f32x16 v) {
  const f32x16 zero{};
  v += window<15>(zero, v);
  v += window<14>(zero, v);
  v += window<12>(zero, v);
  return v + window<8>(zero, v);
}
PLIMSOLL_INLINE f32x16 sums_from_lane(f32x16 v) {
  const f32x16 zero{};
  v += window<1>(v, zero);
  v += window<2>(v, zero);
  v += window<4>(v, zero);
  return v + window<8>(v, zero);
}

typedef double f64x8 __attribute__((vector_size(64)));
struct Doubles {  // of sixteen lanes
  f64x8 low{}, high{};
  PLIMSOLL_INLINE void add(f32x16 v) {
    low += __builtin_convertvector(low_half(v), f64x8);
    high += __builtin_convertvector(high_half(v), f64x8);
  }
  PLIMSOLL_INLINE f32x16 rounded() const {
    return of_halves(__builtin_convertvector(low, f32x8), __builtin_convertvector(high, f32x8));
  }
};

constexpr int64_t kColumns = 64;  // that are added up together

template <class In, class Sum, class Out>
class CumulativeRows final : public OwnKernel {
 public:
  CumulativeRows(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads, AnyDType{}),
        rows_(axis_rows(graph.tensor(op.inputs[0]).shape, static_cast<size_t>(op.attributes.integer("axis")))),
        reverse_(op.attributes.integer("reverse", 0) != 0) {
    require_row_major(graph, op);
  }

  void run() override {
    const int64_t blocks = (rows_.inner + kColumns - 1) / kColumns;
    for_each_part(parts_, [&](int part) {
      const Range range = share(rows_.outer * blocks, part, parts_);
      for (int64_t i = range.begin; i < range.end; ++i) {
        const int64_t column = i % blocks * kColumns, first = i / blocks * rows_.length * rows_.inner + column;
        if (std::is_same_v<In, float> && rows_.inner == 1) {
          row(first);
        } else {
          columns(first, std::min(kColumns, rows_.inner - column));
        }
      }
    });
  }

 private:
  void row(int64_t first) const {
    if constexpr (std::is_same_v<In, float>) {
      const float* const x = input(0) + first;
      float* const y = output(0) + first;
      const int64_t whole = rows_.length / kLanes * kLanes;
      const int rest = static_cast<int>(rows_.length - whole);
      double sum = 0;
      if (reverse_) {
        if (rest > 0) sum += add_from_end(x + whole, y + whole, sum, rest);
        for (int64_t i = whole - kLanes; i >= 0; i -= kLanes) sum += add_from_end(x + i, y + i, sum, kAll);
        return;
      }
      for (int64_t i = 0; i < whole; i += kLanes) {
        const f32x16 sums = sums_to_lane(load(x + i));
        store(y + i, sums + splat(static_cast<float>(sum)));
        sum += static_cast<double>(sums[kLanes - 1]);
      }
      if (rest > 0) store(y + whole, sums_to_lane(load(x + whole, rest)) + splat(static_cast<float>(sum)), rest);
    }
  }
  // Returns the sum of the elements.
  template <class Count>
  PLIMSOLL_INLINE static double add_from_end(const float* x, float* y, double behind, Count count) {
    const f32x16 sums = sums_from_lane(load(x, count));
    store(y, sums + splat(static_cast<float>(behind)), count);
    return static_cast<double>(sums[0]);
  }

  void columns(int64_t first, int64_t count) const {
    const In* x = input<In>(0) + first;
    Out* y = output<Out>(0) + first;
    int64_t step = rows_.inner;
    if (reverse_) {
      x += (rows_.length - 1) * step;
      y += (rows_.length - 1) * step;
      step = -step;
    }
    if constexpr (std::is_same_v<In, float>) {
      if (count == kColumns) return add_vectors<kColumns / kLanes>(x, y, step, kAll);
      for (; count >= kLanes; count -= kLanes, x += kLanes, y += kLanes) add_vectors<1>(x, y, step, kAll);
      if (count > 0) add_vectors<1>(x, y, step, static_cast<int>(count));
      return;
    }
    Sum sums[kColumns] = {};
    for (int64_t i = 0; i < rows_.length; ++i, x += step, y += step) {
      for (int64_t c = 0; c < count; ++c) {
        sums[c] += static_cast<Sum>(x[c]);
        y[c] = static_cast<Out>(sums[c]);
      }
    }
  }

  template <int kVectors, class Count>
  PLIMSOLL_INLINE void add_vectors(const float* x, float* y, int64_t step, Count count) const {
    Doubles sums[kVectors];
    for (int64_t i = 0; i < rows_.length; ++i, x += step, y += step) {
      for (int k = 0; k < kVectors; ++k) {
        sums[k].add(load(x + k * kLanes, count));
        store(y + k * kLanes, sums[k].rounded(), count);
      }
    }
  }

  AxisRows rows_;
  bool reverse_;
};

std::unique_ptr<Kernel> make_cumulative_rows(const Graph& graph, const Op& op, std::string_view kernel, int threads) {
  require_own(op, kernel);
  switch (graph.tensor(op.inputs[0]).dtype) {  // whole numbers wrap around
    case DType::i32: return std::make_unique<CumulativeRows<int32_t, uint64_t, int64_t>>(graph, op, threads);
    case DType::i64: return std::make_unique<CumulativeRows<int64_t, uint64_t, int64_t>>(graph, op, threads);
    case DType::u8: return std::make_unique<CumulativeRows<uint8_t, uint64_t, int64_t>>(graph, op, threads);
    default: break;
  }
  require_f32(graph, op);
  return std::make_unique<CumulativeRows<float, double, float>>(graph, op, threads);
}

}  // namespace

std::vector<NamedFactory> cumulative_sum_kernels() {
  return {{"CumulativeSum", {own_specs_row_major, make_cumulative_rows}}};
}

}  // namespace plimsoll::cpu
