// Sums by channel, for batch norm and biases, in two steps: partial sums over pieces of each channel, then theirs. The
// pieces follow from the shapes alone, so every run adds in the same order.
#pragma once

#include "device/cuda/bodies/common.h"

namespace plimsoll::cuda {

// The elements of a channel are counted over images and pixels and cut into pieces.
struct Pieces {
  Image image;
  Divisor pieces = 1;
  int64_t length = 1;
  int64_t elements = 1;  // of a channel
};
PLIMSOLL_BODY int64_t storage_at(const Pieces& p, int64_t c, int64_t e) {
  if (p.image.to_n == p.image.pixels * p.image.to_w) return e * p.image.to_w + c * p.image.to_c;  // channels last
  const Division d = divide(e, p.image.pixels);
  return d.quotient * p.image.to_n + c * p.image.to_c + d.remainder * p.image.to_w;
}

// Eight elements to a byte, in storage order; everything counts where there is no mask.
PLIMSOLL_BODY bool counts(const uint8_t* mask, int64_t at) {
  return mask == nullptr || ((mask[at >> 3] >> (at & 7)) & 1) != 0;
}

struct Values {
  const float* x;
  PLIMSOLL_BODY SumPair term(int64_t, int64_t at) const { return {x[at], 0}; }
};
struct Moments {
  const float* x;
  PLIMSOLL_BODY SumPair term(int64_t, int64_t at) const {
    const double v = x[at];
    return {v, v * v};
  }
};
// Of batch norm's backward pass: to beta, and to gamma.
struct Gradients {
  const float* x;
  const float* dy;
  const float* mean;
  const float* inv_std;
  const uint8_t* mask;
  PLIMSOLL_BODY SumPair term(int64_t c, int64_t at) const {
    const float given = dy[at];  // read whether it counts or not: nothing waits for the mask
    const double g = counts(mask, at) ? given : 0;
    return {g, g * (static_cast<double>(x[at]) - mean[c]) * inv_std[c]};
  }
};

// Row-major images: a block a piece of a channel.
template <class Term>
struct SumPieces {
  using Kind = EachBlock;
  using Value = SumPair;
  Term of;
  Pieces pieces;
  SumPair* sums;  // [channel][piece]
  PLIMSOLL_BODY SumPair partial(int64_t block, int thread) const {
    const Division d = divide(block, pieces.pieces);
    const int64_t begin = d.remainder * pieces.length, end = smaller(begin + pieces.length, pieces.elements);
    SumPair sum;
    for_indices(begin + thread, end, kBlock,
                [&](int64_t e) { sum.add(of.term(d.quotient, storage_at(pieces, d.quotient, e))); });
    return sum;
  }
  PLIMSOLL_BODY void finish(int64_t block, const SumPair& sum) const { sums[block] = sum; }
};
// Channels last: a thread a piece of a channel, so that neighbours read neighbours.
template <class Term>
struct SumPiecesAcross {
  using Kind = EachElement;
  Term of;
  Pieces pieces;
  SumPair* sums;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Division d = divide(i, pieces.image.c);
    const int64_t begin = d.quotient * pieces.length, end = smaller(begin + pieces.length, pieces.elements);
    SumPair sum;
    for_indices(begin, end, 1, [&](int64_t e) { sum.add(of.term(d.remainder, storage_at(pieces, d.remainder, e))); });
    sums[d.remainder * pieces.pieces + d.quotient] = sum;
  }
};

PLIMSOLL_BODY SumPair sum_of_pieces(const SumPair* sums, int64_t pieces, int64_t c, int thread) {
  SumPair sum;
  for (int64_t p = thread; p < pieces; p += kBlock) sum.add(sums[c * pieces + p]);
  return sum;
}
struct ChannelTotals {  // a block a channel
  using Kind = EachBlock;
  using Value = SumPair;
  float* first;
  float* second;  // or null
  const SumPair* sums;
  int64_t pieces;
  PLIMSOLL_BODY SumPair partial(int64_t c, int thread) const { return sum_of_pieces(sums, pieces, c, thread); }
  PLIMSOLL_BODY void finish(int64_t c, const SumPair& sum) const {
    first[c] = static_cast<float>(sum.a);
    if (second != nullptr) second[c] = static_cast<float>(sum.b);
  }
};

}  // namespace plimsoll::cuda
