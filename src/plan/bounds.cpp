#include "plan/bounds.h"

#include <algorithm>
#include <numeric>

namespace plimsoll {
namespace {

constexpr size_t kStepsJudged = 300;  // for their time, of those that are above the budget, evenly

// Bytes a millisecond of all tiers together; 0: there are none. What was written in the step is copied out before the
// fullest step and in behind it, one after the other; a state, or an input, may be outside at the start or at the end.
struct CopyRates {
  double both_ways = 0, one_way = 0;
};
CopyRates copy_rates(const std::vector<TierInfo>& tiers) {
  CopyRates rates;
  for (const TierInfo& tier : tiers) {
    const double out = tier.out_gb_per_s > 0 ? tier.out_gb_per_s * 1e6 : 1e300;
    const double in = tier.in_gb_per_s > 0 ? tier.in_gb_per_s * 1e6 : 1e300;
    rates.both_ways += 1 / (1 / out + 1 / in);
    rates.one_way += std::max(out, in);
  }
  return rates;
}

class Bounds {
 public:
  explicit Bounds(const ValueTimeline& timeline) : timeline_(timeline), count_(timeline.steps.size()) {
    find_spans();
    find_own();
    find_across();
  }

  size_t count() const { return count_; }
  int64_t own(size_t step) const { return own_[step]; }          // bytes that it needs for itself
  int64_t across(size_t step) const { return across_[step]; }    // of values that lie across it
  int64_t lasting(size_t step) const { return lasting_[step]; }  // of those, what cannot be computed again

  // With `excess` bytes of what lies across the step out of the arena. One part is computed again, at the price of the
  // cheapest, beside copies of the rest.
  double least_ms(size_t step, double excess, const CopyRates& rates) const {
    double ms = timeline_.compute_ms;
    const double outside = static_cast<double>(outside_[step]);
    const auto copying = [&](double bytes) {
      if (bytes <= 0) return 0.0;
      if (rates.one_way <= 0) return kAnyTime;
      return std::min(bytes, outside) / rates.one_way + std::max(0.0, bytes - outside) / rates.both_ways;
    };
    for (const auto& [bytes, again_ms] : cheapest_first(step)) {
      if (ms >= copying(excess)) return ms;
      if (ms + again_ms >= copying(excess - bytes)) {  // somewhere within this one both take the same time
        double low = 0, high = 1;
        for (int i = 0; i < 40; ++i) {
          const double share = (low + high) / 2;
          (ms + share * again_ms >= copying(excess - share * bytes) ? high : low) = share;
        }
        return ms + low * again_ms;
      }
      excess -= bytes;
      ms += again_ms;
    }
    return std::max(ms, copying(excess));
  }

 private:
  // The steps between which a value must be there or be brought back: from what writes it to its last use, or the end.
  void find_spans() {
    for (const TimelineValue& value : timeline_.values) {
      const bool unused = value.producer < 0 && value.uses.empty();  // it may lie in a tier all the time
      begin_.push_back(value.producer);
      end_.push_back(unused               ? -1
                     : value.at_end       ? static_cast<int32_t>(count_)
                     : value.uses.empty() ? value.producer
                                          : value.uses.back());
    }
  }

  void find_own() {
    for (const TimelineStep& step : timeline_.steps) own_.push_back(own_bytes(timeline_, step));
  }

  // Across a step lies what was written before it, is wanted behind it, and is not among its inputs.
  bool lies_across(int32_t v, size_t step) const {
    const std::span<const int32_t> inputs = timeline_.steps[step].inputs;
    const int32_t s = static_cast<int32_t>(step);
    return begin_[v] < s && s < end_[v] && std::find(inputs.begin(), inputs.end(), v) == inputs.end();
  }
  void find_across() {
    across_.assign(count_ + 1, 0);  // changes first
    lasting_.assign(count_ + 1, 0);
    outside_.assign(count_ + 1, 0);
    const auto add = [&](int32_t v, int32_t step, int64_t bytes) {
      across_[step] += bytes;
      if (!timeline_.values[v].recomputable) lasting_[step] += bytes;
      if (timeline_.values[v].state >= 0 || timeline_.values[v].producer < 0) outside_[step] += bytes;
    };
    for (int32_t v = 0; v < static_cast<int32_t>(timeline_.values.size()); ++v) {
      const int32_t first = begin_[v] + 1, end = end_[v];
      if (first >= end) continue;
      const int64_t bytes = timeline_.values[v].bytes;
      add(v, first, bytes);
      add(v, end, -bytes);
      for (int32_t use : timeline_.values[v].uses) {
        if (use >= end) continue;
        add(v, use, -bytes);
        add(v, use + 1, bytes);
      }
    }
    std::partial_sum(across_.begin(), across_.end(), across_.begin());
    std::partial_sum(lasting_.begin(), lasting_.end(), lasting_.begin());
    std::partial_sum(outside_.begin(), outside_.end(), outside_.begin());
  }

  struct Again {
    double bytes = 0, ms = 0;
  };
  // The steps that can write anew what lies across this one.
  std::vector<Again> cheapest_first(size_t step) const {
    std::vector<Again> list;
    for (size_t source = 0; source < step; ++source) {
      Again again{.ms = timeline_.steps[source].ms};
      for (int32_t v : timeline_.steps[source].outputs) {
        if (timeline_.values[v].recomputable && lies_across(v, step))
          again.bytes += static_cast<double>(timeline_.values[v].bytes);
      }
      if (again.bytes > 0) list.push_back(again);
    }
    std::sort(list.begin(), list.end(), [](const Again& a, const Again& b) { return a.ms * b.bytes < b.ms * a.bytes; });
    return list;
  }

  const ValueTimeline& timeline_;
  const size_t count_;
  std::vector<int32_t> begin_, end_;                       // by value
  std::vector<int64_t> own_, across_, lasting_, outside_;  // by step
};

}  // namespace

int64_t own_bytes(const ValueTimeline& timeline, const TimelineStep& step) {
  int64_t bytes = step.workspace;
  for (int32_t v : step.inputs) bytes += timeline.values[v].bytes;
  for (int32_t v : step.outputs) {
    if (!may_take_a_place(step, v)) bytes += timeline.values[v].bytes;
  }
  return bytes;
}

int64_t bytes_at_end(const ValueTimeline& timeline, bool tiers) {
  int64_t bytes = 0;
  for (const TimelineValue& value : timeline.values)
    bytes += value.at_end && (value.is_output || !tiers) ? value.bytes : 0;
  return bytes;
}

int64_t least_live(const ValueTimeline& timeline, bool tiers) {
  const Bounds bounds(timeline);
  int64_t most = bytes_at_end(timeline, tiers);
  for (size_t s = 0; s < bounds.count(); ++s) most = std::max(most, bounds.own(s) + (tiers ? 0 : bounds.lasting(s)));
  return most;
}

double least_ms(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, int64_t budget) {
  const Bounds bounds(timeline);
  std::vector<size_t> above;
  for (size_t s = 0; s < bounds.count(); ++s) {
    if (bounds.own(s) + (tiers.empty() ? bounds.lasting(s) : 0) > budget) return kAnyTime;
    if (bounds.own(s) + bounds.across(s) > budget) above.push_back(s);
  }
  const CopyRates rates = copy_rates(tiers);
  double most = timeline.compute_ms;
  for (size_t i = 0, n = std::min(kStepsJudged, above.size()); i < n; ++i) {
    const size_t s = above[i * above.size() / n];
    const double excess = static_cast<double>(bounds.own(s) + bounds.across(s) - budget);
    most = std::max(most, bounds.least_ms(s, excess, rates));
  }
  return most;
}

}  // namespace plimsoll
