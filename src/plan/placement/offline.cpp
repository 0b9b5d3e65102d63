// Offline placement: the problem is cut into parts. Of each part bundles are made, which are few, and placed by greedy
// orders; where that does not reach the goal the part itself is placed so, and bundles for heights between. What is
// left is searched, always in the part that reaches highest. Sweeps of the whole problem from its fullest moment, or first
// fit in the usual orders, where that is lower, are the answer: for who watches the clock they come first where items are
// many, because they are fast and often all that is needed.
#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <tuple>

#include "base/clock.h"
#include "plan/effort.h"
#include "plan/placement/bundle.h"
#include "plan/placement/decompose.h"
#include "plan/placement/first_fit.h"
#include "plan/placement/greedy.h"
#include "plan/placement/heap.h"
#include "plan/placement/problem.h"
#include "plan/placement/search.h"
#include "plan/placement/sweep.h"

namespace plimsoll {
namespace {

constexpr size_t kManyItems = 10'000;         // of more, few bundles are made: each takes long
constexpr size_t kSearchItems = 2000;         // of more, only bundles are searched
constexpr int64_t kGreedyLooks = 12'000'000;  // pairs of items that greedy orders may look at
constexpr int kMendingPasses = 30;
constexpr int64_t kMendingLooks = 60'000'000, kMendingLooksOfMany = 12'000'000;  // in each of many placements
constexpr int64_t kFirstFitLooks = 100'000'000;                                  // at ranges of bytes: some 4 s
constexpr int64_t kNearlyGood = 50;  // what is above the goal by no more than this part of it is mended
// What greedy orders leave above the goal by more than this part of it seldom comes down to it. Of plans of the zoo's
// networks whose items are some, 1 of 75 did, and 1 of 224 where they are many; of those with few 10 of 73, but these are
// placed in no time.
constexpr size_t kFewItems = 600;
constexpr int64_t kFarAbove = 8, kFarAboveOfMany = 16;
constexpr BundleChoice kChoices[] = {{0.5, true},  {0.2, true}, {0.5, false}, {0.2, false},
                                     {0.35, true}, {0.1, true}, {0.1, false}, {0.03, true}};
constexpr int64_t kQuickStep = int64_t{1} << 20;  // effort for each, where there is no other
constexpr int64_t kQuickEffortAnItem = 500;       // but no more than that
constexpr int kHalvings = 6;                      // of the heights between, with no more effort than that
constexpr int64_t kFirstStep = int64_t{1} << 22;  // effort for the goal before lesser heights are tried as well

constexpr SweepRule kSweepRules[] = {{1, 2, 1}, {1, 1, 3}, {1, 4, 10}, {0, 1, 1}, {1, 1, 0}, {1, 0, 3}};
constexpr int64_t kMovingLooks = 500'000'000;  // at holes and items: some 20 s
constexpr int64_t kMovesOfEffort = 10;         // the part of a planner's effort that sweeps which move others get
constexpr int64_t kSweepAbove = 2000;          // sweeps that move others may use this part of the goal above it

struct Limits {
  Clock::time_point deadline;
  int64_t effort = 0;  // what is left
  bool reached() const { return effort <= 0 || Clock::now() > deadline; }
};

// One part of the problem on its way to a lower height.
class PartPlacer {
 public:
  // No height below `goal` is looked for; it is at least the lower bound. `lesser`: what comes near it is of use too.
  // What reaches above `limit` is of no use at all. `one_of_many`: what seldom reaches the goal is given up.
  PartPlacer(const PlacementProblem& problem, int64_t goal, bool with_bundles = true, bool lesser = true,
             int64_t limit = INT64_MAX, bool one_of_many = false, Clock::time_point deadline = Clock::time_point::max())
      : problem_(problem), deadline_(deadline), proven_(problem.lower_bound) {
    for (const PlacementItem& item : problem.items) smallest_step_ = std::gcd(smallest_step_, item.size);
    one_of_many &= problem.items.size() > kFewItems;
    if (one_of_many) {
      run_greedy(goal, limit, kMendingLooksOfMany);
      hopeless_ = height_ - goal > goal / (is_small() ? kFarAbove : kFarAboveOfMany);
      if (hopeless_ || height_ <= goal) return;
    }
    if (with_bundles && place_bundles(goal, has_many() ? 2 : std::size(kChoices))) return;
    if (!one_of_many) run_greedy(goal, limit, kMendingLooks);
    int64_t failed = goal;
    for (int n = 0;
         with_bundles && lesser && n < (has_many() ? 2 : kHalvings) && height_ - failed > smallest_step_ && in_time();
         ++n) {
      const int64_t middle = failed + (height_ - failed) / 2;
      if (!place_bundles(middle, is_small() ? 4 : 1)) failed = middle;
    }
  }

  int64_t height() const { return height_; }
  int64_t proven() const { return proven_; }  // nothing is lower
  const std::vector<int64_t>& offsets() const { return offsets_; }

  // Tries to come down to the goal, and, with `lesser`, at least to what is between.
  // Returns whether there is something left to try with more effort.
  bool improve(int64_t goal, bool lesser, Limits& limits) {
    if (hopeless_) return false;
    const int64_t target = std::max(goal, proven_);
    step_ = std::min(step_, std::max<int64_t>(limits.effort / 8, kQuickStep));
    bool more = search_bundles(target, step_, limits);
    if (height_ > target && is_small() && !limits.reached()) {
      if (!search_ || target != searched_) search_ = make_search(target);
      searched_ = target;
      more = advance(*search_, target, step_, limits) || more;
    }
    // Between what is proven and what is reached, by halves; what was not found with so much effort is left for later.
    for (int64_t from = target + smallest_step_; lesser && height_ > goal && from < height_ && !limits.reached();) {
      const int64_t middle = from + (height_ - smallest_step_ - from) / 2 / smallest_step_ * smallest_step_;
      const int64_t before = height_;
      search_bundles(middle, step_ / 8, limits);
      if (height_ > middle && is_small()) advance(*make_search(middle), middle, step_ / 8, limits);
      if (height_ == before) from = std::max(middle, proven_) + smallest_step_;
    }
    step_ *= 4;
    return more && height_ > std::max(goal, proven_);
  }

 private:
  bool is_small() const { return problem_.items.size() <= kSearchItems; }
  bool has_many() const { return problem_.items.size() > kManyItems; }
  bool in_time() const { return deadline_ == Clock::time_point::max() || Clock::now() <= deadline_; }

  // Heights of `limit` and more are of no use.
  void run_greedy(int64_t goal, int64_t limit, int64_t mending_looks) {
    limit = std::min(limit, height_);
    for (const bool backwards : {false, true}) {  // takes no time, and is the lowest of all more often than not
      take(place_on_heap(problem_, Heap::Fit::best, backwards));
      if (height_ <= goal) return;
    }
    if (!in_time()) return;
    const GreedyPlacer placer(problem_);
    std::vector<int32_t> best_order;
    std::vector<int64_t> offsets;
    auto try_order = [&](const std::vector<int32_t>& order, int64_t limit) {
      offsets.assign(problem_.items.size(), -1);
      const Skyline skyline = placer.place_long(order, offsets);
      const int64_t height = placer.place_short(order, skyline, offsets, limit);
      looks_ = placer.looks();
      if (height < limit) take(height, offsets);
      return height;
    };
    // No order has to be lower than what is nearly good: what comes of it is mended.
    int64_t lowest = height_ - goal < goal / kNearlyGood ? limit : std::min(limit, height_);
    for (size_t i = 0; i < GreedyPlacer::kOrders && looks_ <= kGreedyLooks && in_time(); ++i) {
      std::vector<int32_t> order = placer.order(i);
      const int64_t height = try_order(order, lowest);
      if (height_ <= goal) return;
      if (height >= lowest) continue;
      lowest = height;
      best_order = std::move(order);
    }
    // What sticks out above the goal is placed earlier the next time; that mends what is nearly good.
    if (best_order.empty()) return;
    std::vector<int32_t> order = best_order;
    const int64_t enough = looks_ + mending_looks;
    for (int pass = 0; pass < kMendingPasses && looks_ < enough && height_ - goal < goal / kNearlyGood && in_time();
         ++pass) {
      try_order(order, INT64_MAX);
      if (height_ <= goal) return;
      std::stable_partition(order.begin(), order.end(),
                            [&](int32_t i) { return offsets[i] + problem_.items[i].size > goal; });
    }
  }

  bool take(int64_t height, std::vector<int64_t> offsets) {
    if (!offsets_.empty() && height >= height_) return false;
    height_ = height;
    offsets_ = std::move(offsets);
    return true;
  }
  void take(std::vector<int64_t> offsets) {
    int64_t height = 0;
    for (size_t i = 0; i < offsets.size(); ++i) height = std::max(height, offsets[i] + problem_.items[i].size);
    take(height, std::move(offsets));
  }

  std::unique_ptr<PlacementSearch> make_search(int64_t target) const {
    return std::make_unique<PlacementSearch>(problem_, std::vector<int64_t>(problem_.items.size(), 0), target);
  }
  // Returns whether more effort may find something.
  bool advance(PlacementSearch& search, int64_t target, int64_t step, Limits& limits) {
    const PlacementSearch::Result result = search.advance({limits.deadline, std::min(step, limits.effort)});
    planning_effort().placement_looks += result.effort;
    limits.effort -= result.effort;
    if (result.outcome == PlacementSearch::Outcome::found) take(search.offsets());
    if (result.outcome == PlacementSearch::Outcome::none) proven_ = std::max(proven_, target + smallest_step_);
    return result.outcome == PlacementSearch::Outcome::stopped;
  }

  // With little effort, however much there is. Returns whether the target is reached.
  bool place_bundles(int64_t target, size_t most) {
    const int64_t effort = std::min(kQuickStep, kQuickEffortAnItem * static_cast<int64_t>(problem_.items.size()));
    for (const BundleChoice& choice : std::span(kChoices).first(most)) {
      if (!in_time()) return false;
      Limits limits{.deadline = deadline_, .effort = 100 * kQuickStep};
      try_bundles(target, choice, effort, limits);
      if (!offsets_.empty() && height_ <= target) return true;
    }
    return false;
  }
  // Returns whether more effort may find something.
  bool search_bundles(int64_t target, int64_t step, Limits& limits) {
    bool more = false;
    for (const BundleChoice& choice : std::span(kChoices).first(has_many() ? 2 : std::size(kChoices))) {
      if (height_ <= target || limits.reached()) return false;
      more = try_bundles(target, choice, step, limits) || more;
    }
    return more;
  }
  // Places the bundles, in parts again, and searches what greedy orders leave; only if all parts come down to the
  // target it is reached. Returns whether more effort may find something.
  bool try_bundles(int64_t target, const BundleChoice& choice, int64_t step, Limits& limits) {
    const Bundles bundles = make_bundles(problem_, target, choice, deadline_);
    Decomposition pieces = decompose(bundles.problem);
    for (const PlacementPart& part : pieces.parts) {
      const int64_t part_target = target - part.base;
      PartPlacer placer(part.problem, part_target, false, true, part_target + part_target / kNearlyGood + 1, false,
                        limits.deadline);
      limits.effort -= placer.looks_;
      bool more = false;
      if (placer.height() > part_target && !limits.reached()) {
        more = placer.advance(*placer.make_search(part_target), part_target, step, limits);
      }
      if (placer.height() > part_target) return more;
      for (size_t p = 0; p < part.problem.items.size(); ++p) {
        pieces.offsets[part.problem.buffer[p]] = part.base + placer.offsets()[p];
      }
    }
    take(bundles.offsets_of_items(problem_, pieces.offsets));
    return false;
  }

  const PlacementProblem& problem_;
  Clock::time_point deadline_;
  std::vector<int64_t> offsets_;
  int64_t height_ = INT64_MAX, proven_ = 0;
  int64_t smallest_step_ = 0;  // heights differ by multiples of it
  int64_t looks_ = 0;          // of greedy orders
  bool hopeless_ = false;      // only the goal is of use, and greedy orders end far above it
  std::unique_ptr<PlacementSearch> search_;
  int64_t searched_ = 0, step_ = kFirstStep;
};

int64_t height_of(const PlacementProblem& problem, const std::vector<int64_t>& offsets) {
  if (offsets.empty()) return INT64_MAX;
  int64_t height = 0;
  for (size_t i = 0; i < offsets.size(); ++i) height = std::max(height, offsets[i] + problem.items[i].size);
  return height;
}

// Sweeps of the whole problem. Keeps in `best` what is lower; empty where there is none yet.
class SweepPlacer {
 public:
  SweepPlacer(const PlacementProblem& problem, int64_t goal, Clock::time_point deadline, std::vector<int64_t>& best)
      : problem_(problem), goal_(goal), deadline_(deadline), best_(best), height_(height_of(problem, best)) {
    fullest_ = static_cast<int32_t>(std::max_element(problem.live.begin(), problem.live.end()) - problem.live.begin());
  }

  // By all rules; takes little time.
  void place() {
    for (const SweepRule& rule : kSweepRules) {
      if (is_done(goal_)) return;
      sweep_once({.height = goal_, .moment = fullest_, .rule = rule});
    }
  }

  // What comes of moving others, also from where something found no place: first to a height that is nearly the goal.
  void move(int64_t effort) {
    height_ = std::min(height_, height_of(problem_, best_));
    looks_ = 0;
    const int64_t nearly = goal_ + std::min(goal_ / kSweepAbove, INT64_MAX - goal_);
    for (const int64_t target : {nearly, goal_}) {
      int32_t moment = fullest_;
      for (const bool elsewhere : {false, true}) {
        for (const SweepRule& rule : kSweepRules) {
          if (looks_ >= effort || is_done(target)) break;
          moment = sweep_once({.height = target, .moment = elsewhere ? moment : fullest_, .rule = rule, .moves = true});
        }
      }
      if (height_ > target) return;
    }
  }

 private:
  bool is_done(int64_t target) const {
    return height_ <= target || (deadline_ != Clock::time_point::max() && Clock::now() > deadline_);
  }
  int32_t sweep_once(const SweepChoice& choice) {
    SweepResult result = sweep(problem_, choice, deadline_);
    looks_ += result.looks;
    if (result.height < height_) {
      height_ = result.height;
      best_ = std::move(result.offsets);
    }
    return result.moment;
  }

  const PlacementProblem& problem_;
  const int64_t goal_;
  const Clock::time_point deadline_;
  std::vector<int64_t>& best_;
  int64_t height_, looks_ = 0;
  int32_t fullest_ = 0;
};

struct FirstFitChoice {
  int64_t effort = 0;
  bool by_size_alone = false;
};

// First fit of all items in the usual orders, and what comes of placing those above the goal first. Keeps in `best`
// what is lower; empty where there is none yet. The simple orders are tried whatever the effort is.
void place_by_first_fit(const PlacementProblem& problem, const std::vector<Buffer>& buffers, int64_t goal,
                        const FirstFitChoice& choice, Clock::time_point deadline, std::vector<int64_t>& best) {
  auto size = [&](int32_t i) { return problem.items[i].size; };
  auto bytes = [&](int32_t i) { return buffers[problem.buffer[i]].bytes.count; };
  auto duration = [&](int32_t i) { return problem.items[i].duration; };
  auto area = [&](int32_t i) { return static_cast<double>(bytes(i)) * static_cast<double>(duration(i)); };
  int64_t height = height_of(problem, best);
  if (height <= goal) return;
  FirstFit first_fit(problem);
  std::vector<int32_t> best_order;
  std::vector<int64_t> offsets(problem.items.size());
  auto try_order = [&](const std::vector<int32_t>& order, int64_t limit) {
    const int64_t reached = first_fit.place(order, offsets, limit, deadline);
    if (reached < height) {
      height = reached;
      best = offsets;
    }
    return reached;
  };
  int64_t lowest = INT64_MAX;    // by an order
  auto try_by = [&](auto key) {  // largest key first
    if (height <= goal || Clock::now() > deadline) return;
    std::vector<int32_t> order(problem.items.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return key(a) > key(b); });
    const int64_t reached = try_order(order, std::min(lowest, height > goal + goal / kNearlyGood ? INT64_MAX : height));
    if (reached >= lowest) return;
    lowest = reached;
    best_order = std::move(order);
  };
  if (choice.by_size_alone) {
    try_by(bytes);
    return;
  }
  try_by([&](int32_t i) { return std::tuple(problem.items[i].length(), bytes(i)); });
  try_by(bytes);
  try_by(duration);
  try_by(area);
  try_by([&](int32_t i) { return std::tuple(bytes(i), duration(i)); });
  try_by([&](int32_t i) { return std::tuple(duration(i), bytes(i)); });
  try_by([&](int32_t i) { return -problem.items[i].lower; });
  try_by([&](int32_t i) { return std::tuple(-problem.items[i].lower, bytes(i)); });
  std::vector<int32_t> order = best_order;
  for (int pass = 0; pass < kMendingPasses && !order.empty() && height > goal && first_fit.looks() < choice.effort;
       ++pass) {
    if (try_order(order, INT64_MAX) == INT64_MAX) return;  // the time is over
    std::stable_partition(order.begin(), order.end(), [&](int32_t i) { return offsets[i] + size(i) > goal; });
  }
}

}  // namespace

Placement place_offline(const std::vector<Buffer>& buffers, const PlacementOptions& options) {
  ++planning_effort().placements;
  const PlacementProblem problem = make_problem(buffers, options.alignment);
  const int64_t goal = std::max(problem.lower_bound, options.capacity.count);
  Limits limits{.deadline = Clock::time_point::max(), .effort = options.effort};
  if (options.seconds)
    limits.deadline =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*options.seconds));
  const bool hopeless = options.capacity.count > 0 && problem.lower_bound > options.capacity.count;
  // Of a plan's placement only the height counts, and that it fits is all that many of them are asked for.
  const bool by_first_fit = !options.roughly && !options.only_to_fit;
  const int64_t first_fit_effort = std::min(options.effort, kFirstFitLooks);
  // A planner's small problems are left as they are: many are placed, and each answer leads its search elsewhere.
  const bool with_sweeps = options.seconds || problem.items.size() > kSearchItems;
  std::vector<int64_t> simple;
  // Who watches the clock is not kept waiting for more than that.
  if (by_first_fit && options.seconds && problem.items.size() > kSearchItems) {
    simple = place_on_heap(problem, Heap::Fit::best, false);
    SweepPlacer sweeps(problem, goal, limits.deadline, simple);
    sweeps.place();
    place_by_first_fit(problem, buffers, goal, {.by_size_alone = true}, limits.deadline, simple);
    sweeps.move(std::min(options.effort, kMovingLooks));
    place_by_first_fit(problem, buffers, goal, {.effort = first_fit_effort}, limits.deadline, simple);
    Placement placement = make_placement(problem, simple, buffers.size());
    if (placement.height.count <= goal || limits.reached()) return placement;
  }
  Decomposition pieces = decompose(problem);
  struct Part {
    const PlacementPart& part;
    PartPlacer placer;
    bool open = true;  // more effort may help
    int64_t height() const { return part.base + placer.height(); }
    int64_t proven() const { return part.base + placer.proven(); }
  };
  std::vector<Part> parts;
  parts.reserve(pieces.parts.size());
  int64_t reached = goal;
  for (const PlacementPart& part : pieces.parts) {
    const int64_t limit = options.useless.count == INT64_MAX ? INT64_MAX : options.useless.count - part.base;
    parts.push_back({part, PartPlacer(part.problem, reached - part.base, !options.roughly, !options.only_to_fit, limit,
                                      options.only_to_fit && options.one_of_many, limits.deadline)});
    reached = std::max(reached, parts.back().height());
  }
  // The height of all is that of the highest part: no other is worth any effort.
  while (!parts.empty() && !hopeless && !options.roughly && !limits.reached()) {
    Part& highest = *std::max_element(parts.begin(), parts.end(),
                                      [](const Part& a, const Part& b) { return a.height() < b.height(); });
    if (highest.height() <= goal || !highest.open) break;
    highest.open = highest.placer.improve(goal - highest.part.base, options.capacity.count == 0, limits);
    if (highest.proven() > goal && options.capacity.count > 0) break;  // it is known that the capacity cannot do
  }
  int64_t proven = problem.lower_bound;
  for (const Part& part : parts) {
    proven = std::max(proven, part.proven());
    for (size_t p = 0; p < part.part.problem.items.size(); ++p) {
      pieces.offsets[part.part.problem.buffer[p]] = part.part.base + part.placer.offsets()[p];
    }
  }
  Placement placement = make_placement(problem, pieces.offsets, buffers.size());
  if (placement.height.count > proven && by_first_fit) {
    if (simple.empty()) {
      simple = pieces.offsets;
      SweepPlacer sweeps(problem, goal, limits.deadline, simple);
      if (with_sweeps) sweeps.place();
      place_by_first_fit(problem, buffers, goal, {.effort = first_fit_effort}, limits.deadline, simple);
      if (with_sweeps) sweeps.move(first_fit_effort / kMovesOfEffort);
    }
    Placement other = make_placement(problem, simple, buffers.size());
    if (other.height < placement.height) placement = std::move(other);
  }
  if (placement.height.count > goal && !options.roughly) {
    // Cutting and shuffling rarely loses to an allocator that takes buffers as they come; where it does, that one is
    // taken.
    for (const auto& place : {place_best_fit, place_first_fit, place_gtbm}) {
      Placement other = place(buffers, options);
      if (other.height < placement.height) placement = std::move(other);
    }
  }
  placement.proven_lower_bound = {proven};
  placement.proven_optimal = placement.height == placement.proven_lower_bound;
  return placement;
}

}  // namespace plimsoll
