// Our own kernels, as bodies that nvcc compiles for the GPU and the host's compiler for tests: the arithmetic of an
// element or of a sum, without a word of how threads are launched. Four shapes of kernel:
//
//   EachElement   run(i) for every i in [0, count)
//   EachFour      the same; but where by_four(), four(i) for elements i to i + 3, a multiple of four: they are read and
//                 written by 16 bytes, and get the bits that run gives
//   EachBlock     a sum by kBlock threads: partial(block, thread) each, added pairwise in a fixed order, finish(block,
//   sum)
//   EachTile      kThreads threads, each with a State (a GPU's registers), work through Shared memory in phases, and all
//                 of them have ended one before any begins the next: begin(block, thread, state, shared); for each of
//                 rounds(block) that the block does not skip(block, round), phase<0> to phase<kPhases - 1> (block,
//                 round, thread, state, shared); finish<0> to finish<kFinishes - 1> (block, thread, state, shared)
//
// Bodies are plain structs of at most 4 KB and pass as kernel parameters. Every order of additions is fixed by the
// shapes.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "device/cuda/bodies/compiler.h"

namespace plimsoll::cuda {

inline constexpr int kBlock = 256;  // threads of a block

struct EachElement {};
struct EachFour {};
struct EachBlock {};
struct EachTile {};

// A divisor that is the same for a whole launch. A GPU has no instruction that divides; by a factor that the host makes
// a division is a multiplication and a shift (Granlund and Montgomery, "Division by invariant integers using
// multiplication", 1994, figure 4.1). It stands for its value wherever nothing is divided.
struct Divisor {
  int64_t value = 1;
  uint32_t factor = 1, shift = 0;
  constexpr Divisor() = default;
  constexpr Divisor(int64_t d) : value(d), factor(0), shift(32) {
    if (d < 1 || (d >> 32) != 0) return;  // 32 bits of it hold no whole one
    shift = 0;
    while ((int64_t{1} << shift) < d) ++shift;
    const uint64_t above = (uint64_t{1} << shift) - static_cast<uint64_t>(d);
    factor = static_cast<uint32_t>((above << 32) / static_cast<uint64_t>(d)) + 1;
  }
  constexpr Divisor& operator*=(int64_t by) { return *this = Divisor(value * by); }
  PLIMSOLL_BODY operator int64_t() const { return value; }
};

// i / d and i % d, by 32 bits where these do: a GPU divides 64 bits slowly. Where the compiler knows that i has no more,
// as that of a small launch (module/launch.cu) and its quotients, it leaves out the rest.
struct Division {
  int64_t quotient, remainder;
};
PLIMSOLL_BODY bool is_narrow(int64_t i) { return (static_cast<uint64_t>(i) >> 32) == 0; }
PLIMSOLL_BODY Division divide(int64_t i, const Divisor& d) {
  if (is_narrow(i)) {
    const uint32_t n = static_cast<uint32_t>(i);
    const uint32_t high = static_cast<uint32_t>((static_cast<uint64_t>(n) * d.factor) >> 32);
    const uint32_t q = static_cast<uint32_t>((static_cast<uint64_t>(high) + n) >> d.shift);
    return {q, n - q * static_cast<uint32_t>(d.value)};
  }
  return {i / d.value, i % d.value};
}
PLIMSOLL_BODY Division divide(int64_t i, int64_t d) {
  if (((i | d) >> 32) == 0) {
    const uint32_t q = static_cast<uint32_t>(i) / static_cast<uint32_t>(d);
    return {q, static_cast<uint32_t>(i) - q * static_cast<uint32_t>(d)};
  }
  return {i / d, i % d};
}

// What a thread reads or writes at once where it has neighbours to itself.
struct alignas(16) Four {
  float v[4];
};
template <class... T>
bool lie_by_four(const T*... at) {
  return ((reinterpret_cast<uintptr_t>(at) % alignof(Four) == 0) && ...);
}
PLIMSOLL_BODY Four load_four(const float* from) { return *reinterpret_cast<const Four*>(from); }
PLIMSOLL_BODY void store_four(float* to, const Four& four) { *reinterpret_cast<Four*>(to) = four; }

// How a tensor of up to five dimensions lies: by each dimension, a distance between blocks and one inside a block.
struct Place {
  int32_t rank = 0;
  Divisor size[5];
  Divisor block[5];
  int64_t outer[5] = {0, 0, 0, 0, 0};
  int64_t inner[5] = {0, 0, 0, 0, 0};
};
// The position in the storage of the element with this row-major index.
template <class Index>
PLIMSOLL_BODY int64_t position_by(const Place& place, Index index) {
  int64_t at = 0;
  for (int d = place.rank - 1; d >= 0; --d) {
    const Division here = divide(static_cast<int64_t>(index), place.size[d]);
    index = static_cast<Index>(here.quotient);
    if (place.block[d] == 1) {
      at += here.remainder * place.outer[d];
    } else {
      const Division part = divide(here.remainder, place.block[d]);
      at += part.quotient * place.outer[d] + part.remainder * place.inner[d];
    }
  }
  return at;
}
PLIMSOLL_BODY int64_t position(const Place& place, int64_t index) {
  return is_narrow(index) ? position_by(place, static_cast<uint32_t>(index)) : position_by(place, index);
}

// Images, by the distances between neighbours in each direction; rows of channels are images of one pixel.
struct Image {
  int64_t n = 1;
  Divisor c = 1, h = 1, w = 1;
  int64_t to_n = 0, to_c = 0, to_h = 0, to_w = 0;
  Divisor pixels = 1;  // h * w, by with_pixels
};
constexpr Image with_pixels(Image image) {
  image.pixels = Divisor(image.h.value * image.w.value);
  return image;
}
PLIMSOLL_BODY int64_t at(const Image& image, int64_t n, int64_t c, int64_t h, int64_t w) {
  return n * image.to_n + c * image.to_c + h * image.to_h + w * image.to_w;
}
// Where storage element i belongs; images that are row-major or channels last, without padding.
struct Spot {
  int64_t n, c, h, w;
};
PLIMSOLL_BODY Spot spot(const Image& image, int64_t i) {
  Spot s{};
  if (image.to_c == 1 && image.pixels > 1) {  // channels last
    Division d = divide(i, image.c);
    s.c = d.remainder;
    d = divide(d.quotient, image.w);
    s.w = d.remainder;
    d = divide(d.quotient, image.h);
    s.h = d.remainder;
    s.n = d.quotient;
  } else {
    Division d = divide(i, image.w);
    s.w = d.remainder;
    d = divide(d.quotient, image.h);
    s.h = d.remainder;
    d = divide(d.quotient, image.c);
    s.c = d.remainder;
    s.n = d.quotient;
  }
  return s;
}
// Channel of storage element i.
PLIMSOLL_BODY int64_t channel(const Image& image, int64_t i) {
  if (image.pixels > 1 && image.to_c != 1) return divide(divide(i, image.pixels).quotient, image.c).remainder;
  return divide(i, image.c).remainder;
}

// The channels of elements that follow each other in the storage.
struct ChannelWalk {
  int64_t c, left;  // elements of it from here on
};
PLIMSOLL_BODY int64_t channel_run(const Image& image) {
  return image.pixels > 1 && image.to_c != 1 ? image.pixels.value : 1;
}
PLIMSOLL_BODY ChannelWalk channel_walk(const Image& image, int64_t i) {
  if (channel_run(image) == 1) return {divide(i, image.c).remainder, 1};
  const Division pixel = divide(i, image.pixels);
  return {divide(pixel.quotient, image.c).remainder, image.pixels - pixel.remainder};
}
// To the next element; true where it is of another channel.
PLIMSOLL_BODY bool step_on(ChannelWalk& walk, const Image& image) {
  if (--walk.left > 0) return false;
  walk.left = channel_run(image);
  walk.c = walk.c + 1 == image.c ? 0 : walk.c + 1;
  return true;
}
// Images whose neighbouring elements are the channels of a pixel, or rows of channels, in fours.
PLIMSOLL_BODY bool has_channels_by_four(const Image& image) { return image.to_c == 1 && (image.c & 3) == 0; }
// With what lies by channel.
template <class... T>
bool channels_lie_by_four(const Image& image, const T*... by_channel) {
  return has_channels_by_four(image) && lie_by_four(by_channel...);
}

PLIMSOLL_BODY int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
PLIMSOLL_BODY int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// action(i) for i = first, first + step, ... below end, with 32 bits where these do.
template <class Action>
PLIMSOLL_BODY void for_indices(int64_t first, int64_t end, int64_t step, const Action& action) {
  if (is_narrow(end + step)) {
    PLIMSOLL_UNROLL(4)
    for (uint32_t i = static_cast<uint32_t>(first); i < static_cast<uint32_t>(end); i += static_cast<uint32_t>(step))
      action(static_cast<int64_t>(i));
  } else {
    for (int64_t i = first; i < end; i += step) action(i);
  }
}

// Sums of one and of two numbers.
struct Sum {
  double a = 0;
  PLIMSOLL_BODY void add(const Sum& other) { a += other.a; }
};
// A thread's part of the sum of `count` numbers that one block adds up.
PLIMSOLL_BODY Sum part_of_sum(const double* numbers, int64_t count, int thread) {
  Sum sum;
  for (int64_t i = thread; i < count; i += kBlock) sum.a += numbers[i];
  return sum;
}
struct SumPair {
  double a = 0, b = 0;
  PLIMSOLL_BODY void add(const SumPair& other) { a += other.a, b += other.b; }
};

}  // namespace plimsoll::cuda
