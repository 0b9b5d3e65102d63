#include "device/cuda/movement.h"

#include <algorithm>
#include <cstdint>

#include "device/cuda/bodies/bodies.h"
#include "device/cuda/walk.h"

namespace plimsoll::cuda {
namespace {

constexpr int64_t kWords[] = {16, 8, 4};

template <class Body>
void launch(Door& door, const Body& body, int64_t count) {
  door.launch(Queue::compute, Bodies::number<Body>(), &body, count);
}

bool is_multiple(int64_t elements, int64_t of) { return elements % of == 0; }

// By `n` elements at once.
std::vector<MoveLoop> joined(std::vector<MoveLoop> loops, int64_t n) {
  for (MoveLoop& loop : loops) loop.from /= n, loop.to /= n;
  loops.back() = {.size = loops.back().size / n, .from = 1, .to = 1};
  return merged(loops);
}

}  // namespace

int64_t word_bytes(int64_t width, std::initializer_list<int64_t> elements, std::initializer_list<const void*> at) {
  for (const int64_t bytes : kWords) {
    if (bytes <= width || bytes % width != 0) continue;
    const bool lies_so = std::ranges::all_of(at, [&](const void* address) {
      return is_multiple(static_cast<int64_t>(reinterpret_cast<uintptr_t>(address) % 16), bytes);
    });
    if (lies_so && std::ranges::all_of(elements, [&](int64_t count) { return is_multiple(count * width, bytes); }))
      return bytes;
  }
  return width;
}

Movement::Movement(const Op& op, std::vector<MoveLoop> loops, int64_t width)
    : width_(width), by_one_(walk_of(op, loops, &MoveLoop::from)) {
  for (const MoveLoop& loop : loops) count_ *= loop.size;
  row_ = loops.back();
  if (row_.from == 1) {
    for (const int64_t bytes : kWords) {
      const int64_t n = bytes / width;
      if (n < 2) break;
      const bool stays =
          std::all_of(loops.begin(), loops.end() - 1, [&](const MoveLoop& loop) { return is_multiple(loop.from, n); });
      if (!stays || !is_multiple(row_.size, n)) continue;
      together_ = n;
      together_walk_ = walk_of(op, joined(loops, n), &MoveLoop::from);
      return;
    }
    return;
  }
  loops.pop_back();
  const auto run = std::find_if(loops.begin(), loops.end(), [](const MoveLoop& loop) { return loop.from == 1; });
  if (run == loops.end()) return;
  column_ = *run;
  loops.erase(run);
  const auto by_four = [](int64_t n) { return n % 4 == 0; };
  fours_ = width_ == 4 && by_four(row_.size) && by_four(row_.from) && by_four(column_.size) && by_four(column_.to) &&
           std::all_of(loops.begin(), loops.end(),
                       [&](const MoveLoop& loop) { return by_four(loop.from) && by_four(loop.to); });
  from_outer_ = walk_of(op, loops, &MoveLoop::from);
  to_outer_ = walk_of(op, loops, &MoveLoop::to);
  for (const MoveLoop& loop : loops) turns_ *= loop.size;
}

void Movement::ask(Door& door, void* to, const void* from) const {
  if (fours_ && word_bytes(4, {4}, {to, from}) == 16) return transpose(door, to, from);
  const int64_t wanted = together_ * width_,
                word = together_ > 1 ? word_bytes(width_, {together_}, {to, from}) : width_;
  const int64_t n = word == wanted ? together_ : 1;
  with_word(n * width_, [&](auto zero) {
    using T = decltype(zero);
    launch(door,
           PermuteElements<T>{.to = static_cast<T*>(to),
                              .from = static_cast<const T*>(from),
                              .walk = n > 1 ? together_walk_ : by_one_,
                              .narrow = is_narrow(count_)},
           count_ / n);
  });
}

void Movement::transpose(Door& door, void* to, const void* from) const {
  const int64_t row_groups = TransposeFours::groups(row_.size, 8),
                column_groups = TransposeFours::groups(column_.size, 4);
  launch(door,
         TransposeFours{.to = static_cast<float*>(to),
                        .from = static_cast<const float*>(from),
                        .from_outer = from_outer_,
                        .to_outer = to_outer_,
                        .rows = row_.size,
                        .row_step = row_.from,
                        .columns = column_.size,
                        .column_step = column_.to,
                        .row_groups = row_groups,
                        .column_groups = column_groups},
         turns_ * row_groups * column_groups * 32);
}

}  // namespace plimsoll::cuda
