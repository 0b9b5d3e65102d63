// The module with CUDA's calls, loaded when somebody asks for a CUDA device.
#pragma once

#include <memory>
#include <string>

#include "device/cuda/door.h"

namespace plimsoll::cuda {

// How many CUDA devices there are; for none the reason: not built, a library or the driver missing, no device.
struct Availability {
  int devices = 0;
  std::string reason;
};
const Availability& availability();

// Throws Error(unsupported) with the reason when there is no such device, Error(device_failure) when it does not open.
std::unique_ptr<Door> open_door(int device);
// The same for one of those that are there; the reason alone is told.
std::unique_ptr<Door> open_there(int device);

}  // namespace plimsoll::cuda
