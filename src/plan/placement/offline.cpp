// Offline placement: the problem is cut into parts; each part is placed by several greedy orders, the first that
// reaches the goal ends it. What they leave is searched, always in the part that reaches highest.
#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>

#include "plan/placement/decompose.h"
#include "plan/placement/greedy.h"
#include "plan/placement/heap.h"
#include "plan/placement/problem.h"
#include "plan/placement/search.h"

namespace plimsoll {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kSearchItems = 2000;         // searched all together
constexpr size_t kHotItems = 600;             // of more, or where there are long ones: so many of the short ones, then more
constexpr int64_t kGreedyLooks = 40'000'000;  // pairs of items that greedy orders may look at
constexpr int kMendingPasses = 30;
constexpr int64_t kFirstStep = int64_t{1} << 22;  // effort for the goal before lesser heights are tried as well

struct Limits {
  Clock::time_point deadline;
  int64_t effort = 0;  // what is left
  bool reached() const { return effort <= 0 || Clock::now() > deadline; }
};

// One part of the problem on its way to a lower height.
class PartPlacer {
 public:
  // No height below `goal` is looked for; it is at least the lower bound.
  PartPlacer(const PlacementProblem& problem, int64_t goal) : problem_(problem), proven_(problem.lower_bound) {
    const GreedyPlacer placer(problem);
    smallest_step_ = 0;
    whole_ = problem.items.size() <= kSearchItems;
    for (size_t i = 0; i < problem.items.size(); ++i) {
      smallest_step_ = std::gcd(smallest_step_, problem.items[i].size);
      whole_ = whole_ && !placer.is_long(static_cast<int32_t>(i));
    }
    std::vector<int64_t> offsets;
    for (const std::vector<int32_t>& order : placer.orders()) {
      try_order(placer, order, offsets);
      if (height_ <= goal) return;
      if (placer.looks() > kGreedyLooks) break;
    }
    for (const bool backwards : {false, true}) {
      take(place_on_heap(problem, Heap::Fit::best, backwards));
      if (height_ <= goal) return;
    }
    // What sticks out above the goal is placed earlier the next time; that mends what is nearly good.
    std::vector<int32_t> order = best_order_;
    for (int pass = 0; pass < kMendingPasses && placer.looks() < 2 * kGreedyLooks && height_ - goal < goal / 50;
         ++pass) {
      try_order(placer, order, offsets);
      if (height_ <= goal) return;
      std::stable_partition(order.begin(), order.end(), [&](int32_t i) {
        return offsets[static_cast<size_t>(i)] + problem.items[static_cast<size_t>(i)].size > goal;
      });
    }
  }

  int64_t height() const { return height_; }
  int64_t proven() const { return proven_; }  // nothing is lower
  const std::vector<int64_t>& offsets() const { return offsets_; }

  // Tries to come down to the goal, and, with `lesser`, at least to what is between.
  // Returns whether there is something left to try with more effort.
  bool improve(int64_t goal, bool lesser, Limits& limits) {
    if (!whole_) {
      for (size_t hot = kHotItems; height_ > goal && !limits.reached(); hot *= 2) {
        search_hot(goal, hot, limits);
        if (hot >= problem_.items.size()) break;
      }
      return false;
    }
    const int64_t target = std::max(goal, proven_);
    if (!search_ || target != searched_) {
      search_ = std::make_unique<PlacementSearch>(problem_, std::vector<int64_t>(problem_.items.size(), 0), target);
      searched_ = target;
    }
    advance(*search_, target, step_, limits);
    // Between what is proven and what is reached, by halves; what was not found with so much effort is left for later.
    for (int64_t from = target + smallest_step_; lesser && height_ > goal && from < height_ && !limits.reached();) {
      const int64_t middle = from + (height_ - smallest_step_ - from) / 2 / smallest_step_ * smallest_step_;
      PlacementSearch search(problem_, std::vector<int64_t>(problem_.items.size(), 0), middle);
      const int64_t before = height_;
      advance(search, middle, step_ / 8, limits);
      if (height_ == before) from = std::max(middle, proven_) + smallest_step_;
    }
    step_ *= 4;
    return height_ > std::max(goal, proven_);
  }

 private:
  void try_order(const GreedyPlacer& placer, const std::vector<int32_t>& order, std::vector<int64_t>& offsets) {
    offsets.assign(problem_.items.size(), -1);
    const Skyline skyline = placer.place_long(order, offsets);
    const int64_t height = placer.place_short(order, skyline, offsets);
    if (take(height, offsets)) best_order_ = order;
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

  void advance(PlacementSearch& search, int64_t target, int64_t step, Limits& limits) {
    const PlacementSearch::Result result = search.advance({limits.deadline, std::min(step, limits.effort)});
    limits.effort -= result.effort;
    if (result.outcome == PlacementSearch::Outcome::found) take(search.offsets());
    if (result.outcome == PlacementSearch::Outcome::none) proven_ = std::max(proven_, target + smallest_step_);
  }

  // Where there is too much to search, the short items that live where there is least room; the others then find their
  // places around them.
  void search_hot(int64_t target, size_t count, Limits& limits) {
    const GreedyPlacer placer(problem_);
    std::vector<int64_t> offsets(problem_.items.size(), -1);
    const Skyline skyline = placer.place_long(best_order_, offsets);
    std::vector<int32_t> hot;
    for (int32_t i : best_order_) {
      if (!placer.is_long(i)) hot.push_back(i);
    }
    std::stable_sort(hot.begin(), hot.end(),
                     [&](int32_t a, int32_t b) { return placer.pressure(a) > placer.pressure(b); });
    if (hot.size() > count) hot.resize(count);
    std::sort(hot.begin(), hot.end());
    std::vector<int64_t> least;
    for (int32_t i : hot) {
      const PlacementItem& item = problem_.items[static_cast<size_t>(i)];
      least.push_back(skyline.largest(item.lower, item.upper));
    }
    const PlacementProblem part = make_part(problem_, hot);
    PlacementSearch search(part, least, target);
    const PlacementSearch::Result result = search.advance({limits.deadline, std::min(limits.effort, kFirstStep)});
    limits.effort -= result.effort;
    if (result.outcome != PlacementSearch::Outcome::found) return;
    for (size_t p = 0; p < hot.size(); ++p) offsets[static_cast<size_t>(hot[p])] = search.offsets()[p];
    for (const std::vector<int32_t>& order : placer.orders()) {
      std::vector<int64_t> around = offsets;
      const int64_t height = placer.place_short(order, skyline, around);
      take(height, std::move(around));
      if (height_ <= target) return;
    }
  }

  const PlacementProblem& problem_;
  std::vector<int32_t> best_order_;
  std::vector<int64_t> offsets_;
  int64_t height_ = 0, proven_ = 0;
  int64_t smallest_step_ = 1;  // heights differ by multiples of it
  bool whole_ = true;
  std::unique_ptr<PlacementSearch> search_;
  int64_t searched_ = 0, step_ = kFirstStep;
};

}  // namespace

Placement place_offline(const std::vector<Buffer>& buffers, const PlacementOptions& options) {
  const PlacementProblem problem = make_problem(buffers, options.alignment);
  Decomposition pieces = decompose(problem);
  const int64_t goal = std::max(problem.lower_bound, options.capacity.count);
  Limits limits{.deadline = Clock::now() +
                            std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.seconds)),
                .effort = options.effort};
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
    parts.push_back({part, PartPlacer(part.problem, reached - part.base)});
    reached = std::max(reached, parts.back().height());
  }
  // The height of all is that of the highest part: no other is worth any effort.
  const bool hopeless = options.capacity.count > 0 && problem.lower_bound > options.capacity.count;
  while (!parts.empty() && !hopeless && !limits.reached()) {
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
      pieces.offsets[static_cast<size_t>(part.part.problem.buffer[p])] = part.part.base + part.placer.offsets()[p];
    }
  }
  Placement placement = make_placement(problem, pieces.offsets, buffers.size());
  if (placement.height.count > goal) {
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
