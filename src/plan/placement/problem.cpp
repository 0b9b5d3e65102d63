#include "plan/placement/problem.h"

#include <fmt/format.h>

#include <algorithm>

#include "plimsoll/error.h"

namespace plimsoll {

PlacementProblem make_problem(const std::vector<Buffer>& buffers, int64_t alignment) {
  if (alignment <= 0)
    throw Error(ErrorCode::invalid_input, fmt::format("an alignment of {} is not positive", alignment));
  PlacementProblem problem;
  std::vector<int64_t> times;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const Buffer& b = buffers[i];
    if (b.bytes.count < 0)
      throw Error(ErrorCode::invalid_input, fmt::format("buffer {} has {} bytes", i, b.bytes.count));
    if (b.bytes.count == 0 || b.lower >= b.upper) continue;
    times.push_back(b.lower);
    times.push_back(b.upper);
    problem.buffer.push_back(static_cast<int32_t>(i));
  }
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  auto number = [&](int64_t time) {
    return static_cast<int32_t>(std::lower_bound(times.begin(), times.end(), time) - times.begin());
  };
  problem.times = times.empty() ? 0 : static_cast<int32_t>(times.size()) - 1;
  int64_t total = 0;
  for (int32_t index : problem.buffer) {
    const Buffer& b = buffers[index];
    PlacementItem& added = problem.items.emplace_back();
    added.lower = number(b.lower);
    added.upper = number(b.upper);
    const int64_t rest = (alignment - b.bytes.count % alignment) % alignment;
    if (__builtin_add_overflow(b.bytes.count, rest, &added.size) || __builtin_add_overflow(total, added.size, &total))
      throw Error(ErrorCode::invalid_input, "the sizes of all buffers together are more than a 64-bit number holds");
    if (__builtin_sub_overflow(b.upper, b.lower, &added.duration))
      throw Error(ErrorCode::invalid_input, fmt::format("buffer {} lives longer than a 64-bit number holds", index));
  }
  find_live(problem);
  return problem;
}

void find_live(PlacementProblem& problem) {
  std::vector<int64_t> change(problem.times + 1, 0);
  for (const PlacementItem& item : problem.items) {
    change[item.lower] += item.size;
    change[item.upper] -= item.size;
  }
  problem.live.clear();
  problem.lower_bound = 0;
  int64_t live = 0;
  for (int32_t t = 0; t < problem.times; ++t) {
    live += change[t];
    problem.live.push_back(live);
    problem.lower_bound = std::max(problem.lower_bound, live);
  }
}

Placement make_placement(const PlacementProblem& problem, const std::vector<int64_t>& offsets, size_t buffer_count) {
  Placement placement;
  placement.offsets.resize(buffer_count);
  placement.lower_bound = {problem.lower_bound};
  for (size_t i = 0; i < problem.items.size(); ++i) {
    placement.offsets[problem.buffer[i]] = {offsets[i]};
    placement.height = std::max(placement.height, Bytes{offsets[i] + problem.items[i].size});
  }
  placement.proven_lower_bound = placement.lower_bound;
  placement.proven_optimal = placement.height == placement.lower_bound;
  return placement;
}

}  // namespace plimsoll
