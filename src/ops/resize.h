// Where the elements of a resized image come from, as torch.nn.functional.interpolate has it.
//
//   coordinate   align_corners: o * (in - 1) / (out - 1), so that the corners fall on corners
//                else: (o + 1/2) * scale - 1/2 with scale = in / out, or 1 / (the factor that was given)
//   nearest      1 tap: floor(o * scale)
//   bilinear     2 taps
//   bicubic      4 taps, with the coefficient -3/4; those beyond the edge are the edge's
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "plimsoll/ops.h"

namespace plimsoll {

enum class ResizeMode : int32_t { nearest, bilinear, bicubic };
inline int taps_of(ResizeMode mode) { return mode == ResizeMode::nearest ? 1 : mode == ResizeMode::bilinear ? 2 : 4; }

struct ResizeAxis {
  int64_t in = 1, out = 1;
  double factor = 0;  // out by in as it was given; 0: by the sizes
};
struct Resize {
  ResizeMode mode = ResizeMode::nearest;
  bool align_corners = false;
  ResizeAxis h, w;
};
// Throws Error(invalid_input). `in` is x's height and width.
Resize read_resize(const Attributes& attributes, std::array<int64_t, 2> in);

template <class T>
struct ResizeTaps {
  std::array<int64_t, 4> at{};
  std::array<T, 4> weight{};
};
// Of every element of the axis. Coordinates are reckoned in T, as PyTorch does, so that nearest elements are the same ones.
template <class T>
std::vector<ResizeTaps<T>> resize_taps(const Resize& resize, const ResizeAxis& axis);
// By how many elements of x the coordinate moves from one element to the next.
template <class T>
T resize_scale(const Resize& resize, const ResizeAxis& axis);

// Adaptive pooling: element o of `out` pools the elements [first, last) of `in`.
struct AdaptiveWindow {
  int64_t first = 0, last = 1;
};
inline AdaptiveWindow adaptive_window(int64_t in, int64_t out, int64_t o) {
  return {o * in / out, ((o + 1) * in + out - 1) / out};
}

}  // namespace plimsoll
