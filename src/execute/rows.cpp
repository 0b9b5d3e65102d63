#include "execute/rows.h"

#include <algorithm>

namespace plimsoll {
namespace {

// Rows [first, last): whole blocks of rows, or up to the end.
RowWindow window_of(const Tensor& tensor, int64_t first, int64_t last) {
  const int64_t elements_a_row = element_count(tensor.shape) / tensor.shape[0];
  const auto bytes_of = [&](int64_t rows) {
    Shape shape = tensor.shape;
    shape[0] = rows;
    return rows > 0 ? storage_bytes(shape, tensor.dtype, tensor.layout).count : 0;
  };
  RowWindow window{.shape = tensor.shape, .first = first * elements_a_row, .at = bytes_of(first)};
  window.shape[0] = last - first;
  window.count = window.shape[0] * elements_a_row;
  window.bytes = bytes_of(window.shape[0]);
  return window;
}

// All of them where they cannot be told apart.
int64_t block_of(const Tensor& tensor) {
  const int64_t together = rows_together(tensor.layout), rows = tensor.shape[0];
  return together == 0 ? rows : std::min(together, rows);
}

}  // namespace

int64_t rows_together(const Layout& layout) {
  if (layout.is_plain()) return 1;
  if (layout.tag[0] != 'a' && layout.tag[0] != 'A') return 0;
  int64_t rows = 1, block = 0;
  for (const char letter : layout.tag) {
    if (letter >= '0' && letter <= '9') {
      block = block * 10 + (letter - '0');
      continue;
    }
    if (letter == 'a' && block > 0) rows *= block;
    block = 0;
  }
  return rows;
}

RowWindow window_around(const Tensor& tensor, int64_t first, int64_t count) {
  const int64_t rows = tensor.shape[0], block_elements = element_count(tensor.shape) / rows * block_of(tensor);
  const int64_t begin = first / block_elements, end = (first + count + block_elements - 1) / block_elements;
  return window_of(tensor, begin * block_of(tensor), std::min(end * block_of(tensor), rows));
}

RowWindow window_holding(const Tensor& tensor, int64_t element, Bytes bytes) {
  const int64_t rows = tensor.shape[0], block = block_of(tensor);
  Shape shape = tensor.shape;
  shape[0] = block;
  const int64_t block_bytes = storage_bytes(shape, tensor.dtype, tensor.layout).count;
  const int64_t wide = block < rows ? block * std::max<int64_t>(bytes.count / block_bytes, 1) : block;
  const int64_t first = element / (element_count(tensor.shape) / rows) / wide * wide;
  return window_of(tensor, first, std::min(first + wide, rows));
}

}  // namespace plimsoll
