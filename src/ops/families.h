// The built-in op families: each function stands in the file of its family and returns its op types.
#pragma once

#include <vector>

#include "plimsoll/ops.h"

namespace plimsoll {

std::vector<OpType> activation_ops();  // activation.cpp: ReLU, leaky ReLU, sigmoid, tanh

inline constexpr std::vector<OpType> (*kOpFamilies[])() = {
    activation_ops,
};

}  // namespace plimsoll
