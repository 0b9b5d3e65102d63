#include "plan/placement/pool.h"

#include <algorithm>
#include <map>

#include "plimsoll/error.h"

namespace plimsoll {

std::optional<int64_t> UnifiedPool::take(int64_t size, Mobility mobility) {
  if (mobility == Mobility::reclaimed) return incremental_.take(size, Heap::Fit::best);
  Heap& heap = mobility == Mobility::movable ? low_ : high_;
  const int64_t offset = heap.take(size, Heap::Fit::best);
  const int64_t gap = size_ - low_.used() - high_.used();
  if (gap < 0) {
    heap.give_back(offset, size);
    return std::nullopt;
  }
  smallest_gap_ = std::min(smallest_gap_, gap);
  return mobility == Mobility::movable ? offset : size_ - offset - size;
}

void UnifiedPool::give_back(int64_t offset, int64_t size, Mobility mobility) {
  switch (mobility) {
    case Mobility::reclaimed: return incremental_.give_back(offset, size);
    case Mobility::movable: return low_.give_back(offset, size);
    case Mobility::temporary: return high_.give_back(size_ - offset - size, size);
  }
}

Bytes fit_pool_size(Bytes init, Bytes squeeze_gap, Bytes beta, const std::function<bool(Bytes)>& trains) {
  Bytes size = init - squeeze_gap + beta;
  while (!trains(size)) {
    if (beta.count <= 0 || size.count > init.count)
      throw Error(ErrorCode::infeasible, "the pool cannot grow to a size that training works in");
    size += beta;
  }
  return size;
}

Placement place_gtbm(const std::vector<Buffer>& buffers, const PlacementOptions& options) {
  const PlacementProblem problem = make_problem(buffers, options.alignment);
  auto size = [&](int32_t i) { return problem.items[i].size; };
  auto mobility = [&](int32_t i) { return buffers[problem.buffer[i]].mobility; };
  std::vector<int64_t> offsets(problem.items.size(), 0);
  auto train = [&](UnifiedPool& pool) {
    bool fits = true;
    visit_in_time_order(
        problem.items,
        [&](int32_t i) {
          const std::optional<int64_t> offset = fits ? pool.take(size(i), mobility(i)) : std::nullopt;
          fits = offset.has_value();
          offsets[i] = offset.value_or(0);
        },
        [&](int32_t i) {
          if (fits) pool.give_back(offsets[i], size(i), mobility(i));
        });
    return fits;
  };

  int64_t init = 0;  // large enough for whatever comes
  for (const PlacementItem& item : problem.items) init += item.size;
  UnifiedPool first(init);
  train(first);
  const Bytes main = fit_pool_size({init}, {first.squeeze_gap()}, {0}, [&](Bytes fitted) {
    UnifiedPool pool(fitted.count);
    return train(pool);
  });
  for (size_t i = 0; i < offsets.size(); ++i) {
    if (mobility(static_cast<int32_t>(i)) == Mobility::reclaimed) offsets[i] += main.count;
  }
  return make_placement(problem, offsets, buffers.size());
}

double unusable_free_space(std::span<const Bytes> free_regions, Bytes request) {
  double total = 0, usable = 0;
  for (const Bytes region : free_regions) {
    total += static_cast<double>(region.count);
    if (region >= request) usable += static_cast<double>(region.count);
  }
  return total > 0 ? (total - usable) / total : 0;
}

std::vector<FragmentationAt> fragmentation_over_time(const std::vector<Buffer>& buffers, const Placement& placement,
                                                     Bytes request) {
  std::map<int64_t, std::vector<size_t>> begins, ends;
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].bytes.count <= 0 || buffers[i].lower >= buffers[i].upper) continue;
    begins[buffers[i].lower].push_back(i);
    begins[buffers[i].upper];
    ends[buffers[i].upper].push_back(i);
  }
  std::vector<FragmentationAt> result;
  std::map<int64_t, int64_t> alive;  // offset -> end
  std::vector<Bytes> holes;
  for (const auto& [time, beginning] : begins) {
    if (const auto ending = ends.find(time); ending != ends.end()) {
      for (size_t i : ending->second) alive.erase(placement.offsets[i].count);
    }
    for (size_t i : beginning) alive[placement.offsets[i].count] = placement.offsets[i].count + buffers[i].bytes.count;
    FragmentationAt now{.time = time};
    holes.clear();
    for (const auto& [offset, end] : alive) {
      if (offset > now.used.count) holes.push_back({offset - now.used.count});
      now.used = {end};
      now.live += Bytes{end - offset};
    }
    if (now.used < placement.height) holes.push_back(placement.height - now.used);
    for (const Bytes hole : holes) now.largest_free = std::max(now.largest_free, hole);
    now.free = placement.height - now.live;
    now.unusable = unusable_free_space(holes, request);
    result.push_back(now);
  }
  return result;
}

}  // namespace plimsoll
