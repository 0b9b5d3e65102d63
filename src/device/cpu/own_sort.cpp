// Sort and TopK. An element and its place make one whole number, ordered as the elements are: then no two are equal, and
// however the numbers are sorted, what is equal keeps its order. Long rows are sorted by the digits of their numbers.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "device/cpu/own_digits.h"
#include "device/cpu/own_rows.h"
#include "ops/axis_rows.h"
#include "plimsoll/ops.h"

namespace plimsoll::cpu {
namespace {

// Without a sign, in the order of the elements: what is not a number comes last, and zeros of both signs are equal.
PLIMSOLL_INLINE uint32_t order_of(float x) {
  if (x != x) return std::numeric_limits<uint32_t>::max();
  const uint32_t bits = bits_as<uint32_t>(x + 0.0f), sign = 0x80000000u;
  return (bits & sign) != 0 ? ~bits : bits | sign;
}
PLIMSOLL_INLINE uint32_t order_of(int32_t x) { return static_cast<uint32_t>(x) ^ 0x80000000u; }
PLIMSOLL_INLINE uint32_t order_of(uint8_t x) { return x; }
PLIMSOLL_INLINE uint64_t order_of(int64_t x) { return static_cast<uint64_t>(x) ^ (uint64_t{1} << 63); }

constexpr int64_t kDigitsPay = 128;  // in rows of as many elements

// The first `wanted` of the numbers in order.
template <class Number>
void sort_first(Number* numbers, Number* other, int64_t count, int64_t wanted) {
  if (wanted * 16 <= count) return std::partial_sort(numbers, numbers + wanted, numbers + count);
  if (wanted < count) {
    std::nth_element(numbers, numbers + wanted, numbers + count);
    return std::sort(numbers, numbers + wanted);
  }
  count < kDigitsPay ? std::sort(numbers, numbers + count) : sort_by_digits(numbers, other, count);
}

template <class T>
class SortedRows final : public OwnKernel {
 public:
  SortedRows(const Graph& graph, const Op& op, int threads) : OwnKernel(graph, op, threads, AnyDType{}) {
    require_row_major(graph, op);
    const size_t axis = static_cast<size_t>(op.attributes.integer("axis"));
    rows_ = axis_rows(graph.tensor(op.inputs[0]).shape, axis);
    wanted_ = graph.tensor(op.outputs[0]).shape[axis];
    const bool top = op.type->name == "TopK";
    const bool largest_first = op.attributes.integer(top ? "largest" : "descending", top ? 1 : 0) != 0;
    flipped_ = largest_first ? ~Key{0} : Key{0};
    if (rows_.length > std::numeric_limits<uint32_t>::max()) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("op '{}' ({}): rows of {} elements; at most {} are sorted", op.name, op.type->name,
                              rows_.length, std::numeric_limits<uint32_t>::max()));
    }
    // Rows side by side are read together, as far as they stay in the cache.
    columns_ = std::min(rows_.inner, std::clamp<int64_t>(16384 / rows_.length, 1, 16));
    part_numbers_ = (columns_ + 1) * rows_.length;
    workspace_bytes_ = {parts_ * part_numbers_ * static_cast<int64_t>(sizeof(Number))};
  }

  void run() override {
    const int64_t blocks = (rows_.inner + columns_ - 1) / columns_;
    for_each_part(parts_, [&](int part) {
      const Range range = share(rows_.outer * blocks, part, parts_);
      Number* const numbers = static_cast<Number*>(workspace_) + part * part_numbers_;
      for (int64_t i = range.begin; i < range.end; ++i) {
        const int64_t outer = i / blocks, column = i % blocks * columns_;
        sort_columns(outer, column, std::min(columns_, rows_.inner - column), numbers);
      }
    });
  }

 private:
  using Key = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  using Number = std::conditional_t<sizeof(T) == 8, unsigned __int128, uint64_t>;
  static constexpr int kPlaceBits = 8 * sizeof(Key);

  void sort_columns(int64_t outer, int64_t column, int64_t columns, Number* numbers) const {
    const int64_t length = rows_.length, inner = rows_.inner;
    const T* const x = input<T>(0) + outer * length * inner + column;
    for (int64_t i = 0; i < length; ++i) {
      for (int64_t c = 0; c < columns; ++c) {
        const Key key = order_of(x[i * inner + c]) ^ flipped_;
        numbers[c * length + i] = Number{key} << kPlaceBits | static_cast<Key>(i);
      }
    }
    for (int64_t c = 0; c < columns; ++c) {
      sort_first(numbers + c * length, numbers + columns_ * length, length, wanted_);
    }
    const int64_t first = outer * wanted_ * inner + column;
    T* const y = output<T>(0) + first;
    int64_t* const indices = output<int64_t>(1) + first;
    for (int64_t i = 0; i < wanted_; ++i) {
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t place = static_cast<int64_t>(static_cast<Key>(numbers[c * length + i]));
        y[i * inner + c] = x[place * inner + c];
        indices[i * inner + c] = place;
      }
    }
  }

  AxisRows rows_;
  int64_t wanted_ = 1, columns_ = 1, part_numbers_ = 1;
  Key flipped_ = 0;
};

std::unique_ptr<Kernel> make_sorted_rows(const Graph& graph, const Op& op, std::string_view kernel, int threads) {
  require_own(op, kernel);
  switch (graph.tensor(op.inputs[0]).dtype) {
    case DType::i32: return std::make_unique<SortedRows<int32_t>>(graph, op, threads);
    case DType::i64: return std::make_unique<SortedRows<int64_t>>(graph, op, threads);
    case DType::u8: return std::make_unique<SortedRows<uint8_t>>(graph, op, threads);
    default: break;
  }
  require_f32(graph, op);
  return std::make_unique<SortedRows<float>>(graph, op, threads);
}

}  // namespace

std::vector<NamedFactory> sort_kernels() {
  return {{"Sort", {own_specs_row_major, make_sorted_rows}}, {"TopK", {own_specs_row_major, make_sorted_rows}}};
}

}  // namespace plimsoll::cpu
