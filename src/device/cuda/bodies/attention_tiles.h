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
#include "device/cuda/bodies/tile.h"

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
    return mask.allowed == nullptr && mask.added == nullptr && documents == nullptr && s + columns <= keys &&
           s + columns - 1 <= l + right && s >= last_query(l, rows) - left;
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
    Four four;
    PLIMSOLL_UNROLL_ALL
    for (int k = 0; k < 4; ++k) {
      const int key = s + column + k;
      float bias = 0;
      if (query >= scores.queries || key >= scores.keys || key > query + scores.right || key < query - scores.left) {
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
  PLIMSOLL_UNROLL(1)
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

// kWidth: the most elements of a head's rows.
template <int kWidth>
struct AttentionTiles {
  using Kind = EachTile;
  static constexpr int kThreads = 128, kBlocksTogether = 2, kPhases = 4, kFinishes = 2;
  static constexpr int kRows = kWidth > 64 ? 64 : 128, kKeys = 64, kDown = 16, kAcross = 8;
  static constexpr int kR = kRows / kDown, kC = kKeys / kAcross, kE = kWidth / kAcross;
  struct Shared {
    Tile<kRows, kWidth> queries;
    Tile<kKeys, kWidth> others;       // keys, then values
    Tile<kRows, kKeys> weights;       // biases, then probabilities
    float by_thread[kRows][kAcross];  // of a row: the largest score that each thread has; at last sums
    TileKept<kRows, kKeys> kept;
  };
  struct State {
    float score[kR][kC], out[kR][kE], top[kR], sum[kR];
  };

  float* y;
  float* log_sums;
  TileRow* rows;  // or null; where it is not, it is all that comes out
  const float* q;
  const float* k;
  const float* v;
  TileScores scores;
  TileHeads heads;

  struct Spot {
    int64_t head;
    int l;
  };
  // Those that see most keys come first, where they do not see what comes after them.
  PLIMSOLL_BODY Spot spot(int64_t block) const {
    const Division at = divide(block, heads.heads);
    const int tiles = (scores.queries + kRows - 1) / kRows;
    return {at.remainder, (tiles - 1 - static_cast<int>(at.quotient)) * kRows};
  }
  static int64_t count(int64_t heads, int64_t queries) { return heads * ((queries + kRows - 1) / kRows); }
  PLIMSOLL_BODY int rounds(int64_t) const { return (scores.keys + kKeys - 1) / kKeys; }
  PLIMSOLL_BODY bool skips(int64_t block, int round) const {
    return scores.is_outside(spot(block).l, kRows, round * kKeys, kKeys);
  }
  PLIMSOLL_BODY void begin(int64_t block, int thread, State& state, Shared& shared) const {
    const Spot at = spot(block);
    load_tile<kThreads>(shared.queries, q + (at.head * scores.queries + at.l) * heads.width, scores.queries - at.l,
                        heads.width, heads.by_four, thread);
    clear(state.out);
    PLIMSOLL_UNROLL_ALL
    for (int i = 0; i < kR; ++i) state.top[i] = -INFINITY, state.sum[i] = 0;
  }
  template <int kPhase>
  PLIMSOLL_BODY void phase(int64_t block, int round, int thread, State& state, Shared& shared) const {
    const Spot at = spot(block);
    const int row = thread / kAcross, across = thread % kAcross, s = round * kKeys;
    if constexpr (kPhase == 0) {
      load_tile<kThreads>(shared.others, k + (heads.key_head(at.head) * scores.keys + s) * heads.width, scores.keys - s,
                          heads.width, heads.by_four, thread);
      if (!scores.is_plain(at.l, kRows, s, kKeys))
        fill_biases<kThreads>(shared.weights, scores, at.head, at.l, s, thread);
      if (scores.drops()) fill_kept<kThreads>(shared.kept, scores, at.head, at.l, s, thread);
    } else if constexpr (kPhase == 1) {
      clear(state.score);
      add_rows_by_rows<kDown, kAcross>(state.score, shared.queries, shared.others, row, across, heads.depth());
      scale_scores(state.score, scores);
      if (!scores.is_plain(at.l, kRows, s, kKeys)) {
        PLIMSOLL_UNROLL_ALL
        for (int i = 0; i < kR; ++i) {
          PLIMSOLL_UNROLL_ALL
          for (int j = 0; j < kC; ++j) state.score[i][j] += *shared.weights.at(row + i * kDown, across + j * kAcross);
        }
      }
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < kR; ++i) {
        float top = state.score[i][0];
        PLIMSOLL_UNROLL_ALL
        for (int j = 1; j < kC; ++j) top = fmaxf(top, state.score[i][j]);
        shared.by_thread[row + i * kDown][across] = top;
      }
    } else if constexpr (kPhase == 2) {
      if (rows == nullptr) {
        load_tile<kThreads>(shared.others, v + (heads.key_head(at.head) * scores.keys + s) * heads.value_width,
                            scores.keys - s, heads.value_width, heads.values_by_four, thread);
      }
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < kR; ++i) {
        float top = state.top[i];
        PLIMSOLL_UNROLL_ALL
        for (int a = 0; a < kAcross; ++a) top = fmaxf(top, shared.by_thread[row + i * kDown][a]);
        const float shift = top == -INFINITY ? 0 : top, factor = power_of_two(state.top[i] - shift);
        state.top[i] = top;
        state.sum[i] *= factor;
        PLIMSOLL_UNROLL_ALL
        for (int e = 0; e < kE; ++e) state.out[i][e] *= factor;
        PLIMSOLL_UNROLL_ALL
        for (int j = 0; j < kC; ++j) {
          state.score[i][j] = power_of_two(state.score[i][j] - shift);
          state.sum[i] += state.score[i][j];
        }
      }
      if (rows != nullptr) return;
      if (scores.drops()) {
        PLIMSOLL_UNROLL_ALL
        for (int i = 0; i < kR; ++i) {
          PLIMSOLL_UNROLL_ALL
          for (int j = 0; j < kC; ++j)
            state.score[i][j] *= shared.kept.is(row + i * kDown, across + j * kAcross) ? scores.dropout.scale : 0;
        }
      }
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < kR; ++i) {
        PLIMSOLL_UNROLL_ALL
        for (int j = 0; j < kC; ++j) *shared.weights.at(row + i * kDown, across + j * kAcross) = state.score[i][j];
      }
    } else {
      if (rows != nullptr) return;
      add_rows_by_columns<kDown, kAcross, kKeys>(state.out, shared.weights, shared.others, row, across);
    }
  }
  template <int kFinish>
  PLIMSOLL_BODY void finish(int64_t block, int thread, State& state, Shared& shared) const {
    const int row = thread / kAcross, across = thread % kAcross;
    if constexpr (kFinish == 0) {
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < kR; ++i) shared.by_thread[row + i * kDown][across] = state.sum[i];
    } else {
      const Spot at = spot(block);
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < kR; ++i) {
        const int l = at.l + row + i * kDown;
        if (l >= scores.queries) continue;
        float sum = 0;
        PLIMSOLL_UNROLL_ALL
        for (int a = 0; a < kAcross; ++a) sum += shared.by_thread[row + i * kDown][a];
        const int64_t of_row = at.head * scores.queries + l;
        const bool blind = state.top[i] == -INFINITY;
        const float top = blind ? INFINITY : state.top[i], log_sum = blind ? 0 : log2f(sum);
        if (rows != nullptr) {
          if (across == 0) rows[of_row] = {top, log_sum};
          continue;
        }
        if (across == 0) log_sums[of_row] = (top + log_sum) * kLn2;
        store_row<kAcross>(y + of_row * heads.value_width, state.out, i, blind ? 0 : 1 / sum, heads.value_width,
                           heads.values_by_four, across);
      }
    }
  }
};

// What both parts of the backward pass read.
struct TileBackward {
  const float* q;
  const float* k;
  const float* v;
  const float* dy;
  const float* log_sums;
  const TileRow* rows;  // or null: of log_sums
  TileScores scores;
  TileHeads heads;
  float scale;        // of products
  float inverse_cap;  // 1 / cap, or 0
  bool fixed;         // a query that sees no key gives its scores no gradient

  PLIMSOLL_BODY TileRow row(int64_t i) const { return rows != nullptr ? rows[i] : TileRow{log_sums[i] * kLog2E, 0}; }
  // Where one of its queries attends to all alike, no key is skipped.
  PLIMSOLL_BODY bool skips(int64_t head, int l, int tile_rows, int s, int columns) const {
    if (!scores.is_outside(l, tile_rows, s, columns)) return false;
    if (!scores.alike) return true;
    for (int i = l; i <= scores.last_query(l, tile_rows); ++i) {
      if (log_sums[head * scores.queries + i] == INFINITY) return false;
    }
    return true;
  }
  // Rows beyond the last have no probabilities.
  template <int kRows>
  PLIMSOLL_BODY void load_rows(float (&tops)[kRows], float (&sums)[kRows], int64_t head, int l, int thread) const {
    if (thread >= kRows) return;
    TileRow of_row{INFINITY, 0};
    if (l + thread < scores.queries) of_row = row(head * scores.queries + l + thread);
    tops[thread] = of_row.top;
    sums[thread] = of_row.log_sum;
  }
  template <int kThreads, int kRows, int kWidth>
  PLIMSOLL_BODY void load_queries(Tile<kRows, kWidth>& queries, Tile<kRows, kWidth>& results, int64_t head, int l,
                                  int thread) const {
    const int64_t first = head * scores.queries + l;
    load_tile<kThreads>(queries, q + first * heads.width, scores.queries - l, heads.width, heads.by_four, thread);
    load_tile<kThreads>(results, dy + first * heads.value_width, scores.queries - l, heads.value_width,
                        heads.values_by_four, thread);
  }
  template <int kThreads, int kKeys, int kWidth>
  PLIMSOLL_BODY void load_keys(Tile<kKeys, kWidth>& keys, int64_t key_head, int s, int thread) const {
    load_tile<kThreads>(keys, k + (key_head * scores.keys + s) * heads.width, scores.keys - s, heads.width,
                        heads.by_four, thread);
  }
  template <int kThreads, int kKeys, int kWidth>
  PLIMSOLL_BODY void load_values(Tile<kKeys, kWidth>& values, int64_t key_head, int s, int thread) const {
    load_tile<kThreads>(values, v + (key_head * scores.keys + s) * heads.value_width, scores.keys - s,
                        heads.value_width, heads.values_by_four, thread);
  }
  template <int kThreads, int kRows, int kKeys>
  PLIMSOLL_BODY void fill(Tile<kRows, kKeys>& biases, TileKept<kRows, kKeys>& kept, int64_t head, int l, int s,
                          int thread) const {
    if (!scores.is_plain(l, kRows, s, kKeys)) fill_biases<kThreads>(biases, scores, head, l, s, thread);
    if (scores.drops()) fill_kept<kThreads>(kept, scores, head, l, s, thread);
  }
  // Of a scaled score and its bias.
  PLIMSOLL_BODY float probability(float score, float bias, float top, float log_sum) const {
    if (scores.alike && top == INFINITY) return 1 / static_cast<float>(scores.keys);
    return power_of_two(score + bias - top - log_sum);
  }
  // What tanh lets through.
  PLIMSOLL_BODY float slope(float score) const {
    const float bent = score * inverse_cap;
    return 1 - bent * bent;
  }
};

// In both parts half of a block's threads have a tile's scores, the other half the gradients of its probabilities: each thread
// so many that it multiplies more than it reads.
template <int kTileRows, int kTileKeys>
struct TileHalves {
  static constexpr int kThreads = 128, kHalf = kThreads / 2, kRows = kTileRows, kKeys = kTileKeys, kSide = 8;
  static constexpr int kR = kRows / kSide, kC = kKeys / kSide;
  static_assert(kSide * kSide == kHalf);
  bool of_scores;
  int row, across;
  PLIMSOLL_BODY explicit TileHalves(int thread)
      : of_scores(thread < kHalf), row(thread % kHalf / kSide), across(thread % kSide) {}
  PLIMSOLL_BODY int row_of(int i) const { return row + i * kSide; }
  PLIMSOLL_BODY int column_of(int j) const { return across + j * kSide; }
};

// Phase 1 of both: `score` is that of half of the threads, which turn it to probabilities and keep it, and the gradient of
// the other half.
template <class Halves, class Shared>
PLIMSOLL_BODY void make_probabilities(float (&score)[Halves::kR][Halves::kC], Shared& shared, const TileBackward& b,
                                      int l, int s, const Halves& half) {
  clear(score);
  add_rows_by_rows<Halves::kSide, Halves::kSide>(score, half.of_scores ? shared.queries : shared.results,
                                                 half.of_scores ? shared.keys : shared.values, half.row, half.across,
                                                 half.of_scores ? b.heads.depth() : b.heads.value_depth());
  if (!half.of_scores) return;
  scale_scores(score, b.scores);
  const bool plain = b.scores.is_plain(l, Halves::kRows, s, Halves::kKeys);
  PLIMSOLL_UNROLL_ALL
  for (int i = 0; i < Halves::kR; ++i) {
    const float top = shared.tops[half.row_of(i)], log_sum = shared.log_sums[half.row_of(i)];
    PLIMSOLL_UNROLL_ALL
    for (int j = 0; j < Halves::kC; ++j) {
      float* const weight = shared.weights.at(half.row_of(i), half.column_of(j));
      *weight = b.probability(score[i][j], plain ? 0 : *weight, top, log_sum);
    }
  }
}

template <int kWidth>
struct AttentionTilesQueries {
  using Kind = EachTile;
  static constexpr int kRows = 64, kKeys = kWidth > 64 ? 32 : 64;
  using Halves = TileHalves<kRows, kKeys>;
  static constexpr int kThreads = Halves::kThreads, kBlocksTogether = 2, kPhases = 5, kFinishes = 2;
  static constexpr int kAcross = 8, kDown = kThreads / kAcross;  // threads of the products with keys
  static constexpr int kR = kRows / kDown, kE = kWidth / kAcross;
  struct Shared {
    Tile<kRows, kWidth> queries, results;
    Tile<kKeys, kWidth> keys;
    union {
      Tile<kKeys, kWidth> values;
      Tile<kRows, kKeys> gradients;
    };
    Tile<kRows, kKeys> weights;  // biases, then probabilities; at last parts of dots
    float tops[kRows], log_sums[kRows];
    TileKept<kRows, kKeys> kept;
  };
  struct State {
    float score[Halves::kR][Halves::kC], by_gradient[kR][kE], by_weight[kR][kE], dot[Halves::kR];
  };

  float* dq;
  float* dots;
  TileBackward b;

  struct Spot {
    int64_t head;
    int l;
  };
  PLIMSOLL_BODY Spot spot(int64_t block) const {
    const Division at = divide(block, b.heads.heads);
    const int tiles = (b.scores.queries + kRows - 1) / kRows;
    return {at.remainder, (tiles - 1 - static_cast<int>(at.quotient)) * kRows};
  }
  static int64_t count(int64_t heads, int64_t queries) { return heads * ((queries + kRows - 1) / kRows); }
  PLIMSOLL_BODY int rounds(int64_t) const { return (b.scores.keys + kKeys - 1) / kKeys; }
  PLIMSOLL_BODY bool skips(int64_t block, int round) const {
    const Spot at = spot(block);
    return b.skips(at.head, at.l, kRows, round * kKeys, kKeys);
  }
  PLIMSOLL_BODY void begin(int64_t block, int thread, State& state, Shared& shared) const {
    const Spot at = spot(block);
    b.load_queries<kThreads>(shared.queries, shared.results, at.head, at.l, thread);
    b.load_rows(shared.tops, shared.log_sums, at.head, at.l, thread);
    clear(state.by_gradient);
    clear(state.by_weight);
    PLIMSOLL_UNROLL_ALL
    for (int i = 0; i < Halves::kR; ++i) state.dot[i] = 0;
  }
  template <int kPhase>
  PLIMSOLL_BODY void phase(int64_t block, int round, int thread, State& state, Shared& shared) const {
    const Spot at = spot(block);
    const Halves half(thread);
    const int s = round * kKeys;
    if constexpr (kPhase == 0) {
      const int64_t key_head = b.heads.key_head(at.head);
      b.load_keys<kThreads>(shared.keys, key_head, s, thread);
      b.load_values<kThreads>(shared.values, key_head, s, thread);
      b.fill<kThreads>(shared.weights, shared.kept, at.head, at.l, s, thread);
    } else if constexpr (kPhase == 1) {
      make_probabilities(state.score, shared, b, at.l, s, half);
    } else if constexpr (kPhase == 2) {
      if (half.of_scores) return;
      const bool drops = b.scores.drops();
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < Halves::kR; ++i) {
        PLIMSOLL_UNROLL_ALL
        for (int j = 0; j < Halves::kC; ++j) {
          const int r = half.row_of(i), c = half.column_of(j);
          float gradient = state.score[i][j];
          if (drops) gradient = shared.kept.is(r, c) ? gradient * b.scores.dropout.scale : 0;
          gradient *= *shared.weights.at(r, c);
          state.dot[i] += gradient;
          *shared.gradients.at(r, c) = gradient;
        }
      }
    } else if constexpr (kPhase == 3) {
      if (b.inverse_cap == 0 || !half.of_scores) return;
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < Halves::kR; ++i) {
        PLIMSOLL_UNROLL_ALL
        for (int j = 0; j < Halves::kC; ++j) {
          const float slope = b.slope(state.score[i][j]);
          *shared.weights.at(half.row_of(i), half.column_of(j)) *= slope;
          *shared.gradients.at(half.row_of(i), half.column_of(j)) *= slope;
        }
      }
    } else {
      add_rows_by_columns<kDown, kAcross, kKeys>(state.by_gradient, state.by_weight, shared.gradients, shared.weights,
                                                 shared.keys, thread / kAcross, thread % kAcross);
    }
  }
  template <int kFinish>
  PLIMSOLL_BODY void finish(int64_t block, int thread, State& state, Shared& shared) const {
    if constexpr (kFinish == 0) {
      const Halves half(thread);
      if (half.of_scores) return;
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < Halves::kR; ++i) *shared.weights.at(half.row_of(i), half.across) = state.dot[i];
    } else {
      const Spot at = spot(block);
      const int across = thread % kAcross;
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < kR; ++i) {
        const int r = thread / kAcross + i * kDown;
        if (at.l + r >= b.scores.queries) continue;
        float dot = 0;
        PLIMSOLL_UNROLL_ALL
        for (int a = 0; a < Halves::kSide; ++a) dot += *shared.weights.at(r, a);
        const int64_t of_row = at.head * b.scores.queries + at.l + r;
        if (across == 0) dots[of_row] = dot;
        PLIMSOLL_UNROLL_ALL
        for (int e = 0; e < kE; ++e) state.by_gradient[i][e] -= dot * state.by_weight[i][e];
        store_row<kAcross>(dq + of_row * b.heads.width, state.by_gradient, i,
                           b.fixed && shared.tops[r] == INFINITY ? 0 : b.scale, b.heads.width, b.heads.by_four, across);
      }
    }
  }
};

// Half of the threads have dv, the other half dk.
template <int kWidth>
struct AttentionTilesKeys {
  using Kind = EachTile;
  static constexpr int kRows = kWidth > 64 ? 32 : 64, kKeys = 64;
  using Halves = TileHalves<kRows, kKeys>;
  static constexpr int kThreads = Halves::kThreads, kBlocksTogether = 2, kPhases = 5, kFinishes = 1;
  static constexpr int kSide = Halves::kSide, kE = kWidth / kSide;
  struct Shared {
    Tile<kKeys, kWidth> keys;
    union {
      Tile<kKeys, kWidth> values;
      Tile<kRows, kKeys> gradients;
    };
    Tile<kRows, kWidth> queries, results;
    Tile<kRows, kKeys> weights;  // biases, then probabilities
    float tops[kRows], log_sums[kRows], dots[kRows];
    TileKept<kRows, kKeys> kept;
  };
  struct State {
    float score[Halves::kR][Halves::kC], out[kKeys / kSide][kE];
  };

  float* dk;
  float* dv;
  const float* dots;
  TileBackward b;
  Divisor key_heads;

  struct Spot {
    int64_t key_head;
    int s;
  };
  PLIMSOLL_BODY Spot spot(int64_t block) const {
    const Division at = divide(block, key_heads);
    return {at.remainder, static_cast<int>(at.quotient) * kKeys};
  }
  static int64_t count(int64_t heads, int64_t keys) { return heads * ((keys + kKeys - 1) / kKeys); }
  PLIMSOLL_BODY int tiles() const { return (b.scores.queries + kRows - 1) / kRows; }
  PLIMSOLL_BODY int rounds(int64_t) const { return static_cast<int>(b.heads.groups.value) * tiles(); }
  struct Round {
    int64_t head;
    int l;
  };
  PLIMSOLL_BODY Round of_round(int64_t key_head, int round) const {
    const int group = round / tiles();
    return {key_head * b.heads.groups.value + group, (round - group * tiles()) * kRows};
  }
  PLIMSOLL_BODY bool skips(int64_t block, int round) const {
    const Spot at = spot(block);
    const Round here = of_round(at.key_head, round);
    return b.skips(here.head, here.l, kRows, at.s, kKeys);
  }
  PLIMSOLL_BODY void begin(int64_t block, int thread, State& state, Shared& shared) const {
    const Spot at = spot(block);
    b.load_keys<kThreads>(shared.keys, at.key_head, at.s, thread);
    clear(state.out);
  }
  template <int kPhase>
  PLIMSOLL_BODY void phase(int64_t block, int round, int thread, State& state, Shared& shared) const {
    const Spot at = spot(block);
    const Round here = of_round(at.key_head, round);
    const Halves half(thread);
    if constexpr (kPhase == 0) {
      b.load_queries<kThreads>(shared.queries, shared.results, here.head, here.l, thread);
      b.load_values<kThreads>(shared.values, at.key_head, at.s, thread);
      b.load_rows(shared.tops, shared.log_sums, here.head, here.l, thread);
      if (thread < kRows)
        shared.dots[thread] =
            here.l + thread < b.scores.queries ? dots[here.head * b.scores.queries + here.l + thread] : 0;
      b.fill<kThreads>(shared.weights, shared.kept, here.head, here.l, at.s, thread);
    } else if constexpr (kPhase == 1) {
      make_probabilities(state.score, shared, b, here.l, at.s, half);
    } else if constexpr (kPhase == 2) {
      if (half.of_scores) return;
      const bool drops = b.scores.drops();
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < Halves::kR; ++i) {
        const float dot = shared.dots[half.row_of(i)];
        const bool fixed = b.fixed && shared.tops[half.row_of(i)] == INFINITY;
        PLIMSOLL_UNROLL_ALL
        for (int j = 0; j < Halves::kC; ++j) {
          const int r = half.row_of(i), c = half.column_of(j);
          float* const weight = shared.weights.at(r, c);
          const float p = *weight;
          float gradient = state.score[i][j];
          if (drops) {
            const float factor = shared.kept.is(r, c) ? b.scores.dropout.scale : 0;
            gradient *= factor;
            *weight = p * factor;
          }
          *shared.gradients.at(r, c) = fixed ? 0 : p * (gradient - dot);
        }
      }
    } else if constexpr (kPhase == 3) {
      if (b.inverse_cap == 0 || !half.of_scores) return;
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < Halves::kR; ++i) {
        PLIMSOLL_UNROLL_ALL
        for (int j = 0; j < Halves::kC; ++j)
          *shared.gradients.at(half.row_of(i), half.column_of(j)) *= b.slope(state.score[i][j]);
      }
    } else {
      add_columns_by_columns<kSide, kSide, kRows>(state.out, half.of_scores ? shared.weights : shared.gradients,
                                                  half.of_scores ? shared.results : shared.queries, half.row,
                                                  half.across);
    }
  }
  template <int>
  PLIMSOLL_BODY void finish(int64_t block, int thread, State& state, Shared&) const {
    const Spot at = spot(block);
    const Halves half(thread);
    const int width = half.of_scores ? b.heads.value_width : b.heads.width;
    float* const to = half.of_scores ? dv : dk;
    PLIMSOLL_UNROLL_ALL
    for (int i = 0; i < kKeys / kSide; ++i) {
      const int key = at.s + column_of_four<kSide>(half.row, i / 4) + i % 4;
      if (key >= b.scores.keys) continue;
      store_row<kSide>(to + (at.key_head * b.scores.keys + key) * width, state.out, i, half.of_scores ? 1 : b.scale,
                       width, half.of_scores ? b.heads.values_by_four : b.heads.by_four, half.across);
    }
  }
};

// After the tiles, where a query that sees no key attends to all alike: an element of y each.
struct AttentionBlindRows {
  using Kind = EachElement;
  float* y;
  const float* log_sums;
  const float* v;
  AttentionDropout dropout;
  Divisor queries, groups, value_width;
  int64_t keys;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Division at = divide(i, value_width);
    const int64_t row = at.quotient;
    if (log_sums[row] != INFINITY) return;
    const int64_t head = divide(divide(row, queries).quotient, groups).quotient;
    const float* const values = v + head * keys * value_width + at.remainder;
    double sum = 0;
    for (int64_t s = 0; s < keys; ++s) {
      sum += static_cast<double>(kept(dropout, row * keys + s, 1 / static_cast<float>(keys))) * values[s * value_width];
    }
    y[i] = static_cast<float>(sum);
  }
};

}  // namespace plimsoll::cuda
