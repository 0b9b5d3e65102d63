// What a schedule on paper (co_run) decides becomes the plan's.
#pragma once

#include "cores/share_cores.h"
#include "cores/tasks.h"

namespace plimsoll {

inline constexpr double kSmtSpeed =
    1.25;  // of a core with two hardware threads, times what it does with one: assumed, and corrected while it runs
inline constexpr double kWorthIt = 0.98;  // of a time: less of a gain is within the noise of what was measured

// So many cores, or as many as the machine lets the process use: never more than its processors.
int usable_cores(const CoreInput& input, int cores);

// The order of the plan's steps, what they share, and the prediction, by the schedule. What runs how, and on how many
// cores, is there.
void take_schedule(const CoreInput& input, Plan& plan, const Tasks& tasks, const CoMachine& machine,
                   const CoSchedule& schedule);

// So many steps at once, each as fast as alone with so many threads.
struct Uniform {
  int inter_op = 2, threads = 1;
  CoMachine machine;
};
Uniform uniform_of(const CoreInput& input);
// The tasks get curves that have the steps' times at the uniform number of threads.
CoSchedule schedule_of(const Plan& plan, Tasks& tasks, const Uniform& uniform);

}  // namespace plimsoll
