// Products of matrices in single precision by the tile unit of Intel's processors (AMX), which multiplies bf16.
//
// A float has 24 bits, a bf16 8: it is cut into three, x = high + middle + low, without a remainder. Of the nine products of two
// floats' parts the three smallest are left out, which together are less than 2^-21 of the whole, mostly 2^-23:
//
//   a b = high high + (high middle + middle high) + (middle middle + high low + low high)
//
// The tile unit multiplies sixteen times as much at a time as AVX-512, so six products are still faster. Sums are in single
// precision. (Henry, Tang, Heinecke 2019, "Leveraging the bfloat16 artificial intelligence datatype for higher-precision
// computations".)
//
// Numbers below 1e-33 lose bits, as the tile unit takes parts that are not normal as zero. Of an infinite number nothing is left that
// could be cut, so the sum is not a number.
#pragma once

#include <cstdint>

#include "device/cpu/own.h"

namespace plimsoll::cpu::amx {

// Whether this processor has it, Linux lets the process use it, and ONEDNN_MAX_CPU_ISA does not forbid it.
bool is_there();

// Line i (a row of a, a column of b) and depth k lie at from[i * line + k * depth]; one of the two strides is 1.
struct Factor {
  const float* from = nullptr;
  int64_t line = 1, depth = 1;
};

// y = a b, with a bias for each column and ReLU where they are wanted; rows of y have no gaps.
struct Product {
  int64_t rows = 0, columns = 0, depth = 0;
  Factor a, b;
  float* y = nullptr;
  const float* bias = nullptr;
  bool relu = false;
};

// How a product is cut: by blocks of columns and of depth, for which b is cut into its parts once, by all threads together, and by
// blocks of rows of a, which stay in a core's cache meanwhile.
class Blocks {
 public:
  Blocks(int64_t rows, int64_t columns, int64_t depth, int parts);
  int64_t workspace_bytes() const { return b_bytes_ + parts_ * a_bytes_; }
  void run(const Product& product, std::byte* workspace) const;  // of these sizes

 private:
  void run_block(const Product& product, Range columns, Range depth, std::byte* workspace) const;

  int parts_;
  bool by_columns_;                 // is how threads divide the result
  int64_t depth_, columns_, rows_;  // of a block
  int64_t a_bytes_, b_bytes_;
};

}  // namespace plimsoll::cpu::amx
