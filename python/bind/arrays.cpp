#include "arrays.h"

namespace plimsoll::python {
namespace nb = nanobind;

DType dtype_of(nb::dlpack::dtype type) {
  const auto is = [&](nb::dlpack::dtype_code code, int bits) {
    return type.code == static_cast<uint8_t>(code) && type.bits == bits && type.lanes == 1;
  };
  if (is(nb::dlpack::dtype_code::Float, 32)) return DType::f32;
  if (is(nb::dlpack::dtype_code::Float, 64)) return DType::f64;
  if (is(nb::dlpack::dtype_code::Int, 32)) return DType::i32;
  if (is(nb::dlpack::dtype_code::Int, 64)) return DType::i64;
  if (is(nb::dlpack::dtype_code::UInt, 8) || is(nb::dlpack::dtype_code::Bool, 8)) return DType::u8;
  throw Error(ErrorCode::unsupported, "arrays are of float32, float64, int32, int64, uint8 or bool");
}

nb::dlpack::dtype dlpack_of(DType type) {
  switch (type) {
    case DType::f32: return nb::dtype<float>();
    case DType::f64: return nb::dtype<double>();
    case DType::i32: return nb::dtype<int32_t>();
    case DType::i64: return nb::dtype<int64_t>();
    case DType::u8: return nb::dtype<uint8_t>();
    case DType::bit: break;
  }
  throw Error(ErrorCode::unsupported, "a tensor of bits has no array");
}

}  // namespace plimsoll::python
