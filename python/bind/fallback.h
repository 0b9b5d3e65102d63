// Ops that Python computes: FallbackForward and FallbackBackward.
#pragma once

#include <nanobind/nanobind.h>

namespace plimsoll::python {

// Registers the two types; `call` computes them:
//
//   call(function: str, backward: bool, inputs: list, outputs: list, given: list[int], wanted: list[int])
//
// Inputs and outputs are DLPack arrays over the step's own memory, and hold for the call alone. Forward: the function's
// inputs and its results. Backward: the gradients of the results `given`, then the function's inputs; outputs are the
// gradients of the inputs `wanted`. Anything raised ends the step with Error(device_failure) and the exception's text.
//
// Attributes of FallbackForward: "function", its name for `call`; "shapes", of each result its rank and its sizes, one
// after another; "dtypes", such as "f32,i64"; "differentiable", those results that have gradients.
void register_fallback(nanobind::object call);

}  // namespace plimsoll::python
