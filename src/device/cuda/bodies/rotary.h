// Rotary positions.
#pragma once

#include "device/cuda/bodies/move.h"

namespace plimsoll::cuda {

// A thread turns a pair, or copies an element that stays: rows of half + rest.
struct Turn {
  using Kind = EachFour;
  float* y;
  const float* x;
  const float* cosine;
  const float* sine;
  Walk table;     // from row to row
  Divisor turns;  // of a row
  int64_t half, rest;
  int64_t second;  // from a pair's first element to its second, in the tables
  bool inverse;
  PLIMSOLL_BODY void pair(float a, float b, float c, float d, float s, float t, float& first, float& other) const {
    first = inverse ? a * c + b * t : a * c - b * s;
    other = inverse ? b * d - a * s : b * d + a * t;
  }
  PLIMSOLL_BODY void run(int64_t i) const {
    const Division at = divide(i, turns);
    const int64_t j = at.remainder, row = at.quotient * (2 * half + rest);
    if (j >= half) {
      y[row + half + j] = x[row + half + j];
      return;
    }
    const int64_t c = walked(table, at.quotient) + j;
    float first, other;
    pair(x[row + j], x[row + half + j], cosine[c], cosine[c + second], sine[c], sine[c + second], first, other);
    y[row + j] = first;
    y[row + half + j] = other;
  }
  PLIMSOLL_BODY void four(int64_t i) const {
    const Division at = divide(i, turns);
    const int64_t j = at.remainder, row = at.quotient * (2 * half + rest);
    if (j >= half) {
      store_four(y + row + half + j, load_four(x + row + half + j));
      return;
    }
    const int64_t c = walked(table, at.quotient) + j;
    Four a = load_four(x + row + j), b = load_four(x + row + half + j);
    const Four cosines = load_four(cosine + c), others = load_four(cosine + c + second);
    const Four sines = load_four(sine + c), other_sines = load_four(sine + c + second);
    for (int k = 0; k < 4; ++k) {
      const float p = a.v[k], q = b.v[k];
      pair(p, q, cosines.v[k], others.v[k], sines.v[k], other_sines.v[k], a.v[k], b.v[k]);
    }
    store_four(y + row + j, a);
    store_four(y + row + half + j, b);
  }
  // The tables' rows are then in fours as well.
  bool by_four() const { return half % 4 == 0 && rest % 4 == 0 && lie_by_four(y, x, cosine, sine); }
};

}  // namespace plimsoll::cuda
