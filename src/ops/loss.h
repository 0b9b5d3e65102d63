// What the losses over classes share: how labels are read, and by what the sum over the rows is divided.
#pragma once

#include "ops/reference.h"
#include "plimsoll/ops.h"

namespace plimsoll {

// Throw Error(invalid_input) that names the tensor.
void expect_scalar(const Tensor& tensor);
void expect_labels(const Tensor& rows, const Tensor& labels);  // one for each row of a matrix

// By which number the sum over the rows is divided: without the attribute by that of all rows, with "mean" by that of
// the rows that count, as PyTorch does.
enum class Reduction : uint8_t { mean_of_all, mean, sum };
Reduction reduction(const Attributes& attributes);
double row_divisor(Reduction reduction, int64_t rows, int64_t counted);

double label_smoothing(const Attributes& attributes);

// The label of a row, or -1 for one that counts nothing: that is ignore_index, or without the attribute any below 0.
int64_t label_at(const Attributes& attributes, const TensorView& labels, int64_t row, int64_t classes);

}  // namespace plimsoll
