// A window that slides over an image: kernel, stride, dilation, padding, and the sizes on both sides. Shared by
// convolution, transposed convolution and pooling.
//
//   in 5, kernel 3, stride 2, padding 1:    . 0 1 2 3 4 .
//                                           [-----]           output 0
//                                               [-----]       output 1
//                                                   [-----]   output 2
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "plimsoll/ops.h"

namespace plimsoll {

// One of the two or three dimensions. `in` is the side that the window slides over, `out` the number of its places.
struct WindowAxis {
  int64_t in = 0, out = 0;
  int64_t kernel = 1, stride = 1, dilation = 1;
  int64_t before = 0, after = 0;  // padding

  int64_t extent() const { return dilation * (kernel - 1) + 1; }
  // Where tap k of the window at place o lies; may be outside of [0, in).
  int64_t position(int64_t o, int64_t k) const { return o * stride - before + k * dilation; }

  // The places at which tap k lies inside: [first, last).
  struct Range {
    int64_t first, last;
  };
  Range places(int64_t k) const {
    const int64_t shift = k * dilation - before;  // position at place 0
    const int64_t first = shift >= 0 ? 0 : (-shift + stride - 1) / stride;
    const int64_t last = in - 1 - shift < 0 ? 0 : (in - 1 - shift) / stride + 1;
    return {std::min(first, out), std::max(std::min(first, out), std::min(last, out))};
  }
};

// Over images of height and width, or of depth, height and width: without depth its axis has one place and one tap.
struct Window {
  WindowAxis h, w;
  WindowAxis d{.in = 1, .out = 1};
  bool deep = false;

  int64_t taps() const { return d.kernel * h.kernel * w.kernel; }
  int64_t pixels_in() const { return d.in * h.in * w.in; }
  int64_t pixels_out() const { return d.out * h.out * w.out; }
  Shape in() const { return deep ? Shape{d.in, h.in, w.in} : Shape{h.in, w.in}; }
  Shape out() const { return deep ? Shape{d.out, h.out, w.out} : Shape{h.out, w.out}; }
  std::vector<WindowAxis*> axes() { return deep ? std::vector{&d, &h, &w} : std::vector{&h, &w}; }
};

// The sizes of an image tensor's dimensions behind batch and channels, and the image that has them.
inline Shape image_size(const Shape& image) { return {image.begin() + 2, image.end()}; }
inline Shape image_shape(int64_t n, int64_t channels, const Shape& size) {
  Shape shape = {n, channels};
  shape.insert(shape.end(), size.begin(), size.end());
  return shape;
}

// Reads stride, dilation, padding for a window of `kernel` over an image of `in`, all [h, w] or [d, h, w], and leaves
// `out` 0. Padding is that before each, then that behind each. Throws Error(invalid_input) on lists of a wrong length or
// values out of range.
Window read_window(const Attributes& attributes, const Shape& kernel, const Shape& in);

// A number for each of `count` dimensions from a list attribute, each at least `least`.
Shape read_sizes(const Attributes& attributes, std::string_view name, size_t count, int64_t least);
Shape read_sizes(const Attributes& attributes, std::string_view name, size_t count, int64_t least, int64_t otherwise);

// [h, w] from a list attribute, each at least `least`.
std::array<int64_t, 2> read_pair(const Attributes& attributes, std::string_view name, int64_t least);

// Sets `out` to the number of places where the window fits; with ceil_mode also those that begin inside and reach out
// at the far end (as in PyTorch). Throws "kernel 11x11 does not fit a 5x5 image with padding 0".
void fit(Window& window, bool ceil_mode = false);

// The backward ops' check that dy has the window's size. Throws Error(invalid_input) that names dy.
void expect_image(const Tensor& tensor, const Shape& size);

}  // namespace plimsoll
