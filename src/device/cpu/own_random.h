// Philox's draws (base/random.h), sixteen counters at a time.
#pragma once

#include <algorithm>

#include "base/random.h"
#include "device/cpu/own_vector.h"
#include "plimsoll/graph.h"

namespace plimsoll::cpu {

// What a kernel draws `count` elements from, as its inputs say: number `step_at` is the step's, and the seed follows.
class DrawnStream {
 public:
  DrawnStream(const Graph& graph, const Op& op, size_t step_at, int64_t count)
      : step_at_(step_at),
        seeds_(static_cast<size_t>(element_count(graph.tensor(op.inputs.at(step_at + 1)).shape))),
        salt_(static_cast<uint32_t>(op.attributes.integer("salt", 0))),
        count_(count) {}
  RandomStream of(std::span<void* const> inputs) const {
    const auto at = [&](size_t i) { return static_cast<const int64_t*>(inputs[i]); };
    return stream_of({at(step_at_ + 1), seeds_}, *at(step_at_), salt_, count_);
  }

 private:
  size_t step_at_, seeds_;
  uint32_t salt_;
  int64_t count_;
};

struct Draws {
  u32x16 word[4];
};
// RandomStream::block of sixteen indices.
PLIMSOLL_INLINE Draws draw(const RandomStream& stream, u32x16 index) {
  u32x16 c0 = index, c1 = splat(stream.salt), c2 = splat(static_cast<uint32_t>(stream.step)),
         c3 = splat(static_cast<uint32_t>(stream.step >> 32));
  uint32_t k0 = static_cast<uint32_t>(stream.seed), k1 = static_cast<uint32_t>(stream.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    u32x16 a_high, a_low, b_high, b_low;
    multiply(c0, 0xD2511F53, a_high, a_low);
    multiply(c2, 0xCD9E8D57, b_high, b_low);
    c0 = b_high ^ c1 ^ splat(k0);
    c1 = b_low;
    c2 = a_high ^ c3 ^ splat(k1);
    c3 = a_low;
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {{c0, c1, c2, c3}};
}

// Moves bit i to bit 4 i.
PLIMSOLL_INLINE uint64_t spread(uint64_t bits) {
  bits = (bits | bits << 24) & 0x000000FF000000FF;
  bits = (bits | bits << 12) & 0x000F000F000F000F;
  bits = (bits | bits << 6) & 0x0303030303030303;
  return (bits | bits << 3) & 0x1111111111111111;
}

PLIMSOLL_INLINE uint64_t kept_bits_of_blocks(const RandomStream& stream, int64_t block, uint32_t threshold) {
  const Draws draws = draw(stream, splat(static_cast<uint32_t>(block)) + bits_as<u32x16>(lane_numbers()));
  uint64_t kept = 0;
  for (int k = 0; k < 4; ++k) kept |= spread(bits_at_least(draws.word[k], threshold)) << k;
  return kept;
}
// Bit k: element i + k keeps its value.
PLIMSOLL_INLINE uint64_t kept_bits_from(const RandomStream& stream, int64_t i, uint32_t threshold) {
  const int64_t at = stream.first + i;
  const uint64_t kept = kept_bits_of_blocks(stream, at / 4, threshold);
  if (at % 4 == 0) return kept;
  return kept >> at % 4 | kept_bits_of_blocks(stream, at / 4 + 16, threshold) << (64 - at % 4);
}

// Of elements [begin, end), which lie one after the other from x and y on: those that fall are 0, the others scaled.
inline void drop_elements(const RandomStream& stream, int64_t begin, int64_t end, double p, const float* x, float* y) {
  const uint32_t threshold = dropout_threshold(p);
  const f32x16 scale = splat(static_cast<float>(1 / (1 - p)));
  for (int64_t i = begin; i < end; i += 64) {
    uint64_t kept = kept_bits_from(stream, i, threshold);
    for (int64_t at = i; at < std::min(end, i + 64); at += kLanes, kept >>= kLanes) {
      const uint32_t bits = static_cast<uint32_t>(kept & 0xFFFF);
      const int64_t place = at - begin;
      if (at + kLanes <= end) {
        store(y + place, keep_lanes(bits, load(x + place) * scale));
      } else {
        const int count = static_cast<int>(end - at);
        store(y + place, keep_lanes(bits, load(x + place, count) * scale), count);
      }
    }
  }
}

}  // namespace plimsoll::cpu
