// Philox4x32-10 by element, as base/random.h has it: the masks of every device are the same.
#pragma once

#include "device/cuda/bodies/common.h"

namespace plimsoll::cuda {

struct Block4 {
  uint32_t word[4];
};
PLIMSOLL_BODY Block4 philox(uint64_t seed, uint64_t step, uint32_t salt, int64_t index) {
  uint32_t c0 = static_cast<uint32_t>(index), c1 = salt, c2 = static_cast<uint32_t>(step),
           c3 = static_cast<uint32_t>(step >> 32);
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c0, b = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {{c0, c1, c2, c3}};
}

// Four elements that are neighbours in row-major order, which share a draw.
struct Dropout {
  using Kind = EachElement;
  float* y;
  const float* x;
  const int64_t* step_number;
  const int64_t* seed;
  Place place;
  bool row_major;
  uint32_t salt, threshold;
  float scale;
  int64_t elements;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Block4 draws = philox(static_cast<uint64_t>(*seed), static_cast<uint64_t>(*step_number), salt, i);
    if (row_major && 4 * i + 4 <= elements) {
      Four four = load_four(x + 4 * i);
      for (int k = 0; k < 4; ++k) four.v[k] = draws.word[k] >= threshold ? four.v[k] * scale : 0;
      return store_four(y + 4 * i, four);
    }
    for (int64_t k = 0; k < 4 && 4 * i + k < elements; ++k) {
      const int64_t at = row_major ? 4 * i + k : position(place, 4 * i + k);
      y[at] = draws.word[k] >= threshold ? x[at] * scale : 0;
    }
  }
};

// Four ones or zeros.
struct Bernoulli {
  using Kind = EachElement;
  float* y;
  const int64_t* step_number;
  const int64_t* seed;
  uint32_t salt, threshold;
  bool never;
  int64_t elements;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Block4 draws = philox(static_cast<uint64_t>(*seed), static_cast<uint64_t>(*step_number), salt, i);
    for (int64_t k = 0; k < 4 && 4 * i + k < elements; ++k)
      y[4 * i + k] = !never && draws.word[k] >= threshold ? 1.0f : 0.0f;
  }
};

struct RandomNormal {
  using Kind = EachElement;
  float* z;
  const int64_t* step_number;
  const int64_t* seed;
  Place place;
  uint32_t salt;
  double mean, deviation;
  int64_t elements;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Block4 draws = philox(static_cast<uint64_t>(*seed), static_cast<uint64_t>(*step_number), salt, i);
    for (int64_t k = 0; k < 4 && 4 * i + k < elements; ++k) {
      const int64_t pair = k / 2 * 2;
      const double radius = sqrt(-2 * log((draws.word[pair] + 0.5) * 0x1p-32));
      const double angle = 6.283185307179586476925 * ((draws.word[pair + 1] + 0.5) * 0x1p-32);
      z[position(place, 4 * i + k)] =
          static_cast<float>(mean + deviation * radius * (k % 2 == 0 ? cos(angle) : sin(angle)));
    }
  }
};

}  // namespace plimsoll::cuda
