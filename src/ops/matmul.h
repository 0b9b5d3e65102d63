// Which matrices a MatMul multiplies: its batch dimensions as few strides as will do, so that a device has to run large
// products and few of them.
#pragma once

#include <vector>

#include "plimsoll/ops.h"

namespace plimsoll {

// y[m,n] = a[m,k] b[k,n] for every element of the batch, row-major; a lies as [k,m] when transposed, b as [n,k].
struct MatrixProducts {
  int64_t m = 1, n = 1, k = 1;
  bool transpose_a = false, transpose_b = false;
  struct Dimension {
    int64_t size = 1;
    int64_t a = 0, b = 0, y = 0;  // elements from one to the next; 0: all share one matrix, and those of y are summed
  };
  std::vector<Dimension> batch;  // outermost first; what is summed stands last
  int64_t products() const;
  bool sums() const;  // whether y is a sum of products
};

// Merges dimensions that lie one after the other. Folds those that share b into m, and sums over both into k, where the
// matrices lie so. Throws Error(invalid_input) that names what does not fit.
MatrixProducts matrix_products(const Attributes& attributes, const Tensor& a, const Tensor& b);

// Where each product's matrices lie, in an order in which the terms of a sum follow each other.
struct MatrixOffsets {
  int64_t a = 0, b = 0, y = 0;
  bool adds = false;  // to what an earlier product has left there
};
std::vector<MatrixOffsets> matrix_offsets(const std::vector<MatrixProducts::Dimension>& batch);

}  // namespace plimsoll
