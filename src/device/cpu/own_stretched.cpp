#include "device/cpu/own_stretched.h"

#include <fmt/format.h>

namespace plimsoll::cpu {

std::vector<StorageAxis> storage_axes(const Tensor& tensor) {
  std::vector<StorageAxis> axes;
  const Shape& shape = tensor.shape;
  if (tensor.layout.is_plain()) {
    for (size_t d = 0; d < shape.size(); ++d) axes.push_back({d, shape[d], 1});
    return axes;
  }
  // Letters, then blocks of a size and a letter; the last block of a letter is the innermost.
  const std::string& tag = tensor.layout.tag;
  const auto dimension = [](char c) { return static_cast<size_t>(c >= 'a' ? c - 'a' : c - 'A'); };
  std::vector<int64_t> block(shape.size(), 1);
  std::vector<StorageAxis> blocks;
  int64_t size = 0;
  size_t letters = 0;
  while (letters < tag.size() && (tag[letters] < '0' || tag[letters] > '9')) ++letters;
  for (size_t i = letters; i < tag.size(); ++i) {
    if (tag[i] >= '0' && tag[i] <= '9') {
      size = size * 10 + (tag[i] - '0');
      continue;
    }
    blocks.push_back({dimension(tag[i]), size, 1});
    size = 0;
  }
  for (auto b = blocks.rbegin(); b != blocks.rend(); ++b) {
    b->factor = block.at(b->dimension);
    block.at(b->dimension) *= b->size;
  }
  for (size_t i = 0; i < letters; ++i) {
    const size_t d = dimension(tag[i]);
    axes.push_back({d, (shape.at(d) + block.at(d) - 1) / block.at(d), block.at(d)});
  }
  axes.insert(axes.end(), blocks.begin(), blocks.end());
  return axes;
}

void Stretched::push(Stride inner) {
  if (inner.size == 1) return;
  if (count > 0 && axes[count - 1].step == inner.size * inner.step) {
    axes[count - 1] = {axes[count - 1].size * inner.size, inner.step};
    return;
  }
  if (count == kMostAxes) {
    throw Error(ErrorCode::unsupported,
                fmt::format("a tensor with more than {} dimensions that cannot be walked as one", kMostAxes));
  }
  axes[count++] = inner;
}

Stretched stretched_along(const std::vector<StorageAxis>& axes, std::span<const int64_t> steps) {
  Stretched stretched;
  for (const StorageAxis& axis : axes) stretched.push({axis.size, steps[axis.dimension] * axis.factor});
  return stretched;
}

bool never_padded(const Shape& shape, std::span<const int64_t> steps) {
  constexpr size_t kEverBlocked = 3;  // dimensions, from the first
  constexpr int64_t kLargestBlock = 64;
  for (size_t d = 0; d < std::min(shape.size(), kEverBlocked); ++d) {
    if (steps[d] != 0 && shape[d] % kLargestBlock != 0) return false;
  }
  return true;
}

bool lies_row_major(const Shape& shape, LayoutFamily family) {
  if (shape.size() != 4 || family == LayoutFamily::plain) return true;
  return shape[2] * shape[3] == 1 && (family == LayoutFamily::channels_last || shape[1] % 16 == 0);
}

}  // namespace plimsoll::cpu
