// Tensors stretched over another, as kernels walk them: the walk is along the other's storage, whatever its layout, and
// says for each step where the stretched tensor has its element. Neighbouring dimensions that can be walked as one are.
//
//   y 2x3x4 row-major, x 3x1      y's storage: 24 steps       x: sizes {2, 3, 4}, strides {0, 1, 0}
//   y 2x3x4 row-major, x 4                                    x: sizes {6, 4},    strides {0, 1}
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "device/cpu/own.h"

namespace plimsoll::cpu {

// A piece of a dimension, as it lies in storage, the outermost piece first: the index in the dimension is the sum of its
// pieces' indices, each times `factor`. A dimension of 20 in blocks of 16 is two pieces, 2 and 16, of which the last
// four elements are padding.
struct StorageAxis {
  size_t dimension = 0;
  int64_t size = 1, factor = 1;
};
std::vector<StorageAxis> storage_axes(const Tensor& tensor);

// How the elements of a tensor are found while a storage is walked.
struct Stride {
  int64_t size = 1, step = 0;
};
struct Stretched {
  static constexpr size_t kMostAxes = 12;
  std::array<Stride, kMostAxes> axes;  // the outermost first
  size_t count = 0;
  void push(Stride outer_to_inner);  // throws Error(unsupported) where there are too many
};
// `steps`: of each dimension of the tensor that is walked, 0 where the other is stretched.
Stretched stretched_along(const std::vector<StorageAxis>& axes, std::span<const int64_t> steps);

// A place in a walk.
class Walk {
 public:
  Walk(const Stretched& by, int64_t begin) : by_(by) {
    for (size_t i = by.count; i-- > 0;) {
      index_[i] = begin % by.axes[i].size;
      begin /= by.axes[i].size;
      offset_ += index_[i] * by.axes[i].step;
    }
  }
  int64_t offset() const { return offset_; }
  // Steps to the end of the innermost dimension.
  int64_t run() const { return by_.count == 0 ? 1 : by_.axes[by_.count - 1].size - index_[by_.count - 1]; }
  int64_t step() const { return by_.count == 0 ? 0 : by_.axes[by_.count - 1].step; }
  // Whole runs to the end of the dimension around the innermost one, of which there is one; how far they are apart.
  int64_t runs() const { return by_.axes[by_.count - 2].size - index_[by_.count - 2]; }
  int64_t step_of_runs() const { return by_.axes[by_.count - 2].step; }
  // Over as many runs as runs() at most, from the beginning of one.
  void advance_runs(int64_t count) {
    index_[by_.count - 2] += count - 1;
    offset_ += (count - 1) * step_of_runs();
    advance(run());
  }
  // `steps` is at most run().
  void advance(int64_t steps) {
    if (by_.count == 0) return;
    size_t i = by_.count - 1;
    index_[i] += steps;
    offset_ += steps * by_.axes[i].step;
    while (index_[i] == by_.axes[i].size) {
      offset_ -= index_[i] * by_.axes[i].step;
      index_[i] = 0;
      if (i-- == 0) return;
      ++index_[i];
      offset_ += by_.axes[i].step;
    }
  }

 private:
  const Stretched& by_;
  std::array<int64_t, Stretched::kMostAxes> index_{};
  int64_t offset_ = 0;
};

// Whether a kernel may walk a tensor of this shape in any layout beside one that varies along dimensions of which
// `steps` are not 0, and is row-major: in no layout is there padding where the other would have no elements.
bool never_padded(const Shape& shape, std::span<const int64_t> steps);
// Whether a tensor of this shape lies the same in the family's layout as row-major: images of one pixel.
bool lies_row_major(const Shape& shape, LayoutFamily family);

// Elements [begin, begin + count) of a walk along `by`, one after the other, as `To`.
template <class To, class From>
void gather_stretched(To* to, const From* from, const Stretched& by, int64_t begin, int64_t count) {
  Walk walk(by, begin);
  while (count > 0) {
    const int64_t run = std::min(count, walk.run()), step = walk.step();
    const From* const at = from + walk.offset();
    if (step == 1) {
      for (int64_t i = 0; i < run; ++i) to[i] = static_cast<To>(at[i]);
    } else if (step == 0) {
      std::fill(to, to + run, static_cast<To>(*at));
    } else {
      for (int64_t i = 0; i < run; ++i) to[i] = static_cast<To>(at[i * step]);
    }
    walk.advance(run);
    to += run;
    count -= run;
  }
}

}  // namespace plimsoll::cpu
