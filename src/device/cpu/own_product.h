// Products of small matrices inside a kernel, by one thread and without packing: a block of the result stays in
// registers while rows of b are loaded and elements of a are spread over the lanes. The caller cuts them so that b and
// the result stay in a core's cache.
#pragma once

#include "device/cpu/own.h"
#include "device/cpu/own_vector.h"

namespace plimsoll::cpu {

struct ProductSizes {
  int64_t rows, columns, depth;
};
// Element (row, k) lies at data[row * to_row + k * to_depth].
struct ProductFactor {
  const float* data;
  int64_t to_row, to_depth;
};

namespace product {

// How much of the result the registers hold: rows, by vectors of columns.
#ifdef __AVX512F__
inline constexpr int kMostVectors = 4;
constexpr int rows_of(int vectors) { return vectors > 2 ? 6 : 8; }
#else
inline constexpr int kMostVectors = 1;
constexpr int rows_of(int) { return 6; }
#endif

// The last vector has `tail` columns where kTail.
template <int kRows, int kVectors, bool kAdds, bool kTail>
PLIMSOLL_INLINE void block(int64_t depth, const float* a, int64_t to_row, int64_t to_depth, const float* b,
                           int64_t b_row, float* y, int64_t y_row, int tail) {
  const auto load_vector = [tail](const float* from, int v) {
    if constexpr (kTail) {
      if (v == kVectors - 1) return load(from + v * kLanes, tail);
    }
    return load(from + v * kLanes);
  };
  f32x16 sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[r][v] = kAdds ? load_vector(y + r * y_row, v) : f32x16{};
  }
  for (int64_t k = 0; k < depth; ++k, a += to_depth, b += b_row) {
    f32x16 row[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) row[v] = load_vector(b, v);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const f32x16 factor = splat(a[r * to_row]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[r][v] += factor * row[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      float* to = y + r * y_row + v * kLanes;
      if constexpr (kTail) {
        if (v == kVectors - 1) {
          store(to, sums[r][v], tail);
          continue;
        }
      }
      store(to, sums[r][v]);
    }
  }
}

template <int kVectors, bool kAdds, bool kTail>
void columns(int64_t rows, int64_t depth, const ProductFactor& a, const float* b, int64_t b_row, float* y,
             int64_t y_row, int tail) {
  constexpr int kRows = rows_of(kVectors);
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows) {
    block<kRows, kVectors, kAdds, kTail>(depth, a.data + r * a.to_row, a.to_row, a.to_depth, b, b_row, y + r * y_row,
                                         y_row, tail);
  }
  for (; r + 2 <= rows; r += 2) {
    block<2, kVectors, kAdds, kTail>(depth, a.data + r * a.to_row, a.to_row, a.to_depth, b, b_row, y + r * y_row, y_row,
                                     tail);
  }
  if (r < rows) {
    block<1, kVectors, kAdds, kTail>(depth, a.data + r * a.to_row, a.to_row, a.to_depth, b, b_row, y + r * y_row, y_row,
                                     tail);
  }
}

template <int kVectors, bool kAdds>
void some_columns(int vectors, int64_t rows, int64_t depth, const ProductFactor& a, const float* b, int64_t b_row,
                  float* y, int64_t y_row, int tail) {
  if constexpr (kVectors > 1) {
    if (vectors < kVectors) {
      return some_columns<kVectors - 1, kAdds>(vectors, rows, depth, a, b, b_row, y, y_row, tail);
    }
  }
  if (tail == kLanes) {
    columns<kVectors, kAdds, false>(rows, depth, a, b, b_row, y, y_row, tail);
  } else {
    columns<kVectors, kAdds, true>(rows, depth, a, b, b_row, y, y_row, tail);
  }
}

}  // namespace product

// y = a b, or y += a b; rows of b and of y lie so many elements apart.
template <bool kAdds>
void multiply(const ProductSizes& sizes, const ProductFactor& a, const float* b, int64_t b_row, float* y,
              int64_t y_row) {
  const int64_t vectors = (sizes.columns + kLanes - 1) / kLanes;
  const int64_t chunks = (vectors + product::kMostVectors - 1) / product::kMostVectors;
  const int tail = static_cast<int>(sizes.columns - (vectors - 1) * kLanes);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t begin = vectors * chunk / chunks, end = vectors * (chunk + 1) / chunks;
    product::some_columns<product::kMostVectors, kAdds>(static_cast<int>(end - begin), sizes.rows, sizes.depth, a,
                                                        b + begin * kLanes, b_row, y + begin * kLanes, y_row,
                                                        end == vectors ? tail : static_cast<int>(kLanes));
  }
}

}  // namespace plimsoll::cpu
