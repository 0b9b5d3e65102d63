// Sort, TopK (ops/sort.cpp) and CumulativeSum along an axis.
//
// Short rows: a thread an element counts what comes before it. Long rows: their places, in as many as the next power of
// two, are sorted by K. E. Batcher's bitonic network ("Sorting networks and their applications", AFIPS 1968), a launch
// a step.
#pragma once

#include "device/cuda/bodies/axis.h"

namespace plimsoll::cuda {

// The order of a row's places: by their elements, and by themselves where these are equal; behind them places that do
// not exist. What is not a number is larger than all that are.
template <class T>
struct RowOrder {
  const T* x;
  AxisPlace place;
  bool largest_first;
  PLIMSOLL_BODY static bool smaller(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (a != a || b != b) return a == a;
    }
    return a < b;
  }
  PLIMSOLL_BODY bool precedes(int64_t first, int64_t a, int64_t b) const {
    if (a >= place.length || b >= place.length) return a < b;
    const T of_a = x[first + a * place.inner], of_b = x[first + b * place.inner];
    if (smaller(of_a, of_b)) return !largest_first;
    if (smaller(of_b, of_a)) return largest_first;
    return a < b;
  }
};

template <class T>
struct SortByRanks {
  using Kind = EachElement;
  T* y;
  int64_t* indices;
  RowOrder<T> order;
  int64_t wanted;  // of each row
  PLIMSOLL_BODY void run(int64_t i) const {
    const Division element = divide(i, order.place.length);
    const int64_t first = first_of(order.place, element.quotient);
    int64_t rank = 0;
    for (int64_t other = 0; other < order.place.length; ++other)
      rank += order.precedes(first, other, element.remainder) ? 1 : 0;
    if (rank >= wanted) return;
    const int64_t to = first_of(order.place, wanted, element.quotient) + rank * order.place.inner;
    y[to] = order.x[first + element.remainder * order.place.inner];
    indices[to] = element.remainder;
  }
};

// A row's places, in order; `padded` is a power of two.
struct PlacesInOrder {
  using Kind = EachElement;
  int32_t* places;
  int64_t padded;
  PLIMSOLL_BODY void run(int64_t i) const { places[i] = static_cast<int32_t>(i & (padded - 1)); }
};
// Compares places `distance` apart. Runs of `run_length` come in order, every second one the other way round.
template <class T>
struct SortStep {
  using Kind = EachElement;
  int32_t* places;
  RowOrder<T> order;
  int64_t padded, run_length, distance;  // powers of two
  PLIMSOLL_BODY void run(int64_t i) const {
    const Division pair = divide(i, padded / 2);
    const int64_t low = 2 * pair.remainder - (pair.remainder & (distance - 1));
    int32_t& a = places[pair.quotient * padded + low];
    int32_t& b = places[pair.quotient * padded + low + distance];
    const bool in_order = (low & run_length) == 0;
    if (order.precedes(first_of(order.place, pair.quotient), b, a) != in_order) return;
    const int32_t swapped = a;
    a = b;
    b = swapped;
  }
};
template <class T>
struct TakeSorted {
  using Kind = EachElement;
  T* y;
  int64_t* indices;
  const T* x;
  const int32_t* places;
  AxisPlace place;
  int64_t padded;
  Divisor wanted;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Division element = divide(i, wanted);
    const int32_t from = places[element.quotient * padded + element.remainder];
    const int64_t to = first_of(place, wanted, element.quotient) + element.remainder * place.inner;
    y[to] = x[first_of(place, element.quotient) + from * place.inner];
    indices[to] = from;
  }
};

// Sums along a row: pieces of a row are added up, then the pieces before each, then from there within each.
template <class T>
struct RunningSum {
  using Number = int64_t;
  using Result = int64_t;
};
template <>
struct RunningSum<float> {
  using Number = double;
  using Result = float;
};
struct RowPieces {
  AxisPlace place;
  bool reverse;
  Divisor rows;
  int64_t piece, pieces;  // elements of a piece, pieces of a row
  // body(element) for those of a piece, in the order of the sums. Neighbouring i are of neighbouring rows.
  template <class Body>
  PLIMSOLL_BODY void each(int64_t i, const Body& body) const {
    const Division of = divide(i, rows);
    const int64_t first = first_of(place, of.remainder), begin = of.quotient * piece;
    const int64_t end = smaller(begin + piece, place.length);
    for (int64_t k = begin; k < end; ++k) body(first + (reverse ? place.length - 1 - k : k) * place.inner);
  }
};
template <class T>
struct PieceSums {
  using Kind = EachElement;
  using Number = typename RunningSum<T>::Number;
  Number* sums;
  const T* x;
  RowPieces pieces;
  PLIMSOLL_BODY void run(int64_t i) const {
    Number sum = 0;
    pieces.each(i, [&](int64_t at) { sum += static_cast<Number>(x[at]); });
    sums[i] = sum;
  }
};
template <class Number>
struct SumsBefore {
  using Kind = EachElement;
  Number* sums;
  int64_t rows, pieces;
  PLIMSOLL_BODY void run(int64_t row) const {
    Number sum = 0;
    for (int64_t p = 0; p < pieces; ++p) {
      const Number own = sums[p * rows + row];
      sums[p * rows + row] = sum;
      sum += own;
    }
  }
};
template <class T>
struct CumulativeSums {
  using Kind = EachElement;
  using Number = typename RunningSum<T>::Number;
  typename RunningSum<T>::Result* y;
  const T* x;
  const Number* sums;  // null where a row is one piece
  RowPieces pieces;
  PLIMSOLL_BODY void run(int64_t i) const {
    Number sum = sums != nullptr ? sums[i] : 0;
    pieces.each(i, [&](int64_t at) {
      sum += static_cast<Number>(x[at]);
      y[at] = static_cast<typename RunningSum<T>::Result>(sum);
    });
  }
};

}  // namespace plimsoll::cuda
