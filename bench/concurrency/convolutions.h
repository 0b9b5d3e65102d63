// What the concurrency paper shows of single convolutions, on this machine. JSON, one object a line.
#pragma once

#include "plimsoll/cost.h"
#include "plimsoll/device.h"

namespace plimsoll::bench {

// "sizes" (Table II): three passes of convolutions with three input sizes, each by its fastest kernel: the thread count
// with which it is fastest, and what all cores lose against that.
void report_input_sizes(const Device& device, CostTable& costs);
// "pair" (Table III): two passes of the largest of them one after another on all cores, beside each other on the cores'
// second hardware threads where they have them, and on half the cores each.
void report_pair(const Device& device, CostTable& costs);

}  // namespace plimsoll::bench
