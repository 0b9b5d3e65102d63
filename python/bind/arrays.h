// Tensors as arrays of the buffer protocol and DLPack.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "plimsoll/graph.h"

namespace plimsoll::python {

// Throw Error(unsupported) where the other side has no such type.
DType dtype_of(nanobind::dlpack::dtype type);
nanobind::dlpack::dtype dlpack_of(DType type);

}  // namespace plimsoll::python
