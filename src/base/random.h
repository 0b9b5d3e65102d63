// Random numbers without a state: draw i of a stream is a function of (seed, stream, i) alone, so that a dropout mask
// can be drawn again, in any order, on any device, by any number of threads, and come out the same.
//
// Philox4x32-10 from J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011):
// ten rounds of two 32x32 -> 64 bit products turn a 128-bit counter and a 64-bit key into 128 random bits.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <span>

namespace plimsoll {

inline constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// A stream of draws. `seed` is the user's, `step` and `salt` tell apart what shares it: the training step and the
// layer. Draw i comes from block i / 4, lane i % 4; a stream has 2^34 draws. `first` of them are somebody else's: draw 0 is
// the one after those.
struct RandomStream {
  uint64_t seed = 0;
  uint64_t step = 0;
  uint32_t salt = 0;
  int64_t first = 0;

  constexpr std::array<uint32_t, 4> block(int64_t index) const {
    return philox4x32(
        {static_cast<uint32_t>(index), salt, static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32)},
        {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  }
  constexpr uint32_t bits(int64_t i) const { return block((first + i) / 4)[(first + i) % 4]; }

  // Uniform in (0, 1): the middle of one of 2^32 equal intervals.
  constexpr double uniform(int64_t i) const { return (bits(i) + 0.5) * 0x1p-32; }

  // Standard normal by Box and Muller: draws 2k and 2k+1 are the two coordinates of one point of the plane.
  double normal(int64_t i) const {
    const int64_t at = first + i;
    const std::array<uint32_t, 4> four = block(at / 4);
    const size_t pair = at % 4 / 2 * 2;
    const double radius = std::sqrt(-2 * std::log((four[pair] + 0.5) * 0x1p-32));
    const double angle = 6.283185307179586476925 * ((four[pair + 1] + 0.5) * 0x1p-32);
    return radius * (at % 2 == 0 ? std::cos(angle) : std::sin(angle));
  }
};

// What an op draws `count` elements from. `seed` is the user's; where ranks share a batch, the number of this one's part
// follows it, so that all of them draw what one process draws for the whole batch.
inline constexpr RandomStream stream_of(std::span<const int64_t> seed, int64_t step, uint32_t salt, int64_t count) {
  return {.seed = static_cast<uint64_t>(seed[0]),
          .step = static_cast<uint64_t>(step),
          .salt = salt,
          .first = seed.size() > 1 ? seed[1] * count : 0};
}

// For what draws one after another: a generator whose state is a counter, SplitMix64 (Steele, Lea, Flood: "Fast splittable
// pseudorandom number generators", 2014).
inline constexpr uint64_t next_bits(uint64_t& state) {
  uint64_t z = state += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// Dropout with probability p keeps what draws at least this many: the one rule that every kernel follows.
inline constexpr uint32_t dropout_threshold(double p) { return static_cast<uint32_t>(p * 0x1p32); }  // p in [0, 1)

}  // namespace plimsoll
