// Typed access for reference kernels: one dispatch on the dtype per call, then plain loops.
#pragma once

#include "plimsoll/ops.h"

namespace plimsoll {

template <class T>
T* elements(const TensorView& view) {
  return static_cast<T*>(view.data);
}

// Calls body(T{}) with T the view's floating type.
template <class Body>
void with_floating_type(const TensorView& view, Body body) {
  switch (view.dtype) {
    case DType::f32: body(float{}); return;
    case DType::f64: body(double{}); return;
    default: throw Error(ErrorCode::internal, "a floating tensor is expected");
  }
}

}  // namespace plimsoll
