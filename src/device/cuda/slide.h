// Windows of ops as the bodies take them.
#pragma once

#include "device/cuda/bodies/window.h"
#include "ops/window.h"

namespace plimsoll::cuda {

inline Slide slide_of(const WindowAxis& axis) {
  return {.in = axis.in,
          .out = axis.out,
          .kernel = axis.kernel,
          .stride = axis.stride,
          .dilation = axis.dilation,
          .before = axis.before,
          .after = axis.after};
}

}  // namespace plimsoll::cuda
