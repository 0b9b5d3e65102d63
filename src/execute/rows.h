// Some rows of a tensor that is not row-major, as a tensor of their own: what is converted at a time, where a whole tensor
// would be too much.
#pragma once

#include "plimsoll/graph.h"

namespace plimsoll {

// How many rows of a tensor of rank 2 or more lie together in its storage, the next ones behind them; 0: rows of all
// numbers lie among each other, since the first dimension is not the outermost.
int64_t rows_together(const Layout& layout);

struct RowWindow {
  Shape shape;        // of these rows alone
  int64_t first = 0;  // element
  int64_t count = 0;  // elements
  int64_t at = 0;     // in the storage
  int64_t bytes = 0;
};

// The fewest rows that lie together and have elements [first, first + count).
RowWindow window_around(const Tensor& tensor, int64_t first, int64_t count);

// A tensor cut into windows of about so many bytes, from its first row on: the one with this element.
RowWindow window_holding(const Tensor& tensor, int64_t element, Bytes bytes);

}  // namespace plimsoll
