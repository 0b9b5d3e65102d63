// Our own kernels, as bodies that nvcc compiles for the GPU and the host's compiler for tests: the arithmetic of an
// element or of a sum, without a word of how threads are launched. Two shapes of kernel:
//
//   EachElement   run(i) for every i in [0, count)
//   EachBlock     a sum by kBlock threads: partial(block, thread) each, added pairwise in a fixed order, finish(block,
//   sum)
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
struct EachBlock {};

// i / d and i % d, by 32 bits where these do: a GPU divides 64 bits slowly.
struct Division {
  int64_t quotient, remainder;
};
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
PLIMSOLL_BODY Four load_four(const float* from) { return *reinterpret_cast<const Four*>(from); }
PLIMSOLL_BODY void store_four(float* to, const Four& four) { *reinterpret_cast<Four*>(to) = four; }

// How a tensor of up to five dimensions lies: by each dimension, a distance between blocks and one inside a block.
struct Place {
  int32_t rank = 0;
  int64_t size[5] = {1, 1, 1, 1, 1};
  int64_t block[5] = {1, 1, 1, 1, 1};
  int64_t outer[5] = {0, 0, 0, 0, 0};
  int64_t inner[5] = {0, 0, 0, 0, 0};
};
// The position in the storage of the element with this row-major index.
PLIMSOLL_BODY int64_t position(const Place& place, int64_t index) {
  int64_t at = 0;
  for (int d = place.rank - 1; d >= 0; --d) {
    const Division here = divide(index, place.size[d]);
    index = here.quotient;
    if (place.block[d] == 1) {
      at += here.remainder * place.outer[d];
    } else {
      const Division part = divide(here.remainder, place.block[d]);
      at += part.quotient * place.outer[d] + part.remainder * place.inner[d];
    }
  }
  return at;
}

// Images, by the distances between neighbours in each direction; rows of channels are images of one pixel.
struct Image {
  int64_t n = 1, c = 1, h = 1, w = 1;
  int64_t to_n = 0, to_c = 0, to_h = 0, to_w = 0;
};
PLIMSOLL_BODY int64_t at(const Image& image, int64_t n, int64_t c, int64_t h, int64_t w) {
  return n * image.to_n + c * image.to_c + h * image.to_h + w * image.to_w;
}
// Where storage element i belongs; images that are row-major or channels last, without padding.
struct Spot {
  int64_t n, c, h, w;
};
PLIMSOLL_BODY Spot spot(const Image& image, int64_t i) {
  Spot s{};
  if (image.to_c == 1 && image.h * image.w > 1) {  // channels last
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
  const int64_t pixels = image.h * image.w;
  if (pixels > 1 && image.to_c != 1) return divide(divide(i, pixels).quotient, image.c).remainder;
  return divide(i, image.c).remainder;
}

PLIMSOLL_BODY int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
PLIMSOLL_BODY int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

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
