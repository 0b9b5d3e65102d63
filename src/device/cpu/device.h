// Opens the CPU device; devices.cpp offers it by name.
#pragma once

#include <memory>

#include "plimsoll/device.h"

namespace plimsoll::cpu {

std::unique_ptr<Device> open_cpu(int threads);  // 0: as many as the process may use

}  // namespace plimsoll::cpu
