// Copies that leave elements as they are. Elements that stay together on both sides are moved as one word of up to sixteen
// bytes; where neighbours change sides, tiles of four by four are turned.
#pragma once

#include <initializer_list>
#include <vector>

#include "device/cuda/bodies/move.h"
#include "device/cuda/door.h"
#include "ops/move.h"

namespace plimsoll::cuda {

// Bytes of the widest word by which elements of `width` bytes can be moved, where runs and distances are of so many
// elements, from and to these addresses.
int64_t word_bytes(int64_t width, std::initializer_list<int64_t> elements, std::initializer_list<const void*> at);

// Calls body(T{}) with a type of that many bytes, as with_width, up to 16.
template <class Body>
void with_word(int64_t bytes, Body body) {
  if (bytes == 16) return body(Sixteen{});
  with_width(bytes, body);
}

// A nest of loops, outermost first in the target, whose elements follow each other.
class Movement {
 public:
  Movement(const Op& op, std::vector<MoveLoop> loops, int64_t width);
  void ask(Door& door, void* to, const void* from) const;

 private:
  void transpose(Door& door, void* to, const void* from) const;

  int64_t width_, count_ = 1;
  int64_t together_ = 1;  // elements that are moved as one, where addresses allow it
  Walk by_one_, together_walk_;
  bool fours_ = false;
  Walk from_outer_, to_outer_;  // of a transpose: without its rows and columns
  MoveLoop row_, column_;
  int64_t turns_ = 1;
};

}  // namespace plimsoll::cuda
