// What kernels share that move elements: runs of bytes, and loops around them.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstring>

#include "device/cpu/own_vector.h"
#include "ops/move.h"
#include "plimsoll/ops.h"

namespace plimsoll::cpu {

// From `kPiece` to twice as many bytes, by two pieces that may overlap.
template <int64_t kPiece>
PLIMSOLL_INLINE void copy_two_pieces(std::byte* to, const std::byte* from, int64_t bytes) {
  std::array<std::byte, kPiece> first, last;
  std::memcpy(&first, from, kPiece);
  std::memcpy(&last, from + bytes - kPiece, kPiece);
  std::memcpy(to, &first, kPiece);
  std::memcpy(to + bytes - kPiece, &last, kPiece);
}

// Copies a run of bytes; the last vector may overlap the one before.
PLIMSOLL_INLINE void copy_run(std::byte* to, const std::byte* from, int64_t bytes) {
  constexpr int64_t step = sizeof(f32x16);
  if (bytes > 4096) {
    std::memcpy(to, from, bytes);
    return;
  }
  if (bytes < step) {
    if (bytes >= 32) return copy_two_pieces<32>(to, from, bytes);
    if (bytes >= 16) return copy_two_pieces<16>(to, from, bytes);
    if (bytes >= 8) return copy_two_pieces<8>(to, from, bytes);
    if (bytes >= 4) return copy_two_pieces<4>(to, from, bytes);
    for (int64_t i = 0; i < bytes; ++i) to[i] = from[i];
    return;
  }
  const auto copy_at = [&](int64_t i) {
    f32x16 v;
    std::memcpy(&v, from + i, step);
    std::memcpy(to + i, &v, step);
  };
  for (int64_t i = 0; i + step < bytes; i += step) copy_at(i);
  copy_at(bytes - step);
}

// to += from
PLIMSOLL_INLINE void add_run(float* to, const float* from, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load(to + i) + load(from + i));
  if (i == count) return;
  const int n = static_cast<int>(count - i);
  store(to + i, load(to + i, n) + load(from + i, n), n);
}

inline constexpr size_t kMostLoops = 16;

// A nest of loops, counted like an odometer, from turn `at` on: where each side is.
class Odometer {
 public:
  Odometer(const std::vector<MoveLoop>& loops, int64_t at) : loops_(loops) {
    for (size_t d = loops.size(); d-- > 0;) {
      place_[d] = at % loops[d].size;
      at /= loops[d].size;
      from += place_[d] * loops[d].from;
      to += place_[d] * loops[d].to;
    }
  }
  void next() {
    for (size_t d = loops_.size(); d-- > 0;) {
      const MoveLoop& loop = loops_[d];
      from += loop.from;
      to += loop.to;
      if (++place_[d] < loop.size) return;
      from -= loop.size * loop.from;
      to -= loop.size * loop.to;
      place_[d] = 0;
    }
  }
  int64_t from = 0, to = 0;

 private:
  const std::vector<MoveLoop>& loops_;
  std::array<int64_t, kMostLoops> place_{};
};

inline int64_t turns_of(const std::vector<MoveLoop>& loops) {
  int64_t turns = 1;
  for (const MoveLoop& loop : loops) turns *= loop.size;
  return turns;
}
inline void require_few_loops(const Op& op, const std::vector<MoveLoop>& loops) {
  if (loops.size() <= kMostLoops) return;
  throw Error(ErrorCode::unsupported, fmt::format("op '{}' ({}): {} loops are left, {} are possible", op.name,
                                                  op.type->name, loops.size(), kMostLoops));
}

}  // namespace plimsoll::cpu
