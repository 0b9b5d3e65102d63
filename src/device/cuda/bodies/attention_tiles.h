// Attention by tiles of queries x keys that never leave a block (Dao, "FlashAttention-2", 2023): the forward pass with
// sums that are rescaled where a larger score comes, the backward pass with probabilities made again from log_sums.
//
//   forward          a block a tile of queries:  s = q k'   p = exp(s - top)   y += p v
//   backward of q    a block a tile of queries:  s = q k'   dp = dy v'   a += (p dp) k   b += p k   dot += p dp
//                    dq = a - dot * b, and dot is kept: y, from which it could be had, is no input
//   backward of k, v a block a tile of keys:     s = q k'   dp = dy v'   dv += p' dy   dk += (p (dp - dot))' q
//
// Scores are multiplied by log2(e), since a GPU has powers of two. Tiles of which no query sees a key are skipped.
#pragma once

#include "device/cuda/bodies/attention.h"
#include "device/cuda/bodies/tile_products.h"

namespace plimsoll::cuda {

// 2 ^ x, and 0 where that is less than the least normal number.
PLIMSOLL_BODY float power_of_two(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

inline constexpr float kLog2E = 1.44269504088896341f, kLn2 = 0.693147180559945309f;

// How scores follow from products of queries and keys, and what falls of their probabilities.
struct TileScores {
  AttentionMask mask;
  AttentionDropout dropout;
  const int32_t* documents = nullptr;  // as in AttentionScores
  Divisor heads_of_documents = 1;
  int32_t queries = 1, keys = 1;
  int32_t left = 0, right = 0;  // how far before and behind its own place a query sees; no further than 2^30
  float factor = 1;             // of a product: scale * log2(e), or where scores are capped, scale / softcap
  float cap = 0;                // softcap * log2(e); 0: not capped
  bool alike = false;           // a query that sees no key attends to all alike

  PLIMSOLL_BODY bool drops() const { return dropout.stream.step_number != nullptr; }
  PLIMSOLL_BODY int last_query(int l, int rows) const { return (l + rows < queries ? l + rows : queries) - 1; }
  // Of a tile of queries from l and keys from s: no query sees any key; each sees all, and nothing is added to scores.
  PLIMSOLL_BODY bool is_outside(int l, int rows, int s, int columns) const {
    return s > last_query(l, rows) + right || s + columns - 1 < l - left;
  }
  PLIMSOLL_BODY bool is_plain(int l, int rows, int s, int columns) const {
    return !has_biases() && s + columns <= keys && s + columns - 1 <= l + right && s >= last_query(l, rows) - left;
  }
  // Whether more than its place decides what a query sees; then tiles have biases.
  PLIMSOLL_BODY bool has_biases() const {
    return mask.allowed != nullptr || mask.added != nullptr || documents != nullptr;
  }
  // By its place: keys from the first to the last.
  struct Seen {
    int first, last;
    PLIMSOLL_BODY bool has(int key) const { return key >= first && key <= last; }
  };
  PLIMSOLL_BODY Seen seen_by(int query) const {
    return {query - left, query >= queries ? -1 : query + right < keys ? query + right : keys - 1};
  }
};

// What is added to the scores of a tile: minus infinity where a query does not see a key.
template <int kThreads, int kRows, int kKeys>
PLIMSOLL_BODY void fill_biases(Tile<kRows, kKeys>& biases, const TileScores& scores, int64_t head, int l, int s,
                               int thread) {
  const AttentionMask& mask = scores.mask;
  const int64_t first = mask_offset(mask, head);
  const int32_t* ids = nullptr;
  if (scores.documents != nullptr) {
    ids = scores.documents +
          divide(static_cast<int64_t>(static_cast<uint32_t>(head)), scores.heads_of_documents).quotient * scores.keys;
  }
  PLIMSOLL_UNROLL(1)
  for (int i = thread; i < kRows * kKeys / 4; i += kThreads) {
    const int row = i / (kKeys / 4), column = i % (kKeys / 4) * 4, query = l + row;
    const TileScores::Seen seen = scores.seen_by(query);
    Four four;
    PLIMSOLL_UNROLL_ALL
    for (int k = 0; k < 4; ++k) {
      const int key = s + column + k;
      float bias = 0;
      if (!seen.has(key)) {
        bias = -INFINITY;
      } else {
        const int64_t at = first + query * mask.to_row + key * mask.to_column;
        if (mask.added != nullptr)
          bias = mask.added[at] == -INFINITY ? -INFINITY : fmaxf(mask.added[at], kLeastAdded) * kLog2E;
        if (mask.allowed != nullptr && mask.allowed[at] == 0) bias = -INFINITY;
        if (ids != nullptr && ids[query] != ids[key]) bias = -INFINITY;
      }
      four.v[k] = bias;
    }
    store_four(biases.at(row, column), four);
  }
}

// Which probabilities of a tile are left by dropout, a bit each.
template <int kRows, int kKeys>
struct TileKept {
  uint8_t fours[kRows][kKeys / 4];
  PLIMSOLL_BODY bool is(int row, int column) const { return ((fours[row][column / 4] >> (column % 4)) & 1) != 0; }
};
PLIMSOLL_BODY uint32_t kept_of_block(const AttentionDropout& dropout, int64_t block) {
  const Block4 draws = draws_of_block(dropout.stream, block);
  const auto bit = [&](uint32_t draw) { return draw >= dropout.threshold ? 1U : 0U; };
  return bit(draws.word[0]) | bit(draws.word[1]) << 1 | bit(draws.word[2]) << 2 | bit(draws.word[3]) << 3;
}
template <int kThreads, int kRows, int kKeys>
PLIMSOLL_BODY void fill_kept(TileKept<kRows, kKeys>& kept, const TileScores& scores, int64_t head, int l, int s,
                             int thread) {
  const int64_t first = first_draw(scores.dropout.stream);
  PLIMSOLL_UNROLL(2)
  for (int i = thread; i < kRows * kKeys / 4; i += kThreads) {
    const int row = i / (kKeys / 4), four = i % (kKeys / 4);
    const int64_t at = first + (head * scores.queries + l + row) * scores.keys + s + 4 * four;
    const uint32_t here = kept_of_block(scores.dropout, at / 4);
    const uint32_t next = at % 4 == 0 ? 0 : kept_of_block(scores.dropout, at / 4 + 1);
    const uint32_t bits = (here | next << 4) >> (at % 4) & 15;
    kept.fours[row][four] = static_cast<uint8_t>(bits);
  }
}

// Products times the factor, or capped; by log2(e).
template <int kRows, int kColumns>
PLIMSOLL_BODY void scale_scores(float (&v)[kRows][kColumns], const TileScores& scores) {
  if (scores.cap == 0) {
    PLIMSOLL_UNROLL_ALL
    for (int i = 0; i < kRows; ++i) {
      PLIMSOLL_UNROLL_ALL
      for (int j = 0; j < kColumns; ++j) v[i][j] *= scores.factor;
    }
  } else {
    PLIMSOLL_UNROLL_ALL
    for (int i = 0; i < kRows; ++i) {
      PLIMSOLL_UNROLL_ALL
      for (int j = 0; j < kColumns; ++j) v[i][j] = scores.cap * tanhf(v[i][j] * scores.factor);
    }
  }
}

// Minus infinity where a query does not see a key by their places.
template <class Part>
PLIMSOLL_BODY void hide_unseen(float (&v)[Part::kR][Part::kC], const Part& part, const TileScores& scores, int l,
                               int s) {
  PLIMSOLL_UNROLL_ALL
  for (int i = 0; i < Part::kR; ++i) {
    const TileScores::Seen seen = scores.seen_by(l + part.row_of(i));
    PLIMSOLL_UNROLL_ALL
    for (int j = 0; j < Part::kC; ++j) v[i][j] = seen.has(s + part.column_of(j)) ? v[i][j] : -INFINITY;
  }
}

// Where tensors of all heads lie, and which tile is a block's.
struct TileHeads {
  Divisor heads = 1;   // of queries
  Divisor groups = 1;  // query heads of each head of k and v
  int32_t width = 1, value_width = 1;
  bool by_four = false, values_by_four = false;  // rows of queries and keys, of values and results, begin at 16 bytes
  PLIMSOLL_BODY int depth() const { return (width + 7) / 8 * 8; }
  PLIMSOLL_BODY int value_depth() const { return (value_width + 7) / 8 * 8; }
  PLIMSOLL_BODY int64_t key_head(int64_t head) const { return divide(head, groups).quotient; }
};

// What makes probabilities of a row's scores: 2 ^ (score - top - log_sum). Of a mask's large numbers `top` is one, and a sum of
// both would lose the other.
struct TileRow {
  float top, log_sum;
};

}  // namespace plimsoll::cuda
