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

std::string padding_text(const Window& window) {
  const auto& [h, w] = window;
  if (h.before == h.after && w.before == w.after) {
    return h.before == w.before ? fmt::format("{}", h.before) : fmt::format("{}x{}", h.before, w.before);
  }
  return fmt::format("top {}, left {}, bottom {}, right {}", h.before, w.before, h.after, w.after);
}

}  // namespace

std::array<int64_t, 2> read_pair(const Attributes& attributes, std::string_view name, int64_t least) {
  const std::vector<int64_t>& list = attributes.integers(name);
  expect_range(name, list, 2, least);
  return {list[0], list[1]};
}

std::array<int64_t, 2> read_pair(const Attributes& attributes, std::string_view name, int64_t least,
                                 int64_t otherwise) {
  return attributes.has(name) ? read_pair(attributes, name, least) : std::array<int64_t, 2>{otherwise, otherwise};
}

Window read_window(const Attributes& attributes, std::array<int64_t, 2> kernel, std::array<int64_t, 2> in) {
  const std::vector<int64_t> padding = attributes.integers("padding", {0, 0, 0, 0});
  expect_range("kernel", {kernel[0], kernel[1]}, 2, 1);
  expect_range("image", {in[0], in[1]}, 2, 1);
  expect_range("padding", padding, 4, 0);
  const auto stride = read_pair(attributes, "stride", 1, 1), dilation = read_pair(attributes, "dilation", 1, 1);
  const auto axis = [&](size_t i) {
    return WindowAxis{.in = in[i],
                      .kernel = kernel[i],
                      .stride = stride[i],
                      .dilation = dilation[i],
                      .before = padding[i],
                      .after = padding[i + 2]};
  };
  return {axis(0), axis(1)};
}

void fit(Window& window, bool ceil_mode) {
  for (WindowAxis* axis : {&window.h, &window.w}) {
    const int64_t room = axis->in + axis->before + axis->after - axis->extent();
    if (room < 0) {
      const auto& [h, w] = window;
      const bool dilated = h.dilation != 1 || w.dilation != 1;
      throw Error(ErrorCode::invalid_input,
                  fmt::format("kernel {}x{}{} does not fit a {}x{} image with padding {}", h.kernel, w.kernel,
                              dilated ? fmt::format(" with dilation {}x{}", h.dilation, w.dilation) : "", h.in, w.in,
                              padding_text(window)));
    }
    axis->out = (room + (ceil_mode ? axis->stride - 1 : 0)) / axis->stride + 1;
    // A window that would begin in the padding at the far end holds nothing.
    if (ceil_mode && (axis->out - 1) * axis->stride >= axis->in + axis->before) --axis->out;
  }
}

void expect_image(const Tensor& tensor, int64_t height, int64_t width) {
  if (tensor.shape.size() == 4 && tensor.shape[2] == height && tensor.shape[3] == width) return;
  throw Error(ErrorCode::invalid_input, fmt::format("'{}' is {}; a {}x{} image is expected", tensor.name,
                                                    to_string(tensor.shape), height, width));
}

}  // namespace plimsoll
