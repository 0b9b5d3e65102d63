#include "ops/move.h"

#include <fmt/format.h>

#include <algorithm>

namespace plimsoll {

int64_t element_width(const Tensor& tensor) {
  if (tensor.dtype != DType::bit) return storage_bytes({1}, tensor.dtype, {}).count;
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' has elements of one bit; at least a byte is expected", tensor.name));
}

std::vector<int64_t> strides_of(const Tensor& tensor) {
  const size_t rank = tensor.shape.size();
  std::vector<int64_t> strides(rank);
  int64_t distance = 1;
  if (tensor.layout.is_plain()) {
    for (size_t d = rank; d-- > 0;) {
      strides[d] = distance;
      distance *= tensor.shape[d];
    }
    return strides;
  }
  const std::string& tag = tensor.layout.tag;
  const bool blocked = tag.size() != rank || !std::all_of(tag.begin(), tag.end(), [&](char letter) {
                         return letter >= 'a' && letter < static_cast<char>('a' + rank);
                       });
  if (blocked) {
    throw Error(ErrorCode::unsupported,
                fmt::format("tensor '{}' lies in layout '{}'; one without blocks is expected", tensor.name, tag));
  }
  for (size_t i = rank; i-- > 0;) {
    const size_t d = tag[i] - 'a';
    strides[d] = distance;
    distance *= tensor.shape[d];
  }
  return strides;
}

std::vector<MoveLoop> merged(const std::vector<MoveLoop>& loops) {
  std::vector<MoveLoop> result;
  for (const MoveLoop& loop : loops) {
    if (loop.size == 1) continue;
    if (!result.empty() && result.back().from == loop.size * loop.from && result.back().to == loop.size * loop.to) {
      result.back() = {result.back().size * loop.size, loop.from, loop.to};
    } else {
      result.push_back(loop);
    }
  }
  if (result.empty()) result.push_back({1, 1, 1});
  return result;
}

std::vector<MoveLoop> permute_loops(const Tensor& x, const Tensor& y, const std::vector<int64_t>& dims) {
  const std::vector<int64_t> from = strides_of(x), to = strides_of(y);
  std::vector<MoveLoop> loops;
  for (size_t d = 0; d < dims.size(); ++d) loops.push_back({y.shape[d], from[dims[d]], to[d]});
  std::stable_sort(loops.begin(), loops.end(), [](const MoveLoop& a, const MoveLoop& b) { return a.to > b.to; });
  return merged(loops);
}

size_t axis_of(const Attributes& attributes, const Tensor& tensor) {
  const int64_t axis = attributes.integer("axis");
  if (axis < 0 || axis >= static_cast<int64_t>(tensor.shape.size())) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("axis {} does not exist: '{}' is {}", axis, tensor.name, to_string(tensor.shape)));
  }
  return axis;
}

}  // namespace plimsoll
