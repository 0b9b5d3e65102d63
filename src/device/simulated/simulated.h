// Machines that are not there, by the figures of the papers and of their makers' data sheets: they plan, they do not
// run.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "plimsoll/cost.h"
#include "plimsoll/device.h"

namespace plimsoll::simulated {

std::unique_ptr<Device> open(std::string_view name);  // nullptr when there is none of this name
std::vector<DeviceListing> list();
MachineRates rates(std::string_view name);  // those of "k40c" for an unknown name

}  // namespace plimsoll::simulated
