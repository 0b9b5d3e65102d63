// One product of matrices inside a kernel of our own.
#pragma once

#include <memory>

#include "ops/matmul.h"
#include "plimsoll/device.h"

namespace plimsoll::cpu {

// Runs y = a b, or y += a b, by so many threads: by one, it may run beside others that have products of their own. bind
// takes {a, b}, {y} and scratch of its own, and may be called before every run. `product` has no batch. Throws
// Error(unsupported) that names the op.
std::unique_ptr<Kernel> make_product(const Op& op, const MatrixProducts& product, bool adds = false, int threads = 1);

}  // namespace plimsoll::cpu
