// The gradient of an embedding's table, made for a few elements at a time out of that of the rows that were looked up
// (ops/embedding_gradient.cpp). Each row is summed from zero in the order of its lookups, as by EmbeddingBackward.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "device/cpu/own.h"
#include "device/cpu/own_digits.h"
#include "device/cpu/own_move.h"
#include "ops/take.h"

namespace plimsoll::cpu {

class Lookups {
 public:
  Lookups(const Op& op, const Shape& table, const Tensor& indices)
      : rows_(table[0]),
        width_(table[1]),
        most_(element_count(indices.shape)),
        padding_(op.attributes.integer("padding_index", -1)),
        dtype_(indices.dtype) {
    if (std::max(rows_, most_) <= UINT32_MAX) return;
    throw Error(ErrorCode::unsupported, fmt::format("op '{}' ({}): at most {} rows are possible, in table and lookups",
                                                    op.name, op.type->name, UINT32_MAX));
  }
  Bytes workspace() const { return {2 * most_ * static_cast<int64_t>(sizeof(uint64_t))}; }

  // Puts the lookups in the order of their rows. Throws for the first index that is out of range.
  void sort(const float* dy, const void* indices, void* workspace) {
    dy_ = dy;
    first_ = last_ = static_cast<uint64_t*>(workspace);
    for (int64_t i = 0; i < most_; ++i) {
      const int64_t row = index_at(indices, dtype_, i);
      if (row < 0 || row >= rows_) throw_bad_index(i, row, 0, rows_);
      if (row != padding_) *last_++ = static_cast<uint64_t>(row) << 32 | static_cast<uint64_t>(i);
    }
    if (last_ - first_ > 1) sort_by_digits(first_, first_ + most_, last_ - first_);
  }

  // Where a walk through the table is. It begins at the first lookup.
  using Place = const uint64_t*;
  Place begin() const { return first_; }

  // Writes the gradient of elements [begin, end) to `to`, or nothing where it is 0: then it returns false. A walk goes on
  // from `place`, towards larger elements.
  bool make(Range range, Place& place, float* to) const {
    const int64_t row = range.begin / width_;
    while (place != last_ && row_of(*place) < row) ++place;
    if (place == last_ || row_of(*place) * width_ >= range.end) return false;
    std::memset(to, 0, static_cast<size_t>(range.end - range.begin) * sizeof(float));
    for (Place at = place; at != last_ && row_of(*at) * width_ < range.end; ++at) {
      const int64_t first = row_of(*at) * width_;
      const int64_t from = std::max(first, range.begin), until = std::min(first + width_, range.end);
      add_run(to + (from - range.begin), dy_ + place_of(*at) * width_ + (from - first), until - from);
    }
    return true;
  }

  // A part's share of the rows that were looked up: calls body(elements of the table, place) for each.
  template <class Body>
  void for_each_row(int part, int parts, const Body& body) const {
    const Range share_of_all = share(last_ - first_, part, parts);
    Place at = first_ + share_of_all.begin;
    const Place end = first_ + share_of_all.end;
    while (at != first_ && at < end && row_of(*at) == row_of(at[-1])) ++at;  // a row belongs to the part of its first
    while (at < end) {
      const int64_t row = row_of(*at);
      body(Range{row * width_, (row + 1) * width_}, at);
      while (at != last_ && row_of(*at) == row) ++at;
    }
  }

 private:
  static int64_t row_of(uint64_t lookup) { return static_cast<int64_t>(lookup >> 32); }
  static int64_t place_of(uint64_t lookup) { return static_cast<int64_t>(lookup & UINT32_MAX); }

  int64_t rows_, width_, most_, padding_;
  DType dtype_;
  const float* dy_ = nullptr;
  uint64_t *first_ = nullptr, *last_ = nullptr;  // a row, and which lookup, in their order
};

}  // namespace plimsoll::cpu
