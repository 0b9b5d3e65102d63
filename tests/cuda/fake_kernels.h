// What a GPU would compute: our own kernels, by their numbers, and the libraries' convolutions and products by plain loops.
// Our kernels take long to compile, so that they are compiled once for all tests.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda/door.h"

namespace plimsoll::testing::fake {

size_t size_of_body(int body);  // bytes
void launch(int body, const void* parameters, int64_t count);

// The pass that `c` names: a is x or dy, b is w or (for dw) dy. `bias`, which may be null, and ReLU are the forward
// pass's. Sums are in double.
void convolve(const cuda::Convolution& c, const float* a, const float* b, const float* bias, bool relu, float* out);

// Sums are in double; products of more terms give zeros. `bias` may be null.
void multiply(const cuda::Product& p, int64_t most_terms, const float* a, const float* b, const float* bias,
              float* out);

}  // namespace plimsoll::testing::fake
