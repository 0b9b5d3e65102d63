// What ops share that only move elements: the width of an element, and a copy between two storages as a nest of loops.
//
//   x[2,3,4] permuted to y[4,2,3]          size  from  to
//                                          4     1     6      outermost in the target
//   2 and 3 stay together: one loop        6     4     1
#pragma once

#include <cstdint>
#include <vector>

#include "plimsoll/ops.h"

namespace plimsoll {

// Bytes of an element: 1, 4 or 8. Throws Error(invalid_input) for elements of one bit.
int64_t element_width(const Tensor& tensor);

// Calls body(T{}) with an unsigned T of that many bytes.
template <class Body>
void with_width(int64_t bytes, Body body) {
  switch (bytes) {
    case 1: body(uint8_t{}); return;
    case 4: body(uint32_t{}); return;
    case 8: body(uint64_t{}); return;
    default: throw Error(ErrorCode::internal, "elements of 1, 4 or 8 bytes are expected");
  }
}

// The distance in the storage, in elements, between neighbours along each dimension. Layouts without blocks only: throws
// Error(unsupported) for others.
std::vector<int64_t> strides_of(const Tensor& tensor);

struct MoveLoop {
  int64_t size = 1;
  int64_t from = 0, to = 0;  // distances, in elements
  friend bool operator==(const MoveLoop&, const MoveLoop&) = default;
};
// The same copy with as few loops as will do: without those of one turn, and with neighbours that are one run in both
// storages joined. Outermost first. At least one loop is left.
std::vector<MoveLoop> merged(const std::vector<MoveLoop>& loops);

// The copy that the op Permute makes, as the two tensors lie, outermost first in the target.
std::vector<MoveLoop> permute_loops(const Tensor& x, const Tensor& y, const std::vector<int64_t>& dims);

// The attribute "axis" of a tensor. Throws Error(invalid_input) on one that it has not.
size_t axis_of(const Attributes& attributes, const Tensor& tensor);

}  // namespace plimsoll
