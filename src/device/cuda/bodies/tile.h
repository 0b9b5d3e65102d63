// Tiles of row-major matrices in shared memory, and their products by the threads of a block, each with a rectangle of
// the result in its registers. A thread's elements lie `apart` from each other, so that its neighbours read what lies
// next to what it reads; and rows begin 4 banks apart, so that eight threads read 16 bytes of a row each at once.
#pragma once

#include "device/cuda/bodies/common.h"

namespace plimsoll::cuda {

inline constexpr int kMostUnrolled = 512;  // multiplications in a row: what a GPU's first cache of instructions holds

template <int kRows, int kColumns>
struct Tile {
  static constexpr int kStride = kColumns + 4;
  alignas(16) float v[kRows * kStride];
  PLIMSOLL_BODY float* at(int row, int column) { return v + row * kStride + column; }
  PLIMSOLL_BODY const float* at(int row, int column) const { return v + row * kStride + column; }
};

// Four floats, or zeros. On a GPU they are under way until the phase ends, past the registers.
PLIMSOLL_BODY void copy_four(float* to, const float* from, bool are_there) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(are_there ? 16 : 0)
      : "memory");
#else
  store_four(to, are_there ? load_four(from) : Four{{0, 0, 0, 0}});
#endif
}

// A matrix's first `rows` rows of `width` elements, and zeros around them, there when the phase has ended. by_four: rows begin at
// multiples of 16 bytes.
template <int kThreads, int kRows, int kColumns>
PLIMSOLL_BODY void load_tile(Tile<kRows, kColumns>& tile, const float* from, int rows, int width, bool by_four,
                             int thread) {
  constexpr int kFours = kColumns / 4;
  if (by_four) {
    PLIMSOLL_UNROLL(8)
    for (int i = thread; i < kRows * kFours; i += kThreads) {
      const int row = i / kFours, column = i % kFours * 4;
      const bool are_there = row < rows && column < width;
      copy_four(tile.at(row, column), are_there ? from + static_cast<int64_t>(row) * width + column : from, are_there);
    }
  } else {
    PLIMSOLL_UNROLL(1)
    for (int i = thread; i < kRows * kColumns; i += kThreads) {
      const int row = i / kColumns, column = i % kColumns;
      *tile.at(row, column) = row < rows && column < width ? from[static_cast<int64_t>(row) * width + column] : 0;
    }
  }
}

template <int kRows, int kColumns>
PLIMSOLL_BODY void clear(float (&v)[kRows][kColumns]) {
  PLIMSOLL_UNROLL_ALL
  for (int i = 0; i < kRows; ++i) {
    PLIMSOLL_UNROLL_ALL
    for (int j = 0; j < kColumns; ++j) v[i][j] = 0;
  }
}

// out[i][j] += the product of a's row `row + i * kDown` and b's row `column + j * kAcross`, of their first `depth`
// elements, a multiple of 8.
template <int kDown, int kAcross, int kRows, int kColumns, class A, class B>
PLIMSOLL_BODY void add_rows_by_rows(float (&out)[kRows][kColumns], const A& a, const B& b, int row, int column,
                                    int depth) {
  PLIMSOLL_UNROLL(1)
  for (int e = 0; e < depth; e += 8) {
    PLIMSOLL_UNROLL_ALL
    for (int half = 0; half < 8; half += 4) {
      Four left[kRows];
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < kRows; ++i) left[i] = load_four(a.at(row + i * kDown, e + half));
      PLIMSOLL_UNROLL_ALL
      for (int j = 0; j < kColumns; ++j) {
        const Four right = load_four(b.at(column + j * kAcross, e + half));
        PLIMSOLL_UNROLL_ALL
        for (int k = 0; k < 4; ++k) {
          PLIMSOLL_UNROLL_ALL
          for (int i = 0; i < kRows; ++i) out[i][j] += left[i].v[k] * right.v[k];
        }
      }
    }
  }
}

// A thread's columns are fours, kAcross fours apart: column j of out is that of b at `column_of_four`.
template <int kAcross>
PLIMSOLL_BODY int column_of_four(int across, int four) {
  return (across + four * kAcross) * 4;
}

// out[i][...] += the product of a's row `row + i * kDown` and b's columns.
template <int kDown, int kAcross, int kDepth, int kRows, int kColumns, class A, class B>
PLIMSOLL_BODY void add_rows_by_columns(float (&out)[kRows][kColumns], const A& a, const B& b, int row, int across) {
  [[maybe_unused]] constexpr int kTimes = kMostUnrolled / (4 * kRows * kColumns);
  PLIMSOLL_UNROLL(kTimes)
  for (int s = 0; s < kDepth; s += 4) {
    Four left[kRows];
    PLIMSOLL_UNROLL_ALL
    for (int i = 0; i < kRows; ++i) left[i] = load_four(a.at(row + i * kDown, s));
    PLIMSOLL_UNROLL_ALL
    for (int k = 0; k < 4; ++k) {
      PLIMSOLL_UNROLL_ALL
      for (int q = 0; q < kColumns / 4; ++q) {
        const Four right = load_four(b.at(s + k, column_of_four<kAcross>(across, q)));
        PLIMSOLL_UNROLL_ALL
        for (int m = 0; m < 4; ++m) {
          PLIMSOLL_UNROLL_ALL
          for (int i = 0; i < kRows; ++i) out[i][4 * q + m] += left[i].v[k] * right.v[m];
        }
      }
    }
  }
}
// The same with two of a, which share what is read of b.
template <int kDown, int kAcross, int kDepth, int kRows, int kColumns, class A, class A2, class B>
PLIMSOLL_BODY void add_rows_by_columns(float (&out)[kRows][kColumns], float (&out2)[kRows][kColumns], const A& a,
                                       const A2& a2, const B& b, int row, int across) {
  [[maybe_unused]] constexpr int kTimes = kMostUnrolled / (8 * kRows * kColumns);
  PLIMSOLL_UNROLL(kTimes)
  for (int s = 0; s < kDepth; s += 4) {
    Four left[kRows], left2[kRows];
    PLIMSOLL_UNROLL_ALL
    for (int i = 0; i < kRows; ++i) {
      left[i] = load_four(a.at(row + i * kDown, s));
      left2[i] = load_four(a2.at(row + i * kDown, s));
    }
    PLIMSOLL_UNROLL_ALL
    for (int k = 0; k < 4; ++k) {
      PLIMSOLL_UNROLL_ALL
      for (int q = 0; q < kColumns / 4; ++q) {
        const Four right = load_four(b.at(s + k, column_of_four<kAcross>(across, q)));
        PLIMSOLL_UNROLL_ALL
        for (int m = 0; m < 4; ++m) {
          PLIMSOLL_UNROLL_ALL
          for (int i = 0; i < kRows; ++i) {
            out[i][4 * q + m] += left[i].v[k] * right.v[m];
            out2[i][4 * q + m] += left2[i].v[k] * right.v[m];
          }
        }
      }
    }
  }
}

// out[...][...] += the product of a's columns and b's columns: a thread's rows are fours of a's columns, kDown fours apart.
template <int kDown, int kAcross, int kDepth, int kRows, int kColumns, class A, class B>
PLIMSOLL_BODY void add_columns_by_columns(float (&out)[kRows][kColumns], const A& a, const B& b, int down, int across) {
  [[maybe_unused]] constexpr int kTimes = kMostUnrolled / (kRows * kColumns);
  PLIMSOLL_UNROLL(kTimes)
  for (int s = 0; s < kDepth; ++s) {
    Four left[kRows / 4];
    PLIMSOLL_UNROLL_ALL
    for (int p = 0; p < kRows / 4; ++p) left[p] = load_four(a.at(s, column_of_four<kDown>(down, p)));
    PLIMSOLL_UNROLL_ALL
    for (int q = 0; q < kColumns / 4; ++q) {
      const Four right = load_four(b.at(s, column_of_four<kAcross>(across, q)));
      PLIMSOLL_UNROLL_ALL
      for (int m = 0; m < 4; ++m) {
        PLIMSOLL_UNROLL_ALL
        for (int i = 0; i < kRows; ++i) out[i][4 * q + m] += left[i / 4].v[i % 4] * right.v[m];
      }
    }
  }
}

// A thread's rectangle of a result into a matrix of `width` columns.
template <int kAcross, int kRows, int kColumns>
PLIMSOLL_BODY void store_row(float* to, const float (&v)[kRows][kColumns], int i, float factor, int width, bool by_four,
                             int across) {
  PLIMSOLL_UNROLL_ALL
  for (int q = 0; q < kColumns / 4; ++q) {
    const int column = column_of_four<kAcross>(across, q);
    if (by_four) {
      if (column >= width) continue;
      store_four(to + column, {{v[i][4 * q] * factor, v[i][4 * q + 1] * factor, v[i][4 * q + 2] * factor,
                                v[i][4 * q + 3] * factor}});
    } else {
      PLIMSOLL_UNROLL_ALL
      for (int m = 0; m < 4; ++m) {
        if (column + m < width) to[column + m] = v[i][4 * q + m] * factor;
      }
    }
  }
}

}  // namespace plimsoll::cuda
