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

// What an op draws from: `part` elements of each rank where ranks share a batch, whose number follows the seed; else 0.
struct Stream {
  const int64_t* step_number = nullptr;
  const int64_t* seed = nullptr;
  uint32_t salt = 0;
  int64_t part = 0;
  int64_t first = 0;  // of these elements: where a part of what is drawn is asked for
};
PLIMSOLL_BODY int64_t first_draw(const Stream& stream) {
  return stream.first + (stream.part == 0 ? 0 : stream.seed[1] * stream.part);
}
PLIMSOLL_BODY Block4 draws_of_block(const Stream& stream, int64_t index) {
  return philox(static_cast<uint64_t>(*stream.seed), static_cast<uint64_t>(*stream.step_number), stream.salt, index);
}
// Of element i; and of elements i to i + 3.
PLIMSOLL_BODY uint32_t draw_of(const Stream& stream, int64_t i) {
  const int64_t at = first_draw(stream) + i;
  return draws_of_block(stream, at / 4).word[at % 4];
}
PLIMSOLL_BODY Block4 four_draws(const Stream& stream, int64_t i) {
  const int64_t at = first_draw(stream) + i;
  Block4 draws = draws_of_block(stream, at / 4);
  if (at % 4 == 0) return draws;
  const Block4 next = draws_of_block(stream, at / 4 + 1);
  Block4 result{};
  for (int k = 0; k < 4; ++k) {
    const int64_t word = at % 4 + k;
    result.word[k] = word < 4 ? draws.word[word] : next.word[word - 4];
  }
  return result;
}

// Four elements that are neighbours in row-major order, which share a draw.
struct Dropout {
  using Kind = EachElement;
  float* y;
  const float* x;
  Stream stream;
  Place place;
  bool row_major;
  uint32_t threshold;
  float scale;
  int64_t elements;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Block4 draws = four_draws(stream, 4 * i);
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
  Stream stream;
  uint32_t threshold;
  bool never;
  int64_t elements;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Block4 draws = four_draws(stream, 4 * i);
    for (int64_t k = 0; k < 4 && 4 * i + k < elements; ++k)
      y[4 * i + k] = !never && draws.word[k] >= threshold ? 1.0f : 0.0f;
  }
};

struct RandomNormal {  // an element each
  using Kind = EachElement;
  float* z;
  Stream stream;
  Place place;
  double mean, deviation;
  PLIMSOLL_BODY void run(int64_t i) const {
    const int64_t at = first_draw(stream) + i, pair = at % 4 / 2 * 2;
    const Block4 draws = draws_of_block(stream, at / 4);
    const double radius = sqrt(-2 * log((draws.word[pair] + 0.5) * 0x1p-32));
    const double angle = 6.283185307179586476925 * ((draws.word[pair + 1] + 0.5) * 0x1p-32);
    z[position(place, i)] = static_cast<float>(mean + deviation * radius * (at % 2 == 0 ? cos(angle) : sin(angle)));
  }
};

}  // namespace plimsoll::cuda
