#include "plan/placement/bundle.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

namespace plimsoll {
namespace {

constexpr size_t kNext = 8;                  // of those that begin later, so many are tried as company
constexpr int32_t kMostBetween = 2;          // times between two that lie side by side
constexpr int32_t kAlike[] = {32, 8, 4, 2};  // of two on top of each other none misses more than 1 / this of their hull
constexpr int kPasses = 20;                  // for each of these

struct Growing {
  PlacementItem item;
  std::vector<Bundles::Member> members;
};

class Bundler {
 public:
  Bundler(const PlacementProblem& problem, int64_t height, const BundleChoice& choice, Clock::time_point deadline)
      : problem_(problem), backwards_(choice.backwards), deadline_(deadline) {
    for (int64_t live : problem.live) {
      room_.push_back(static_cast<int64_t>(choice.share * static_cast<double>(height - live)));
    }
    if (backwards_) std::reverse(room_.begin(), room_.end());
    for (size_t i = 0; i < problem.items.size(); ++i) {
      bundles_.push_back({in_my_time(problem.items[i]), {{static_cast<int32_t>(i), 0}}});
    }
  }

  Bundles run() {
    join_equals();
    for (const int32_t alike : kAlike) {
      for (int pass = 0; pass < kPasses && join_neighbours(alike); ++pass) continue;
    }
    Bundles result;
    for (Growing& bundle : bundles_) {
      result.problem.buffer.push_back(static_cast<int32_t>(result.problem.items.size()));
      result.problem.items.push_back(in_my_time(bundle.item));
      result.members.push_back(std::move(bundle.members));
    }
    result.problem.times = problem_.times;
    find_live(result.problem);
    return result;
  }

 private:
  PlacementItem in_my_time(PlacementItem item) const {
    if (backwards_) item.lower = problem_.times - std::exchange(item.upper, problem_.times - item.lower);
    return item;
  }
  void sort() {
    std::stable_sort(bundles_.begin(), bundles_.end(), [](const Growing& a, const Growing& b) {
      return std::tuple(a.item.lower, -a.item.upper) < std::tuple(b.item.lower, -b.item.upper);
    });
  }

  // What is left of the room at `time` when the two become one of `size` bytes there.
  int64_t room_after(int32_t time, const PlacementItem& a, const PlacementItem& b, int64_t size) const {
    auto lives = [&](const PlacementItem& item) { return item.lower <= time && time < item.upper ? item.size : 0; };
    return room_[time] - size + lives(a) + lives(b);
  }
  template <class Visit>
  static bool all_of_hull(const PlacementItem& a, const PlacementItem& b, bool beside, const Visit& visit) {
    const int32_t lower = std::min(a.lower, b.lower), upper = std::max(a.upper, b.upper);
    const int32_t from = beside ? upper : std::max(a.lower, b.lower), to = std::min(a.upper, b.upper);  // both live
    for (int32_t t = lower; t < std::min(from, upper); ++t) {
      if (!visit(t)) return false;
    }
    for (int32_t t = std::max(to, lower); !beside && t < upper; ++t) {
      if (!visit(t)) return false;
    }
    return true;
  }
  bool try_join(Growing& bundle, Growing& other, int32_t alike, bool beside) {
    const PlacementItem &a = bundle.item, &b = other.item;
    const int32_t lower = std::min(a.lower, b.lower), upper = std::max(a.upper, b.upper), length = upper - lower;
    if (!beside && length - std::min(a.length(), b.length()) > length / alike) return false;
    const int64_t size = beside ? std::max(a.size, b.size) : a.size + b.size;
    if (!all_of_hull(a, b, beside, [&](int32_t t) { return room_after(t, a, b, size) >= 0; })) return false;
    all_of_hull(a, b, beside, [&](int32_t t) {
      room_[t] = room_after(t, a, b, size);
      return true;
    });
    // The longer one below.
    const bool swap = !beside && b.length() > a.length();
    if (swap) bundle.members.swap(other.members);
    const int64_t bottom = beside ? 0 : swap ? b.size : a.size;
    for (const Bundles::Member& member : other.members) bundle.members.push_back({member.item, bottom + member.offset});
    bundle.item = {lower, upper, size, std::max(a.duration, b.duration)};
    other.members.clear();
    return true;
  }
  void drop_empty() {
    std::erase_if(bundles_, [](const Growing& bundle) { return bundle.members.empty(); });
  }

  void join_equals() {
    sort();
    for (size_t i = 0, j = 1; j < bundles_.size(); ++j) {
      if (bundles_[i].item.lower == bundles_[j].item.lower && bundles_[i].item.upper == bundles_[j].item.upper) {
        try_join(bundles_[i], bundles_[j], 1, false);
      } else {
        i = j;
      }
    }
    drop_empty();
  }

  bool join_neighbours(int32_t alike) {
    sort();
    bool joined = false;
    for (size_t i = 0; i < bundles_.size(); ++i) {
      if (i % 64 == 0 && deadline_ != Clock::time_point::max() && Clock::now() > deadline_) break;
      if (bundles_[i].members.empty()) continue;
      size_t tried = 0;
      for (size_t j = i + 1; j < bundles_.size() && tried < kNext; ++j) {
        if (bundles_[j].members.empty()) continue;
        if (bundles_[j].item.lower - bundles_[i].item.upper > kMostBetween) break;
        ++tried;
        joined = try_join(bundles_[i], bundles_[j], alike, bundles_[j].item.lower >= bundles_[i].item.upper) || joined;
      }
    }
    drop_empty();
    return joined;
  }

  const PlacementProblem& problem_;
  const bool backwards_;
  const Clock::time_point deadline_;
  std::vector<int64_t> room_;  // by time: bytes that may still be wasted
  std::vector<Growing> bundles_;
};

}  // namespace

Bundles make_bundles(const PlacementProblem& problem, int64_t height, const BundleChoice& choice,
                     Clock::time_point deadline) {
  return Bundler(problem, height, choice, deadline).run();
}

std::vector<int64_t> Bundles::offsets_of_items(const PlacementProblem& whole,
                                               const std::vector<int64_t>& offsets) const {
  std::vector<int64_t> result(whole.items.size());
  for (size_t b = 0; b < members.size(); ++b) {
    for (const Member& member : members[b]) result[member.item] = offsets[b] + member.offset;
  }
  return result;
}

}  // namespace plimsoll
