#include "train/interference_monitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/statistics.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr double kSlower = 1.03;  // than what was predicted for one after another
constexpr int kStepsWatched = 6;  // before a correction
constexpr int kMostCorrections = 3;

}  // namespace

InterferenceMonitor::InterferenceMonitor(CoreInput input, CorePlans plans, CheckedPlan chosen)
    : input_(std::move(input)), plans_(std::move(plans)), plan_(std::move(chosen)) {
  for (const Step& step : serial(input_, plans_.serial).steps) serial_ms_.push_back(step.time_ms);
}

// Steps that met, directly or through others, and took longer from the first to the last than one after another.
OpPairs InterferenceMonitor::slow_pairs(std::span<const StepRecord> records) const {
  std::vector<size_t> order;
  for (size_t s = 0; s < records.size(); ++s) {
    if (!plan_->steps[s].kernel.empty()) order.push_back(s);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return records[a].start_ms < records[b].start_ms; });
  OpPairs slow;
  for (size_t begin = 0; begin < order.size();) {
    double end_ms = records[order[begin]].end_ms, serial = serial_ms(order[begin]);
    size_t end = begin + 1;
    for (; end < order.size() && records[order[end]].start_ms < end_ms; ++end) {
      end_ms = std::max(end_ms, records[order[end]].end_ms);
      serial += serial_ms(order[end]);
    }
    if (end - begin > 1 && end_ms - records[order[begin]].start_ms > serial * kSlower) {
      for (size_t a = begin; a < end; ++a) {
        for (size_t b = a + 1; b < end && records[order[b]].start_ms < records[order[a]].end_ms; ++b) {
          slow.insert(std::minmax(plan_->steps[order[a]].op, plan_->steps[order[b]].op));
        }
      }
    }
    begin = end;
  }
  return slow;
}

std::set<CostTable::OpPair> InterferenceMonitor::found() const {
  std::set<CostTable::OpPair> pairs;
  for (const auto& [a, b] : conflicts_) {
    std::string first = op_signature(input_.graph, input_.graph.op(a)),
                second = op_signature(input_.graph, input_.graph.op(b));
    if (second < first) std::swap(first, second);
    pairs.emplace(std::move(first), std::move(second));
  }
  return pairs;
}

std::optional<PlanChange> InterferenceMonitor::after_step(std::span<const StepRecord> records) {
  if (over_ || records.empty() || ++steps_ == 1) return std::nullopt;  // the first warms up
  double last_ms = 0;
  for (const StepRecord& record : records) last_ms = std::max(last_ms, record.end_ms);
  times_.push_back(last_ms);
  for (const OpPair& pair : slow_pairs(records)) ++slow_[pair];
  if (steps_ <= kStepsWatched) return std::nullopt;
  const double usual_ms = median(times_), all_serial_ms = std::accumulate(serial_ms_.begin(), serial_ms_.end(), 0.0);
  int fresh = 0;
  for (const auto& [pair, times] : slow_) {
    if (2 * times > static_cast<int>(times_.size())) fresh += conflicts_.insert(pair).second;
  }
  steps_ = 0;
  times_.clear();
  slow_.clear();
  over_ = fresh == 0 && usual_ms <= all_serial_ms * kSlower;
  if (over_) return std::nullopt;
  PlanChange change = correct(fresh, usual_ms, all_serial_ms);
  plan_ = change.plan;
  return change;
}

PlanChange InterferenceMonitor::correct(int fresh, double usual_ms, double all_serial_ms) {
  if (fresh > 0 && corrections_++ < kMostCorrections) {
    ChosenThreads chosen = choose_threads(input_, plans_.serial, plans_.relaxed, conflicts_);
    if (chosen.plan.cores.inter_op > 1) {
      const double ms = chosen.plan.predicted.step_time_ms;
      return {
          check_plan(input_.graph, std::move(chosen.plan)),
          fmt::format(
              "{} pairs of ops were slower side by side than one after another, and do not meet any more: {:.4g} ms "
              "a step predicted",
              fresh, ms)};
    }
  }
  over_ = true;
  return {check_plan(input_.graph, serial(input_, plans_.serial)),
          fmt::format("side by side a step took {:.4g} ms; one op after another {:.4g} are predicted: back to that",
                      usual_ms, all_serial_ms)};
}

}  // namespace plimsoll
