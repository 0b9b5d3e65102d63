#include "train/crowd_monitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/texts.h"

namespace plimsoll {
namespace {

constexpr double kLookAfterMs = 500;  // of steps; one, where it takes longer
constexpr double kTooMuchWaiting = 0.2;
constexpr int kCrowdedLooks = 3, kQuietLooks = 6;
constexpr int kTurns = 4;                          // of a trial
constexpr int kFirstPause = 60, kLastPause = 960;  // looks between two trials

std::string threads_text(int threads) { return fmt::format("{} thread{}", threads, threads == 1 ? "" : "s"); }

bool is_throttled(const Load& load) { return load.throttled > kTooMuchWaiting; }

std::string cause_of(const Load& load) {
  return is_busy(load)
             ? fmt::format("other processes take {:.0f} % of the processors", 100 * load.others)
             : fmt::format("the control group's CPU quota stops threads for {:.0f} % of the time that they want",
                           100 * load.throttled);
}

}  // namespace

bool is_crowded(const Load& load) { return is_throttled(load) || (is_busy(load) && load.waited > kTooMuchWaiting); }

CrowdMonitor::CrowdMonitor(CheckedPlan plan, CrowdOptions options, LoadMeter meter)
    : all_(std::move(plan)), options_(std::move(options)), meter_(std::move(meter)) {}

std::optional<PlanChange> CrowdMonitor::after_step(double step_ms) {
  if (trial_) return try_out(step_ms);
  ms_ += step_ms;
  if (ms_ < kLookAfterMs || (!options_.fewer && told_)) return std::nullopt;
  const Load load = meter_.load();
  meter_.restart();
  ms_ = 0;
  return look(load);
}

std::optional<PlanChange> CrowdMonitor::look(const Load& load) {
  ++looks_;
  crowded_looks_ = is_crowded(load) ? crowded_looks_ + 1 : 0;
  quiet_looks_ = is_busy(load) || is_throttled(load) ? 0 : quiet_looks_ + 1;
  const bool crowded = crowded_looks_ >= kCrowdedLooks;
  if (!options_.fewer) return crowded ? tell(load) : std::nullopt;
  // A quota does not show while there are so few threads that it is enough for them: it stays.
  if (runs_fewer_ && is_busy(load_) && quiet_looks_ >= kQuietLooks) return go_back();
  if ((runs_fewer_ || crowded) && looks_ >= pause_) begin_trial(load);
  return std::nullopt;
}

std::optional<PlanChange> CrowdMonitor::tell(const Load& load) {
  told_ = true;
  return PlanChange{all_,
                    fmt::format("{}, so the {} of an op wait for each other: fewer (--threads) may be faster; they "
                                "stay, as {} says",
                                cause_of(load), threads_text(options_.threads), options_.stays)};
}

// As many threads as there were processors for.
void CrowdMonitor::begin_trial(const Load& load) {
  if (!runs_fewer_) {
    load_ = load;
    const int threads = std::clamp(static_cast<int>(load.processors), 1, options_.threads - 1);
    if (threads != fewer_threads_) {
      fewer_threads_ = threads;
      fewer_ = options_.fewer(threads);
    }
  }
  pause_ = std::clamp(2 * pause_, kFirstPause, kLastPause);
  trial_.emplace(runs_fewer_ ? fewer_ : all_, runs_fewer_ ? all_ : fewer_, kTurns);
}

std::optional<PlanChange> CrowdMonitor::try_out(double step_ms) {
  std::optional<PlanChange> change = trial_->after_step(step_ms);
  if (!trial_->over()) return change;
  const bool had_fewer = std::exchange(runs_fewer_, runs_fewer_ != trial_->second_won());
  if (runs_fewer_ && !had_fewer && !told_) {
    told_ = true;
    change->notice = trial_text(trial_->first_ms(), trial_->second_ms());
  }
  restart();
  return change;
}

std::string CrowdMonitor::trial_text(double all_ms, double fewer_ms) const {
  return fmt::format(
      "{}: a step takes {} with {} for an op, and {} with {}; it goes on with {}{} (--threads N keeps N, --exact the "
      "bits of the result)",
      cause_of(load_), time_text(all_ms), threads_text(options_.threads), time_text(fewer_ms),
      threads_text(fewer_threads_), fewer_threads_, is_busy(load_) ? " until the machine is quiet" : "");
}

PlanChange CrowdMonitor::go_back() {
  runs_fewer_ = false;
  restart();
  PlanChange change{all_, {}};
  if (!std::exchange(told_back_, true))
    change.notice = fmt::format("the machine is quiet again: it goes on with {}", threads_text(options_.threads));
  return change;
}

void CrowdMonitor::restart() {
  trial_.reset();
  crowded_looks_ = quiet_looks_ = looks_ = 0;
  ms_ = 0;
  meter_.restart();
}

}  // namespace plimsoll
