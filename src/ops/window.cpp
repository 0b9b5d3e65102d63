#include "ops/window.h"

#include <fmt/format.h>

namespace plimsoll {
namespace {

constexpr int64_t kMost = int64_t{1} << 30;  // products of two such sizes stay far from overflow

void expect_range(std::string_view name, const std::vector<int64_t>& list, size_t size, int64_t least) {
  bool right = list.size() == size;
  for (int64_t v : list) right = right && v >= least && v <= kMost;
  if (right) return;
  throw Error(ErrorCode::invalid_input, fmt::format("{} is [{}]; {} numbers of at least {} are expected", name,
                                                    fmt::join(list, ", "), size, least));
}

std::string padding_text(Window window) {
  bool even = true;
  Shape before, after;
  for (const WindowAxis* axis : window.axes()) {
    before.push_back(axis->before);
    after.push_back(axis->after);
    even = even && axis->before == before[0];
  }
  if (before == after) return even ? fmt::format("{}", before[0]) : to_string(before);
  if (window.deep) return fmt::format("{} before and {} behind", to_string(before), to_string(after));
  return fmt::format("top {}, left {}, bottom {}, right {}", before[0], before[1], after[0], after[1]);
}

}  // namespace

std::array<int64_t, 2> read_pair(const Attributes& attributes, std::string_view name, int64_t least) {
  const Shape list = read_sizes(attributes, name, 2, least);
  return {list[0], list[1]};
}

Shape read_sizes(const Attributes& attributes, std::string_view name, size_t count, int64_t least) {
  const std::vector<int64_t>& list = attributes.integers(name);
  expect_range(name, list, count, least);
  return list;
}

Shape read_sizes(const Attributes& attributes, std::string_view name, size_t count, int64_t least, int64_t otherwise) {
  return attributes.has(name) ? read_sizes(attributes, name, count, least) : Shape(count, otherwise);
}

Window read_window(const Attributes& attributes, const Shape& kernel, const Shape& in) {
  const size_t count = in.size();
  const Shape padding = attributes.integers("padding", Shape(2 * count, 0));
  expect_range("kernel", kernel, count, 1);
  expect_range("image", in, count, 1);
  expect_range("padding", padding, 2 * count, 0);
  const Shape stride = read_sizes(attributes, "stride", count, 1, 1);
  const Shape dilation = read_sizes(attributes, "dilation", count, 1, 1);
  Window window;
  window.deep = count == 3;
  const std::vector<WindowAxis*> axes = window.axes();
  for (size_t i = 0; i < count; ++i) {
    *axes[i] = {.in = in[i],
                .kernel = kernel[i],
                .stride = stride[i],
                .dilation = dilation[i],
                .before = padding[i],
                .after = padding[i + count]};
  }
  return window;
}

void fit(Window& window, bool ceil_mode) {
  for (WindowAxis* axis : window.axes()) {
    const int64_t room = axis->in + axis->before + axis->after - axis->extent();
    if (room < 0) {
      Shape kernel, dilation;
      for (const WindowAxis* one : window.axes()) kernel.push_back(one->kernel), dilation.push_back(one->dilation);
      const bool dilated = dilation != Shape(dilation.size(), 1);
      throw Error(ErrorCode::invalid_input,
                  fmt::format("kernel {}{} does not fit a {} image with padding {}", to_string(kernel),
                              dilated ? fmt::format(" with dilation {}", to_string(dilation)) : "",
                              to_string(window.in()), padding_text(window)));
    }
    axis->out = (room + (ceil_mode ? axis->stride - 1 : 0)) / axis->stride + 1;
    // A window that would begin in the padding at the far end holds nothing.
    if (ceil_mode && (axis->out - 1) * axis->stride >= axis->in + axis->before) --axis->out;
  }
}

void expect_image(const Tensor& tensor, const Shape& size) {
  if (tensor.shape.size() == size.size() + 2 && image_size(tensor.shape) == size) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' is {}; a {} image is expected", tensor.name, to_string(tensor.shape), to_string(size)));
}

}  // namespace plimsoll
