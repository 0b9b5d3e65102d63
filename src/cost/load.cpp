#include "cost/load.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace plimsoll {
namespace {

double share_of(double part, double whole) { return whole > 0 ? std::clamp(part / whole, 0.0, 1.0) : 0; }

}  // namespace

LoadMeter::LoadMeter(Source source) : source_(std::move(source)), since_(source_()) {}

Load LoadMeter::load() const {
  const cpu::ProcessorTimes now = source_();
  const double wall = now.wall - since_.wall, own = now.own - since_.own;
  // A thread that ended takes what it waited along.
  const double waiting = std::max(now.waiting - since_.waiting, 0.0);
  const double throttled = std::max(now.throttled - since_.throttled, 0.0);
  return {.seconds = wall,
          .others = share_of(now.busy - since_.busy - own, now.all - since_.all),
          .waited = share_of(waiting, waiting + own),
          .throttled = share_of(throttled, throttled + own),
          .processors = wall > 0 ? std::max(own / wall, 0.0) : 0};
}

std::function<bool()> asks_whether_busy(LoadMeter meter) {
  return [meter = std::move(meter)]() mutable {
    const bool busy = is_busy(meter.load());
    meter.restart();
    return busy;
  };
}

}  // namespace plimsoll
