// Opens the CPU device; devices.cpp offers it by name.
#pragma once

#include <memory>

#include "plimsoll/device.h"

namespace plimsoll::cpu {

std::unique_ptr<Device> open_cpu(int threads);  // 0: as many as the process may use

// oneDNN keeps the code of kernels that nobody has any more, in case they are made again: up to 1024 of them. This lets
// it go.
void forget_kernels();

}  // namespace plimsoll::cpu
