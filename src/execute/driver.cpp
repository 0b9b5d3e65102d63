#include "execute/driver.h"

#include <algorithm>

namespace plimsoll {
namespace {

// Each count has threads of its own then: OpenMP would end and start threads from step to step.
bool has_several_thread_counts(const ReadyPlan& ready) {
  int least = 0, most = 0;
  for (size_t s = 0; s < ready.steps(); ++s) {
    if (!ready.kernels[s]) continue;
    const int threads =
        ready.plan.steps[s].threads > 0 ? ready.plan.steps[s].threads : std::max(ready.device.info().threads, 1);
    least = least == 0 ? threads : std::min(least, threads);
    most = std::max(most, threads);
  }
  return least != most;
}

}  // namespace

std::unique_ptr<Driver> make_driver(ReadyPlan& ready) {
  const bool messages = !ready.plan.collectives.empty();
  if (messages && ready.plan.cores.inter_op > 1) {
    throw Error(ErrorCode::unsupported,
                "messages to other ranks beside compute are for steps that run one after another");
  }
  if (auto queues = ready.device.open_queues()) return make_queued_driver(ready, std::move(queues));
  if (messages) return make_serial_driver(ready);
  if (ready.plan.cores.inter_op > 1 || has_several_thread_counts(ready)) return make_concurrent_driver(ready);
  return make_serial_driver(ready);
}

}  // namespace plimsoll
