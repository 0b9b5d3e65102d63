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

// What is summed: the term of an element from what was read of it, `Read` by one, `Reads` by four.
struct Values {
  using Reads = Four;
  const float* x;
  PLIMSOLL_BODY float read(int64_t at) const { return x[at]; }
  PLIMSOLL_BODY Four read_four(int64_t at) const { return load_four(x + at); }
  PLIMSOLL_BODY float one_of(const Four& four, int k) const { return four.v[k]; }
  PLIMSOLL_BODY SumPair term(int64_t, float v) const { return {v, 0}; }
  bool by_four() const { return lie_by_four(x); }
};
struct Moments : Values {
  PLIMSOLL_BODY SumPair term(int64_t, float x_here) const {
    const double v = x_here;
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
  struct Read {
    float x, dy;
    bool counts;
  };
  struct Reads {
    Four x, dy;
    uint32_t counts;
  };
  // dy is read whether it counts or not: nothing waits for the mask.
  PLIMSOLL_BODY Read read(int64_t at) const { return {x[at], dy[at], counts(mask, at)}; }
  PLIMSOLL_BODY Reads read_four(int64_t at) const {
    return {load_four(x + at), load_four(dy + at), mask != nullptr ? mask[at >> 3] >> (at & 7) : 15U};
  }
  PLIMSOLL_BODY Read one_of(const Reads& four, int k) const {
    return {four.x.v[k], four.dy.v[k], ((four.counts >> k) & 1) != 0};
  }
  PLIMSOLL_BODY SumPair term(int64_t c, const Read& here) const {
    const double g = here.counts ? here.dy : 0;
    return {g, g * (static_cast<double>(here.x) - mean[c]) * inv_std[c]};
  }
  bool by_four() const { return lie_by_four(x, dy); }
};

// Row-major images: a block a piece of a channel. By fours of pixels where every piece and every image is made of such.
template <class Term>
struct SumPieces {
  using Kind = EachBlock;
  using Value = SumPair;
  Term of;
  Pieces pieces;
  SumPair* sums;  // [channel][piece]
  bool fours = false;
  PLIMSOLL_BODY SumPair partial(int64_t block, int thread) const {
    const Division d = divide(block, pieces.pieces);
    const int64_t begin = d.remainder * pieces.length, end = smaller(begin + pieces.length, pieces.elements);
    SumPair sum;
    if (fours) {
      for_indices(begin / 4 + thread, end / 4, kBlock, [&](int64_t e) {
        const auto four = of.read_four(storage_at(pieces, d.quotient, 4 * e));
        for (int k = 0; k < 4; ++k) sum.add(of.term(d.quotient, of.one_of(four, k)));
      });
    } else {
      for_indices(begin + thread, end, kBlock,
                  [&](int64_t e) { sum.add(of.term(d.quotient, of.read(storage_at(pieces, d.quotient, e)))); });
    }
    return sum;
  }
  PLIMSOLL_BODY void finish(int64_t block, const SumPair& sum) const { sums[block] = sum; }
};
// Channels last: a thread a piece of a channel, or of four, so that neighbours read neighbours.
template <class Term>
struct SumPiecesAcross {
  using Kind = EachElement;
  Term of;
  Pieces pieces;
  SumPair* sums;
  Divisor fours = 0;  // of channels; 0: each is taken by itself
  PLIMSOLL_BODY void run(int64_t i) const {
    if (fours != 0) {
      run_four(i);
      return;
    }
    const Division d = divide(i, pieces.image.c);
    const int64_t begin = d.quotient * pieces.length, end = smaller(begin + pieces.length, pieces.elements);
    SumPair sum;
    for_indices(begin, end, 1,
                [&](int64_t e) { sum.add(of.term(d.remainder, of.read(storage_at(pieces, d.remainder, e)))); });
    sums[d.remainder * pieces.pieces + d.quotient] = sum;
  }
  PLIMSOLL_BODY void run_four(int64_t i) const {
    const Division d = divide(i, fours);
    const int64_t c = 4 * d.remainder, begin = d.quotient * pieces.length,
                  end = smaller(begin + pieces.length, pieces.elements);
    SumPair sum[4];
    for_indices(begin, end, 1, [&](int64_t e) {
      const auto four = of.read_four(storage_at(pieces, c, e));
      for (int k = 0; k < 4; ++k) sum[k].add(of.term(c + k, of.one_of(four, k)));
    });
    for (int k = 0; k < 4; ++k) sums[(c + k) * pieces.pieces + d.quotient] = sum[k];
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
  bool adds = false;  // to what `first` holds
  PLIMSOLL_BODY SumPair partial(int64_t c, int thread) const { return sum_of_pieces(sums, pieces, c, thread); }
  PLIMSOLL_BODY void finish(int64_t c, const SumPair& sum) const {
    first[c] = static_cast<float>(adds ? first[c] + sum.a : sum.a);
    if (second != nullptr) second[c] = static_cast<float>(sum.b);
  }
};

// How a matrix is cut whose columns are summed. A block has a strip of up to 64 fours of columns in a piece of the rows: 256
// threads as lanes across and down, each with kTogether rows under way at once.
struct ColumnCut {
  static constexpr int kThreads = 256, kTogether = 8;
  int64_t rows = 0, columns = 0, stride = 0;  // stride: from a row to the next
  int64_t pieces = 1, length = 1;             // length: rows of a piece
  Divisor strips = 1;
  int32_t shift = 3;  // 2^shift lanes across
  int64_t fours() const { return (columns + 3) / 4; }
};
struct SumColumns {
  using Kind = EachTile;
  static constexpr int kThreads = ColumnCut::kThreads, kBlocksTogether = 4, kPhases = 1, kFinishes = 1;
  static constexpr int kTogether = ColumnCut::kTogether;
  struct Shared {
    double sums[4][kThreads + 4];
  };
  struct State {};
  const float* x;
  ColumnCut cut;
  double* sums;                      // [piece][column]
  const int64_t* numbers = nullptr;  // of rows: those that have `number` count; or null: all do
  int64_t number = 0;

  PLIMSOLL_BODY bool counts(int64_t row, int64_t end) const {
    return row < end && (numbers == nullptr || numbers[row] == number);
  }
  PLIMSOLL_BODY int across() const { return 1 << cut.shift; }
  PLIMSOLL_BODY int rounds(int64_t) const { return 0; }
  PLIMSOLL_BODY bool skips(int64_t, int) const { return false; }
  PLIMSOLL_BODY void begin(int64_t block, int thread, State&, Shared& shared) const {
    const Division d = divide(block, cut.strips);
    const int64_t column = 4 * (d.remainder * across() + (thread & (across() - 1)));
    const int down = kThreads >> cut.shift;
    const int64_t first = d.quotient * cut.length + (thread >> cut.shift);
    const int64_t end = smaller((d.quotient + 1) * cut.length, cut.rows), step = down * cut.stride;
    double sum[4] = {0, 0, 0, 0};
    const float* at = x + first * cut.stride + column;
    if (column < cut.columns) {
      PLIMSOLL_UNROLL(1)
      for (int64_t row = first; row < end; row += kTogether * down) {
        Four four[kTogether];
        PLIMSOLL_UNROLL_ALL
        for (int u = 0; u < kTogether; ++u) {
          four[u] = counts(row + u * down, end) ? load_four(at) : Four{{0, 0, 0, 0}};
          at += step;
        }
        PLIMSOLL_UNROLL_ALL
        for (int u = 0; u < kTogether; ++u) {
          PLIMSOLL_UNROLL_ALL
          for (int k = 0; k < 4; ++k) sum[k] += four[u].v[k];
        }
      }
    }
    PLIMSOLL_UNROLL_ALL
    for (int k = 0; k < 4; ++k) shared.sums[k][thread] = sum[k];
  }
  template <int>
  PLIMSOLL_BODY void phase(int64_t, int, int, State&, Shared&) const {}
  template <int>
  PLIMSOLL_BODY void finish(int64_t block, int thread, State&, Shared& shared) const {
    const Division d = divide(block, cut.strips);
    const int64_t column = 4 * d.remainder * across() + thread;
    if (thread >= 4 * across() || column >= cut.columns) return;
    double sum = 0;
    for (int lane = thread / 4; lane < kThreads; lane += across()) sum += shared.sums[thread % 4][lane];
    sums[d.quotient * cut.columns + column] = sum;
  }
};

// Sums by column over pieces: a block 16 columns, each by 16 threads.
struct ColumnTotals {
  using Kind = EachTile;
  static constexpr int kThreads = 256, kBlocksTogether = 4, kPhases = 1, kFinishes = 1;
  static constexpr int kColumns = 16, kDown = kThreads / kColumns, kTogether = 8;
  struct Shared {
    double sums[kThreads];
  };
  struct State {};
  float* first;
  float* second;       // of the columns from `split` on
  const double* sums;  // [piece][column]
  int64_t columns, split, pieces;
  bool adds;  // to what is there

  PLIMSOLL_BODY int rounds(int64_t) const { return 0; }
  PLIMSOLL_BODY bool skips(int64_t, int) const { return false; }
  PLIMSOLL_BODY void begin(int64_t block, int thread, State&, Shared& shared) const {
    const int64_t column = block * kColumns + thread % kColumns;
    double sum = 0;
    if (column < columns) {
      PLIMSOLL_UNROLL(1)
      for (int64_t piece = thread / kColumns; piece < pieces; piece += kTogether * kDown) {
        double values[kTogether];
        PLIMSOLL_UNROLL_ALL
        for (int u = 0; u < kTogether; ++u)
          values[u] = piece + u * kDown < pieces ? sums[(piece + u * kDown) * columns + column] : 0;
        PLIMSOLL_UNROLL_ALL
        for (int u = 0; u < kTogether; ++u) sum += values[u];
      }
    }
    shared.sums[thread] = sum;
  }
  template <int>
  PLIMSOLL_BODY void phase(int64_t, int, int, State&, Shared&) const {}
  template <int>
  PLIMSOLL_BODY void finish(int64_t block, int thread, State&, Shared& shared) const {
    const int64_t column = block * kColumns + thread;
    if (thread >= kColumns || column >= columns) return;
    double sum = 0;
    PLIMSOLL_UNROLL_ALL
    for (int lane = 0; lane < kDown; ++lane) sum += shared.sums[lane * kColumns + thread];
    float* const to = column < split ? first + column : second + (column - split);
    *to = static_cast<float>(adds ? *to + sum : sum);
  }
};
constexpr int64_t blocks_of_totals(int64_t columns) {
  return (columns + ColumnTotals::kColumns - 1) / ColumnTotals::kColumns;
}

}  // namespace plimsoll::cuda
