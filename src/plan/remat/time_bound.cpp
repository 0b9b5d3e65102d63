#include "plan/remat/time_bound.h"

#include <algorithm>

#include "plan/remat/bound_program.h"

namespace plimsoll {
namespace {

constexpr int32_t kMoments[] = {1, 2, 3, 5, 8, 12, 18, 27, 40};
constexpr int32_t kCandidates = 12;  // parts of the step, for moments that are chosen
constexpr size_t kFewMoments = 4;    // with the end: how the choice begins
constexpr double kNearly = 0.97;     // of the bound so far, below which cuts would not help
constexpr int64_t kEffortOfParts = 30'000'000;
constexpr int kFewSteps = 300;
constexpr int64_t kManySteps = 4'000;  // of the linear program
constexpr double kRounding = 1e-9;
constexpr double kSettled = 0.002;  // the bound rises by no more than this part of it
constexpr int kStepsOfNode = 120, kStepsOfLeaf = 600;
constexpr size_t kMostNodeBytes = size_t{1} << 28;

// What has room at a moment has all of it: a bound by cases, branch and bound. `bound` and its program are as the last
// improvement left them, which proved `least`. No more than `enough` is looked for.
class Branching {
 public:
  Branching(BoundProgram& bound, double least, double enough, int64_t effort)
      : bound_(bound), program_(bound.program()), enough_(enough), effort_(effort) {
    add({least, 0, {}, bound.most_divided(), program_.state()});
  }

  double run() {
    while (!open_.empty() && effort_ > 0 && bytes_ < kMostNodeBytes) {
      std::ranges::pop_heap(open_, is_later);
      const Node node = std::move(open_.back());
      open_.pop_back();
      bytes_ -= bytes_of(node);
      if (node.column < 0) {  // nothing to divide
        leaves_ = std::min(leaves_, node.least);
        break;
      }
      for (const int8_t there : {0, 1}) visit(node, there);
    }
    const double least = open_.empty() ? enough_ : std::min(enough_, open_.front().least);
    return std::min(least, leaves_);
  }
  int64_t effort_left() const { return effort_; }

 private:
  struct Node {
    double least;
    int32_t number;
    std::vector<std::pair<int32_t, int8_t>> fixed;  // columns
    int32_t column;                                 // by which it is divided next
    LinearProgram::State state;
  };
  static bool is_later(const Node& a, const Node& b) {
    return a.least != b.least ? a.least > b.least : a.number < b.number;
  }
  static size_t bytes_of(const Node& node) {
    return sizeof(float) * (node.state.prices.size() + node.state.values.size()) + 1000;
  }
  void add(Node node) {
    bytes_ += bytes_of(node);
    open_.push_back(std::move(node));
    std::ranges::push_heap(open_, is_later);
  }

  double improve(int steps) {
    const double least = program_.improve(steps, enough_);
    effort_ -= steps * bound_.entries();
    return least;
  }
  void visit(const Node& node, int8_t there) {
    Node next{node.least, ++count_, node.fixed, -1, {}};
    next.fixed.emplace_back(node.column, there);
    for (const auto& [column, value] : next.fixed) program_.set_limits(column, value, value);
    program_.go_on_from(node.state);
    next.least = std::max(next.least, improve(kStepsOfNode));
    if (next.least < enough_ && bound_.add_cuts() > 0) next.least = std::max(next.least, improve(kStepsOfNode));
    if (next.least < enough_) next.column = bound_.most_divided();
    if (next.least < enough_ && next.column < 0) {
      next.least = std::max(next.least, improve(kStepsOfLeaf));
      next.column = bound_.most_divided();
    }
    next.state = program_.state();
    for (const auto& [column, value] : next.fixed) program_.set_limits(column, 0, 1);
    if (next.least < enough_) add(std::move(next));
  }

  BoundProgram& bound_;
  LinearProgram& program_;
  const double enough_;
  int64_t effort_;
  std::vector<Node> open_;  // a heap, the least first
  double leaves_ = kAnyTime;
  size_t bytes_ = 0;
  int32_t count_ = 0;
};

class TimeBound {
 public:
  TimeBound(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, int64_t budget, double enough)
      : timeline_(timeline), copies_(tiers), budget_(budget), enough_(enough) {}

  double run(int64_t effort) {
    const int64_t parts = std::max(std::min(effort / 2, kEffortOfParts), effort / 4);
    by_parts(parts);
    if (!impossible_ && best_ < enough_ && !first_moments_.empty()) by_choice(effort - parts);
    return impossible_ ? kAnyTime : best_;
  }

 private:
  // By more and more moments, each time with half of the effort that is left.
  void by_parts(int64_t left) {
    int64_t known = 0;  // entries of the program before
    std::vector<int32_t> before;
    for (const int32_t moments : kMoments) {
      for (const bool by_time : {false, true}) {
        if (by_time && !copies_.some_beside_compute()) continue;
        if (known > 0 && left < kFewSteps * known) return;
        BoundProgram bound(timeline_, copies_, budget_, moments, {}, by_time);
        impossible_ |= bound.impossible();
        if (impossible_ || bound.nothing_to_ask()) return;
        if (bound.moments() == before) continue;
        before = bound.moments();
        if (known > 0 && left < kFewSteps * bound.entries()) return;
        known = bound.entries();
        int64_t part = left / 2;
        left -= part;
        solve(bound, part);
        left += std::max<int64_t>(part, 0);
        if (best_ >= enough_) return;
      }
    }
  }

  // As far as so much effort goes, which is then less.
  void solve(BoundProgram& bound, int64_t& effort) {
    double best = 0;
    bool settled = false;
    for (int64_t done = 0; !settled && best < enough_; done += kFewSteps) {
      if (done > 0 && (effort < kFewSteps * bound.entries() || done >= kManySteps)) break;
      const int added = done > 0 ? bound.add_cuts() : 1;
      const double before = best;
      best = std::max(best, bound.program().improve(kFewSteps, enough_));
      effort -= kFewSteps * bound.entries();
      settled = added == 0 && best - before <= kSettled * best;
      if (done == 0 && best > most_at_first_ && bound.moments().size() <= kFewMoments) {
        most_at_first_ = best;
        first_moments_ = bound.moments();
        first_moments_.pop_back();
      }
    }
    if (settled && best < enough_) {
      Branching branching(bound, best, enough_, effort);
      best = std::max(best, branching.run());
      effort = branching.effort_left();
    }
    best_ = std::max(best_, best);
  }

  // By moments chosen one by one, each the one that lets the bound rise most.
  void by_choice(int64_t effort) {
    std::vector<int32_t> chosen = first_moments_;
    double reached = most_at_first_;
    for (;;) {
      std::vector<int32_t> next;
      double most = reached * (1 + kSettled);
      for (const int32_t s : candidates(chosen)) {
        if (effort <= 0) break;
        std::vector<int32_t> moments = chosen;
        moments.insert(std::ranges::upper_bound(moments, s), s);
        BoundProgram bound(timeline_, copies_, budget_, 0, moments);
        double ms = bound.program().improve(kFewSteps, enough_);
        effort -= kFewSteps * bound.entries();
        if (ms > kNearly * reached && bound.add_cuts() > 0) {
          ms = std::max(ms, bound.program().improve(kFewSteps, enough_));
          effort -= kFewSteps * bound.entries();
        }
        best_ = std::max(best_, ms);
        if (best_ >= enough_) return;
        if (ms <= most) continue;
        most = ms;
        next = std::move(moments);
      }
      if (effort <= 0) return;
      if (next.empty()) break;
      chosen = std::move(next);
      reached = most;
    }
    BoundProgram bound(timeline_, copies_, budget_, 0, chosen);
    solve(bound, effort);
  }
  // Steps beside the chosen ones, and some from all over those that are above the budget.
  std::vector<int32_t> candidates(const std::vector<int32_t>& chosen) const {
    std::vector<int32_t> found;
    const auto steps = static_cast<int32_t>(timeline_.steps.size());
    for (const int32_t s : chosen) {
      for (const int32_t by : {-1, 1}) {
        if (s + by >= 0 && s + by < steps) found.push_back(s + by);
      }
    }
    const BoundProgram parts(timeline_, copies_, budget_, kCandidates);
    const std::vector<int32_t> hungriest = parts.hungriest(kCandidates);
    found.insert(found.end(), parts.moments().begin(), parts.moments().end() - 1);
    found.insert(found.end(), hungriest.begin(), hungriest.end());
    std::ranges::sort(found);
    found.erase(std::ranges::unique(found).begin(), found.end());
    std::erase_if(found, [&](int32_t s) { return std::ranges::binary_search(chosen, s); });
    return found;
  }

  const ValueTimeline& timeline_;
  const CopyTimes copies_;
  const int64_t budget_;
  const double enough_;
  double best_ = 0, most_at_first_ = 0;
  std::vector<int32_t> first_moments_;  // with which the bound was highest after few steps
  bool impossible_ = false;
};

}  // namespace

double bound_time(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, int64_t budget, int64_t effort,
                  double enough_ms) {
  const double enough = enough_ms * (1 - kRounding) - timeline.compute_ms;
  const double more_ms = TimeBound(timeline, tiers, budget, enough).run(effort);
  return more_ms >= kAnyTime ? kAnyTime : timeline.compute_ms + more_ms * (1 - kRounding);
}

float RelaxedPresence::of(int32_t value, int32_t step) const {
  const auto moment = std::ranges::lower_bound(moments, step);
  const size_t j = std::min(static_cast<size_t>(moment - moments.begin()), moments.size() - 1);
  return there[static_cast<size_t>(value) * moments.size() + j];
}

std::optional<RelaxedPresence> relax_presence(const ValueTimeline& timeline, int64_t budget, int32_t moments,
                                              int64_t effort) {
  const std::vector<TierInfo> tiers;
  const CopyTimes copies(tiers);
  BoundProgram bound(timeline, copies, budget, moments);
  if (bound.impossible() || bound.nothing_to_ask()) return std::nullopt;
  LinearProgram& program = bound.program();
  program.improve(static_cast<int>(std::clamp<int64_t>(effort / bound.entries(), kFewSteps, kManySteps)), kAnyTime);
  return bound.presence();
}

}  // namespace plimsoll
