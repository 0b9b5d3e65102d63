// Tiles of row-major matrices in shared memory. Rows begin 4 banks apart, so that eight threads read 16 bytes of a row each, or four
// threads a number of each of eight rows, at once.
#pragma once

#include "device/cuda/bodies/common.h"

namespace plimsoll::cuda {

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

}  // namespace plimsoll::cuda
