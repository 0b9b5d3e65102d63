// Reduce. The input is walked as it lies, its dimensions merged to runs that are kept and runs that are summed:
//
//   rows      ... kept, summed     each result is a sum of rows of neighbours
//   columns   ... summed, kept     neighbouring results are summed side by side, a piece of a row at a time
//
// Rows of few neighbours are summed sixteen results side by side, since each has too few elements for a vector of its own.
//
// Threads share out results where there are enough of them, and otherwise the elements that are summed; then each keeps
// results of its own in the workspace, which are put together in the order of the threads.
#include <fmt/format.h>

#include <cmath>

#include "device/cpu/own_stretched.h"
#include "device/cpu/own_vector.h"
#include "ops/broadcast.h"
#include "ops/reduced.h"
#include "plimsoll/ops.h"

namespace plimsoll::cpu {
namespace {

template <class T>
PLIMSOLL_INLINE f32x16 load_converted(const T* from, int64_t count) {
  f32x16 v{};
  for (int64_t i = 0; i < count; ++i) v[i] = static_cast<float>(from[i]);
  return v;
}
PLIMSOLL_INLINE f32x16 load_converted(const float* from, int64_t count) {
  return count == kLanes ? load(from) : load(from, static_cast<int>(count));
}

// How two results become one. What is not a number wins.
struct Elements {  // as they are
  PLIMSOLL_INLINE static f32x16 taken(f32x16 x) { return x; }
  static double taken(double x) { return x; }
};
struct SumOf : Elements {
  static constexpr float kStart = 0;
  PLIMSOLL_INLINE static f32x16 join(f32x16 a, f32x16 b) { return a + b; }
  static double join(double a, double b) { return a + b; }
};
struct SumOfSquares : SumOf {
  PLIMSOLL_INLINE static f32x16 taken(f32x16 x) { return x * x; }
  static double taken(double x) { return x * x; }
};
struct LargestOf : Elements {
  static constexpr float kStart = -__builtin_inff();
  PLIMSOLL_INLINE static f32x16 join(f32x16 a, f32x16 b) { return choose((b > a) | (b != b), b, a); }
  static double join(double a, double b) { return b > a || b != b ? b : a; }
};
struct SmallestOf : Elements {
  static constexpr float kStart = __builtin_inff();
  PLIMSOLL_INLINE static f32x16 join(f32x16 a, f32x16 b) { return choose((b < a) | (b != b), b, a); }
  static double join(double a, double b) { return b < a || b != b ? b : a; }
};

constexpr int64_t kRowPiece = 4096;     // elements that are summed in single precision
constexpr int64_t kColumnPiece = 1024;  // neighbouring results at a time
constexpr int64_t kColumnRows = 32;     // rows that are summed in single precision
constexpr int64_t kNarrow = 48;         // neighbours of a row, at most, that are summed with other rows side by side

// Of `count` neighbours.
template <class Join, class T>
double join_row(const T* x, int64_t count) {
  double result = static_cast<double>(Join::kStart);
  for (int64_t begin = 0; begin < count; begin += kRowPiece) {
    const int64_t end = std::min(count, begin + kRowPiece);
    f32x16 a = splat(Join::kStart), b = a, c = a, d = a;
    int64_t i = begin;
    for (; i + 4 * kLanes <= end; i += 4 * kLanes) {
      a = Join::join(a, Join::taken(load_converted(x + i, kLanes)));
      b = Join::join(b, Join::taken(load_converted(x + i + kLanes, kLanes)));
      c = Join::join(c, Join::taken(load_converted(x + i + 2 * kLanes, kLanes)));
      d = Join::join(d, Join::taken(load_converted(x + i + 3 * kLanes, kLanes)));
    }
    for (; i + kLanes <= end; i += kLanes) a = Join::join(a, Join::taken(load_converted(x + i, kLanes)));
    a = Join::join(Join::join(a, b), Join::join(c, d));
    float lanes[kLanes];
    store(lanes, a);
    double piece = static_cast<double>(Join::kStart);
    for (float lane : lanes) piece = Join::join(piece, static_cast<double>(lane));
    for (; i < end; ++i) piece = Join::join(piece, Join::taken(static_cast<double>(x[i])));
    result = Join::join(result, piece);
  }
  return result;
}

// A matrix is a weight, maybe, that lies in blocks of any size. What has more dimensions lies as the family does, where
// the division of the work, and with it the workspace, depends on that.
bool may_lie_in_blocks(const Tensor& x, const Tensor& y) {
  const std::vector<int64_t> all(x.shape.size(), 1);
  return (x.shape.size() <= 2 || element_count(y.shape) == 1) && never_padded(x.shape, all);
}

class ReduceKernel final : public OwnKernel {
 public:
  ReduceKernel(const Graph& graph, const Op& op, int threads)
      : OwnKernel(graph, op, threads), function_(reduce_function(op.attributes)) {
    const Tensor &x = graph.tensor(op.inputs[0]), &y = graph.tensor(op.outputs[0]);
    dtype_ = x.dtype;
    if (storage_elements(x.shape, x.layout) != element_count(x.shape) ||
        storage_elements(y.shape, y.layout) != element_count(y.shape)) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("op '{}' (Reduce): '{}' lies in layout '{}', '{}' in '{}'; nothing may be padded",
                              op.name, x.name, x.layout.tag, y.name, y.layout.tag));
    }
    lay_out(op, x, y);
    results_ = element_count(y.shape);
    in_blocks_ = results_ > 1 && may_lie_in_blocks(x, y);
    share_ = is_mean(function_) ? 1.0 / static_cast<double>(element_count(x.shape) / results_) : 1;
    choose_division();
  }

  void run() override {
    switch (dtype_) {
      case DType::f32: return run_on<float>();
      case DType::i32: return run_on<int32_t>();
      case DType::i64: return run_on<int64_t>();
      case DType::u8: return run_on<uint8_t>();
      default: return;
    }
  }

 private:
  // The axes in the order of the input's storage, neighbours of one kind merged.
  void lay_out(const Op& op, const Tensor& x, const Tensor& y) {
    const std::vector<bool> reduced = reduced_dimensions(op.attributes, x.shape);
    const std::vector<int64_t> to = result_steps(x, y, reduced);
    struct Axis {
      int64_t size, from, to;
      bool reduced;
    };
    std::vector<Axis> axes;
    int64_t from = element_count(x.shape);
    for (const StorageAxis& axis : storage_axes(x)) {
      from /= axis.size;
      if (axis.size == 1) continue;
      const Axis next{axis.size, from, to[axis.dimension] * axis.factor, reduced[axis.dimension]};
      if (!axes.empty() && axes.back().reduced == next.reduced && axes.back().to == next.size * next.to) {
        axes.back() = {axes.back().size * next.size, next.from, next.to, next.reduced};
      } else {
        axes.push_back(next);
      }
    }
    if (axes.empty()) axes.push_back({1, 1, 1, true});
    inner_ = axes.back().size;
    inner_to_ = axes.back().to;
    columns_ = !axes.back().reduced;
    axes.pop_back();
    for (const Axis& axis : axes) {
      if (axis.reduced) {
        summed_.push({axis.size, axis.from});
        rows_ *= axis.size;
      } else {
        // Not merged, so that both walks have the same axes.
        kept_from_.axes[kept_from_.count++] = {axis.size, axis.from};
        kept_to_.axes[kept_to_.count++] = {axis.size, axis.to};
        kept_ *= axis.size;
      }
    }
  }
  // By dimension of the input: how far the results of neighbours are apart.
  static std::vector<int64_t> result_steps(const Tensor& x, const Tensor& y, const std::vector<bool>& reduced) {
    Shape kept = x.shape;
    for (size_t d = 0; d < kept.size(); ++d) {
      if (reduced[d]) kept[d] = 1;
    }
    if (y.layout.is_plain() || y.shape.size() != kept.size()) return strides_over(kept, x.shape);
    // The results in a layout of their own.
    std::vector<int64_t> steps(kept.size(), 0);
    int64_t step = element_count(y.shape);
    for (const StorageAxis& axis : storage_axes(y)) {
      step /= axis.size;
      if (axis.size == 1) continue;
      if (axis.factor != 1 && step != axis.factor) {
        throw Error(ErrorCode::unsupported, fmt::format("a Reduce into '{}' in layout '{}'", y.name, y.layout.tag));
      }
      if (axis.factor == 1) steps[axis.dimension] = step;
    }
    return steps;
  }

  void choose_division() {
    pieces_ = columns_ ? (inner_ + kColumnPiece - 1) / kColumnPiece : 1;
    const int64_t items = kept_ * pieces_;
    // The workspace of what may lie in blocks is booked before it is known how it lies.
    if (parts_ > 1 && in_blocks_) workspace_bytes_ = {static_cast<int64_t>(sizeof(double)) * parts_ * results_};
    if (parts_ == 1 || items >= 4 * parts_) return;
    along_ = columns_ || rows_ >= 4 * parts_ ? Along::rows : Along::inner;
    if (along_ == Along::rows && rows_ < 2 * parts_) {
      along_ = Along::results;
      return;
    }
    workspace_bytes_ = {static_cast<int64_t>(sizeof(double)) * parts_ * results_};
  }

  template <class T>
  void run_on() {
    switch (function_) {
      case ReduceFunction::sum:
      case ReduceFunction::mean: return run_by<SumOf, T>();
      case ReduceFunction::max: return run_by<LargestOf, T>();
      case ReduceFunction::min: return run_by<SmallestOf, T>();
      case ReduceFunction::mean_of_squares: return run_by<SumOfSquares, T>();
    }
  }
  template <class Join, class T>
  void run_by() {
    float* const y = output(0);
    const auto result = [&](int64_t at, double value) { y[at] = static_cast<float>(value * share_); };
    if (along_ == Along::results) {
      for_each_part(parts_, [&](int part) {
        const Range items = share(kept_ * pieces_, part, parts_);
        reduce<Join, T>(items, {0, rows_}, {0, inner_}, result);
      });
      return;
    }
    double* const partial = static_cast<double*>(workspace_);
    for_each_part(parts_, [&](int part) {
      double* const mine = partial + part * results_;
      const bool rows = along_ == Along::rows;
      reduce<Join, T>({0, kept_ * pieces_}, rows ? share(rows_, part, parts_) : Range{0, rows_},
                      rows ? Range{0, inner_} : share(inner_, part, parts_, kLanes),
                      [&](int64_t at, double value) { mine[at] = value; });
    });
    for (int64_t i = 0; i < results_; ++i) {
      double value = partial[i];
      for (int part = 1; part < parts_; ++part) value = Join::join(value, partial[part * results_ + i]);
      result(i, value);
    }
  }

  // Results of `items` from some of the rows, of each some of the elements (all of them in columns).
  template <class Join, class T, class Result>
  void reduce(Range items, Range rows, Range elements, const Result& result) const {
    if constexpr (std::is_same_v<T, float>) {  // few whole numbers are summed in double precision
      if (!columns_ && inner_ <= kNarrow && elements.begin == 0 && elements.end == inner_)
        return join_narrow<Join>(items, rows, result);
    }
    const T* const x = input<T>(0);
    for (int64_t item = items.begin; item < items.end; ++item) {
      const int64_t kept = item / pieces_, piece = item % pieces_;
      const T* const from = x + Walk(kept_from_, kept).offset();
      const int64_t to = Walk(kept_to_, kept).offset();
      if (columns_) {
        const int64_t first = piece * kColumnPiece, count = std::min(kColumnPiece, inner_ - first);
        join_columns<Join>(from + first, count, rows,
                           [&](int64_t i, double v) { result(to + (first + i) * inner_to_, v); });
        continue;
      }
      double value = static_cast<double>(Join::kStart);
      Walk walk(summed_, rows.begin);
      for (int64_t r = rows.begin; r < rows.end; ++r, walk.advance(1)) {
        value = Join::join(value, join_row<Join>(from + walk.offset() + elements.begin, elements.end - elements.begin));
      }
      result(to, value);
    }
  }
  template <class Join, class Result>
  void join_narrow(Range items, Range rows, const Result& result) const {
    const int64_t rows_at_once = std::max<int64_t>(1, kNarrow / inner_);  // in single precision
    Walk from(kept_from_, items.begin), to(kept_to_, items.begin);
    for (int64_t item = items.begin; item < items.end; item += kLanes) {
      const int64_t count = std::min(kLanes, items.end - item);
      const float* lane[kLanes];
      int64_t place[kLanes];
      for (int64_t i = 0; i < count; ++i, from.advance(1), to.advance(1)) {
        lane[i] = input(0) + from.offset();
        place[i] = to.offset();
      }
      std::fill(lane + count, lane + kLanes, lane[0]);
      double all[kLanes];
      std::fill(all, all + kLanes, static_cast<double>(Join::kStart));
      Walk walk(summed_, rows.begin);
      for (int64_t begin = rows.begin; begin < rows.end; begin += rows_at_once) {
        f32x16 some = splat(Join::kStart);
        for (int64_t r = begin; r < std::min(rows.end, begin + rows_at_once); ++r, walk.advance(1)) {
          for (int64_t j = walk.offset(); j < walk.offset() + inner_; ++j) {
            f32x16 v;
            for (int64_t i = 0; i < kLanes; ++i) v[i] = lane[i][j];
            some = Join::join(some, Join::taken(v));
          }
        }
        for (int64_t i = 0; i < kLanes; ++i) all[i] = Join::join(all[i], static_cast<double>(some[i]));
      }
      for (int64_t i = 0; i < count; ++i) result(place[i], all[i]);
    }
  }
  template <class Join, class T, class Result>
  void join_columns(const T* from, int64_t count, Range rows, const Result& result) const {
    float some[kColumnPiece];
    double all[kColumnPiece];
    std::fill(all, all + count, static_cast<double>(Join::kStart));
    Walk walk(summed_, rows.begin);
    for (int64_t begin = rows.begin; begin < rows.end; begin += kColumnRows) {
      const int64_t end = std::min(rows.end, begin + kColumnRows);
      std::fill(some, some + count, Join::kStart);
      for (int64_t r = begin; r < end; ++r, walk.advance(1)) {
        const T* const row = from + walk.offset();
        int64_t i = 0;
        for (; i + kLanes <= count; i += kLanes)
          store(some + i, Join::join(load(some + i), Join::taken(load_converted(row + i, kLanes))));
        if (i < count) store(some + i, Join::join(load(some + i), Join::taken(load_converted(row + i, count - i))));
      }
      for (int64_t i = 0; i < count; ++i) all[i] = Join::join(all[i], static_cast<double>(some[i]));
    }
    for (int64_t i = 0; i < count; ++i) result(i, all[i]);
  }

  enum class Along : uint8_t { results, rows, inner };  // what threads share

  ReduceFunction function_;
  bool in_blocks_ = false;
  DType dtype_ = DType::f32;
  int64_t inner_ = 1, inner_to_ = 1, rows_ = 1, kept_ = 1, results_ = 1, pieces_ = 1;
  bool columns_ = false;
  double share_ = 1;
  Along along_ = Along::results;
  Stretched summed_, kept_from_, kept_to_;
};

std::vector<KernelSpec> reduce_specs(const Graph& graph, const Op& op, LayoutFamily family, int) {
  require_f32(graph, op);
  const Tensor &x = graph.tensor(op.inputs[0]), &y = graph.tensor(op.outputs[0]);
  KernelSpec spec{.name = "own", .inputs = {Layout{}}, .outputs = {Layout{}}};
  if (x.dtype != DType::f32) return {spec};
  if (x.shape.size() == 4 && (family != LayoutFamily::blocked || x.shape[1] % 16 == 0))
    spec.inputs[0] = family_layout(family, 4);
  if (may_lie_in_blocks(x, y)) spec.inputs[0] = kAnyLayout;
  if (y.shape.size() == 4 && lies_row_major(y.shape, family)) spec.outputs[0] = family_layout(family, 4);
  return {spec};
}

}  // namespace

std::vector<NamedFactory> reduce_kernels() { return {{"Reduce", {reduce_specs, make_own<ReduceKernel>}}}; }

}  // namespace plimsoll::cpu
