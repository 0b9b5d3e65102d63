#include "plan/placement/decompose.h"

#include <algorithm>

namespace plimsoll {
namespace {

constexpr int64_t kMostLooks = 64;  // over all items: enough for real problems; pyramids would need one a step

struct Piece {
  std::vector<int32_t> items;  // by lower
  int64_t base = 0;
};

}  // namespace

PlacementProblem make_part(const PlacementProblem& problem, std::vector<int32_t> items) {
  std::vector<int32_t> times;
  for (int32_t i : items) {
    times.push_back(problem.items[i].lower);
    times.push_back(problem.items[i].upper);
  }
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  auto number = [&](int32_t time) {
    return static_cast<int32_t>(std::lower_bound(times.begin(), times.end(), time) - times.begin());
  };
  PlacementProblem part;
  for (int32_t i : items) {
    PlacementItem item = problem.items[i];
    item.lower = number(item.lower);
    item.upper = number(item.upper);
    part.items.push_back(item);
  }
  part.buffer = std::move(items);
  part.times = times.empty() ? 0 : static_cast<int32_t>(times.size()) - 1;
  find_live(part);
  return part;
}

Decomposition decompose(const PlacementProblem& problem) {
  Decomposition result;
  result.offsets.assign(problem.items.size(), -1);
  auto item = [&](int32_t i) -> const PlacementItem& { return problem.items[i]; };

  std::vector<Piece> pieces(1);
  for (size_t i = 0; i < problem.items.size(); ++i) pieces[0].items.push_back(static_cast<int32_t>(i));
  std::stable_sort(pieces[0].items.begin(), pieces[0].items.end(),
                   [&](int32_t a, int32_t b) { return item(a).lower < item(b).lower; });
  int64_t looks = kMostLooks * static_cast<int64_t>(problem.items.size());
  while (!pieces.empty()) {
    const Piece piece = std::move(pieces.back());
    pieces.pop_back();
    looks -= static_cast<int64_t>(piece.items.size());
    for (size_t begin = 0; begin < piece.items.size();) {
      size_t end = begin;
      int32_t reach = item(piece.items[begin]).upper;
      for (; end < piece.items.size() && item(piece.items[end]).lower < reach; ++end) {
        reach = std::max(reach, item(piece.items[end]).upper);
      }
      const int32_t lower = item(piece.items[begin]).lower;
      Piece rest{.items = {}, .base = piece.base};
      for (size_t p = begin; p < end; ++p) {
        const int32_t i = piece.items[p];
        if (item(i).lower == lower && item(i).upper == reach) {
          result.offsets[i] = rest.base;
          rest.base += item(i).size;
        } else {
          rest.items.push_back(i);
        }
      }
      const bool smaller = rest.items.size() < end - begin;
      if (smaller && looks > 0) {
        if (!rest.items.empty()) pieces.push_back(std::move(rest));
      } else if (!rest.items.empty()) {
        std::sort(rest.items.begin(), rest.items.end());
        result.parts.push_back({make_part(problem, std::move(rest.items)), rest.base});
      }
      begin = end;
    }
  }
  std::stable_sort(result.parts.begin(), result.parts.end(), [](const PlacementPart& a, const PlacementPart& b) {
    return a.base + a.problem.lower_bound > b.base + b.problem.lower_bound;
  });
  return result;
}

}  // namespace plimsoll
