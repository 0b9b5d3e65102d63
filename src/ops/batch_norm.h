// What batch norm's ops have in common: images with the channels in their second dimension, and vectors of one value a
// channel.
#pragma once

#include <fmt/format.h>

#include "ops/reference.h"

namespace plimsoll {

inline void expect_images(const Tensor& x) {
  if (x.shape.size() >= 2) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' is {}; two or more dimensions are expected, the second of them channels", x.name,
                          to_string(x.shape)));
}

inline void expect_one_a_channel(const Tensor& x, const Tensor& values) {
  expect_same_dtype(x, values);
  if (values.shape == Shape{x.shape[1]}) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' is {}; one value for each of the {} channels of '{}' is expected", values.name,
                          to_string(values.shape), x.shape[1], x.name));
}

inline void expect_mask_of(const Tensor& x, const Tensor& mask) {
  expect_same_shape(x, mask);
  if (mask.dtype == DType::bit) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("the mask '{}' is {}; bit is expected", mask.name, to_string(mask.dtype)));
}

// Visits the elements of one channel in row-major order.
struct Channels {
  int64_t outer, count, inner;
  explicit Channels(const Shape& shape)
      : outer(shape[0]), count(shape[1]), inner(element_count(shape) / (shape[0] * shape[1])) {}
  int64_t elements_each() const { return outer * inner; }
  template <class Body>
  void for_each(int64_t channel, Body body) const {
    for (int64_t n = 0; n < outer; ++n) {
      for (int64_t i = 0; i < inner; ++i) body((n * count + channel) * inner + i);
    }
  }
};

}  // namespace plimsoll
