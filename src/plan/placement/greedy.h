// Placements made from an order of the items: each takes the lowest offset where it meets nobody placed before it.
//
// Deep networks have tens of thousands of items of which thousands are alive at once; there the long-lived ones, which
// nest like a stack, are put on a skyline (a tree over time), and only the short-lived ones look for holes among each
// other.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "plan/placement/problem.h"
#include "plan/placement/skyline.h"

namespace plimsoll {

class GreedyPlacer {
 public:
  explicit GreedyPlacer(const PlacementProblem& problem);

  // Orders of all items, by what usually comes first in good placements.
  static constexpr size_t kOrders = 8;
  std::vector<int32_t> order(size_t index) const;

  // Places what has no offset yet (-1): the long ones on the skyline, then the short ones into holes above it.
  // Returns the height of all. What reaches `limit` is of no use: as soon as an item has no place below it, the limit
  // is returned, and what is left has no offset.
  Skyline place_long(const std::vector<int32_t>& order, std::vector<int64_t>& offsets) const;
  int64_t place_short(const std::vector<int32_t>& order, const Skyline& skyline, std::vector<int64_t>& offsets,
                      int64_t limit = INT64_MAX) const;

  bool is_long(int32_t i) const { return item(i).length() > short_length_; }
  int64_t pressure(int32_t i) const { return pressure_[i]; }  // largest sum alive while it lives
  int64_t looks() const { return looks_; }  // pairs of items looked at so far: what the time goes into

 private:
  size_t count() const { return problem_.items.size(); }
  const PlacementItem& item(int32_t i) const { return problem_.items[i]; }
  // What a short item that has no place yet knows of its neighbours that have one.
  struct Room {
    int64_t lowest = 0;  // offset with room for the item
    int64_t size = 0;    // of the item
    std::vector<std::pair<int64_t, int64_t>>
        taken;  // above it, with room for the item between any two; the lowest is last
    void take(int64_t begin, int64_t end);
  };

  std::span<const int32_t> neighbours(int32_t i) const {
    const auto begin = first_neighbour_[i], end = first_neighbour_[i + 1];
    return std::span(neighbours_).subspan(begin, end - begin);
  }
  void find_pressure();
  int64_t pairs_within(int32_t length) const;
  void split();
  void find_neighbours();

  const PlacementProblem& problem_;
  int32_t short_length_ = 0;
  std::vector<int64_t> pressure_;
  std::vector<size_t> first_neighbour_;  // by item: where its neighbours begin; one more at the end
  std::vector<int32_t> neighbours_;
  mutable std::vector<Room> rooms_;  // by item, only inside place_short
  mutable int64_t looks_ = 0;
};

}  // namespace plimsoll
